"""The results of a run's hops: loaded from the store, or computed and stored.

`StageGraph.get` walks the graph of `xclrun.core.graph`: it brings what a missing result needs, acquires the result's
lease, computes the result on the workbench and stores it. Concurrent processes therefore compute each result once, and
a process never waits while it holds a lease. No model is built if all evaluations of a run are in the store.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.config.schema import OptimizerState, Selection
from xclrun.core.errors import RunError
from xclrun.core.graph import Kind, Result, Stage
from xclrun.core.identity import digest
from xclrun.core.stream import BEFORE, Hop
from xclrun.core.version import code_version
from xclrun.plan import Run
from xclrun.store import predictions
from xclrun.store.lease import Lease
from xclrun.strategy.shared.parameters import sizes
from xclrun.train import attention
from xclrun.train.checkpoint import Checkpoints
from xclrun.train.class_gradients import FILE as CLASS_GRADIENTS
from xclrun.train.features import save_features
from xclrun.train.loop import load_weights
from xclrun.train.overlap import FILE as OVERLAP
from xclrun.train.overlap import LAST
from xclrun.train.points import FILE as POINTS
from xclrun.train.precision import device_name
from xclrun.train.progress import Listener
from xclrun.train.ranks import ALONE, Ranks
from xclrun.train.stop import StopFlag
from xclrun.train.workbench import (
    GATHERED,
    OPTIMIZER,
    STATE,
    Split,
    Workbench,
    lookup_key,
    save_state,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

# Seconds between checks of a stage that another process is computing.
POLL = 0.5

UNTRAINED: dict[str, Any] = {"examples": 0, "tokens": 0, "updates": 0, "seconds": 0.0, "epochs": []}


class Busy(Exception):
    """Another process is computing a required stage; the caller can do other work first.

    Attributes:
        lease: the lease of the other process.
    """

    def __init__(self, lease: Lease) -> None:
        super().__init__(str(lease.owner()))
        self.lease = lease


def made_here() -> dict[str, Any]:
    """Identify this process: host, process ID, version of the code."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "code_version": code_version()}


def check_weights(run: Run, stages: Iterable[Stage]) -> None:
    """Raise a `RunError` if stored weights of hops are missing or damaged, instead of training the hops again."""
    for stage in stages:
        if (problem := run.store.problem(stage.train)) is not None:
            raise RunError(
                f"{run.id}, hop {stage.hop.index}: {problem}; retrain it with `xclrun rerun {run.id} --fresh DIR`, "
                "then add `--outputs DIR` to this command"
            )


def evaluated_weights(run: Run, stage: Stage) -> list[Stage]:
    """Return the hops whose stored weights the evaluation after a hop reads."""
    return [run.stages[index] for kind, index in stage.needs[Kind.evaluation] if kind is Kind.weights]


