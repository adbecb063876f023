"""The registry of measures: what everything that shows measures takes from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import blank_figures
from xclrun.analysis.aggregate import comparisons, summarise
from xclrun.analysis.measures import EXAMPLE, MEASURES, Measure, headlines, leaves_out, measure, register
from xclrun.analysis.record import STREAMS
from xclrun.analysis.reference import References
from xclrun.analysis.resampling import measured
from xclrun.core.errors import UsageError
from xclrun.report.section import Options
from xclrun.report.write import write_report
from xclrun.tracking.payload import measures as metrics_of
from xclrun.tracking.payload import view

from .build import M, R, alone, record


@pytest.fixture
def best() -> Iterator[Measure]:
    """A measure that is added while the program runs: the best final score, of which less is called better here."""
    one = replace(
        MEASURES["FP_min"], name="FP_max", formula=lambda s: s.final.max(axis=-1), example=0.85, headline=True,
        definition="best final score", by_language=lambda s: s.final, higher_is_better=False,
    )  # fmt: skip
    yield register(one)
    del MEASURES[one.name]


def test_every_measure_is_whole() -> None:
    assert [one.name for one in headlines()] == ["F", "T", "T0", "FP"]
    for name, one in MEASURES.items():
        assert name == one.name
        assert one.title
        assert one.definition
        assert one.unit in ("%", "points", "bits", "kbits")
        assert "sequence" in one.streams or one.otherwise
        needed = one.needs(4)
        assert needed.shape == (5, 4)
        assert not one.reference or needed.any() or one.otherwise
        assert (one.by_language is not None) or not one.headline, f"tables show {name} by language"
        assert one.shared == (name in ("T", "T0", "I", "I_m_curve"))


@pytest.mark.parametrize("stream", STREAMS)
def test_every_measure_of_every_stream_is_a_number_or_a_reason(stream: str) -> None:
    scores = R[: STREAMS[stream](3) + 1]
    result = measure(record(scores=scores, stream=stream), "intent_accuracy", M)
    for name, one in MEASURES.items():
        assert isinstance(result[name, ""], float) == (stream in one.streams and not one.otherwise), name
        for language in ("en", "de", "th"):
            left_out = leaves_out(record(stream=stream, scores=scores), name, language)
            assert isinstance(result.get((name, language)), float) == (not left_out), (name, language)


def test_every_measure_is_in_the_summary() -> None:
    frame = summarise([record(scores=R), alone(M)])
    own = frame[(frame["strategy"] == "naive") & (frame["order"] == "mean") & (frame["language"] == "")]
    assert list(own["measure"]) == list(MEASURES)
    for name, one in MEASURES.items():
        (value,) = own.loc[own["measure"] == name, "value"]
        assert (np.isnan(value) and one.example is None) or value == pytest.approx(one.example), name


def test_a_measure_that_is_added_is_in_the_summary_tests_tables_page_and_mlflow(best: Measure, tmp_path: Path) -> None:
    records = [record(s, order, 1, R) for s in ("naive", "er") for order in ("en-de-th", "b")]
    with blank_figures():
        made = write_report(records, tmp_path, "added", options=Options(departures=("er instead of naive",)))
    assert "er instead of naive" in made.summary_md.read_text()
    assert "er instead of naive" in made.index.read_text()
    (comparison,) = comparisons(records)
    tested = measured(comparison, References(records), "intent_accuracy")[best.name]
    assert tested.of(("naive", "er")).values.tolist() == [[0.85]] * 2
    rows = [line.split(",") for line in made.summary_csv.read_text().splitlines()]
    assert {row[7] for row in rows if row[5:7] == ["FP_max", ""]} == {"0.85"}
    assert {row[6] for row in rows if row[5] == "FP_max"} == {"", "en", "de", "th"}
    means = (tmp_path / "tables" / "mini_tiny_intent_mean_over_orders_and_seeds.csv").read_text().splitlines()
    assert means[0].endswith(",FP ↑,FP_max ↓")
    assert all(line.split(",")[-1].startswith("85.00") for line in means[1:])
    assert (tmp_path / "tables" / "mini_tiny_intent_fp_max_by_language.csv").is_file()
    assert "FP_max ↓" in made.render()
    assert "best final score" in made.index.read_text()
    assert "metrics.`intent.FP_max`" in view(["intent_accuracy"])
    assert metrics_of(records[0], References(records))["intent.FP_max"] == 85


def test_names_are_unique_and_streams_known(best: Measure) -> None:
    with pytest.raises(UsageError, match="FP_min: already registered"):
        register(replace(best, name="FP_min"))
    with pytest.raises(UsageError, match="measure FP2: unknown stream sequences; known: sequence"):
        register(replace(best, name="FP2", streams=("sequences",)))
    assert EXAMPLE[0] is R


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"example": 0.86}, r"example=0.86, but the formula gives 0.85 for EXAMPLE"),
        ({"example": "0.85"}, r"example=0.85, but the formula gives 0.85"),
        ({"needs": lambda n: np.ones((n, n), dtype=bool)}, r"needs\(1\) .* not bool \(1, 1\)"),
        ({"needs": lambda n: np.ones((n + 1, n))}, r"needs\(1\) .* not float64 \(2, 1\)"),
        ({"needs": lambda n: [[True]]}, r"needs\(1\) .* not list"),
        # What the formula reads and the mask lacks, and the other way round.
        ({"needs": lambda n: np.zeros((n + 1, n), dtype=bool)}, r"does not use R\[3, 0\], .* gives nan instead"),
        ({"needs": lambda n: np.ones((n + 1, n), dtype=bool)}, r"uses R\[0, 0\], .* gives 0.85 instead of NaN"),
        ({"reference": True}, r"uses M\[0\], .* gives 0.85 instead of NaN"),
        ({"formula": lambda s: s.final.max(axis=-1) + 0 * s.M[..., 1]}, r"does not use M\[1\], .* gives nan"),
        ({"by_language": lambda s: s.final[..., :2]}, r"by_language must return shape \(3,\) .* not \(2,\)"),
        ({"formula": lambda s: s.final}, r"one value for one matrix, not shape \(3,\)"),
        # Right for one matrix, and silently one number for all resamples.
        ({"formula": lambda s: s.final.max()}, r"expected 0.85 and 0.45, got 0.85"),
        ({"formula": lambda s: s.record.config["seed"]}, r"fails for EXAMPLE \(KeyError: 'seed'\); set example=None"),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(best: Measure, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^measure FP2: .*{message}"):
        register(replace(best, name="FP2", **wrong))
    assert "FP2" not in MEASURES


@pytest.mark.parametrize(
    "right",
    [
        {"example": np.float64(0.85)},
        {"example": Fraction(17, 20)},
        # Only what is resampled sees stacks.
        {"headline": False, "formula": lambda s: s.final.max()},
        {"example": None, "formula": lambda s: s.record.config["seed"]},
        {"formula": lambda s: (s.final - s.M).mean(axis=-1), "example": (-0.05 + 0.1 + 0.1) / 3, "reference": True},
    ],
)
def test_an_entry_that_is_right_is_taken(best: Measure, right: dict[str, Any]) -> None:
    one = register(replace(best, name="FP2", **right))
    assert MEASURES.pop("FP2") is one
