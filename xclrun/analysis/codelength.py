"""Online (prequential) codelength: bits to send all labels, each coded by a model trained on those sent before.

Examples in a fixed order are split into growing subsets S_1 ⊂ … ⊂ S_M; block i is S_i without S_{i−1}:

    L = |S_1| log2 |Y| − Σ_{i=2…M} log2 p(labels of block i | texts; model trained on S_{i−1})

in bits. The first block is coded uniformly, or by the start, where that knows the head already. Source: "Learning and
Evaluating General Linguistic Intelligence" §4 (GLI).

What is counted of an example (`codes` is the one place that says it): of a class log2 p(gold class), of which there are
|Y|; of tags the log2-probability of the gold sequence of the words that the model saw (CRF, or a softmax for each
word), and log2 |tags| for each word beyond the length limit, as for each word of the uniform code; of an answer
log2 p(first gold answer) among the |Y| spans of its own text, and log2 |Y| where it has no probability (too long, or in
no window). The label sets, and the texts, are known beforehand. Dev data that choose checkpoints are not paid for: the
strict code has ``trainer.selection=last``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from xclrun.core.task import BY_NAME, KEY_SCORE, Scored

if TYPE_CHECKING:
    import pyarrow as pa

    from xclrun.analysis.record import RunRecord

# What is coded → the metrics that it is under.
LABELS, TAGS, ANSWERS = "labels", "tags", "answers"
OF = {Scored.labels: LABELS, Scored.words: TAGS, Scored.spans: TAGS, Scored.answers: ANSWERS}
COLUMNS = ("log2_gold", "log2_gold_tags", "tokens", "seen")
# Beside them, of answers: |Y| is each example's own.
OF_ANSWERS = ("log2_classes",)
# Rounding can make a log-probability this much larger than 0, in bits.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Codelength:
    """Length of a code in bits, and for how many examples it is."""

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
    """What the labels of one block cost.

    Attributes:
        examples: how many it has.
        bits: under the model before it.
        uniform: under the uniform code.
    """

    examples: int
    bits: float
    uniform: float

    @classmethod
    def of(cls, log2_gold: ArrayLike, uniform: ArrayLike) -> BlockCode:
        """Add up a block, from the log2-probabilities of its gold labels and their uniform codes in bits, both (n,).

        Raises:
            ValueError: no example, or a log-probability that is positive or not a number (a gold label that training
                never had has no finite code).
        """
        given, even = np.asarray(log2_gold, dtype=float).ravel(), np.asarray(uniform, dtype=float).ravel()
        if not given.size:
            raise ValueError("a codelength needs at least one example")
        if not np.isfinite(given).all() or (given > ROUNDING).any():
            raise ValueError("log2-probabilities of gold labels must be finite and at most 0")
        # Exact sums, whatever the order of the examples.
        return cls(given.size, math.fsum(np.maximum(-given, 0)), math.fsum(np.broadcast_to(even, given.shape)))


def online_codelength(blocks: Sequence[BlockCode], start_knows: bool = False) -> Codelength:
    """Return L of all blocks, in their order.

    Args:
        blocks: each under the model trained on those before it; the first one under the start.
        start_knows: whether the start knows the head, so that it codes the first block too; otherwise that is uniform.

    Raises:
        ValueError: no block.
    """
    if not blocks:
        raise ValueError("a codelength needs at least one block")
    first = blocks[0].bits if start_knows else blocks[0].uniform
    bits = math.fsum([first, *(block.bits for block in blocks[1:])])
    return Codelength(bits, sum(block.examples for block in blocks))


def codes(rows: pa.Table, classes: Mapping[str, int]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return what is coded → log2-probabilities of what is gold, and bits of the uniform code; each (n,).

    Args:
        rows: predictions of a block (`xclrun.store.predictions`), with `COLUMNS`; of answers `OF_ANSWERS` too.
        classes: how many labels and tags there are; 0: there are none.
    """
    labels, tags, tokens, seen = (rows[name].to_numpy().astype(float) for name in COLUMNS)
    found = {}
    if classes[LABELS] and not np.isnan(labels).all():
        found[LABELS] = labels, np.full(len(labels), math.log2(classes[LABELS]))
    if classes[TAGS]:
        each = math.log2(classes[TAGS])
        found[TAGS] = tags - (tokens - seen) * each, tokens * each
    if OF_ANSWERS[0] in rows.column_names:
        uniform = rows[OF_ANSWERS[0]].to_numpy().astype(float)
        found[ANSWERS] = np.where(np.isnan(labels), -uniform, labels), uniform
    return found


def of_block(rows: pa.Table, classes: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return what is coded → its `BlockCode`, as plain data.

    Raises:
        ValueError: see `BlockCode.of`.
    """
    return {what: asdict(BlockCode.of(*of)) for what, of in codes(rows, classes).items()}


def parts(record: RunRecord) -> list[str]:
    """Return what a run codes, of its labels and tags; empty where it learns no blocks."""
    return list(dict.fromkeys(what for one in record.coded for what in one["codes"]))


def blocks(record: RunRecord, what: str) -> list[BlockCode] | None:
    """Return the blocks of a run; None where not all have been asked for, or the run learns none."""
    found = [BlockCode(**one["codes"][what]) for one in record.coded if what in one["codes"]]
    return found if found and len(found) == record.config["dataset"]["blocks"] else None


def start_knows(record: RunRecord, what: str) -> bool:
    """Whether the start codes the labels, tags or answers of the first block; otherwise they are coded uniformly."""
    known = record.coded[0]["start_knows"] if record.coded else ()
    # Earlier versions said it of all that is coded together.
    return known if isinstance(known, bool) else what in known


def code(record: RunRecord, what: str) -> Codelength | None:
    """Return the online codelength of a run's labels or tags; None where it has none."""
    found = blocks(record, what)
    return None if found is None else online_codelength(found, start_knows(record, what))


def code_of(record: RunRecord, metric: str) -> Codelength | None:
    """Return the online codelength of what a metric scores; None where there is none."""
    known = BY_NAME.get(metric)
    if known is KEY_SCORE:
        known = BY_NAME.get(record.metric_of[record.languages[-1]])
    return None if known is None or known.beside else code(record, OF.get(known.of, ""))


def bits_of_blocks(record: RunRecord, what: Iterable[str]) -> np.ndarray:
    """Return the bits of each block as L counts them, shape (M,), of several things together.

    Raises:
        ValueError: the run has no whole code.
    """
    total = np.zeros(record.config["dataset"]["blocks"])
    for one in what:
        found = blocks(record, one)
        if found is None:
            raise ValueError(f"{record.run_id} has no codelength")
        total += [block.bits for block in found]
        if not start_knows(record, one):
            total[0] += found[0].uniform - found[0].bits
    return total


def switched(codes: ArrayLike) -> np.ndarray:
    """Return the bits of each block where each is coded by the best of K models, shape (M,), from those of K, (K, M).

    The receiver has to be told which: log2 K bits for each block.
    """
    of = np.asarray(codes, dtype=float)
    return np.asarray(of.min(axis=0) + math.log2(len(of)))
