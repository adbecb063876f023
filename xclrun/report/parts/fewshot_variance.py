"""Effect of the bucket and effect of the seed: histograms (FS Fig. 1) and variance components.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.fewshot.scores import Spreads, groups, seeds_against_buckets, selected_dev
from xclrun.analysis.fewshot.variance import balanced, nested_variance
from xclrun.report.fewshot.data import PANELS, FewShotRuns, panels
from xclrun.report.fewshot.data import Cell as Place
from xclrun.report.fewshot.names import shots_name, source_name
from xclrun.report.inference import p_text
from xclrun.report.part import Item, part
from xclrun.report.style import colour, plain, titled
from xclrun.report.tables import Table, number_cell, percent_cell

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@part(FewShotRuns, place=30, title="{metric}{source}: buckets and seeds")
def fewshot_variance(runs: FewShotRuns) -> Iterator[Item]:
    yield "Histograms: dev scores of the selected epochs, as FS. Variance components: test scores."
    dev = {i: selected_dev(runs.records[i], runs.metric) for i in runs.scores["run_id"]}
    cells = runs.cells(runs.first).items()
    found = {place: seeds_against_buckets(rows.assign(score=rows["run_id"].map(dev))) for place, rows in cells}
    spreads = dict([(place, one) for place, one in found.items() if one is not None][:PANELS])
    if spreads:
        caption = "Dev scores over buckets and over seeds (FS Fig. 1)"
        yield runs.plot("histograms", caption, histograms, spreads, runs.title, runs.names(runs.first))
    for strategy in runs.strategies:
        title = f"{runs.short}: where the variance comes from, {strategy}{source_name(runs.source)}"
        yield variance_table(title, runs.rows(strategy))


def histograms(spreads: Mapping[Place, Spreads], metric: str, title: str) -> Figure:
    """Draw the distribution of dev scores over buckets and over seeds, a panel for each (language, K) (FS Fig. 1)."""
    figure, grid = panels(spreads, 4, (2.9, 2.2), (1.3, 0.9))
    for axes, _, one in grid:
        parts = [(f"{len(one.buckets)} buckets", 100 * one.buckets), (f"{len(one.seeds)} seeds", 100 * one.seeds)]
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
    what = "dev scores over buckets (one seed) and over seeds (one bucket)"
    titled(figure, f"{title}: {what}", f"dev {metric}", "share of scores (%)")
    return figure


def variance_table(title: str, scores: pd.DataFrame) -> Table | None:
    """Return variance components of each K: language, bucket in language, seed. None where no K has two buckets.

    Args:
        scores: rows of `few_shot_scores` of one dataset, model, metric, source and strategy.
    """
    rows: list[tuple[str, ...]] = []
    notes = [
        "balanced random-effects model: language, bucket nested in language, seed crossed with both; components from "
        "expected mean squares; std: square root of the component in points; share: of the sum of all components",
        "p: F test that the component is 0; where the estimate is negative, it is 0",
    ]
    for (k,), of_shots in groups(scores[scores["shots"] > 0], ["shots"]):
        measured = of_shots.dropna(subset="score")[["language", "bucket", "seed", "score"]]
        cells = {(c, bucket, seed): score for c, bucket, seed, score in measured.itertuples(index=False, name=None)}
        values, languages, left = balanced(cells)
        if values.shape[1] < 2:
            continue
        shape = f"{len(languages)} languages × {values.shape[1]} buckets × {values.shape[2]} seeds"
        notes.append(f"{shots_name(k)}: {shape}" + (f"; {left} runs outside this balanced part" if left else ""))
        for one in nested_variance(values):
            std = math.sqrt(max(one.variance, 0.0)) if one.variance == one.variance else math.nan
            share = number_cell(one.share, 100, 1)
            rows.append((shots_name(k), one.source, str(one.df), percent_cell(std), share, p_text(one.p)))
    if not rows:
        return None
    if all("rest" in row[1] or row[1] == "language" for row in rows):
        notes.append("one seed: what the bucket does cannot be told from the rest; run a second seed")
    return Table(title, ("K", "source of variance", "df", "std", "share (%)", "p"), tuple(rows), tuple(notes), left=2)
