"""From composed configs to a sweep, and from there to a launcher: everything is checked before anything runs."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.config.files import default_outputs
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import UsageError, XclrunError
from xclrun.core.identity import digest
from xclrun.core.names import check_name
from xclrun.core.plugins import typed_command
from xclrun.core.secret import private
from xclrun.core.terminal import duration, if_slow, line, many, note
from xclrun.data.notes import told
from xclrun.run import Run, notes, plan_jobs
from xclrun.store.files import atomic_write, write_json
from xclrun.store.records import read_sweep

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
        search: of a search, how far it is: ``objective``, ``keys``, ``trials`` (settings that it tries), ``made``,
            ``ended``, and ``runs``: ids of those of the settings that could be done.
    """

    name: str
    command: str
    runs: tuple[Run, ...]
    search: Mapping[str, Any] | None = None

    @property
    def blind(self) -> bool:
        """Whether test scores must not be seen yet: those of a search that is under way."""
        return self.search is not None and not self.search["ended"]

    @property
    def outputs(self) -> Path:
        return self.runs[0].outputs

    @property
    def tracking(self) -> TrackingConfig:
        """Where its runs are sent; nowhere while their test scores must not be seen."""
        given = self.runs[0].config.tracking
        return replace(given, enabled=False) if self.blind else given

    @property
    def unfinished(self) -> list[Run]:
        """The runs that are not done yet; looks at their files."""
        return [run for run in self.runs if not run.directory.finished]

    @property
    def facts(self) -> dict[str, Any]:
        """The sweep's file: when it was ``started`` first and ``given`` last (seconds of the epoch)."""
        started, runs = time.strftime("%Y-%m-%dT%H:%M:%S%z"), [run.id for run in self.runs]
        facts = {"name": self.name, "command": self.command, "started": started, "given": time.time(), "runs": runs}
        return facts if self.search is None else facts | {"search": dict(self.search)}

    def write(self) -> None:
        """Write the sweep's file, so that status and reports find it; the first start is kept.

        The name stands for the runs of the last command that had it; a note says which it no longer stands for.
        """
        path = self.outputs / "sweeps" / f"{self.name}.json"
        facts = self.facts
        # An unreadable file is replaced.
        with contextlib.suppress(OSError, ValueError):
            before = read_sweep(path)
            facts["started"] = before["started"]
            if left := set(before["runs"]) - set(facts["runs"]):
                which = f"{many(len(left), 'run')} that this command has not"
                note(f"{self.name} had {which}; `xclrun report --all` still finds them", "  ")
        write_json(path, facts, mode=private())

    @property
    def outputs_option(self) -> str:
        """The option with which a subcommand finds the outputs; empty where it looks there anyway."""
        return "" if str(self.outputs) == default_outputs() else f" --outputs {shlex.quote(str(self.outputs))}"

    @property
    def tracking_options(self) -> str:
        """The options with which a subcommand finds MLflow; empty where it looks there anyway."""
        given: list[str] = []
        # User and password of an address are not shown.
        if self.tracking.in_mlflow and self.tracking.uri is not None and "@" not in self.tracking.uri:
            given += ["--uri", self.tracking.uri]
        if self.tracking.in_mlflow and self.tracking.experiment != TrackingConfig.experiment:
            given += ["--experiment", self.tracking.experiment]
        return "".join(f" {shlex.quote(part)}" for part in given)


class Launcher:
    """A way to do the runs of a sweep.

    Attributes:
        waits: whether all runs have ended when `do` returns.
    """

    @property
    def waits(self) -> bool:
        return True

    def check(self) -> None:
        """Raise a UsageError where its settings cannot work; nothing has been planned yet."""

    def check_runs(self, runs: Sequence[Run]) -> None:
        """Raise a UsageError where it cannot do these runs; nothing has been written yet."""

    def do(self, sweep: Sweep, unfinished: Sequence[Run]) -> None:
        """Do the unfinished ones of its runs, or hand them over to who does; say what comes next."""
        raise NotImplementedError


