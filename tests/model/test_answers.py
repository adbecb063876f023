"""From scores of starts and ends to answers: held against going through all spans."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from xclrun.data.batches import Ragged, Windows
from xclrun.data.example import Answer, Example
from xclrun.model.answers import answers_of, read_windows, span_count, span_scores
from xclrun.model.heads import SpanHead

TEXT = "a b c d e f g h"
LONGEST = 3
# First and last + 1 piece of each window; a piece is a letter.
BOUNDS = ((0, 4), (2, 6), (4, 8))
Read = tuple[Windows, dict[str, np.ndarray]]


def read(
    generator: np.random.Generator, gold: tuple[int, int] | None
) -> tuple[Read, dict[tuple[int, int], list[float]], float]:
    """Return what is read of an example in three windows; span → its scores, one for each window; [CLS]'s scores."""
    marked, characters, rows = [], [], []
    for first, last in BOUNDS:
        inside = gold is not None and first <= gold[0] and gold[1] < last
        marked.append((gold[0] - first + 1, gold[1] - first + 1) if gold is not None and inside else (0, 0))
        characters += [(0, 0), *((2 * i, 2 * i + 1) for i in range(first, last))]
        rows.append(1 + last - first)
    offsets = np.concatenate([[0], np.cumsum(rows)])
    size = 0 if gold is None else gold[1] - gold[0] + 1
    windows = Windows(
        np.zeros(3, np.int64), np.array(marked), np.array([b[0] for b in BOUNDS]), np.full(3, 8), np.full(3, size),
        LONGEST, Ragged(np.array(characters, np.int32), offsets),
    )  # fmt: skip
    emissions = generator.normal(size=(3, 7, 2)).astype(np.float32)
    mask = np.arange(7) < 5
    first = read_windows(windows, np.array([2, 0]), emissions[[2, 0]], np.stack([mask] * 2))
    second = read_windows(windows, np.array([1]), emissions[[1], :5], np.ones((1, 5), bool))
    readings = windows, {name: np.stack([v[1], second[name][0], v[0]]) for name, v in first.items()}
    scores: dict[tuple[int, int], list[float]] = {}
    for (first, last), of in zip(BOUNDS, emissions.astype(float), strict=True):
        for i, j in product(range(first, last), repeat=2):
            if 0 <= j - i < LONGEST:
                scores.setdefault((i, j), []).append(of[i - first + 1, 0] + of[j - first + 1, 1])
    return readings, scores, emissions[:, 0].astype(float).sum(axis=1).min()


def example(gold: tuple[int, int] | None) -> Example:
    answers = () if gold is None else (Answer(TEXT[2 * gold[0] : 2 * gold[1] + 1], 2 * gold[0]),)
    return Example("q", "en", tuple(TEXT.split()), None, None, None, "?", answers=answers)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("gold", [(2, 3), (0, 0), (5, 7), (3, 3)])
def test_the_best_span_and_the_gold_one_s_probability(seed: int, gold: tuple[int, int]) -> None:
    readings, scores, _ = read(np.random.default_rng(seed), gold)
    result = answers_of(*readings, [example(gold)], nullable=False)
    i, j = max(scores, key=lambda span: max(scores[span]))
    assert (result["answer_start"], result["answer_end"]) == ([2 * i], [2 * j + 1])
    assert result["answer"] == [TEXT[2 * i : 2 * j + 1]]
    total = sum(math.exp(s) for of in scores.values() for s in of)
    expected = sum(math.exp(s) for s in scores[gold]) / total
    assert result["log2_gold"] == pytest.approx([math.log2(expected)])
    assert result["gold_answers"] == [[TEXT[2 * gold[0] : 2 * gold[1] + 1]]]


def test_probabilities_of_all_spans_of_the_text_sum_to_one() -> None:
    every = [(i, j) for i in range(8) for j in range(i, min(8, i + LONGEST))]
    assert span_count(8, LONGEST) == len(every)
    bits = []
    for gold in every:
        [one] = answers_of(*read(np.random.default_rng(3), gold)[0], [example(gold)], nullable=False)["log2_gold"]
        bits.append(one)
    # Windows share two pieces, and spans have three at most: all are in some window.
    assert np.nansum(np.exp2(bits)) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(6))
def test_no_answer_is_one_more_outcome_where_training_has_it(seed: int) -> None:
    readings, scores, none = read(np.random.default_rng(seed), None)
    result = answers_of(*readings, [example(None)], nullable=True)
    best = max(max(of) for of in scores.values())
    assert (result["answer"] == [""]) == (none > best) == (result["answer_start"] == [None])
    total = sum(math.exp(s) for of in scores.values() for s in of) + math.exp(none)
    assert result["log2_gold"] == pytest.approx([math.log2(math.exp(none) / total)])
    assert result["log2_classes"] == pytest.approx([math.log2(span_count(8, LONGEST) + 1)])
    # Otherwise there is always an answer, and that there is none has no probability.
    alone = answers_of(*readings, [example(None)], nullable=False)
    assert alone["answer"] != [""]
    assert math.isnan(alone["log2_gold"][0])


def test_of_equals_the_first_and_shortest_counts() -> None:
    scores, longest = span_scores(np.zeros((1, 4, 2), np.float32), np.ones((1, 4), bool), 9)
    assert (longest, np.isfinite(scores).sum()) == (4, 3 + 2 + 1)
    [windows, _], _, _ = read(np.random.default_rng(0), (0, 0))
    readings = windows, read_windows(windows, np.arange(3), np.zeros((3, 5, 2), np.float32), np.ones((3, 5), bool))
    assert answers_of(*readings, [example((0, 0))], nullable=False)["answer"] == ["a"]


def test_an_answer_too_long_has_no_probability() -> None:
    readings, _, _ = read(np.random.default_rng(1), (0, 3))
    assert math.isnan(answers_of(*readings, [example((0, 3))], nullable=False)["log2_gold"][0])
    assert readings[0].long_answers == 1


def test_the_loss_is_that_of_two_softmaxes_over_words() -> None:
    torch.manual_seed(0)
    head, mask = SpanHead(5), torch.tensor([[True] * 4, [True, True, False, False]])
    emissions, gold = head(torch.randn(2, 4, 5)), torch.tensor([[1, 3], [0, 0]])
    result = head.log_likelihood(emissions, gold, mask)
    for row, words in ((0, 4), (1, 2)):
        logs = emissions[row, :words].log_softmax(dim=0)
        assert result[row].item() == pytest.approx((logs[gold[row, 0], 0] + logs[gold[row, 1], 1]).item())
