"""From composed configs to jobs on a Slurm cluster: `hydra/launcher=slurm`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError, UsageError
from xclrun.launch.cluster import slurm
from xclrun.launch.cluster.code import copy_code
from xclrun.launch.cluster.packing import pack, shared_first
from xclrun.launch.cluster.submission import DEBUG, Pack, Submission
from xclrun.launch.console import line
from xclrun.launch.forecast import Costs
from xclrun.launch.remaining import needed
from xclrun.launch.status import render_counts, sweep_status
from xclrun.launch.sweep import Sweep, announce, check_writable, conclude, make_sweep, outputs_option, tracking_options
from xclrun.run import Run, freeze

if TYPE_CHECKING:
    from xclrun.compose.jobs import Composed

# Seconds between two looks at a sweep that is waited for.
LOOK = 2.0


@dataclass(frozen=True)
class SlurmSettings:
    """How runs are submitted; each is documented in ``conf/hydra/launcher/slurm.yaml``."""

    cluster: str = "slurm"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    mem: str | None = None
    time: int = 60
    array_parallelism: int = 256
    max_array: int | None = None
    pack: int = 1
    pack_minutes: float | None = None
    share_first: bool = True
    wait: bool = False
    requeue: bool = True
    signal_delay: int = 120
    setup: Sequence[str] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise a UsageError where a value cannot work."""
        if self.cluster not in ("slurm", "debug"):
            raise UsageError(f"hydra.launcher.cluster={self.cluster}: unknown; Known: debug, slurm")
        positive = ("time", "array_parallelism", "max_array", "pack", "pack_minutes", "signal_delay")
        for key in positive:
            value = getattr(self, key)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and value > 0):
                raise UsageError(f"hydra.launcher.{key}={value}: must be above 0")
        if self.signal_delay >= 60 * self.time:
            raise UsageError(
                f"hydra.launcher.signal_delay={self.signal_delay}: seconds before the time limit, so it must be below "
                f"hydra.launcher.time={self.time} minutes"
            )

    def options_of(self, sweep: str, after: Sequence[str]) -> dict[str, Any]:
        """Return what Submitit is told about an array of jobs that starts when the arrays ``after`` have ended."""
        names = ("partition", "account", "qos", "constraint", "gres", "gpus_per_node", "cpus_per_task", "mem", "time")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        further = {"requeue" if self.requeue else "no-requeue": True, **self.options}
        dependency = {"dependency": f"afterany:{':'.join(after)}"} if after else {}
        return {
            **given,
            **dependency,
            "job_name": f"xclrun-{sweep}",
            "array_parallelism": self.array_parallelism,
            "signal_delay_s": self.signal_delay,
            "setup": list(self.setup),
            "additional_parameters": further,
        }


def launch_slurm(composed: Sequence[Composed], settings: SlurmSettings) -> None:
    """Submit the jobs of a command to Slurm; return when they are submitted, or with ``wait`` when they have ended.

    Runs that are finished, running, or queued already are left alone.

    Raises:
        UsageError: a job cannot work, or Slurm refuses.
        SweepFailed: with ``wait``: some runs failed.
    """
    settings.check()
    if settings.cluster == "slurm":
        slurm.check_there()
    began = time.monotonic()
    sweep = make_sweep(composed)
    for place in dict.fromkeys([*(run.store.root for run in sweep.runs), sweep.outputs]):
        check_writable(place)
    open_runs = {status.run_id for status in sweep_status(sweep.outputs, [r.id for r in sweep.runs]) if status.busy}
    todo = [run for run in sweep.runs if not run.directory.finished and run.id not in open_runs]
    announce(sweep, sum(not run.directory.finished for run in sweep.runs))
    if open_runs:
        line(f"{len(open_runs)} running or queued already: not submitted again")
    sweep.write()
    submission = None
    if todo:
        for run in todo:
            freeze(run)
        _announce_to_server(sweep)
        submission = Submission.new(sweep.outputs, sweep.name)
        submit = _in_turn if settings.cluster == "debug" else _to_slurm
        submit(sweep, submission, plan_packs(todo, settings), settings)
        line(f"submitted in {time.monotonic() - began:.1f} s")
    _wait_or_say(sweep, settings)


def plan_packs(runs: Sequence[Run], settings: SlurmSettings) -> list[list[Pack]]:
    """Return the waves of jobs: stages that runs share, where there are any, and then the runs."""
    ahead = shared_first(runs) if settings.share_first else []
    return [wave for wave in (ahead, pack(runs, settings.pack, settings.pack_minutes, estimate(runs))) if wave]


