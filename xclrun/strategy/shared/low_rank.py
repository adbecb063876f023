r"""Low-rank updates of a frozen encoder that all languages share (Hu et al. 2022, "LoRA").

The library ``adapters`` or ``peft`` replaces a weight matrix W by W + (α / rank) Σ B A. The sum has one product B A for
all hops, or one for each hop. W is frozen; A, B and the heads are trained. All products exist from the start. B is
initialised with zeros, so a product has no effect until its hop trains it.

| strategy | products | loss |
|---|---|---|
| ``seq_lora`` | one, which every hop trains further | L |
| ``inc_lora`` | one for each hop, which only that hop trains | L |
| ``o_lora`` | as ``inc_lora`` | L + λ Σ \|A_i A_tᵀ\| |

Settings: ``lora_rank``, ``lora_alpha``, and ``lora_targets``, some of q, k, v, intermediate and output. The default
values are from O-LoRA's code (Wang et al. 2023). Unlike in that code, there is no dropout before A.

``library``: ``auto`` is ``peft`` for models that write texts and with transformers 5, and otherwise ``adapters``. The
libraries name and initialise the parameters differently, so their runs share no training. Both start from B = 0. A
model that writes texts keeps its pretrained output layer frozen; only A and B are trained.

Cost: in training and evaluation, each target matrix has one product for each hop of the stream, even before that hop;
``seq_lora`` has a single product. `merged_weights` adds the products to W for an export.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from xclrun.core.errors import UsageError
from xclrun.core.stream import Stream
from xclrun.model.families import FAMILIES
from xclrun.strategy.base import Context, Library, Parameters
from xclrun.strategy.shared.adapters import (
    NAME,
    LowRankSettings,
    add_adapters,
    check_family,
    check_library,
    lora_config,
    uses_peft,
)
from xclrun.strategy.shared.added import AddsParameters, PartsPerHop
from xclrun.strategy.shared.updates import add_updates, added_up, is_update

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.model.families import Family
    from xclrun.model.network import Model

Settings = TypeVar("Settings", bound=LowRankSettings)

# Families whose queries, keys and values come from one matrix, for which the library cannot add several products.
FUSED = (FAMILIES["gpt2"], FAMILIES["deberta"])


class LowRank(AddsParameters[Settings]):
    """Base of the strategies with low-rank updates; by default, all hops share one product."""

    expands = True

    def __init__(self, settings: Settings) -> None:
        check_library(settings)
        super().__init__(settings)

    def check_encoder(self, family: Family | None, width: int | None, layers: int | None) -> None:
        check_family(self.settings, family)

    def products(self, hops: int) -> list[str]:
        """Return the names of the products in a stream with this number of hops."""
        return ["shared"]

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        names = self.products(len(stream.hops) - 1)
        for parameter in model.encoder.parameters():
            parameter.requires_grad_(False)
        if uses_peft(self.settings):
            add_updates(model, self.settings, names)
            return
        from adapters.composition import Average

        # The library can average products but not add them. With a weight of n for each of n products, the average is
        # the sum. On a GPU, the library waits for a copy of these weights in each adapted matrix and forward pass.
        mean = Average(*names, weights=[float(len(names))] * len(names), normalize_weights=False)
        configs = {name: lora_config(self.settings) for name in names}
        add_adapters(model.encoder, self.settings, configs, mean if len(names) > 1 else names[0])


class LowRankPerHop(PartsPerHop[Settings], LowRank[Settings]):
    """Base of the strategies with one product for each hop."""

    def check_encoder(self, family: Family | None, width: int | None, layers: int | None) -> None:
        super().check_encoder(family, width, layers)
        if family in FUSED and not uses_peft(self.settings):
            raise UsageError(
                f"strategy={self.settings.name}: {family.title} has one matrix for queries, keys and values; the "
                "library 'adapters' can add only one update to this matrix; use seq_lora or strategy.library=peft"
            )

    def products(self, hops: int) -> list[str]:
        return [product(hop) for hop in range(1, hops + 1)]

    @property
    def parameters(self) -> Parameters:
        return replace(
            super().parameters,
            trains=lambda name, hop: not is_update(name) or f".{product(hop.index)}." in name,
        )

    def begin_hop(self, context: Context) -> None:
        for name, parameter in context.model.named_parameters():
            if is_update(name):
                parameter.requires_grad_(self.parameters.trains(name, context.hop))


def product(hop: int) -> str:
    """Return the name of a hop's product."""
    return f"hop{hop}"


def merged_weights(encoder: Any) -> Mapping[str, Tensor]:
    """Return the weights of an encoder with low-rank updates added, under the names without updates.

    Language-specific updates of the library ``adapters`` are left out, because they are exported separately.
    """
    weights = added_up(encoder)
    for place, module in encoder.named_modules():
        for name, lora in getattr(module, "loras", {}).items():
            if name != NAME:
                weight = weights[f"{place}.weight"].detach()
                weights[f"{place}.weight"] = lora.com(weight, module.maybe_t(lora.delta_w.detach()))
    return weights
