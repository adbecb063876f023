"""Metrics of which lower is better, in bits, or of plug-ins: scores, measures, intervals, tests, tables and figures."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import some
from tests.report.study import ORDERS, section_of, study
from tests.report.test_figures import texts
from tests.store.test_counts import write_run
from tests.test_plugins import FILES, Command
from xclrun import load
from xclrun.analysis.measures import MEASURES, Scores, measure, quantity
from xclrun.analysis.points import RULES, HopPoints
from xclrun.analysis.record import RunRecord
from xclrun.analysis.records import read_records
from xclrun.analysis.reference import References
from xclrun.analysis.resampling import Resampled
from xclrun.core import task
from xclrun.core.errors import UsageError
from xclrun.core.plugins import load_files, version_of
from xclrun.core.quantity import SHARE
from xclrun.core.task import BY_NAME, LABEL_BITS, Metric, Scored, register_metric, select_metrics
from xclrun.report.heatmaps import heatmap
from xclrun.report.page import other_units
from xclrun.report.parts.trade_offs import trade_off_figure
from xclrun.report.strategies import StrategySection
from xclrun.report.summary import Summary
from xclrun.report.tables import Cell
from xclrun.scores import counts
from xclrun.scores.base_scores import Predictions, Sentences, selection_score
from xclrun.tracking import payload

from .test_resampling import made  # noqa: F401  a fixture

ACCURACY = "intent_accuracy"
# 1 − accuracy.
ERROR = Metric(
    "intent_error", "error", "intent error", Scored.labels, "intent", "intents",
    statistics=lambda sentences: sentences.stacked(~sentences.right, 1), higher_is_better=False,
)  # fmt: skip
# The first three measures are differences, so 1 − accuracy changes only their direction, which formulas undo.
EQUAL, MIRRORED = ("F", "T", "T0"), "FP"


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Forget the metrics that a test has registered."""
    of: tuple[list, ...] = (task.METRICS, task.FURTHER)
    names: tuple[dict, ...] = (task.BY_NAME, task.BY_SHORT)
    before = [copy.copy(each) for each in (*of, *names)]
    yield
    for each, content in zip((*of, *names), before, strict=True):
        each.clear()
        each.extend(content) if isinstance(each, list) else each.update(content)


@pytest.fixture
def error() -> str:
    return register_metric(ERROR).name


def reflected(run: RunRecord) -> RunRecord:
    return dataclasses.replace(run, scores={ACCURACY: run.scores[ACCURACY], ERROR.name: 1 - run.scores[ACCURACY]})


@cache
def records() -> tuple[RunRecord, ...]:
    return tuple(study(("naive", "er", "ewc_online", "lang_spec_ft"), ORDERS, (1, 2)))


def section() -> StrategySection:
    return section_of([reflected(run) for run in records()])


def test_with_1_minus_accuracy_only_scores_are_mirrored(error: str) -> None:
    runs = [reflected(run) for run in records()]
    references = References(runs)
    for run in some(runs[:3]):
        right, wrong = (measure(run, metric, references.scores(run, metric)) for metric in (ACCURACY, error))
        assert right.keys() == wrong.keys()
        for (name, language), value in right.items():
            expected = 1 - value if MEASURES[name].unit == "%" and isinstance(value, float) else value
            assert wrong[name, language] == (pytest.approx(expected, abs=1e-12) if isinstance(value, float) else value)


def test_intervals_of_1_minus_accuracy_are_mirrored(error: str, made: tuple) -> None:  # noqa: F811
    comparison, _, predictions = made
    runs = [reflected(run) for run in comparison.runs]
    both = dataclasses.replace(comparison, strategies={
        label: [run for run in runs if run.run_id in {old.run_id for old in of}]
        for label, of in comparison.strategies.items()
    })  # fmt: skip
    right, wrong = (
        Resampled(both, References(runs), predictions, metric, resamples=40) for metric in (ACCURACY, error)
    )
    for name, kind in some((name, kind) for name in (*EQUAL, MIRRORED) for kind in ("centred", "percentile", "bca")):
        a, b = (of.estimate("er", name, kind) for of in (right, wrong))
        assert a is not None
        assert b is not None
        ends = (a.interval.low, a.interval.high)
        if name == MIRRORED:
            assert b.value == pytest.approx(1 - a.value)
            assert b.bias == pytest.approx(-a.bias)
            ends = (1 - ends[1], 1 - ends[0])
        else:
            assert (b.value, b.bias) == pytest.approx((a.value, a.bias))
        assert (b.interval.low, b.interval.high) == pytest.approx(ends, abs=1e-9, nan_ok=True)


