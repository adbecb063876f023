"""The section of a report about runs that learn the same blocks: their online codelengths, whatever model they have.

GLI = "Learning and Evaluating General Linguistic Intelligence" (Yogatama et al. 2019), section 4; docs/codelength.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from xclrun.analysis.codelength import bits_of_blocks, blocks, parts, start_knows, switched
from xclrun.analysis.grouping import grouped, strategy_labels
from xclrun.analysis.record import RunRecord
from xclrun.report.section import Section

# Settings that rows name in their own columns.
IN_COLUMNS = ("languages", "trainer.selection", "trainer.patience")


@dataclass(frozen=True)
class Coder:
    """Runs that code the same blocks alike, but for the seed: a row of a table.

    Attributes:
        start: the languages, or mixtures, that were learned first; empty: hop 0.
        strict: whether no labels of dev data chose weights.
    """

    model: str
    start: tuple[str, ...]
    strategy: str
    strict: bool
    runs: tuple[RunRecord, ...]

    @property
    def name(self) -> str:
        """For legends and sentences: ``e5_small after en, growing``."""
        start = f" after {' → '.join(self.start)}" if self.start else ""
        return f"{self.model}{start}, {self.strategy}{'' if self.strict else ', with dev'}"

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(run.run_id for run in self.runs)

    def bits(self, what: Sequence[str]) -> np.ndarray:
        """Return the bits of each block, shape (runs, M)."""
        return np.stack([bits_of_blocks(run, what) for run in self.runs])


def is_strict(run: RunRecord) -> bool:
    """Say whether labels of dev data chose neither a run's weights nor the end of its training."""
    trainer = run.config["trainer"]
    return bool(trainer["selection"] == "last" and not trainer["patience"])


def in_blocks(run: RunRecord) -> bool:
    """Say whether a run learns blocks, and all of them have been coded."""
    return run.status == "finished" and bool(found := parts(run)) and all(blocks(run, what) for what in found)


def codelength_sections(records: Iterable[RunRecord]) -> list[CodelengthSection]:
    """Return a section for each set of blocks that finished runs have learned; other runs are skipped."""
    coded = [record for record in records if in_blocks(record)]
    return [CodelengthSection(runs) for runs in grouped(coded, _of).values()]


def _of(run: RunRecord) -> tuple[object, ...]:
    """Return what runs agree on that code the same answers: their blocks, and what these cost uniformly."""
    uniform = tuple((what, tuple((b.examples, b.uniform) for b in blocks(run, what) or ())) for what in parts(run))
    return run.dataset, run.languages[-1], run.bucket, run.config["dataset"].get("subset_seed", 0), uniform


class CodelengthSection(Section):
    definitions = {
        "L ↓": "online codelength: bits to send the labels of all blocks, each coded by the model that learned those "
        "before it (GLI §4)"
    }
    legend = "bits, mean ± standard deviation over seeds; fewer is better"

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        super().__init__()
        self.runs, first = runs, runs[0]
        self.dataset, self.key, self.parts = first.dataset, first.languages[-1], parts(first)
        coded = {what: blocks(first, what) or [] for what in self.parts}
        # Examples of each block, and its bits in the uniform code; by what is coded, and together.
        self.sizes = np.array([block.examples for block in coded[self.parts[0]]])
        self.uniform_of = {what: np.array([block.uniform for block in each]) for what, each in coded.items()}
        self.uniform = np.sum(list(self.uniform_of.values()), axis=0)
        self.title = f"{self.dataset} · {self.key} in {len(self.sizes)} blocks · online codelength"
        self.where = f"codelength_{self.dataset}_{self.key}_{len(self.sizes)}"

    @cached_property
    def coders(self) -> list[Coder]:
        """The rows, the shortest code first."""
        labels = strategy_labels(self.runs, IN_COLUMNS)
        rows = grouped(self.runs, lambda r: (r.model, r.elements[:-1], labels[r.run_id], is_strict(r)))
        coders = [
            Coder(model, start, label, strict, tuple(sorted(runs, key=lambda r: r.seed)))
            for (model, start, label, strict), runs in rows.items()
        ]
        return sorted(coders, key=lambda coder: float(coder.bits(self.parts).sum(axis=1).mean()))

    @property
    def total(self) -> int:
        return int(self.sizes.sum())

    def switching(self, strict: bool) -> tuple[np.ndarray, int] | None:
        """Return the bits of each block where the best coder codes it, (seeds, M), and among how many it is chosen.

        Over the seeds that all coders of the kind have; None if there is no common seed, or one coder.
        """
        coders = [coder for coder in self.coders if coder.strict == strict]
        bits = [{run.seed: bits_of_blocks(run, self.parts) for run in coder.runs} for coder in coders]
        seeds = sorted(set.intersection(*map(set, bits))) if len(bits) > 1 else []
        return (np.stack([switched([one[seed] for one in bits]) for seed in seeds]), len(bits)) if seeds else None

    @property
    def caveats(self) -> list[str]:
        knows = {}
        for coder in self.coders:
            if known := [what for what in self.parts if start_knows(coder.runs[0], what)]:
                knows[coder.name] = "" if known == self.parts else f" ({', '.join(known)} alone)"
        names = "; ".join(f"{name}{which}" for name, which in sorted(knows.items()))
        told = f"the first block is coded by the start, which knows the head: {names}"
        return [*([told] if knows else []), *super().caveats]

    @property
    def conclusions(self) -> list[str]:
        per = [(coder.name, float(coder.bits(self.parts).sum(axis=1).mean()) / self.total) for coder in self.coders]
        even = float(self.uniform.sum()) / self.total
        said = "; ".join(f"{name} {bits:.2f}" for name, bits in per)
        beside = "" if any(len(coder.runs) > 1 for coder in self.coders) else " One seed each: nothing is tested."
        return [f"Bits for each example, the shortest code first: {said}; the uniform code {even:.2f}.{beside}"]
