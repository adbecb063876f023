"""Standard streams that raise no errors: work continues if its output cannot be written or encoded.

``xclrun … | head`` closes the pipe of a training, Ctrl-C ends ``tee`` first, the disk of a log is full, or a terminal
has no ``─``. This must not end a training or change its exit code.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import sys
import unicodedata
from typing import Any, TextIO

# Errors of a pipe without a reader and of a terminal that is gone.
GONE = (errno.EPIPE, errno.EIO)
# Name of the error handler for characters that an encoding lacks, and simpler characters.
SIMPLER = "xclrun.simpler"
SIMPLE = {
    "─": "-",
    "━": "-",
    "–": "-",
    "—": "-",
    "−": "-",
    "·": "-",
    "×": "x",
    "→": "->",
    "≥": ">=",
    "≤": "<=",
    "…": "...",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "±": "+-",
}


class Output(io.RawIOBase):
    """A file descriptor to which every write succeeds.

    Attributes:
        problem: the first error; None if everything was written.
        gone: whether nobody can read the output any longer.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.gone = descriptor, False
        self.problem: OSError | None = None

    def write(self, content: Any, /) -> int:
        while not self.gone:
            try:
                return os.write(self.descriptor, content)
            except BlockingIOError:
                # Another program made the terminal or pipe non-blocking.
                select.select((), (self.descriptor,), (), 1.0)
            except OSError as error:
                self.problem = self.problem or error
                self.gone = error.errno in GONE
                break
        return len(content)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def isatty(self) -> bool:
        return os.isatty(self.descriptor)


# The replaced streams by their descriptor.
_outputs: dict[int, Output] = {}


def protect() -> None:
    """Replace standard output and error by streams that raise no errors; open closed streams as ``/dev/null``.

    Streams that other code has replaced are unchanged.
    """
    codecs.register_error(SIMPLER, _simpler)
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # Otherwise the next file that is opened has this number, and receives the output of libraries.
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _protected(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _protected(sys.stderr, 2)


def _protected(stream: TextIO | None, descriptor: int) -> TextIO:
    """Return a replacement of a stream, which is None if it was closed when Python started."""
    output = _outputs[descriptor] = Output(descriptor)
    encoding, by_line, at_once = "utf-8", descriptor == 2, False
    if isinstance(stream, io.TextIOWrapper):
        stream.flush()
        encoding, by_line, at_once = stream.encoding, stream.line_buffering, stream.write_through
    writer = io.BufferedWriter(output)
    return io.TextIOWrapper(writer, encoding, SIMPLER, line_buffering=by_line, write_through=at_once)


def reader_left() -> bool:
    """Return whether nobody reads the standard output any longer, as after ``| head``."""
    sys.stdout.flush()
    return 1 in _outputs and _outputs[1].gone


def lost() -> OSError | None:
    """Return why results are missing in the standard output, for example a full disk; a pipe's reader may leave."""
    sys.stdout.flush()
    return _outputs[1].problem if 1 in _outputs and not _outputs[1].gone else None


def _simpler(error: UnicodeError) -> tuple[str, int]:
    """Return simpler characters for those that an encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_simple, error.object[error.start : error.end])), error.end


def _simple(character: str) -> str:
    return SIMPLE.get(character) or unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode() or "?"
