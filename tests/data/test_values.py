"""Values that all readers check in one place: tags of spans, missing labels, IDs, names of columns, choice of files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from xclrun.config.schema import DatasetConfig, OnBadLine, TagsAre
from xclrun.core.errors import UsageError
from xclrun.data.example import Example
from xclrun.data.readers import read
from xclrun.data.readers.values import missing_labels, similar, unused_id

Config = Callable[..., DatasetConfig]
SPLITS = ("train", "dev", "test")


def each(count: int, language: str = "de") -> dict[str, int]:
    return {f"{language}/{split}": count for split in SPLITS}


def write(folder: Path, name: str, content: str) -> None:
    for split in SPLITS:
        path = folder / name.format(split=split)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def rows(*values: dict[str, Any]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def tagged(reader: str, words: Sequence[str], tags: Sequence[str]) -> tuple[str, str]:
    """Return the name of a reader's files and a sentence in its format."""
    pairs = list(zip(words, tags, strict=True))
    if reader == "jsonl":
        return "de.{split}.jsonl", rows({"tokens": [*words], "tags": [*tags]})
    if reader == "uner":
        lines = (f"{i}\t{word}\t{tag}" for i, (word, tag) in enumerate(pairs, 1))
        return "de-ud-{split}.iob2", "\n".join(lines)
    name = {"masakhaner": "de/{split}.txt", "panx": "de/{split}", "conll": "de.{split}.conll"}[reader]
    return name, "\n".join(f"{word}{' ' if reader == 'masakhaner' else chr(9)}{tag}" for word, tag in pairs)


@pytest.mark.parametrize("reader", ["jsonl", "uner", "masakhaner", "panx", "conll"])
@pytest.mark.parametrize(
    ("tags", "expected", "note"),
    [
        (("B-O", "I-O", "B-LOC"), ("O", "O", "B-LOC"), {"typed_outside": each(2)}),
        (("B-PER", "E-PER", "S-LOC"), ("B-PER", "I-PER", "B-LOC"), {"bioes": each(2)}),
        (("B-PER", "L-PER", "U-LOC"), ("B-PER", "I-PER", "B-LOC"), {"bioes": each(2)}),
        (("B-PER", "M-PER", "E-PER"), ("B-PER", "I-PER", "I-PER"), {"bioes": each(2)}),
    ],
)
def test_every_reader_converts_tags_of_other_schemes_to_bio(
    config: Config, tmp_path: Path, reader: str, tags: Sequence[str], expected: Sequence[str], note: dict[str, Any]
) -> None:
    write(tmp_path, *tagged(reader, ("a", "b", "c"), tags))
    splits, notes = read(config(reader, task="token_tags"))
    assert splits["de", "train"][0].tags == expected
    assert notes == note


@pytest.mark.parametrize(
    ("tag", "cause"),
    [
        ("LOC", "look like IO"),
        ("LOC-B", "B-LOC"),
        ("0", "the letter O"),
        ("b-LOC", "B-LOC"),
        ("B_LOC", "B-LOC"),
        ("-100", "no tag"),
    ],
)
def test_tags_that_cannot_be_converted_are_explained(config: Config, tmp_path: Path, tag: str, cause: str) -> None:
    write(tmp_path, *tagged("conll", ("a", "b"), (tag, "O")))
    with pytest.raises(UsageError, match=rf"tag '{tag}'.*{cause}"):
        read(config("conll", task="token_tags"))


def test_words_whose_tag_means_no_tag_are_counted(config: Config, tmp_path: Path) -> None:
    write(tmp_path, *tagged("conll", ("a", "b", "c"), ("NOUN", "_", "-1")))
    splits, notes = read(config("conll", task="token_tags", tags_are=TagsAre.words))
    assert splits["de", "train"][0].tags == ("NOUN", "_", "-1")
    assert notes == {"missing_tags": each(2)}


@pytest.mark.parametrize(
    ("labels", "split", "missing"),
    [
        ({"a", "b", "-"}, {"a", "-"}, {"-"}),
        ({"+", "-"}, {"+", "-"}, set()),
        ({"0", "1", "-1"}, {"0", "1", "-1"}, set()),  # polarity
        ({"0", "1", "-1"}, {"-1"}, {"-1"}),  # a test split without labels
        ({"0", "1", "2", "-1"}, {"0", "-1"}, {"-1"}),
        ({"-1"}, {"-1"}, {"-1"}),
        ({"a", "b", "nan"}, {"a", "nan"}, {"nan"}),
        ({"a", "b"}, {"a"}, set()),
    ],
)
def test_minus_signs_are_missing_labels_unless_they_are_classes(
    labels: set[str], split: set[str], missing: set[str]
) -> None:
    assert missing_labels(labels, split) == missing


