"""Errors for the user: one line that says what was wrong and what is possible.

`UsageError` (exit code 2) is a mistake in what was asked: an unknown name, a missing file, a malformed line.
`RunError` (exit code 1) is a failure while running: a loss that is not finite, a full disk.
The command line prints the message alone; the traceback comes with XCLRUN_DEBUG=1.
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Iterable


class XclrunError(Exception):
    """Base of all errors with a message for the user."""

    exit_code = 1


class UsageError(XclrunError):
    """The command, the config or the data given cannot work; nothing has been computed."""

    exit_code = 2


class RunError(XclrunError):
    """A run failed while it was running; what was computed before stays."""

    exit_code = 1


def did_you_mean(name: str, known: Iterable[str], limit: int = 40) -> str:
    """Return the end of an error line: the nearest known name if one is near, and the known names.

    >>> did_you_mean("mtpo", ["mini", "mtop"])
    "did you mean 'mtop'? Known: mini, mtop"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    shown = ", ".join(names[:limit]) + (f", … ({len(names)} in all)" if len(names) > limit else "")
    return (f"did you mean '{near[0]}'? " if near else "") + f"Known: {shown}"


def require(package: str, who: str, extra: str) -> None:
    """Check that a package of an extra is installed, without importing it.

    Raises:
        UsageError: it is not: names who needs it, and how it is installed.
    """
    # One that is imported may have no spec any more.
    module_or_spec = sys.modules[package] if package in sys.modules else importlib.util.find_spec(package)
    if module_or_spec is None:
        raise UsageError(f"{who}: pip install 'xclrun[{extra}]'")
