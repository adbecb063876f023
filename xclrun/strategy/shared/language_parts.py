"""Language-specific parts of the model: each language has its own values of some parameters, and shares the others.

CCL, section 3.2 ("model expansion"). The model holds one set of values at a time, so it needs no more memory on the
device than plain fine-tuning. A hop starts with its language's parts as they were before any fine-tuning (those of hop
0, or fresh ones), and with the shared parameters of the hop before. In evaluation a language that was seen is served by
its parts as they were after its hop, one that was not by those with which its hop would start; before any hop all are
served by hop 0's. A language's parts lie once in the store: in the weights of its hop.

Strategies that come back to an earlier language while another is learned (`xclrun.strategy.shared.expansion`) do so
through `LanguageParts.through`, in which its frozen parts are in for the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from xclrun.core.errors import UsageError
from xclrun.core.stream import Hop, Stream
from xclrun.strategy.base import Context, Library, Settings, Strategy

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.model import Model

Result = TypeVar("Result")

# Beginnings of the names of the model's parameters.
BODY = ("encoder.",)
HEADS = ("intent.", "pooler.", "classifier.", "tagger.", "span.", "tasks.")


class LanguageParts(Strategy[Settings]):
    """Base of the strategies whose model has language-specific parts.

    Attributes:
        parts: how the names of the language-specific parameters begin; else `language_specific` says which they are.
        encodes_alone: whether nothing that is trained in the encoder is shared.
    """

    gives_parts = True
    parts: tuple[str, ...] = ()
    encodes_alone: ClassVar[bool] = False

    def language_specific(self, parameter: str) -> bool:
        return parameter.startswith(self.parts)

    def signature(self, hop: Hop) -> dict[str, Any]:
        # In the first training all parts start from hop 0, as in plain fine-tuning.
        return self.described() if hop.depth > 1 else {}

    def serving_signature(self, hop: Hop) -> dict[str, Any]:
        # Before fine-tuning all languages have the same parts.
        return self.described() if hop.depth else {}

    def recalled(self, hop: Hop) -> Sequence[int]:
        return range(1, hop.index + 1)

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        import torch

        self.model, self.library = model, library
        # Of the run, and of nothing that was drawn before.
        self.seed = torch.initial_seed()
        self.hop_of = {language: hop.index for hop in stream.hops for language in hop.train}
        self.initial = {k: v.clone() for k, v in model.state_dict().items() if self.language_specific(k)}
        self.held: dict[str, Mapping[str, Tensor]] = {}
        if not self.initial:
            raise UsageError(f"strategy={self.settings.name}: the model has none of the parts that it is about")

    def fresh_parts(self, language: str) -> Mapping[str, Tensor]:
        """Return the parts that serve a language which was not seen, when others were."""
        return self.initial

    def first_parts(self, language: str) -> Mapping[str, Tensor]:
        """Return the parts with which a language's hop starts; in the first hop, those of hop 0."""
        return self.fresh_parts(language)

    def begin_hop(self, context: Context) -> None:
        self.held.clear()
        [language] = context.hop.train
        self._choose(self.first_parts(language))

    def through(self, language: str, model: Model, function: Callable[[Model], Result]) -> Result:
        """Return ``function`` of a model with the parts of a language that was learned before, which are frozen.

        The parts are read once per hop, and lie where the model does. The model's own stay unchanged, and get no
        gradients.
        """
        from xclrun.model.network import with_weights

        if language not in self.held:
            found = self.library.tensors(self.hop_of[language], list(self.initial))
            device = next(model.parameters()).device
            self.held[language] = {name: tensor.to(device) for name, tensor in found.items()}
        return with_weights(model, self.held[language], function)

    def for_language(self, language: str, seen: Sequence[str]) -> None:
        self.held.clear()
        if language in seen:
            self._choose(self.library.tensors(self.hop_of[language], list(self.initial)))
        else:
            self._choose(self.fresh_parts(language) if seen else self.initial)

    def _choose(self, values: Mapping[str, Tensor]) -> None:
        """Set the language-specific parameters to these values, in place."""
        own = self.model.state_dict()
        for name, value in values.items():
            own[name].copy_(value)
