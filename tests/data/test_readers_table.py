"""Readers of released files, as tables: rows in, an example or one error line out; and MASSIVE."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xclrun.config.schema import DatasetConfig, OnBadLine, TagsAre
from xclrun.core.errors import UsageError
from xclrun.data.example import Example
from xclrun.data.load import load_dataset
from xclrun.data.readers import read

from .conftest import mtop_line

Config = Callable[..., DatasetConfig]
SPLITS = ("train", "dev", "test")
# Reader → the names of splits in file names; None: the release has no such file.
CALLED: dict[str, dict[str, str | None]] = {
    "xsid": {"dev": "valid"},
    "pawsx": {"train": "translated_train", "dev": "dev_2k", "test": "test_2k"},
    **{reader: {"dev": None, "test": "val"} for reader in ("boolq", "wic", "wsc")},
    "mnli": {"dev": None, "test": "dev_matched"},
    **{reader: {"dev": None} for reader in ("snli", "yelp", "amazon", "agnews", "dbpedia", "yahoo")},
}


@pytest.fixture
def config_of(config: Config) -> Config:
    """Make the config of a reader's dataset under tmp_path."""
    words = {"conllu": {"tags_are": TagsAre.words}, "conll": {"word_column": 2, "tag_column": 3}}
    tasks = {"massive": "intent_slots", **{reader: task for reader, (task, *_) in GOOD.items()}}
    return lambda reader, **options: config(reader, **{"task": tasks[reader], **words.get(reader, {}), **options})


