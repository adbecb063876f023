"""The interface of a strategy: how a hop is learned without forgetting the earlier ones.

A strategy is one file here, one YAML in ``conf/strategy`` and one test. The training loop is the only place that steps
the optimiser; it calls the hooks below and knows no strategy by name. Strategy modules import torch inside the hooks
that need it, so that ``xclrun plan`` starts fast.

Order of the calls in a run::

    prepare → for each hop: begin_hop → (for each step: replay → loss → edit_gradients) … → end_training → end_hop →
    (for each evaluated language: for_language → predict …)

A signature is a dict of everything about a strategy that can change a stored result: usually its name, version and
settings. Runs with equal signatures share the result. `HOOK_SIGNATURES` assigns a signature method to each hook that
can change results. A class that overrides such a hook must also define this method; otherwise the class is refused.
``signature = Strategy.signature`` is always safe: only runs with the same strategy and settings then share a trained
hop. If a signature omits the name or a setting, strategies that differ in the omitted value share the hop. Omit the
name or a setting only if all strategies that differ in it train the hop identically, and add a test that the results
are bit-identical.
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
from xclrun.strategy.shared.steps import MeanGradient, Step

if TYPE_CHECKING:
    import torch

    from xclrun.data.batches import Batch, Encoded
    from xclrun.model.families import Family
    from xclrun.model.network import Model, Prediction


@dataclass
class Context:
    """Data, model and settings that are available to a hook.

    Attributes:
        train: language → its encoded training split.
        batch_size: sentences in a mini-batch.
        precision: autocast type of the run (``fp32``, ``bf16``, ``fp16``).
        observe_batch: function that counts the sentences of a memory batch. Call it for each memory batch that a step
            uses.
        check_stop: function that raises an error if the run was asked to stop. Call it repeatedly in long computations.
        gather: function that takes a list of this process's values for its micro-batches and returns the values of all
            processes in one list, in any order.
    """

    model: Model
    hop: Hop
    stream: Stream
    train: Mapping[str, Encoded]
    device: torch.device
    seed: int
    batch_size: int
    precision: str = "fp32"
    observe_batch: Callable[[Batch], None] = lambda batch: None
    check_stop: Callable[[], None] = lambda: None
    gather: Callable[[list[Any]], list[Any]] = lambda values: values

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


class Library(Protocol):
    """Stored artifacts of a run: weights and states of earlier hops, and features of the encoder before training."""

    def tensors(self, hop: int, names: Sequence[str]) -> Mapping[str, torch.Tensor]:
        """Return the weights with these names after a hop (1 or later), on the CPU."""

    def state(self, hop: int) -> State:
        """Return the strategy's state after a hop; the hop must be in `Strategy.states_read_in_evaluation`."""

    def features(self, language: str, split: str) -> np.ndarray:
        """Return the [CLS] states of a split from the encoder of hop 0 in eval mode: (n, H) float32.

        Available only if `Strategy.reads_features` returns True: for the training splits of the languages learned so
        far, and for the test splits of all languages.
        """


Settings = TypeVar("Settings", bound=StrategyConfig)

# Hook → signature method that must return everything in the hook that can change results.
HOOK_SIGNATURES: Mapping[str, str] = {
    "prepare": "signature",
    "begin_hop": "signature",
    "steps": "signature",
    "replay": "signature",
    "loss": "signature",
    "edit_gradients": "signature",
    "end_training": "signature",
    "choose": "signature",
    "keeps_encoder": "signature",
    "end_hop": "state_signature",
    "state_dict": "state_signature",
    "load_state_dict": "state_signature",
    "for_language": "serving_signature",
    "predict": "serving_signature",
}


