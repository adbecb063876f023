"""Tables and figures of several tasks in one model, on made-up scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.analysis.build import record
from xclrun.analysis.aggregate import comparisons
from xclrun.analysis.record import RunRecord
from xclrun.report.parts.tasks import key_figure, key_table, published_table
from xclrun.report.strategies import ReportData, StrategySection
from xclrun.report.summary import Summary

NAN = float("nan")
# SQuAD, then inference: before any, after each.
F1 = np.array([[0.1, NAN], [0.8, NAN], [0.3, NAN]])
EM = F1 - 0.05
ACCURACY = np.array([[NAN, 0.3], [NAN, 0.4], [NAN, 0.7]])


def own(scores: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(scores), other, scores)


def continual(**fields: Any) -> RunRecord:
    scores = {"key_score": own(F1, ACCURACY), "answer_f1": F1, "exact_match": EM, "class_accuracy": ACCURACY}
    return record(scores=scores, languages=("squad", "mnli"), dataset="gli", **fields)


def random_curriculum() -> RunRecord:
    one_hop = {name: matrix[:2] for name, matrix in continual().scores.items()}
    return record(scores=one_hop, languages=("squad", "mnli"), dataset="gli", stream="mixture",
                  mixtures=(("squad", "mnli"),), order="all")  # fmt: skip


def summary(*records: RunRecord) -> Summary:
    [comparison] = comparisons(records)
    return StrategySection(comparison, ReportData(records)).summary


def text(cell: Any) -> str:
    return getattr(cell, "text", cell)


def rows(table: Any) -> list[tuple[str, ...]]:
    return [tuple(map(text, row)) for row in table.rows]


def test_each_key_has_a_row_for_each_of_its_metrics() -> None:
    by_metric = rows(key_table(summary(continual())))
    assert by_metric == [
        ("squad-mnli", "naive", "squad", "answer F1", "10.00", "80.00", "30.00"),
        ("squad-mnli", "naive", "squad", "exact match", "5.00", "75.00", "25.00"),
        ("squad-mnli", "naive", "mnli", "class accuracy", "30.00", "70.00", "70.00"),
    ]


def test_means_say_whose_metric_is_whose() -> None:
    [definition] = summary(continual()).definitions(["key_score"])
    assert definition.endswith("means over keys average different metrics: answer F1 (squad), class accuracy (mnli)")


def test_keys_are_drawn_over_training() -> None:
    points = [
        {"hop": hop, "step": step, "examples": 10 * step, "own": 10 * step,
         "test": {"squad": {"key_score": 0.5}, "mnli": {"key_score": 0.1 * step}}}
        for hop in (1, 2) for step in (1, 2)
    ]  # fmt: skip
    figure = key_figure(summary(continual(points=points)), "key_score")
    assert figure is not None
    [axes] = figure.axes
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 5]
    assert [line.get_xdata().tolist() for line in lines] == [[0, 10, 20, 30, 40]] * 2
    np.testing.assert_allclose(lines[0].get_ydata(), [10, 50, 50, 50, 50])
    np.testing.assert_allclose(lines[1].get_ydata(), [30, 10, 20, 10, 20])
    assert key_figure(summary(continual()), "key_score") is None
    # The title counts panels that are not drawn.
    assert "of hops)" in "".join(text.get_text() for text in figure.texts)
    many = [continual(points=points, order=f"order{i}", seed=i) for i in range(1, 6)]
    crowded = key_figure(summary(*many), "key_score")
    assert crowded is not None
    assert (len(crowded.axes), "".join(text.get_text() for text in crowded.texts).count("; 3 of 5 orders)")) == (3, 1)


def test_published_scores_stand_beside_those_of_the_same_training() -> None:
    """Table 3's BERT: 85.4 and 81.1; Table 1's, after supervised pretraining: 87.1 and 79.4, before it 62.9."""
    turned = {name: matrix[:, ::-1] for name, matrix in continual().scores.items()}
    after = record(scores=turned, languages=("mnli", "squad"), dataset="gli", stream="mixture",
                   mixtures=(("mnli",), ("squad",)), order="pretrained")  # fmt: skip
    table = published_table(summary(random_curriculum()))
    assert table is not None
    assert rows(table) == [
        ("random curriculum", "squad", "answer F1", "85.40", "78.30", "80.00"),
        ("random curriculum", "squad", "exact match", "–", "–", "75.00"),
        ("random curriculum", "mnli", "class accuracy", "81.10", "69.10", "40.00"),
    ]
    # The paper mixes seven.
    assert "random curriculum, ours: squad, mnli" in table.notes
    table = published_table(summary(after))
    assert table is not None
    assert rows(table) == [
        ("supervised", "squad", "answer F1", "62.90", "43.30", "80.00"),
        ("supervised", "squad", "exact match", "–", "–", "75.00"),
        ("supervised+squad", "squad", "answer F1", "87.10", "82.30", "30.00"),
        ("supervised+squad", "squad", "exact match", "79.40", "72.80", "25.00"),
    ]
