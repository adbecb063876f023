"""From examples to subwords: rows of ids, and where words and their labels are in them.

Every distinct word is tokenised once; a sentence is its words' pieces between the tokenizer's special ones, which is
what ``tokenizer(words, is_split_into_words=True)`` gives. A word's label sits on its first or last piece, or on its
first with its own tag, X, on all others (``all``: the CCL authors' public code). docs/metrics.md, "Base scores".
Texts with answers are encoded in windows, by `xclrun.data.windows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.config.schema import LabelOn
from xclrun.core.errors import UsageError
from xclrun.data.batches import UNSEEN, Encoded, Ragged
from xclrun.data.example import Example

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def encode(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    labels: Sequence[str],
    tags: Sequence[str],
    max_length: int,
    label_on: LabelOn | str = LabelOn.first,
    whole_words: bool = True,
) -> Encoded:
    """Encode examples for a model.

    A word that gives no piece (a zero-width space, say) gets the unknown piece, so that every word has a label. A
    sentence longer than ``max_length`` pieces is cut after the last word that fits whole; its first word is always
    kept, and cut itself where it alone is too long. Of a pair, the longer text loses words first. Where words need not
    be distinguished, the same is done with single pieces, and no piece carries a word's label.

    Args:
        examples: any languages.
        tokenizer: a fast tokenizer with a padding piece.
        labels: names of the classes, in the order of their ids.
        tags: names of the tags, in the order of their ids.
        max_length: subwords per sentence, special ones included.
        label_on: ``first`` or ``last``: the piece that carries its word's label; ``all``: the first, and the others
            carry X, whose id is the number of tags.
        whole_words: whether words are distinguished (`xclrun.core.task.Task.words`).
    """
    if tokenizer.pad_token_id is None:
        raise UsageError("the tokenizer has no padding piece")
    seconds = [e.tokens_b for e in examples]
    frames = [Frame.of(tokenizer, paired) for paired in (False, True)]
    special = frames[any(seconds)].special
    if max_length <= special:
        raise UsageError(f"model.max_length={max_length}: must be above {special}, the number of special pieces")
    pieces_of = _pieces_of(tokenizer, chain.from_iterable(chain((e.tokens for e in examples), seconds)))
    label_ids = {name: i for i, name in enumerate(labels)}
    tag_ids = {name: i for i, name in enumerate(tags)}
    on, tail = LabelOn(label_on), len(tags)
    rows, types, cut = [], [], []
    positions: list[list[int]] = []
    gold: list[list[int]] = []
    for example, second in zip(examples, seconds, strict=True):
        frame = frames[bool(second)]
        words, others = [pieces_of[word] for word in example.tokens], [pieces_of[word] for word in second]
        if not whole_words:
            words, others = _single(words), _single(others)
        cut.append(_fit(words, others, max_length - frame.special))
        row, row_types, start = frame.around(words, others)
        ends = list(accumulate(map(len, words), initial=start))
        rows.append(row)
        types.append(row_types)
        if not whole_words:
            positions.append([])
            gold.append([])
            continue
        of_words = [tag_ids.get(tag, UNSEEN) for tag in (example.tags or [""] * len(words))[: len(words)]]
        if on is LabelOn.all:
            positions.append([*range(ends[0], ends[-1])])
            pairs = zip(words, of_words, strict=True)
            gold.append([tag if i == 0 else tail for word, tag in pairs for i in range(len(word))])
        else:
            positions.append([end - 1 for end in ends[1:]] if on is LabelOn.last else ends[:-1])
            gold.append(of_words)
    return Encoded(
        ids=np.array([e.id for e in examples], object),
        languages=np.array([e.language for e in examples], object),
        pieces=Ragged.of(rows),
        types=Ragged.of(types),
        word_pieces=Ragged.of(positions),
        tags=Ragged.of(gold),
        labels=np.array([UNSEEN if e.label is None else label_ids.get(e.label, UNSEEN) for e in examples], np.int64),
        words=np.array([len(e.tokens) for e in examples], np.int64),
        cut=np.array(cut, bool),
        pad=int(tokenizer.pad_token_id),
    )


def tag_outputs(tags: Sequence[str], label_on: LabelOn | str) -> int:
    """Return how many tags a head tells apart: those of the data, and X where all pieces are labelled."""
    return len(tags) + (LabelOn(label_on) is LabelOn.all and len(tags) > 0)


def word_numbers(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int, whole_words: bool
) -> Ragged:
    """Return for each piece of `encode` the word that it is a part of: same rows as ``pieces``.

    Words count from 0, those of the second text after those of the first; −1 for special pieces.
    """
    seconds = [e.tokens_b for e in examples]
    frames = [Frame.of(tokenizer, paired).unnamed() for paired in (False, True)]
    pieces_of = _pieces_of(tokenizer, chain.from_iterable(chain((e.tokens for e in examples), seconds)))
    rows = []
    for example, second in zip(examples, seconds, strict=True):
        frame = frames[bool(second)]
        numbers = [[i] * len(pieces_of[word]) for i, word in enumerate((*example.tokens, *second))]
        words, others = numbers[: len(example.tokens)], numbers[len(example.tokens) :]
        if not whole_words:
            words, others = _single(words), _single(others)
        _fit(words, others, max_length - frame.special)
        rows.append(frame.around(words, others)[0])
    return Ragged.of(rows)


@dataclass(frozen=True)
class Frame:
    """What a tokenizer puts around one text or two, found out by asking it: special pieces and token types.

    Attributes:
        runs: what a row consists of, in order: (None, special pieces, their types), or (0 for the first text and 1 for
            the second, (), type of its pieces).
    """

    runs: tuple[tuple[int | None, tuple[int, ...], tuple[int, ...]], ...]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast, paired: bool) -> Frame:
        """Ask with a short text or two."""
        probe = tokenizer(["a"], ["a"] if paired else None, is_split_into_words=True, return_token_type_ids=True)
        pieces = zip(probe.sequence_ids(), probe["input_ids"], probe["token_type_ids"], strict=True)
        runs = []
        for text, group in groupby(pieces, key=lambda piece: piece[0]):
            _, ids, types = zip(*group, strict=True)
            runs.append((text, ids, types) if text is None else (text, (), types[:1]))
        return cls(tuple(runs))

    def unnamed(self) -> Frame:
        """Return the frame with −1 for each special piece."""
        return Frame(tuple((text, (-1,) * len(ids), types) for text, ids, types in self.runs))

    @property
    def special(self) -> int:
        """The number of special pieces."""
        return sum(len(ids) for _, ids, _ in self.runs)

    def around(self, *texts: Iterable[list[int]]) -> tuple[list[int], list[int], int]:
        """Return the row of the texts' words, the types of its pieces, and where the first text starts."""
        row: list[int] = []
        row_types: list[int] = []
        start = 0
        for text, ids, types in self.runs:
            if text == 0:
                start = len(row)
            row.extend(ids if text is None else chain.from_iterable(texts[text]))
            row_types.extend(types if text is None else types * (len(row) - len(row_types)))
        return row, row_types, start


