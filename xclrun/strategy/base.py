"""The interface of a strategy: how a hop is learned without forgetting the earlier ones.

A strategy is one file here, one YAML in ``conf/strategy`` and one test. The training loop is the only place that steps
the optimiser; it calls the hooks below and knows no strategy by name. Strategy modules import torch inside the hooks
that need it, so that ``xclrun plan`` starts fast.

Order of the calls in a run::

    prepare → for each hop: begin_hop → (for each main mini-batch: steps) … → end_training → end_hop →
    (for each evaluated language: for_language → predict …)

`Strategy.plan` returns all that is known about a hop before it runs, above all what can change its results
(`xclrun.core.graph.Plan`). The default is always safe: only runs with the same strategy and settings then share a
result. A plug-in that extends another strategy than `Strategy` and overrides a hook of `HOOKS` must define `plan` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from xclrun.config.schema import StrategyConfig
from xclrun.config.schema import bounded as bounded
from xclrun.core.errors import UsageError
from xclrun.core.graph import Plan as Plan
from xclrun.core.identity import LATER, derive
from xclrun.core.plugins import place
from xclrun.core.stream import BEFORE, Hop, Stream, sequence
from xclrun.core.task import Task
from xclrun.strategy.shared.steps import Step

if TYPE_CHECKING:
    import torch

    from xclrun.data.batches import Batch, Encoded
    from xclrun.model.families import Family
    from xclrun.model.heads import Prediction
    from xclrun.model.network import Model


@dataclass
class Context:
    """Data, model and settings that are available to a hook.

    Attributes:
        train: language → its encoded training split.
        batch_size: sentences in a mini-batch.
        precision: autocast type of the run (``fp32``, ``bf16``, ``fp16``).
        check_stop: function that raises an error if the run was asked to stop. Call it repeatedly in long computations.
    """

    model: Model
    hop: Hop
    stream: Stream
    train: Mapping[str, Encoded]
    device: torch.device
    seed: int
    batch_size: int
    precision: str = "fp32"
    check_stop: Callable[[], None] = lambda: None

    def generator(self, purpose: str, *position: int | str) -> np.random.Generator:
        """Return the random generator for ``purpose`` at ``position`` in this hop, independent of all other draws."""
        return np.random.Generator(np.random.PCG64(derive(self.seed, purpose, self.hop.depth, *position)))

    def batch(self, language: str, indices: np.ndarray) -> Batch:
        """Return training sentences of ``language`` as a batch on the device."""
        return self.train[language].batch(indices).to(self.device)


@dataclass
class State:
    """The state that a strategy carries from hop to hop, stored without pickle; ``facts`` are JSON values."""

    facts: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Length:
    """Upper bounds on the length of a hop's training.

    Attributes:
        sentences: size of the training data.
        steps: main steps in all epochs together.
        examples: training sentences processed in these steps, with repetitions.
        points: whether the model is evaluated inside the hop.
    """

    hop: Hop
    sentences: int
    steps: int
    examples: int
    points: bool


@dataclass(frozen=True)
class Parameters:
    """How a strategy treats the parameters of the model, which are given by their names.

    Attributes:
        trains: (name, hop) → whether the hop trains a parameter; ignored for parameters that `Strategy.prepare` froze.
        language_specific: name → whether every language has its own values of a parameter.
        prompt_tokens: number of prompt tokens that the model has in front of each text.
        encoder_frozen: whether the encoder's own weights are frozen in all hops.
        adapters: settings of the language adapters of the strategy or its expansion; None without adapters.
    """

    trains: Callable[[str, Hop], bool] = lambda name, hop: True
    language_specific: Callable[[str], bool] = lambda name: False
    prompt_tokens: int = 0
    encoder_frozen: bool = False
    adapters: StrategyConfig | None = None


class Library(Protocol):
    """Stored artifacts of a run: weights and states of earlier hops, and features of the encoder before training."""

    def tensors(self, hop: int, names: Sequence[str]) -> Mapping[str, torch.Tensor]:
        """Return the weights with these names after a hop (1 or later), on the CPU."""

    def state(self, hop: int) -> State:
        """Return the strategy's state after a hop; the hop must be in `Plan.states`."""

    def features(self, language: str, split: str) -> np.ndarray:
        """Return the [CLS] states of a split from the encoder of hop 0 in eval mode: (n, H) float32.

        Available only with `Plan.features`: for the training splits of the languages learned so
        far, and for the test splits of all languages.
        """


