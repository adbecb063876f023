"""What the readers share: which file holds which split, which languages are wanted, and rows that cannot be read.

A layout is a list of file names with ``{language}`` and ``{split}`` in them, and ``{any}`` for any text, or
``{folder}`` for a folder's name, beside which keys may have dots and underscores; what a folder holds is found by
matching them, and the first name that fits counts. Every error is one line that names the file (as the user gave
its folder), the line, and what is possible.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import unicodedata
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from string import Formatter
from typing import Any, BinaryIO, Generic, TypeVar

from xclrun.config.schema import DatasetConfig, OnBadLine
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.languages import key_of
from xclrun.core.task import TOKEN_TAGS, Task, task_of
from xclrun.data.example import SPLITS, Example

# The names under which public datasets publish a split.
SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "eval", "validation"), "test": ("test",)}

Splits = dict[tuple[str, str], tuple[Example, ...]]
Notes = dict[str, dict[str, int]]
Row = TypeVar("Row")


# Characters of a word. There must be room, since a text without spaces, such as a Chinese news story, is one word. The
# time to learn word pieces grows with the square of a word's length: a third of a second at this one, hours at a
# million.
LONGEST_WORD = 20_000
# Characters of an id, a label or a tag, which are names.
LONGEST_NAME = 1_000

# Characters of a text that is noted as long: perhaps a file whose line ends are lost.
LONG_TEXT = 100_000
# Control characters (Unicode's category Cc).
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

# Why a split may have no examples though its rows can be read: what is counted of rows that are left out → a reason.
TOLD_OF_NONE = {"unanswerable": "no question has an answer in its text, and dataset.unanswerable=keep keeps such"}

_BIO = re.compile(r"O|[BI]-\S+")


# A gzip file that unpacks to more bytes than both is refused; text shrinks to a third or a tenth.
UNPACKED, RATIO = 100 << 20, 100


class BadRow(ValueError):
    """A row of a file, or of a hub dataset, cannot be read; the message says why, `collect` says where."""


@dataclass
class Place:
    """Where a row stands, and what its parser tells of it beside the example.

    Attributes:
        language, split: whose row it is.
        number: that of the row, or of its first line, from 1.
        task: what is predicted.
        below: the line being parsed of a row of several lines, from 0: errors name it.
        id: the row's own id, as soon as its parser knows it: errors name it where rows are no lines.
        odd: what is counted in `Dataset.notes` unless the row is bad: name → how often.
    """

    language: str
    split: str
    number: int
    task: Task
    below: int = 0
    id: str = ""
    odd: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """Id of an example that has none of its own."""
        return f"{self.split}-{self.number}"


@dataclass(frozen=True)
class SplitFile:
    """The file that holds one split of one language; ``shown`` is its path as the user would write it."""

    language: str
    split: str
    path: Path
    shown: str


@dataclass(frozen=True)
class Source(Generic[Row]):
    """The rows of one split of one language, and the name that errors give them.

    Attributes:
        unit: what a row is called where it is no line of a file; empty: it is a line.
    """

    language: str
    split: str
    shown: str
    rows: Iterable[Row]
    unit: str = ""

    def where(self, number: int, name: str) -> str:
        """Return how errors name a row: by its line; where it is none by its id, or its number in the file."""
        if not self.unit:
            return f"{self.shown}:{number}"
        return f"{self.shown}: {self.unit} {repr(shortened(name)) if name else number}"


def find_files(
    cfg: DatasetConfig,
    layout: Sequence[str],
    split_names: Mapping[str, tuple[str, ...]] = SPLIT_NAMES,
    languages: Mapping[str, str] | None = None,
    may_lack: Collection[str] = (),
) -> list[SplitFile]:
    """Return the file of every wanted language and split under ``dataset.root``: languages in order, then splits.

    Args:
        layout: file names.
        split_names: split → what stands for it in file names.
        languages: what stands for a language in file names → its key; others are keys themselves.
        may_lack: splits that a language need not have.

    Raises:
        UsageError: the root is missing or holds nothing of this layout; a language or split is lacking or there twice.
    """
    root, shown = root_of(cfg, layout, split_names)
    found: dict[tuple[str, str], list[str]] = {}
    patterns = [_pattern(name, split_names) for name in layout]
    for name in _names(root, shown):
        # The first pattern that fits counts.
        match = next(filter(None, (pattern.fullmatch(name) for pattern in patterns)), None)
        if match is not None:
            split = next(s for s, names in split_names.items() if match["split"] in names)
            language = (languages or {}).get(match["language"], match["language"])
            found.setdefault((language, split), []).append(name)
    known = {language for language, _ in found}
    if not known:
        raise UsageError(
            f"dataset.root={shown}: no data found; looked for {_looked_for('<language>', 'train', layout, split_names)}"
        )
    files = []
    for language in choose_languages(cfg.languages, known, shown):
        for split in SPLITS:
            names = found.get((language, split), [])
            if not names and split in may_lack:
                continue
            if not names:
                looked_for = _looked_for(language, split, layout, split_names)
                raise UsageError(f"dataset.root={shown}: '{language}' has no {split} split; looked for {looked_for}")
            if len(names) > 1:
                twice = " and ".join(sorted(names))
                raise UsageError(f"dataset.root={shown}: '{language}' has its {split} split twice: {twice}; keep one")
            file = SplitFile(language, split, root / names[0], os.path.join(shown, names[0]))
            check_regular(file.path, file.shown)
            files.append(file)
    return files


def choose_languages(asked: Sequence[str] | None, known: Collection[str], where: str) -> tuple[str, ...]:
    """Return the languages asked for, in that order, by any of their codes; all known ones, sorted, where none are.

    Raises:
        UsageError: a language is not known, or asked for twice, or the list is empty.
    """
    if asked is None:
        return tuple(sorted(known))
    if not asked:
        raise UsageError(f"dataset.languages is empty; leave it out for all of {', '.join(sorted(known))}")
    asked = [key_of(str(language), known, "dataset.languages") for language in asked]
    for i, language in enumerate(asked):
        if language not in known:
            raise UsageError(f"dataset.languages: no '{language}' in {where}; {did_you_mean(str(language), known)}")
        if language in asked[:i]:
            raise UsageError(f"dataset.languages: '{language}' is there twice: {', '.join(asked)}")
    return tuple(asked)


def read_files(
    cfg: DatasetConfig,
    layout: Sequence[str],
    parse: Callable[[Any, Place], Example | None],
    rows: Callable[[SplitFile], Iterable[Any]],
    split_names: Mapping[str, tuple[str, ...]] = SPLIT_NAMES,
    languages: Mapping[str, str] | None = None,
    may_lack: Collection[str] = (),
) -> tuple[Splits, Notes]:
    """Read every wanted language under ``dataset.root``: see `find_files` and `collect`; lacking splits are empty."""
    files = find_files(cfg, layout, split_names, languages, may_lack)
    splits, notes = collect(cfg, (Source(f.language, f.split, f.shown, rows(f)) for f in files), parse)
    found = dict.fromkeys(file.language for file in files)
    return {(language, split): splits.get((language, split), ()) for language in found for split in SPLITS}, notes


def collect(
    cfg: DatasetConfig, sources: Iterable[Source[Any]], parse: Callable[[Any, Place], Example | None]
) -> tuple[Splits, Notes]:
    """Parse every row of every source.

    Args:
        cfg: the task, and what is done about bad rows: ``on_bad_line=skip`` leaves them out and counts them in
            ``notes["skipped"]``.
        sources: one per language and split; bytes in their rows become text.
        parse: (row, its place) → example, None for a header or a row that is left out, or `BadRow`.

    Raises:
        UsageError: a bad row (``path:line: reason``, or as `Source.where` says) with ``on_bad_line=error``; a split
            without examples.
    """
    task, skip = task_of(cfg.task, cfg.tags_are.value), OnBadLine(cfg.on_bad_line) is OnBadLine.skip
    splits: Splits = {}
    skipped: dict[str, int] = {}
    odd: Notes = {}
    for source in sources:
        examples: list[Example] = []
        first_seen: dict[str, int] = {}
        first_bad = ""
        key = f"{source.language}/{source.split}"
        for number, row in enumerate(source.rows, 1):
            # Blank lines are no examples, and no mistakes; they keep their line numbers.
            if not row:
                continue
            place = Place(source.language, source.split, number, task)
            try:
                example = parse(_decoded(row, place), place)
                if example is None:
                    _count(place, key, odd)
                    continue
                check_text(example)
                if task.classes and example.label not in task.classes:
                    raise BadRow(f"label {example.label!r} is none of {', '.join(task.classes)}")
                if example.id in first_seen:
                    place.below = 0
                    first = f"{source.unit or 'line'} {first_seen[example.id]}"
                    raise BadRow(f"id '{example.id}' is taken by {first}")
            except BadRow as bad:
                message = f"{source.where(number + place.below, place.id)}: {bad}"
                if not skip:
                    raise UsageError(message) from None
                skipped[key] = skipped.get(key, 0) + 1
                first_bad = first_bad or f"; every {source.unit or 'line'} was skipped, the first because {message}"
                continue
            place.odd.update(oddities(example))
            first_seen[example.id] = number
            examples.append(example)
            _count(place, key, odd)
        if not examples:
            left_out = "".join(
                f"; {TOLD_OF_NONE[what]}" for what, counts in odd.items() if key in counts if what in TOLD_OF_NONE
            )
            raise UsageError(f"{source.shown}: no examples{left_out}{first_bad}")
        splits[source.language, source.split] = tuple(examples)
    return splits, ({"skipped": skipped} if skipped else {}) | odd


def _count(place: Place, key: str, odd: Notes) -> None:
    for what, count in place.odd.items():
        counts = odd.setdefault(what, {})
        counts[key] = counts.get(key, 0) + count


def _decoded(row: Any, place: Place) -> Any:
    """Return a row with text for bytes: a line, or several."""
    if isinstance(row, bytes):
        # Of a file of an old Macintosh this would be one sentence: the last word's tag, or all texts in one.
        if b"\r" in row:
            raise BadRow("a carriage return without a line feed after it: lines end with \\n or \\r\\n")
        return parse_utf8(row)
    if not isinstance(row, list | tuple):
        return row
    found = []
    for place.below, part in enumerate(row):
        found.append(_decoded(part, place))
    place.below = 0
    return found


def blocks(file: SplitFile) -> Iterator[list[bytes]]:
    """Yield the blocks of lines between blank lines, each in the place of its first line; in the others' nothing.

    So a block's number among what is yielded is that of its first line.

    Raises:
        UsageError: the file cannot be read.
    """
    block: list[bytes] = []
    for line in [*lines(file), b""]:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            yield from [[]] * len(block)
            block = []
        else:
            yield []


def lines(file: SplitFile) -> Iterator[bytes]:
    """Yield the lines of a file without their ends; bytes, so that one bad character spoils one line only.

    Raises:
        UsageError: the file cannot be read.
    """
    content = read_regular(file.path, file.shown)
    # Only \n ends a line: str.splitlines would also split at the line separators that a token may hold.
    for line in content.removeprefix(BOM_UTF8).split(b"\n"):
        yield line.rstrip(b"\r")


def check_regular(path: Path, shown: str) -> None:
    """Check that a path is a file: reading a pipe or a device may wait, or go on, for ever.

    Raises:
        UsageError: it is none, or is not there; ``shown`` names it.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read ({error.strerror})") from None
    if stat.S_ISDIR(mode):
        raise UsageError(f"{shown}: cannot be read (Is a directory)")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{shown}: is a pipe, a socket or a device, and no file")