def estimate(runs: Sequence[Run]) -> Callable[[Run], float | None]:
    """Return what estimates the seconds of a run, from the trainings that the store holds."""
    costs = Costs(runs[0].store)
    there = set(runs[0].store.all_keys())

    def seconds(run: Run) -> float | None:
        hops = [run.stages[i].hop for i in needed(run, there)]
        found = [costs.seconds(run.cost(hop), run.trainer(hop).epochs) for hop in hops]
        known = [value for value in found if value is not None]
        return sum(known) if len(known) == len(found) else None

    return seconds


def _to_slurm(sweep: Sweep, submission: Submission, waves: Sequence[Sequence[Pack]], settings: SlurmSettings) -> None:
    limit = min(settings.max_array or slurm.max_array(), slurm.max_array())
    code = copy_code(sweep.outputs / "slurm" / "code").absolute()
    after: list[str] = []
    for wave in waves:
        arrays = []
        for start in range(0, len(wave), limit):
            packs, name = wave[start : start + limit], f"array-{len(submission.arrays)}"
            folder = submission.write_packs(name, packs).absolute()
            command = shlex.join([sys.executable, "-u", str(code), str(folder)])
            arrays.append(slurm.submit_array(folder, command, len(packs), settings.options_of(sweep.name, after)))
            submission.note(name, arrays[-1], packs)
            what = "shared trainings" if packs[0].stages else "runs"
            line(f"  Slurm array {arrays[-1]}: {len(packs)} job{'' if len(packs) == 1 else 's'} with {what}")
        after = arrays


def _in_turn(sweep: Sweep, submission: Submission, waves: Sequence[Sequence[Pack]], settings: SlurmSettings) -> None:
    """Do here, one after another, exactly what jobs on the cluster would do: for debugging."""
    code = copy_code(sweep.outputs / "slurm" / "code").absolute()
    for wave in waves:
        name = f"array-{len(submission.arrays)}"
        folder = submission.write_packs(name, wave).absolute()
        submission.note(name, DEBUG, wave)
        for i in range(len(wave)):
            log = slurm.log_path(folder, DEBUG, i)
            line(f"  job {i} of {name}: {log}")
            with log.open("ab") as file:
                # No setting of a Slurm job that this may be in.
                environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
                command = ["bash", "-c", "\n".join([*settings.setup, 'exec "$@"']), "bash"]
                command += [sys.executable, "-u", str(code), str(folder), str(i)]
                subprocess.run(command, stdout=file, stderr=file, env=environment, check=False)


def _announce_to_server(sweep: Sweep) -> None:
    """Make experiment and parent run once, before many jobs want them at the same time."""
    tracking: TrackingConfig = sweep.runs[0].config.tracking
    if tracking.enabled and tracking.uri is not None:
        from xclrun.tracking.mirror import Mirror

        try:
            mirror = Mirror(sweep.outputs, tracking)
            if len(sweep.runs) > 1:
                mirror.send_sweep(sweep.facts)
        except RunError as error:
            line(f"  note: {error}; `xclrun sync` sends everything later")


def _wait_or_say(sweep: Sweep, settings: SlurmSettings) -> None:
    began, ids = time.monotonic(), [run.id for run in sweep.runs]
    if not settings.wait and settings.cluster == "slurm":
        at, mlflow = outputs_option(sweep), tracking_options(sweep)
        line(f"Next: `xclrun status {sweep.name}{at} --watch` tells how it goes")
        line(f"      `xclrun cancel {sweep.name}{at}` ends it")
        tracking = sweep.runs[0].config.tracking
        if tracking.enabled and tracking.uri is None:
            line(f"      `xclrun sync --watch{at}{mlflow}` sends finished runs to MLflow")
        line(f"      `xclrun report {sweep.name}{at}{mlflow}` makes tables and figures of what has finished")
        return
    told, calm = "", 0
    # Twice in a row: on a network file system what a job wrote last may show late.
    while calm < 2:
        found = sweep_status(sweep.outputs, ids)
        if (counts := render_counts(found)) != told:
            line(f"{time.strftime('%H:%M:%S')}  {counts}")
            told = counts
        calm = calm + 1 if not any(status.busy for status in found) else 0
        if calm < 2:
            time.sleep(LOOK if settings.cluster == "slurm" else 0.1)
    failed = [run for run in sweep.runs if not run.directory.finished]
    conclude(sweep, failed, True, time.monotonic() - began)
