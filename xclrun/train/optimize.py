"""The optimiser and its learning-rate schedule, which has no state because it depends only on the step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from xclrun.config.schema import Optimizer, Schedule, TrainerConfig


def make_optimizer(parameters: Iterable[Tensor], config: TrainerConfig) -> torch.optim.Optimizer:
    """Return Adam (Kingma & Ba 2015) or AdamW (Loshchilov & Hutter 2019) over the trained parameters.

    Optimisers with 8-bit states are from bitsandbytes (Dettmers et al. 2022, "8-bit optimizers via block-wise
    quantization").

    With ``trainer.cuda_graphs`` the learning rate is an fp32 tensor, which captured steps read.
    """
    trained = [p for p in parameters if p.requires_grad]
    if config.optimizer.eight_bit:
        from bitsandbytes import optim

        eight_bit: Any = {Optimizer.adam_8bit: optim.Adam8bit, Optimizer.adamw_8bit: optim.AdamW8bit}[config.optimizer]
        optimizer: torch.optim.Optimizer = eight_bit(
            trained, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
        )
        return optimizer
    kind = {Optimizer.adam: torch.optim.Adam, Optimizer.adamw: torch.optim.AdamW}[config.optimizer]
    return kind(
        trained,
        lr=torch.tensor(config.lr, device=trained[0].device) if config.cuda_graphs else config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
        capturable=config.cuda_graphs,
    )


def lr_factor(step: int, total: int, schedule: Schedule, warmup: float) -> float:
    """Return the multiplier of the learning rate at main step ``step`` (from 0) of ``total``.

    Linear warmup over the fraction ``warmup`` of the steps is followed by a constant rate, or by linear or cosine decay
    to 0.
    """
    rising = math.ceil(warmup * total)
    if step < rising:
        return (step + 1) / rising
    if schedule is Schedule.constant:
        return 1.0
    share = (step - rising) / max(1, total - rising)
    return 1.0 - share if schedule is Schedule.linear else 0.5 * (1.0 + math.cos(math.pi * share))


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameter groups; captured CUDA graphs read it from a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimiser's state as ``parameter/entry`` → tensor."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[p]}/{key}": torch.as_tensor(value)
        for p, entries in optimizer.state.items()
        for key, value in entries.items()
    }


def load_optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load a state from `optimizer_state`; entries of parameters that are not trained are skipped."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    indices = {names[p]: index for index, p in enumerate(p for g in optimizer.param_groups for p in g["params"])}
    state: dict[int, dict[str, Tensor | float]] = {}
    # The step count is a number in bitsandbytes, and a tensor in PyTorch.
    in_tensors = isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition("/")
        if name in indices:
            state.setdefault(indices[name], {})[entry] = tensor if tensor.dim() or in_tensors else tensor.item()
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
