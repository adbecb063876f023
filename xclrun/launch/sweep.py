"""Sweeps: plan and validate the jobs of a command, and pass them to a launcher."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from xclrun.config.files import default_outputs
from xclrun.config.schema import Keep, TrackingConfig
from xclrun.core.errors import UsageError, XclrunError
from xclrun.core.files import UNREADABLE
from xclrun.core.identity import digest
from xclrun.core.names import check_name
from xclrun.core.plugins import typed_command
from xclrun.core.terminal import duration, if_slow, line, many, note, size
from xclrun.data.notes import note_lines
from xclrun.plan import Run, notes, plan_jobs
from xclrun.store.files import atomic_write, write_json
from xclrun.store.locks import alone
from xclrun.store.prune import remove_unused
from xclrun.store.stages import StageStore
from xclrun.store.sweeps import joined, read_sweep

if TYPE_CHECKING:
    from xclrun.compose.jobs import Composed


class SweepFailed(XclrunError):
    """Some runs of a sweep failed; the others are finished."""


@dataclass(frozen=True)
class Sweep:
    """A named set of runs: the jobs of one command.

    Attributes:
        name: ``sweep_name``, else the ``sweep=`` of the command, else ``sweep-`` and a hash of its run IDs.
        command: as typed.
        runs: each run once, in the order of the command.
        search: progress of a search: ``objective``, ``keys``, ``trials`` (number of settings to try), ``made`` (number
            tried so far), ``ended`` (bool) and ``runs`` (IDs of the runs of settings with a dev score).
        comparisons: the primary comparisons (`xclrun.analysis.confirmatory.chosen`).
    """

    name: str
    command: str
    runs: tuple[Run, ...]
    search: Mapping[str, Any] | None = None
    comparisons: Mapping[str, Any] = field(default_factory=dict)

    @property
    def blind(self) -> bool:
        """Whether test scores must be hidden, because the sweep is a search that has not ended."""
        return self.search is not None and not self.search["ended"]

    @property
    def outputs(self) -> Path:
        return self.runs[0].outputs

    @property
    def tracking(self) -> TrackingConfig:
        """The tracker of its runs; disabled while test scores are hidden."""
        config = self.runs[0].config.tracking
        return replace(config, enabled=False) if self.blind else config

    @property
    def unfinished(self) -> list[Run]:
        """The unfinished runs; reads files of every run."""
        return [run for run in self.runs if not run.directory.finished]

    @property
    def facts(self) -> dict[str, Any]:
        """Content of the sweep's file; ``started`` is the first start, ``given`` the last (seconds since the epoch)."""
        started, runs = time.strftime("%Y-%m-%dT%H:%M:%S%z"), [run.id for run in self.runs]
        facts = {"name": self.name, "command": self.command, "started": started, "given": time.time(), "runs": runs}
        facts |= {"comparisons": dict(self.comparisons)} if self.comparisons else {}
        return facts if self.search is None else facts | {"search": dict(self.search)}

    def write(self) -> None:
        """Write the sweep's file for status and reports, with the time of the first start.

        Runs of earlier commands with this name stay in the sweep, and a note counts them. A search is one command.
        """
        with alone(self.outputs, "sweep", self.name):
            self._write()

    def _write(self) -> None:
        path = self.outputs / "sweeps" / f"{self.name}.json"
        facts = self.facts
        try:
            before = read_sweep(path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            note(f"{path} cannot be read ({error}); it is replaced, without the runs of earlier commands", "  ")
        else:
            facts["started"] = before["started"]
            if self.search is None and "search" not in before and (more := set(before["runs"]) - set(facts["runs"])):
                runs = f"{many(len(more), 'run')} of earlier commands"
                note(f"{self.name} also includes {runs}; `xclrun report {self.name} --only-last` omits them", "  ")
                facts = joined([before, facts])
            if ("search" in before) is (self.search is None):
                earlier, new = ("search", "sweep") if self.search is None else ("sweep", "search")
                note(f"this {new} replaces the {earlier} of the same name, {self.name}; its runs stay", "  ")
            if set(before["runs"]) & set(facts["runs"]) and before.get("comparisons") != facts.get("comparisons"):
                # Scores may be known by now.
                facts["comparisons"] = before.get("comparisons", {})
                note(f"{self.name} keeps the primary comparisons that it recorded when it started", "  ")
        write_json(path, facts)

    @property
    def outputs_option(self) -> str:
        """The ``--outputs`` option to append to a printed command; empty for the default folder."""
        return "" if str(self.outputs) == default_outputs() else f" --outputs {shlex.quote(str(self.outputs))}"

    @property
    def tracking_options(self) -> str:
        """The MLflow options to append to a printed command; empty for the defaults."""
        options: list[str] = []
        if self.tracking.in_mlflow and self.tracking.uri is not None:
            options += ["--uri", self.tracking.uri]
        if self.tracking.in_mlflow and self.tracking.experiment != TrackingConfig.experiment:
            options += ["--experiment", self.tracking.experiment]
        return "".join(f" {shlex.quote(part)}" for part in options)


class Launcher:
    """Base class of launchers, which execute the runs of a sweep."""

    @property
    def waits(self) -> bool:
        """Whether all runs have ended when `do` returns."""
        return True

    def check(self) -> None:
        """Raise a UsageError for invalid settings, before runs are planned."""

    def check_runs(self, runs: Sequence[Run]) -> None:
        """Raise a UsageError if it cannot execute these runs, before files are written."""

    def do(self, sweep: Sweep, unfinished: Sequence[Run]) -> None:
        """Execute or submit the unfinished runs; print the next commands."""
        raise NotImplementedError


def make_launcher(settings: Mapping[str, Any]) -> Launcher:
    """Return the launcher of ``hydra.launcher``: its class ``_target_`` and its settings.

    Raises:
        UsageError: the class does not exist or is not a `Launcher`.
    """
    target = str(settings["_target_"])
    try:
        launcher = resolve_name(target)
    except (ImportError, AttributeError, ValueError):
        launcher = None
    if not (isinstance(launcher, type) and issubclass(launcher, Launcher)):
        raise UsageError(f"hydra.launcher._target_={target}: must be a subclass of xclrun.launch.sweep.Launcher")
    return launcher(**{key: value for key, value in settings.items() if key != "_target_"})


def launch(composed: Sequence[Composed], launcher: Launcher) -> Sequence[Run]:
    """Plan, validate, announce and record the jobs of a command as a sweep, and pass it to the launcher.

    A failed run does not stop the others. Finished runs are skipped. Returns all runs of the command.
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
    # A killed command may not have released what its finished runs do not keep.
    release(sweep.runs)
    launcher.do(sweep, unfinished)
    return sweep.runs


def release(runs: Sequence[Run]) -> None:
    """Remove what finished runs of a command do not keep (``store.keep``), unless another run needs or keeps it.

    A run keeps what its manifest lists, whatever a later command that skips the run sets.

    Args:
        runs: all runs of the command; the unfinished ones need everything that they refer to.
    """
    if all(run.config.store.keep is Keep.all for run in runs):
        return
    # A run that has finished must not fail because of this.
    with contextlib.suppress(*UNREADABLE, XclrunError):
        needed, unneeded = set[str](), dict[StageStore, set[str]]()
        for run in runs:
            if run.directory.finished:
                unneeded.setdefault(run.store, set()).update({*run.keys}.difference(run.directory.kept_keys()))
            else:
                needed.update(run.keys)
        for store, keys in unneeded.items():
            remove_unused(store, runs[0].outputs, keys - needed)


def weights_size(runs: Sequence[Run]) -> int:
    """Return the bytes of the stored weights and states of runs."""
    paths = {run.store.path(key) for run in runs for stage in run.stages for key in stage.trained}
    return sum(file.stat().st_size for path in paths if path.is_dir() for file in path.iterdir())


def plan_sweep(composed: Sequence[Composed]) -> Sweep:
    """Plan all jobs of a command."""
    if len(folders := {job.config.paths.outputs for job in composed}) > 1:
        raise UsageError(f"paths.outputs={','.join(sorted(folders))}: a sweep needs a single folder")
    runs = plan_jobs(job.config for job in composed)
    name = given_name(composed) or f"sweep-{digest(sorted(run.id for run in runs))[:8]}"
    return Sweep(name, typed_command(), tuple(runs), comparisons=composed[0].comparisons)


def given_name(composed: Sequence[Composed]) -> str | None:
    """Return the name of the sweep in a command, or None."""
    if len(names := {job.config.sweep_name for job in composed}) > 1:
        raise UsageError(f"sweep_name={','.join(sorted(map(str, names)))}: a command needs a single name")
    named = {text.partition("=")[2] for job in composed for text in job.overrides if text.startswith("sweep=")}
    named = {name for name in names if name is not None} or named
    if len(named) != 1:
        return None
    [name] = named
    check_name("sweep", name)
    return name


def check_writable(folder: Path) -> None:
    """Raise a UsageError if a folder cannot be created or is not writable."""
    probe = folder / f".probe-{os.getpid()}"
    atomic_write(probe, "")
    probe.unlink()


def announce(sweep: Sweep, unfinished: int) -> None:
    """Print a summary of a command before it starts."""
    first, runs = sweep.runs[0], sweep.runs
    factors = [
        many(len({run.strategy_name for run in runs}), "strategy", "strategies"),
        many(len({run.config.order.name for run in runs}), "order"),
        many(len({run.config.seed for run in runs}), "seed"),
    ]
    done = len(runs) - unfinished
    line(
        f"xclrun: {many(len(runs), 'run')} ({' × '.join(factors)}) on {first.dataset.name} "
        f"with {first.config.model.name} → {sweep.outputs}" + (f"; {done} already finished" if done else "")
    )
    if unfinished:
        for text in [*note_lines({id(run.dataset): run.dataset for run in runs}.values()), *notes(runs)]:
            note(text, "  ")


def conclude(sweep: Sweep, tried: Sequence[Run], seconds: float, unsent: str = "") -> None:
    """Print the result of a sweep and the next commands.

    Args:
        tried: the runs of this attempt.
        unsent: reason why some runs were not sent to the tracker (`BackgroundMirror.problem`).
    """
    failed = [run for run in tried if not run.directory.finished]
    if sweep.blind:
        if failed:
            raise SweepFailed(f"failed: {', '.join(run.id for run in failed)}")
        return
    line(f"\n{len(sweep.runs) - len(failed)} of {len(sweep.runs)} runs finished in {duration(seconds)}.")
    if unsent:
        note(unsent, "  ")
    if failed:
        raise SweepFailed(f"failed: {', '.join(run.id for run in failed)}; re-run the same command to retry")
    line(f"Next: `xclrun report {sweep.name}{sweep.outputs_option}{sweep.tracking_options}` creates tables and figures")
    if sweep.tracking.in_mlflow and sweep.tracking.uri is None:
        line(f"      `xclrun mlflow ui{sweep.outputs_option}` opens MLflow")
    if trained := weights_size(sweep.runs):
        freed = f"frees {size(trained)} of these runs; reports need no weights"
        line(f"      `xclrun store gc --weights{sweep.outputs_option}` {freed}")
