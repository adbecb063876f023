"""Learning to prompt (L2P): each text selects prompts from a pool that all languages share.

Wang et al. 2022, "Learning to prompt for continual learning", section 4. The query q of a text is the frozen encoder's
[CLS] state. The text gets the prompts of the N keys of the pool that are nearest to q. With the keys k_m, the loss is

    L + λ Σ_{selected m} (1 − cos(q, k_m))

Settings, with the paper's values: ``pool`` (10 prompts), ``length`` (5 tokens each), ``selected`` N (5), ``penalty`` λ
(0.5). The authors' code has other values for some datasets, such as λ = 0.1 or 1.

Deviations: a sentence is represented by [CLS] instead of the mean of the prompts' states; prompts start from embeddings
of subwords; no penalty on keys that earlier hops selected often, which the paper calls optional. The authors' code
gives all texts of a batch the most frequently selected prompts; here, as in the paper, each text has its own. See also
`xclrun.strategy.shared.prompts`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from xclrun.core.errors import UsageError
from xclrun.strategy.base import Parameters, bounded
from xclrun.strategy.shared.prompts import PoolSettings, PromptPools

if TYPE_CHECKING:
    from xclrun.model.prompts import Prompts


@dataclass
class L2PSettings(PoolSettings):
    selected: int = bounded(5, at_least=1)


class L2P(PromptPools[L2PSettings]):
    name = "l2p"
    settings_type = L2PSettings

    def __init__(self, settings: L2PSettings) -> None:
        if settings.selected > settings.pool:
            raise UsageError(f"strategy.selected={settings.selected}: must be at most strategy.pool={settings.pool}")
        super().__init__(settings)

    @property
    def parameters(self) -> Parameters:
        return replace(super().parameters, prompt_tokens=self.settings.selected * self.settings.length)

    def prompts(self, embeddings: Any, hidden: int) -> Prompts:
        from xclrun.model.prompts import PromptPool

        s = self.settings
        return PromptPool(embeddings, hidden, s.pool, s.length, s.selected)
