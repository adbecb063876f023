"""Published tables of "Towards a robust experimental framework … for lifelong language learning".

``ll_tables.csv`` has the numbers of LL (Hussain et al. 2021): Table 1, on the Standard stream, and numbers in the text.
Reports show Table 1 next to runs on the same stream of keys, and section 4.3 next to runs on all orders of these keys.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from xclrun.analysis.record import RunRecord
from xclrun.report.published.facts import facts, number
from xclrun.report.published.setup import Setup

# Keys of the published stream, in the order of training.
STREAMS = {"standard": ("boolq", "udpos", "wic", "fewrel", "yelp")}
# The test sets of some keys have fewer than 1,000 statements.
SETUP = Setup(
    "LL", "lifelong", "bert", (10_000, 10_000), (0, 1000), "at most 1 epoch, batch 25", (1, 2, 3, 4, 42),
    {"statement_accuracy": "statement accuracy"},
)  # fmt: skip
# Strategy here → its name in LL's Table 1.
METHODS = {
    "naive": "naive",
    "replay": "replay_10",
    "agem_replay": "agem",
    "mbpa": "mbpa_pp",
    "lang_spec_ft": "single_task",
    "multilingual": "multi_task",
}
# Measure in the paper → measure here. Forgetting is defined as in the paper's code (docs/metrics.md).
MEASURES = {"AULTC": "AULTC", "F_m": "F_m_curve", "I_m": "I", "A_m": "FP"}
# Multi-task training has one hop, so its intransigence is read off the learning curve.
OF_MULTI_TASK = {**MEASURES, "I_m": "I_m_curve"}
# The paper's measure → the end of its distribution over 120 orders that section 4.3 prints, and the stream.
EXTREMES = {
    "AULTC": ("lowest", "standard"),
    "F_m": ("highest", "standard"),
    "I_m": ("highest", "intransigence"),
    "A_m": ("lowest", "standard"),
}


class Reported(NamedTuple):
    """A published number and its standard deviation over five seeds, as fractions; NaN: not printed."""

    value: float
    std: float


@cache
def ll_tables() -> dict[tuple[str, str], dict[tuple[str, str], Reported]]:
    """Return (table, stream) → (method, measure) → number."""
    tables: dict[tuple[str, str], dict[tuple[str, str], Reported]] = {}
    for row in facts("ll_tables.csv"):
        reported = Reported(number(row), number(row, "std"))
        tables.setdefault((row["table"], row["stream"]), {})[row["method"], row["measure"]] = reported
    return tables


def extreme(measure: str) -> tuple[str, float]:
    """Return which end of a measure's distribution over orders LL prints (lowest or highest), and its value."""
    end, stream = EXTREMES[measure]
    return end, ll_tables()["s4.3", stream]["naive", measure].value


def stream_of(run: RunRecord) -> str | None:
    """Return the name of the published stream with a run's keys in the same order, or None."""
    return next((name for name, keys in STREAMS.items() if run.languages == keys), None)
