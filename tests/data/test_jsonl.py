"""The reader of JSON Lines: layouts, unreadable files, and hub datasets."""

import gzip
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pytest

from xclrun.config.schema import DatasetConfig, OnBadLine
from xclrun.core.errors import UsageError
from xclrun.core.task import task_of
from xclrun.data.example import SPLITS, Example
from xclrun.data.readers import jsonl
from xclrun.data.readers.collect import BadRow
from xclrun.data.readers.hub import rows_of

Config = Callable[..., DatasetConfig]
GOOD = {"id": "7", "tokens": ["wie", "warm"], "tags": ["O", "B-x"], "label": "weather"}


def dump(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def write(root: Path, layout: str = "{language}.{split}.jsonl", languages: str = "de", **content: bytes) -> Path:
    """Write train, dev and test of some languages; ``content`` replaces a good row in the splits that it names."""
    for language in languages.split():
        for split in SPLITS:
            name = layout.format(language=language, split=split)
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = content.get(split, dump(GOOD))
            path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache of the library, for this test alone."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("layout", jsonl.LAYOUT)
@pytest.mark.parametrize("languages", ["de en", "zh-CN zh_TW"])
def test_every_layout_holds_the_same_dataset(tmp_path: Path, config: Config, layout: str, languages: str) -> None:
    write(tmp_path, layout, languages)
    splits, notes = jsonl.read(config("jsonl"))
    example = {
        language: Example("7", language, ("wie", "warm"), "weather", ("O", "B-x")) for language in languages.split()
    }
    assert splits == {(language, split): (example[language],) for language in languages.split() for split in SPLITS}
    assert notes == {}


@pytest.mark.parametrize("dev", ["dev", "eval", "validation", "valid", "val"])
def test_dev_has_several_names(tmp_path: Path, config: Config, dev: str) -> None:
    write(tmp_path, dev=dump({**GOOD, "split": dev}))
    (tmp_path / "de.dev.jsonl").rename(tmp_path / f"de.{dev}.jsonl")
    assert len(jsonl.read(config("jsonl"))[0]["de", "dev"]) == 1


def parse(**changes: Any) -> Example:
    """Parse the good row with changes; None takes a key away."""
    row = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return jsonl.parse_row(row, "de", "train")


def test_optional_columns() -> None:
    row = parse(language="de", split="train", text="Wie warm?", text_b="Sehr warm.", id=3, label=0)
    assert row == Example("3", "de", ("wie", "warm"), "0", ("O", "B-x"), "Wie warm?", "Sehr warm.")
    assert parse(tokens=None, text=" Wie  warm? ").tokens == ("Wie", "warm?")
    assert parse(tokens=None, text=" Wie  warm? ").text == " Wie  warm? "
    assert parse(text="wie warm").text is None, "words joined by spaces need no text"
    assert parse(tags=None).tags is None
    assert jsonl.parse_row({**GOOD, "tags": None, "text_b": None}, "de", "train").tags is None


def test_a_task_of_tags_is_suggested_only_where_there_are_tags() -> None:
    with pytest.raises(BadRow, match=r"^'label' is missing, which dataset\.task=intent_slots predicts$"):
        parse(label=None, tags=None)


def test_only_a_line_feed_ends_a_line(tmp_path: Path, config: Config) -> None:
    """Separators inside a JSON string are part of it; Windows line ends and a byte order mark are not."""
    words = ["a\u2028b", "c\x85d", "e\u2029f"]
    row = dump({**GOOD, "tokens": words, "tags": ["O"] * 3}).strip()
    write(tmp_path, train=b"\xef\xbb\xbf" + row + b"\r\n\r\n" + dump({**GOOD, "id": "8"}).strip())
    first, second = jsonl.read(config("jsonl"))[0]["de", "train"]
    assert first.tokens == tuple(words)
    assert second.id == "8"


@pytest.mark.parametrize(
    ("layout", "content"),
    [("{language}.{split}.jsonl", b""), ("{language}.{split}.jsonl", b"\n\n"), ("{language}.{split}.jsonl.gz", b"")],
)
def test_a_split_without_examples(tmp_path: Path, config: Config, layout: str, content: bytes) -> None:
    write(tmp_path, layout, dev=content)
    with pytest.raises(UsageError, match=rf"^{tmp_path}/de\.dev\.jsonl(\.gz)?: no examples$"):
        jsonl.read(config("jsonl"))


def test_a_split_of_bad_lines_only(tmp_path: Path, config: Config) -> None:
    write(tmp_path, dev=b"x\ny\n")
    with pytest.raises(UsageError, match=r"no examples; every line was skipped, the first because .*dev.jsonl:1: "):
        jsonl.read(config("jsonl", on_bad_line=OnBadLine.skip))


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xclrun.data.readers.files.UNPACKED", 2 << 20)
    write(tmp_path, "{language}.{split}.jsonl.gz")
    (tmp_path / "de.dev.jsonl.gz").write_bytes(gzip.compress(b" " * (5 << 20), mtime=0))
    with pytest.raises(UsageError, match=r"de\.dev\.jsonl\.gz: unpacks to more than 2 MB"):
        jsonl.read(config("jsonl"))


@pytest.mark.parametrize("content", [gzip.compress(b"a" * 1000, mtime=0)[:20], b"not compressed", None])
def test_an_unreadable_file(tmp_path: Path, config: Config, content: bytes | None) -> None:
    write(tmp_path, "{language}.{split}.jsonl.gz")
    path = tmp_path / "de.dev.jsonl.gz"
    path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(UsageError, match=r"de\.dev\.jsonl\.gz: cannot be read"):
        jsonl.read(config("jsonl"))


def hub(folder: Path, configs: dict[str, dict[str, bytes]]) -> str:
    """Write a hub dataset to a folder, which the library reads like the hub; return its name."""
    card: list[dict[str, Any]] = []
    for name, splits in configs.items():
        for split, content in splits.items():
            path = folder / "repository" / name / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        files = [{"split": split, "path": f"{name}/{split}.jsonl"} for split in splits]
        card.append({"config_name": name, "data_files": files})
    (folder / "repository" / "README.md").write_text(f"---\nconfigs: {json.dumps(card)}\n---\n", encoding="utf-8")
    return str(folder / "repository")


def rows(*rows: dict[str, Any]) -> dict[str, bytes]:
    return {"train": dump(*rows), "validation": dump(*rows), "test": dump(*rows)}


@pytest.mark.parametrize("bars", [True, False])
def test_the_hub_is_read_silently_and_settings_are_restored(
    tmp_path: Path,
    config: Config,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    bars: bool,
) -> None:
    name = hub(tmp_path, {"de": rows(GOOD), "en": rows(GOOD)})
    (datasets.enable_progress_bars if bars else datasets.disable_progress_bars)()
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "level", logging.INFO)
    try:
        jsonl.read(config("jsonl", root=None, hub=name))
        assert datasets.are_progress_bars_disabled() is not bars
    finally:
        datasets.enable_progress_bars()
    assert logging.getLogger("huggingface_hub").level == logging.INFO
    assert capfd.readouterr() == ("", "")


