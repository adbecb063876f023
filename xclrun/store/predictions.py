"""Prediction rows, the basis of every number: one Parquet file per hop.

| column | meaning |
|---|---|
| run_id | the run (absent in the store, where runs share the rows) |
| hop, step | evaluation point: hop 0 is before fine-tuning; step counts the training steps of the hop |
| examples_seen | training examples of the hop up to this step, including replayed ones |
| split, language, example_id | the example |
| gold, predicted | class ids; gold −1: class not in the training data; null in tasks without labels |
| log2_gold | log2 p(gold class); null where gold is −1 or null |
| gold_tags, predicted_tags | tag ids of all scored words; gold −1: tag not in the training data; null without tags |
| tp, fp, fn | spans: true positives, false positives, false negatives; single tags: correct, wrong, wrong words |
| log2_gold_tags | log2 p(gold tags) of the words within the length limit; null if one tag is −1 |
| tokens | words of the sentence |

Rows of a block that is predicted before training on it (`xclrun.core.stream.Hop.codes`; split ``train``) have an
additional column, since an online codelength includes words beyond the length limit:

| column | meaning |
|---|---|
| seen | words within the length limit; 0 without tags |

A task can have further columns (`xclrun.core.task.Task.columns`). Those of answers (task ``span``):

| column | meaning |
|---|---|
| answer | predicted answer, as in the text; empty: predicted to be unanswerable |
| answer_start, answer_end | half-open range of the answer's characters in the text; null if the answer is empty |
| gold_answers | all gold answers; empty for an unanswerable question |
| log2_gold | log2 p(first gold answer) among all 2^`log2_classes` spans of the text; null if no window contains the \
answer or the answer is too long (`xclrun.model.answers`) |
| log2_classes | log2 of the number of possible spans |
| text | index of the question's text in the split, from 0; questions about one text share the index |

Rows of text pairs also have ``text`` if several pairs share the first text, for example several hypotheses with one
premise. The bootstrap then draws texts (docs/metrics.md, "Bootstrap").

In a sentence truncated at the length limit, slots beyond the limit count as missed, so all words are scored. In the
task ``token_tags``, the rows do not contain tags beyond the limit; `tokens` is the number of all words.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.core.errors import UsageError
from xclrun.core.task import COLUMNS, EVERY_TASK, Column, Task
from xclrun.store.files import atomic_write

if TYPE_CHECKING:
    import pyarrow as pa


# File name of the rows of a block in a stage's folder.
BLOCK = "next.parquet"
# Column of answers and of text pairs.
TEXT = "text"


def schema(names: Collection[str] = (), block: bool = False) -> pa.Schema:
    """Return the Arrow schema of the rows in the store (without run_id).

    Args:
        names: names of further columns; include those that a task has (`xclrun.core.task.COLUMNS`).
        block: include the column of blocks.
    """
    import pyarrow as pa

    word = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            ("hop", pa.int16()),
            ("step", pa.int32()),
            ("examples_seen", pa.int64()),
            ("split", word),
            ("language", word),
            ("example_id", pa.string()),
            *((column.name, arrow_type(column)) for column in EVERY_TASK.values()),
            *((column.name, arrow_type(column)) for column in COLUMNS.values() if column.name in names),
            *([("seen", pa.int16())] if block else []),
        ]
    )


def arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column.

    Raises:
        UsageError: the type is unknown.
    """
    import pyarrow as pa

    inner = column.type.removeprefix("list<").removesuffix(">")
    try:
        value = pa.type_for_alias(inner)
    except ValueError:
        raise UsageError(
            f"column '{column.name}': unknown type '{column.type}'; use a type of Arrow such as float32"
        ) from None
    return value if inner == column.type else pa.list_(value)


def missing(rows: int, task: Task) -> dict[str, list[Any]]:
    """Return the columns of ``rows`` rows of a task without predictions."""
    columns = {column.name: column.missing for column in (*EVERY_TASK.values(), *task.columns)}
    return {name: [value] * rows for name, value in (columns | {"seen": 0}).items()}


def joined(parts: Iterable[Mapping[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    """Concatenate the columns of several splits; a column that a split lacks has its missing value there."""
    parts = list(parts)
    names = dict.fromkeys(name for part in parts for name in part)
    empty = {name: COLUMNS[name].missing if name in COLUMNS else None for name in names}
    return {name: [v for part in parts for v in part.get(name, [empty[name]] * len(part["split"]))] for name in names}


def table(columns: dict[str, Any], block: bool = False) -> pa.Table:
    """Return prediction rows as an Arrow table with the types of `schema`; ``block``: with the column of blocks."""
    import pyarrow as pa

    types = schema(columns, block)
    return pa.table({f.name: pa.array(columns[f.name], type=f.type, from_pandas=True) for f in types}, schema=types)


def content(rows: pa.Table, **constant: Any) -> bytes:
    """Return rows as the content of a Parquet file; ``constant``: columns to set for all rows, such as hop."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, value in constant.items():
        at = rows.schema.get_field_index(name)
        if at >= 0:
            rows = rows.set_column(
                at, rows.schema.field(at), pa.repeat(value, len(rows)).cast(rows.schema.field(at).type)
            )
        else:
            rows = rows.add_column(0, name, pa.repeat(value, len(rows)).dictionary_encode())
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    return buffer.getvalue()


def write(path: Path, rows: pa.Table, **constant: Any) -> None:
    atomic_write(path, content(rows, **constant))


def read(path: Path) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.read_table(path)
