"""Rank correlations with the paper's strategies, against scipy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from tests.conftest import some
from xclrun.core.task import METRICS
from xclrun.report.part import make_block
from xclrun.report.parts import PARTS
from xclrun.report.published import ccl_tables, published_names
from xclrun.report.published.ranking import agreements, behind, over_orders, paper_orders, shared_orders

from .study import LANGUAGES, run, section_of, summary_of
from .test_published import SIX

SIX_STRATEGIES = ("naive", "er", "ewc_online", "kd_logit", "lang_spec_trans", "inc_joint")


def printed(order: str) -> dict[tuple[str, str, str], float]:
    """(model, metric, measure) → what the table of an order prints."""
    rows = [row for table in ("10", "11", "12") for row in ccl_tables()[table]]
    return {(row.model, row.metric, row.measure): row.value for row in rows if row.order == order}


def records(orders: tuple[str, ...] = ("order1", "order2"), strategies: tuple[str, ...] = SIX_STRATEGIES) -> list:
    references = [run("lang_spec_ft", "order1", 1, SIX["order1"])]
    return [run(name, order, 1, SIX[order]) for name in strategies for order in orders] + references


def test_agreement_is_scipys_over_the_orders_that_both_sides_have() -> None:
    summary = summary_of(records())
    ranks = agreements(summary, {})
    assert [(rank.metric, rank.measure) for rank in ranks] == [
        (metric, measure) for metric in ("intent_accuracy", "slot_f1") for measure in ("F", "T", "T0", "FP")
    ]
    for rank in ranks:
        models = [*SIX_STRATEGIES, *(["lang_spec_ft"] if rank.measure == "FP" else [])]
        assert sorted(rank.models) == sorted(models)
        published = [printed(order) for order in ("order1", "order2")]
        theirs = [
            (published[0][m, rank.metric, rank.measure] + published[1][m, rank.metric, rank.measure]) / 2
            for m in models
        ]
        ours = [summary.value(m, rank.metric, rank.measure) for m in models]
        assert rank.ours.spearman == pytest.approx(stats.spearmanr(theirs, ours).statistic)
    # The two orders are far from being one: were the mean over others taken, this would be seen.
    assert {round(rank.ours.spearman, 2) for rank in ranks} != {1.0}


def test_the_papers_own_orders_are_each_compared_with_the_mean_of_the_others() -> None:
    by_order = {order: printed(order) for order in SIX}
    for ranks in some(agreements(summary_of(records()), {})):
        keys = [(model, ranks.metric, ranks.measure) for model in ranks.models]
        for order, spearman in zip(SIX, ranks.within, strict=True):
            # What is printed has two decimals of a percent: exact sums, and exact ties.
            means = [sum(round(10_000 * by_order[other][key]) for other in SIX if other != order) for key in keys]
            assert spearman == pytest.approx(stats.spearmanr([by_order[order][key] for key in keys], means).statistic)


def test_resamples_are_ranked_one_by_one() -> None:
    rng = np.random.default_rng(3)
    summary = summary_of(records())
    drawn = {
        (name, measure): np.round(
            summary.value(name, "intent_accuracy", measure) + rng.normal(0, 0.02, 200), 2
        )  # with ties
        for name in (*SIX_STRATEGIES, "lang_spec_ft")
        for measure in ("F", "T", "T0", "FP")
    }
    resampled = SimpleNamespace(of_strategy=lambda label, measure: drawn.get((label, measure)))
    by_measure = {(rank.metric, rank.measure): rank for rank in agreements(summary, {"intent_accuracy": resampled})}  # type: ignore[dict-item]
    rank = by_measure["intent_accuracy", "FP"]
    theirs = {(row.model, row.metric, row.measure): row.value for row in over_orders(["order1", "order2"])}
    printed_fp = [theirs[m, "intent_accuracy", "FP"] for m in rank.models]
    each = [stats.spearmanr(printed_fp, [drawn[m, "FP"][k] for m in rank.models]).statistic for k in range(200)]
    assert (rank.low, rank.high) == pytest.approx(tuple(np.percentile(each, [2.5, 97.5])))
    assert rank.low < rank.high
    assert rank.bias == pytest.approx(np.mean(each) - rank.ours.spearman)
    assert rank.bias < 0  # no resample can rank better than a perfect ranking
    assert np.isnan(by_measure["slot_f1", "FP"].low)
    del drawn["er", "F"]
    again = {(rank.metric, rank.measure): rank for rank in agreements(summary, {"intent_accuracy": resampled})}  # type: ignore[dict-item]
    assert np.isnan(again["intent_accuracy", "F"].low)


def test_orders_are_known_by_their_languages() -> None:
    assert paper_orders() == {languages: order for order, languages in SIX.items()}
    same = [run(name, "h2l", 1, LANGUAGES) for name in SIX_STRATEGIES]
    assert shared_orders(summary_of(same).comparison) == ["order1"]
    assert {(row.model, row.metric, row.measure): row.value for row in over_orders(["order1"])} == printed("order1")


def test_nothing_is_ranked_over_an_order_that_the_paper_has_not() -> None:
    rotated = {"h2l": LANGUAGES, "mine": (*LANGUAGES[1:], LANGUAGES[0])}
    other = [run(name, order, 1, keys) for name in SIX_STRATEGIES for order, keys in rotated.items()]
    assert agreements(summary_of(other), {}) == []
    assert not make_block(PARTS["published_ranking"], section_of(other))


def test_four_strategies_are_too_few() -> None:
    ranks = agreements(summary_of(records(strategies=SIX_STRATEGIES[:4])), {})
    assert [(rank.measure, rank.ours.n) for rank in ranks] == [("FP", 5), ("FP", 5)]


def test_a_report_shows_ranks_and_what_is_ranked() -> None:
    # The paper has no A-GEM: its runs are not behind what is compared.
    section = section_of([*records(), *(run("agem", order, 1, SIX[order]) for order in ("order1", "order2"))])
    ranks, findings, intent, slots = make_block(PARTS["published_ranking"], section).tables
    agreement = agreements(section.summary, {})
    assert [row[:4] for row in ranks.rows] == [
        (
            next(m.short for m in METRICS if m.name == rank.metric),
            rank.measure,
            str(rank.ours.n),
            f"{rank.ours.spearman:.2f}",
        )
        for rank in agreement
    ]
    assert (
        ranks.rows[0][6]
        == f"{np.mean(agreement[0].within):.2f} ({min(agreement[0].within):.2f} to {max(agreement[0].within):.2f})"
    )
    assert ranks.rows[0][5] == "–"
    assert ranks.notes[0].startswith("means over order1, order2 ")
    assert ranks.notes[0].endswith("13 runs, seed 1")
    assert findings.notes[0] == ranks.notes[0]
    assert "intent" in intent.title
    assert "slots" in slots.title
    (er,) = (row for row in intent.rows if row[0] == "er")
    assert er[1] == "1.53"  # of 0.71 in order 1 and 2.35 in order 2


def test_a_study_on_its_way_is_ranked_over_the_orders_that_all_strategies_have() -> None:
    """Two orders of one seed; before, one of two seeds and a part of the second. One strategy the paper has not."""
    whole = [*records(), *(run("agem", order, 1, SIX[order]) for order in ("order1", "order2"))]
    names = [rank.strategy for rank in whole if rank.order == "order1"]
    first = [run(name, "order1", seed, SIX["order1"]) for name in names for seed in (1, 2)]
    for runs, orders, number in (
        ([*first, run("er", "order2", 1, SIX["order2"])], ["order1"], 16),
        (whole, ["order1", "order2"], 15),
    ):
        summary = summary_of(runs)
        assert shared_orders(summary.comparison) == orders
        assert len(behind(summary.comparison)) == number
        for rank in agreements(summary, {}):
            assert len(rank.models) == (7 if rank.measure == "FP" else 6)
            published = [printed(order) for order in orders]
            theirs = [np.mean([values[m, rank.metric, rank.measure] for values in published]) for m in rank.models]
            ours = [summary.value(m, rank.metric, rank.measure) for m in rank.models]
            assert rank.ours.spearman == pytest.approx(stats.spearmanr(theirs, ours).statistic)


@pytest.mark.parametrize(
    ("specific", "layers", "names"),
    [
        ([1, 2, 3, 4], 6, ("lang_spec_enc_1_9",)),
        ([1, 2, 3], 6, ("lang_spec_enc_1_6",)),
        ([4, 5, 6], 6, ("lang_spec_enc_7_12",)),
        ([1, 2, 3, 4], 12, ("lang_spec_enc_1_4",)),
        ([2, 3], 6, ("lang_spec_enc_4_6",)),
        ([2, 3, 4, 5], 6, ()),
    ],
)
def test_layers_of_a_shallower_encoder_are_compared_by_their_share_of_the_depth(
    specific: list[int], layers: int, names: tuple[str, ...]
) -> None:
    config = {"strategy": {"layers": specific}, "model": {"layers": layers, "hidden_layers": 12}}
    assert published_names(run("lang_spec_enc", "h2l", 1, LANGUAGES, config=config))[:1] == names
    config["model"] = {"layers": None, "hidden_layers": layers}
    assert published_names(run("lang_spec_enc", "h2l", 1, LANGUAGES, config=config))[:1] == names
