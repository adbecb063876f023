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
        unpaired: means over all runs of each strategy, not over those that all have finished.
        interval: kind of the bootstrap's intervals (`xclrun.analysis.bootstrap.INTERVALS`); None: each measure's
            default.
        full: resamples have as many sentences as the test set, instead of 600 at most.
        table: number of the published table to set beside ours.
        few_shot_table: number of the table of the few-shot paper that the sweep makes.
        baseline: label of the strategy that marks and budgets compare with; None: ``naive``, else the first tested.
        formats: in which figures are saved besides SVG, of `xclrun.report.style.FURTHER`.
        choice: by which the settings of the runs were chosen on dev; None: the runs are all there are.
        primary: measures of the primary comparisons.
        command: what was typed to make the report; empty where it is not known.
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
    """Runs that belong together, such as those of one dataset and model: what is said of them, part by part.

    Attributes:
        title: its heading.
        where: how the names of its tables' files begin.
        definitions: what its tables show, name with arrow → meaning.
        legend: what stands under its tables on a terminal.
    """

    title: str
    where: str
    definitions: dict[str, str]
    legend: str

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], Block] = {}

    @cached_property
    def data(self) -> list[object]:
        """What its parts are made from, in the order in which they are read; see `xclrun.report.part.Part.data`."""
        return [self]

    def make(self, runs_alone: bool = False) -> list[Block]:
        """Make all parts, or those that need nothing but the runs; each is made once."""
        blocks = []
        for k, data in enumerate(self.data):
            for one in parts_of(type(data)):
                if one.runs_alone or not runs_alone:
                    if (one.name, k) not in self._made:
                        self._made[one.name, k] = make_block(one, data)
                    blocks.append(self._made[one.name, k])
        return blocks

    @cached_property
    def blocks(self) -> list[Block]:
        """What its parts made, without those that show nothing."""
        return [block for block in self.make() if block]

    @property
    def caveats(self) -> list[str]:
        """What is missing and what differs."""
        return [need for block in self.make() for need in block.needs]

    @property
    def conclusions(self) -> list[str]:
        """What was found, in words; one paragraph each."""
        return []

    @property
    def terminal(self) -> list[Table]:
        """What a terminal shows: tables of the parts that say so."""
        return [table for block in self.blocks if block.part.terminal for table in block.tables]

    @property
    def lead(self) -> list[Table]:
        """What stands first in Markdown, before the tables of the parts."""
        return []
