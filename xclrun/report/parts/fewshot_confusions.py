"""What labels are taken for, zero-shot and after adapting (FS Fig. 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from xclrun.report.fewshot.data import Cell, FewShotRuns
from xclrun.report.fewshot.names import shots_name
from xclrun.report.part import Item, Needs, part
from xclrun.report.style import confusion_panel, cut, panel_grid, titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Languages whose confusions are drawn, and labels of each: more cannot be read.
LANGUAGES = 4


LABELS = 20


@part(FewShotRuns, place=60, title="{metric}{source}: confusions", folded=True)
def fewshot_confusions(runs: FewShotRuns) -> Iterator[Item]:
    """At the smallest K."""
    yield "What each gold label (rows) was taken for (columns), before and after adapting (FS Fig. 5)."
    given = runs.given.outcomes.get(runs.metric, {})
    found = {place: [given[i] for i in own["run_id"] if i in given] for place, own in runs.cells(runs.first).items()}
    found = {place: outcomes for place, outcomes in found.items() if outcomes}
    least = min((k for _, k in found), default=0)
    pairs: dict[Cell, tuple[np.ndarray, np.ndarray]] = {}
    names: tuple[str, ...] = ()
    for place, outcomes in found.items():
        if place[1] == least and len(pairs) < LANGUAGES and names in ((), outcomes[0].names):
            names = outcomes[0].names
            before = np.sum([one.confusion(one.before) for one in outcomes], axis=0)
            pairs[place] = before, np.sum([one.confusion(one.after) for one in outcomes], axis=0)
    if not pairs:
        yield Needs("predictions")
        return
    draw = partial(confusion_pairs, pairs, names, runs.names(runs.first))
    yield runs.plot("confusions", "Confusion matrices, zero-shot and few-shot", draw)


def confusion_pairs(pairs: Mapping[Cell, tuple[np.ndarray, np.ndarray]], names: Sequence[str], title: str) -> Figure:
    """Draw what each label was taken for zero-shot and after adapting, a row for each (language, K) (FS Fig. 5).

    Args:
        pairs: (language, K) → counts before and after, summed over buckets and seeds, shape (labels, labels).
        names: of the labels.
    """
    frequency = np.sum([before.sum(axis=1) for before, _ in pairs.values()], axis=0)
    occur = int((frequency > 0).sum())
    chosen = np.sort(np.argsort(-frequency, kind="stable")[: min(LABELS, occur)])
    short = [cut(names[k].replace("_", " "), 16) for k in chosen]
    side = max(1.5, 0.19 * len(chosen) + 0.3)
    figure, grid = panel_grid(2 * len(pairs), 2, (1.15 * side, 1.12 * side), (2.0, 1.3), sharex=True, sharey=True)
    panels = iter(grid)
    for (language, k), matrices in pairs.items():
        for matrix, what in zip(matrices, ("zero-shot", shots_name(k)), strict=True):
            axes = next(panels)
            image = confusion_panel(axes, matrix, chosen, short, 6)
            axes.set_title(f"{language}, {what}", fontsize=8)
    figure.colorbar(image, ax=grid, label="share of the gold label (%)", fraction=0.04, pad=0.01)
    some = f" (the {len(chosen)} most frequent of {occur} labels)" if len(chosen) < occur else ""
    titled(figure, f"{title}: zero-shot against few-shot, over buckets and seeds{some}", "predicted", "gold")
    return figure
