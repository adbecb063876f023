"""Packs of runs, one per job, with shared stages in earlier jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from xclrun.core.graph import Kind, Result, missing, to_train
from xclrun.launch.cluster.files import Pack
from xclrun.plan import Run


def pack(
    runs: Sequence[Run], count: int, minutes: float | None, estimate: Callable[[Run], float | None] | None
) -> list[Pack]:
    """Pack runs into jobs, in order.

    Args:
        count: runs per job if ``minutes`` is None or the duration of a run is unknown.
        minutes: duration of a job; a longer run gets a separate job.
        estimate: returns the estimated seconds of a run, or None; needed with ``minutes``.
    """
    packs: list[list[str]] = []
    filled = 0.0
    for run in runs:
        seconds = None if estimate is None else estimate(run)
        if minutes is None or seconds is None:
            size, limit = 1.0, float(count)
        else:
            size, limit = seconds / 60, minutes
        # A run fills the fraction size / limit of a job; a job is full at 1. So runs with and without an estimate can
        # share a job.
        if not packs or filled + size / limit > 1 + 1e-9:
            packs.append([])
            filled = 0.0
        packs[-1].append(run.id)
        filled += size / limit
    return [Pack(runs=tuple(ids)) for ids in packs]


def shared_first(runs: Sequence[Run], queued: Collection[str] = ()) -> list[Pack]:
    """Return packs of the trainings that several runs need, except those that are ``queued`` (keys).

    Stages whose chains of trainings begin with the same training go into one pack. The runs start after these jobs, so
    no run occupies a GPU while it waits for a stage.
    """
    needed = [(run, hop, run.stages[hop].train) for run in runs for hop in to_train(run.stages, run.store)]
    users = Counter(key for *_, key in needed)
    packs: dict[str, list[tuple[str, int]]] = {}
    seen = set(queued)
    for run, hop, key in needed:
        if users[key] > 1 and key not in seen:
            seen.add(key)
            packs.setdefault(_first(run, hop), []).append((run.id, hop))
    return [Pack(stages=tuple(stages)) for stages in packs.values()]


def _first(run: Run, hop: int) -> str:
    """Return the key of the first training in the chain of trainings that leads to a hop."""
    chain = missing(run.stages, [Result(Kind.weights, hop)], stored=())
    return next(key for (kind, _), key in chain.items() if kind is Kind.weights)
