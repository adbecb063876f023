"""Means over orders and seeds, by order and by language, and the published table that a sweep reproduces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
    languages = {
        order: {" → ".join(run.languages) for run in comparison.runs if run.order == order}
        for order in comparison.orders
    }
    orders = (f"{order}: {' or '.join(sorted(arrows))}" for order, arrows in languages.items())
    for k, table in enumerate(map(section.summary.orders, comparison.metrics)):
        yield replace(table, notes=(*table.notes, *orders)) if k == 0 else table


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
