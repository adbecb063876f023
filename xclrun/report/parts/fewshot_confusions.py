"""Confusion matrices, zero-shot and after adapting (FS Fig. 5, Table 10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xclrun.report.fewshot.data import Cell, FewShotRuns, shots_name, task_name
from xclrun.report.part import Item, Needs, part
from xclrun.report.published import fsxlt
from xclrun.report.style import confusion_panel, cut, panel_grid, titled
from xclrun.report.tables import Cell as TableCell
from xclrun.report.tables import Table, number_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LANGUAGES = 4  # maximum in a figure
LABELS = 20  # maximum in a panel

# Mean counts before and after adapting, each of shape (labels, labels).
Pair = tuple[np.ndarray, np.ndarray]


@part(FewShotRuns, place=60, title="{metric}{source}: confusions", folded=True)
def fewshot_confusions(runs: FewShotRuns) -> Iterator[Item]:
    yield "Gold labels (rows) and predicted labels (columns), before and after adapting."
    outcomes, cells = runs.data.outcomes.get(runs.metric, {}), runs.cells(runs.first)
    predicted = {place: [outcomes[i] for i in rows["run_id"] if i in outcomes] for place, rows in cells.items()}
    least = min((k for (_, k), each in predicted.items() if each), default=0)
    pairs: dict[Cell, Pair] = {}
    names: tuple[str, ...] = ()
    for place, each in predicted.items():
        if each and place[1] == least and len(pairs) < LANGUAGES and names in ((), each[0].names):
            names = each[0].names
            before = np.mean([outcome.confusion(outcome.before) for outcome in each], axis=0)
            pairs[place] = before, np.mean([outcome.confusion(outcome.after) for outcome in each], axis=0)
    if not pairs:
        yield Needs("predictions")
        return
    caption = "Confusion matrices, zero-shot and few-shot"
    yield runs.plot("confusions", caption, confusion_pairs, pairs, names, runs.names(runs.first), paper="FS Fig. 5")
    theirs = fsxlt.confusions(task_name(runs.dataset))
    for (language, k), matrices in pairs.items():
        if (language, k) in theirs:
            published = theirs[language, 0], theirs[language, k]
            title = f"{runs.short}, {language}: confusions"
            yield confusion_table(title, k, names, matrices, published, runs.setup(cells[language, k]))


def confusion_table(
    title: str,
    k: int,
    names: Sequence[str],
    ours: Pair,
    published: tuple[Mapping[tuple[str, str], int], Mapping[tuple[str, str], int]],
    setup: Sequence[str],
) -> Table:
    """Return mean counts next to the published counts (FS Table 10), with a row for each K and gold label.

    Args:
        published: (gold label, predicted label) → count, before and after adapting.
        setup: notes that compare the setups.
    """
    order = sorted(range(len(names)), key=names.__getitem__)
    rows = []
    for shots, counts, theirs in zip((0, k), ours, published, strict=True):
        for i in order:
            cells: list[str] = []
            for j in order:
                count = theirs.get((names[i], names[j]))
                cells += ["–" if count is None else TableCell(f"{count}", count), number_cell(counts[i, j], digits=1)]
            rows.append((shots_name(shots), names[i], *cells))
    header = ("K", "gold", *(name for j in order for name in (f"{names[j]} published", "ours")))
    notes = (
        "counts of test examples by gold label (rows) and predicted label (columns); ours: mean over buckets and seeds",
        "published: FS Table 10; K = 0: zero-shot; K = 1: mean over 5 buckets",
        *setup,
    )
    return Table(title, header, tuple(rows), notes, left=2, ruled=(len(order),))


def confusion_pairs(pairs: Mapping[Cell, Pair], names: Sequence[str], title: str) -> Figure:
    """Draw confusion matrices, zero-shot and after adapting, a row for each (language, K) (FS Fig. 5)."""
    frequency = np.sum([before.sum(axis=1) for before, _ in pairs.values()], axis=0)
    occur = int((frequency > 0).sum())
    chosen = np.sort(np.argsort(-frequency, kind="stable")[: min(LABELS, occur)])
    short = [cut(names[k].replace("_", " "), 16) for k in chosen]
    side = max(1.5, 0.19 * len(chosen) + 0.3)
    figure, grid = panel_grid(2 * len(pairs), 2, (1.15 * side, 1.12 * side), (2.0, 1.3), sharex=True, sharey=True)
    panels = iter(grid)
    for (language, k), matrices in pairs.items():
        for matrix, name in zip(matrices, ("zero-shot", shots_name(k)), strict=True):
            axes = next(panels)
            image = confusion_panel(axes, matrix, chosen, short, 6)
            axes.set_title(f"{language}, {name}", fontsize=8)
    figure.colorbar(image, ax=grid, label="share of the gold label (%)", fraction=0.04, pad=0.01)
    some = f" (the {len(chosen)} most frequent of {occur} labels)" if len(chosen) < occur else ""
    titled(figure, f"{title}: zero-shot against few-shot, over buckets and seeds{some}", "predicted", "gold")
    return figure
