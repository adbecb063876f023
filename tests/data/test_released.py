"""Classification data as released, beyond one file a split: XNLI, relations, genres, and the tasks of a stream."""

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
from xclrun.data.readers import read

from .test_readers_table import BOOLQ, GOOD, MNLI, lay, write

Config = Callable[..., DatasetConfig]


XNLI_HEADER = "language\tgold_label\tsentence1\tsentence2\tpairID"


@pytest.fixture
def xnli(tmp_path: Path) -> Path:
    """XNLI's folders with English and German, and training data in English alone."""
    rows = [f"{language}\t{label}\tA b\tC\t{i}" for i, label in enumerate(("entailment", "neutral"))
            for language in ("en", "de")]  # fmt: skip
    for split in ("dev", "test"):
        write(tmp_path / "XNLI-1.0" / f"xnli.{split}.tsv", XNLI_HEADER, *rows)
    trained = tmp_path / "XNLI-MT-1.0" / "multinli" / "multinli.train.en.tsv"
    write(trained, "premise\thypo\tlabel", "P\tH\tcontradictory", "", "P\tH\tneutral", "Q\tH\tentailment")
    return tmp_path


def test_xnli(xnli: Path, config: Config) -> None:
    dataset = load_dataset(config("xnli", task="sequence_class", languages=["en", "de"]))
    assert dataset.labels == ("contradiction", "entailment", "neutral")
    assert [e.id for e in dataset.split("en", "train")] == ["train-2", "train-4", "train-5"]
    assert dataset.split("de", "train") == ()
    pairs = [Example(str(i), "de", ("A", "b"), x, text_b="C") for i, x in enumerate(("entailment", "neutral"))]
    assert dataset.split("de", "test") == tuple(pairs)


def test_xnli_mistakes(xnli: Path, config: Config) -> None:
    path = xnli / "XNLI-1.0" / "xnli.dev.tsv"
    for lines, reason in [
        ((XNLI_HEADER, "de\tneutral\tA\tB"), "dev.tsv:2: 4 tab-separated columns instead of 5"),
        ((XNLI_HEADER, "de\tx\tA\tB\t1"), "dev.tsv:2: unknown label 'x'; use contradiction"),
        ((XNLI_HEADER, "de\t-\tA\tB\t1"), "dev.tsv: no examples; the rows have no labels"),
        (("a\tb", "de\tneutral"), "dev.tsv: no column 'language'"),
        (("language\tgold_label\tsentence1", "de\tneutral\tA"), "the header has no column sentence2 or hypo"),
    ]:
        write(path, *lines)
        with pytest.raises(UsageError, match=reason):
            read(config("xnli", task="sequence_class", languages=["de"]))
    path.unlink()
    assert load_dataset(config("xnli", task="sequence_class")).sizes("dev") == {"de": 0, "en": 0}
    path.with_name("xnli.test.tsv").unlink()
    with pytest.raises(UsageError, match=r"no test split; looked for XNLI-1.0/xnli.test.tsv"):
        read(config("xnli", task="sequence_class"))


def test_a_split_of_two_sizes_is_refused(tmp_path: Path, config: Config) -> None:
    for suffix in ("train.1000", "train.5000", "dev", "test"):
        write(tmp_path / "german" / f"german.{suffix}", "CCAT\tBonds")
    with pytest.raises(UsageError, match=r"'de' has two files for train: .*1000 and .*5000"):
        read(config("mldoc", task="sequence_class"))


def test_files_of_labels_have_no_tags(config: Config) -> None:
    with pytest.raises(UsageError, match=r"dataset.task=token_tags: .*dataset.reader=marc contain only a label"):
        load_dataset(config("marc", task="token_tags"))


FEWREL = {"tokens": ["Rome", "is", "in", "Italy"], "h": ["rome", "Q220", [[0]]], "t": ["italy", "Q38", [[3]]]}


def relations(folder: Path, content: Any) -> None:
    for name in ("train_wiki.json", "val_wiki.json"):
        write(folder / name, content if isinstance(content, str) else json.dumps(content))


def mnli(folder: Path, *rows: dict[str, Any]) -> None:
    for name in ("train", "dev_matched"):
        write(folder / f"multinli_1.0_{name}.jsonl", *map(json.dumps, rows))


