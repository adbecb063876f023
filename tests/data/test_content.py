"""Content without information: counted in notes, and refused where nothing can be learned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.data.content import LONG_SENTENCE
from xclrun.data.example import Dataset
from xclrun.data.load import load_dataset
from xclrun.data.notes import count_notes, reader_notes

Config = Callable[..., DatasetConfig]
Load = Callable[..., Dataset]
SPLITS = ("train", "dev", "test")


def row(text: str, label: str = "x", **more: Any) -> dict[str, Any]:
    return {"text": text, "label": label, "tags": ["B-x"] * len(text.split()), **more}


@pytest.fixture
def load(config: Config, tmp_path: Path) -> Load:
    """Load a dataset with the same rows in every split, or other rows in the splits that are named."""

    def make(*rows: dict[str, Any], task: str = "sequence_class", **splits: list[dict[str, Any]]) -> Dataset:
        # The last dataset is cached by its config.
        folder = Path(mkdtemp(dir=tmp_path))
        for split in SPLITS:
            content = "".join(json.dumps(row) + "\n" for row in splits.get(split, rows))
            (folder / f"de.{split}.jsonl").write_text(content, encoding="utf-8")
        return load_dataset(config("jsonl", task=task, root=str(folder)))

    return make


@pytest.mark.parametrize("word", ["_", "[REDACTED]", "<masked>"])
def test_withheld_words_are_counted_and_refused_where_there_are_no_others(load: Load, word: str) -> None:
    withheld, rest = row(f"{word} {word}"), row(f"a {word}", "y")
    dataset = load(withheld, rest, task="token_tags")
    assert reader_notes(dataset)["withheld"] == {f"de/{split}": 1 for split in SPLITS}
    for split in SPLITS:
        with pytest.raises(UsageError, match=rf"de/{split}: .*withheld"):
            load(withheld, rest, task="token_tags", **{split: [withheld]})


@pytest.mark.parametrize("word", ["*", "####", "-", "XXX", "██", "\u200b", "\ufffd"])
def test_masked_words_are_refused_where_there_are_no_others(load: Load, word: str) -> None:
    # A line of asterisks separates parts of real texts, so it is no note.
    assert "withheld" not in load(row(f"{word} {word}"), row("โลก", "y")).notes
    with pytest.raises(UsageError, match=r"de/train: .*withheld"):
        load(row(f"{word} {word}"), row(word, "y"))
    load(row(word, text_b="a"), row(word, "y", text_b="b"))


def test_labels_that_differ_in_case_or_spaces_alone_are_counted(load: Load) -> None:
    assert load(row("a", "New York"), row("b", "new\xa0york"), row("c", "york")).notes["equal_labels"] == {
        "de/train": 2
    }


def test_placeholders_are_counted_and_refused_where_there_are_no_other_texts(load: Load) -> None:
    pairs = [row("NS", text_b="a b"), row("a b", text_b="nan"), row("NS is a word", "y", text_b="a b")]
    assert reader_notes(load(*pairs))["placeholders"] == {f"de/{split}": 2 for split in SPLITS}
    with pytest.raises(UsageError, match=r"de/train: .*placeholders"):
        load(*pairs, train=pairs[:2])
    # Words with tags are words: a sentence may be a name.
    assert "placeholders" not in load(row("None"), row("a", "y"), task="token_tags").notes


def test_sentences_without_blank_lines_between_them_are_counted_and_never_learned_alone(load: Load) -> None:
    long, short = row("a " * (LONG_SENTENCE + 1)), row("a")
    assert load(long, short, task="token_tags").notes["long_sentences"] == {f"de/{split}": 1 for split in SPLITS}
    assert "long_sentences" in load(short, test=[long], task="token_tags").notes
    assert "long_sentences" not in load(long, row("b", "y")).notes, "documents may be long"
    with pytest.raises(UsageError, match="blank lines"):
        load(short, train=[long], task="token_tags")


def test_labels_and_duplicates_are_compared_after_nfc(load: Load) -> None:
    composed, decomposed = "m\u00e9t\u00e9o", "me\u0301te\u0301o"
    dataset = load(row(f"la {composed}", composed), row("b", decomposed), test=[row(f"La {decomposed}", composed)])
    notes = count_notes(dataset)
    assert notes["equal_labels"] == {"de/train": 2}
    assert notes["test_in_train"] == {"de": 1}
    assert set(dataset.labels) == {composed, decomposed}
    # A test label that no training sentence has counts as wrong.
    notes = load(row("a", composed), row("b", "y"), test=[row("c", decomposed), row("d", composed)]).notes
    assert notes == {"equal_labels": {"de/test": 1}}


def test_a_single_label_is_noted(load: Load) -> None:
    assert load(row("a")).notes == {"one_label": {"de/train": 1}}
    assert load(row("a"), row("b", "y")).notes == {}


def test_as_many_labels_as_sentences_are_noted(load: Load) -> None:
    rows = [row(f"a {i}", f"a {i}") for i in range(20)]
    assert load(*rows, test=rows[:1]).notes["labels_used_once"] == {"de/train": 20}
    assert "labels_used_once" not in load(*rows, row("b", "a 1")).notes
