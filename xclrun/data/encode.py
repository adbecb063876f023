"""Encode examples as rows of subwords, with the positions of words and their labels.

Every distinct word is tokenized once; the result equals ``tokenizer(words, is_split_into_words=True)``. A word's label
is on its first or last subword. With ``label_on=all``, as in the CCL authors' public code, the first subword has the
label and the other subwords have a separate tag, X (docs/metrics.md, "Base scores"). `xclrun.data.windows` encodes
texts with answers.
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

# WordPiece replaces longer words, in characters, by the unknown token.
LONG_WORD = 100


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

    A word without subwords (for example, a zero-width space) gets the unknown token, so that every word has a label. A
    sentence of more than ``max_length`` subwords is truncated after the last word that fits; if the first word does not
    fit, that word is truncated. The longer text of a pair loses words first. A sentence also counts as truncated if a
    word of more than `LONG_WORD` characters, such as a text without spaces, becomes the unknown token.

    Args:
        tokenizer: a fast tokenizer with a padding token.
        labels, tags: names of the classes and tags, in the order of their ids.
        max_length: subwords per sentence, including special tokens.
        label_on: the subword that has the label of its word, ``first`` or ``last``. With ``all``, the first subword
            has the label, and the others have the tag X, whose id is the number of tags.
        whole_words: truncate at the end of a word, for tasks with labels of words (`xclrun.core.task.Task.words`);
            False: truncate at any subword.
    """
    if tokenizer.pad_token_id is None:
        raise UsageError("the tokenizer has no padding token")
    seconds = [e.tokens_b for e in examples]
    frames = [Frame.of(tokenizer, paired) for paired in (False, True)]
    special = frames[any(seconds)].special
    if max_length <= special:
        raise UsageError(f"model.max_length={max_length}: must be above {special}, the number of special tokens")
    pieces_of = _pieces_of(tokenizer, chain.from_iterable(chain((e.tokens for e in examples), seconds)))
    unread = {word for word, ids in pieces_of.items() if len(word) > LONG_WORD and ids == [tokenizer.unk_token_id]}
    label_ids = {name: i for i, name in enumerate(labels)}
    tag_ids = {name: i for i, name in enumerate(tags)}
    on, tail = LabelOn(label_on), len(tags)
    rows, types, cut = [], [], []
    positions: list[list[int]] = []
    gold: list[list[int]] = []
    for example, second in zip(examples, seconds, strict=True):
        frame = frames[bool(second)]
        words, words_b = [pieces_of[word] for word in example.tokens], [pieces_of[word] for word in second]
        if not whole_words:
            words, words_b = _single(words), _single(words_b)
        cut.append(
            _fit(words, words_b, max_length - frame.special) or not unread.isdisjoint((*example.tokens, *second))
        )
        row, row_types, start = frame.around(words, words_b)
        ends = list(accumulate(map(len, words), initial=start))
        rows.append(row)
        types.append(row_types)
        if not whole_words:
            positions.append([])
            gold.append([])
            continue
        word_tags = [tag_ids.get(tag, UNSEEN) for tag in (example.tags or [""] * len(words))[: len(words)]]
        if on is LabelOn.all:
            positions.append([*range(ends[0], ends[-1])])
            pairs = zip(words, word_tags, strict=True)
            gold.append([tag if i == 0 else tail for word, tag in pairs for i in range(len(word))])
        else:
            positions.append([end - 1 for end in ends[1:]] if on is LabelOn.last else ends[:-1])
            gold.append(word_tags)
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
    """Return the number of outputs of a tag head: the tags of the data, and X if all subwords have labels."""
    return len(tags) + (LabelOn(label_on) is LabelOn.all and len(tags) > 0)


def word_numbers(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int, whole_words: bool
) -> Ragged:
    """Return the index of the word that each subword belongs to, in the same rows as ``pieces`` of `encode`.

    Numbers start at 0 in the first text and continue in the second text; special tokens have −1.
    """
    seconds = [e.tokens_b for e in examples]
    runs = [Frame.of(tokenizer, paired).runs for paired in (False, True)]
    frames = [Frame(tuple((text, (-1,) * len(ids), types) for text, ids, types in parts)) for parts in runs]
    pieces_of = _pieces_of(tokenizer, chain.from_iterable(chain((e.tokens for e in examples), seconds)))
    rows = []
    for example, second in zip(examples, seconds, strict=True):
        frame = frames[bool(second)]
        numbers = [[i] * len(pieces_of[word]) for i, word in enumerate((*example.tokens, *second))]
        words, words_b = numbers[: len(example.tokens)], numbers[len(example.tokens) :]
        if not whole_words:
            words, words_b = _single(words), _single(words_b)
        _fit(words, words_b, max_length - frame.special)
        rows.append(frame.around(words, words_b)[0])
    return Ragged.of(rows)


@dataclass(frozen=True)
class Frame:
    """The special tokens and token types that a tokenizer adds to a single text or to a pair.

    Attributes:
        runs: the parts of a row, in order: (None, ids, types) for special tokens; (0, (), (type,)) for the first text
            and (1, (), (type,)) for the second, with the type of its subwords.
    """

    runs: tuple[tuple[int | None, tuple[int, ...], tuple[int, ...]], ...]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast, paired: bool) -> Frame:
        """Return the frame of a tokenizer, found by encoding short texts."""
        probe = tokenizer(["a"], ["a"] if paired else None, is_split_into_words=True, return_token_type_ids=True)
        pieces = zip(probe.sequence_ids(), probe["input_ids"], probe["token_type_ids"], strict=True)
        runs = []
        for text, group in groupby(pieces, key=lambda piece: piece[0]):
            _, ids, types = zip(*group, strict=True)
            runs.append((text, ids, types) if text is None else (text, (), types[:1]))
        return cls(tuple(runs))

    @property
    def special(self) -> int:
        return sum(len(ids) for _, ids, _ in self.runs)

    def around(self, *texts: Iterable[list[int]]) -> tuple[list[int], list[int], int]:
        """Insert texts (the subwords of each word); return the row, its token types, and the first text's start."""
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
    """Return word → its subwords inside a sentence."""
    distinct = list(dict.fromkeys(words))
    if not distinct:
        return {}
    space = " " if _space_counts(tokenizer) else ""
    rows = _pieces(tokenizer, [[space + word] for word in distinct])
    unknown = tokenizer.unk_token_id
    if unknown is None and not all(rows):
        raise UsageError(f"the tokenizer has no subword for {distinct[rows.index([])]!r}, and no unknown token")
    return {word: pieces or [unknown] for word, pieces in zip(distinct, rows, strict=True)}


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
    """Whether a single word must begin with a space to be tokenized as in a text (byte-level BPE, Gemma)."""
    [text], [alone], [spaced] = (_pieces(tokenizer, [sample]) for sample in ("a a", ["a"], [" a"]))
    return text[-len(alone) :] != alone and text[-len(spaced) :] == spaced


def _single(words: list[list[int]]) -> list[list[int]]:
    return [[piece] for word in words for piece in word]


def _fit(words: list[list[int]], words_b: list[list[int]], budget: int) -> bool:
    """Remove words from the end of the longer text until the subwords fit; return whether any were removed."""
    first, second = sum(map(len, words)), sum(map(len, words_b))
    fits = first + second <= budget
    while first + second > budget:
        if len(words) > 1 and first >= second:
            first -= len(words.pop())
        elif words_b:
            second -= len(words_b.pop())
        else:
            words[0] = words[0][:budget]
            break
    return not fits
