"""Readers of tagged words: CoNLL-U, PAN-X and CoNLL."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from xclrun.config.schema import DatasetConfig, OnBadLine, TagsAre
from xclrun.core.errors import UsageError
from xclrun.data.example import Example
from xclrun.data.load import load_dataset
from xclrun.data.readers import read

from .test_readers_table import CONLLU, word

Config = Callable[..., DatasetConfig]
SPLITS = ("train", "dev", "test")


GOOD = "\n".join(CONLLU[:-1])


@pytest.fixture
def pos(config: Config) -> Config:
    return partial(config, "conllu", task="token_tags", tags_are=TagsAre.words)


@pytest.fixture
def ner(config: Config) -> Config:
    return partial(config, "panx", task="token_tags")


@pytest.fixture
def columns(config: Config) -> Config:
    return partial(config, "conll", task="token_tags")


def write(folder: Path, name: str, content: str | bytes, language: str = "de") -> None:
    """Write all splits of a language, named by ``name`` with {language} and {split} in it."""
    for split in SPLITS:
        path = folder / name.format(language=language, split=split)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def test_conllu_reads_syntactic_words(tmp_path: Path, pos: Config) -> None:
    write(tmp_path, "{language}-{split}.conllu", f"\ufeff\n\n{GOOD}\r\n\n\n{word('1', 'Ja', 'INTJ')}")
    splits, notes = read(pos())
    first = Example("a", "de", ("Zu", "dem", "See", "!"), None, ("ADP", "DET", "NOUN", "PUNCT"), "Zum See!")
    # The second sentence has no id.
    assert splits["de", "dev"] == (first, Example("dev-2", "de", ("Ja",), None, ("INTJ",)))
    assert notes == {}
    dataset = load_dataset(pos())
    assert dataset.labels == ()
    assert dataset.tags == ("ADP", "DET", "INTJ", "NOUN", "PUNCT")  # no O: tags are no spans
    assert dataset.unseen_labels == {}
    with pytest.raises(UsageError, match=r"train\.conllu:6: tag 'ADP' is not O, .* set dataset.tags_are=words"):
        read(pos(tags_are=TagsAre.spans))


@pytest.mark.parametrize(
    "name",
    ["{language}/{split}.conllu", "{language}_pud-ud-{split}.conllu", "UD_X-PUD/{language}_pud-ud-{split}.conllu"],
)
def test_conllu_layouts(tmp_path: Path, pos: Config, name: str) -> None:
    write(tmp_path, name, GOOD)
    assert set(read(pos())[0]) == {("de", split) for split in SPLITS}


def test_conllu_sentences_with_the_id_of_another(tmp_path: Path, pos: Config) -> None:
    write(tmp_path, "{language}-{split}.conllu", "\n\n".join([GOOD] * 3))
    splits, notes = read(pos())
    assert [e.id for e in splits["de", "test"]] == ["a", "a~2", "a~3"]
    assert notes == {"repeated_ids": dict.fromkeys([f"de/{split}" for split in SPLITS], 2)}


def test_conllu_counts_oddities_and_refuses_missing_blank_lines(tmp_path: Path, pos: Config) -> None:
    gaps = [word("2", "a", "DET"), word("4", "b", "NN"), "", word("1", "c", "X"), word("2", "_", "_")]
    write(tmp_path, "{language}-{split}.conllu", "\n".join(gaps))
    splits, notes = read(pos())
    assert [e.tags for e in splits["de", "test"]] == [("DET", "NN"), ("X", "_")]
    assert {note: counts["de/test"] for note, counts in notes.items()} == {"missing_words": 1, "unknown_upos": 2}
    write(tmp_path, "{language}-{split}.conllu", GOOD + "\n" + word("1", "Ja", "INTJ"))
    with pytest.raises(UsageError, match=r"de-train.conllu:9: word 1 after word 4; is a blank line missing"):
        read(pos())


def test_panx_as_released_and_as_xtreme_has_it(tmp_path: Path, ner: Config) -> None:
    rows = ("Erzstift\tB-LOC", "Mainz\tI-LOC", ":\tO")
    expected = Example("train-1", "de", ("Erzstift", "Mainz", ":"), None, ("B-LOC", "I-LOC", "O"))
    write(tmp_path / "a", "{language}/{split}", "\n".join(f"de:{row}" for row in rows) + "\n\n")
    write(tmp_path / "b", "{split}-{language}.tsv", "\n".join(rows))
    for folder in ("a", "b"):
        assert read(ner(root=str(tmp_path / folder)))[0]["de", "train"] == (expected,)
    assert load_dataset(ner(root=str(tmp_path / "b"))).tags == ("O", "B-LOC", "I-LOC")


@pytest.mark.parametrize("content", ["en:Mainz\tB-LOC\n", "en:a\tO\nen:b\tO\n\nen:c\tO\n"])
def test_panx_rejects_a_file_of_another_language(tmp_path: Path, ner: Config, content: str) -> None:
    write(tmp_path, "{language}/{split}", content)
    with pytest.raises(UsageError, match=rf"^{tmp_path}/de/train:1: 'en:\w+' begins with 'en:' in a file of 'de'"):
        read(ner())
    write(tmp_path, "{language}/{split}", f"de:a\tO\n\n{content}\nde:b\tO\nde:c\tO\nde:d\tO\nde:e\tO\n")
    splits, notes = read(ner(on_bad_line=OnBadLine.skip))
    assert [e.tokens for e in splits["de", "test"]] == [("a",), ("b", "c", "d", "e")]
    assert notes["skipped"]["de/test"] == content.count("\n\n") + 1


@pytest.mark.parametrize(
    ("language", "lines", "words"),
    [
        ("de", ("de:de:Mainz", "de::", "de:12:30", "de:"), ("de:Mainz", ":", "12:30", "de:")),
        ("zh-min-nan", ("zh-min-nan:Tâi-oân", "zh-min-nan:en:x"), ("Tâi-oân", "en:x")),
        ("deu", ("de:Mainz",), ("Mainz",)),
        # Words of XTREME's copy have no prefix, except links to another Wikipedia.
        ("de", ("en:Mainz", "ist", "12:30"), ("en:Mainz", "ist", "12:30")),
    ],
)
def test_panx_strips_only_the_prefix_of_the_file(
    tmp_path: Path, ner: Config, language: str, lines: tuple[str, ...], words: tuple[str, ...]
) -> None:
    write(tmp_path, "{language}/{split}", "".join(f"{line}\tO\n" for line in lines), language)
    assert read(ner())[0][language, "test"][0].tokens == words


def test_tagged_files_have_no_labels(tmp_path: Path, pos: Config, ner: Config) -> None:
    for cfg in (pos(task="sequence_class", tags_are=TagsAre.spans), ner(task="intent_slots")):
        with pytest.raises(UsageError, match=rf"the files of dataset.reader={cfg.reader} contain only tags"):
            read(cfg)


CONLL = """-DOCSTART- -X- -X- O

