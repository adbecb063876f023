"""Command line: a subcommand, or a run with Hydra overrides.

Heavy modules are imported inside functions, so ``--help`` is fast.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from xclrun.core import output
from xclrun.core.errors import RunError, UsageError, XclrunError, did_you_mean, redact
from xclrun.core.plugins import load_files, load_installed, one_line, raised_in
from xclrun.core.ranks import launched
from xclrun.core.surroundings import check_surroundings
from xclrun.core.terminal import line, printable, set_quiet, shortened

if TYPE_CHECKING:
    from xclrun.plan import Run

QUIET = ("-q", "--quiet")
# Error numbers of paths that cannot be: too long, or through a file or a circle of links.
PATHS = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP)
# Options of `xclrun KEY=VALUE …`, for shell completion.
OPTIONS = ("--cfg", "--config-dir", "--help", "--info", "--multirun", "--package", "--plugin", "--quiet", "--resolve")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code: 0 for success, 1 for a failure, 2 for wrong usage."""
    if argv is None:
        output.protect()
    code = _main(argv)
    if (problem := output.lost()) is not None:
        print(f"xclrun: cannot write to the standard output ({problem.strerror})", file=sys.stderr)
        return code or 1
    return code


def _main(argv: Sequence[str] | None) -> int:
    typed = list(sys.argv[1:] if argv is None else argv)
    arguments = [argument for argument in typed if argument not in QUIET]
    set_quiet(arguments != typed)
    if argv is None:
        sys.argv[1:] = arguments
    try:
        check_surroundings()
        _check_arguments(arguments)
        return _dispatch(arguments)
    except SystemExit as end:
        if raised_in(end):
            return _report(RunError(f"{one_line(end)}: a plug-in must not end the process"))
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:
        print("\nxclrun: interrupted; re-run the same command to resume", file=sys.stderr)
        return 130
    except BaseException as error:
        return _report(error)


def _check_arguments(arguments: Sequence[str]) -> None:
    """Raise a `UsageError` for what no option or path can be, such as a carriage return of a script from Windows."""
    settings = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("XCLRUN_")]
    for text in (*arguments, *settings):
        if text.endswith("\r"):
            raise UsageError(
                f"'{text}' ends with a carriage return: the script or file that sets it has Windows line endings; "
                "convert it with `sed -i 's/\\r$//' FILE`"
            )
        if "\0" in text:
            raise UsageError(f"'{text}' contains a null character; remove it")
        # argparse would return an empty list as the value.
        if re.fullmatch(r"--?[\w-]+=--", text):
            raise UsageError(f"{text}: needs a value after =")


def answer() -> int:
    """Run the jobs of a command for `xclrun.study.run`, which starts this in another process.

    The arguments of the process are a file and those of the command. The file gets JSON: the run IDs (``runs``) and
    their directory (``outputs``), or the message of an error (``error``). The exit code is that of `main`.
    """
    output.protect()
    file, sys.argv[1:] = Path(sys.argv[1]), sys.argv[2:]
    content: dict[str, Any]
    try:
        check_surroundings()
        _check_arguments(sys.argv[1:])
        arguments = load_files(sys.argv[1:])
        load_installed()
        args = _parse(arguments)
        wrong = [text for text in args.overrides if "=" not in text and not text.startswith("~")]
        wrong += [name for name in ("help", "hydra_help", "cfg", "info", "resolve", "package") if getattr(args, name)]
        if wrong or not args.overrides:
            raise UsageError(f"{' '.join(wrong) or 'no arguments'}: needs only settings, as in strategy=naive,er")
        runs = _run(args, arguments, wait=True)
        content, code = {"outputs": str(runs[0].outputs), "runs": [run.id for run in runs]}, 0
    except BaseException as error:
        message, code = _explained(error)
        content = {"error": message}
    file.write_text(json.dumps(content), encoding="utf-8")
    return code