def write(path: Path, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{row}\n" for row in rows).encode(errors="surrogateescape"))


def word(number: str, form: str, tag: str) -> str:
    """Return a line of CoNLL-U."""
    return "\t".join([number, form, "_", tag, *["_"] * 6])


# MASSIVE


def massive_line(annotated: str = "weck mich [date : diese woche] auf", **columns: Any) -> str:
    """Return a line of MASSIVE; the defaults give a valid line of the German test split."""
    row = {"id": "0", "locale": "de-DE", "partition": "test", "scenario": "alarm", "intent": "alarm_set"}
    row = {
        **row,
        "utt": re.sub(r"\[\w+ ?: ?([^]]*)\]", r"\1", annotated),
        "annot_utt": annotated,
        "worker_id": "8",
        **columns,
    }
    return json.dumps({key: value for key, value in row.items() if value is not None}, ensure_ascii=False)


def massive(root: Path, *locales: str, folder: str = "1.1/data") -> None:
    for locale in locales:
        rows = [massive_line(id=str(i), partition=split, locale=locale) for i, split in enumerate(reversed(SPLITS))]
        write(root / folder / f"{locale}.jsonl", *rows)


def test_massive_splits_a_file_by_partition_and_reads_slots_from_brackets(tmp_path: Path, config_of: Config) -> None:
    massive(tmp_path, "de-DE", "zh-TW")
    splits, notes = read(config_of("massive"))
    assert [(key, [e.id for e in examples]) for key, examples in splits.items()] == [
        (("de-DE", "train"), ["2"]), (("de-DE", "dev"), ["1"]), (("de-DE", "test"), ["0"]),
        (("zh-TW", "train"), ["2"]), (("zh-TW", "dev"), ["1"]), (("zh-TW", "test"), ["0"]),
    ]  # fmt: skip
    [example] = splits["de-DE", "test"]
    tags = ("O", "O", "B-date", "I-date", "O")
    assert example == Example("0", "de-DE", ("weck", "mich", "diese", "woche", "auf"), "alarm_set", tags)
    assert example.facts == {"scenario": "alarm"}
    assert notes == {}


@pytest.mark.parametrize("folder", ["", "data", "1.0/data"])
def test_massive_is_found_however_it_was_unpacked(tmp_path: Path, config_of: Config, folder: str) -> None:
    massive(tmp_path, "en-US", folder=folder)
    assert load_dataset(config_of("massive")).languages == ("en-US",)


@pytest.mark.parametrize(
    ("locale", "annotated", "tokens", "tags"),
    [
        ("ja-JP", "[time : 五時] に iPhone 起こして", "五 時 に iPhone 起 こ し て", "B-time I-time O O O O O O"),
        ("zh-CN", "提醒我[time : 下午5点]开会", "提 醒 我 下 午 5 点 开 会", "O O O B-time I-time I-time I-time O O"),
        # Thai is released with spaces between words, and is not split.
        ("th-TH", "ปลุก ฉัน [time : ตี ห้า]", "ปลุก ฉัน ตี ห้า", "O O B-time I-time"),
        ("en-US", "[a : x][b : y] z", "xy z", "B-a O"),
        ("tr-TR", "[place : ankara]'da [date :yarın]", "ankara'da yarın", "B-place B-date"),
    ],
)
def test_massive_words_and_slots(
    tmp_path: Path, config_of: Config, locale: str, annotated: str, tokens: str, tags: str
) -> None:
    write(tmp_path / f"{locale}.jsonl", massive_line(annotated, locale=locale))
    splits, notes = read(config_of("massive"))
    [example] = splits[locale, "test"]
    assert (" ".join(example.tokens), " ".join(example.tags or ())) == (tokens, tags)
    assert example.whole == json.loads(massive_line(annotated))["utt"]
    inside = {"en-US": 2, "tr-TR": 1}.get(locale)
    assert notes == ({"slots_inside_words": {f"{locale}/test": inside}} if inside else {})
    assert splits[locale, "train"] == ()


def test_massive_reads_annotated_words_and_counts_differences(tmp_path: Path, config_of: Config) -> None:
    write(
        tmp_path / "de-DE.jsonl",
        massive_line(utt="weck mich auf"),
        massive_line(id="1", utt="weck mich diese  woche auf"),
    )
    dataset = load_dataset(config_of("massive"))
    assert [e.whole for e in dataset.split("de-DE", "test")] == ["weck mich diese woche auf"] * 2
    assert dataset.notes == {"annotated_otherwise": {"de-DE/test": 1}}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "the line is not JSON (Expecting property name enclosed in double quotes at character 2)"),
        ("[1]", "object"),
        ('{"id": "\udcff"}', "UTF-8 (byte 9"),
        (massive_line(partition="MMNLU-22"), "'MMNLU-22'"),
        (massive_line(locale="fr-FR"), "'fr-FR' in the file of de-DE"),
        (massive_line(intent=None), "'intent'"),
        (massive_line("weck [date diese woche] auf"), "'['"),
        (massive_line("weck [date : ] auf"), "'[date : ]'"),
        (massive_line("weck auf] x"), "']'"),
        (massive_line(" "), "'annot_utt'"),
    ],
)
def test_massive_names_the_line(tmp_path: Path, config_of: Config, line: str, reason: str) -> None:
    write(tmp_path / "de-DE.jsonl", massive_line(), "", line, massive_line(id="9", partition="train"))
    with pytest.raises(UsageError) as error:
        read(config_of("massive"))
    assert str(error.value).startswith(f"{tmp_path}/de-DE.jsonl:3: ")
    assert reason in str(error.value)
    splits, notes = read(config_of("massive", on_bad_line=OnBadLine.skip))
    assert (len(splits["de-DE", "train"]), len(splits["de-DE", "test"])) == (1, 1)
    assert notes["skipped"] == {"de-DE/test": 1}, "once, though all splits are in one file"
    write(tmp_path / "de-DE.jsonl", massive_line(), line)
    assert len(read(config_of("massive", on_bad_line=OnBadLine.skip))[0]["de-DE", "test"]) == 1, "test alone suffices"


