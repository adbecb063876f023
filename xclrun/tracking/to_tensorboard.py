"""TensorBoard: a folder per run with event files, to which what is continued adds another one.

Scores stand over hops, losses and dev scores over updates, headline measures at the last hop; what the
run is and its score matrix are texts, and its settings are listed under HPARAMS. Written without TensorFlow and torch.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.config.schema import TrackingConfig
from xclrun.core.names import markdown, slug
from xclrun.core.task import short_name
from xclrun.store.files import writing
from xclrun.tracking import payload
from xclrun.tracking.trackers import News, Tracker

if TYPE_CHECKING:
    from xclrun.analysis.record import RunRecord


class ToTensorBoard(Tracker):
    """Writes event files."""

    name = "tensorboard"

    def __init__(self, outputs: Path, tracking: TrackingConfig) -> None:
        super().__init__(outputs, tracking)
        self._open: dict[str, _Events] = {}
        self.place = str(outputs / "tensorboard" / slug(tracking.experiment))

    def send(self, news: News) -> None:
        # Not `hparams.api`, which imports TensorFlow.
        from tensorboard.plugins.hparams import summary_v2 as hparams
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        mine = news.run
        folder = Path(self.place) / mine.run_id
        last = max((hop for hop, *_ in news.scores), default=mine.hops)
        with writing(folder):
            # One file while a run trains: TensorBoard expects one writer for each start of a run.
            events = self._open.pop(mine.run_id, None) or _Events(folder)
            if not news.before:
                config = payload.parameters(mine.config)
                settings = {key: value for key, value in config.items() if not key.startswith("paths.")}
                events.add(hparams.hparams_pb(settings, trial_id=mine.run_id), 0)
                events.add(text_pb("run", payload.about_run(mine)), 0)
                events.add(text_pb("config", f"```\n{json.dumps(mine.config, indent=1)}\n```"), 0)
            for hop, short, language, value in news.scores:
                events.add(scalar_pb(f"{short}.score/{language}", value), hop)
            for update, loss in news.losses:
                events.add(scalar_pb("train/loss", loss), update)
            for update, short, language, value in news.dev:
                events.add(scalar_pb(f"{short}.dev/{language}", value), update)
            for name, value in news.measures.items():
                events.add(scalar_pb(f"measure/{name}", value), last)
            if mine.status == "finished":
                for metric in mine.metrics:
                    events.add(text_pb(f"{short_name(metric)}.scores", _table(mine, metric)), last)
            if mine.status == "running":
                events.writer.flush()
                self._open[mine.run_id] = events
                return
            events.add(text_pb("status", mine.status), last)
            events.writer.close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].writer.close()


class _Events:
    """A new event file."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.writer = EventFileWriter(str(folder))

    def add(self, summary: Any, step: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        plain = summary_pb2.Summary.FromString(summary.SerializeToString())
        self.writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=plain))


def _table(mine: RunRecord, metric: str) -> str:
    """Return a score matrix as Markdown, in percent."""
    head = ["hop", *map(markdown, mine.languages)]
    lines = [head, ["--:"] * len(head)]
    for hop, *values in payload.rows(mine, metric):
        lines.append([str(hop), *("–" if value != value else f"{value:.2f}" for value in values)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
