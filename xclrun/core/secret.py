"""Passwords in addresses, as in ``http://user:password@host``: refused in ``tracking.uri``, and hidden in messages."""

from __future__ import annotations

import re

# To the last @ of a word, so that a password that contains / or @ is hidden whole; file:///a@b has no user.
_USER = re.compile(r"(https?://|[A-Za-z][\w+.-]*://[^/\s'\":@]*:)(?!/)[^\s'\"]*@", re.IGNORECASE)
_PARAMETER = re.compile(r"([?&;#][\w.-]*(?:pass|pwd|token|secret|key|sig|auth|cred)[\w.-]*=)[^&;\s'\"]+", re.IGNORECASE)


def redact(text: str) -> str:
    """Hide the passwords of the addresses in a text.

    >>> redact("at http://me:1234@host/x"), redact("postgresql://me@host/db")
    ('at http://***@host/x', 'postgresql://me@host/db')
    """
    return _PARAMETER.sub(r"\1***", _USER.sub(r"\1***@", text))
