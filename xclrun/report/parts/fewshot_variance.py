"""Variation of few-shot scores over buckets, seeds and epochs: variance components, FS Figs. 1 and 6.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.analysis.fewshot.scores import Spreads, dev_curve, groups, seeds_against_buckets, selected_dev
from xclrun.analysis.fewshot.variance import balanced, nested_variance
from xclrun.core.quantity import Quantity
from xclrun.core.task import BY_NAME
from xclrun.report.fewshot.data import PANELS, FewShotRuns, panels, shots_name, source_name
from xclrun.report.fewshot.data import Cell as Place
from xclrun.report.inference import p_text
from xclrun.report.part import Item, Needs, part
from xclrun.report.style import colour, plain, tip, titled
from xclrun.report.tables import Table, number_cell, quantity_cell

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@part(FewShotRuns, place=30, title="{metric}{source}: buckets and seeds")
def fewshot_variance(runs: FewShotRuns) -> Iterator[Item]:
    yield "Histograms show dev scores of the selected epochs, as in FS. Variance components are from test scores."
    dev = {i: selected_dev(runs.records[i], runs.metric) for i in runs.scores["run_id"]}
    cells = runs.cells(runs.first).items()
    by_place = {place: seeds_against_buckets(rows.assign(score=rows["run_id"].map(dev))) for place, rows in cells}
    spreads = dict([(place, both) for place, both in by_place.items() if both is not None][:PANELS])
    if spreads:
        caption, names = "Dev scores over buckets and over seeds", (runs.title, runs.names(runs.first))
        yield runs.plot("histograms", caption, histograms, spreads, runs.metric, *names, paper="FS Fig. 1")
    for strategy in runs.strategies:
        title = f"{runs.short}: where the variance comes from, {strategy}{source_name(runs.source)}"
        yield variance_table(title, runs.rows(strategy), BY_NAME[runs.metric].difference)


def histograms(spreads: Mapping[Place, Spreads], metric: str, name: str, title: str) -> Figure:
    """Draw the distribution of dev scores over buckets and over seeds, a panel for each (language, K) (FS Fig. 1)."""
    figure, grid = panels(spreads, 4, (2.9, 2.2), (1.3, 0.9))
    scale = BY_NAME[metric].quantity.scale
    for axes, _, spread in grid:
        parts = [
            (f"{len(spread.buckets)} buckets", scale * spread.buckets),
            (f"{len(spread.seeds)} seeds", scale * spread.seeds),
        ]
        parts = [(name, values) for name, values in parts if len(values) > 1]
        low, high = min(v.min() for _, v in parts), max(v.max() for _, v in parts)
        bins = np.linspace(low, high if high > low else low + 1, 13).tolist()
        for j, (name, values) in enumerate(parts):
            axes.hist(
                values, bins=bins, weights=np.full(len(values), 100 / len(values)),
                label=f"{name}, std {values.std(ddof=1):.2f}", color=colour(j + 1), alpha=0.55, hatch=("", "///")[j],
                edgecolor="black", linewidth=0.5,
            )  # fmt: skip
        axes.set_ylim(0, 1.45 * axes.get_ylim()[1])
        axes.locator_params(axis="x", nbins=5)
        axes.legend(fontsize=6.5, frameon=False, loc="upper left")
        plain(axes)
    details = "dev scores over buckets (one seed) and over seeds (one bucket)"
    titled(figure, f"{title}: {details}", f"dev {name}", "share of scores (%)")
    return figure


def variance_table(title: str, scores: pd.DataFrame, difference: Quantity) -> Table | None:
    """Return the variance components of each K with two or more buckets: language, bucket within language, seed.

    Args:
        scores: rows of `few_shot_scores` of one dataset, model, metric, source and strategy.
        difference: the quantity of differences of these scores.
    """
    rows: list[tuple[str, ...]] = []
    notes = [
        "balanced random-effects model: language, bucket nested in language, seed crossed with language and bucket; "
        f"components from expected mean squares; std: square root of the component in {difference.unit}; share: "
        "component divided "
        "by the sum of all components",
        "p: F test of the hypothesis that the component is 0; negative estimates are shown as 0",
    ]
    for (k,), rows_of_k in groups(scores[scores["shots"] > 0], ["shots"]):
        measured = rows_of_k.dropna(subset="score")[["language", "bucket", "seed", "score"]]
        cells = {(c, bucket, seed): score for c, bucket, seed, score in measured.itertuples(index=False, name=None)}
        values, languages, rest = balanced(cells)
        if values.shape[1] < 2:
            continue
        shape = f"{len(languages)} languages × {values.shape[1]} buckets × {values.shape[2]} seeds"
        shape += f"; {rest} runs are left out, because the model needs balanced data" if rest else ""
        notes.append(f"{shots_name(k)}: {shape}")
        for component in nested_variance(values):
            std = math.sqrt(max(component.variance, 0.0)) if component.variance == component.variance else math.nan
            share = number_cell(component.share, 100, 1)
            rows.append(
                (
                    shots_name(k),
                    component.source,
                    str(component.df),
                    quantity_cell(std, difference),
                    share,
                    p_text(component.p),
                )
            )
    if not rows:
        return None
    if all("rest" in row[1] or row[1] == "language" for row in rows):
        notes.append("with one seed, the variance of buckets cannot be separated from the rest; run a second seed")
    return Table(title, ("K", "source of variance", "df", "std", "share (%)", "p"), tuple(rows), tuple(notes), left=2)


@part(FewShotRuns, place=70, title="{metric}{source}: learning curves of target adapting", folded=True)
def fewshot_curves(runs: FewShotRuns) -> Iterator[Item]:
    yield (
        "Dev score after each epoch of target adapting, a line for each run until it stopped; dots: selected epochs. "
        "If a curve only falls, the first epoch is selected."
    )
    drawn = False
    for strategy in runs.strategies:
        lines: dict[Place, list[np.ndarray]] = {}
        for place, rows in runs.cells(strategy).items():
            curves = [dev_curve(runs.records[i], runs.metric) for i in rows["run_id"]]
            several = [curve for curve in curves if len(curve) > 1 and np.isfinite(curve).all()]
            if several and len(lines) < PANELS:
                lines[place] = several
        if lines:
            drawn = True
            kind = "curves" if strategy == runs.first else f"curves_{strategy}"
            caption, names = "Learning curves of target adapting", (runs.title, runs.names(strategy))
            yield runs.plot(kind, caption, adapting_curves, lines, runs.metric, *names, paper="FS Fig. 6")
    if not drawn:
        yield Needs("dev scores of more than one epoch")


def adapting_curves(lines: Mapping[Place, list[np.ndarray]], metric: str, name: str, title: str) -> Figure:
    """Draw dev scores over epochs, a panel for each (language, K), a line for each run (FS Fig. 6).

    Args:
        lines: (language, K) → scores of each run after its epochs, shape (epochs,).
    """
    scale = BY_NAME[metric].quantity.scale
    figure, grid = panels(lines, 4, (2.9, 2.3), (0.6, 0.9))
    for axes, (language, k), curves in grid:
        best = [int(np.argmax(BY_NAME[metric].goodness(curve))) for curve in curves]
        # Runs whose first epoch is the best are drawn last, in colour.
        for epoch, curve in sorted(zip(best, curves, strict=True), key=lambda pair: -pair[0]):
            look: dict[str, Any] = {"color": colour(2 if epoch == 0 else 0), "alpha": 0.9 if epoch == 0 else 0.35}
            (line,) = axes.plot(np.arange(1, len(curve) + 1), scale * curve, linewidth=0.9, **look)
            axes.plot(epoch + 1, scale * curve[epoch], "o", markersize=3, **look)
            tip(line, f"{language}, {shots_name(k)}: best {scale * curve[epoch]:.2f} after epoch {epoch + 1}")
        axes.set_title(f"{language}, {shots_name(k)}: first epoch best in {best.count(0)} of {len(best)}", fontsize=8)
        axes.locator_params(axis="x", integer=True)
        plain(axes)
    details = "dev score after each epoch of target adapting; dots: selected; colour: the first epoch is best"
    titled(figure, f"{title}: {details}", "epochs of target adapting", f"dev {name}")
    return figure
