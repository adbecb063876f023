"""Weight-space merging: evaluate a merge of the models of all hops so far, without further training.

Let θ_0 be the weights before any hop, and θ_1 … θ_i the trained weights of the hops so far. The evaluation after hop i
merges them by a method in `xclrun.strategy.shared.merging` (Ilharco et al. 2023; Yadav et al. 2023; Yu et al. 2024;
Matena & Raffel 2022). All parameters are merged, including the heads, which descend from the same initial values.

Settings:

- ``start`` selects the weights with which each hop starts. ``pretrained``: θ_0, as in ``lang_spec_ft`` (continual
  learning without a sequence). ``previous``: the unmerged model of the previous hop, as in ``naive``. In both cases,
  all training is shared with runs of the named strategy. ``merged``: the merge of the previous hop; at the end of its
  training, each hop after the first merges two models, its initial and its trained weights. ``revert`` undoes changes
  at the end of every hop.
- ``method`` selects the merging method. The next settings are the coefficients of the methods.
- ``scale`` is λ of ``task_arithmetic``, ``dare`` and ``ties``. If null, λ is 1 for ``ties`` and 0.4 for the other two.
  The TIES paper recommends 0.4 for task arithmetic without validation data.
- ``density`` belongs to ``ties`` (0.2 in its paper).
- ``drop`` is p of ``dare``. The default 0.9 is a value of the paper for one model; for merging, the authors' code
  searches 0.1 to 0.9.
- ``decay`` is β of ``exponential_mean``.
- ``share``, ``reverted``, ``strength``, ``layers`` belong to ``revert``, which undoes a ``share`` of the changes of the
  last model: the ``smallest`` or the ``largest`` changes (``reverted``). A ``strength`` of 1 undoes a change fully.
  ``layers`` limits ``revert`` to some layers (0: embeddings; null: all parameters).
- ``fisher_examples`` belongs to ``fisher``, which weights the models by their diagonal Fisher information on this
  number of training sentences of their hops (null: all sentences). Deviations from Matena & Raffel: the gradients are
  those of the gold labels, as in ``ewc``, instead of an expectation over the model's predictions; the models have equal
  coefficients; the Fisher information is not normalised. A model with a low training loss therefore gets low weights.
- ``merged`` is another strategy whose hops are merged (`xclrun model merge RUN` sets this key). If null, this is
  ``lang_spec_ft`` or ``naive``, depending on ``start``.

Choose coefficients on dev data (`xclrun model merge RUN --select-on dev`): the dev scores after the last hop select one
value, which all earlier merges also use. Dev scores in training and evaluation points inside hops use unmerged weights.

Cost: no training. Merging reads the weights of all hops so far: 4 bytes per weight and hop in memory. ``fisher`` needs
a forward and backward pass over the sentences, and 4 bytes of state per weight and hop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.config.schema import StrategyConfig
from xclrun.core.errors import UsageError
from xclrun.core.stream import Hop, Stream
from xclrun.model.structure import is_embedding, layer
from xclrun.strategy import make
from xclrun.strategy.base import Context, Length, Library, Parameters, Plan, State, Strategy, bounded
from xclrun.strategy.lang_spec_ft import LangSpecFT
from xclrun.strategy.naive import Naive
from xclrun.strategy.shared.steps import Step

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.core.task import Task
    from xclrun.data.batches import Batch
    from xclrun.model.families import Family
    from xclrun.model.network import Model


class Method(Enum):
    mean = "mean"
    exponential_mean = "exponential_mean"
    task_arithmetic = "task_arithmetic"
    ties = "ties"
    dare = "dare"
    slerp = "slerp"
    fisher = "fisher"
    revert = "revert"


class Start(Enum):
    pretrained = "pretrained"
    previous = "previous"
    merged = "merged"


class Reverted(Enum):
    smallest = "smallest"
    largest = "largest"


@dataclass
class MergeSettings(StrategyConfig):
    merged: StrategyConfig | None = field(default=None, kw_only=True)
    method: Method = Method.task_arithmetic
    start: Start = Start.pretrained
    scale: float | None = bounded(None, at_least=0)
    density: float = bounded(0.2, at_least=0, at_most=1)
    drop: float = bounded(0.9, at_least=0, below=1)
    decay: float = bounded(0.5, at_least=0, at_most=1)
    share: float = bounded(0.5, at_least=0, at_most=1)
    strength: float = bounded(1.0, at_least=0, at_most=1)
    reverted: Reverted = Reverted.smallest
    layers: list[int] | None = None
    fisher_examples: int | None = bounded(None, at_least=1)


# Method → the settings that it uses; all other settings have no effect.
SETTINGS: Mapping[Method, tuple[str, ...]] = {
    Method.mean: (),
    Method.exponential_mean: ("decay",),
    Method.task_arithmetic: ("scale",),
    Method.ties: ("scale", "density"),
    Method.dare: ("scale", "drop"),
    Method.slerp: (),
    Method.fisher: ("fisher_examples",),
    Method.revert: ("share", "strength", "reverted", "layers"),
}

# Group of a hop's Fisher information in its state.
GROUP = "merge.fisher"


def settings_for(source: StrategyConfig, method: Method) -> MergeSettings:
    """Return settings that merge the hops of a run; ``source`` are the settings of the run's strategy."""
    hops = make(source).stream(("a", "b")).hops
    start = Start.pretrained if all(hop.depth <= 1 for hop in hops) else Start.previous
    # These two strategies follow from `start`, so `merged` stays null.
    plain = source.name in (Naive.name, LangSpecFT.name) and getattr(source, "expansion", None) is None
    return MergeSettings("merge", method=method, start=start, merged=None if plain else source)


