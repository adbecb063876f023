"""Combine a strategy (replay, distillation, penalty or projection) with a strategy that adds parameters.

``strategy.expansion`` names the strategy that adds the parameters (``lang_spec_task``, ``lang_spec_enc``, …); null: no
parameters are added. The two strategies act on different parameters:

- Language-specific parameters are trained only in the hop of their language. Every later evaluation of this language
  uses them unchanged.
- Replay, distillation, penalties and projections act on the shared parameters. A memory batch of language j goes
  through the current shared parameters and the frozen parameters of j.

Cost: strategies that pass memory batches through the model keep the parameters of all earlier languages on the device,
4 bytes per parameter: with mBERT 0.7 GB per language for ``lang_spec_trans``, 0.9 MB for ``lang_spec_task``. These
parameters are read from the store once per hop. Penalties do not need these parameters.

The expansions ``seq_lora`` and ``inc_lora`` add parameters that all languages share. The other strategy then acts on
these parameters and on the heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from xclrun.config.schema import StrategyConfig
from xclrun.core.errors import UsageError
from xclrun.core.stream import Hop, Stream
from xclrun.strategy import make, names_with
from xclrun.strategy.base import Context, Library, Parameters, Plan, Strategy
from xclrun.strategy.naive import Naive
from xclrun.strategy.shared.language_parameters import LanguageParameters
from xclrun.strategy.shared.steps import Loss, Term

if TYPE_CHECKING:
    from xclrun.data.batches import Batch
    from xclrun.model.families import Family
    from xclrun.model.heads import Output
    from xclrun.model.network import Model


@dataclass
class ExpandableSettings(StrategyConfig):
    expansion: StrategyConfig | None = field(default=None, kw_only=True)


Settings = TypeVar("Settings", bound=ExpandableSettings)
Result = TypeVar("Result")


class Expandable(Strategy[Settings]):
    """Base of the strategies that can be combined with language-specific parameters.

    Attributes:
        expansion: the strategy that adds the parameters; `Naive` if ``strategy.expansion`` is null.
        acts_from: depth of the first hop in which the strategy changes training. Earlier hops are trained as with the
            expansion alone.
        revisits: whether batches of earlier languages go through the model in training.
        stateful: whether the strategy has a state while it is `active`.
    """

    expandable = True
    acts_from: ClassVar[int] = 2
    revisits: ClassVar[bool] = False
    stateful: ClassVar[bool] = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.expansion: Strategy[Any] = Naive(settings)
        if settings.expansion is not None:
            self.expansion = make(settings.expansion)
            if (reason := self.unsupported_expansion(self.expansion)) is not None:
                raise UsageError(f"strategy={settings.name} strategy.expansion={settings.expansion.name}: {reason}")

    def unsupported_expansion(self, expansion: Strategy[Any]) -> str | None:
        """Return why the strategy cannot be combined with an expansion; None if it can."""
        if expansion.expands:
            return None
        return f"cannot be an expansion; choose {', '.join(names_with('expands'))}"

    def active(self) -> bool:
        """Return whether the strategy has any effect with its settings."""
        return True

    def plan(self, hop: Hop) -> Plan:
        plan, active = self.expansion.plan(hop), self.active()
        revisits = self.revisits and isinstance(self.expansion, LanguageParameters) and active
        return replace(
            plan,
            train=self.described() if active and hop.depth >= self.acts_from else plan.train,
            state=self.described() if active and self.stateful else None,
            trains_with=range(1, hop.index) if revisits else (),
        )

    def with_language(self, language: str, context: Context, function: Callable[[Model], Result]) -> Result:
        """Apply ``function`` to the model with the parameters for an earlier language.

        This model has the current shared parameters and the language's own parameters, frozen.
        """
        if isinstance(self.expansion, LanguageParameters):
            return self.expansion.with_language(language, context.model, function)
        return function(context.model)

    def output_of(self, language: str, batch: Batch, context: Context) -> Output:
        """Return the output for a batch, with the parameters for a ``language`` of this hop or an earlier hop."""
        if language in context.hop.train:
            return context.model(batch)
        return self.with_language(language, context, lambda model: model(batch))

    def loss_of(self, language: str, context: Context) -> Loss | None:
        """Return the loss with the parameters for a ``language`` of this hop or an earlier hop.

        None: the model's own loss, because these parameters are in the model.
        """
        if language in context.hop.train or not isinstance(self.expansion, LanguageParameters):
            return None
        return lambda part, rows: self.with_language(language, context, lambda model: model.loss(part))

    def terms(self, batches: Sequence[tuple[str, Batch]], context: Context, weight: float = 1.0) -> list[Term]:
        """Return the terms for the mean loss over all sentences of memory batches: (language, batch)."""
        among = [batch for _, batch in batches]
        return [Term(batch, self.loss_of(language, context), weight, among) for language, batch in batches]

    # Delegated to the expansion.

    @property
    def parameters(self) -> Parameters:
        return self.expansion.parameters

    def described(self) -> dict[str, Any]:
        described = super().described()
        return described if self.settings.expansion is None else described | {"expansion": self.expansion.described()}

    def version_id(self) -> int | str:
        version = super().version_id()
        return version if self.settings.expansion is None else f"{version}+{self.expansion.version_id()}"

    def check_encoder(self, family: Family | None, width: int | None, layers: int | None) -> None:
        self.expansion.check_encoder(family, width, layers)

    def stream(self, order: Sequence[str]) -> Stream:
        return self.expansion.stream(order)

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        self.expansion.prepare(model, stream, library)

    def begin_hop(self, context: Context) -> None:
        self.expansion.begin_hop(context)

    def for_language(self, language: str, seen: Sequence[str]) -> None:
        self.expansion.for_language(language, seen)
