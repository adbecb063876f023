"""Audit a dataset: sizes, label coverage, sentences shared between splits, and subword statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from xclrun.config.schema import ModelConfig
from xclrun.data.example import OUTSIDE, SPLITS, Dataset, Example, same_sentence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Coverage:
    """Counts of one language and split.

    Attributes:
        sentences: number of sentences; in extractive question answering, of questions.
        words: number of words; in extractive question answering, of the questions' texts.
        texts: distinct texts.
        labels, tags: distinct labels and tags in this split.
        of_labels, of_tags: distinct labels and tags in all training splits of the task.
        rarest: number of sentences with the rarest label of this split.
        unseen: number of sentences with a label or tag that no training split contains.
        not_in_own_train: number of sentences with a label or tag that only other languages' training splits contain.
    """

    language: str
    split: str
    sentences: int
    words: int
    texts: int
    labels: int
    of_labels: int
    tags: int
    of_tags: int
    rarest: int
    unseen: int
    not_in_own_train: int


@dataclass(frozen=True)
class Overlap:
    """Sentences that two splits share.

    Attributes:
        one, other: names of the two splits.
        language: language of ``other``. ``one`` has the same language, unless ``kind`` is ``translation``.
        kind: ``same sentence``: equal words, ignoring case; ``same text``: both splits have questions about the same
            text; ``translation``: equal ids in two languages, which is meaningful only for parallel corpora.
        sentences: number of sentences of ``other`` that also occur in ``one``.
        of: total number of sentences in ``other``.
    """

    one: str
    other: str
    language: str
    kind: str
    sentences: int
    of: int


@dataclass(frozen=True)
class Pieces:
    """Subword statistics of one language and split.

    Attributes:
        fertility: subwords per word.
        unknown: share of words with an unknown token.
        longest: number of subwords of the longest sentence, without special tokens.
        truncated: number of sentences that exceed the model's ``max_length``; in extractive question answering, of
            windows whose question is truncated.
        windows: number of input rows: windows in extractive question answering, otherwise sentences.
        split_answers: number of gold answers that no window contains completely.
        long_answers: number of gold answers longer than ``model.windows.answer``.
    """

    language: str
    split: str
    fertility: float
    unknown: float
    longest: int
    truncated: int
    windows: int
    split_answers: int = 0
    long_answers: int = 0


def coverage(dataset: Dataset) -> list[Coverage]:
    """Return sizes and label coverage of every language and split."""
    rows = []
    for language in dataset.languages:
        targets = dataset.targets_of(language)
        labels, tags = set(targets.labels), set(targets.tags)
        outside = {OUTSIDE} if targets.task.tag_spans else set()
        own_labels, own_tags = _names(dataset.split(language, "train"), outside)
        for split in SPLITS:
            examples = dataset.split(language, split)
            used, used_tags = _names(examples, outside)
            unseen = [dataset.unseen(e) for e in examples]
            foreign = [bool(_names([e], set())[0] - own_labels or set(e.tags or ()) - own_tags) for e in examples]
            rows.append(
                Coverage(
                    language,
                    split,
                    len(examples),
                    sum(len(e.tokens) for e in examples),
                    len({e.tokens for e in examples}),
                    len(used & labels),
                    len(labels),
                    len(used_tags & tags),
                    len(tags),
                    min(Counter(e.label for e in examples if e.label is not None).values(), default=0),
                    sum(unseen),
                    sum(f and not u for f, u in zip(foreign, unseen, strict=True)),
                )
            )
    return rows


def overlaps(dataset: Dataset) -> list[Overlap]:
    """Return the pairs of splits that share sentences, within a language and (by id) between languages."""
    return [overlap for overlap in _overlaps(dataset) if overlap.sentences]


def _overlaps(dataset: Dataset) -> Iterator[Overlap]:
    texts = {key: [same_sentence(e) for e in examples] for key, examples in dataset.splits.items()}
    ids = {key: {e.id for e in examples} for key, examples in dataset.splits.items()}
    for first, other in combinations(SPLITS, 2):
        for language in dataset.languages:
            earlier, later = set(texts[language, first]), texts[language, other]
            yield Overlap(first, other, language, "same sentence", sum(t in earlier for t in later), len(later))
            if dataset.task_of(language).answers:
                read = {e.tokens for e in dataset.split(language, first)}
                about = sum(e.tokens in read for e in dataset.split(language, other))
                yield Overlap(first, other, language, "same text", about, len(later))
            elsewhere = set().union(*(ids[second, first] for second in dataset.languages if second != language))
            shared = elsewhere & ids[language, other]
            yield Overlap(first, other, language, "translation", len(shared), len(ids[language, other]))


def pieces(dataset: Dataset, tokenizer: PreTrainedTokenizerFast, model: ModelConfig) -> list[Pieces]:
    """Return subword statistics of every language and split."""
    from xclrun.data.encodings import encode_task

    rows = []
    for language in dataset.languages:
        for split in SPLITS:
            examples = dataset.split(language, split)
            if not examples:
                continue
            words = Counter(word for e in examples for word in e.tokens)
            split_up = tokenizer([[w] for w in words], is_split_into_words=True, add_special_tokens=False)["input_ids"]
            length = {word: max(1, len(row)) for word, row in zip(words, split_up, strict=True)}
            unknown = {w for w, row in zip(words, split_up, strict=True) if not row or tokenizer.unk_token_id in row}
            total = words.total()
            targets = dataset.targets_of(language)
            encoded = encode_task(examples, tokenizer, targets, model)
            rows.append(
                Pieces(
                    language,
                    split,
                    sum(length[w] * n for w, n in words.items()) / total,
                    sum(words[w] for w in unknown) / total,
                    max(sum(length[w] for w in e.tokens) for e in examples),
                    int(encoded.cut.sum()),
                    len(encoded),
                    0 if encoded.windows is None else encoded.windows.split_answers,
                    0 if encoded.windows is None else encoded.windows.long_answers,
                )
            )
    return rows


def _names(examples: Iterable[Example], outside: set[str]) -> tuple[set[str], set[str]]:
    labels = {e.label for e in examples if e.label is not None}
    return labels, {t for e in examples for t in e.tags or ()} | outside
