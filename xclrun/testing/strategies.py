"""The contract of strategies: results depend on nothing but the run ID, and are shared only where they are equal.

Each check trains small runs on the embedded dataset `mini`: three hops of a few steps, a model of a few thousand
weights, one thread.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import random
import shutil
import tempfile
import typing
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xclrun.compose.jobs import compose_command
from xclrun.core import plugins
from xclrun.core.errors import UsageError
from xclrun.core.graph import Stage
from xclrun.core.identity import NESTED
from xclrun.core.stream import Hop
from xclrun.plan import Run, plan_run
from xclrun.store import predictions
from xclrun.store.files import read_json
from xclrun.store.tensors import load_tensors
from xclrun.strategy import STRATEGIES, State
from xclrun.testing.suite import Check, bound, expect, expect_equal, run_all
from xclrun.train.execute import execute
from xclrun.train.progress import Listener, Progress
from xclrun.train.stop import StopFlag, Stopped

# A model of a few thousand weights; two epochs of two steps in each hop; a memory that is used in every second step.
SMALL = (
    "dataset=mini",
    "dataset.languages=[en,de,fr]",
    "dataset.max_train=7",
    "dataset.max_eval=4",
    "dataset.replay.memory=10",
    "dataset.replay.every_k=2",
    "order=[en,de,fr]",
    "model.hidden_size=16",
    "model.hidden_layers=1",
    "model.attention_heads=2",
    "model.intermediate_size=32",
    "model.vocab_size=300",
    "model.lr=3e-3",
    "trainer.epochs=2",
    "trainer.batch_size=4",
    "tracking=none",
    "runtime.device=cpu",
    "runtime.threads=1",
)
# More attempts than a run of `SMALL` has steps.
ATTEMPTS = 200

# Checksum of each file, by key of the store or by name.
Files = dict[str, Any]


class StopAfterStep(Listener):
    """Asks for a stop after the first step."""

    def __init__(self) -> None:
        self.stop = StopFlag()

    def stepped(self, progress: Progress) -> None:
        self.stop.number = 15


class HopsTrained(Listener):
    """Lists the hops that are trained rather than loaded."""

    def __init__(self) -> None:
        self.hops: list[int] = []

    def hop_started(self, run: Run, hop: Hop) -> None:
        self.hops.append(hop.index)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, which is fastest for small models, and restore the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(run: Run, listener: Listener | None = None, stop: StopFlag | None = None) -> Run:
    """Train and evaluate a run, in this process, and return it."""
    with one_thread():
        execute(run, listener or Listener(), stop or StopFlag())
    return run


def stored(run: Run) -> Files:
    """Return key → checksums of the files of each stored result: weights, states, predictions."""
    return {key: run.store.facts(key)["files"] for key in run.store.all_keys()}


def predicted(run: Run) -> Files:
    """Return file → checksum of a run's predictions."""
    files = sorted((run.directory.path / "predictions").iterdir())
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def state_of(run: Run, stage: Stage) -> State:
    """Return the stored state of a strategy after a hop."""
    folder = run.store.path(str(stage.state))
    path = folder / "state.safetensors"
    return State(read_json(folder / "facts.json"), load_tensors(path) if path.is_file() else {})


def keys_of(stages: Iterable[Stage]) -> set[str]:
    return {key for stage in stages for key in (stage.train, stage.state, stage.evaluation) if key}


