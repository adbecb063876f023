"""``python -m benchmarks.texts``: models that write, compared with TRL and with ``generate`` of transformers.

Prints as JSON:

- ``first_batch``: our loss of a batch, and that of TRL's ``SFTTrainer`` with the same prompts and completions (token
  mean, end included); without dropout;
- ``step_over_trl``: CPU seconds of an epoch's training steps, ours / TRL's with default settings;
- ``writing_over_generate``: CPU seconds of greedy texts, ours / ``generate`` on equal batches; their texts must be
  equal;
- ``scoring_over_writing``: CPU seconds of log-probabilities of references / of writing, for the same test prompts.

All sides take turns in one process with one thread. TRL is no dependency of xclrun: without the package ``trl``, its
figures are absent. The model is `tiny_decoder` on the embedded frames.
"""

from __future__ import annotations

import copy
import json
import tempfile
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.packing import now
from benchmarks.peers import BATCH, Pause, Side, first_hop, our_epoch
from benchmarks.timing import summary
from xclrun.data.batches import Encoded, length_sorted_batches
from xclrun.model.heads import Limits
from xclrun.train.loop import HopTraining

OVERRIDES = ("dataset=mini_text", "model=tiny_decoder", "strategy=naive", "order=[en]", "dataset.max_eval=64")
ROUNDS = 3
LIMITS = Limits(new=32, prompt=160)


def rows_of(encoded: Encoded) -> list[dict[str, str]]:
    """Return training examples as TRL's rows, from their subwords: bytes, which decode to the text exactly."""
    prompts, tokenizer = encoded.prompts, encoded.tokenizer
    assert prompts is not None
    columns = {"prompt": prompts.pieces, "completion": encoded.tags}
    split = {name: np.split(part.values, part.offsets[1:-1]) for name, part in columns.items()}
    decoded = {name: tokenizer.batch_decode(rows, skip_special_tokens=True) for name, rows in split.items()}
    return [dict(zip(decoded, texts, strict=True)) for texts in zip(*decoded.values(), strict=True)]


def trl_trainer(training: HopTraining, folder: str, **settings: Any) -> Any:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    head: Any = training.context.model.head_of("")
    encoded = training.context.train["en"]
    arguments = {
        "num_train_epochs": 1,
        "per_device_train_batch_size": BATCH,
        "learning_rate": training.trainer.lr,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "max_length": None,
        **settings,
    }
    return SFTTrainer(
        copy.deepcopy(head.language_model),
        SFTConfig(folder, **arguments),
        train_dataset=Dataset.from_list(rows_of(encoded)),
        processing_class=copy.deepcopy(encoded.tokenizer),
    )


def first_batch(outputs: Path) -> dict[str, float]:
    training = first_hop([*OVERRIDES, "model.dropout=0"], outputs)
    context = training.context
    trainer = trl_trainer(training, str(outputs / "trl"), bf16=False, gradient_checkpointing=False)
    collated = trainer.data_collator([trainer.train_dataset[i] for i in range(BATCH)])
    with torch.no_grad():
        theirs = trainer.compute_loss(trainer.model, collated)
        ours = context.model.loss(context.train["en"].batch(range(BATCH)))
    return {"ours": float(ours), "trl": float(theirs), "relative": abs(float(ours) / float(theirs) - 1)}


def step_over_trl(outputs: Path) -> dict[str, float]:
    from transformers import TrainerCallback

    training = first_hop(OVERRIDES, outputs)

    def theirs(pause: Pause) -> None:
        class Paused(TrainerCallback):
            def on_step_end(self, *arguments: Any, **named: Any) -> None:
                pause()

        with tempfile.TemporaryDirectory(prefix="xclrun-bench-") as folder:
            trainer = trl_trainer(training, folder, bf16=False)
            trainer.add_callback(Paused())
            trainer.train()

    sides = [Side(lambda pause: our_epoch(training, pause)), Side(theirs)]
    for _ in range(ceil(len(training.context.train["en"]) / BATCH) + 1):
        for side in sides:
            side.turn()
    # The first step also allocates memory and chooses kernels.
    return summary([(sum(sides[0].steps[1:]), sum(sides[1].steps[1:]))])


def writing(outputs: Path) -> dict[str, dict[str, float]]:
    training = first_hop(OVERRIDES, outputs)
    model, encoded = training.context.model.eval(), training.context.train["en"]
    head: Any = model.head_of("")
    # A few steps, so that texts differ and some end.
    our_epoch(training, lambda: None)
    model.eval()
    rows = np.arange(64)
    batches = length_sorted_batches(encoded.prompts.pieces.lengths[rows], BATCH)
    texts: dict[str, list[str]] = {"ours": [], "generate": []}

    def ours() -> None:
        texts["ours"] = [text for at in batches for text in head.write_texts(encoded, rows[at], LIMITS)["generated"]]

    def bare() -> None:
        tokenizer, language_model = encoded.tokenizer, head.language_model
        values, offsets = encoded.prompts.pieces.values, encoded.prompts.pieces.offsets
        texts["generate"] = []
        for at in batches:
            given = [{"input_ids": values[offsets[row] : offsets[row + 1]].tolist()} for row in at]
            padded = tokenizer.pad(given, padding_side="left", return_tensors="pt")
            made = language_model.generate(
                **padded, max_new_tokens=LIMITS.new, do_sample=False, eos_token_id=2, pad_token_id=0
            )
            new = made[:, padded["input_ids"].shape[1] :]
            texts["generate"] += tokenizer.batch_decode(
                new, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )

    def score() -> None:
        for at in batches:
            model.predict(encoded.batch(rows[at]))

    rounds = []
    for _ in range(ROUNDS + 1):
        times = []
        for work in (ours, bare, score):
            began = now()
            work()
            times.append(now() - began)
        rounds.append(times)
    assert texts["ours"] == texts["generate"]
    # Without the first round.
    return {
        "writing_over_generate": summary([(a, b) for a, b, _ in rounds[1:]]),
        "scoring_over_writing": summary([(c, a) for a, _, c in rounds[1:]]),
    }


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="xclrun-bench-") as folder:
        outputs, results = Path(folder), dict[str, Any]()
        if find_spec("trl"):
            results["first_batch"] = first_batch(outputs)
            results["step_over_trl"] = step_over_trl(outputs)
        results |= writing(outputs)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
