"""Weights & Biases: one run per run, by the same id each time, so that what is continued continues there.

Scores stand over hops, losses and dev scores over updates; the summary has the headline measures, the score matrix is
a table. With ``WANDB_MODE=offline`` everything stays in ``<outputs>/wandb``, until ``wandb sync`` sends it.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError
from xclrun.core.task import short_name
from xclrun.tracking import payload
from xclrun.tracking.trackers import News, Tracker

if TYPE_CHECKING:
    import wandb

# Weights & Biases takes no longer ones.
LONGEST_ID = 128
LONGEST_TAG = 64


def wandb_id(run_id: str) -> str:
    """Return a run's id there: its own, or where that cannot be one, a hash of it.

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
            self.place = f"{outputs / 'wandb'}, offline: `wandb sync` sends it"

    def send(self, news: News) -> None:
        import wandb

        mine, facts = news.run, payload.facts(news.run)
        labels = [facts["dataset"], facts["model"], facts["strategy"], facts["order"], f"seed {facts['seed']}"]
        try:
            run = self._open.pop(mine.run_id, None) or wandb.init(
                project=self.tracking.experiment,
                id=wandb_id(mine.run_id),
                name=mine.run_id,
                group=news.sweep or None,
                tags=[label[:LONGEST_TAG] for label in dict.fromkeys(labels)],
                config=payload.parameters(mine.config),
                resume="allow",
                dir=str(self.outputs),
                settings=wandb.Settings(
                    silent=True, console="off", disable_code=True, disable_git=True, reinit="create_new"
                ),
            )
            self._log(run, news)
            if mine.status == "running":
                self._open[mine.run_id] = run
            else:
                run.finish()
        except (wandb.Error, OSError) as error:
            raise RunError(f"Weights & Biases cannot be used: {str(error).splitlines()[0]}") from error

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].finish()

    def _log(self, run: wandb.Run, news: News) -> None:
        import wandb

        mine = news.run
        run.define_metric("hop", hidden=True)
        run.define_metric("update", hidden=True)
        run.define_metric("train.loss", step_metric="update")
        for metric in mine.metrics:
            run.define_metric(f"{short_name(metric)}.score.*", step_metric="hop")
            run.define_metric(f"{short_name(metric)}.dev.*", step_metric="update")
        by_hop: dict[int, dict[str, float]] = {}
        for hop, short, language, value in news.scores:
            by_hop.setdefault(hop, {})[f"{short}.score.{language}"] = value
        for hop, scores in by_hop.items():
            run.log({"hop": hop, **scores})
        by_update = {update: {"train.loss": loss} for update, loss in news.losses}
        for update, short, language, value in news.dev:
            by_update[update][f"{short}.dev.{language}"] = value
        for update, values in by_update.items():
            run.log({"update": update, **values})
        if mine.status == "finished":
            tables = {
                f"{short_name(metric)}.scores": wandb.Table(
                    columns=["hop", *mine.languages], data=[list(row) for row in payload.rows(mine, metric)]
                )
                for metric in mine.metrics
            }
            run.log(tables)
        run.summary.update({**news.measures, "status": mine.status, "xclrun": payload.facts(mine)})
