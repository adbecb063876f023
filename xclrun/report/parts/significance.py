"""Intervals and tests of strategies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from xclrun.analysis.aggregate import MEAN
from xclrun.analysis.bootstrap import INTERVALS, RESAMPLES, SENTENCES, default_interval
from xclrun.analysis.measures import headlines
from xclrun.analysis.resampling import Estimate
from xclrun.core.task import CLASS_ACCURACY, KEY_SCORE, STATEMENT_ACCURACY
from xclrun.report.inference import PAPER, TUKEY, Inference, subject
from xclrun.report.p_figures import p_value_figure, rank_figure
from xclrun.report.part import Item, Plot, part
from xclrun.report.strategies import StrategySection
from xclrun.report.summary import CONSTANT, Summary, ruled
from xclrun.report.tables import Cell, Reasons, Table, percent

# Metric → what belongs to a text and is drawn with it; of others: questions.
WITH_TEXTS = {
    STATEMENT_ACCURACY.name: "statements",
    CLASS_ACCURACY.name: "pairs",
    KEY_SCORE.name: "statements, questions and pairs",
}


@part(StrategySection, place=40, title="Intervals and tests")
def significance(section: StrategySection) -> Iterator[Item]:
    inference = section.inference
    yield (
        "The primary comparisons are confirmatory: each strategy against the baseline, "
        f"{inference.baseline or 'naive'}, on {' and '.join(section.options.primary)}, by paired t-tests with Holm's "
        "correction over all of them. All other tests are exploratory."
    )
    yield (
        "The CCL paper compares strategies by a one-way ANOVA with orders as samples and Tukey's HSD. All strategies "
        "run the same orders, so the two-way ANOVA takes orders as blocks (seeds of an order are averaged first): "
        f"differences between orders do not count as error. {TUKEY}."
    )
    tables = (
        (inference.comparisons(), section.comparison.metrics),
        (bootstrap_table(inference, section.summary), list(inference.resampled)),
        (inference.anovas(), section.comparison.metrics),
        (inference.all_pairs(), section.comparison.metrics),
    )
    for table, metrics in tables:
        if table is not None:
            yield replace(table, notes=(*table.notes, *section.summary.definitions(metrics)))
    for metric in section.comparison.metrics:
        tests = inference.of(metric)
        if tests:
            replicates = next(iter(tests.values())).replicates
            what = f"{section.names}: {section.summary.title(metric)}"
            title = (
                f"{what}; Tukey's HSD, p-values (exploratory). Below the diagonal: one-way, over orders (CCL); above: "
                f"{replicates} as blocks"
            )
            caption = "p-values of all pairs (CCL Figs. 10 and 11: over bootstraps; 12 and 13: over seeds)"
            yield Plot(section.file("p_values", metric), caption, p_value_figure, tests, title, PAPER)
            title = f"{what}; mean ranks over {replicates}, 1 is best; CD: critical difference at 0.05"
            caption = "Critical differences of mean ranks"
            yield Plot(section.file("critical", metric), caption, rank_figure, tests, title)


def bootstrap_table(inference: Inference, summary: Summary) -> Table | None:
    """Return the bootstrap intervals of every strategy's means over the test sentences."""
    if not inference.resampled:
        return None
    metrics, reasons = list(inference.resampled), Reasons()
    rows: list[tuple[str, ...]] = []
    strategies = []
    for label, runs in inference.comparison.strategies.items():
        orders = list(dict.fromkeys(run.order for run in runs if run.path))
        for order in (None, *(orders if inference.kind == "paper" and len(orders) > 1 else ())):
            cells = [
                _estimated(resampled.estimate(label, one.name, inference.kind, order), reasons)
                for resampled in inference.resampled.values()
                for one in headlines()
            ]
            if any(cell != "–" for cell in cells):
                rows.append((label if order is None else f"{label}, {order}", *cells))
                strategies.append(label)
    shown = ruled(inference.comparison, strategies)
    # On the test sentences as they are.
    floor = [summary.floor(metric, MEAN, one.name) for metric in metrics for one in headlines()]
    if rows and set(floor) != {"–"}:
        shown = (*shown, len(rows))
        rows.append((CONSTANT, *floor))
    names = [subject((metric, one.name)) for metric in metrics for one in headlines()]
    header = ("strategy", *(" ".join(name) if len(metrics) > 1 else name[1] for name in names))
    # What no strategy has is left out: other tables say why.
    kept = [k for k in range(len(header)) if not rows or any(row[k] != "–" for row in rows)]
    header, rows = tuple(header[k] for k in kept), [tuple(row[k] for k in kept) for row in rows]
    sizes = next(iter(inference.resampled.values())).size
    n = "as many sentences as the test set has" if sizes is None else f"{SENTENCES} test sentences at most"
    of_texts = (WITH_TEXTS.get(metric, "questions") for metric, of in inference.resampled.items() if of.draws_texts)
    together = (f"{asked}: what is drawn are texts, each with all {asked} about it" for asked in of_texts)
    notes = (
        *reasons.lines(),
        f"value from the data; bias: mean over {RESAMPLES} resamples of {n}, minus the value",
        *_kinds(inference.kind, (name.split()[-1] for name in header[1:])),
        *dict.fromkeys(together),
        "the same draws for all strategies; these intervals are about the choice of test sentences; ± of other "
        "tables is about orders and seeds",
    )
    return Table("Bootstrap over test sentences", header, tuple(rows), notes, ruled=shown)


def _estimated(estimate: Estimate | None, reasons: Reasons) -> Cell:
    if estimate is None:
        return Cell("–")
    ends = estimate.interval
    interval = f"n/a {reasons.mark(ends.reason)}" if ends.reason else f"[{percent(ends.low)}, {percent(ends.high)}]"
    return Cell(f"{percent(estimate.value)} (bias {_signed(estimate.bias)}) {interval}", estimate.value)


def _kinds(kind: str | None, measures: Iterable[str]) -> list[str]:
    """Return what the intervals of measures are; measures with intervals of one kind share a line."""
    of: dict[str, list[str]] = {}
    for name in dict.fromkeys(measures):
        of.setdefault(kind or default_interval(name), []).append(name)
    return [INTERVALS[used] if len(of) == 1 else f"{', '.join(names)}: {INTERVALS[used]}" for used, names in of.items()]


def _signed(difference: float) -> str:
    text = percent(difference)
    return text if text.startswith("-") else f"+{text}"
