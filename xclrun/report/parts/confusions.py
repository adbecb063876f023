"""Confusion matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.aggregate import compared
from xclrun.core.task import BY_NAME, INTENT_ACCURACY, Metric, Scored
from xclrun.report.part import Item, Plot, part
from xclrun.report.strategies import StrategySection
from xclrun.report.style import confusion_panel, cut, panel_grid, tip, titled
from xclrun.report.summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STRATEGIES = 6  # maximum in the figure
CLASSES = 24  # maximum in a panel


@part(StrategySection, place=100, title="Confusions", folded=True)
def confusions(section: StrategySection) -> Iterator[Item]:
    """Show confusion matrices of the strategies that end with a single model for all languages."""
    metric = next((m for m in map(BY_NAME.get, section.comparison.metrics) if m and m.of is Scored.labels), None)
    if metric is None:
        return
    predictions, chosen, labels = section.shared.predictions, {}, None
    for label, (runs, _) in compared(section.comparison).items():
        runs = [run for run in runs if run.run_id in predictions and run.stream != "independent"]
        names = {predictions[run.run_id].labels for run in runs}
        if runs and len(names) == 1 and labels in (None, *names):
            (labels,) = names
            chosen[label] = runs
    if labels is None:
        return
    some = f" Only the first {STRATEGIES} of {len(chosen)} strategies are shown." if len(chosen) > STRATEGIES else ""
    yield (
        f"Share of each gold {metric.noun} (rows) predicted as each {metric.noun} (columns), over all languages and "
        f"runs.{some}"
    )
    matrices = {
        label: np.sum([predictions[run.run_id].confusion(run.hops) for run in runs], axis=0)
        for label, runs in list(chosen.items())[:STRATEGIES]
    }
    name = section.file("confusions")
    yield Plot(name, "Confusion matrices", confusion_figure, section.summary, matrices, labels, metric)


def confusion_figure(
    summary: Summary, matrices: dict[str, np.ndarray], labels: Sequence[str], metric: Metric = INTENT_ACCURACY
) -> Figure:
    """Draw the predictions for each class after the last hop, in all languages: a panel for each strategy.

    Args:
        matrices: strategy label → counts, shape (classes, classes).
        labels: names of the classes.
        metric: its ``noun`` says what a class is, for example an intent.
    """
    frequency = sum(matrix.sum(axis=1) for matrix in matrices.values())
    chosen = np.sort(np.argsort(-np.asarray(frequency), kind="stable")[:CLASSES])
    names = [cut(labels[k].replace("_", " ").lower(), 20) for k in chosen]
    side = 0.16 * len(names) + 0.4
    figure, grid = panel_grid(len(matrices), 3, (side, side), (1.9, 1.9), sharex=True, sharey=True)
    for axes, (label, matrix) in zip(grid, matrices.items(), strict=False):
        image = confusion_panel(axes, matrix, chosen, names, 5.5)
        tip(axes, f"{label}: {int(matrix.sum())} {metric.nouns}")
        axes.set_title(label, fontsize=8)
    figure.colorbar(image, ax=grid, label=f"share of the gold {metric.noun} (%)", fraction=0.03, pad=0.01)
    some = f" (the {len(chosen)} most frequent of {len(labels)})" if len(chosen) < len(labels) else ""
    titled(figure, f"{summary.names}: {metric.nouns} after the last hop, all languages{some}", "predicted", "gold")
    return figure
