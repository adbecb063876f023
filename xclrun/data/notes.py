"""Notes on a dataset: counts that users should know before training. They do not change examples.

Commands print them before training, `xclrun data audit` lists them, and manifests contain them. Mistakes in files are
errors of the reader instead, with file and line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from xclrun.core.languages import language_of
from xclrun.core.task import LANGUAGE_MODELLING
from xclrun.data.content import LONG_SENTENCE
from xclrun.data.example import OUTSIDE, Dataset, Example, same_sentence

Counts = TypeVar("Counts")

# Name → (counted unit, rest of the sentence): ``2 sentences with an error: skipped``. `Dataset.notes` has all but the
# last five; readers and `xclrun.data.content` count them.
NOTES = {
    "skipped": ("sentence", "with an error: skipped"),
    "ignored_files": ("file", "ignored, since the layout prefers another file of the split"),
    "ignored_columns": ("column", "that xclrun does not read: ignored"),
    "header_lines": ("line", "with names of columns: skipped"),
    "repeated_ids": ("sentence", "with the ID of an earlier sentence: renamed with the suffix ~2, ~3, …"),
    "unlabeled": ("sentence", "without a label (null, nan, - or -1): skipped"),
    "typed_outside": ("tag", "B-O or I-O: read as O"),
    "bioes": ("tag", "in BIOES or BILOU: converted to BIO"),
    "missing_tags": ("word", "with a tag such as _, - or -1, which often means no tag: read unchanged"),
    "plain_messages": ("dialogue", "without its roles; set dataset.text.template=chat for the tokenizer's template"),
    "untranslated": ("sentence", "without a translation with the same sent_id: skipped"),
    "blank_words": ("blank word", "with a tag: skipped"),
    "blank_texts": ("sentence", "with a blank text: skipped"),
    "no_words": ("sentence", "without words: skipped"),
    "misnumbered": ("sentence", "with wrong numbers of words: words are read in order"),
    "two_sentences": ("sentence", "with the words of another one: the words of its text are read"),
    "intents_differ": ("sentence", "whose words have several intents: the intent of the comment is read"),
    "withheld": ("sentence", "with words such as _ alone, whose text may be withheld: read unchanged"),
    "placeholders": ("sentence", "with a placeholder such as NS or nan as a text: read unchanged"),
    "long_sentences": ("sentence", f"of more than {LONG_SENTENCE} words; check the blank lines between sentences"),
    "equal_labels": (
        "label",
        "equal to another one except for case, spaces or Unicode form: read as separate classes",
    ),
    "labels_used_once": (
        "label",
        "each on a single training sentence, so that nothing can be learned; check the label column",
    ),
    "one_label": ("label", "in the training data, so that every model scores 100; use data with several labels"),
    "slots_inside_words": ("slot", "with a boundary inside a word: extended to whole words"),
    "missing_words": ("sentence", "with gaps in the numbers of words: read unchanged"),
    "unknown_upos": ("word", "with a tag outside of UPOS: read unchanged"),
    "annotated_otherwise": ("sentence", "whose annotated and plain texts differ: the annotated text is read"),
    "other_entities": ("entity", "of the type OTH, which the published tag set does not contain: read as O"),
    "disputed": ("pair", "on whose label the annotators disagreed (-): skipped"),
    "unanswerable": ("question", "without an answer in the text: skipped"),
    "odd_labels": ("sentence", "with surrounding spaces, zero-width or control characters in a label or tag"),
    "control_characters": (
        "sentence",
        "with control characters such as NUL, or lost characters (U+FFFD)",
    ),
    "long_texts": ("sentence", "of more than 100,000 characters; check the line ends of the file"),
    "text_differs": ("sentence", "whose tokens and text differ: the tokens are read"),
    "unseen_labels": ("sentence", "with a label that is not in the training data: scored as wrong"),
    "stray_tags": ("tag", "I-… after O or after another type: read as the beginning of a span"),
    "test_in_train": ("test sentence", "that the language's training split contains too"),
    "ngrams_in_train": ("test document", "with 13 words (characters in th, zh and ja) in a row of the training split"),
    "test_is_dev": ("test sentence", "of a test split that is part of the dev split, which selects epochs"),
}


def count_notes(dataset: Dataset) -> dict[str, dict[str, int]]:
    """Return name → place → count, if positive; the place is ``language/split``, or the language for test_…."""
    notes = {**dataset.notes, "unseen_labels": dataset.unseen_labels}
    notes |= {name: {} for name in ("stray_tags", "test_in_train", "ngrams_in_train", "test_is_dev")}
    for (language, split), examples in dataset.splits.items():
        # Skip blocks, whose examples are counted with their language.
        if language in dataset.languages and dataset.task_of(language).tag_spans:
            key = ("stray_tags", dataset.fingerprints[language, split])
            if n := _once(key, partial(_stray_tags, examples)):
                notes["stray_tags"][f"{language}/{split}"] = n
    for language in dataset.languages:
        if n := also_in(dataset, language, "train"):
            notes["test_in_train"][language] = n
        if dataset.task_of(language) == LANGUAGE_MODELLING and (n := shared_ngrams(dataset, language)):
            notes["ngrams_in_train"][language] = n
        if also_in(dataset, language, "dev") == (n := len(dataset.split(language, "test"))):
            notes["test_is_dev"][language] = n
    return {name: counts for name, counts in notes.items() if counts or name == "unseen_labels"}


def reader_notes(dataset: Dataset) -> dict[str, dict[str, int]]:
    """Return the notes that need no comparison of sentences: counts of readers, and unseen labels.

    Unseen labels are omitted for datasets with buckets, since a sweep has thousands of them.
    """
    return dataset.notes if dataset.whole is not None else {**dataset.notes, "unseen_labels": dataset.unseen_labels}


def note_lines(
    datasets: Iterable[Dataset], count: Callable[[Dataset], dict[str, dict[str, int]]] = count_notes
) -> list[str]:
    """Return one line per note; datasets of the same name are subsets of one dataset, so their largest count is shown.

    Args:
        count: `count_notes` or `reader_notes`.
    """
    largest: dict[tuple[str, str], dict[str, int]] = {}
    # Whether a note counts only questions, so that its unit is "question".
    questions: dict[tuple[str, str], bool] = {}
    for dataset in datasets:
        for name, counts in count(dataset).items():
            key = dataset.name, name
            for place, n in counts.items():
                merged = largest.setdefault(key, {})
                merged[place] = max(n, merged.get(place, 0))
                asks = bool(dataset.task_of(place.partition("/")[0]).answers)
                questions[key] = questions.get(key, True) and asks
    several = len({dataset for dataset, _ in largest}) > 1
    lines = {key: _line(key[1], counts, questions[key]) for key, counts in largest.items()}
    return [f"{dataset}: {line}" if several else line for (dataset, _), line in lines.items()]


def _line(name: str, counts: Mapping[str, int], questions: bool) -> str:
    unit, rest = NOTES[name]
    if questions:
        unit = {"line": "question", "sentence": "question", "test sentence": "test question"}.get(unit, unit)
    total = sum(counts.values())
    places = ", ".join(f"{place}: {count}" for place, count in counts.items())
    return f"{total} {unit}{'' if total == 1 else 's'} {rest} ({places})"


def _stray_tags(examples: Iterable[Example]) -> int:
    """Count tags ``I-x`` that follow neither ``B-x`` nor ``I-x``."""
    pairs = (pair for e in examples for pair in zip((OUTSIDE, *(e.tags or ())), e.tags or (), strict=False))
    return sum(tag[:2] == "I-" and tag[2:] != before[2:] for before, tag in pairs)


def also_in(dataset: Dataset, language: str, split: str) -> int:
    """Count the test sentences of a language that another of its splits contains, ignoring case."""
    other, test = dataset.fingerprints[language, split], dataset.fingerprints[language, "test"]

    def count() -> int:
        tested = _once(("test", test), lambda: Counter(map(same_sentence, dataset.split(language, "test"))))
        sentences = set(map(same_sentence, dataset.split(language, split)))
        return sum(tested[sentence] for sentence in tested.keys() & sentences)

    return _once(("also_in", other, test), count)


# Length of the n-grams whose occurrence in training data is noted (Brown et al. 2020, appendix C), and languages whose
# n-grams are of characters, because they are written without spaces.
NGRAM = 13
OF_CHARACTERS = ("th", "zh", "ja")


def shared_ngrams(dataset: Dataset, language: str) -> int:
    """Count the test documents of a language that share an n-gram with its training split, ignoring case."""
    splits = {split: dataset.fingerprints[language, split] for split in ("train", "test")}
    known = language_of(language)
    characters = known is not None and known.code in OF_CHARACTERS

    def ngrams(example: Example) -> Iterator[tuple[str, ...]]:
        words = same_sentence(example)
        units = tuple("".join(words)) if characters else words
        return (units[i : i + NGRAM] for i in range(len(units) - NGRAM + 1))

    def count() -> int:
        tested = [set(ngrams(example)) for example in dataset.split(language, "test")]
        # Memory depends on the test split only: training splits can be large.
        searched = set().union(*tested)
        seen = {ngram for example in dataset.split(language, "train") for ngram in ngrams(example) if ngram in searched}
        return sum(not seen.isdisjoint(of_document) for of_document in tested)

    return _once(("ngrams", *splits.values(), str(characters)), count)


# Cache: the datasets of a sweep on buckets share most splits, so each split is examined only once.
_counted: dict[tuple[str, ...], Any] = {}


def _once(key: tuple[str, ...], count: Callable[[], Counts]) -> Counts:
    if key not in _counted:
        _counted[key] = count()
    return _counted[key]
