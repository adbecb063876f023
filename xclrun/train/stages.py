"""The stages of a run: their dependencies, and how they are loaded from the store or computed.

A hop has up to four stages: trained weights, the strategy's state, predictions, and the attention of [CLS]. The run's
workbench computes a missing stage while the process holds the stage's lease, so concurrent processes compute each stage
once. The stage's dependencies are computed first, so a process never waits while it holds a lease. No model is built if
all evaluations of a run are in the store.
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
from xclrun.core.identity import Stage, digest
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
        self._checked: set[str] = set()

    # Results for a run.

    def evaluation(self, stage: Stage) -> tuple[Path, dict[str, Any]]:
        """Return (folder of a hop's evaluation, metadata). The metadata include the counters of the training."""
        if not self.store.has(stage.evaluation):
            self._prepare_evaluation(stage.hop)
        folder = self._find_or_make(stage.evaluation, self._evaluate, stage)
        return folder, self.store.facts(stage.evaluation)

    def attention(self, stage: Stage) -> Path | None:
        """Return the folder with the attention of [CLS] after a hop; None if ``evaluate.attention`` is false."""
        if (key := stage.attention) is None:
            return None
        if not self.store.has(key):
            self.bring(stage.hop)
        return self._find_or_make(key, self._attend, stage.hop, key)

    def averaged(self, stage: Stage, points: Sequence[str], mean: Callable[[], Mapping[str, Tensor]]) -> Path:
        """Return the folder with the predictions of a hop's averaged weights.

        Args:
            points: names of the weight files to average.
            mean: computes the averaged weights.
        """
        points_of = self.store.facts(stage.train)["training"]["points"]
        key = digest({"kind": "average", "evaluation": stage.evaluation, "points": list(points)})

        def make() -> None:
            self._prepare_evaluation(stage.hop)
            load_weights(self.bench.model, mean())
            self.bench.weights_of = None
            table = self._predict(stage.hop, points_of[-1])
            facts = {"hop": stage.hop.name, "points": list(points)}
            self._put(key, "average", facts, lambda folder: predictions.write(folder / "predictions.parquet", table))

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

    def _find_or_make(self, key: str, make: Callable[..., None], *arguments: Any) -> Path:
        """Return the folder of a stage; if the store does not have it, call ``make(*arguments)`` under its lease.

        Raises:
            Busy: another process is computing the stage, and ``patient`` is false.
        """
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

    # Dependencies.

    def bring(self, hop: Hop) -> None:
        """Load model and strategy for the evaluation of a hop, and compute missing dependencies."""
        plan = self.run.plan(hop)
        self._need_weights(plan.reads)
        for index in plan.states:
            self.state(index)
        self.weights(hop.index)
        self.state(hop.index)

    def _prepare_evaluation(self, hop: Hop) -> None:
        self._need_lookup(hop)
        self.bring(hop)
        self._need_features(hop, self._predicted(hop))

    def _predicted(self, hop: Hop) -> list[Split]:
        block = [(hop.codes, "train")] if hop.codes else []
        return [*((language, "test") for language in self.run.stream.languages), *block]

    def prepare_training(self, hop: Hop) -> None:
        """Load the model and the strategy's state for the training of ``hop``, and compute missing dependencies."""
        plan = self.run.plan(hop)
        needed = set(plan.trains_with)
        if self.run.config.evaluate.has_points:
            # At evaluation points, earlier languages are evaluated with their own parameters.
            needed |= {index for index in plan.reads if index < hop.index}
        if self._continues_optimizer(hop) or self._compares_gradients(hop):
            # The optimiser's state and the last gradients are in the parent's folder, so the folder must exist.
            needed.add(hop.parent)
        self._need_weights(sorted(needed))
        if self.run.config.evaluate.has_points and plan.at_points:
            self._need_lookup(hop)
        self.state(hop.parent)
        self.weights(hop.parent)
        splits = [(language, "train") for language in hop.train] + [(language, "dev") for language in hop.select]
        self._need_features(hop, [*splits, *self.bench.point_splits()])

    def _need_weights(self, hops: Iterable[int]) -> None:
        """Train the hops whose weights are missing or damaged in the store."""
        for key, index in ((self.run.stages[index].train, index) for index in hops):
            if key not in self._checked or not self.store.has(key):
                self._trained(index)
                self._checked.add(key)

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
            if key not in self._checked:
                self._find_or_make(key, self._make_lookup, split, key)
                self._checked.add(key)

    def _trained(self, index: int) -> Path:
        """Return the folder of the weights after hop ``index`` ≥ 1; train the hop if the store does not have them."""
        stage = self.run.stages[index]
        if not self.store.has(stage.train):
            self.prepare_training(stage.hop)
        return self._find_or_make(stage.train, self._train, stage)

    def weights(self, index: int) -> None:
        """Load the weights after hop ``index`` into the model."""
        if self.bench.weights_of == index:
            return
        if index == 0:
            self.bench.reset()
        else:
            folder, hop = self._trained(index), self.run.stages[index].hop
            if self.bench.weights_of != index:
                if self.run.plan(hop).still:
                    self.weights(hop.parent)
                self.bench.load_weights(folder / "weights.safetensors")
        self.bench.weights_of = index

    def state(self, index: int) -> None:
        """Load the state after hop ``index`` into the strategy."""
        if self.bench.state_of == index:
            return
        hop, key = self.run.stages[index].hop, self.run.stages[index].state
        if index == 0 or key is None:
            self.bench.load_state(None)
        else:
            if not self.store.has(key):
                self.weights(index)
                self.state(hop.parent)
            folder = self._find_or_make(key, self._end_hop, hop, key)
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
        self.prepare_training(hop)
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

    def _end_hop(self, hop: Hop, key: str) -> None:
        self.weights(hop.index)
        self.state(hop.parent)
        self._need_features(hop, [(language, "train") for language in hop.train])
        if self.strategy.updates_in_training:
            self.bench.load_state(self.store.path(self.run.stages[hop.index].train), GATHERED)
        footprint, state = self.bench.end_hop(hop), self.strategy.state_dict()
        facts = {"hop": hop.name, "footprint": footprint}
        self._put(key, "state", facts, lambda folder: save_state(folder, STATE, state))
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
        self._prepare_evaluation(hop)
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

    def _attend(self, hop: Hop, key: str) -> None:
        self.bring(hop)
        rows = self.bench.attention(hop)
        facts = {"hop": hop.name}
        self._put(key, "attention", facts, lambda folder: predictions.write(folder / attention.FILE, rows))
