"""Extractive question answering: questions whose answers are spans of a text, from local files as released.

``questions`` (the user's data in SQuAD's layout), ``squad`` (Rajpurkar et al. 2016; 1.1 or 2.0), ``triviaqa`` (Joshi et
al. 2017, as the authors' ``convert_to_squad_format`` writes it), ``quac`` (Choi et al. 2018, 0.2), ``qa_srl``
(FitzGerald et al. 2018, QA-SRL Bank 2.0), ``qa_zre`` (Levy et al. 2017), ``mlqa`` (Lewis et al. 2020), ``xquad``
(Artetxe et al. 2020) and ``tydiqa`` (Clark et al. 2020, GoldP). docs/data.md lists their files. English MLQA and XQuAD
are trained on SQuAD, other languages of MLQA on translations of SQuAD.

SQuAD's layout is ``data[].paragraphs[].{context, qas[].{id, question, answers[].{text, answer_start}}}``. Files can
also hold rows, as a list or as JSON Lines: ``{id, context, question, answers: {text: […], answer_start: […]}}``. This
is the layout of the `datasets` library, which ``dataset.hub`` reads too. Texts are not changed, so that character
offsets stay valid. The answer must be in the text at its offset; without an offset (QA-ZRE) the first occurrence is
used. TriviaQA's answers are searched ignoring case, and read as they are written in the text.

If no test split is released with answers, the validation file is the test split, as in GLI, and dev is empty. A
language without a training file is only evaluated.

Questions without an answer (``is_impossible``, no answers, an empty answer, QuAC's CANNOTANSWER, no valid span in
QA-SRL, a text that is not in the context and has the offset −1) are skipped and counted. With
``dataset.unanswerable=keep``, they are read, and "no answer" is their gold answer. Each question of QuAC's dialogues is
read without the previous questions.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.data.example import SPLITS, Answer, Example
from xclrun.data.readers import hub, reader, row_reader
from xclrun.data.readers.collect import BadRow, Notes, Place, Source, Splits, collect, read_files, shortened
from xclrun.data.readers.files import (
    Root,
    SplitFile,
    choose_languages,
    find_files,
    json_content,
    lines,
    parse_json,
    parse_utf8,
    read_regular,
    root_of,
)
from xclrun.data.readers.rows import field, own_text

ENGLISH = "en"
# QuAC's marker for "no answer"; it also ends each of its texts.
NO_ANSWER = "CANNOTANSWER"
LAYOUT = tuple(f"{{language}}{separator}{{split}}.{end}" for end in ("json", "jsonl") for separator in "/.")
SQUAD_TRAIN = ("train-v1.1.json", "squad/train-v1.1.json")
MLQA = ("ar", "de", "en", "es", "hi", "vi", "zh")
# Prefixes of TyDi QA's ids, which name the language.
TYDI = {"arabic": "ar", "bengali": "bn", "english": "en", "finnish": "fi", "indonesian": "id", "korean": "ko",
        "russian": "ru", "swahili": "sw", "telugu": "te"}  # fmt: skip

# Keys of a row.
KEYS = ("id", "language", "context", "question", "answers", "is_impossible")
# Name of a row in errors.
UNIT = "question"
# A text, and a question about it.
Row = tuple[Any, dict[str, Any]]


# SQuAD's layout.


def squad_rows(file: SplitFile) -> Iterator[Row]:
    """Yield (text, question) of a file in SQuAD's layout, or of a file of rows."""
    content, name = _content(file), file.name
    if isinstance(content, dict) and "Data" in content and "data" not in content:
        raise UsageError(
            f"{name}: TriviaQA's release has no texts; join them with the authors' utils.convert_to_squad_format"
        )
    flat = isinstance(content, list)
    for i, article in enumerate(content if flat else _list(content, "data", name), 1):
        if isinstance(article, dict) and "paragraphs" not in article and (flat or "context" in article):
            yield article.get("context"), article
            continue
        for j, paragraph in enumerate(_list(article, "paragraphs", f"{name}: article {i}"), 1):
            where = f"{name}: article {i}, paragraph {j}"
            for number, question in enumerate(_list(paragraph, "qas", where), 1):
                if not isinstance(question, dict):
                    raise UsageError(f"{where}: question {number} must be an object")
                # The context is checked later, by the parser of questions.
                yield paragraph.get("context"), question


