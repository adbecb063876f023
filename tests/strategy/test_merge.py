"""Merging: every formula against numpy and closed forms, and what a run with merged models evaluates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import some
from xclrun.core.errors import UsageError
from xclrun.plan import Run
from xclrun.store.tensors import load_tensors
from xclrun.strategy.shared import merging
from xclrun.strategy.shared.fisher import diagonal_fisher
from xclrun.train.encodings import encodings
from xclrun.train.export import export

from .real import graph, untrained, weights

Make = Callable[..., Run]
Do = Callable[..., Run]
SHAPES = {"a": (7, 5), "b": (11,), "c": (1, 3, 2)}


def state_dicts(count: int, seed: int = 1) -> list[dict[str, Tensor]]:
    generator = np.random.default_rng(seed)
    return [
        {name: torch.from_numpy(generator.normal(size=shape).astype(np.float32)) for name, shape in SHAPES.items()}
        for _ in range(count)
    ]


BASE, *MODELS = state_dicts(5)


def flat(weights: Any) -> np.ndarray:
    return np.concatenate([np.asarray(weights[name], float).ravel() for name in SHAPES])


def ties_by_hand(base: np.ndarray, models: list[np.ndarray], density: float, scale: float) -> np.ndarray:
    """Algorithm 1 of the paper, entry by entry."""
    trimmed = []
    for model in models:
        change = model - base
        order = np.argsort(np.abs(change))
        change[order[: len(change) - round(density * len(change))]] = 0
        trimmed.append(change)
    merged = base.copy()
    for p in range(len(base)):
        entries = [change[p] for change in trimmed]
        sign = np.sign(sum(entries))
        same = [entry for entry in entries if entry and np.sign(entry) == sign]
        merged[p] += scale * np.mean(same) if same else 0
    return merged


def test_formulas_against_numpy() -> None:
    base, models = flat(BASE), [flat(model) for model in MODELS]
    close = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(flat(merging.mean(MODELS)), np.mean(models, axis=0), **close)
    wanted = 0.3 * (0.3 * (0.3 * models[0] + 0.7 * models[1]) + 0.7 * models[2]) + 0.7 * models[3]
    np.testing.assert_allclose(flat(merging.exponential_mean(MODELS, 0.3)), wanted, **close)
    wanted = base + 0.4 * sum(model - base for model in models)
    np.testing.assert_allclose(flat(merging.task_arithmetic(BASE, MODELS, 0.4)), wanted, **close)
    for density, scale in ((0.2, 1.0), (0.5, 0.7), (1.0, 1.0)):
        wanted = ties_by_hand(base, models, density, scale)
        np.testing.assert_allclose(flat(merging.ties(BASE, MODELS, density, scale)), wanted, **close)
    fisher = [{n: abs(f[n]) for n in SHAPES} for f in state_dicts(4, seed=2)]
    wanted = np.average(models, axis=0, weights=[flat(f) for f in fisher])
    np.testing.assert_allclose(flat(merging.weighted_mean(MODELS, fisher)), wanted, **close)


def test_closed_forms_of_coefficients() -> None:
    for merge in (
        lambda scale: merging.task_arithmetic(BASE, MODELS[:1], scale),
        lambda scale: merging.ties(BASE, MODELS[:1], 1.0, scale),
        lambda scale: merging.dare(BASE, MODELS[:1], 0.0, scale, seed=1),
    ):
        np.testing.assert_array_equal(flat(merge(0.0)), flat(BASE))
        np.testing.assert_array_equal(flat(merge(1.0)), flat(MODELS[0]))
    np.testing.assert_array_equal(flat(merging.exponential_mean(MODELS, 0.0)), flat(MODELS[-1]))
    np.testing.assert_array_equal(flat(merging.exponential_mean(MODELS, 1.0)), flat(MODELS[0]))
    np.testing.assert_array_equal(flat(merging.ties(BASE, MODELS, 0.0, 1.0)), flat(BASE))
    # λ = 1/2 of two models is their mean; equal Fisher information too.
    two, ones = MODELS[:2], {name: torch.ones(shape) for name, shape in SHAPES.items()}
    for merged in (
        merging.task_arithmetic(BASE, two, 0.5),
        merging.exponential_mean(two, 0.5),
        merging.weighted_mean(two, [ones, ones]),
        merging.weighted_mean(two, 2 * [{name: 0 * one for name, one in ones.items()}]),
    ):
        np.testing.assert_allclose(flat(merged), flat(merging.mean(two)), rtol=1e-5, atol=1e-6)


def test_dare_drops_a_share_at_random_and_keeps_the_expectation() -> None:
    base, model = {"a": torch.zeros(200, 200)}, {"a": torch.ones(200, 200)}
    merged = merging.dare(base, [model], 0.9, 1.0, seed=3)["a"]
    assert sorted({round(float(value), 5) for value in merged.unique()}) == [0.0, 10.0]
    assert float(merged.mean()) == pytest.approx(1.0, abs=0.05)
    assert torch.equal(merged, merging.dare(base, [model], 0.9, 1.0, seed=3)["a"])
    assert not torch.equal(merged, merging.dare(base, [model], 0.9, 1.0, seed=4)["a"])
    # Models are dropped independently of each other.
    both = merging.dare(base, [model, model], 0.9, 1.0, seed=3)["a"]
    assert float((both == 20).double().mean()) == pytest.approx(0.01, abs=0.003)


def test_spherical_interpolation() -> None:
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    for t in (0.0, 0.25, 0.5, 1.0):
        angle = torch.tensor(t * np.pi / 2)
        torch.testing.assert_close(merging.slerp(a, b, t), torch.stack([angle.cos(), angle.sin()]))
    torch.testing.assert_close(merging.slerp(a, 3 * a, 0.5), 2 * a)
    torch.testing.assert_close(merging.slerp(0 * a, b, 0.5), b / 2)
    three = merging.spherical_mean([{"a": x.double()} for x in (a, b, b)])["a"]
    torch.testing.assert_close(three, torch.tensor([np.cos(np.pi / 3), np.sin(np.pi / 3)]))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(("share", "strength"), [(0.0, 1.0), (0.25, 1.0), (0.6, 0.5), (1.0, 1.0)])
def test_a_share_of_the_changes_is_undone(share: float, strength: float, largest: bool) -> None:
    base, model = flat(BASE), flat(MODELS[0])
    order = np.argsort(np.abs(model - base))
    undone = order[len(order) - round(share * len(order)) :] if largest else order[: round(share * len(order))]
    wanted = model.copy()
    wanted[undone] -= strength * (model - base)[undone]
    np.testing.assert_allclose(flat(merging.revert(BASE, MODELS[0], share, largest, strength)), wanted, rtol=1e-5)
    only = merging.revert(BASE, MODELS[0], 1.0, largest, reverted=lambda name: name == "b")
    assert {
        name: torch.equal(only[name], (BASE if name == "b" else MODELS[0])[name]) for name in SHAPES
    } == dict.fromkeys(SHAPES, True)


# --- Runs.


def served(run: Run, hop: int) -> dict[str, Tensor]:
    """Return the weights with which a run is evaluated after a hop."""
    stages = graph(run)
    stages.load(run.stream.hops[hop])
    stages.strategy.for_language("en", stages.bench.learned(hop))
    return {name: p.detach().clone() for name, p in stages.bench.model.named_parameters()}


@pytest.mark.full
@pytest.mark.parametrize(("start", "trained_by"), [("pretrained", "lang_spec_ft"), ("previous", "naive")])
def test_the_evaluation_after_a_hop_is_of_the_merge_and_trains_nothing(
    start: str, trained_by: str, finished: Make, make_run: Make, do: Do
) -> None:
    other = finished(f"strategy={trained_by}")
    run = make_run("strategy=merge", f"strategy.start={start}", "strategy.scale=0.3")
    assert [s.train for s in run.stages] == [s.train for s in other.stages]
    assert [a.evaluation == b.evaluation for a, b in zip(run.stages, other.stages, strict=True)] == [True] + 3 * [False]
    run = do(run)
    assert run.directory.read_manifest()["stream"]["kind"] == "sequence", "the last row has the final scores"
    base = {name: p.detach() for name, p in untrained(run).named_parameters()}
    models = [weights(run, hop) for hop in (1, 2)]
    wanted = {n: base[n] + 0.3 * sum(model[n] - base[n] for model in models) for n in base}
    found = served(run, 2)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)
    assert not any(torch.equal(found[name], models[1][name]) for name in ("intent.weight", "tagger.linear.weight"))


@pytest.mark.parametrize("start", ["pretrained", "previous"])
def test_fisher_information_weighs_the_models(start: str, finished: Make) -> None:
    """The Fisher information of each hop is in its own state, also if models are trained one after another."""
    run = finished("strategy=merge", "strategy.method=fisher", f"strategy.start={start}", "trainer.epochs=1")
    stages, splits = graph(run), encodings(run).splits
    models, fisher = [], []
    for hop, language in ((1, "en"), (2, "de")):
        stages.weights(hop)
        models.append(weights(run, hop))
        fisher.append(diagonal_fisher(stages.bench.model, splits[language, "train"], torch.device("cpu")))
    found = served(run, 2)
    for name, first in fisher[0].items():
        total = first + fisher[1][name]
        mean = (first * models[0][name] + fisher[1][name] * models[1][name]) / total
        where = total > 1e-12
        torch.testing.assert_close(found[name][where], mean[where], rtol=1e-3, atol=1e-5)


def test_an_export_is_of_the_merge(finished: Make, tmp_path: Path) -> None:
    """The weights of the models, which are in the strategy's state, are loaded too."""
    run = finished("strategy=merge", "strategy.method=fisher", "strategy.start=previous", "trainer.epochs=1")
    facts = export(run, 2, None, tmp_path / "export")
    assert facts["language"] is None, "a merge has no parameters of a language"
    with pytest.raises(UsageError, match="share the parameters"):
        export(run, 2, "en", tmp_path / "other")
    found, wanted = load_tensors(tmp_path / "export" / "heads.safetensors"), served(run, 2)
    for name, tensor in some(found.items()):
        assert torch.equal(tensor, wanted[name])