def read_regular(path: Path, shown: str) -> bytes:
    """Return the content of a file.

    Raises:
        UsageError: it cannot be read, or is no file; ``shown`` names it.
    """
    check_regular(path, shown)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read ({error.strerror})") from None


def unpack(path: Path, to: BinaryIO, shown: str) -> None:
    """Write the content of a gzip file, block by block.

    Raises:
        OSError, EOFError, zlib.error: it cannot be read, or is no gzip file.
        UsageError: it is a gzip bomb: a small file that unpacks to more than `UNPACKED` bytes.
    """
    most, size = max(UNPACKED, RATIO * path.stat().st_size), 0
    with gzip.open(path) as packed:
        while block := packed.read(1 << 20):
            if (size := size + len(block)) > most:
                raise UsageError(f"{shown}: unpacks to more than {most >> 20} MB; if the content is right, unpack it")
            to.write(block)


def check_tags(tags: Sequence[str], tokens: Sequence[str], task: Task) -> None:
    """Raise `BadRow` where tags are not one for each token, or are not BIO though they are spans, or are blank."""
    if len(tags) != len(tokens):
        raise BadRow(f"{len(tags)} tags for {len(tokens)} tokens")
    if task.tag_spans and (bad := next((tag for tag in tags if not _BIO.fullmatch(tag)), None)) is not None:
        hint = "; for tags that are not spans set dataset.tags_are=words" if task == TOKEN_TAGS else ""
        raise BadRow(f"tag {bad!r} is not O, B-name or I-name{hint}")
    if not all(tag.strip() for tag in tags):
        raise BadRow("a tag is blank")


