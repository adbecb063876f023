"""Shared code of readers: parse the rows of each split, check the examples, count oddities and report bad rows.

Every error is one line: the file as the user wrote it, the line, the reason.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from xclrun.config.schema import DatasetConfig, OnBadLine, Unanswerable
from xclrun.core.errors import UsageError
from xclrun.core.task import Task, task_of
from xclrun.core.texts import Reply
from xclrun.data.example import SPLITS, Example
from xclrun.data.readers.files import SplitFile, parse_utf8
from xclrun.data.readers.values import BadRow as BadRow
from xclrun.data.readers.values import Skip, below_header, check_tag, cleaned, missing_labels, unused_id

Splits = dict[tuple[str, str], tuple[Example, ...]]
Notes = dict[str, dict[str, int]]
Parse = Callable[[Any, "Place"], Example | None]

# Maximum characters of a word with a tag. A text without spaces, such as a Thai document, is one word of any length.
LONGEST_WORD = 20_000
# Maximum characters of an id, a label or a tag.
LONGEST_NAME = 1_000
# Longer texts, in characters, are noted, since the file may lack line ends.
LONG_TEXT = 100_000
# Control characters (Unicode's category Cc), the byte order mark, which joined files have inside, and U+FFFD, which
# replaces characters that a wrong encoding lost.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ufeff\ufffd]")


@dataclass
class Place:
    """The position of a row, and additional results of its parser.

    Attributes:
        language, split: language and split of the row.
        number: number of the row, or of its first line, from 1.
        task: task of the dataset.
        below: for rows of several lines, the line being parsed, from 0; errors contain it.
        id: the row's id, set by its parser; errors contain it if rows are not lines.
        sentence: number of the sentence in its split, from 1; blank lines and headers have no number.
        defects: known defects of the release (see `row_reader`).
        odd: counts for `Dataset.notes`, by name; ignored if the row is bad.
    """

    language: str
    split: str
    number: int
    task: Task
    below: int = 0
    id: str = ""
    sentence: int = 1
    defects: Collection[str] = ()
    odd: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """The id of an example that has no id in the data."""
        return f"{self.split}-{self.number}"

    @property
    def sentence_name(self) -> str:
        """As `name`, but equal for translations: their sentences have the same number, but other lines."""
        return f"{self.split}-{self.sentence}"

    def defect(self, note: str, message: str) -> BadRow:
        """Return the error of a row with a defect; the row is skipped and counted if the release has this defect."""
        return Skip(note, message) if note in self.defects else BadRow(message)


@dataclass(frozen=True)
class Source:
    """The rows of one split of one language.

    Attributes:
        name: name of the file, for errors.
        unit: name of a row in errors, if a row is not a line; otherwise empty.
        odd: counts for `Dataset.notes`, by name.
    """

    language: str
    split: str
    name: str
    rows: Iterable[Any]
    unit: str = ""
    odd: Mapping[str, int] = field(default_factory=dict)

    def where(self, number: int, id: str) -> str:
        """Return the place of a row for errors: its line, or its id or number."""
        if not self.unit:
            return f"{self.name}:{number}"
        return f"{self.name}: {self.unit} {repr(shortened(id)) if id else number}"


def read_files(
    cfg: DatasetConfig,
    files: Iterable[SplitFile],
    parse: Parse,
    rows: Callable[[SplitFile], Iterable[Any]],
    unit: str = "",
    defects: Collection[str] = (),
) -> tuple[Splits, Notes]:
    """Read the rows of files, one file after another (see `collect`)."""
    sources = (
        Source(f.language, f.split, f.name, rows(f), unit, {"ignored_files": f.ignored} if f.ignored else {})
        for f in files
    )
    return collect(cfg, sources, parse, defects)


@dataclass
class _Reading:
    """The state of reading the sources of one split: IDs (see `unused_id`) and the number of sentences."""

    ids: dict[str, int] = field(default_factory=dict)
    sentences: int = 0


def collect(
    cfg: DatasetConfig, sources: Iterable[Source], parse: Parse, defects: Collection[str] = ()
) -> tuple[Splits, Notes]:
    """Parse every row of every source; splits without a source are empty, several sources of one split are joined.

    Args:
        cfg: gives the task. ``on_bad_line=skip`` skips bad rows and counts them in ``notes["skipped"]``;
            ``unanswerable=drop`` skips and counts questions without an answer.
        sources: bytes in their rows are decoded.
        parse: (row, its place) → example, or None for a header or a skipped row; raises `BadRow`.
        defects: known defects of the release (see `row_reader`).
    """
    task, skip = task_of(cfg.task, cfg.tags_are.value), OnBadLine(cfg.on_bad_line) is OnBadLine.skip
    keep = Unanswerable(cfg.unanswerable) is Unanswerable.keep
    splits: Splits = {}
    notes: Notes = {"skipped": {}}
    states: dict[tuple[str, str], _Reading] = {}
    # Bad rows are errors at the end, so that the message can say how many rows ``on_bad_line=skip`` would skip.
    problems: list[str] = []
    unit = ""
    for source in sources:
        key = source.language, source.split
        try:
            read = read_source(
                source, parse, task, notes, True, keep, defects, states.setdefault(key, _Reading()), problems
            )
        except UsageError:
            if problems and not skip:
                raise UsageError(problems[0]) from None
            raise
        splits[key] = (*splits.get(key, ()), *read)
        for name, count in source.odd.items():
            notes.setdefault(name, {})["/".join(key)] = count
        unit = source.unit or "sentence"
    if problems and not skip:
        bad = sum(notes["skipped"].values())
        rows = bad + sum(map(len, splits.values()))
        raise UsageError(f"{problems[0]}; dataset.on_bad_line=skip would skip {bad:,} of {rows:,} {unit}s")
    _drop_unlabeled(splits, notes)
    languages = dict.fromkeys(language for language, _ in splits)
    splits = {(language, split): splits.get((language, split), ()) for language in languages for split in SPLITS}
    return splits, {name: counts for name, counts in notes.items() if counts}


def _drop_unlabeled(splits: Splits, notes: Notes) -> None:
    """Remove and count the examples whose label means "no label" (see `missing_labels`)."""
    by_split = {key: {e.label for e in examples if e.label is not None} for key, examples in splits.items()}
    labels = set().union(*by_split.values())
    for key, examples in splits.items():
        if missing := missing_labels(labels, by_split[key]):
            splits[key] = tuple(e for e in examples if e.label not in missing)
            place = "/".join(key)
            if not splits[key]:
                raise UsageError(
                    f"{place}: every label is {' or '.join(sorted(missing))}, which means no label; use labeled data"
                )
            counts = notes.setdefault("unlabeled", {})
            counts[place] = counts.get(place, 0) + len(examples) - len(splits[key])


def read_source(
    source: Source,
    parse: Parse,
    task: Task,
    notes: Notes,
    skip: bool = False,
    keep: bool = False,
    defects: Collection[str] = (),
    state: _Reading | None = None,
    problems: list[str] | None = None,
) -> tuple[Example, ...]:
    """Parse the rows of one source, and add its counts to ``notes``.

    Args:
        skip: skip and count bad rows instead of raising an error.
        keep: keep questions without an answer.
        defects: known defects of the release (see `row_reader`).
        state: state of earlier sources of the split. None: an ID that is used twice is an error.
        problems: filled with the errors of skipped rows.
    """
    examples: list[Example] = []
    first_seen: dict[str, int] = {}
    problems = [] if problems is None else problems
    begun = False
    # Why rows were skipped.
    reasons: list[str] = []
    state, unique = state or _Reading(), state is None
    key = f"{source.language}/{source.split}"
    for number, row in enumerate(source.rows, 1):
        # Blank lines are skipped but counted in line numbers.
        if not row or (isinstance(row, bytes) and not row.strip()):
            continue
        place = Place(source.language, source.split, number, task, sentence=state.sentences + 1, defects=defects)
        counted = True
        try:
            example = _parsed(parse, _decoded(row, place), place, begun)
            if example is not None and example.answers == () and not keep:
                place.odd["unanswerable"] += 1
                example = None
            if example is not None:
                example = cleaned(example, task, place.odd)
                check_text(example)
                if task.classes and example.label not in task.classes:
                    raise BadRow(f"unknown label {example.label!r}; use {', '.join(task.classes)}")
                if unique and example.id in first_seen:
                    place.below = 0
                    first = f"{source.unit or 'line'} {first_seen[example.id]}"
                    raise BadRow(f"id '{example.id}' is already used by {first}")
                for name in oddities(example):
                    place.odd[name] += 1
                first_seen[example.id] = number
                if (id := unused_id(example.id, state.ids)) != example.id:
                    place.odd["repeated_ids"] += 1
                    example = replace(example, id=id)
                examples.append(example)
            counted = example is not None
        except Skip as skipped:
            place.odd = Counter([skipped.note] if skipped.note else [])
            counted = skipped.sentence
            if skipped.note:
                reasons.append(f"{source.where(place.number, place.id)}: {skipped}")
        except BadRow as bad:
            message = f"{source.where(place.number + place.below, place.id)}: {bad}"
            if not skip:
                raise UsageError(message) from None
            place.odd = Counter(skipped=1)
            problems.append(message)
            reasons.append(message)
        begun = True
        state.sentences += counted
        for name, count in (+place.odd).items():
            counts = notes.setdefault(name, {})
            counts[key] = counts.get(key, 0) + count
    if not examples:
        hint = "; no question has an answer; set dataset.unanswerable=keep to keep such questions"
        unanswerable = hint if key in notes.get("unanswerable", {}) else ""
        if key in notes.get("unlabeled", {}):
            unanswerable = "; the rows have no labels (-1, - or null)"
        first_bad = f"; every {source.unit or 'line'} was skipped, the first because {reasons[0]}" if reasons else ""
        raise UsageError(f"{source.name}: no examples{unanswerable}{first_bad}")
    return tuple(examples)


def _parsed(parse: Parse, row: Any, place: Place, begun: bool) -> Example | None:
    """Parse a row; skip and count names of columns at the beginning of a source, unless the parser knows them."""
    if begun or (rest := below_header(row)) is None:
        return parse(row, place)
    with suppress(BadRow):
        if parse(row, replace(place, odd=Counter())) is None:
            return None
    place.odd["header_lines"] += 1
    place.number += 1
    return parse(rest, place) if rest else None


def _decoded(row: Any, place: Place) -> Any:
    """Decode the bytes of a row, which is one line or a sequence of lines."""
    if isinstance(row, bytes):
        # Without this check, a file with the line ends of an old Macintosh would be read as one sentence.
        if b"\r" in row:
            raise BadRow("a carriage return without a line feed; end lines with \\n or \\r\\n")
        return parse_utf8(row)
    if not isinstance(row, list | tuple):
        return row
    parts = []
    for place.below, part in enumerate(row):
        parts.append(_decoded(part, place))
    place.below = 0
    return tuple(parts) if isinstance(row, tuple) else parts


def check_tags(tags: Sequence[str], tokens: Sequence[str], task: Task) -> None:
    """Raise `BadRow` unless there is one valid tag for each token."""
    if len(tags) != len(tokens):
        raise BadRow(f"{len(tags)} tags for {len(tokens)} tokens")
    for tag in tags:
        check_tag(tag, task)


def shortened(text: str) -> str:
    """Shorten a text to 60 characters, for error messages."""
    return text if len(text) <= 60 else f"{text[:59]}…"


def check_text(example: Example) -> None:
    """Refuse a string in place of words, overlong tagged words and names, blank names, and halves of surrogate pairs.

    JSON can contain such halves, which cannot be hashed, written or tokenized.
    """
    if isinstance(example.tokens, str):
        raise BadRow("the words of an example must be a tuple, not one text; use text.split()")
    texts = (*example.tokens, example.text or "", example.text_b or "")
    if example.tags and (longest := max(map(len, example.tokens), default=0)) > LONGEST_WORD:
        raise BadRow(f"a word of {longest:,} characters; at most {LONGEST_WORD:,} are allowed")
    tags = example.tags or ()
    for name in dict.fromkeys((example.id, example.label, *tags)):
        if name is None or (name.strip() and len(name) <= LONGEST_NAME):
            continue
        kind = "id" if name == example.id else "label" if name == example.label else "tag"
        if not name.strip():
            raise BadRow(f"the {kind} is blank")
        raise BadRow(f"{kind} of {len(name):,} characters; at most {LONGEST_NAME:,} are allowed")
    facts = (text for fact in (example.facts or {}).items() for text in fact)
    answers = (answer.text for answer in example.answers or ())
    target = "" if example.target is None else json.dumps(example.target, ensure_ascii=False)
    try:
        "".join((example.id, example.label or "", *texts, *tags, *facts, *answers, target)).encode()
    except UnicodeEncodeError:
        raise BadRow("half of a surrogate pair (\\ud800 to \\udfff) is not a character") from None


def oddities(example: Example) -> Iterator[str]:
    """Yield the notes (`xclrun.data.notes.NOTES`) on a readable example that may contain a mistake."""
    if any(map(_is_odd_name, {example.label or "", *(example.tags or ())})):
        yield "odd_labels"
    target = " ".join(example.target.texts) if isinstance(example.target, Reply) else ""
    if _CONTROL.search("".join((*example.tokens, *(example.text_b or "").split(), *target.split()))):
        yield "control_characters"
    if max(map(len, (example.whole, example.text_b or "", target))) > LONG_TEXT:
        yield "long_texts"


@lru_cache(maxsize=10_000)
def _is_odd_name(name: str) -> bool:
    return name != name.strip() or any(unicodedata.category(c) in ("Cc", "Cf") for c in name)