def test_massive_without_files_or_test_lines(tmp_path: Path, config_of: Config) -> None:
    write(tmp_path / "de-DE.jsonl", massive_line(partition="train"))
    # An empty file was read as a language without sentences.
    (tmp_path / "en-US.jsonl").write_bytes(b"\n")
    for language in ("de-DE", "en-US"):
        with pytest.raises(UsageError, match=rf"/{language}\.jsonl: .*partition is test"):
            read(config_of("massive", languages=[language]))
    with pytest.raises(UsageError, match=r"dataset.languages: no 'fr' in .*; Known: de-DE, en-US"):
        read(config_of("massive", languages=["fr"]))
    with pytest.raises(UsageError, match=r"no data found; looked for <language>\.jsonl$"):
        read(config_of("massive", root=str(Path(__file__).parents[1] / "report")))


# Rows of other readers: valid rows with their example, then bad rows.

XSID = ("# id = 7", "# text-en = Is it going to rain?", "# text = Regnts heinte?", "# intent = weather/find",
        "1\tRegnts\tweather/find\tB-weather/attribute", "2\theinte\tweather/find\tB-datetime",
        "3\t?\tweather/find\tO", "")  # fmt: skip
UNER = ("# sent_id = a", "# text = Bush's al-Qaeda", "1\tBush\tB-PER\t-\tann", "2\t's\tB-O\t-\tann", "3-4\tal-Q\t_",
        "3\tal\tB-OTH\t-\tann", "4\tQaeda\tI-OTH\t-\tann", "")  # fmt: skip
CONLLU = ("# sent_id = a", "# text = Zum See!", "1-2\tZum" + "\t_" * 8, word("1", "Zu", "ADP"), word("2", "dem", "DET"),
          word("2.1", "x", "X"), word("3", "See", "NOUN"), word("4", "!", "PUNCT"), "")  # fmt: skip
BOOLQ = {"question": "is it so", "passage": "It is so.", "idx": 7, "label": True}
WIC = {"word": "set", "sentence1": "A set .", "sentence2": "They set .", "idx": 3, "label": False, "start1": 2}
WSC = {
    "text": "Mark told Pete lies about himself .", "idx": 0, "label": True,
    "target": {"span1_index": 0, "span1_text": "Mark", "span2_index": 5, "span2_text": "himself"},
}  # fmt: skip
SNLI = {"sentence1": "It rains .", "sentence2": "It is wet .", "gold_label": "entailment", "pairID": "4e"}
MNLI = SNLI | {"genre": "slate"}
MARC = {"review_id": "de_1", "stars": "4", "review_body": "Gut.", "review_title": "Ja", "product_category": "home"}
JSONL = {"id": "7", "tokens": ["wie", "warm"], "tags": ["O", "B-x"], "label": "weather"}
PAIR = Example("4e", "en", ("It", "rains", "."), "entailment", text_b="It is wet .")


def english(id: str, text: str, label: str, text_b: str | None = None, **facts: str) -> Example:
    return Example(id, "en", tuple(text.split()), label, text_b=text_b, facts=facts or None)


