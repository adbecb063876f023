"""Lifelong learning: statements, rates over time, LL's table beside ours, tests over seeds, distributions over orders.

LL = "Towards a robust experimental framework … for lifelong language learning" (Hussain et al. 2021). Scores in
percent, differences in points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.aggregate import compared, mean_over_orders
from xclrun.analysis.grouping import natural
from xclrun.analysis.measures import MEASURES, Scores, measure
from xclrun.analysis.points import curves, switches, unadapted_note
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References, is_control
from xclrun.analysis.replicates import Replicates
from xclrun.analysis.significance import ALPHA, Pair, holm, paired_t
from xclrun.core.task import BESIDE_STATEMENTS, BY_NAME, CONSTANT_ACCURACY, STATEMENT_ACCURACY, headline, short_name
from xclrun.report.inference import p_text
from xclrun.report.part import Item, Plot, part
from xclrun.report.published import ll
from xclrun.report.published.setup import setup_notes
from xclrun.report.strategies import StrategySection
from xclrun.report.style import GREY, colour, figure_of, legend, marker, panel_grid, places, plain, tip, titled
from xclrun.report.summary import CONSTANT, Summary
from xclrun.report.tables import Cell, Table, percent, percent_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Measures of LL's Table 1 and its reading in the text, in its order.
TESTED = ("AULTC", "F_m_curve", "F_m", "I", "FP")
RATES = ("true_f1", "true_rate", "false_rate")
# Orders side by side in a figure.
PANELS = 3
# Orders from which on their distribution is shown.
MANY = 20


@part(StrategySection, place=26, title="Statements")
def statements(section: StrategySection) -> Iterator[Item]:
    table = statement_table(section.summary)
    if table is None:
        return
    yield table
    draw = partial(rates_figure, section.summary)
    yield Plot(section.file("rates", STATEMENT_ACCURACY.name), "F1, TPR and TNR of true statements over time", draw)


@part(StrategySection, place=27, title="LL paper, Table 1")
def ll_table(section: StrategySection) -> Iterator[Item]:
    for metric in section.comparison.metrics:
        table = published_table(section.summary, metric)
        if table is not None:
            yield table


@part(StrategySection, place=42, title="Tests over seeds, as LL", folded=True)
def seeds(section: StrategySection) -> Iterator[Item]:
    found = [seed_tests(section.summary, section.shared.references, metric) for metric in section.comparison.metrics]
    tables = [table for table in found if table is not None]
    if tables:
        yield (
            "LL compares strategies by two-tailed paired t-tests over the seeds of one order, without correction. "
            "Seeds of one order say nothing of other orders: the tests of this report, above, take orders."
        )
        yield from tables


@part(StrategySection, place=91, title="Distribution over orders")
def over_orders(section: StrategySection) -> Iterator[Item]:
    for metric in section.comparison.metrics:
        found = by_order(section.summary, metric)
        if found:
            yield orders_table(section.summary, metric, found)
            draw = partial(orders_figure, section.summary, metric, found)
            yield Plot(section.file("orders", metric), "Histograms of LL's measures over orders (LL section 4.3)", draw)


# Strategy → LL's name of a measure → order → value, a fraction.
ByOrder = Mapping[str, Mapping[str, Mapping[str, float]]]


def by_order(summary: Summary, metric: str) -> ByOrder:
    """Return LL's measures in each order, of the strategies that have `MANY` orders or more."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for label, runs in summary.comparison.strategies.items():
        orders = sorted({run.order for run in runs if run.stream == "sequence"}, key=natural)
        for name, ours in ll.MEASURES.items() if len(orders) >= MANY else ():
            values = {order: summary.value(label, metric, ours, order) for order in orders}
            known = {order: value for order, value in values.items() if not math.isnan(value)}
            if known:
                found.setdefault(label, {})[name] = known
    return found


