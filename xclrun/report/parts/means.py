"""Means over orders and seeds, by order and by language, and the published table that a sweep reproduces."""

from __future__ import annotations

from collections.abc import Iterator

from xclrun.report.part import Item, part
from xclrun.report.published import beside_ours
from xclrun.report.strategies import StrategySection
from xclrun.report.style import MOST


@part(StrategySection, place=10, title="CCL paper, Table {published}")
def published(section: StrategySection) -> Iterator[Item]:
    if section.options.table is not None:
        yield from beside_ours(section.summary, section.options.table)


@part(StrategySection, place=20, title="Means over orders and seeds")
def means(section: StrategySection) -> Iterator[Item]:
    yield from section.summary.means()


@part(StrategySection, place=50, title="By order", folded=True)
def by_order(section: StrategySection) -> Iterator[Item]:
    comparison = section.comparison
    for order in comparison.orders:
        languages = {run.languages for run in comparison.runs if run.order == order}
        arrows = " or ".join(sorted(" → ".join(keys) for keys in languages))
        yield section.summary.main(comparison.metrics, order, f"Order {order}: {arrows}")


@part(StrategySection, place=60, title="By language", folded=True)
def by_language(section: StrategySection) -> Iterator[Item]:
    for metric in section.comparison.metrics:
        for measure in sorted(section.comparison.headlines, key=lambda measure: measure.name != "FP"):
            table = section.summary.languages(metric, measure.name)
            many = len(section.comparison.languages) > MOST
            if many and (groups := section.summary.groups(metric, measure.name)) is not None:
                yield groups
            if table.rows:
                yield table