def _dispatch(arguments: list[str]) -> int:
    from xclrun import command as commands
    from xclrun.core.version import VERSION

    arguments = load_files(arguments)
    first = arguments[0] if arguments else "--help"
    if first in ("-h", "--help", "help"):
        print(commands.overview())
        return 0
    if first == "-V" or "--version" in arguments:
        print(f"xclrun {VERSION}")
        return 0
    load_installed()
    if first in commands.COMMANDS or first in commands.FORMER:
        name, *rest = commands.resolve(arguments)
        if name in commands.TRAIN:
            _join_ranks()
        return commands.run(name, rest)
    if first in ("-sc", "--shell-completion"):
        return _completion(arguments[1:])
    if not first.startswith(("-", "+", "~")) and "=" not in first:
        from xclrun.compose.keys import choice_named

        if first in ("train", "run", "fit", "start"):
            raise UsageError(f"there is no command '{first}'; train with xclrun KEY=VALUE …, as in xclrun strategy=er")
        if choice := choice_named(first):
            raise UsageError(f"unknown command '{first}'; did you mean '{choice}'? Values are set as key=value")
        raise UsageError(
            f"unknown command '{first}'; {did_you_mean(first, commands.COMMANDS)}; set values as key=value"
        )
    return _hydra(arguments)


def _hydra(arguments: list[str]) -> int:
    from xclrun import command as commands
    from xclrun.compose.overrides import checked, parse

    args = _parse(arguments)
    if args.help or args.hydra_help:
        print(commands.overview())
        return 0
    names = {*commands.COMMANDS, *commands.FORMER}
    if command := next((text for text in args.overrides if text in names), None):
        raise UsageError(f"'{command}' is a command and must come first: xclrun {command} …")
    if args.cfg is None and (args.resolve or args.package is not None):
        flag = "--resolve" if args.resolve else "--package"
        raise UsageError(f"{flag}: needs --cfg job (or hydra, or all), which prints the config instead of running it")
    if args.cfg is None and args.info is None:
        _run(args, arguments)
        return 0
    config_dir = _config_dir(args)
    overrides = checked(args.overrides)
    if several := next((o.input_line for o in parse(overrides) if o.is_sweep_override()), None):
        raise UsageError(f"{several}: --cfg and --info print one job; set a single value")
    flags = [f"--{flag}={value}" for flag in ("cfg", "info", "package") if (value := getattr(args, flag)) is not None]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        _hydra_main([*flags, *(["--resolve"] if args.resolve and args.cfg else []), *config_dir, *overrides])
    print(redact(printed.getvalue()), end="")
    return 0


def _config_dir(args: argparse.Namespace) -> list[str]:
    """Return the override of ``--config-dir``, if it was given, after loading the plug-ins of the folder."""
    from xclrun.compose.overrides import load_config_dir

    return [] if args.config_dir is None else [load_config_dir(Path(args.config_dir), args.overrides)]


def _run(args: argparse.Namespace, arguments: list[str], wait: bool = False) -> Sequence[Run]:
    """Launch the jobs of a command; return their runs.

    ``wait``: refuse launchers that return before the runs have ended.
    """
    from xclrun.compose.jobs import command_jobs
    from xclrun.compose.space import Space
    from xclrun.launch.sweep import launch, make_launcher

    _join_ranks()
    before = sys.argv
    # The file of the sweep records the command, which `typed_command` reads from sys.argv.
    sys.argv = ["xclrun", "--multirun", *(a for a in arguments if a not in ("-m", "--multirun"))]
    try:
        jobs, settings = command_jobs([*_config_dir(args), *args.overrides])
        launcher = make_launcher(settings)
        if wait and not launcher.waits:
            raise UsageError("hydra/launcher: returns before its runs have ended; set hydra.launcher.wait=true")
        if isinstance(jobs, Space):
            from xclrun.launch.search import search

            return search(jobs, launcher)
        return launch(jobs, launcher)
    finally:
        sys.argv = before


def _join_ranks() -> None:
    """Connect the ranks that torchrun or another launcher started, if any; only rank 0 returns."""
    if launched() > 1:
        from xclrun.train.others import join_launched

        join_launched()


def _parse(arguments: list[str]) -> argparse.Namespace:
    """Parse overrides and flags, a subset of Hydra's. Raise a `UsageError` for an unknown flag."""
    parser = argparse.ArgumentParser("xclrun", add_help=False)
    for names in (("--help", "-h"), ("--hydra-help",), ("--resolve",), ("--run", "-r"), ("--multirun", "-m")):
        parser.add_argument(*names, action="store_true")
    parser.add_argument("--package", "-p")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    topics = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=topics)
    parser.add_argument("overrides", nargs="*")

    def refuse(message: str) -> NoReturn:
        advice = "set values as key=value, see `xclrun --help`"
        if "--outputs" in message:
            advice = "--outputs is an option of commands; for a run, set paths.outputs=DIR or XCLRUN_OUTPUTS=DIR"
        raise UsageError(f"{message}; {advice}")

    parser.error = refuse  # type: ignore[method-assign]
    return parser.parse_intermixed_args(arguments)