# sent_id = a
# text = EU's ban
EU NNP B-NP B-ORG
's POS B-NP O
ban   NN I-NP  O

# VB B-VP O
#ban NN B-NP B-MISC
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("tabs", [False, True])
@pytest.mark.parametrize("cut", [0, 1])
def test_conll_reads_columns(tmp_path: Path, columns: Config, end: str, tabs: bool, cut: int) -> None:
    """Columns between tabs or blanks, both line ends, with and without a line end at the file's end."""
    lines = CONLL.splitlines()
    if tabs:
        lines = [line if "=" in line else "\t".join(line.split()) for line in lines]
    text = "\ufeff" + end.join(lines) + ("" if cut else end)
    write(tmp_path, "{language}/{split}.conll", text)
    first, second = read(columns())[0]["de", "test"]
    assert first == Example("a", "de", ("EU", "'s", "ban"), None, ("B-ORG", "O", "O"), "EU's ban")
    # '#' and '#ban' have as many columns as words, so they are not comments.
    assert second == Example("test-2", "de", ("#", "#ban"), None, ("O", "B-MISC"))
    for chosen in ({"tag_column": 2}, {"tag_column": -3}, {"word_column": -4, "tag_column": 2}):
        examples = read(columns(tags_are=TagsAre.words, **chosen))[0]["de", "test"]
        assert [e.tags for e in examples] == [("NNP", "POS", "NN"), ("VB", "NN")]
        assert [e.tokens for e in examples] == [first.tokens, second.tokens]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("{language}.{split}.conll", "New\u00a0York\tB-LOC"),
        ("{language}-{split}.txt", "New\u00a0York B-LOC"),
        ("{language}_{split}.txt", " New\u00a0York  B-LOC \t "),
        ("{language}/{split}.conll", "#a=b\tO\nNew York\tB-LOC"),
        ("{language}.{split}.txt", "# =\tO\n# a = b\tO"),
    ],
)
def test_conll_layouts_and_words_with_blanks_and_signs(tmp_path: Path, columns: Config, name: str, lines: str) -> None:
    write(tmp_path, name, f"# a comment of some words\n{lines}\n\nx\tO\n\ny\tO\n")
    splits = read(columns())[0]
    assert set(splits) == {("de", split) for split in SPLITS}
    first = splits["de", "train"][0]
    assert [*zip(first.tokens, first.tags or (), strict=True)] == [
        tuple(part.strip() for part in line.strip().replace(" B", "\tB").split("\t", 1)) for line in lines.split("\n")
    ]