def test_rows_without_a_label_are_skipped_and_counted_in_every_reader(config: Config, tmp_path: Path) -> None:
    good = {"text": "a", "label": 2}
    write(tmp_path, "de.{split}.jsonl", rows(good, *({"text": "b", "label": x} for x in (-1, None, float("nan")))))
    splits, notes = read(config("jsonl", task="sequence_class"))
    assert [e.label for e in splits["de", "dev"]] == ["2"]
    assert notes == {"unlabeled": each(3)}
    write(tmp_path, "de/{split}.tsv", "id\ta\tb\tlabel\n1\tA\tB\t-1\n2\tA\tB\t0\n")
    (tmp_path / "de" / "dev.tsv").rename(tmp_path / "de" / "dev_2k.tsv")
    (tmp_path / "de" / "test.tsv").rename(tmp_path / "de" / "test_2k.tsv")
    splits, notes = read(config("pawsx", task="sequence_class"))
    assert [e.id for e in splits["de", "test"]] == ["2"]
    assert notes == {"unlabeled": each(1)}


def test_a_split_without_any_label_is_refused(config: Config, tmp_path: Path) -> None:
    write(tmp_path, "de.{split}.jsonl", rows({"text": "a", "label": 0}, {"text": "b", "label": 1}))
    (tmp_path / "de.test.jsonl").write_text(rows({"text": "a", "label": -1}))
    with pytest.raises(UsageError, match=r"de/test: .*no label"):
        read(config("jsonl", task="sequence_class"))


@pytest.mark.parametrize(
    ("reader", "name", "header", "line"),
    [
        ("conll", "de.{split}.conll", "word\ttag", "a\tO\n"),
        ("masakhaner", "de/{split}.txt", "token label", "a O\n"),
        ("panx", "de/{split}", "word\tner_tag\n", "a\tO\n"),
        ("agnews", "{split}.csv", "Class Index,Title,Description", "1,A,B\n"),
    ],
)
def test_names_of_columns_are_no_sentence(
    config: Config, tmp_path: Path, reader: str, name: str, header: str, line: str
) -> None:
    write(tmp_path, name, f"{header}\n{line}")
    task = "sequence_class" if reader == "agnews" else "token_tags"
    splits, notes = read(config(reader, task=task))
    assert all(len(examples) <= 1 for examples in splits.values())
    assert set(notes["header_lines"].values()) == {1}


def test_ids_are_names_with_a_suffix_where_they_repeat() -> None:
    seen: dict[str, int] = {}
    assert [unused_id(id, seen) for id in ("a", "a", "a~2", "a", "b~2", "b", "b")] == [
        "a", "a~2", "a~2~2", "a~3", "b~2", "b", "b~3",
    ]  # fmt: skip


def test_rows_without_an_id_are_numbered_by_sentence_so_that_translations_share_it(
    config: Config, tmp_path: Path
) -> None:
    row = {"text": "a", "label": "x"}
    write(tmp_path, "de.{split}.jsonl", rows(row, row))
    write(tmp_path, "en.{split}.jsonl", f"\n{rows(row)}\n\n{rows(row)}")
    splits, _ = read(config("jsonl", task="sequence_class"))
    names = [[e.id for e in splits[language, "test"]] for language in ("de", "en")]
    assert names == [["test-1", "test-2"]] * 2
    # A bad row is a sentence, too.
    (tmp_path / "en.test.jsonl").write_text("{\n" + rows(row))
    splits, _ = read(config("jsonl", task="sequence_class", on_bad_line=OnBadLine.skip))
    assert [e.id for e in splits["en", "test"]] == ["test-2"]


