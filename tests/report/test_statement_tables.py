"""Statements in reports: the score of a constant answer in every table, rates over time, further scores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.analysis.build import record
from xclrun.analysis.aggregate import summarise
from xclrun.analysis.bootstrap import Interval
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.analysis.resampling import Estimate
from xclrun.report.inference import Inference
from xclrun.report.parts.significance import bootstrap_table
from xclrun.report.summary import Summary

from .study import summary_of

KEYS = ("pos", "topics")
# π of the two keys: 0.25 and 0.5.
FLOOR = np.array([0.75, 0.5])


def statements(strategy: str = "naive", seed: int = 1, gain: float = 0.0, **fields: object) -> RunRecord:
    """A run on two keys of statements, as good as a constant answer before training, and better after it."""
    rows = FLOOR + np.array([0.0, 0.1 + gain, 0.2 + gain])[:, np.newaxis]
    further = dict.fromkeys(("true_f1", "true_rate", "false_rate", "balanced_accuracy"), rows - 0.1)
    scores = {"statement_accuracy": rows, "constant_accuracy": np.tile(FLOOR, (3, 1)), **further}
    scores["choice_accuracy"] = np.tile([0.5, np.nan], (3, 1))
    return record(strategy, seed=seed, scores=scores, languages=KEYS, **fields)  # type: ignore[arg-type]


def summary() -> Summary:
    records = [statements(name, seed, gain) for name, gain in (("naive", 0.0), ("er", 0.05)) for seed in (1, 2)]
    return summary_of(records)


def test_every_table_of_statements_ends_with_what_a_constant_answer_scores() -> None:
    tables = summary()
    for table in (tables.main(["statement_accuracy"]), tables.main(["statement_accuracy"], "pos-topics")):
        assert table.rows[-1] == ("constant answer", "–", "–", "–", "–", "62.50")
        assert table.ruled[-1] == len(table.rows) - 1 == 2
    assert tables.languages("statement_accuracy", "FP").rows[-1] == ("constant answer", "75.00", "50.00")
    # A constant answer has no forgetting.
    assert [row[0] for row in tables.languages("statement_accuracy", "F").rows] == ["naive", "er"]
    by_order = tables.orders("statement_accuracy")
    assert by_order.rows[-1] == ("pos-topics", "constant answer", "–", "–", "–", "–", "62.50")
    # Of resamples it is what the test sentences give.
    estimates: Any = SimpleNamespace(
        size=None, with_texts=("statements",), tested={}, estimate=lambda *_: Estimate(0.7, 0.0, Interval(0.6, 0.8))
    )
    inference = Inference(tables.comparison, References([]), {"statement_accuracy": estimates})
    resampled = bootstrap_table(inference, tables)
    assert resampled is not None
    assert [row[0] for row in resampled.rows] == ["naive", "er", "constant answer"]
    assert resampled.rows[-1][1:] == ("–", "–", "–", "62.50")
    assert resampled.ruled[-1] == 2


def test_metrics_beside_have_no_tables_of_their_own() -> None:
    assert summary().comparison.metrics == ["statement_accuracy"]
    assert len(summary().means()) == 1


def test_final_scores_beside_are_among_the_numbers() -> None:
    """Their mean over keys and each key's, after the last hop; nothing else is made of them."""
    run = statements()
    frame = summarise([run]).query("order == 'mean'")
    further = frame[frame["metric"] != "statement_accuracy"]
    assert set(further["measure"]) == {"FP"}
    assert set(further["metric"]) == set(run.scores) - {"statement_accuracy"}
    for metric in ("true_rate", "constant_accuracy"):
        values = dict(zip(*(further.loc[further["metric"] == metric, c] for c in ("language", "value")), strict=True))
        last = run.scores[metric][-1]
        assert values == pytest.approx({"": last.mean(), **dict(zip(run.languages, last, strict=True))})
    # Keys without choices have no score, nor has the mean over keys.
    choice = further[further["metric"] == "choice_accuracy"].set_index("language")
    assert choice["value"].tolist() == pytest.approx([np.nan, 0.5, np.nan], nan_ok=True)
    lacking = "n/a: needs examples with one true statement and others (topics)"
    assert choice["status"].tolist() == [lacking, "ok", lacking]