@pytest.mark.parametrize(
    ("content", "chosen", "reason"),
    [
        ("a O\n", {"word_column": 0}, r"^dataset\.word_column=0: .*from 1"),
        ("a O\n", {"tag_column": 1}, r"^dataset\.word_column=1: .*two different columns"),
        ("a O\n", {"word_column": 2}, r"train\.conll:1: 2 columns; a word and its tag are needed"),
        ("a O\n", {"word_column": -3}, r"train\.conll:1: 2 columns; dataset\.word_column=-3"),
        ("a x O\nb x O\nc O\n", {}, r"train\.conll:3: 2 columns where most lines of the file have 3"),
        ("a\n", {}, r"train\.conll:1: 1 column; a word and its tag are needed"),
        ("-DOCSTART- O\n", {}, r"train\.conll: no examples"),
        ("", {}, r"train\.conll: no examples"),
        ("\x00\x00\n", {}, r"train\.conll:1: 1 column"),
        ("a O\rb O\r", {}, r"train\.conll:1: .*carriage return"),
    ],
)
def test_conll_refuses_bad_columns(
    tmp_path: Path, columns: Config, content: str, chosen: dict[str, int], reason: str
) -> None:
    write(tmp_path, "{language}/{split}.conll", content)
    with pytest.raises(UsageError, match=reason):
        read(columns(**chosen))


def test_a_nul_in_a_word_and_a_tag_with_a_zero_width_space_are_counted(tmp_path: Path, columns: Config) -> None:
    write(
        tmp_path, "{language}/{split}.conll", "a\x00 O\nb O\n\n\ufeffz O\n\nc B-x\u200b\nd I-x\u200b\n\ne\u200cf B-x\n"
    )
    assert read(columns())[1] == {
        "control_characters": dict.fromkeys([f"de/{split}" for split in SPLITS], 2),
        "odd_labels": dict.fromkeys([f"de/{split}" for split in SPLITS], 1),
    }


def test_columns_are_settings_of_conll_alone(xclrun: Callable[..., tuple[int, str]]) -> None:
    code, output = xclrun("plan", "dataset.tag_column=2")
    assert (code, "needs dataset.reader=conll" in output) == (2, True)


@pytest.mark.full
@pytest.mark.shared
def test_pud(shared_data: Path, pos: Config) -> None:
    dataset = load_dataset(pos(root=str(shared_data / "pud")))
    assert len(dataset.languages) == 8
    assert {split: set(dataset.sizes(split).values()) for split in SPLITS} == {
        "train": {600}, "dev": {200}, "test": {200}
    }  # fmt: skip
    assert len(dataset.tags) == 17
    assert dataset.split("en", "dev")[0].tags[:3] == ("ADP", "DET", "NOUN")  # type: ignore[index]


@pytest.mark.full
@pytest.mark.shared
def test_conll_reads_of_pud_what_conllu_reads(shared_data: Path, pos: Config, columns: Config, tmp_path: Path) -> None:
    """The same treebanks in columns, without the lines of multi-word tokens and empty nodes."""
    expected = read(pos(root=str(shared_data / "pud")))[0]
    for path in (shared_data / "pud").glob("*.conllu"):
        lines = path.read_text(encoding="utf-8").split("\n")
        rows = [line for line in lines if not line or line.startswith("#") or line.split("\t")[0].isdecimal()]
        (tmp_path / f"{path.stem}.conll").write_text("\n".join(rows), encoding="utf-8")
    splits = read(columns(tags_are=TagsAre.words, word_column=2, tag_column=4))[0]
    assert len(splits) == 24
    assert splits == expected