def parse_json(text: str, what: str) -> Any:
    """Return what a JSON text says, or raise `BadRow`; ``what`` names it in the message."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except BadRow as bad:
        raise BadRow(f"{what}: {bad}") from None
    except json.JSONDecodeError as error:
        raise BadRow(f"{what} is not JSON ({error.msg} at character {error.pos + 1})") from None
    except (ValueError, RecursionError):
        raise BadRow(
            f"{what} is not JSON that can be read (nested too deeply, or a number of thousands of digits)"
        ) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise BadRow(f"the key '{next(key for key in keys if keys.count(key) > 1)}' is there twice")
    return found


def parse_utf8(line: bytes) -> str:
    """Return the text of a line, or raise `BadRow`."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadRow(f"not UTF-8 (byte {error.start + 1} of the line)") from None


def json_file(path: Path, shown: str, layout: str = "") -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Args:
        layout: what it should be, where it is something else: the end of the error line.

    Raises:
        UsageError: it cannot be read, or holds something else; ``shown`` names it.
    """
    content = read_regular(path, shown).removeprefix(BOM_UTF8)
    try:
        found = parse_json(content.decode(), "the file")
    except BadRow as bad:
        raise UsageError(f"{shown}: {bad}{layout}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown}: not UTF-8 (byte {error.start + 1})") from None
    if not isinstance(found, dict):
        raise UsageError(f"{shown}: must be an object, not {type(found).__name__}{layout}")
    return found


def strings_of(row: dict[str, Any], key: str) -> tuple[str, ...] | None:
    """Return the strings under a key of a row, or None where there are none; anything else is a `BadRow`."""
    value = row.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadRow(f"'{key}' must be a list of strings")
    return tuple(value)


def shortened(text: str) -> str:
    """Return a text as error lines show it: cut where it is long."""
    return text if len(text) <= 60 else f"{text[:59]}…"


def check_word(word: str) -> None:
    """Raise `BadRow` where a word is too long."""
    if len(word) > LONGEST_WORD:
        raise BadRow(f"a word of {len(word):,} characters; {LONGEST_WORD:,} are allowed")


def check_text(example: Example) -> None:
    """Refuse a text in place of words, too long words and names, blank names, and halves of surrogate pairs.

    JSON can write those halves: they can be neither hashed, written nor tokenised.

    Raises:
        BadRow: says which.
    """
    if isinstance(example.tokens, str):
        raise BadRow("the words of an example are a tuple of words, not one text; text.split() makes them")
    for text in (*example.tokens, example.text, example.text_b):
        if text is not None and len(text) > LONGEST_WORD:
            for word in text.split():
                check_word(word)
    for what, name in (("id", example.id), ("label", example.label), *(("tag", tag) for tag in example.tags or ())):
        if name is not None and not name.strip():
            raise BadRow(f"the {what} is blank")
        if name is not None and len(name) > LONGEST_NAME:
            raise BadRow(f"{what} of {len(name):,} characters; {LONGEST_NAME:,} are allowed")
    texts = (
        example.id,
        example.label or "",
        example.text or "",
        example.text_b or "",
        *example.tokens,
        *(example.tags or ()),
        *(text for fact in (example.facts or {}).items() for text in fact),
        *(answer.text for answer in example.answers or ()),
    )
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise BadRow("half of a surrogate pair (\\ud800 to \\udfff) is no character") from None


def oddities(example: Example) -> Iterator[str]:
    """Yield the names of notes (`xclrun.data.notes.TOLD`) on what may be wrong with an example that can be read."""
    if any(_is_odd_name(name) for name in (example.label, *(example.tags or ())) if name is not None):
        yield "odd_labels"
    texts = (*example.tokens, example.text or "", example.text_b or "")
    if _CONTROL.search("".join(texts[:-2])):
        yield "control_characters"
    if len(example.whole) > LONG_TEXT or len(texts[-1]) > LONG_TEXT:
        yield "long_texts"


@lru_cache(maxsize=10_000)
def _is_odd_name(name: str) -> bool:
    return name != name.strip() or any(unicodedata.category(c) in ("Cc", "Cf") for c in name)


def root_of(
    cfg: DatasetConfig, layout: Sequence[str], split_names: Mapping[str, tuple[str, ...]] = SPLIT_NAMES
) -> tuple[Path, str]:
    """Return the folder of the data, and its name as given.

    Raises:
        UsageError: it is not given, or is no folder.
    """
    if cfg.root is None:
        holds = _looked_for("<language>", "train", layout, split_names)
        raise UsageError(f"dataset.root is needed: the folder that holds {holds} and so on")
    root = Path(cfg.root).expanduser()
    if not root.is_dir():
        reason = "is not a folder" if root.exists() else "no such folder"
        raise UsageError(f"dataset.root={cfg.root}: {reason} ({root.absolute()})")
    return root, str(cfg.root)


def _names(root: Path, shown: str) -> list[str]:
    """Return the names, relative to ``root``, of what is in it and in its folders, sorted."""
    try:
        inside = [entry.name for entry in root.iterdir()]
    except OSError as error:
        raise UsageError(f"dataset.root={shown}: cannot be read ({error.strerror})") from None
    if not inside:
        raise UsageError(f"dataset.root={shown}: the folder is empty")
    return sorted([*inside, *(entry.relative_to(root).as_posix() for entry in root.glob("*/*"))])


def first_file(root: Path, names: Iterable[str]) -> str | None:
    """Return the first of some names under which there is a file in a folder; None where there is none."""
    return next((name for name in names if (root / name).is_file()), None)


# What file names of a layout may have in braces.
PLACES = frozenset(("language", "split", "any", "folder"))


def check_layout(layout: Sequence[str]) -> None:
    """Refuse a layout that is no list of file names, or has something in braces that stands for nothing.

    Raises:
        UsageError: says which name.
    """
    if isinstance(layout, str):
        raise UsageError(f"the layout is a list of file names: [{layout!r}]")
    for name in layout:
        try:
            unknown = {place for _, place, _, _ in Formatter().parse(name) if place is not None} - PLACES
        except ValueError as error:
            raise UsageError(f"layout {name!r}: {error}") from None
        if unknown:
            known = ", ".join(f"{{{place}}}" for place in sorted(PLACES))
            raise UsageError(f"layout {name!r}: {{{min(unknown)}}} stands for nothing; known: {known}")


def _pattern(name: str, split_names: Mapping[str, tuple[str, ...]]) -> re.Pattern[str]:
    """Return the expression that matches a layout's file name, with groups ``language`` and ``split``."""
    splits = "|".join(alias for names in split_names.values() for alias in names)
    # What stands for any text ends a language's key.
    key = r"(?P<language>[^/._]+)" if "{any}" in name else r"(?P<language>[^/.][^/]*)"
    groups = {"{language}": key, "{split}": f"(?P<split>{splits})", "{any}": r"[^/]+", "{folder}": r"[^/]+"}
    escaped = re.escape(name)
    for place, group in groups.items():
        escaped = escaped.replace(re.escape(place), group)
    return re.compile(escaped)


def _looked_for(language: str, split: str, layout: Sequence[str], split_names: Mapping[str, tuple[str, ...]]) -> str:
    """Return the file names that would have served, for an error line."""
    *others, last = [
        name.format(language=language, split=alias, any="*", folder="*")
        for alias in split_names[split]
        for name in layout
    ]
    return f"{', '.join(others)} or {last}" if others else last
