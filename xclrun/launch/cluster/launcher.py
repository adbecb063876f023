"""The Slurm launcher, `hydra/launcher=slurm`: it saves the configs of runs, packs runs into jobs and submits arrays."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.config.schema import Device
from xclrun.core.errors import RunError, UsageError, require
from xclrun.core.terminal import line, many, note
from xclrun.launch.cluster import script, slurm
from xclrun.launch.cluster.code import copy_code
from xclrun.launch.cluster.files import DEBUG, Pack, Submission, accepted, job_name, submitting
from xclrun.launch.cluster.job import PackJob
from xclrun.launch.cluster.lookup import Jobs, find_jobs, settled_jobs
from xclrun.launch.cluster.packs import pack, shared_first
from xclrun.launch.forecast import Costs
from xclrun.launch.status import render_counts, sweep_status, wait_until_calm
from xclrun.launch.sweep import Launcher, Sweep, conclude
from xclrun.plan import Run, freeze
from xclrun.plan.checks import check_ranks

if TYPE_CHECKING:
    from submitit import SlurmExecutor

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
    time: int | str = 60
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
        keys = ("nodes", "tasks_per_node", "array_parallelism", "max_array", "pack", "pack_minutes", "signal_delay")
        for key in keys:
            value = getattr(self, key)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and value > 0):
                raise UsageError(f"hydra.launcher.{key}={value}: must be above 0")
        if not self.minutes:
            raise UsageError(
                f"hydra.launcher.time={self.time}: must be a time above 0 in minutes, or in a format of Slurm such as "
                "1:30:00 or 2-12:00:00 (in quotes in a YAML file)"
            )
        if reserved := sorted({key.replace("_", "-") for key in self.options} & set(script.RESERVED)):
            raise UsageError(f"hydra.launcher.options.{reserved[0]}: xclrun sets this option of sbatch; remove it")
        if self.signal_delay >= 60 * self.minutes:
            raise UsageError(
                f"hydra.launcher.signal_delay={self.signal_delay}: must be shorter than the time limit, "
                f"hydra.launcher.time={self.minutes} minutes"
            )
        if not self.python_words:
            raise UsageError(
                f"hydra.launcher.python={self.python}: must be a command, such as apptainer exec IMAGE python"
            )
        if self.cluster == "slurm" and (missing := [name for name in ("srun", "sbatch") if not shutil.which(name)]):
            raise UsageError(f"hydra/launcher=slurm: {missing[0]} is not installed; use a login node of the cluster")
        if self.cluster == "slurm":
            require("submitit", "hydra/launcher=slurm", "slurm")

    @property
    def minutes(self) -> int | None:
        """The time limit in minutes; None if it is invalid."""
        return slurm.minutes_of(self.time)

    @property
    def tasks(self) -> int:
        """The number of processes that train a run together; 1 if jobs run in this process."""
        return self.nodes * self.tasks_per_node if self.cluster == "slurm" else 1

    def check_runs(self, runs: Sequence[Run]) -> None:
        for folder in {str(run.outputs.absolute()) for run in runs if self.cluster == "slurm"}:
            # In the pattern of a log, Slurm then replaces nothing, not even the number of the job.
            if "\\" in folder or "\n" in folder:
                raise UsageError(f"paths.outputs={folder!r}: Slurm cannot write logs to a path with a backslash")
        if self.tasks > 1:
            gpus, cpu = self.gpus_per_node, all(run.config.runtime.device is Device.cpu for run in runs)
            if gpus is not None and gpus < self.tasks_per_node and not cpu:
                raise UsageError(
                    f"hydra.launcher.gpus_per_node={gpus} tasks_per_node={self.tasks_per_node}: each process needs its "
                    f"own GPU; use hydra.launcher.gpus_per_node={self.tasks_per_node}"
                )
            for run in runs:
                check_ranks(run.config, self.tasks)

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
        if self.cluster == "debug":
            self._do_here(sweep, self._todo(sweep, unfinished, find_jobs(sweep.outputs)))
        else:
            with submitting(sweep.outputs) as in_turn:
                self._submit(sweep, unfinished, in_turn)
        if self.waits:
            self._wait(sweep, unfinished)
        else:
            _print_next_steps(sweep)

    def _todo(self, sweep: Sweep, unfinished: Sequence[Run], jobs: Jobs) -> list[Run]:
        """Return the runs to submit, with saved configs."""
        statuses = sweep_status(sweep.outputs, [run.id for run in sweep.runs], jobs=jobs)
        if unknown := [status for status in statuses if status.state == "unknown"]:
            raise RunError(
                f"the state of {many(len(unknown), 'run')} is unknown, nothing was submitted: {unknown[0].detail}; "
                "re-run the same command later"
            )
        if busy := {status.run_id for status in statuses if status.busy}:
            line(f"{many(len(busy), 'run')} already running or queued, not submitted again")
        todo = [run for run in unfinished if run.id not in busy and not run.directory.finished]
        for run in todo:
            freeze(run)
        if todo:
            _announce_to_server(sweep)
        return todo

    def waves(self, runs: Sequence[Run], queued: Collection[str] = ()) -> list[list[Pack]]:
        """Return the waves of jobs: shared stages, if any, except those that are ``queued`` (keys); then the runs."""
        ahead = shared_first(runs, queued) if self.share_first else []
        # Create `Costs` only if needed, because it reads the whole store.
        estimate = None if self.pack_minutes is None else Costs(runs[0].store).of_run
        packs = pack(runs, self.pack, self.pack_minutes, estimate)
        return [wave for wave in (ahead, packs) if wave]

    def _start(self, sweep: Sweep) -> list[str]:
        """Return the command that runs a job from a copy of the code."""
        copy = str(copy_code(sweep.outputs / "slurm" / "code").absolute())
        return [*self.python_words, "-u", copy, "-u", "-m", PackJob.__module__]

    def _submit(self, sweep: Sweep, unfinished: Sequence[Run], in_turn: Callable[[], bool]) -> None:
        """Submit jobs, under `files.submitting`: write the record of all arrays, then have Slurm accept each array."""
        began = time.monotonic()
        try:
            jobs = settled_jobs(sweep.outputs)
        except slurm.Silent as silent:
            raise RunError(f"{silent}; nothing was submitted; re-run the same command later") from silent
        todo = self._todo(sweep, unfinished, jobs)
        if not todo:
            return
        trainings = jobs.trainings() if self.share_first else {}
        waves, by_id = self.waves(todo, trainings), {run.id: run for run in todo}
        # Arrays of other sweeps that train what these runs need.
        others = {
            trainings[stage.train]: None
            for run in todo
            for stage in run.stages
            if stage.train in trainings and not run.store.has(stage.train)
        }
        if others:
            line(f"  shared trainings are already queued in Slurm array {', '.join(others)}; the jobs wait for them")
        limit, start = min(self.max_array or slurm.max_array(), slurm.max_array()), self._start(sweep)
        submission = Submission.new(sweep.outputs, sweep.name)
        arrays: list[list[tuple[Path, dict[str, Any]]]] = []
        for wave in waves:
            arrays.append([])
            for packs in (wave[first : first + limit] for first in range(0, len(wave), limit)):
                keys = [[by_id[run].stages[hop].train for run, hop in each.stages] for each in packs]
                folder = submission.add_array(packs, keys, job_name(sweep.outputs, sweep.name))
                arrays[-1].append((folder, submission.arrays[-1]))
        submission.write()
        after = [*others]
        for of_wave in arrays:
            for folder, array in of_wave:
                if not in_turn():
                    raise RunError(_incomplete(submission, "another command took over, since this one was suspended"))
                executor = self._executor(folder, array, start, after)
                try:
                    number = slurm.submit(executor, len(array["packs"]), array["job_name"])
                except slurm.Rejected as error:
                    raise UsageError(_incomplete(submission, f"Slurm rejected the jobs: {error}")) from error
                except slurm.Silent as error:
                    raise RunError(_incomplete(submission, str(error), rejected=False)) from error
                finally:
                    if executor.folder != folder:
                        shutil.rmtree(executor.folder, ignore_errors=True)
                accepted(array, number)
                submission.write()
                content = "shared trainings" if any(array["trainings"]) else "runs"
                line(f"  Slurm array {number}: {many(len(array['packs']), 'job')} with {content}")
            after = [*others, *(array["job"] for _, array in of_wave)]
        line(f"submitted in {time.monotonic() - began:.1f} s")

    def attached(self, outputs: Path, arguments: Sequence[str]) -> int:
        """Run ``xclrun ARGUMENTS`` as a job of one task, print its output, and return its exit code."""
        names = ("partition", "account", "qos", "constraint", "gres", "gpus_per_node", "cpus_per_task", "mem")
        options = {name.replace("_", "-"): value for name in names if (value := getattr(self, name)) is not None}
        options |= {"ntasks": 1, "time": self.minutes, **self.options}
        words = [f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items()
                 if value is not None and value is not False]  # fmt: skip
        copy = str(copy_code(outputs / "slurm" / "code").absolute())
        command = [*self.python_words, "-u", copy, "-u", "-m", "xclrun", *arguments]
        start = ["bash", "-c", "\n".join([*self.setup, 'exec "$@"']), "bash", *command]
        return subprocess.run(["srun", *words, *start], env=slurm.session_free(os.environ), check=False).returncode

    def _executor(
        self, folder: Path, array: dict[str, Any], start: Sequence[str], after: Sequence[str]
    ) -> SlurmExecutor:
        """Return Submitit's executor for an array that starts after the arrays ``after``."""
        import submitit

        jobs = len(array["packs"])
        words = [*start, str(folder), *(["requeue"] if self.requeue else []), "--"]
        # Submitit would replace such a part of its folder by numbers of jobs.
        own = Path(tempfile.mkdtemp()) if re.search("%[jtAa]", str(folder)) else folder
        command = script.tasks(words, script.log_pattern(folder, jobs, "%t"), self.cpus_per_task)
        executor = submitit.SlurmExecutor(own, python=command)
        names = ("partition", "account", "qos", "constraint", "gres", "gpus_per_node", "cpus_per_task", "mem")
        executor.update_parameters(
            **{name: value for name in names if (value := getattr(self, name)) is not None},
            **({"nodes": self.nodes, "ntasks_per_node": self.tasks_per_node} if self.tasks > 1 else {}),
            **({"dependency": f"afterany:{':'.join(after)}"} if after else {}),
            time=self.minutes,
            job_name=array["job_name"],
            array_parallelism=self.array_parallelism,
            signal_delay_s=self.signal_delay,
            setup=script.before(self.setup),
            stderr_to_stdout=True,
            wckey=None,
            # The command calls srun itself, so that signals are held back in the tasks from their start.
            use_srun=False,
            additional_parameters={
                "requeue" if self.requeue else "no-requeue": True,
                "output": script.log_pattern(folder, jobs, "0"),
                **{key: value for key, value in self.options.items() if value is not None and value is not False},
            },
        )
        return executor

    def _do_here(self, sweep: Sweep, todo: Sequence[Run]) -> None:
        """Execute the jobs in this process, one after another, for debugging."""
        if not todo:
            return
        began, start = time.monotonic(), self._start(sweep)
        # If this process runs in a Slurm job, the runs must not join that job's tasks.
        environment = slurm.session_free(os.environ)
        submission = Submission.new(sweep.outputs, sweep.name)
        for wave in self.waves(todo):
            folder = submission.add_array(wave)
            array = submission.arrays[-1]
            array |= {"job": DEBUG, "jobs": [f"{DEBUG}_{i}" for i in range(len(wave))]}
            submission.write()
            (folder / "job.sh").write_text(script.script(self.setup, 'exec "$@"'))
            for job, _ in list(submission.jobs())[-len(wave) :]:
                line(f"  job {job.id}: {job.log}")
                command = ["bash", str(folder / "job.sh"), *start, str(job.files.path.absolute())]
                with job.log.open("ab") as log:
                    subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
        line(f"submitted in {time.monotonic() - began:.1f} s")

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
            note(f"{error}; send the runs later with `xclrun mlflow sync`", "  ")


def _incomplete(submission: Submission, problem: str, rejected: bool = True) -> str:
    """Return the error about a submission that ended early; the record keeps only jobs that may exist."""
    total = sum(len(array["packs"]) for array in submission.arrays)
    done = sum(len(array["packs"]) for array in submission.arrays if array["jobs"])
    if rejected:
        submission.arrays = [array for array in submission.arrays if array["jobs"]]
        submission.write()
    return f"{done} of {many(total, 'job')} submitted; re-run the same command to submit the rest. {problem}"


def _print_next_steps(sweep: Sweep) -> None:
    at, mlflow = sweep.outputs_option, sweep.tracking_options
    line(f"Next: `xclrun status {sweep.name}{at} --watch` shows progress")
    line(f"      `xclrun cancel {sweep.name}{at}` cancels it")
    if sweep.tracking.in_mlflow and sweep.tracking.uri is None:
        line(f"      `xclrun mlflow sync --watch{at}{mlflow}` sends finished runs to MLflow")
    line(f"      `xclrun report {sweep.name}{at}{mlflow}` creates tables and figures of the finished runs")
