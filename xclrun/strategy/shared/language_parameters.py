"""Language-specific parameters: each language has its own values of some parameters and shares the others.

CCL, section 3.2 ("model expansion"). The model contains the parameters of one language at a time. A hop starts with its
language's parameters as they were at hop 0 (or reinitialised), and with the shared parameters of the previous hop. In
evaluation, a learned language uses its parameters as they were after its hop. Other languages use parameters that no
hop has trained (`unseen_parameters`). The parameters of a language are stored only once, with the weights of the
language's hop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from xclrun.core.errors import UsageError
from xclrun.core.stream import Hop, Stream
from xclrun.data.transfer import in_blocks, moved
from xclrun.strategy.base import Context, Library, Parameters, Plan, Settings, Strategy

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.model.network import Model

Result = TypeVar("Result")

# Name prefixes of the model's parameters.
BODY = ("encoder.",)
PROMPTS = ("prompts.",)


class LanguageParameters(Strategy[Settings]):
    """Base of the strategies whose model has language-specific parameters.

    Attributes:
        parts: name prefixes of the language-specific parameters, unless `parameters` is overridden.
        encodes_alone: whether all trained parameters of the encoder are language-specific.
    """

    expands = True
    adds_language_parameters = True
    parts: tuple[str, ...] = ()
    encodes_alone: ClassVar[bool] = False

    @property
    def parameters(self) -> Parameters:
        return Parameters(language_specific=lambda name: name.startswith(self.parts))

    def plan(self, hop: Hop) -> Plan:
        described = self.described()
        return Plan(
            # Empty for the first hop, which is trained as in plain fine-tuning.
            train=described if hop.depth > 1 else {},
            # Empty before fine-tuning, when all languages have the same parameters.
            serve=described if hop.depth else {},
            reads=range(1, hop.index + 1),
        )

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        import torch

        self.model, self.library = model, library
        # Use the initial seed, because it does not depend on earlier draws.
        self.seed = torch.initial_seed()
        self.hop_of = {language: hop.index for hop in stream.hops for language in hop.train}
        self.initial = {k: v.clone() for k, v in model.state_dict().items() if self.parameters.language_specific(k)}
        self.cache: dict[str, Mapping[str, Tensor]] = {}
        if not self.initial:
            raise UsageError(
                f"strategy={self.settings.name}: the model has none of the parameters that this strategy makes "
                "language-specific; choose another strategy or encoder"
            )

    def unseen_parameters(self, language: str) -> Mapping[str, Tensor]:
        """Return the language-specific parameters for evaluating a language that is not learned yet."""
        return self.initial

    def initial_parameters(self, language: str) -> Mapping[str, Tensor]:
        """Return the language-specific parameters with which the hop of a language starts."""
        return self.unseen_parameters(language)

    def begin_hop(self, context: Context) -> None:
        self.cache.clear()
        [language] = context.hop.train
        self._choose(self.initial_parameters(language))

    def with_language(self, language: str, model: Model, function: Callable[[Model], Result]) -> Result:
        """Apply ``function`` to the model with the frozen parameters of an earlier language.

        The frozen parameters are read from the store once per hop. The model's own values are unchanged and get no
        gradients.
        """
        from xclrun.model.network import with_weights

        if language not in self.cache:
            tensors = self.library.tensors(self.hop_of[language], list(self.initial))
            device = next(model.parameters()).device
            self.cache[language] = moved(tensors, device)
        return with_weights(model, self.cache[language], function)

    def for_language(self, language: str, seen: Sequence[str]) -> None:
        self.cache.clear()
        if language in seen:
            self._choose(self.library.tensors(self.hop_of[language], list(self.initial)))
        else:
            self._choose(self.unseen_parameters(language) if seen else self.initial)

    def _choose(self, values: Mapping[str, Tensor]) -> None:
        tensors = self.model.state_dict()
        for block in in_blocks(values, next(self.model.parameters()).device):
            for name, value in block.items():
                tensors[name].copy_(value)
