"""Weights & Biases: each run has a fixed ID there, so a resumed run continues its curves.

Scores are plotted over hops, losses and dev scores over updates. The summary has the headline measures, and each score
matrix is a table. With ``WANDB_MODE=offline`` all data stay in ``<outputs>/wandb`` until ``wandb sync``.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError, first_line
from xclrun.core.task import short_name
from xclrun.tracking import payload
from xclrun.tracking.trackers import Tracker, Update

if TYPE_CHECKING:
    import wandb

# Limits of Weights & Biases, in characters.
LONGEST_ID = 128
LONGEST_TAG = 64


def wandb_id(run_id: str) -> str:
    """Return the ID of a run in Weights & Biases: the run ID, or a hash of it if it is not valid there.

    >>> wandb_id("mini-er-h2l-s1-0123456789ab")
    'mini-er-h2l-s1-0123456789ab'
    """
    allowed = re.fullmatch(r"[\w.+-]+", run_id, re.ASCII) and len(run_id) <= LONGEST_ID
    return run_id if allowed else hashlib.sha256(run_id.encode()).hexdigest()[:32]


class ToWandb(Tracker):
    """Sends runs to a project of Weights & Biases."""

    name = "wandb"

    def __init__(self, outputs: Path, tracking: TrackingConfig) -> None:
        super().__init__(outputs, tracking)
        self._open: dict[str, wandb.Run] = {}
        self.place = f"Weights & Biases, project {tracking.experiment}"
        if os.environ.get("WANDB_MODE") == "offline":
            self.place = f"{outputs / 'wandb'} (offline; upload it with `wandb sync`)"

    def send(self, update: Update) -> None:
        import wandb

        record, facts = update.run, payload.facts(update.run)
        labels = [facts["dataset"], facts["model"], facts["strategy"], facts["order"], f"seed {facts['seed']}"]
        try:
            run = self._open.pop(record.run_id, None) or wandb.init(
                project=self.tracking.experiment,
                id=wandb_id(record.run_id),
                name=record.run_id,
                group=update.sweep or None,
                tags=[label[:LONGEST_TAG] for label in dict.fromkeys(labels)],
                config=payload.parameters(record.config),
                resume="allow",
                dir=str(self.outputs),
                settings=wandb.Settings(
                    silent=True, console="off", disable_code=True, disable_git=True, reinit="create_new"
                ),
            )
            self._log(run, update)
            if record.status == "running":
                self._open[record.run_id] = run
            else:
                run.finish()
        except (wandb.Error, OSError) as error:
            raise RunError(f"Weights & Biases cannot be used: {first_line(error)}") from error

    def remove(self, run_ids: Sequence[str], sweep: str = "") -> bool:
        super().remove(run_ids, sweep)
        return False

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].finish()

    def _log(self, run: wandb.Run, update: Update) -> None:
        import wandb

        record = update.run
        run.define_metric("hop", hidden=True)
        run.define_metric("update", hidden=True)
        run.define_metric("train.loss", step_metric="update")
        for metric in record.metrics:
            run.define_metric(f"{short_name(metric)}.score.*", step_metric="hop")
            run.define_metric(f"{short_name(metric)}.dev.*", step_metric="update")
        rows: dict[tuple[str, int], dict[str, float]] = {}
        for axis, key, step, value in update.values():
            rows.setdefault((axis, step), {})[key] = value
        for (axis, step), values in rows.items():
            run.log({axis: step, **values})
        if record.status == "finished":
            tables = {
                f"{short_name(metric)}.scores": wandb.Table(
                    columns=["hop", *record.languages], data=[list(row) for row in payload.rows(record, metric)]
                )
                for metric in record.metrics
            }
            run.log(tables)
        run.summary.update({**update.measures, "status": record.status, "xclrun": payload.facts(record)})
