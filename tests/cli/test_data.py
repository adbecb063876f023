"""Data that cannot be used, or that is odd: what the command says, and what the manifest counts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import SMALL, Told

Rows = list[dict[str, Any]]


@pytest.fixture
def jsonl(corpus: Path) -> Callable[..., list[str]]:
    """Return a command on a folder of JSON Lines."""
    return lambda root=corpus, *more: [*SMALL, "dataset=jsonl", f"dataset.root={root}", *more]


@pytest.fixture
def mtop(here: Path) -> Path:
    """A folder in MTOP's layout with good lines, beside the current folder."""
    tokens = {"tokens": ["call", "mum"], "tokenSpans": [{"start": 0, "length": 4}, {"start": 5, "length": 3}]}
    line = "\t".join(["IN:CREATE_CALL", "5:8:SL:CONTACT", "call mum", "calling", "en_XX", "", json.dumps(tokens)])
    root = here.parent / "mtop"
    for language in ("en", "de"):
        for split in ("train", "eval", "test"):
            path = root / language / f"{split}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{line}\n" * 3, encoding="utf-8")
    return root


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


# Roots.


def test_a_root_that_is_not_given(refused: Callable[..., str]) -> None:
    assert refused(*SMALL, "dataset=mtop").startswith("dataset.root is needed: the folder that holds <language>/train")
    assert refused(*SMALL, "dataset=jsonl").startswith("dataset.root is needed: ")


def test_a_root_that_does_not_exist(refused: Callable[..., str], jsonl: Any, here: Path) -> None:
    assert refused(*jsonl("nowhere")) == f"dataset.root=nowhere: no such folder ({here / 'nowhere'})"


def test_a_root_that_is_a_file(refused: Callable[..., str], jsonl: Any, here: Path) -> None:
    (here / "file").write_text("")
    assert refused(*jsonl("file")).startswith("dataset.root=file: is not a folder")


def test_a_root_that_is_empty(refused: Callable[..., str], jsonl: Any, here: Path) -> None:
    (here / "empty").mkdir()
    assert refused(*jsonl("empty")) == "dataset.root=empty: the folder is empty"


def test_a_root_of_another_layout(refused: Callable[..., str], corpus: Path) -> None:
    line = refused(*SMALL, "dataset=mtop", f"dataset.root={corpus}")
    assert line.startswith(f"dataset.root={corpus}: no data found; looked for <language>/train.txt")


def test_a_language_that_is_lacking(refused: Callable[..., str], jsonl: Any, changed_corpus: Any) -> None:
    root = changed_corpus({})
    shutil.rmtree(root / "de")
    assert refused(*jsonl(root)) == f"dataset.languages: no 'de' in {root}; Known: en, es"
    line = refused(*jsonl(root, "dataset.languages=null", "order=[en,de]"))
    assert line == "order: the dataset has no language 'de'; Known: en, es"


def test_a_split_that_is_lacking(refused: Callable[..., str], jsonl: Any, changed_corpus: Any) -> None:
    root = changed_corpus({})
    (root / "de" / "test.jsonl").unlink()
    assert refused(*jsonl(root)).startswith(f"dataset.root={root}: 'de' has no test split; looked for de.test.jsonl, ")


def test_a_split_without_sentences(refused: Callable[..., str], jsonl: Any, changed_corpus: Any) -> None:
    root = changed_corpus({("de", "dev"): list.clear})
    assert refused(*jsonl(root)) == f"{root}/de/dev.jsonl: no examples"


# Lines.


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"id": "1", ', "the line is not JSON ("),
        ("[1, 2]", "a row is an object with the keys id, language, "),
        ('{"id": "1", "tokens": ["a"], "label": "x", "tag": []}', "unknown key 'tag'; did you mean 'tags'?"),
        ('{"id": "1", "tokens": ["a"]}', "'label' is missing"),
        ('{"id": "1", "tokens": [], "tags": [], "label": "x"}', "empty sentence: no tokens"),
        ('{"id": "1", "tokens": ["a", "b"], "tags": ["O"], "label": "x"}', "1 tags for 2 tokens"),
        ('{"id": "1", "tokens": ["a"], "tags": ["X"], "label": "x"}', "tag 'X' is not O, B-name or I-name"),
        ('{"id": "1", "tokens": ["a"], "language": "fr", "label": "x"}', "language 'fr' in the file of 'de'"),
    ],
)
def test_a_malformed_line_of_jsonl(
    line: str, told: str, refused: Callable[..., str], jsonl: Any, changed_corpus: Any
) -> None:
    root = changed_corpus({})
    edit_line(root / "de" / "train.jsonl", 3, line)
    assert refused(*jsonl(root)).startswith(f"{root}/de/train.jsonl:3: {told}")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("no tabs", "no intent: neither the first nor the second column starts with IN:"),
        ("IN:CREATE_CALL\t\tcall", "3 columns instead of 7 (intent, slots, "),
        ("IN:X\t\tcall\tc\ten_XX\t\t{", "the tokens column is not JSON ("),
        ('IN:X\t\tcall\tc\ten_XX\t\t{"tokens": [], "tokenSpans": []}', "empty sentence: no tokens"),
        (
            'IN:X\t5:8\tcall\tc\ten_XX\t\t{"tokens": ["call"], "tokenSpans": [{"start": 0, "length": 4}]}',
            "slot '5:8' is not start:end:SL:NAME",
        ),
    ],
)
def test_a_malformed_line_of_mtop(line: str, told: str, refused: Callable[..., str], mtop: Path) -> None:
    edit_line(mtop / "de" / "eval.txt", 2, line)
    root = f"dataset.root={mtop}"
    assert refused(*SMALL, "dataset=mtop", root).startswith(f"{mtop}/de/eval.txt:2: {told}")


