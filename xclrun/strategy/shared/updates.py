"""Low-rank updates (LoRA) in any encoder or language model, through the library ``peft``.

A linear layer with weight W computes (W + (α / rank) Σ B A) x. The sum has one product for each name. A layer has the
parameters ``base_layer.weight`` (W), ``lora_A.NAME.weight`` (rank, d) and ``lora_B.NAME.weight`` (width, rank), with
B = 0 at first.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from xclrun.core.errors import UsageError
from xclrun.model.families import FAMILIES

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.model.families import Family
    from xclrun.model.network import Model

# Target of LoRA → the ends of the names of its layers, in all families.
TARGETS_OF: Mapping[str, tuple[str, ...]] = {
    "q": ("query", "q_proj", "q_lin", "query_proj", "attn.q", "SelfAttention.q", "EncDecAttention.q"),
    "k": ("key", "k_proj", "k_lin", "key_proj", "attn.k", "SelfAttention.k", "EncDecAttention.k"),
    "v": ("value", "v_proj", "v_lin", "value_proj", "attn.v", "SelfAttention.v", "EncDecAttention.v"),
    "intermediate": (
        "intermediate.dense", "gate_proj", "up_proj", "lin1", "mlp.Wi", "mlp.c_fc", "dense_h_to_4h", "ffn", "wi",
        "wi_0", "wi_1",
    ),
    "output": (
        r"\d+.output.dense", "down_proj", "lin2", "mlp.Wo", "mlp.c_proj", "dense_4h_to_h", "ffn_output",
        "DenseReluDense.wo",
    ),
}  # fmt: skip
# Ends of the names of layers that compute queries, keys and values together.
JOINT = ("c_attn", "query_key_value", "in_proj", "Wqkv")
JOINT_FAMILIES = tuple(FAMILIES[name] for name in ("gpt2", "bloom", "deberta", "modernbert"))
ATTENTION = ("q", "k", "v")


class LoraSettings(Protocol):
    name: str
    lora_rank: int
    lora_alpha: int
    lora_targets: list[str]


def check_targets(settings: LoraSettings, family: Family) -> None:
    """Check that a family has a matrix for each LoRA target."""
    attention = [target for target in settings.lora_targets if target in ATTENTION]
    if family in JOINT_FAMILIES and 0 < len(attention) < len(ATTENTION):
        raise UsageError(
            f"strategy.lora_targets=[{','.join(settings.lora_targets)}]: {family.title} has one matrix for queries, "
            "keys and values; set strategy.lora_targets=[q,k,v]"
        )


def add_updates(model: Model, settings: LoraSettings, names: Sequence[str]) -> None:
    """Add one update per name to the targets in the encoder of a model; all updates act, and can be trained.

    The output layer of a language model is frozen.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    from xclrun.model.writing import Writer

    encoder: Any = model.encoder
    targets = target_layers(encoder, settings)
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        target_modules=targets,
        # GPT-2 stores its matrices transposed.
        fan_in_fan_out=type(encoder.get_submodule(targets[0])).__name__ == "Conv1D",
    )
    for head in model.heads.values():
        for parameter in head.parameters() if isinstance(head, Writer) else ():
            parameter.requires_grad_(False)
    with warnings.catch_warnings():
        # It warns of a second update in the same layers, which is intended.
        warnings.simplefilter("ignore", UserWarning)
        for name in names:
            inject_adapter_in_model(config, encoder, name)
    for module in encoder.modules():
        if isinstance(module, LoraLayer):
            module.set_adapter(list(names))


def target_layers(encoder: Any, settings: LoraSettings) -> list[str]:
    """Return the names of the layers of an encoder that get updates.

    Raises:
        UsageError: the encoder has no layer for a target.
    """
    layers: dict[str, None] = {}
    names = [name for name, module in encoder.named_modules() if hasattr(module, "weight")]
    for target in settings.lora_targets:
        ends = (*TARGETS_OF[target], *JOINT) if target in ATTENTION else TARGETS_OF[target]
        pattern = re.compile(rf"(?:.*\.)?(?:{'|'.join(ends)})")
        if not (found := [name for name in names if pattern.fullmatch(name)]):
            raise UsageError(
                f"strategy.lora_targets=[{','.join(settings.lora_targets)}]: {type(encoder).__name__} has no layers "
                f"for '{target}'; choose other targets"
            )
        layers |= dict.fromkeys(found)
    return list(layers)


def is_update(parameter: str) -> bool:
    """Return whether a parameter belongs to a low-rank update, of the library ``peft`` or ``adapters``."""
    return any(part in parameter for part in (".lora_A.", ".lora_B.", ".loras."))


def added_up(encoder: Any) -> dict[str, Tensor]:
    """Return the weights of an encoder, with the updates of ``peft`` added, under the names without updates."""
    weights: dict[str, Tensor] = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in encoder.state_dict().items()
        if not any(part in name for part in (".lora_A.", ".lora_B."))
    }
    for place, module in encoder.named_modules():
        if hasattr(module, "base_layer"):
            for name in module.active_adapters:
                weights[f"{place}.weight"] = weights[f"{place}.weight"] + module.get_delta_weight(name).detach()
    return weights
