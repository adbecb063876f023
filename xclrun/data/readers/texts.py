"""Prompts with texts to write after them: a user's own data, and the layouts of published instruction data.

A row is an object in a JSON Lines file or in a list in a JSON file, a row of a CSV file, or a row of ``dataset.hub``.
It has one of these forms:

| keys | data |
|---|---|
| ``prompt``, ``completion`` | a text and the text after it, or lists of messages (as in TRL) |
| ``messages`` | a dialogue ``[{role, content}, …]``; its last turn, of the assistant, is the target |
| ``inputs``, ``targets`` | Aya; ``language`` (or ``dataset.hub_columns={language: language_code}``) selects rows |
| ``prompt``, ``answer`` | TRACE and LLMCL, in ``TASK/{train,eval,test}.json``; each task is a key |
| ``prompt``, ``choices``, ``answer`` | multiple choice; ``answer`` is the number (from 0), letter or text of one |

The target may be a list of references (also under the key ``references``); training uses the first one.
``dataset.hub_columns`` maps keys to the names of the data, in files too. Rows whose target is null are skipped and
counted. There is one file per language and split; files ``{split}.jsonl`` (``.json``, ``.csv``) hold all languages.
"""

from __future__ import annotations

import csv
import io
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from xclrun.config.schema import DatasetConfig, Template
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.texts import ROLES
from xclrun.data.example import SPLITS, Example
from xclrun.data.readers import hub, reader
from xclrun.data.readers.collect import BadRow, Notes, Place, Source, Splits, collect, shortened
from xclrun.data.readers.files import (
    SPLIT_NAMES,
    SplitFile,
    choose_languages,
    find_files,
    json_content,
    lines,
    parse_json,
    parse_utf8,
    read_regular,
    root_of,
)
from xclrun.data.readers.rows import field, json_row, text_example
from xclrun.data.readers.values import Skip, similar

ENDS = ("jsonl", "jsonl.gz", "json", "csv")
LAYOUT = tuple(f"{{language}}{separator}{{split}}.{end}" for end in ENDS for separator in "/.")
PROMPTS, TARGETS = ("prompt", "inputs"), ("completion", "targets", "answer", "references")
KEYS = ("id", "language", *PROMPTS, *TARGETS, "choices", "messages", "facts")
# Keys whose values are lists or objects; CSV files contain them as JSON.
_LISTS = ("choices", "messages", "references", "facts")
# A row is an object, a line with one, or the reason why it cannot be read.
Row = dict[str, Any] | str | BadRow