class StageGraph:
    """The stages of one run.

    Args:
        patient: wait for stages that another process is computing; otherwise raise `Busy`.

    Attributes:
        trained_here: the hops that this process has trained.
    """

    def __init__(
        self, run: Run, listener: Listener, stop: StopFlag, patient: bool = True, ranks: Ranks = ALONE
    ) -> None:
        self.run, self.listener, self.stop, self.patient = run, listener, stop, patient
        self.store = replace(run.store, warn=listener.noted)
        self.bench = Workbench(run, listener, stop, ranks)
        self.strategy = self.bench.strategy
        self.trained_here: set[int] = set()
        # Keys of stored results that this process has computed or verified.
        self._intact: set[str] = set()

    # Results for a run.

    def evaluation(self, stage: Stage) -> tuple[Path, dict[str, Any]]:
        """Return (folder of a hop's evaluation, metadata). The metadata include the counters of the training."""
        folder = self.get(Result(Kind.evaluation, stage.hop.index))
        return folder, self.store.facts(stage.evaluation)

    def attention(self, stage: Stage) -> Path | None:
        """Return the folder with the attention of [CLS] after a hop; None if ``evaluate.attention`` is false."""
        return None if stage.attention is None else self.get(Result(Kind.attention, stage.hop.index))

    def averaged(self, stage: Stage, points: Sequence[str], mean: Callable[[], Mapping[str, Tensor]]) -> Path:
        """Return the folder with the predictions of a hop's averaged weights.

        Args:
            points: names of the weight files to average.
            mean: computes the averaged weights.
        """
        points_of = self.store.facts(stage.train)["training"]["points"]
        key = digest({"kind": "average", "evaluation": stage.evaluation, "points": list(points)})

        def make() -> None:
            self.prepare(Result(Kind.evaluation, stage.hop.index))
            load_weights(self.bench.model, mean())
            self.bench.weights_of = None
            table = self._predict(stage.hop, points_of[-1])
            facts = {"hop": stage.hop.name, "points": list(points)}
            self._put(key, "average", facts, lambda folder: predictions.write(folder / "predictions.parquet", table))

        if not self.store.has(key):
            self.prepare(Result(Kind.evaluation, stage.hop.index))
        return self._find_or_make(key, make)

    def trained_by(self, stage: Stage) -> str:
        """Return the ID of the run that trained a stored hop."""
        if stage.hop.index in self.trained_here:
            return self.run.id
        # If the weights were removed, use the evaluation: usually the run that trained the hop also evaluated it.
        return str(self.store.facts(stage.train if self.store.has(stage.train) else stage.evaluation).get("run"))

    def footprint(self, stage: Stage) -> Mapping[str, float] | None:
        """Return the size of the strategy's state after a hop, with the ``seconds`` to compute it; None if unknown.

        Without a state: the size of the earlier training data that the hop reads, 8 bytes per sentence as in memories.
        """
        if stage.state is None:
            earlier, plan = self.run.stream.hops[1 : stage.hop.index], stage.plan
            learned = {key for hop in earlier for key in hop.train}
            reread = {key for key in stage.hop.train if key in learned}
            reread |= {key for index in plan.rereads for key in self.run.stream.hops[index].train}
            kept = sum(len(self.run.dataset.split(key, "train")) for key in reread)
            kept = kept if plan.limit is None else min(kept, plan.limit)
            return {"examples": kept, "bytes": 8 * kept, "seconds": 0.0}
        try:
            footprint: Mapping[str, float] | None = self.store.facts(stage.state).get("footprint")
        except (OSError, ValueError, AttributeError):
            return None
        return footprint

    # Loading and computing.

    def get(self, result: Result) -> Path:
        """Return the folder of a result; if the store does not have it, compute it and everything that it needs.

        Raises:
            Busy: another process is computing a result, and ``patient`` is false.
        """
        stage = self.run.stages[result.hop]
        key = stage.results[result.kind]
        if key in self._intact and self.store.has(key):
            return self.store.path(key)
        if (folder := self.store.get(key)) is None:
            self.prepare(result)
            folder = self._find_or_make(key, self._computations[result.kind], stage)
        self._intact.add(key)
        return folder

    @property
    def _computations(self) -> Mapping[Kind, Callable[[Stage], None]]:
        computations = (self._train, self._end_hop, self._evaluate, self._attend)
        return dict(zip(Kind, computations, strict=True))

    def prepare(self, result: Result) -> None:
        """Bring what the computation of a result needs, and load model, strategy and features for it.

        Called before the result's lease is acquired, and again under the lease, because waiting can change the model.
        """
        stage, kind = self.run.stages[result.hop], result.kind
        for need in stage.needs[kind]:
            if kind is not Kind.weights or not self._at_hand(need, stage):
                self.get(need)
        points = self.run.config.evaluate.has_points and stage.plan.at_points
        if kind is Kind.evaluation or (kind is Kind.weights and points):
            self._need_lookup(stage.hop)
        # A training begins with the parent's model and state, the update of the state with the parent's state.
        self.state(stage.hop.parent if kind in (Kind.weights, Kind.state) else result.hop)
        self.weights(stage.hop.parent if kind is Kind.weights else result.hop)
        self._need_features(stage.hop, self._splits(result))

    def _at_hand(self, need: Result, stage: Stage) -> bool:
        """Whether a training finds a need in memory and reads nothing of it from the store, which can be pruned."""
        hop, plan, bench = stage.hop, stage.plan, self.bench
        if need.kind is Kind.state:
            return need.hop == bench.state_of and need.hop not in plan.states
        reads = need.hop in (*plan.trains_with, *plan.reads)
        reads = reads or (need.hop == hop.parent and (self._continues_optimizer(hop) or self._compares_gradients(hop)))
        return not reads and bench.weights_of == hop.parent and need.hop in self.run.stages[hop.parent].parts

    def _splits(self, result: Result) -> list[Split]:
        """Return the splits whose sentences the computation of a result reads."""
        hop = self.run.stages[result.hop].hop
        train, dev = [(language, "train") for language in hop.train], [(language, "dev") for language in hop.select]
        splits = {
            Kind.weights: [*train, *dev, *self.bench.point_splits()],
            Kind.state: train,
            Kind.evaluation: self._predicted(hop),
            Kind.attention: [],
        }
        return splits[result.kind]

    def load(self, hop: Hop) -> None:
        """Load model and strategy for the evaluation of a hop, and compute what is missing."""
        self.prepare(Result(Kind.attention, hop.index))

    def _find_or_make(self, key: str, make: Callable[..., None], *arguments: Any) -> Path:
        """Return the folder of a key; if the store does not have it, call ``make(*arguments)`` under its lease."""
        noted = False
        while True:
            if (folder := self.store.get(key)) is not None:
                return folder
            lease = self.store.lease(key)
            if (mine := lease.try_acquire()) is not None:
                with lease.held(mine):
                    if (folder := self.store.get(key)) is None:
                        make(*arguments)
                        folder = self.store.path(key)
                return folder
            if (owner := lease.owner()) is not None:
                if not self.patient:
                    raise Busy(lease)
                if not noted:
                    self.listener.noted(f"waiting for a stage that {owner} is computing")
                    noted = True
            self.stop.check()
            time.sleep(POLL)

    def _put(self, key: str, kind: str, facts: Mapping[str, Any], fill: Callable[[Path], None]) -> None:
        self.store.put(key, {"kind": kind, "run": self.run.id, **made_here(), **facts}, fill)

    # What results need.

    def _predicted(self, hop: Hop) -> list[Split]:
        block = [(hop.codes, "train")] if hop.codes else []
        return [*((language, "test") for language in self.run.stream.languages), *block]

    def _need_features(self, hop: Hop, splits: Iterable[Split]) -> None:
        """Load the features of splits if the hop leaves the encoder unchanged; the hop's weights must be loaded."""
        for split in splits:
            key = self.bench.features_key(hop, split)
            if key is not None and key not in self.bench.features:
                folder = self._find_or_make(key, self._make_features, hop, split, key)
                self.bench.load_features(key, folder, split)

    def _need_lookup(self, hop: Hop) -> None:
        """Compute the features of hop 0 that predictions after a hop read; this can load the weights of hop 0."""
        if not self.run.plan(hop).features:
            return
        for split in [*((k, "train") for k in self.bench.learned(hop.index)), *self._predicted(hop)]:
            key = lookup_key(self.run, split)
            if key not in self._intact:
                self._find_or_make(key, self._make_lookup, split, key)
                self._intact.add(key)

    def weights(self, index: int) -> None:
        """Load the weights after hop ``index`` into the model."""
        if self.bench.weights_of == index:
            return
        if index == 0:
            self.bench.reset()
        else:
            folder, stage = self.get(Result(Kind.weights, index)), self.run.stages[index]
            if self.bench.weights_of != index:
                if stage.plan.still:
                    self.weights(stage.hop.parent)
                self.bench.load_weights(folder / "weights.safetensors")
        self.bench.weights_of = index

    def state(self, index: int) -> None:
        """Load the state after hop ``index`` into the strategy."""
        if self.bench.state_of == index:
            return
        if self.run.stages[index].state is None:
            self.bench.load_state(None)
        else:
            folder = self.get(Result(Kind.state, index))
            if self.bench.state_of != index:
                self.bench.load_state(folder)
        self.bench.state_of = index

    def _continues_optimizer(self, hop: Hop) -> bool:
        """Whether a hop continues with its parent's optimiser state."""
        return hop.parent > 0 and self.run.trainer(hop).optimizer_state is OptimizerState.kept

    def _compares_gradients(self, hop: Hop) -> bool:
        """Whether a hop's gradients are compared with the gradients of its parent's last step."""
        return hop.parent > 0 and self.run.config.evaluate.gradient_overlap

    # Computations under a lease.

    def _train(self, stage: Stage) -> None:
        hop = stage.hop
        self.prepare(Result(Kind.weights, hop.index))
        self.stop.check()
        self.listener.hop_started(self.run, hop)
        checkpoints = Checkpoints(self.store.checkpoints(stage.train), self.listener.noted)
        if self._begun_before and not self.trained_here and not checkpoints.folder.is_dir():
            self.listener.noted(f"resuming at the start of hop {hop.index} ({hop.name})")
        parent = self.store.path(self.run.stages[hop.parent].train)
        optimizer = parent / OPTIMIZER if self._continues_optimizer(hop) else None
        last = parent / LAST if self._compares_gradients(hop) else None
        counters, write = self.bench.train(hop, checkpoints.folder, optimizer, last)
        cost = self.run.costs[hop.index] | {"device": device_name(self.bench.device)}
        facts = {"hop": hop.name, "depth": hop.depth, "cost": cost, "training": counters}
        self._put(stage.train, "train", facts, write)
        checkpoints.clear()
        self.trained_here.add(hop.index)
        self.bench.weights_of = hop.index

    @cached_property
    def _begun_before(self) -> bool:
        """Whether an earlier, interrupted execution of the run trained at least one hop."""
        return any(
            self.store.has(s.train) and self.trained_by(s) == self.run.id for s in self.run.stages if s.hop.index
        )

    def _end_hop(self, stage: Stage) -> None:
        hop = stage.hop
        self.prepare(Result(Kind.state, hop.index))
        if self.strategy.updates_in_training:
            self.bench.load_state(self.store.path(self.run.stages[hop.index].train), GATHERED)
        footprint, state = self.bench.end_hop(hop), self.strategy.state_dict()
        facts = {"hop": hop.name, "footprint": footprint}
        self._put(str(stage.state), "state", facts, lambda folder: save_state(folder, STATE, state))
        self.bench.state_of = hop.index

    def _make_features(self, hop: Hop, split: Split, key: str) -> None:
        sentences = self.bench.with_features(split)
        name = f"{self.run.stream.hops[self.run.stages[hop.index].encoder].name}: {'/'.join(split)}"
        self._put(key, "features", {"hop": name}, lambda folder: save_features(folder, sentences))

    def _make_lookup(self, split: Split, key: str) -> None:
        self.weights(0)
        sentences = self.bench.with_features(split, words=False)
        name = f"{BEFORE.name}: {'/'.join(split)}"
        self._put(key, "features", {"hop": name}, lambda folder: save_features(folder, sentences))

    def _evaluate(self, stage: Stage) -> None:
        hop = stage.hop
        self.prepare(Result(Kind.evaluation, hop.index))
        training = self.store.facts(stage.train)["training"] if hop.index else UNTRAINED
        point = self._selected(hop, training)
        table = self._predict(hop, point)
        block = predictions.table(self._at(self.bench.next_block(hop), point), block=True) if hop.codes else None
        facts: dict[str, Any] = {"training": training}
        if hop.index == 0:
            # Store the parameter counts: later runs report them without building a model.
            model = self.bench.model
            encoder: Any = model.encoder
            facts["parameters"] = sizes(model)
            facts["vocabulary"] = {"encoder": model.vocabulary, "kept": encoder.config.vocab_size}
        inside = [self.store.path(stage.train) / name for name in (POINTS, OVERLAP, CLASS_GRADIENTS)]

        def fill(folder: Path) -> None:
            predictions.write(folder / "predictions.parquet", table)
            if block is not None:
                predictions.write(folder / predictions.BLOCK, block)
            # Copy these files from the training, because the store keeps evaluations longer than weights.
            for path in inside:
                if path.is_file():
                    shutil.copyfile(path, folder / path.name)

        self._put(stage.evaluation, "evaluation", facts, fill)

    def _predict(self, hop: Hop, point: Mapping[str, Any]) -> pa.Table:
        """Return the prediction rows of all test splits after a hop; ``point`` describes the weights."""
        columns = predictions.joined(self.bench.predictions(hop))
        return predictions.table(self._at(columns, point))

    def _at(self, columns: dict[str, list[Any]], point: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Add the columns that name the weights: hop, and step and examples of ``point``."""
        n = len(columns["split"])
        # −1 is a placeholder: each run sets its own hop number when it copies the rows.
        return columns | {"hop": [-1] * n, "step": [point["step"]] * n, "examples_seen": [point["examples"]] * n}

    def _selected(self, hop: Hop, training: dict[str, Any]) -> dict[str, Any]:
        """Return the selected epoch's entry of the training curve."""
        if not training["epochs"]:
            return {"step": 0, "examples": 0}
        best = self.run.trainer(hop).selection is Selection.best
        return training["epochs"][training["best_epoch"] - 1 if best else -1]

    def _attend(self, stage: Stage) -> None:
        hop = stage.hop
        self.prepare(Result(Kind.attention, hop.index))
        rows = self.bench.attention(hop)
        facts = {"hop": hop.name}
        self._put(
            str(stage.attention), "attention", facts, lambda folder: predictions.write(folder / attention.FILE, rows)
        )
