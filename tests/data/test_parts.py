"""Composite datasets: keys made of parts, subsets that keep shares, and a whole run on keys with its report."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xclrun.config.schema import DatasetConfig, OnBadLine, PartConfig, Selection, TagsAre, plain
from xclrun.core.errors import UsageError
from xclrun.core.task import SEQUENCE_CLASS, STATEMENT_TRUTH, TOKEN_ACCURACY, tasks_of_dataset
from xclrun.data.example import Dataset, Example
from xclrun.data.load import load_dataset, repeated, stratified, subset
from xclrun.data.readers import READERS, Reader
from xclrun.plan import Run, freeze, notes, thaw
from xclrun.store import predictions

from .conftest import mtop_line

Make = Callable[..., Run]

Config = Callable[..., DatasetConfig]

CONLLU = "1\t{word}\t_\t{tag}\t_\t_\t_\t_\t_\t_\n\n"
DOMAINS = {"alarm": "IN:SET", "news": "IN:GET", "music": "IN:PLAY"}


def write_mtop(folder: Path, *languages: str) -> None:
    """Write sentences of three domains, one intent each; a slot on the first word."""
    for language in languages:
        for name, size in (("train", 4), ("eval", 2), ("test", 3)):
            (folder / language).mkdir(parents=True, exist_ok=True)
            rows = [
                mtop_line(f"{domain} {i} {language}", f"0:{len(domain)}:SL:WHAT", intent, f"{domain}{i}").replace(
                    "calling", domain
                )
                for domain, intent in DOMAINS.items()
                for i in range(size)
            ]
            (folder / language / f"{name}.txt").write_text("\n".join(rows))


def write_words(folder: Path, *languages: str) -> None:
    for language in languages:
        for split in ("train", "dev", "test"):
            folder.mkdir(exist_ok=True)
            text = CONLLU.format(word=language, tag="NOUN") + CONLLU.format(word=split, tag="O")
            (folder / f"{language}-{split}.conllu").write_text(text)


def domains(**settings: Any) -> PartConfig:
    """A part of English sentences of some domains."""
    return PartConfig(languages=["en"], **settings)


def test_one_dataset_is_cut_by_what_its_files_say(config: Config, tmp_path: Path) -> None:
    write_mtop(tmp_path, "en", "de")
    parts = {"tech": domains(where={"domain": ["alarm", "music"]}), "paper": domains(where={"domain": ["news"]})}
    dataset = load_dataset(config(task="sequence_class", parts=parts))
    assert dataset.languages == ("tech", "paper")
    assert dataset.sizes() == {"tech": 8, "paper": 4}
    # A shared head knows the classes of all keys apart, and sees of an example what it did before.
    assert dataset.labels == ("paper:GET", "tech:PLAY", "tech:SET")
    [first, *_] = dataset.split("paper", "test")
    assert first == Example("news0", "paper", ("news", "0", "en"), "paper:GET")
    assert dataset.part_of == {"tech": "tech", "paper": "paper"}
    every = load_dataset(config(task="sequence_class", languages=["en"]))
    assert {e.id for key in ("tech", "paper") for e in dataset.split(key, "test")} == {
        e.id for e in every.split("en", "test")
    }


def test_a_part_of_several_languages_has_a_key_for_each(config: Config, tmp_path: Path) -> None:
    write_mtop(tmp_path / "mtop", "en", "de")
    write_words(tmp_path / "pud", "fi", "ar", "zh")
    words = PartConfig(reader="conllu", root="pud", task="token_tags", tags_are=TagsAre.words, languages=["zh", "fi"])
    first = PartConfig(
        reader="conllu", root="pud", task="token_tags", tags_are=TagsAre.words, languages=["ar"], label_prefix="words"
    )
    dataset = load_dataset(config(parts={"words": words, "more": first}))
    # Languages of one part share its labels; so do parts of one prefix. "O" is a word's tag here, and none outside.
    assert dataset.languages == ("words-zh", "words-fi", "more")
    assert dataset.tags == ("words:NOUN", "words:O")
    assert {e.language for e in dataset.split("more", "dev")} == {"more"}
    few = load_dataset(config(parts={"words": words, "more": first}, languages=["more", "words-fi"]))
    assert few.languages == ("more", "words-fi")
    assert few.fingerprints["more", "test"] == dataset.fingerprints["more", "test"]


def test_prefixes_stand_behind_the_b_of_spans(config: Config, tmp_path: Path) -> None:
    write_mtop(tmp_path, "en", "de")
    dataset = load_dataset(
        config(parts={"a": domains(label_prefix=""), "b": PartConfig(languages=["de"], max_train=5)}, max_train=7)
    )
    assert dataset.tags == ("O", "B-WHAT", "B-b:WHAT")
    assert dataset.labels == ("GET", "PLAY", "SET", "b:GET", "b:PLAY", "b:SET")
    assert dataset.sizes() == {"a": 7, "b": 5}


def test_notes_are_told_by_key(config: Config, tmp_path: Path) -> None:
    write_mtop(tmp_path, "en")
    path = tmp_path / "en" / "train.txt"
    path.write_text(path.read_text() + "\nbad")
    dataset = load_dataset(config(parts={"mine": domains()}, on_bad_line="skip"))
    assert dataset.notes == {"skipped": {"mine/train": 1}}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"a": PartConfig(reader="mtpo")}, r"dataset\.parts\.a\.reader=mtpo: unknown; did you mean 'mtop'\?"),
        ({"a": PartConfig(task="sequence_clas")}, r"dataset\.parts\.a\.task=sequence_clas: unknown; did you mean"),
        ({"a": PartConfig(languages=["dd"])}, r"dataset\.parts\.a\.languages: no 'dd' in .*; Known: de, en"),
        ({"a": PartConfig(root="no")}, r"dataset\.parts\.a\.root=.*/no: no such folder"),
        ({"a": domains(where={"domian": ["news"]})}, r"a\.where\.domian: .* have no 'domian'; did you mean 'domain'\?"),
        ({"a": domains(where={"domain": ["nws"]})}, r"a\.where\.domain: no example has 'nws'; did you mean 'news'\?"),
        ({"a": domains(label_prefix="x y")}, r"a\.label_prefix=x y: "),
        ({"a": domains(max_eval=0)}, r"dataset\.parts\.a\.max_eval=0: must be at least 1"),
        ({"a": PartConfig(), "a-en": domains()}, r"parts\.a-en: .*'a' has the key 'a-en'"),
        ({"../a": domains()}, r"dataset\.parts=\.\./a: leads to another folder"),
        ({"--a": domains()}, r"dataset\.parts=--a: looks like an option"),
    ],
)
def test_mistakes_in_parts_are_one_line(
    parts: dict[str, PartConfig], message: str, config: Config, tmp_path: Path
) -> None:
    write_mtop(tmp_path, "en", "de")
    with pytest.raises(UsageError, match=message):
        load_dataset(config(parts=parts))


@pytest.mark.parametrize(
    ("of_dataset", "of_part", "message"),
    [
        ({"root": "all"}, {}, ("all", None)),
        ({"root": "all"}, {"root": "one"}, ("all/one", None)),
        ({"root": "all"}, {"root": "/one"}, ("/one", None)),
        ({"root": None}, {"root": "one"}, ("one", None)),
        ({"root": "all"}, {"hub": "owner/name"}, (None, "owner/name")),
        ({"root": None, "hub": "owner/all"}, {}, (None, "owner/all")),
        ({"root": None, "hub": "owner/all"}, {"root": "one"}, ("one", None)),
    ],
)
def test_where_the_data_of_a_part_are(
    of_dataset: dict[str, Any], of_part: dict[str, Any], message: Any, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own place, below the dataset's folder; else the dataset's. Never a folder and a hub at once."""
    options: list[DatasetConfig] = []

    def read(cfg: DatasetConfig) -> Any:
        options.append(cfg)
        return {("en", split): (Example("1", "en", ("x",), "y"),) for split in ("train", "dev", "test")}, {}

    monkeypatch.setitem(READERS, "mtop", Reader(read))
    load_dataset(config(**of_dataset, parts={"a": PartConfig(**of_part)}, on_bad_line=OnBadLine.skip))
    assert [(cfg.root, cfg.hub) for cfg in options] == [message]
    assert (options[0].task, options[0].on_bad_line, options[0].languages) == ("intent_slots", OnBadLine.skip, None)


