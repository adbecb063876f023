"""Lifelong learning: statements, LL's table next to our results, tests over seeds, and distributions over orders.

LL = "Towards a robust experimental framework … for lifelong language learning" (Hussain et al. 2021). Scores are in
percent, differences in points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, compress, product
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.aggregate import compared, mean_over_orders
from xclrun.analysis.grouping import natural
from xclrun.analysis.measures import MEASURES, Scores, measure, quantity
from xclrun.analysis.points import switches, unadapted_note
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References, is_control
from xclrun.analysis.replicates import Replicates
from xclrun.analysis.significance import ALPHA, Pair, holm, paired_t
from xclrun.core.quantity import SHARE, Quantity
from xclrun.core.task import BESIDE_STATEMENTS, BY_NAME, CONSTANT_ACCURACY, STATEMENT_ACCURACY, headline, short_name
from xclrun.report.inference import p_text
from xclrun.report.over_time import draw_curve, mean_curves, order_grid
from xclrun.report.part import Item, Plot, part
from xclrun.report.published import ll
from xclrun.report.published.setup import setup_notes
from xclrun.report.strategies import StrategySection
from xclrun.report.style import colour, ends_of_hops, legend, panel_grid, places, plain, titled
from xclrun.report.summary import CONSTANT, Summary
from xclrun.report.tables import Cell, Table, group_starts, percent_cell, quantity_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Measures of LL's Table 1 and text, in its order.
TESTED = ("AULTC", "F_m_curve", "F_m", "I", "FP")
RATES = ("true_f1", "true_rate", "false_rate")
PANELS = 3  # orders in a row of a figure
MANY = 20  # minimum number of orders for showing their distribution


@part(StrategySection, place=26, title="Statements")
def statements(section: StrategySection) -> Iterator[Item]:
    if (table := statement_table(section.summary)) is not None:
        yield table
        caption = "F1, TPR and TNR of true statements over time"
        yield Plot(section.file("rates", STATEMENT_ACCURACY.name), caption, rates_figure, section.summary)


@part(StrategySection, place=27, title="LL paper, Table 1")
def ll_table(section: StrategySection) -> Iterator[Item]:
    for metric in section.comparison.metrics:
        yield published_table(section.summary, metric)


@part(StrategySection, place=42, title="Tests over seeds, as in LL", folded=True)
def seeds(section: StrategySection) -> Iterator[Item]:
    yield (
        "LL compares strategies by two-tailed paired t-tests over the seeds of one order, without correction. "
        "Results over seeds of one order do not extend to other orders; the tests above are over orders."
    )
    for metric in section.comparison.metrics:
        yield seed_tests(section.summary, section.shared.references, metric)


@part(StrategySection, place=91, title="Distribution over orders")
def over_orders(section: StrategySection) -> Iterator[Item]:
    for metric in section.comparison.metrics:
        if values := by_order(section.summary, metric):
            yield orders_table(section.summary, metric, values)
            caption, name = "Histograms of measures over orders", section.file("orders", metric)
            yield Plot(name, caption, orders_figure, section.summary, metric, values, paper="LL section 4.3")


# Strategy → LL's name of a measure → order → value, a fraction.
ByOrder = Mapping[str, Mapping[str, Mapping[str, float]]]


def by_order(summary: Summary, metric: str) -> ByOrder:
    """Return LL's measures in each order, for strategies with at least `MANY` orders."""
    values_of: dict[str, dict[str, dict[str, float]]] = {}
    for label, runs in summary.comparison.strategies.items():
        orders = sorted({run.order for run in runs if run.stream == "sequence"}, key=natural)
        for name, ours in ll.MEASURES.items() if len(orders) >= MANY else ():
            values = {order: summary.value(label, metric, ours, order) for order in orders}
            if values := {order: value for order, value in values.items() if not math.isnan(value)}:
                values_of.setdefault(label, {})[name] = values
    return values_of


def orders_table(summary: Summary, metric: str, by_label: ByOrder) -> Table:
    """Return the lowest, median and highest value over orders of each strategy and measure."""
    standard = set(ll.STREAMS["standard"]) == set(summary.comparison.languages)
    rows = []
    for label, measures in by_label.items():
        runs = summary.comparison.strategies[label]
        for name, values in measures.items():
            kind = quantity(metric, ll.MEASURES[name])
            low, high = (
                (quantity_cell(values[order], kind, summary.behind(label, order, metric, ll.MEASURES[name])), order)
                for order in (min(values, key=values.__getitem__), max(values, key=values.__getitem__))
            )
            middle = quantity_cell(float(np.median(list(values.values()))), kind, tuple(run.run_id for run in runs))
            published = "–"
            if standard and runs[0].strategy == "naive":
                end, value = ll.extreme(name)
                published = f"{end} {SHARE.shown(value)}"
            rows.append((label, name, str(len(values)), *low, middle, *high, published))
    header = ("strategy", "measure", "orders", "lowest", "in order", "median", "highest", "in order", "published")
    notes = (
        "one value per order, averaged over seeds; LL's F_m is F_m_curve, I_m is I, and A_m is FP",
        *(["published: LL, section 4.3, one run in each of 120 orders"] if standard else []),
        *(setup_notes(replace(ll.SETUP, seeds=None), summary.comparison.runs, [metric]) if standard else []),
    )
    return Table(f"{headline(metric)}, LL's measures over orders", header, tuple(rows), notes, left=3)