class StrategyCase:
    """A strategy under test. Runs that nothing disturbs are trained once for all checks.

    Attributes:
        name: ``strategy=NAME``.
        overrides: further overrides of each run, for example those that make the strategy act on so little data.
        plugin: file with the strategy; None: xclrun or an installed package has it.
        values: setting → another value, as in an override, for settings that are neither numbers nor enums; None: the
            setting is not tried.
    """

    def __init__(
        self, name: str, overrides: tuple[str, ...], plugin: Path | None, values: Mapping[str, str | None]
    ) -> None:
        self.name, self.overrides, self.plugin, self.values = name, overrides, plugin, values
        self.folder: Path | None = None
        self.numbers = itertools.count()
        # Equal overrides give the same run.
        self.planned = cache(self._planned)
        self.alone = cache(self._alone)

    def new_folder(self) -> Path:
        """Return an outputs folder that nothing has used; it is deleted with the case."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="xclrun-contract-"))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        return self.folder / str(next(self.numbers))

    def _planned(self, *overrides: str) -> Run:
        return self.plan(self.new_folder(), *overrides)

    def _alone(self, *overrides: str) -> Run:
        return train(self.planned(*overrides))

    def load(self) -> None:
        """Load the plug-in, unless it is loaded."""
        if self.plugin is not None:
            plugins.load_file(self.plugin, str(self.plugin))
        elif self.name not in STRATEGIES:
            plugins.load_installed()

    def plan(self, outputs: Path, *overrides: str, strategy: str = "") -> Run:
        """Plan a run whose outputs are in a folder.

        Raises:
            UsageError: the settings are invalid.
        """
        self.load()
        own = self.overrides if not strategy else [text for text in self.overrides if not text.startswith("strategy.")]
        config = compose_config(merged(SMALL, (f"strategy={strategy or self.name}", *own), overrides))
        return plan_run(dataclasses.replace(config, paths=dataclasses.replace(config.paths, outputs=str(outputs))))

    def again(self, *gone: str, beside: Run | None = None) -> Run:
        """Plan the run in a copy of the store without some keys, of the same run or of another one."""
        source, outputs = beside or self.alone(), self.new_folder()
        shutil.copytree(source.store.root, outputs / source.store.root.name)
        run = self.plan(outputs)
        for key in gone:
            shutil.rmtree(run.store.path(key))
        return run

    def expect_same(self, run: Run) -> None:
        """Compare the results of a run with those of the undisturbed run, bit for bit."""
        alone = self.alone()
        expect_equal(run.id, alone.id, "run ID")
        ours, theirs = stored(alone), stored(run)
        different = [_name(alone, key) for key in ours if theirs.get(key) != ours[key]]
        expect(not different, f"different {', '.join(different)}")
        expect(predicted(run) == predicted(alone), "different predictions")

    # Settings.

    def settings(self) -> Iterator[tuple[str, Any]]:
        """Yield the strategy's own settings and their types."""
        self.load()
        kind = STRATEGIES[self.name].settings_type
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            if field.name not in ("name", "version", *NESTED) and self.values.get(field.name, "") is not None:
                yield field.name, hints[field.name]

    def choices(self) -> list[tuple[str, ...]]:
        """Return the overrides of every combination of the values of the strategy's enums."""
        enums = [(name, kind) for name, kind in self.settings() if isinstance(kind, type) and issubclass(kind, Enum)]
        values = [[f"strategy.{name}={value.name}" for value in kind] for name, kind in enums]
        return list(itertools.product(*values))

    def other(self, name: str, kind: Any, value: Any) -> str:
        """Return another value of a setting."""
        kinds = typing.get_args(kind) or (kind,)
        if name in self.values:
            return str(self.values[name])
        if bool in kinds:
            return str(not value).lower()
        if int in kinds:
            return "2" if value is None else str(value + 1)
        if float in kinds:
            return "0.6" if value is None else str(value / 2 if value else 0.25)
        raise ValueError(
            f"no second value of strategy.{name}; pass values={{'{name}': VALUE}}, or None to leave it out"
        )


def merged(*groups: Iterable[str]) -> tuple[str, ...]:
    """Join overrides; a later one replaces an earlier one of the same key. Another dataset has other languages."""
    values: dict[str, str] = {}
    for text in itertools.chain.from_iterable(groups):
        key = text.partition("=")[0]
        if key == "dataset":
            values.pop("dataset.languages", None)
        values[key] = text
    return tuple(values.values())


@cache
def compose_config(overrides: tuple[str, ...]) -> Any:
    [job] = compose_command(overrides)
    return job.config


def _name(run: Run, key: str) -> str:
    """Return what a key stands for."""
    for stage in run.stages:
        kinds = {stage.train: "weights", stage.state: "state", stage.evaluation: "predictions"}
        if key in kinds:
            return f"{kinds[key]} of hop {stage.hop.index}"
    return f"stage {key[:8]}"