Settings = TypeVar("Settings", bound=StrategyConfig)

# Hook → the entries of `Plan` that must contain everything in the hook that can change results.
HOOKS: Mapping[str, tuple[str, ...]] = {
    "prepare": ("train", "serve"),
    "begin_hop": ("train",),
    "steps": ("train",),
    "end_training": ("train",),
    "choose": ("train",),
    "end_hop": ("state",),
    "state_dict": ("state",),
    "load_state_dict": ("state",),
    "for_language": ("serve",),
    "predict": ("serve",),
}


class Strategy(Generic[Settings]):
    """Base of all strategies; its default hooks are plain sequential fine-tuning.

    Attributes:
        name: name of the strategy (``strategy=NAME``) and of its module in this package.
        settings_type: dataclass of the strategy's settings: the schema of its YAML.
        version: increase it when a code change alters results; this changes run IDs and stage keys.
        expandable: whether the strategy can be combined with language-specific parameters (``strategy.expansion``).
        expands: whether the strategy only adds parameters and can therefore be an expansion.
        adds_language_parameters: whether the strategy gives each language its own parameters.
        parts_per_hop: whether the strategy adds parameters for each hop; the model's size then depends on the stream.
        has_adapters: whether the strategy adds language adapters; its settings then include ``pretrained``.
        mixes_languages: whether a batch can contain sentences of several languages.
        updates_in_training: whether training itself changes the state, as with a reservoir. The state is then stored
            together with the selected weights, and `end_hop` continues from this state. In hops with an empty
            `Plan.train`, training must leave the state unchanged.
        cannot_write: why the strategy cannot train models that write texts (`Task.writes`); empty if it can.
    """

    name: ClassVar[str] = ""
    settings_type: ClassVar[type[StrategyConfig]] = StrategyConfig
    version: ClassVar[int] = 1
    expandable: ClassVar[bool] = False
    expands: ClassVar[bool] = False
    adds_language_parameters: ClassVar[bool] = False
    parts_per_hop: ClassVar[bool] = False
    has_adapters: ClassVar[bool] = False
    mixes_languages: ClassVar[bool] = False
    updates_in_training: ClassVar[bool] = False
    cannot_write: ClassVar[str] = ""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    # Called when a run is planned.

    def stream(self, order: Sequence[str]) -> Stream:
        """Return the hops for an order; default: one language after another."""
        return sequence(order)

    def plan(self, hop: Hop) -> Plan:
        """Return all that is known about a hop before it runs.

        By default, every result that an overridden hook can change depends on name, version and settings, so runs with
        other strategies or settings share none of these results.
        """
        changed = {kind for hook, kinds in HOOKS.items() if _overrides(type(self), hook) for kind in kinds}
        described = self.described()
        return Plan(
            train=described,
            state=described if "state" in changed else None,
            serve=described if "serve" in changed else {},
        )

    def merged_strategy(self) -> StrategyConfig | None:
        """Return the settings of the strategy that trains the models if this strategy only merges models.

        Strategies that train their own models return None.
        """
        return None

    def unsupported(self, tasks: Sequence[Task]) -> str | None:
        """Return why the strategy cannot learn these tasks in one model; None if it can."""
        return None

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        """Return warnings about ineffective settings, one line each, for a run with hops of these lengths."""
        return ()

    def check_encoder(self, family: Family | None, width: int | None, layers: int | None) -> None:
        """Raise a `UsageError` if the strategy cannot work with an encoder.

        All arguments are None if the encoder's files are not available.

        Args:
            width: hidden size H.
        """

    @property
    def parameters(self) -> Parameters:
        """How the strategy treats the parameters of the model."""
        return Parameters()

    def version_id(self) -> int | str:
        """Return the version of the strategy for the run ID, which also contains the settings."""
        return self.version

    def described(self) -> dict[str, Any]:
        """Return name, version and settings.

        Settings added in a later release (`LATER`) are left out while they have the value that keeps the old behavior,
        so existing IDs do not change.
        """
        settings = {key: v.value if isinstance(v, Enum) else v for key, v in asdict(self.settings).items()}
        stored = {key: value for key, value in settings.items() if LATER.get(f"strategy.{key}", self) != value}
        return {**stored, "version": self.version}

    # Called by the training loop.

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        """Add parameters to an untrained model and freeze those that are not trained.

        Called on the CPU. Initialise new parameters with torch's global generator, which is seeded.
        """

    def choose(self, context: Context) -> Mapping[str, np.ndarray]:
        """Select the training sentences of a hop: language → indices; a missing language keeps all its sentences.

        Called before `begin_hop`. Inside the hop ``context.train`` contains only these sentences.
        """
        return {}

    def begin_hop(self, context: Context) -> None:
        """Prepare the strategy for a hop, for example activate or freeze parameters."""

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        """Yield the optimiser steps of a main mini-batch; default: one step on it with the model's own loss.

        The loop takes each step before it asks for the next one.

        Args:
            number: number of main mini-batches in this hop so far, including this one.
            main: the mini-batch of the hop's own data.
        """

        yield Step(main)

    def end_training(self, context: Context) -> None:
        """Change the selected weights in place after the last step, before they are stored."""

    def end_hop(self, context: Context) -> None:
        """Update the state after a hop: fill the memory, compute the Fisher information, store teacher outputs.

        The model is in eval mode. The result must depend only on the trained model, the data, the seed and the earlier
        state, because the trained model can be loaded from the store, without any call of the training hooks.
        """

    def for_language(self, language: str, seen: Sequence[str]) -> None:
        """Activate the parameters for evaluating ``language``; ``seen`` are the languages learned so far."""

    def predict(self, batch: Batch, language: str, split: str, context: Context) -> Prediction:
        """Return the predictions for a batch in evaluation; default: the model's own.

        The model is in eval mode and must not be changed. Dev scores that select an epoch always use the model's own
        predictions.

        Args:
            batch: on the device; ``indices`` are positions in the split.
            context: context of the hop whose model is evaluated.
        """
        return context.model.predict(batch)

    def footprint(self) -> dict[str, int]:
        """Return the size of the state: ``examples`` in memory, and ``bytes``; default: those of its tensors."""
        return {"examples": 0, "bytes": sum(tensor.nbytes for tensor in self.state_dict().tensors.values())}

    def state_dict(self) -> State:
        """Return everything that the next hop needs.

        If a hop's `Plan.train` is empty, only `end_hop` may change the state.

        Checkpoints inside a hop omit tensors that have not changed since the hop began. To be recognised as changed, a
        tensor must be a new object or be changed by torch operations, not through numpy or ``.data``.
        """
        return State()

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""


