"""Loading a dataset: subsets, notes, and every mistake that a config or a folder can hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from xclrun.config.schema import DatasetConfig, TagsAre
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.task import INTENT_SLOTS, SEQUENCE_CLASS
from xclrun.data import load
from xclrun.data.example import SPLITS, Dataset, Example
from xclrun.data.load import SOURCE, load_dataset, read_whole, subset
from xclrun.data.notes import count_notes, note_lines
from xclrun.data.readers import READERS, read
from xclrun.data.readers.collect import LONGEST_WORD

from .conftest import mtop_line

Config = Callable[..., DatasetConfig]

Root = Callable[..., Path]


def test_mini_is_loaded_by_language(config: Config) -> None:
    dataset = load_dataset(config("mini", root=None, languages=["th", "en"], max_train=20))
    assert dataset.languages == ("th", "en")
    assert dataset.sizes() == {"th": 20, "en": 20}
    assert set(dataset.splits) == {(language, split) for language in ("th", "en") for split in SPLITS}
    with pytest.raises(UsageError, match=r"^dataset.languages: no 'xx' in mini; Known: de, en, es, fr, hi, th$"):
        load_dataset(config("mini", root=None, languages=["xx"]))
    assert set(load_dataset(config("mini", root=None)).languages) == {"en", "de", "fr", "hi", "es", "th"}


@pytest.mark.parametrize(
    ("task", "columns"),
    [("intent_slots", ["label", "tags"]), ("sequence_class", ["label"]), ("token_tags", ["tags"])],
)
def test_a_task_reads_only_what_it_predicts(config: Config, task: str, columns: list[str]) -> None:
    """The embedded data has labels and tags. Without this, models have heads that nothing trains."""
    dataset = load_dataset(config("mini", root=None, languages=["en"], task=task))
    for split in SPLITS:
        for name in ("label", "tags"):
            assert all((getattr(e, name) is not None) == (name in columns) for e in dataset.split("en", split))
    assert (bool(dataset.labels), bool(dataset.tags)) == ("label" in columns, "tags" in columns)


def test_a_location_without_its_dataset_is_refused(xclrun: Callable[..., tuple[int, str]]) -> None:
    code, output = xclrun("plan", "dataset.root=mine")
    assert code == 2
    assert output.startswith("xclrun: dataset.root=mine: the embedded dataset=mini reads no files")


def test_a_dataset_keeps_the_order_of_the_config(config: Config, mtop_root: Root) -> None:
    mtop_root("de", "en", "th")
    assert load_dataset(config(languages=["th", "de"])).languages == ("th", "de")
    everything = load_dataset(config())
    assert everything.languages == ("en", "de", "th")  # from high to low resource, as on all of MTOP
    assert (everything.name, everything.task, everything.labels) == ("mtop", INTENT_SLOTS, ("CREATE_CALL",))
    assert everything.tags == ("O", "B-CONTACT")


def test_a_hydra_node_will_do(config: Config, mtop_root: Root) -> None:
    mtop_root("de", "en")
    node: Any = OmegaConf.structured(config(languages=["en"], max_eval=1))
    assert load_dataset(node).sizes("dev") == {"en": 1}


def test_notes_and_unseen_labels(config: Config, mtop_root: Root) -> None:
    """A label or tag that only dev or test has is counted, and enters no label set."""
    path = mtop_root("de", "en") / "en" / "test.txt"
    lines = [mtop_line(id="1", intent="IN:NEW"), mtop_line(id="2", slots="0:4:SL:NEW"), mtop_line(id="3"), "bad"]
    path.write_text("\n".join(lines), encoding="utf-8")
    dataset = load_dataset(config(on_bad_line="skip"))
    assert dataset.notes == {"skipped": {"en/test": 1}, "one_label": {"en/train": 1}}
    assert dataset.unseen_labels == {"en/test": 2}
    assert dataset.labels == ("CREATE_CALL",)
    # Classes alone: a new tag makes no prediction wrong.
    assert load_dataset(config(on_bad_line="skip", task="sequence_class")).unseen_labels == {"en/test": 1}


@pytest.fixture
def examples() -> tuple[Example, ...]:
    return tuple(Example(f"{i}", "de", ("a",), "x") for i in range(200))


def test_subsets_keep_the_order_and_lie_in_one_another(examples: tuple[Example, ...]) -> None:
    seed = (3, "de", "train")
    small, large = subset(examples, 20, seed), subset(examples, 90, seed)
    assert (len(small), len(large)) == (20, 90)
    assert set(small) < set(large)
    for drawn in (small, large):
        assert list(drawn) == sorted(drawn, key=examples.index)
    assert subset(examples, 200, seed) == subset(examples, 500, seed) == subset(examples, None, seed) == examples


def test_subsets_depend_on_seed_language_and_split_alone(examples: tuple[Example, ...]) -> None:
    seeds = [(3, "de", "train"), (4, "de", "train"), (3, "en", "train"), (3, "de", "dev")]
    drawn = [subset(examples, 20, seed) for seed in seeds]
    assert len(set(drawn)) == 4
    assert drawn == [subset(examples, 20, seed) for seed in seeds]
    # Published numbers depend on these draws.
    assert [e.id for e in subset(examples, 5, (0, "de", "train"))] == ["124", "140", "148", "160", "177"]


def test_one_more_example_changes_at_most_one_of_the_subset(examples: tuple[Example, ...]) -> None:
    seed = (0, "de", "train")
    before = set(subset(examples[:-1], 50, seed))
    assert len(before & set(subset(examples, 50, seed))) >= 49


def test_every_example_is_drawn_about_as_often(examples: tuple[Example, ...]) -> None:
    """500 draws of 50 out of 200: each example 125 times, standard deviation 9.7; six of them on each side."""
    counts = {e.id: 0 for e in examples}
    for seed in range(500):
        for e in subset(examples, 50, (seed, "de", "train")):
            counts[e.id] += 1
    assert 67 < min(counts.values()) <= max(counts.values()) < 183


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ({"max_train": 4, "max_eval": 3}, (4, 3, 3)),
        ({"max_train": 4, "max_dev": 3, "max_test": 5}, (4, 3, 5)),
        ({"max_eval": 2, "max_test": 6}, (9, 2, 6)),
        ({"max_dev": 1}, (9, 1, 7)),
    ],
)
def test_dev_and_test_have_separate_limits(
    limits: dict[str, int], sizes: tuple[int, int, int], config: Config, mtop_root: Root
) -> None:
    mtop_root("de", sizes=(9, 8, 7))
    dataset = load_dataset(config(**limits))
    assert tuple(dataset.sizes(split)["de"] for split in SPLITS) == sizes


def test_buckets_without_shots_are_disjoint_and_the_first_holds_smaller_ones(config: Config, mtop_root: Root) -> None:
    mtop_root("de", sizes=(9, 2, 2))

    def ids(size: int, bucket: int | None) -> list[str]:
        return [e.id for e in load_dataset(config(max_train=size), bucket).split("de", "train")]

    drawn = [ids(3, bucket) for bucket in range(3)]
    assert sorted(id for part in drawn for id in part) == sorted(ids(9, None))
    assert ids(3, None) == drawn[0]
    assert {*ids(2, 0)} < {*drawn[0]}
    with pytest.raises(UsageError, match="only enough for 3 disjoint buckets"):
        ids(3, 3)


def refusal(cfg: DatasetConfig) -> str:
    """Return the error line of a config."""
    with pytest.raises(UsageError) as error:
        load_dataset(cfg)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2
    return str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"reader": "mtpo"},
            f"dataset.reader=mtpo: unknown; {did_you_mean('mtpo', READERS)}",
        ),
        (
            {"task": "intents"},
            "dataset.task=intents: unknown; did you mean 'intent_slots'? "
            "Known: intent_slots, language_modelling, sequence_class, span, statement_truth, text_to_text, token_tags",
        ),
        ({"max_train": 0}, "dataset.max_train=0: must be at least 1, or null for all examples"),
        ({"max_eval": -1}, "dataset.max_eval=-1: must be at least 1, or null for all examples"),
        ({"max_test": 0}, "dataset.max_test=0: must be at least 1, or null for all examples"),
        ({"languages": ["dee"]}, "dataset.languages: no 'dee' in {root}; did you mean 'de'? Known: de, en"),
        ({"languages": ["de", "en", "de"]}, "dataset.languages: 'de' is repeated: de, en, de; remove one"),
        ({"languages": []}, "dataset.languages is empty; remove it to use all of de, en"),
        ({"root": "no/such"}, "dataset.root=no/such: no such folder ({here}/no/such)"),
        ({"root": "~/no/such"}, "dataset.root=~/no/such: no such folder ({home}/no/such)"),
        ({"root": "{root}/de/train.txt"}, "dataset.root={root}/de/train.txt: is not a folder ({root}/de/train.txt)"),
        (
            {"root": None},
            "dataset.root is needed: the folder that holds <language>/train.txt or <language>/train.tsv and so on",
        ),
    ],
)
def test_mistakes_in_the_config(
    config: Config, mtop_root: Root, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    root = mtop_root("de", "en")
    monkeypatch.setenv("HOME", str(root / "home"))
    if options.get("root"):
        options = {"root": options["root"].format(root=root)}
    expected = message.format(root=root, here=Path.cwd(), home=root / "home")
    assert refusal(config(**options)) == expected


def test_mistakes_in_the_folder(config: Config, mtop_root: Root, tmp_path: Path) -> None:
    at = f"dataset.root={tmp_path}: "
    assert refusal(config()) == at + "the folder is empty"
    (tmp_path / "readme.txt").touch()
    assert refusal(config()) == at + "no data found; looked for <language>/train.txt or <language>/train.tsv"
    test = mtop_root("de", "en") / "de" / "test.txt"
    test.rename(test.with_name("test.text"))
    missing = f"{at}'de' has no test split; looked for de/test.txt or de/test.tsv"
    assert refusal(config()) == f"{missing}; to leave it out, set dataset.languages=[en]"
    assert load_dataset(config(languages=["en"])).languages == ("en",), "other languages may lack splits"
    test.with_name("test.text").rename(test)
    dev = test.with_name("eval.txt")
    dev.write_bytes(b"")
    assert refusal(config()) == f"{dev}: no examples"
    dev.with_name("dev.txt").touch()
    assert refusal(config()) == f"{dev.with_name('dev.txt')}: no examples"


def test_languages_may_lack_dev_and_all_but_one_may_lack_train(config: Config, mtop_root: Root) -> None:
    root = mtop_root("de", "en", "fr")
    (root / "de" / "eval.txt").unlink()
    for split in ("train", "eval"):
        (root / "fr" / f"{split}.txt").unlink()
    (root / "fr" / "test.txt").write_text(mtop_line(intent="IN:ONLY_HERE") + "\n")
    dataset = load_dataset(config())
    assert (dataset.sizes("train"), dataset.sizes("dev")) == ({"de": 3, "en": 3, "fr": 0}, {"de": 0, "en": 2, "fr": 0})
    assert dataset.labels == ("CREATE_CALL",), "label IDs never come from a test split"
    assert dataset.unseen_labels == {"fr/test": 1}
    for language in ("de", "en"):
        (root / language / "train.txt").unlink()
    with pytest.raises(UsageError, match=r"'de' has no train split; looked for de/train\.txt"):
        read(config())


@pytest.mark.parametrize(("name", "wrong"), [("-rf", "looks like an option"), ("a\tb", "cannot be printed")])
def test_a_file_of_a_language_that_no_order_could_name(name: str, wrong: str, config: Config, tmp_path: Path) -> None:
    for split in SPLITS:
        (tmp_path / f"{name}.{split}.jsonl").write_text('{"id": "1", "tokens": ["a"], "label": "x"}\n')
    with pytest.raises(UsageError, match=rf"^dataset\.languages=.*{wrong}"):
        load_dataset(config("jsonl"))


def test_the_same_id_twice(config: Config, mtop_root: Root) -> None:
    path = mtop_root("de") / "de" / "eval.txt"
    path.write_text("\n".join(mtop_line(id=id) for id in ("a", "b", "a", "a~2", "a")), encoding="utf-8")
    dataset = load_dataset(config())
    assert [e.id for e in dataset.split("de", "dev")] == ["a", "b", "a~2", "a~2~2", "a~3"]
    assert dataset.notes["repeated_ids"] == {"de/dev": 3}


def test_tags_on_a_part_of_the_examples(config: Config, tmp_path: Path) -> None:
    rows = {"train": '"tags": ["O"], ', "dev": "", "test": ""}
    for split, tags in rows.items():
        text = f'{{"id": "7", "tokens": ["a"], {tags}"label": "x"}}'
        (tmp_path / f"de.{split}.jsonl").write_text(text, encoding="utf-8")
    message = refusal(config("jsonl"))
    assert message.startswith("dataset=jsonl: ")
    assert "de/train example '7' has tags, de/dev example '7' has none" in message
    for split in rows:
        (tmp_path / f"de.{split}.jsonl").write_text('{"id": "7", "tokens": ["a"], "label": "x"}', encoding="utf-8")
    assert load_dataset(config("jsonl")).tags == ()


def test_roots_are_relative_to_the_current_folder(
    config: Config, mtop_root: Root, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load(root: str) -> Dataset:
        return load_dataset(config(root=root))

    mtop_root("de")
    monkeypatch.chdir(tmp_path / "de")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load("..").fingerprints == load("~").fingerprints == load(str(tmp_path)).fingerprints
    (tmp_path / "de" / "test.txt").write_text("bad\n", encoding="utf-8")
    assert refusal(config(root="..")).startswith("../de/test.txt:1: "), "paths are shown as the user wrote them"
    assert refusal(config(root="~/")).startswith("~/de/test.txt:1: ")


def test_loading_files_imports_neither_torch_nor_datasets(config: Config, mtop_root: Root) -> None:
    root = mtop_root("de")
    for split in SPLITS:
        (root / f"de.{split}.jsonl").write_text('{"id": "1", "tokens": ["a"], "label": "x"}')
    code = (
        "import sys; from xclrun.config.schema import DatasetConfig; from xclrun.data import encode, load; "
        f"[load.load_dataset(DatasetConfig(name=r, reader=r, root={str(root)!r})) for r in ('mtop', 'jsonl')]; "
        "print([m for m in ('torch', 'transformers', 'datasets', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("reader", "name", "line"),
    [
        ("conllu", "en-{split}.conllu", "1\t{word}\t_\tNOUN" + "\t_" * 6),
        ("panx", "{split}-en.tsv", "{word}\tO"),
    ],
)
def test_too_long_words_and_special_files_are_refused(
    reader: str, name: str, line: str, config: Callable[..., DatasetConfig], tmp_path: Path
) -> None:
    cfg = config(reader, task="token_tags", tags_are=TagsAre.words)

    def write(split: str, length: int) -> Path:
        path = tmp_path / name.format(split=split)
        path.write_text("\n" + line.format(word="é" * length) + "\n")
        return path

    for split in SPLITS:
        path = write(split, LONGEST_WORD)
    assert len(read(cfg)[0]["en", "dev"]) == 1
    path = write("dev", LONGEST_WORD + 1)
    with pytest.raises(UsageError, match=rf"^{path}:2: a word of 20,001 characters"):
        read(cfg)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UsageError, match=rf"^{path}: cannot be read .*pipe, a socket or a device"):
        read(cfg)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=rf"^{path}: cannot be read .*pipe, a socket or a device"):
        read(cfg)


@pytest.mark.parametrize(
    ("reader", "name", "line"),
    [
        ("jsonl", "en.{split}.jsonl", '{{"id": "1", "text": "{word}", "label": "x"}}'),
        ("jsonl", "en.{split}.jsonl", '{{"id": "1", "tokens": ["a"], "text_b": "{word}", "label": "x"}}'),
        ("mldoc", "english.{split}", "CCAT\t{word}"),
    ],
)
def test_texts_without_spaces_have_any_length(
    reader: str, name: str, line: str, config: Callable[..., DatasetConfig], tmp_path: Path
) -> None:
    thai = "ภาษาไทยไม่มีช่องว่าง" * 1_500
    for split in SPLITS:
        (tmp_path / name.format(split=split)).write_text(line.format(word=thai) + "\n")
    [example] = read(config(reader, task="sequence_class"))[0]["en", "test"]
    assert thai in (example.whole, example.text_b)


def dataset(name: str, *train: str) -> Dataset:
    def examples(*texts: str) -> tuple[Example, ...]:
        return tuple(Example(str(i), "de", tuple(text.split()), "a") for i, text in enumerate(texts))

    splits = {("de", "train"): examples(*train), ("de", "dev"): (), ("de", "test"): examples("A b", "a B", "c")}
    return Dataset(name, SEQUENCE_CLASS, ("de",), splits, {"skipped": {"de/dev": 3}})


def test_notes_on_buckets_report_the_largest_count() -> None:
    first, second, third = dataset("x", "a b"), dataset("x", "a b", "C"), dataset("x", "d")
    assert [count_notes(d).get("test_in_train") for d in (first, second, third)] == [{"de": 2}, {"de": 3}, None]
    skipped = "3 sentences with an error: skipped (de/dev: 3)"
    overlap = "3 test sentences that the language's training split contains too (de: 3)"
    assert note_lines([first, second, third]) == [skipped, overlap]
    assert note_lines([second, dataset("y", "d")]) == [f"x: {skipped}", f"x: {overlap}", f"y: {skipped}"]


@pytest.mark.parametrize("key", [name for name in SOURCE if name not in ("name", "reader", "task")])
def test_data_that_are_read_once_are_read_again_where_a_key_decides_what_is_read(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seed, too: with dataset.statements it decides which statements there are."""
    config = DatasetConfig("mini", "mini")
    monkeypatch.setattr(load, "_last", None)
    whole = read_whole(config)
    assert read_whole(replace(config, max_train=3, stratified=True)) is whole
    monkeypatch.setattr(load, "read_parts", lambda cfg: pytest.fail("read again", pytrace=False))
    with pytest.raises(pytest.fail.Exception, match="read again"):
        read_whole(replace(config, **{key: "another"}))
    assert {field.name for field in fields(DatasetConfig)} - {*SOURCE} == {
        *("max_train", "max_eval", "max_dev", "max_test", "stratified", "repeat_to", "blocks"),
        *("buckets", "replay", "source_lr"),
    }, "does a new key decide which examples are read?"
