"""The bootstrap of a comparison against scoring every resample run by run; replicates against the summary."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from tests.conftest import some
from xclrun.analysis import formulas, resampling
from xclrun.analysis.aggregate import Comparison, comparisons, summarise
from xclrun.analysis.bootstrap import basic, draws, wilson
from xclrun.analysis.paired import cell, paired_difference
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.analysis.resampling import Resampled, measured
from xclrun.core.task import BY_NAME, CLASS_ACCURACY, SLOT_F1, STATEMENT_TRUTH, MetricsOfKeys
from xclrun.scores.base_scores import Predictions, Sentences, with_metrics

from .build import record

ORDERS = {"h2l": ("en", "de", "th"), "l2h": ("th", "de", "en")}
SENTENCES = {"en": 31, "de": 24, "th": 19}


def predicted(rng: np.random.Generator, languages: tuple[str, ...], hops: int) -> Predictions:
    result = {}
    for language in languages:
        n = SENTENCES[language]
        gold = np.random.default_rng(n).integers(-1, 4, n)
        spans = tuple(rng.integers(0, 3, (n, hops + 1)) for _ in range(3))
        ids = np.array([f"{language}-{i:03d}" for i in range(n)], dtype=object)
        result[language] = Sentences(ids, gold, rng.integers(0, 4, (n, hops + 1)), spans)
    return Predictions(("a", "b", "c", "d"), result)


def scored(
    predictions: Predictions, languages: tuple[str, ...], chosen: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Score the chosen sentences, one cell after the other."""
    columns: dict[str, list[np.ndarray]] = {"intent_accuracy": [], "slot_f1": []}
    for language in languages:
        them, own = predictions.sentences[language], chosen[language]
        columns["intent_accuracy"].append(them.right[own].mean(axis=0))
        tp, fp, fn = (counts[own].sum(axis=0) for counts in them.spans)
        columns["slot_f1"].append(2 * tp / (2 * tp + fp + fn))
    return {metric: np.stack(parts, axis=-1) for metric, parts in columns.items()}


@pytest.fixture(scope="module")
def made() -> tuple[Comparison, References, dict[str, Predictions]]:
    rng = np.random.default_rng(0)
    everything = {k: np.arange(n) for k, n in SENTENCES.items()}
    runs, predictions = [], {}
    for strategy, stream in (("naive", "sequence"), ("er", "sequence"), ("lang_spec_ft", "independent")):
        for order, languages in ORDERS.items():
            own = predicted(rng, languages, 3)
            run = record(strategy, order, scores=scored(own, languages, everything), languages=languages, stream=stream)
            runs.append(run)
            predictions[run.run_id] = own
    (comparison,) = comparisons(runs)
    return comparison, References(runs), predictions


def by_hand(
    run: RunRecord,
    name: str,
    metric: str,
    runs: list[RunRecord],
    predictions: dict[str, Predictions],
    b: int,
    seed: int,
) -> float:
    chosen = {}
    for language, n in SENTENCES.items():
        chosen[language] = np.repeat(np.arange(n), draws(n, seed, language, b + 1, None)[b].astype(int))
    R = scored(predictions[run.run_id], run.languages, chosen)[metric]
    if name != "T":
        of = {"F": formulas.forgetting, "T0": formulas.zero_shot_transfer, "FP": lambda R: R[-1].mean()}
        return float(of[name](R))
    (own,) = (r for r in runs if r.strategy == "lang_spec_ft" and r.order == run.order)
    alone = scored(predictions[own.run_id], own.languages, chosen)[metric]
    return float(formulas.transfer(R, formulas.learnt_scores(alone)))


@pytest.mark.parametrize("metric", ["intent_accuracy", "slot_f1"])
def test_every_measure_of_every_resample(metric: str, made: tuple) -> None:
    comparison, references, predictions = made
    resampled = Resampled(comparison, references, predictions, metric, seed=5, resamples=4, size=None)
    # Draws come one after the other, so the first resamples of more are the same as those of fewer.
    for run in some(comparison.strategies["er"]):
        for name in ("F", "T", "T0", "FP"):
            values = resampled.of_run(run, name)
            expected = by_hand(run, name, metric, comparison.runs, predictions, 0, 5)
            assert values.shape == (4,)
            # The draws of b + 1 resamples begin with those of fewer only where the generator goes row by row.
            assert values[0] == pytest.approx(expected, abs=1e-12), name
    both = [resampled.of_run(run, "FP") for run in comparison.strategies["er"]]
    np.testing.assert_allclose(resampled.of_strategy("er", "FP"), np.mean(both, axis=0))


