"""The contract of metrics: ours pass, and for each check there is a wrong metric that fails it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xclrun.core.task import CLASS_ACCURACY, KEY_SCORE, LABEL_BITS, METRICS, Metric
from xclrun.testing import ContractError, check_metric, metric_checks
from xclrun.testing.metrics import METRIC_CONTRACT


# `KEY_SCORE` stands for the metrics of keys.
@pytest.mark.parametrize("metric", [*(m for m in METRICS if m is not KEY_SCORE), LABEL_BITS], ids=lambda m: m.name)
def test_our_metrics_pass(metric: Metric) -> None:
    check_metric(metric)


def of(statistics: Any, **changes: Any) -> Metric:
    """Return class accuracy with other statistics."""
    return replace(CLASS_ACCURACY, statistics=statistics, **changes)


def against_the_majority(sentences: Any) -> Any:
    majority = sentences.predicted.mean(axis=1, keepdims=True) > 0.5
    return sentences.stacked(sentences.predicted == majority, 1)


def weighted_by_position(sentences: Any) -> Any:
    return sentences.stacked(sentences.right * np.arange(len(sentences.ids))[:, None], len(sentences.ids))


def in_place(sentences: Any) -> Any:
    sentences.predicted[:] = sentences.predicted[::-1]
    return sentences.stacked(sentences.right, 1)


# Check → a metric that fails it.
WRONG = {
    "has_usable_names": replace(CLASS_ACCURACY, short="class accuracy"),
    "counts_every_sentence": of(lambda sentences: sentences.right.sum(axis=0)[None, :, None]),
    "counts_cells_separately": of(against_the_majority),
    "ignores_the_order_of_sentences": of(weighted_by_position),
    "changes_nothing": of(in_place),
    "scores_sums_of_any_shape": replace(CLASS_ACCURACY, score=lambda sums: sums[..., 0] / sums[..., 0].max()),
    "scores_are_in_bounds": replace(CLASS_ACCURACY, score=lambda sums: 100 * sums[..., 0] / sums[..., 1]),
    "prefers_correct_predictions": of(lambda sentences: sentences.stacked(~sentences.right, 1)),
    "is_defined_or_nan_without_data": replace(CLASS_ACCURACY, score=lambda sums: sums[..., 0] / sums[..., 1]),
}


@pytest.mark.parametrize("name", [function.__name__ for function in METRIC_CONTRACT])
def test_for_each_check_a_wrong_metric_fails_it(name: str) -> None:
    [check] = [c for c in metric_checks(WRONG[name]) if c.name == name]
    with pytest.raises(ContractError) as error:
        check()
    assert str(error.value).startswith(f"metric 'class_accuracy': {name}: {check.requirement} ")


def test_an_error_rate_passes_if_lower_is_better() -> None:
    rate = of(lambda sentences: sentences.stacked(~sentences.right, 1), higher_is_better=False)
    check_metric(rate)
