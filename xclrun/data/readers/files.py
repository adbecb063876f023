"""What the readers share: which file holds which split, which languages are wanted, and rows that cannot be read.

A layout is a list of file names with ``{language}`` and ``{split}`` in them, and ``{any}`` for any text, or
``{folder}`` for a folder's name, next to which keys may have dots and underscores. Files are found by matching the
names; the first name that fits counts. Every error is one line that names the file (as the user gave its folder), the
line, and what is possible.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import unicodedata
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from xclrun.config.schema import DatasetConfig, OnBadLine, Unanswerable
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
# time to learn subwords grows with the square of a word's length: a third of a second at this one, hours at a million.
LONGEST_WORD = 20_000
# Characters of an id, a label or a tag, which are names.
LONGEST_NAME = 1_000
# Characters of a text that is noted as long: perhaps a file whose line ends are lost.
LONG_TEXT = 100_000
# Control characters (Unicode's category Cc).
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_BIO = re.compile(r"O|[BI]-\S+")

# A gzip file that unpacks to more bytes than both is refused; text shrinks to a third or a tenth.
UNPACKED, RATIO = 100 << 20, 100


class BadRow(ValueError):
    """A row of a file, or of a hub dataset, cannot be read; the message says why, `collect` says where."""


@dataclass
class Place:
    """Where a row stands, and what its parser reports in addition to the example.

    Attributes:
        language, split: whose row it is.
        number: that of the row, or of its first line, from 1.
        task: what is predicted.
        below: the line being parsed of a row of several lines, from 0: errors name it.
        id: the row's own id, as soon as its parser knows it: errors name it where rows are not lines.
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
        """Id of an example that has no id in the data."""
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
        unit: what a row is called if it is not a line of a file; empty: it is a line.
    """

    language: str
    split: str
    shown: str
    rows: Iterable[Row]
    unit: str = ""

    def where(self, number: int, name: str) -> str:
        """Return how errors name a row: by its line, or else by its id or its number in the file."""
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
        split_names: split → what represents it in file names.
        languages: what represents a language in file names → its key; others are keys themselves.
        may_lack: splits that a language need not have.

    Raises:
        UsageError: the root is missing or holds nothing of this layout; a language or split is lacking or there twice.
    """
    root, shown = root_of(cfg, layout, split_names)
    found: dict[tuple[str, str], list[str]] = {}
    patterns = [_pattern(name, split_names) for name in layout]
    for name in _names(root, shown):
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
            if not names and split not in may_lack:
                looked_for = _looked_for(language, split, layout, split_names)
                raise UsageError(f"dataset.root={shown}: '{language}' has no {split} split; looked for {looked_for}")
            if len(names) > 1:
                twice = " and ".join(sorted(names))
                raise UsageError(f"dataset.root={shown}: '{language}' has its {split} split twice: {twice}; keep one")
            files += [SplitFile(language, split, root / name, os.path.join(shown, name)) for name in names]
    return files


def named_files(cfg: DatasetConfig, language: str, files: Mapping[str, Sequence[str]]) -> list[SplitFile]:
    """Return the files of a dataset of one language.

    Args:
        files: split → names of its file under ``dataset.root``; the first that is there counts.
    """
    root, shown = root_of(cfg, [names[0] for names in files.values()])
    choose_languages(cfg.languages, [language], f"{cfg.reader}, whose only language is '{language}'")
    found = []
    for split, names in files.items():
        name = first_file(root, names)
        if name is None:
            raise UsageError(f"dataset.root={shown}: no {split} split; looked for {' or '.join(names)}")
        found.append(SplitFile(language, split, root / name, f"{shown}/{name}"))
    return found


def choose_languages(asked: Sequence[str] | None, known: Collection[str], where: str) -> tuple[str, ...]:
    """Return the languages asked for, in that order, by any of their codes; all known ones, sorted, for None."""
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
    files: Iterable[SplitFile],
    parse: Callable[[Any, Place], Example | None],
    rows: Callable[[SplitFile], Iterable[Any]],
    unit: str = "",
) -> tuple[Splits, Notes]:
    """Read the rows of files, one file after the other: see `collect`."""
    return collect(cfg, (Source(f.language, f.split, f.shown, rows(f), unit) for f in files), parse)