def is_registered(case: StrategyCase) -> None:
    """The strategy is found under its name, and its settings are accepted."""
    case.load()
    expect(case.name in STRATEGIES, f"no strategy {case.name!r}")
    case.planned()


def finishes_a_run(case: StrategyCase) -> None:
    """A run finishes: its losses are finite, and every hop is evaluated on every language."""
    run = case.alone()
    expect(run.directory.finished, "the run did not finish")
    for stage in run.directory.read_manifest()["stages"]:
        losses = [epoch["loss"] for epoch in stage["training"].get("epochs", ())]
        expect(np.isfinite(losses).all(), f"losses {losses} in hop {stage['hop']}")
        table = predictions.read(run.directory.predictions(stage["hop"]))
        expect_equal({*table["language"].to_pylist()}, {*run.stream.languages}, f"languages after hop {stage['hop']}:")


def repeats_its_results(case: StrategyCase) -> None:
    """A second run is bit-identical, whatever the state of the global random generators before it."""
    run = case.plan(case.new_folder())
    case.alone()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(12345)
        case.expect_same(train(run))
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


def leaves_global_generators(case: StrategyCase) -> None:
    """Random numbers come from ``context.generator``; the generators of ``random`` and NumPy are unchanged."""

    def states() -> str:
        return repr((random.getstate(), [np.asarray(part).tolist() for part in np.random.get_state()]))  # noqa: NPY002

    before = states()
    train(case.plan(case.new_folder()))
    expect(states() == before, "a global generator was used")


def resumes_after_every_step(case: StrategyCase) -> None:
    """A run that is stopped after each of its steps, and resumed each time, is bit-identical."""
    run, attempts = case.plan(case.new_folder()), 0
    while not run.directory.finished:
        listener = StopAfterStep()
        try:
            train(run, listener, listener.stop)
        except Stopped:
            attempts += 1
        expect(attempts < ATTEMPTS, f"not finished after {attempts} attempts")
    expect(attempts > 0, "no step was taken")
    expect(not list(run.store.root.glob("*/*.checkpoints")), "a checkpoint is left")
    case.expect_same(run)


def restores_its_state(case: StrategyCase) -> None:
    """``load_state_dict`` restores all that ``state_dict`` returned."""
    run = case.alone()
    for stage in run.stages[1:]:
        if stage.state is None:
            continue
        kept, strategy = state_of(run, stage), run.strategy()
        strategy.load_state_dict(kept)
        again, hop = strategy.state_dict(), stage.hop.index
        expect_equal(again.facts, kept.facts, f"facts of hop {hop}:")
        expect_equal(sorted(again.tensors), sorted(kept.tensors), f"tensors of hop {hop}:")
        changed = [name for name, tensor in kept.tensors.items() if not torch.equal(again.tensors[name], tensor)]
        expect(not changed, f"changed tensors of hop {hop}: {changed}")


def recomputes_its_state(case: StrategyCase) -> None:
    """``end_hop`` gives the same state after a hop that was loaded from the store as after one that was trained."""
    stages = case.alone().stages
    for stage in stages[1:-1]:
        if stage.state is not None:
            later = keys_of(stages[stage.hop.index + 1 :]) - keys_of(stages[: stage.hop.index + 1])
            case.expect_same(train(case.again(stage.state, *later)))


def recomputes_its_predictions(case: StrategyCase) -> None:
    """The predictions of each hop can be computed again from the stored weights and states, hop by hop."""
    for stage in case.alone().stages:
        case.expect_same(train(case.again(stage.evaluation)))


def shares_only_equal_results(case: StrategyCase) -> None:
    """A hop whose key is that of ``strategy=naive`` is trained exactly as naive trains it (strategies of xclrun)."""
    naive, trained = train(case.plan(case.new_folder(), strategy="naive")), HopsTrained()
    run = case.again(beside=naive)
    new = [stage.hop.index for stage in run.stages[1:] if stage.train not in stored(naive)]
    case.expect_same(train(run, trained))
    expect_equal(trained.hops, new, "hops trained after naive:")