def bootstrap(metric: str, *runs: Sentences, resamples: int = 50) -> Resampled:
    """The bootstrap of runs of naive and er with the same sentences, and predictions for them, in two languages."""
    names = ("naive", "er")[: len(runs)]
    scores = [{metric: np.tile(of.scores(BY_NAME[metric])[:, np.newaxis], 2)} for of in runs]
    records = [record(name, scores=of, languages=("en", "de")) for name, of in zip(names, scores, strict=True)]
    predictions = {
        run.run_id: Predictions(("false", "true"), dict.fromkeys(("en", "de"), of))
        for run, of in zip(records, runs, strict=True)
    }
    (comparison,) = comparisons(records)
    return Resampled(comparison, References(records), predictions, metric, 5, resamples, None)


def final(resampled: Resampled) -> np.ndarray:
    """FP of naive in every resample."""
    values = resampled.of_strategy("naive", "FP")
    assert values is not None
    return values


def mean_over_languages(sentences: int, right: np.ndarray, resamples: int) -> np.ndarray:
    """Mean score of the drawn units, given that of each."""
    return np.mean([draws(sentences, 5, k, resamples) @ right / sentences for k in ("en", "de")], axis=0)


def test_statements_about_one_text_are_drawn_together() -> None:
    """30 texts with a true and a false statement each."""
    ids, gold = np.array([f"text#{i}#{k}" for i in range(30) for k in (0, 1)]), np.tile([1, 0], 30)
    # One of the two is always right, whichever texts are drawn.
    constant = bootstrap("statement_accuracy", Sentences(ids, gold, np.zeros((60, 3), int), grouped=True))
    np.testing.assert_array_equal(final(constant), 0.5)
    assert constant.estimate("naive", "FP", "bca").interval.reason == "all resamples are equal"
    # Any answers: the statements of each text as often as it was drawn.
    predicted = np.random.default_rng(0).integers(0, 2, (60, 3))
    result = final(bootstrap("statement_accuracy", Sentences(ids, gold, predicted, grouped=True)))
    right = (predicted[:, -1] == gold).reshape(30, 2).mean(axis=1)
    names = sorted(range(30), key=lambda i: f"text#{i}")
    np.testing.assert_allclose(result, mean_over_languages(30, right[names], 50))
    assert result.std() > 0.01


def test_the_task_decides_what_is_drawn_together_whatever_the_metric() -> None:
    """Statements of a task with another metric are resampled like those that statement accuracy scores."""
    ids, gold = np.array([f"text#{i}#{k}" for i in range(30) for k in (0, 1)]), np.tile([1, 0], 30)
    sentences = {key: Sentences(ids, gold, np.zeros((60, 3), int)) for key in ("en", "de")}
    bound = with_metrics(sentences, MetricsOfKeys((CLASS_ACCURACY,), grouped=STATEMENT_TRUTH.grouped))
    together = bootstrap("class_accuracy", bound["en"])
    assert together.with_texts == ("statements",)
    np.testing.assert_array_equal(final(together), 0.5)
    several = MetricsOfKeys(by_key=dict.fromkeys(sentences, (CLASS_ACCURACY,)), grouped=frozenset({"en"}))
    bound = with_metrics(sentences, several)
    assert bound["en"].units is not None
    assert bound["de"].units is None


def test_questions_about_one_text_are_drawn_together() -> None:
    """Five questions about each of 40 texts, alike in what they score: the evidence is that of 40 texts, not of 200."""
    rng = np.random.default_rng(2)
    texts = rng.permutation(np.repeat(np.arange(40), 5))
    likeness = np.repeat(rng.random(40).astype(np.float32)[texts, np.newaxis], 3, axis=1)
    ids, gold = np.array([f"q{i:03d}" for i in range(200)]), np.full(200, -1)
    spread = []
    # As many texts as questions: each question by itself.
    for numbers in (texts, np.arange(200)):
        answers = np.stack([likeness, likeness])
        sentences = Sentences(ids, gold, np.zeros((200, 3), int), answers=answers, texts=numbers)
        resampled, n = bootstrap("answer_f1", sentences, resamples=400), len(set(numbers))
        assert resampled.with_texts == (("questions",) if n < 200 else ())
        of_text = np.array([likeness[numbers == i, 0].mean() for i in range(n)])
        np.testing.assert_allclose(final(resampled), mean_over_languages(n, of_text, 400), rtol=1e-5)
        spread.append(final(resampled).std())
    assert spread[1] < 0.6 * spread[0]


