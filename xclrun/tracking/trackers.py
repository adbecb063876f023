"""Trackers: mirrors of the runs under an outputs folder, selected by ``tracking.to``.

`Tracker` determines the unsent data of each run; `Mirror` (MLflow), `ToWandb` and `ToTensorBoard` send it.
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
from typing import Any, ClassVar, NamedTuple

from xclrun.analysis.record import RunRecord
from xclrun.analysis.records import read_records
from xclrun.analysis.reference import References
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import require
from xclrun.core.files import UNREADABLE
from xclrun.core.names import slug
from xclrun.core.terminal import note
from xclrun.store.files import read_json, write_json
from xclrun.store.rundir import RunDirectory
from xclrun.store.sweeps import sweeps
from xclrun.tracking import payload

# MLflow's SQLite file in the outputs folder.
DATABASE = "mlflow.db"
# Folder of the marker files of background processes in the outputs folder.
MARKERS = Path("tracked", "sent")
# ``tracking.to`` → module and class.
_CLASSES = {
    "mlflow": "xclrun.tracking.mirror:Mirror",
    "wandb": "xclrun.tracking.to_wandb:ToWandb",
    "tensorboard": "xclrun.tracking.to_tensorboard:ToTensorBoard",
}


class Value(NamedTuple):
    """One value of a curve; ``axis``: whether ``step`` is a ``hop`` or an ``update`` (over all hops)."""

    axis: str
    key: str
    step: int
    value: float


@dataclass(frozen=True)
class Update:
    """Unsent data of a run.

    Attributes:
        measures: all measures of a finished run in percent or points, included in every update.
        sweep: name of the first sweep with several runs that includes this run; empty if there is none.
        before: ``version``, ``hops`` and ``epochs`` that were sent; empty if the run was not sent.
    """

    run: RunRecord
    measures: dict[str, float]
    sweep: str = ""
    before: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """A hash of all data of the run; the run is sent again if the hash changes."""
        content = json.dumps([payload.FORMAT, self.run.to_json(), self.measures], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def values(self, separator: str = ".") -> list[Value]:
        """Return unsent values: scores in percent after each hop, and loss and dev scores (percent) of each epoch.

        Args:
            separator: between the name of a curve and the language, as in ``intent.score.de``.
        """
        values = [
            Value("hop", f"{metric}.score{separator}{language}", hop, score)
            for hop, metric, language, score in payload.scores(self.run)
            if hop >= self.before.get("hops", 0)
        ]
        for step, epoch in list(payload.epochs(self.run))[self.before.get("epochs", 0) :]:
            values.append(Value("update", f"train{separator}loss", step, float(epoch["loss"])))
            for metric, language, score in payload.dev_scores(epoch):
                values.append(Value("update", f"{metric}.dev{separator}{language}", step, score))
        return values

    @property
    def sent(self) -> dict[str, Any]:
        """The value of `before` for the next update.

        The numbers never decrease: a resumed run may report fewer hops than were sent.
        """
        hops = 1 + max((hop for hop, *_ in payload.scores(self.run)), default=-1)
        now = {"hops": hops, "epochs": len(self.run.curve)}
        return {"version": self.version, **{key: max(now[key], self.before.get(key, 0)) for key in now}}


class Tracker(ABC):
    """A mirror of the runs under ``outputs``.

    Attributes:
        place: name or address of the destination, for messages.
    """

    name: ClassVar[str]
    place: str

    def __init__(self, outputs: Path, tracking: TrackingConfig) -> None:
        self.outputs, self.tracking = outputs, tracking

    @abstractmethod
    def send(self, update: Update) -> None:
        """Send the unsent data of a run."""

    def send_sweep(self, sweep: Mapping[str, Any]) -> None:  # noqa: B027
        """Send or update a sweep before its runs, if the tracker shows sweeps."""

    def before(self, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return run ID → data that were sent (`Update.before`)."""
        sent = {}
        for run_id in run_ids:
            # Without a readable file the run is sent again.
            with contextlib.suppress(*UNREADABLE):
                sent[run_id] = dict(read_json(self._sent_file(run_id)))
        return sent

    def mark_sent(self, update: Update) -> None:
        """Record the sent data; an interrupted update is sent again, with the same values at the same steps."""
        write_json(self._sent_file(update.run.run_id), update.sent)

    def _sent_file(self, run_id: str) -> Path:
        return self.outputs / "tracked" / self.name / slug(self.tracking.experiment) / f"{run_id}.json"

    def remove(self, run_ids: Sequence[str], sweep: str = "") -> bool:
        """Remove the copies of runs, and of a sweep; return whether the tracker can do so (W&B: on its page only)."""
        for run_id in run_ids:
            self._sent_file(run_id).unlink(missing_ok=True)
        return True

    def close(self) -> None:  # noqa: B027
        """Close the connections of running runs."""

    def send_one(self, run_id: str) -> int:
        """Send one run, without the transfer measures, which need other runs; return the number of runs sent."""
        return self.send_records(read_records(self.outputs, only=[run_id]), References([]))

    def send_all(
        self, only: Collection[str] | None = None, rebuild: bool = False, warn: Callable[[str], None] = note
    ) -> int:
        """Send every changed run under the outputs, or those in ``only``; return the number of runs sent.

        Args:
            rebuild: send unchanged runs too.
            warn: called with a line about each unreadable run.
        """
        records = read_records(self.outputs, warn)
        chosen = [run for run in records if only is None or run.run_id in only]
        return self.send_records(chosen, References(records), warn, rebuild)

    def send_records(
        self,
        records: Iterable[RunRecord],
        references: References,
        warn: Callable[[str], None] = note,
        rebuild: bool = False,
    ) -> int:
        """Send the changed runs that have a run directory under the outputs; return the number of runs sent."""
        runs = []
        for run in records:
            directory = RunDirectory(self.outputs / "runs" / run.run_id)
            if directory.manifest.is_file():
                runs.append(payload.with_live_epochs(run, directory))
        before = {} if rebuild else self.before([run.run_id for run in runs])
        updates = [Update(run, payload.measures(run, references), before=before.get(run.run_id, {})) for run in runs]
        changed = [update for update in updates if update.version != update.before.get("version")]
        sweep_names = self._send_sweeps({update.run.run_id for update in changed}, warn) if changed else {}
        for update in changed:
            self.send(replace(update, sweep=sweep_names.get(update.run.run_id, "")))
            self.mark_sent(update)
        return len(changed)

    def _send_sweeps(self, run_ids: set[str], warn: Callable[[str], None]) -> dict[str, str]:
        """Send the sweeps of several runs that contain some of these; return run ID → name of the first one."""
        names: dict[str, str] = {}
        for sweep in sweeps(self.outputs, warn):
            if len(sweep["runs"]) > 1 and not run_ids.isdisjoint(sweep["runs"]):
                self.send_sweep(sweep)
                names = dict.fromkeys(sweep["runs"], sweep["name"]) | names
        return names


def tracker(outputs: Path, tracking: TrackingConfig) -> Tracker:
    """Return the tracker of a config."""
    require(tracking.to, f"tracking={tracking.to}", tracking.to)
    module, _, name = _CLASSES[tracking.to].partition(":")
    instance: Tracker = getattr(importlib.import_module(module), name)(outputs, tracking)
    return instance