def _unsupported(strategy: Strategy[Any]) -> str | None:
    """Return why a strategy's models cannot be merged; None if they can."""
    hops = strategy.stream(("a", "b")).hops
    # The strategy may have an expansion, which then adds the parameters.
    if getattr(strategy, "expansion", strategy).adds_language_parameters:
        return "languages do not share all weights, so there is no model of all languages to merge"
    if any(plan.serve or plan.still for plan in map(strategy.plan, hops)):
        return "a merge combines plain weights, but this strategy adds parameters or changes predictions"
    return "it has one hop; a merge needs several" if len(hops) < 3 else None


class Merge(Strategy[MergeSettings]):
    """Evaluation of merged models.

    Attributes:
        source: the strategy that trains the models.
    """

    name = "merge"
    settings_type = MergeSettings

    def __init__(self, settings: MergeSettings) -> None:
        super().__init__(settings)
        self.source = make(self._trained_by())
        if settings.merged is not None and (reason := _unsupported(self.source)) is not None:
            raise UsageError(f"strategy=merge strategy.merged={settings.merged.name}: {reason}")
        if settings.method is Method.fisher and settings.start is Start.merged:
            raise UsageError(
                "strategy.method=fisher strategy.start=merged: Fisher information is estimated after a hop, but the "
                "hop ends with the merge; use strategy.start=previous"
            )
        vars(self).update(updates_in_training=self.source.updates_in_training)
        self.before: dict[str, Tensor] = {}
        # Parameter name → diagonal Fisher information on the last hop's sentences.
        self.fisher: dict[str, Tensor] = {}
        self._in_hop = False
        self._cache: tuple[int, dict[str, Tensor]] = (0, {})

    def _trained_by(self) -> StrategyConfig:
        plain = LangSpecFT if self.settings.start is Start.pretrained else Naive
        return self.settings.merged or plain.settings_type(plain.name)

    def merges_in_training(self, hop: Hop) -> bool:
        """Return whether the training of a hop ends with a merge; `revert` needs no earlier hop."""
        first = 1 if self.settings.method is Method.revert else 2
        return self.settings.start is Start.merged and hop.depth >= first

    # Called when a run is planned.

    def described(self) -> dict[str, Any]:
        unused = {key for keys in SETTINGS.values() for key in keys} - set(SETTINGS[self.settings.method])
        described = {key: value for key, value in super().described().items() if key not in (*unused, "merged")}
        # `RENAMED` in `xclrun.core.identity`.
        return described | {"expansion": None if self.settings.merged is None else self.source.described()}

    def version_id(self) -> int | str:
        version = super().version_id()
        return version if self.settings.merged is None else f"{version}+{self.source.version_id()}"

    def stream(self, order: Sequence[str]) -> Stream:
        # A sequence, even if the merged models are independent: the merge after hop i has learned languages 1 … i.
        return replace(self.source.stream(order), kind="sequence")

    def plan(self, hop: Hop) -> Plan:
        plan, weighted = self.source.plan(hop), self.settings.method is Method.fisher
        serves = hop.depth > 0 and self.settings.start is not Start.merged
        fisher = {"name": self.name, "version": self.version, "examples": self.settings.fisher_examples}
        return replace(
            plan,
            train=self.described() if self.merges_in_training(hop) else plan.train,
            state={**fisher, "trained": plan.state} if weighted else plan.state,
            serve=self.described() if serves else {},
            points=plan.at_points,
            reads=range(1, hop.index + 1) if serves else (),
            states=range(1, hop.index) if weighted else (),
        )

    def merged_strategy(self) -> StrategyConfig | None:
        return None if self.settings.start is Start.merged else self._trained_by()

    def unsupported(self, tasks: Sequence[Task]) -> str | None:
        if len(tasks) > 1:
            return "the merge would dilute the heads of each task with hops that do not train this task"
        return self.source.unsupported(tasks)

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        notes, s = list(self.source.notes(lengths)), self.settings
        if s.start is Start.previous and s.scale is None and s.method in (Method.task_arithmetic, Method.dare):
            notes.append(
                f"strategy.method={s.method.value} strategy.start=previous: models trained one after another share "
                "most of their changes, so the sum is too large; choose strategy.scale on dev data, or use method=mean"
            )
        return notes

    def check_encoder(self, family: Family | None, width: int | None, layers: int | None) -> None:
        self.source.check_encoder(family, width, layers)
        if self.settings.layers == []:
            raise UsageError("strategy.layers=[]: names no layer to undo changes in; list layers, or use null for all")
        for number in self.settings.layers or ():
            if layers is not None and not 0 <= number <= layers:
                raise UsageError(f"strategy.layers: the encoder has no layer {number}, only 0 (embeddings) to {layers}")

    @property
    def parameters(self) -> Parameters:
        # One merged model is evaluated on all languages, however many models were trained.
        return replace(self.source.parameters, language_specific=lambda name: False)

    # Training: delegated to the other strategy.

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        import torch

        self.source.prepare(model, stream, library)
        self.model, self.library, self.hops, self.seed = model, library, stream.hops, torch.initial_seed()
        self.base = {name: p.detach().clone() for name, p in model.named_parameters()}

    def choose(self, context: Context) -> Mapping[str, np.ndarray]:
        return self.source.choose(context)

    def begin_hop(self, context: Context) -> None:
        self.source.begin_hop(context)
        self._in_hop, self.before = True, {}
        if self.merges_in_training(context.hop):
            self.before = {name: p.detach().clone() for name, p in context.model.named_parameters()}

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        return self.source.steps(number, main, context)

    def end_training(self, context: Context) -> None:
        self.source.end_training(context)
        self._in_hop = False
        if self.before:
            trained = {name: p.detach() for name, p in context.model.named_parameters()}
            self._set(self.merged([self.before, trained]))
            self.before = {}

    def end_hop(self, context: Context) -> None:
        from xclrun.strategy.shared.fisher import diagonal_fisher
        from xclrun.strategy.shared.penalty import mean_over_hop

        self.source.end_hop(context)
        if self.settings.method is Method.fisher:
            self.fisher = mean_over_hop(context, "fisher", self.settings.fisher_examples, diagonal_fisher)

    def footprint(self) -> dict[str, int]:
        size = self.source.footprint()
        return {**size, "bytes": size["bytes"] + sum(tensor.nbytes for tensor in self.fisher.values())}

    def state_dict(self) -> State:
        state = self.source.state_dict()
        return State(state.facts, state.tensors | {f"{GROUP}/{name}": t for name, t in self.fisher.items()})

    def load_state_dict(self, state: State) -> None:
        from xclrun.strategy.shared.penalty import tensor_group

        self.fisher = tensor_group(state, GROUP)
        trained = {key: tensor for key, tensor in state.tensors.items() if not key.startswith(f"{GROUP}/")}
        self.source.load_state_dict(State(state.facts, trained))

    # Evaluation of the merge.

    def for_language(self, language: str, seen: Sequence[str]) -> None:
        learned = [hop.index for hop in self.hops[1:] if {*hop.train} <= {*seen}]
        if self._in_hop or not learned or self.settings.start is Start.merged:
            return
        last = max(learned)
        if self._cache[0] != last:
            models = [self.library.tensors(index, list(self.base)) for index in range(1, last + 1)]
            self._cache = last, self.merged(models)
        self._set(self._cache[1])

    def merged(self, models: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return the merge of models by the method of the settings."""
        from xclrun.strategy.shared import merging
        from xclrun.strategy.shared.penalty import tensor_group

        s, device = self.settings, next(iter(models[-1].values())).device
        base = {name: tensor.to(device) for name, tensor in self.base.items()}
        if s.method is Method.mean:
            return merging.mean(models)
        if s.method is Method.exponential_mean:
            return merging.exponential_mean(models, s.decay)
        if s.method is Method.slerp:
            return merging.spherical_mean(models)
        if s.method is Method.fisher:
            earlier = self.plan(self.hops[len(models)]).states
            fisher = [*(tensor_group(self.library.state(index), GROUP) for index in earlier), self.fisher]
            return merging.weighted_mean(models, fisher)
        if s.method is Method.revert:
            return merging.revert(base, models[-1], s.share, s.reverted is Reverted.largest, s.strength, self._reverted)
        scale = s.scale if s.scale is not None else 1.0 if s.method is Method.ties else 0.4
        if s.method is Method.ties:
            return merging.ties(base, models, s.density, scale)
        if s.method is Method.dare:
            return merging.dare(base, models, s.drop, scale, self.seed)
        return merging.task_arithmetic(base, models, scale)

    def _reverted(self, parameter: str) -> bool:
        layers = self.settings.layers
        return layers is None or (0 if is_embedding(parameter) else layer(parameter)) in layers

    def _set(self, weights: Mapping[str, Tensor]) -> None:
        import torch

        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in weights.items():
                parameters[name].copy_(tensor)