def collect(
    cfg: DatasetConfig, sources: Iterable[Source[Any]], parse: Callable[[Any, Place], Example | None]
) -> tuple[Splits, Notes]:
    """Parse every row of every source; splits without a source are empty.

    Args:
        cfg: the task, and what is done about bad rows: ``on_bad_line=skip`` leaves them out and counts them in
            ``notes["skipped"]``; ``unanswerable=drop`` does the same with questions that have no answer.
        sources: one per language and split; bytes in their rows become text.
        parse: (row, its place) → example, None for a header or a row that is left out, or `BadRow`.
    """
    task, skip = task_of(cfg.task, cfg.tags_are.value), OnBadLine(cfg.on_bad_line) is OnBadLine.skip
    keep = Unanswerable(cfg.unanswerable) is Unanswerable.keep
    splits: Splits = {}
    notes: Notes = {"skipped": {}}
    for source in sources:
        splits[source.language, source.split] = read_source(source, parse, task, notes, skip, keep)
    languages = dict.fromkeys(language for language, _ in splits)
    splits = {(language, split): splits.get((language, split), ()) for language in languages for split in SPLITS}
    return splits, {what: counts for what, counts in notes.items() if counts}


def read_source(
    source: Source[Any],
    parse: Callable[[Any, Place], Example | None],
    task: Task,
    notes: Notes,
    skip: bool = False,
    keep: bool = False,
) -> tuple[Example, ...]:
    """Parse the rows of one source; counts are added to ``notes``.

    Args:
        skip: whether bad rows are left out and counted.
        keep: whether questions without an answer are kept.

    Raises:
        UsageError: a bad row (``path:line: reason``, or as `Source.where` says), without ``skip``; no examples.
    """
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
            if example is not None and example.answers == () and not keep:
                place.odd["unanswerable"] += 1
                example = None
            if example is not None:
                check_text(example)
                if task.classes and example.label not in task.classes:
                    raise BadRow(f"label {example.label!r} is none of {', '.join(task.classes)}")
                if example.id in first_seen:
                    place.below = 0
                    first = f"{source.unit or 'line'} {first_seen[example.id]}"
                    raise BadRow(f"id '{example.id}' is taken by {first}")
                for what in oddities(example):
                    place.odd[what] += 1
                first_seen[example.id] = number
                examples.append(example)
        except BadRow as bad:
            message = f"{source.where(number + place.below, place.id)}: {bad}"
            if not skip:
                raise UsageError(message) from None
            place.odd = Counter(skipped=1)
            first_bad = first_bad or f"; every {source.unit or 'line'} was skipped, the first because {message}"
        for what, count in place.odd.items():
            counts = notes.setdefault(what, {})
            counts[key] = counts.get(key, 0) + count
    if not examples:
        unanswerable = "; no question has an answer in its text, and dataset.unanswerable=keep keeps such questions"
        left_out = unanswerable if key in notes.get("unanswerable", {}) else ""
        raise UsageError(f"{source.shown}: no examples{left_out}{first_bad}")
    return tuple(examples)


def _decoded(row: Any, place: Place) -> Any:
    """Return a row with text for bytes: a line, or several."""
    if isinstance(row, bytes):
        # In a file with the line ends of an old Macintosh all lines would be one sentence.
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
    """Yield the blocks of lines between blank lines, each in the place of its first line; empty lists elsewhere.

    So a block's number among what is yielded is that of its first line.
    """
    block: list[bytes] = []
    for line in [*lines(file), b""]:
        if line.strip():
            block.append(line)
            continue
        if block:
            yield block
        yield from [[]] * max(1, len(block))
        block = []


def lines(file: SplitFile) -> Iterator[bytes]:
    """Yield the lines of a file without their ends; bytes, so that one bad character spoils one line only."""
    # Only \n ends a line: str.splitlines would also split at the line separators that a token may hold.
    for line in read_regular(file.path, file.shown).removeprefix(BOM_UTF8).split(b"\n"):
        yield line.rstrip(b"\r")


def read_regular(path: Path, shown: str) -> bytes:
    """Return the content of a file, unpacked where its name ends in ``.gz``.

    Raises:
        UsageError: it cannot be read; or it is a pipe or a device, which may be endless; or it is a gzip bomb: a small
            file that unpacks to more than `UNPACKED` bytes. ``shown`` names it.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise UsageError(f"{shown}: is a pipe, a socket or a device, and no file")
        if path.suffix != ".gz":
            return path.read_bytes()
        most = max(UNPACKED, RATIO * path.stat().st_size)
        with gzip.open(path) as packed:
            content = packed.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{shown}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(content) > most:
        raise UsageError(f"{shown}: unpacks to more than {most >> 20} MB; if the content is right, unpack it")
    return content


def check_tags(tags: Sequence[str], tokens: Sequence[str], task: Task) -> None:
    """Raise `BadRow` where tags are not one for each token; see `check_tag`."""
    if len(tags) != len(tokens):
        raise BadRow(f"{len(tags)} tags for {len(tokens)} tokens")
    for tag in tags:
        check_tag(tag, task)


def check_tag(tag: str, task: Task) -> None:
    """Raise `BadRow` where a tag is not BIO though tags are spans, or is blank."""
    if task.tag_spans and not _BIO.fullmatch(tag):
        hint = "; for tags that are not spans set dataset.tags_are=words" if task == TOKEN_TAGS else ""
        raise BadRow(f"tag {tag!r} is not O, B-name or I-name{hint}")
    if not tag.strip():
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


def json_file(path: Path, shown: str, hint: str = "") -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Args:
        hint: what it should be; the end of the error line.
    """
    content = read_regular(path, shown).removeprefix(BOM_UTF8)
    try:
        found = parse_json(content.decode(), "the file")
    except BadRow as bad:
        raise UsageError(f"{shown}: {bad}{hint}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown}: not UTF-8 (byte {error.start + 1})") from None
    if not isinstance(found, dict):
        raise UsageError(f"{shown}: must be an object, not {type(found).__name__}{hint}")
    return found


