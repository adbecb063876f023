"""Learning curves of target adapting (FS Fig. 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.analysis.fewshot.scores import dev_curve
from xclrun.report.fewshot.data import PANELS, Cell, FewShotRuns, panels
from xclrun.report.fewshot.names import shots_name
from xclrun.report.part import Item, Needs, part
from xclrun.report.style import colour, plain, tip, titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@part(FewShotRuns, place=70, title="{metric}{source}: learning curves of target adapting", folded=True)
def fewshot_curves(runs: FewShotRuns) -> Iterator[Item]:
    yield (
        "Dev score after each epoch of target adapting, a line for each run up to the epoch where it stopped; dots: "
        "selected epochs. A curve that only falls selects the first epoch."
    )
    drawn = False
    for strategy in runs.strategies:
        lines: dict[Cell, list[np.ndarray]] = {}
        for place, rows in runs.cells(strategy).items():
            curves = [dev_curve(runs.records[i], runs.metric) for i in rows["run_id"]]
            several = [curve for curve in curves if len(curve) > 1 and np.isfinite(curve).all()]
            if several and len(lines) < PANELS:
                lines[place] = several
        if lines:
            drawn = True
            kind = "curves" if strategy == runs.first else f"curves_{strategy}"
            caption = "Learning curves of target adapting (FS Fig. 6)"
            yield runs.plot(kind, caption, adapting_curves, lines, runs.title, runs.names(strategy))
    if not drawn:
        yield Needs("dev scores of more than one epoch")


def adapting_curves(lines: Mapping[Cell, list[np.ndarray]], metric: str, title: str) -> Figure:
    """Draw dev scores over epochs of target adapting, a panel for each (language, K), a line for each run (FS Fig. 6).

    Runs whose selected epoch is the first one stand out in colour.

    Args:
        lines: (language, K) → for each run the scores after its epochs, shape (epochs,).
    """
    figure, grid = panels(lines, 4, (2.9, 2.3), (0.6, 0.9))
    for axes, (language, k), curves in grid:
        best = [int(np.argmax(curve)) for curve in curves]
        # Those that stand out are drawn last.
        for epoch, curve in sorted(zip(best, curves, strict=True), key=lambda pair: -pair[0]):
            look: dict[str, Any] = {"color": colour(2 if epoch == 0 else 0), "alpha": 0.9 if epoch == 0 else 0.35}
            (line,) = axes.plot(np.arange(1, len(curve) + 1), 100 * curve, linewidth=0.9, **look)
            axes.plot(epoch + 1, 100 * curve[epoch], "o", markersize=3, **look)
            tip(line, f"{language}, {shots_name(k)}: best {100 * curve[epoch]:.2f} after epoch {epoch + 1}")
        axes.set_title(f"{language}, {shots_name(k)}: first epoch best in {best.count(0)} of {len(best)}", fontsize=8)
        axes.locator_params(axis="x", integer=True)
        plain(axes)
    what = "dev score after each epoch of target adapting; dots: selected; colour: the first epoch is best"
    titled(figure, f"{title}: {what}", "epochs of target adapting", f"dev {metric}")
    return figure