def test_tests_of_1_minus_accuracy_find_the_same(error: str) -> None:
    inference = section().inference
    for label in ("er", "ewc_online"):
        for name in some((*EQUAL, MIRRORED)):
            tests = [inference.tests[metric, name] for metric in (ACCURACY, error)]
            pairs = [of.against("naive")[label] for of in tests]
            assert pairs[1].p == pytest.approx(pairs[0].p)
            sign = -1 if name == MIRRORED else 1
            assert pairs[1].difference == pytest.approx(sign * pairs[0].difference)
            assert [of.quantity.higher_is_better for of in tests] == [name != "F", name not in ("F", MIRRORED)]
            assert tests[1].ranks.strategies == tests[0].ranks.strategies
    marks = inference.marks()
    assert all(marks[label, ACCURACY, name] == mark for (label, metric, name), mark in marks.items() if metric == error)


def columns(summary: Summary, metric: str) -> dict[str, dict[str, Cell]]:
    """Return column → strategy → cell of a metric's table of means."""
    table = summary.main([metric])
    return {name: {row[0]: row[k] for row in table.rows} for k, name in enumerate(table.header)}


def test_tables_show_direction_and_mark_the_lowest_error(error: str) -> None:
    summary = section().summary
    right, wrong = (columns(summary, metric) for metric in (ACCURACY, error))
    assert [*right][2:] == ["F ↓", "T ↑", "T0 ↑", "FP ↑"]
    assert [*wrong][2:] == ["F ↓", "T ↑", "T0 ↑", "FP ↓"]
    for own, mirrored in (("F ↓", "F ↓"), ("FP ↑", "FP ↓")):
        assert {k: c.best for k, c in right[own].items()} == {k: c.best for k, c in wrong[mirrored].items()}
    assert any(cell.best for cell in wrong["FP ↓"].values())
    legend = section().legend
    assert "FP ↑ (intent), ↓ (error) final performance" in legend
    assert legend.endswith("percent, mean ± standard deviation over runs")


