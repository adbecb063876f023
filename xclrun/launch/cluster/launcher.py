"""The Slurm launcher, `hydra/launcher=slurm`: it saves the configs of runs, packs runs into jobs and submits arrays."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from xclrun.config.schema import Device
from xclrun.core.errors import RunError, UsageError, require
from xclrun.core.terminal import line, many, note
from xclrun.launch.cluster import slurm
from xclrun.launch.cluster.code import copy_code
from xclrun.launch.cluster.files import DEBUG, Pack, Submission
from xclrun.launch.cluster.job import PackJob
from xclrun.launch.cluster.packing import pack, shared_first
from xclrun.launch.forecast import Costs
from xclrun.launch.status import render_counts, sweep_status, wait_until_calm
from xclrun.launch.sweep import Launcher, Sweep, conclude
from xclrun.run import Run, freeze
from xclrun.run.checks import check_ranks

# Seconds between two checks of a sweep with ``wait``.
LOOK = 2.0


@dataclass(frozen=True)
class Slurm(Launcher):
    """Submits runs to a Slurm cluster; each setting is documented in ``conf/hydra/launcher/slurm.yaml``."""

    cluster: str = "slurm"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    gpus_per_node: int | None = None
    nodes: int = 1
    tasks_per_node: int = 1
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
    python: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        if self.cluster not in ("slurm", "debug"):
            raise UsageError(f"hydra.launcher.cluster={self.cluster}: must be slurm or debug")
        for key in (
            "nodes",
            "tasks_per_node",
            "time",
            "array_parallelism",
            "max_array",
            "pack",
            "pack_minutes",
            "signal_delay",
        ):
            value = getattr(self, key)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and value > 0):
                raise UsageError(f"hydra.launcher.{key}={value}: must be above 0")
        if self.signal_delay >= 60 * self.time:
            raise UsageError(
                f"hydra.launcher.signal_delay={self.signal_delay}: must be shorter than the time limit, "
                f"hydra.launcher.time={self.time} minutes"
            )
        if not self.python_words:
            raise UsageError(
                f"hydra.launcher.python={self.python}: must be a command, such as apptainer exec IMAGE python"
            )
        if self.cluster == "slurm":
            require("submitit", "hydra/launcher=slurm", "slurm")
            if shutil.which("srun") is None:
                raise UsageError("hydra/launcher=slurm: srun is not installed; use a login node of the cluster")

    @property
    def tasks(self) -> int:
        """The number of processes that train a run together; 1 if jobs run in this process."""
        return self.nodes * self.tasks_per_node if self.cluster == "slurm" else 1

    def check_runs(self, runs: Sequence[Run]) -> None:
        if self.tasks > 1:
            gpus, cpu = self.gpus_per_node, all(run.config.runtime.device is Device.cpu for run in runs)
            if gpus is not None and gpus < self.tasks_per_node and not cpu:
                raise UsageError(
                    f"hydra.launcher.gpus_per_node={gpus} tasks_per_node={self.tasks_per_node}: each process needs its "
                    f"own GPU; use hydra.launcher.gpus_per_node={self.tasks_per_node}"
                )
            for run in runs:
                check_ranks(run.config, run.strategy(), self.tasks)

    @property
    def waits(self) -> bool:
        return self.wait or self.cluster == "debug"

    @property
    def python_words(self) -> list[str]:
        """The arguments of the command that starts Python in a job; empty if it is invalid."""
        if self.python is None:
            return [sys.executable]
        try:
            return shlex.split(self.python)
        except ValueError:
            return []

    def do(self, sweep: Sweep, unfinished: Sequence[Run]) -> None:
        """Submit the runs that are not running or queued; with ``wait``, wait until all jobs have ended."""
        began = time.monotonic()
        busy = {status.run_id for status in sweep_status(sweep.outputs, [run.id for run in sweep.runs]) if status.busy}
        if busy:
            line(f"{many(len(busy), 'run')} already running or queued, not submitted again")
        if todo := [run for run in unfinished if run.id not in busy]:
            for run in todo:
                freeze(run)
            _announce_to_server(sweep)
            submission = Submission.new(sweep.outputs, sweep.name)
            submit = self._do_here if self.cluster == "debug" else self._submit
            submit(sweep, submission, self.waves(todo))
            line(f"submitted in {time.monotonic() - began:.1f} s")
        if self.waits:
            self._wait(sweep, unfinished)
        else:
            _print_next_steps(sweep)

    def waves(self, runs: Sequence[Run]) -> list[list[Pack]]:
        """Return the waves of jobs: shared stages, if any, then the runs."""
        ahead = shared_first(runs) if self.share_first else []
        # Create `Costs` only if needed, because it reads the whole store.
        estimate = None if self.pack_minutes is None else Costs(runs[0].store).of_run
        packs = pack(runs, self.pack, self.pack_minutes, estimate)
        return [wave for wave in (ahead, packs) if wave]

    def _start(self, sweep: Sweep) -> list[str]:
        """Return the command that runs a copy of the code."""
        return [*self.python_words, "-u", str(copy_code(sweep.outputs / "slurm" / "code").absolute())]

    def _submit(self, sweep: Sweep, submission: Submission, waves: Sequence[Sequence[Pack]]) -> None:
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        allowed = slurm.max_array()
        limit, python = min(self.max_array or allowed, allowed), shlex.join(self._start(sweep))
        after: list[str] = []
        for wave in waves:
            arrays = []
            for start in range(0, len(wave), limit):
                packs = wave[start : start + limit]
                files = submission.write_packs(packs)
                # `PackJob.checkpoint` limits requeues instead.
                executor = submitit.SlurmExecutor(files[0].path.parent, max_num_timeout=10**6, python=python)
                try:
                    executor.update_parameters(**self._parameters(sweep.name, after))
                    jobs = executor.submit_array([PackJob(pack.path, self.requeue) for pack in files])
                except (FailedJobError, FailedSubmissionError) as error:
                    raise UsageError(f"Slurm rejected the jobs: {_first_error(error)}") from error
                submission.add_array([job.job_id for job in jobs], packs)
                arrays.append(submission.arrays[-1]["job"])
                content = "shared trainings" if packs[0].stages else "runs"
                line(f"  Slurm array {arrays[-1]}: {many(len(packs), 'job')} with {content}")
            after = arrays

    def _do_here(self, sweep: Sweep, submission: Submission, waves: Sequence[Sequence[Pack]]) -> None:
        """Execute the jobs in this process, one after another, for debugging."""
        start = [*self._start(sweep), "-u", "-m", PackJob.__module__]
        # If this process runs in a Slurm job, the runs must not join that job's tasks.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        for wave in waves:
            submission.write_packs(wave)
            submission.add_array([f"{DEBUG}_{i}" for i in range(len(wave))], wave)
            for job, _ in list(submission.jobs())[-len(wave) :]:
                line(f"  job {job.id}: {job.log}")
                command = ["bash", "-c", "\n".join([*self.setup, 'exec "$@"']), "bash", *start]
                with job.log.open("ab") as log:
                    command.append(str(job.files.path.absolute()))
                    subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)

    def _parameters(self, sweep: str, after: Sequence[str]) -> dict[str, Any]:
        """Return Submitit's options for an array that starts after the arrays ``after``."""
        names = ("partition", "account", "qos", "constraint", "gres", "gpus_per_node", "cpus_per_task", "mem", "time")
        return {
            **{name: getattr(self, name) for name in names if getattr(self, name) is not None},
            **({"nodes": self.nodes, "ntasks_per_node": self.tasks_per_node} if self.tasks > 1 else {}),
            **({"dependency": f"afterany:{':'.join(after)}"} if after else {}),
            "job_name": f"xclrun-{sweep}",
            "array_parallelism": self.array_parallelism,
            "signal_delay_s": self.signal_delay,
            "setup": list(self.setup),
            "stderr_to_stdout": True,
            "wckey": None,
            "additional_parameters": {"requeue" if self.requeue else "no-requeue": True, **self.options},
        }

    def _wait(self, sweep: Sweep, unfinished: Sequence[Run]) -> None:
        began, ids = time.monotonic(), [run.id for run in sweep.runs]
        printed = ""

        def busy() -> bool:
            nonlocal printed
            statuses = sweep_status(sweep.outputs, ids)
            if (counts := render_counts(statuses)) != printed:
                line(f"{time.strftime('%H:%M:%S')}  {counts}")
                printed = counts
            return any(status.busy for status in statuses)

        wait_until_calm(busy, LOOK if self.cluster == "slurm" else 0.1)
        conclude(sweep, unfinished, time.monotonic() - began)


def _announce_to_server(sweep: Sweep) -> None:
    """Create the experiment and the parent run before many jobs try to do so at once."""
    if sweep.tracking.in_mlflow and sweep.tracking.uri is not None:
        from xclrun.tracking.mirror import Mirror

        try:
            mirror = Mirror(sweep.outputs, sweep.tracking)
            if len(sweep.runs) > 1:
                mirror.send_sweep(sweep.facts)
        except RunError as error:
            note(f"{error}; send the runs later with `xclrun sync`", "  ")


def _first_error(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines()] or ["sbatch failed"]
    return next((line for line in lines if "error:" in line), lines[0]).removeprefix("sbatch: error: ")


def _print_next_steps(sweep: Sweep) -> None:
    at, mlflow = sweep.outputs_option, sweep.tracking_options
    line(f"Next: `xclrun status {sweep.name}{at} --watch` shows progress")
    line(f"      `xclrun cancel {sweep.name}{at}` cancels it")
    if sweep.tracking.in_mlflow and sweep.tracking.uri is None:
        line(f"      `xclrun sync --watch{at}{mlflow}` sends finished runs to MLflow")
    line(f"      `xclrun report {sweep.name}{at}{mlflow}` creates tables and figures of the finished runs")
