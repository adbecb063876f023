"""What mirrors the files of record, by the name that ``tracking.to`` gives, and what those have in common.

`Tracker` is the interface. MLflow, which reports read back, is `xclrun.tracking.mirror`; the others take what is new of
a run and are never read: a `Follower` notes beside the runs what it has sent, so that a run that was interrupted and
continued goes on in the same place, each value once.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.config.checks import TRACKERS
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import require
from xclrun.core.names import slug
from xclrun.core.task import short_name
from xclrun.core.terminal import note
from xclrun.store.files import read_json, write_json
from xclrun.store.records import read_records, record, sweeps
from xclrun.store.rundir import RunDirectory
from xclrun.tracking import payload

# ``tracking.to`` → where its tracker is.
_PLACES = {
    "mlflow": "xclrun.tracking.mirror:Mirror",
    "wandb": "xclrun.tracking.to_wandb:ToWandb",
    "tensorboard": "xclrun.tracking.to_tensorboard:ToTensorBoard",
}


class Tracker(ABC):
    """A mirror of the runs among some outputs.

    Attributes:
        place: where it keeps them, for people.
    """

    place: str

    @abstractmethod
    def send_one(self, run_id: str) -> int:
        """Send one run, without what needs other runs: its transfer; return how many were sent."""

    @abstractmethod
    def send_all(
        self, only: Collection[str] | None = None, rebuild: bool = False, warn: Callable[[str], None] = note
    ) -> int:
        """Send every run among the outputs (or those in ``only``) that has changed; return how many were sent.

        ``rebuild`` also sends again what seems to be there; ``warn`` is called for what cannot be read.

        Raises:
            RunError: what it sends to cannot be reached.
        """

    def close(self) -> None:  # noqa: B027
        """Close what `send_one` left open of runs that have not ended."""


def tracker(outputs: Path, tracking: TrackingConfig) -> Tracker:
    """Return what mirrors the runs among the outputs.

    Raises:
        UsageError: its package is not installed.
        RunError: it cannot be reached.
    """
    require(TRACKERS[tracking.to].package, f"tracking={tracking.to}", tracking.to)
    module, _, name = _PLACES[tracking.to].partition(":")
    made: Tracker = getattr(importlib.import_module(module), name)(outputs, tracking)
    return made


@dataclass(frozen=True)
class News:
    """What a run has that was not sent yet.

    Attributes:
        run: its record.
        sweep: name of the sweep that it belongs to; empty without one.
        scores: (hop, metric's short name, language, percent) after each new hop, 0 before any fine-tuning.
        losses: (updates through all hops, mean loss) of each new epoch.
        dev: (updates through all hops, metric's short name, language, percent) of each new epoch.
        measures: measures of a finished run in percent or points, as in MLflow: all that are known, each time.
        first: whether nothing of the run was sent before.
    """

    run: RunRecord
    sweep: str
    scores: tuple[tuple[int, str, str, float], ...]
    losses: tuple[tuple[int, float], ...]
    dev: tuple[tuple[int, str, str, float], ...]
    measures: dict[str, float]
    first: bool

    @property
    def config(self) -> dict[str, Any]:
        """The config, flat."""
        return dict(payload.parameters(self.run.config))

    @property
    def facts(self) -> dict[str, str]:
        """What the run is: dataset, model, strategy, order, seed, …"""
        return {key.removeprefix(f"{payload.TAG}."): value for key, value in payload.tags(self.run, None).items()}


class Follower(Tracker):
    """A tracker that takes what is new.

    Args:
        outputs: the folder with ``runs``.
        tracking: its ``experiment`` names what holds all runs.
    """

    name: ClassVar[str]

    def __init__(self, outputs: Path, tracking: TrackingConfig) -> None:
        self.outputs, self.tracking = outputs, tracking

    @abstractmethod
    def take(self, news: News) -> None:
        """Send what is new of a run.

        Raises:
            RunError: it cannot be reached.
        """

    def send_one(self, run_id: str) -> int:
        directory = RunDirectory(self.outputs / "runs" / run_id)
        return self._send(record(directory), References([]), self._sweeps(note))

    def send_all(
        self, only: Collection[str] | None = None, rebuild: bool = False, warn: Callable[[str], None] = note
    ) -> int:
        records = read_records(self.outputs, warn)
        references, of_sweeps = References(records), self._sweeps(warn)
        chosen = [mine for mine in records if only is None or mine.run_id in only]
        return sum(self._send(mine, references, of_sweeps, rebuild) for mine in chosen)

    def _sweeps(self, warn: Callable[[str], None]) -> dict[str, str]:
        """Return run id → the last sweep that has it, of those with several runs."""
        several = (sweep for sweep in sweeps(self.outputs, warn) if len(sweep["runs"]) > 1)
        return {run_id: sweep["name"] for sweep in several for run_id in sweep["runs"]}

    def _send(self, mine: RunRecord, references: References, of_sweeps: dict[str, str], rebuild: bool = False) -> bool:
        """Send what is new of a run; return whether there was anything."""
        directory = RunDirectory(self.outputs / "runs" / mine.run_id)
        mine = payload.with_live_epochs(mine, directory)
        measured = payload.measures(mine, references)
        version = payload.version(directory, mine, measured)
        noted = self.outputs / "tracked" / self.name / slug(self.tracking.experiment) / f"{mine.run_id}.json"
        before = {} if rebuild else _sent(noted)
        if before.get("version") == version:
            return False
        hops = _hops(mine)
        scores = [one for one in _scores(mine) if one[0] >= before.get("hops", 0)]
        epochs = list(payload.epochs(mine))[before.get("epochs", 0) :]
        losses = tuple((step, float(epoch["loss"])) for step, epoch in epochs)
        dev = tuple((step, *score) for step, epoch in epochs for score in payload.dev_scores(epoch))
        sweep = of_sweeps.get(mine.run_id, "")
        self.take(News(mine, sweep, tuple(scores), losses, dev, measured, not before))
        # Afterwards: what was cut short is sent again, the same values at the same steps. A run that resumes has fewer
        # hops than before until it has read them from the store.
        sent = {"hops": max(hops, before.get("hops", 0)), "epochs": max(len(mine.curve), before.get("epochs", 0))}
        write_json(noted, {"version": version, **sent})
        return True


def _sent(noted: Path) -> dict[str, Any]:
    """Return what a file says of what was sent; nothing where it cannot be read."""
    try:
        found = read_json(noted)
        return found if isinstance(found, dict) and isinstance(found.get("hops"), int) else {}
    except (OSError, ValueError):
        return {}


def _hops(mine: RunRecord) -> int:
    """Return how many rows of the score matrix were measured, hop 0 among them."""
    return 1 + max((hop for hop, *_ in _scores(mine)), default=-1)


def _scores(mine: RunRecord) -> Iterator[tuple[int, str, str, float]]:
    for metric in mine.metrics:
        for hop, row in enumerate(mine.scores[metric]):
            for language, value in zip(mine.languages, row, strict=True):
                if value == value:
                    yield hop, short_name(metric), language, 100 * float(value)


def rows(mine: RunRecord, metric: str) -> Sequence[Sequence[float | int]]:
    """Return the score matrix of a run in percent, each row with its hop first."""
    return [[hop, *(100 * float(value) for value in row)] for hop, row in enumerate(mine.scores[metric])]
