"""From composed configs to finished runs: the local launcher. Everything is checked before anything runs."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.config.schema import Device, Precision, TrackingConfig
from xclrun.core.errors import UsageError, XclrunError
from xclrun.core.identity import digest
from xclrun.core.names import check_name
from xclrun.core.secret import private, redact
from xclrun.data.notes import told
from xclrun.launch.console import Console, duration, if_slow, line
from xclrun.launch.remaining import Left
from xclrun.launch.workers import work, work_in_processes
from xclrun.run import Run, notes, plan_jobs
from xclrun.store.files import atomic_write, write_json
from xclrun.store.records import read_sweep
from xclrun.tracking.mirror import LOG, BackgroundMirror

if TYPE_CHECKING:
    from xclrun.compose.jobs import Composed


class SweepFailed(XclrunError):
    """Some runs of a sweep failed; the others are finished."""


@dataclass(frozen=True)
class Sweep:
    """A named set of runs: the jobs of one command.

    Attributes:
        name: ``sweep_name``, else the ``sweep=`` of the command, else ``sweep-`` and the hash of its run ids.
        command: as a person gave it.
        runs: each run once, in the order of the command.
    """

    name: str
    command: str
    runs: tuple[Run, ...]

    @property
    def outputs(self) -> Path:
        return self.runs[0].outputs

    @property
    def facts(self) -> dict[str, Any]:
        """What is noted of the sweep: ``started`` first, ``given`` last (seconds of the epoch)."""
        started, runs = time.strftime("%Y-%m-%dT%H:%M:%S%z"), [run.id for run in self.runs]
        return {"name": self.name, "command": self.command, "started": started, "given": time.time(), "runs": runs}

    def write(self) -> None:
        """Note the sweep among the outputs, so that status and reports find it; the first start is kept.

        The name stands for the runs of the last command that had it; a note says which it no longer stands for.
        """
        path = self.outputs / "sweeps" / f"{self.name}.json"
        facts = self.facts
        # Where what was noted cannot be read, it is written anew.
        with contextlib.suppress(OSError, ValueError):
            before = read_sweep(path)
            facts["started"] = before["started"]
            if left := set(before["runs"]) - set(facts["runs"]):
                many = f"{len(left)} run{'' if len(left) == 1 else 's'}"
                line(
                    f"  note: {self.name} had {many} that this command has not; `xclrun report --all` still finds them"
                )
        write_json(path, facts, mode=private())


def make_sweep(composed: Sequence[Composed]) -> Sweep:
    """Plan all jobs of a command.

    Raises:
        UsageError: one of them cannot work; nothing has been written.
    """
    if len(places := {job.config.paths.outputs for job in composed}) > 1:
        raise UsageError(f"paths.outputs={','.join(sorted(places))}: the runs of one sweep share one folder")
    runs = plan_jobs((job.config, job.resolved) for job in composed)
    if len(names := {job.config.sweep_name for job in composed}) > 1:
        raise UsageError(f"sweep_name={','.join(sorted(map(str, names)))}: the runs of one command share one name")
    named = {text.partition("=")[2] for job in composed for text in job.overrides if text.startswith("sweep=")}
    named = {name for name in names if name is not None} or named
    name = named.pop() if len(named) == 1 else f"sweep-{digest(sorted(run.id for run in runs))[:8]}"
    check_name("sweep", name)
    return Sweep(name, command(), tuple(runs))


def command() -> str:
    """Return the command that was given, as it could be given again."""
    # Hydra is handed the long form of -m for every command (see `xclrun.cli`).
    given = [argument for argument in sys.argv[1:] if argument != "--multirun"]
    return shlex.join(["xclrun", *map(redact, given), *(["-m"] if len(given) < len(sys.argv) - 1 else [])])


def launch_local(
    composed: Sequence[Composed], workers: int = 1, gpus: Sequence[str] | None = None, per_gpu: int = 1
) -> None:
    """Run the jobs of a command on this machine.

    A run that fails does not stop the others. Runs that are finished already are skipped.

    Args:
        composed: the jobs.
        workers: processes that share the jobs at the most; 1: this process does them one after another.
        gpus: GPUs to hand out, as CUDA_VISIBLE_DEVICES names them; None: those of the machine, where runs use them.
        per_gpu: processes that share a GPU at the most.

    Raises:
        UsageError: a job cannot work; nothing has been computed.
        SweepFailed: some runs failed.
        Stopped: a signal ended the sweep; the same command goes on.
    """
    for key, value in {"n": workers, "per_gpu": per_gpu}.items():
        if type(value) is not int:
            raise UsageError(f"hydra.launcher.{key}={value}: must be a number of processes of at least 1")
    if gpus is not None and (isinstance(gpus, str) or not isinstance(gpus, Sequence)):
        raise UsageError(f"hydra.launcher.gpus={gpus}: must be a list, as in [0,1]")
    gpus = None if gpus is None else [str(gpu) for gpu in gpus]
    if workers < 1:
        raise UsageError(f"hydra.launcher.n={workers}: must be a number of processes of at least 1")
    if per_gpu < 1:
        raise UsageError(f"hydra.launcher.per_gpu={per_gpu}: must be a number of processes of at least 1")
    # Asked in this way, CUDA is not begun in this process, and workers can still be given a GPU each.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    with if_slow("xclrun: reading the data and planning …", terminal_only=True):
        sweep = make_sweep(composed)
    waiting = [run for run in sweep.runs if not run.directory.finished]
    _check_devices(waiting)
    for place in dict.fromkeys([*(run.store.root for run in sweep.runs), sweep.outputs]):
        check_writable(place)
    announce(sweep, len(waiting))
    sweep.write()
    console, started = Console([run.id for run in sweep.runs], left=Left(sweep.runs)), time.monotonic()
    mirror = BackgroundMirror(sweep.outputs, sweep.runs[0].config.tracking)
    mirror.start()
    try:
        places = _places(min(workers, len(waiting)), _gpus(waiting, gpus), per_gpu)
        if len(places) > 1 or (places and gpus):
            work_in_processes(sweep.runs, console, mirror, places)
        else:
            work(sweep.runs, console, mirror)
    except BaseException:
        mirror.close(timeout=0.0)  # It goes on by itself.
        raise
    if not (sent := mirror.close(timeout=1.0)):
        line("sending to MLflow …")
        sent = mirror.close()
    failed = [run for run in sweep.runs if not run.directory.finished]
    conclude(sweep, failed, sent, time.monotonic() - started)


def _gpus(runs: Sequence[Run], given: Sequence[str] | None) -> list[str]:
    """Return the GPUs that can be handed out to workers; none where no run uses one."""
    if given is not None:
        return list(given)
    if all(run.config.runtime.device is Device.cpu for run in runs):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
    # Numbered from 0 also where a container sees only some.
    return [str(i) for i, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def _places(count: int, gpus: Sequence[str], per_gpu: int) -> list[str | None]:
    """Return the GPU of each worker: in turn, so that no GPU has two while another has none; at most ``count``.

    Without GPUs, workers get none.
    """
    return [*(list(gpus) * per_gpu)[:count]] if gpus else [None] * count


def _check_devices(runs: Sequence[Run]) -> None:
    chosen = {(run.config.runtime.device, run.config.trainer.precision) for run in runs}
    # What cannot fail is not checked here, since that imports torch.
    for device, precision in chosen:
        if device is Device.cuda or precision is Precision.fp16:
            from xclrun.train.precision import choose_device

            choose_device(device, precision)


def check_writable(folder: Path) -> None:
    """Raise a UsageError where a folder cannot be made or written."""
    probe = folder / f".probe-{os.getpid()}"
    atomic_write(probe, "")
    probe.unlink()


def announce(sweep: Sweep, waiting: int) -> None:
    """Say what a command is about to do."""
    first, runs = sweep.runs[0], sweep.runs

    def several(values: set[Any], word: str) -> str:
        return f"{len(values)} {word}{'' if len(values) == 1 else 's' if word != 'strategy' else ''}"

    strategies = {run.strategy_name for run in runs}
    orders = {run.config.order.name for run in runs}
    parts = [
        f"{len(strategies)} {'strategy' if len(strategies) == 1 else 'strategies'}",
        several(orders, "order"),
        several({run.config.seed for run in runs}, "seed"),
    ]
    done = len(runs) - waiting
    line(
        f"xclrun: {len(runs)} run{'' if len(runs) == 1 else 's'} ({' × '.join(parts)}) on {first.dataset.name} "
        f"with {first.config.model.name} → {sweep.outputs}" + (f"; {done} finished before" if done else "")
    )
    if waiting:
        for note in [*told({id(run.dataset): run.dataset for run in runs}.values()), *notes(runs)]:
            line(f"  note: {note}")


def conclude(sweep: Sweep, failed: Sequence[Run], sent: bool, seconds: float) -> None:
    """Say how the sweep ended, and what to do next."""
    line(f"\n{len(sweep.runs) - len(failed)} of {len(sweep.runs)} runs finished in {duration(seconds)}.")
    if not sent:
        line(f"  note: MLflow could not be reached (see {sweep.outputs / LOG}); `xclrun sync` sends it later")
    if failed:
        raise SweepFailed(f"failed: {', '.join(run.id for run in failed)}; give the same command again to retry")
    at, mlflow = outputs_option(sweep), tracking_options(sweep)
    line(f"Next: `xclrun report {sweep.name}{at}{mlflow}` makes tables and figures")
    tracking = sweep.runs[0].config.tracking
    if tracking.enabled and tracking.uri is None:
        line(f"      `xclrun ui{at}` opens MLflow")


def outputs_option(sweep: Sweep) -> str:
    """Return the option with which a subcommand finds a sweep's outputs; empty where it looks there anyway."""
    usual = os.environ.get("XCLRUN_OUTPUTS") or "outputs"
    return "" if str(sweep.outputs) == usual else f" --outputs {shlex.quote(str(sweep.outputs))}"


def tracking_options(sweep: Sweep) -> str:
    """Return the options with which a subcommand finds a sweep's MLflow; empty where it looks there anyway."""
    tracking, given = sweep.runs[0].config.tracking, []
    # A name and password in an address are not shown.
    if tracking.enabled and tracking.uri is not None and "@" not in tracking.uri:
        given += ["--uri", tracking.uri]
    if tracking.enabled and tracking.experiment != TrackingConfig.experiment:
        given += ["--experiment", tracking.experiment]
    return "".join(f" {shlex.quote(part)}" for part in given)