@pytest.mark.full
def test_each_hop_can_start_from_the_merge(finished: Make) -> None:
    """With an exponential mean this is model_average; hop 1 is naive's."""
    given = ("strategy=merge", "strategy.start=merged", "strategy.method=exponential_mean", "strategy.decay=0.25")
    run, averaged = finished(*given), finished("strategy=model_average", "strategy.weight=0.75")
    assert run.stages[1].train == averaged.stages[1].train
    assert run.stages[2].train != averaged.stages[2].train
    for hop in (2, 3):
        for name, tensor in weights(averaged, hop).items():
            # The two round differently, and Adam amplifies the difference; a step is 3e-3.
            torch.testing.assert_close(weights(run, hop)[name], tensor, rtol=1e-3, atol=5e-4)


@pytest.mark.full
def test_changes_of_layers_are_undone_after_training_or_at_the_end_of_each_hop(finished: Make) -> None:
    """Post hoc: layer 1 as before any training, or half-way; in the stream: a hop starts with it undone."""
    given = ("strategy=merge", "strategy.method=revert", "strategy.share=1", "strategy.layers=[1]")
    naive = finished("strategy=naive")
    base = {name: p.detach() for name, p in untrained(naive).named_parameters()}
    inside = {name for name in base if ".layer.0." in name}
    assert 0 < len(inside) < len(base)
    trained = weights(naive, 2)
    for strength in (1.0, 0.5):
        found = served(finished(*given, "strategy.start=previous", f"strategy.strength={strength}"), 2)
        for name, tensor in some(found.items()):
            part = strength if name in inside else 0.0
            torch.testing.assert_close(tensor, part * base[name] + (1 - part) * trained[name], rtol=1e-4, atol=1e-6)
    run = finished(*given, "strategy.start=merged")
    for hop in (1, 2):
        unchanged = {name for name in base if torch.equal(weights(run, hop)[name], base[name])}
        # No task reads the encoder's pooler.
        assert {name for name in unchanged if ".pooler." not in name} == inside


