"""O-LoRA: each hop adds a low-rank update, with a penalty on its overlap with the earlier updates.

Wang et al. 2023, "Orthogonal subspace learning for language model continual learning", section 3. In hop t the update
B_t A_t is trained with the loss

    L + λ Σ_{i<t} Σ_jk |A_i A_tᵀ|_jk

The penalty is summed over all matrices with an update; the A_i of earlier hops are frozen. A has the shape (rank, d),
so its rows span the subspace of a hop. After few steps, subspaces can still overlap. The absolute value follows the
authors' code; the paper squares the entries. The code's optional penalty on the norm of the new update is left out.

Settings: those of ``inc_lora``, and ``penalty`` λ (0.5 in the authors' code). Hop 1 is trained as in ``inc_lora``.
Deviations: heads are trained too, since encoders need them; no dropout before A. See also
`xclrun.strategy.shared.low_rank`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from xclrun.core.stream import Hop
from xclrun.strategy.base import Context, Plan, bounded
from xclrun.strategy.inc_lora import IncLora
from xclrun.strategy.shared.adapters import LowRankSettings
from xclrun.strategy.shared.low_rank import LowRankPerHop, product
from xclrun.strategy.shared.steps import Step

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch


@dataclass
class OLoraSettings(LowRankSettings):
    penalty: float = bounded(0.5, at_least=0)


class OLora(LowRankPerHop[OLoraSettings]):
    name = "o_lora"
    settings_type = OLoraSettings
    # O-LoRA changes the loss, so it cannot be the expansion of another strategy.
    expands = False

    def plan(self, hop: Hop) -> Plan:
        serve = self._without_penalty()
        train = self.described() if hop.depth > 1 and self.settings.penalty > 0 else serve
        return replace(super().plan(hop), train=train, serve=serve)

    def _without_penalty(self) -> dict[str, Any]:
        settings = {key: value for key, value in self.described().items() if key != "penalty"}
        return settings | {"name": IncLora.name}

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        hop = context.hop.index

        def loss(part: Batch, rows: slice) -> Tensor:
            overlapping = overlap(dict(context.model.named_parameters()), hop)
            return context.model.loss(part) + self.settings.penalty * overlapping

        yield Step(main, loss if hop > 1 else None)


def overlap(parameters: Mapping[str, Tensor], hop: int) -> Tensor:
    """Return the sum of |A_i A_tᵀ| over all matrices with updates, all i < t = ``hop`` and all entries (scalar)."""
    import torch

    sums, current = [], f".{product(hop)}."
    for name, rows in parameters.items():
        if ".lora_A" not in name or current not in name:
            continue
        earlier = torch.cat([parameters[name.replace(current, f".{product(i)}.")] for i in range(1, hop)])
        with torch.autocast(rows.device.type, enabled=False):
            sums.append((earlier @ rows.T).abs().sum())
    return torch.stack(sums).sum()
