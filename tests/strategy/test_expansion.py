"""Strategies over language-specific parts: what they compute against two-model oracles, what is shared and refused.

That earlier languages' parts stay bit-identical, and what serves a language: test_parts.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from tests.conftest import some
from tests.train.conftest import stopped
from xclrun.compose.jobs import Composed, compose_command
from xclrun.core.errors import UsageError
from xclrun.core.graph import Kind, Result
from xclrun.model.network import Model, skeleton
from xclrun.plan import Run, plan_run
from xclrun.strategy import Context, Step, make
from xclrun.strategy.er import ExperienceReplay
from xclrun.strategy.kd_logit import KDLogit
from xclrun.strategy.shared.fisher import diagonal_fisher
from xclrun.strategy.shared.parameters import count, sizes
from xclrun.train.encodings import encodings
from xclrun.train.evaluate import Evaluator
from xclrun.train.progress import Listener
from xclrun.train.workbench import Stored

from .real import SPECIFIC, context_of, edit, files, graph, perturbed, state, train_hop, weights
from .test_kd import distance

ONCE = "trainer.epochs=1"
Make = Callable[..., Run]
Do = Callable[..., Run]

pytestmark = pytest.mark.usefixtures("threads")


def with_parts(model: Model, parts: dict[str, Tensor], specific: Callable[[str], bool]) -> Model:
    """Return a copy of a model with another's language-specific parts, frozen."""
    found = copy.deepcopy(model)
    own = dict(found.named_parameters())
    with torch.no_grad():
        for name in filter(specific, own):
            own[name].copy_(parts[name])
            own[name].requires_grad_(False)
    return found


def in_third_hop(run: Run) -> tuple[Any, Context]:
    """Return a run's strategy at the beginning of hop 3, and the context, with changed weights and no dropout."""
    stages = graph(run)
    stages.prepare(Result(Kind.weights, 3))
    context = context_of(run, 3, stages.bench.model)
    stages.strategy.begin_hop(context)
    perturbed(context.model, 0.1, 3).eval()
    return stages.strategy, context


# --- What each computes.


class ReplayInPlace(ExperienceReplay):
    """The same by other means: a replayed language's parts are copied into the model, and the model's own back."""

    library_of: Callable[[str], dict[str, Tensor]]

    def steps(self, number: int, main: Any, context: Context) -> Iterable[Step]:
        specific = SPECIFIC[self.settings.expansion.name]  # type: ignore[union-attr]
        own = {name: p for name, p in context.model.named_parameters() if specific(name)}
        yield Step(main)
        for language in self.due(number):
            kept = {name: p.detach().clone() for name, p in own.items()}
            there = self.library_of(language)
            for name, p in own.items():
                p.requires_grad_(False).copy_(there[name])
            draw = self.memory.draw(language, context.batch_size, context.generator("replay", number, language))
            yield Step(context.batch(language, draw))
            for name, p in own.items():
                p.copy_(kept[name]).requires_grad_()


@pytest.mark.some_cases
@pytest.mark.parametrize("expansion", ["lang_spec_task", "lang_spec_trans", "lang_spec_enc", "lang_spec_ada_t"])
def test_replay_is_that_of_parts_copied_in_and_out(expansion: str, finished: Make, tmp_path: Path) -> None:
    run = finished("strategy=er", f"strategy.expansion={expansion}", "trainer.gradient_accumulation=2")
    for hop in some(run.stream.hops[2:]):
        stages = graph(run)
        stages.prepare(Result(Kind.weights, hop.index))
        context = context_of(run, hop.index, stages.bench.model)
        strategy = ReplayInPlace(run.config.strategy)  # type: ignore[arg-type]
        strategy.load_state_dict(stages.strategy.state_dict())
        strategy.library_of = lambda language: weights(run, 1 + ("en", "de", "es").index(language))
        stages.strategy.begin_hop(context)
        train_hop(context, strategy, run, tmp_path)
        expected, stored = context.model.state_dict(), weights(run, hop.index)
        assert expected.keys() == stored.keys()
        assert [name for name in stored if not torch.equal(stored[name], expected[name])] == []


