"""How far our ranking of strategies is the CCL paper's, which of its findings are seen, and the numbers behind both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xclrun.analysis.aggregate import Comparison
from xclrun.analysis.correlation import FEW
from xclrun.analysis.significance import ALPHA
from xclrun.core.task import BY_NAME, short_name
from xclrun.report.inference import p_text
from xclrun.report.part import Item, part
from xclrun.report.published import beside, setup
from xclrun.report.published.findings import Finding, findings
from xclrun.report.published.ranks import FEWEST, Agreement, agreements, behind, over_orders, shared_orders
from xclrun.report.published.setup import setup_notes
from xclrun.report.strategies import StrategySection
from xclrun.report.tables import Cell, Table

HEADER = ("metric", "measure", "strategies", "ρ", "p", "over resamples", "the paper's own orders")


@part(StrategySection, place=12, title="Beside the CCL paper", folded=True)
def published_ranks(section: StrategySection) -> Iterator[Item]:
    found = agreements(section.summary, section.inference.resampled)
    if found:
        orders = shared_orders(section.comparison)
        over = _over(section.comparison, orders)
        setups = setup_notes(setup("10"), behind(section.comparison), section.comparison.metrics)
        yield _ranks(found, [over, *setups])
        kinds = dict.fromkeys(tests.replicates for tests in section.inference.tests.values())
        tested = " or ".join("seeds of one order" if kind == "seeds" else kind for kind in kinds) or "orders"
        yield _findings(findings(section.summary, section.inference), [over, *setups], tested)
        yield from beside(section.summary, "Tables 10 to 12", over_orders(orders), setup("10"))


def _ranks(found: Sequence[Agreement], over: Sequence[str]) -> Table:
    """Return a row for each measure: Spearman's coefficient, and what it can be compared with."""
    rows = [
        (
            short_name(one.metric),
            one.measure,
            str(one.found.n),
            Cell(f"{one.found.spearman:.2f}", one.found.spearman),
            Cell(p_text(one.found.spearman_p), one.found.spearman_p),
            "–" if one.low != one.low else f"(bias {one.bias:+.2f}) [{one.low:.2f}, {one.high:.2f}]",
            f"{sum(one.within) / len(one.within):.2f} ({min(one.within):.2f} to {max(one.within):.2f})",
        )
        for one in found
    ]
    notes = (
        *over,
        f"ρ: Spearman's, of our means with the paper's; p: two-sided, of up to {FEW} strategies over all pairings, of "
        "more by Student's t",
        "over resamples of our test sentences: bias (mean minus ρ) and percentiles 2.5 and 97.5 of ρ; seeds are not in "
        "it",
        "the paper's own orders: ρ of each of its six orders with the mean of the other five, for the same strategies: "
        "mean (lowest to highest)",
        f"measures that at least {FEWEST} strategies have on both sides",
    )
    return Table("Ranks beside the CCL paper's", HEADER, tuple(rows), notes, left=2)


def _findings(found: Sequence[Finding], over: Sequence[str], tested: str) -> Table:
    """Return a row for each finding and metric: the paper's difference, ours, and what that says.

    Args:
        found: the findings.
        over: what means are over, and how the runs were set up.
        tested: what the p-values are over.
    """
    rows = [
        (
            one.says,
            short_name(one.metric) if one.metric in BY_NAME else one.metric,
            one.difference,
            Cell(_points(one.published), one.published),
            Cell(_points(one.ours), one.ours),
            Cell(p_text(one.p), one.p),
            Cell(p_text(one.p_sentences), one.p_sentences),
            one.verdict,
        )
        for one in found
    ]
    notes = (
        *over,
        "paper, ours: the difference in points; all are above 0 in the paper's means over six orders",
        f"p: paired t-test over {tested}, Holm over the tested findings; – of a single replicate, of strategies that "
        "do not learn in sequence, of differences between metrics or orders, and of T and T0 where orders share one "
        "seed's reference models and hop 0",
        "over sentences: p when test sentences are drawn again, which says nothing of other seeds and orders",
        "all p-values of this table are exploratory",
        f"holds, does not hold: significant at p < {ALPHA} over {tested}",
    )
    header = ("finding", "metric", "difference", "paper", "ours", "p", "over sentences", "here")
    return Table("The CCL paper's findings", header, tuple(rows), notes, left=3)


def _points(value: float) -> str:
    return "–" if value != value else f"{100 * value:+.2f}"


def _over(comparison: Comparison, orders: Sequence[str]) -> str:
    """Say what means are over: the orders on both sides, and the runs behind ours."""
    runs = behind(comparison)
    seeds = sorted({run.seed for run in runs})
    return (
        f"over {', '.join(orders)} on both sides: the paper's mean is that of its Tables 10 to 12 over these; ours is "
        f"over {len(runs)} runs, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    )