def test_hub_with_one_config_per_language(tmp_path: Path, config: Config) -> None:
    row = {"text": "wie warm", "label": 3, "label_text": "weather", "language": "German"}
    name = hub(tmp_path, {"de": rows(row), "en": rows(row), "fr": rows(row)})
    splits, _ = jsonl.read(config("jsonl", root=None, hub=name, languages=["fr", "de"]))
    assert list(splits) == [(language, split) for language in ("fr", "de") for split in SPLITS]
    assert splits["fr", "dev"] == (Example("dev-1", "fr", ("wie", "warm"), "3"),)
    with pytest.raises(UsageError, match=r"no 'it' in the configs of .*; did you mean 'fr'\?|Known: de, en, fr"):
        jsonl.read(config("jsonl", root=None, hub=name, languages=["it"]))


def test_hub_with_a_column_of_languages(tmp_path: Path, config: Config) -> None:
    table = rows(
        {**GOOD, "language": "en"}, {**GOOD, "language": "de", "id": "8"}, {**GOOD, "language": "en", "id": "9"}
    )
    name = hub(tmp_path, {"all": table, "small": rows(GOOD)})
    splits, _ = jsonl.read(config("jsonl", root=None, hub=name, hub_config="all"))
    assert {key: [e.id for e in examples] for key, examples in splits.items() if key[1] == "dev"} == {
        ("de", "dev"): ["8"],
        ("en", "dev"): ["7", "9"],
    }
    with pytest.raises(
        UsageError, match="needs one config per language, or a column 'language' with a key in every row"
    ):
        jsonl.read(config("jsonl", root=None, hub=name, hub_config="small"))
    with pytest.raises(UsageError, match=r"BuilderConfig 'big' not found. Available:.*; or set dataset.root"):
        jsonl.read(config("jsonl", root=None, hub=name, hub_config="big"))


def test_hub_lacks_a_split_or_has_a_bad_row(tmp_path: Path, config: Config) -> None:
    name = hub(tmp_path, {"de": {"train": dump(GOOD), "validation": dump(GOOD)}, "en": rows({**GOOD, "tags": ["O"]})})
    with pytest.raises(UsageError, match="de: no test split; it has train, validation"):
        jsonl.read(config("jsonl", root=None, hub=name, languages=["de"]))
    with pytest.raises(UsageError, match="en train:1: 1 tags for 2 tokens"):
        jsonl.read(config("jsonl", root=None, hub=name, languages=["en"]))