@pytest.mark.some_cases
@pytest.mark.parametrize("expansion", ["lang_spec_task", "lang_spec_embed", "lang_spec_ada_t"])
def test_a_gem_s_reference_is_the_gradient_of_shared_parameters(expansion: str, finished: Make) -> None:
    run, specific = finished("strategy=agem", f"strategy.expansion={expansion}", ONCE), SPECIFIC[expansion]
    strategy, context = in_third_hop(run)
    main = context.batch("es", np.arange(4))
    context.model.zero_grad()
    context.model.loss(main).backward()
    before = {name: p.grad for name, p in context.model.named_parameters() if p.grad is not None}
    drawn = strategy.memory.draw_from_all(context.batch_size, context.generator("reference", 1))
    assert len(drawn) == 2
    r: dict[str, Tensor] = {}
    for language, indices in drawn.items():
        model = with_parts(context.model, weights(run, 1 + ("en", "de").index(language)), specific)
        model.zero_grad()
        model.loss(context.train[language].batch(indices)).backward()
        for name, p in model.named_parameters():
            if p.grad is not None:
                r[name] = r.get(name, torch.zeros_like(p)) + p.grad * (len(indices) / context.batch_size)
    along = sum(float((before[name] * r[name]).sum()) for name in r)
    # Turned where they agree, so that there is something to project.
    turned = -1.0 if along > 0 else 1.0
    for gradient in before.values():
        gradient *= turned
    along, before = turned * along, {name: gradient.clone() for name, gradient in before.items()}
    edit(strategy, 1, main, context)
    squared = sum(float(x.square().sum()) for x in r.values())
    for name, p in context.model.named_parameters():
        if name in before:
            assert specific(name) == (name not in r)
            wanted = before[name] if specific(name) else before[name] - along / squared * r[name]
            torch.testing.assert_close(p.grad, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("name", "expansion"),
    [("kd_logit", "lang_spec_task"), ("kd_logit", "lang_spec_trans"), ("kd_rep", "lang_spec_embed")],
)
def test_distillation_is_between_the_language_s_models(name: str, expansion: str, finished: Make) -> None:
    """The student is the model of now with the language's parts, the teacher the one after its hop."""
    run, specific = finished(f"strategy={name}", f"strategy.expansion={expansion}", ONCE), SPECIFIC[expansion]
    strategy, context = in_third_hop(run)
    assert isinstance(strategy, KDLogit)
    for hop, language in enumerate(("en", "de"), start=1):
        teacher = copy.deepcopy(context.model)
        teacher.load_state_dict(weights(run, hop))
        student = with_parts(context.model, weights(run, hop), specific)
        batch = context.batch(language, strategy.memory.indices[language])
        with torch.no_grad():
            wanted = strategy.distilled(teacher.eval()(batch), batch)
        given = strategy.distilled(student.eval()(batch), batch)
        expected = torch.stack([mse_loss(given[key], wanted[key]) for key in wanted]).sum()
        found = distance(strategy, language, len(strategy.memory.indices[language]), context)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
        context.model.zero_grad()
        found.backward()
        expected.backward()
        of_student = dict(student.named_parameters())
        for key, p in context.model.named_parameters():
            if specific(key) or of_student[key].grad is None:
                assert p.grad is None or not p.grad.any()
            else:
                torch.testing.assert_close(p.grad, of_student[key].grad, rtol=1e-3, atol=1e-6)


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("name", "expansion"),
    [("ewc", "lang_spec_task"), ("ewc", "lang_spec_ada_t"), ("ewc_online", "lang_spec_trans")],
)
def test_the_penalty_holds_shared_parameters(name: str, expansion: str, finished: Make) -> None:
    run, specific = finished(f"strategy={name}", f"strategy.expansion={expansion}", ONCE), SPECIFIC[expansion]
    stages = graph(run)
    stages.weights(1)
    whole = diagonal_fisher(stages.bench.model, encodings(run).splits["en", "train"], torch.device("cpu"))
    kept = {k.removeprefix("precision/"): t for k, t in state(run, 1).tensors.items() if k.startswith("precision/")}
    assert kept.keys() == {key for key in whole if not specific(key)}
    for key, tensor in kept.items():
        torch.testing.assert_close(tensor, whole[key], rtol=1e-4, atol=1e-8)
    assert all(p.requires_grad for p in stages.bench.model.parameters())
    # In hop 3 the gradient that is added is λ Σ (θ − θ*) over these alone.
    strategy, context = in_third_hop(run)
    # The batch's own gradient: what it has none of, a head of another task say, is left as it is.
    for parameter in context.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    edit(strategy, 1, context.batch("es", np.arange(4)), context)
    given = {key for key, p in context.model.named_parameters() if p.grad is not None and p.grad.any()}
    assert given
    assert given <= kept.keys()


# --- Keys, sharing, resumption.


def test_what_a_strategy_does_over_parts_begins_with_the_second_hop(make_run: Make) -> None:
    own = make_run("strategy=lang_spec_task").stages
    over = make_run("strategy=er", "strategy.expansion=lang_spec_task").stages
    for kind in ("train", "evaluation"):
        shared = [getattr(a, kind) == getattr(b, kind) for a, b in zip(over, own, strict=True)]
        assert shared == [True, True, False, False]


