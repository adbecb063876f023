"""The protocol of a strategy: how a hop is learned without losing the earlier ones.

A strategy is one file here, one YAML in ``conf/strategy`` and one test. The one training loop calls the hooks below
and is the only place that steps the optimiser; it knows no strategy by name. Strategy modules import torch inside the
hooks that need it, so that plans, which only need `signature`, start fast.

Life of a strategy in a run::

    prepare → for each hop: begin_hop → (for each step: replay → loss → edit_gradients) … → end_training → end_hop →
    (for each language that is evaluated: for_language → answer …)

What runs share is decided by the signatures, so every hook has one that answers for it (`ANSWERED_BY`): the class that
overrides the hook says it in the same breath. That is safe by ``signature = Strategy.signature``: everything described,
so that a hop is shared with runs of the same strategy and settings alone. Sharing more is a claim that a hop is trained
as by another strategy, and has a test that compares the two bit for bit. A class without it is refused when it is made.
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
from xclrun.core.identity import LATER, derive
from xclrun.core.plugins import place
from xclrun.core.stream import Hop, Stream, sequence
from xclrun.core.task import Task

if TYPE_CHECKING:
    import torch

    from xclrun.data.batches import Batch, Encoded
    from xclrun.model import Model
    from xclrun.model.families import Family
    from xclrun.model.network import Prediction


@dataclass
class Context:
    """What a hook may use.

    Attributes:
        model: the model being trained.
        hop: the hop being trained.
        stream: the whole stream.
        train: language → its encoded training split.
        device: where batches go.
        seed: the run's seed; use `generator` rather than this.
        batch_size: sentences in a mini-batch.
        precision: autocast type of the run (``fp32``, ``bf16``, ``fp16``).
        beside: called with each batch of the memory that a step learns from in addition to its own batch.
        stop_here: to be called in the middle of what takes long: ends it where the run was asked to stop.
        gather: returns the values of all parts of a batch, in any order, where other processes compute some of them.
    """

    model: Model
    hop: Hop
    stream: Stream
    train: Mapping[str, Encoded]
    device: torch.device
    seed: int
    batch_size: int
    precision: str = "fp32"
    beside: Callable[[Batch], None] = lambda batch: None
    stop_here: Callable[[], None] = lambda: None
    gather: Callable[[list[Any]], list[Any]] = lambda values: values

    def generator(self, purpose: str, *position: int | str) -> np.random.Generator:
        """Return its own generator for ``purpose`` at ``position`` in this hop: the same whatever ran before."""
        return np.random.Generator(np.random.PCG64(derive(self.seed, purpose, self.hop.depth, *position)))

    def batch(self, language: str, indices: np.ndarray) -> Batch:
        """Return training sentences of ``language`` as a batch on the device."""
        return self.train[language].batch(indices).to(self.device)


@dataclass
class State:
    """The state that a strategy carries from hop to hop, stored without pickle.

    Attributes:
        facts: JSON-able values, for example the ids of the examples in memory.
        tensors: name → tensor, for example the Fisher information.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Length:
    """The greatest length of a hop's training.

    Attributes:
        hop: the hop.
        sentences: of its training data.
        steps: main steps, over all epochs.
        examples: sentences of these steps, over all epochs.
        points: whether the model is evaluated inside the hop.
    """

    hop: Hop
    sentences: int
    steps: int
    examples: int
    points: bool


class Library(Protocol):
    """What the store has of a run: the weights of earlier hops, and what the encoder made of sentences before any."""

    def tensors(self, hop: int, names: Sequence[str]) -> Mapping[str, torch.Tensor]:
        """Return some of the weights after the hop of that index (from 1), on the CPU."""

    def features(self, language: str, split: str) -> np.ndarray:
        """Return what the encoder of hop 0, in eval mode, makes of [CLS] in each sentence of a split: (n, H) float32.

        Of splits that are tested, and of the training splits of languages that were seen, where `looks_up` asks.
        """


Settings = TypeVar("Settings", bound=StrategyConfig)

# Hook → the signature that says how it can change a result.
ANSWERED_BY: Mapping[str, str] = {
    "prepare": "signature",
    "begin_hop": "signature",
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
    "answer": "serving_signature",
}