@reader("texts", LAYOUT, gives=["target"])
def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Prompts with completions, dialogues or choices."""
    chat = Template(cfg.text.template) is Template.chat
    if cfg.hub is not None:
        # The columns were renamed by the reader of the hub.
        needs = [(*PROMPTS, "messages"), (*TARGETS, "messages")]
        return collect(cfg, hub.sources(cfg, KEYS, needs), partial(parse, chat=chat))
    names = dict(cfg.hub_columns or {})
    for key in names:
        if key not in KEYS:
            raise UsageError(f"dataset.hub_columns: unknown key '{key}'; {did_you_mean(key, KEYS)}")
    return collect(cfg, _shared(cfg, names) or _separate(cfg), partial(parse, names=names, chat=chat))


def parse(row: Row, place: Place, names: Mapping[str, str] | None = None, chat: bool = False) -> Example:
    """Return the example of a row.

    Args:
        names: key → its name in the row.
        chat: whether messages are written with the tokenizer's template.
    """
    row = _object(row, names or {})
    id, facts = field(row, "name", "id", optional=True), field(row, "facts", "facts", optional=True)
    dialogue = _dialogue(row)
    if dialogue is not None and not chat:
        place.odd["plain_messages"] += 1
    prompt, target, turns = dialogue or (*_plain(row), [])
    value = target
    if row.get("choices") is not None:
        choices = field(row, "strings", "choices")
        value = {"choices": choices, "answer": _answer(choices, target), "turns": turns}
    elif turns:
        value = {"references": target, "turns": turns}
    if place.task.target is None:
        raise UsageError(f"dataset.task={place.task.name}: rows of prompts are for text_to_text; use dataset=documents")
    try:
        converted = place.task.target(value)
    except (TypeError, ValueError) as error:
        raise BadRow(f"the target: {error}") from None
    return replace(text_example(place, id, prompt, facts=facts), target=converted)


def _plain(row: dict[str, Any]) -> tuple[str, Any]:
    """Return the prompt and the target of a row without messages."""
    prompt, target = (next((key for key in keys if key in row), None) for keys in (PROMPTS, TARGETS))
    if prompt is None or target is None:
        wanted = TARGETS if target is None else PROMPTS
        for key in row:
            if key not in KEYS and (near := similar(key, wanted)) is not None:
                raise BadRow(f"unknown key '{key}'; did you mean '{near}'?")
        found = shortened(", ".join(row)) or "none"
        raise BadRow(
            f"neither {' nor '.join(wanted)} is given; the row has the keys {found}; map names with "
            f"dataset.hub_columns='{{{wanted[0]}: NAME}}'"
        )
    # NaN, which differs from itself, is what pandas writes for a missing text.
    if row[target] is None or row[target] != row[target]:
        raise Skip("unlabeled", f"'{target}' is missing")
    return field(row, "text", prompt), row[target]


def _dialogue(row: dict[str, Any]) -> tuple[str, Any, list[dict[str, str]]] | None:
    """Return the prompt, the target and the turns before the prompt; None for a row without messages."""
    messages = row.get("messages")
    if messages is None and isinstance(row.get("prompt"), list):
        completion = row.get("completion")
        rest = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
        if not isinstance(rest, list):
            raise BadRow("'completion' must be a text or a list of messages")
        messages = [*row["prompt"], *rest]
    if messages is None:
        return None
    if not isinstance(messages, list) or len(messages) < 2:
        raise BadRow("'messages' must be a list of at least two turns")
    turns = [_turn(number, message) for number, message in enumerate(messages, 1)]
    *before, prompt, target = turns
    if (prompt["role"], target["role"]) != ("user", "assistant"):
        raise BadRow(
            f"the last turns are of {prompt['role']} and {target['role']}; a dialogue ends with a turn of the user "
            "and an answer of the assistant"
        )
    return prompt["content"], target["content"], before


def _turn(number: int, message: Any) -> dict[str, str]:
    if isinstance(message, dict):
        role, content = message.get("role"), message.get("content")
        if role in ROLES and isinstance(content, str):
            return {"role": role, "content": content}
    raise BadRow(f"turn {number} must have a role ({', '.join(ROLES)}) and a content, a text")


def _answer(choices: Sequence[str], answer: Any) -> int:
    """Return the number of the correct choice, which the answer gives as a number, as a letter or as its text."""
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    if isinstance(answer, str):
        if answer in choices:
            return choices.index(answer)
        # In a CSV file, pandas writes 1.0 if the column has missing values.
        if (number := answer.removesuffix(".0")).isdecimal():
            answer = int(number)
        elif len(answer) == 1 and 0 <= (letter := ord(answer) - ord("A")) < len(choices):
            return letter
    if type(answer) is int and 0 <= answer < len(choices):
        return answer
    raise BadRow(
        f"'answer' {shortened(repr(answer))} is none of the {len(choices)} choices; give its number from 0, its letter "
        "or its text"
    )


def _object(row: Row, names: Mapping[str, str]) -> dict[str, Any]:
    """Return a row under the names of `KEYS`."""
    if isinstance(row, BadRow):
        raise row
    content = json_row(row) if isinstance(row, str) else row
    for name in names.values():
        if name not in content:
            raise BadRow(f"no '{name}', which dataset.hub_columns names; the row has {shortened(', '.join(content))}")
    return {**content, **{key: content[name] for key, name in names.items()}}


# Files.


def _separate(cfg: DatasetConfig) -> Iterator[Source]:
    """Yield the rows of files of one language."""
    for file in find_files(
        cfg,
        LAYOUT,
        shared="; files of several languages need a train and a test split, and a key 'language' in each row",
    ):
        rows, unit = _rows(file)
        odd = {"ignored_files": file.ignored} if file.ignored else {}
        yield Source(file.language, file.split, file.name, rows, unit, odd)


def _shared(cfg: DatasetConfig, names: Mapping[str, str]) -> list[Source]:
    """Return the rows of files of several languages; empty if there are no such files."""
    root = root_of(cfg, LAYOUT)
    files = {
        split: root.first("", split, [f"{n}.{end}" for n in SPLIT_NAMES[split] for end in ENDS]) for split in SPLITS
    }
    if files["train"] is None or files["test"] is None:
        return []
    # Only language, if the rows do not name it.
    [single] = cfg.languages if cfg.languages is not None and len(cfg.languages) == 1 else [None]
    tables = {}
    for split, file in files.items():
        if file is not None:
            rows, unit = _rows(file)
            tables[split] = file.name, unit, [_with_language(row, names, single) for row in rows]
    available = {language for _, _, rows in tables.values() for language, _ in rows if language}
    chosen = choose_languages(cfg.languages, available, f"the key 'language' of {root.name}") if available else ()
    # Without a readable row, its mistake is the error.
    chosen = chosen or ("",)
    sources = []
    for language in chosen:
        for split, (name, unit, rows) in tables.items():
            # Rows that cannot be read belong to no language; they are reported with the first.
            own = [row if (of or chosen[0]) == language else {} for of, row in rows]
            if any(own):
                sources.append(Source(language, split, name, own, unit))
            elif split == "test":
                raise UsageError(f"{name}: no test rows of '{language}'; select languages with dataset.languages=[…]")
    return sources


def _with_language(row: Any, names: Mapping[str, str], single: str | None) -> tuple[str, Row]:
    """Return the language of a row, empty if it is a blank line or cannot be read, and the row."""
    try:
        if not row:
            return "", {}
        content = _object(_listed(json_row(parse_utf8(row))) if isinstance(row, bytes) else row, names)
        language = field(content, "name", "language", optional=single is not None)
    except BadRow as bad:
        return "", bad
    return str(single if language is None else language).strip(), row if isinstance(row, dict) else content


def _rows(file: SplitFile) -> tuple[Iterable[Any], str]:
    """Return the rows of a file, and the name of a row in errors if it is not a line."""
    if file.name.endswith(".csv"):
        return _csv(file), ""
    if file.name.endswith(".json"):
        content = read_regular(file.path, file.name).removeprefix(BOM_UTF8)
        if content.lstrip()[:1] == b"[":
            return [_listed(row) for row in json_content(content, file.name)], "row"
    return map(bytes.strip, lines(file)), ""


def _listed(row: Any) -> Row:
    if isinstance(row, dict) and row:
        return row
    return BadRow(f"a row must be an object with keys, not {shortened(repr(row))}")


def _csv(file: SplitFile) -> Iterator[Row]:
    """Yield the rows of a CSV file, each at the number of its first line."""
    content = read_regular(file.path, file.name)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file.name}:{line}: not UTF-8; save the file as UTF-8") from None
    limit, number, names = csv.field_size_limit(sys.maxsize), 0, None
    try:
        table = csv.reader(io.StringIO(text, newline=""), strict=True)
        for fields in table:
            if names is None or not any(fields):
                names = names or _header(fields, f"{file.name}:{number + 1}") or None
                yield {}
            else:
                yield _named(names, fields)
            yield from ({} for _ in range(table.line_num - number - 1))
            number = table.line_num
    except csv.Error as error:
        reason = f'not CSV ({error}); put columns with quotes or commas in quotes, and write " as ""'
        raise UsageError(f"{file.name}:{number + 1}: {reason}") from None
    finally:
        csv.field_size_limit(limit)


def _header(fields: Sequence[str], where: str) -> list[str]:
    """Return the names of the columns of a CSV file."""
    names = [name.strip() for name in fields]
    if len(names) == 1 and (mark := next((mark for mark in "\t;|" if mark in names[0]), None)):
        raise UsageError(f"{where}: columns are separated by {mark!r}; save the file with commas")
    for name in names:
        if name and names.count(name) > 1:
            raise UsageError(f"{where}: two columns have the name '{name}'; rename one")
    return names


def _named(names: Sequence[str], fields: Sequence[str]) -> Row:
    if len(fields) != len(names):
        return BadRow(f"{len(fields)} column{'s' if len(fields) > 1 else ''} instead of {len(names)}")
    row: dict[str, Any] = {name: value or None for name, value in zip(names, fields, strict=True)}
    try:
        lists = {name: parse_json(row[name], f"'{name}'") for name in _LISTS if row.get(name) is not None}
    except BadRow as bad:
        return bad
    # Columns without a value are missing; those of prompts and targets are null.
    kept = {*PROMPTS, *TARGETS}
    return {name: value for name, value in {**row, **lists}.items() if value is not None or name in kept}