def _hydra_main(arguments: list[str]) -> None:
    import hydra

    from xclrun.compose.jobs import register
    from xclrun.config.files import packaged

    register()
    # Let Hydra raise its errors instead of printing them, for `_report`.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    before = sys.argv
    sys.argv = ["xclrun", *arguments]
    try:
        hydra.main(config_path=str(packaged("conf").resolve()), config_name="config", version_base="1.3")(_never)()
    finally:
        sys.argv = before


def _completion(arguments: list[str]) -> int:
    """Print Hydra's setup script for completion, or the completions of the line in ``COMP_LINE``."""
    from xclrun import command as commands

    possible = [
        f"{action}={shell}" for action in ("install", "uninstall", "query") for shell in ("bash", "fish", "zsh")
    ]
    if len(arguments) != 1 or arguments[0] not in possible:
        raise UsageError(f"-sc {' '.join(arguments)}: needs one of {', '.join(possible)}")
    if not arguments[0].startswith("query="):
        _hydra_main(["--shell-completion", *arguments])
        return 0
    from xclrun.compose.completion import complete, names

    typed = (os.environ.get("COMP_LINE") or "xclrun ").split(" ")[1:]
    command = typed[0] if len(typed) > 1 else ""
    group = commands.GROUPS.get(command, {})
    if len(typed) > 2 and typed[1] in group:
        typed, group = typed[1:], {}
        command = typed[0]
    if typed and typed[-1].startswith("-"):
        options = commands.options(command) if command in commands.MODULES else OPTIONS
        words = [option for option in options if option.startswith(typed[-1])]
    elif len(typed) == 2 and group:
        words = [name for name in group if name.startswith(typed[1])]
    elif command in commands.NAME:
        words = names(commands.NAME[command], typed)
    elif command in commands.MODULES and command not in commands.TAKE_OVERRIDES:
        words = commands.options(command)
    else:
        words = complete(typed)
        if len(typed) <= 1:
            words += [name for name in commands.COMMANDS if name.startswith("".join(typed))]
    print(("\n" if arguments[0].endswith("fish") else " ").join(words))
    return 0


def _never(cfg: Any) -> None:
    raise AssertionError("jobs are launched as a sweep")


def _report(error: BaseException) -> int:
    """Print an error as one line, and return its exit code."""
    message, code = _explained(error)
    if type(error).__name__ == "Stopped":
        line(f"\nxclrun: {message}", important=True)
    else:
        print(f"xclrun: {message}", file=sys.stderr)
    return code


def _explained(error: BaseException) -> tuple[str, int]:
    """Return the message of an error, one line, and its exit code."""
    if os.environ.get("XCLRUN_DEBUG"):
        print(redact(traceback.format_exc()), end="", file=sys.stderr)
    explained = _as_usage_error(error)
    if isinstance(explained, XclrunError):
        return _one_line(str(explained)), explained.exit_code
    if type(error).__name__ == "Stopped":
        saved = "no checkpoint is saved" if getattr(error, "at_once", False) else "finished work is saved"
        return f"stopped by {error}; {saved}; re-run the same command to resume", 128 + getattr(error, "number", 0)
    place = raised_in(error)
    advice = f"in {place}; XCLRUN_DEBUG=1 shows the traceback" if place else "XCLRUN_DEBUG=1 shows the traceback"
    return f"{type(error).__name__}: {_one_line(str(error))} ({advice})", 1


def _one_line(message: str) -> str:
    """Format a message of an error, which may quote a file or a server."""
    return shortened(printable(redact(re.sub(r"\s*\n\s*", " ", message.strip("\n")))))


def _as_usage_error(error: BaseException) -> BaseException:
    """Convert an error of Hydra, OmegaConf, YAML or a path to a `UsageError` of one line."""
    if isinstance(error, XclrunError):
        return error
    if isinstance(error, OSError) and error.errno in PATHS and error.filename is not None and not raised_in(error):
        return UsageError(f"{shortened(str(error.filename), 600)}: {error.strerror}; give another path")
    # Raised by `Path.expanduser`, without the path.
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return UsageError("a path begins with `~` and the name of an unknown user; write the path without `~`")
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from xclrun.compose.explain import explain, explain_yaml

    # OmegaConf sets `full_key` on every error.
    if isinstance(error, HydraException | OmegaConfBaseException) or getattr(error, "full_key", None):
        return UsageError(explain(error))
    return UsageError(explain_yaml(error)) if isinstance(error, YAMLError) else error
