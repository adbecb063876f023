"""Extractive question answering in each released layout, and mistakes in the files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest

from tests.conftest import some
from tests.questions import write_questions
from xclrun.config.schema import DatasetConfig, OnBadLine, Unanswerable
from xclrun.core.errors import UsageError
from xclrun.data.example import Answer, Dataset, Example, fingerprint
from xclrun.data.load import load_dataset
from xclrun.data.notes import note_lines
from xclrun.plan.run import _identity

Config = Callable[..., DatasetConfig]


def squad(*questions: dict[str, Any], context: Any = "Rome  is in Italy .") -> str:
    paragraph = {"context": context, "qas": list(questions)}
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]})


def question(name: Any = "q1", *answers: tuple[Any, Any], **rest: Any) -> dict[str, Any]:
    values = [{"text": text, "answer_start": start} for text, start in answers or [("Italy", 12)]]
    return {"id": name, "question": "where is it ?", "answers": values, **rest}


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def rome(name: str = "q1", language: str = "en", *answers: Answer) -> Example:
    return Example(
        name, language, ("Rome", "is", "in", "Italy", "."), None, None, "Rome  is in Italy .", "where is it ?",
        answers=answers or (Answer("Italy", 12),),
    )  # fmt: skip


def read(config: Config, reader: str, **options: Any) -> Dataset:
    return load_dataset(config(reader, task="span", **options))


TWO = squad(question())
SRL = {
    "sentenceId": "W:1",
    "sentenceTokens": ["Cats", "eat", "fresh", "fish", "daily"],
    "verbEntries": {
        "1": {
            "verbIndex": 1,
            "questionLabels": {
                "What does something eat?": {
                    "answerJudgments": [
                        {"sourceId": "a", "isValid": True, "spans": [[3, 4], [2, 4]]},
                        {"sourceId": "b", "isValid": True, "spans": [[3, 4]]},
                        {"sourceId": "c", "isValid": False},
                    ]
                },
                "Who eats something?": {"answerJudgments": [{"sourceId": "a", "isValid": False}]},
            },
        }
    },
}
ENGLISH = [
    ("squad", {"train-v1.1.json": TWO, "dev-v1.1.json": TWO}, rome()),
    # Its script looks for an answer's names, in lower case, in the text in lower case.
    (
        "triviaqa",
        dict.fromkeys(("web-train.json", "verified-web-dev.json"), squad(question("q1", ("italy", 12)))),
        rome(),
    ),
    (
        "quac",
        dict.fromkeys(
            ("train_v0.2.json", "val_v0.2.json"),
            squad(
                question("a", ("CANNOTANSWER", 20), orig_answer={"text": "CANNOTANSWER", "answer_start": 20}),
                question("q1", ("CANNOTANSWER", 20), ("Italy", 12), orig_answer={"text": "Italy", "answer_start": 12}),
                context="Rome  is in Italy . CANNOTANSWER",
            ),
        ),
        Example(
            "q1", "en", ("Rome", "is", "in", "Italy", "."), None, None, "Rome  is in Italy . ", "where is it ?",
            answers=(Answer("Italy", 12),),
        ),
    ),
    (
        "qa_srl",
        {f"orig/{split}.jsonl.gz": gzip.compress(json.dumps(SRL).encode()) for split in ("train", "dev", "test")},
        Example(
            "W:1/1/1", "en", ("Cats", "eat", "fresh", "fish", "daily"), None, None, None, "What does something eat?",
            answers=(Answer("fish", 15), Answer("fresh fish", 9)),
        ),
    ),
    (
        "qa_zre",
        dict.fromkeys(
            ("train.0", "dev.0", "test.0"),
            "in\twhere is XXX ?\tRome\tRome is in Italy .\tItaly\nin\twhere is XXX ?\tRome\tRome is old .\n",
        ),
        Example(
            "{split}-1", "en", ("Rome", "is", "in", "Italy", "."), None, None, None, "where is Rome ?",
            answers=(Answer("Italy", 11),),
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "files", "expected"), ENGLISH, ids=[row[0] for row in ENGLISH])
def test_english_datasets_as_released(
    config: Config, tmp_path: Path, reader: str, files: dict[str, str | bytes], expected: Example
) -> None:
    write(tmp_path, files)
    dataset = read(config, reader)
    assert dataset.languages == ("en",)
    for split in ("train", "test"):
        [example] = dataset.split("en", split)
        assert example.id == expected.id.format(split=split)
        for name in ("tokens", "text", "text_b", "answers"):
            assert getattr(example, name) == getattr(expected, name), name
    assert bool(dataset.split("en", "dev")) == (len(files) == 3)
    silent = {"quac": {"en/train": 1, "en/test": 1}, **dict.fromkeys(("qa_srl", "qa_zre"), dict.fromkeys(
        ("en/train", "en/dev", "en/test"), 1))}  # fmt: skip
    assert dataset.notes == ({"unanswerable": silent[reader]} if reader in silent else {})
    retained = read(config, reader, unanswerable=Unanswerable.keep)
    assert [e.answers for e in retained.split("en", "train")].count(()) == (reader in silent)
    assert retained.targets[0].unanswerable == (reader in silent)


def test_mlqa_is_trained_on_squad_and_tested_in_every_language(config: Config, tmp_path: Path) -> None:
    name = "MLQA_V1/{0}/{0}-context-{1}-question-{1}.json"
    files = {name.format(split, language): squad(question()) for split in ("dev", "test") for language in ("en", "de")}
    write(tmp_path, {**files, "train-v1.1.json": squad(question("a"), question("b"))})
    dataset = read(config, "mlqa")
    assert dataset.metrics.reader == "mlqa"
    # Epochs may be chosen by English dev scores, so ids differ from those with SQuAD's rule.
    assert _identity(dataset).labels != _identity(replace(dataset, reader="xquad")).labels
    assert dataset.languages == ("de", "en")
    assert [dataset.sizes(split) for split in ("train", "dev", "test")] == [
        {"de": 0, "en": 2}, {"de": 1, "en": 1}, {"de": 1, "en": 1}
    ]  # fmt: skip
    assert dataset.split("de", "test") == (rome(language="de"),)
    write(tmp_path, {"mlqa-translate-train/de_squad-translate-train-train-v1.1.json": TWO})
    alone = read(config, "mlqa", languages=["de"])
    assert alone.sizes() == {"de": 1}
    assert _identity(alone).labels == _identity(replace(alone, reader="xquad")).labels


def test_xquad_has_no_dev_and_tydiqa_s_languages_lie_in_one_file(config: Config, tmp_path: Path) -> None:
    write(tmp_path / "x", {"xquad.en.json": TWO, "xquad.th.json": TWO, "train-v1.1.json": TWO})
    dataset = read(config, "xquad", root=str(tmp_path / "x"))
    assert [dataset.sizes(split) for split in ("train", "dev", "test")] == [
        {"en": 1, "th": 0}, {"en": 0, "th": 0}, {"en": 1, "th": 1}
    ]  # fmt: skip
    both = squad(question("finnish-1-0"), question("korean-2-0"))
    write(tmp_path / "t", {f"tydiqa-goldp-v1.1-{split}.json": both for split in ("train", "dev")})
    dataset = read(config, "tydiqa", root=str(tmp_path / "t"))
    assert dataset.split("ko", "test") == (rome("korean-2-0", "ko"),)
    assert dataset.sizes() == {"fi": 1, "ko": 1}
    write(tmp_path / "e", {f"tydiqa-goldp-v1.1-{s}.json": squad(question("elvish-1")) for s in ("train", "dev")})
    with pytest.raises(UsageError, match=r"train\.json: question 'elvish-1': an id must begin with one of arabic, ben"):
        read(config, "tydiqa", root=str(tmp_path / "e"))


def test_an_answer_in_lower_case_is_read_as_the_text_writes_it(config: Config, tmp_path: Path) -> None:
    # İ is two characters in lower case, so what follows it stands one later there.
    text = "In İzmir, İZMİR and ROME"
    rows = [question(f"q{i}", (a, text.lower().index(a))) for i, a in enumerate(("rome", "izmir".replace("i", "i̇", 1)))]
    write(tmp_path, dict.fromkeys(("web-train.json", "web-dev.json"), squad(*rows, context=text)))
    answers = [e.answers for e in read(config, "triviaqa").split("en", "train")]
    assert answers == [(Answer("ROME", text.index("ROME")),), (Answer("İzmir", 3),)]


def test_questions_of_one_text_share_its_words(config: Config, tmp_path: Path) -> None:
    # Those of a hundred thousand questions would be a gigabyte.
    write(tmp_path, dict.fromkeys((f"en/{s}.json" for s in ("train", "dev", "test")), squad(question("a"), question())))
    first, other = read(config, "questions").split("en", "train")
    assert first.tokens is other.tokens


BAD = [
    (squad(question("q", ("Italy", 13))), r": question 'q': .*'Italy' is not at character 13 .*; it is at 12"),
    (squad(question("q", ("Spain", 12))), r": question 'q': .*'Spain' is not at character 12 .* nor anywhere else"),
    (squad(question("q", ("Italy", -7))), r": question 'q': .*'Italy' is not at character -7"),
    (squad(question("q", ("Italy", "12"))), r": question 'q': 'answer_start' .*'12'"),
    (squad(question("q", (" ", 4))), r": question 'q': 'text'"),
    (squad(question("q"), context=" \n"), r": question 'q': 'context'"),
    (squad(question("q"), context=7), r": question 'q': 'context'"),
    (squad(question("q", question="")), r": question 'q': 'question'"),
    (squad({"question": "?", "answers": []}), r": question 1: 'id' is missing"),
    (squad({**question("q"), "answers": {"text": "Italy"}}), r": question 'q': 'answers' must be a list of objects"),
    (squad({"id": "q", "question": "?"}), r": question 'q': 'answers' is missing"),
    (squad(question("q", is_impossible="no")), r": question 'q': 'is_impossible' must be true or false, not 'no'"),
    (squad(question("q" * 99, question="")), r": question 'q{59}…': "),
    (squad(question("q", ("", 7))), r": question 'q': 'text'"),
    (squad(question("q", answers=[])), r": no examples; .*dataset.unanswerable=keep"),
    ('{"data": [', r": the file is not JSON \(Expecting value at character 11\)"),
    ("[]", r": no examples"),
    ("7", r" must be an object with a list 'data'"),
    ('{"id": 1}\n{"id": 2}', r": question '1': 'answers' is missing"),
    ('{"id": 1}\n{"id": }', r":2: the line is not JSON"),
    ("[7]", r": article 1 must be an object with a list 'paragraphs'"),
    ('{"data": {}}', r" must be an object with a list 'data'"),
    ('{"data": [{"paragraphs": [{"qas": 1}]}]}', r": article 1, paragraph 1 must be an object with a list 'qas'"),
    (b"\xff", r": not UTF-8 \(byte 1\)"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), BAD)
def test_mistakes_are_reported_with_their_question(
    config: Config, tmp_path: Path, content: str | bytes, message: str
) -> None:
    write(tmp_path, {"en/train.json": content, "en/dev.json": TWO, "en/test.json": TWO})
    with pytest.raises(UsageError, match=rf"en/train\.json{message}"):
        read(config, "questions")


LISTS = {"text": ["Italy"], "answer_start": [12]}


@pytest.mark.parametrize("layout", ["list", "lines", "data", "objects"])
def test_rows_with_lists_of_answers_are_read(config: Config, tmp_path: Path, layout: str) -> None:
    row = {"id": "q1", "title": "t", "context": "Rome  is in Italy .", "question": "where is it ?", "answers": LISTS}
    content = {
        "list": json.dumps([row]), "lines": json.dumps(row) + "\n" + json.dumps({**row, "id": "q2"}),
        "data": json.dumps({"data": [row]}), "objects": squad(question("q1", answers=LISTS)),
    }[layout]  # fmt: skip
    end = "jsonl" if layout == "lines" else "json"
    write(tmp_path, dict.fromkeys((f"en/{s}.{end}" for s in ("train", "dev", "test")), content))
    assert read(config, "questions").split("en", "test")[:1] == (rome(),)


def test_rows_of_questions_need_no_id(config: Config, tmp_path: Path) -> None:
    row = {"context": "Rome  is in Italy .", "question": "where is it ?", "answers": LISTS}
    write(tmp_path, dict.fromkeys((f"en/{s}.json" for s in ("train", "test")), json.dumps([row])))
    assert read(config, "questions").split("en", "test") == (rome("test-1"),)


def test_questions_of_a_hub_dataset(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    row = {"context": "Rome  is in Italy .", "question": "where is it ?", "answers": LISTS}
    none = {**row, "answers": {"text": [], "answer_start": []}}
    table = datasets.Dataset.from_list([row, none])
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk(str(tmp_path / "hub"))
    dataset = read(config, "questions", root=None, hub=str(tmp_path / "hub"), languages=["en"])
    assert dataset.split("en", "test") == (rome("test-1"),)
    assert dataset.notes == {"unanswerable": {"en/train": 1, "en/test": 1}}


@pytest.mark.parametrize(
    "answers",
    [
        None,
        {"text": None, "answer_start": None},
        [{"text": "", "answer_start": -1}],
        [{"text": "Spain", "answer_start": -1}],
        [{"text": "", "answer_start": 0}],
        {"text": [], "answer_start": []},
        {"text": [""], "answer_start": [-1]},
    ],
)
def test_empty_answers_are_no_answer(config: Config, tmp_path: Path, answers: Any) -> None:
    content = squad(question("a"), question("b", answers=answers))
    write(tmp_path, {"en/train.json": content, "en/test.json": TWO})
    assert read(config, "questions").notes == {"unanswerable": {"en/train": 1}}
    kept = read(config, "questions", unanswerable=Unanswerable.keep)
    assert [e.answers for e in kept.split("en", "train")] == [(Answer("Italy", 12),), ()]


def test_masked_texts_are_refused_whatever_is_asked(config: Config, tmp_path: Path) -> None:
    content = squad(question(1.0, ("**", 0)), context="** ** .")
    write(tmp_path, {f"en/{split}.json": content for split in ("train", "test")})
    with pytest.raises(UsageError, match="en/train: all words are placeholders"):
        read(config, "questions")


def test_an_answer_at_minus_one_that_is_in_the_text_is_an_error(config: Config, tmp_path: Path) -> None:
    write(tmp_path, {"en/train.json": squad(question("q", ("Italy", -1))), "en/test.json": TWO})
    with pytest.raises(UsageError, match=r"it is at 12"):
        read(config, "questions")


def test_bad_questions_are_counted_where_they_are_skipped(config: Config, tmp_path: Path) -> None:
    content = squad(question("a", ("Italy", 13)), question("b"), question("c", answers=[]))
    write(tmp_path, {"en/train.json": content, "en/dev.json": TWO, "en/test.json": TWO})
    dataset = read(config, "questions", on_bad_line=OnBadLine.skip)
    assert dataset.split("en", "train") == (rome("b"),)
    assert dataset.notes == {"skipped": {"en/train": 1}, "unanswerable": {"en/train": 1}}
    assert note_lines([dataset]) == [
        "1 question with an error: skipped (en/train: 1)",
        "1 question without an answer in the text: skipped (en/train: 1)",
        "1 test question that the language's training split contains too (en: 1)",
        "1 test question of a test split that is part of the dev split, which selects epochs (en: 1)",
    ]


@pytest.mark.parametrize("start", [-1, 0, None])
def test_an_empty_answer_means_no_answer(config: Config, tmp_path: Path, start: int | None) -> None:
    content = squad(question("a", ("", start)), question("b"))
    write(tmp_path, {f"en/{split}.json": content for split in ("train", "dev", "test")})
    dataset = read(config, "questions")
    assert dataset.split("en", "test") == (rome("b"),)
    assert dataset.notes == {"unanswerable": {f"en/{split}": 1 for split in ("train", "dev", "test")}}
    dataset = read(config, "questions", unanswerable=Unanswerable.keep)
    assert [e.answers for e in dataset.split("en", "dev")] == [(), (Answer("Italy", 12),)]


def test_questions_without_an_answer_can_be_kept_only_where_there_are_questions(config: Config) -> None:
    with pytest.raises(UsageError, match=r"^dataset.unanswerable=keep: dataset=mini has no questions"):
        load_dataset(config("mini", root=None, unanswerable=Unanswerable.keep))


@pytest.mark.parametrize(
    ("reader", "name", "content", "message"),
    [
        ("qa_srl", "train.jsonl", "{", r"train\.jsonl:1: the line is not JSON"),
        ("qa_srl", "train.jsonl", "{}", r"train\.jsonl:1: a sentence needs sentenceId"),
        ("qa_srl", "train.jsonl.gz", "no gzip", r"train\.jsonl\.gz: cannot be read"),
        ("qa_zre", "train.0", "a\tb\tc", r"train\.0:1: 3 tab-separated columns; .*question"),
        ("qa_zre", "train.0", "a\tb\tc\tRome\tMars", r"train\.0:1: .*'Mars' is not in the context"),
        ("triviaqa", "web-train.json", '{"Data": [], "Domain": "Web"}', r"web-train\.json: .*convert_to_squad_format"),
        ("squad", "train-v1.1.json", None, r"no train split; looked for train-v1\.1\.json or train-v2\.0\.json"),
        ("mlqa", "none", "", r"no data found; looked for test/test-context-en-question-en\.json"),
        ("xquad", "none", "", r"no data found; looked for xquad\.<language>\.json"),
    ],
)
def test_mistakes_in_other_layouts(
    config: Config, tmp_path: Path, reader: str, name: str, content: str | None, message: str
) -> None:
    values = {} if content is None else {name.replace("train", split): content for split in ("train", "dev", "test")}
    write(tmp_path, {"other": "", **values})
    with pytest.raises(UsageError, match=message):
        read(config, reader)


def test_a_span_beyond_its_sentence_is_refused(config: Config, tmp_path: Path) -> None:
    bad = json.dumps(SRL).replace("[2, 4]", "[2, 6]")
    write(tmp_path, {f"{split}.jsonl": bad for split in ("train", "dev", "test")})
    with pytest.raises(UsageError, match=r"question 'W:1/1/1': the span \[2, 6\] is outside"):
        read(config, "qa_srl")


def test_answers_are_part_of_what_an_example_is() -> None:
    first, other, none = rome(), rome("q1", "en", Answer("Rome", 0)), Example("q1", "en", ("Rome",), None)
    assert fingerprint([first]) != fingerprint([other])
    assert none.answers is None


def test_the_second_text_is_part_of_what_an_example_is() -> None:
    """Two questions about one text: the split has another fingerprint, so runs on it have other ids."""
    first, other = (replace(rome(), text_b=question) for question in ("Where?", "Where!"))
    assert fingerprint([first]) != fingerprint([other])


def test_questions_of_every_script_are_read_as_they_are_written(config: Config, tmp_path: Path) -> None:
    dataset = read(config, "questions", root=str(write_questions(tmp_path, "en", "th", "ar", "zh", long=3)))
    for example in some(e for examples in dataset.splits.values() for e in examples):
        assert example.answers
        [(text, start)] = example.answers
        assert example.whole[start : start + len(text)] == text
