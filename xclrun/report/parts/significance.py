"""Intervals and tests of strategies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from xclrun.analysis.aggregate import MEAN
from xclrun.analysis.all_tests import PAPER
from xclrun.analysis.bootstrap import INTERVALS, RESAMPLES, SENTENCES, SMALL, default_interval
from xclrun.analysis.measures import headlines, quantity
from xclrun.analysis.resampling import Estimate, Resampled
from xclrun.core.quantity import Quantity
from xclrun.report.inference import Inference, subject
from xclrun.report.p_figures import p_value_figure, rank_figure
from xclrun.report.part import Item, Plot, part
from xclrun.report.strategies import StrategySection
from xclrun.report.summary import CONSTANT, Summary, ruled
from xclrun.report.tables import Cell, Reasons, Table

WILSON = "(Wilson): Wilson's interval; all answers are right, or all are wrong, so all resamples are equal"


@part(StrategySection, place=40, title="Primary comparisons")
def primary_comparisons(section: StrategySection) -> Iterator[Item]:
    inference = section.inference
    yield (
        f"Each strategy against the baseline, {inference.baseline or 'naive'}, on "
        f"{' and '.join(section.options.primary)}, by paired t-tests with Holm's correction over all comparisons of "
        "this table. All other tests are exploratory."
    )
    yield _defined(section, inference.comparisons(), section.comparison.metrics)


@part(StrategySection, place=41, title="Intervals and variance", folded=True)
def intervals(section: StrategySection) -> Iterator[Item]:
    inference = section.inference
    yield _defined(section, bootstrap_table(inference, section.summary), list(inference.resampled))
    yield inference.variances()


@part(StrategySection, place=44, title="Exploratory tests", folded=True)
def exploratory(section: StrategySection) -> Iterator[Item]:
    inference, metrics = section.inference, section.comparison.metrics
    yield (
        "The CCL paper compares strategies by Tukey's HSD after a one-way ANOVA with orders as samples. Since all "
        "strategies run the same orders, the two-way ANOVA uses orders as blocks (seeds of an order are averaged "
        "first): differences between orders do not count as error."
    )
    yield _defined(section, inference.anovas(), metrics)
    yield _defined(section, inference.all_pairs(), metrics)
    for metric in metrics:
        tests = inference.of_metric(metric)
        if tests:
            replicates = next(iter(tests.values())).replicates
            names = f"{section.names}: {section.summary.title(metric)}"
            title = (
                f"{names}; Tukey's HSD, p-values (exploratory). Below the diagonal: one-way, over orders (CCL); above: "
                f"{replicates} as blocks"
            )
            paper = "CCL Figs. 10 and 11: over bootstraps; 12 and 13: over seeds"
            name = section.file("p_values", metric)
            yield Plot(name, "p-values of all pairs", p_value_figure, tests, title, PAPER, paper=paper)
            title = f"{names}; mean ranks over {replicates}, 1 is best; CD: critical difference at 0.05"
            caption = "Critical differences of mean ranks"
            yield Plot(section.file("critical", metric), caption, rank_figure, tests, title)


def _defined(section: StrategySection, table: Table | None, metrics: Sequence[str]) -> Table | None:
    """Add the definitions of ``metrics`` to the notes of a table."""
    return None if table is None else replace(table, notes=(*table.notes, *section.summary.definitions(metrics)))


def bootstrap_table(inference: Inference, summary: Summary) -> Table | None:
    """Return bootstrap intervals of each strategy's means."""
    if not inference.resampled:
        return None
    metrics, reasons = list(inference.resampled), Reasons()
    rows: list[tuple[str, ...]] = []
    strategies = []
    for label, runs in inference.comparison.strategies.items():
        orders = list(dict.fromkeys(run.order for run in runs if run.path))
        for order in (None, *(orders if inference.kind == "paper" and len(orders) > 1 else ())):
            cells = [
                _estimated(
                    resampled.estimate(label, measure.name, inference.kind, order),
                    quantity(metric, measure.name),
                    reasons,
                )
                for metric, resampled in inference.resampled.items()
                for measure in headlines()
            ]
            if any(cell != "–" for cell in cells):
                rows.append((label if order is None else f"{label}, {order}", *cells))
                strategies.append(label)
    starts = ruled(inference.comparison, strategies)
    # The constant classifier is scored on the original test sentences, without resampling.
    floor = [summary.floor(metric, MEAN, measure.name) for metric in metrics for measure in headlines()]
    if rows and set(floor) != {"–"}:
        starts = (*starts, len(rows))
        rows.append((CONSTANT, *floor))
    names = [subject((metric, measure.name)) for metric in metrics for measure in headlines()]
    header = ("strategy", *(" ".join(name) if len(metrics) > 1 else name[1] for name in names))
    # Leave out measures that no strategy has; other tables give the reasons.
    columns = [k for k in range(len(header)) if not rows or any(row[k] != "–" for row in rows)]
    header, rows = tuple(header[k] for k in columns), [tuple(row[k] for k in columns) for row in rows]
    sizes = next(iter(inference.resampled.values())).size
    n = "the size of the test set" if sizes is None else f"at most {SENTENCES} test sentences"
    units = (unit for resampled in inference.resampled.values() for unit in resampled.with_texts)
    together = (f"{unit}: texts are resampled, each with all its {unit}" for unit in units)
    notes = (
        *reasons.lines(),
        f"value: computed from the data; bias: mean over {RESAMPLES} resamples of {n}, minus the value",
        *_kinds(inference.kind, (name.split()[-1] for name in header[1:])),
        *([WILSON] if any("(Wilson)" in cell for row in rows for cell in row) else []),
        *_small(inference.resampled.values()),
        *dict.fromkeys(together),
        "all strategies use the same resamples; these intervals reflect the choice of test sentences; ± in other "
        "tables reflects orders and seeds",
    )
    return Table("Bootstrap over test sentences", header, tuple(rows), notes, ruled=starts)


def _small(resampled: Iterable[Resampled]) -> Iterator[str]:
    """Note test sets with fewer than `SMALL` sentences."""
    small = {language: n for bootstrap in resampled for language, n in bootstrap.tested.items() if n < SMALL}
    if small:
        listed = ", ".join(f"{language} {n}" for language, n in small.items())
        yield f"test sets of fewer than {SMALL} sentences or texts ({listed}): their intervals are too narrow"


def _estimated(estimate: Estimate | None, quantity: Quantity, reasons: Reasons) -> Cell:
    if estimate is None:
        return Cell("–")
    ends = estimate.interval
    interval = f"n/a {reasons.mark(ends.reason)}" if ends.reason else quantity.interval(ends.low, ends.high)
    interval += f" ({ends.kind})" if ends.kind else ""
    text = f"{quantity.shown(estimate.value)} (bias {quantity.change(estimate.bias)}) {interval}"
    return Cell(text, estimate.value)


def _kinds(kind: str | None, measures: Iterable[str]) -> list[str]:
    """Describe the intervals of measures, one line for each kind."""
    by_kind: dict[str, list[str]] = {}
    for name in dict.fromkeys(measures):
        by_kind.setdefault(kind or default_interval(name), []).append(name)
    single = len(by_kind) == 1
    return [INTERVALS[k] if single else f"{', '.join(names)}: {INTERVALS[k]}" for k, names in by_kind.items()]
