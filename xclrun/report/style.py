"""Colours, sizes and helpers for all figures, and how a figure is saved."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.analysis.measures import MEASURES, quantity
from xclrun.core.names import escape, slug
from xclrun.core.quantity import Quantity
from xclrun.core.task import BY_NAME
from xclrun.report.svg import SETTINGS, TIP, with_tooltips
from xclrun.store.files import atomic_write

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy.typing import ArrayLike

    from xclrun.analysis.record import RunRecord

# The colors of Okabe & Ito (2008) with a darker yellow, then further colors of Tol's muted scheme (2021), then two more
# colors. Color-blind readers can distinguish all colors. From the 17th line on, colors repeat with another marker.
COLOURS = (
    "#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C00",
    "#332288", "#882255", "#44AA99", "#661100", "#AA4499", "#117733", "#6699CC", "#B8860B",
)  # fmt: skip
# For two series in one panel that are not strategies, languages or seeds.
SIDES = ("#5B7083", "#A8782A")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
GREY = "#767676"
PALE = "#bbbbbb"
FURTHER = ("pdf", "png")  # formats on request: they double the drawing time
DPI = 150
POINTS = 72  # per inch; at this resolution, images in SVG files are smallest
WIDEST = 14.0  # maximum total width in inches of the panels in a row; a wider row is illegible at page width
MOST = 16  # with more languages, heatmaps omit numbers, curves show means, and tables have a row per language
ORDERS = 12  # maximum number of orders with a panel in a figure
FEW = 8  # with more classes, cells of a confusion matrix have no numbers
# SVG attribute that holds the figure's title; also the CSS class of the SVG group in which the title is drawn.
TITLE = "data-title"


def score_label(metric: str, runs: Iterable[RunRecord]) -> str:
    """Return the label of an axis of scores: `metric_title`, and the direction if lower is better."""
    unit, higher = BY_NAME[metric].unit, BY_NAME[metric].higher_is_better
    return metric_title(metric, runs, unit if higher else f"{unit}, lower is better")


def metric_title(metric: str, runs: Iterable[RunRecord], unit: str | None = None) -> str:
    """Return a metric's title with its unit, and with the scoring of span F1 unless it is the default.

    ``unit``: None: the metric's unit; empty: none.
    """
    unit = BY_NAME[metric].unit if unit is None else unit
    ways = {run.slot_f1 for run in runs} - {"span_micro"} if BY_NAME[metric].span_f1 else set()
    remarks = ", ".join(filter(None, (unit, *sorted(ways))))
    return BY_NAME[metric].title + (f" ({remarks})" if remarks else "")


def colour(k: int) -> str:
    return COLOURS[k % len(COLOURS)]


def marker(k: int) -> str:
    """Return the marker of the k-th line; the first 128 lines differ in colour or marker.

    Similar colours (both light blues, both greens, …) are in different halves of `COLOURS`; the shift by two gives them
    different markers.
    """
    turn, place = divmod(k, len(COLOURS))
    return MARKERS[(place + 2 * (place // len(MARKERS)) + turn) % len(MARKERS)]


def places(names: Iterable[str], every: Iterable[str]) -> dict[str, int]:
    """Return name → its index in ``every``, which determines its colour in all figures."""
    order = list(every)
    return {name: order.index(name) for name in names}


def first_orders(orders: Sequence[str]) -> tuple[Sequence[str], str]:
    """Return the orders with panels, and a remark for the title if orders are omitted."""
    return orders[:ORDERS], f"; {ORDERS} of {len(orders)} orders" if len(orders) > ORDERS else ""


def axis_of(values: Iterable[Any], least: float = 10.0, low: float = 0.0, high: float = 100.0) -> tuple[float, float]:
    """Return the limits of an axis: the data with a margin, rounded to multiples of 5, between ``low`` and ``high``.

    The limits are at least ``least`` apart, so that noise does not fill a figure. Without data: ``low``, ``high``.
    """
    import numpy as np

    numbers = np.concatenate([np.ravel(np.asarray(value, dtype=float)) for value in values] or [np.array([])])
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return low, high
    start, end = float(numbers.min()), float(numbers.max())
    margin = max(0.04 * (end - start), (least - (end - start)) / 2, 0.5)
    start, end = 5 * np.floor((start - margin) / 5), 5 * np.ceil((end + margin) / 5)
    start, end = max(low, start), min(high, end)
    if end - start < least:
        start, end = (max(low, end - least), end) if end == high else (start, min(high, start + least))
    return float(start), float(end)


def score_axis(values: Iterable[Any], quantity: Quantity, high: float = 100.0) -> tuple[float, float]:
    """Return the limits of an axis of scores, scaled for printing; for percentages, see `axis_of`."""
    import numpy as np

    if quantity.scale == 100:
        return axis_of(values, high=high)
    numbers = np.concatenate([np.ravel(np.asarray(value, dtype=float)) for value in values] or [np.array([])])
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return 0.0, 1.0
    margin = 0.05 * float(np.ptp(numbers)) or 0.5
    return float(numbers.min()) - margin, float(numbers.max()) + margin


def upward(metric: str, measure: str) -> tuple[float, str, str]:
    """Return how a measure is drawn so that up and right are better: a factor, the drawn name, the label of the axis.

    If lower is better, values are negated: ``-100, "−F", "−F: negative forgetting (points)"``.
    """
    entry, kind = MEASURES[measure], quantity(metric, measure)
    if kind.higher_is_better:
        return kind.scale, measure, f"{measure}: {entry.title} ({kind.unit})"
    return -kind.scale, f"−{measure}", f"−{measure}: negative {entry.title} ({kind.unit})"


def short(names: Sequence[str]) -> bool:
    """Return whether labels fit next to each other without rotation, as language codes do."""
    return max(map(len, names)) <= 3


def figure_of(width: float, height: float) -> Figure:
    """Return a figure of ``width`` × ``height`` inches with automatic layout.

    Functions that draw a figure call this once they know that they have data; `can_draw` relies on it.
    """
    if _asked.get():
        raise _HasData
    from xclrun.report.notebook import NotebookFigure

    return NotebookFigure(figsize=(width, height), layout="constrained")


class _HasData(Exception):
    """There are data to draw; raised instead of drawing them."""


# Whether drawing functions are only asked whether they have data.
_asked: ContextVar[bool] = ContextVar("asked", default=False)


def can_draw(draw: Callable[[], Figure | None]) -> bool:
    """Return whether a function has data to draw, without drawing them, which can take seconds."""
    token = _asked.set(True)
    try:
        return draw() is not None
    except _HasData:
        return True
    finally:
        _asked.reset(token)


def plain(axes: Axes, across: str = "", up: str = "") -> None:
    """Hide the upper and right spines, add a light grid, and label the axes."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    for name, label in ((across, axes.set_xlabel), (up, axes.set_ylabel)):
        if name:
            label(name, fontsize=8)


