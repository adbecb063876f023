"""Ratio of times to adapt heads to many buckets: with stored features / with the frozen encoder run in every step.

Both methods adapt one source model, K = 1, for 50 epochs. They evaluate it on dev after each epoch, and finally on the
test sets of source and target. Only a part is run, and the rest is extrapolated:

- with features: the first bucket, which also computes the features of dev and test, and three more buckets. The mean
  of these three is used for all other buckets;
- without features: one bucket with 1 epoch and with 3 epochs. Half the difference is the time of each further epoch.
  All other buckets are assumed to take as long as this one.

The source model is hardly trained, which does not affect times. Its training and evaluations are excluded.

Without a GPU, times are CPU seconds, because wall-clock times would depend on other processes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from xclrun.command.plan import plan_runs
from xclrun.plan import Run
from xclrun.train.execute import make_stages
from xclrun.train.progress import Listener
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag
from xclrun.train.workbench import Workbench

BUCKETS, EPOCHS = 40, 50
# Number of buckets that are adapted on features after the first bucket.
TIMED = 3


def frozen_heads(overrides: Sequence[str], outputs: Path) -> dict[str, Any]:
    """Return the time for all buckets with features divided by the time without, and both times in seconds."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    common = ["experiment=fewshot", "strategy=fc", "language=de", "shots=1", "tracking=none", "dataset.max_train=40"]
    common += ["protocol.source_trainer.epochs=1", "trainer.patience=null", f"paths.outputs={outputs}"]

    def runs(buckets: int, epochs: int) -> list[Run]:
        return plan_runs([*overrides, *common, f"bucket=range(0,{buckets})", f"trainer.epochs={epochs}"])

    def adapt(run: Run) -> float:
        began = clock()
        make_stages(run, [2], Listener(), StopFlag())
        return clock() - began

    stored = runs(1 + TIMED, EPOCHS)
    StageGraph(stored[0], Listener(), StopFlag()).weights(1)
    with patch.object(Workbench, "features_key", lambda self, hop, split: None):
        item, three = (adapt(runs(1, epochs)[0]) for epochs in (1, 3))
    first, *rest = [adapt(run) for run in stored]
    ours = first + (BUCKETS - 1) * sum(rest) / TIMED
    bare = BUCKETS * (item + (EPOCHS - 1) * (three - item) / 2)
    measured = {"first_s": first, "others_s": rest, "one_epoch_s": item, "three_epochs_s": three}
    return {"ratio": ours / bare, "ours_s": ours, "bare_s": bare, "buckets": BUCKETS, "epochs": EPOCHS, **measured}