def _pieces_of(tokenizer: PreTrainedTokenizerFast, words: Iterable[str]) -> dict[str, list[int]]:
    """Return word → pieces, as the word has them in a sentence given word by word."""
    distinct = list(dict.fromkeys(words))
    if not distinct:
        return {}
    space = " " if _space_counts(tokenizer) else ""
    found = _pieces(tokenizer, [[space + word] for word in distinct])
    unknown = tokenizer.unk_token_id
    if unknown is None and not all(found):
        raise UsageError(f"the tokenizer has no piece for {distinct[found.index([])]!r}, and no unknown piece")
    return {word: pieces or [unknown] for word, pieces in zip(distinct, found, strict=True)}


def _pieces(tokenizer: PreTrainedTokenizerFast, words: Sequence[Any]) -> list[list[int]]:
    return tokenizer(
        words,
        is_split_into_words=not isinstance(words[0], str),
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )["input_ids"]


def _space_counts(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether a word alone has the pieces of one in a text only with the space before it (byte-level BPE, Gemma)."""
    [text], [alone], [spaced] = (_pieces(tokenizer, [given]) for given in ("a a", ["a"], [" a"]))
    return text[-len(alone) :] != alone and text[-len(spaced) :] == spaced


def _single(words: list[list[int]]) -> list[list[int]]:
    return [[piece] for word in words for piece in word]


def _fit(words: list[list[int]], others: list[list[int]], budget: int) -> bool:
    """Drop words from the end of the longer text until the pieces fit; return whether any had to go."""
    first, second = sum(map(len, words)), sum(map(len, others))
    fits = first + second <= budget
    while first + second > budget:
        if len(words) > 1 and first >= second:
            first -= len(words.pop())
        elif others:
            second -= len(others.pop())
        else:
            words[0] = words[0][:budget]
            break
    return not fits
