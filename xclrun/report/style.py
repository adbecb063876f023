"""What all figures share: colours that colour-blind readers can tell apart, sizes, and how a figure becomes files."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.names import slug
from xclrun.store.files import atomic_write
from xclrun.task import METRICS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe & Ito 2008, their yellow darkened to show on white; beyond the eighth they come again with another marker.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C00")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
GREY = "#767676"
FORMATS = ("png", "pdf", "svg")
DPI = 150
WIDEST = 14.0  # inches of panels side by side: shrunk to a page's width, more cannot be read
TIP = "tip:"

METRIC_NAMES = {metric.short: f"{metric.title} (%)" for metric in METRICS}


def colour(k: int) -> str:
    """Return the colour of the k-th line."""
    return COLOURS[k % len(COLOURS)]


def marker(k: int) -> str:
    """Return the marker of the k-th line: no two of the first 64 lines share both colour and marker."""
    return MARKERS[(k + k // len(COLOURS)) % len(MARKERS)]


def short(names: Sequence[str]) -> bool:
    """Say whether labels are short enough to stand upright side by side: language keys are, names of tasks are not."""
    return max(map(len, names)) <= 3


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure under ``folder`` in all `FORMATS`, the same bytes for the same figure; return the paths.

    Raises:
        UsageError, RunError: the place cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    settle(figure)
    figure.dpi = DPI
    # Not by `savefig`, which draws everything a second time for a layout that is settled.
    write: dict[str, Callable[..., None]] = {
        "png": FigureCanvasAgg(figure).print_png,
        "pdf": FigureCanvasPdf(figure).print_pdf,
        "svg": FigureCanvasSVG(figure).print_svg,
    }
    paths = []
    for suffix in FORMATS:
        path = folder / f"{slug(name)}.{suffix}"
        buffer = io.BytesIO()
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix, {})
        # Text stays text in both, to be searched and edited.
        with rc_context({"svg.hashsalt": "xclrun", "svg.fonttype": "none", "pdf.fonttype": 42}):
            write[suffix](buffer, metadata=metadata)
        content = buffer.getvalue()
        atomic_write(path, _with_tips(content.decode()).encode() if suffix == "svg" else content)
        paths.append(path)
    return paths


def settle(figure: Figure) -> None:
    """Lay a figure out once, not once for each time it is drawn: that is most of the time of a large one."""
    if (engine := figure.get_layout_engine()) is None:
        return
    for axis in _axes_of(figure):
        if not axis.get_label_text():
            # Else all numbers along the axis are measured to find the place of a label that is not there.
            axis.set_label_coords(0.5, 0)
    engine.execute(figure)
    figure.set_layout_engine("none")
    for axis in _axes_of(figure):
        if axis.get_label_text():
            _fix_label(axis)
        if not axis.get_offset_text().get_text():
            # Nothing is placed by where the numbers along the axis end any more.
            for tick in axis.majorTicks:
                tick.label1.set_in_layout(False)
                tick.label2.set_in_layout(False)


def _axes_of(figure: Figure) -> list[Axis]:
    return [axis for axes in figure.axes if axes.get_visible() for axis in (axes.xaxis, axes.yaxis)]


def _fix_label(axis: Axis) -> None:
    """Let the label of an axis stay where the layout has put it, beside the numbers along the axis."""
    # Has the axes, which the layout has moved, place their label once more.
    axis.axes.get_tightbbox()
    place = axis.label.get_transform().transform(axis.label.get_position())
    axis.set_label_coords(*axis.axes.transAxes.inverted().transform(place))


def tickless(axes: Axes) -> None:
    """Take the marks along both axes away; names stay where they would be beside marks of no length."""
    axes.tick_params(length=0, bottom=False, left=False)


def tip(artist: Artist, text: str) -> None:
    """Let the SVG say ``text`` where the pointer rests on ``artist``."""
    artist.set_gid(f"{TIP}{text}")


def _with_tips(svg: str) -> str:
    """Turn the names that `tip` gave to groups into titles, which browsers show."""
    return re.sub(rf'<g id="{TIP}([^"]*)">', r"<g><title>\1</title>", svg)
