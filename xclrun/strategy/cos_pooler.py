"""Few-shot adaptation of BERT's pooler and a new cosine classifier ("COS + pooler"; FS, Table 6).

p(c | x) = softmax over c of α · cos(w_c, x), with x the output of pooler and dropout, and w_c a vector per class
(Gidaris & Komodakis 2018, section 3.2; Vinyals et al. 2016). This cosine classifier replaces the classifier of source
training.

Settings: ``alpha`` α, the factor of the cosines (10 in FS).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from xclrun.config.schema import StrategyConfig
from xclrun.core.stream import Hop, Stream
from xclrun.strategy.base import Context, Library, Parameters, Plan, bounded
from xclrun.strategy.shared.heads_only import HeadsOnly, reinitialise

if TYPE_CHECKING:
    from xclrun.model.network import Model


@dataclass
class CosineSettings(StrategyConfig):
    alpha: float = bounded(10.0, above=0)


class CosPooler(HeadsOnly[CosineSettings]):
    name = "cos_pooler"
    settings_type = CosineSettings

    def plan(self, hop: Hop) -> Plan:
        plan = super().plan(hop)
        return replace(plan, serve=plan.train)

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        self.model, self.adapting = model, False
        self.adapted = {language for hop in stream.hops if self.adapts(hop) for language in hop.train}

    @property
    def parameters(self) -> Parameters:
        # Cosine logits have no bias, so the classifier's bias is not trained.
        frozen = (*self.frozen, "classifier.bias")
        return Parameters(trains=lambda name, hop: not (self.adapts(hop) and name.startswith(frozen)))

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        self.adapting = self.adapts(context.hop)
        self._choose(self.adapting)
        if self.adapting:
            classifier: Any = context.model.classifier
            reinitialise(classifier, context, "classifier")

    def for_language(self, language: str, seen: Sequence[str]) -> None:
        # `seen` contains a language only after its hop, so test separately whether the current hop adapts the heads.
        self._choose(self.adapting or not self.adapted.isdisjoint(seen))

    def _choose(self, cosine: bool) -> None:
        classifier: Any = self.model.classifier
        classifier.scale = self.settings.alpha if cosine else None
