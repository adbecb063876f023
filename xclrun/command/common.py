"""What the subcommands share: a parser whose mistakes are one line, and the options that several take."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Container, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from xclrun.config.files import default_outputs
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError, UsageError, did_you_mean
from xclrun.core.terminal import note
from xclrun.store.rundir import RunDirectory, UnreadableRun


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one line and exit code 2."""

    def error(self, message: str) -> Any:
        raise UsageError(f"{self.prog.removeprefix('xclrun ')}: {message}; see `{self.prog} --help`")

    def add_overrides(self, example: str = "", outputs: bool = False) -> None:
        """Take ``KEY=VALUE`` arguments as xclrun does, with the user's own YAML files where they are wanted."""
        self.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=f"as given to xclrun{example}")
        self.add_config_dir()
        self.add_argument("-m", "--multirun", action="store_true", help="allowed, and changes nothing")
        if outputs:
            self.add_argument("--outputs", metavar="DIR", help="short for paths.outputs=DIR")

    def add_config_dir(self) -> None:
        """Take a folder of the user's own YAML files."""
        self.add_argument("--config-dir", type=Path, metavar="DIR", help="your own YAML files too, as for xclrun")

    def parse_with_overrides(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse options that stand among the arguments that `add_overrides` takes.

        Raises:
            UsageError: there is no such option, or no such folder of YAML files.
        """
        given, unknown = self.parse_known_intermixed_args(list(arguments))
        if unknown:
            self.error(f"no option is called '{unknown[0]}'")
        if given.config_dir is not None:
            from xclrun.compose.overrides import own_files

            given.overrides.insert(0, own_files(given.config_dir))
        if outputs := getattr(given, "outputs", None):
            given.overrides.append(f"paths.outputs={outputs}")
        return given


def parser(name: str, description: str, **options: Any) -> Parser:
    """Return the parser of a subcommand, with ``--outputs``."""
    made = Parser(prog=f"xclrun {name}", description=description, **options)
    made.add_argument(
        "--outputs",
        type=Path,
        default=Path(default_outputs()),
        metavar="DIR",
        help="what xclrun wrote (default: XCLRUN_OUTPUTS, else outputs)",
    )
    return made


def add_run(made: argparse.ArgumentParser, name: str = "RUN") -> None:
    """Add the argument that `chosen_run` takes, under its name in small letters."""
    made.add_argument(name.lower(), metavar=name, help="id of a run, a part of it that no other has, or its folder")


def add_tracking(made: argparse.ArgumentParser) -> None:
    """Add the options that say where MLflow is."""
    made.add_argument("--uri", metavar="URI", help="MLflow tracking server (default: the SQLite file in the outputs)")
    made.add_argument(
        "--experiment",
        default=TrackingConfig.experiment,
        metavar="NAME",
        help="MLflow experiment (default: %(default)s)",
    )


def add_watch(made: argparse.ArgumentParser, what: str, seconds: float) -> None:
    """Add the option to do it again and again; ``seconds`` is the default, without a number."""
    made.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=seconds,
        metavar="SECONDS",
        help=f"{what} every SECONDS (default: {seconds:g}), until nothing runs or waits any more",
    )


def repeated(step: Callable[[], bool], seconds: float | None) -> None:
    """Do a step once, or with ``--watch`` until it says that nothing goes on any more."""
    from xclrun.launch.status import wait_until_calm

    if seconds is None:
        step()
    else:
        wait_until_calm(step, seconds)


class Unreadable:
    """Names what cannot be read, once each, on the standard error; the command goes on, and ends with exit code 1."""

    def __init__(self) -> None:
        self.named: set[str] = set()

    def __call__(self, text: str) -> None:
        if text not in self.named:
            self.named.add(text)
            note(text)

    @property
    def code(self) -> int:
        """The exit code of a command that has done all else."""
        return int(bool(self.named))


def existing(outputs: Path) -> Path:
    """Return the outputs folder.

    Raises:
        UsageError: there is none.
    """
    if not outputs.is_dir():
        raise UsageError(
            f"--outputs {outputs}: there is no such folder; run something first, or name the folder that it wrote"
        )
    return outputs


def choose(what: str, name: str, known: Iterable[str], where: str) -> None:
    """Raise a UsageError with the nearest known name where ``name`` is not known."""
    names = list(known)
    if name not in names:
        raise UsageError(
            f"no {what} is called '{name}' in {where}; " + (did_you_mean(name, names) if names else "there is none")
        )


def named_run(text: str, known: Iterable[str], where: str) -> str:
    """Return the one name that is ``text``, or else begins with it, or else contains it.

    Raises:
        UsageError: none, or several.
    """
    if not text.strip():
        raise UsageError("the name of a run is empty; give its id, or a part of it that no other run has")
    if not (names := sorted(known)):
        raise UsageError(f"there is no run {where}")
    for fits in (str.__eq__, str.startswith, str.__contains__):
        if len(found := [name for name in names if fits(name, text)]) == 1:
            return found[0]
        if found:
            more = ", …" if len(found) > 4 else ""
            raise UsageError(f"{text}: {len(found)} runs are called so: {', '.join(found[:4])}{more}")
    # What is typed is most often the beginning of an id.
    near = get_close_matches(text, beginnings := {name[: len(text)]: name for name in names}, n=1)
    meant = f"did you mean '{beginnings[near[0]]}'?" if near else did_you_mean(text, names, 8)
    raise UsageError(f"no run {where} is called '{text}'; {meant}")


def chosen_run(outputs: Path, text: str) -> RunDirectory:
    """Return the run with an id, a part of an id that no other run has, or a path.

    Raises:
        UsageError: there is none, or there are several.
        RunError: it has no config, which says what it is.
    """
    if (path := Path(text).expanduser()).is_dir() and _is_run(path):
        run = RunDirectory(path.resolve())
    else:
        runs = existing(outputs) / "runs"
        # As shells complete the name of a folder, it ends in a slash.
        name = text.rstrip("/")
        run = RunDirectory(runs / named_run(name, (p.name for p in runs.glob("*") if _is_run(p)), f"in {outputs}"))
    if not run.config.is_file():
        raise RunError(
            f"{run.run_id} is damaged: {run.config} is missing; the run's command, given again, makes it again"
        )
    return run


def check_readable(directory: RunDirectory) -> None:
    """Raise a RunError where another version of xclrun made the run, or the folder holds another run."""
    try:
        directory.damaged()
    except UnreadableRun as error:
        raise RunError(str(error)) from error


def _is_run(folder: Path) -> bool:
    """Whether a run is planned, begun or done here."""
    return any((folder / name).is_file() for name in ("config.yaml", "manifest.json", "DONE"))


def check_lost(outputs: Path, name: str | None, known: Container[str]) -> None:
    """Raise a RunError where a sweep of that name was started, and what was noted of it cannot be read."""
    if name is not None and name not in known and (outputs / "sweeps" / f"{name}.json").is_file():
        raise RunError(f"what was noted of the sweep {name} cannot be read; give the command that started it again")


def chosen_sweeps(outputs: Path, name: str | None, warn: Unreadable) -> list[dict[str, Any]]:
    """Return the sweep of a name, all for ``all``, and the one that was started last for None.

    Raises:
        UsageError: there is none.
        RunError: what was noted of it cannot be read.
    """
    from xclrun.store.records import sweeps

    known = {sweep["name"]: sweep for sweep in sweeps(outputs, warn)}
    if not known and warn.named:
        raise RunError("no sweep is left to tell of; give the command that started one again")
    check_lost(outputs, name, known)
    if not known:
        raise UsageError(
            f"--outputs {outputs}: no sweep was started here; xclrun strategy=naive,er -m would start one; "
            "--outputs DIR names another folder"
        )
    if name == "all":
        return list(known.values())
    if name is not None:
        choose("sweep", name, known, str(outputs))
    return [known[name or list(known)[-1]]]