def test_runs_that_learn_alone_have_their_final_scores_only(made: tuple) -> None:
    comparison, references, predictions = made
    resampled = Resampled(comparison, references, predictions, "intent_accuracy", resamples=3)
    assert resampled.of_strategy("lang_spec_ft", "F") is None
    assert resampled.estimate("lang_spec_ft", "T") is None
    final = resampled.of_strategy("lang_spec_ft", "FP")
    assert final is not None
    assert ((final > 0) & (final < 1)).all()


@pytest.mark.parametrize("kind", ["basic", "centred", "percentile", "bca", "paper"])
def test_intervals_stand_beside_the_value_of_the_table_and_the_bias(kind: str, made: tuple) -> None:
    comparison, references, predictions = made
    resampled = Resampled(comparison, references, predictions, "slot_f1", resamples=300, size=None)
    frame = summarise(comparison.runs).query(
        "strategy == 'er' and order == 'mean' and metric == 'slot_f1' and language == ''"
    )
    for name in ("F", "T"):
        result, values = resampled.estimate("er", name, kind), resampled.of_strategy("er", name)
        assert result.value == pytest.approx(frame.loc[frame["measure"] == name, "value"].item())
        assert result.bias == pytest.approx(values.mean() - result.value)
        assert result.interval.low < result.interval.high
        ends = np.percentile(values, [2.5, 97.5])
        expected = {
            "basic": 2 * result.value - ends[::-1], "centred": ends - result.bias, "percentile": ends,
        }.get(kind)  # fmt: skip
        if expected is not None:
            assert (result.interval.low, result.interval.high) == pytest.approx(tuple(expected))
    left = resampled._jackknife(comparison.strategies["er"], "T")
    assert [len(part) for part in left] == [SENTENCES[k] for k in comparison.languages]


def test_the_papers_interval_is_the_mean_of_those_of_each_order(made: tuple) -> None:
    resampled = Resampled(*made, "slot_f1", resamples=50, size=None)
    runs = made[0].strategies["er"]
    of_orders = [stats.t.interval(0.95, 49, v.mean(), stats.sem(v)) for v in (resampled.of_run(r, "F") for r in runs)]
    result = resampled.estimate("er", "F", "paper").interval
    assert (result.low, result.high) == pytest.approx(tuple(np.mean(of_orders, axis=0)))
    own = [resampled.estimate("er", "F", "paper", order) for order in ("h2l", "l2h")]
    assert sorted((one.interval.low, one.interval.high) for one in own) == pytest.approx(sorted(of_orders))
    assert np.mean([one.value for one in own]) == pytest.approx(resampled.estimate("er", "F").value)


@pytest.mark.parametrize("kind", ["basic", "centred", "percentile", "bca"])
def test_intervals_of_scores_stay_within_0_and_1(kind: str) -> None:
    """One error among 40 sentences, whose resamples mirror to an upper end above 1."""
    right = np.arange(40) >= 1
    predicted = np.tile(right[:, None], 3).astype(int)
    sentences = Sentences(np.array([f"{i:02d}" for i in range(40)]), np.ones(40, int), predicted)
    resampled = bootstrap("intent_accuracy", sentences, resamples=200)
    interval = resampled.estimate("naive", "FP", kind).interval
    assert 0 < interval.low < right.mean() < interval.high <= 1
    assert basic(final(resampled), right.mean()).high > 1


@pytest.mark.parametrize("kind", ["basic", "centred", "percentile", "bca", "paper"])
def test_without_errors_an_accuracy_has_wilsons_interval_and_nothing_else_has_one(kind: str) -> None:
    """40 sentences in each of two languages: the lower end is n / (n + z²) with n = 80 (Wilson 1927)."""
    answers, spans = np.ones((40, 3), int), (np.ones((40, 3), int), np.zeros((40, 3), int), np.zeros((40, 3), int))
    ids, end = np.array([f"{i:02d}" for i in range(40)]), 80 / (80 + stats.norm.ppf(0.975) ** 2)
    sentences = Sentences(ids, np.ones(40, int), answers, spans)
    right = bootstrap("intent_accuracy", sentences).estimate("naive", "FP", kind).interval
    wrong = bootstrap("intent_accuracy", Sentences(ids, np.ones(40, int), 1 - answers, spans))
    others = [
        bootstrap("intent_accuracy", sentences).estimate("naive", "F", kind),
        bootstrap("slot_f1", sentences).estimate("naive", "FP", kind),
    ]
    if kind == "paper":
        others.append(bootstrap("intent_accuracy", sentences).estimate("naive", "FP", kind))
    else:
        assert (right.low, right.high, right.kind) == (pytest.approx(end), 1, "Wilson")
        assert wrong.estimate("naive", "FP", kind).interval.high == pytest.approx(1 - end)
    for estimate in others:
        assert np.isnan([estimate.interval.low, estimate.interval.high]).all()
        assert estimate.interval.reason == "all resamples are equal"


