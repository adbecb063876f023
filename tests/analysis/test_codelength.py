from __future__ import annotations

import numpy as np
import pytest

from xclrun.analysis.codelength import online_codelength


def test_worked_by_hand() -> None:
    # 4 examples at log2 8 = 3 bits each; then codes of 1, 2 and 0.5 bits.
    found = online_codelength(np.ones(4), [[-1.0, -2.0], [-0.5]], classes=8)
    assert (found.bits, found.examples) == (15.5, 7)
    assert (found.kbits, found.bits_per_example) == (0.0155, 15.5 / 7)


def test_tagging_codes_every_token_of_the_first_subset() -> None:
    assert online_codelength([3, 5], [[-4.0]], classes=4).bits == 8 * 2 + 4


def test_a_uniform_model_costs_what_the_uniform_code_costs() -> None:
    parts = [np.full(k, -np.log2(10)) for k in (5, 20, 100)]
    assert online_codelength(np.ones(10), parts, classes=10).bits == pytest.approx(135 * np.log2(10))


@pytest.mark.parametrize(("symbols", "codes", "classes"), [([], [], 2), ([1], [[0.1]], 2), ([1], [[-np.inf]], 2),
                                                           ([1], [[np.nan]], 2), ([1], [], 0)])  # fmt: skip
def test_what_has_no_code_is_refused(symbols: list, codes: list, classes: int) -> None:
    with pytest.raises(ValueError, match=r"codelength needs|must be finite"):
        online_codelength(symbols, codes, classes)
