"""Learning curves of target adapting (FS Fig. 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.fewshot.scores import best_so_far
from xclrun.report.fewshot.data import PANELS, FewShotRuns
from xclrun.report.fewshot.names import shots_name
from xclrun.report.part import Item, Needs, part
from xclrun.report.style import colour, marker, panel_grid, plain, tip, titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@part(FewShotRuns, place=70, title="{metric}{source}: learning curves of target adapting", folded=True)
def fewshot_curves(runs: FewShotRuns) -> Iterator[Item]:
    """A figure for each strategy."""
    yield "The best dev score so far: after early stopping it stays what it was (FS Fig. 6)."
    drawn = False
    for strategy in runs.strategies:
        lines: dict[str, dict[int, np.ndarray]] = {}
        records = [runs.records[i] for i in runs.scores[runs.scores["strategy"] == strategy]["run_id"]]
        epochs = max((p["epoch"] for r in records for p in r.curve if p["hop"] == r.hops), default=0)
        for (language, k), own in runs.cells(strategy).items() if epochs > 1 else ():
            found = [
                best_so_far(record.curve, record.hops, language, runs.metric, epochs)
                for record in map(runs.records.__getitem__, own["run_id"])
            ]
            whole = [values for values in found if np.isfinite(values).all()]
            if whole and len(lines) < PANELS:
                lines.setdefault(language, {})[k] = np.stack(whole)
        if lines:
            drawn = True
            kind = "curves" if strategy == runs.first else f"curves_{strategy}"
            draw = partial(adapting_curves, lines, runs.title, runs.names(strategy))
            yield runs.plot(kind, "Learning curves of target adapting", draw)
    if not drawn:
        yield Needs("dev scores of more than one epoch")


def adapting_curves(lines: Mapping[str, Mapping[int, np.ndarray]], metric: str, title: str) -> Figure:
    """Draw the best dev score so far over epochs of target adapting: a panel per language, a line per K (FS Fig. 6).

    Args:
        lines: language → K → shape (runs, epochs): see `xclrun.analysis.fewshot.scores.best_so_far`.
    """
    figure, grid = panel_grid(len(lines), 4, (2.9, 2.2), (1.3, 0.9))
    shots = sorted({k for them in lines.values() for k in them})
    for axes, (language, by_shots) in zip(grid, lines.items(), strict=False):
        for k, values in by_shots.items():
            j, epochs = shots.index(k), np.arange(1, values.shape[1] + 1)
            mean = 100 * values.mean(axis=0)
            low, high = 100 * values.min(axis=0), 100 * values.max(axis=0)
            axes.fill_between(epochs, low, high, color=colour(j + 1), alpha=0.15, linewidth=0)
            (line,) = axes.plot(epochs, mean, color=colour(j + 1), marker=marker(j), markersize=3, markevery=5)
            tip(line, f"{language}, {shots_name(k)}: {mean[-1]:.2f} at the end, {len(values)} runs")
        axes.set_title(language, fontsize=9)
        plain(axes)
    _key(figure, [(shots_name(k), {"color": colour(j + 1), "marker": marker(j)}) for j, k in enumerate(shots)])
    titled(
        figure,
        f"{title}: learning curves of target adapting, mean and range over buckets and seeds",
        "epochs of target adapting",
        f"best dev {metric} so far",
    )
    return figure


def _key(figure: Figure, entries: Sequence[tuple[str, dict[str, str]]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, markersize=4, **look) for name, look in entries]  # type: ignore[arg-type]
    figure.legend(handles=handles, loc="outside right center", fontsize=8, frameon=False)