class Strategy(Generic[Settings]):
    """Base of all strategies; its default hooks are plain sequential fine-tuning.

    Attributes:
        name: name of the strategy (``strategy=NAME``) and of its module in this package.
        settings_type: dataclass of the strategy's settings: the schema of its YAML.
        version: increase it when a code change alters results; this changes run IDs and stage keys.
        expandable: whether the strategy can be combined with language-specific parameters (``strategy.expansion``).
        expands: whether the strategy only adds parameters and can therefore be an expansion.
        adds_language_parts: whether the strategy gives each language its own parameters.
        parts_per_hop: whether the strategy adds parameters for each hop; the model's size then depends on the stream.
        has_adapters: whether the strategy adds language adapters; its settings then include ``pretrained``.
        freezes_encoder: whether the encoder's own weights are frozen in all hops.
        mixes_languages: whether a batch can contain sentences of several languages.
        updates_in_training: whether training itself changes the state, as with a reservoir. The state is then stored
            together with the selected weights, and `end_hop` continues from this state. In hops with an empty
            `signature`, training must leave the state unchanged.
    """

    name: ClassVar[str] = ""
    settings_type: ClassVar[type[StrategyConfig]] = StrategyConfig
    version: ClassVar[int] = 1
    expandable: ClassVar[bool] = False
    expands: ClassVar[bool] = False
    adds_language_parts: ClassVar[bool] = False
    parts_per_hop: ClassVar[bool] = False
    has_adapters: ClassVar[bool] = False
    freezes_encoder: ClassVar[bool] = False
    mixes_languages: ClassVar[bool] = False
    updates_in_training: ClassVar[bool] = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class that overrides a hook but inherits its signature: runs would load the base class's results."""
        super().__init_subclass__(**options)
        check_signatures(cls)

    # Called when a run is planned.

    def stream(self, order: Sequence[str]) -> Stream:
        """Return the hops for an order; default: one language after another."""
        return sequence(order)

    def plan(self, hop: Hop) -> Plan:
        """Return all that is known about a hop before it runs."""
        return Plan(
            train=self.signature(hop),
            state=self.state_signature(hop),
            serve=self.serving_signature(hop),
            points=self.points_signature(hop),
            reads=self.hops_read_in_evaluation(hop),
            states=self.states_read_in_evaluation(hop),
            trains_with=self.hops_read_in_training(hop),
            features=self.reads_features(hop),
            still=self.keeps_encoder(hop),
            limit=self.limit(hop),
        )

    def signature(self, hop: Hop) -> dict[str, Any]:
        """Return everything about the strategy that can change the *training* of ``hop``.

        Empty if the hop is trained as in `naive`.
        """
        return self.described()

    def state_signature(self, hop: Hop) -> dict[str, Any] | None:
        """Return everything that can change the strategy's state after ``hop``; None without a state."""
        return None

    def serving_signature(self, hop: Hop) -> dict[str, Any]:
        """Return everything that can change the *evaluation* after ``hop``, in addition to the trained weights.

        Must not be empty if `for_language` changes the model, `predict` is overridden, or `prepare` adds parameters.
        """
        return {}

    def points_signature(self, hop: Hop) -> dict[str, Any]:
        """Return everything that can change evaluations inside ``hop``; empty if the model's own `predict` is used."""
        return self.serving_signature(hop)

    def hops_read_in_evaluation(self, hop: Hop) -> Sequence[int]:
        """Return the hops whose weights `for_language` may read in the evaluation after ``hop``."""
        return ()

    def states_read_in_evaluation(self, hop: Hop) -> Sequence[int]:
        """Return earlier hops whose states `for_language` may read in the evaluation after ``hop``.

        These hops must be among `hops_read_in_evaluation`. `serving_signature` must contain the complete
        `state_signature` of each of these hops.
        """
        return ()

    def hops_read_in_training(self, hop: Hop) -> Sequence[int]:
        """Return the hops whose weights the training of ``hop`` may read."""
        return ()

    def revisited(self, hop: Hop, stream: Stream) -> Sequence[str]:
        """Return the languages of earlier hops whose training data the training of ``hop`` reads without a memory."""
        earlier = {key for past in stream.hops[1 : hop.index] for key in past.train}
        return [key for key in hop.train if key in earlier]

    def reads_features(self, hop: Hop) -> bool:
        """Return whether `predict` reads `Library.features` in the evaluation after ``hop``."""
        return False

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

    def limit(self, hop: Hop) -> int | None:
        """Return the maximum number of training sentences of a hop if `choose` selects a subset, otherwise None."""
        return None

    def check_encoder(self, family: Family | None, width: int | None, layers: int | None) -> None:
        """Raise a `UsageError` if the strategy cannot work with an encoder.

        All arguments are None if the encoder's files are not available.

        Args:
            width: hidden size H.
        """

    def prompt_tokens(self) -> int:
        """Return the number of prompt tokens that the model has in front of each text."""
        return 0

    def keeps_encoder(self, hop: Hop) -> bool:
        """Return whether the training of ``hop`` leaves the encoder unchanged and in eval mode.

        The encoder's features are then computed once per sentence, to train the heads.
        """
        return False

    def trains(self, parameter: str, hop: Hop) -> bool:
        """Return whether ``hop`` trains the parameter with this name; ignored for parameters that `prepare` froze."""
        return True

    def language_specific(self, parameter: str) -> bool:
        """Return whether every language has its own values of a parameter, given by its name in the model."""
        return False

    @property
    def adapters(self) -> StrategyConfig | None:
        """Settings of the language adapters of this strategy or its expansion; None without adapters."""
        return self.settings if self.has_adapters else None

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
        """Return the optimizer steps of a main mini-batch; default: one step on it with the model's own loss.

        The loop takes each step before it asks for the next one.

        Args:
            number: number of main mini-batches in this hop so far, including this one.
            main: the mini-batch of the hop's own data.
        """

        def edit(mean_gradient: MeanGradient) -> None:
            self.edit_gradients(context)

        for batch in self.replay(number, main, context):
            yield Step(batch, lambda part, rows: self.loss(part, context), edit=edit, hooks=self)

    def replay(self, step: int, main: Batch, context: Context) -> Iterable[Batch]:
        """Return the batches to train on in this step, one optimiser step each; default: only the main mini-batch.

        Args:
            step: number of main mini-batches in this hop so far, including this one.
            main: the mini-batch of the hop's own data.
        """
        return (main,)

    def loss(self, batch: Batch, context: Context) -> torch.Tensor:
        """Return the loss of a batch (scalar); default: the model's own."""
        return context.model.loss(batch)

    def skip(self, batch: Batch, context: Context) -> None:
        """Account for a micro-batch whose loss another process computes (``runtime.devices``).

        A class that overrides `loss` must override this method too; otherwise it runs on one device only (`divisible`).
        If `loss` counts micro-batches or their sentences, update the counter here. Otherwise an empty method is enough.
        """

    def edit_gradients(self, context: Context) -> None:
        """Change the gradients in place, after the backward pass and before clipping and the optimiser's step."""

    def capturable(self) -> bool:
        """Return whether the next step can be captured in a CUDA graph and replayed (``trainer.cuda_graphs``).

        Called before each update. In a captured step `loss` and `edit_gradients` must depend only on the tensors of the
        batch and on tensors at fixed addresses. Replaying the graph calls neither method. A class that overrides one of
        them must define `capturable` too (`supports_capture`).
        """
        return True

    def end_training(self, context: Context) -> None:
        """Change the selected weights in place after the last step, before they are stored."""

    def end_hop(self, context: Context) -> None:
        """Update the state after a hop: fill the memory, compute the Fisher information, store teacher outputs.

        The result must depend only on the trained model, the data, the seed and the earlier state, because the trained
        model can be loaded from the store, without any call of the training hooks.
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
        """Return the size of the state without the model's weights: ``examples`` in memory, and ``bytes``."""
        return {"examples": 0, "bytes": 0}

    def state_dict(self) -> State:
        """Return everything that the next hop needs.

        If a hop's `signature` is empty, only `end_hop` may change the state.

        Checkpoints inside a hop omit tensors that have not changed since the hop began. To be recognised as changed, a
        tensor must be a new object or be changed by torch operations, not through numpy or ``.data``.
        """
        return State()

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""


