"""Small real models and contexts, for strategies whose hooks compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xclrun.model.network import Model, build
from xclrun.run import Run
from xclrun.store.tensors import load_tensors
from xclrun.strategy import Context, State
from xclrun.train.encodings import encodings


def untrained(run: Run, seed: int = 1) -> Model:
    """Return a run's model before any training."""
    found, dataset = encodings(run), run.dataset
    return build(run.config.model, found.tokenizer, len(dataset.labels), len(dataset.tags), seed)


def context_of(run: Run, hop: int, model: Model | None = None) -> Context:
    """Return the context of a run's hop, by default with an untrained model."""
    splits, trainer = encodings(run).splits, run.config.trainer
    return Context(
        model=model or untrained(run),
        hop=run.stream.hops[hop],
        stream=run.stream,
        train={language: splits[language, "train"] for language in run.stream.languages},
        device=torch.device("cpu"),
        seed=run.config.seed,
        batch_size=trainer.batch_size * trainer.gradient_accumulation,
        precision=trainer.precision.value,
    )


def weights(run: Run, hop: int) -> dict[str, Tensor]:
    """Return the weights of a finished run after a hop."""
    return load_tensors(run.store.path(run.stages[hop].train) / "weights.safetensors")


def state(run: Run, hop: int) -> State:
    """Return the strategy's state of a finished run after a hop."""
    from xclrun.store.files import read_json

    folder = run.store.path(str(run.stages[hop].state))
    path = folder / "state.safetensors"
    return State(read_json(folder / "facts.json"), load_tensors(path) if path.is_file() else {})


def gradients(model: Model) -> dict[str, Tensor]:
    """Return copies of a model's gradients, of the parameters that have one."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def perturbed(model: Model, by: float, seed: int) -> Model:
    """Add normal noise to all weights of a model, and return it."""
    generator: Any = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator), alpha=by)
    return model
