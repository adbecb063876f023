"""Questions about texts whose answers are spans of them, from local files as they are released.

| reader | files | languages |
|---|---|---|
| ``questions`` (your own, in SQuAD's layout) | ``LANGUAGE/SPLIT.json`` or ``LANGUAGE.SPLIT.json`` | as there are |
| ``squad`` (Rajpurkar et al. 2016, 1.1; 2.0) | ``train-v1.1.json``, ``dev-v1.1.json`` | en |
| ``triviaqa`` (Joshi et al. 2017) | ``web-train.json``, ``verified-web-dev.json``, as the authors' \
``convert_to_squad_format`` writes them: answers in lower case | en |
| ``quac`` (Choi et al. 2018, 0.2) | ``train_v0.2.json``, ``val_v0.2.json`` | en |
| ``qa_srl`` (FitzGerald et al. 2018, QA-SRL Bank 2.0) | ``orig/SPLIT.jsonl.gz`` | en |
| ``qa_zre`` (Levy et al. 2017) | ``train.0``, ``dev.0``, ``test.0`` | en |
| ``mlqa`` (Lewis et al. 2020, 1.0) | ``SPLIT/SPLIT-context-LANGUAGE-question-LANGUAGE.json``; to train on, SQuAD's \
for en, ``LANGUAGE_squad-translate-train-train-v1.1.json`` for others | ar de en es hi vi zh |
| ``xquad`` (Artetxe et al. 2020) | ``xquad.LANGUAGE.json``; to train on, SQuAD's for en | as there are |
| ``tydiqa`` (Clark et al. 2020, GoldP) | ``tydiqa-goldp-v1.1-{train,dev}.json``, all languages in one | ar bn en fi \
id ko ru sw te |

SQuAD's layout is ``data[].paragraphs[].{context, qas[].{id, question, answers[].{text, answer_start}}}``. A text is
kept unchanged, so that characters stay if they are. An answer must are in its text at the character that is given;
if none is given (QA-ZRE) it is the first place that has it. TriviaQA's converted answers are found in the text in
lower case; they are read as the text writes them.

Where no test split is released with answers, the validation file is the test split, as GLI has it, and dev is empty:
such data are trained with ``trainer.selection=last``. A language without a training file is evaluated only.

Questions without an answer (``is_impossible``, no answers, QuAC's CANNOTANSWER, no valid span in QA-SRL) are left out
and counted; ``dataset.unanswerable=keep`` keeps them, with no answer as the right one. Of QuAC's dialogues each
question is read alone, without those before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.data.example import SPLITS, Answer, Example
from xclrun.data.readers import reader, row_reader
from xclrun.data.readers.files import (
    BadRow,
    Notes,
    Place,
    Source,
    SplitFile,
    Splits,
    choose_languages,
    collect,
    first_file,
    json_file,
    lines,
    parse_json,
    parse_utf8,
    read_files,
    root_of,
    shortened,
)
from xclrun.data.readers.rows import own_text

ENGLISH = "en"
# What QuAC writes for no answer; it is the end of each of its texts too.
NO_ANSWER = "CANNOTANSWER"
LAYOUT = ("{language}/{split}.json", "{language}.{split}.json")
SQUAD_TRAIN = ("train-v1.1.json", "squad/train-v1.1.json")
MLQA = ("ar", "de", "en", "es", "hi", "vi", "zh")
# TyDi's languages, as its ids begin.
TYDI = {"arabic": "ar", "bengali": "bn", "english": "en", "finnish": "fi", "indonesian": "id", "korean": "ko",
        "russian": "ru", "swahili": "sw", "telugu": "te"}  # fmt: skip

# Said of files that are lists of rows, or have a row in each line.
ONE_OBJECT = "; SQuAD's layout is one object with a list 'data' (docs/questions.md says how rows become it)"
# What a row is, if it is no line.
UNIT = "question"
# A text, and a question about it.
Row = tuple[str, dict[str, Any]]


# SQuAD's layout.


def squad_rows(file: SplitFile) -> Iterator[Row]:
    """Yield (text, question) of a file in SQuAD's layout."""
    content, shown = json_file(file.path, file.shown, ONE_OBJECT), file.shown
    if "Data" in content and "data" not in content:
        raise UsageError(
            f"{shown}: is as TriviaQA is released, without texts; the authors' utils.convert_to_squad_format joins "
            "questions with their texts"
        )
    for i, article in enumerate(_list(content, "data", shown), 1):
        for j, paragraph in enumerate(_list(article, "paragraphs", f"{shown}: article {i}"), 1):
            where = f"{shown}: article {i}, paragraph {j}"
            for number, question in enumerate(_list(paragraph, "qas", where), 1):
                if not isinstance(question, dict):
                    raise UsageError(f"{where}: question {number} must be an object")
                # Of any type: the question's parser reports what is wrong.
                yield paragraph.get("context"), question


