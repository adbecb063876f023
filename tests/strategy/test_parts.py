"""Language-specific parts: what a hop starts from, what serves a language, and that earlier languages' parts stay."""

from __future__ import annotations

import re
import shutil
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.conftest import done, small_run, some
from tests.train.conftest import stopped as stop_after
from xclrun.config.schema import StrategyConfig
from xclrun.plan import Run
from xclrun.store import predictions
from xclrun.store.prune import removable
from xclrun.strategy.lang_spec_task import Start
from xclrun.strategy.naive import Naive
from xclrun.testing.strategies import one_thread
from xclrun.train.encodings import encodings
from xclrun.train.evaluate import Evaluator
from xclrun.train.workbench import Stored, Workbench

from .real import SPECIFIC, context_of, files, graph, train_hop
from .real import weights as after

Make = Callable[..., Run]
Do = Callable[..., Run]
Weights = dict[str, Tensor]
Specific = Callable[[str], bool]

ALONE = [
    ("strategy=lang_spec_trans",),
    ("strategy=lang_spec_enc",),
    ("strategy=lang_spec_enc", "strategy.layers=[2]"),
    ("strategy=lang_spec_embed",),
    ("strategy=lang_spec_task",),
    ("strategy=lang_spec_task", "strategy.start=own"),
]
ADAPTERS = [("strategy=lang_spec_ada_t",), ("strategy=lang_spec_ada_f",)]
# The same beneath other strategies: those that replay, compare with a memory or a teacher, and penalise.
COMPOSED = [
    ("strategy=er", "strategy.expansion=lang_spec_trans"),
    ("strategy=kd_logit", "strategy.expansion=lang_spec_enc"),
    ("strategy=agem", "strategy.expansion=lang_spec_ada_t"),
    ("strategy=ewc_online", "strategy.expansion=lang_spec_ada_f"),
]
ORDER = ("en", "de", "es")


def name_of(overrides: tuple[str, ...]) -> str:
    return "+".join(text.rpartition(".")[2].partition("=")[2] for text in overrides)


def specific_of(overrides: tuple[str, ...]) -> Specific:
    """Return which parameters of an encoder of two layers are a language's own."""
    if "strategy.layers=[2]" in overrides:
        return lambda name: ".layer.1." in name
    return SPECIFIC[re.findall(r"lang_spec_\w+", " ".join(overrides))[-1]]


class Made(NamedTuple):
    """A finished run."""

    run: Run
    specific: Specific
    # Language → the weights that served its test split, one entry for each hop.
    served: dict[str, list[Weights]]


@pytest.fixture(scope="module")
def made(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Made]:
    """Do a run in outputs of its own, once."""

    @cache
    def make(overrides: tuple[str, ...]) -> Made:
        served: dict[str, list[Weights]] = {}
        predict = Evaluator.predict

        def noting(self: Evaluator, model: Any, encoded: Any, language: str, split: str, *answer: Any) -> Any:
            if split == "test":
                weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                served.setdefault(language, []).append(weights)
            return predict(self, model, encoded, language, split, *answer)

        given = (*overrides, "model.hidden_layers=2", "trainer.epochs=1")
        with pytest.MonkeyPatch.context() as patch, one_thread():
            patch.setattr(Evaluator, "predict", noting)
            run = done(small_run(given, tmp_path_factory.mktemp("made"), corpus))
        return Made(run, specific_of(overrides), served)

    return make


def untrained(run: Run) -> Weights:
    return {name: tensor.clone() for name, tensor in graph(run).bench.model.state_dict().items()}


def fresh(run: Run, language: str) -> Weights:
    """Return the untrained model with the parts of a language that was not seen."""
    bench = graph(run).bench
    return {
        **{name: tensor.clone() for name, tensor in bench.model.state_dict().items()},
        **unseen_parameters(bench, language),
    }


def unseen_parameters(bench: Any, language: str) -> Weights:
    strategy = getattr(bench.strategy, "expansion", bench.strategy)
    return {name: tensor.clone() for name, tensor in strategy.unseen_parameters(language).items()}