def test_sentences_say_whether_a_lower_error_is_lower(error: str) -> None:
    found = [text for text in section().conclusions if text.startswith(("Intent accuracy", "Intent error"))]
    accuracies, errors = found[: len(found) // 2], found[len(found) // 2 :]
    assert len(accuracies) == 2
    for one, mirrored in zip(accuracies, errors, strict=True):
        assert ("higher final performance" in one) == ("lower (better) final performance" in mirrored)


def test_figures_draw_better_values_higher(error: str) -> None:
    summary = section().summary
    right, wrong = (trade_off_figure(summary, metric) for metric in (ACCURACY, error))
    assert any("FP: final performance (%)" in text for text in texts(right))
    assert any("−FP: negative final performance (%)" in text for text in texts(wrong))
    for a, b in zip(right.axes, wrong.axes, strict=True):
        order = [[line.get_ydata()[0] for line in axes.lines if len(line.get_ydata()) == 1] for axes in (a, b)]
        np.testing.assert_array_equal(np.argsort(order[0]), np.argsort(order[1]))


def test_a_heat_map_of_1_minus_accuracy_has_the_colours_of_accuracy(error: str) -> None:
    right, wrong = (heatmap(reflected(records()[0]), metric) for metric in (ACCURACY, error))
    cells = [figure.axes[0].images[0].to_rgba(figure.axes[0].images[0].get_array()) for figure in (right, wrong)]
    np.testing.assert_allclose(cells[0], cells[1], atol=0.01)
    inks = [[text.get_color() for text in figure.axes[0].texts] for figure in (right, wrong)]
    assert inks[0] == inks[1]
    assert {"white", "black"} == set(inks[0])
    assert "intent error (%, lower is better)" in texts(wrong)
    assert "intent accuracy (%)" in texts(right)


def test_bits_have_their_unit_in_tables_and_figures() -> None:
    select_metrics(["label_bits"])
    run = study(("naive", "er"), ORDERS, (1,))
    runs = [dataclasses.replace(each, scores={LABEL_BITS.name: 5 * (1 - each.scores[ACCURACY])}) for each in run]
    of = section_of(runs)
    cell = columns(of.summary, "label_bits")["FP ↓"]["er"]
    # Unscaled, with three decimals.
    assert str(cell).split(" ± ")[0] == f"{cell.value:.3f}"
    assert of.legend.endswith("bits, mean ± standard deviation over runs")
    figure = trade_off_figure(of.summary, "label_bits")
    assert any("−FP: negative final performance (bits)" in text for text in texts(figure))
    assert any("−F: negative forgetting (bits)" in text for text in texts(figure))
    comparisons = of.inference.comparisons()
    assert comparisons is not None
    assert any("in bits, with the 95 % interval" in note for note in comparisons.notes)
    pairs = of.inference.all_pairs()
    assert pairs is not None
    assert any(note.startswith("Δ: a − b in bits, ") for note in pairs.notes)
    assert quantity("label_bits", "F").unit == "bits"
    units, negated = other_units(runs).split("; ")[1:]
    assert units == "label bits and their differences in bits"
    assert negated.startswith("F, T and T0 of label bits are those of −score")
    assert other_units(records()) == ""


def test_label_bits_are_the_mean_negative_log2_of_the_gold_labels_probability() -> None:
    log2_gold = np.array([[-1.0, -0.5], [-3.0, -0.25], [np.nan, np.nan]], dtype=np.float32)
    sentences = Sentences(np.array(["a", "b", "c"]), np.array([0, 1, -1]), np.zeros((3, 2), int), log2_gold=log2_gold)
    # The third sentence has a class that does not occur in training.
    assert sentences.scores(LABEL_BITS) == pytest.approx([2, 0.375])
    counts = sentences.counts(LABEL_BITS)
    assert counts.jackknife()[:2] == pytest.approx(np.array([[3, 0.25], [1, 0.5]]))
    unknown = dataclasses.replace(sentences, log2_gold=None)
    with pytest.raises(ValueError, match="no probabilities"):
        unknown.scores(LABEL_BITS)


def test_a_metric_has_any_number_of_sums() -> None:
    """Here the geometric mean of the recall of two classes: four sums, which a resample adds up."""

    def statistics(sentences: Sentences) -> np.ndarray:
        of = [sentences.gold[:, None] == k for k in (0, 1)]
        return sentences.stacked(of[0] & sentences.right, of[0], of[1] & sentences.right, of[1])

    metric = Metric(
        "g_mean", "G", "G-mean", Scored.labels, "label", "labels", statistics=statistics,
        score=lambda sums: np.sqrt(sums[..., 0] / sums[..., 1] * sums[..., 2] / sums[..., 3]),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 2, 50), rng.integers(0, 2, (50, 3))
    sentences = Sentences(np.arange(50).astype(str), gold, predicted)

    def by_hand(of: np.ndarray) -> np.ndarray:
        rates = [(predicted[of][gold[of] == k] == k).mean(axis=0) for k in (0, 1)]
        return np.sqrt(rates[0] * rates[1])

    everything = np.arange(50)
    assert sentences.scores(metric) == pytest.approx(by_hand(everything))
    drawn_once = np.ones((1, 50), np.float32)
    drawn_once[0, :10] = 2
    twice = np.concatenate([everything, everything[:10]])
    assert sentences.counts(metric).resampled(drawn_once)[0] == pytest.approx(by_hand(twice))
    assert sentences.counts(metric).jackknife()[7] == pytest.approx(by_hand(np.delete(everything, 7)))
    together = sentences.counts(metric).together(everything // 5)
    assert len(together) == 10
    assert together.scores() == pytest.approx(by_hand(everything))


def test_the_best_epoch_and_checkpoint_have_the_lowest_error(error: str) -> None:
    epochs = [{"en": {error: value}} for value in (0.4, 0.1, 0.3)]
    assert max(range(3), key=lambda k: selection_score(epochs[k])) == 1
    dev, test = np.array([[0.4], [0.1], [0.3]]), np.array([[1.0], [2.0], [3.0]])
    hop = HopPoints(1, (0,), (0,), np.arange(3), dev, test, metric=error)
    assert RULES["current_dev"].scores(hop) == RULES["oracle"].scores(hop) == [2]


def test_formulas_receive_scores_such_that_higher_is_better(error: str) -> None:
    run = reflected(records()[0])
    scores = Scores.of(run.scores[error], np.zeros(len(run.languages)), run, error)
    np.testing.assert_array_equal(scores.R, -run.scores[error])
    assert MEASURES["FP"].value(scores) == pytest.approx(run.scores[error][-1].mean())


def test_a_record_refuses_scores_outside_the_bounds_of_its_metric() -> None:
    select_metrics(["label_bits"])
    run = records()[0]
    dataclasses.replace(run, scores={"label_bits": 3 * np.ones_like(run.scores[ACCURACY])})
    with pytest.raises(ValueError, match=r"intent_accuracy has scores outside \[0, 1\]"):
        dataclasses.replace(run, scores={ACCURACY: 3 * np.ones_like(run.scores[ACCURACY])})


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            dataclasses.replace(ERROR, short="intent"),
            "metric 'intent_error': short name 'intent' is taken by metric 'intent_accuracy'",
        ),
        (
            dataclasses.replace(ERROR, name="intent"),
            "metric 'intent': name 'intent' is taken by metric 'intent_accuracy'",
        ),
        (
            dataclasses.replace(ERROR, short="intent error"),
            "metric 'intent_error': short=intent error: use only letters, digits and _ . + -",
        ),
        (dataclasses.replace(ERROR, name="intent/error"), "metric 'intent/error': name=intent/error: leads to another"),
        (
            dataclasses.replace(ERROR, tasks=("intents",)),
            "metric 'intent_error': unknown task; did you mean 'intent_sl",
        ),
    ],
)
def test_metrics_that_are_refused(metric: Metric, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        register_metric(metric)
    assert str(refused.value).startswith(message)
    assert metric not in task.METRICS


def test_a_metric_of_a_plug_in_belongs_to_the_tasks_that_predict_what_it_scores(error: str) -> None:
    assert task.further_metrics(task.INTENT_SLOTS, tagged=True) == (BY_NAME[error],)
    assert task.further_metrics(task.TOKEN_TAGS, tagged=True) == ()
    register_metric(dataclasses.replace(ERROR, name="other", short="other", tasks=("sequence_class",)))
    assert [metric.name for metric in task.further_metrics(task.SEQUENCE_CLASS, tagged=False)] == [error, "other"]
    assert task.further_metrics(task.INTENT_SLOTS, tagged=True) == (BY_NAME[error],)


def test_commands_show_a_selected_metric_in_its_unit(tmp_path: Path, xclrun: Command) -> None:
    """The rows of these runs have log2 p = −1 for each sentence: one bit."""
    for name, seed in (("a", 1), ("b", 2)):
        write_run(tmp_path, name, seed, counts=True)
    asked = ("--metric", "label_bits", "--outputs", str(tmp_path))
    code, said = xclrun("show", "a", *asked)
    assert (code, "label_bits in bits, on each language after each hop" in said) == (0, True), said
    assert re.search(r"^2 +trained +1\.000 +1\.000$", said, re.MULTILINE), said
    assert "FP 1.000" in said
    code, said = xclrun("show", "a", "b", *asked)
    assert (code, "label_bits in bits" in said) == (0, True), said
    assert re.search(r"^FP +1\.000 +1\.000 +\+0\.000$", said, re.MULTILINE), said
    matrix = load(tmp_path, metrics=["label_bits"]).matrix("a", "bits")
    assert (matrix.to_numpy() == 1).all()
    [first, _] = read_records(tmp_path)
    sent = {(metric, value) for _, metric, _, value in payload.scores(first) if metric == "bits"}
    assert sent == {("bits", 1.0)}
    measured = payload.measures(first, References([first]))
    assert (measured["bits.FP"], measured["bits.F"]) == (1, 0)
    assert "- `bits.…` ↓ label bits, in bits" in payload.about_run(first)


def test_a_run_stores_the_sums_of_a_metric_for_each_sentence_and_an_edited_plug_in_counts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    select_metrics(["label_bits"])
    directory = write_run(tmp_path, "a", 1, counts=True)
    stored = counts.stored(directory)
    assert stored is not None
    assert "statistics.label_bits" in stored.table.column_names
    counted = []
    count = counts.count
    monkeypatch.setattr(counts, "count", lambda *of: counted.append(1) or count(*of))
    [record] = read_records(tmp_path)
    assert (record.scores["label_bits"] == 1).all()
    assert not counted
    monkeypatch.setattr(counts, "version_of", lambda _: "edited")
    [record] = read_records(tmp_path)
    assert (record.scores["label_bits"] == 1).all()
    assert counted


@pytest.mark.parametrize("function", ["statistics", "score"])
def test_an_edited_plug_in_also_scores_evaluation_points_again(
    function: str, tmp_path: Path, forget_plugins: Callable[[], None]
) -> None:
    """Final scores and learning curves are of the same version of a metric."""
    body = {
        "statistics": "lambda sentences: sentences.stacked({} * sentences.right, 1)",
        "score": "lambda sums: {} * sums[..., 0] / sums[..., 1]",
    }[function]

    def load(factor: float) -> None:
        forget_plugins()
        path = tmp_path / "part.py"
        path.write_text(
            "from xclrun.core.task import Metric, Scored, register_metric\n\n"
            f"register_metric(Metric('part', 'part', 'part', Scored.labels, 'a', 'as', {function}={body}))\n".format(
                factor
            )
        )
        load_files(["--plugin", str(path)])

    load(1)
    write_run(tmp_path, "a", 1, points=True, counts=True)
    [first] = read_records(tmp_path)
    load(0.5)
    [second] = read_records(tmp_path)
    assert second.scores["part"] == pytest.approx(first.scores["part"] / 2)
    of = [[point["test"]["en"]["part"] for point in record.points] for record in (first, second)]
    assert of[1] == pytest.approx(np.array(of[0]) / 2)
    assert any(of[0])


def test_the_version_of_a_function_is_that_of_its_plug_in(tmp_path: Path, forget_plugins: object) -> None:
    path = tmp_path / "own.py"
    path.write_text(FILES["blunders.py"])
    load_files(["--plugin", str(path)])
    assert version_of(BY_NAME["blunder_rate"].statistics) == hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    assert version_of(LABEL_BITS.statistics) == version_of(None) == ""


def test_reports_have_no_metric_that_was_not_selected(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 1)
    assert [set(record.scores) for record in read_records(tmp_path)] == [{"intent_accuracy", "slot_f1"}]


def test_resamples_without_a_score_give_no_interval(made: tuple, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    comparison, references, predictions = made
    resampled = Resampled(comparison, references, predictions, ACCURACY, resamples=3)
    drawn = [np.array([0.5, np.nan, 0.4])] * 2
    monkeypatch.setattr(resampled, "_values_of_runs", lambda label, name: drawn)
    estimate = resampled.estimate("er", "FP")
    assert estimate is not None
    assert estimate.interval.reason == "undefined for some resamples"


def test_an_unknown_metric_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"^--metric label_bit: unknown metric; did you mean 'label_bits'\?"):
        select_metrics(["label_bit"])


def test_predictions_give_the_matrix_of_a_metric(error: str) -> None:
    gold, predicted = np.array([0, 1, 1, 0]), np.array([[0, 0], [1, 1], [0, 1], [0, 0]])
    of = Predictions(("a", "b"), {"en": Sentences(np.arange(4).astype(str), gold, predicted)})
    assert of.matrix(BY_NAME[error], ["en"])[:, 0] == pytest.approx([0.25, 0])
    assert SHARE.shown(0.25) == "25.00"