def test_files_of_parts_that_are_not_asked_for_need_not_be_there(config: Config, tmp_path: Path) -> None:
    write_mtop(tmp_path / "here", "en", "de")
    parts = {"here": PartConfig(root="here"), "gone": PartConfig(root="gone"), "one": domains(root="here")}
    dataset = load_dataset(config(parts=parts, languages=["one", "here-de"]))
    assert dataset.languages == ("one", "here-de")
    with pytest.raises(UsageError, match=r"no 'ones' in dataset\.parts; did you mean 'one'\? Known: gone, here, one$"):
        load_dataset(config(parts=parts, languages=["ones"]))


def test_the_task_is_that_of_the_parts(config: Config, tmp_path: Path) -> None:
    """Whatever the dataset itself would have: a record of a run has no more than its config."""
    write_mtop(tmp_path, "en")
    cfg = config(parts={"a": domains(task="sequence_class")})
    assert cfg.task == "intent_slots"
    assert load_dataset(cfg).task == SEQUENCE_CLASS
    assert tasks_of_dataset(plain(cfg)) == (SEQUENCE_CLASS,)
    words = config(parts={"a": PartConfig(task="token_tags", tags_are=TagsAre.words)}, task="sequence_class")
    assert [task.tag for task in tasks_of_dataset(plain(words))] == [TOKEN_ACCURACY]


