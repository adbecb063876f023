"""Several tasks in one model: scores of each key by its metrics, and GLI's Tables 1 and 3 next to our scores.

GLI = "Learning and Evaluating General Linguistic Intelligence" (Yogatama et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.aggregate import compared
from xclrun.analysis.grouping import natural
from xclrun.analysis.points import switches
from xclrun.analysis.record import RunRecord
from xclrun.core.quantity import SHARE
from xclrun.core.task import BY_NAME, KEY_SCORE, METRICS, Metric
from xclrun.report.over_time import draw_curve, mean_curves, order_grid
from xclrun.report.part import Item, Plot, part
from xclrun.report.published import gli
from xclrun.report.published.setup import setup_notes
from xclrun.report.strategies import StrategySection
from xclrun.report.style import ends_of_hops, legend, titled
from xclrun.report.summary import Summary
from xclrun.report.tables import Cell, Table, quantity_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Maximum number of panels in a figure: orders across, strategies down.
ACROSS, DOWN = 3, 5
# GLI's name of a model → name of its column.
MODELS = {"bert": "GLI: BERT", "elmo": "GLI: ELMo"}


@part(StrategySection, place=25, title="Scores of each key")
def tasks(section: StrategySection) -> Iterator[Item]:
    if any(run.metric_of or run.mixtures for run in section.comparison.runs):
        yield key_table(section.summary)
        for metric in section.comparison.metrics:
            caption = "Scores of each key over training"
            yield Plot(section.file("keys", metric), caption, key_figure, section.summary, metric)


@part(StrategySection, place=29, title="GLI paper, Tables 1 and 3")
def gli_tables(section: StrategySection) -> Iterator[Item]:
    yield published_table(section.summary)


def metrics_of_key(run: RunRecord, key: str) -> list[Metric]:
    """Return the main metrics of a run for a key."""
    j = run.languages.index(key)
    metrics = [metric for metric in METRICS if metric.name in run.scores and not metric.beside]
    return [m for m in metrics if m is not KEY_SCORE and np.isfinite(run.scores[m.name][:, j]).any()]


def learned_in(run: RunRecord, key: str) -> int:
    """Return the first hop, from 1, in which a run learns a key."""
    return next(hop for hop in range(1, run.hops + 1) if key in run.trains(hop))


def key_table(summary: Summary) -> Table:
    """Return the scores of each key by each of its metrics: before training, after the key's hop, and at the end."""
    rows: list[tuple[str | Cell, ...]] = []
    ruled = []
    for order in summary.comparison.orders:
        for label, (runs, _) in compared(summary.comparison, order).items():
            if not runs:
                continue
            ruled += [len(rows)] if rows else []
            behind = tuple(run.run_id for run in runs)
            for key in runs[0].languages:
                for metric in metrics_of_key(runs[0], key):
                    columns = [run.scores[metric.name][:, run.languages.index(key)] for run in runs]
                    ends = [learned_in(run, key) if run.stream == "independent" else run.hops for run in runs]
                    at = [[0] * len(runs), [learned_in(run, key) for run in runs], ends]
                    values = [
                        float(np.mean([column[hop] for column, hop in zip(columns, hops, strict=True)])) for hops in at
                    ]
                    rows.append(
                        (
                            order,
                            label,
                            key,
                            metric.title,
                            *(quantity_cell(value, metric.quantity, behind) for value in values),
                        )
                    )
    header = ("order", "strategy", "key", "metric", "before any", "after its own hop", "at the end")
    notes = ("mean over runs (seeds); own hop: the first hop that learns the key, alone or in a mixture",)
    return Table("Keys, each by its own metrics", header, tuple(rows), notes, left=4, ruled=tuple(ruled))


