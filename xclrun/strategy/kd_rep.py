"""Knowledge distillation on representations (KD-Rep): keep [CLS] states of memory sentences close to recorded ones.

CCL, section 3.2 ("KD-Rep"). The method is ``kd_logit`` with the encoder's [CLS] state in place of the outputs. At every
k-th main mini-batch the loss is

    loss + weight · Σ_j MSE(cls, cls_j)

where cls is the current state of a memory sentence of the earlier language j, and cls_j the recorded state. Settings:
as for ``kd_logit``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xclrun.strategy.base import Strategy
from xclrun.strategy.kd_logit import KDLogit
from xclrun.strategy.shared.language_parameters import LanguageParameters

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch
    from xclrun.model.heads import Output


class KDRep(KDLogit):
    name = "kd_rep"
    cannot_write = ""

    def unsupported_expansion(self, expansion: Strategy[Any]) -> str | None:
        if isinstance(expansion, LanguageParameters) and expansion.encodes_alone:
            return "[CLS] depends on frozen language-specific parameters only, so distillation has no effect"
        return super().unsupported_expansion(expansion)

    def distilled(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        return {"cls": output.cls}
