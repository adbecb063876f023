"""Small real models and contexts, for strategies whose hooks compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xclrun.data.batches import Batch
from xclrun.model.network import Model, build
from xclrun.plan import Run
from xclrun.store.tensors import load_tensors
from xclrun.strategy import Context, State, Strategy
from xclrun.train.checkpoint import Checkpoints
from xclrun.train.encodings import encodings
from xclrun.train.gradients import Gradients
from xclrun.train.loop import HopTraining
from xclrun.train.progress import Listener, Progress
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag

# Strategy → which parameters are a language's own, written out by hand.
SPECIFIC: dict[str, Callable[[str], bool]] = {
    "lang_spec_task": lambda name: name.startswith(("intent", "tagger")),
    "lang_spec_trans": lambda name: not name.startswith(("intent", "tagger")),
    "lang_spec_embed": lambda name: ".embeddings." in name,
    "lang_spec_enc": lambda name: ".layer." in name,
    "lang_spec_ada_t": lambda name: "adapters." in name,
    "lang_spec_ada_f": lambda name: "adapters." in name,
    "lang_spec_lora_t": lambda name: ".loras." in name,
    "lang_spec_lora_f": lambda name: ".loras." in name,
    "lang_spec_prompt": lambda name: name.startswith("prompts."),
}


def untrained(run: Run, seed: int = 1) -> Model:
    """Return a run's model before any training."""
    found, dataset = encodings(run), run.dataset
    return build(run.config.model, found.tokenizer, len(dataset.labels), len(dataset.tags), seed, task=dataset.task)


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


def graph(run: Run) -> StageGraph:
    """Return the stages of a run, with an untrained model."""
    return StageGraph(run, Listener(), StopFlag())


def train_hop(context: Context, strategy: Any, run: Run, folder: Path) -> None:
    """Train a hop of a run by the loop alone, with checkpoints under ``folder``."""
    bench = graph(run).bench
    bench.strategy = strategy
    HopTraining(bench.work(context), Checkpoints(folder / str(context.hop.index))).run()


def files(run: Run) -> list[bytes]:
    """Return the files with the predictions of a finished run."""
    return [run.directory.predictions(hop.index).read_bytes() for hop in run.stream.hops]


class StopAfter(Listener):
    """Asks for a stop after a number of main steps."""

    def __init__(self, steps: int) -> None:
        self.stop, self.left = StopFlag(), steps

    def stepped(self, progress: Progress) -> None:
        self.left -= 1
        if self.left == 0:
            self.stop.number = 15


def taken(strategy: Strategy[Any], number: int, main: Batch, context: Context, part: int | None = None) -> Tensor:
    """Take the steps of a main mini-batch, without clipping and the optimiser; return the sum of their losses.

    Args:
        part: sentences in a micro-batch.
    """
    total = torch.zeros(())
    for step in strategy.steps(number, main, context):
        assert step.batch is main
        context.model.zero_grad()
        machine = Gradients(context, part or main.size)
        total = total + torch.stack(machine.add(step)).sum()
        if step.edit is not None:
            step.edit(machine.mean)
    return total


def edit(strategy: Strategy[Any], number: int, main: Batch, context: Context) -> None:
    """Edit the gradients that the model has, as in the only step of a main mini-batch."""
    [step] = strategy.steps(number, main, context)
    if step.edit is not None:
        step.edit(Gradients(context, main.size).mean)


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