def orders_figure(summary: Summary, metric: str, by_label: ByOrder) -> Figure:
    """Draw a histogram of each of LL's measures over orders."""
    names = [name for name in ll.MEASURES if any(name in measures for measures in by_label.values())]
    figure, grid = panel_grid(len(names), 2, (3.2, 2.3), (2.2, 0.9))
    for axes, name in zip(grid, names, strict=False):
        labels = [label for label in by_label if name in by_label[label]]
        kind = quantity(metric, ll.MEASURES[name])
        values = [[kind.scale * value for value in by_label[label][name].values()] for label in labels]
        colours = [colour(k) for k in places(labels, summary.comparison.strategies).values()]
        axes.hist(values, bins=20, color=colours, edgecolor="white", linewidth=0.4)
        plain(axes, f"{name} ({kind.unit})")
    legend(figure, by_label, summary.comparison.strategies)
    count = max(len(values) for measures in by_label.values() for values in measures.values())
    title = f"{summary.names}: {summary.title(metric)}, LL's measures over {count} orders"
    titled(figure, title, up="number of orders")
    return figure


def statement_table(summary: Summary) -> Table | None:
    """Return all scores of statements after the last hop: a row for each strategy and key, and their mean."""
    metrics = [STATEMENT_ACCURACY, CONSTANT_ACCURACY, *(m for m in BESIDE_STATEMENTS if m is not CONSTANT_ACCURACY)]
    languages, rows = summary.comparison.languages, []
    for label, (runs, _) in compared(summary.comparison).items():
        runs = [run for run in runs if STATEMENT_ACCURACY.name in run.scores]
        if not runs:
            continue
        columns = []
        for metric in metrics:
            scores = [dict(zip(run.languages, final_scores(run, metric.name), strict=True)) for run in runs]
            columns.append(mean_over_orders(runs, [[by_key.get(k, math.nan) for k in languages] for by_key in scores]))
        behind = tuple(run.run_id for run in runs)
        for j, key in enumerate(languages):
            rows.append((label, key, *(percent_cell(column[j], behind) for column in columns)))
        # The mean is NaN if a key lacks a metric: means over different keys are not comparable.
        rows.append((label, "mean", *(percent_cell(float(column.mean()), behind) for column in columns)))
    if not rows:
        return None
    names = [metric.short if metric.beside else "accuracy" for metric in metrics]
    notes = tuple(f"{name}: {metric.definition}" for name, metric in zip(names, metrics, strict=True))
    header = ("strategy", "key", *names)
    return Table("Statements after the last hop", header, tuple(rows), notes, left=2, ruled=group_starts(rows))


def final_scores(run: RunRecord, metric: str) -> np.ndarray:
    """Return the final score on each language, shape (N,); NaN if the run lacks the metric."""
    unknown = np.full(len(run.languages), math.nan)
    if metric not in run.scores:
        return unknown
    return np.asarray(MEASURES["FP"].values_by_language(Scores.of(run.scores[metric], unknown, run, metric)))


def rates_figure(summary: Summary) -> Figure | None:
    """Draw F1, TPR and TNR of true statements, mean over keys and seeds, by statements seen (LL App. A.6)."""
    orders = sorted(summary.comparison.orders, key=natural)
    orders = [order for order in orders if mean_curves(summary, RATES[0], order)][:PANELS]
    if not orders:
        return None
    names, strategies = [BY_NAME[rate].title for rate in RATES], list(summary.comparison.strategies)
    figure, grid = order_grid(names, orders, 6.4, "statements of the stream seen")
    labels: dict[str, None] = {}
    for (i, rate), (j, order) in product(enumerate(RATES), enumerate(orders)):
        ends: Sequence[float] = ()
        for label, (seen, scores, run) in mean_curves(summary, rate, order).items():
            y = 100 * np.nanmean(scores, axis=1)
            draw_curve(grid[i, j], seen, y, strategies.index(label), f"{label}: last {y[-1]:.2f}")
            labels[label] = None
            ends = switches(run).tolist() if run.stream == "sequence" else ends
        ends_of_hops(grid[i, j], ends)
    legend(figure, labels, strategies)
    titled(figure, f"{summary.names}: scores of “true”, mean over keys (dotted: ends of hops)")
    return figure


