"""The cosine classifier against its formula; where it stands in, and where it does not."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from xclrun.model.heads import ClassHead
from xclrun.run import Run

from .few import CLASSES, changed, planned


def test_logits_are_scaled_cosines() -> None:
    head = ClassHead(2, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 0.5], [-3.0, -3.0]]))
    x = torch.tensor([[1.0, 1.0], [0.0, -4.0]])
    linear = head(x)
    assert torch.allclose(linear, x @ head.weight.T + head.bias)
    head.scale = 10.0
    half = 10 / math.sqrt(2)
    assert torch.allclose(head(x), torch.tensor([[half, half, -10.0], [0.0, -10.0, half]]), atol=1e-5)
    head.scale = None
    assert torch.equal(head(x), linear)


def test_pooler_and_fresh_classifier_are_tuned(
    make_run: Callable[..., Run], do: Callable[..., Run], finished: Callable[..., Run]
) -> None:
    run = do(planned(make_run, "strategy=cos_pooler", *CLASSES))
    assert changed(run) == {"pooler.dense.weight", "pooler.dense.bias", "classifier.weight"}
    # Before adapting the source's linear classifier serves both languages, as under any other strategy.
    full = planned(finished, "strategy=full", *CLASSES)
    one, other = (r.directory.read_manifest()["stages"] for r in (run, full))
    assert [stage["scores"] for stage in one[:2]] == [stage["scores"] for stage in other[:2]]
