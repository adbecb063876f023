"""The one training loop: a hop's data, passed over in epochs, under any strategy.

A *main step* takes one batch of the hop's own data; a strategy may add steps (replay). Only this loop steps the
optimiser. All randomness is a function of (seed, purpose, hop, position), so a checkpoint holds no random state, and
a hop that was interrupted anywhere continues exactly as if it had not been.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from xclrun.config.schema import Selection, SlotF1
from xclrun.core.errors import RunError
from xclrun.core.identity import derive
from xclrun.data.batches import Batch, Encoded
from xclrun.model.network import takes_masks
from xclrun.strategy import Context, State, Strategy, recordable
from xclrun.train.checkpoint import Checkpoints, Unchanged
from xclrun.train.curriculum import Mixed, Passes
from xclrun.train.evaluate import selection_score
from xclrun.train.graphs import CudaRecorder, RecordedSteps, Recorder
from xclrun.train.optimize import load_optimizer_state, lr_factor, make_optimizer, optimizer_state, set_lr
from xclrun.train.points import Points
from xclrun.train.precision import autocast, products
from xclrun.train.progress import Progress
from xclrun.train.stop import Stopped

if TYPE_CHECKING:
    from xclrun.train.workbench import Workbench


@dataclass
class Position:
    """Where the training of a hop is, and what it has counted; JSON-able, part of a checkpoint.

    Attributes:
        epoch: epochs finished.
        step: main steps taken in the hop.
        updates: optimiser steps taken in the hop, replayed ones included.
        examples, tokens: sentences and subwords trained on, replayed ones included.
        beside_examples, beside_tokens: sentences and subwords of the memory that steps learned from next to their own
            batch: in terms of the loss (KD), in the gradient that theirs is compared with (A-GEM).
        seconds: of training and dev evaluation, over all attempts.
        loss_sum: sum of the losses of this epoch's updates.
        loss_count: number of those updates.
        best_score: best selection score so far, or None before the first epoch's end.
        best_epoch, best_step: where that was.
        epochs: one entry per finished epoch: the training curve.
        points: one entry per evaluation point inside the hop (see `xclrun.train.points`).
    """

    epoch: int = 0
    step: int = 0
    updates: int = 0
    examples: int = 0
    tokens: int = 0
    beside_examples: int = 0
    beside_tokens: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    best_score: float | None = None
    best_epoch: int = 0
    best_step: int = 0
    epochs: list[dict[str, Any]] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=list)


class GradientObserver(Protocol):
    """Looks at the gradients of the main steps, before a strategy edits them and before clipping."""

    def look(self, step: int) -> None:
        """Look at the gradients of a main step, as they are now."""

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        """Return everything, by name, for a checkpoint."""

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `tensors` gave."""

    def write(self, folder: Path) -> None:
        """Write the observations of the whole hop into the store's folder of its training."""


def _seed_dropout(seed: int, device: torch.device) -> None:
    # Not torch.manual_seed: it formats a stack trace at every call if there is no GPU.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model that are trained, by name: the model's own tensors."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of tensors: of those on a GPU there, where twice their size is free, else on the CPU.

    At an epoch's end the memory that a step needs is reserved already, so what is free stays free.
    """
    size = sum(tensor.nbytes for tensor in tensors.values() if tensor.is_cuda)
    room = not size or torch.cuda.mem_get_info()[0] >= 2 * size
    return {name: tensor.clone() if room else tensor.to("cpu", copy=True) for name, tensor in tensors.items()}


def take_over(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a model values for some of its parameters, or for all.

    Raises:
        RuntimeError: it has no parameter of a name, or one of another shape.
    """
    model.load_state_dict({**model.state_dict(), **tensors})


