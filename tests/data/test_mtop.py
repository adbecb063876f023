"""The reader of MTOP: lines with known answers, spans in any unit, every kind of bad line, and the real files."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xclrun.config.schema import DatasetConfig
from xclrun.core.task import INTENT_SLOTS
from xclrun.data.example import SPLITS, Example
from xclrun.data.readers import mtop, read
from xclrun.data.readers.collect import Place

from .conftest import mtop_line

Config = Callable[..., DatasetConfig]
Root = Callable[..., Path]


def parse(line: str) -> Example:
    return mtop.parse(line, Place("en", "test", 17, INTENT_SLOTS))


def parse_and_count(line: str) -> tuple[Example, int]:
    """Return the example, and how many of its slots begin or end inside a word."""
    place = Place("en", "test", 17, INTENT_SLOTS)
    return mtop.parse(line, place), place.odd["slots_inside_words"]


def test_a_line_with_an_id() -> None:
    line = mtop_line("remind me on  Monday", "0:6:SL:TODO,10:20:SL:DATE_TIME", "IN:CREATE_REMINDER", "42")
    spans = [{"start": s, "length": n} for s, n in ((0, 6), (7, 2), (10, 2), (14, 6))]
    tokens = {"tokens": ["remind", "me", "on", "Monday"], "tokenSpans": spans}
    line = "\t".join([*line.split("\t")[:-1], json.dumps(tokens)])
    assert parse(line) == Example(
        id="42",
        language="en",
        tokens=("remind", "me", "on", "Monday"),
        label="CREATE_REMINDER",
        tags=("B-TODO", "O", "B-DATE_TIME", "I-DATE_TIME"),
        text="remind me on  Monday",
    )


def test_a_line_without_an_id_is_named_by_its_number() -> None:
    with_id, without = parse(mtop_line(id="9")), parse(mtop_line(id=None))
    assert (with_id.id, without.id) == ("9", "test-17")
    assert (without.tokens, without.tags, without.label) == (with_id.tokens, with_id.tags, with_id.label)
    assert with_id.text is None, "words joined by spaces need no text"
    assert parse(mtop_line(id="")) == without


def test_adjacent_slots_of_one_name_stay_two_spans() -> None:
    assert parse(mtop_line("a b c", "0:1:SL:X,2:5:SL:X")).tags == ("B-X", "B-X", "I-X")


@pytest.mark.parametrize("slots", ["", "4:5:SL:Y,0:1:SL:X"])
def test_slots_may_be_absent_or_in_any_order(slots: str) -> None:
    assert parse(mtop_line("a b c", slots)).tags == (("B-X", "O", "B-Y") if slots else ("O", "O", "O"))


WORDS = st.lists(st.text("aé์ิ한🎵‍ह", min_size=1, max_size=4), min_size=1, max_size=8)


@given(words=WORDS, data=st.data())
def test_tags_are_right_in_any_unit_of_offsets(words: list[str], data: st.DataObject) -> None:
    """Spans of whole tokens come back as they were, counted in code points, UTF-16 units or bytes."""
    bounds = sorted(data.draw(st.sets(st.integers(0, len(words)))))
    slots = list(pairwise(bounds))
    expected = ["O"] * len(words)
    for first, last in slots:
        expected[first:last] = ["B-S", *["I-S"] * (last - first - 1)]
    utterance = " ".join(words)
    for unit in ("utf-32-le", "utf-16-le", "utf-8"):
        size = len(" ".encode(unit))
        starts = [len(" ".join([*words[:i], ""]).encode(unit)) // size for i in range(len(words))]
        lengths = [len(word.encode(unit)) // size for word in words]
        spans = [{"start": s, "length": n} for s, n in zip(starts, lengths, strict=True)]
        column = ",".join(f"{starts[first]}:{starts[last - 1] + lengths[last - 1]}:SL:S" for first, last in slots)
        tokens = json.dumps({"tokens": words, "tokenSpans": spans})
        example, inside = parse_and_count(mtop_line(utterance, column, json_tokens=tokens))
        assert (list(example.tags or ()), inside) == (expected, 0)


@pytest.mark.parametrize(
    ("slots", "tags", "inside"),
    [
        ("2:9:SL:X", ("B-X", "I-X", "O"), 1),  # begins inside "abcd"
        ("0:6:SL:X", ("B-X", "I-X", "O"), 1),  # ends inside "efgh"
        ("1:2:SL:X", ("B-X", "O", "O"), 1),
        ("4:9:SL:X", ("O", "B-X", "O"), 0),  # begins at the space before a token
        ("0:6:SL:X,6:12:SL:Y", ("B-X", "I-X", "B-Y"), 2),  # both reach "efgh": the earlier one has it
        ("0:9:SL:X,10:12:SL:Y", ("B-X", "I-X", "B-Y"), 0),
    ],
)
def test_a_slot_covers_every_token_that_it_overlaps(slots: str, tags: tuple[str, ...], inside: int) -> None:
    example, count = parse_and_count(mtop_line("abcd efgh ij", slots))
    assert (example.tags, count) == (tags, inside)


def test_slots_with_an_end_inside_a_word_are_counted(config: Config, mtop_root: Root) -> None:
    path = mtop_root("de", "en") / "de" / "eval.txt"
    path.write_text(mtop_line(slots="0:2:SL:X,5:6:SL:Y"), encoding="utf-8")
    assert read(config())[1] == {"slots_inside_words": {"de/dev": 2}}


def test_only_a_line_feed_ends_a_line(config: Config, mtop_root: Root) -> None:
    """Windows line ends, a byte order mark, blank lines and separators inside a token change nothing."""
    path = mtop_root("en") / "en" / "test.txt"
    words = "call\u2028mum call\x0cmum call\x85mum"
    path.write_bytes(b"\xef\xbb\xbf" + f"{mtop_line(words, '', id='7')}\r\n\r\n\n{mtop_line(id=None)}".encode())
    first, second = read(config())[0]["en", "test"]
    assert (first.id, first.tokens) == ("7", tuple(words.split(" ")))
    assert second.id == "test-4", "a blank line keeps its number"


@pytest.mark.parametrize("names", [("train.tsv", "dev.tsv", "test.tsv"), ("train.txt", "validation.txt", "test.tsv")])
def test_other_names_of_the_files(config: Config, mtop_root: Root, names: tuple[str, ...]) -> None:
    folder = mtop_root("en") / "en"
    for old, new in zip(("train.txt", "eval.txt", "test.txt"), names, strict=True):
        (folder / old).rename(folder / new)
    assert {key: len(examples) for key, examples in read(config())[0].items()} == {
        ("en", "train"): 3,
        ("en", "dev"): 2,
        ("en", "test"): 2,
    }


@pytest.mark.full
@pytest.mark.shared
def test_the_real_files(shared_data: Path, config: Config) -> None:
    """Every line is read, and every slot of the file comes back as a span over the words that it names."""
    root = shared_data / "mtop16"
    splits, notes = read(config(root=str(root)))
    assert notes == {}
    assert sum(map(len, splits.values())) == 60_774
    assert len({e.label for examples in splits.values() for e in examples}) == 16
    assert all(
        len(splits[language, split]) > 1_000 for language in ("de", "en", "es", "fr", "hi", "th") for split in SPLITS
    )
    for language in ("en", "th"):
        lines = (root / language / "test.txt").read_text(encoding="utf-8").split("\n")
        for line, example in zip(lines, splits[language, "test"], strict=False):
            utterance, slots = line.split("\t")[3], [s.split(":") for s in line.split("\t")[2].split(",") if s]
            assert _spans(example) == {(name, utterance[int(start) : int(end)]) for start, end, _, name in slots}


def _spans(example: Example) -> set[tuple[str, str]]:
    """Return (name, words joined by spaces) of each span, by a walk over the tags."""
    result: list[tuple[str, list[str]]] = []
    for word, tag in zip(example.tokens, example.tags or (), strict=True):
        if tag[0] == "B":
            result.append((tag[2:], [word]))
        elif tag[0] == "I":
            assert result[-1][0] == tag[2:]
            result[-1][1].append(word)
    return {(name, " ".join(words)) for name, words in result}