def test_a_released_file_of_relations(config: Config, tmp_path: Path) -> None:
    relations(tmp_path, {"P131": [FEWREL, {**FEWREL, "tokens": ["Rome"]}], "P17": [FEWREL]})
    coded = load_dataset(config("fewrel", task="sequence_class"))
    assert coded.labels == ("P131", "P17")
    (tmp_path / "pid2name.json").write_text(json.dumps({"P131": ["located in", "place"]}))
    named = load_dataset(config("fewrel", task="sequence_class", name="named"))
    [first, second, third] = named.split("en", "train")
    assert [e.id for e in (first, second, third)] == ["P131-1", "P131-2", "P17-1"]
    assert (first.label, second.tokens, third.label) == ("located in", ("Rome",), "P17")
    assert first.facts == {"head": "rome", "tail": "italy"}
    # Two relations of one name stay two.
    (tmp_path / "pid2name.json").write_text(json.dumps({code: ["in", ""] for code in ("P131", "P17")}))
    assert load_dataset(config("fewrel", task="sequence_class", name="alike")).labels == ("in (P131)", "in (P17)")


def test_pairs_on_which_annotators_did_not_agree_are_left_out_and_counted(config: Config, tmp_path: Path) -> None:
    mnli(tmp_path, MNLI, {**MNLI, "gold_label": "-", "pairID": "5"})
    dataset = load_dataset(config("mnli", task="sequence_class"))
    assert dataset.sizes() == {"en": 1}
    assert dataset.notes["disputed"] == {"en/train": 1, "en/test": 1}


def test_genres_are_keys(config: Config, tmp_path: Path) -> None:
    rest = [{**MNLI, "genre": genre, "pairID": genre, "gold_label": "neutral"} for genre in ("travel", "fiction")]
    mnli(tmp_path, MNLI, *rest)
    parts = {genre: PartConfig(where={"genre": [genre]}, label_prefix="") for genre in ("slate", "travel")}
    dataset = load_dataset(config("mnli", task="sequence_class", parts=parts))
    assert [e.id for key in dataset.languages for e in dataset.split(key, "test")] == ["4e", "travel"]
    assert dataset.labels == ("entailment", "neutral")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"P1": [FEWREL, {"tokens": ["a"]}]}, r"json:2: example 2 of the relation 'P1' needs tokens, h and t"),
        ({"P1": [{**FEWREL, "tokens": []}]}, r"json:1: example 1 of the relation 'P1': 'tokens'"),
        ({"P1": [{**FEWREL, "h": [""]}]}, r"json:1: example 1 of the relation 'P1': 'h'"),
        ({" ": [FEWREL]}, r"train_wiki\.json:1: the label is blank"),
        ({"P1": 3}, r"train_wiki\.json: the relation 'P1' must be a list"),
        ([], r"train_wiki\.json: must be an object"),
        ("{", r"train_wiki\.json: the file is not JSON"),
    ],
)
def test_a_malformed_file_of_relations_is_named(content: Any, message: str, config: Config, tmp_path: Path) -> None:
    relations(tmp_path, content)
    with pytest.raises(UsageError, match=message):
        load_dataset(config("fewrel", task="sequence_class"))


def test_a_missing_file_and_another_language_are_told(config: Config, tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", json.dumps(BOOLQ))
    with pytest.raises(UsageError, match=r"no test split; looked for val\.jsonl or dev\.jsonl"):
        load_dataset(config("boolq", task="sequence_class"))
    with pytest.raises(
        UsageError, match=r"dataset\.languages: no 'de' in boolq, whose only language is 'en'; Known: en"
    ):
        load_dataset(config("boolq", task="sequence_class", languages=["de"]))


def test_the_tasks_of_a_stream_are_one_as_statements(config: Config, tmp_path: Path) -> None:
    """LL's wording of each, from its released layout."""
    more = {
        "yelp": '"4","Fine."', "amazon": '"1","Bad","It is bad."', "agnews": '"1","x","y"', "dbpedia": '1,"x","y"',
        "yahoo": '"1","a","b","c"',
    }  # fmt: skip
    for reader in ("boolq", "wic", "wsc", "mnli", *more):
        [row] = GOOD[reader][2]
        other = {"idx": 99, "pairID": "99", "gold_label": "neutral"}
        lay(tmp_path / reader, reader, more.get(reader) or json.dumps({**json.loads(row), **other}))
    relations(tmp_path / "fewrel", {"P1": [FEWREL], "P2": [FEWREL]})
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
    assert first.tokens == ("It", "rains", ".", "It", "is", "wet", ".")
    assert dataset.split("wic", "train")[0].tokens == ("A", "set", ".", "They", "set", ".")
