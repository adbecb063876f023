"""Data that cannot be used, or that is odd: what the command says, and what the manifest counts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY

from .conftest import Told

Rows = list[dict[str, Any]]


@pytest.fixture
def jsonl(corpus: Path) -> Callable[..., list[str]]:
    """Return a command on a folder of JSON Lines."""
    return lambda root=corpus, *more: [*TINY, "dataset=jsonl", f"dataset.root={root}", *more]


def manifest(outputs: Path) -> dict[str, Any]:
    """Return the manifest of the only run."""
    [path] = (outputs / "runs").glob("*/manifest.json")
    found = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def edit_line(path: Path, number: int, text: str) -> None:
    """Replace one line of a file; lines count from 1."""
    lines = path.read_text(encoding="utf-8").split("\n")
    lines[number - 1] = text
    path.write_text("\n".join(lines), encoding="utf-8")


def test_a_language_that_is_lacking(refused: Callable[..., str], jsonl: Any, changed_corpus: Any) -> None:
    root = changed_corpus({})
    shutil.rmtree(root / "de")
    assert refused(*jsonl(root)) == f"dataset.languages: no 'de' in {root}; Known: en, es"
    line = refused(*jsonl(root, "dataset.languages=null", "order=[en,de]"))
    assert line == "order: the dataset has no language 'de'; Known: en, es"


def test_a_line_that_cannot_be_read_is_named_before_anything_is_trained(
    refused: Callable[..., str], jsonl: Any, changed_corpus: Any
) -> None:
    """Each kind of line and of folder that cannot be used is in the tests of the readers (tests/data)."""
    root = changed_corpus({})
    edit_line(root / "de" / "train.jsonl", 3, '{"id": "1", "tokens": ["a"], "label": "x", "tag": []}')
    assert refused(*jsonl(root)).startswith(f"{root}/de/train.jsonl:3: unknown key 'tag'; did you mean 'tags'?")


def test_lines_that_are_skipped_are_counted_and_announced(
    xclrun: Callable[..., Told], jsonl: Any, changed_corpus: Any, here: Path
) -> None:
    root = changed_corpus({})
    edit_line(root / "de" / "train.jsonl", 3, "{")
    edit_line(root / "de" / "train.jsonl", 5, "{")
    edit_line(root / "en" / "test.jsonl", 1, "{")
    told = xclrun(*jsonl(root, "dataset.on_bad_line=skip"))
    assert told.code == 0
    assert "note: 3 sentences with an error: skipped (en/test: 1, de/train: 2)" in told.err
    data = manifest(here / "outputs")["data"]
    assert data["skipped"] == {"de/train": 2, "en/test": 1}
    assert data["sizes"]["train"] == {"de": 16, "en": 22}


def test_a_label_that_training_never_has(
    xclrun: Callable[..., Told], jsonl: Any, changed_corpus: Any, here: Path
) -> None:
    def unheard_of(rows: Rows) -> None:
        rows[1]["label"] = "unheard_of"
        rows[2]["tags"][0] = "B-unheard_of"

    told = xclrun(*jsonl(changed_corpus({("de", "test"): unheard_of, ("en", "dev"): unheard_of})))
    assert told.code == 0
    assert "note: 4 sentences with a label that is not in the training data: scored as wrong (" in told.err
    found = manifest(here / "outputs")
    assert found["data"]["unseen_labels"] == {"de/test": 2, "en/dev": 2}
    assert found["labels"] == ["alarm", "call", "weather"]
    assert "B-unheard_of" not in found["tags"]


def test_what_is_odd_about_the_data_is_told_before_training_noted_and_audited(
    xclrun: Callable[..., Told], jsonl: Any, changed_corpus: Any, here: Path
) -> None:
    def of_train(rows: Rows) -> None:
        rows[0] |= {"tokens": ["Guten", "Tag"], "tags": ["O", "I-time"]}
        rows[1] |= {"tokens": ["gute", "Nacht", "!"], "tags": ["B-time", "I-time", "I-name"]}

    def of_test(rows: Rows) -> None:
        for row in rows[:2]:
            row |= {"tokens": ["guten", "TAG"], "tags": ["O", "O"]}

    command = jsonl(changed_corpus({("de", "train"): of_train, ("de", "test"): of_test}))
    told = xclrun(*command)
    stray = "note: 2 tags I-… after O or after another type: read as the beginning of a span (de/train: 2)\n"
    shared = "note: 11 test sentences that the language's training split contains too (en: 6, de: 5)\n"
    assert told.err.index(stray) < told.err.index(shared) < told.err.index("[1/1]")
    assert told.err.count("note: ") == 2, "once for each language"
    data = manifest(here / "outputs")["data"]
    assert (data["stray_tags"], data["test_in_train"]) == ({"de/train": 2}, {"en": 6, "de": 5})
    audited = xclrun("data", "audit", *command).out
    assert stray in audited
    assert shared in audited
    # Finished before: nothing is trained.
    assert "note: " not in xclrun(*command).err


def test_odd_names_and_texts_are_counted_by_the_audit_and_noted_by_plan(
    xclrun: Callable[..., Told], jsonl: Any, changed_corpus: Any
) -> None:
    """What can be read, and is probably a mistake: nothing of it stops a run."""

    def of_train(rows: Rows) -> None:
        rows[0]["label"] += " "
        rows[1]["label"] += "\u200b"
        rows[2]["label"] += "\x07"
        rows[3] |= {"tokens": ["a", "b"], "tags": ["O", "B-na\u2060me"]}
        rows[4] |= {"tokens": ["a\x00", "b"], "tags": ["O", "O"]}

    def of_test(rows: Rows) -> None:
        rows[0] |= {"tokens": ["ab"] * 60_000, "tags": ["O"] * 60_000}
        rows[1] |= {"tokens": ["guten", "Tag"], "text": "gute  Nacht", "tags": ["O", "O"]}
        # The same text: other blanks, and another composition of a character.
        rows[2] |= {"tokens": ["Ko\u0308ln", "!"], "text": "Köln!", "tags": ["O", "O"]}

    command = jsonl(changed_corpus({("de", "train"): of_train, ("de", "test"): of_test}))
    named = "surrounding spaces, zero-width or control characters in a label or tag"
    notes = [
        f"note: 4 sentences with {named} (de/train: 4)\n",
        "note: 1 sentence with control characters such as NUL, or lost characters (U+FFFD) (de/train: 1)\n",
        "note: 1 sentence of more than 100,000 characters; check the line ends of the file (de/test: 1)\n",
        "note: 1 sentence whose tokens and text differ: the tokens are read (de/test: 1)\n",
    ]
    plan, audit = xclrun("plan", *command), xclrun("data", "audit", *command)
    assert (plan.code, audit.code) == (0, 0)
    for note in notes:
        assert note in plan.out + plan.err
        assert note in audit.out
    plain = xclrun("data", "audit", *jsonl()).out
    assert not [note for note in notes if note.partition(" sentence")[2].partition(":")[0] in plain]