def test_other_columns_are_ignored_and_counted_but_misspelled_columns_are_errors(
    config: Config, tmp_path: Path
) -> None:
    row = {"text": "a", "label": "x", "label_text": "X", "source": "web"}
    write(tmp_path, "de.{split}.jsonl", rows(row, row))
    splits, notes = read(config("jsonl", task="sequence_class"))
    assert splits["de", "train"][0] == Example("train-1", "de", ("a",), "x")
    assert notes == {"ignored_columns": each(2)}
    write(tmp_path, "de.{split}.jsonl", rows({"text": "a", "labl": "x"}))
    with pytest.raises(UsageError, match=r"'labl'; did you mean 'label'\?"):
        read(config("jsonl", task="sequence_class"))
    assert [similar(key, ["text_b", "id"]) for key in ("textb", "Text_B", "ID", "it", "note")] == [
        "text_b", "text_b", "id", None, None,
    ]  # fmt: skip


def test_the_first_file_of_the_layout_that_is_not_empty_is_read(config: Config, tmp_path: Path) -> None:
    write(tmp_path, "de.{split}.jsonl", rows({"text": "a", "label": "x"}))
    write(tmp_path, "de_{split}.jsonl", rows({"text": "b", "label": "x"}))
    splits, notes = read(config("jsonl", task="sequence_class"))
    assert splits["de", "train"][0].tokens == ("a",)
    assert notes == {"ignored_files": each(1)}
    write(tmp_path, "de.{split}.jsonl", "")
    splits, notes = read(config("jsonl", task="sequence_class"))
    assert (splits["de", "train"][0].tokens, notes) == (("b",), {})


def test_a_language_with_dev_alone_can_be_left_out_as_the_error_says(config: Config, tmp_path: Path) -> None:
    write(tmp_path, "de.{split}.jsonl", rows({"text": "a", "label": "x"}))
    for name in ("yo.dev", "fr.test"):
        (tmp_path / f"{name}.jsonl").write_text(rows({"text": "a", "label": "x"}))
    with pytest.raises(
        UsageError, match=r"'yo' has no test split; .*; to leave it out, set dataset\.languages=\[de,fr\]$"
    ):
        read(config("jsonl", task="sequence_class"))
    assert len(read(config("jsonl", task="sequence_class", languages=["de", "fr"]))[0]) == 6


def test_parts_of_a_split_are_joined(config: Config, tmp_path: Path) -> None:
    line = "1\tJa\t_\tINTJ" + "\t_" * 6 + "\n"
    write(tmp_path, "de_gsd-ud-{split}.conllu", line)
    (tmp_path / "de_gsd-ud-train.conllu").unlink()
    for part in ("a-a", "b"):
        (tmp_path / f"de_gsd-ud-train-{part}.conllu").write_text(line)
    splits, _ = read(config("conllu", task="token_tags", tags_are=TagsAre.words))
    assert [e.id for e in splits["de", "train"]] == ["train-1", "train-2"]


def test_several_treebanks_of_a_language_have_keys_of_their_own(config: Config, tmp_path: Path) -> None:
    line = "1\tJa\t_\tINTJ" + "\t_" * 6 + "\n"
    write(tmp_path, "UD_German-GSD/de_gsd-ud-{split}.conllu", line)
    write(tmp_path, "en_ewt-ud-{split}.conllu", line)
    write(tmp_path, "en-{split}.conllu", line * 2)
    (tmp_path / "de_pud-ud-test.conllu").write_text(line)
    cfg = config("conllu", task="token_tags", tags_are=TagsAre.words)
    splits, notes = read(cfg)
    assert {key: len(examples) for key, examples in splits.items() if key[0] != "en"} == {
        ("de_gsd", "train"): 1, ("de_gsd", "dev"): 1, ("de_gsd", "test"): 1,
        ("de_pud", "train"): 0, ("de_pud", "dev"): 0, ("de_pud", "test"): 1,
    }  # fmt: skip
    # A language with one treebank keeps its name, and one file of its split is read.
    assert (len(splits["en", "train"]), notes) == (1, {"ignored_files": each(1, "en")})


def test_hidden_files_are_no_data(config: Config, tmp_path: Path) -> None:
    write(tmp_path, "de.{split}.jsonl", rows({"text": "a", "label": "x"}))
    write(tmp_path, "._de.{split}.jsonl", "\x00")
    write(tmp_path / "__MACOSX", "de.{split}.jsonl", "\x00")
    assert {language for language, _ in read(config("jsonl", task="sequence_class"))[0]} == {"de"}


