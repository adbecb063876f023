"""Comparison with the CCL paper: the ranking of strategies, the paper's findings, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xclrun.analysis.correlation import FEW
from xclrun.analysis.record import RunRecord
from xclrun.analysis.significance import ALPHA
from xclrun.core.task import BY_NAME, short_name
from xclrun.report.inference import p_text
from xclrun.report.part import Item, part
from xclrun.report.published import labels_of, setup, with_ours
from xclrun.report.published.findings import Finding, findings
from xclrun.report.published.ranking import FEWEST, Agreement, agreements, behind, over_orders, shared_orders
from xclrun.report.published.setup import setup_notes
from xclrun.report.strategies import StrategySection
from xclrun.report.tables import Cell, Table

HEADER = ("metric", "measure", "strategies", "ρ", "p", "over resamples", "the paper's own orders")


@part(StrategySection, place=12, title="Comparison with the CCL paper", folded=True)
def published_ranking(section: StrategySection) -> Iterator[Item]:
    ranks = agreements(section.summary, section.inference.resampled)
    if ranks:
        orders = shared_orders(section.comparison)
        rows = over_orders(orders)
        runs = behind(section.comparison, labels_of(section.summary, {row.model for row in rows}).values())
        over = _over(runs, orders)
        setups = setup_notes(setup("10"), runs, section.comparison.metrics)
        yield _ranks(ranks, [over, *setups])
        kinds = dict.fromkeys(tests.replicates for tests in section.inference.tests.values())
        tested = " or ".join("seeds of one order" if kind == "seeds" else kind for kind in kinds) or "orders"
        yield _findings(findings(section.summary, section.inference), [over, *setups], tested)
        yield from with_ours(section.summary, "Tables 10 to 12", rows, setup("10"))


def _ranks(ranks: Sequence[Agreement], setup: Sequence[str]) -> Table:
    """Return Spearman's coefficient of each measure, its interval over resamples, and coefficients for comparison.

    The coefficients for comparison are between one of the paper's orders and the mean of its other orders.
    """
    rows = [
        (
            short_name(rank.metric),
            rank.measure,
            str(rank.ours.n),
            Cell(f"{rank.ours.spearman:.2f}", rank.ours.spearman),
            Cell(p_text(rank.ours.spearman_p), rank.ours.spearman_p),
            "–" if rank.low != rank.low else f"(bias {rank.bias:+.2f}) [{rank.low:.2f}, {rank.high:.2f}]",
            f"{sum(rank.within) / len(rank.within):.2f} ({min(rank.within):.2f} to {max(rank.within):.2f})",
        )
        for rank in ranks
    ]
    notes = (
        *setup,
        f"ρ: Spearman's rank correlation of our means with the paper's means; p: two-sided; exact for up to {FEW} "
        "strategies, from Student's t for more strategies",
        "over resamples of our test sentences: bias (mean of ρ over resamples, minus ρ) and percentiles 2.5 and 97.5 "
        "of ρ; the interval does not include the variation between seeds",
        "the paper's own orders: ρ between one of its orders and the mean of the other five, over the same strategies; "
        "mean (minimum to maximum) of the six values",
        f"only measures with values for at least {FEWEST} strategies in both studies are shown",
    )
    return Table("Ranks beside the CCL paper's", HEADER, tuple(rows), notes, left=2)


def _findings(findings: Sequence[Finding], setup: Sequence[str], tested: str) -> Table:
    """Return both studies' difference and a verdict for each finding; ``tested``: the replicates of the t-test."""
    rows = [
        (
            f.text,
            short_name(f.metric) if f.metric in BY_NAME else f.metric,
            f.difference,
            Cell(_points(f.published), f.published),
            Cell(_points(f.ours), f.ours),
            Cell(p_text(f.p), f.p),
            Cell("–" if f.detectable != f.detectable else f"{100 * f.detectable:.2f}", f.detectable),
            Cell(p_text(f.p_sentences), f.p_sentences),
            f.verdict,
        )
        for f in findings
    ]
    notes = (
        *setup,
        "paper, ours: difference in points; positive in the direction of the paper's means over six orders, negative "
        "in the opposite direction",
        f"p: paired t-test over {tested}, with Holm's correction over the tested findings",
        "p is “–” if not tested: a single replicate; strategies without a sequence of hops; differences between "
        "metrics or orders; T and T0 over several orders, unless all orders have the same two or more seeds (orders "
        "with the same seed share reference models and hop 0)",
        "detectable: true difference in points that this test, before correction, detects in 80 % of studies if "
        "differences between replicates spread as here",
        "over sentences: p-value over resampled test sentences, not corrected and at least 2 / (resamples + 1); it "
        "does not extend to other seeds and orders",
        "all p-values of this table are exploratory",
        f"holds: same direction as in the paper, p < {ALPHA}; does not hold: opposite direction, p < {ALPHA}",
    )
    header = ("finding", "metric", "difference", "paper", "ours", "p", "detectable", "over sentences", "here")
    return Table("The CCL paper's findings", header, tuple(rows), notes, left=3)


def _points(value: float) -> str:
    return "–" if value != value else f"{100 * value:+.2f}"


def _over(runs: Sequence[RunRecord], orders: Sequence[str]) -> str:
    """Describe the orders of both studies and the runs behind our means."""
    seeds = sorted({run.seed for run in runs})
    return (
        f"means over {', '.join(orders)} in both studies: the paper's means are from its Tables 10 to 12; our means "
        f"are over {len(runs)} runs, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    )
