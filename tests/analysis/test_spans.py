from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities

from xclrun.scores.base_scores import Counts
from xclrun.scores.spans import span_counts, spans

# Everything that BIO allows and what it does not: I- first, a change of type inside a span, tags without a type, a type
# with a hyphen, and the E- and S- of other schemes.
TAGS = ["O", "B-a", "I-a", "B-b", "I-b", "B-a-b", "I-a-b", "B", "I", "E-a", "S-a"]
tags = st.sampled_from(TAGS)
sentence = st.lists(st.tuples(tags, tags), max_size=12)


def f1(tp: int, fp: int, fn: int) -> float:
    """F1 of summed counts."""
    return float(Counts.of_f1([[tp]], [[fp]], [[fn]]).scores()[0])


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        ([], []),
        (["O", "O"], []),
        (["B-city", "I-city", "O"], [("city", 0, 1)]),
        (["B-city", "B-city"], [("city", 0, 0), ("city", 1, 1)]),
        (["O", "I-city", "I-city"], [("city", 1, 2)]),  # I- without B-
        (["B-city", "I-date"], [("city", 0, 0), ("date", 1, 1)]),  # the type changes
        (["I-city", "O", "I-city"], [("city", 0, 0), ("city", 2, 2)]),
    ],
)
def test_spans(sequence: list[str], expected: list[tuple[str, int, int]]) -> None:
    assert spans(sequence) == expected
    assert get_entities(sequence) == expected


@given(st.lists(sentence, min_size=1, max_size=6))
def test_sums_of_counts_give_the_f1_of_seqeval(sentences: list[list[tuple[str, str]]]) -> None:
    gold = [[g for g, _ in s] for s in sentences]
    predicted = [[p for _, p in s] for s in sentences]
    counts = [sum(c) for c in zip(*map(span_counts, gold, predicted), strict=True)]
    assert f1(*counts) == pytest.approx(f1_score(gold, predicted, zero_division=0), abs=1e-12)


@given(st.lists(tags, max_size=15))
def test_spans_are_those_of_seqeval(sequence: list[str]) -> None:
    assert spans(sequence) == get_entities(sequence)


@pytest.mark.shared
def test_real_sentences_equal_seqeval() -> None:
    lines = []
    for language in ("en", "th"):
        path = Path(__file__).parents[2].parent / "shared" / "data" / "mtop16" / language / "test.txt"
        if not path.is_file():
            pytest.skip("needs ../shared/data/mtop16")
        lines += path.read_text(encoding="utf-8").splitlines()[:400]
    gold = [_bio(line) for line in lines]
    predicted = [sequence[:1] + sequence[:-1] for sequence in gold]  # every tag one word late
    counts = [sum(c) for c in zip(*map(span_counts, gold, predicted), strict=True)]
    assert counts[0] + counts[2] > 500
    assert f1(*counts) == pytest.approx(f1_score(gold, predicted), abs=1e-12)


def _bio(line: str) -> list[str]:
    """Tags of one line of an MTOP release."""
    _, _, slots, *_, tokens = line.split("\t")
    starts = [span["start"] for span in json.loads(tokens)["tokenSpans"]]
    tags = ["O"] * len(starts)
    for slot in filter(None, slots.split(",")):
        first, last, _, kind = slot.split(":")
        inside = [i for i, start in enumerate(starts) if int(first) <= start < int(last)]
        for i in inside:
            tags[i] = f"{'B' if i == inside[0] else 'I'}-{kind}"
    return tags


def test_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 gold tags"):
        span_counts(["O", "O"], ["O"])
