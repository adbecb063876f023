"""Gradients of the head for each class, and scores of each key during training (LL §3, Figs. 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.aggregate import compared
from xclrun.analysis.grouping import natural
from xclrun.report.part import Item, Plot, part
from xclrun.report.parts.tasks import key_figure
from xclrun.report.strategies import StrategySection
from xclrun.report.style import GREY, colour_bar, cut, figure_of, tickless, titled
from xclrun.report.tables import Cell, Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COLUMNS = 200  # maximum in the figure: with more steps, each column is a mean over steps
CLASSES = 80  # maximum in the figure


@part(StrategySection, place=95, title="Gradients of classes", folded=True)
def class_gradients(section: StrategySection) -> Iterator[Item]:
    recorded = section.shared.gradients.get("class_gradients", {})
    # Order → strategy → elements and gradients of its first run with recorded gradients.
    recorded_runs: dict[str, dict[str, tuple[tuple[str, ...], pd.DataFrame]]] = {}
    for order in sorted(section.comparison.orders, key=natural):
        for label, (runs, _) in compared(section.comparison, order).items():
            if run := next((run for run in runs if run.run_id in recorded), None):
                gradients = by_step(recorded[run.run_id], run.elements)
                recorded_runs.setdefault(order, {})[label] = run.elements, gradients
    if not recorded_runs:
        return
    yield (
        "Gradient of the class head at each main step, summed over the weights of a class, for one run of each "
        "strategy and order. For positive features, gradient descent lowers the logits of classes with a positive sum."
    )
    yield sides_table(recorded_runs)
    for order, strategies in recorded_runs.items():
        tables = {label: gradients for label, (_, gradients) in strategies.items()}
        name, caption = section.file("class_gradients", order), "Gradient of each class in the head"
        yield Plot(name, caption, gradient_figure, tables, f"{section.names}, {order}", paper="LL Fig. 1")
    for metric in section.comparison.metrics:
        caption, name = "Scores of each key while training", section.file("key_curves", metric)
        yield Plot(name, caption, key_figure, section.summary, metric, paper="LL Fig. 2")


def key_of(name: str) -> str:
    """Return the key of a class name such as ``yelp:5``."""
    return name.partition(":")[0]


def by_step(rows: pd.DataFrame, elements: Sequence[str]) -> pd.DataFrame:
    """Return gradients with a row for each class, sorted by the order of keys, and a column for each (hop, step)."""
    table = rows.pivot_table(index="class", columns=["hop", "step"], values="gradient", sort=False)
    place = {key: k for k, key in enumerate(elements)}
    return table.loc[sorted(table.index, key=lambda name: place.get(key_of(name), 0))].sort_index(axis=1)


def sides_table(recorded: Mapping[str, Mapping[str, tuple[Sequence[str], pd.DataFrame]]]) -> Table | None:
    """Return mean gradients of the classes of the key being learned, of earlier keys and of later keys.

    None unless class names contain keys, as in ``yelp:5``.
    """
    rows: list[tuple[str, ...]] = []
    for order, strategies in recorded.items():
        for label, (elements, gradients) in strategies.items():
            keys = [key_of(name) for name in gradients.index]
            if not set(keys) <= set(elements):
                continue
            place = np.array([elements.index(key) for key in keys])[:, None]
            hop = gradients.columns.get_level_values("hop").to_numpy()[None, :] - 1
            values = gradients.to_numpy(dtype=float)
            for name, mask in (("being learned", place == hop), ("earlier", place < hop), ("later", place > hop)):
                chosen = values[mask & np.isfinite(values)]
                if chosen.size:
                    mean, share = float(chosen.mean()), float((chosen > 0).mean())
                    rows.append((order, label, name, Cell(f"{mean:+.5f}", mean), Cell(f"{100 * share:.1f}", share)))
    if not rows:
        return None
    notes = (
        "means over main steps and classes; at each step, a class belongs to the key being learned, to an earlier key "
        "or to a later key",
    )
    header = ("order", "strategy", "classes of keys", "mean gradient", "positive (%)")
    return Table("Gradients of classes, by key", header, tuple(rows), notes, left=3)


def gradient_figure(tables: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """Draw the gradient of each class (rows) over main steps, with a panel for each strategy."""
    from matplotlib.colors import SymLogNorm

    names = list(dict.fromkeys(name for table in tables.values() for name in table.index))
    first = names[:CLASSES]
    figure = figure_of(8.4, 1.0 + len(tables) * (0.5 + 0.125 * len(first)))
    grid = figure.subplots(len(tables), 1, squeeze=False)[:, 0]
    largest = max(float(np.nanmax(np.abs(table.to_numpy()))) for table in tables.values()) or 1.0
    norm = SymLogNorm(largest / 100, vmin=-largest, vmax=largest)
    for axes, (label, table) in zip(grid, tables.items(), strict=True):
        steps = table.shape[1]
        columns = np.array_split(np.arange(steps), min(COLUMNS, steps))
        values = table.reindex(first).to_numpy(dtype=float)
        means = np.stack([np.nanmean(values[:, column], axis=1) for column in columns], axis=1)
        image = axes.imshow(means, aspect="auto", cmap="RdBu_r", norm=norm, interpolation="nearest",
                            extent=(0, steps, len(first), 0))  # fmt: skip
        hops = table.columns.get_level_values("hop").to_numpy()
        for end in np.flatnonzero(np.diff(hops)) + 1:
            axes.axvline(end, color=GREY, linewidth=0.9, linestyle=":")
        axes.set_yticks(np.arange(len(first)) + 0.5, [cut(name, 28) for name in first])
        tickless(axes)
        axes.tick_params(labelsize=6)
        axes.set_title(label, fontsize=9)
    grid[-1].set_xlabel("main steps of the stream", fontsize=8)
    label = "gradient, summed over a class's weights"
    colour_bar(figure, image, grid, label, fraction=0.04, format=lambda value, _: f"{value:g}")
    some = f"; {len(first)} of {len(names)} classes" if len(first) < len(names) else ""
    titled(figure, f"{title}: gradient of each class on the head (dotted: ends of hops{some})")
    return figure
