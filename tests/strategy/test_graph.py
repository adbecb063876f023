"""The graph of a run's results: what is evaluated does not depend on what a process did before, and what is planned
is what is done.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import done, small_run, some
from xclrun.core import plugins
from xclrun.core.graph import Kind, Result, missing, to_train
from xclrun.core.stream import Hop
from xclrun.plan import Run
from xclrun.store import predictions
from xclrun.store.files import read_json
from xclrun.testing.strategies import one_thread
from xclrun.train.progress import Listener
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag

from .real import graph
from .test_contract import given

Make = Callable[..., Run]

MERGES = [
    f"merge strategy.method={method} strategy.start={start}"
    for method in ("mean", "exponential_mean", "task_arithmetic", "ties", "dare", "slerp", "fisher", "revert")
    for start in ("pretrained", "previous")
]

# What reads the weights of earlier hops in training or evaluation; the contract has each strategy alone.
COMBINED = [
    f"{name}+{added}" for name in ("er", "lwf", "kd_logit", "der") for added in ("lang_spec_task", "lang_spec_ada_t")
]


class Trained(Listener):
    """Notes the hops that are trained."""

    def __init__(self) -> None:
        self.hops: list[int] = []

    def hop_started(self, run: Run, hop: Hop) -> None:
        self.hops.append(hop.index)


def overrides(strategy: str) -> tuple[str, ...]:
    name, *settings = strategy.split()
    return (*given(name), *settings)


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return a finished run of a strategy; each is done once."""

    @cache
    def get(strategy: str) -> Run:
        with one_thread():
            return done(small_run(overrides(strategy), tmp_path_factory.mktemp("whole"), corpus))

    return get


@pytest.mark.some_cases("merge strategy.method=mean strategy.start=previous")
@pytest.mark.parametrize("strategy", [*MERGES, *COMBINED])
def test_a_fresh_graph_for_each_hop_gives_the_run_s_predictions(strategy: str, whole: Make, threads: None) -> None:
    """What a strategy remembers from hop to hop, such as the last merge, must not reach another hop's evaluation."""
    run = whole(strategy)
    for stage in reversed(some(run.stages)):
        folder = run.store.path(stage.evaluation)
        before = predictions.read(folder / "predictions.parquet")
        shutil.rmtree(folder)
        again = graph(run).get(Result(Kind.evaluation, stage.hop.index))
        assert predictions.read(again / "predictions.parquet").equals(before), stage.hop.name


@pytest.mark.some_cases("er+lang_spec_trans-0")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "strategy", ["er", "er+lang_spec_trans", "fc", "merge strategy.method=fisher strategy.start=previous", "mbpa"]
)
def test_the_hops_that_a_plan_counts_are_those_that_are_trained(
    strategy: str, seed: int, whole: Make, tmp_path: Path, corpus: Path, threads: None
) -> None:
    run = small_run(overrides(strategy), tmp_path, corpus)
    shutil.copytree(whole(strategy).outputs, run.outputs, dirs_exist_ok=True)
    keys, generator = [key for stage in run.stages for key in stage.keys], random.Random(seed)
    for key in generator.sample(keys, len(keys) * 2 // 3):
        shutil.rmtree(run.store.path(key), ignore_errors=True)
    planned, trained = to_train(run.stages, set(run.store.all_keys())), Trained()
    stages = StageGraph(run, trained, StopFlag())
    for stage in run.stages:
        stages.evaluation(stage)
    assert sorted(trained.hops) == planned


def test_what_an_evaluation_reads_is_planned_too(make_run: Make) -> None:
    """The merge after hop 3 reads the weights of all hops, also where their own evaluations are stored."""
    run = make_run("strategy=merge", "strategy.start=previous", "order=[en,de,es]")
    stored = {stage.evaluation for stage in run.stages[:3]}
    assert to_train(run.stages, stored) == [1, 2, 3]
    assert to_train(run.stages, stored | {run.stages[2].train}) == [1, 3]
    assert to_train(run.stages, {stage.evaluation for stage in run.stages}) == []


def test_each_result_follows_what_it_needs(make_run: Make) -> None:
    run = make_run("strategy=er", "strategy.expansion=lang_spec_task", "order=[en,de,es]")
    trained = {stage.train for stage in run.stages}
    order = list(missing(run.stages, [Result(Kind.evaluation, 3)], stored=trained))
    assert order == [*(Result(Kind.state, hop) for hop in (1, 2, 3)), Result(Kind.evaluation, 3)]
    order = list(missing(run.stages, [Result(Kind.evaluation, 3)], stored=()))
    kinds = [Result(kind, hop) for hop in (1, 2, 3) for kind in (Kind.weights, Kind.state)]
    assert set(order) == {*kinds, Result(Kind.evaluation, 3)}
    for position, result in enumerate(order):
        assert {*run.stages[result.hop].needs[result.kind]} <= {*order[:position]}


def test_heads_on_a_frozen_encoder_need_the_hop_that_trained_the_encoder(make_run: Make) -> None:
    run = make_run("strategy=fc", "order=[en,de,es]")
    assert [stage.encoder for stage in run.stages] == [0, 1, 1, 1]
    assert run.stages[3].needs[Kind.evaluation] == tuple(Result(Kind.weights, hop) for hop in (1, 2, 3))


COUNTING = '''
from xclrun.config.schema import StrategyConfig
from xclrun.strategy import State, Step, Strategy, register


@register
class Counting(Strategy[StrategyConfig]):
    """Its steps change what `end_hop` reads; outside training, only `end_hop` may change the state."""

    name = "counting"
    count = 0

    def steps(self, number, main, context):
        self.count += 1
        yield Step(main)

    def end_hop(self, context):
        self.count += 100

    def state_dict(self):
        return State({"count": self.count})

    def load_state_dict(self, state):
        self.count = state.facts["count"]
'''


def test_the_state_after_a_hop_does_not_depend_on_whether_this_process_trained_it(
    make_run: Make, tmp_path: Path, forget_plugins: object, threads: None
) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    plugins.load_files(["--plugin", str(tmp_path / "counting.py")])
    run = done(make_run("strategy=counting", "order=[en,de]", "trainer.epochs=1"))
    counts = [read_json(run.store.path(str(stage.state)) / "facts.json")["count"] for stage in run.stages[1:]]
    assert counts == [100, 200]


@pytest.mark.parametrize(
    ("overrides", "trained"), [((), [1, 2]), (("trainer.optimizer_state=kept",), [1, 1, 2])], ids=("fresh", "kept")
)
def test_weights_that_are_in_memory_are_not_trained_again_after_pruning(
    overrides: tuple[str, ...], trained: list[int], make_run: Make, threads: None
) -> None:
    run, listener = make_run("order=[en,de]", "trainer.epochs=1", *overrides), Trained()
    stages = StageGraph(run, listener, StopFlag())
    stages.evaluation(run.stages[1])
    shutil.rmtree(run.store.path(run.stages[1].train))
    stages.evaluation(run.stages[2])
    assert listener.hops == trained
