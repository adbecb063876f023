"""The English datasets of lifelong learning's streams: what a released line becomes, and what is no such line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xclrun.config.schema import DatasetConfig, PartConfig, StatementsConfig
from xclrun.core.errors import UsageError
from xclrun.data.example import Example
from xclrun.data.load import load_dataset
from xclrun.data.notes import told

Config = Callable[..., DatasetConfig]

BOOLQ = {"question": "is it so", "passage": "It is so.", "idx": 7, "label": True}
WIC = {"word": "set", "sentence1": "A set .", "sentence2": "They set .", "idx": 3, "label": False, "start1": 2}
WSC = {
    "text": "Mark told Pete lies about himself .",
    "target": {"span1_index": 0, "span1_text": "Mark", "span2_index": 5, "span2_text": "himself"},
    "idx": 0,
    "label": True,
}
MNLI = {
    "sentence1": "It rains .",
    "sentence2": "It is wet .",
    "gold_label": "entailment",
    "genre": "slate",
    "pairID": "4e",
}
FEWREL = {"tokens": ["Rome", "is", "in", "Italy"], "h": ["rome", "Q220", [[0]]], "t": ["italy", "Q38", [[3]]]}
NAMES = {"train": "train.jsonl", "test": "val.jsonl"}
SNLI_NAMES = {"train": "snli_1.0_train.jsonl", "test": "snli_1.0_test.jsonl"}
MNLI_NAMES = {"train": "multinli_1.0_train.jsonl", "test": "multinli_1.0_dev_matched.jsonl"}
CSV_NAMES = {"train": "train.csv", "test": "test.csv"}
FEWREL_NAMES = {"train": "train_wiki.json", "test": "val_wiki.json"}


def line(row: Any) -> str:
    return row if isinstance(row, str) else json.dumps(row)


def write(folder: Path, names: dict[str, str], *rows: Any) -> None:
    folder.mkdir(exist_ok=True)
    for name in names.values():
        (folder / name).write_text("\n".join(map(line, rows)) + "\n", encoding="utf-8")


def sentence(text: str) -> tuple[str, ...]:
    return tuple(text.split())


RELEASED = [
    ("boolq", NAMES, BOOLQ, Example("7", "en", sentence("It is so."), "true", text_b="is it so"), None),
    (
        "wic",
        NAMES,
        WIC,
        Example("3", "en", sentence("A set ."), "false", text_b="They set . set"),
        {"word": "set", "sentence1": "A set .", "sentence2": "They set ."},
    ),
    (
        "wsc",
        NAMES,
        WSC,
        Example("0", "en", sentence("Mark told Pete lies about himself ."), "true", text_b="Mark himself"),
        {"noun": "Mark", "pronoun": "himself"},
    ),
    (
        "mnli",
        MNLI_NAMES,
        MNLI,
        Example("4e", "en", sentence("It rains ."), "entailment", text_b="It is wet ."),
        {"genre": "slate"},
    ),
    (
        "snli",
        SNLI_NAMES,
        {key: value for key, value in MNLI.items() if key != "genre"},
        Example("4e", "en", sentence("It rains ."), "entailment", text_b="It is wet ."),
        None,
    ),
    (
        "yelp",
        CSV_NAMES,
        r'"2","So ""so"".\n\nNot again."',
        Example("x", "en", sentence('So "so". Not again.'), "2"),
        None,
    ),
    ("amazon", CSV_NAMES, '"5","Good","It is, good."', Example("x", "en", sentence("Good It is, good."), "5"), None),
    ("agnews", CSV_NAMES, '"4","Chips","New chips."', Example("x", "en", sentence("New chips."), "Sci/Tech"), None),
    ("dbpedia", CSV_NAMES, '14,"A","A book."', Example("x", "en", sentence("A book."), "WrittenWork"), None),
    ("yahoo", CSV_NAMES, '"6","Why","","So."', Example("x", "en", sentence("Why So."), "Sports"), None),
]


@pytest.mark.parametrize(("reader", "names", "row", "expected", "facts"), RELEASED, ids=[row[0] for row in RELEASED])
def test_a_released_line(
    reader: str, names: dict[str, str], row: Any, expected: Example, facts: Any, config: Config, tmp_path: Path
) -> None:
    write(tmp_path, names, row)
    dataset = load_dataset(config(reader, task="sequence_class"))
    [example] = dataset.split("en", "test")
    wanted = expected if expected.id != "x" else Example("test-1", *[getattr(expected, f) for f in FIELDS])
    assert example == wanted
    assert example.facts == facts
    assert dataset.split("en", "dev") == ()


FIELDS = ("language", "tokens", "label", "tags", "text", "text_b")


def test_a_released_file_of_relations(config: Config, tmp_path: Path) -> None:
    write(tmp_path, FEWREL_NAMES, {"P131": [FEWREL, {**FEWREL, "tokens": ["Rome"]}], "P17": [FEWREL]})
    coded = load_dataset(config("fewrel", task="sequence_class"))
    assert coded.labels == ("P131", "P17")
    (tmp_path / "pid2name.json").write_text(json.dumps({"P131": ["located in", "where it is"]}))
    named = load_dataset(config("fewrel", task="sequence_class", name="named"))
    [first, second, third] = named.split("en", "train")
    assert [e.id for e in (first, second, third)] == ["P131-1", "P131-2", "P17-1"]
    assert (first.label, second.tokens, third.label) == ("located in", ("Rome",), "P17")
    assert first.facts == {"head": "rome", "tail": "italy"}
    # Two relations of one name stay two.
    (tmp_path / "pid2name.json").write_text(json.dumps({code: ["in", ""] for code in ("P131", "P17")}))
    assert load_dataset(config("fewrel", task="sequence_class", name="alike")).labels == ("in (P131)", "in (P17)")


def test_pairs_on_which_annotators_did_not_agree_are_left_out_and_counted(config: Config, tmp_path: Path) -> None:
    write(tmp_path, MNLI_NAMES, MNLI, {**MNLI, "gold_label": "-", "pairID": "5"})
    dataset = load_dataset(config("mnli", task="sequence_class"))
    assert dataset.sizes() == {"en": 1}
    said = "2 pairs on whose label annotators did not agree (-): left out (en/train: 1, en/test: 1)"
    assert told([dataset])[0] == said


def test_genres_are_keys(config: Config, tmp_path: Path) -> None:
    others = [{**MNLI, "genre": genre, "pairID": genre, "gold_label": "neutral"} for genre in ("travel", "fiction")]
    write(tmp_path, MNLI_NAMES, MNLI, *others)
    parts = {genre: PartConfig(where={"genre": [genre]}, label_prefix="") for genre in ("slate", "travel")}
    dataset = load_dataset(config("mnli", task="sequence_class", parts=parts))
    assert [e.id for key in dataset.languages for e in dataset.split(key, "test")] == ["4e", "travel"]
    assert dataset.labels == ("entailment", "neutral")


MALFORMED = [
    ("boolq", NAMES, {**BOOLQ, "label": "yes"}, r"train\.jsonl:2: 'label' must be true or false, not 'yes'"),
    ("boolq", NAMES, {**BOOLQ, "passage": " "}, r"train\.jsonl:2: 'passage' must be a text, not ' '"),
    ("boolq", NAMES, "[1]", r"train\.jsonl:2: an example is an object, not list"),
    ("boolq", NAMES, "{", r"train\.jsonl:2: the line is not JSON"),
    ("wic", NAMES, {**WIC, "word": None}, r"train\.jsonl:2: 'word' must be a text, not None"),
    ("wic", NAMES, WIC, r"train\.jsonl:2: id '3' is taken by line 1"),
    ("wsc", NAMES, {**WSC, "target": "Mark"}, r"train\.jsonl:2: 'target' must be an object, not 'Mark'"),
    ("wsc", NAMES, {**WSC, "target": {}}, r"train\.jsonl:2: 'span1_text' must be a text"),
    ("mnli", MNLI_NAMES, {**MNLI, "gold_label": "yes"}, r"train\.jsonl:2: label 'yes' is none of contradiction"),
    ("mnli", MNLI_NAMES, {**MNLI, "genre": 3}, r"train\.jsonl:2: 'genre' must be a text, not 3"),
    ("yelp", CSV_NAMES, '"6","x"', r"train\.csv:2: the class must be a number from 1 to 5, not '6'"),
    ("amazon", CSV_NAMES, '"1","x"', r"train\.csv:2: 2 columns instead of 3: class, title, text"),
    ("agnews", CSV_NAMES, '"1","x","', r"train\.csv:2: not a line of CSV"),
    ("agnews", CSV_NAMES, f'"{"9" * 5000}","x","x"', r"train\.csv:2: the class must be a number from 1 to 4"),
    ("boolq", NAMES, {**BOOLQ, "idx": " "}, r"train\.jsonl:2: the id is blank"),
    ("dbpedia", CSV_NAMES, '"x","a","b"', r"train\.csv:2: the class must be a number from 1 to 14, not 'x'"),
    ("yahoo", CSV_NAMES, '"1","","",""', r"train\.csv:2: the text is blank"),
]


@pytest.mark.parametrize(("reader", "names", "bad", "told"), MALFORMED)
def test_a_malformed_line_is_named(
    reader: str, names: dict[str, str], bad: Any, told: str, config: Config, tmp_path: Path
) -> None:
    [good] = [row for name, _, row, _, _ in RELEASED if name == reader]
    write(tmp_path, names, good, bad)
    with pytest.raises(UsageError, match=told):
        load_dataset(config(reader, task="sequence_class"))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"P1": [FEWREL, {"tokens": ["a"]}]}, r"json:2: example 2 of the relation 'P1' needs tokens, h and t"),
        ({"P1": [{**FEWREL, "tokens": []}]}, r"json:1: example 1 of the relation 'P1': tokens must be a list of words"),
        ({"P1": [{**FEWREL, "h": [""]}]}, r"json:1: example 1 of the relation 'P1': h and t must begin with a name"),
        ({" ": [FEWREL]}, r"train_wiki\.json:1: the label is blank"),
        ({"P1": 3}, r"train_wiki\.json: the relation 'P1' must be a list"),
        ([], r"train_wiki\.json: must be an object"),
        ("{", r"train_wiki\.json: the file is not JSON"),
    ],
)
def test_a_malformed_file_of_relations_is_named(content: Any, told: str, config: Config, tmp_path: Path) -> None:
    write(tmp_path, FEWREL_NAMES, content)
    with pytest.raises(UsageError, match=told):
        load_dataset(config("fewrel", task="sequence_class"))


def test_a_missing_file_and_another_language_are_told(config: Config, tmp_path: Path) -> None:
    write(tmp_path, {"train": "train.jsonl"}, BOOLQ)
    with pytest.raises(UsageError, match=r"no test split; looked for val\.jsonl or dev\.jsonl"):
        load_dataset(config("boolq", task="sequence_class"))
    with pytest.raises(
        UsageError, match=r"dataset\.languages: no 'de' in boolq, whose only language is 'en'; Known: en"
    ):
        load_dataset(config("boolq", task="sequence_class", languages=["de"]))


def test_the_tasks_of_a_stream_are_one_as_statements(config: Config, tmp_path: Path) -> None:
    """LL's wording of each, from its released layout."""
    for reader, names, row, _, _ in RELEASED:
        other = row if isinstance(row, str) else {**row, "idx": 99, "pairID": "99", "gold_label": "neutral"}
        more = {
            "yelp": '"4","Fine."',
            "amazon": '"1","Bad","It is bad."',
            "agnews": '"1","x","y"',
            "dbpedia": '1,"x","y"',
        }
        write(tmp_path / reader, names, row, more.get(reader, '"1","a","b","c"' if reader == "yahoo" else other))
    write(tmp_path / "fewrel", FEWREL_NAMES, {"P1": [FEWREL], "P2": [FEWREL]})
    kinds = {
        "boolq": "question", "wic": "sense", "wsc": "coreference", "mnli": "inference", "yelp": "sentiment",
        "amazon": "sentiment", "agnews": "news", "dbpedia": "topic", "yahoo": "topic", "fewrel": "relation",
    }  # fmt: skip
    parts = {name: PartConfig(reader=name, root=name, statements=kind) for name, kind in kinds.items()}
    dataset = load_dataset(
        config("boolq", task="sequence_class", root=str(tmp_path), parts=parts, statements=StatementsConfig())
    )
    true = {key: {str(e.text_b) for e in dataset.split(key, "train") if e.label == "true"} for key in dataset.languages}
    assert true["boolq"] == {"is it so"}
    assert true["fewrel"] == {"rome - P1 - italy", "rome - P2 - italy"}
    assert true["wsc"] <= {"himself refers to Mark", "himself is Mark", "himself is the pronoun of Mark"}
    # WiC's statements are false here, as their labels are.
    assert true["wic"] == set()
    assert {e.text_b for e in dataset.split("wic", "train")} <= {
        "set is used in the same sense",
        "set is the polysemous word",
    }
    assert true["mnli"] <= {f"This {verb} {label}" for verb in ("implies", "is") for label in ("entailment", "neutral")}
    assert {words.split()[-1 if "sentiment" in words else 3].rstrip(".") for words in true["yelp"]} == {
        "negative",
        "positive",
    }
    assert all(("Sci/Tech" in text) != ("World" in text) for text in true["agnews"])
    [first, *_] = dataset.split("mnli", "train")
    assert first.tokens == sentence("It rains . It is wet .")
    assert dataset.split("wic", "train")[0].tokens == sentence("A set . They set .")
