"""A user's own texts in tables: CSV, TSV or Parquet, one row per text or pair of texts.

``dataset.text_column``, ``label_column`` and ``text_b_column`` name the columns of the first text, its label and the
second text. Without a header (``dataset.header=false``), columns are numbered from 1, or from the last with −1, −2, …
A column ``id`` names the rows. Other columns are ignored.

There is one file per language and split. With ``dataset.language_column``, or if ``dataset.languages`` selects a single
language, there may be one file per split (``train.csv``).

CSV files are quoted as in RFC 4180; columns are separated by ``,`` or, if this separates the named columns, by ``;``.
In TSV files, each line is a row, and quotes are removed only around a whole column. In Parquet files, integers of a
`ClassLabel` become names. Rows without a label are skipped and counted.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.data.example import SPLITS, Example
from xclrun.data.readers import reader
from xclrun.data.readers.collect import BadRow, Notes, Place, Source, Splits, collect, read_files, shortened
from xclrun.data.readers.files import SPLIT_NAMES, SplitFile, choose_languages, find_files, read_regular, root_of
from xclrun.data.readers.hub import class_names, named
from xclrun.data.readers.rows import field, text_example
from xclrun.data.readers.values import Skip, below_header, whole

ENDS = ("csv", "tsv", "parquet")
LAYOUT = (
    *(f"{{language}}{separator}{{split}}.{end}" for end in ENDS for separator in (".", "/", "-", "_")),
    "{language}/{split}-{part}.parquet",
)
# What to set if a file without a language in its name is meant.
SHARED = ": set dataset.language_column=NAME if a column does, or dataset.languages=[de] if all rows are German"
# Columns that often name the languages of rows.
LANGUAGE_COLUMNS = ("language", "lang", "locale")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
# The values of a row under the keys id, language, text, text_b and label, or its mistake under the key error; empty for
# lines without a row. A column of `LANGUAGE_COLUMNS` that no setting names is under ``column NAME``.
Row = dict[str, Any]


@reader("table", LAYOUT, gives=["label"])
def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    if (files := _shared_files(cfg)) is None:
        return read_files(cfg, find_files(cfg, LAYOUT, shared=SHARED), parse, partial(rows, cfg))
    tables = {split: (file.name, list(rows(cfg, file))) for split, file in files.items()}
    if cfg.language_column is None:
        [language] = map(str, cfg.languages or ())
        for name, table in tables.values():
            _refuse_languages(name, table, language)
        return collect(cfg, [Source(language, split, *table) for split, table in tables.items()], parse)
    available = {row["language"] for _, table in tables.values() for row in table if "language" in row}
    chosen = choose_languages(cfg.languages, available, f"the column '{cfg.language_column}'")
    sources = []
    for language in chosen:
        for split, (name, table) in tables.items():
            # Rows with a mistake belong to no language; they are reported with the first.
            chosen_rows = [row if row.get("language", chosen[0]) == language else {} for row in table]
            if any(chosen_rows):
                sources.append(Source(language, split, name, chosen_rows))
            elif split == "test":
                raise UsageError(f"{name}: no test rows of '{language}'; select languages with dataset.languages=[…]")
    return collect(cfg, sources, parse)


def _refuse_languages(name: str, table: Iterable[Row], language: str) -> None:
    """Refuse a file that is read as one language if a column names several."""
    for column in LANGUAGE_COLUMNS:
        found = sorted({str(row[key]).strip() for row in table if row.get(key := f"column {column}")})
        if len(found) > 1:
            named = f"names several languages ({shortened(', '.join(found))})"
            other = f"rename the column if all rows are in '{language}'"
            raise UsageError(f"{name}: the column '{column}' {named}; set dataset.language_column={column}, or {other}")


def parse(row: Row, place: Place) -> Example:
    """Return the example of a row."""
    if "error" in row:
        raise BadRow(row["error"])
    if "header" in row:
        raise Skip("header_lines", "names of columns", sentence=False)
    text = field(row, "text", "text")
    text_b = field(row, "text", "text_b") if "text_b" in row else None
    id, label = row.get("id"), row["label"]
    if label is None or label != label or not str(label).strip():
        raise Skip("unlabeled", "the label is missing")
    if not isinstance(label, str | int | float):
        raise BadRow(f"'label' must be one name or number, not {shortened(repr(label))}")
    id = place.sentence_name if id is None or id != id or id == "" else whole(id)
    return text_example(place, id, text, str(whole(label)).strip(), text_b)


def _shared_files(cfg: DatasetConfig) -> dict[str, SplitFile] | None:
    """Return split → its file with the rows of all languages, or None if each language has its own files."""
    if cfg.language_column is None and len(cfg.languages or ()) != 1:
        return None
    root = root_of(cfg, LAYOUT)
    names = {split: [f"{name}.{end}" for name in SPLIT_NAMES[split] for end in ENDS] for split in SPLITS}
    if cfg.language_column is None:
        [language] = map(str, cfg.languages or ())
        layout = [name.format(language=language, split="test", part="*") for name in LAYOUT]
        if root.first(language, "test", names["test"]) is None or any(any(root.path.glob(name)) for name in layout):
            return None
    files = {"train": root.required("", "train", names["train"]), "dev": root.first("", "dev", names["dev"])}
    files["test"] = root.required("", "test", names["test"])
    return {split: file for split, file in files.items() if file is not None}


def rows(cfg: DatasetConfig, file: SplitFile) -> Iterator[Row]:
    """Yield the rows of a file, each at the number of its first line."""
    is_parquet = file.path.suffix == ".parquet"
    header = cfg.header or is_parquet
    read: Callable[[DatasetConfig, SplitFile], Iterable[Sequence[Any]]]
    read = _parquet if is_parquet else _csv if file.path.suffix == ".csv" else _tsv
    lines = iter(read(cfg, file))
    for first in lines:
        if first:
            break
        yield {}
    else:
        raise UsageError(f"{file.name}: no examples")
    columns = _columns(cfg, file, [str(name).strip() for name in first], header)
    if not header and below_header("\t".join(first)) is not None:
        raise UsageError(f"{file.name}:1: names of columns; set dataset.header=true")
    if header and not is_parquet:
        yield {}
    for fields in lines if header else chain([first], lines):
        row: Row = {}
        if header and not is_parquet and list(fields) == list(first):
            # Joined files have the names of columns several times.
            row = {"header": True}
        elif len(fields) == len(first):
            row = {key: fields[i] for key, i in columns.items()}
        elif any(field.strip() for field in fields):
            row = {"error": f"{len(fields)} column{'s' if len(fields) > 1 else ''} instead of {len(first)}"}
        if "language" in row:
            row["language"] = str(row["language"] or "").strip()
            row = row if row["language"] else {"error": f"no language in the column '{cfg.language_column}'"}
        yield row


def _columns(cfg: DatasetConfig, file: SplitFile, names: Sequence[str], header: bool) -> dict[str, int]:
    """Return key → index of its column."""
    settings = {"text": cfg.text_column, "label": cfg.label_column, "text_b": cfg.text_b_column}
    settings["language"] = cfg.language_column
    columns = {"id": names.index("id")} if header and "id" in names else {}
    for key, column in settings.items():
        if column is None:
            continue
        setting = f"{file.name}: dataset.{key}_column={column}"
        if not header:
            number = int(column) if re.fullmatch(r"-?\d{1,6}", column) else 0
            columns[key] = number - 1 if number > 0 else len(names) + number
            if number == 0 or not 0 <= columns[key] < len(names):
                raise UsageError(f"{setting}: without a header, columns have numbers from 1 to {len(names)}")
        elif names.count(column) != 1:
            several = f"{names.count(column)} columns have this name; rename one of them"
            missing = f"no such column; {did_you_mean(column, map(shortened, names))}"
            unnamed = "; if the first line is a row, set dataset.header=false"
            if len(names) == 1 and re.search(r"[,\t|]", names[0]):
                unnamed = "; separate the columns of .csv files by commas, and of .tsv files by tabs"
            raise UsageError(f"{setting}: {several if column in names else missing + unnamed}")
        else:
            columns[key] = names.index(column)
    if header and cfg.language_column is None:
        other = (name for name in LANGUAGE_COLUMNS if name in names and name not in settings.values())
        columns |= {f"column {name}": names.index(name) for name in other}
    return columns


def _csv(cfg: DatasetConfig, file: SplitFile) -> list[list[str]]:
    """Return the columns of each line; a row of several lines is followed by empty lists."""
    text = _text(file)
    names = {name.strip().strip('"') for name in text.partition("\n")[0].split(";")}
    # Spreadsheets write semicolons where the decimal separator is a comma.
    semicolons = cfg.header and {cfg.text_column, cfg.label_column} <= names
    limit = csv.field_size_limit(sys.maxsize)
    content: list[list[str]] = []
    try:
        table = csv.reader(io.StringIO(text, newline=""), delimiter=";" if semicolons else ",", strict=True)
        for fields in table:
            content.append(fields)
            content += [[]] * (table.line_num - len(content))
    except csv.Error as error:
        reason = f'not CSV ({error}); put columns with quotes or commas in quotes, and write " as ""'
        raise UsageError(f"{file.name}:{len(content) + 1}: {reason}") from None
    finally:
        csv.field_size_limit(limit)
    return content


def _tsv(cfg: DatasetConfig, file: SplitFile) -> Iterator[list[str]]:
    lines = _text(file).split("\n")
    if len(lines) == 1 and "\r" in lines[0].removesuffix("\r"):
        raise UsageError(f"{file.name}: carriage returns without line feeds; end lines with \\n or \\r\\n")
    for line in lines:
        fields = line.removesuffix("\r").split("\t") if line.strip() else []
        quoted = [_QUOTED.fullmatch(field) for field in fields]
        yield [match[1].replace('""', '"') if match else field for field, match in zip(fields, quoted, strict=True)]


def _text(file: SplitFile) -> str:
    content = read_regular(file.path, file.name)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file.name}:{line}: not UTF-8; save the file as UTF-8") from None


def _parquet(cfg: DatasetConfig, file: SplitFile) -> Iterator[Sequence[Any]]:
    """Yield the names of columns, then the values of each row; None in columns that are not used."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    used = {cfg.text_column, cfg.label_column, cfg.text_b_column, cfg.language_column, "id", *LANGUAGE_COLUMNS}
    try:
        with pq.ParquetFile(io.BytesIO(read_regular(file.path, file.name))) as parquet:
            schema = parquet.schema_arrow
            table = parquet.read(columns=[name for name in schema.names if name in used])
    except (pa.ArrowException, OSError) as error:
        raise UsageError(
            f"{file.name}: cannot be read as Parquet ({shortened(' '.join(str(error).split()))})"
        ) from None
    classes: dict[str, Any] = {}
    try:
        if b"huggingface" in (schema.metadata or {}):
            from datasets import Features

            classes = {name: class_names(feature) for name, feature in Features.from_arrow_schema(schema).items()}
        values: list[Iterable[Any]] = [
            [named(value, classes.get(name)) for value in table[name].to_pylist()] if name in used else repeat(None)
            for name in schema.names
        ]
    except ValueError as error:
        raise UsageError(f"{file.name}: {error}") from None
    yield schema.names
    if table.num_columns:
        yield from zip(*values, strict=False)
