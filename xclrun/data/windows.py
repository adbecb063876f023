"""Questions about texts as subwords: a question, and as much of the text as fits, in windows that overlap.

The layout of BERT's SQuAD recipe (Devlin et al. 2019, section 4.2): [CLS] question [SEP] text [SEP]. A text that is too
long goes into several windows, each beginning ``room − stride`` pieces after the one before, as a fast tokenizer does
with ``truncation="only_second", stride=…, return_overflowing_tokens=True``. All windows of an example are rows of their
own, one after the other; the answer is marked in those that have all of it, the others say [CLS].

Every distinct text and question is tokenised once. Characters are Unicode code points, as in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from xclrun.config.schema import ModelConfig, WindowsConfig
from xclrun.core.errors import UsageError
from xclrun.core.task import Task
from xclrun.data.batches import UNSEEN, Encoded, Ragged, Windows, offsets_of
from xclrun.data.encode import Frame, encode
from xclrun.data.example import Example

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Texts that the tokenizer gets at a time: what it returns takes far more memory than what is kept of it.
CHUNK = 1024
# The word that represents [CLS], and its characters.
_CLS, _NONE = np.zeros(1, np.int32), np.zeros((1, 2), np.int32)
# Most special pieces around a pair, of any known encoder: RoBERTa's family has four.
SPECIAL = 4


def check_windows(max_length: int, windows: WindowsConfig, special: int = SPECIAL) -> None:
    """Check that windows have room for a question, for what they share, and for a piece more."""
    for name, least in (("question", 1), ("answer", 1), ("stride", 0)):
        if (value := getattr(windows, name)) < least:
            raise UsageError(f"model.windows.{name}={value}: must be at least {least}")
    needed = windows.question + windows.stride + special
    if max_length <= needed:
        raise UsageError(
            f"model.max_length={max_length}: must be above {needed}, for windows with questions of "
            f"model.windows.question={windows.question} pieces that share model.windows.stride={windows.stride}, and "
            f"{special} special ones; BERT's recipe has model.max_length=384"
        )


def encode_task(
    task: Task,
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    labels: Sequence[str],
    tags: Sequence[str],
    model: ModelConfig,
) -> Encoded:
    """Encode examples as their task has it: texts with answers in windows, all others whole (`encode`)."""
    if task.answers:
        return encode_windows(examples, tokenizer, model.max_length, model.windows)
    return encode(examples, tokenizer, labels, tags, model.max_length, model.label_on, task.words)


@dataclass(frozen=True)
class _Text:
    """The pieces of a text: their ids (m,), and first and last + 1 characters (m, 2), both int32."""

    pieces: np.ndarray
    characters: np.ndarray


def encode_windows(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int, windows: WindowsConfig
) -> Encoded:
    """Encode texts with answers for a model.

    Args:
        examples: any languages; ``text_b`` is the question.
        tokenizer: a fast tokenizer with a padding piece.
        max_length: subwords of a window, special ones and the question included.
        windows: longest question, of which the rest is cut, and what windows share.

    Returns:
        A row for each window, ``n`` in all.
    """
    if tokenizer.pad_token_id is None:
        raise UsageError("the tokenizer has no padding piece")
    frame = Frame.of(tokenizer, paired=True)
    check_windows(max_length, windows, frame.special)
    after = sum(len(ids) for text, ids, _ in frame.runs[-1:] if text is None)
    [kind] = next(types for text, _, types in frame.runs if text == 1)
    told = list(dict.fromkeys(e.whole for e in examples))
    texts = dict(zip(told, _tokenised(tokenizer, told), strict=True))
    asked = list(dict.fromkeys(e.text_b or "" for e in examples))
    questions = dict(zip(asked, (text.pieces.tolist() for text in _tokenised(tokenizer, asked)), strict=True))
    # Arrays, since the windows of a large dataset are tens of millions of pieces.
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
    of = np.array(facts, np.int64).reshape(len(facts), 7)
    own = [examples[i] for i in of[:, 0]]
    pieces, words = _ragged(rows, 3), _ragged(positions, 2)
    return Encoded(
        ids=np.array([e.id for e in own], object),
        languages=np.array([e.language for e in own], object),
        pieces=pieces,
        types=_ragged(types, 3),
        word_pieces=words,
        tags=Ragged(np.empty(0, np.int32), np.zeros(len(own) + 1, np.int64)),
        labels=np.full(len(own), UNSEEN, np.int64),
        words=np.array([len(e.tokens) for e in own], np.int64),
        cut=of[:, 5].astype(bool),
        pad=int(tokenizer.pad_token_id),
        windows=Windows(
            examples=of[:, 0],
            gold=of[:, 1:3].copy(),
            first=of[:, 3],
            pieces=of[:, 4],
            answer=of[:, 6],
            longest=windows.answer,
            characters=_ragged(characters, 2, _NONE[:0]),
        ),
    )


def window_bounds(count: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield the first piece, and the one after the last, of each window of a text with ``count`` pieces."""
    for first in range(0, count, room - stride):
        yield first, min(first + room, count)
        if first + room >= count:
            return


def answer_pieces(example: Example, characters: np.ndarray) -> tuple[int, int] | None:
    """Return the first and the last piece of an example's first gold answer, among those of its text.

    None where it has no answer, or one of which no piece is left.

    Args:
        characters: (m, 2), of the pieces.
    """
    if not example.answers:
        return None
    text, start = example.answers[0]
    # Neither begins nor ends go down from piece to piece.
    first = int(np.searchsorted(characters[:, 1], start, side="right"))
    last = int(np.searchsorted(characters[:, 0], start + len(text), side="left")) - 1
    return (first, last) if first <= last else None


def _tokenised(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> Iterator[_Text]:
    for begin in range(0, len(texts), CHUNK):
        some = texts[begin : begin + CHUNK]
        found = tokenizer(
            some,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        for text, pieces, offsets in zip(some, found["input_ids"], found["offset_mapping"], strict=True):
            if not pieces:
                # A zero-width space, say.
                if tokenizer.unk_token_id is None:
                    raise UsageError(f"the tokenizer has no piece for {text!r}, and no unknown piece")
                pieces, offsets = [tokenizer.unk_token_id], [(0, len(text))]
            yield _Text(np.array(pieces, np.int32), _trimmed(text, np.array(offsets, np.int32)))


def _trimmed(text: str, characters: np.ndarray) -> np.ndarray:
    """Return first and last + 1 characters of pieces, without the white space that some tokenizers count to a piece."""
    blank = np.array([c.isspace() for c in text] + [False])
    while (wide := blank[characters[:, 0]] & (characters[:, 0] < characters[:, 1])).any():
        characters[:, 0] += wide
    return characters


def _ragged(parts: Sequence[np.ndarray], together: int, none: np.ndarray = _CLS[:0]) -> Ragged:
    """Return rows that are each so many parts, one after the other; ``none``: an empty part."""
    lengths = np.fromiter(map(len, parts), np.int64, len(parts)).reshape(-1, together).sum(axis=1)
    return Ragged(np.concatenate([none, *parts]), offsets_of(lengths))
