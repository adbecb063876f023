"""The command line: a thin entry. Overrides go to Hydra; the first word may be a subcommand.

Nothing heavy is imported before it is known what is wanted, so that help answers at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from xclrun.errors import UsageError, XclrunError, did_you_mean


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code: 0 done, 1 something failed, 2 wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:
        print("\nxclrun: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader went away, as in `xclrun report | head`; nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BaseException as error:
        return _told(error)


def _dispatch(arguments: list[str]) -> int:
    from xclrun import __version__, commands

    first = arguments[0] if arguments else "--help"
    if first in ("-h", "--help", "help"):
        print(commands.overview())
        return 0
    if first in ("-V", "--version"):
        print(f"xclrun {__version__}")
        return 0
    if first in commands.COMMANDS:
        return commands.run(first, arguments[1:])
    if not first.startswith(("-", "+", "~")) and "=" not in first:
        raise UsageError(
            f"no command is called '{first}'; {did_you_mean(first, commands.COMMANDS)}; values are set as key=value"
        )
    return _hydra(arguments)


# Flags with which Hydra shows something instead of running jobs.
SHOWING = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--shell-completion", "-sc")


def _hydra(arguments: list[str]) -> int:
    import hydra

    from xclrun.compose import lists_of_languages, register
    from xclrun.config import packaged

    register()
    # Hydra then raises its errors instead of printing them, and `_told` makes one line of them.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    showing = any(argument.split("=")[0] in SHOWING for argument in arguments)
    flags = [a for a in arguments if a.startswith("-")]
    rest = arguments if showing else lists_of_languages([a for a in arguments if not a.startswith("-")])
    if not showing:
        # Every command is a sweep, if only of one job: there is one way to launch.
        rest = [*[f for f in flags if f not in ("-m", "--multirun")], "--multirun", *rest]
    before = sys.argv
    sys.argv = ["xclrun", *rest]
    try:
        hydra.main(config_path=str(packaged("conf").resolve()), config_name="config", version_base="1.3")(_never)()
    finally:
        sys.argv = before
    return 0


def _never(cfg: Any) -> None:
    raise AssertionError("jobs are launched as a sweep")


def _told(error: BaseException) -> int:
    """Print what a person should know of an error, and return its exit code."""
    if os.environ.get("XCLRUN_DEBUG"):
        traceback.print_exc()
    shown = _as_usage_error(error)
    if isinstance(shown, XclrunError):
        print(f"xclrun: {shown}", file=sys.stderr)
        return shown.exit_code
    if type(error).__name__ == "Stopped":
        print(
            f"\nxclrun: stopped by {error}; a checkpoint is saved: the same command goes on from there", file=sys.stderr
        )
        return 128 + getattr(error, "number", 0)
    print(f"xclrun: {type(error).__name__}: {error} (XCLRUN_DEBUG=1 shows where)", file=sys.stderr)
    return 1


def _as_usage_error(error: BaseException) -> BaseException:
    """Turn what Hydra and OmegaConf raise about a command into one line."""
    if isinstance(error, XclrunError):
        return error
    try:
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException
    except ImportError:
        return error
    if isinstance(error, HydraException | OmegaConfBaseException):
        from xclrun.explain import explain

        return UsageError(explain(error))
    return error