def test_no_two_compositions_share_what_differs(make_run: Make) -> None:
    runs = [make_run(f"strategy={name}") for name in ("er", "agem", "ewc", "ewc_online", "kd_logit")]
    over = [make_run("strategy=er", f"strategy.expansion={name}").config.strategy for name in SPECIFIC]
    runs += [
        plan_run(replace(run.config, strategy=replace(run.config.strategy, expansion=strategy.expansion)))  # type: ignore[call-arg, attr-defined]
        for run in runs
        for strategy in over
    ]
    layers = make_run("strategy=er", "strategy.expansion=lang_spec_enc", "strategy.expansion.layers=[1]")
    runs += [layers, *(make_run(f"strategy={name}") for name in SPECIFIC)]
    for hop in (2, 3):
        assert len({run.stages[hop].train for run in runs}) == len(runs)
        assert len({run.stages[hop].evaluation for run in runs}) == len(runs)
    assert len({run.id for run in runs}) == len(runs)


def test_the_expansion_s_version_is_part_of_the_identity(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from xclrun.strategy.lang_spec_task import LangSpecTask

    given = ("strategy=er", "strategy.expansion=lang_spec_task")
    before = make_run(*given)
    monkeypatch.setattr(LangSpecTask, "version", LangSpecTask.version + 1)
    after = make_run(*given)
    assert before.id != after.id
    assert [a.train == b.train for a, b in zip(before.stages, after.stages, strict=True)] == [True, True, False, False]
    assert before.id.startswith("jsonl-er+lang_spec_task-en-de-es-s1-")


@pytest.mark.full
def test_parts_that_a_training_relies_on_are_made_again(make_run: Make, do: Do, finished: Make) -> None:
    """Hop 1's weights go while hop 3 is trained: they are trained again, and nothing else changes."""
    given = ("strategy=er", "strategy.expansion=lang_spec_task")
    run, calm = stopped(make_run(*given), do, 12 + 10 + 3), finished(*given)
    shutil.rmtree(run.store.path(run.stages[1].train))
    do(run)
    assert files(run) == files(calm)


def test_parts_are_read_once_per_hop(make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []
    tensors, serve = Stored.tensors, Evaluator.predict
    phase = ["train"]

    def reading(self: Stored, hop: int, names: Any) -> Any:
        asked.append((hop, phase[0]))
        return tensors(self, hop, names)

    def predicting(self: Evaluator, model: Any, encoded: Any, language: str, split: str, *answer: Any) -> Any:
        phase[0] = "test" if split == "test" else "train"
        return serve(self, model, encoded, language, split)

    class Starts(Listener):
        def hop_started(self, run: Run, hop: Any) -> None:
            phase[0] = f"hop {hop.index}"

    monkeypatch.setattr(Stored, "tensors", reading)
    monkeypatch.setattr(Evaluator, "predict", predicting)
    do(make_run("strategy=er", "strategy.expansion=lang_spec_task", "trainer.epochs=1"), Starts())
    assert [entry for entry in asked if entry[1].startswith("hop")] == [(1, "hop 2"), (1, "hop 3"), (2, "hop 3")]


# --- What is counted, composed, refused.


def test_counts_are_the_expansion_s(compose: Callable[..., Composed]) -> None:
    config = compose("strategy=ewc_online", "strategy.expansion=lang_spec_task", "model=mbert").config
    strategy, nowhere = make(config.strategy), None
    stream, model = strategy.stream(tuple("abcdef")), skeleton(config.model, 114, 152)
    strategy.prepare(model, stream, nowhere)  # type: ignore[arg-type]
    assert count(sizes(model), strategy, stream).total == 179_221_212


def test_a_sweep_over_strategies_and_expansions() -> None:
    jobs = compose_command(["strategy=er,ewc_online", "strategy.expansion=null,lang_spec_task,lang_spec_enc", "-m"])
    found = [(job.resolved["strategy"]["name"], job.resolved["strategy"]["expansion"]) for job in jobs]
    wanted = [None, {"name": "lang_spec_task", "start": "same"}, {"name": "lang_spec_enc", "layers": None}]
    assert found == [(name, expansion) for name in ("er", "ewc_online") for expansion in wanted]


def test_one_expansion_for_several_strategies() -> None:
    """Of which the default strategy, which has none, is not one."""
    jobs = compose_command(["strategy=er,agem", "strategy.expansion=lang_spec_task", "-m"])
    assert [job.resolved["strategy"]["expansion"]["name"] for job in jobs] == ["lang_spec_task"] * 2


def test_settings_of_an_expansion(compose: Callable[..., Composed]) -> None:
    given = compose("strategy=er", "strategy.expansion=lang_spec_enc", "strategy.expansion.layers=[2]")
    assert given.resolved["strategy"]["expansion"] == {"name": "lang_spec_enc", "layers": [2]}
    assert compose("strategy=er", "strategy/expansion=null").resolved["strategy"]["expansion"] is None


def test_a_strategy_that_is_no_expansion_is_refused() -> None:
    from xclrun.config.schema import StrategyConfig
    from xclrun.strategy.er import ReplaySettings

    with pytest.raises(UsageError, match="expansion=naive: cannot be an expansion; choose "):
        make(ReplaySettings("er", 10, 2, expansion=StrategyConfig("naive")))