def test_copies_of_editors_are_no_data(config: Config, tmp_path: Path) -> None:
    write(tmp_path, "german.{split}", "CCAT\ta b\nECAT\tc\n")
    for copy in ("german.{split}~", "german.{split}.bak", "#german.{split}#", ".german.{split}.swp"):
        write(tmp_path, copy, "?")
    splits, notes = read(config("mldoc", task="sequence_class"))
    assert {key: len(examples) for key, examples in splits.items()} == dict.fromkeys((("de", s) for s in SPLITS), 2)
    assert notes == {}


@pytest.mark.parametrize("reader", ["jsonl", "uner", "masakhaner", "panx", "conll"])
def test_the_beginning_of_a_document_is_no_sentence(config: Config, tmp_path: Path, reader: str) -> None:
    name, begin = tagged(reader, ["-DOCSTART-"], ["O"])
    _, sentence = tagged(reader, ["a"], ["B-X"])
    write(tmp_path, name, f"{begin.rstrip()}\n\n{sentence}\n")
    splits, notes = read(config(reader, task="token_tags"))
    assert [[e.tokens for e in examples] for examples in splits.values()] == [[("a",)]] * 3
    assert notes == {}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_named(config: Config, tmp_path: Path, encoding: str) -> None:
    write(tmp_path, "de.{split}.conll", "a\tO\n")
    (tmp_path / "de.test.conll").write_bytes("a\tO\n".encode(encoding))
    with pytest.raises(UsageError, match=r"de\.test\.conll: UTF-16"):
        read(config("conll", task="token_tags"))


def test_control_and_lost_characters_are_counted_in_both_texts(config: Config, tmp_path: Path) -> None:
    write(tmp_path, "de.{split}.jsonl", rows(*({"text": "a", "text_b": f"b{c}", "label": "x"} for c in "\x00\ufffdc")))
    assert read(config("jsonl", task="sequence_class"))[1] == {"control_characters": each(2)}


@pytest.mark.parametrize("blank", ["\n", " \n", "\t\t\t\n"])
def test_lines_of_white_space_are_no_rows(config: Config, tmp_path: Path, blank: str) -> None:
    for split in ("translated_train", "dev_2k", "test_2k"):
        write(tmp_path, f"de/{split}.tsv", f"id\tsentence1\tsentence2\tlabel\n1\ta\tb\t0\n{blank}2\tc\td\t1\n{blank}")
    splits, notes = read(config("pawsx", task="sequence_class"))
    assert ({len(examples) for examples in splits.values()}, notes) == ({2}, {})


def test_ids_and_labels_that_pandas_made_floats_are_integers(config: Config, tmp_path: Path) -> None:
    row = {"text": "a", "label": 0.0}
    write(tmp_path, "de.{split}.jsonl", rows(*({**row, "id": id} for id in (1.0, None, "", float("nan"), 2))))
    splits, _ = read(config("jsonl", task="sequence_class"))
    assert [(e.id, e.label) for e in splits["de", "dev"]] == [
        ("1", "0"), ("dev-2", "0"), ("dev-3", "0"), ("dev-4", "0"), ("2", "0"),
    ]  # fmt: skip


def test_hidden_files_are_no_languages_of_massive(config: Config, tmp_path: Path) -> None:
    row = {"id": 1, "locale": "de-DE", "intent": "x", "utt": "a", "annot_utt": "a"}
    (tmp_path / "de-DE.jsonl").write_text(rows(*({**row, "partition": split} for split in SPLITS)))
    (tmp_path / "._de-DE.jsonl").write_bytes(b"\x00\x05\x16")
    assert {language for language, _ in read(config("massive"))[0]} == {"de-DE"}


def test_the_first_error_says_how_many_sentences_skipping_would_cost(config: Config, tmp_path: Path) -> None:
    row = {"text": "a", "label": "x"}
    write(tmp_path, "de.{split}.jsonl", rows(row, row) + "{\n")
    with pytest.raises(UsageError, match=r"train\.jsonl:3: .*dataset\.on_bad_line=skip would skip 3 of 9 sentences$"):
        read(config("jsonl", task="sequence_class"))


@pytest.mark.parametrize("comment", ["# newdoc", "# newpar", "# note", "#from web", "# newdoc id = a-1"])
@pytest.mark.parametrize("spans", [True, False])
def test_a_comment_as_wide_as_a_word_is_no_word(config: Config, tmp_path: Path, comment: str, spans: bool) -> None:
    tag = "B-X" if spans else "NN"
    write(tmp_path, "de.{split}.conll", f"{comment}\na {tag}\nb {tag}\n\n{comment}\nc {tag}\n")
    are = TagsAre.spans if spans else TagsAre.words
    splits, _ = read(config("conll", task="token_tags", tags_are=are))
    assert [e.tokens for e in splits["de", "dev"]] == [("a", "b"), ("c",)]


