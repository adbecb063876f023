"""Terminal output: lines, notes and tables, and the formatting of durations and sizes.

Names, values and messages can come from files and servers. `printable` makes their control characters visible, so text
cannot move the cursor, hide parts of a message or change its direction.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, TextIO

# Characters that control a terminal, are invisible, or change the direction of text; tab and line feed are neither.
_CONTROL = (
    "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u00ad\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff\\ud800-\\udfff"
)
_CONTROLS = re.compile(f"[{_CONTROL}]")
# Escape codes that xclrun prints: colors, and clearing the screen in `xclrun status --watch`.
_CODE_OR_CONTROL = re.compile(rf"\x1b\[(?:[\d;]*m|H|[23]J)|[{_CONTROL}]")
# Maximum characters of a message; a server may answer with a whole page.
LONGEST = 4000

# Whether commands print only their results, notes and errors: option -q.
_quiet = False
# Number of important lines that `line` has printed.
_important = 0


def set_quiet(quiet: bool) -> None:
    """Choose whether `line` prints only important lines."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether option -q was given."""
    return _quiet


def important_lines() -> int:
    """Return how many notes and other important lines this process has printed."""
    return _important


def printable(text: str, codes: bool = False) -> str:
    r"""Replace control characters by their escapes; tabs and line feeds are unchanged.

    Args:
        codes: leave escape codes for colors unchanged.

    >>> printable("seed=1\r"), printable("\x1b[2J")
    ('seed=1\\r', '\\x1b[2J')
    """
    pattern = _CODE_OR_CONTROL if codes else _CONTROLS
    return pattern.sub(lambda found: found[0] if len(found[0]) > 1 else ascii(found[0])[1:-1], text)


def shortened(text: str, limit: int = LONGEST) -> str:
    """Remove the middle of a text that is too long to read."""
    return text if len(text) <= limit else f"{text[: limit - 500]} … {text[-400:]}"


def brief(text: str, limit: int) -> str:
    r"""Return a text as one line of at most ``limit`` characters, without control characters.

    >>> brief("no\x1b[2J\n such file", 12)
    'no\\x1b[2J s…'
    """
    line = printable(" ".join(text.split()))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


class PrintableOutput:
    """A text stream whose output has no control characters, apart from xclrun's escape codes."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(printable(text, codes=True))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def line(text: str = "", important: bool = False, out: TextIO | None = None) -> None:
    """Print text to the standard error, or to ``out``, without delay; wrap a single line to fit a terminal.

    Text of several lines or with escape codes is printed unchanged.

    Args:
        important: print the text with option -q too.
    """
    global _important
    _important += important
    if _quiet and not important:
        return
    out = out or sys.stderr
    above, single = text[: len(text) - len(text.lstrip("\n"))], text.lstrip("\n")
    if "\n" not in single and "\033" not in single:
        text = above + fitted(single, out, " " * (len(single) - len(single.lstrip(" ")) + 2))
    print(printable(text, codes=True), file=out, flush=True)


def columns(out: TextIO) -> int:
    """Return the width: COLUMNS if it is set, else the width of the terminal; 80 if the output is not a terminal."""
    if out.isatty() and "COLUMNS" not in os.environ:
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(out.fileno()).columns or 80
    return shutil.get_terminal_size((80, 24)).columns


def fitted(text: str, out: TextIO, indent: str = "  ") -> str:
    """Wrap a line if the output is a terminal. Lines of a log stay whole, so they can be searched.

    Commands in backquotes are not broken, so they can be copied.

    Args:
        indent: prefix of the second and later lines.
    """
    if not out.isatty():
        return text
    whole = re.sub("`[^`]*`", lambda command: command[0].replace(" ", "\0"), text)
    width = max(columns(out), len(indent) + 20)
    lines = textwrap.wrap(whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def as_note(text: str, out: TextIO, before: str = "") -> str:
    """Format a note: a remark that does not stop the command."""
    return fitted(f"{before}note: {shortened(printable(text))}", out, f"{before}      ")


def note(text: str, before: str = "") -> None:
    """Print a note to the standard error."""
    line(as_note(text, sys.stderr, before), important=True)


@contextlib.contextmanager
def if_slow(text: str, terminal_only: bool = False, seconds: float = 3.0, important: bool = False) -> Iterator[None]:
    """Print a line if the block takes longer than ``seconds``; optionally only on a terminal.

    The line goes to the standard error of before the block, which may replace it.
    """
    timer = threading.Timer(seconds, line, [text, important, sys.stderr])
    timer.daemon = True
    if not terminal_only or sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def duration(seconds: float) -> str:
    """Format a duration: ``4.2 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def about(seconds: float) -> str:
    """Format an estimated duration: ``40 s``, ``3 min``, ``2 h 10 min``."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def size(count: float) -> str:
    """Format a number of bytes: ``7.0 kB``, ``0.3 MB``, ``12.00 GB``."""
    if count < 5e4:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"


def many(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: ``1 run``, ``2 runs``, ``2 strategies``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def room() -> int:
    """Return the maximum width of a table: that of the terminal, or 80 columns."""
    return columns(sys.stdout) if sys.stdout.isatty() else 80


def table(header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1, wrapped: bool = False) -> str:
    """Format a table for the width of the terminal, or 80 columns, without escape codes.

    Args:
        header: a word per column.
        rows: cells of each row; a cell may have several lines.
        text_columns: number of columns that are aligned on the left; the others are aligned on the right.
        wrapped: whether the last column is text that wraps. Other cells are never cut: people copy IDs from tables.
    """
    from rich.cells import cell_len

    cells = [[cell.split("\n") for cell in row] for row in (header, *rows)]
    widths = [max(cell_len(text) for row in cells for text in row[i]) for i in range(len(header))]
    gaps, available = len(header) - 1, room() - sum(widths[:-1])
    last = max(cell_len(word) for row in cells for text in row[-1] for word in text.split() or [""])
    gap = 3 if (last if wrapped else widths[-1]) + 3 * gaps <= available else 2
    if wrapped:
        widths[-1] = min(widths[-1], max(last, available - gap * gaps))
        for row in cells:
            row[-1] = [part for text in row[-1] for part in _wrapped(text, widths[-1])]
    lines = []
    for row in cells:
        for texts in zip_longest(*row, fillvalue=""):
            parts = []
            for i, (text, width) in enumerate(zip(texts, widths, strict=True)):
                blank = " " * (width - cell_len(text))
                parts.append(text + blank if i < text_columns or (wrapped and i == gaps) else blank + text)
            lines.append((" " * gap).join(parts).rstrip())
        if row is cells[0]:
            lines.append("─" * (sum(widths) + gap * gaps))
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
