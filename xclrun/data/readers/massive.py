"""MASSIVE's release layout (FitzGerald et al. 2023, arXiv:2204.08582): one file of JSON lines per locale.

``LOCALE.jsonl`` holds all splits of a locale, each line with ``id``, ``partition`` (train, dev, test), ``scenario``,
``intent``, ``utt`` and ``annot_utt``, in which slots are in brackets: ``weck mich [date : diese woche] auf``. Keys
are the release's locales, such as ``de-DE`` and ``zh-TW``; sentences with the same id are translations of each other.

Words are separated by spaces. Japanese and Chinese have no spaces: a run of characters is split into single characters,
unless it is ASCII, as in the authors' code. A slot that begins or ends inside a word is extended to the whole word.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.data.example import OUTSIDE, SPLITS, Example
from xclrun.data.readers import reader
from xclrun.data.readers.collect import BadRow, Notes, Place, Source, Splits, collect
from xclrun.data.readers.files import Root, choose_languages, hidden, lines, parse_utf8, root_of
from xclrun.data.readers.rows import field, json_row, own_text

# Possible locations of the files below the root; the first one with files is used.
FOLDERS = ("", "data/", "1.1/data/", "1.0/data/")
LAYOUT = tuple(f"{folder}{{language}}.jsonl" for folder in reversed(FOLDERS))
UNSPACED = ("ja-JP", "zh-CN", "zh-TW")
_SLOT = re.compile(r"\[\s*([^\[\]:\s]+)\s*:([^\[\]]*)\]")


@reader("massive", LAYOUT)
def read_massive(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Read every selected locale under ``dataset.root``; a locale without train or dev lines has an empty split."""
    root = root_of(cfg, LAYOUT)
    by_folder = {
        folder: [path.stem for path in (root.path / folder).glob("*.jsonl") if not hidden(path.name)]
        for folder in FOLDERS
    }
    folder = next((folder for folder, stems in by_folder.items() if stems), None)
    if folder is None:
        raise root.error(f"no data found; looked for {LAYOUT[-1].format(language='<language>')}")
    available = by_folder[folder]
    languages = choose_languages(cfg.languages, available, root.name)
    # Read one file after another, since the lines of all files would need gigabytes.
    return collect(cfg, (source for language in languages for source in _sources(root, folder, language)), parse)


def _sources(root: Root, folder: str, language: str) -> list[Source]:
    """Return the rows of each split of a file; lines of other splits are None, so that line numbers stay correct.

    Unreadable lines belong to the test split, whose parser reports them.
    """
    file = root.file(language, "", f"{folder}{language}.jsonl")
    rows: dict[str, list[Any]] = {split: [] for split in SPLITS}
    for line in lines(file):
        row: Any = line.strip()
        # A bad line stays text: `parse` parses it again and reports the reason and the place.
        with suppress(BadRow):
            row = json_row(parse_utf8(line))
        partition = row.get("partition") if isinstance(row, dict) else None
        for split, split_rows in rows.items():
            split_rows.append(row if split == (partition if partition in SPLITS else "test") else None)
    if not any(rows["test"]):
        raise UsageError(f"{file.name}: no line whose partition is test")
    return [Source(language, split, file.name, split_rows) for split, split_rows in rows.items() if any(split_rows)]


def parse(row: Any, place: Place) -> Example:
    """Return the example of one line: an object, or the text of a line that is not a JSON object.

    Counts ``slots_inside_words``, and ``annotated_otherwise`` where the words of ``annot_utt`` and ``utt`` differ.
    """
    row = json_row(row) if isinstance(row, str) else row
    if row.get("partition") not in SPLITS:
        raise BadRow(f"'partition' must be one of {', '.join(SPLITS)}, not {row.get('partition')!r}")
    if row.get("locale", place.language) != place.language:
        raise BadRow(f"'locale' is {row['locale']!r} in the file of {place.language}")
    name = str(field(row, "name", "id"))
    intent, utterance, annotated = (field(row, "string", key) for key in ("intent", "utt", "annot_utt"))
    text, slots = plain(annotated)
    tokens, starts = _words(text, place.language in UNSPACED)
    if not tokens:
        raise BadRow("'annot_utt' has no words")
    tags = [OUTSIDE] * len(tokens)
    for start, end, slot in slots:
        inside = [i for i, (s, t) in enumerate(zip(starts, tokens, strict=True)) if s < end and start < s + len(t)]
        first, last = inside[0], inside[-1]
        if starts[first] < start or starts[last] + len(tokens[last]) > end:
            place.odd["slots_inside_words"] += 1
        # A word that two slots overlap belongs to the earlier slot.
        free = [i for i in inside if tags[i] == OUTSIDE]
        for i in free:
            tags[i] = f"{'B' if i == free[0] else 'I'}-{slot}"
    written = " ".join(text.split())
    if " ".join(utterance.split()) != written:
        place.odd["annotated_otherwise"] += 1
    facts = {"scenario": row["scenario"]} if isinstance(row.get("scenario"), str) else None
    return Example(name, place.language, tuple(tokens), intent, tuple(tags), own_text(written, tokens), facts=facts)


def plain(annotated: str) -> tuple[str, list[tuple[int, int, str]]]:
    """Return a text without its brackets, and its slots as (start, end, name) in characters of that text.

    >>> plain("wake me [time : at five]")
    ('wake me at five', [(8, 15, 'time')])
    """
    text, slots, last = "", [], 0
    for match in _SLOT.finditer(annotated):
        value = match[2].strip()
        if not value:
            raise BadRow(f"'annot_utt': slot {match[0]!r} has no text")
        text += annotated[last : match.start()]
        slots.append((len(text), len(text) + len(value), match[1]))
        text, last = text + value, match.end()
    text += annotated[last:]
    if (bracket := re.search(r"[\[\]]", text)) is not None:
        raise BadRow(f"'annot_utt': a {bracket[0]!r} outside of a slot [name : text]")
    return text, slots


def _words(text: str, unspaced: bool) -> tuple[list[str], list[int]]:
    tokens: list[str] = []
    starts: list[int] = []
    for match in re.finditer(r"\S+", text):
        run = match[0]
        parts = list(run) if unspaced and not run.isascii() else [run]
        tokens += parts
        starts += range(match.start(), match.start() + len(parts))
    return tokens, starts
