"""Knowledge distillation on representations (KD-Rep): on remembered sentences, stay near the [CLS] of the model right
after it learned them.

CCL, section 3.2 ("KD-Rep"). As ``kd_logit`` in everything but what is distilled: the encoder's state at [CLS], cls_j,

    loss + weight · Σ_j MSE(cls, cls_j)

over the languages j seen before, at every k-th main mini-batch. The settings are those of ``kd_logit``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xclrun.strategy.base import Strategy
from xclrun.strategy.kd_logit import KDLogit
from xclrun.strategy.shared.language_parts import LanguageParts

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch
    from xclrun.model.network import Output


class KDRep(KDLogit):
    """Distillation of the encoder's [CLS]."""

    name = "kd_rep"

    def unsuited(self, expansion: Strategy[Any]) -> str | None:
        if isinstance(expansion, LanguageParts) and expansion.encodes_alone:
            return "[CLS] of an earlier language comes from its own frozen parts alone, so nothing would learn from it"
        return super().unsuited(expansion)

    def distilled(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        return {"cls": output.cls}
