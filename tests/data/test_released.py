"""Readers of classification data as released: XNLI, PAWS-X, MLDoc and MARC."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.data.example import Example
from xclrun.data.load import load_dataset
from xclrun.data.readers import read

Config = Callable[..., DatasetConfig]
SPLITS = ("train", "dev", "test")


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))


def pawsx(folder: Path, *rows: str) -> None:
    for language, train in (("en", "train"), ("de", "translated_train")):
        for name in (train, "dev_2k", "test_2k"):
            write(folder / language / f"{name}.tsv", "id\tsentence1\tsentence2\tlabel", *rows)


def test_pawsx(tmp_path: Path, config: Config) -> None:
    pawsx(tmp_path, "1\tA b .\tB a .\t1", "2\tC  d .\tD c .\t0")
    dataset = load_dataset(config("pawsx", task="sequence_class"))
    first = Example("1", "de", ("A", "b", "."), "1", None, None, "B a .")
    assert dataset.split("de", "train") == (first, Example("2", "de", ("C", "d", "."), "0", None, "C  d .", "D c ."))
    assert (dataset.languages, dataset.labels, dataset.tags) == (("de", "en"), ("0", "1"), ())


def test_mldoc(tmp_path: Path, config: Config) -> None:
    for name in ("english", "german"):
        for suffix in ("train.1000", "dev", "test"):
            write(
                tmp_path / name / f"{name}.{suffix}", "CCAT\tBonds rose.", r"MCAT\tb'K\xc3\xb6ln'".replace(r"\t", "\t")
            )
    dataset = load_dataset(config("mldoc", task="sequence_class"))
    assert dataset.languages == ("de", "en")
    assert [e.tokens for e in dataset.split("de", "test")] == [("Bonds", "rose."), ("Köln",)]
    assert dataset.split("en", "train")[0] == Example("train-1", "en", ("Bonds", "rose."), "CCAT")
    write(tmp_path / "german" / "german.train.5000", "CCAT\tBonds")
    with pytest.raises(UsageError, match=r"'de' has its train split twice: .*1000 and .*5000; keep one"):
        read(config("mldoc", task="sequence_class"))


REVIEW = {"review_id": "de_1", "stars": "4", "review_body": "Gut.", "review_title": "Ja", "product_category": "home"}


def test_marc(tmp_path: Path, config: Config) -> None:
    for split in SPLITS:
        write(tmp_path / split / f"dataset_de_{split}.json", json.dumps({**REVIEW, "language": "de"}))
    [example] = load_dataset(config("marc", task="sequence_class")).split("de", "dev")
    assert example == Example("de_1", "de", ("Gut.",), "4", None, None, "Ja . home")
    for change, reason in [({"stars": 6}, "label '6'"), ({"review_body": None}, "'review_body' must be a string")]:
        write(tmp_path / "train" / "dataset_de_train.json", json.dumps({**REVIEW, **change}))
        with pytest.raises(UsageError, match=f"dataset_de_train.json:1: {reason}"):
            read(config("marc", task="sequence_class"))
    write(tmp_path / "train" / "dataset_de_train.json", "[1]")
    with pytest.raises(UsageError, match="an example is an object, not list"):
        read(config("marc", task="sequence_class"))


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
        ((XNLI_HEADER, "de\tneutral\tA\tB"), "dev.tsv:2: 4 columns between tabs instead of 5"),
        ((XNLI_HEADER, "de\t-\tA\tB\t1"), "dev.tsv:2: label '-' is none of contradiction, entailment, neutral"),
        (("a\tb", "de\tneutral"), "dev.tsv: no column 'language'"),
        (("language\tgold_label\tsentence1", "de\tneutral\tA"), "the header has no column sentence2 or hypo"),
    ]:
        write(path, *lines)
        with pytest.raises(UsageError, match=reason):
            read(config("xnli", task="sequence_class", languages=["de"]))
    path.unlink()
    with pytest.raises(UsageError, match=r"no dev split; looked for XNLI-1.0/xnli.dev.tsv"):
        read(config("xnli", task="sequence_class"))


def test_files_of_labels_have_no_tags(config: Config) -> None:
    with pytest.raises(UsageError, match=r"dataset.task=token_tags: the files of dataset.reader=marc hold a label"):
        load_dataset(config("marc", task="token_tags"))