def test_hub_ids_of_classes_and_tags_become_names() -> None:
    labels = datasets.ClassLabel(names=["cold", "warm"])
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-LOC"]))
    table = datasets.Dataset.from_dict(
        {"class": [1, 0, -1], "ner_tags": [[0, 1], [], [1, -1, -100]]},
        features=datasets.Features({"class": labels, "ner_tags": tags}),
    )
    rows = rows_of(table, {"label": "class", "tags": "ner_tags"})
    assert [row["label"] for row in rows] == ["warm", "cold", None]
    assert [row["tags"] for row in rows] == [["O", "B-LOC"], [], ["B-LOC", "-1", "-100"]], "no tag of another integer"


def test_hub_columns_can_be_swapped_and_used_twice() -> None:
    table = datasets.Dataset.from_dict({"text": ["b"], "text_b": ["a"], "label": ["text"]})
    columns = {"text": "text_b", "text_b": "text", "label": "label", "id": "text"}
    assert rows_of(table, columns) == [{"text": "a", "text_b": "b", "label": "text", "id": "b"}]


def test_a_hub_dataset_of_a_script_is_refused_with_advice(tmp_path: Path, config: Config) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "old.py").write_text("")
    with pytest.raises(UsageError, match=r"script.* Parquet, or set dataset\.root"):
        jsonl.read(config("jsonl", root=None, hub=str(tmp_path / "old")))