def check_signatures(cls: type[Strategy[Any]], instance: Strategy[Any] | None = None) -> None:
    """Raise a `UsageError` if a class overrides a hook but inherits its signature, or a hook is set on an instance.

    Called when a class is created, and again when a strategy is created, because hooks can be assigned in between.
    """
    name = place(cls)
    for hook, signature in HOOK_SIGNATURES.items():
        if instance is not None and hook in vars(instance):
            raise UsageError(f"{name}: assigns {hook} to the object; define {hook} and {signature} in the class")
        # Compare positions in the method resolution order, so that the hooks of a mixin count too.
        if _depth(cls, signature) > _depth(cls, hook):
            raise UsageError(
                f"{name}: overrides {hook} but inherits {signature}, and would share results of another strategy; "
                f"define {signature} in the same class, for example {signature} = Strategy.signature"
            )


def adds_parameters(strategy: Strategy[Any]) -> bool:
    """Return whether the model before fine-tuning has parameters that `Strategy.prepare` added."""
    return bool(strategy.plan(BEFORE).serve)


def divisible(strategy: Strategy[Any]) -> bool:
    """Return whether processes can share a batch: a class that overrides `loss` must override `skip` too."""
    cls = type(strategy)
    return "loss" not in vars(strategy) and _depth(cls, "skip") <= _depth(cls, "loss")


def supports_capture(strategy: Strategy[Any]) -> bool:
    """Return whether steps can be captured: a class that overrides a step hook must override `capturable` too."""
    cls, hooks = type(strategy), ("loss", "edit_gradients")
    assigned = any(hook in vars(strategy) for hook in hooks)
    return not assigned and all(_depth(cls, "capturable") <= _depth(cls, hook) for hook in hooks)


def _depth(cls: type, name: str) -> int:
    """Return the index, in a class's method resolution order, of the class that defines an attribute."""
    return next(i for i, base in enumerate(cls.__mro__) if name in vars(base))
