"""The contract of readers: ours pass, and for each check there is a wrong reader that fails it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.test_questions import ENGLISH
from tests.data.test_questions import write as write_files
from tests.data.test_readers_table import BAD, CALLED, GOOD, lay, massive
from tests.questions import write_questions
from xclrun.config.schema import DatasetConfig, OnBadLine, TagsAre
from xclrun.core.errors import UsageError
from xclrun.data import readers
from xclrun.data.example import Answer, Example
from xclrun.data.readers import READERS, Reader, register, row_reader
from xclrun.testing import ContractError, check_reader, reader_checks
from xclrun.testing.readers import READER_CONTRACT, WITH_BAD_ROW

# --- Ours.

SETTINGS: dict[str, dict[str, Any]] = {
    "conllu": {"tags_are": TagsAre.words},
    "conll": {"word_column": 2, "tag_column": 3},
}


def config_of(reader: str, root: Path, task: str) -> DatasetConfig:
    return DatasetConfig(name=reader, reader=reader, task=task, root=str(root), **SETTINGS.get(reader, {}))


@pytest.mark.parametrize("reader", GOOD)
def test_readers_of_rows_pass(reader: str, tmp_path: Path) -> None:
    task, name, *_ = GOOD[reader]
    lay(tmp_path, reader)
    rows = [row for other, row, _ in BAD if other == reader]
    file = name.format(split=CALLED.get(reader, {}).get("test", "test"))
    check_reader(config_of(reader, tmp_path, task), (file, f"{rows[0]}\n") if rows else None)


@pytest.mark.parametrize(("reader", "files"), [row[:2] for row in ENGLISH], ids=[row[0] for row in ENGLISH])
def test_readers_of_questions_pass(reader: str, files: dict[str, str | bytes], tmp_path: Path) -> None:
    write_files(tmp_path, files)
    check_reader(config_of(reader, tmp_path, "span"))


def test_other_readers_pass(tmp_path: Path) -> None:
    check_reader(DatasetConfig(name="mini", reader="mini"))
    check_reader(config_of("questions", write_questions(tmp_path / "questions", "en", "th"), "span"))
    massive(tmp_path / "massive", "de-DE", "en-US")
    check_reader(config_of("massive", tmp_path / "massive", "intent_slots"))


# --- One of an author, and wrong ones.

Read = Callable[[DatasetConfig], tuple[Any, Any]]


def lines(cfg: DatasetConfig, split_of: Callable[[str], str] = str) -> Iterator[tuple[str, str, int, str]]:
    """Yield (language, split, number, line) of the files LANGUAGE/SPLIT.txt."""
    root = Path(cfg.root or "")
    if cfg.root is None or not root.is_dir() or not (languages := sorted(path.name for path in root.iterdir())):
        raise UsageError(f"dataset.root={cfg.root}: no folder with languages")
    for language in languages if cfg.languages is None else cfg.languages:
        if language not in languages:
            raise UsageError(f"dataset.languages={language}: no such folder")
        for split in ("train", "dev", "test"):
            path = root / language / f"{split}.txt"
            try:
                text = path.read_bytes().decode()
            except UnicodeDecodeError as error:
                raise UsageError(f"{path}: is not UTF-8") from error
            for number, line in enumerate(text.splitlines(), start=1):
                yield language, split, number, line


def by_hand(cfg: DatasetConfig) -> tuple[Any, Any]:
    """Read labels, a space and the text."""
    splits: dict[tuple[str, str], list[Example]] = {}
    skipped: dict[str, int] = {}
    for language, split, number, line in lines(cfg):
        label, _, text = line.partition(" ")
        if text:
            example = Example(f"{split}-{number}", language, tuple(text.split()), label)
            splits.setdefault((language, split), []).append(example)
        elif cfg.on_bad_line is OnBadLine.skip:
            skipped[f"{language}/{split}"] = 1
        else:
            raise UsageError(f"{cfg.root}/{language}/{split}.txt:{number}: no text")
    return {key: tuple(examples) for key, examples in splits.items()}, {"skipped": skipped} if skipped else {}


def changed(**changes: Callable[[Example], Any]) -> Read:
    """Return a reader whose examples have other values."""

    def read(cfg: DatasetConfig) -> tuple[Any, Any]:
        splits, notes = by_hand(cfg)
        change = lambda e: replace(e, **{name: make(e) for name, make in changes.items()})  # noqa: E731
        return {key: tuple(map(change, examples)) for key, examples in splits.items()}, notes

    return read


def without_dev(cfg: DatasetConfig) -> tuple[Any, Any]:
    splits, notes = by_hand(cfg)
    return {key: examples for key, examples in splits.items() if key[1] != "dev"}, notes


def shuffled(cfg: DatasetConfig) -> tuple[Any, Any]:
    splits, notes = by_hand(cfg)
    return {key: tuple(random.sample(examples, len(examples))) for key, examples in splits.items()}, notes


def drawing(cfg: DatasetConfig) -> tuple[Any, Any]:
    np.random.default_rng(1).uniform()
    np.random.rand()  # noqa: NPY002
    return by_hand(cfg)


def all_languages(cfg: DatasetConfig) -> tuple[Any, Any]:
    return by_hand(replace(cfg, languages=None))


def empty_for_unknown(cfg: DatasetConfig) -> tuple[Any, Any]:
    return ({}, {}) if cfg.languages == ["no-such-language"] else by_hand(cfg)


def open_error(cfg: DatasetConfig) -> tuple[Any, Any]:
    list(Path(str(cfg.root)).iterdir())
    return by_hand(cfg)


def caching(cfg: DatasetConfig) -> tuple[Any, Any]:
    if cfg.root and Path(cfg.root, "en").is_dir():
        Path(cfg.root, "en", "cache.json").write_text("{}")
    return by_hand(cfg)


def talkative(cfg: DatasetConfig) -> tuple[Any, Any]:
    print("reading", cfg.root)
    return by_hand(cfg)


def vague(cfg: DatasetConfig) -> tuple[Any, Any]:
    try:
        return by_hand(cfg)
    except UsageError as error:
        raise UsageError("a row is bad") from error


def never_skips(cfg: DatasetConfig) -> tuple[Any, Any]:
    return by_hand(replace(cfg, on_bad_line=OnBadLine.error))


def undecoded(cfg: DatasetConfig) -> tuple[Any, Any]:
    try:
        return by_hand(cfg)
    except UsageError as error:
        raise error.__cause__ or error from None


def one_column_less(cfg: DatasetConfig) -> tuple[Any, Any]:
    splits, notes = by_hand(cfg)
    first = next(iter(splits))
    return {
        **splits,
        first: tuple(replace(e, label=None if i else e.label) for i, e in enumerate(splits[first])),
    }, notes


# Check → a reader that fails it; None: it is not registered.
WRONG: dict[str, Read | None] = {
    "is_registered": None,
    "returns_every_split": without_dev,
    "names_examples_once": changed(id=lambda e: "1"),
    "splits_texts_into_words": changed(tokens=lambda e: (*e.tokens, " ")),
    "fills_the_declared_columns": changed(tags=lambda e: ("O",) * len(e.tokens)),
    "finds_answers_in_texts": changed(answers=lambda e: (Answer("text", 0),)),
    "reads_the_same_again": shuffled,
    "draws_no_global_random_numbers": drawing,
    "selects_languages": all_languages,
    "refuses_unknown_languages": empty_for_unknown,
    "refuses_missing_data": open_error,
    "leaves_files_unchanged": caching,
    "prints_nothing": talkative,
    "serves_its_task": one_column_less,
    "names_bad_rows": vague,
    "skips_bad_rows": never_skips,
    "refuses_damaged_files": undecoded,
}
BAD_ROW = ("en/test.txt", "bad\n")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetConfig:
    """Two languages; readers that a test registers are forgotten after it."""
    for language in ("de", "en"):
        for split in ("train", "dev", "test"):
            path = tmp_path / language / f"{split}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{'+-'[i % 2]} {language} {split} text {i}\n" for i in range(5)))
    monkeypatch.setattr(readers, "READERS", dict(READERS))
    monkeypatch.setattr("xclrun.testing.readers.READERS", readers.READERS)
    return DatasetConfig(name="mine", reader="mine", task="sequence_class", root=str(tmp_path))


def test_a_reader_of_an_author_passes(config: DatasetConfig) -> None:
    register("mine", Reader(by_hand, gives=frozenset({"label"})))
    check_reader(config, BAD_ROW)


def test_the_reader_of_the_page_of_plugins_passes(config: DatasetConfig) -> None:
    @row_reader("mine", ["{language}/{split}.txt"], gives=["label"])
    def parse(line: str, place: Any) -> Example:
        label, _, text = line.partition(" ")
        if not text:
            raise readers.collect.BadRow("a label and a text are needed")
        return Example(place.name, place.language, tuple(text.split()), label)

    check_reader(config, BAD_ROW)


@pytest.mark.parametrize("name", [function.__name__ for function in (*READER_CONTRACT, *WITH_BAD_ROW)])
def test_for_each_check_a_wrong_reader_fails_it(name: str, config: DatasetConfig) -> None:
    if (wrong := WRONG[name]) is not None:
        register("mine", Reader(wrong, gives=frozenset({"label"})))
    [check] = [c for c in reader_checks(config, BAD_ROW) if c.name == name]
    with pytest.raises(ContractError) as error:
        check()
    message = str(error.value)
    assert message.startswith(f"reader 'mine': {name}: {check.requirement} ")
    assert "\n" not in message


def test_without_a_bad_row_its_checks_are_left_out(config: DatasetConfig) -> None:
    names = {check.name for check in reader_checks(config, BAD_ROW)} - {check.name for check in reader_checks(config)}
    assert names == {function.__name__ for function in WITH_BAD_ROW}
