"""Ratio of CPU times for log-likelihood and gradient: xclrun's CRF / pytorch-crf's, the reference of its tests.

Both are timed alternately in this process.
Emissions and tags are random: 16 sentences of 12 words, 80 tags.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torchcrf import CRF

from benchmarks.timing import REPETITIONS, summary
from xclrun.model.heads import TagCRF

SENTENCES, WORDS, TAGS = 16, 12, 80
# Forward and backward passes of each layer per measurement.
TIMES = 10


def crf_over_library() -> dict[str, Any]:
    """Return the ratio of CPU seconds, xclrun's CRF / pytorch-crf's."""
    ours, library = TagCRF(TAGS, batch_first=True), CRF(TAGS, batch_first=True)
    library.load_state_dict(ours.state_dict())
    random = torch.Generator().manual_seed(0)
    emissions = torch.randn(SENTENCES, WORDS, TAGS, generator=random, requires_grad=True)
    tags = torch.randint(TAGS, (SENTENCES, WORDS), generator=random)
    mask = torch.arange(WORDS) < torch.randint(4, WORDS + 1, (SENTENCES, 1), generator=random)

    def passes(layer: TagCRF | CRF) -> float:
        began = time.process_time()
        for _ in range(TIMES):
            arguments = (emissions, tags, mask)
            likelihood = layer(*arguments) if isinstance(layer, TagCRF) else layer(*arguments, reduction="none")
            likelihood.sum().backward()
        return time.process_time() - began

    passes(ours), passes(library)
    return summary([(passes(ours), passes(library)) for _ in range(REPETITIONS)])
