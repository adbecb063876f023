"""What a person should know of a dataset before anything is trained on it: counted here, told before a command trains
and by `xclrun data audit`, and noted in manifests.

What cannot be right is an error of the reader, with file and line; this is what can be, and changes no example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from xclrun.data.example import OUTSIDE, Dataset, Example, same_sentence

Counted = TypeVar("Counted")

# Name → what is counted, one of it, and what is said of it. The readers count the first twelve (see `Dataset.notes`).
NOTES = {
    "skipped": ("line", "that could not be read: skipped"),
    "slots_inside_words": ("slot", "with an end inside a word: moved to an end of the word"),
    "missing_words": ("sentence", "with gaps in the numbers of words: taken as written"),
    "unknown_upos": ("word", "with a tag that is no universal part of speech: taken as written"),
    "annotated_otherwise": ("sentence", "whose annotated text differs from the plain one: the annotated one is read"),
    "other_entities": ("entity", "of a kind that the published tag set leaves out (OTH): read as O"),
    "disputed": ("pair", "on whose label annotators did not agree (-): left out"),
    "unanswerable": ("question", "without an answer in its text: left out"),
    "odd_labels": (
        "sentence",
        "with a label or tag that has blanks around it, or zero-width or control characters: taken as written",
    ),
    "control_characters": ("sentence", "with control characters such as NUL in its words: taken as written"),
    "long_texts": ("sentence", "of more than 100,000 characters: taken as written; is a line end missing?"),
    "text_differs": ("sentence", "whose tokens are not the words of its text: the tokens are read"),
    "unseen_labels": ("sentence", "with a label that training never has: scored as wrong"),
    "stray_tags": ("tag", "I-… after O or after another type: read as the beginning of a span"),
    "test_in_train": ("test sentence", "found in the language's training split too"),
}


def count_notes(dataset: Dataset) -> dict[str, dict[str, int]]:
    """Return name → place (``language/split``; of ``test_in_train`` the language) → how many, if there are any."""
    found = {**dataset.notes, "unseen_labels": dataset.unseen_labels, "stray_tags": {}, "test_in_train": {}}
    for (language, split), examples in dataset.splits.items():
        # Examples of a block are those of a language.
        if language in dataset.languages and dataset.task_of(language).tag_spans:
            key = ("stray_tags", dataset.fingerprints[language, split])
            if n := _once(key, partial(_stray_tags, examples)):
                found["stray_tags"][f"{language}/{split}"] = n
    for language in dataset.languages:
        if n := in_train(dataset, language):
            found["test_in_train"][language] = n
    return {name: counts for name, counts in found.items() if counts or name == "unseen_labels"}


def reader_notes(dataset: Dataset) -> dict[str, dict[str, int]]:
    """Return the counts of the readers, and of labels that training lacks: notes that need no comparison of sentences.

    The latter not of buckets, of which a sweep has thousands.
    """
    return dataset.notes if dataset.whole is not None else {**dataset.notes, "unseen_labels": dataset.unseen_labels}


def note_lines(
    datasets: Iterable[Dataset], of: Callable[[Dataset], dict[str, dict[str, int]]] = count_notes
) -> list[str]:
    """Return a line for each note: the most that any dataset of a name has, since they are parts of one.

    Args:
        of: what is counted of a dataset, as `count_notes` does.
    """
    most: dict[tuple[str, str], dict[str, int]] = {}
    # Whether all that is counted are questions.
    asked: dict[tuple[str, str], bool] = {}
    for dataset in datasets:
        for name, counts in of(dataset).items():
            mine = most.setdefault((dataset.name, name), {})
            for place, count in counts.items():
                mine[place] = max(count, mine.get(place, 0))
                questions = bool(dataset.task_of(place.partition("/")[0]).answers)
                asked[dataset.name, name] = asked.get((dataset.name, name), True) and questions
    several = len({dataset for dataset, _ in most}) > 1
    lines = {of: _line(of[1], counts, asked[of]) for of, counts in most.items() if counts}
    return [f"{dataset}: {line}" if several else line for (dataset, _), line in lines.items()]


def _line(name: str, counts: Mapping[str, int], asked: bool) -> str:
    word, what = NOTES[name]
    if asked:
        word = {"line": "question", "sentence": "question", "test sentence": "test question"}.get(word, word)
    total = sum(counts.values())
    places = ", ".join(f"{place}: {count}" for place, count in counts.items())
    return f"{total} {word}{'' if total == 1 else 's'} {what} ({places})"


def _stray_tags(examples: Iterable[Example]) -> int:
    """Return how many tags ``I-x`` follow neither ``B-x`` nor ``I-x``."""
    pairs = (pair for e in examples for pair in zip((OUTSIDE, *(e.tags or ())), e.tags or (), strict=False))
    return sum(tag[:2] == "I-" and tag[2:] != before[2:] for before, tag in pairs)


def in_train(dataset: Dataset, language: str) -> int:
    """Return how many test sentences of a language are in its training split: words alike but for case."""
    train, test = dataset.fingerprints[language, "train"], dataset.fingerprints[language, "test"]

    def count() -> int:
        tested = _once(("test", test), lambda: Counter(map(same_sentence, dataset.split(language, "test"))))
        train_split = dataset.split(language, "train")
        return sum(tested[sentence] for sentence in tested.keys() & set(map(same_sentence, train_split)))

    return _once(("test_in_train", train, test), count)


# The datasets of a sweep on buckets have most splits in common: each is examined once.
_counted: dict[tuple[str, ...], Any] = {}


def _once(key: tuple[str, ...], count: Callable[[], Counted]) -> Counted:
    if key not in _counted:
        _counted[key] = count()
    return _counted[key]
