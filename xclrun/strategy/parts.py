"""Language-specific parts of the model: each language has values of its own of some parameters, and shares the others.

CCL, section 3.2 ("model expansion"). The model holds one set of values at a time, so it needs no more memory on the
device than plain fine-tuning. A hop starts with its language's parts as they were before any fine-tuning, and with the
shared parameters of the hop before. In evaluation a language that was seen is served by its parts as they were after
its hop, one that was not by those of hop 0. A language's parts lie once in the store: in the weights of its hop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xclrun.errors import UsageError
from xclrun.plan import Hop, Stream
from xclrun.strategy.base import Context, Library, Settings, Strategy

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.model import Model

# Beginnings of the names of the model's parameters.
BODY = ("encoder.",)
EMBEDDINGS = ("encoder.embeddings.",)
LAYERS = ("encoder.encoder.layer.",)
HEADS = ("intent.", "tagger.")


def layer(number: int) -> str:
    """Return how the names of the parameters of an encoder's layer begin; layers count from 1."""
    return f"encoder.encoder.layer.{number - 1}."


class LanguageParts(Strategy[Settings]):
    """Base of the strategies whose model has language-specific parts.

    Attributes:
        parts: how the names of the language-specific parameters begin.
    """

    parts: tuple[str, ...]

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
        self.model, self.library = model, library
        self.hop_of = {language: hop.index for hop in stream.hops for language in hop.train}
        self.initial = {k: v.clone() for k, v in model.state_dict().items() if self.language_specific(k)}
        if not self.initial:
            raise UsageError(f"strategy={self.settings.name}: the model has no {' or '.join(self.parts)}…")

    def begin_hop(self, context: Context) -> None:
        self._choose(self.initial)

    def for_language(self, language: str, seen: Sequence[str]) -> None:
        if language in seen:
            self._choose(self.library.tensors(self.hop_of[language], list(self.initial)))
        else:
            self._choose(self.initial)

    def _choose(self, values: Mapping[str, Tensor]) -> None:
        """Give the language-specific parameters these values, in place."""
        own = self.model.state_dict()
        for name, value in values.items():
            own[name].copy_(value)
