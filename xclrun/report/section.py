"""What a report says of runs that belong together, and how it is made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from xclrun.analysis.tuning import Choice
from xclrun.report.part import Block, make_block, parts_of
from xclrun.report.tables import Table


@dataclass(frozen=True)
class Options:
    """How a report is made.

    Attributes:
        unpaired: average all runs of each strategy, not only the combinations that every strategy has finished.
        interval: kind of bootstrap interval (`xclrun.analysis.bootstrap.INTERVALS`); None: each measure's default.
        full: resamples have as many sentences as the test set, instead of 600 at most.
        table: number of the published table to show next to ours.
        few_shot_table: number of the table of the few-shot paper that the sweep makes.
        baseline: label of the strategy that marks and budgets compare with; None: ``naive``, else the first tested.
        formats: further formats of figures besides SVG, of `xclrun.report.style.FURTHER`.
        choice: how the settings of the runs were chosen on dev; None: nothing was chosen.
        primary: measures of the primary comparisons.
        command: what was typed to make the report; empty if it is not known.
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


class Section:
    """Runs that belong together, such as those of one dataset and model, and what their parts show.

    Attributes:
        title: its heading.
        where: how the names of its tables' files begin.
        definitions: what its tables show, name with arrow → meaning.
        legend: what is under its tables on a terminal.
    """

    title: str
    where: str
    definitions: dict[str, str]
    legend: str

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], Block] = {}

    @cached_property
    def data(self) -> list[object]:
        """What its parts are made from, in reading order; each object has the parts of its class."""
        return [self]

    def make(self, runs_alone: bool = False) -> list[Block]:
        """Make all parts, or only those that need nothing but the runs; each is made once."""
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
        """The main results in words, one paragraph each."""
        return []

    @property
    def terminal(self) -> list[Table]:
        """The tables that a terminal shows."""
        return [table for block in self.blocks if block.part.terminal for table in block.tables]

    @property
    def lead(self) -> list[Table]:
        """The tables that precede those of the parts in Markdown."""
        return []
