"""What each strategy learns stays what it was: a changed algorithm raises its version.

Keys say what a stage is made from, not what its code computes: these numbers do. `python -m
tests.strategy.test_final_scores` writes them anew; its difference then says whose results change.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import pytest

from tests.conftest import done, small_run, write_corpus
from xclrun.store import predictions
from xclrun.testing.strategies import one_thread

from .test_contract import EVERY, given

FILE = Path(__file__).with_name("final_scores.json")
# In bits per sentence. Other processors' kernels differ by less than 3e-4, most changes of an algorithm by more than
# 0.01. EWC's anchors are rounded, and Adam makes steps of full length from gradients as small as that: 0.05.
TOLERANCE = dict.fromkeys(EVERY, 2e-3) | {"ewc": 0.2}
# Gradients that conflict are rare among the few replays of the other tests.
MORE = {"agem_replay": ("strategy.replay_write=0.9", "strategy.replay_interval=1")}


def scores(strategy: str, outputs: Path, data: Path) -> dict[str, float]:
    """Return language → mean -log2 p(gold) of the test sentences after the last hop, in bits per sentence."""
    with one_thread():
        run = done(small_run((*given(strategy), *MORE.get(strategy, ()), "model.lr=1e-2"), outputs, data))
    last = max((run.directory.path / "predictions").iterdir())
    bits: dict[str, list[float]] = {}
    for row in predictions.read(last).to_pylist():
        if row["split"] == "test":
            known = [row[name] for name in ("log2_gold", "log2_gold_tags") if row[name] is not None]
            bits.setdefault(row["language"], []).append(-math.fsum(known))
    return {language: round(math.fsum(values) / len(values), 5) for language, values in sorted(bits.items())}


@pytest.mark.full
@pytest.mark.parametrize("strategy", EVERY)
def test_a_strategy_learns_what_it_learned_before(strategy: str, corpus: Path, tmp_path: Path) -> None:
    assert scores(strategy, tmp_path, corpus) == pytest.approx(
        json.loads(FILE.read_text())[strategy], abs=TOLERANCE[strategy]
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data").mkdir()
        data = write_corpus(Path(folder, "data"), {})
        found = {name: scores(name, Path(folder, name), data) for name in EVERY}
    FILE.write_text(json.dumps(found, indent=1) + "\n")