def changes_keys_with_results(case: StrategyCase) -> None:
    """Runs that differ in one setting have different keys wherever their results differ."""
    known: dict[str, tuple[tuple[str, ...], Any]] = {}
    for chosen in case.choices():
        try:
            first = case.planned(*chosen)
        except UsageError:
            continue
        variants = [chosen]
        for name, kind in case.settings():
            if isinstance(kind, type) and issubclass(kind, Enum):
                continue
            value = case.other(name, kind, getattr(first.config.strategy, name))
            variants.append((*chosen, f"strategy.{name}={value}"))
        for variant in variants:
            try:
                run = case.planned(*variant)
            except UsageError:
                continue
            # Hop 0 is the untrained model, which all runs share.
            for key in sorted(keys_of(run.stages[1:]) - keys_of(run.stages[:1])):
                if (other := known.setdefault(key, (variant, run))[0]) != variant:
                    files = [stored(case.alone(*overrides)).get(key) for overrides in (other, variant)]
                    names = [" ".join(overrides) or "the defaults" for overrides in (other, variant)]
                    expect(
                        files[0] == files[1], f"equal keys, but different {_name(run, key)}, with {' and '.join(names)}"
                    )


def accumulates_gradients(case: StrategyCase) -> None:
    """Batches in two micro-batches (``trainer.gradient_accumulation=2``) give the same model, up to rounding."""
    # Dropout would draw other numbers.
    exact = ("model.dropout=0", PLAIN)
    expect_close(case.alone(*exact, *HALVES), case.alone(*exact))


def trains_on_two_devices(case: StrategyCase) -> None:
    """Two processes that share each batch (``runtime.devices=2``) give the same model as one, up to rounding."""
    several = train(case.plan(case.new_folder(), PLAIN, *HALVES, "runtime.devices=2"))
    expect_close(several, case.alone(PLAIN, *HALVES))


# Adam with a large epsilon does not amplify rounding, and its steps depend on the scale of the gradients.
PLAIN = "trainer.eps=0.1"
# Each batch in two micro-batches.
HALVES = ("trainer.batch_size=2", "trainer.gradient_accumulation=2")


def expect_close(run: Run, other: Run) -> None:
    """Compare the probabilities that two runs predict after each hop."""
    for hop in range(1, len(other.stages)):
        tables = [predictions.read(one.directory.predictions(hop)) for one in (run, other)]
        for column in (name for name in tables[0].column_names if name.startswith("log2")):
            one, two = (np.nan_to_num(table[column].to_numpy().astype(float)) for table in tables)
            largest = float(np.abs(one - two).max(initial=0.0))
            expect(largest <= 1e-3, f"{column} of hop {hop} differs by up to {largest:.2g}")


STRATEGY_CONTRACT = (
    is_registered,
    finishes_a_run,
    repeats_its_results,
    leaves_global_generators,
    resumes_after_every_step,
    restores_its_state,
    recomputes_its_state,
    recomputes_its_predictions,
    shares_only_equal_results,
    changes_keys_with_results,
    accumulates_gradients,
    trains_on_two_devices,
)


def strategy_checks(
    name: str, *overrides: str, plugin: Path | str | None = None, values: Mapping[str, str | None] | None = None
) -> list[Check]:
    """Return the checks of ``strategy=NAME``, for ``pytest.mark.parametrize``.

    Args:
        overrides: further overrides of each run, such as ``strategy.memory=5``.
        plugin: file with the strategy; None: xclrun or an installed package has it. Do not import the file elsewhere.
        values: setting → another value, for settings that are neither numbers nor enums; None: do not try it.
    """
    label = " ".join([f"strategy '{name}'", *overrides])
    case = StrategyCase(name, overrides, Path(plugin) if plugin is not None else None, values or {})
    return bound(label, STRATEGY_CONTRACT, case)


def check_strategy(
    name: str, *overrides: str, plugin: Path | str | None = None, values: Mapping[str, str | None] | None = None
) -> None:
    """Run `strategy_checks`.

    Raises:
        ContractError: a line per failed check.
    """
    run_all(strategy_checks(name, *overrides, plugin=plugin, values=values))