class Strategy(Generic[Settings]):
    """Base of all strategies; as it stands, plain sequential fine-tuning.

    Attributes:
        name: of the strategy in conf, and of its module here.
        settings_type: dataclass of the strategy's settings: the schema of its YAML.
        version: raise it when a change of code changes what the strategy computes; ids and keys change with it.
        expandable: whether it can be laid over another one that gives languages parts (``strategy.expansion``).
        gives_parts: whether it gives each language its own parts, so it can be an expansion.
        has_adapters: whether these parts are language adapters; its settings then have ``pretrained``.
        mixes_languages: whether a batch may hold sentences of several languages.
        gathers: whether its state changes while a hop is trained, as where outputs are kept when they are computed. The
            state is then stored with the hop's weights, as it was when they were: `end_hop` starts from that. A hop
            without a `signature` gathers nothing.
    """

    name: ClassVar[str] = ""
    settings_type: ClassVar[type[StrategyConfig]] = StrategyConfig
    version: ClassVar[int] = 1
    expandable: ClassVar[bool] = False
    gives_parts: ClassVar[bool] = False
    has_adapters: ClassVar[bool] = False
    mixes_languages: ClassVar[bool] = False
    gathers: ClassVar[bool] = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class that overrides a hook and inherits the signature that answers for it.

        What a base class its own says hooks would be taken for the new ones: the run would get the base's results.
        """
        super().__init_subclass__(**options)
        check_answers(cls)

    # Asked by plans, before anything runs.

    def stream(self, order: Sequence[str]) -> Stream:
        """Return the hops that this strategy makes of an order; default: one language after another."""
        return sequence(order)

    def signature(self, hop: Hop) -> dict[str, Any]:
        """Return everything about the strategy that can change the *training* of ``hop``: the basis of sharing.

        Default: everything described. Empty means: this hop is trained as by plain fine-tuning, and is shared with all
        strategies of which that is true.
        """
        return self.described()

    def state_signature(self, hop: Hop) -> dict[str, Any] | None:
        """Return what can change the strategy's state after ``hop``; None where it keeps none."""
        return None

    def serving_signature(self, hop: Hop) -> dict[str, Any]:
        """Return everything that can change the *evaluation* after ``hop``, beyond the trained weights.

        Must not be empty where `for_language` changes the model, or `answer` is not the model's own.
        """
        return {}

    def points_signature(self, hop: Hop) -> dict[str, Any]:
        """Return the same of the evaluation points inside the training of ``hop``, where `answer` is asked too.

        Empty with a `serving_signature` that is not: there the model is evaluated as it is.
        """
        return self.serving_signature(hop)

    def recalled(self, hop: Hop) -> Sequence[int]:
        """Return the hops whose weights `for_language` may ask the library for in the evaluation after ``hop``."""
        return ()

    def relied_on(self, hop: Hop) -> Sequence[int]:
        """Return the hops whose weights the training of ``hop`` may ask the library for."""
        return ()

    def looks_up(self, hop: Hop) -> bool:
        """Whether `answer` asks the library for features in the evaluation after ``hop``."""
        return False

    def unfit(self, tasks: Sequence[Task]) -> str | None:
        """Return why the strategy cannot learn the tasks of a dataset in one model; None where it can.

        Args:
            tasks: a single one, or several, each with its own heads.
        """
        return None

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        """Return warnings to print before a run with hops of these lengths begins, a line each.

        For settings that are allowed and do not do what they seem to; default: nothing.
        """
        return ()

    def limit(self, hop: Hop) -> int | None:
        """Return how many of its training sentences a hop learns from at most, where `choose` leaves some out."""
        return None

    def check_encoder(self, family: Family | None, width: int | None, layers: int | None) -> None:
        """Check that the strategy can work with an encoder.

        Args:
            family: its family; None where its files are not there.
            width: of its hidden states, H; None where its files do not say.
            layers: their number; None where its files do not say.

        Raises:
            UsageError: it cannot.
        """

    def keeps_encoder(self, hop: Hop) -> bool:
        """Whether the training of ``hop`` leaves the encoder as it is, in eval mode throughout.

        What the encoder makes of a sentence is then computed once and kept, and the hop learns from that.
        """
        return False

    def trains(self, parameter: str, hop: Hop) -> bool:
        """Whether the training of ``hop`` changes a parameter, given by its name, that `prepare` did not freeze."""
        return True

    def language_specific(self, parameter: str) -> bool:
        """Whether every language has its own values of a parameter, given by its name in the model."""
        return False

    @property
    def adapters(self) -> StrategyConfig | None:
        """The settings of its language adapters, its own or its expansion's; None without any."""
        return self.settings if self.has_adapters else None

    def identified(self) -> int | str:
        """Return what identifies the strategy in a run's id next to its settings: its version."""
        return self.version

    def described(self) -> dict[str, Any]:
        """Return name, version and all settings: what a signature holds where everything matters.

        Settings that came later say nothing where they say what was done before.
        """
        settings = {key: v.value if isinstance(v, Enum) else v for key, v in asdict(self.settings).items()}
        kept = {key: value for key, value in settings.items() if LATER.get(f"strategy.{key}", self) != value}
        return {**kept, "version": self.version}

    # What the loop calls.

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        """Add the parameters that the strategy needs, freeze those that it does not train, and inspect the rest.

        Called whenever an untrained model is made, on the CPU. New parameters take their values from the seeded global
        generator.

        Args:
            library: gives the weights of earlier hops, those that `relied_on` names in training and those that
                `recalled` names in `for_language`; and features, in `answer`, where `looks_up` says so.
        """

    def choose(self, context: Context) -> Mapping[str, np.ndarray]:
        """Return of which training sentences a hop learns, language → indices; a language that is not there: of all.

        Asked before `begin_hop`. Inside the hop ``context.train`` has these sentences alone of the hop's languages.
        """
        return {}

    def begin_hop(self, context: Context) -> None:
        """Choose the active parameters and build what the hop needs."""

    def replay(self, step: int, main: Batch, context: Context) -> Iterable[Batch]:
        """Return the batches of this step, one optimiser step each; default: the main one alone.

        Args:
            step: number of main mini-batches seen in this hop, this one included (from 1).
            main: the mini-batch of the hop's own data.
        """
        return (main,)

    def loss(self, batch: Batch, context: Context) -> torch.Tensor:
        """Return the loss of a batch (scalar); default: the model's own."""
        return context.model.loss(batch)

    def skip(self, batch: Batch, context: Context) -> None:
        """Account for a part of a batch whose loss another process computes (``runtime.devices``).

        A class that overrides `loss` must override this too, with no code if it does not count parts: `divisible`.
        """

    def edit_gradients(self, context: Context) -> None:
        """Change the gradients in place, after the backward pass and before clipping and the optimiser's step."""

    def repeats(self) -> bool:
        """Whether `loss` and `edit_gradients` of the batch that comes next do as they did with others of its shape.

        Such a step may be recorded, and repeated without asking them (``trainer.cuda_graphs``). So what they do on the
        device must follow from the batch's tensors and from tensors that stay in their places; what they note on the
        host is not noted then. Asked before each update. It speaks for the its own hooks class and of those above
        alone: `recordable`.
        """
        return True

    def end_training(self, context: Context) -> None:
        """Change the weights in the model after the last step: those of the selected epoch, which are then stored."""

    def end_hop(self, context: Context) -> None:
        """Update the state after a hop: fill the memory, compute the Fisher information, store teacher outputs.

        Must depend on the trained model, the data, the seed and the earlier state alone: where the hop's training is
        shared with another run, it is called on the shared weights. A strategy that `gathers` has the state with which
        they were stored.
        """

    def for_language(self, language: str, seen: Sequence[str]) -> None:
        """Choose the parts of the model that serve ``language`` in evaluation, given the languages seen so far."""

    def answer(self, batch: Batch, language: str, split: str, context: Context) -> Prediction:
        """Return the predictions for a batch of a split in evaluation; default: the model's own.

        The model is in eval mode, with the parts that serve the language, and must be left unchanged. The dev scores
        that select an epoch are always the model's own.

        Args:
            batch: on the device; ``indices`` say where its sentences are in the split.
            context: of the hop after which, or in whose training, the model is evaluated.
        """
        return context.model.predict(batch)

    def footprint(self) -> dict[str, int]:
        """Return what is kept for later hops, next to weights: ``examples`` in memory, and their ``bytes``."""
        return {"examples": 0, "bytes": 0}

    def state_dict(self) -> State:
        """Return everything that the next hop needs; in a hop without a `signature`, only `end_hop` may change it.

        A checkpoint inside a hop leaves out tensors that are the same objects as when the hop began, unless torch has
        written into them since. So what a hop changes must be a new tensor, or be changed by torch's own operations:
        not through numpy, and not through ``.data``.
        """
        return State()

    def load_state_dict(self, state: State) -> None:
        """Take over the state that `state_dict` returned."""