class HopTraining:
    """The training of one hop, from the parent's weights in ``context.model`` to this hop's weights there.

    Args:
        bench: the run's strategy, whose `begin_hop` has been called, its evaluator and dev splits, listener and stop.
        context: model, data, hop and seed.
        checkpoints: where to save progress inside the hop.
        points: takes the evaluation points inside the hop; None: there are none.
        inherited: what the optimiser begins with (see `optimizer_state`).
        observers: look at the gradients of the main steps, by their name in checkpoints.
    """

    def __init__(
        self,
        bench: Workbench,
        context: Context,
        checkpoints: Checkpoints,
        points: Points | None = None,
        inherited: Mapping[str, Tensor] | None = None,
        observers: Mapping[str, GradientObserver] | None = None,
    ) -> None:
        strategy, trainer = bench.strategy, bench.run.trainer(context.hop)
        self.observers = observers or {}
        if trainer.cuda_graphs:
            context.train = {key: replace(sentences, even=True) for key, sentences in context.train.items()}
        self.context, self.strategy, self.trainer, self.points = context, strategy, trainer, points
        # Runs that differ in evaluate.slot_f1 share what does not depend on it, and so its log too.
        self.evaluator = bench.evaluator if trainer.uses_dev else replace(bench.evaluator, slot_f1=SlotF1.span_micro)
        self.dev, self.checkpoints = bench.dev(context.hop), checkpoints
        self.listener, self.stop = bench.listener, bench.stop
        parts = [context.train[language] for language in context.hop.train]
        self.sentences = sum(map(len, parts))
        self.curriculum = self._curriculum(parts)
        self.steps = self.curriculum.epochs * self.curriculum.steps
        self.optimizer = make_optimizer(context.model.parameters(), trainer)
        if inherited:
            load_optimizer_state(self.optimizer, context.model, inherited)
        # Steps that are recorded; None: all are taken operation by operation.
        self.recorded: RecordedSteps | None = None
        if trainer.cuda_graphs and context.device.type == "cuda":
            self.record(CudaRecorder())
        self.scaler = torch.amp.GradScaler(context.device.type, enabled=trainer.precision.value == "fp16")
        self.position = Position()
        # A shared hop may continue from a checkpoint of another strategy, whose state is not this one's; its
        # training does not depend on it.
        self.own = bool(strategy.signature(context.hop))
        # What a hop leaves unchanged need not be in its checkpoints.
        self.began_with = Unchanged(strategy.state_dict().tensors if self.own else {})
        self.best: dict[str, Tensor] = {}
        # Of a strategy that gathers: the state with which the selected weights are stored.
        self.gathers, self.gathered = strategy.gathers and self.own, State()
        # Reading the loss waits for the GPU, so on a GPU it is read only now and then.
        self.look_every = 1 if context.device.type == "cpu" else 25
        # Since the last reading, on the device: the losses of each update's parts, with the main step that it is of.
        self._losses: list[tuple[int, Sequence[Tensor]]] = []

    def _curriculum(self, parts: Sequence[Encoded]) -> Passes | Mixed:
        context, size = self.context, self.trainer.batch(self.sentences)
        if not context.hop.mixed:
            return Passes(parts, size, self.trainer.epochs, lambda epoch: context.generator("shuffle", epoch))
        steps = self.trainer.steps_of_mixture(self.sentences)
        return Mixed(parts, context.hop.train, size, steps, lambda *at: context.generator("mixture", *at))

    def record(self, recorder: Recorder) -> None:
        """From now on record those steps that the strategy repeats, where encoder and strategy allow it."""
        if recordable(self.strategy) and takes_masks(self.context.model.encoder):
            self.recorded = RecordedSteps(recorder, self._step, self.trainer.part(self.sentences))

    def run(self) -> dict[str, Any]:
        """Train, and leave the selected weights in the model.

        Returns:
            What was done: the counters of `Position`, as a dict; and ``edited`` where the strategy has changed the
            weights since their last dev score (`Strategy.end_training`).

        Raises:
            RunError: the loss is not finite.
            Stopped: a signal asked for it; a checkpoint was saved.
        """
        # Only during the hop: afterwards the context must not keep the optimiser and the best weights alive.
        self.context.beside, before = self._count_beside, self.context.beside
        self.context.model.packs = self.trainer.packing
        try:
            with products(self.context.precision):
                return self._run()
        finally:
            self.context.beside, self.context.model.packs, self.recorded = before, False, None

    def _run(self) -> dict[str, Any]:
        self._resume()
        model, position = self.context.model, self.position
        model.train()
        saved = self.clock = time.monotonic()
        self._point()
        while position.epoch < self.curriculum.epochs and not self._out_of_patience():
            begin = position.step - position.epoch * self.curriculum.steps
            for on_cpu in self.curriculum.batches(position.epoch, begin):
                position.step += 1
                main = on_cpu.to(self.context.device)
                for batch in self.strategy.replay(position.step, main, self.context):
                    self._update(batch, batch is main)
                self._point()
                self.listener.stepped(self._progress())
                if self.stop.number is not None or time.monotonic() - saved > 60 * self.trainer.checkpoint_minutes:
                    self._save()
                    saved = time.monotonic()
                    self.stop.check()
            self._end_epoch()
        self._point(last=True)
        if self.trainer.selection is Selection.best:
            take_over(model, self.best)
        elif self.gathers:
            self.gathered = self.strategy.state_dict()
        return asdict(position) | self._end_training()

    def _end_training(self) -> dict[str, Any]:
        """Let the strategy end the training; say so where it changes the weights, which no dev score is of then."""
        if type(self.strategy).end_training is Strategy.end_training:
            return {}
        before = {name: tensor.clone() for name, tensor in self.context.model.state_dict().items()}
        self.strategy.end_training(self.context)
        now = self.context.model.state_dict()
        same = before.keys() == now.keys() and all(torch.equal(before[name], now[name]) for name in before)
        return {} if same else {"edited": True}

    def _update(self, batch: Batch, main: bool = True) -> None:
        """Take one optimiser step on a batch, in parts where gradients are accumulated; ``main``: of a main step."""
        position = self.position
        factor = lr_factor(position.step - 1, self.steps, self.trainer.schedule, self.trainer.warmup)
        set_lr(self.optimizer, self.trainer.lr * factor)
        _seed_dropout(
            derive(self.context.seed, "dropout", self.context.hop.depth, position.updates), self.context.device
        )
        if self.recorded is not None and self.strategy.repeats():
            losses = self.recorded.take(batch)
        else:
            losses = self._step(batch, main)
        self._losses.append((position.step, losses))
        position.examples += batch.size
        position.tokens += batch.pieces
        position.updates += 1
        position.loss_count += 1
        if position.updates % self.look_every == 0:
            self._look()

    def _step(self, batch: Batch, main: bool = True) -> Sequence[Tensor]:
        """Do what an optimiser step asks of the device, and return the losses of the batch's parts."""
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        for part in batch.split(self.trainer.part(self.sentences)):
            with autocast(self.context.device, self.context.precision):
                loss = self.strategy.loss(part, self.context) * (part.size / batch.size)
            self.scaler.scale(loss).backward()
            losses.append(loss.detach())
        self.scaler.unscale_(self.optimizer)
        if main:
            for observer in self.observers.values():
                observer.look(self.position.step)
        self.strategy.edit_gradients(self.context)
        if self.trainer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.context.model.parameters(), self.trainer.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return losses

    def _count_beside(self, batch: Batch) -> None:
        self.position.beside_examples += batch.size
        self.position.beside_tokens += batch.pieces

    def _look(self) -> None:
        """Add the losses since the last reading to the sum; fail if one is not finite, and say at which step."""
        if not self._losses:
            return
        values = iter(torch.stack([loss for _, parts in self._losses for loss in parts]).tolist())
        for step, parts in self._losses:
            value = sum(next(values) for _ in parts)
            if not math.isfinite(value):
                hop, position = self.context.hop, self.position
                raise RunError(
                    f"hop {hop.index} ({hop.name}), epoch {position.epoch + 1}, step {step}: the loss is {value}; "
                    f"try a lower trainer.lr (now {self.trainer.lr}), trainer.clip_norm=1.0 or trainer.precision=fp32"
                )
            self.position.loss_sum += value
        self._losses = []

    def _end_epoch(self) -> None:
        """Score the dev splits, keep a true copy of the best weights, and note the epoch."""
        self._look()
        position = self.position
        scores = {}
        for language, encoded in self.dev.items():
            scores[language] = self.evaluator.scores(
                self.evaluator.predict(self.context.model, encoded, language, "dev")
            )
        # Without dev data nothing is selected by it.
        score = selection_score(scores) if scores else None
        position.epoch += 1
        if score is not None and (position.best_score is None or score > position.best_score):
            position.best_score, position.best_epoch, position.best_step = score, position.epoch, position.step
            if self.trainer.selection is Selection.best:
                # The copy before goes first: two need not be there at once.
                self.best, self.gathered = {}, State()
                self.best = _copied(trained_tensors(self.context.model))
                if self.gathers:
                    state = self.strategy.state_dict()
                    self.gathered = State(copy.deepcopy(state.facts), _copied(state.tensors))
        facts = {
            "epoch": position.epoch,
            "step": position.step,
            "examples": position.examples,
            "loss": position.loss_sum / position.loss_count,
            "dev": scores,
        }
        position.epochs.append(facts)
        position.loss_sum, position.loss_count = 0.0, 0
        self.listener.epoch_ended(self._progress(), facts)

    def _point(self, last: bool = False) -> None:
        """Take an evaluation point if one is due, or at the ``last`` step; a stop leaves it to the next try."""
        position, points = self.position, self.points
        if points is None or (position.points and position.points[-1]["step"] == position.step):
            return
        own = self.curriculum.seen(position.step)
        if not last and not (position.step and points.due(self.curriculum.seen(position.step - 1), own)):
            return
        # No point is taken of a model whose loss was not finite.
        self._look()
        began = time.monotonic()
        try:
            facts = points.take(position.step, position.examples, own)
        except Stopped as stopped:
            if not stopped.at_once:
                self._save()
            raise
        position.points.append(facts)
        # Evaluation points do not count as training time.
        self.clock += time.monotonic() - began

    def _out_of_patience(self) -> bool:
        patience = self.trainer.patience
        return patience is not None and self.position.epoch - self.position.best_epoch >= patience > 0

    def _progress(self) -> Progress:
        now = time.monotonic()
        self.position.seconds += now - self.clock
        self.clock = now
        return self._progress_at()

    def _progress_at(self) -> Progress:
        p, epochs = self.position, self.curriculum.epochs
        epoch = min(p.epoch + 1, epochs)
        return Progress(self.context.hop, epoch, epochs, p.step, self.steps, p.examples, p.seconds)

    def _save(self) -> None:
        """Write a checkpoint of everything that the rest of the hop depends on."""
        self._look()
        state = self.strategy.state_dict() if self.own else State()
        unchanged = self.began_with.among(state.tensors)
        changed = {name: tensor for name, tensor in state.tensors.items() if name not in set(unchanged)}
        facts = {
            **asdict(self.position),
            "scaler": self.scaler.state_dict(),
            "strategy": state.facts,
            "unchanged": unchanged,
        }
        if self.gathers:
            facts["gathered"] = self.gathered.facts
        groups: dict[str, Iterable[tuple[str, Tensor]]] = {
            "model": trained_tensors(self.context.model).items(),
            "best": self.best.items(),
            "optimizer": optimizer_state(self.optimizer, self.context.model).items(),
            "strategy": changed.items(),
            "gathered": self.gathered.tensors.items(),
            **{name: observer.tensors() for name, observer in self.observers.items()},
        }
        self.checkpoints.save(facts, {f"{group}/{name}": t for group, items in groups.items() for name, t in items})
        if self.points is not None:
            self.points.forget(self.position.points)

    def _resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        found = self.checkpoints.load()
        if found is None:
            return
        facts, tensors = found
        if (unchanged := self.began_with.named(facts.pop("unchanged"))) is None:
            self.checkpoints.warn("a checkpoint is of another state of the strategy: the hop begins anew")
            return
        if self.points is not None and not self.points.has(facts["points"]):
            self.checkpoints.warn("files of evaluation points are missing: the hop begins anew")
            return
        kinds = ("model", "best", "optimizer", "strategy", "gathered", *self.observers)
        groups: dict[str, dict[str, Tensor]] = {kind: {} for kind in kinds}
        for key, tensor in tensors.items():
            group, name = key.split("/", 1)
            groups[group][name] = tensor
        take_over(self.context.model, groups["model"])
        self.best = groups["best"]
        load_optimizer_state(self.optimizer, self.context.model, groups["optimizer"])
        self.scaler.load_state_dict(facts.pop("scaler"))
        for name, observer in self.observers.items():
            observer.load(groups[name])
        state = State(facts.pop("strategy"), groups["strategy"] | unchanged)
        self.gathered = State(facts.pop("gathered", {}), groups["gathered"])
        if self.own:
            self.strategy.load_state_dict(state)
        self.position = Position(**facts)
        p = self._progress_at()
        self.listener.noted(f"goes on at hop {p.hop.index} {p.hop.name}, epoch {p.epoch}, step {p.step} of {p.steps}")
