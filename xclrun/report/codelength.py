"""Report section on online codelengths. It compares all runs that learn the same blocks, whatever their model.

GLI = "Learning and Evaluating General Linguistic Intelligence" (Yogatama et al. 2019), section 4.
See docs/checkpoints.md.
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

# Settings that have separate columns, so labels of strategies omit them.
IN_COLUMNS = ("languages", "trainer.selection", "trainer.patience")


@dataclass(frozen=True)
class Coder:
    """Runs that encode the same blocks and differ only in the seed. Each coder is a row of the tables.

    Attributes:
        start: languages or mixtures learned before the blocks. If empty, training on the blocks starts from hop 0.
        strict: whether the weights are independent of dev labels.
    """

    model: str
    start: tuple[str, ...]
    strategy: str
    strict: bool
    runs: tuple[RunRecord, ...]

    @property
    def name(self) -> str:
        """Name in legends and sentences: ``e5_small after en, growing``."""
        start = f" after {' → '.join(self.start)}" if self.start else ""
        return f"{self.model}{start}, {self.strategy}{'' if self.strict else ', with dev'}"

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(run.run_id for run in self.runs)

    def bits(self, parts: Sequence[str]) -> np.ndarray:
        """Return the bits of each block in each run, shape (runs, M); ``parts`` are the kinds of codes."""
        return np.stack([bits_of_blocks(run, parts) for run in self.runs])


def in_blocks(run: RunRecord) -> bool:
    """Return whether a run has finished, learns blocks, and has the codelength of every block."""
    return run.status == "finished" and bool(coded := parts(run)) and all(blocks(run, part) for part in coded)


def codelength_sections(records: Iterable[RunRecord]) -> list[CodelengthSection]:
    """Return a section for each set of blocks that finished runs have learned; other runs are skipped."""
    coded = [record for record in records if in_blocks(record)]
    return [CodelengthSection(runs) for runs in grouped(coded, _coded_labels).values()]


def _coded_labels(run: RunRecord) -> tuple[object, ...]:
    """Return a key that is equal for runs that encode the same labels in the same blocks with the same uniform code."""
    uniform = tuple((part, tuple((b.examples, b.uniform) for b in blocks(run, part) or ())) for part in parts(run))
    return run.dataset, run.languages[-1], run.bucket, run.config["dataset"].get("subset_seed", 0), uniform


class CodelengthSection(Section):
    definitions = {
        "L ↓": "online codelength: bits to transmit the labels of the training data, which are split into blocks; the "
        "labels of each block are encoded with the model trained on the earlier blocks (GLI §4)"
    }
    legend = "bits, mean ± standard deviation over seeds; fewer is better"

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        super().__init__()
        self.runs, first = runs, runs[0]
        self.dataset, self.key, self.parts = first.dataset, first.languages[-1], parts(first)
        coded = {part: blocks(first, part) or [] for part in self.parts}
        # Number of examples of each block; bits of each block in the uniform code, by kind of code and in total.
        self.sizes = np.array([block.examples for block in coded[self.parts[0]]])
        self.uniform_of = {part: np.array([block.uniform for block in each]) for part, each in coded.items()}
        self.uniform = np.sum(list(self.uniform_of.values()), axis=0)
        self.title = f"{self.dataset} · {self.key} in {len(self.sizes)} blocks · online codelength"
        self.where = f"codelength_{self.dataset}_{self.key}_{len(self.sizes)}"

    @cached_property
    def coders(self) -> list[Coder]:
        """The rows of the tables, shortest code first."""
        labels = strategy_labels(self.runs, IN_COLUMNS)

        def row(run: RunRecord) -> tuple[str, tuple[str, ...], str, bool]:
            trainer = run.config["trainer"]
            strict = trainer["selection"] == "last" and not trainer["patience"]
            return run.model, run.elements[:-1], labels[run.run_id], strict

        rows = grouped(self.runs, row)
        coders = [
            Coder(model, start, label, strict, tuple(sorted(runs, key=lambda r: r.seed)))
            for (model, start, label, strict), runs in rows.items()
        ]
        return sorted(coders, key=lambda coder: float(coder.bits(self.parts).sum(axis=1).mean()))

    @property
    def total(self) -> int:
        return int(self.sizes.sum())

    def switching(self, strict: bool) -> tuple[np.ndarray, int] | None:
        """Return the bits of each block under its best coder, shape (seeds, M), and the number of coders.

        Compare only coders with this value of ``strict``, on the seeds that all of them share. Return None if they
        share no seed, or if there is only one coder.
        """
        coders = [coder for coder in self.coders if coder.strict == strict]
        bits = [{run.seed: bits_of_blocks(run, self.parts) for run in coder.runs} for coder in coders]
        seeds = sorted(set.intersection(*map(set, bits))) if len(bits) > 1 else []
        return (np.stack([switched([b[seed] for b in bits]) for seed in seeds]), len(bits)) if seeds else None

    @property
    def caveats(self) -> list[str]:
        starts = {}
        for coder in self.coders:
            if trained := [part for part in self.parts if start_knows(coder.runs[0], part)]:
                starts[coder.name] = "" if trained == self.parts else f" ({', '.join(trained)} only)"
        names = "; ".join(f"{name}{parts}" for name, parts in sorted(starts.items()))
        note = (
            "these rows encode the first block with the model instead of the uniform code, because their heads were "
            f"trained before it: {names}"
        )
        return [*([note] if starts else []), *super().caveats]

    @property
    def conclusions(self) -> list[str]:
        bits = {coder.name: float(coder.bits(self.parts).sum(axis=1).mean()) / self.total for coder in self.coders}
        uniform = float(self.uniform.sum()) / self.total
        listed = "; ".join(f"{name} {value:.2f}" for name, value in bits.items())
        several = any(len(coder.runs) > 1 for coder in self.coders)
        single = "" if several else " Differences were not tested, because each row has only one seed."
        return [f"Bits per example, shortest code first: {listed}; uniform code {uniform:.2f}.{single}"]