def test_wilsons_interval_of_a_mean_uses_the_number_of_trials_with_its_variance() -> None:
    """1/2² (1/10 + 1/40) = 1/32; statsmodels is used, so scipy is the oracle."""
    expected = stats.binomtest(32, 32).proportion_ci(0.95, method="wilson")
    assert wilson(1, [10, 40]).low == pytest.approx(expected.low)


def of_tags(words: list[tuple[list[int], list[list[int]]]], language: str = "en") -> Sentences:
    """Sentences given their gold tags and the tags that each cell predicts."""
    tags = np.array([[g, *p] for gold, predicted in words for g, p in zip(gold, np.array(predicted).T, strict=True)])
    n, cells = len(words), len(words[0][1])
    ids, nothing = np.array([f"{language}-{i:03d}" for i in range(n)]), np.zeros((n, cells), int)
    lengths = np.array([len(gold) for gold, _ in words])
    return Sentences(ids, np.zeros(n, int), nothing, (nothing,) * 3, tags=tags.astype(np.int16), lengths=lengths)


def test_macro_f1_of_resamples_equals_scikit_learn() -> None:
    """Resampled sentences are written out one by one; rare tags are missing in some resamples and then do not count."""
    rng = np.random.default_rng(6)
    words: dict[str, list] = {}
    for language in ("en", "de"):
        lengths = rng.integers(0, 6, 25)
        gold = [np.minimum(rng.geometric(0.4, n), 7).tolist() for n in lengths]
        words[language] = [
            (g, [[t if rng.random() < 0.6 else int(rng.integers(0, 9)) for t in g] for _ in "123"]) for g in gold
        ]
    predictions = Predictions(("a",), {k: of_tags(of, k) for k, of in words.items()})

    def macro(language: str, chosen: np.ndarray, cell: int) -> float:
        gold = [tag for i in chosen for tag in words[language][i][0]]
        result = [tag for i in chosen for tag in words[language][i][1][cell]]
        return float(f1_score(gold, result, average="macro", zero_division=0))

    everything = {k: np.arange(25) for k in words}
    scores = {"slot_f1": np.array([[macro(k, everything[k], cell) for k in words] for cell in range(3)])}
    config = {"evaluate": {"slot_f1": "tag_macro"}}
    (comparison,) = comparisons([record("naive", scores=scores, languages=tuple(words), config=config)])
    (run,) = comparison.runs
    resampled = Resampled(comparison, References([run]), {run.run_id: predictions}, "slot_f1", 5, 40, size=None)
    drawn = {k: draws(25, 5, k, 40, None).astype(int) for k in words}
    expected = [np.mean([macro(k, np.repeat(np.arange(25), drawn[k][b]), 2) for k in words]) for b in range(40)]
    np.testing.assert_allclose(resampled.of_run(run, "FP"), expected, rtol=1e-12)
    estimate = resampled.estimate("naive", "FP", "bca")
    assert estimate.value == pytest.approx(scores["slot_f1"][2].mean())
    left = [[np.mean([macro(k, np.delete(everything[k], i if k == own else []), 2) for k in words]) for i in range(25)]
            for own in words]  # fmt: skip
    np.testing.assert_allclose(resampled._jackknife([run], "FP"), left, rtol=1e-6)
    # The same runs in `xclrun show`: two hops of one run, paired.
    one, other = ({k: cell(them, SLOT_F1, hop) for k, them in predictions.sentences.items()} for hop in (1, 2))
    assert paired_difference(one, other).value == pytest.approx(np.diff(scores["slot_f1"].mean(axis=1))[1])


def test_runs_scored_in_different_ways_have_no_common_bootstrap(made: tuple) -> None:
    comparison, references, predictions = made
    first, *rest = comparison.runs
    macro = dataclasses.replace(first, config={**first.config, "evaluate": {"slot_f1": "tag_macro"}})
    with pytest.raises(ValueError, match="different ways"):
        Resampled(comparisons([macro, *rest])[0], references, predictions, "slot_f1", resamples=2)


