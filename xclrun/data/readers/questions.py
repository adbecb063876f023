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
kept as it is, so that characters stay where they are. An answer must stand in its text at the character that is given;
where none is given (QA-ZRE) it is the first place that has it. TriviaQA's converted answers are found in the text in
lower case; they are read as the text writes them.

Where no test split is released with answers, the validation file is the test split, as GLI has it, and dev is empty:
such data are trained with ``trainer.selection=last``. A language without a training file is evaluated only.

Questions without an answer (``is_impossible``, no answers, QuAC's CANNOTANSWER, no valid span in QA-SRL) are left out
and counted; ``dataset.unanswerable=keep`` keeps them, with no answer as the right one. Of QuAC's dialogues each
question is read alone, without those before it.
"""

from __future__ import annotations

import io
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from xclrun.config.schema import DatasetConfig, Unanswerable
from xclrun.core.errors import UsageError
from xclrun.data.example import SPLITS, Answer, Example
from xclrun.data.readers import reader
from xclrun.data.readers.files import (
    BadRow,
    Notes,
    Place,
    Source,
    SplitFile,
    Splits,
    check_regular,
    choose_languages,
    collect,
    find_files,
    first_file,
    json_file,
    lines,
    parse_json,
    read_regular,
    root_of,
    shortened,
    unpack,
)

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
# What a row is, where it is no line.
UNIT = "question"
# A text, and a question about it.
Row = tuple[str, dict[str, Any]]


# SQuAD's layout.


def squad_rows(content: dict[str, Any], shown: str) -> Iterator[Row]:
    """Yield (text, question) of a file in SQuAD's layout.

    Raises:
        UsageError: it is not in that layout; says where.
    """
    for i, article in enumerate(_list(content, "data", shown), 1):
        for j, paragraph in enumerate(_list(article, "paragraphs", f"{shown}: article {i}"), 1):
            where = f"{shown}: article {i}, paragraph {j}"
            for number, question in enumerate(_list(paragraph, "qas", where), 1):
                if not isinstance(question, dict):
                    raise UsageError(f"{where}: question {number} must be an object")
                # Of any type: the question's row tells of what is wrong.
                yield paragraph.get("context"), question


def _list(of: Any, key: str, where: str) -> list[Any]:
    found = of.get(key) if isinstance(of, dict) else None
    if not isinstance(found, list):
        raise UsageError(f"{where} must be an object with a list '{key}'")
    return found


def squad_question(row: Row, place: Place, keep: bool, cased: bool = True) -> Example | None:
    """Return the example of a question in SQuAD's layout.

    Args:
        keep: whether one without an answer is kept.
        cased: whether answers are written as in the text; otherwise they stand in the text in lower case.
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
    return _question(place, text, question.get("question"), spans, keep, cased)


def _question(
    place: Place, text: Any, question: Any, spans: Sequence[tuple[Any, Any]], keep: bool, cased: bool = True
) -> Example | None:
    """Return the example of a question; None where it has no answer and is left out.

    Args:
        spans: text of each answer, and its first character; None: wherever the text has it first.
        cased: see `squad_question`.
    """
    if not isinstance(text, str) or not text.strip():
        raise BadRow("its context is empty")
    if not isinstance(question, str) or not question.strip():
        raise BadRow("the question is empty")
    if not spans and not keep:
        place.odd["unanswerable"] += 1
        return None
    answers = tuple(dict.fromkeys(_answer(text, *span, cased) for span in spans))
    words, kept = _words(text)
    return Example(place.id or place.name, place.language, words, None, None, kept, question, answers=answers)


@lru_cache(maxsize=1)
def _words(text: str) -> tuple[tuple[str, ...], str | None]:
    """Return the words of a text, and the text where it is not just these; questions about one text share them."""
    words = tuple(text.split())
    return words, None if text == " ".join(words) else text


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
        told = (
            "which does not have it at all" if elsewhere < 0 else f"it is at {elsewhere} (Unicode code points, from 0)"
        )
        raise BadRow(f"the answer {shortened(answer)!r} is not at character {start} of its context; {told}")
    if cased:
        return Answer(answer, start)
    # A few letters, such as İ, are two in lower case.
    of = range(len(text)) if len(searched) == len(text) else [i for i, c in enumerate(text) for _ in c.lower()]
    first, last = of[start], of[start + len(wanted) - 1]
    return Answer(text[first : last + 1], first)


def _keeps(cfg: DatasetConfig) -> bool:
    return Unanswerable(cfg.unanswerable) is Unanswerable.keep


def _squad_source(language: str, split: str, path: Path, shown: str) -> Source[Row]:
    return Source(language, split, shown, squad_rows(json_file(path, shown, ONE_OBJECT), shown), UNIT)


def _with_all_splits(splits: Splits, languages: Iterable[str]) -> Splits:
    return {(language, split): splits.get((language, split), ()) for language in languages for split in SPLITS}


@reader("questions", LAYOUT, gives=["answers"])
def read_questions(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions of your own, in SQuAD's layout, a file for each language and split."""
    files = find_files(cfg, LAYOUT)
    sources = (_squad_source(f.language, f.split, f.path, f.shown) for f in files)
    return collect(cfg, sources, partial(squad_question, keep=_keeps(cfg)))


# English datasets: a file for each split.


def _english(
    cfg: DatasetConfig,
    files: Mapping[str, tuple[str, ...]],
    rows: Callable[[Path, str], Iterable[Any]],
    parse: Callable[..., Example | None],
    unit: str = UNIT,
) -> tuple[Splits, Notes]:
    """Read the one language of a dataset; a split that is not among ``files`` is empty."""
    root, shown = root_of(cfg, [names[0] for names in files.values()])
    choose_languages(cfg.languages, [ENGLISH], f"{cfg.reader}, which is English")
    sources = []
    for split, names in files.items():
        name = first_file(root, names)
        if name is None:
            raise UsageError(f"dataset.root={shown}: no {split} split; looked for {' or '.join(names)}")
        sources.append(Source(ENGLISH, split, f"{shown}/{name}", rows(root / name, f"{shown}/{name}"), unit))
    splits, notes = collect(cfg, sources, partial(parse, keep=_keeps(cfg)))
    return _with_all_splits(splits, [ENGLISH]), notes


def _rows_of_file(path: Path, shown: str) -> Iterator[Row]:
    return squad_rows(json_file(path, shown), shown)


def _rows_of_trivia(path: Path, shown: str) -> Iterator[Row]:
    content = json_file(path, shown)
    if "Data" in content and "data" not in content:
        raise UsageError(
            f"{shown}: is as TriviaQA is released, without texts; the authors' utils.convert_to_squad_format joins "
            "questions with their texts"
        )
    return squad_rows(content, shown)


@reader("squad", ("{split}-v1.1.json",), gives=["answers"], languages=[ENGLISH])
def read_squad(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions about paragraphs of Wikipedia."""
    files = {"train": ("train-v1.1.json", "train-v2.0.json"), "test": ("dev-v1.1.json", "dev-v2.0.json")}
    return _english(cfg, files, _rows_of_file, squad_question)


@reader("triviaqa", ("web-{split}.json",), gives=["answers"], languages=[ENGLISH])
def read_triviaqa(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions of quizzes about pages of the web, converted to SQuAD's layout."""
    files = {
        "train": ("web-train.json", "squad-web-train.json", "qa/web-train.json"),
        "test": ("verified-web-dev.json", "squad-verified-web-dev.json", "web-dev.json", "squad-web-dev.json"),
    }
    return _english(cfg, files, _rows_of_trivia, partial(squad_question, cased=False))


@reader("quac", ("{split}_v0.2.json",), gives=["answers"], languages=[ENGLISH])
def read_quac(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions of dialogues about an article, each by itself."""
    files = {"train": ("train_v0.2.json",), "test": ("val_v0.2.json",)}
    return _english(cfg, files, _rows_of_file, squad_question)


# QA-SRL: a sentence per line, with questions about its verbs.


def _srl_rows(path: Path, shown: str) -> Iterator[Any]:
    if path.suffix == ".gz":
        check_regular(path, shown)
        try:
            unpack(path, unpacked := io.BytesIO(), shown)
            content = unpacked.getvalue()
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"{shown}: cannot be unpacked ({error})") from None
    else:
        content = read_regular(path, shown)
    for number, line in enumerate(content.removeprefix(BOM_UTF8).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            yield from _srl_questions(parse_json(line.decode(), "the line"))
        except (BadRow, UnicodeDecodeError) as error:
            raise UsageError(f"{shown}:{number}: {error}") from None


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


def _srl_question(row: tuple[str, Any, Any, Any], place: Place, keep: bool) -> Example | None:
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
    return _question(place, " ".join(tokens), question, answers, keep)


@reader("qa_srl", ("{split}.jsonl.gz",), gives=["answers"], languages=[ENGLISH])
def read_qa_srl(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions about the verbs of a sentence: semantic roles."""
    files = {s: tuple(f"{folder}{s}.jsonl{gz}" for folder in ("", "orig/") for gz in (".gz", "")) for s in SPLITS}
    return _english(cfg, files, _srl_rows, _srl_question)


# QA-ZRE: a line per relation of an entity.


def _zre_rows(path: Path, shown: str) -> Iterable[bytes]:
    return lines(SplitFile(ENGLISH, "", path, shown))


def _zre_question(line: str, place: Place, keep: bool) -> Example | None:
    fields = line.split("\t")
    if len(fields) < 4:
        raise BadRow(f"{len(fields)} columns between tabs; relation, question, entity, sentence and answers are needed")
    _, question, entity, sentence, *answers = fields
    spans = [(answer, None) for answer in answers if answer]
    return _question(place, sentence, question.replace("XXX", entity), spans, keep)


@reader("qa_zre", ("{split}.0",), gives=["answers"], languages=[ENGLISH])
def read_qa_zre(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions for the relations of an entity, which test has others of."""
    files = {split: (f"{split}.0", f"relation_splits/{split}.0") for split in SPLITS}
    return _english(cfg, files, _zre_rows, _zre_question, unit="")


# Several languages.


def _several(
    cfg: DatasetConfig, root: Path, shown: str, files: Mapping[str, Mapping[str, str]]
) -> tuple[Splits, Notes]:
    """Read languages of which each has the ``files`` of some splits, language → split → name below the root."""
    languages = choose_languages(cfg.languages, files.keys(), shown)
    found = ((language, split, name) for language in languages for split, name in files[language].items())
    sources = (_squad_source(language, split, root / name, f"{shown}/{name}") for language, split, name in found)
    splits, notes = collect(cfg, sources, partial(squad_question, keep=_keeps(cfg)))
    return _with_all_splits(splits, languages), notes


@reader("mlqa", ("{split}/{split}-context-{language}-question-{language}.json",), gives=["answers"], languages=MLQA)
def read_mlqa(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions about parallel sentences of Wikipedia, in their own language."""
    name = "{0}/{0}-context-{1}-question-{1}.json"
    root, shown = root_of(cfg, [name.format("{split}", "{language}")])
    files: dict[str, dict[str, str]] = {}
    for language in MLQA:
        for split in ("dev", "test"):
            below = name.format(split, language)
            if (there := first_file(root, (below, f"MLQA_V1/{below}"))) is not None:
                files.setdefault(language, {})[split] = there
    if not files:
        raise UsageError(f"dataset.root={shown}: no data found; looked for {name.format('test', 'en')}")
    for language, of in files.items():
        if "test" not in of:
            raise UsageError(f"dataset.root={shown}: '{language}' has no test split")
        translated = f"{language}_squad-translate-train-train-v1.1.json"
        names = SQUAD_TRAIN if language == ENGLISH else (translated, f"mlqa-translate-train/{translated}")
        if (there := first_file(root, names)) is not None:
            files[language] = {"train": there, **of}
    return _several(cfg, root, shown, files)


@reader("xquad", ("xquad.{language}.json",), gives=["answers"])
def read_xquad(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions of SQuAD's dev set, translated."""
    root, shown = root_of(cfg, ["xquad.{language}.json"])
    paths = sorted(path for folder in ("", "xquad") for path in (root / folder).glob("xquad.*.json"))
    files: dict[str, dict[str, str]] = {}
    for path in paths:
        if (match := re.fullmatch(r"xquad\.([a-z]+)\.json", path.name)) is not None:
            files.setdefault(match[1], {"test": path.relative_to(root).as_posix()})
    if not files:
        raise UsageError(f"dataset.root={shown}: no data found; looked for xquad.<language>.json")
    if ENGLISH in files and (there := first_file(root, SQUAD_TRAIN)) is not None:
        files[ENGLISH] = {"train": there, **files[ENGLISH]}
    return _several(cfg, root, shown, files)


@reader("tydiqa", ("tydiqa-goldp-v1.1-{split}.json",), gives=["answers"], languages=TYDI.values())
def read_tydiqa(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Questions of people who did not know the answer, in nine languages."""
    names = {"train": "tydiqa-goldp-v1.1-train.json", "test": "tydiqa-goldp-v1.1-dev.json"}
    root, shown = root_of(cfg, [names["train"]])
    of: dict[tuple[str, str], list[Row]] = {}
    for split, name in names.items():
        if not (root / name).is_file():
            raise UsageError(f"dataset.root={shown}: no {split} split; looked for {name}")
        for text, question in squad_rows(json_file(root / name, f"{shown}/{name}"), f"{shown}/{name}"):
            begin = str(question.get("id")).partition("-")[0]
            if begin not in TYDI:
                raise UsageError(
                    f"{shown}/{name}: question '{question.get('id')}': an id begins with a language of "
                    f"{', '.join(TYDI)}"
                )
            of.setdefault((TYDI[begin], split), []).append((text, question))
    languages = choose_languages(cfg.languages, [key for key in TYDI.values() if (key, "test") in of], shown)
    sources = [
        Source(language, split, f"{shown}/{names[split]}", of[language, split], UNIT)
        for language in languages
        for split in names
        if (language, split) in of
    ]
    splits, notes = collect(cfg, sources, partial(squad_question, keep=_keeps(cfg)))
    return _with_all_splits(splits, languages), notes
