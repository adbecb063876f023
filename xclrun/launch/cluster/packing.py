"""Which job does what: runs are packed into jobs, and stages that several runs share are made ahead of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from xclrun.core.identity import Stage
from xclrun.launch.cluster.files import Pack
from xclrun.run import Run


def pack(runs: Sequence[Run], count: int, minutes: float | None, estimate: Callable[[Run], float | None]) -> list[Pack]:
    """Pack runs into jobs, in order.

    Args:
        runs: what is to be done.
        count: runs per job, where minutes are not given or not known.
        minutes: what a job should take; a run that takes longer gets a job of its own.
        estimate: seconds that a run takes, or None.
    """
    packs: list[list[str]] = []
    filled = 0.0
    for run in runs:
        seconds = estimate(run) if minutes is not None else None
        if minutes is None or seconds is None:
            size, limit = 1.0, float(count)
        else:
            size, limit = seconds / 60, minutes
        # As a share of a job, so that runs with and without an estimate go together.
        if not packs or filled + size / limit > 1 + 1e-9:
            packs.append([])
            filled = 0.0
        packs[-1].append(run.id)
        filled += size / limit
    return [Pack(runs=tuple(ids)) for ids in packs]


def shared_first(runs: Sequence[Run]) -> list[Pack]:
    """Return packs that make the stages which several of the runs need and the store lacks: one per first training.

    The runs wait for these jobs, so that none of them holds a GPU while another trains what it needs.
    """
    users = Counter(stage.train for run in runs for stage in run.stages if stage.hop.index)
    packs: dict[str, list[tuple[str, int]]] = {}
    seen: set[str] = set()
    for run in runs:
        for stage in run.stages:
            if stage.hop.index and users[stage.train] > 1 and stage.train not in seen:
                seen.add(stage.train)
                if not run.store.has(stage.train):
                    packs.setdefault(_first(run, stage).train, []).append((run.id, stage.hop.index))
    return [Pack(stages=tuple(stages)) for stages in packs.values()]


def _first(run: Run, stage: Stage) -> Stage:
    """Return the first training on which a stage builds: what builds on one another is made by one job."""
    while run.stages[stage.hop.parent].hop.index:
        stage = run.stages[stage.hop.parent]
    return stage