@pytest.mark.parametrize(
    "error", [RuntimeError("a\x1b[31m\nb " + "x" * 5000), KeyError("a b"), NotImplementedError(), TypeError("a b")]
)
def test_every_error_of_the_library_is_one_short_line(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(UsageError, match=r"^dataset\.hub=a/b: .*; or set dataset\.root") as raised:
        jsonl.read(config("jsonl", root=None, hub="a/b", hub_config="de"))
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 500


def test_missing_hub_columns_are_named_with_the_present_ones(tmp_path: Path, config: Config) -> None:
    name = hub(tmp_path, {"de": rows({"premise": "wie", "gold": "no"}), "en": rows({"text": "how", "gold": "no"})})
    options = {"root": None, "hub": name, "task": "sequence_class"}
    with pytest.raises(UsageError, match=r"de: no column 'text' or 'tokens'; set dataset\.hub_columns.*gold, premise"):
        jsonl.read(config("jsonl", **options, languages=["de"]))
    with pytest.raises(UsageError, match=r"en: no column 'label'; set dataset\.hub_columns.*gold, text"):
        jsonl.read(config("jsonl", **options, languages=["en"]))


def test_hub_languages_may_lack_dev_and_train(tmp_path: Path, config: Config) -> None:
    name = hub(tmp_path, {"de": {"train": dump(GOOD), "test": dump(GOOD)}, "yo": {"test": dump(GOOD)}})
    splits, _ = jsonl.read(config("jsonl", root=None, hub=name))
    assert {key: len(examples) for key, examples in splits.items()} == {
        ("de", "train"): 1, ("de", "dev"): 0, ("de", "test"): 1, ("yo", "train"): 0, ("yo", "dev"): 0, ("yo", "test"): 1
    }  # fmt: skip
    with pytest.raises(UsageError, match="yo: no rows in the train split"):
        jsonl.read(config("jsonl", root=None, hub=name, languages=["yo"]))


def test_one_language_of_a_hub_dataset_is_named_by_the_config(tmp_path: Path, config: Config) -> None:
    name = hub(tmp_path, {"plain": rows(GOOD)})
    splits, _ = jsonl.read(config("jsonl", root=None, hub=name, languages=["de"]))
    assert [e.language for e in splits["de", "test"]] == ["de"]


def test_local_folders_of_saved_datasets_and_of_parquet_files(tmp_path: Path, config: Config) -> None:
    table = datasets.Dataset.from_dict({"text": ["wie warm"], "label": ["weather"]})
    splits = datasets.DatasetDict({"train": table, "validation": table, "test": table})
    for language in ("de", "en"):
        splits.save_to_disk(str(tmp_path / "saved" / language))
        for name, rows_of_split in splits.items():
            path = tmp_path / "parquet" / language / f"{name}-00000-of-00001.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows_of_split.to_parquet(str(path))
    (tmp_path / "parquet" / "__MACOSX").mkdir()
    (tmp_path / "parquet" / "__MACOSX" / "._train.parquet").write_bytes(b"\x00")
    read = partial(config, "jsonl", root=None, task="sequence_class")
    for folder, languages in [("saved", None), ("parquet", None), ("saved/de", ["de"])]:
        content, _ = jsonl.read(read(hub=str(tmp_path / folder), languages=languages))
        assert [(key, len(content[key, "dev"])) for key in dict.fromkeys(key for key, _ in content)] == [
            (key, 1) for key in languages or ("de", "en")
        ]
    with pytest.raises(UsageError, match="no such folder"):
        jsonl.read(read(hub="./nothing"))
    with pytest.raises(UsageError, match="save a DatasetDict"):
        jsonl.read(read(hub=str(tmp_path / "saved" / "de" / "train"), languages=["de"]))


def test_hub_unreachable(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    for hub_config in (None, "de"):
        with pytest.raises(UsageError) as error:
            jsonl.read(config("jsonl", root=None, hub="someone/nothing", hub_config=hub_config))
        assert str(error.value).startswith("dataset.hub=someone/nothing: the hub cannot be reached")


def test_root_or_hub_but_not_both(config: Config) -> None:
    with pytest.raises(UsageError, match="set one of them"):
        jsonl.read(config("jsonl", hub="someone/something"))
    with pytest.raises(UsageError, match=r"^dataset.root is needed: the folder that holds <language>.train.jsonl, "):
        jsonl.read(config("jsonl", root=None))


def test_hub_columns_of_other_names(tmp_path: Path, config: Config) -> None:
    """Pairs in columns with other names."""
    row = {"premise": "wie warm", "hypothesis": "es ist kalt", "label": "no", "text": "not this"}
    name = hub(tmp_path, {"de": rows(row), "en": rows(row)})
    named = {"text": "premise", "text_b": "hypothesis"}
    options = {"root": None, "hub": name, "task": "sequence_class"}
    splits, _ = jsonl.read(config("jsonl", **options, hub_columns=named))
    assert splits["de", "dev"] == (Example("dev-1", "de", ("wie", "warm"), "no", text_b="es ist kalt"),)
    for columns, message in [
        ({"txt": "premise"}, r"unknown key 'txt'; did you mean 'text'\?"),
        ({"text": "premis"}, r"has no column 'premis'; did you mean 'premise'\?"),
    ]:
        with pytest.raises(UsageError, match=f"dataset.hub_columns: .*{message}"):
            jsonl.read(config("jsonl", **options, hub_columns=columns))


def test_integer_tags_have_the_names_of_the_config(tmp_path: Path, config: Config) -> None:
    row = {"tokens": ["wie", "warm", "heute"], "tags": [0, 2, 1]}
    write(tmp_path, **rows(row), dev=dump(row))
    read = partial(config, "jsonl", task="token_tags")
    names = ["O", "I-x", "B-x"]
    assert jsonl.read(read(tag_names=names))[0]["de", "test"][0].tags == ("O", "B-x", "I-x")
    for given, message in [(None, r"integers; set dataset\.tag_names"), (names[:2], r"tag 2: .* 0 to 1")]:
        with pytest.raises(UsageError, match=message):
            jsonl.read(read(tag_names=given))
    saved = datasets.Dataset.from_list([row])
    datasets.DatasetDict({"train": saved, "test": saved}).save_to_disk(str(tmp_path / "hub"))
    hub = read(root=None, hub=str(tmp_path / "hub"), languages=["de"], tag_names=names)
    assert jsonl.read(hub)[0]["de", "test"][0].tags == ("O", "B-x", "I-x")


def test_rows_of_other_tasks() -> None:
    row = {**GOOD, "tags": ["NOUN", "ADJ"]}
    words = jsonl.parse_row(
        {k: v for k, v in row.items() if k != "label"}, "de", "train", task_of("token_tags", "words")
    )
    assert (words.label, words.tags) == (None, ("NOUN", "ADJ"))
    text = jsonl.parse_row({**row, "label": "a"}, "de", "train", task_of("sequence_class"))
    assert (text.label, text.tags) == ("a", None)
    for content, task, reason in [
        ({**row, "tags": None}, task_of("token_tags", "words"), "'tags' is missing"),
        (row, task_of("token_tags"), "tag 'NOUN' .* set dataset.tags_are=words"),
        ({**row, "tags": ["X", " "]}, task_of("token_tags", "words"), "a tag is blank"),
        ({**row, "tags": ["X"]}, task_of("token_tags", "words"), "1 tags for 2 tokens"),
        ({**row, "label": None}, task_of("sequence_class"), "'label' is missing"),
    ]:
        with pytest.raises(BadRow, match=reason):
            jsonl.parse_row(content, "de", "train", task)
