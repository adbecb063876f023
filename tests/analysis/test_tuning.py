"""Settings chosen on dev: against brute force, and never by anything of the test split."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xclrun.analysis.measures import MEASURES, Measure, Scores
from xclrun.analysis.record import RunRecord
from xclrun.analysis.tuning import Choice, choose, dev_scores
from xclrun.core.errors import UsageError

from .build import alone, merged, record

ORDERS = (("en", "de", "th"), ("th", "en", "de"))
GRID = {"trainer.lr": (0.01, 0.001), "strategy.weight": (0.5, 1.0, 2.0)}


def tuned(
    dev: np.ndarray, name: str = "er", languages: Sequence[str] = ORDERS[0], seed: int = 1, **settings: Any
) -> RunRecord:
    """Make a run with these scores on dev after each of its hops, shape (3, 3); those on test are of no use.

    Each hop has two epochs, of which the first is selected; a point at the end of each.
    """
    rng = np.random.default_rng(7)
    config: dict[str, Any] = {"trainer": {"selection": "best"}}
    for key, value in settings.items():
        room, _, leaf = key.partition("__")
        config = merged(config, {room: {leaf: value}})
    points, curve = [], []
    for hop, scores in enumerate(dev, start=1):
        for epoch, lower in ((1, 0.0), (2, 0.3)):
            here = {k: {"intent_accuracy": float(v) - lower} for k, v in zip(languages, scores, strict=True)}
            of_test = {k: {"intent_accuracy": float(rng.random())} for k in languages}
            own = languages[hop - 1]
            at = {"hop": hop, "step": 10 * epoch, "examples": 40, "own": 40}
            points.append(at | {"dev": here, "test": of_test})
            curve.append(at | {"epoch": epoch, "loss": 1.0, "dev": {own: here[own]}})
    return record(
        name, languages=languages, seed=seed, scores=rng.random((4, 3)), config=config, points=tuple(points),
        curve=tuple(curve), run_id="-".join(map(str, (name, *languages, seed, *settings.values()))),
    )  # fmt: skip


def grid() -> dict[tuple[float, float, int, int], np.ndarray]:
    """Dev scores of a whole grid: learning rate, weight, order, seed → matrix of hops 1…3."""
    rng = np.random.default_rng(3)
    cells = itertools.product(*GRID.values(), (0, 1), (1, 2, 3))
    return {cell: rng.uniform(0.4, 1.0, (3, 3)) for cell in cells}


def runs(cells: dict[tuple[float, float, int, int], np.ndarray]) -> list[RunRecord]:
    return [
        tuned(dev, "er", ORDERS[order], seed, trainer__lr=lr, strategy__weight=weight)
        for (lr, weight, order, seed), dev in cells.items()
    ]


BY_HAND: dict[str, tuple[Callable[[np.ndarray], float], int]] = {
    "dev_fp": (lambda dev: sum(dev[2]) / 3, 1),
    "dev_f": (lambda dev: np.mean([np.mean([max(dev[:i, j]) - dev[i, j] for j in range(i)]) for i in (1, 2)]), -1),
    "dev_fp_min": (lambda dev: min(dev[2]), 1),
    "dev_learnt": (lambda dev: (dev[0, 0] + dev[1, 1] + dev[2, 2]) / 3, 1),
}


@pytest.mark.parametrize("objective", BY_HAND)
def test_the_choice_is_what_brute_force_finds(objective: str) -> None:
    cells, (value, sign) = grid(), BY_HAND[objective]
    means = {
        (lr, weight): np.mean([value(dev) for (a, b, *_), dev in cells.items() if (a, b) == (lr, weight)])
        for lr, weight in itertools.product(*GRID.values())
    }
    ranked = sorted(means, key=lambda setting: -sign * means[setting])
    [result] = choose(runs(cells), list(GRID), objective).tuned
    assert [tuple(map(float, trial.values.values())) for trial in result.trials] == ranked
    assert [trial.score for trial in result.trials] == pytest.approx([means[setting] for setting in ranked])
    assert {run.run_id for run in result.trials[0].runs} == {
        f"er-{'-'.join(order)}-{seed}-{ranked[0][0]}-{ranked[0][1]}" for order in ORDERS for seed in (1, 2, 3)
    }


def test_test_scores_choose_nothing() -> None:
    """With other scores in every place that holds one of the test split the choice is the same, for each objective."""
    given = runs(grid())
    rng = np.random.default_rng(11)
    other = []
    for run in given:
        of_test = [{k: {"intent_accuracy": float(rng.random())} for k in run.languages} for _ in run.points]
        points = tuple(point | {"test": scores} for point, scores in zip(run.points, of_test, strict=True))
        other.append(replace(run, scores={"intent_accuracy": rng.random((4, 3))}, points=points))
    for objective in ("dev", *BY_HAND):
        assert choose(given, list(GRID), objective).to_json() == choose(other, list(GRID), objective).to_json()


def flat(level: float, **given: Any) -> RunRecord:
    return tuned(np.full((3, 3), level), **given)


def test_each_strategy_has_its_own_choice_and_keys_it_does_not_have_are_left_out() -> None:
    given = [flat(0.9 - w / 10, trainer__lr=lr, strategy__weight=w) for lr in (0.1, 0.2) for w in (1, 2)]
    given += [flat(lr, name="naive", trainer__lr=lr) for lr in (0.5, 0.7)]
    given += [flat(0.6, name="kd", trainer__lr=0.5)]
    choice = choose(given, ("trainer.lr", "strategy.weight"))
    assert [tuned.description for tuned in choice.tuned] == [
        "naive: trainer.lr=0.7 (of 2)",
        "er: trainer.lr=0.1, strategy.weight=1 (of 4; tied with trainer.lr=0.2, strategy.weight=1)",
        "kd: trainer.lr=0.5 (of 1)",
    ]
    assert choice.objective.name == "dev_fp"
    assert {run.strategy for run in choice.runs} == {"naive", "er", "kd"}
    assert choice.caption("mini", "tiny").startswith(
        "settings selected on dev: for each strategy, the value of trainer.lr and strategy.weight with the highest FP "
        "on dev (mean over orders and seeds, 1 run per setting), used for all orders and seeds: naive: trainer.lr=0.7"
    )


def test_settings_that_are_not_chosen_keep_strategies_apart() -> None:
    given = [flat(lr + m / 9, trainer__lr=lr, strategy__memory=m) for lr in (0.5, 0.6) for m in (1, 2)]
    result = choose(given, ("trainer.lr",)).tuned
    assert [(one.strategy, one.trials[0].values) for one in result] == [
        ("er(memory=1)", {"trainer.lr": "0.6"}),
        ("er(memory=2)", {"trainer.lr": "0.6"}),
    ]


def test_of_settings_equal_but_for_rounding_the_first_by_size_counts() -> None:
    equal = ((10.0, 4e-16), (0.5, 0), (1e-05, 0), (9.0, 2e-16))
    given = [flat(0.7 + e, trainer__lr=lr) for lr, e in (*equal, (0.1, -0.1))]
    [result] = choose(given, ("trainer.lr",)).tuned
    assert [trial.values["trainer.lr"] for trial in result.trials] == ["1e-05", "0.5", "9.0", "10.0", "0.1"]
    assert result.tied == 4


def test_orders_count_the_same() -> None:
    """An order with three seeds does not outweigh one with one."""
    given = []
    for lr, scores in ((0.1, (0.9, 0.5)), (0.2, (0.6, 0.85))):
        for k, (order, seeds) in enumerate(((ORDERS[0], (1, 2, 3)), (ORDERS[1], (1,)))):
            given += [flat(scores[k], languages=order, seed=seed, trainer__lr=lr) for seed in seeds]
    [result] = choose(given, ("trainer.lr",)).tuned
    assert [t.score for t in result.trials] == pytest.approx([0.725, 0.7])


def test_a_grid_with_missing_cells_is_refused() -> None:
    given = [flat(0.5, seed=seed, trainer__lr=lr) for lr in (0.1, 0.2) for seed in (1, 2)]

    def line(records: list[RunRecord]) -> str:
        with pytest.raises(UsageError) as error:
            choose(records, ("trainer.lr",))
        return str(error.value)

    start = "--select-on dev trainer.lr: er, trainer.lr="
    assert line(given[:3]).startswith(f"{start}0.2 lacks en-de-th seed 2 (not run); ")
    failed = [replace(run, status="failed", points=(), curve=()) for run in given[2:]]
    assert line([*given[:2], *failed]).startswith(f"{start}0.2 lacks en-de-th seed 1 (failed) and 1 more; ")
    # A run that is there twice, finished in one place, is finished.
    assert choose([*given, *failed], ("trainer.lr",)).to_json() == choose(given, ("trainer.lr",)).to_json()


def test_dev_is_of_the_weights_that_were_tested() -> None:
    """Of the epoch that was selected; where no point was taken then, FP on dev is not known."""
    dev = np.arange(9).reshape(3, 3) / 20 + 0.4
    run = tuned(dev)
    assert np.allclose(dev_scores(run, "intent_accuracy")[1:], dev)
    last = replace(run, config=merged(run.config, {"trainer": {"selection": "last"}}))
    assert np.allclose(dev_scores(last, "intent_accuracy")[1:], dev - 0.3)
    # The dev scores of first epochs had no value.
    undefined = [
        epoch | {"dev": {k: {} for k in epoch["dev"]}} if epoch["epoch"] == 1 else epoch for epoch in run.curve
    ]
    assert np.allclose(dev_scores(replace(run, curve=tuple(undefined)), "intent_accuracy")[1:], dev - 0.3)
    at_the_end = replace(run, points=tuple(point for point in run.points if point["step"] == 20))
    assert np.isnan(dev_scores(at_the_end, "intent_accuracy")).all()

    low = flat(0.4, trainer__lr=0.1)
    choice = choose([replace(run, run_id="mine"), low], ("trainer.lr",))
    assert (choice.objective.name, choice.why) == ("dev_fp", "")
    choice = choose([replace(at_the_end, run_id="mine"), low], ("trainer.lr",))
    assert choice.objective.name == "dev_learnt"
    assert choice.why.startswith("mine: dev scores are missing (needs hop ")
    assert choice.tuned[0].trials[0].score == pytest.approx((0.4 + 0.6 + 0.8) / 3)
    with pytest.raises(UsageError, match=r"mine \(er\) has no FP on dev: dev scores are missing"):
        choose([replace(at_the_end, run_id="mine"), low], ("trainer.lr",), "dev_fp")


def test_a_language_counts_after_the_last_hop_that_trains_it() -> None:
    """Of a language that comes in blocks: when all have been learned."""
    config = {"dataset": {"blocks": 3}, "trainer": {"selection": "last"}}
    given = []
    for lr, scores in ((0.1, (0.9, 0.5)), (0.2, (0.3, 0.7))):
        curve = tuple(
            {"hop": hop, "epoch": 1, "step": 10, "dev": {"en": {"intent_accuracy": score}}}
            for hop, score in enumerate(scores, start=1)
        )
        own = merged(config, {"trainer": {"lr": lr}})
        given.append(
            record("growing", languages=("en",), stream="blocks", scores=np.full((3, 1), 0.5), config=own, curve=curve,
                   run_id=str(lr))
        )  # fmt: skip
    [result] = choose(given, ("trainer.lr",), "dev_learnt").tuned
    assert [(trial.values["trainer.lr"], trial.score) for trial in result.trials] == [("0.2", 0.7), ("0.1", 0.5)]


def test_a_measure_finds_nothing_of_the_test_split_beside_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    def peek(scores: Scores) -> float:
        run = scores.record
        assert not any((run.points, run.curve, run.averaged, run.coded))
        return float(np.nansum(np.concatenate([*run.scores.values(), scores.M[None]])))

    own = Measure("peek", "", "", "", True, peek, None, needs=lambda n: np.eye(n + 1, n, k=-1, dtype=bool))
    monkeypatch.setitem(MEASURES, "peek", own)
    [result] = choose([flat(lr, trainer__lr=lr) for lr in (0.5, 0.6)], ("trainer.lr",), "dev_peek").tuned
    assert [trial.score for trial in result.trials] == pytest.approx([9 * 0.6, 9 * 0.5])


def test_reference_runs_are_chosen_among_only_where_there_is_nothing_else() -> None:
    given = [flat(lr, trainer__lr=lr) for lr in (0.5, 0.6)]
    curve = tuple(
        {"hop": hop, "epoch": 1, "step": 10, "dev": {key: {"intent_accuracy": 0.6}}}
        for hop, key in enumerate(ORDERS[0], start=1)
    )
    references = [
        alone((0.5, 0.5, 0.5), config={"trainer": {"lr": lr}}, run_id=f"ft{lr}", curve=curve) for lr in (0.5, 0.6)
    ]

    def strategies(choice: Choice) -> list[str]:
        return [one.strategy for one in choice.tuned]

    assert strategies(choose([*given, *references], ("trainer.lr",))) == ["er"]
    assert strategies(choose(references, ("trainer.lr",))) == ["lang_spec_ft"]


@pytest.mark.parametrize(
    ("keys", "what", "line"),
    [
        ("trainer.lrr", "dev", "--select-on dev trainer.lrr: unknown key trainer.lrr; did you mean 'trainer.lr'? "),
        ("seed", "dev", "--select-on dev seed: seed cannot be selected, since results are averaged over it"),
        ("order.name", "dev", "--select-on dev order.name: order.name cannot be selected, since results are"),
        ("strategy.name", "dev", "--select-on dev strategy.name: strategy.name cannot be selected, since reports"),
        ("runtime.threads", "dev", "--select-on dev runtime.threads: runtime.threads cannot be selected, since it has"),
        ("trainer.selection", "dev", "--select-on dev trainer.selection: no strategy has runs with several values"),
        ("trainer.lr", "dev_t0", "--select-on dev_t0: unknown objective; did you mean 'dev_"),
        ("trainer.lr", "test", "--select-on test: unknown objective; "),
    ],
)  # fmt: skip
def test_what_cannot_be_chosen_is_refused_in_one_line(keys: str, what: str, line: str) -> None:
    given = [flat(0.5, trainer__lr=lr, runtime__threads=t) for t, lr in enumerate((0.1, 0.2))]
    with pytest.raises(UsageError) as error:
        choose(given, (keys,), what)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "settings", "edited", "why"),
    [
        ("model_average", {}, (), "before averaging the weights"),
        ("mbpa", {"neighbours": 5, "adapt_steps": 3, "replay_write": 0.1}, (), "without adaptation to each example"),
        ("of_a_plug_in", {}, (3,), "before the strategy changed the weights at the end of training"),
    ],
)
def test_strategies_whose_dev_scores_are_of_another_model_are_refused(
    name: str, settings: dict[str, Any], edited: tuple[int, ...], why: str
) -> None:
    own = {f"strategy__{key}": value for key, value in settings.items()}
    given = [replace(flat(lr, name=name, trainer__lr=lr, **own), edited=edited) for lr in (0.5, 0.6)]
    for what in ("dev", "dev_fp", "dev_learnt"):
        with pytest.raises(UsageError, match=why):
            choose(given, ("trainer.lr",), what)
