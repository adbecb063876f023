"""The registry of what a report can show, in reading order.

A part is a heading with paragraphs, tables and figures under it: a function in a file of `xclrun.report.parts` that
yields them. `part` enters it here; nothing else has to know of it::

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
    """A figure that is not drawn yet.

    Args:
        name: of its files, unique in a report.
        caption: the kind of figure; the figure's own title, which the page shows next to it, has the details.
        draw: returns None if there is nothing to show.
        arguments: of ``draw``.
    """

    def __init__(self, name: str, caption: str, draw: Callable[..., Figure | None], *arguments: Any) -> None:
        self.name, self.caption, self.draw = name, caption, partial(draw, *arguments)


@dataclass(frozen=True)
class Needs:
    """What a part needs to show something: a caveat of its section, ``<heading>: n/a: needs <what>``."""

    what: str


# None is skipped.
Item = str | Table | Plot | Needs | None
Data = TypeVar("Data")


@dataclass(frozen=True)
class Part:
    """An entry of the registry.

    Attributes:
        name: of its function.
        data: class of what it is made from; see `xclrun.report.section.Section.data`.
        place: position among the parts of the same class, lowest first.
        title: the heading; ``{words}`` are replaced from ``data.heading``.
        make: yields the contents; a part that yields nothing is left out.
        folded: whether the page shows it closed at first.
        runs_alone: it needs nothing but the runs, so its figures are drawn while tests are still computed.
        terminal: a terminal shows its tables too, after the means.
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
    """What a part made of some data; true if there is a table or a figure."""

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
    """Enter a function into the registry; ``options`` are the flags of `Part`.

    Raises:
        ValueError: the name is taken, or another part of the same class has that place.
    """

    def enter(make: Callable[[Data], Iterable[Item]]) -> Part:
        made = Part(make.__name__, data, place, title, make, **options)
        for other in PARTS.values():
            if other.name == made.name or (other.data, other.place) == (data, place):
                raise ValueError(f"part {made.name} of {data.__name__}, place {place}: {other.name} is there already")
        PARTS[made.name] = made
        return made

    return enter


def parts_of(data: type) -> list[Part]:
    return sorted((part for part in PARTS.values() if part.data is data), key=lambda part: part.place)


def make_block(part: Part, data: Any) -> Block:
    """Make a part.

    Raises:
        TypeError: it yields something that is no `Item`.
    """
    block = Block(part, part.title.format_map(getattr(data, "heading", {})))
    for item in part.make(data):
        if isinstance(item, str):
            block.paragraphs.append(item)
        elif isinstance(item, Table):
            block.tables.append(item)
        elif isinstance(item, Plot):
            block.plots.append(item)
        elif isinstance(item, Needs):
            block.needs.append(f"{block.title}: n/a: needs {item.what}")
        elif item is not None:
            raise TypeError(f"part {part.name} yields {type(item).__name__}; it may yield str, Table, Plot and Needs")
    return block