def check_answers(cls: type[Strategy[Any]], instance: Strategy[Any] | None = None) -> None:
    """Check that a class that overrides a hook also defines its signature; with an instance, as it is now.

    Classes are looked at when they are made, and again when a strategy is: hooks can be assigned in between.

    Raises:
        UsageError: a class overrides a hook and inherits the signature that answers for it; or the instance has a hook
            of its own, for which no class can answer.
    """
    name = place(cls)
    for hook, signature in ANSWERED_BY.items():
        if instance is not None and hook in vars(instance):
            raise UsageError(f"{name}: sets {hook} on the object; define it in the class, with {signature} beside it")
        # A mixin's hooks count too: the method resolution order decides.
        if _place(cls, signature) > _place(cls, hook):
            raise UsageError(
                f"{name}: overrides {hook} and inherits {signature}, so it would "
                f"share results that are not its own; define {signature} beside it, or say "
                f"{signature} = Strategy.signature (everything described; see xclrun/strategy/base.py)"
            )


def divisible(strategy: Strategy[Any]) -> bool:
    """Whether several processes may compute the parts of a batch: the class that defines `loss` also defines `skip`."""
    cls = type(strategy)
    return "loss" not in vars(strategy) and _place(cls, "skip") <= _place(cls, "loss")


def recordable(strategy: Strategy[Any]) -> bool:
    """Whether some of a strategy's steps may be recorded: a class that overrides a hook of the step says which.

    A strategy that was written without a thought of it is so never recorded.
    """
    cls, hooks = type(strategy), ("loss", "edit_gradients")
    own = any(hook in vars(strategy) for hook in hooks)
    return not own and all(_place(cls, "repeats") <= _place(cls, hook) for hook in hooks)


def _place(cls: type, name: str) -> int:
    """Return the position in a class's method resolution order at which an attribute is defined: 0 is the class."""
    return next(i for i, found in enumerate(cls.__mro__) if name in vars(found))