# Reader → its task, file names, rows of a file, and the example of the test split.
GOOD: dict[str, tuple[str, str, tuple[str, ...], Example]] = {
    "jsonl": (
        "intent_slots", "de.{split}.jsonl", (json.dumps(JSONL),),
        Example("7", "de", ("wie", "warm"), "weather", ("O", "B-x")),
    ),
    "mtop": (
        "intent_slots", "en/{split}.txt", (mtop_line(id="7"),),
        Example("7", "en", ("call", "mum", "now"), "CREATE_CALL", ("O", "B-CONTACT", "O"), facts={"domain": "calling"}),
    ),
    "multiatis": (
        "intent_slots", "{split}_DE.tsv",
        ("id\tutterance\tslot_labels\tintent", "7\tnach Boston\tO B-toloc.city_name\tatis_flight"),
        Example("test-7", "de", ("nach", "Boston"), "atis_flight", ("O", "B-toloc.city_name")),
    ),
    "xsid": (
        "intent_slots", "de-st.{split}.conll", XSID,
        Example("test-7", "de-st", ("Regnts", "heinte", "?"), "weather/find",
                ("B-weather/attribute", "B-datetime", "O"), "Regnts heinte?"),
    ),
    "sib200": (
        "sequence_class", "eng_Latn/{split}.tsv",
        ("index_id\tcategory\ttext", '7\tsports\t"He said  ""no"" twice."'),
        Example("7", "eng_Latn", ("He", "said", '"no"', "twice."), "sports", None, 'He said  "no" twice.'),
    ),
    "taxi1500": (
        "sequence_class", "eng_data/eng_{split}.tsv", ('7\tFaith\tHe said , "no .',),
        Example("7", "eng", ("He", "said", ",", '"no', "."), "Faith"),
    ),
    "masakhaner": (
        "token_tags", "hau/{split}.txt", ("jihar B-LOC", "Benue I-LOC", "ƙasa O", ""),
        Example("test-1", "hau", ("jihar", "Benue", "ƙasa"), None, ("B-LOC", "I-LOC", "O")),
    ),
    "uner": (
        "token_tags", "UNER_English-EWT/en_ewt-ud-{split}.iob2", UNER,
        Example("a", "en_ewt", ("Bush", "'s", "al", "Qaeda"), None, ("B-PER", "O", "O", "O"), "Bush's al-Qaeda"),
    ),
    "conllu": (
        "token_tags", "de-{split}.conllu", CONLLU,
        Example("a", "de", ("Zu", "dem", "See", "!"), None, ("ADP", "DET", "NOUN", "PUNCT"), "Zum See!"),
    ),
    "panx": (
        "token_tags", "de/{split}", ("de:Erzstift\tB-LOC", "de:Mainz\tI-LOC", "de::\tO", ""),
        Example("test-1", "de", ("Erzstift", "Mainz", ":"), None, ("B-LOC", "I-LOC", "O")),
    ),
    "conll": (
        "token_tags", "de/{split}.conll", ("1\ta\tO", "1\tb\tB-LOC", ""),
        Example("test-1", "de", ("a", "b"), None, ("O", "B-LOC")),
    ),
    "pawsx": (
        "sequence_class", "de/{split}.tsv", ("id\tsentence1\tsentence2\tlabel", "1\tA  b .\tB a .\t1"),
        Example("1", "de", ("A", "b", "."), "1", None, "A  b .", "B a ."),
    ),
    "mldoc": (
        "sequence_class", "german.{split}", ("MCAT\tb'K\\xc3\\xb6ln'",), Example("test-1", "de", ("Köln",), "MCAT"),
    ),
    "marc": (
        "sequence_class", "{split}/dataset_de_{split}.json", (json.dumps(MARC | {"language": "de"}),),
        Example("de_1", "de", ("Gut.",), "4", text_b="Ja . home"),
    ),
    "boolq": ("sequence_class", "{split}.jsonl", (json.dumps(BOOLQ),), english("7", "It is so.", "true", "is it so")),
    "wic": (
        "sequence_class", "{split}.jsonl", (json.dumps(WIC),),
        english("3", "A set .", "false", "They set . set", word="set", sentence1="A set .", sentence2="They set ."),
    ),
    "wsc": (
        "sequence_class", "{split}.jsonl", (json.dumps(WSC),),
        english("0", "Mark told Pete lies about himself .", "true", "Mark himself", noun="Mark", pronoun="himself"),
    ),
    "mnli": (
        "sequence_class", "multinli_1.0_{split}.jsonl", (json.dumps(MNLI),), replace(PAIR, facts={"genre": "slate"}),
    ),
    "snli": ("sequence_class", "snli_1.0_{split}.jsonl", (json.dumps(SNLI),), PAIR),
    "yelp": (
        "sequence_class", "{split}.csv", (r'"2","So ""so"".\n\nNot again."',),
        english("test-1", 'So "so". Not again.', "2"),
    ),
    "amazon": (
        "sequence_class", "{split}.csv", ('"5","Good","It is, good."',), english("test-1", "Good It is, good.", "5"),
    ),
    "agnews": (
        "sequence_class", "{split}.csv", ('"4","Chips","New chips."',), english("test-1", "New chips.", "Sci/Tech"),
    ),
    "dbpedia": ("sequence_class", "{split}.csv", ('14,"A","A book."',), english("test-1", "A book.", "WrittenWork")),
    "yahoo": ("sequence_class", "{split}.csv", ('"6","Why","","So."',), english("test-1", "Why So.", "Sports")),
}  # fmt: skip
# Readers whose languages must have files of every split.
WHOLE = ("jsonl", "mtop", "masakhaner", "conllu", "panx", "conll", "pawsx", "mldoc", "marc")


