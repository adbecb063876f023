"""Prediction files: exact types, round trip, and small."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from xclrun.store import predictions

ROW: dict[str, Any] = {
    "hop": -1,
    "step": 920,
    "examples_seen": 14720,
    "split": "test",
    "language": "th",
    "example_id": "17",
    "gold": 3,
    "predicted": 2,
    "log2_gold": -1.5,
    "gold_tags": [0, 151, -1],
    "predicted_tags": [0, 151, 7],
    "tp": 1,
    "fp": 0,
    "fn": 1,
    "log2_gold_tags": -20.25,
    "tokens": 3,
}
NULLS = {"gold": -1, "log2_gold": math.nan, "log2_gold_tags": math.nan, "gold_tags": None, "predicted_tags": None}


def columns(*rows: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in ROW}


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "predictions.parquet"
    predictions.write(path, predictions.table(columns(ROW, {**ROW, **NULLS})))
    result = predictions.read(path)
    assert result.schema.equals(predictions.schema())
    # What is not a number was not measured: null.
    assert result.to_pylist() == [ROW, {**ROW, **NULLS, "log2_gold": None, "log2_gold_tags": None}]


def test_a_run_sets_its_id_and_hop(tmp_path: Path) -> None:
    path = tmp_path / "hop-2.parquet"
    predictions.write(path, predictions.table(columns(ROW, ROW)), run_id="mini-er-h2l-s1-0123", hop=2)
    result = predictions.read(path)
    assert result.column_names == ["run_id", *predictions.schema().names]
    assert result.schema.field("hop").type == pa.int16()
    assert result.to_pylist() == [{"run_id": "mini-er-h2l-s1-0123", **ROW, "hop": 2}] * 2


@pytest.mark.parametrize(("name", "value"), [("gold", 40_000), ("gold", "alarm"), ("gold_tags", [0, 40_000])])
def test_values_that_do_not_fit_their_type_are_refused(name: str, value: Any) -> None:
    with pytest.raises(pa.ArrowInvalid):
        predictions.table(columns({**ROW, name: value}))


def test_a_missing_column_is_refused() -> None:
    with pytest.raises(KeyError, match="log2_gold"):
        predictions.table({name: values for name, values in columns(ROW).items() if name != "log2_gold"})


def test_a_ccl_run_takes_few_megabytes(tmp_path: Path) -> None:
    generator = np.random.Generator(np.random.PCG64(0))
    rows = []
    for language in ("en", "de", "fr", "hi", "es", "th"):
        for i in range(2500):
            tokens = int(generator.integers(3, 14))
            tags = np.where(generator.random(tokens) < 0.6, 0, generator.integers(0, 152, tokens))
            right = generator.random(tokens) < 0.8
            result = np.where(right, tags, generator.integers(0, 152, tokens))
            values = {"gold": int(generator.integers(114)), "predicted": int(generator.integers(114))}
            values |= {"log2_gold": -generator.exponential(), "log2_gold_tags": -10 * generator.exponential()}
            rows.append(
                {
                    **ROW,
                    **values,
                    "language": language,
                    "example_id": str(i),
                    "tokens": tokens,
                    "gold_tags": tags.tolist(),
                    "predicted_tags": result.tolist(),
                }
            )
    path = tmp_path / "hop-1.parquet"
    predictions.write(path, predictions.table(columns(*rows)), run_id="a run", hop=1)
    assert len(predictions.read(path)) == 15_000
    # Tags and probabilities at random, which real ones are not, so this is the most that it can be.
    assert 7 * path.stat().st_size < 3_000_000
