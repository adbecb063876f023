from __future__ import annotations

import pandas as pd
import pytest

from xclrun.analysis.fewshot.attention import COLUMNS, attention_changes

ROWS = [
    (1, "de", "gut", 4, 0.10), (2, "de", "gut", 4, 0.30),
    (1, "de", "ein", 3, 0.20), (2, "de", "ein", 1, 0.10), (2, "de", "ein", 2, 0.25),
    (1, "de", "selten", 1, 0.00), (2, "de", "selten", 1, 0.90),
    (1, "fr", "bon", 9, 0.10),
]  # fmt: skip


def summary() -> pd.DataFrame:
    return pd.DataFrame(ROWS, columns=list(COLUMNS))


def test_words_by_the_change_of_attention() -> None:
    good, a = attention_changes(summary(), "de", 1, 2, least=2, bucket={"gut"})
    assert (good.word, good.count, good.in_bucket) == ("gut", 4, True)
    assert good.change == pytest.approx(0.2)
    # Two rows of one word: (1 · 0.10 + 2 · 0.25) / 3 = 0.2, as before.
    assert (a.word, a.in_bucket) == ("ein", False)
    assert a.change == pytest.approx(0)
    assert attention_changes(summary(), "de", 1, 2)[0].word == "selten"
    assert attention_changes(summary(), "fr", 1, 2) == []
