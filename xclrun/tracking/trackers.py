"""Mirrors of the runs under some outputs, by the name that ``tracking.to`` gives.

`Tracker` finds what of a run was not sent yet. `Mirror` (MLflow), `ToWandb` and `ToTensorBoard` send it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.config.checks import TRACKERS
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import require
from xclrun.core.names import slug
from xclrun.core.terminal import note
from xclrun.store.files import read_json, write_json
from xclrun.store.records import read_records, sweeps
from xclrun.store.rundir import RunDirectory
from xclrun.tracking import payload

# ``tracking.to`` → module and class.
_PLACES = {
    "mlflow": "xclrun.tracking.mirror:Mirror",
    "wandb": "xclrun.tracking.to_wandb:ToWandb",
    "tensorboard": "xclrun.tracking.to_tensorboard:ToTensorBoard",
}


@dataclass(frozen=True)
class News:
    """What of a run was not sent yet.

    Attributes:
        run: its record.
        measures: measures of a finished run in percent or points: all that are known, each time.
        sweep: name of the first sweep of several runs that it belongs to; empty without one.
        before: ``version``, ``hops`` and ``epochs`` that were sent; empty if nothing was.
    """

    run: RunRecord
    measures: dict[str, float]
    sweep: str = ""
    before: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """A hash of all that is sent: of another version there is something new."""
        content = json.dumps([payload.FORMAT, self.run.to_json(), self.measures], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def scores(self) -> list[tuple[int, str, str, float]]:
        """(hop, metric's short name, language, percent) after each new hop, 0 before any fine-tuning."""
        return [score for score in payload.scores(self.run) if score[0] >= self.before.get("hops", 0)]

    @property
    def losses(self) -> list[tuple[int, float]]:
        """(updates through all hops, mean loss) of each new epoch."""
        return [(step, float(epoch["loss"])) for step, epoch in self._epochs]

    @property
    def dev(self) -> list[tuple[int, str, str, float]]:
        """(updates through all hops, metric's short name, language, percent) of each new epoch."""
        return [(step, *score) for step, epoch in self._epochs for score in payload.dev_scores(epoch)]

    @property
    def _epochs(self) -> list[tuple[int, Mapping[str, Any]]]:
        return list(payload.epochs(self.run))[self.before.get("epochs", 0) :]

    @property
    def sent(self) -> dict[str, Any]:
        """What `before` is the next time. A run that resumes has fewer hops until it has read them from the store."""
        hops = 1 + max((hop for hop, *_ in payload.scores(self.run)), default=-1)
        now = {"hops": hops, "epochs": len(self.run.curve)}
        return {"version": self.version, **{key: max(now[key], self.before.get(key, 0)) for key in now}}


class Tracker(ABC):
    """A mirror of the runs under some outputs.

    Args:
        outputs: the folder with ``runs``.
        tracking: its ``experiment`` names what holds all runs.

    Attributes:
        place: where it keeps them, for people.
    """

    name: ClassVar[str]
    place: str

    def __init__(self, outputs: Path, tracking: TrackingConfig) -> None:
        self.outputs, self.tracking = outputs, tracking

    @abstractmethod
    def send(self, news: News) -> None:
        """Send what is new of a run.

        Raises:
            RunError: the tracker cannot be reached.
        """

    def send_sweep(self, sweep: Mapping[str, Any]) -> None:  # noqa: B027
        """Send a sweep, before its runs, to a tracker that shows sweeps; what was sent is brought up to date."""

    def before(self, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return run id → what of it was sent before (`News.before`)."""
        found = {}
        for run_id in run_ids:
            # A note that cannot be read: the run is sent again.
            with contextlib.suppress(OSError, ValueError):
                found[run_id] = read_json(self._noted(run_id))
        return found

    def note_sent(self, news: News) -> None:
        """Note what was sent; what is cut short before this is sent again, the same values at the same steps."""
        write_json(self._noted(news.run.run_id), news.sent)

    def close(self) -> None:  # noqa: B027
        """Close what `send_one` left open of runs that have not ended."""

    def send_one(self, run_id: str) -> int:
        """Send one run, without what needs other runs: its transfer; return how many were sent."""
        return self.send_records(read_records(self.outputs, only=[run_id]), References([]))

    def send_all(
        self, only: Collection[str] | None = None, rebuild: bool = False, warn: Callable[[str], None] = note
    ) -> int:
        """Send every run among the outputs (or those in ``only``) that has changed; return how many were sent.

        ``rebuild`` also sends again what seems to be there; ``warn`` is called for what cannot be read.

        Raises:
            RunError: the tracker cannot be reached.
        """
        records = read_records(self.outputs, warn)
        chosen = [mine for mine in records if only is None or mine.run_id in only]
        return self.send_records(chosen, References(records), warn, rebuild)

    def send_records(
        self,
        records: Iterable[RunRecord],
        references: References,
        warn: Callable[[str], None] = note,
        rebuild: bool = False,
    ) -> int:
        """Send those of these runs whose files are here and of which something is new; return how many were sent."""
        here = []
        for mine in records:
            directory = RunDirectory(self.outputs / "runs" / mine.run_id)
            if directory.manifest.is_file():
                here.append(payload.with_live_epochs(mine, directory))
        before = {} if rebuild else self.before([mine.run_id for mine in here])
        every = [News(mine, payload.measures(mine, references), before=before.get(mine.run_id, {})) for mine in here]
        behind = [news for news in every if news.version != news.before.get("version")]
        of_sweep = self._send_sweeps({news.run.run_id for news in behind}, warn) if behind else {}
        for news in behind:
            self.send(replace(news, sweep=of_sweep.get(news.run.run_id, "")))
            self.note_sent(news)
        return len(behind)

    def _send_sweeps(self, run_ids: set[str], warn: Callable[[str], None]) -> dict[str, str]:
        """Send the sweeps of several runs that have some of these; return run id → name of the first one."""
        found: dict[str, str] = {}
        for sweep in sweeps(self.outputs, warn):
            if len(sweep["runs"]) > 1 and not run_ids.isdisjoint(sweep["runs"]):
                self.send_sweep(sweep)
                found = dict.fromkeys(sweep["runs"], sweep["name"]) | found
        return found

    def _noted(self, run_id: str) -> Path:
        return self.outputs / "tracked" / self.name / slug(self.tracking.experiment) / f"{run_id}.json"


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