def cut(text: str, width: int) -> str:
    """Shorten a text to ``width`` characters, between words if the first word fits."""
    short_text = textwrap.shorten(text, width, placeholder="…")
    return f"{text[: width - 1]}…" if short_text == "…" else short_text


def line(axes: Axes, x: ArrayLike, y: ArrayLike, k: int, text: str, **look: Any) -> None:
    """Draw the k-th line in its colour, with the tooltip ``text``."""
    (drawn,) = axes.plot(x, y, **{"color": colour(k), "marker": marker(k), **look})
    tip(drawn, text)


def ends_of_hops(axes: Axes, places: Iterable[float]) -> None:
    for place in places:
        axes.axvline(place, color=GREY, linewidth=0.7, linestyle=":", zorder=0)


def key(figure: Figure, handles: Iterable[Any], size: float = 8) -> None:
    """Draw a legend at the right of the figure."""
    figure.legend(handles=list(handles), loc="outside right center", fontsize=size, frameon=False)


def legend(figure: Figure, labels: Iterable[str], every: Iterable[str]) -> None:
    """Draw a legend of strategies; the index of a name in ``every`` determines its colour."""
    from matplotlib.lines import Line2D

    key(figure, (
        Line2D([], [], linestyle="", color=colour(k), marker=marker(k), label=textwrap.fill(label, 26))
        for label, k in places(labels, every).items()
    ))  # fmt: skip


