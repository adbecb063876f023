"""What subcommands share: a parser with one-line errors, common options, and the choice of runs and sweeps."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.config.files import default_outputs
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError, UsageError, did_you_mean
from xclrun.core.names import matching
from xclrun.core.output import reader_left
from xclrun.core.terminal import note
from xclrun.store.rundir import RunDirectory, UnreadableRun

if TYPE_CHECKING:
    from xclrun.plan import Run

RUN_HELP = "run ID, a unique part of it, or the run directory"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and exit code 2."""

    def error(self, message: str) -> Any:
        raise UsageError(f"{self.prog.removeprefix('xclrun ')}: {message}; see `{self.prog} --help`")

    def add_json(self, help_text: str = "print JSON") -> None:
        """Add ``--json``."""
        self.add_argument("--json", action="store_true", help=help_text)

    def add_run(self) -> None:
        """Add the argument ``run`` that `chosen_run` takes."""
        self.add_argument("run", metavar="RUN", help=RUN_HELP)

    def add_sweep(self) -> None:
        """Add the argument ``sweep`` that `chosen_sweeps` takes."""
        self.add_argument("sweep", nargs="?", help="name of a sweep, or `all` (default: the most recent sweep)")

    def add_overrides(self, example: str = "", outputs: bool = False) -> None:
        """Add ``KEY=VALUE`` arguments as for xclrun itself."""
        self.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=f"as given to xclrun{example}")
        self.add_config_dir()
        self.add_argument("-m", "--multirun", action="store_true", help="accepted for compatibility; ignored")
        if outputs:
            self.add_argument("--outputs", metavar="DIR", help="short for paths.outputs=DIR")

    def add_config_dir(self) -> None:
        """Add ``--config-dir``, the folder of the user's YAML files."""
        self.add_argument("--config-dir", type=Path, metavar="DIR", help="folder of your YAML files, as for xclrun")

    def add_tracking(self) -> None:
        """Add the options that locate MLflow."""
        self.add_argument("--uri", metavar="URI", help="MLflow tracking server (default: the SQLite file in outputs)")
        self.add_argument(
            "--experiment",
            type=_experiment,
            default=TrackingConfig.experiment,
            metavar="NAME",
            help="MLflow experiment (default: %(default)s)",
        )

    def add_metrics(self) -> None:
        """Add ``--metric NAME``, which `xclrun.core.task.select_metrics` takes."""
        self.add_argument(
            "--metric",
            dest="metrics",
            action="append",
            default=[],
            metavar="NAME",
            help="also show this metric: label_bits (mean −log2 p of the correct class)",
        )

    def add_watch(self, action: str, seconds: float) -> None:
        """Add ``--watch [SECONDS]``, which `repeated` takes."""
        self.add_argument(
            "--watch",
            nargs="?",
            type=float,
            const=seconds,
            metavar="SECONDS",
            help=f"{action} every SECONDS (default: {seconds:g}) while runs are running or waiting",
        )

    def parse_with_overrides(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse options mixed with the arguments of `add_overrides`."""
        options, unknown = self.parse_known_intermixed_args(list(arguments))
        if unknown:
            self.error(f"unknown option '{unknown[0]}'")
        if options.config_dir is not None:
            from xclrun.compose.overrides import load_config_dir

            options.overrides.insert(0, load_config_dir(options.config_dir, options.overrides))
        if outputs := getattr(options, "outputs", None):
            options.overrides.append(f"paths.outputs={outputs}")
        return options


def _experiment(text: str) -> str:
    """Return the name of an experiment, which MLflow refuses if it is empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def outputs_parser(name: str, description: str) -> Parser:
    """Return the parser of a subcommand that reads an outputs folder."""
    parser = Parser(prog=f"xclrun {name}", description=description)
    parser.add_argument(
        "--outputs",
        type=Path,
        default=Path(default_outputs()),
        metavar="DIR",
        help="directory with runs and reports (default: XCLRUN_OUTPUTS, else outputs)",
    )
    return parser


def repeated(step: Callable[[], bool], seconds: float | None) -> None:
    """Run a step once, or with ``--watch`` until it returns False or nobody reads the output."""
    from xclrun.launch.status import wait_until_calm

    if seconds is None:
        step()
    else:
        wait_until_calm(lambda: step() and not reader_left(), seconds)


class Unreadable:
    """Prints a note about unreadable files, each only once; the command continues and exits with code 1."""

    def __init__(self) -> None:
        self.named: set[str] = set()

    def __call__(self, text: str) -> None:
        if text not in self.named:
            self.named.add(text)
            note(text)

    @property
    def code(self) -> int:
        """The exit code of a command that otherwise succeeded."""
        return int(bool(self.named))


def existing(outputs: Path) -> Path:
    """Return the outputs folder; raise a `UsageError` if it does not exist."""
    if not outputs.is_dir():
        raise UsageError(
            f"--outputs {outputs}: folder not found; start a run first, or pass the folder of earlier runs"
        )
    return outputs


def check_known(kind: str, name: str, available: Iterable[str], where: str) -> None:
    """Raise a `UsageError` with the nearest known name if ``name`` is unknown."""
    names = list(available)
    if name not in names:
        hint = did_you_mean(name, names) if names else "none is available"
        raise UsageError(f"unknown {kind} '{name}' in {where}; {hint}")


def chosen_run(outputs: Path, text: str) -> RunDirectory:
    """Return the run with this ID, unique part of an ID, or path.

    Raises:
        UsageError: no run or several runs match.
        RunError: its config is missing, another version of xclrun made it, or the folder holds another run.
    """
    if (path := Path(text).expanduser()).is_dir() and _is_run(path):
        run = RunDirectory(path.resolve())
    else:
        runs = existing(outputs) / "runs"
        # Shell completion appends a slash to a folder.
        names = (folder.name for folder in runs.glob("*") if _is_run(folder))
        run = RunDirectory(runs / matching(text.rstrip("/"), names, where=f"in {outputs}"))
    if not run.config.is_file():
        raise RunError(f"{run.run_id} is damaged: {run.config} is missing; re-run the command that created the run")
    try:
        run.damaged()
    except UnreadableRun as error:
        raise RunError(str(error)) from error
    return run


def finished_runs(outputs: Path, names: Iterable[str]) -> list[Run]:
    """Return the runs with these names (see `chosen_run`); raise a `UsageError` if a run is not finished."""
    from xclrun.plan import thaw

    directories = [chosen_run(outputs, name) for name in names]
    if unfinished := next((directory for directory in directories if not directory.finished), None):
        raise UsageError(f"{unfinished.run_id} is not finished; resume it with `xclrun rerun`")
    return [thaw(directory, directory.path.parents[1]) for directory in directories]


def _is_run(folder: Path) -> bool:
    """Whether a folder holds a run that is planned, started or finished."""
    return any((folder / name).is_file() for name in ("config.yaml", "manifest.json", "DONE"))


def check_sweep(outputs: Path, name: str, available: Collection[str]) -> None:
    """Raise an error if the sweep is unknown or its file is unreadable."""
    if name not in available and (outputs / "sweeps" / f"{name}.json").is_file():
        raise RunError(f"the file of sweep '{name}' is unreadable; re-run the command that started the sweep")
    check_known("sweep", name, available, str(outputs))


def chosen_sweeps(outputs: Path, name: str | None, warn: Unreadable) -> list[dict[str, Any]]:
    """Return the sweep with this name, or all sweeps (``all``), or the most recent sweep (None)."""
    from xclrun.store.sweeps import sweeps

    by_name = {sweep["name"]: sweep for sweep in sweeps(outputs, warn)}
    if not by_name and warn.named:
        raise RunError("no sweep is readable; re-run the command of a sweep to restore its file")
    if not by_name:
        raise UsageError(
            f"--outputs {outputs}: contains no sweeps; start one (xclrun strategy=naive,er -m) or pass another folder "
            "(--outputs DIR)"
        )
    if name == "all":
        return list(by_name.values())
    if name is not None:
        check_sweep(outputs, name, by_name)
    return [by_name[name or list(by_name)[-1]]]