def check_hooks(strategy: type[Strategy[Any]] | Strategy[Any]) -> None:
    """Raise a `UsageError` if a plug-in overrides a hook but inherits another strategy's `plan`, or assigns a hook.

    Called when a class is registered, and when a strategy is created, because hooks can be assigned in between.
    """
    cls, assigned = (strategy, {}) if isinstance(strategy, type) else (type(strategy), vars(strategy))
    name, plan = place(cls), _depth(cls, "plan")
    for hook, entries in HOOKS.items():
        if hook in assigned:
            raise UsageError(f"{name}: assigns {hook} to the object; define {hook} and plan in the class")
        # Compare positions in the method resolution order, so that the hooks of a mixin count too.
        if (depth := _depth(cls, hook)) < plan and not packaged(cls.__mro__[depth]) and cls.plan is not Strategy.plan:
            own = ", ".join(f"{entry}=self.described()" for entry in entries)
            raise UsageError(
                f"{name}: overrides {hook} but inherits plan from {cls.__mro__[plan].__name__}, and would share its "
                f"results; define plan in the same class, for example: return replace(super().plan(hop), {own})"
            )


def packaged(cls: type) -> bool:
    """Return whether a class is part of xclrun, and not of a plug-in."""
    return cls.__module__.startswith("xclrun.")


def adds_parameters(strategy: Strategy[Any]) -> bool:
    """Return whether the model before fine-tuning has parameters that `Strategy.prepare` added."""
    return bool(strategy.plan(BEFORE).serve)


def _overrides(cls: type[Strategy[Any]], hook: str) -> bool:
    return getattr(cls, hook) is not getattr(Strategy, hook)


def _depth(cls: type, name: str) -> int:
    """Return the index, in a class's method resolution order, of the class that defines an attribute."""
    return next(i for i, base in enumerate(cls.__mro__) if name in vars(base))