def _list(of: Any, key: str, where: str) -> list[Any]:
    found = of.get(key) if isinstance(of, dict) else None
    if not isinstance(found, list):
        raise UsageError(f"{where} must be an object with a list '{key}'")
    return found


def squad_question(row: Row, place: Place, cased: bool = True) -> Example:
    """Return the example of a question in SQuAD's layout.

    Args:
        cased: whether answers are written as in the text; otherwise they are in the text in lower case.
    """
    text, question = row
    name = question.get("id")
    if not isinstance(name, str | int) or isinstance(name, bool) or not str(name).strip():
        raise BadRow(f"a question needs an 'id', not {name!r}")
    place.id = str(name)
    if not isinstance(impossible := question.get("is_impossible", False), bool):
        raise BadRow(f"'is_impossible' must be true or false, not {impossible!r}")
    answers = question.get("answers", [] if impossible else None)
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        lacking = "" if "answers" in question else "; it is not there"
        raise BadRow(f"'answers' must be a list of objects with 'text' and 'answer_start'{lacking}")
    given = [(answer.get("text"), answer.get("answer_start")) for answer in answers]
    first = question.get("orig_answer", answers[0] if answers else None)
    none = impossible or first is None
    if isinstance(first, dict) and first.get("text") == NO_ANSWER:
        none = True
    if isinstance(text, str):
        text = text.removesuffix(NO_ANSWER)
    spans = [] if none else [span for span in given if span[0] != NO_ANSWER]
    return _question(place, text, question.get("question"), spans, cased)


def _question(place: Place, text: Any, question: Any, spans: Sequence[tuple[Any, Any]], cased: bool = True) -> Example:
    """Return the example of a question.

    Args:
        spans: text of each answer, and its first character; None: wherever the text has it first.
        cased: see `squad_question`.
    """
    if not isinstance(text, str) or not text.strip():
        raise BadRow("its context is empty")
    if not isinstance(question, str) or not question.strip():
        raise BadRow("the question is empty")
    answers = tuple(dict.fromkeys(_answer(text, *span, cased) for span in spans))
    words, kept = _words(text)
    return Example(place.id or place.name, place.language, words, None, None, kept, question, answers=answers)


@lru_cache(maxsize=1)
def _words(text: str) -> tuple[tuple[str, ...], str | None]:
    """Return the words of a text, and the text if it is not just these; questions about one text share them."""
    words = tuple(text.split())
    return words, own_text(text, words)


def _answer(text: str, answer: Any, start: Any, cased: bool) -> Answer:
    if not isinstance(answer, str) or not answer.strip():
        raise BadRow("an answer is empty")
    searched, wanted = (text, answer) if cased else (text.lower(), answer.lower())
    if start is None:
        start = searched.find(wanted)
        if start < 0:
            raise BadRow(f"its context does not have the answer {shortened(answer)!r}")
    if not isinstance(start, int) or isinstance(start, bool):
        raise BadRow(f"'answer_start' must be a whole number, not {start!r}")
    if start < 0 or searched[start : start + len(wanted)] != wanted:
        elsewhere = searched.find(wanted)
        where = f"it is at {elsewhere} (Unicode code points, from 0)"
        where = where if elsewhere >= 0 else "which does not have it at all"
        raise BadRow(f"the answer {shortened(answer)!r} is not at character {start} of its context; {where}")
    if cased:
        return Answer(answer, start)
    # A few letters, such as İ, are two in lower case.
    of = range(len(text)) if len(searched) == len(text) else [i for i, c in enumerate(text) for _ in c.lower()]
    first, last = of[start], of[start + len(wanted) - 1]
    return Answer(text[first : last + 1], first)


_english = partial(row_reader, gives=["answers"], languages=[ENGLISH], rows=squad_rows, unit=UNIT)

row_reader("questions", LAYOUT, gives=["answers"], rows=squad_rows, unit=UNIT)(squad_question)
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
            raise UsageError(f"{file.shown}:{number}: {error}") from None


