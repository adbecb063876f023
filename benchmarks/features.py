"""Adapting heads in many buckets on kept features, over running the frozen encoder for every sentence each time.

Both sides adapt one source model, K = 1, for 50 epochs with a look at the dev set after each, and are evaluated on the
test sets of source and target. Without features one bucket is timed, over 1 and over 3 epochs: an epoch takes the
difference by two, and all epochs and buckets take as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.timing import seconds
from xclrun.command.plan import plan_runs
from xclrun.run import Run
from xclrun.train.execute import make_stages
from xclrun.train.listen import Listener
from xclrun.train.making import Maker
from xclrun.train.stop import StopFlag

BUCKETS, EPOCHS = 40, 50


def frozen_heads(overrides: Sequence[str], outputs: Path) -> dict[str, Any]:
    """Return the ratio of times for all buckets, with features over without, and both times in seconds."""
    common = ["experiment=fewshot", "strategy=fc", "language=de", "shots=1", "tracking=none"]
    common += ["protocol.source_trainer.epochs=1", "trainer.patience=null", f"paths.outputs={outputs}"]

    def runs(buckets: int, epochs: int) -> list[Run]:
        return plan_runs([*overrides, *common, f"bucket=range(0,{buckets})", f"trainer.epochs={epochs}"])

    def adapt(them: Sequence[Run]) -> None:
        for run in them:
            make_stages(run, [2], Listener(), StopFlag())

    kept = runs(BUCKETS, EPOCHS)
    # What both sides have: the source model and its evaluation.
    make_stages(kept[0], [0, 1], Listener(), StopFlag())
    ours = seconds(lambda: adapt(kept))
    with patch.object(Maker, "_sentences", lambda self, hop, language, split: self.encodings.splits[language, split]):
        one, three = (seconds(lambda n=n: adapt(runs(1, n))) for n in (1, 3))  # type: ignore[misc]
    bare = BUCKETS * (one + (EPOCHS - 1) * (three - one) / 2)
    return {"ratio": ours / bare, "ours_s": ours, "bare_s": bare, "buckets": BUCKETS, "epochs": EPOCHS}
