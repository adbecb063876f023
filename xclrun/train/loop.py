"""The training loop: epochs over a hop's data, under any strategy.

A *main step* trains on a batch of the hop's own data; a strategy may add steps (replay). Only this loop steps the
optimiser. All randomness is a function of (seed, purpose, hop, position), so checkpoints contain no random state and a
resumed hop is bit-identical.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from xclrun.config.schema import Selection, SlotF1
from xclrun.core.errors import RunError, UsageError
from xclrun.core.identity import derive
from xclrun.data.batches import EVEN_PIECES, Batch, Encoded
from xclrun.data.transfer import in_blocks
from xclrun.model.heads import Head
from xclrun.model.network import has_adapters, takes_masks
from xclrun.scores.base_scores import selection_score
from xclrun.strategy import State, Step, Strategy
from xclrun.train.checkpoint import Checkpoints, Unchanged
from xclrun.train.curriculum import Mixed, Passes
from xclrun.train.gradients import Gradients
from xclrun.train.graphs import CapturedSteps, Capturer, CudaCapturer
from xclrun.train.hop import HopWork
from xclrun.train.optimize import load_optimizer_state, lr_factor, make_optimizer, optimizer_state, set_lr
from xclrun.train.peak import peak_bytes, reset_peak
from xclrun.train.points import Points
from xclrun.train.precision import products
from xclrun.train.progress import Progress
from xclrun.train.stop import Stopped


@dataclass
class Position:
    """Progress and counters of a hop's training; JSON-able, part of a checkpoint.

    Attributes:
        epoch: epochs finished.
        step: main steps taken in the hop.
        updates: optimiser steps taken in the hop, including replay steps.
        examples, tokens: sentences and subwords trained on, including replayed batches.
        beside_examples, beside_tokens: sentences and subwords from the memory that are in no batch, but enter a further
            loss term (KD) or a reference gradient (A-GEM).
        seconds: time of training and dev evaluation, summed over all attempts.
        peak_bytes: peak memory of training and dev evaluation, the maximum of all attempts (`xclrun.train.peak`).
        loss_sum, loss_count: sum of the losses of this epoch's updates, and their number.
        best_score, best_epoch, best_step: best selection score so far, and the epoch and step that reached it.
        epochs: training curve, one entry per finished epoch.
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
    peak_bytes: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    best_score: float | None = None
    best_epoch: int = 0
    best_step: int = 0
    epochs: list[dict[str, Any]] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=list)


