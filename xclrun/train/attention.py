"""Attention of [CLS]: the share that each word of a test split receives (Zhao et al. 2021, "FS", section 5, table 5).

The attention is softmax(q·k / √d) in the last layer, averaged over its heads: q is the query of [CLS], and k are the
keys of all subwords of the sentence, including special tokens. A word's share is the sum over its subwords within the
length limit. Words beyond the limit do not count. A separate forward pass in eval mode reads queries and keys, because
fused attention kernels do not return attention weights.

Runs with the same trained encoder and test splits share one stored summary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from xclrun.data.batches import Encoded, Ragged, length_sorted_batches
from xclrun.data.example import Example
from xclrun.model.network import Model
from xclrun.strategy.shared.inference import BATCH, evaluating
from xclrun.train.precision import autocast

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "attention.parquet"

# Word → number of its occurrences, and their mean share of attention.
Summary = Mapping[str, tuple[int, float]]


@torch.no_grad()
def subword_shares(model: Model, sentences: Encoded, device: torch.device, precision: str) -> np.ndarray:
    """Return the share of [CLS]'s attention that each entry of ``sentences.pieces.values`` receives, as float64.

    The shares of a sentence sum to 1.
    """
    offsets = sentences.pieces.offsets
    shares = np.zeros(int(offsets[-1]))
    with evaluating(model), _last_layer(model.encoder) as seen:
        heads: int = model.encoder.config.num_attention_heads  # type: ignore[union-attr,assignment]
        for indices in length_sorted_batches(sentences.lengths, BATCH):
            batch = sentences.batch(indices).to(device)
            with autocast(device, precision):
                model.encode(batch)
            attention = _attention(seen["query"][:, 0], seen["key"], batch.attention_mask, heads)
            for i, row in zip(indices, attention.double().cpu().numpy(), strict=True):
                shares[offsets[i] : offsets[i + 1]] = row[: offsets[i + 1] - offsets[i]]
    return shares


def by_word(shares: np.ndarray, numbers: Ragged, examples: Sequence[Example]) -> Summary:
    """Return the number of occurrences of each word form, and their mean share of attention.

    Args:
        shares: the share of each subword (see `subword_shares`).
        numbers: the index of each subword's word (see `xclrun.data.encode.word_numbers`).
        examples: the sentences, in the order of ``shares``; a pair has the words of both texts.
    """
    texts = [(*e.tokens, *e.tokens_b) for e in examples]
    words = [word for text in texts for word in text]
    starts = np.cumsum([0, *map(len, texts)])[:-1]
    inside = numbers.values >= 0
    occurrences = (np.repeat(starts, numbers.lengths) + numbers.values)[inside]
    seen = np.bincount(occurrences, minlength=len(words)) > 0
    gets = np.bincount(occurrences, shares[inside], minlength=len(words))
    kinds = {word: i for i, word in enumerate(dict.fromkeys(words))}
    kind = np.array([kinds[word] for word in words], np.int64)[seen]
    counts = np.bincount(kind, minlength=len(kinds))
    sums = np.bincount(kind, gets[seen], minlength=len(kinds))
    # Rounding can push a sum of shares above 1.
    return {word: (int(counts[i]), min(1.0, float(sums[i] / counts[i]))) for word, i in kinds.items() if counts[i]}


def table(summaries: Mapping[str, Summary]) -> pa.Table:
    """Return the summaries as a table with `xclrun.analysis.fewshot.attention.COLUMNS`, but without the hop."""
    import pyarrow as pa

    rows = [(language, word, *counts) for language, words in summaries.items() for word, counts in words.items()]
    word_type = pa.dictionary(pa.int32(), pa.string())
    types = {"language": word_type, "word": pa.string(), "count": pa.int32(), "attention": pa.float64()}
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    return pa.table({name: pa.array(c, type=t) for (name, t), c in zip(types.items(), columns, strict=True)})


def of_hop(rows: pa.Table, hop: int) -> pa.Table:
    """Add the column ``hop`` to the rows of a hop."""
    import pyarrow as pa

    return rows.add_column(0, "hop", pa.repeat(hop, len(rows)).cast(pa.int16()))


def _attention(query: Tensor, keys: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Return the attention (B, L) float32 of ``query`` (B, H) over ``keys`` (B, L, H), averaged over heads."""
    q, k = query.float().unflatten(1, (heads, -1)), keys.float().unflatten(2, (heads, -1))
    scores = torch.einsum("bhd,blhd->bhl", q, k) / q.shape[2] ** 0.5
    return scores.masked_fill(mask[:, None] == 0, -torch.inf).softmax(dim=2).mean(dim=1)


@contextmanager
def _last_layer(encoder: Any) -> Iterator[dict[str, Tensor]]:
    """Yield a dict that receives the last layer's ``query`` and ``key``, each (B, L, H), in every forward pass."""
    layer = encoder.encoder.layer[-1].attention.self
    seen: dict[str, Tensor] = {}
    hooks = [
        getattr(layer, name).register_forward_hook(lambda _, inputs, output, name=name: seen.update({name: output}))
        for name in ("query", "key")
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