def test_lines_that_are_skipped_are_counted_and_announced(
    xclrun: Callable[..., Told], jsonl: Any, changed_corpus: Any, here: Path
) -> None:
    root = changed_corpus({})
    edit_line(root / "de" / "train.jsonl", 3, "{")
    edit_line(root / "de" / "train.jsonl", 5, "{")
    edit_line(root / "en" / "test.jsonl", 1, "{")
    told = xclrun(*jsonl(root, "dataset.on_bad_line=skip"))
    assert told.code == 0
    assert "note: 3 lines that could not be read: skipped (en/test: 1, de/train: 2)" in told.err
    data = manifest(here / "outputs")["data"]
    assert data["skipped"] == {"de/train": 2, "en/test": 1}
    assert data["sizes"]["train"] == {"de": 16, "en": 22}


def test_every_line_skipped_is_an_error(refused: Callable[..., str], jsonl: Any, changed_corpus: Any) -> None:
    root = changed_corpus({})
    (root / "de" / "dev.jsonl").write_text("{\n{\n")
    line = refused(*jsonl(root, "dataset.on_bad_line=skip"))
    assert line.startswith(f"{root}/de/dev.jsonl: no examples; every line was skipped, the first because ")


# Sentences.


def test_a_label_that_training_never_has(
    xclrun: Callable[..., Told], jsonl: Any, changed_corpus: Any, here: Path
) -> None:
    def unheard_of(rows: Rows) -> None:
        rows[1]["label"] = "unheard_of"
        rows[2]["tags"][0] = "B-unheard_of"

    told = xclrun(*jsonl(changed_corpus({("de", "test"): unheard_of, ("en", "dev"): unheard_of})))
    assert told.code == 0
    assert "note: 4 sentences with a label that training never has: scored as wrong (" in told.err
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
    shared = "note: 11 test sentences found in the language's training split too (en: 6, de: 5)\n"
    assert told.err.index(stray) < told.err.index(shared) < told.err.index("[1/1]")
    assert told.err.count("note: ") == 2, "once for each language"
    data = manifest(here / "outputs")["data"]
    assert (data["stray_tags"], data["test_in_train"]) == ({"de/train": 2}, {"en": 6, "de": 5})
    audited = xclrun("data", "audit", *command).out
    assert stray in audited
    assert shared in audited
    # Finished before: nothing is trained.
    assert "note: " not in xclrun(*command).err


def test_a_sentence_longer_than_the_limit_is_cut_and_counted(
    xclrun: Callable[..., Told], jsonl: Any, changed_corpus: Any, here: Path
) -> None:
    def lengthen(rows: Rows) -> None:
        rows[0]["tokens"] *= 50
        rows[0]["tags"] *= 50

    told = xclrun(*jsonl(changed_corpus({("en", "train"): lengthen, ("de", "test"): lengthen})))
    assert told.code == 0
    assert manifest(here / "outputs")["data"]["truncated"] == {"de/test": 1, "en/train": 1}


def test_tags_on_some_sentences_alone(refused: Callable[..., str], jsonl: Any, changed_corpus: Any) -> None:
    root = changed_corpus({("de", "dev"): lambda rows: rows[0].pop("tags")})
    assert "tags must be on every example or on none: " in refused(*jsonl(root))


def test_a_hub_that_cannot_be_reached(run_python: Callable[..., str], tmp_path: Path) -> None:
    code = (
        "import contextlib, io\nfrom xclrun.cli import main\nerr = io.StringIO()\n"
        "with contextlib.redirect_stderr(err):\n    code = main(['dataset=jsonl', 'dataset.hub=some/data'])\n"
        "print(code, err.getvalue())"
    )
    told = run_python(code, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "empty"))
    assert told == "2 xclrun: dataset.hub=some/data: the hub cannot be reached; give a local path with dataset.root=…"