@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("comment", ["# newdoc id = a-1", "# newdoc", "# two words"])
def test_the_number_of_columns_makes_no_comment_a_word(
    config: Config, tmp_path: Path, width: int, comment: str
) -> None:
    lines = (" ".join([word, *["_"] * (width - 2), "NN"]) for word in ("a", "b"))
    write(tmp_path, "de.{split}.conll", "\n".join([comment, *lines]))
    splits, _ = read(config("conll", task="token_tags", tags_are=TagsAre.words))
    assert splits["de", "dev"][0].tokens == ("a", "b")


def test_blocks_without_words_are_counted_only_if_they_are_sentences(config: Config, tmp_path: Path) -> None:
    write(tmp_path, "de.{split}.conll", "-DOCSTART- O\n\na B-X\n\n# sent_id = 2\n")
    assert read(config("conll", task="token_tags"))[1] == {"no_words": each(1)}
    write(tmp_path, "de.{split}.conll", "-DOCSTART- O\n\na B-X\n")
    assert read(config("conll", task="token_tags"))[1] == {}


def test_conll_skips_number_ranges_and_empty_nodes_of_numbered_words(config: Config, tmp_path: Path) -> None:
    lines = ["1-2\tzum\t_", "1\tzu\tADP", "2\tdem\tDET", "2.1\tx\tX", "3\tSee\tNOUN"]
    write(tmp_path, "de.{split}.conll", "\n".join(lines))
    cfg = config("conll", task="token_tags", tags_are=TagsAre.words, word_column=2)
    assert read(cfg)[0]["de", "dev"][0].tokens == ("zu", "dem", "See")
    with pytest.raises(UsageError, match=r"dataset\.word_column=1 holds the numbers of words"):
        read(config("conll", task="token_tags", tags_are=TagsAre.words))
    write(tmp_path, "de.{split}.conll", "\n".join(lines + lines))
    with pytest.raises(UsageError, match=r":7: .*blank line missing"):
        read(cfg)


XSID = {
    "misnumbered": "1\tJa\tx\tO\n3\tda\tx\tO",
    "blank_words": "1\tJa\tx\tO\n2\t\tx\tO\n3\tda\tx\tO",
    "intents_differ": "# intent = x\n1\tJa\tx\tO\n2\tda\ty\tO",
    "two_sentences": "# text = Ja da\n1\tNein\ty\tO\n1\tJa\tx\tO\n2\tda\tx\tO",
}


@pytest.mark.parametrize("defect", XSID)
def test_known_defects_of_xsid_have_a_fixed_treatment(config: Config, tmp_path: Path, defect: str) -> None:
    write(tmp_path, "de.{split}.conll", XSID[defect] + "\n")
    (tmp_path / "de.dev.conll").rename(tmp_path / "de.valid.conll")
    splits, notes = read(config("xsid"))
    example = splits["de", "test"][0]
    assert (example.tokens, example.label) == (("Ja", "da"), "x")
    assert notes == {defect: each(1)}


def test_known_defects_of_masakhaner_and_pawsx_have_a_fixed_treatment(config: Config, tmp_path: Path) -> None:
    write(tmp_path, "de/{split}.txt", "Ja O\n O\nda O\n")
    splits, notes = read(config("masakhaner", task="token_tags"))
    assert (splits["de", "dev"][0].tokens, notes) == (("Ja", "da"), {"blank_words": each(1)})
    header = "id\tsentence1\tsentence2\tlabel\n"
    for name in ("train", "dev_2k", "test_2k"):
        (tmp_path / "de" / f"{name}.tsv").write_text(f"{header}1\tA\t\t0\n2\tNS\tB\t1\n3\tA\tB\t0\n")
    splits, notes = read(config("pawsx", task="sequence_class"))
    assert ([e.id for e in splits["de", "test"]], notes) == (["2", "3"], {"blank_texts": each(1)})
    (tmp_path / "de" / "train.tsv").write_text(f"{header}1\tA\t\t0\n")
    with pytest.raises(UsageError, match=r"train\.tsv: no examples; .*train\.tsv:2: the text is blank"):
        read(config("pawsx", task="sequence_class"))
