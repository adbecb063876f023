"""Prompts with completions: their formats, translations, and other datasets as texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.questions import write_questions
from xclrun.config.schema import AsText, DatasetConfig, OnBadLine, StatementsConfig, Template, TextConfig, Unanswerable
from xclrun.core.errors import UsageError
from xclrun.core.task import TEXT_ANSWER_EXACT, TEXT_EXACT, TEXT_TO_TEXT, tasks_of_dataset
from xclrun.core.texts import Reply
from xclrun.data.as_text import frame
from xclrun.data.example import Dataset, Example
from xclrun.data.load import load_dataset
from xclrun.data.notes import count_notes
from xclrun.data.readers import read
from xclrun.testing import check_reader

SPLITS = ("train", "dev", "test")
PAIR = {"prompt": "Translate: cat", "completion": "Katze"}


def config(root: Path | None, reader: str = "texts", **settings: Any) -> DatasetConfig:
    settings = {"task": "text_to_text", **settings}
    return DatasetConfig(name=reader, reader=reader, root=root and str(root), **settings)


def lay(root: Path, rows: Sequence[Any], name: str = "de/{split}.jsonl") -> Path:
    """Write rows to the files of all splits: as a list to JSON files, otherwise one per line."""
    for split in SPLITS:
        path = root / name.format(split=split)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        text = f"[{', '.join(lines)}]" if path.suffix == ".json" else "".join(f"{line}\n" for line in lines)
        path.write_text(text, encoding="utf-8")
    return root


def examples(cfg: DatasetConfig, language: str = "de", split: str = "test") -> list[Example]:
    return list(read(cfg)[0][language, split])


def target(root: Path, row: Any, name: str = "de/{split}.jsonl") -> tuple[str, Reply]:
    [example] = examples(config(lay(root, [row], name)))
    return example.whole, example.target


FORMS: dict[str, tuple[dict[str, Any], str, Reply]] = {
    "prompt": (PAIR, "Translate: cat", Reply(("Katze",))),
    "references": ({"prompt": "cat", "completion": ["Katze", "Kater"]}, "cat", Reply(("Katze", "Kater"))),
    "empty": ({"prompt": "nothing", "completion": ""}, "nothing", Reply(("",))),
    "spaces": ({"prompt": " a\n  b ", "completion": " c\n"}, " a\n  b ", Reply((" c\n",))),
    "aya": ({"inputs": "Wie?", "targets": "So.", "language": "German"}, "Wie?", Reply(("So.",))),
    "trace": ({"prompt": "1 + 1", "answer": "2"}, "1 + 1", Reply(("2",))),
    "messages": (
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "And now?"},
                {"role": "assistant", "content": "Bye"},
            ]
        },
        "And now?",
        Reply(("Bye",), turns=(("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"))),
    ),
    "conversation": (
        {"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Hello"}]},
        "Hi",
        Reply(("Hello",)),
    ),
    "choice by number": (
        {"prompt": "?", "choices": ["ja", "nein"], "answer": 1},
        "?",
        Reply(("nein",), ("ja", "nein")),
    ),
    "choice by text": ({"prompt": "?", "choices": ["1", "2"], "answer": "1"}, "?", Reply(("1",), ("1", "2"))),
    "choice by letter": ({"prompt": "?", "choices": ["x", "y"], "answer": "B"}, "?", Reply(("y",), ("x", "y"))),
    "choice by float": ({"prompt": "?", "choices": ["x", "y"], "answer": "1.0"}, "?", Reply(("y",), ("x", "y"))),
    "choice by digit": ({"prompt": "?", "choices": ["x", "y"], "answer": "1"}, "?", Reply(("y",), ("x", "y"))),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_row_is_a_prompt_and_its_target(form: str, tmp_path: Path) -> None:
    row, prompt, reply = FORMS[form]
    assert target(tmp_path, row) == (prompt, reply)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "is not JSON"), ("[1]", "must be an object"), ({"prompt": "a"}, "neither completion nor targets"),
        ({"prompt": "a", "completions": "b"}, "unknown key 'completions'; did you mean 'completion'"),
        ({"completion": "a"}, "neither prompt nor inputs"), ({"prompt": " ", "completion": "a"}, "'prompt' must be"),
        ({"prompt": "a", "completion": 3}, "the target: a reference must be a text"),
        ({"prompt": "a", "completion": []}, "the target: a reference must be a text"),
        ({"prompt": "a", "choices": ["x", "y"], "answer": 2}, "'answer' 2 is none of the 2 choices"),
        ({"prompt": "a", "choices": ["x", "y"], "answer": "C"}, "'answer' 'C' is none of the 2 choices"),
        ({"prompt": "a", "choices": "xy", "answer": 0}, "'choices' must be a list of strings"),
        ({"messages": [{"role": "user", "content": "a"}]}, "at least two turns"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}]}, "turn 2 must have a role"),
        ({"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]}, "the last turns are"),
        ({"prompt": "a", "completion": "\ud800"}, "surrogate"),
    ],
)  # fmt: skip
def test_a_bad_row_is_one_line_with_file_and_line(row: Any, message: str, tmp_path: Path) -> None:
    cfg = config(lay(tmp_path, [PAIR, row if isinstance(row, str) else json.dumps(row), PAIR]))
    with pytest.raises(UsageError) as error:
        read(cfg)
    assert str(error.value).startswith(f"{tmp_path}/de/train.jsonl:2: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    splits, notes = read(replace(cfg, on_bad_line=OnBadLine.skip))
    assert len(splits["de", "test"]) == 2
    assert notes["skipped"] == dict.fromkeys((f"de/{split}" for split in SPLITS), 1)


def noted(root: Path, *rows: dict[str, Any]) -> dict[str, dict[str, int]]:
    return count_notes(load_dataset(config(lay(root, rows))))


def test_a_dev_split_that_is_the_test_split_is_noted(tmp_path: Path) -> None:
    """Epochs would be selected on the test split (as in the data of O-LoRA)."""
    lay(tmp_path, [PAIR])
    (tmp_path / "de" / "train.jsonl").write_text('{"prompt": "dog", "completion": "Hund"}\n', encoding="utf-8")
    notes = count_notes(load_dataset(config(tmp_path)))
    assert (notes.get("test_in_train"), notes["test_is_dev"]) == (None, {"de": 1})


def test_dialogues_that_differ_before_the_prompt_are_different_sentences(tmp_path: Path) -> None:
    for split in SPLITS:
        turns = [{"role": role, "content": text} for role, text in (("user", split), ("assistant", "Hi"))]
        turns += [{"role": "user", "content": "Go on"}, {"role": "assistant", "content": "So"}]
        path = tmp_path / "de" / f"{split}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"messages": turns}), encoding="utf-8")
    notes = count_notes(load_dataset(config(tmp_path)))
    assert not {"test_in_train", "test_is_dev"} & notes.keys()


def test_messages_without_a_template_are_noted(tmp_path: Path) -> None:
    """Otherwise, a model for chats would learn to answer texts without turns."""
    lay(tmp_path, [FORMS["conversation"][0], PAIR])
    counts = [read(config(tmp_path, text=TextConfig(template=of)))[1].get("plain_messages") for of in Template]
    assert dict(zip(Template, counts, strict=True)) == {
        Template.none: {"de/train": 1, "de/dev": 1, "de/test": 1},
        Template.chat: None,
    }


def test_targets_without_information_are_noted(tmp_path: Path) -> None:
    lost, absent = {"prompt": "a", "completion": "x\ufffd"}, {"prompt": "b", "completion": "nan"}
    choice = {"prompt": "c", "choices": ["None", "x"], "answer": 0}
    notes = noted(tmp_path, PAIR, lost, absent, choice)
    assert (notes["control_characters"]["de/train"], notes["placeholders"]["de/train"]) == (1, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt;completion\na;b\n", "train.csv:1: columns are separated by ';'"),
        ("prompt\tcompletion\na\tb\n", "train.csv:1: columns are separated by '\\t'"),
        ("prompt,prompt,completion\na,b,c\n", "train.csv:1: two columns have the name 'prompt'"),
        ("prompt,completion\n,c\n", "train.csv:2: 'prompt' is missing"),
    ],
)
def test_a_csv_file_that_would_be_misread_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    for split in SPLITS:
        (tmp_path / f"de.{split}.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as error:
        read(config(tmp_path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_numbers_in_csv_files_are_kept_as_they_are_written(tmp_path: Path) -> None:
    for split in SPLITS:
        (tmp_path / f"de.{split}.csv").write_text(",prompt,completion\n0,a,1.0\n1,b,007\n", encoding="utf-8")
    assert [e.target.references for e in examples(config(tmp_path))] == [("1.0",), ("007",)]


def test_rows_without_a_target_are_counted(tmp_path: Path) -> None:
    lay(tmp_path, [PAIR, {"prompt": "a", "completion": None}, '{"prompt": "a", "completion": NaN}'])
    splits, notes = read(config(tmp_path))
    assert len(splits["de", "train"]) == 1
    assert notes["unlabeled"]["de/train"] == 2


@pytest.mark.parametrize("name", ["de/{split}.jsonl", "de.{split}.jsonl", "de/{split}.json"])
def test_names_are_mapped(name: str, tmp_path: Path) -> None:
    lay(tmp_path, [{"id": 7, "Frage": "cat", "Antwort": "Katze", "facts": {"kind": "noun"}}], name)
    cfg = config(tmp_path, hub_columns={"prompt": "Frage", "completion": "Antwort"})
    [example] = examples(cfg)
    assert (example.id, example.whole, example.target.references) == ("7", "cat", ("Katze",))
    assert example.facts == {"kind": "noun"}
    with pytest.raises(UsageError, match=r"de.train.jsonl?(:1|: row 1): no 'Wort', which dataset.hub_columns names"):
        read(config(tmp_path, hub_columns={"prompt": "Frage", "completion": "Wort"}))
    with pytest.raises(UsageError, match=r"^dataset.hub_columns: unknown key 'promt'; did you mean 'prompt'"):
        read(config(tmp_path, hub_columns={"promt": "Frage"}))


def test_tasks_of_trace_are_keys_whose_files_are_lists(tmp_path: Path) -> None:
    """ROOT/TASK/{train,eval,test}.json; eval is dev."""
    for task in ("C-STANCE", "20Minuten"):
        lay(tmp_path / task, [{"prompt": f"{task}?", "answer": "A"}], "{split}.json")
        (tmp_path / task / "dev.json").rename(tmp_path / task / "eval.json")
    splits, _ = read(config(tmp_path))
    assert {place: len(rows) for place, rows in splits.items()} == {
        (task, split): 1 for task in ("20Minuten", "C-STANCE") for split in SPLITS
    }
    assert splits["C-STANCE", "dev"][0].whole == "C-STANCE?"
    (tmp_path / "20Minuten" / "test.json").write_text('[{"prompt": "a", "answer": "b"}, {}, 3]')
    with pytest.raises(UsageError, match=r"20Minuten/test\.json: row 2: a row must be an object .*skip 2 of 8 rows"):
        read(config(tmp_path))


def test_rows_of_one_file_are_divided_by_their_language(tmp_path: Path) -> None:
    rows = [{"inputs": f"{c} {i}", "targets": "t", "language_code": c} for i in range(2) for c in ("deu", "tha")]
    lay(tmp_path, [*rows, ""], "{split}.jsonl")
    cfg = config(tmp_path, hub_columns={"language": "language_code"})
    assert [e.whole for e in examples(cfg, "tha")] == ["tha 0", "tha 1"]
    assert list(read(replace(cfg, languages=["th"]))[0]) == [("tha", split) for split in SPLITS]
    with (tmp_path / "dev.jsonl").open("a") as file:
        file.write('{"inputs": "a", "targets": "b"}\n')
    with pytest.raises(UsageError, match=r"dev\.jsonl:6: no 'language_code'"):
        read(cfg)
    # One selected language needs no key.
    lay(tmp_path, [PAIR], "{split}.jsonl")
    assert len(examples(config(tmp_path, languages=["de"]))) == 1
    with pytest.raises(UsageError, match=r"train\.jsonl:1: 'language' is missing"):
        read(config(tmp_path))


def test_csv_files_are_read(tmp_path: Path) -> None:
    rows = ["prompt,answer,choices", '"a, b\nc",B,"[""x"", ""y""]"', "", "d,e,"]
    lay(tmp_path, rows, "de/{split}.csv")
    assert [(e.whole, e.target) for e in examples(config(tmp_path))] == [
        ("a, b\nc", Reply(("y",), ("x", "y"))), ("d", Reply(("e",))),
    ]  # fmt: skip
    for row, message in (("f,g", "2 columns instead of 3"), ("f,g,[", "'choices' is not JSON"), ('f,"g', "not CSV")):
        lay(tmp_path, [*rows, row], "de/{split}.csv")
        with pytest.raises(UsageError, match=rf"de/train\.csv:6: {message}"):
            read(config(tmp_path))


def test_rows_of_the_hub_have_the_same_forms(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"inputs": f"{c}?", "targets": c, "language": c} for c in ("de", "th")]
    tables = {split: datasets.Dataset.from_list(rows) for split in ("train", "validation", "test")}
    datasets.DatasetDict(tables).save_to_disk(tmp_path / "aya")
    [example] = examples(config(None, hub=str(tmp_path / "aya")), "th", "dev")
    assert (example.whole, example.target) == ("th?", Reply(("th",)))
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    tables = {split: datasets.Dataset.from_list([{"chat": turns}]) for split in ("train", "test")}
    datasets.DatasetDict(tables).save_to_disk(tmp_path / "chat")
    cfg = config(None, hub=str(tmp_path / "chat"), hub_columns={"messages": "chat"}, languages=["en"])
    assert examples(cfg, "en")[0].target == Reply(("Hello",))


@pytest.mark.parametrize("name", ["{language}/{split}.jsonl", "{language}.{split}.json", "{language}/{split}.csv"])
def test_the_reader_passes_the_contract(name: str, tmp_path: Path) -> None:
    for language in ("de", "th"):
        rows = [{"prompt": f"{language} {i}", "completion": str(i)} for i in range(3)]
        lines = ["prompt,completion", *(",".join(row.values()) for row in rows)] if name.endswith("csv") else rows
        lay(tmp_path, lines, name.replace("{language}", language))
    bad = None if name.endswith("json") else (name.format(language="de", split="test"), "1,2,3\n")
    check_reader(config(tmp_path), bad)


def test_the_reader_passes_the_contract_with_files_of_several_languages(tmp_path: Path) -> None:
    lay(tmp_path, [{**PAIR, "language": language} for language in ("de", "th", "de")], "{split}.jsonl")
    check_reader(config(tmp_path), ("test.jsonl", "{}\n"))


# Translations.


def treebanks(root: Path, **sentences: Sequence[str]) -> Path:
    """Write treebanks of sentences ``ID TEXT`` in each split."""
    for language, rows in sentences.items():
        for split in SPLITS:
            blocks = []
            for row in rows:
                id, _, text = row.partition(" ")
                words = [f"{i}\t{word}\t_\tNOUN" + "\t_" * 6 for i, word in enumerate(text.split(), 1)]
                blocks.append("\n".join([f"# sent_id = {split}{id}", f"# text = {text.replace(' .', '.')}", *words]))
            root.mkdir(exist_ok=True)
            (root / f"{language}-{split}.conllu").write_text("\n\n".join([*blocks, ""]), encoding="utf-8")
    return root


def test_sentences_with_equal_ids_are_translations(tmp_path: Path) -> None:
    treebanks(tmp_path, en=["1 a cat .", "2 a dog ."], de=["2 ein Hund .", "1 eine Katze ."], tr=["1 bir kedi ."])
    cfg = config(tmp_path, "pud_translation")
    splits, notes = read(cfg)
    assert [(e.id, e.whole, e.target) for e in splits["en-de", "test"]] == [
        ("test1", "a cat.", Reply(("eine Katze.",))), ("test2", "a dog.", Reply(("ein Hund.",))),
    ]  # fmt: skip
    assert notes["untranslated"] == dict.fromkeys((f"en-tr/{split}" for split in SPLITS), 1)
    [example] = examples(replace(cfg, languages=["de-tr"]), "de-tr")
    assert (example.whole, example.target.references) == ("eine Katze.", ("bir kedi.",))
    for key in ("de", "de-de"):
        with pytest.raises(UsageError, match=rf"'{key}' must be a pair of two languages, such as en-de"):
            read(replace(cfg, languages=[key]))
    treebanks(tmp_path, tr=["3 bir at ."])
    with pytest.raises(UsageError, match="no sentence of 'en' has the sent_id of a sentence of 'tr'"):
        read(cfg)


def test_translations_pass_the_contract(tmp_path: Path) -> None:
    root = treebanks(tmp_path / "pud", en=["1 a cat .", "2 a dog ."], de=["1 eine Katze .", "2 ein Hund ."])
    check_reader(config(root, "pud_translation"), ("en-test.conllu", "\n1\tx\n\n"))


@pytest.mark.shared
def test_parallel_ud_is_a_translation_corpus(shared_data: Path) -> None:
    dataset = load_dataset(config(shared_data / "pud", "pud_translation", languages=["en-de", "de-zh"]))
    assert dataset.sizes() == {"en-de": 600, "de-zh": 600}
    assert not dataset.notes.get("untranslated")


# Other tasks as texts.


def as_text(reader: str, kind: AsText, root: Path | None = None, **settings: Any) -> Dataset:
    return load_dataset(config(root, reader, as_text=kind, **settings))


def test_frames_are_the_intent_and_the_slots_in_order() -> None:
    words = ("wake", "Anna", "B", "at", "six")
    example = Example("1", "en", words, "alarm", ("O", "B-person", "I-person", "O", "B-time"))
    assert frame(example) == "alarm [person Anna B] [time six]"
    assert frame(Example("1", "en", words, "alarm", ("O",) * 5)) == "alarm"
    dataset = as_text("mini", AsText.frames, task="intent_slots")
    plain = load_dataset(DatasetConfig(name="mini", reader="mini"))
    assert dataset.task is TEXT_TO_TEXT
    for ours, theirs in zip(dataset.split("de", "test"), plain.split("de", "test"), strict=True):
        assert (ours.id, ours.whole, ours.label, ours.tags) == (theirs.id, theirs.whole, None, None)
        assert ours.target == Reply((frame(theirs),))


def test_answers_follow_the_text_and_its_question(tmp_path: Path) -> None:
    root = write_questions(tmp_path, "en", "th")
    dataset = as_text("questions", AsText.answers, root, task="span")
    plain = load_dataset(config(root, "questions", task="span"))
    assert dataset.task is not None
    assert TEXT_ANSWER_EXACT in dataset.task.beside
    assert TEXT_EXACT not in dataset.task.beside
    for ours, theirs in zip(dataset.split("th", "train"), plain.split("th", "train"), strict=True):
        assert ours.whole == f"{theirs.whole}\n{theirs.text_b}"
        assert ours.target.references == tuple(dict.fromkeys(answer.text for answer in theirs.answers or ()))
        assert (ours.text_b, ours.answers) == (None, None)


def test_a_question_without_an_answer_has_the_empty_reference(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "context": "Anna sings.", "question": "Who?", "answers": {"text": ["Anna"], "answer_start": [0]}},
        {"id": "2", "context": "Anna sings.", "question": "Where?", "answers": {"text": [], "answer_start": []}},
    ]
    lay(tmp_path, rows)
    dataset = as_text("questions", AsText.answers, tmp_path, task="span", unanswerable=Unanswerable.keep)
    assert [e.target.references for e in dataset.split("de", "test")] == [("Anna",), ("",)]


def test_labels_are_choices(tmp_path: Path) -> None:
    lay(tmp_path, [{"text": "a b", "label": "good"}, {"text": "c", "text_b": "d  e", "label": "bad"}])
    (tmp_path / "de" / "test.jsonl").write_text('{"text": "f", "label": "unseen"}\n{"text": "f", "label": "bad"}\n')
    dataset = as_text("jsonl", AsText.labels, tmp_path, task="sequence_class")
    assert [(e.whole, e.target) for e in dataset.split("de", "train")] == [
        ("a b", Reply(("good",), ("bad", "good"))), ("c\nd  e", Reply(("bad",), ("bad", "good"))),
    ]  # fmt: skip
    # A label that training lacks is no choice.
    assert [e.target.choices for e in dataset.split("de", "test")] == [(), ("bad", "good")]


def test_statements_are_answered_with_true_or_false(tmp_path: Path) -> None:
    lay(tmp_path, [{"text": "a b", "label": "sports"}, {"text": "c", "label": "politics"}])
    settings: dict[str, Any] = {"task": "sequence_class", "statements": StatementsConfig(kind="news", wrong=1)}
    dataset = as_text("jsonl", AsText.statements, tmp_path, **settings)
    assert dataset.task is TEXT_TO_TEXT
    true, false = dataset.split("de", "train")[:2]
    assert true.target == Reply(("true",), ("false", "true"))
    assert false.target == Reply(("false",), ("false", "true"))
    context, _, statement = true.whole.partition("\n")
    assert (context, "sports" in statement) == ("a b", True)


def test_a_form_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    lay(tmp_path, [{"text": "a b", "label": "good"}, {"text": "c", "label": "bad"}])
    for kind, hint in (
        ("frames", "use labels"),
        ("answers", "use labels"),
        ("statements", "set dataset.statements.kind"),
    ):
        with pytest.raises(UsageError, match=rf"^dataset.as_text={kind}: .* sequence_class; {hint}$"):
            as_text("jsonl", AsText(kind), tmp_path, task="sequence_class")


def test_a_config_tells_the_task_of_texts() -> None:
    dataset = {"task": "span", "as_text": "answers", "parts": {}}
    [task] = tasks_of_dataset(dataset)
    assert (task.name, task.identified) == ("text_to_text", "text_to_text")
    assert TEXT_ANSWER_EXACT in task.beside
    assert tasks_of_dataset({**dataset, "as_text": AsText.frames}) == (TEXT_TO_TEXT,)
