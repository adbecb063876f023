"""How commands print: lines without delay, notes that wrap, durations and sizes in words, tables of 80 columns."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from typing import TextIO

# Whether only what a command was asked for, notes and errors are printed: option -q.
_quiet = False


def set_quiet(quiet: bool) -> None:
    """Choose whether `line` prints what is not important."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether option -q was given."""
    return _quiet


def line(text: str = "", important: bool = False) -> None:
    """Print one line for a person, at once, on the standard error; on a terminal it wraps, below its beginning.

    Several lines are printed as they are, and so is what has escape codes: they are laid out for the terminal already.

    Args:
        important: print it with option -q too.
    """
    if _quiet and not important:
        return
    above, single = text[: len(text) - len(text.lstrip("\n"))], text.lstrip("\n")
    if "\n" not in single and "\033" not in single:
        text = above + fitted(single, sys.stderr, " " * (len(single) - len(single.lstrip(" ")) + 2))
    print(text, file=sys.stderr, flush=True)


def columns(out: TextIO) -> int:
    """Return the columns of the terminal that this goes to, or COLUMNS; 80 in a log."""
    if out.isatty() and "COLUMNS" not in os.environ:
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(out.fileno()).columns or 80
    return shutil.get_terminal_size((80, 24)).columns


def fitted(text: str, out: TextIO, indent: str = "  ") -> str:
    """Return a line as it is printed there: on a terminal it wraps; in a log, if it is searched for, it does not.

    Commands in backquotes stay whole, to be copied.

    Args:
        indent: what the lines after the first begin with.
    """
    if not out.isatty():
        return text
    whole = re.sub("`[^`]*`", lambda command: command[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        whole,
        max(columns(out), len(indent) + 20),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")


def as_note(text: str, out: TextIO, before: str = "") -> str:
    """Return a note as it is printed there: what is said of something that does not stop the command."""
    return fitted(f"{before}note: {text}", out, f"{before}      ")


def note(text: str, before: str = "") -> None:
    """Print a note, on the standard error."""
    line(as_note(text, sys.stderr, before), important=True)


@contextlib.contextmanager
def if_slow(text: str, terminal_only: bool = False, seconds: float = 3.0) -> Iterator[None]:
    """Print a line if the block takes longer than some seconds."""
    timer = threading.Timer(seconds, line, [text])
    timer.daemon = True
    if not terminal_only or sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def duration(seconds: float) -> str:
    """Return a duration in words: ``4.2 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def about(seconds: float) -> str:
    """Return an estimated duration in words: ``40 s``, ``3 min``, ``2 h 10 min``."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def size(count: float) -> str:
    """Return a number of bytes in words: ``7 kB``, ``0.3 MB``, ``12.00 GB``."""
    if count < 5e4:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"


def many(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: ``1 run``, ``2 runs``, ``2 strategies``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def room() -> int:
    """Return how wide a table may be: as the terminal, or 80 columns."""
    return columns(sys.stdout) if sys.stdout.isatty() else 80


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, wrapped: bool = False) -> str:
    """Return a table as text: no escape codes, and no wider than the terminal, or than 80 columns.

    Its columns are closer together where it would be wider.

    Args:
        header: a word per column.
        rows: cells of each row; one may have several lines.
        left: so many columns are aligned on the left, the others on the right.
        wrapped: the last column is text, and wraps; other cells are never cut, for ids are copied from tables.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for i, name in enumerate(header):
        text = wrapped and i == len(header) - 1
        # Without a least width rich cuts other cells where one of several words does not fit.
        least = None if text else max(cell_len(line) for row in (header, *rows) for line in row[i].split("\n"))
        grid.add_column(
            Text(name),
            justify="left" if i < left or text else "right",
            no_wrap=not text,
            overflow="fold",
            min_width=least,
        )
    for row in rows:
        grid.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), width=10_000, color_system=None, legacy_windows=False)

    def least_width() -> int:
        return Measurement.get(console, console.options, grid).minimum

    if least_width() > room():
        grid.padding = (0, 1, 0, 0)
    console.width = max(room(), least_width())
    with console.capture() as printed:
        console.print(grid)
    return "\n".join(text.rstrip() for text in printed.get().splitlines())