def titled(figure: Figure, text: str, across: str = "", up: str = "") -> None:
    """Set the title, wrapped to the width of the figure, and the axis labels that all panels share."""
    for name, label in ((across, figure.supxlabel), (up, figure.supylabel)):
        if name:
            label(name, fontsize=8)
    figure.suptitle(textwrap.fill(text, int(figure.get_size_inches()[0] * 13)), fontsize=10)


def colour_bar(figure: Figure, image: Any, panels: Any, label: str, **look: Any) -> None:
    """Draw a colour bar with small type."""
    bar = figure.colorbar(image, ax=panels, pad=0.01, **look)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)


def panel_grid(
    panels: int,
    most: int,
    panel: tuple[float, float],
    margin: tuple[float, float],
    sharex: bool = False,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a figure of equal panels, at most ``most`` in a row, and their axes.

    Args:
        panel: width and height of a panel, in inches.
        margin: width and height of the rest of the figure, in inches.
    """
    columns = min(most, panels)
    rows = math.ceil(panels / columns)
    figure = figure_of(panel[0] * columns + margin[0], panel[1] * rows + margin[1])
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).ravel().tolist()
    for axes in grid[panels:]:
        axes.set_visible(False)
    return figure, grid


def confusion_panel(axes: Axes, counts: np.ndarray, chosen: np.ndarray, names: Sequence[str], size: float) -> AxesImage:
    """Draw how often each gold class (row) was predicted as each class (column), in percent of the gold class.

    Args:
        counts: shape (classes, classes).
        chosen: indices of the classes to show.
        names: names of these classes, drawn in ``size`` points.
    """
    import numpy as np

    total = counts.sum(axis=1, keepdims=True)
    shares = 100 * np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)[np.ix_(chosen, chosen)]
    if len(chosen) <= FEW:
        write_cells(axes, shares, "{:.0f}", 60, fontsize=6)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
    axes.set_yticks(range(len(names)), names, fontsize=size)
    tickless(axes)
    return axes.imshow(shares, cmap="viridis", vmin=0, vmax=100)


def write_cells(
    axes: Axes, matrix: np.ndarray, pattern: str, middle: float, dark_below: bool = True, **look: Any
) -> None:
    """Write the numbers of an image into its cells: white on dark cells, below or above ``middle``; – for NaN."""
    import numpy as np

    for (i, j), value in np.ndenumerate(matrix):
        text = "–" if np.isnan(value) else pattern.format(value)
        dark = value < middle if dark_below else value > middle
        axes.text(j, i, text, ha="center", va="center", color="white" if dark else "black", **look)


def more_formats(formats: Sequence[str]) -> str:
    """Return a hint on how to get figures in further formats; empty if all have been written."""
    missing = [name for name in FURTHER if name not in formats]
    if not missing:
        return ""
    names = " and ".join(name.upper() for name in missing)
    return f"For figures as {names}, repeat the command with `--formats {','.join([*formats, *missing])}`."


def save(figure: Figure, folder: Path, name: str, further: Sequence[str] = ()) -> list[Path]:
    """Write a figure to ``folder`` as SVG and in ``further`` formats; equal figures give equal bytes.

    Returns:
        The paths, SVG first.
    """
    from matplotlib import rc_context
    from matplotlib.backend_bases import get_registered_canvas_class

    title = figure.get_suptitle()
    for text in figure.texts:
        if title and text.get_text() == title:
            text.set_gid(TITLE)
    settle(figure)
    uncover(figure)
    paths = []
    for suffix in ("svg", *further):
        path = folder / f"{slug(name)}.{suffix}"
        buffer = io.BytesIO()
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix, {})
        # Keep text as text in PDF files, too.
        with rc_context(SETTINGS | {"pdf.fonttype": 42}):
            figure.dpi = POINTS if suffix == "svg" else DPI
            # Print directly, since `savefig` would draw the settled layout twice.
            canvas = get_registered_canvas_class(suffix)(figure)
            getattr(canvas, f"print_{suffix}")(buffer, metadata=metadata)
        content = buffer.getvalue()
        if suffix == "svg":
            svg = with_tooltips(content.decode())
            # Mark the group of the figure's title.
            svg = svg.replace(f'<g id="{TITLE}">', f'<g class="{TITLE}">')
            attribute = escape(title.replace("\n", " "))
            content = (svg.replace("<svg ", f'<svg {TITLE}="{attribute}" ', 1) if title else svg).encode()
        atomic_write(path, content)
        paths.append(path)
    return paths


def settle(figure: Figure) -> None:
    """Compute the layout once: computing it at every drawing takes most of the time of a large figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if (engine := figure.get_layout_engine()) is None:
        return
    for axis in _axes_of(figure):
        if not axis.get_label_text():
            # Without coordinates, matplotlib measures all tick labels to place the missing label.
            axis.set_label_coords(0.5, 0)
    engine.execute(figure)
    figure.set_layout_engine("none")
    renderer = FigureCanvasAgg(figure).get_renderer()
    for axes in figure.axes:
        axes.apply_aspect()
    for axis in _axes_of(figure):
        if axis.get_label_text():
            # Fix the label where the layout put it; measuring the axis, not all of the axes, updates its position.
            axis.get_tightbbox(renderer)
            place = axis.label.get_transform().transform(axis.label.get_position())
            axis.set_label_coords(*axis.axes.transAxes.inverted().transform(place))
        if not axis.get_offset_text().get_text():
            # Skip measuring tick labels: no position depends on their extent any more.
            for tick in axis.majorTicks:
                tick.label1.set_in_layout(False)
                tick.label2.set_in_layout(False)


def uncover(figure: Figure) -> None:
    """Enlarge lines and points that lie under identical ones, so that a rim of each remains visible."""
    import numpy as np

    for axes in figure.axes:
        above: dict[bytes, int] = {}
        for line in reversed(axes.lines):
            data = np.asarray(line.get_xydata())
            if line.get_transform() != axes.transData or not len(data):
                continue
            # Compare positions to a fifth of a point.
            place = np.round(axes.transData.transform(data) * 5 * POINTS / figure.dpi).tobytes()
            covering = above.get(place, 0)
            above[place] = covering + 1
            line.set_markersize(line.get_markersize() + 3 * covering)
            line.set_linewidth(line.get_linewidth() + 1.6 * covering)


def side_by_side(values: Sequence[float], width: float) -> np.ndarray:
    """Return offsets around 0 that place equal values next to each other, at most ``width`` apart."""
    import numpy as np

    _, group, counts = np.unique(np.round(values, 6), return_inverse=True, return_counts=True)
    place = np.array([(group[:k] == number).sum() for k, number in enumerate(group)])
    return width * ((place + 0.5) / counts[group] - 0.5)


def _axes_of(figure: Figure) -> list[Axis]:
    return [axis for axes in figure.axes if axes.get_visible() for axis in (axes.xaxis, axes.yaxis)]


def tickless(axes: Axes) -> None:
    axes.tick_params(length=0, bottom=False, left=False)


def tip(artist: Artist, text: str) -> None:
    """Add a tooltip to an artist in the SVG."""
    artist.set_gid(f"{TIP}{text}")