def _content(file: SplitFile) -> Any:
    """Return the content of a JSON file; a list of rows if the file has one row per line."""
    text = read_regular(file.path, file.name).removeprefix(BOM_UTF8)
    rows = [(number, line) for number, line in enumerate(text.split(b"\n"), 1) if line.strip()]
    # The first line of indented JSON is not complete.
    in_lines = file.name.endswith(".jsonl") or (len(rows) > 1 and rows[0][1].strip()[-1:] == b"}")
    if not in_lines:
        return json_content(text, file.name)
    parsed = []
    for number, line in rows:
        try:
            parsed.append(parse_json(parse_utf8(line), "the line"))
        except BadRow as error:
            raise UsageError(f"{file.name}:{number}: {error}") from None
    return parsed


def _list(content: Any, key: str, where: str) -> list[Any]:
    value = content.get(key) if isinstance(content, dict) else None
    if not isinstance(value, list):
        raise UsageError(f"{where} must be an object with a list '{key}'")
    return value


def squad_question(row: Row, place: Place, cased: bool = True) -> Example:
    """Return the example of a question in SQuAD's layout.

    Args:
        cased: whether answers are written as in the text; otherwise they match the text in lower case.
    """
    text, question = row
    # Rows, which contain their text, may lack an id.
    id = field(question, "name", "id", optional="context" in question)
    place.id = "" if id is None else str(id)
    impossible = field(question, "boolean", "is_impossible", optional=True)
    if isinstance(question.get("answers"), dict):
        question = {**question, "answers": _objects(question["answers"])}
    answers = field(question, "objects", "answers", optional=bool(impossible) or "answers" in question) or []
    first = question.get("orig_answer", answers[0] if answers else None)
    if impossible or first is None or (isinstance(first, dict) and first.get("text") == NO_ANSWER):
        answers = []
    if isinstance(text, str):
        text = text.removesuffix(NO_ANSWER)
    spans = [(answer.get("text"), answer.get("answer_start")) for answer in answers]
    spans = [span for span in spans if span[0] != NO_ANSWER and not _is_empty(*span) and not _nowhere(text, *span)]
    return _question(place, text, question.get("question"), spans, cased)


def _is_empty(answer: Any, start: Any) -> bool:
    """Whether an answer stands for "no answer", as some converters write it: no text at position −1 or 0."""
    return isinstance(answer, str) and not answer.strip() and start in (None, -1, 0)


def _objects(lists: Mapping[str, Any]) -> Any:
    """Return an object of lists, or of nulls, as a list of objects; other objects are unchanged."""
    texts, starts = lists.get("text"), lists.get("answer_start")
    if "text" in lists and texts is starts is None:
        return []
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        return lists
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _nowhere(text: Any, answer: Any, start: Any) -> bool:
    """Whether an answer is not in the text, and its offset −1 says so."""
    return start == -1 and isinstance(text, str) and isinstance(answer, str) and answer not in text


def _question(place: Place, text: Any, question: Any, spans: Sequence[tuple[Any, Any]], cased: bool = True) -> Example:
    """Return the example of a question.

    Args:
        spans: (text, first character) of each answer. Without a character, the first occurrence in the text is used.
    """
    field({"context": text}, "text", "context")
    field({"question": question}, "text", "question")
    answers = tuple(dict.fromkeys(_answer(text, *span, cased) for span in spans))
    words, unsplit = _words(text)
    return Example(place.id or place.name, place.language, words, None, None, unsplit, question, answers=answers)


@lru_cache(maxsize=1)
def _words(text: str) -> tuple[tuple[str, ...], str | None]:
    """Return the words of a text and its `own_text`; questions about one text share them in memory."""
    words = tuple(text.split())
    return words, own_text(text, words)


def _answer(text: str, answer: Any, start: Any, cased: bool) -> Answer:
    field({"text": answer}, "text", "text")
    searched, pattern = (text, answer) if cased else (text.lower(), answer.lower())
    if start is None:
        start = searched.find(pattern)
        if start < 0:
            raise BadRow(f"the answer {shortened(answer)!r} is not in the context")
    field({"answer_start": start}, "integer", "answer_start")
    if start < 0 or searched[start : start + len(pattern)] != pattern:
        elsewhere = searched.find(pattern)
        hint = f"it is at {elsewhere} (Unicode code points, from 0)" if elsewhere >= 0 else "nor anywhere else"
        raise BadRow(f"the answer {shortened(answer)!r} is not at character {start} of the context; {hint}")
    if cased:
        return Answer(answer, start)
    # A few letters, such as İ, become two in lower case.
    lower = range(len(text)) if len(searched) == len(text) else [i for i, c in enumerate(text) for _ in c.lower()]
    first, last = lower[start], lower[start + len(pattern) - 1]
    return Answer(text[first : last + 1], first)


