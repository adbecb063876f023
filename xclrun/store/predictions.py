"""Prediction rows: what every number is computed from. One Parquet file per hop, compact types.

| column | meaning |
|---|---|
| run_id | the run (absent in the store, where runs share the rows) |
| hop, step | evaluation point: hop 0 is before fine-tuning; main steps taken in the hop when the weights were taken |
| examples_seen | training examples seen in the hop by then, replayed ones included |
| split, language, example_id | what was predicted |
| gold, predicted | class ids; gold −1: training never had the class; null where the task has no labels |
| log2_gold | log2 p(gold class); null where gold is −1 or null |
| gold_tags, predicted_tags | tag ids of all words that are scored; gold −1: training never had the tag; null without |
| tp, fp, fn | spans: right, wrongly predicted, missed; where tags are no spans: words that are right, wrong, wrong |
| log2_gold_tags | log2 p(gold tags) of the words the model saw; null if one is −1 |
| tokens | words of the sentence |

The rows of the block that a hop predicts before training on it (`xclrun.core.stream.Hop.codes`; split ``train``) have
one more column, since an online codelength counts words beyond the length limit too:

| column | meaning |
|---|---|
| seen | words that the model saw; 0 without tags |

Rows of answers (task ``span``) have these too:

| column | meaning |
|---|---|
| answer | the predicted answer, as it is written in the text; empty: the model says that there is none |
| answer_start, answer_end | its first character in the text, and the one after its last; null if it is empty |
| gold_answers | all gold answers; none where the question has no answer |
| log2_gold | log2 p(first gold answer) among all spans of the text, `log2_classes` of them; null where no window \
has it, or it is too long (see `xclrun.train.answers`) |
| log2_classes | log2 of the number of spans that an answer can be |
| text | number of the question's text among the texts of the split, from 0: questions about one text share it |

Rows of pairs of texts have ``text`` too, where some of them have the first text in common, as the hypotheses about a
premise do: what is drawn then are texts (docs/metrics.md, "Bootstrap").

Of a sentence that was cut at the length limit, slots beyond count as not found, so all words are scored; tags beyond
are left out where the task is ``token_tags``: then `tokens` says how many words there were.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.store.files import atomic_write

if TYPE_CHECKING:
    import pyarrow as pa


# The rows of a block in the folder of a stage.
BLOCK = "next.parquet"
# Columns of answers.
ANSWERS = ("answer", "answer_start", "answer_end", "gold_answers", "log2_classes")
# Of answers, and of pairs.
TEXT = "text"


def schema(answers: bool = False, block: bool = False, texts: bool = False) -> pa.Schema:
    """Return the Arrow schema of the rows in the store (without run_id).

    Args:
        answers: with the columns of answers, `TEXT` not among them.
        block: with those of the rows of a block.
        texts: with `TEXT`.
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
            ("gold", pa.int16()),
            ("predicted", pa.int16()),
            ("log2_gold", pa.float32()),
            ("gold_tags", pa.list_(pa.int16())),
            ("predicted_tags", pa.list_(pa.int16())),
            ("tp", pa.int16()),
            ("fp", pa.int16()),
            ("fn", pa.int16()),
            ("log2_gold_tags", pa.float32()),
            ("tokens", pa.int16()),
            *(zip(ANSWERS, (pa.string(), pa.int32(), pa.int32(), pa.list_(pa.string()), pa.float32()), strict=True)
              if answers else ()),
            *([(TEXT, pa.int32())] if texts else []),
            *([("seen", pa.int16())] if block else []),
        ]
    )  # fmt: skip


def joined(parts: Iterable[Mapping[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    """Return the columns of several splits as one, one after the other; what only some of them have is null in others.

    Without any rows there are no columns.
    """
    parts = list(parts)
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: [v for part in parts for v in part.get(name, [None] * len(part["split"]))] for name in names}


def of_block(columns: dict[str, Any]) -> pa.Table:
    """Return the rows of a block as an Arrow table: those of `table`, and ``seen``."""
    return table(columns, block=True)


def table(columns: dict[str, Any], block: bool = False) -> pa.Table:
    """Return prediction rows as an Arrow table with the exact types of `schema`; ``block``: those of a block."""
    import pyarrow as pa

    types = schema(ANSWERS[0] in columns, block, TEXT in columns)
    return pa.table({f.name: pa.array(columns[f.name], type=f.type, from_pandas=True) for f in types}, schema=types)


def content(rows: pa.Table, **constant: Any) -> bytes:
    """Return rows as a Parquet file; ``constant`` columns, such as run_id or hop, are set for all rows."""
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
    """Write rows to a Parquet file atomically, as `content` gives it."""
    atomic_write(path, content(rows, **constant))


def read(path: Path) -> pa.Table:
    """Read a prediction file."""
    import pyarrow.parquet as pq

    return pq.read_table(path)
