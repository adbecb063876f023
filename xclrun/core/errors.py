"""Errors for the user: one line with the problem and the remedy.

`UsageError` (exit code 2) is a mistake in a command, a config or data: an unknown name, a missing file, a malformed
line. `RunError` (exit code 1) is a failure of a run: a loss that is not finite, a full disk. The command line prints
only the message; XCLRUN_DEBUG=1 adds the traceback.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from collections.abc import Iterable

# User and password of a URL, as in http://user:password@host. The match ends at the last @ before a space or
# quote, because a password may contain / or @. file:///a@b does not match, because it has no user. The lengths are
# limited, so a long message is searched in linear time.
_USER = re.compile(
    r"(https?://|[A-Za-z][\w+.-]{0,40}://[^/\s'\":@]{0,400}:)(?!/)[^\s'\"]{0,4000}@",
    re.IGNORECASE,
)
_PARAMETER = re.compile(
    r"([?&;#][\w.-]{0,100}(?:pass|pwd|token|secret|key|sig|auth|cred)[\w.-]{0,100}=)[^&;\s'\"]+", re.IGNORECASE
)


class XclrunError(Exception):
    """Base of all errors with a message for the user."""

    exit_code = 1


class UsageError(XclrunError):
    """The command, the config or the data are wrong; nothing has been computed."""

    exit_code = 2


class RunError(XclrunError):
    """A run failed; results from before the failure remain."""


# Maximum characters of a list of names in a message. Terminals and logs cut longer messages.
ROOM = 1500


def did_you_mean(name: str, names: Iterable[str], limit: int = 40) -> str:
    """Return the end of an error message about an unknown name: a similar known name, if any, and all known names.

    >>> did_you_mean("mtpo", ["mini", "mtop"])
    "did you mean 'mtop'? Known: mini, mtop"
    """
    names = sorted(names)
    near = similar(name, names, cutoff=0.65)[:1]
    return (f"did you mean '{near[0]}'? " if near else "") + known(name, names, limit)


def similar(name: str, names: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return up to five names that are similar to ``name``, regardless of case, the most similar first."""
    by_lower = {other.lower(): other for other in names}
    return [by_lower[lower] for lower in difflib.get_close_matches(name.lower(), by_lower, n=5, cutoff=cutoff)]


def known(name: str, names: Iterable[str], limit: int = 40) -> str:
    """Return a list of at most ``limit`` known names, and as many as fit; if it is cut, the most similar come first."""
    names = sorted(names)
    if len(names) <= limit and len(", ".join(names)) <= ROOM:
        return f"Known: {', '.join(names)}"
    near = similar(name, names)
    listed = [*near, *(other for other in names if other not in near)][:limit]
    while len(", ".join(listed)) > ROOM and len(listed) > 1:
        listed.pop()
    return f"Known: {', '.join(listed)}, … ({len(names)} in all)"


def require(package: str, user: str, extra: str) -> None:
    """Raise a `UsageError` if an optional package is not installed, without importing it.

    Args:
        user: the setting or command that needs the package, for the message.
        extra: the extra of xclrun that installs the package.
    """
    # Check `sys.modules` first: `find_spec` raises ValueError for an imported module without a spec.
    if sys.modules.get(package) is None and importlib.util.find_spec(package) is None:
        raise UsageError(
            f"{user}: package '{package}' is not installed; run pip install -e '.[{extra}]' in xclrun's clone"
        )


def first_line(error: BaseException) -> str:
    """Return the first line of a message, or the name of the error's class if the message is empty.

    >>> first_line(ValueError("a\\nb")), first_line(TimeoutError())
    ('a', 'TimeoutError')
    """
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)


def redact(text: str) -> str:
    """Hide the passwords of all URLs in a text.

    >>> redact("at http://me:1234@host/x"), redact("postgresql://me@host/db")
    ('at http://***@host/x', 'postgresql://me@host/db')
    """
    return _PARAMETER.sub(r"\1***", _USER.sub(r"\1***@", text))
