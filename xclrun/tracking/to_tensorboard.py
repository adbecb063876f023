"""TensorBoard: a folder with event files per run; a resumed run adds another file.

Scores are plotted over hops, losses and dev scores over updates, headline measures at the last hop. Description, config
and score matrices are texts; settings are listed under HPARAMS. Needs neither TensorFlow nor torch.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.config.schema import TrackingConfig
from xclrun.core.names import markdown, slug
from xclrun.core.task import short_name
from xclrun.store.files import writing
from xclrun.tracking import payload
from xclrun.tracking.trackers import Tracker, Update

if TYPE_CHECKING:
    from xclrun.analysis.record import RunRecord


class ToTensorBoard(Tracker):
    """Writes event files."""

    name = "tensorboard"

    def __init__(self, outputs: Path, tracking: TrackingConfig) -> None:
        super().__init__(outputs, tracking)
        self._open: dict[str, _Events] = {}
        self.place = str(outputs / "tensorboard" / slug(tracking.experiment))

    def send(self, update: Update) -> None:
        # Not `hparams.api`, which imports TensorFlow.
        from tensorboard.plugins.hparams import summary_v2 as hparams
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        run, values = update.run, update.values("/")
        folder = Path(self.place) / run.run_id
        last = max((value.step for value in values if value.axis == "hop"), default=run.hops)
        with writing(folder):
            # One file while a run trains: TensorBoard expects one writer for each start of a run.
            events = self._open.pop(run.run_id, None) or _Events(folder)
            if not update.before:
                config = payload.parameters(run.config)
                settings = {key: value for key, value in config.items() if not key.startswith("paths.")}
                events.add(hparams.hparams_pb(settings, trial_id=run.run_id), 0)
                events.add(text_pb("run", payload.about_run(run)), 0)
                events.add(text_pb("config", f"```\n{json.dumps(run.config, indent=1)}\n```"), 0)
            for _, key, step, value in values:
                events.add(scalar_pb(key, value), step)
            for name, value in update.measures.items():
                events.add(scalar_pb(f"measure/{name}", value), last)
            if run.status == "finished":
                for metric in run.metrics:
                    events.add(text_pb(f"{short_name(metric)}.scores", _table(run, metric)), last)
            if run.status == "running":
                events.writer.flush()
                self._open[run.run_id] = events
                return
            events.add(text_pb("status", run.status), last)
            events.writer.close()

    def remove(self, run_ids: Sequence[str], sweep: str = "") -> bool:
        for run_id in run_ids:
            with writing(self.place):
                if (folder := Path(self.place) / run_id).is_dir():
                    shutil.rmtree(folder)
        return super().remove(run_ids, sweep)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].writer.close()


class _Events:
    """An event file."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.writer = EventFileWriter(str(folder))

    def add(self, summary: Any, step: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        plain = summary_pb2.Summary.FromString(summary.SerializeToString())
        self.writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=plain))


def _table(run: RunRecord, metric: str) -> str:
    """Return a score matrix in percent as Markdown."""
    head = ["hop", *map(markdown, run.languages)]
    lines = [head, ["--:"] * len(head)]
    for hop, *values in payload.rows(run, metric):
        lines.append([str(hop), *("–" if value != value else f"{value:.2f}" for value in values)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