def orders_table(summary: Summary, metric: str, found: ByOrder) -> Table:
    """Return lowest, median and highest value over orders, a row for each strategy and measure."""
    standard = set(ll.STREAMS["standard"]) == set(summary.comparison.languages)
    rows = []
    for label, measures in found.items():
        for name, values in measures.items():
            low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
            of = summary.comparison.strategies[label]
            ends = [
                (percent_cell(values[order], summary.behind(label, order, metric, ll.MEASURES[name])), order)
                for order in (low, high)
            ]
            middle = percent_cell(float(np.median(list(values.values()))), tuple(run.run_id for run in of))
            published = "–"
            if standard and of[0].strategy == "naive":
                end, value = ll.extreme(name)
                published = f"{end} {percent(value)}"
            rows.append((label, name, str(len(values)), *ends[0], middle, *ends[1], published))
    header = ("strategy", "measure", "orders", "lowest", "in order", "median", "highest", "in order", "published")
    notes = (
        "a value for each order, mean over its seeds; F_m is F_m_curve, I_m is I, A_m is FP",
        *(["published: LL, section 4.3, one run in each of 120 orders"] if standard else []),
        *(setup_notes(replace(ll.SETUP, seeds=None), summary.comparison.runs, [metric]) if standard else []),
    )
    return Table(f"{headline(metric)}, LL's measures over orders", header, tuple(rows), notes, left=3)


def orders_figure(summary: Summary, metric: str, found: ByOrder) -> Figure:
    """Draw a histogram of each of LL's measures over orders; bars of several strategies stand next to each other."""
    names = [name for name in ll.MEASURES if any(name in measures for measures in found.values())]
    figure, grid = panel_grid(len(names), 2, (3.2, 2.3), (2.2, 0.9))
    for axes, name in zip(grid, names, strict=False):
        having = [label for label in found if name in found[label]]
        values = [[100 * value for value in found[label][name].values()] for label in having]
        colours = [colour(k) for k in places(having, summary.comparison.strategies).values()]
        axes.hist(values, bins=20, color=colours, edgecolor="white", linewidth=0.4)
        axes.set_xlabel(f"{name} (%)" if name in ("AULTC", "A_m") else f"{name} (points)", fontsize=8)
        plain(axes)
    legend(figure, list(found), summary.comparison.strategies)
    count = max(len(values) for measures in found.values() for values in measures.values())
    title = f"{summary.names}: {summary.title(metric)}, LL's measures over {count} orders"
    titled(figure, title, up="number of orders")
    return figure


def final_scores(run: RunRecord, metric: str) -> np.ndarray:
    """Return the last score on each language, shape (N,); NaN where the metric is not known."""
    if metric not in run.scores:
        return np.full(len(run.languages), math.nan)
    return Scores(run.scores[metric], np.full(len(run.languages), math.nan), run, metric).final


def statement_table(summary: Summary) -> Table | None:
    """Return all scores of statements after the last hop, a row for each strategy and key, and their mean."""
    shown = [STATEMENT_ACCURACY, CONSTANT_ACCURACY, *(m for m in BESIDE_STATEMENTS if m is not CONSTANT_ACCURACY)]
    languages, rows = summary.comparison.languages, []
    for label, (runs, _) in compared(summary.comparison).items():
        runs = [run for run in runs if STATEMENT_ACCURACY.name in run.scores]
        if not runs:
            continue
        columns = []
        for metric in shown:
            values = [dict(zip(run.languages, final_scores(run, metric.name), strict=True)) for run in runs]
            columns.append(mean_over_orders(runs, [[of.get(k, math.nan) for k in languages] for of in values]))
        behind = tuple(run.run_id for run in runs)
        for j, key in enumerate(languages):
            rows.append((label, key, *(percent_cell(column[j], behind) for column in columns)))
        # Of a key without choices the mean over the others would be of other keys in each column.
        rows.append((label, "mean", *(percent_cell(float(column.mean()), behind) for column in columns)))
    if not rows:
        return None
    header = ("strategy", "key", *(metric.short if metric.beside else "accuracy" for metric in shown))
    notes = tuple(f"{'accuracy' if not m.beside else m.short}: {m.definition}" for m in shown)
    starts = tuple(k for k in range(1, len(rows)) if rows[k][0] != rows[k - 1][0])
    return Table("Statements after the last hop", header, tuple(rows), notes, left=2, ruled=starts)