def _srl_questions(sentence: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield (id, tokens, question, judgments) of a sentence's questions, in the order of its verbs."""
    try:
        name, tokens, verbs = sentence["sentenceId"], sentence["sentenceTokens"], sentence["verbEntries"]
        found = [(v, q) for v in sorted(verbs, key=int) for q in verbs[v]["questionLabels"].items()]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadRow("a sentence needs sentenceId, sentenceTokens and verbEntries with questionLabels") from None
    number = 0
    before = None
    for verb, (question, label) in found:
        number, before = (number + 1 if verb == before else 1), verb
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
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise BadRow("sentenceTokens must be a list of words")
    try:
        valid = [judgment for judgment in judgments if judgment["isValid"]]
        spans = [(int(begin), int(end)) for judgment in valid for begin, end in judgment["spans"]]
    except (KeyError, TypeError, ValueError):
        raise BadRow("answerJudgments must have isValid, and spans [begin, end]") from None
    if bad := next((span for span in spans if not 0 <= span[0] < span[1] <= len(tokens)), None):
        raise BadRow(f"the span {list(bad)} is none of its sentence of {len(tokens)} words")
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
    """Questions for the relations of an entity, which test has others of."""
    fields = line.split("\t")
    if len(fields) < 4:
        raise BadRow(f"{len(fields)} columns between tabs; relation, question, entity, sentence and answers are needed")
    _, question, entity, sentence, *answers = fields
    return _question(place, sentence, question.replace("XXX", entity), [(answer, None) for answer in answers if answer])


# Several languages.


def _several(cfg: DatasetConfig, files: Mapping[str, Mapping[str, str]]) -> tuple[Splits, Notes]:
    """Read languages of which each has the ``files`` of some splits, language → split → name below the root."""
    root, shown = root_of(cfg, ())
    languages = choose_languages(cfg.languages, files.keys(), shown)
    found = [
        SplitFile(language, split, root / name, f"{shown}/{name}")
        for language in languages
        for split, name in files[language].items()
    ]
    return read_files(cfg, found, squad_question, squad_rows, UNIT)


@reader("mlqa", ("{split}/{split}-context-{language}-question-{language}.json",), gives=["answers"], languages=MLQA)
def read_mlqa(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions about parallel sentences of Wikipedia, in their own language."""
    name = "{0}/{0}-context-{1}-question-{1}.json"
    root, shown = root_of(cfg, [name.format("{split}", "{language}")])
    files: dict[str, dict[str, str]] = {}
    for language in MLQA:
        translated = f"{language}_squad-translate-train-train-v1.1.json"
        names = {
            "train": SQUAD_TRAIN if language == ENGLISH else (translated, f"mlqa-translate-train/{translated}"),
            **{s: [f"{folder}{name.format(s, language)}" for folder in ("", "MLQA_V1/")] for s in ("dev", "test")},
        }
        found = {split: file for split, these in names.items() if (file := first_file(root, these)) is not None}
        if "dev" in found and "test" not in found:
            raise UsageError(f"dataset.root={shown}: '{language}' has no test split")
        if "test" in found:
            files[language] = found
    if not files:
        raise UsageError(f"dataset.root={shown}: no data found; looked for {name.format('test', 'en')}")
    return _several(cfg, files)


@reader("xquad", ("xquad.{language}.json",), gives=["answers"])
def read_xquad(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions of SQuAD's dev set, translated."""
    root, shown = root_of(cfg, ["xquad.{language}.json"])
    files: dict[str, dict[str, str]] = {}
    for path in sorted([*root.glob("xquad.*.json"), *root.glob("xquad/xquad.*.json")]):
        if (match := re.fullmatch(r"xquad\.([a-z]+)\.json", path.name)) is not None:
            files.setdefault(match[1], {"test": path.relative_to(root).as_posix()})
    if not files:
        raise UsageError(f"dataset.root={shown}: no data found; looked for xquad.<language>.json")
    if ENGLISH in files and (file := first_file(root, SQUAD_TRAIN)) is not None:
        files[ENGLISH] = {"train": file, **files[ENGLISH]}
    return _several(cfg, files)


@reader("tydiqa", ("tydiqa-goldp-v1.1-{split}.json",), gives=["answers"], languages=TYDI.values())
def read_tydiqa(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions of people who did not know the answer, in nine languages."""
    names = {"train": "tydiqa-goldp-v1.1-train.json", "test": "tydiqa-goldp-v1.1-dev.json"}
    root, shown = root_of(cfg, [names["train"]])
    of: dict[tuple[str, str], list[Row]] = {}
    for split, name in names.items():
        if not (root / name).is_file():
            raise UsageError(f"dataset.root={shown}: no {split} split; looked for {name}")
        for text, question in squad_rows(SplitFile("", split, root / name, f"{shown}/{name}")):
            id = str(question.get("id"))
            if (begin := id.partition("-")[0]) not in TYDI:
                known = ", ".join(TYDI)
                raise UsageError(f"{shown}/{name}: question '{id}': an id begins with a language of {known}")
            of.setdefault((TYDI[begin], split), []).append((text, question))
    languages = choose_languages(cfg.languages, [key for key in TYDI.values() if (key, "test") in of], shown)
    sources = [
        Source(language, split, f"{shown}/{names[split]}", of[language, split], UNIT)
        for language in languages
        for split in names
        if (language, split) in of
    ]
    return collect(cfg, sources, squad_question)