def test_a_part_that_leaves_nothing_is_refused(config: Config, tmp_path: Path) -> None:
    write_mtop(tmp_path, "en")
    path = tmp_path / "en" / "test.txt"
    path.write_text("\n".join(line for line in path.read_text().split("\n") if "news" not in line))
    with pytest.raises(UsageError, match=r"dataset\.parts\.a\.where: no example of en/test"):
        load_dataset(config(parts={"a": domains(where={"domain": ["news"]})}))


# Subsets.


@pytest.fixture
def classes() -> tuple[Example, ...]:
    """700 of one class, 200 and 100 of two others, in any order."""
    labels = ["a"] * 700 + ["b"] * 200 + ["c"] * 100
    return tuple(Example(f"e{i * 37 % 1000}", "en", ("x",), labels[i * 37 % 1000]) for i in range(1000))


@pytest.mark.parametrize("size", [10, 50, 333])
def test_a_stratified_subset_keeps_the_shares(size: int, classes: tuple[Example, ...]) -> None:
    drawn = stratified(classes, size, (0, "en", "test"), SEQUENCE_CLASS)
    counts = Counter(e.label for e in drawn)
    assert len(drawn) == size
    assert all(abs(counts[label] - share * size) < 1 for label, share in (("a", 0.7), ("b", 0.2), ("c", 0.1)))
    assert list(drawn) == sorted(drawn, key=classes.index)
    assert set(drawn) < set(stratified(classes, size + 1, (0, "en", "test"), SEQUENCE_CLASS))
    assert set(drawn) != set(stratified(classes, size, (1, "en", "test"), SEQUENCE_CLASS))


def test_without_classes_a_stratified_subset_is_the_plain_one(classes: tuple[Example, ...]) -> None:
    same = tuple(Example(e.id, "en", e.tokens, None) for e in classes)
    seed = (3, "en", "test")
    assert stratified(same, 77, seed, SEQUENCE_CLASS) == subset(same, 77, seed)


def test_statements_of_one_context_stay_together() -> None:
    """Groups of one true and three false statements, and single ones, true or false."""
    built = [Example(f"m{i}#{k}", "en", ("x",), "false" if k else "true") for i in range(60) for k in range(4)]
    reference = [Example(f"o{i}#{i % 3 > 0:d}", "en", ("x",), "false" if i % 3 else "true") for i in range(60)]
    drawn = stratified([*built, *reference], 100, (0, "en", "test"), STATEMENT_TRUTH)
    ids = Counter(e.id.rpartition("#")[0] for e in drawn)
    assert {n for name, n in ids.items() if name[0] == "m"} == {4}
    # A third of each kind's groups, as there are 100 of 300 statements.
    entry = Counter((e.id[0], e.label) for e in drawn)
    assert abs(entry["m", "true"] - 20) <= 1
    assert abs(entry["o", "true"] - 20 / 3) <= 1
    assert abs(entry["o", "false"] - 40 / 3) <= 1
    # None is cut, though there is room for three more; and there is always one.
    assert len(stratified(built, 103, (0, "en", "test"), STATEMENT_TRUTH)) == 100
    assert len(stratified(built, 1, (0, "en", "test"), STATEMENT_TRUTH)) == 4


