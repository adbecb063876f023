"""The registry of report parts, in reading order.

A part is a function in a file of `xclrun.report.parts`. It yields the paragraphs, tables and figures under one heading,
and is registered by the decorator `part`::

    @part(StrategySection, place=30, title="Trade-offs")
    def trade_offs(section: StrategySection) -> Iterator[Item]:
        yield "Top right is better."
        yield Plot("trade_offs_…", "Final performance against forgetting", draw, section.summary)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from xclrun.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Plot:
    """A figure to be drawn later.

    Args:
        name: file name without suffix, unique in a report.
        caption: the kind of figure; the title of the figure has the details.
        draw: called with ``arguments``; returns None if there are no data to draw.
        paper: the figures of a paper that this figure redraws; only reports on sweeps of papers show it.
    """

    def __init__(
        self, name: str, caption: str, draw: Callable[..., Figure | None], *arguments: Any, paper: str = ""
    ) -> None:
        self.name, self.caption, self.draw, self.paper = name, caption, partial(draw, *arguments), paper


@dataclass(frozen=True)
class Needs:
    """Data that a part lacks; the section prints the note ``data missing for “<heading>”: <requirement>``."""

    requirement: str


# None is skipped.
Item = str | Table | Plot | Needs | None
Data = TypeVar("Data")


@dataclass(frozen=True)
class Part:
    """An entry of the registry.

    Attributes:
        name: name of the function.
        data: class of the function's argument; see `xclrun.report.section.Section.data`.
        place: position among the parts of this class, lowest first.
        title: heading; placeholders such as ``{metric}`` are filled from ``data.heading``.
        folded: the page shows the part collapsed.
        runs_alone: the part needs only the runs, so its figures are drawn while tests are still being computed.
        terminal: the part's tables are also printed on the terminal, after the means.
    """

    name: str
    data: type
    place: int
    title: str
    make: Callable[[Any], Iterable[Item]]
    folded: bool = False
    runs_alone: bool = False
    terminal: bool = False


@dataclass
class Block:
    """The items of a part; true if there is a table or a figure."""

    part: Part
    title: str
    paragraphs: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tables or self.plots)


PARTS: dict[str, Part] = {}


def part(
    data: type[Data], place: int, title: str, **options: bool
) -> Callable[[Callable[[Data], Iterable[Item]]], Part]:
    """Register the decorated function as a part; ``options`` are the flags of `Part`."""

    def enter(make: Callable[[Data], Iterable[Item]]) -> Part:
        entry = Part(make.__name__, data, place, title, make, **options)
        for other in PARTS.values():
            if other.name == entry.name or (other.data, other.place) == (data, place):
                raise ValueError(
                    f"part '{entry.name}' of {data.__name__}: '{other.name}' has the same name or place {place}"
                )
        PARTS[entry.name] = entry
        return entry

    return enter


def parts_of(data: type) -> list[Part]:
    return sorted((part for part in PARTS.values() if part.data is data), key=lambda part: part.place)


def make_block(part: Part, data: Any) -> Block:
    """Collect the items of a part."""
    block = Block(part, part.title.format_map(getattr(data, "heading", {})))
    for item in part.make(data):
        if isinstance(item, str):
            block.paragraphs.append(item)
        elif isinstance(item, Table):
            block.tables.append(item)
        elif isinstance(item, Plot):
            block.plots.append(item)
        elif isinstance(item, Needs):
            block.needs.append(f"data missing for “{block.title}”: {item.requirement}")
        elif item is not None:
            raise TypeError(f"part '{part.name}' yields {type(item).__name__}; yield only str, Table, Plot or Needs")
    return block
