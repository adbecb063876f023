"""Passwords in addresses, as in ``http://user:password@host``: never written, shown or listed among processes.

The whole address stays in the environment, which worker processes and Slurm jobs inherit; everything else holds it with
``***`` in the password's place. MLflow's own variables are the better way: MLFLOW_TRACKING_USERNAME and _PASSWORD.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from urllib.parse import unquote

from xclrun.core.terminal import note

# Holds the address of the tracking server with its password.
ENVIRONMENT = "XCLRUN_TRACKING_URI"
HIDDEN = "***"
NOTE = (
    "tracking.uri holds a password, which is kept out of all files; better leave it out and set "
    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD: others on this machine can see what a command was given"
)

# To the last @ of a word, so that a password with / or @ in it is hidden whole; file:///a@b has no user.
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?!/)[^\s'\"]*@")
_PARAMETER = re.compile(r"([?&;#][\w.-]*(?:pass|pwd|token|secret|key|sig|auth|cred)[\w.-]*=)[^&;\s'\"]+", re.IGNORECASE)
# Options and keys that take the address of a tracking server.
_OPTION, _KEY = "--uri", "tracking.uri"


def redact(text: str) -> str:
    """Return a text with the users and passwords of its addresses hidden.

    >>> redact("at http://me:1234@host/x")
    'at http://***@host/x'
    """
    whole = os.environ.get(ENVIRONMENT, "")
    # As typed it may contain blanks and quotes, which end a word elsewhere.
    for known in (whole, _user(whole)):
        if ":" in known:
            text = text.replace(known, _hidden(known) if known == whole else HIDDEN)
    return _PARAMETER.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", text))


def _user(uri: str) -> str:
    """Return user and password of an address; empty without any."""
    _, separator, rest = uri.partition("://")
    return rest.rpartition("@")[0] if separator and not rest.startswith("/") else ""


def _hidden(uri: str) -> str:
    """Return one address with its user, password and secret parameters hidden."""
    if user := _user(uri):
        uri = uri.replace(f"://{user}@", f"://{HIDDEN}@", 1)
    return _PARAMETER.sub(rf"\1{HIDDEN}", uri)


def private() -> int:
    """Return the mode for files that hold a command: readable by the owner alone if it contained a password."""
    return 0o600 if os.environ.get(ENVIRONMENT) else 0o644


def put_away(uri: str) -> str:
    """Return an address as it may be shown; what it hides is kept in the environment, for `connect`."""
    shown = _hidden(uri)
    if shown != uri and HIDDEN not in _user(uri):
        if os.environ.get(ENVIRONMENT) != uri:
            note(NOTE)
        os.environ[ENVIRONMENT] = uri
    return shown


def put_away_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command with the passwords of tracking servers replaced."""
    result: list[str] = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key.strip().lstrip("+") in (_KEY, _OPTION):
            quote = value[:1] if len(value) > 1 and value[0] in "'\"" and value[0] == value[-1] else ""
            bare = value[len(quote) : len(value) - len(quote)]
            argument = f"{key}={quote}{put_away(bare)}{quote}"
        elif result and result[-1] == _OPTION:
            argument = put_away(argument)
        result.append(argument)
    return result


def connect(uri: str) -> str:
    """Return the address to give to MLflow, for one that `put_away` may have returned.

    Of a server over HTTP, user and password go into MLflow's own variables, so that no message of its can hold them.
    """
    whole = os.environ.get(ENVIRONMENT, "")
    if HIDDEN in uri:
        # Without the password at hand MLflow's own variables may have one.
        uri = whole if whole and _hidden(whole) == uri else uri.replace(f"{HIDDEN}@", "")
    if (user := _user(uri)) and uri.lower().startswith(("http://", "https://")):
        name, _, password = user.partition(":")
        os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"] = (
            unquote(name),
            unquote(password),
        )
        uri = uri.replace(f"{user}@", "", 1)
    return uri