def test_examples_are_repeated_in_order_until_there_are_enough() -> None:
    examples = tuple(Example(name, "en", (name,), "x") for name in "abc")
    assert [e.id for e in repeated(examples, 7)] == ["a", "b", "c", "a*2", "b*2", "c*2", "a*3"]
    assert repeated(examples, 2) == repeated(examples, 3) == examples


def test_training_alone_is_repeated_and_evaluation_alone_stratified(config: Config) -> None:
    plain = load_dataset(config("mini", root=None, languages=["en"], max_train=5, max_eval=40))
    other = load_dataset(
        config("mini", root=None, languages=["en"], max_train=5, max_eval=40, repeat_to=12, stratified=True)
    )
    assert [e.tokens for e in other.split("en", "train")] == [e.tokens for e in plain.split("en", "train") * 3][:12]
    # Other sentences where classes are to keep their shares.
    assert len(other.split("en", "test")) == 40
    assert other.split("en", "test") != plain.split("en", "test")


# A whole run.


def by_intent(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["facts"] = {"topic": row["label"]}


@pytest.fixture
def cut_by_topic(changed_corpus: Callable[..., Path]) -> Path:
    return changed_corpus({("en", split): by_intent for split in ("train", "dev", "test")})


PARTS = (
    "{wake: {languages: [en], where: {topic: [alarm]}}, sky: {languages: [en], where: {topic: [weather]}}, "
    "deutsch: {languages: [de]}}"
)


@pytest.mark.full
def test_orders_strategies_and_reports_work_on_keys(
    make_run: Make,
    do: Make,
    cut_by_topic: Path,
    undrawn: None,
    xclrun: Callable[..., tuple[int, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = (f"dataset.parts={PARTS}", "dataset.name=topics", "order=[sky,deutsch,wake]", "trainer.epochs=1")
    runs = [do(make_run(*values, f"strategy={name}", data=cut_by_topic)) for name in ("er", "lang_spec_ft")]
    rows = predictions.read(runs[0].directory.predictions(3))
    assert set(rows["language"].to_pylist()) == {"sky", "deutsch", "wake"}
    monkeypatch.chdir(tmp_path)
    code, output = xclrun("report", "--from-runs")
    assert code == 0, output
    tables = (tmp_path / "outputs" / "reports" / "all" / "tables").iterdir()
    assert any("| sky | deutsch | wake |" in table.read_text() for table in tables)
    page = (tmp_path / "outputs" / "reports" / "all" / "index.html").read_text()
    assert all(f">{key}<" in page for key in ("sky", "deutsch", "wake"))


def test_a_dataset_is_what_its_parts_hold_however_they_are_written(cut_by_topic: Path) -> None:
    def held(part: PartConfig, **more: Any) -> list[str]:
        cfg = DatasetConfig(name="topics", reader="jsonl", task="sequence_class", parts={"wake": part}, **more)
        return sorted(load_dataset(cfg).fingerprints.values())

    wake = {"languages": ["en"], "where": {"topic": ["alarm"]}}
    below = held(PartConfig(**wake), root=str(cut_by_topic))
    assert held(PartConfig(root=cut_by_topic.name, **wake), root=str(cut_by_topic.parent)) == below
    assert held(PartConfig(reader="jsonl", root=str(cut_by_topic), **wake)) == below
    assert held(PartConfig(max_train=2, **wake), root=str(cut_by_topic)) != below


def without_dev(root: Path) -> tuple[str, ...]:
    """Leave English without a dev sentence of a known topic; return overrides that make keys of topics."""
    row = {"id": "1", "tokens": ["x"], "tags": ["O"], "label": "y", "facts": {"topic": "x"}}
    (root / "en" / "dev.jsonl").write_text(json.dumps(row))
    return (f"dataset.parts={PARTS}", "order=[sky,wake]", "trainer.epochs=1")


def test_a_hop_without_dev_data_keeps_its_last_epoch(make_run: Make, cut_by_topic: Path) -> None:
    values = (*without_dev(cut_by_topic), "order=[sky,deutsch]")
    run = make_run(*values, "trainer.patience=1", data=cut_by_topic)
    first, second = run.trainer(run.stream.hops[1]), run.trainer(run.stream.hops[2])
    assert (first.selection, first.patience) == (Selection.last, None)
    assert (second.selection, second.patience) == (Selection.best, 1)
    [note] = [note for note in notes([run]) if "no dev data" in note]
    assert "for sky:" in note
    assert "last epoch" in note
    last = make_run(*values, "trainer.selection=last", data=cut_by_topic)
    assert not [note for note in notes([last]) if "no dev data" in note], "the last epoch was asked for"


def test_a_frozen_run_finds_its_parts_from_any_folder(
    make_run: Make, cut_by_topic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(f"dataset.parts={PARTS}", "order=[sky,wake]", data=cut_by_topic)
    monkeypatch.chdir(cut_by_topic.parent)
    present = {name: replace(part, root=cut_by_topic.name) for name, part in run.config.dataset.parts.items()}
    relative = replace(run, config=replace(run.config, dataset=replace(run.config.dataset, root=None, parts=present)))
    relative.directory.path.mkdir(parents=True)
    freeze(relative)
    monkeypatch.chdir("/")
    assert thaw(relative.directory).id == run.id


@pytest.mark.full
def test_a_run_without_dev_data(
    make_run: Make, do: Any, cut_by_topic: Path, xclrun: Callable[..., tuple[int, str]]
) -> None:
    values = (*without_dev(cut_by_topic), "trainer.selection=last", "evaluate.every_examples=4")
    run = do(make_run(*values, data=cut_by_topic))
    assert json.loads(run.directory.manifest.read_text())["data"]["sizes"]["dev"] == {"wake": 0, "sky": 0, "deutsch": 6}
    code, output = xclrun("show", run.id, "--outputs", str(run.outputs))
    assert code == 0, output
    assert re.search(r"key +sky +wake\n", output), output


@pytest.mark.full
def test_the_page_s_own_dataset_is_one(tmp_path: Path, xclrun: Callable[..., tuple[int, str]]) -> None:
    """docs/lifelong.md shows a YAML with three parts: its keys are those that the page says."""
    page = (Path(__file__).parents[2] / "docs" / "lifelong.md").read_text(encoding="utf-8")
    displayed = page.split("`DIR/dataset/mine.yaml`", 1)[1].split("\nThe keys are", 1)[0].split("\n\n", 1)[1]
    (tmp_path / "own" / "dataset").mkdir(parents=True)
    (tmp_path / "own" / "dataset" / "mine.yaml").write_text(textwrap.dedent(displayed), encoding="utf-8")
    write_mtop(tmp_path / "mtop16", "en")
    path = tmp_path / "mtop16" / "en" / "train.txt"
    path.write_text(path.read_text().replace("music", "timer"))
    for folder, languages in (("moods", ["en"]), ("topics", ["en", "de"])):
        write_rows(tmp_path / folder, *languages)
    keys = ["plans", "moods", "topics-en", "topics-de"]
    values = ("--config-dir", str(tmp_path / "own"), "dataset=mine", f"dataset.root={tmp_path}", "tracking=none")
    code, output = xclrun("plan", *values, f"order=[{','.join(keys)}]")
    assert (code, "naive" in output) == (0, True), output
    code, output = xclrun("plan", *values, "order=[plans,topics]")
    assert (code, output.strip()) == (
        2,
        "xclrun: order: the dataset has no language 'topics'; did you mean 'topics-en'? "
        "Known: moods, plans, topics-de, topics-en",
    )


def write_rows(folder: Path, *languages: str) -> None:
    """Write JSON Lines of two classes."""
    folder.mkdir()
    rows = "".join(json.dumps({"id": str(i), "text": f"so {i}", "label": "ab"[i % 2]}) + "\n" for i in range(4))
    for language in languages:
        for split in ("train", "dev", "test"):
            (folder / f"{language}.{split}.jsonl").write_text(rows)


def test_data_of_true_and_false_have_both_labels_and_no_other(config: Config, tmp_path: Path) -> None:
    row = {"id": "1", "text": "It rains", "text_b": "The sky is dry", "label": "false"}
    for split in ("train", "dev", "test"):
        (tmp_path / f"en.{split}.jsonl").write_text(json.dumps(row))
    dataset: Dataset = load_dataset(config("jsonl", task="statement_truth"))
    assert dataset.labels == ("false", "true")
    (tmp_path / "en.test.jsonl").write_text(json.dumps(row | {"label": "maybe"}))
    with pytest.raises(UsageError, match=r"test\.jsonl:1: unknown label 'maybe'; use false, true"):
        load_dataset(config("jsonl", task="statement_truth", name="again"))
