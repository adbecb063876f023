"""Ratios of times: a training step of xclrun with default settings / a step of HF Trainer, and of a plain loop.

All sides train the same encoder with heads for labels and tags on the same sentences, each for one epoch in batches of
its own. HF Trainer has its own default settings, and reads a `datasets.Dataset`; the plain loop reads tensors. The CRF
of both is pytorch-crf's. The sides take turns: each takes a step, in a thread of its own, while the others wait. One
thread computes, and times are CPU seconds.

Batches differ in length between sides, so the total times of an epoch are compared.
"""

from __future__ import annotations

import copy
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torchcrf import CRF

from benchmarks.packing import now
from xclrun.command.plan import plan_runs
from xclrun.data.batches import Encoded
from xclrun.train.checkpoint import Checkpoints
from xclrun.train.loop import HopTraining
from xclrun.train.progress import Listener, Progress
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag

BATCH = 16
# Sentences of an epoch, if the language has as many: enough that the batches of two sides have similar total lengths.
SENTENCES = 32 * BATCH
HF, PLAIN = "HF Trainer", "plain loop"
OURS: dict[str, list[str]] = {"default settings": [], "packing": ["trainer.packing=true"]}
# Name of a side → its total seconds.
Seconds = dict[str, float]
# Ends the step of a side, and waits for the side's next turn.
Pause = Callable[[], None]


class Side:
    """A training in a thread, which calls its `pause` after each step and continues at the next `turn`."""

    def __init__(self, train: Callable[[Pause], None]) -> None:
        self.train = train
        self.go, self.paused = threading.Semaphore(0), threading.Semaphore(0)
        self.steps, self.began, self.error = list[float](), 0.0, list[BaseException]()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        # Each thread has its own number.
        torch.set_num_threads(1)
        self._wait()
        try:
            self.train(self.pause)
        except BaseException as error:
            self.error.append(error)
        self.paused.release()

    def _wait(self) -> None:
        self.go.acquire()
        self.began = now()

    def pause(self) -> None:
        self.steps.append(now() - self.began)
        self.paused.release()
        self._wait()

    def turn(self) -> None:
        """Take a step, or end the training."""
        self.go.release()
        self.paused.acquire()
        if self.error:
            raise self.error[0]


@cache
def seconds_of_sides(overrides: tuple[str, ...], outputs: Path) -> Seconds:
    """Return name of side → CPU seconds of an epoch of `SENTENCES` sentences, without its first step.

    Args:
        overrides: dataset and model; the task has labels and tags.
    """
    trainings = {name: first_hop([*overrides, *own], outputs) for name, own in OURS.items()}
    first = trainings["default settings"]
    context, lr = first.context, first.trainer.lr
    model, sentences = context.model, context.train[context.hop.train[0]]
    sides = {name: Side(lambda pause, t=training: our_epoch(t, pause)) for name, training in trainings.items()}
    sides |= {PLAIN: Side(lambda pause: _plain(_Joint(model), sentences, lr, pause))}
    if find_spec("accelerate"):
        sides[HF] = Side(lambda pause: _hf_trainer(_Joint(model), sentences, lr, pause))
    steps = ceil(len(sentences) / BATCH)
    # The turn after the last step ends the training.
    for _ in range(steps + 1):
        for side in sides.values():
            side.turn()
    assert all(len(side.steps) == steps for side in sides.values())
    # The first step also allocates memory and chooses kernels.
    return {name: sum(side.steps[1:]) for name, side in sides.items()}


def ours_over(peer: str, ours: str, overrides: Sequence[str], outputs: Path) -> dict[str, float]:
    """Return the ratio of total times, ours / the peer's, and how many ``times`` as fast as the peer we are."""
    seconds = seconds_of_sides(tuple(overrides), outputs)
    ratio = seconds[ours] / seconds[peer]
    return {"ratio": ratio, "times": 1 / ratio, "ours_s": seconds[ours], "bare_s": seconds[peer]}


def peers() -> Iterator[str]:
    """Yield the names of the peers that are installed."""
    yield PLAIN
    if find_spec("accelerate"):
        yield HF
    else:
        print(f"{HF}: not measured, because the package accelerate is not installed")


def first_hop(overrides: Sequence[str], outputs: Path) -> HopTraining:
    """Return the training of a first hop, for one epoch of `SENTENCES` sentences."""
    own = ["trainer.epochs=1", f"trainer.batch_size={BATCH}", "trainer.selection=last", "tracking=none"]
    [run] = plan_runs([*overrides, f"dataset.max_train={SENTENCES}", *own, f"paths.outputs={outputs}"])
    bench = StageGraph(run, Listener(), StopFlag()).bench
    context = bench.context(run.stream.hops[1])
    bench.strategy.begin_hop(context)
    return HopTraining(bench.work(context), Checkpoints(outputs / "no-checkpoints"))


def our_epoch(training: HopTraining, pause: Pause) -> None:
    class Paused(Listener):
        def stepped(self, progress: Progress) -> None:
            pause()

    training.listener = Paused()
    training.run()


class _Joint(nn.Module):
    """An encoder with a class head and a CRF tagger, as most users of transformers and pytorch-crf write it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(model.encoder)
        tagger = model.tagger
        self.dropout = nn.Dropout(0.1)
        self.intent = nn.Linear(model.intent.in_features, model.intent.out_features)
        self.tags = nn.Linear(model.intent.in_features, tagger.crf.num_tags)
        self.crf = CRF(tagger.crf.num_tags, batch_first=True)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        word_pieces: Tensor,
        word_mask: Tensor,
        labels: Tensor,
        tags: Tensor,
    ) -> dict[str, Tensor]:
        states = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        words = states.gather(1, word_pieces.unsqueeze(2).expand(-1, -1, states.shape[2]))
        intent_loss = nn.functional.cross_entropy(self.intent(self.dropout(states[:, 0])), labels)
        emissions = self.tags(self.dropout(words))
        return {"loss": intent_loss - self.crf(emissions, tags, mask=word_mask, reduction="mean")}


def _rows(sentences: Encoded) -> list[dict[str, Tensor]]:
    """Return the sentences as tensors, one row per sentence."""
    rows = []
    for i in range(len(sentences)):
        batch = sentences.batch([i])
        names = ("input_ids", "attention_mask", "word_pieces", "word_mask", "labels", "tags")
        rows.append({name: getattr(batch, name)[0] for name in names})
    return rows


def _collate(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad rows to the longest one; their values are tensors, or lists and numbers."""
    columns = {name: [torch.as_tensor(row[name]) for row in rows] for name in rows[0]}
    return {
        name: pad_sequence(column, batch_first=True) if column[0].dim() else torch.stack(column)
        for name, column in columns.items()
    }


def _plain(model: _Joint, sentences: Encoded, lr: float, pause: Pause) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for batch in DataLoader(_rows(sentences), BATCH, shuffle=True, collate_fn=_collate):  # type: ignore[arg-type]
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
        pause()


def _hf_trainer(model: _Joint, sentences: Encoded, lr: float, pause: Pause) -> None:
    from datasets import Dataset
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Paused(TrainerCallback):
        def on_step_end(self, *arguments: Any, **named: Any) -> None:
            pause()

    dataset = Dataset.from_list([{name: value.tolist() for name, value in row.items()} for row in _rows(sentences)])
    with tempfile.TemporaryDirectory(prefix="xclrun-bench-") as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            learning_rate=lr,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        )
        Trainer(
            model,
            arguments,
            data_collator=_collate,
            train_dataset=dataset,
            callbacks=[Paused()],  # type: ignore[arg-type]
        ).train()
