"""The registry of what a report can show, in the order in which it is read.

A part is a heading with paragraphs, tables and figures under it: a function, in a file of `xclrun.report.parts`, that
yields them. `part` enters it here; nothing else has to know of it::

    @part(StrategySection, place=30, title="Trade-offs")
    def trade_offs(section: StrategySection) -> Iterator[Item]:
        yield "Top right is better."
        yield Plot("trade_offs_…", "Final performance against forgetting", draw)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from xclrun.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plot:
    """A figure that is yet to be drawn.

    Attributes:
        name: of its files, unique in a report.
        caption: its kind in words; the figure's own title, which stands beside it on the page, has the details.
        draw: returns None where there is nothing to show.
    """

    name: str
    caption: str
    draw: Callable[[], Figure | None]


@dataclass(frozen=True)
class Needs:
    """What a part would need to show something: a caveat of its section, ``<heading>: n/a: needs <what>``."""

    what: str


Item = str | Table | Plot | Needs
Data = TypeVar("Data")


@dataclass(frozen=True)
class Part:
    """An entry of the registry.

    Attributes:
        name: of its function.
        data: class of what it is made from; a section makes the parts of its own class, and of what it consists of.
        place: where it stands among those of the same class, lowest first.
        title: the heading; ``{words}`` are those that ``data.heading`` gives.
        make: yields what stands under the heading; nothing: the part is left out.
        folded: closed at first on the page.
        runs_alone: it needs nothing but the runs, so that its figures are drawn while tests are still computed.
        terminal: its tables are also shown on a terminal, after the means.
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
    """What a part has made of some data."""

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
    data: type[Data],
    place: int,
    title: str,
    folded: bool = False,
    runs_alone: bool = False,
    terminal: bool = False,
) -> Callable[[Callable[[Data], Iterable[Item]]], Part]:
    """Enter a function into the registry; see `Part`.

    Raises:
        ValueError: the name is taken, or another part of the same class has that place.
    """

    def enter(make: Callable[[Data], Iterable[Item]]) -> Part:
        made = Part(make.__name__, data, place, title, make, folded, runs_alone, terminal)
        for other in PARTS.values():
            if other.name == made.name or (other.data, other.place) == (data, place):
                raise ValueError(f"part {made.name} of {data.__name__}, place {place}: {other.name} is there already")
        PARTS[made.name] = made
        return made

    return enter


def parts_of(data: type) -> list[Part]:
    """Return the parts that are made from a class, in their order."""
    return sorted((one for one in PARTS.values() if one.data is data), key=lambda one: one.place)


def make_block(one: Part, data: Any) -> Block:
    """Make a part.

    Raises:
        TypeError: it yields something else than a paragraph, a table, a plot or what it needs.
    """
    block = Block(one, one.title.format_map(getattr(data, "heading", {})))
    for item in one.make(data):
        if isinstance(item, str):
            block.paragraphs.append(item)
        elif isinstance(item, Table):
            block.tables.append(item)
        elif isinstance(item, Plot):
            block.plots.append(item)
        elif isinstance(item, Needs):
            block.needs.append(f"{block.title}: n/a: needs {item.what}")
        else:
            raise TypeError(f"part {one.name} yields {type(item).__name__}; it may yield str, Table, Plot and Needs")
    return block
