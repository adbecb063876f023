"""CODA-Prompt: each text gets a weighted sum of prompt components; each hop adds components and freezes earlier ones.

Smith et al. 2023, "CODA-Prompt: continual decomposed attention-based prompting for rehearsal-free continual learning",
section 4. The query q of a text is the frozen encoder's [CLS] state. Component m has a prompt P_m, a key K_m and an
attention vector A_m:

    prompt = Σ_m cos(q ⊙ A_m, K_m) P_m
    loss = L + λ Σ_{X ∈ {P, K, A}} mean((X Xᵀ − I)²)

The sum over m runs over the components of the hops so far. The matrices P, K and A have one row for each of these
components. Only the components of the current hop are trained.

Settings, with the paper's values: ``pool`` (100 components of all hops together, in equal shares), ``length`` (8 tokens
of the prompt), ``penalty`` λ (0.1). The authors' first code multiplies λ by 10⁻⁶; their later code uses λ = 0 for
ImageNet-R and DomainNet.

As in the authors' code, squares are averaged, and all components are orthogonal at first. The authors' later code
initialises the components of a hop orthogonally to the trained components. Deviation: one prompt at the input, instead
of prefixes in the first five layers. See also `xclrun.strategy.shared.prompts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from xclrun.core.errors import UsageError
from xclrun.core.stream import Hop, Stream
from xclrun.strategy.base import Context, Parameters, bounded
from xclrun.strategy.shared.added import PartsPerHop
from xclrun.strategy.shared.prompts import PoolSettings, PromptPools

if TYPE_CHECKING:
    from xclrun.model.prompts import PromptComponents, Prompts


@dataclass
class CodaSettings(PoolSettings):
    pool: int = bounded(100, at_least=1)
    length: int = bounded(8, at_least=1)
    penalty: float = bounded(0.1, at_least=0)


class CodaPrompt(PartsPerHop[CodaSettings], PromptPools[CodaSettings]):
    name = "coda_prompt"
    settings_type = CodaSettings

    def stream(self, order: Sequence[str]) -> Stream:
        stream, pool = super().stream(order), self.settings.pool
        if pool < self.hops:
            raise UsageError(f"strategy.pool={pool}: must be at least {self.hops}, one component for each hop")
        return stream

    @property
    def parameters(self) -> Parameters:
        return replace(super().parameters, trains=_trains, prompt_tokens=self.settings.length)

    def prompts(self, embeddings: Any, hidden: int) -> Prompts:
        from xclrun.model.prompts import PromptComponents

        return PromptComponents(embeddings, hidden, self.settings.pool, self.settings.length, self.hops)

    def begin_hop(self, context: Context) -> None:
        cast("PromptComponents", context.model.prompts).begin(context.hop.index)


def _trains(parameter: str, hop: Hop) -> bool:
    # For example prompts.keys.0, the keys of hop 1.
    return not parameter.startswith("prompts.") or int(parameter.rpartition(".")[2]) == hop.index - 1