def launch(composed: Sequence[Composed], launcher: Launcher) -> None:
    """Do the jobs of a command: plan, check, note and announce the sweep, then hand it to its launcher.

    A run that fails does not stop the others. Runs that are finished already are skipped.

    Raises:
        UsageError: a job or the launcher cannot work; nothing has been computed.
        SweepFailed: some runs failed.
        Stopped: a signal ended the sweep; the same command goes on.
    """
    launcher.check()
    with if_slow("xclrun: reading the data and planning …", terminal_only=True):
        sweep = plan_sweep(composed)
    unfinished = sweep.unfinished
    launcher.check_runs(unfinished)
    for folder in dict.fromkeys([*(run.store.root for run in sweep.runs), sweep.outputs]):
        check_writable(folder)
    announce(sweep, len(unfinished))
    sweep.write()
    launcher.do(sweep, unfinished)


def plan_sweep(composed: Sequence[Composed]) -> Sweep:
    """Plan all jobs of a command.

    Raises:
        UsageError: one of them cannot work; nothing has been written.
    """
    if len(places := {job.config.paths.outputs for job in composed}) > 1:
        raise UsageError(f"paths.outputs={','.join(sorted(places))}: the runs of one sweep share one folder")
    runs = plan_jobs(job.config for job in composed)
    name = given_name(composed) or f"sweep-{digest(sorted(run.id for run in runs))[:8]}"
    return Sweep(name, typed_command(), tuple(runs))


def given_name(composed: Sequence[Composed]) -> str | None:
    """Return the name that a command gives its runs; None where it gives none.

    Raises:
        UsageError: it gives several, or one that cannot be.
    """
    if len(names := {job.config.sweep_name for job in composed}) > 1:
        raise UsageError(f"sweep_name={','.join(sorted(map(str, names)))}: the runs of one command share one name")
    named = {text.partition("=")[2] for job in composed for text in job.overrides if text.startswith("sweep=")}
    named = {name for name in names if name is not None} or named
    if len(named) != 1:
        return None
    [name] = named
    check_name("sweep", name)
    return name


def check_writable(folder: Path) -> None:
    """Raise a UsageError where a folder cannot be made or written."""
    probe = folder / f".probe-{os.getpid()}"
    atomic_write(probe, "")
    probe.unlink()


def announce(sweep: Sweep, unfinished: int) -> None:
    """Say what a command is about to do."""
    first, runs = sweep.runs[0], sweep.runs
    factors = [
        many(len({run.strategy_name for run in runs}), "strategy", "strategies"),
        many(len({run.config.order.name for run in runs}), "order"),
        many(len({run.config.seed for run in runs}), "seed"),
    ]
    done = len(runs) - unfinished
    line(
        f"xclrun: {many(len(runs), 'run')} ({' × '.join(factors)}) on {first.dataset.name} "
        f"with {first.config.model.name} → {sweep.outputs}" + (f"; {done} finished before" if done else "")
    )
    if unfinished:
        for text in [*told({id(run.dataset): run.dataset for run in runs}.values()), *notes(runs)]:
            note(text, "  ")


def conclude(sweep: Sweep, seconds: float, unsent: str = "") -> None:
    """Say how the sweep ended, and what to do next.

    Args:
        seconds: that it took.
        unsent: why its tracker does not have all of it (`BackgroundMirror.problem`); empty where it has.

    Raises:
        SweepFailed: some runs are not finished.
    """
    failed = sweep.unfinished
    if sweep.blind:
        if failed:
            raise SweepFailed(f"failed: {', '.join(run.id for run in failed)}")
        return
    line(f"\n{len(sweep.runs) - len(failed)} of {len(sweep.runs)} runs finished in {duration(seconds)}.")
    if unsent:
        note(unsent, "  ")
    if failed:
        raise SweepFailed(f"failed: {', '.join(run.id for run in failed)}; give the same command again to retry")
    line(f"Next: `xclrun report {sweep.name}{sweep.outputs_option}{sweep.tracking_options}` makes tables and figures")
    if sweep.tracking.in_mlflow and sweep.tracking.uri is None:
        line(f"      `xclrun ui{sweep.outputs_option}` opens MLflow")