def lay(root: Path, reader: str, *more: str, splits: tuple[str, ...] = SPLITS) -> list[Path]:
    """Write a reader's good rows, and more behind them, for splits of its language."""
    _, name, rows, _ = GOOD[reader]
    called = [CALLED.get(reader, {}).get(split, split) for split in splits]
    paths = [root / name.format(split=split) for split in called if split is not None]
    for path in paths:
        write(path, *rows, *more)
    return paths


@pytest.mark.parametrize("reader", GOOD)
def test_a_release_is_read(tmp_path: Path, config_of: Config, reader: str) -> None:
    expected, absent = GOOD[reader][3], CALLED.get(reader, {})
    lay(tmp_path, reader)
    splits, notes = read(config_of(reader))
    assert {key: len(examples) for key, examples in splits.items()} == {
        (expected.language, split): int(absent.get(split, split) is not None) for split in SPLITS
    }
    [example] = splits[expected.language, "test"]
    assert (example, example.facts) == (expected, expected.facts)
    counts = {f"en_ewt/{split}": 1 for split in SPLITS}
    assert notes == ({"other_entities": counts, "typed_outside": counts} if reader == "uner" else {})
    load_dataset(config_of(reader))


@pytest.mark.parametrize("reader", [reader for reader in GOOD if None not in CALLED.get(reader, {}).values()])
def test_a_language_may_lack_train_and_dev_but_not_test(tmp_path: Path, config_of: Config, reader: str) -> None:
    language = GOOD[reader][3].language
    [path] = lay(tmp_path, reader, splits=("test",))
    if reader in WHOLE:
        with pytest.raises(UsageError, match=f"'{language}' has no train split"):
            read(config_of(reader))
        return
    assert {key: len(examples) for key, examples in read(config_of(reader))[0].items()} == {
        (language, "train"): 0, (language, "dev"): 0, (language, "test"): 1,
    }  # fmt: skip
    path.rename(path.with_name(path.name.replace("test", "train")))
    with pytest.raises(UsageError, match=f"'{language}' has no test split; looked for "):
        read(config_of(reader))


def changed(row: dict[str, Any], *gone: str, **changes: Any) -> str:
    """Return a good row as a line with another id and other changes."""
    name = next(key for key in ("id", "idx", "pairID", "review_id") if key in row)
    return json.dumps({key: value for key, value in {**row, name: "8", **changes}.items() if key not in gone})


def spans(*values: object) -> str:
    """Return MTOP's column of tokens, of one letter each."""
    return json.dumps({"tokens": ["a"] * len(values), "tokenSpans": values})


def mtop(**columns: Any) -> str:
    return mtop_line(id="8", **columns)


