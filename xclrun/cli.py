"""The command line: a subcommand, or overrides for Hydra.

Heavy modules are imported only where needed, so that help answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from xclrun.core.errors import RunError, UsageError, XclrunError, did_you_mean
from xclrun.core.plugins import load_files, load_installed, one_line, raised_in
from xclrun.core.secret import redact
from xclrun.core.terminal import set_quiet

QUIET = ("-q", "--quiet")
# Options of a run, for shell completion.
OPTIONS = ("--cfg", "--config-dir", "--help", "--info", "--multirun", "--package", "--plugin", "--quiet", "--resolve")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code: 0 done, 1 something failed, 2 wrong usage."""
    typed = list(sys.argv[1:] if argv is None else argv)
    arguments = [argument for argument in typed if argument not in QUIET]
    set_quiet(arguments != typed)
    if argv is None:
        sys.argv[1:] = arguments
    try:
        return _dispatch(arguments)
    except SystemExit as end:
        if raised_in(end):
            return _report(RunError(f"{one_line(end)}: a plug-in must not end the process"))
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:
        print("\nxclrun: interrupted; re-run the same command to resume", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader went away, as in `xclrun report | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BaseException as error:
        return _report(error)


def _dispatch(arguments: list[str]) -> int:
    from xclrun import __version__
    from xclrun import command as commands

    arguments = load_files(arguments)
    first = arguments[0] if arguments else "--help"
    if first in ("-h", "--help", "help"):
        print(commands.overview())
        return 0
    if first == "-V" or "--version" in arguments:
        print(f"xclrun {__version__}")
        return 0
    load_installed()
    if first in commands.COMMANDS:
        return commands.run(first, arguments[1:])
    if first in ("-sc", "--shell-completion"):
        return _completion(arguments[1:])
    if not first.startswith(("-", "+", "~")) and "=" not in first:
        raise UsageError(
            f"unknown command '{first}'; {did_you_mean(first, commands.COMMANDS)}; values are set as key=value"
        )
    return _hydra(arguments)


def _hydra(arguments: list[str]) -> int:
    from xclrun import command as commands
    from xclrun.compose.overrides import checked, own_files, parse

    given = _parsed(arguments)
    if given.help or given.hydra_help:
        print(commands.overview())
        return 0
    if command := next((text for text in given.overrides if text in commands.COMMANDS), None):
        raise UsageError(f"'{command}' is a command, which comes first: xclrun {command} …")
    if given.cfg is None and (given.resolve or given.package is not None):
        flag = "--resolve" if given.resolve else "--package"
        raise UsageError(f"{flag}: needs --cfg job (or hydra, or all), which shows the config instead of running it")
    own = [] if given.config_dir is None else [own_files(Path(given.config_dir))]
    if given.cfg is None and given.info is None:
        _run([*own, *given.overrides], arguments)
        return 0
    overrides = checked(given.overrides)
    if several := next((o.input_line for o in parse(overrides) if o.is_sweep_override()), None):
        raise UsageError(f"{several}: one job is shown at a time; give one value")
    flags = [f"--{flag}={value}" for flag in ("cfg", "info", "package") if (value := getattr(given, flag)) is not None]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        _hydra_main([*flags, *(["--resolve"] if given.resolve and given.cfg else []), *own, *overrides])
    print(redact(shown.getvalue()), end="")
    return 0


def _run(overrides: list[str], arguments: list[str]) -> None:
    """Launch the jobs of a command."""
    from xclrun.compose.jobs import command_jobs, launcher
    from xclrun.compose.space import Space

    before = sys.argv
    # The command that the sweep's file records.
    sys.argv = ["xclrun", "--multirun", *(a for a in arguments if a not in ("-m", "--multirun"))]
    try:
        jobs, config = command_jobs(overrides)
        if isinstance(jobs, Space):
            from xclrun.launch.search import search

            search(jobs, launcher(config).made())
        else:
            launcher(config).launch(jobs, 0)
    finally:
        sys.argv = before


def _parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the flags and overrides of a run; the flags are some of Hydra's.

    Raises:
        UsageError: a flag is unknown.
    """
    parser = argparse.ArgumentParser("xclrun", add_help=False)
    for names in (("--help", "-h"), ("--hydra-help",), ("--resolve",), ("--run", "-r"), ("--multirun", "-m")):
        parser.add_argument(*names, action="store_true")
    parser.add_argument("--package", "-p")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    shown = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=shown)
    parser.add_argument("overrides", nargs="*")

    def refuse(message: str) -> NoReturn:
        advice = "values are set as key=value, see `xclrun --help`"
        if "--outputs" in message:
            advice = "--outputs is an option of commands; a run takes paths.outputs=DIR, or XCLRUN_OUTPUTS=DIR"
        raise UsageError(f"{message}; {advice}")

    parser.error = refuse  # type: ignore[method-assign]
    return parser.parse_intermixed_args(arguments)


def _hydra_main(arguments: list[str]) -> None:
    import hydra

    from xclrun.compose.jobs import register
    from xclrun.config.files import packaged

    register()
    # Hydra then raises its errors instead of printing them, and `_report` makes one line of them.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    before = sys.argv
    sys.argv = ["xclrun", *arguments]
    try:
        hydra.main(config_path=str(packaged("conf").resolve()), config_name="config", version_base="1.3")(_never)()
    finally:
        sys.argv = before


def _completion(arguments: list[str]) -> int:
    """Print what the shell asks for: Hydra's script that sets completion up, or the words that may come next."""
    from xclrun import command as commands

    possible = [f"{what}={shell}" for what in ("install", "uninstall", "query") for shell in ("bash", "fish", "zsh")]
    if len(arguments) != 1 or arguments[0] not in possible:
        raise UsageError(f"-sc {' '.join(arguments)}: needs one of {', '.join(possible)}")
    if not arguments[0].startswith("query="):
        _hydra_main(["--shell-completion", *arguments])
        return 0
    from xclrun.compose.completion import complete, names

    typed = (os.environ.get("COMP_LINE") or "xclrun ").split(" ")[1:]
    command = typed[0] if len(typed) > 1 else ""
    if typed and typed[-1].startswith("-"):
        known = commands.options(command) if command in commands.COMMANDS else OPTIONS
        words = [option for option in known if option.startswith(typed[-1])]
    elif command in commands.NAME:
        words = names(commands.NAME[command], typed)
    elif command in commands.COMMANDS and command not in commands.TAKE_OVERRIDES:
        words = commands.options(command)
    else:
        words = complete(typed, _keys, _expansions)
        if len(typed) <= 1:
            words += [name for name in commands.COMMANDS if name.startswith("".join(typed))]
    print(("\n" if arguments[0].endswith("fish") else " ").join(words))
    return 0


def _keys(strategy: str | None) -> Iterable[str]:
    from xclrun.compose.keys import known_keys

    return known_keys(strategy)


def _expansions() -> Iterable[str]:
    from xclrun.compose.keys import expansions_known

    return expansions_known()


def _never(cfg: Any) -> None:
    raise AssertionError("jobs are launched as a sweep")


def _report(error: BaseException) -> int:
    """Print what a person should know of an error, and return its exit code."""
    if os.environ.get("XCLRUN_DEBUG"):
        print(redact(traceback.format_exc()), end="", file=sys.stderr)
    shown = _as_usage_error(error)
    if isinstance(shown, XclrunError):
        print(f"xclrun: {_short(redact(str(shown)))}", file=sys.stderr)
        return shown.exit_code
    if type(error).__name__ == "Stopped":
        saved = "at once" if getattr(error, "at_once", False) else "a checkpoint is saved"
        print(f"\nxclrun: stopped by {error}; {saved}; re-run the same command to resume", file=sys.stderr)
        return 128 + getattr(error, "number", 0)
    what = redact(" ".join(str(error).split()))
    where = f"in {place}; XCLRUN_DEBUG=1 shows more" if (place := raised_in(error)) else "XCLRUN_DEBUG=1 shows where"
    print(f"xclrun: {type(error).__name__}: {_short(what)} ({where})", file=sys.stderr)
    return 1


def _short(message: str, most: int = 4000) -> str:
    """Return a message without the middle of what it quotes, if that is megabytes."""
    return message if len(message) <= most else f"{message[: most - 500]} … {message[-400:]}"


def _as_usage_error(error: BaseException) -> BaseException:
    """Turn an error of Hydra, OmegaConf or YAML about a command into one line."""
    if isinstance(error, XclrunError):
        return error
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from xclrun.compose.explain import explain, explain_yaml

    # OmegaConf adds the key to any error.
    if isinstance(error, HydraException | OmegaConfBaseException) or getattr(error, "full_key", None):
        return UsageError(explain(error))
    return UsageError(explain_yaml(error)) if isinstance(error, YAMLError) else error