class GradientObserver(Protocol):
    """Observes the gradients of main steps, before a strategy edits them and before clipping."""

    def look(self, step: int) -> None:
        """Record the gradients of main step ``step``."""

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        """Yield names and tensors for a checkpoint."""

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the tensors that `tensors` yielded."""

    def write(self, folder: Path) -> None:
        """Write the observations into ``folder``, the store's folder of the hop's training."""


def _seed(seed: int, device: torch.device) -> None:
    # torch.manual_seed is slow: without a GPU, it formats a stack trace at every call.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the trained parameters of a model by name, without copying them."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors. The copies are on the CPU if the GPU's free memory is less than twice the size of the tensors."""
    size = sum(tensor.nbytes for tensor in tensors.values() if tensor.is_cuda)
    room = not size or torch.cuda.mem_get_info()[0] >= 2 * size
    return {name: tensor.clone() if room else tensor.to("cpu", copy=True) for name, tensor in tensors.items()}


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load some or all weights of a model, by name."""
    for block in in_blocks(tensors, next(model.parameters()).device):
        model.load_state_dict({**model.state_dict(), **block})


class HopTraining:
    """The training of one hop: ``context.model`` starts with the parent hop's weights and ends with this hop's weights.

    Args:
        points: evaluates the model at points inside the hop; None: no evaluation points.
        inherited: the optimiser's initial state, for some or all parameters (see `optimizer_state`).
        observers: observers of gradients, by their name in checkpoints.
    """

    def __init__(
        self,
        work: HopWork,
        checkpoints: Checkpoints,
        points: Points | None = None,
        inherited: Mapping[str, Tensor] | None = None,
        observers: Mapping[str, GradientObserver] | None = None,
    ) -> None:
        context, strategy, trainer = work.context, work.strategy, work.trainer
        self.observers = observers or {}
        if trainer.cuda_graphs:
            # Packed rows are as wide as the hop's longest sentence.
            longest = max((int(sentences.lengths.max(initial=0)) for sentences in context.train.values()), default=0)
            packed = -(-longest // EVEN_PIECES) * EVEN_PIECES if trainer.packing is True else 0
            context.train = {k: replace(sentences, even=True, packed=packed) for k, sentences in context.train.items()}
        self.context, self.strategy, self.trainer, self.points = context, strategy, trainer, points
        # If dev scores are only logged, runs with different evaluate.slot_f1 share the training and log span_micro.
        self.evaluator = work.evaluator if trainer.uses_dev else replace(work.evaluator, slot_f1=SlotF1.span_micro)
        self.dev, self.checkpoints = work.dev, checkpoints
        self.listener, self.stop, self.ranks = work.listener, work.stop, work.ranks
        parts = [context.train[language] for language in context.hop.train]
        self.sentences = sum(map(len, parts))
        self.curriculum = self._curriculum(parts)
        self.steps = self.curriculum.epochs * self.curriculum.steps
        self.optimizer = make_optimizer(context.model.parameters(), trainer)
        if inherited:
            load_optimizer_state(self.optimizer, context.model, inherited)
        # Captured CUDA graphs of steps; None: no step is captured.
        self.captured: CapturedSteps | None = None
        if trainer.cuda_graphs and context.device.type == "cuda":
            self.capture(CudaCapturer())
        self.scaler = torch.amp.GradScaler(context.device.type, enabled=trainer.precision.value == "fp16")
        self.position = Position()
        # Whether checkpoints contain the strategy's state. Hops of plain fine-tuning omit the state, because strategies
        # share these hops.
        self.own = bool(strategy.plan(context.hop).train)
        # Checkpoints omit tensors that are unchanged since the start of the hop.
        self.began_with = Unchanged(strategy.state_dict().tensors if self.own else {})
        self.best: dict[str, Tensor] = {}
        # The strategy's state at the selected epoch, if training updates this state.
        self.gathers, self.gathered = strategy.updates_in_training and self.own, State()
        # Reading the loss waits for the GPU, so on a GPU the loss is read less often.
        self.look_every = 1 if context.device.type == "cpu" else 25
        # For each update since losses were last read: (main step, losses of its micro-batches, on the device).
        self._losses: list[tuple[int, Sequence[Tensor]]] = []
        # Whether a step of this attempt was captured; None before the first step.
        self._captures: bool | None = None
        micro_batch = self.trainer.micro_batch(self.sentences)
        self.gradients = Gradients(context, micro_batch, self.ranks, self.scaler)

    def _curriculum(self, parts: Sequence[Encoded]) -> Passes | Mixed:
        context, size = self.context, self.trainer.batch(self.sentences)
        if not context.hop.mixed:
            by_length = self.trainer.group_by_length
            return Passes(parts, size, self.trainer.epochs, lambda at: context.generator("shuffle", at), by_length)
        steps = self.trainer.steps_of_mixture(self.sentences)
        return Mixed(parts, context.hop.train, size, steps, lambda *at: context.generator("mixture", *at))

    def capture(self, capturer: Capturer) -> None:
        """Capture steps with ``capturer``, if encoder, heads and strategy support CUDA graphs."""
        if self._not_capturable() is None:
            self.captured = CapturedSteps(capturer, self._step, self.trainer.micro_batch(self.sentences))

    def _not_capturable(self) -> str | None:
        """Return why the model cannot be captured in CUDA graphs; None if it can."""
        model = self.context.model
        if has_adapters(model.encoder) or not takes_masks(model.encoder):
            return "this encoder, perhaps with adapters, cannot be captured in CUDA graphs"
        # A graph repeats the weights of its micro-batches, so that they may only depend on the numbers of sentences.
        other = [type(head).__name__ for head in model.heads.values() if type(head).units is not Head.units]
        return f"the loss of {other[0]} is no mean over sentences" if other else None

    def run(self) -> dict[str, Any]:
        """Train, and leave the selected weights in the model.

        Returns:
            The counters of `Position` as a dict; also ``edited: True`` if `Strategy.end_training` changed the weights.

        Raises:
            RunError: the loss is not finite.
            Stopped: a signal was received; a checkpoint was saved.
        """
        self.context.model.packs = self.trainer.packing is True
        try:
            with products(self.context.precision), self._checkpointing():
                return self._run()
        finally:
            self.context.model.packs, self.captured = False, None
            # In eval mode, batches are padded: no wider than necessary.
            self.context.train = {k: replace(sentences, packed=0) for k, sentences in self.context.train.items()}

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """Recompute activations in backward passes inside the block (``trainer.gradient_checkpointing``)."""
        encoder: Any = self.context.model.encoder
        if not self.trainer.gradient_checkpointing:
            yield
            return
        if not encoder.supports_gradient_checkpointing:
            kind = type(encoder).__name__
            raise UsageError(
                f"trainer.gradient_checkpointing=true: {kind} does not support gradient checkpointing; use false"
            )
        encoder.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        try:
            yield
        finally:
            encoder.gradient_checkpointing_disable()

    def _run(self) -> dict[str, Any]:
        reset_peak(self.context.device)
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
                for step in self._steps(main):
                    self._update(step, step.batch is main)
                self._point()
                self.listener.stepped(self._progress())
                due = time.monotonic() - saved > 60 * self.trainer.checkpoint_minutes
                if self.ranks.agree(self.stop.received() is not None or due):
                    self._save()
                    saved = time.monotonic()
                    self.stop.check()
            self._end_epoch()
        self._point(last=True)
        if self.trainer.cuda_graphs and self._captures is False:
            hop = self.context.hop
            reason = self._not_capturable() or "no step of the strategy can be captured in CUDA graphs"
            self.listener.noted(
                f"hop {hop.index} ({hop.name}): cuda_graphs=true only added padding, because {reason}; consider "
                "trainer.cuda_graphs=false"
            )
        if self.trainer.selection is Selection.best:
            self._check_selected()
            load_weights(model, self.best)
        elif self.gathers:
            self.gathered = self.strategy.state_dict()
        edited = self._end_training()
        self._note_peak()
        return asdict(position) | edited

    def _steps(self, main: Batch) -> Iterator[Step]:
        """Yield the strategy's steps of a main mini-batch.

        Raises:
            RunError: a strategy's `steps` yields something else.
        """
        steps: Any = self.strategy.steps(self.position.step, main, self.context)
        for step in steps if isinstance(steps, Iterable) else (steps,):
            if not isinstance(step, Step):
                kind = "nothing" if step is None else f"a {type(step).__name__}"
                raise RunError(f"strategy={self.strategy.name}: steps gives {kind}; use `yield Step(main)`")
            yield step

    def _end_training(self) -> dict[str, Any]:
        """Call the strategy's `end_training`; return ``{"edited": True}`` if the weights changed, else ``{}``."""
        if type(self.strategy).end_training is Strategy.end_training:
            return {}
        before = {name: tensor.clone() for name, tensor in self.context.model.state_dict().items()}
        self.strategy.end_training(self.context)
        now = self.context.model.state_dict()
        same = before.keys() == now.keys() and all(torch.equal(before[name], now[name]) for name in before)
        return {} if same else {"edited": True}

    def _update(self, step: Step, main: bool) -> None:
        """Take one optimiser step; ``main`` is false for replayed batches."""
        position, batch = self.position, step.batch
        factor = lr_factor(position.step - 1, self.steps, self.trainer.schedule, self.trainer.warmup)
        set_lr(self.optimizer, self.trainer.lr * factor)
        self._seed_dropout()
        captured = self.captured if step.repeats and self._laid_out(batch) else None
        self._captures = self._captures or captured is not None
        losses = self._step(step, main) if captured is None else captured.take(step)
        self._losses.append((position.step, losses))
        position.examples += batch.size
        position.tokens += batch.pieces
        position.updates += 1
        position.loss_count += 1
        if position.updates % self.look_every == 0:
            self._add_losses()

    def _laid_out(self, batch: Batch) -> bool:
        """Whether the host packs nothing during a step: a batch without packing, or a part, is packed in the step."""
        whole = batch.size <= self.trainer.micro_batch(self.sentences)
        return self.trainer.packing is not True or (whole and batch.packing is not None)

    def _step(self, step: Step, main: bool = True) -> Sequence[Tensor]:
        """Step the optimiser once, and return the micro-batches' losses."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.gradients.add(step, self._seed_dropout)
        self.scaler.unscale_(self.optimizer)
        if main:
            for observer in self.observers.values():
                observer.look(self.position.step)
        if step.edit is not None:
            step.edit(self.gradients.mean)
        if self.trainer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.context.model.parameters(), self.trainer.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return losses

    def _seed_dropout(self, *part: int) -> None:
        """Seed dropout for an update, or for its micro-batch ``part``; the seed is equal on all ranks."""
        if part and self.trainer.cuda_graphs:
            # A replayed CUDA graph does not run this code, so it cannot change the seed between micro-batches.
            return
        place = self.context.hop.depth, self.position.updates, *part
        _seed(derive(self.context.seed, "dropout", *place), self.context.device)

    def _add_losses(self) -> None:
        """Read the losses since the last call, and add them to the epoch's sum.

        Raises:
            RunError: a loss is not finite.
        """
        if not self._losses:
            return
        losses = torch.stack([loss for _, parts in self._losses for loss in parts]).tolist()
        *losses, examples, tokens = self.ranks.sum([*losses, *self.gradients.beside])
        self.position.beside_examples += int(examples)
        self.position.beside_tokens += int(tokens)
        self.gradients.beside, values = [0, 0], iter(losses)
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
        """Score the dev splits, copy the weights if the score is the best so far, and log the epoch."""
        self._add_losses()
        self._compare_ranks()
        position = self.position
        scores = {}
        for language, encoded in self.dev.items():
            scores[language] = self.evaluator.scores(
                self.evaluator.predict(self.context.model, encoded, language, "dev")
            )
        score = selection_score(scores) if scores else math.nan
        position.epoch += 1
        # An epoch without a dev score, or with an undefined one, is not selected.
        if math.isfinite(score) and (position.best_score is None or score > position.best_score):
            position.best_score, position.best_epoch, position.best_step = score, position.epoch, position.step
            if self.trainer.selection is Selection.best:
                # Free the previous copy first, to save memory.
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
            "dev": {
                language: {name: value for name, value in values.items() if math.isfinite(value)}
                for language, values in scores.items()
            },
        }
        position.epochs.append(facts)
        position.loss_sum, position.loss_count = 0.0, 0
        self.listener.epoch_ended(self._progress(), facts)

    def _check_selected(self) -> None:
        """Raise a `RunError` if dev scores should select an epoch, but no epoch has all of them."""
        position = self.position
        if position.best_score is not None or not self.dev:
            return
        scores, metrics = position.epochs[-1]["dev"], self.evaluator.dataset.metrics
        undefined = [
            f"{metric.name} of '{language}'"
            for language in scores
            for metric in metrics.of(language)
            if metric.name not in scores[language]
        ]
        raise RunError(
            f"hop {self.context.hop.index} ({self.context.hop.name}): no epoch can be selected, because dev scores "
            f"have no value: {', '.join(undefined)}; use trainer.selection=last"
        )

    def _compare_ranks(self) -> None:
        """Check that all ranks have the same weights.

        Raises:
            RunError: the weights differ; a nondeterministic algorithm can cause this.
        """
        if self.ranks.several:
            weights = sum(float(p.detach().double().sum()) for p in self.context.model.parameters())
            if len(set(self.ranks.gather(weights))) > 1:
                raise RunError("the weights of the ranks differ; use runtime.deterministic=true or a single device")

    def _point(self, last: bool = False) -> None:
        """Take an evaluation point if one is due, or if training ends (``last``)."""
        position, points = self.position, self.points
        if points is None or (position.points and position.points[-1]["step"] == position.step):
            return
        seen = self.curriculum.seen(position.step)
        if not last and not (position.step and points.due(self.curriculum.seen(position.step - 1), seen)):
            return
        # Fail before evaluating a model whose loss was not finite.
        self._add_losses()
        began = time.monotonic()
        try:
            facts = points.take(position.step, position.examples, seen)
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

    def _note_peak(self) -> None:
        self.position.peak_bytes = max(self.position.peak_bytes, peak_bytes(self.context.device))

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
        """Write a checkpoint; only rank 0 writes it."""
        self._add_losses()
        if self.ranks.rank:
            return
        self._note_peak()
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
        """Resume from the newest checkpoint, if there is one."""
        checkpoint = self.checkpoints.load()
        if checkpoint is None:
            return
        facts, tensors = checkpoint
        if (unchanged := self.began_with.named(facts.pop("unchanged"))) is None:
            self.checkpoints.warn("the checkpoint belongs to another state of the strategy; restarting the hop")
            return
        if self.points is not None and not self.points.has(facts["points"]):
            self.checkpoints.warn("files of evaluation points are missing; restarting the hop")
            return
        kinds = ("model", "best", "optimizer", "strategy", "gathered", *self.observers)
        groups: dict[str, dict[str, Tensor]] = {kind: {} for kind in kinds}
        for key, tensor in tensors.items():
            group, name = key.split("/", 1)
            groups[group][name] = tensor
        load_weights(self.context.model, groups["model"])
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
        self.listener.noted(
            f"resuming at hop {p.hop.index} ({p.hop.name}), epoch {p.epoch}, step {p.step} of {p.steps}"
        )