# Reader, a line after its good ones, and a part of the error message.
BAD = [
    ("jsonl", changed(JSONL, "tokens", tokns=[]), "'tokns'; did you mean 'tokens'?"),
    ("jsonl", changed(JSONL, "tags", Tags=["O"]), "'Tags'; did you mean 'tags'?"),
    ("jsonl", changed(JSONL, id=" "), "'id'"),
    ("jsonl", changed(JSONL, id=1.5), "'id'"),
    ("jsonl", changed(JSONL, "label"), "dataset.task=intent_slots"),
    ("jsonl", changed(JSONL, label=True), "'label'"),
    ("jsonl", changed(JSONL, label=""), "'label'"),
    ("jsonl", changed(JSONL, "tokens"), "neither 'tokens' nor 'text'"),
    ("jsonl", changed(JSONL, tokens="wie warm"), "'tokens' must be a list"),
    ("jsonl", changed(JSONL, tokens=["wie", 1]), "'tokens'"),
    ("jsonl", changed(JSONL, tokens=[]), "'tokens'"),
    ("jsonl", changed(JSONL, tokens=["wie", " "]), "'tokens'"),
    ("jsonl", changed(JSONL, tags=["O"]), "1 tags for 2 tokens"),
    ("jsonl", changed(JSONL, tags=[0, 1]), "'tags'"),
    *(("jsonl", changed(JSONL, tags=["O", tag]), f"tag '{tag}'") for tag in ("x", "B-", "X-x")),
    ("jsonl", changed(JSONL, text=1), "'text'"),
    ("jsonl", changed(JSONL, text_b=""), "'text_b'"),
    ("jsonl", changed(JSONL, facts={"topic": 1}), "'facts'"),
    ("jsonl", changed(JSONL, language="en"), "'en' in the file of 'de'"),
    ("jsonl", changed(JSONL, split="train"), "'train' in the file of 'test'"),
    ("jsonl", '{"id": 1', "not JSON (Expecting ',' delimiter at character 9)"),
    ("jsonl", "[1]", "must be an object"),
    ("jsonl", "[" * 100_000, "JSON"),
    ("jsonl", '{"id": "\udcff"}', "UTF-8 (byte 9"),
    ("jsonl", r'{"id": "8", "tokens": ["a"], "label": "\ud800"}', "surrogate"),
    ("jsonl", '{"id": "8", "tokens": ["a"], "label": "x", "label": "y"}', "'label' is repeated"),
    ("mtop", "hello world", "no intent"),
    ("mtop", mtop(intent=None), "no intent"),
    ("mtop", mtop(intent="IN:"), "intent"),
    ("mtop", "1\tIN:X\tcall", "3 columns instead of 8 (id, intent"),
    ("mtop", "IN:X\tcall", "2 columns instead of 7 (intent"),
    ("mtop", mtop(utterance="call\tmum"), "9 columns instead of 8"),
    ("mtop", mtop(json_tokens='{"tok'), "not JSON"),
    ("mtop", mtop(json_tokens="[1, 2]"), "tokenSpans"),
    ("mtop", mtop(json_tokens='{"tokens": ["a"]}'), "tokenSpans"),
    *(("mtop", mtop(json_tokens=json.dumps({"tokens": tokens, "tokenSpans": []})), "'tokens'")
      for tokens in ([], "a", [" "])),
    ("mtop", mtop(json_tokens='{"tokens": ["a"], "tokenSpans": []}'), "1 tokens but 0 tokenSpans"),
    ("mtop", mtop(json_tokens=spans({"start": 0.0, "length": 1})), "whole numbers"),
    ("mtop", mtop(json_tokens=spans({"start": 2, "length": 1}, {"start": 0, "length": 1})), "tokenSpans"),
    ("mtop", mtop(json_tokens=spans({"start": 0, "length": 0})), "tokenSpans"),
    *(("mtop", mtop(slots=slot), f"slot '{slot}'") for slot in ("5:8:CONTACT", "a:8:SL:CONTACT", "-1:8:SL:CONTACT")),
    ("mtop", mtop(slots="5:99:SL:CONTACT"), "slot 5:99:SL:CONTACT"),
    ("mtop", mtop(slots="8:5:SL:CONTACT"), "slot 8:5:SL:CONTACT"),
    ("mtop", mtop(slots="0:8:SL:A,4:12:SL:B"), "slot 4:12:SL:B overlaps"),
    ("mtop", mtop(slots="4:5:SL:A"), "slot 4:5:SL:A covers no token"),
    ("multiatis", "8\tnach Boston\tO\tatis_flight", "1 tags for 2 tokens"),
    ("multiatis", "8\tnach\tO", "3 tab-separated columns instead of 4: id, utterance"),
    ("multiatis", "8\t \t\tatis_flight", "blank"),
    ("xsid", "1\tJa\tweather/find", "3 tab-separated columns"),
    ("xsid", "2\tJa\tweather/find\tO", "number 2 instead of 1"),
    ("xsid", "1\tJa\ta\tO\n2\tda\ta\tO\n1\tJa\ta\tO", "number 1 instead of 3"),
    ("xsid", "1\tJa\tweather/find\tslot", "tag 'slot'"),
    ("xsid", "1\tJa\ta\tO\n2\tda\tb\tO", "intent 'b' after 'a'"),
    ("sib200", "8\tsport\tHe ran.", "'sport'; use entertainment, geography"),
    ("sib200", '8\tsports\t"He ran.', "quotes"),
    ("sib200", "8\tsports\t ", "text is blank"),
    ("taxi1500", "8\tfaith\tHe ran.", "'faith'; use Description, Faith"),
    ("masakhaner", "Kano", "separated by a space"),
    ("uner", "1\tBush", "2 tab-separated columns"),
    ("uner", "one\tBush\tO", "'one'"),
    ("uner", "1\t \tO", "word is blank"),
    ("conllu", "# id = b\n1\tJa\t_\tINTJ", "4 tab-separated columns instead of 10"),
    ("conllu", word("eins", "Ja", "INTJ"), "'eins'"),
    ("conllu", word("1", " ", "INTJ"), "word is blank"),
    ("conllu", word("1", "Ja", "_"), "'Ja' has no UPOS tag"),
    ("conllu", word("1", "\udcff", "X"), "UTF-8 (byte 3"),
    ("conllu", word("0", "Ja", "X"), "word 0 after word 0"),
    ("panx", "de:b\tO\nMainz", "separated by a tab"),
    ("panx", "\tO", "word is blank"),
    ("panx", "en:Mainz\tO", "'en:Mainz' begins with 'en:' in a file of 'de'"),
    ("panx", "Mainz\tO", "'Mainz' has no language prefix"),
    ("panx", "de:Mainz\tLOC", "tag 'LOC'"),
    ("panx", "de:Mainz\t", "set dataset.tags_are=words"),
    ("conll", "Mainz", "1 column; dataset.word_column=2"),
    ("conll", "1\tMainz", "2 columns; dataset.tag_column=3"),
    ("conll", "# id = 7\n1\tMainz\t\t", "2 columns; dataset.tag_column=3"),
    ("conll", "1\tMainz\tB-LOC\tx", "4 columns where most lines of the file have 3"),
    ("conll", "1\ta\tO\n# comment after a word\tx", "2 columns; dataset.tag_column=3"),
    ("conll", "1\tMainz\tLOC", "tag 'LOC'"),
    ("pawsx", "3\tA\tB\t2", "'2'; use 0, 1"),
    ("pawsx", "3\tA\tB\t1\r4\tA\tB\t1", "carriage return"),
    ("mldoc", "CCAT", "separated by a tab"),
    ("mldoc", "XCAT\ta", "'XCAT'; use CCAT"),
    *(("mldoc", f"CCAT\tb'{text}", "bytes") for text in ("\\x", "'" + " + 1" * 20_000, "'" + "-" * 20_000 + "1")),
    ("marc", changed(MARC, stars=6), "'6'"),
    ("marc", changed(MARC, review_body=None), "'review_body'"),
    ("boolq", changed(BOOLQ, label="yes"), "'label' must be true or false"),
    ("boolq", changed(BOOLQ, passage=" "), "'passage'"),
    ("boolq", changed(BOOLQ, idx=" "), "id is blank"),
    ("boolq", "[1]", "must be an object"),
    ("wic", changed(WIC, word=None), "'word'"),
    ("wsc", changed(WSC, target="Mark"), "'target' must be an object"),
    ("wsc", changed(WSC, target={}), "'span1_text'"),
    ("mnli", changed(MNLI, gold_label="yes"), "'yes'; use contradiction"),
    ("mnli", changed(MNLI, genre=3), "'genre'"),
    ("yelp", '"6","x"', "from 1 to 5, not '6'"),
    ("amazon", '"1","x"', "2 columns instead of 3"),
    ("agnews", '"1","x","', "CSV"),
    ("agnews", f'"{"9" * 5000}","x","x"', "from 1 to 4"),
    ("dbpedia", '"x","a","b"', "from 1 to 14, not 'x'"),
    ("yahoo", '"1","","",""', "text is blank"),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "line", "reason"), BAD)
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, config_of: Config, reader: str, line: str, reason: str) -> None:
    (_, _, rows, expected), lines = GOOD[reader], line.split("\n")
    lay(tmp_path, reader)
    [path] = lay(tmp_path, reader, *lines, splits=("test",))
    with pytest.raises(UsageError) as error:
        read(config_of(reader))
    message = str(error.value)
    assert message.startswith(f"{path}:{len(rows) + len(lines)}: ")
    assert (reason in message, "\n" in message) == (True, False), message
    splits, notes = read(config_of(reader, on_bad_line=OnBadLine.skip))
    assert splits[expected.language, "test"] == (expected,)
    assert notes["skipped"] == {f"{expected.language}/test": 1}


