"""Ratios of times that are measured alternately, so the load of the machine affects both sides."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

REPETITIONS = 7


def seconds(work: Callable[[], Any]) -> float:
    """Return the wall-clock seconds that ``work`` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def calibration() -> float:
    """Return the CPU seconds of a fixed workload of objects, text and arithmetic, similar to the work of commands.

    Load slows a command and this workload alike. So the command's seconds divided by these seconds are roughly
    comparable across machines and loads.
    """
    began = time.process_time()
    for _ in range(20):
        rows = [{"name": f"run-{i}", "score": i * i % 1009 / 1009} for i in range(20_000)]
        result = json.loads(json.dumps(rows))
        sorted(result, key=lambda row: (row["score"], row["name"]))
    return time.process_time() - began


def summary(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return the median, minimum and maximum ratio of (ours, bare) seconds, and both median times."""
    ratios = [ours / bare for ours, bare in pairs]
    medians = {"ours_s": statistics.median(a for a, _ in pairs), "bare_s": statistics.median(b for _, b in pairs)}
    return {"ratio": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios), **medians}


def ratio(ours: Callable[[], Any], bare: Callable[[], Any]) -> dict[str, float]:
    """Time two functions alternately after a warm-up round; return the `summary`."""
    ours()
    bare()
    return summary([(seconds(ours), seconds(bare)) for _ in range(REPETITIONS)])
