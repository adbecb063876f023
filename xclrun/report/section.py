"""Base class of the sections of a report, and the options and sources of a report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from xclrun.analysis.tuning import Choice
from xclrun.report.part import Block, make_block, parts_of
from xclrun.report.tables import Table

if TYPE_CHECKING:
    import pandas as pd

    from xclrun.analysis.fewshot.data import FewShotData
    from xclrun.analysis.finished import FinishedRun
    from xclrun.analysis.record import RunRecord
    from xclrun.scores.base_scores import Predictions


@dataclass(frozen=True)
class Options:
    """Options of a report.

    Attributes:
        unpaired: average all runs of each strategy, not only the combinations that every strategy has finished.
        interval: kind of bootstrap interval (`xclrun.analysis.bootstrap.INTERVALS`); None: each measure's default.
        full: bootstrap resamples have as many sentences as the test set, instead of at most 600.
        table: number of the published CCL table to compare with.
        few_shot_table: number of the table of the few-shot paper that the sweep reproduces.
        baseline: label of the baseline strategy; None: ``naive``, or the first tested strategy.
        formats: figure formats in addition to SVG, from `xclrun.report.style.FURTHER`.
        choice: how settings were selected on dev scores; None: they were not.
        primary: measures of the primary comparisons.
        command: the command line of the report; empty if unknown.
        margin: margin of equivalence tests, as a fraction; None: no equivalence tests.
        of_paper: the sweep redraws a paper's figures, so captions name their numbers.
        departures: differences from the primary comparisons that the sweep recorded (`xclrun.analysis.confirmatory`).
    """

    unpaired: bool = False
    interval: str | None = None
    full: bool = False
    table: str | None = None
    few_shot_table: str | None = None
    baseline: str | None = None
    formats: tuple[str, ...] = ()
    choice: Choice | None = None
    primary: tuple[str, ...] = ("F", "FP")
    command: str = ""
    margin: float | None = None
    departures: tuple[str, ...] = ()
    of_paper: bool = False


@dataclass(frozen=True)
class Sources:
    """Data that a report reads in addition to its records. Callables are called when the data are first needed.

    Attributes:
        pool: all runs in the outputs directory, to count tuning trials; None: only the records of the report.
        other_runs: further finished runs, to count as tuning trials.
        predictions: returns run ID → predictions, for the bootstrap and confusion matrices.
        gradients: returns ``overlap`` and ``class_gradients`` → run ID → recorded values.
        few_shot: data of the few-shot runs.
        commands: run ID → the command line that started it, to suggest commands for missing runs.
        excluded: run ID → state (``damaged``, ``lost``, …) and reason, of runs that cannot be used.
        references: further reference runs for transfer, which the report does not show.
        mirrored: IDs of the runs that were read from a tracker, because their files are not in the outputs directory.
    """

    pool: Sequence[RunRecord] | None = None
    other_runs: Sequence[FinishedRun] = ()
    predictions: Callable[[], Mapping[str, Predictions]] = dict
    gradients: Callable[[], Mapping[str, Mapping[str, pd.DataFrame]]] = dict
    few_shot: FewShotData | None = None
    commands: Mapping[str, str] = field(default_factory=dict)
    excluded: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    references: Sequence[RunRecord] = ()
    mirrored: Collection[str] = ()


class Section:
    """Runs that are reported together, for example all runs of one dataset and model.

    Attributes:
        where: prefix of the file names of its tables.
        definitions: name of a measure with its arrow → meaning.
        legend: text printed below the tables on a terminal.
    """

    title: str
    where: str
    definitions: dict[str, str]
    legend: str

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], Block] = {}

    @cached_property
    def data(self) -> list[object]:
        """The objects passed to parts, in reading order; each object is passed to the parts of its class."""
        return [self]

    def make(self, runs_alone: bool = False) -> list[Block]:
        """Make all parts, or with ``runs_alone`` the parts that need only the runs; each part is made once."""
        blocks = []
        for k, data in enumerate(self.data):
            for part in parts_of(type(data)):
                if part.runs_alone or not runs_alone:
                    if (part.name, k) not in self._made:
                        self._made[part.name, k] = make_block(part, data)
                    blocks.append(self._made[part.name, k])
        return blocks

    @cached_property
    def blocks(self) -> list[Block]:
        return [block for block in self.make() if block]

    @property
    def caveats(self) -> list[str]:
        return [need for block in self.make() for need in block.needs]

    @property
    def conclusions(self) -> list[str]:
        """The main results in words, a sentence for each metric and strategy."""
        return []

    @property
    def terminal(self) -> list[Table]:
        """The tables printed on a terminal."""
        return [table for block in self.blocks if block.part.terminal for table in block.tables]

    @property
    def lead(self) -> list[Table]:
        """Tables that precede the tables of the parts in Markdown."""
        return []