@pytest.mark.parametrize(("reader", "name"), [("xsid", "id"), ("uner", "sent_id"), ("conllu", "sent_id")])
def test_a_block_of_comments_is_skipped_and_counted_if_it_names_a_sentence(
    tmp_path: Path, config_of: Config, reader: str, name: str
) -> None:
    lay(tmp_path, reader, "# global.columns = ID FORM", "", f"# {name} = 8", "# note = x", "", "# end of file")
    splits, notes = read(config_of(reader))
    expected = GOOD[reader][3]
    assert splits[expected.language, "test"] == (expected,)
    assert notes["no_words"] == {f"{expected.language}/{split}": 1 for split in SPLITS}


def test_xsid_names_translated_training_sentences_by_their_line(tmp_path: Path, config_of: Config) -> None:
    lay(tmp_path / "xSID-0.6", "xsid", splits=("dev", "test"))
    translated = [row.replace(" = ", ": ") for row in XSID]
    write(tmp_path / "de-st.projectedTrain.conll.fixed", *translated, *translated)
    train = read(config_of("xsid"))[0]["de-st", "train"]
    assert [(e.id, e.text) for e in train] == [("train-1", "Regnts heinte?"), ("train-9", "Regnts heinte?")]


def test_taxi1500_as_the_authors_scripts_write_it(tmp_path: Path, config_of: Config) -> None:
    for split in SPLITS:
        write(tmp_path / split / "aai.tsv", "id\tlabel\tverse", "66018007\tSin\tMwinkeni masulumizo")
    [example] = read(config_of("taxi1500"))[0]["aai", "dev"]
    assert (example.id, example.label, example.tokens) == ("66018007", "Sin", ("Mwinkeni", "masulumizo"))


def test_wikiann_has_languages_with_hyphens(tmp_path: Path, config_of: Config) -> None:
    for split in SPLITS:
        write(tmp_path / "zh-min-nan" / split, "zh-min-nan:Tâi-oân\tB-LOC", "")
    [example] = read(config_of("panx"))[0]["zh-min-nan", "train"]
    assert (example.tokens, example.tags) == (("Tâi-oân",), ("B-LOC",))
