"""The registry of readers, and adding a reader."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import yaml

from xclrun.config.files import packaged
from xclrun.config.schema import DatasetConfig, OnBadLine
from xclrun.core.errors import UsageError
from xclrun.data import readers
from xclrun.data.example import Example
from xclrun.data.load import load_dataset
from xclrun.data.readers import READERS, Reader, read, register, row_reader
from xclrun.data.readers.collect import BadRow, Place

Config = Callable[..., DatasetConfig]


def test_every_file_of_the_folder_has_a_reader_and_every_reader_a_dataset() -> None:
    paths = (packaged("conf") / "dataset").glob("*.yaml")
    values = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]
    assert {v["reader"] for v in values if "reader" in v} == set(READERS)
    modules = {module.name for module in iter_modules(readers.__path__)}
    assert {home(reader.read) for reader in READERS.values()} == modules - {"collect", "files", "hub", "rows", "values"}


def test_the_page_of_datasets_has_every_reader_with_its_files() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `")
    ]
    # The page has other tables too.
    rows = [row for row in rows if len(row) == 5]
    assert [[name.strip("`"), gives, files] for name, gives, files, _, _ in sorted(rows)] == [
        [name, ", ".join(sorted(reader.gives)), " ".join(f"`{file}`" for file in reader.layout) or "none"]
        for name, reader in sorted(READERS.items(), key=lambda item: f"`{item[0]}`")
    ]
    assert all(licence and source for *_, licence, source in rows)


def home(function: Callable[..., object]) -> str:
    """Return the name of the module whose function reads the data, or parses the rows of files."""
    while isinstance(function, partial):
        function = function.keywords.get("parse", function.func)
    return function.__module__.rpartition(".")[2]


@pytest.mark.some_cases
@pytest.mark.parametrize("name", READERS)
def test_a_reader_serves_the_task_of_its_dataset(name: str, compose: Callable[..., Any]) -> None:
    reader = READERS[name]
    cfg = compose(f"dataset={'udpos' if name == 'conllu' else name}").config.dataset
    if reader.layout:
        first = re.split(r"\{(?:split|any)\}", reader.layout[-1])[0].format(language="<language>")
        with pytest.raises(UsageError, match=f"^dataset.root is needed: the folder that holds .*{re.escape(first)}"):
            read(cfg)
    else:
        assert read(cfg)[0]


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of lines of a label and a text, for this test alone."""
    monkeypatch.setattr(readers, "READERS", dict(READERS))

    @row_reader("numbers", ["{split}.{language}"], gives=["label"], languages=["th", "de"])
    def parse(line: str, place: Place) -> Example | None:
        label, _, text = line.partition(" ")
        if label == "#":
            return None
        if not text:
            raise BadRow("no text")
        place.odd["slots_inside_words"] += label == "odd"
        return Example(place.name, place.language, tuple(text.split()), label)


@pytest.mark.usefixtures("numbers")
def test_one_more_reader_is_one_function(config: Config, tmp_path: Path) -> None:
    for language in ("ar", "de", "th"):
        for split in ("train", "dev", "test"):
            (tmp_path / f"{split}.{language}").write_text("# header\na one two\nodd three\nbad\n", encoding="utf-8")
    cfg = config("numbers", task="sequence_class", on_bad_line=OnBadLine.skip)
    dataset = load_dataset(cfg)
    assert dataset.languages == ("th", "de", "ar"), "those that the reader names come first"
    assert dataset.split("ar", "dev") == (
        Example("dev-2", "ar", ("one", "two"), "a"),
        Example("dev-3", "ar", ("three",), "odd"),
    )
    assert {name: counts["de/test"] for name, counts in dataset.notes.items()} == {
        "skipped": 1,
        "slots_inside_words": 1,
    }
    for options, message in [
        (
            {"on_bad_line": OnBadLine.error},
            f"^{tmp_path}/train.ar:4: no text; .*on_bad_line=skip would skip 9 of 27 sentences$",
        ),
        (
            {"task": "intent_slots"},
            "^dataset.task=intent_slots: the files of dataset.reader=numbers contain only a label",
        ),
    ]:
        with pytest.raises(UsageError, match=message):
            read(config("numbers", **{"task": "sequence_class", **options}))


@pytest.mark.usefixtures("numbers")
def test_an_invalid_reader_is_refused() -> None:
    for name, gives, message in [
        ("mini", {"label"}, "^dataset reader 'mini': this name is already registered"),
        ("other", set(), "^dataset reader 'other': gives=.*; list some of answers, label, tags"),
        ("other", {"class"}, "^dataset reader 'other': gives=.*; list some of answers, label, tags"),
    ]:
        with pytest.raises(UsageError, match=message):
            register(name, Reader(READERS["mini"].read, gives=frozenset(gives)))
