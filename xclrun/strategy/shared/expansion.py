"""Strategies laid over language-specific parts: replay, distillation, penalty and projection compose with expansion.

``strategy.expansion`` names the strategy that gives the parts (``lang_spec_task``, ``lang_spec_enc``, …); null:
none, and nothing changes. The two act on different parameters:

- Every language has its own parts, as without the strategy on top: they start again in its hop, are trained in it
  alone, and serve it in every later evaluation, bit for bit as its hop left them.
- What the strategy does for languages that were learned before acts on the shared parameters. A remembered batch of
  language j goes through the shared parameters of now and the own parts of j, which are frozen; so only the shared ones
  learn from it. A penalty holds the shared parameters, and its Fisher information is theirs.

Cost: where remembered batches go through the model, the own parts of all languages seen before lie on the device while
a hop is trained, 4 bytes per parameter and language: 0.7 GB a language for ``lang_spec_trans`` with mBERT, 0.9 MB for
``lang_spec_task``. They are read from the store once per hop, and choosing one copies nothing. Penalties need none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from xclrun.config.schema import StrategyConfig
from xclrun.core.errors import UsageError
from xclrun.core.stream import Hop, Stream
from xclrun.strategy import having, make
from xclrun.strategy.base import Context, Library, Strategy
from xclrun.strategy.naive import Naive
from xclrun.strategy.shared.language_parts import LanguageParts

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch
    from xclrun.model import Model
    from xclrun.model.families import Family
    from xclrun.model.network import Output


@dataclass
class ExpandableSettings(StrategyConfig):
    expansion: StrategyConfig | None = field(default=None, kw_only=True)


Settings = TypeVar("Settings", bound=ExpandableSettings)
Result = TypeVar("Result")


class Expandable(Strategy[Settings]):
    """Base of the strategies that can be laid over language-specific parts.

    Attributes:
        expansion: gives the parts; without any, plain fine-tuning.
        acts_from: depth of the first hop whose training differs from the expansion's. Before hop 1 nothing has been
            learned that could be forgotten.
        revisits: whether batches of earlier languages go through the model while a hop is trained.
    """

    expandable = True
    acts_from: ClassVar[int] = 2
    revisits: ClassVar[bool] = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.expansion: Strategy[Any] = Naive(settings)
        if settings.expansion is not None:
            self.expansion = make(settings.expansion)
            if (reason := self.unsuited(self.expansion)) is not None:
                raise UsageError(f"strategy={settings.name} strategy.expansion={settings.expansion.name}: {reason}")

    def unsuited(self, expansion: Strategy[Any]) -> str | None:
        """Return why the strategy cannot be combined with an expansion; None where it can."""
        if expansion.gives_parts:
            return None
        return f"gives languages no parts of their own; {', '.join(having('gives_parts'))} do"

    def active(self) -> bool:
        """Whether the settings have any effect."""
        return True

    def signature(self, hop: Hop) -> dict[str, Any]:
        return self.described() if hop.depth >= self.acts_from and self.active() else self.expansion.signature(hop)

    def relied_on(self, hop: Hop) -> Sequence[int]:
        revisits = self.revisits and self.settings.expansion is not None and self.active()
        return range(1, hop.index) if revisits else ()

    def through(self, language: str, context: Context, function: Callable[[Model], Result]) -> Result:
        """Return ``function`` of the model with which a language that was learned before is served.

        That is the shared parameters as they are now, and the language's own parts, frozen, as its hop left them.
        """
        if isinstance(self.expansion, LanguageParts):
            return self.expansion.through(language, context.model, function)
        return function(context.model)

    def output_of(self, language: str, batch: Batch, context: Context) -> Output:
        """Return what the model that serves a language, which may be one that the hop learns, gives for a batch."""
        if language in context.hop.train:
            return context.model(batch)
        return self.through(language, context, lambda model: model(batch))

    def loss_of(self, language: str, batch: Batch, context: Context) -> Tensor:
        """Return the loss of a batch with the model that serves a language, which may be one that the hop learns."""
        if language in context.hop.train:
            return context.model.loss(batch)
        return self.through(language, context, lambda model: model.loss(batch))

    # Delegated to the expansion.

    @property
    def adapters(self) -> StrategyConfig | None:
        return self.expansion.adapters

    def described(self) -> dict[str, Any]:
        described = super().described()
        return described if self.settings.expansion is None else described | {"expansion": self.expansion.described()}

    def identified(self) -> int | str:
        own = super().identified()
        return own if self.settings.expansion is None else f"{own}+{self.expansion.identified()}"

    def serving_signature(self, hop: Hop) -> dict[str, Any]:
        return self.expansion.serving_signature(hop)

    def recalled(self, hop: Hop) -> Sequence[int]:
        return self.expansion.recalled(hop)

    def check_encoder(self, family: Family | None, width: int | None, layers: int | None) -> None:
        self.expansion.check_encoder(family, width, layers)

    def language_specific(self, parameter: str) -> bool:
        return self.expansion.language_specific(parameter)

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        self.expansion.prepare(model, stream, library)

    def begin_hop(self, context: Context) -> None:
        self.expansion.begin_hop(context)

    def for_language(self, language: str, seen: Sequence[str]) -> None:
        self.expansion.for_language(language, seen)