def published_table(summary: Summary, metric: str) -> Table | None:
    """Return LL's Table 1 next to our values, if runs learned the same keys in the same order."""
    streams = {run.run_id: stream for run in summary.comparison.runs if (stream := ll.stream_of(run)) is not None}
    if not streams:
        return None
    (stream,) = set(streams.values())
    alike = [run for run in summary.comparison.runs if run.run_id in streams]
    order, theirs = alike[0].order, ll.ll_tables()["1", stream]
    body = []
    for method, label in _rows_of_table_1(summary):
        cells: list[str] = []
        for name, ours in (ll.OF_MULTI_TASK if method == "multi_task" else ll.MEASURES).items():
            reported = theirs[method, name]
            published = Cell(SHARE.spread(reported.value, reported.std), reported.value)
            value = math.nan if label is None else summary.value(label, metric, ours, order)
            runs = () if label is None else summary.behind(label, order, metric, ours)
            cells += [
                "–" if math.isnan(reported.value) else published,
                quantity_cell(value, quantity(metric, ours), runs),
            ]
        default = label is None or label == summary.comparison.strategies[label][0].strategy
        body.append((method if default else f"{method}: {label}", *cells))
    if floors := summary.floors(metric):
        ours_of = {"A_m": floors[-1]}
        body.append((CONSTANT, *(cell for measure in ll.MEASURES for cell in ("–", ours_of.get(measure, "–")))))
    header = ("strategy", *(name for measure in ll.MEASURES for name in (measure, "ours")))
    notes = (
        f"published: {stream} stream, mean ± standard deviation over seeds; ours: order {order}, mean over seeds",
        *setup_notes(ll.SETUP, alike, [metric]),
        "F_m: defined as in the paper's code (F_m_curve); I_m: for multi_task, read off the learning curve "
        "(I_m_curve); for other methods, intransigence (I)",
        "these runs use other statements than the paper",
        *unadapted_note(summary.comparison.strategies),
    )
    return Table(f"LL Table 1, {short_name(metric)}: published beside ours", header, tuple(body), notes)


def _rows_of_table_1(summary: Summary) -> Iterator[tuple[str, str | None]]:
    """For each of LL's methods, yield (method, our label) for every label with runs, or (method, None) without runs."""
    for strategy, method in ll.METHODS.items():
        runs = {label: runs[0] for label, runs in summary.comparison.strategies.items()}
        labels = [label for label, run in runs.items() if run.strategy == strategy and not is_control(run)]
        yield from ((method, label) for label in labels)
        if not labels:
            yield method, None


def seed_tests(summary: Summary, references: References, metric: str) -> Table | None:
    """Return paired t-tests over the seeds of each order: p uncorrected (as LL), and with Holm's correction."""
    rows: list[tuple[str, ...]] = []
    for order in sorted(summary.comparison.orders, key=natural):
        entering = {
            label: {(run.seed, run.bucket): run for run in runs if metric in run.metrics}
            for label, (runs, _) in compared(summary.comparison, order, unpaired=True).items()
            if not any(map(is_control, runs))
        }
        if not any(run.points for runs in entering.values() for run in runs.values()):
            continue
        measured = {
            label: {block: measure(run, metric, references.scores(run, metric)) for block, run in runs.items()}
            for label, runs in entering.items()
        }
        for name in TESTED:
            rows += _pairs(order, name, quantity(metric, name), measured)
    if not rows:
        return None
    header = ("order", "measure", "A", "B", "seeds", "A − B", "p (as LL)", "p (Holm)")
    notes = (
        "two-tailed paired t-test over the seeds that both strategies have; A − B: mean difference in "
        f"{BY_NAME[metric].difference.unit}; p (as LL): without correction, level {ALPHA}; p (Holm): corrected for the "
        "pairs of the measure in this order; "
        "all p-values are exploratory",
        "–: all differences are equal, or there are fewer than two seeds",
        *unadapted_note(summary.comparison.strategies),
        *(
            f"{name} {quantity(metric, name).arrow}: {MEASURES[name].definition}"
            for name in TESTED
            if any(name == r[1] for r in rows)
        ),
    )
    return Table(f"{headline(metric)}, paired t-tests over seeds", header, tuple(rows), notes, left=4)


def _pairs(
    order: str,
    name: str,
    kind: Quantity,
    measured: Mapping[str, Mapping[tuple[int, int | None], Mapping[tuple[str, str], object]]],
) -> list[tuple[str, ...]]:
    pairs: list[tuple[int, Pair]] = []
    for a, b in combinations(measured, 2):
        blocks = sorted(measured[a].keys() & measured[b].keys(), key=str)
        rows = [[measured[label][block][name, ""] for block in blocks] for label in (a, b)]
        values = np.array([[v if isinstance(v, float) else math.nan for v in row] for row in rows])
        defined = np.isfinite(values).all(axis=0)
        blocks, values = list(compress(blocks, defined)), values[:, defined]
        if len(blocks) > 1:
            # Called with a single pair, `paired_t` does not correct its p-value.
            (pair,) = paired_t(Replicates((a, b), tuple((order, *block) for block in blocks), values))
            pairs.append((len(blocks), pair))
    adjusted = holm([pair.p for _, pair in pairs])
    return [
        (
            order, name, pair.a, pair.b, str(n), Cell(kind.change(pair.difference), pair.difference),
            *(Cell(p_text(p), p) for p in (pair.p, float(adjusted_p))),
        )
        for (n, pair), adjusted_p in zip(pairs, adjusted, strict=True)
    ]  # fmt: skip