def mean_curves(
    summary: Summary, metric: str, order: str
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], RunRecord | None]:
    """Return strategy → (sentences seen, mean score over seeds on each key, (E, N)), and a run that has switches."""
    found, one = {}, None
    for label, (runs, _) in compared(summary.comparison, order).items():
        having = [(run, line) for run in runs if metric in run.scores and (line := curves(run, metric)) is not None]
        same = [line for run, line in having if run.languages == having[0][0].languages]
        same = [line for line in same if np.array_equal(line[0], same[0][0])]
        if same:
            found[label] = same[0][0], np.mean([scores for _, scores in same], axis=0)
            one = having[0][0] if having[0][0].stream == "sequence" else one
    return found, one


def rates_figure(summary: Summary) -> Figure | None:
    """Draw F1, TPR and TNR of true statements, mean over keys and seeds, by statements seen (LL App. A.6)."""
    drawn = {order: mean_curves(summary, RATES[0], order) for order in sorted(summary.comparison.orders, key=natural)}
    orders = [order for order, (found, _) in drawn.items() if found][:PANELS]
    if not orders:
        return None
    figure = figure_of(2.2 + 3.4 * len(orders), 6.4)
    grid = figure.subplots(len(RATES), len(orders), squeeze=False, sharex="col", sharey=True)
    labels: list[str] = []
    for i, rate in enumerate(RATES):
        for j, order in enumerate(orders):
            axes, (found, one) = grid[i, j], mean_curves(summary, rate, order)
            for label, (seen, scores) in found.items():
                k = list(summary.comparison.strategies).index(label)
                y = 100 * np.nanmean(scores, axis=1)
                (line,) = axes.plot(seen, y, color=colour(k), linewidth=1.1, marker=marker(k), markersize=3,
                                    markevery=max(1, len(seen) // 10))  # fmt: skip
                tip(line, f"{label}: last {y[-1]:.2f}")
                labels += [label] if label not in labels else []
            for end in () if one is None else switches(one):
                axes.axvline(end, color=GREY, linewidth=0.7, linestyle=":", zorder=0)
            plain(axes)
            if not i:
                axes.set_title(order, fontsize=9)
        grid[i, 0].set_ylabel(BY_NAME[rate].title, fontsize=8)
    figure.supxlabel("statements of the stream seen", fontsize=8)
    legend(figure, labels, summary.comparison.strategies)
    titled(figure, f"{summary.names}: the class true, mean over keys (dotted: ends of hops)")
    return figure


def published_table(summary: Summary, metric: str) -> Table | None:
    """Return LL's Table 1 with ours beside, where runs learnt the same keys in the same order; else None."""
    streams = {stream for run in summary.comparison.runs if (stream := ll.stream_of(run)) is not None}
    if not streams:
        return None
    (stream,) = streams
    orders = [run.order for run in summary.comparison.runs if ll.stream_of(run) == stream]
    theirs = ll.ll_tables()["1", stream]
    body = []
    for method, label in _rows_of_table_1(summary):
        cells: list[str] = []
        for name, ours in (ll.OF_MULTI_TASK if method == "multi_task" else ll.MEASURES).items():
            reported = theirs[method, name]
            mine = math.nan if label is None else summary.value(label, metric, ours, orders[0])
            runs = () if label is None else summary.behind(label, orders[0], metric, ours)
            text = f"{percent(reported.value)} ± {percent(reported.std)}"
            cells += ["–" if math.isnan(reported.value) else Cell(text, reported.value), percent_cell(mine, runs)]
        shown = label is None or label == summary.comparison.strategies[label][0].strategy
        body.append((method if shown else f"{method}: {label}", *cells))
    if floors := summary.floors(metric):
        ours_of = {"A_m": floors[-1]}
        body.append((CONSTANT, *(cell for measure in ll.MEASURES for cell in ("–", ours_of.get(measure, "–")))))
    header = ("strategy", *(name for measure in ll.MEASURES for name in (measure, "ours")))
    notes = (
        f"published: {stream} stream, mean ± standard deviation over seeds; ours: order {orders[0]}, mean over seeds",
        *setup_notes(ll.SETUP, [run for run in summary.comparison.runs if ll.stream_of(run) == stream], [metric]),
        "F_m: as its code has it, ours is F_m_curve; I_m of multi_task is read off its curve: ours is I_m_curve there, "
        "I for the others",
        "the paper drew its own statements",
        *unadapted_note(summary.comparison.strategies),
    )
    return Table(f"LL Table 1, {short_name(metric)}: published beside ours", header, tuple(body), notes)


def _rows_of_table_1(summary: Summary) -> Iterator[tuple[str, str | None]]:
    """Yield (method, label of ours): a row for each setting of its strategy, None where there are no runs.

    Controls are none of the paper's methods.
    """
    for strategy, method in ll.METHODS.items():
        runs = {label: runs[0] for label, runs in summary.comparison.strategies.items()}
        labels = [label for label, run in runs.items() if run.strategy == strategy and not is_control(run)]
        yield from ((method, label) for label in labels)
        if not labels:
            yield method, None


def seed_tests(summary: Summary, references: References, metric: str) -> Table | None:
    """Return paired t-tests over the seeds of each order: raw p, as published, and Holm's over a measure's pairs.

    None where no order has two seeds of runs with evaluation points.
    """
    rows: list[tuple[str, ...]] = []
    for order in sorted(summary.comparison.orders, key=natural):
        entering = {
            label: {(run.seed, run.bucket): run for run in runs if metric in run.metrics}
            for label, (runs, _) in compared(summary.comparison, order).items()
            if not any(map(is_control, runs))
        }
        if not any(run.points for runs in entering.values() for run in runs.values()):
            continue
        measured = {
            label: {block: measure(run, metric, references.scores(run, metric)) for block, run in runs.items()}
            for label, runs in entering.items()
        }
        for name in TESTED:
            rows += _pairs(order, name, measured)
    if not rows:
        return None
    header = ("order", "measure", "A", "B", "seeds", "A − B", "p (as LL)", "p (Holm)")
    notes = (
        "two-tailed paired t-test over the seeds that all strategies have; A − B: mean difference in points; p (as "
        f"LL): without correction, at {ALPHA}; p (Holm): over the pairs of the measure in this order; exploratory",
        "– where all differences are equal, or there are fewer than two seeds",
        *unadapted_note(summary.comparison.strategies),
        *(
            f"{name} {MEASURES[name].arrow}: {MEASURES[name].definition}"
            for name in TESTED
            if any(name == r[1] for r in rows)
        ),
    )
    return Table(f"{headline(metric)}, paired t-tests over seeds", header, tuple(rows), notes, left=4)


def _pairs(
    order: str, name: str, measured: Mapping[str, Mapping[tuple[int, int | None], object]]
) -> list[tuple[str, ...]]:
    """Return the rows of one measure in one order."""
    found: list[tuple[int, Pair]] = []
    for a, b in combinations(measured, 2):
        blocks = sorted(measured[a].keys() & measured[b].keys(), key=str)
        values = np.array([[_value(measured[label][block], name) for block in blocks] for label in (a, b)])
        if len(blocks) > 1 and np.isfinite(values).all():
            replicates = Replicates((a, b), tuple((order, *block) for block in blocks), values)
            # One pair alone: nothing is adjusted.
            (pair,) = paired_t(replicates)
            found.append((len(blocks), pair))
    adjusted = holm([pair.p for _, pair in found])
    return [
        (
            order, name, pair.a, pair.b, str(n), Cell(f"{100 * pair.difference:+.2f}", pair.difference),
            *(Cell("–") if math.isnan(p) else Cell(p_text(p), p) for p in (pair.p, float(adjusted_p))),
        )
        for (n, pair), adjusted_p in zip(found, adjusted, strict=True)
    ]  # fmt: skip


def _value(measured: object, name: str) -> float:
    value = measured[name, ""]  # type: ignore[index]
    return value if isinstance(value, float) else math.nan