def started(run: Run, language: str) -> Weights:
    """Return the parts with which a language's hop begins: hop 0's, but for heads that begin as each language's own."""
    return fresh(run, language) if getattr(run.config.strategy, "start", None) is Start.own else untrained(run)


def assembled(shared: Weights, parts: Weights, specific: Specific) -> Weights:
    return {name: parts[name] if specific(name) else tensor for name, tensor in shared.items()}


def same(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.some_cases
@pytest.mark.in_turn
@pytest.mark.parametrize("overrides", [*ALONE, *ADAPTERS, *COMPOSED], ids=name_of)
def test_what_serves_a_language_after_each_hop(overrides: tuple[str, ...], made: Callable[..., Made]) -> None:
    """Its own parts from its hop on, bit for bit; fresh ones before, hop 0's at hop 0; with the hop's shared ones."""
    run, specific, served = made(overrides)
    start = untrained(run)
    trained = [start, *(after(run, hop) for hop in (1, 2, 3))]
    assert {language: len(them) for language, them in served.items()} == dict.fromkeys(ORDER, 4)
    for language, them in served.items():
        own = ORDER.index(language) + 1
        for hop, weights in enumerate(them):
            parts = start if hop == 0 else trained[own] if hop >= own else fresh(run, language)
            assert same(weights, assembled(trained[hop], parts, specific)), (language, hop)
    # The parts and the shared parameters did change in training, or all of this says nothing.
    for hop in (1, 2, 3):
        changed = {name for name in start if not torch.equal(trained[hop][name], trained[hop - 1][name])}
        assert any(specific(name) for name in changed)
        assert any(not specific(name) for name in changed)


@pytest.mark.some_cases
@pytest.mark.in_turn
@pytest.mark.parametrize("overrides", [*ALONE, *ADAPTERS], ids=name_of)
def test_a_hop_is_naive_s_from_the_assembled_model(
    overrides: tuple[str, ...], made: Callable[..., Made], threads: None, tmp_path: Path
) -> None:
    """Train hops 2 and 3 by hand from the shared parameters of the hop before and fresh parts."""
    run, specific, _ = made(overrides)
    for hop in some(run.stream.hops[2:]):
        model, [language] = graph(run).bench.model, hop.train
        model.load_state_dict(assembled(after(run, hop.index - 1), started(run, language), specific))
        train_hop(context_of(run, hop.index, model), Naive(StrategyConfig("naive")), run, tmp_path)
        assert same(dict(model.state_dict()), after(run, hop.index))


def test_each_language_has_heads_drawn_independently(make_run: Make) -> None:
    """CCL: an unseen language has freshly initialised heads. Were they the start of those that the encoder was tuned
    under, it would transfer to them: a study found 64 points of T0, where the paper has 0."""
    bench = graph(make_run("strategy=lang_spec_task", "model.vocab_size=600", "dataset=mini", "order=[en,de,fr]")).bench
    start = {name: tensor.clone() for name, tensor in bench.model.state_dict().items()}
    heads = {language: unseen_parameters(bench, language) for language in ("en", "de", "fr", "es")}
    assert same(heads["en"], {name: start[name] for name in heads["en"]})  # the first language's are hop 0's
    assert same(heads["de"], unseen_parameters(bench, "de"))
    names = [name for name, tensor in heads["en"].items() if tensor.numel() > 100]
    assert len(names) == 3  # of intents, of tags, between tags
    for name in names:
        drawn = torch.stack([heads[language][name].flatten() for language in heads])
        correlation = torch.corrcoef(drawn) - torch.eye(4)
        assert correlation.abs().max() < 0.25, name
        spread = drawn.std(dim=1)
        assert spread.max() / spread.min() < 1.25, name


def test_predictions_are_those_of_models_assembled_by_hand(made: Callable[..., Made]) -> None:
    run, specific, _ = made(("strategy=lang_spec_trans",))
    model, config, splits = graph(run).bench.model, run.config, encodings(run).splits
    start = untrained(run)
    evaluator = Evaluator(run.dataset, torch.device("cpu"), config.evaluate.batch_size, "fp32", config.evaluate.slot_f1)
    rows = predictions.read(run.directory.predictions(2)).to_pandas()
    for language, parts in {"en": after(run, 1), "de": after(run, 2), "es": start}.items():
        model.load_state_dict(assembled(after(run, 2), parts, specific))
        expected = evaluator.predict(model, splits[language, "test"], language, "test")
        found = rows[rows["language"] == language]
        for column in ("predicted", "log2_gold"):
            assert found[column].tolist() == pytest.approx([*expected[column]], rel=1e-6)


def size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.full
def test_six_bodies_need_the_memory_of_two(make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device, the model: one body. Beside it on the CPU the first one, and the one being chosen for a while."""
    given: list[tuple[weakref.ref[Tensor], int]] = []
    peaks, models = [], []
    tensors, predict = Stored.tensors, Evaluator.predict

    def lending(self: Stored, hop: int, names: Any) -> Any:
        assert sum(n for ref, n in given if ref() is not None) == 0, "a body is lent while another still lives"
        found = tensors(self, hop, names)
        given.extend((weakref.ref(tensor), tensor.nbytes) for tensor in found.values())
        peaks.append(size(found.values()))
        return found

    def looking(self: Evaluator, model: Any, encoded: Any, language: str, split: str, *answer: Any) -> Any:
        assert sum(n for ref, n in given if ref() is not None) == 0, "a body outlives its choice"
        models.append(size(model.state_dict().values()))
        strategy = benches[0].strategy
        assert size(strategy.initial.values()) == body
        assert strategy.cache == {}
        return predict(self, model, encoded, language, split, *answer)

    benches: list[Any] = []
    build = Workbench.untrained
    monkeypatch.setattr(Workbench, "untrained", lambda self: (benches.append(self), build(self))[1])
    run = make_run(
        "strategy=lang_spec_trans",
        "dataset=mini",
        "dataset.max_train=8",
        "model.vocab_size=600",
        "dataset.max_eval=4",
        "order=[en,de,fr,es,hi,th]",
        "trainer.epochs=1",
    )
    start = untrained(run)
    body = size(tensor for name, tensor in start.items() if SPECIFIC["lang_spec_trans"](name))
    benches.clear()
    monkeypatch.setattr(Stored, "tensors", lending)
    monkeypatch.setattr(Evaluator, "predict", looking)
    do(run)
    # Six hops; after hop i the i languages seen are served by bodies of their own.
    assert len(peaks) == 1 + 2 + 3 + 4 + 5 + 6
    assert set(peaks) == {body}
    assert set(models) == {size(start.values())}


ENCODERS = ("strategy=lang_spec_enc", "trainer.epochs=1")


@pytest.fixture
def stopped(make_run: Make, do: Do) -> Run:
    """A run of lang_spec_enc that was stopped in its last hop, after 6 and 5 steps of those before."""
    return stop_after(make_run(*ENCODERS), do, 6 + 5 + 1)


@pytest.mark.parametrize("lost", [(1,), (2,)])
def test_weights_that_are_gone_are_made_again(lost: tuple[int, ...], stopped: Run, finished: Make, do: Do) -> None:
    for hop in lost:
        shutil.rmtree(stopped.store.path(stopped.stages[hop].train))
    assert files(do(stopped)) == files(finished(*ENCODERS))


def test_damaged_weights_are_made_again(stopped: Run, finished: Make, do: Do) -> None:
    path = stopped.store.path(stopped.stages[1].train) / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert files(do(stopped)) == files(finished(*ENCODERS))


def test_collecting_garbage_keeps_the_weights_that_an_unfinished_run_recalls(stopped: Run, do: Do) -> None:
    run = stopped
    wanted = {run.stages[hop].train for hop in (1, 2)}
    assert not wanted & {entry.path.name for entry in removable(run.store, run.outputs, weights=True)}
    do(run)
    assert wanted <= {entry.path.name for entry in removable(run.store, run.outputs, weights=True)}
