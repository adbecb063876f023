"""Encode extractive question answering: a question and as much of the text as fits, in overlapping windows.

The layout is that of BERT's SQuAD recipe (Devlin et al. 2019, section 4.2): [CLS] question [SEP] text [SEP]. A long
text is split into several windows of ``room`` subwords, which is the space that the question leaves. Each window starts
``room − stride`` subwords after the previous window, as in a fast tokenizer with ``truncation="only_second", stride=…,
return_overflowing_tokens=True``. The windows of an example are consecutive rows. The gold answer of a window is the
answer's position if the window contains the whole answer; otherwise it is [CLS].

Every distinct text and question is tokenized once. Characters are Unicode code points, as in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from xclrun.config.schema import WindowsConfig
from xclrun.core.errors import UsageError
from xclrun.data.batches import UNSEEN, Encoded, Ragged, Windows, offsets_of
from xclrun.data.encode import Frame
from xclrun.data.example import Example

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Texts per tokenizer call; limits memory, since the tokenizer's output is far larger than the result.
CHUNK = 1024
# The position of [CLS] in a row, and its empty character range.
_CLS, _NONE = np.zeros(1, np.int32), np.zeros((1, 2), np.int32)
# Largest number of special tokens around a pair: four in RoBERTa's family.
SPECIAL = 4


def check_windows(max_length: int, windows: WindowsConfig, special: int = SPECIAL) -> None:
    """Check that a window has room for the question, the overlap and one more subword."""
    for name, least in (("question", 1), ("answer", 1), ("stride", 0)):
        if (value := getattr(windows, name)) < least:
            raise UsageError(f"model.windows.{name}={value}: must be at least {least}")
    needed = windows.question + windows.stride + special
    if max_length <= needed:
        raise UsageError(
            f"model.max_length={max_length}: must be above {needed} = model.windows.question={windows.question} + "
            f"model.windows.stride={windows.stride} + {special} special tokens; BERT's recipe has model.max_length=384"
        )


@dataclass(frozen=True)
class _Text:
    """The subwords of a text: their ids (m,) and character ranges [start, end) (m, 2), both int32."""

    pieces: np.ndarray
    characters: np.ndarray


def encode_windows(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int, windows: WindowsConfig
) -> Encoded:
    """Encode texts with answers, one row per window.

    Args:
        examples: ``text_b`` is the question.
        max_length: subwords of a window, including special tokens and the question.
    """
    if tokenizer.pad_token_id is None:
        raise UsageError("the tokenizer has no padding token")
    frame = Frame.of(tokenizer, paired=True)
    check_windows(max_length, windows, frame.special)
    after = sum(len(ids) for text, ids, _ in frame.runs[-1:] if text is None)
    [kind] = next(types for text, _, types in frame.runs if text == 1)
    texts = _tokenized(tokenizer, [e.whole for e in examples])
    tokenized = _tokenized(tokenizer, [e.text_b or "" for e in examples])
    questions = {question: tokens.pieces.tolist() for question, tokens in tokenized.items()}
    # Collect arrays, not lists: the windows of a large dataset have tens of millions of subwords.
    rows, types, positions, characters, facts = [], [], [], [], []
    for i, example in enumerate(examples):
        question, text = questions[example.text_b or ""], texts[example.whole]
        cut, question = len(question) > windows.question, question[: windows.question]
        gold, count = answer_pieces(example, text.characters), len(text.pieces)
        around, around_types = (np.array(part, np.int32) for part in frame.around([question], [])[:2])
        start = len(around) - after
        for first, last in window_bounds(count, max_length - frame.special - len(question), windows.stride):
            rows += [around[:start], text.pieces[first:last], around[start:]]
            types += [around_types[:start], np.full(last - first, kind, np.int32), around_types[start:]]
            positions += [_CLS, np.arange(start, start + last - first, dtype=np.int32)]
            characters += [_NONE, text.characters[first:last]]
            inside = gold is not None and first <= gold[0] and gold[1] < last
            marked = (gold[0] - first + 1, gold[1] - first + 1) if gold is not None and inside else (0, 0)
            facts.append((i, *marked, first, count, cut, 0 if gold is None else gold[1] - gold[0] + 1))
    table = np.array(facts, np.int64).reshape(len(facts), 7)
    per_row = [examples[i] for i in table[:, 0]]
    pieces, words = _ragged(rows, 3), _ragged(positions, 2)
    return Encoded(
        ids=np.array([e.id for e in per_row], object),
        languages=np.array([e.language for e in per_row], object),
        pieces=pieces,
        types=_ragged(types, 3),
        word_pieces=words,
        tags=Ragged(np.empty(0, np.int32), np.zeros(len(per_row) + 1, np.int64)),
        labels=np.full(len(per_row), UNSEEN, np.int64),
        words=np.array([len(e.tokens) for e in per_row], np.int64),
        cut=table[:, 5].astype(bool),
        pad=int(tokenizer.pad_token_id),
        windows=Windows(
            examples=table[:, 0],
            gold=table[:, 1:3].copy(),
            first=table[:, 3],
            pieces=table[:, 4],
            answer=table[:, 6],
            longest=windows.answer,
            characters=_ragged(characters, 2, _NONE[:0]),
        ),
    )


def window_bounds(count: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield the range [start, end) of subwords of each window of a text with ``count`` subwords."""
    for first in range(0, count, room - stride):
        yield first, min(first + room, count)
        if first + room >= count:
            return


def answer_pieces(example: Example, characters: np.ndarray) -> tuple[int, int] | None:
    """Return the indices of the first and last subword of an example's first gold answer; None without an answer.

    Args:
        characters: character ranges [start, end) of the text's m subwords, shape (m, 2).
    """
    if not example.answers:
        return None
    text, start = example.answers[0]
    # Binary search: starts and ends do not decrease from subword to subword.
    first = int(np.searchsorted(characters[:, 1], start, side="right"))
    last = int(np.searchsorted(characters[:, 0], start + len(text), side="left")) - 1
    return (first, last) if first <= last else None


def _tokenized(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> dict[str, _Text]:
    distinct, tokenized = list(dict.fromkeys(texts)), {}
    for begin in range(0, len(distinct), CHUNK):
        some = distinct[begin : begin + CHUNK]
        encoding = tokenizer(
            some,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        for text, pieces, offsets in zip(some, encoding["input_ids"], encoding["offset_mapping"], strict=True):
            if not pieces:
                # For example, a zero-width space.
                if tokenizer.unk_token_id is None:
                    raise UsageError(f"the tokenizer has no subword for {text!r}, and no unknown token")
                pieces, offsets = [tokenizer.unk_token_id], [(0, len(text))]
            tokenized[text] = _Text(np.array(pieces, np.int32), _trimmed(text, np.array(offsets, np.int32)))
    return tokenized


def _trimmed(text: str, characters: np.ndarray) -> np.ndarray:
    """Return the character ranges of subwords without leading white space, which some tokenizers include."""
    blank = np.array([c.isspace() for c in text] + [False])
    while (wide := blank[characters[:, 0]] & (characters[:, 0] < characters[:, 1])).any():
        characters[:, 0] += wide
    return characters


def _ragged(parts: Sequence[np.ndarray], together: int, none: np.ndarray = _CLS[:0]) -> Ragged:
    """Join every ``together`` consecutive parts into a row. ``none``, an empty part, allows ``parts`` to be empty."""
    lengths = np.fromiter(map(len, parts), np.int64, len(parts)).reshape(-1, together).sum(axis=1)
    return Ragged(np.concatenate([none, *parts]), offsets_of(lengths))
