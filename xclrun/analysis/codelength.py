"""Online (prequential) codelength: bits to send all labels, each coded by a model trained on the labels before.

Examples in a fixed order are split into growing subsets S_1 ⊂ … ⊂ S_M; block i is S_i without S_{i−1}:

    L = |S_1| log2 |Y| − Σ_{i=2…M} log2 p(labels of block i | texts; model trained on S_{i−1})

in bits. The first block is coded uniformly, or by the start if the start already knows the head. Source: "Learning and
Evaluating General Linguistic Intelligence" §4 (GLI).

The code of an example (`codes`):
- class: log2 p(gold class); |Y| is the number of classes.
- tags: the log2-probability of the gold sequence of the words that the model saw (CRF, or a softmax for each word), and
  log2 |tags| for each word beyond the length limit, as for each word of the uniform code.
- answer: log2 p(first gold answer) among the |Y| spans of its text; log2 |Y| where it has no probability (too long, or
  in no window).
Label sets and texts are known beforehand. Dev data for choosing checkpoints are free; ``trainer.selection=last`` gives
the strict code.
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

# Kinds of codes, and what a metric scores → the kind of its code.
LABELS, TAGS, ANSWERS = "labels", "tags", "answers"
OF = {Scored.labels: LABELS, Scored.words: TAGS, Scored.spans: TAGS, Scored.answers: ANSWERS}
COLUMNS = ("log2_gold", "log2_gold_tags", "tokens", "seen")
# Additionally for answers, where |Y| differs between examples.
OF_ANSWERS = ("log2_classes",)
# Largest positive log-probability, in bits, that counts as a rounding error.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Codelength:
    """Length of a code in bits, and its number of examples."""

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
    """Code lengths of the labels of one block.

    Attributes:
        examples: their number.
        bits: under the model before the block.
        uniform: under the uniform code.
    """

    examples: int
    bits: float
    uniform: float

    @classmethod
    def of(cls, log2_gold: ArrayLike, uniform: ArrayLike) -> BlockCode:
        """Add up the log2-probabilities of a block's gold labels, and their uniform codes in bits, both (n,).

        Raises:
            ValueError: no example, or a log-probability that is positive or not finite, as for a gold label that
                training never had.
        """
        log2_p, bits = np.asarray(log2_gold, dtype=float).ravel(), np.asarray(uniform, dtype=float).ravel()
        if not log2_p.size:
            raise ValueError("a codelength needs at least one example")
        if not np.isfinite(log2_p).all() or (log2_p > ROUNDING).any():
            raise ValueError("log2-probabilities of gold labels must be finite and at most 0")
        # Exact sums do not depend on the order of the examples.
        return cls(log2_p.size, math.fsum(np.maximum(-log2_p, 0)), math.fsum(np.broadcast_to(bits, log2_p.shape)))


def online_codelength(blocks: Sequence[BlockCode], start_knows: bool = False) -> Codelength:
    """Return L of all blocks, in their order.

    Args:
        blocks: each under the model trained on the blocks before; the first one under the start.
        start_knows: whether the start knows the head and codes the first block; otherwise that is coded uniformly.

    Raises:
        ValueError: no block.
    """
    if not blocks:
        raise ValueError("a codelength needs at least one block")
    first = blocks[0].bits if start_knows else blocks[0].uniform
    bits = math.fsum([first, *(block.bits for block in blocks[1:])])
    return Codelength(bits, sum(block.examples for block in blocks))


def codes(rows: pa.Table, classes: Mapping[str, int]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return kind of code → log2-probabilities of the gold labels, and bits of the uniform code; each (n,).

    Args:
        rows: predictions of a block (`xclrun.store.predictions`) with `COLUMNS`, for answers also `OF_ANSWERS`.
        classes: numbers of labels and tags.
    """
    labels, tags, tokens, seen = (rows[name].to_numpy().astype(float) for name in COLUMNS)
    coded = {}
    if classes[LABELS] and not np.isnan(labels).all():
        coded[LABELS] = labels, np.full(len(labels), math.log2(classes[LABELS]))
    if classes[TAGS]:
        each = math.log2(classes[TAGS])
        coded[TAGS] = tags - (tokens - seen) * each, tokens * each
    if OF_ANSWERS[0] in rows.column_names:
        uniform = rows[OF_ANSWERS[0]].to_numpy().astype(float)
        coded[ANSWERS] = np.where(np.isnan(labels), -uniform, labels), uniform
    return coded


def of_block(rows: pa.Table, classes: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return kind of code → its `BlockCode`, as plain data.

    Raises:
        ValueError: see `BlockCode.of`.
    """
    return {kind: asdict(BlockCode.of(*arrays)) for kind, arrays in codes(rows, classes).items()}


def parts(record: RunRecord) -> list[str]:
    """Return the kinds of codes of a run; empty if it learns no blocks."""
    return list(dict.fromkeys(kind for block in record.coded for kind in block["codes"]))


def blocks(record: RunRecord, kind: str) -> list[BlockCode] | None:
    """Return the codes of a run's blocks; None if the run learns none, or some are not coded yet."""
    coded = [BlockCode(**block["codes"][kind]) for block in record.coded if kind in block["codes"]]
    return coded if coded and len(coded) == record.config["dataset"]["blocks"] else None


def start_knows(record: RunRecord, kind: str) -> bool:
    """Whether the start codes the first block; otherwise it is coded uniformly."""
    known = record.coded[0]["start_knows"] if record.coded else ()
    # Earlier versions wrote one value for all kinds.
    return known if isinstance(known, bool) else kind in known


def code(record: RunRecord, kind: str) -> Codelength | None:
    """Return the online codelength of a run; None if it has none."""
    coded = blocks(record, kind)
    return None if coded is None else online_codelength(coded, start_knows(record, kind))


def code_of(record: RunRecord, metric: str) -> Codelength | None:
    """Return the online codelength of what a metric scores; None if there is none."""
    known = BY_NAME.get(metric)
    if known is KEY_SCORE:
        known = BY_NAME.get(record.metric_of[record.languages[-1]])
    return None if known is None or known.beside else code(record, OF.get(known.of, ""))


def bits_of_blocks(record: RunRecord, kinds: Iterable[str]) -> np.ndarray:
    """Return the bits of each block as L counts them, shape (M,), summed over kinds of codes.

    Raises:
        ValueError: the run has no complete code.
    """
    total = np.zeros(record.config["dataset"]["blocks"])
    for kind in kinds:
        coded = blocks(record, kind)
        if coded is None:
            raise ValueError(f"{record.run_id} has no codelength")
        total += [block.bits for block in coded]
        if not start_knows(record, kind):
            total[0] += coded[0].uniform - coded[0].bits
    return total


def switched(codes: ArrayLike) -> np.ndarray:
    """Return the bits of each block, shape (M,), if the best of K models codes each, from the bits of all, (K, M).

    Sending the choice costs log2 K bits for each block.
    """
    bits = np.asarray(codes, dtype=float)
    return np.asarray(bits.min(axis=0) + math.log2(len(bits)))