def key_figure(summary: Summary, metric: str) -> Figure | None:
    """Draw the test score of each key by examples seen (GLI, Figs 4 and 5): a panel for each order and strategy.

    Mean over seeds; dotted: ends of hops. None if runs have no evaluation points within hops.
    """
    every = {order: mean_curves(summary, metric, order) for order in sorted(summary.comparison.orders, key=natural)}
    panels = {order: curves for order, curves in every.items() if curves}
    orders = list(panels)[:ACROSS]
    all_labels = list(dict.fromkeys(label for order in orders for label in panels[order]))
    labels = all_labels[:DOWN]
    if not labels:
        return None
    keys = summary.comparison.languages
    figure, grid = order_grid(labels, orders, 1.2 + 2.0 * len(labels), "examples of the stream seen")
    for (i, label), (j, order) in product(enumerate(labels), enumerate(orders)):
        if label in panels[order]:
            scale = BY_NAME[metric].quantity.scale
            seen, scores, run = panels[order][label]
            for key, y in zip(run.languages, scale * scores.T, strict=True):
                draw_curve(grid[i, j], seen, y, keys.index(key), f"{key}, {label}, {order}: last {y[-1]:.2f}")
            ends_of_hops(grid[i, j], switches(run))
    legend(figure, keys, keys)
    counts = ((len(orders), len(panels), "orders"), (len(labels), len(all_labels), "strategies"))
    cut = "".join(f"; {n} of {total} {noun}" for n, total, noun in counts if n < total)
    titled(figure, f"{summary.names}: {summary.title(metric)} on each key (dotted: ends of hops{cut})")
    return figure


def trained_on(run: RunRecord) -> list[tuple[str, int, Sequence[str]]]:
    """Return (GLI's name of the training data, hop, keys in GLI's tables) of a run; empty if GLI has no such model."""
    first, *later = run.elements
    if run.dataset != "gli":
        return []
    if run.mixtures and not later:
        return [("random_curriculum", 1, run.languages)]
    if run.mixtures and later == ["squad"]:
        return [("supervised", 1, ("squad",)), ("supervised+squad", 2, ("squad",))]
    return [("squad", 1, ("squad",))] if first == "squad" and run.stream == "sequence" else []


def published_table(summary: Summary) -> Table | None:
    """Return GLI's scores next to our scores, with a row for each key and metric."""
    rows: dict[tuple[str, str, str], dict[str, list[tuple[float, str]]]] = {}
    labels: list[str] = []
    mixed: list[str] = []
    for label, (runs, _) in compared(summary.comparison).items():
        for run in runs:
            for name, hop, keys in trained_on(run):
                mixed += [f"{name.replace('_', ' ')}, ours: {', '.join(run.mixtures[0])}"] if run.mixtures else []
                labels += [label] if label not in labels else []
                for key in keys:
                    j = run.languages.index(key)
                    for metric in metrics_of_key(run, key):
                        value = float(run.scores[metric.name][hop, j])
                        rows.setdefault((name, key, metric.name), {}).setdefault(label, []).append((value, run.run_id))
    if not rows:
        return None
    body: list[tuple[str | Cell, ...]] = []
    for (name, key, measured), ours in rows.items():
        row = gli.DATASETS.get(key, key), gli.MEASURES.get(measured, measured)
        theirs = [gli.scores_of_tasks(model, name).get(row, math.nan) / 100 for model in MODELS]
        published = ["–" if math.isnan(value) else SHARE.shown(value) for value in theirs]
        cells = [
            quantity_cell(
                float(np.mean([v for v, _ in values])), BY_NAME[measured].quantity, tuple(i for _, i in values)
            )
            if values
            else "–"
            for values in (ours.get(label, []) for label in labels)
        ]
        body.append((name.replace("_", " "), key, BY_NAME[measured].title, *published, *cells))
    header = ("trained on", "key", "metric", *MODELS.values(), *labels)
    behind = [run for label in labels for run in summary.comparison.strategies[label]]
    notes = (
        *setup_notes(gli.SEVERAL, behind, dict.fromkeys(name for _, _, name in rows)),
        "supervised: a mixture of other tasks (SRL, RE, NLI, TriviaQA, QuAC); random curriculum: a mixture of all "
        "seven datasets; Table 3 names no metrics: F1 for question answering and accuracy for inference are assumed",
        *dict.fromkeys(mixed),
        "GLI and our runs leave out unanswerable questions, so scores differ from leaderboards; GLI's hyperparameters "
        "were tuned on the data of the reported scores",
    )
    return Table("GLI paper, Tables 1 and 3, and section 5.2", header, tuple(body), notes, left=3)
