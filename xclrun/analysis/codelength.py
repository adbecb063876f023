"""Online (prequential) codelength: bits to transmit all labels, each coded by a model trained on the earlier labels.

Source: "Learning and Evaluating General Linguistic Intelligence" §4 (GLI). Examples in a fixed order are split into
growing subsets S_1 ⊂ … ⊂ S_M; block i is S_i without S_{i−1}:

    L = |S_1| log2 |Y| − Σ_{i=2…M} log2 p(labels of block i | texts; model trained on S_{i−1})

in bits, where |Y| is the number of possible labels. The first block is coded uniformly, or by the initial model if it
has a trained head. The code of an example depends on its task:

- class: −log2 p(gold class); |Y| is the number of classes.
- tags: −log2 p(gold tags of the words within the length limit), plus log2 |Y| for each word beyond it.
- answer: −log2 p(first gold answer) over the |Y| spans of its text; log2 |Y| if the answer is too long or in no window.
- text: −log2 p(reference and its end); the uniform code takes 8 bits for each UTF-8 byte and for the end, and encodes
  references that are too long. A pretrained model encodes the first block itself.

The labels of dev data, which select checkpoints, are not counted; ``trainer.selection=last`` needs no dev data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from xclrun.core.task import ANSWERS, BY_NAME, KEY_SCORE, LABELS, TAGS, WRITTEN, Scored

if TYPE_CHECKING:
    import pyarrow as pa

    from xclrun.analysis.record import RunRecord

KINDS = {
    Scored.labels: LABELS,
    Scored.words: TAGS,
    Scored.spans: TAGS,
    Scored.answers: ANSWERS,
    Scored.columns: WRITTEN,
}
COLUMNS = ("log2_gold", "log2_gold_tags", "tokens", "seen")
# Additional column for answers, since |Y| differs between examples.
ANSWER_COLUMNS = ("log2_classes",)
# Additional columns for texts.
WRITTEN_COLUMNS = ("log2_reference", "reference_bytes")
# Largest positive log-probability, in bits, that counts as a rounding error.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Codelength:
    bits: float
    examples: int

    @property
    def kbits(self) -> float:
        return self.bits / 1000

    @property
    def bits_per_example(self) -> float:
        return self.bits / self.examples


@dataclass(frozen=True)
class BlockCode:
    """Codelength of one block: ``bits`` with the model trained on earlier blocks, ``uniform`` with the uniform code."""

    examples: int
    bits: float
    uniform: float

    @classmethod
    def total(cls, log2_gold: ArrayLike, uniform: ArrayLike) -> BlockCode:
        """Sum over the n gold labels of a block: −log2 p, and the bits of the uniform code. Inputs have shape (n,)."""
        log2_p, bits = np.asarray(log2_gold, dtype=float).ravel(), np.asarray(uniform, dtype=float).ravel()
        if not log2_p.size:
            raise ValueError("a codelength needs at least one example")
        if not np.isfinite(log2_p).all() or (log2_p > ROUNDING).any():
            raise ValueError("log2-probabilities of gold labels must be finite and at most 0")
        # Exact sums do not depend on the order of the examples.
        return cls(log2_p.size, math.fsum(np.maximum(-log2_p, 0)), math.fsum(np.broadcast_to(bits, log2_p.shape)))


def online_codelength(blocks: Sequence[BlockCode], start_knows: bool = False) -> Codelength:
    """Return L; the first block is coded by the initial model if ``start_knows``, otherwise uniformly."""
    first = blocks[0].bits if start_knows else blocks[0].uniform
    bits = math.fsum([first, *(block.bits for block in blocks[1:])])
    return Codelength(bits, sum(block.examples for block in blocks))


def codes(rows: pa.Table, classes: Mapping[str, int]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return kind of code → two arrays: log2 p of each gold label, and the bits of its uniform code.

    Args:
        rows: predictions of a block with `COLUMNS`; `ANSWER_COLUMNS` for answers, `WRITTEN_COLUMNS` for texts.
        classes: `LABELS` → number of labels, `TAGS` → number of tags.
    """
    labels, tags, tokens, seen = (rows[name].to_numpy().astype(float) for name in COLUMNS)
    coded = {}
    if classes[LABELS] and not np.isnan(labels).all():
        coded[LABELS] = labels, np.full(len(labels), math.log2(classes[LABELS]))
    if classes[TAGS]:
        each = math.log2(classes[TAGS])
        coded[TAGS] = tags - (tokens - seen) * each, tokens * each
    if ANSWER_COLUMNS[0] in rows.column_names:
        uniform = rows[ANSWER_COLUMNS[0]].to_numpy().astype(float)
        coded[ANSWERS] = np.where(np.isnan(labels), -uniform, labels), uniform
    if WRITTEN_COLUMNS[0] in rows.column_names:
        log2, size = (rows[name].to_numpy().astype(float) for name in WRITTEN_COLUMNS)
        uniform = 8 * (size + 1)
        coded[WRITTEN] = np.where(np.isnan(log2), -uniform, log2), uniform
    return coded


def of_block(rows: pa.Table, classes: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return kind of code → its `BlockCode` as a dict."""
    return {kind: asdict(BlockCode.total(*arrays)) for kind, arrays in codes(rows, classes).items()}


def parts(record: RunRecord) -> list[str]:
    """Return the kinds of codes of a run."""
    return list(dict.fromkeys(kind for block in record.coded for kind in block["codes"]))


def blocks(record: RunRecord, kind: str) -> list[BlockCode] | None:
    """Return the codelengths of a run's blocks for one kind of code; None if a block is missing."""
    coded = [BlockCode(**block["codes"][kind]) for block in record.coded if kind in block["codes"]]
    return coded if coded and len(coded) == record.config["dataset"]["blocks"] else None


def start_knows(record: RunRecord, kind: str) -> bool:
    """Whether the initial model codes the first block; otherwise it is coded uniformly."""
    return bool(record.coded) and kind in record.coded[0]["start_knows"]


def code(record: RunRecord, kind: str) -> Codelength | None:
    coded = blocks(record, kind)
    return None if coded is None else online_codelength(coded, start_knows(record, kind))


def code_of(record: RunRecord, metric: str) -> Codelength | None:
    """Return the online codelength of the labels, tags or answers that a metric scores."""
    scored = BY_NAME.get(metric)
    if scored is KEY_SCORE:
        scored = BY_NAME.get(record.metric_of[record.languages[-1]])
    return None if scored is None or scored.beside else code(record, KINDS.get(scored.of, ""))


def bits_of_blocks(record: RunRecord, kinds: Iterable[str]) -> np.ndarray:
    """Return the bits that each of the M blocks contributes to L, shape (M,), summed over ``kinds`` of codes."""
    total = np.zeros(record.config["dataset"]["blocks"])
    for kind in kinds:
        coded = blocks(record, kind) or []
        total += [block.bits for block in coded]
        if not start_knows(record, kind):
            total[0] += coded[0].uniform - coded[0].bits
    return total


def switched(codes: ArrayLike) -> np.ndarray:
    """Return the bits of each of M blocks, coded with the best of K models, shape (M,).

    ``codes`` has the bits of each model and block, shape (K, M). The result includes log2 K bits per block to transmit
    the chosen model.
    """
    bits = np.asarray(codes, dtype=float)
    return np.asarray(bits.min(axis=0) + math.log2(len(bits)))
