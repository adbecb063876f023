"""Encode documents for causal language models, without torch.

A row is a beginning and subwords of a document. As in `xclrun.data.texts`, the states that predict a subword are the
row's "words", and the predicted subwords are their "tags"; the last one is no input.

- **Beginning**: what the tokenizer writes before a text; otherwise its BOS or, without one, its end (EOS).
- **Training**: a document is one row. It ends with EOS, which is learned. Subwords beyond ``model.max_length`` are cut
  and counted, with the end.
- **Dev and test**: a document is one row or several, its windows. Every subword is predicted once; EOS is not. A window
  predicts ``model.max_length`` subwords, and begins with one subword of context. The last window is as long, so that it
  has more context. With ``evaluate.stride`` = s, each window after the first predicts s subwords and has the others as
  context. These are the windows of lm-eval (``get_rolling_token_windows`` and ``make_disjoint_window``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.data.batches import UNSEEN, Encoded, Ragged
from xclrun.data.example import Example, Targets
from xclrun.data.texts import CUT_TARGET, Ends, subwords

# Documents per tokenizer call; limits memory, since the tokenizer's output is far larger than the result.
CHUNK = 1024


def encode_documents(
    examples: Sequence[Example],
    tokenizer: Any,
    target: Targets,
    model: ModelConfig,
    split: str = "test",
    stride: int | None = None,
) -> Encoded:
    """Encode documents; the windows of a document are consecutive rows with its ID.

    Args:
        stride: subwords that each window after the first predicts, at most ``model.max_length``; None: this number.
    """
    trains, ends, start = split == "train", Ends.of(tokenizer), beginning(tokenizer)
    # The input of a row is its beginning, and all predicted subwords but the last.
    room = model.max_length - len(start) + 1
    if room < 1:
        raise UsageError(f"model.max_length={model.max_length}: the tokenizer writes {len(start)} before each text")
    rows, places, targets, owners, cut = [], [], [], [], []
    for number, pieces in enumerate(_encoded(examples, tokenizer)):
        if not pieces:
            raise UsageError(f"document '{examples[number].id}': the tokenizer has no subword for it")
        if trains:
            pieces = [*pieces, ends.end]
            windows = [([*start, *pieces[:room][:-1]], pieces[:room])]
        else:
            windows = list(windows_of(pieces, start, room, min(stride or room, room)))
        for row, predicted in windows:
            rows.append(row)
            places.append(range(len(row) - len(predicted), len(row)))
            targets.append(predicted)
            owners.append(number)
            cut.append(trains and len(pieces) > room)
    of_rows, whole = [examples[number] for number in owners], Ragged.of(rows)
    return Encoded(
        ids=np.array([e.id for e in of_rows], object),
        languages=np.array([e.language for e in of_rows], object),
        pieces=whole,
        types=Ragged(np.zeros_like(whole.values), whole.offsets),
        word_pieces=Ragged.of(places),
        tags=Ragged.of(targets),
        labels=np.full(len(rows), UNSEEN, np.int64),
        words=np.array([len(e.tokens) for e in of_rows], np.int64),
        cut=np.array(cut, bool),
        pad=int(tokenizer.pad_token_id),
        tokenizer=tokenizer,
        marks=np.array(cut, np.int64) * CUT_TARGET,
    )


def beginning(tokenizer: Any) -> list[int]:
    """Return the subwords before a document."""
    written = list(Ends.of(tokenizer).start)
    bos = tokenizer.bos_token_id
    return written or [tokenizer.eos_token_id if bos is None else bos]


def windows_of(
    pieces: Sequence[int], start: Sequence[int], room: int, stride: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the inputs of each window of a document, and the subwords that it predicts: the last of them, shifted.

    >>> list(windows_of([1, 2, 3, 4, 5], [0], room=2, stride=2))
    [([0, 1], [1, 2]), ([2, 3], [3, 4]), ([3, 4], [5])]

    Args:
        pieces: subwords of the document.
        start: the beginning.
        room: predicted subwords of the first window, and length of the inputs of the others.
        stride: predicted subwords of each further window, at most ``room``.
    """
    yield [*start, *pieces[: min(room, len(pieces)) - 1]], list(pieces[:room])
    for first in range(room, len(pieces), stride):
        last = min(first + stride, len(pieces))
        yield list(pieces[last - room - 1 : last - 1]), list(pieces[first:last])


def _encoded(examples: Sequence[Example], tokenizer: Any) -> Iterator[list[int]]:
    for begin in range(0, len(examples), CHUNK):
        yield from subwords(tokenizer, [e.whole for e in examples[begin : begin + CHUNK]])