def test_merges_of_other_weights_have_other_keys(make_run: Make, changed_corpus: Callable[..., Any]) -> None:
    """Hop 3 of independent models reads those of hops 1 and 2: their data are part of its identity."""

    def longer(rows: list[dict[str, Any]]) -> None:
        rows[0]["tokens"][0] = "zvqxjk"

    given = ("strategy=merge", "model.vocab_size=600")
    plain = make_run(*given)
    methods = [make_run(*given, f"strategy.method={method}") for method in ("mean", "ties", "dare", "slerp", "revert")]
    assert len({run.stages[3].evaluation for run in (plain, *methods)}) == 6
    same = make_run(*given, "strategy.method=mean", "strategy.density=0.3")
    assert same.stages[3].evaluation == methods[0].stages[3].evaluation
    ordered = make_run(*given, "order=[de,en,es]")
    assert ordered.stages[3].train == plain.stages[3].train
    assert ordered.stages[3].evaluation != plain.stages[3].evaluation


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("strategy.method=fisher strategy.start=merged", "strategy.method=fisher strategy.start=merged: "),
        ("strategy.layers=[2]", "strategy.layers: the encoder has no layer 2"),
        ("strategy.method=revert strategy.layers=[]", r"strategy.layers=\[\]: "),
        (
            "strategy.merged=lang_spec_task",
            "strategy=merge strategy.merged=lang_spec_task: languages do",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(overrides: str, message: str, make_run: Make) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        make_run("strategy=merge", *overrides.split())


def test_models_with_added_parameters_are_not_merged(make_run: Make) -> None:
    """All languages share the low-rank update, so the reason is not that they have parameters of their own."""
    pytest.importorskip("adapters", reason="needs xclrun[adapters]")
    with pytest.raises(UsageError, match="adds parameters"):
        make_run("strategy=merge", "strategy.merged=seq_lora")


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("task_arithmetic", "scale=0.7"),
        ("ties", "scale=0.7"),
        ("ties", "density=0.3"),
        ("dare", "drop=0.5"),
        ("exponential_mean", "decay=0.3"),
        ("fisher", "fisher_examples=3"),
        ("revert", "share=0.3"),
        ("revert", "strength=0.5"),
        ("revert", "reverted=largest"),
        ("revert", "layers=[1]"),
    ],
)
def test_each_setting_of_a_method_changes_evaluations_alone(method: str, setting: str, make_run: Make) -> None:
    plain, other = (
        make_run("strategy=merge", f"strategy.method={method}", *more) for more in ((), (f"strategy.{setting}",))
    )
    assert plain.id != other.id
    for before, after in zip(plain.stages, other.stages, strict=True):
        assert before.train == after.train
        assert (before.evaluation != after.evaluation) == (before.hop.index > 0)


def test_a_sum_of_shared_changes_is_noted(make_run: Make) -> None:
    def notes(*overrides: str) -> list[str]:
        return [
            note
            for note in make_run("strategy=merge", *overrides).strategy().notes([])
            if "the sum is too large" in note
        ]

    assert len(notes("strategy.start=previous")) == 1
    assert not notes("strategy.start=previous", "strategy.scale=0.2")
    assert not notes("strategy.start=previous", "strategy.method=mean")
    assert not notes()
