from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from xclrun.analysis.codelength import BlockCode, codes, of_block, online_codelength, switched


def blocks(classes: int, sizes: list[int], log2_gold: list[np.ndarray]) -> list[BlockCode]:
    return [BlockCode.total(of, np.full(n, math.log2(classes))) for n, of in zip(sizes, log2_gold, strict=True)]


def test_worked_by_hand() -> None:
    # 4 examples at log2 8 = 3 bits each, whatever the model before them says; then codes of 1, 2 and 0.5 bits.
    result = online_codelength(blocks(8, [4, 2, 1], [np.full(4, -9.0), np.array([-1.0, -2.0]), np.array([-0.5])]))
    assert (result.bits, result.examples) == (15.5, 7)
    assert (result.kbits, result.bits_per_example) == (0.0155, 15.5 / 7)
    # A start that knows the head codes the first block.
    assert online_codelength(blocks(8, [2, 1], [np.full(2, -0.25), np.array([-1.0])]), start_knows=True).bits == 1.5
    # A log-probability that rounding made positive costs nothing.
    assert BlockCode.total([1e-6, -1.0], [1.0, 1.0]).bits == 1.0


@pytest.mark.parametrize("sequence", [[1, 1, 0, 1, 0, 0, 0, 1, 1], [0, 0, 0], [1], [1, 0] * 20])
def test_laplaces_predictor_costs_what_its_mixture_does(sequence: list[int]) -> None:
    # p(next is 1) = (ones + 1) / (seen + 2), in blocks of one symbol, the first one coded by it too: the product is
    # 1 / ((N + 1) C(N, k)), whatever the order of the symbols.
    result, ones = [], 0
    for seen, symbol in enumerate(sequence):
        p = (ones + 1) / (seen + 2)
        result.append(BlockCode.total([math.log2(p if symbol else 1 - p)], [1.0]))
        ones += symbol
    n, k = len(sequence), sum(sequence)
    expected = math.log2((n + 1) * math.comb(n, k))
    assert online_codelength(result, start_knows=True).bits == pytest.approx(expected, rel=1e-12)
    # Its first prediction is 1/2, which is the uniform code's.
    assert online_codelength(result).bits == pytest.approx(expected, rel=1e-12)


def rows(**columns: list[float | int | None]) -> pa.Table:
    n = len(next(iter(columns.values())))
    given = {"log2_gold": [None] * n, "log2_gold_tags": [None] * n, "tokens": [1] * n, "seen": [0] * n} | columns
    types = {"tokens": pa.int16(), "seen": pa.int16()}
    return pa.table({name: pa.array(of, types.get(name, pa.float32())) for name, of in given.items()})


def test_of_tags_every_word_is_coded_those_beyond_the_length_limit_uniformly() -> None:
    given = rows(log2_gold_tags=[-3.0, -0.5], tokens=[5, 2], seen=[3, 2])
    result = codes(given, {"labels": 0, "tags": 8})
    assert list(result) == ["tags"]
    log2_gold, uniform = result["tags"]
    assert log2_gold.tolist() == [-3 - 2 * 3, -0.5]
    assert uniform.tolist() == [5 * 3, 2 * 3]


def test_labels_and_tags_are_coded_each_by_itself() -> None:
    given = rows(log2_gold=[-1.0, -0.25], log2_gold_tags=[-3.0, -0.5], tokens=[3, 2], seen=[3, 2])
    assert of_block(given, {"labels": 4, "tags": 2}) == {
        "labels": {"examples": 2, "bits": 1.25, "uniform": 4.0},
        "tags": {"examples": 2, "bits": 3.5, "uniform": 5.0},
    }


def test_a_text_costs_its_bits_and_uniformly_those_of_its_bytes_and_end() -> None:
    """The second reference is too long to have a probability."""
    given = rows(log2_reference=[-5.0, None], reference_bytes=[2, 10])
    assert of_block(given, {"labels": 0, "tags": 0}) == {
        "texts": {"examples": 2, "bits": 5 + 8 * 11, "uniform": 8 * 3 + 8 * 11}
    }


def test_switching_to_the_best_model_pays_for_saying_which() -> None:
    # Of four models, 2 bits a block; the best are the first, then the last.
    codes_of_four = [[1.0, 9.0], [5.0, 5.0], [5.0, 5.0], [9.0, 2.0]]
    assert switched(codes_of_four).tolist() == [1 + 2, 2 + 2]
    assert switched([[3.0, 4.0]]).tolist() == [3, 4]


def test_what_has_no_code_is_refused() -> None:
    for log2_gold in ([], [0.1], [-np.inf], [np.nan]):
        with pytest.raises(ValueError, match=r"codelength needs|must be finite"):
            BlockCode.total(log2_gold, np.ones(len(log2_gold)))
