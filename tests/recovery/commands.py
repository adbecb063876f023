"""Small commands, and what they leave."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xclrun.store.prune import damaged
from xclrun.store.stages import StageStore

# The command, as a process of its own.
XCLRUN = [sys.executable, "-c", "import sys; from xclrun.cli import main; sys.exit(main())"]

# Jobs of a tenth of a second.
SMALL = (
    "dataset=mini",
    "dataset.languages=[en,de,th]",
    "dataset.max_train=16",
    "dataset.max_eval=8",
    "order=[en,de,th]",
    "model.hidden_size=16",
    "model.intermediate_size=32",
    "model.vocab_size=300",
    "trainer.epochs=1",
    "trainer.batch_size=4",
    "runtime.device=cpu",
    "tracking=none",
)


def small(*overrides: str) -> tuple[str, ...]:
    """Return the overrides of `SMALL`, with some changed or added."""
    return tuple({text.partition("=")[0]: text for text in (*SMALL, *overrides)}.values())


def predictions(outputs: Path) -> dict[str, str]:
    """Return file → SHA-256 of everything that the finished runs of a folder predicted."""
    result = {}
    for done in sorted(outputs.glob("runs/*/DONE")):
        for path in [*done.parent.glob("predictions/*.parquet"), done.parent / "scores.parquet"]:
            result[str(path.relative_to(outputs))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return result


def trainings(outputs: Path) -> list[str]:
    """Return the keys of the trainings in the store."""
    store = StageStore(outputs / "store")
    return sorted(key for key in store.all_keys() if store.facts(key)["kind"] == "train")


def whole(outputs: Path, killed: bool = False) -> bool:
    """Whether everything in a folder matches its checksums, and nothing half-written or held is left in its runs.

    What was being written to the store when its process was ``killed`` stays until `store gc` finds it a day old.
    """
    remaining = [*outputs.glob("runs/**/.tmp-*"), *outputs.glob("runs/*/run.lease-*")]
    remaining += [] if killed else outputs.glob("store/**/.tmp-*")
    assert not remaining, remaining
    assert list(damaged(StageStore(outputs / "store"), outputs)) == []
    return True


def events(outputs: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind of all runs of a folder."""
    lines = [line for path in outputs.glob("runs/*/events.jsonl") for line in path.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until a condition holds, and return what it gave."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return result