_english = partial(row_reader, gives=["answers"], languages=[ENGLISH], rows=squad_rows, unit=UNIT)


@reader("questions", LAYOUT, gives=["answers"])
def read_questions(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions in SQuAD's layout, or as rows."""
    if cfg.hub is None:
        return read_files(cfg, find_files(cfg, LAYOUT), squad_question, squad_rows, UNIT)
    needs = [("context",), ("question",), ("answers", "is_impossible")]
    return collect(cfg, hub.sources(cfg, KEYS, needs), hub_question)


def hub_question(row: dict[str, Any], place: Place) -> Example:
    """Return the example of a row of a hub dataset."""
    return squad_question((row["context"], row), place)


_english(
    "squad",
    ("{split}-v1.1.json",),
    files={"train": ("train-v1.1.json", "train-v2.0.json"), "test": ("dev-v1.1.json", "dev-v2.0.json")},
)(squad_question)
_english(
    "triviaqa",
    ("web-{split}.json",),
    files={
        "train": ("web-train.json", "squad-web-train.json", "qa/web-train.json"),
        "test": ("verified-web-dev.json", "squad-verified-web-dev.json", "web-dev.json", "squad-web-dev.json"),
    },
)(partial(squad_question, cased=False))
_english("quac", ("{split}_v0.2.json",), files={"train": ("train_v0.2.json",), "test": ("val_v0.2.json",)})(
    squad_question
)


# QA-SRL: a sentence per line, with questions about its verbs.


def _srl_rows(file: SplitFile) -> Iterator[tuple[str, Any, Any, Any]]:
    for number, line in enumerate(lines(file), 1):
        if not line.strip():
            continue
        try:
            yield from _srl_questions(parse_json(parse_utf8(line), "the line"))
        except BadRow as error:
            raise UsageError(f"{file.name}:{number}: {error}") from None


def _srl_questions(sentence: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield (id, tokens, question, judgments) of a sentence's questions, in the order of its verbs."""
    try:
        name, tokens, verbs = sentence["sentenceId"], sentence["sentenceTokens"], sentence["verbEntries"]
        labels = {verb: list(verbs[verb]["questionLabels"].items()) for verb in sorted(verbs, key=int)}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadRow("a sentence needs sentenceId, sentenceTokens and verbEntries with questionLabels") from None
    for verb, questions in labels.items():
        for number, (question, label) in enumerate(questions, 1):
            judgments = label.get("answerJudgments") if isinstance(label, dict) else None
            yield f"{name}/{verb}/{number}", tokens, question, judgments


@_english(
    "qa_srl",
    ("{split}.jsonl.gz",),
    rows=_srl_rows,
    files={s: tuple(f"{folder}{s}.jsonl{gz}" for folder in ("", "orig/") for gz in (".gz", "")) for s in SPLITS},
)
def srl_question(row: tuple[str, Any, Any, Any], place: Place) -> Example:
    """Questions about the verbs of a sentence: semantic roles."""
    place.id, tokens, question, judgments = row
    field({"sentenceTokens": tokens}, "strings", "sentenceTokens")
    try:
        valid = [judgment for judgment in judgments if judgment["isValid"]]
        spans = [(int(begin), int(end)) for judgment in valid for begin, end in judgment["spans"]]
    except (KeyError, TypeError, ValueError):
        raise BadRow("answerJudgments must have isValid, and spans [begin, end]") from None
    if bad := next((span for span in spans if not 0 <= span[0] < span[1] <= len(tokens)), None):
        raise BadRow(f"the span {list(bad)} is outside of its sentence of {len(tokens)} words")
    starts = [len(" ".join([*tokens[:i], ""])) for i in range(len(tokens))]
    answers = [(" ".join(tokens[begin:end]), starts[begin]) for begin, end in spans]
    return _question(place, " ".join(tokens), question, answers)


# QA-ZRE: a line per relation of an entity.


@_english(
    "qa_zre",
    ("{split}.0",),
    rows=lines,
    unit="",
    files={split: (f"{split}.0", f"relation_splits/{split}.0") for split in SPLITS},
)
def zre_question(line: str, place: Place) -> Example:
    """Questions for relations of an entity; test has other relations."""
    fields = line.split("\t")
    if len(fields) < 4:
        raise BadRow(
            f"{len(fields)} tab-separated columns; relation, question, entity, sentence and answers are needed"
        )
    _, question, entity, sentence, *answers = fields
    return _question(place, sentence, question.replace("XXX", entity), [(answer, None) for answer in answers if answer])


# Several languages.


def _several(cfg: DatasetConfig, root: Root, files: Mapping[str, Sequence[SplitFile]]) -> tuple[Splits, Notes]:
    languages = choose_languages(cfg.languages, files.keys(), root.name)
    return read_files(cfg, (f for key in languages for f in files[key]), squad_question, squad_rows, UNIT)


@reader("mlqa", ("{split}/{split}-context-{language}-question-{language}.json",), gives=["answers"], languages=MLQA)
def read_mlqa(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions about parallel sentences of Wikipedia, in the language of the sentence."""
    name = "{0}/{0}-context-{1}-question-{1}.json"
    root = root_of(cfg, [name.format("{split}", "{language}")])
    files: dict[str, list[SplitFile]] = {}
    for language in MLQA:
        translated = f"{language}_squad-translate-train-train-v1.1.json"
        names = {
            "train": SQUAD_TRAIN if language == ENGLISH else (translated, f"mlqa-translate-train/{translated}"),
            **{s: [f"{folder}{name.format(s, language)}" for folder in ("", "MLQA_V1/")] for s in ("dev", "test")},
        }
        splits = {split: file for split, paths in names.items() if (file := root.first(language, split, paths))}
        if "dev" in splits and "test" not in splits:
            raise root.error(f"'{language}' has no test split")
        if "test" in splits:
            files[language] = list(splits.values())
    if not files:
        raise root.error(f"no data found; looked for {name.format('test', 'en')}")
    return _several(cfg, root, files)


@reader("xquad", ("xquad.{language}.json",), gives=["answers"])
def read_xquad(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions of SQuAD's dev set, translated."""
    root = root_of(cfg, ["xquad.{language}.json"])
    files: dict[str, list[SplitFile]] = {}
    for path in sorted([*root.path.glob("xquad.*.json"), *root.path.glob("xquad/xquad.*.json")]):
        if (match := re.fullmatch(r"xquad\.([a-z]+)\.json", path.name)) is not None:
            files.setdefault(match[1], [root.file(match[1], "test", path.relative_to(root.path).as_posix())])
    if not files:
        raise root.error("no data found; looked for xquad.<language>.json")
    if ENGLISH in files and (train := root.first(ENGLISH, "train", SQUAD_TRAIN)) is not None:
        files[ENGLISH] = [train, *files[ENGLISH]]
    return _several(cfg, root, files)


@reader("tydiqa", ("tydiqa-goldp-v1.1-{split}.json",), gives=["answers"], languages=TYDI.values())
def read_tydiqa(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions by people who did not know the answer, in nine languages."""
    names = {"train": "tydiqa-goldp-v1.1-train.json", "test": "tydiqa-goldp-v1.1-dev.json"}
    root = root_of(cfg, [names["train"]])
    files = {split: root.required("", split, [name]) for split, name in names.items()}
    rows: dict[tuple[str, str], list[Row]] = {}
    for split, file in files.items():
        for text, question in squad_rows(file):
            id = str(question.get("id"))
            if (language := TYDI.get(id.partition("-")[0])) is None:
                raise UsageError(f"{file.name}: question '{id}': an id must begin with one of {', '.join(TYDI)}")
            rows.setdefault((language, split), []).append((text, question))
    languages = choose_languages(cfg.languages, [key for key in TYDI.values() if (key, "test") in rows], root.name)
    sources = [
        Source(language, split, file.name, rows[language, split], UNIT)
        for language in languages
        for split, file in files.items()
        if (language, split) in rows
    ]
    return collect(cfg, sources, squad_question)