def shortened(text: str) -> str:
    """Return a text as error lines show it: cut if it is long."""
    return text if len(text) <= 60 else f"{text[:59]}…"


def check_text(example: Example) -> None:
    """Refuse a text in place of words, too long words and names, blank names, and halves of surrogate pairs.

    JSON can write those halves: they can be neither hashed, written nor tokenised.
    """
    if isinstance(example.tokens, str):
        raise BadRow("the words of an example are a tuple of words, not one text; text.split() makes them")
    texts = (*example.tokens, example.text or "", example.text_b or "")
    if max(map(len, texts)) > LONGEST_WORD:
        longest = max((len(word) for text in texts for word in text.split()), default=0)
        if longest > LONGEST_WORD:
            raise BadRow(f"a word of {longest:,} characters; {LONGEST_WORD:,} are allowed")
    tags = example.tags or ()
    for name in dict.fromkeys((example.id, example.label, *tags)):
        if name is None or (name.strip() and len(name) <= LONGEST_NAME):
            continue
        what = "id" if name == example.id else "label" if name == example.label else "tag"
        if not name.strip():
            raise BadRow(f"the {what} is blank")
        raise BadRow(f"{what} of {len(name):,} characters; {LONGEST_NAME:,} are allowed")
    facts = (text for fact in (example.facts or {}).items() for text in fact)
    answers = (answer.text for answer in example.answers or ())
    try:
        "".join((example.id, example.label or "", *texts, *tags, *facts, *answers)).encode()
    except UnicodeEncodeError:
        raise BadRow("half of a surrogate pair (\\ud800 to \\udfff) is no character") from None


def oddities(example: Example) -> Iterator[str]:
    """Yield the names of notes (`xclrun.data.notes.TOLD`) on what may be wrong with an example that can be read."""
    if any(map(_is_odd_name, {example.label or "", *(example.tags or ())})):
        yield "odd_labels"
    if _CONTROL.search("".join(example.tokens)):
        yield "control_characters"
    if len(example.whole) > LONG_TEXT or len(example.text_b or "") > LONG_TEXT:
        yield "long_texts"


@lru_cache(maxsize=10_000)
def _is_odd_name(name: str) -> bool:
    return name != name.strip() or any(unicodedata.category(c) in ("Cc", "Cf") for c in name)


def root_of(
    cfg: DatasetConfig, layout: Sequence[str], split_names: Mapping[str, tuple[str, ...]] = SPLIT_NAMES
) -> tuple[Path, str]:
    """Return the folder of the data, and its name as the user gave it."""
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
    """Return the first of some names under which there is a file in a folder; None if there is none."""
    return next((name for name in names if (root / name).is_file()), None)


# What file names of a layout may have in braces.
PLACES = frozenset(("language", "split", "any", "folder"))


def check_layout(layout: Sequence[str]) -> None:
    """Refuse a layout that is not a list of file names, or has an unknown name in braces."""
    if isinstance(layout, str):
        raise UsageError(f"the layout is a list of file names: [{layout!r}]")
    for name in layout:
        try:
            name.format_map(dict.fromkeys(PLACES, ""))
        except KeyError as unknown:
            known = ", ".join(f"{{{place}}}" for place in sorted(PLACES))
            raise UsageError(f"layout {name!r}: {{{unknown.args[0]}}} stands for nothing; known: {known}") from None
        except ValueError as error:
            raise UsageError(f"layout {name!r}: {error}") from None


def _pattern(name: str, split_names: Mapping[str, tuple[str, ...]]) -> re.Pattern[str]:
    """Return the expression that matches a layout's file name, with groups ``language`` and ``split``."""
    splits = "|".join(alias for names in split_names.values() for alias in names)
    # What represents any text ends a language's key.
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
