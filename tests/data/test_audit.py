from __future__ import annotations

import json
import re

import pytest

from tests.conftest import some
from tests.questions import questions, write_questions
from xclrun.cli import main
from xclrun.config.schema import ModelConfig
from xclrun.core.task import INTENT_SLOTS
from xclrun.data.audit import coverage, overlaps, pieces
from xclrun.data.example import Dataset, Example
from xclrun.data.readers.mini import LANGUAGES, read
from xclrun.model.vocabulary import wordpiece_tokenizer


def example(id: str, language: str, text: str, label: str = "a", tags: tuple[str, ...] | None = None) -> Example:
    return Example(id, language, tuple(text.split()), label, tags)


@pytest.fixture
def dataset() -> Dataset:
    """Two languages with a leak of each kind, and a label and a tag that are missing somewhere."""
    splits = {
        ("en", "train"): (example("1", "en", "Wake me"), example("2", "en", "call Anna", "b"), example("3", "en", "x")),
        ("en", "dev"): (example("4", "en", "wake me"),),
        ("en", "test"): (example("5", "en", "new words", "c"), example("6", "en", "call ANNA")),
        ("de", "train"): (example("10", "de", "weck mich"),),
        ("de", "dev"): (example("11", "de", "neu"),),
        ("de", "test"): (example("1", "de", "noch eins", "b"), example("12", "de", "ganz neu")),
    }
    return Dataset("leaky", INTENT_SLOTS, ("en", "de"), splits)


def test_leaks_are_found(dataset: Dataset) -> None:
    result = {(o.one, o.other, o.language, o.kind): (o.sentences, o.of) for o in overlaps(dataset)}
    assert result == {
        ("train", "dev", "en", "same sentence"): (1, 1),
        ("train", "test", "en", "same sentence"): (1, 2),
        ("train", "test", "de", "translation"): (1, 2),
    }


def test_coverage(dataset: Dataset) -> None:
    rows = {(r.language, r.split): r for r in coverage(dataset)}
    assert (rows["en", "train"].sentences, rows["en", "train"].words, rows["en", "train"].labels) == (3, 5, 2)
    assert rows["en", "train"].rarest == 1
    assert (rows["en", "test"].unseen, rows["en", "test"].not_in_own_train) == (1, 0)  # c is in no training split
    assert (rows["de", "test"].unseen, rows["de", "test"].not_in_own_train) == (0, 1)  # b only in the English one


def test_pieces_against_the_tokenizer_sentence_by_sentence(tmp_path) -> None:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "wake", "me", "up", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    tokenizer = wordpiece_tokenizer(tmp_path / "vocab.txt")
    sentences = ("wake me", "wakes me up", "ups ups", "strange")
    splits = {
        ("en", s): tuple(example(str(i), "en", t) for i, t in enumerate(sentences)) for s in ("train", "dev", "test")
    }
    for row in some(pieces(Dataset("d", INTENT_SLOTS, ("en",), splits), tokenizer, ModelConfig("m", max_length=5))):
        assert row.fertility == pytest.approx((2 + 4 + 4 + 1) / 8)
        assert (row.unknown, row.longest, row.truncated) == (1 / 8, 4, 2)


def test_the_embedded_corpus_has_no_leak_and_no_unseen_label() -> None:
    mini = Dataset("mini", INTENT_SLOTS, LANGUAGES, read())
    assert overlaps(mini) == []
    assert all(row.unseen == 0 and row.labels == 18 for row in coverage(mini))


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "audit", "dataset.languages=[en,de]"]) == 0
    message = capsys.readouterr().out
    for part in ("mini: 2 languages, 18 labels", "Sentences that splits share", "none", "subwords per word", "640"):
        assert part in message
    assert main(["data", "audit", "dataset.languages=[en]", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["coverage"][0]["sentences"] == 640
    assert facts["pieces"][0]["unknown"] == 0
    assert not list(tmp_path.iterdir())


def test_the_command_counts_answers_that_cannot_be_predicted(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    root = write_questions(tmp_path, "en", long=7)
    few = ("model.windows.answer=1", "model.windows.stride=0", "model.vocab_size=200")
    assert main(["data", "audit", "dataset=questions", f"dataset.root={root}", *few, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["pieces"]
    # In English all but Rome are of several words.
    expected = [
        q["answers"][0]["text"] for p in questions("en", "train", 14)["data"][0]["paragraphs"] for q in p["qas"]
    ]
    assert facts[0]["long_answers"] == sum(" " in text for text in expected) > 0
    assert main(["data", "audit", "dataset=questions", f"dataset.root={root}", *few]) == 0
    assert "long answers" in capsys.readouterr().out


def test_the_command_describes_questions(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    """Input rows are windows, and texts in both training and test are reported."""
    long = "Rome is old , " * 8 + "they say ."
    options = {
        "train": [(long, "a"), (long, "b")],
        "dev": [("Rome", "c")],
        "test": [(long, "b"), ("Rome is old .", "c")],
    }
    for split, rows in options.items():
        answers = [{"text": "Rome", "answer_start": 0}]
        paragraphs = [
            {"context": text, "qas": [{"id": name, "question": f"{name} {split}", "answers": answers}]}
            for text, name in rows
        ]
        (tmp_path / f"en.{split}.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    # 35 words of the long text, where windows have room for 24 to 27 and share 8: two for each question.
    sizes = ("model.max_length=32", "model.windows.stride=8", "model.windows.question=5", "model.vocab_size=300")
    assert main(["data", "audit", "dataset=questions", f"dataset.root={tmp_path}", *sizes]) == 0
    message = capsys.readouterr().out
    assert "questions: 1 language, answers in texts" in message
    assert "labels" not in message
    assert re.search(r"en +train +2 +1 +70 +4\n", message)
    assert re.search(r"en +test +2 +2 +39 +3\n", message)
    assert re.search(r"train / test +en +same text +1 +2\n", message)
    assert "cut at" not in message
    # No text of theirs is cut, and no question of two words; with room for one piece alone all are.
    assert re.search(r"longest +cut questions\n.*\nen +train( +[\d.]+){3} +0\n", message)
    assert (
        main(["data", "audit", "dataset=questions", f"dataset.root={tmp_path}", *sizes, "model.windows.question=1"])
        == 0
    )
    assert re.search(r"longest +cut questions\n.*\nen +train( +[\d.]+){3} +[2-4]\n", capsys.readouterr().out)


@pytest.mark.parametrize("wrong", [[], ["look"], ["audit", "--what"], ["audit", "dataset=mini,jsonl"]])
def test_wrong_usage(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *wrong]) == 2
    assert capsys.readouterr().err.startswith("xclrun: ")