@pytest.mark.parametrize("statistics", [1, 10, 16])
def test_runs_a_few_at_a_time_give_what_all_at_once_give(
    statistics: int, made: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    def result() -> list[object]:
        resampled = Resampled(*made, "slot_f1", resamples=7)
        every = [(label, name) for label in ("naive", "er") for name in ("F", "T", "FP")]
        samples = [resampled.of_strategy(*one).tolist() for one in every]
        return [*samples, *(resampled.estimate(*one, "bca") for one in every)]

    together = result()
    # Three hops and the one before make four cells of two statistics: one run at a time, or two.
    monkeypatch.setattr(resampling, "CHUNK", statistics)
    assert result() == together


def test_the_bootstrap_averages_within_orders_first(made: tuple) -> None:
    """A second seed of one order, which is the first once more, changes nothing."""
    comparison, _, predictions = made
    runs = comparison.runs
    again = [
        dataclasses.replace(r, seed=2, run_id=f"{r.run_id}-2")
        for r in runs
        if r.order == "h2l" or r.stream == "independent"
    ]
    more = predictions | {r.run_id: predictions[r.run_id.removesuffix("-2")] for r in again}
    (larger,) = comparisons([*runs, *again])
    values = [
        Resampled(c, References(c.runs), more, "intent_accuracy", resamples=5).of_strategy("er", "FP")
        for c in (comparison, larger)
    ]
    assert [len(larger.strategies[k]) for k in ("er", "naive")] == [3, 3]
    np.testing.assert_allclose(*values)


def test_different_test_sentences_are_refused(made: tuple) -> None:
    comparison, references, predictions = made
    other = dict(predictions)
    first = next(iter(other))
    cut = {k: Sentences(s.ids[1:], s.gold[1:], s.predicted[1:]) for k, s in other[first].sentences.items()}
    other[first] = Predictions(other[first].labels, cut)
    with pytest.raises(ValueError, match="different sentences of"):
        Resampled(comparison, references, other, "intent_accuracy", resamples=2)
    with pytest.raises(ValueError, match="no predictions of"):
        Resampled(comparison, references, {}, "intent_accuracy", resamples=2)


def test_replicates_are_the_runs_of_the_table(made: tuple) -> None:
    comparison, references, _ = made
    tested = {k: v.most() for k, v in measured(comparison, references, "intent_accuracy").items()}
    data = tested["FP"]
    assert data.strategies == ("naive", "er")
    assert [order for order, _, _ in data.blocks] == ["h2l", "l2h"]
    for label, values in zip(data.strategies, data.values, strict=True):
        expected = [run.scores["intent_accuracy"][-1].mean() for run in comparison.strategies[label]]
        np.testing.assert_allclose(values, expected)
    frame = summarise(comparison.runs).query(
        "order == 'mean' and measure == 'T' and metric == 'intent_accuracy' and language == ''"
    )
    np.testing.assert_allclose(
        tested["T"].values.mean(axis=1), frame.set_index("strategy").loc[["naive", "er"], "value"]
    )


def test_each_pair_is_tested_by_its_final_scores_in_the_orders_that_both_have() -> None:
    """GDumb learns anew at each hop: its final model depends on the order, but it has no forgetting."""
    runs = []
    for k, order in enumerate((*ORDERS, "third")):
        languages = ORDERS.get(order, ("de", "en", "th"))
        for strategy, stream in (("naive", "sequence"), ("er", "sequence"), ("gdumb", "growing")):
            if (strategy, order) not in (("gdumb", "h2l"), ("er", "third")):
                scores = np.full((4, 3), 0.2 + 0.1 * k)
                scores[-1] = 0.5 if strategy == "gdumb" else 0.1 * k
                runs.append(record(strategy, order, scores=scores, languages=languages, stream=stream))
    (comparison,) = comparisons(runs)
    tested = measured(comparison, References(runs), "intent_accuracy")
    assert {name: (*tested[name].values,) for name in ("F", "T0", "FP")} == {
        "F": ("naive", "er"), "T0": ("naive", "er"), "FP": ("naive", "er", "gdumb")
    }  # fmt: skip
    orders = {label: [order for order, _, _ in tested["FP"].of(("naive", label)).blocks] for label in ("er", "gdumb")}
    assert orders == {"er": ["h2l", "l2h"], "gdumb": ["l2h", "third"]}
    np.testing.assert_allclose(tested["FP"].of(("naive", "gdumb")).values, [[0.1, 0.2], [0.5, 0.5]])
    assert [order for order, _, _ in tested["FP"].of(("er", "gdumb")).blocks] == ["l2h"]
    assert tested["FP"].most().strategies == ("naive", "er")


def test_confusions_count_every_known_sentence(made: tuple) -> None:
    _, _, predictions = made
    own = next(iter(predictions.values()))
    total = own.confusion(3)
    assert total.sum() == sum((s.gold >= 0).sum() for s in own.sentences.values())
    right = sum(s.right[:, 3].sum() for s in own.sentences.values())
    assert np.trace(total) == right
    np.testing.assert_array_equal(total, sum(own.confusion(3, k) for k in own.sentences))
