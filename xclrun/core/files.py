"""Read files that users or other programs can damage or replace: regular files only, and JSON of any depth.

They raise an OSError for a pipe, which would block for ever, or a device, and a ValueError for damaged content.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

# Exceptions that reading a damaged file and interpreting its content can raise.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: the file cannot be read, or is a folder, a pipe, a socket or a device.
    """
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "a pipe, a socket or a device, not a file", str(path))


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file; see `open_file`."""
    with open_file(path) as file:
        return file.read()


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Return the text of a regular file with ``\\n`` as line ends; raise a ValueError for another encoding."""
    return read_bytes(path).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; raise a ValueError if the text is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
