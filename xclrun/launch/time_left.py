"""Estimate of the remaining time of a running sweep."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from xclrun.core.files import UNREADABLE
from xclrun.core.graph import to_train
from xclrun.store.files import read_json

if TYPE_CHECKING:
    from xclrun.plan import Run


class TimeLeft:
    """Estimates the remaining time of runs from the time for their finished part.

    Work is measured in training sentences times epochs; shared trainings count once. Trainings of earlier attempts and
    of other processes are excluded from both work and time, and so is the time before the first training step.

    Args:
        runs: the unfinished runs of a sweep.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        # Training key → sentences; run ID → training keys.
        self.work: dict[str, float] = {}
        self.trainings: dict[str, list[str]] = {}
        in_store = {key for store in {run.store.root: run.store for run in runs}.values() for key in store.all_keys()}
        for run in runs:
            stages = [run.stages[index] for index in to_train(run.stages, in_store)]
            self.trainings[run.id] = [stage.train for stage in stages]
            for stage in stages:
                self.work.setdefault(stage.train, run.epochs(stage.hop) * run.sentences(stage.hop))
        self.began: float | None = None
        # Training key → completed fraction of the training: current, and at the first report.
        self.share: dict[str, float] = {}
        self.before: dict[str, float] = {}

    def progressed(self, key: str, share: float, before: float = 0.0) -> None:
        """Report the completed fraction of a training; ``before`` is the fraction at the first report.

        The first progress starts the clock and is excluded, because its time includes loading the data and the model.
        """
        if self.began is None and share > before:
            self.start()
            before = share
        self.before.setdefault(key, before)
        self.share[key] = share

    def start(self) -> None:
        """Start the clock at the first call."""
        self.began = time.monotonic() if self.began is None else self.began

    def observe(self) -> None:
        """Read the progress of all trainings from the store and from running runs.

        Progress at the first call counts as earlier work.
        """
        first = self.began is None
        self.start()
        for run in self.runs:
            for key in self.trainings[run.id]:
                if self.share.get(key) != 1.0 and run.store.has(key):
                    self.progressed(key, 1.0, before=float(first))
            with contextlib.suppress(*UNREADABLE):
                facts = read_json(run.directory.progress)
                key, share = run.stages[facts["hop"]].train, facts["step"] / facts["steps"]
                if self.share.get(key) != 1.0:
                    self.progressed(key, share, before=share if first else 0.0)

    def seconds(self, run: str | None = None) -> float | None:
        """Return the estimated seconds left for a run, or for all runs; None before the first progress."""
        keys: Iterable[str] = self.work if run is None else self.trainings.get(run, ())
        remaining = sum(self.work[key] * (1 - self.share.get(key, 0.0)) for key in keys)
        # The completed fraction of a restarted training may be smaller than before.
        done = sum(self.work[k] * max(0.0, share - self.before[k]) for k, share in self.share.items() if k in self.work)
        return None if self.began is None or not done else (time.monotonic() - self.began) * remaining / done
