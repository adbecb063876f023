"""Published tables of "Don't Use English Dev".

``ed_tables.csv`` has the numbers of Tables 1 to 5 of ED (Keung et al. 2020): mBERT and XLM-R, trained on English.
Reports show Tables 2, 3 and 5 next to our results; see docs/checkpoints.md.
"""

from __future__ import annotations

import math
from functools import cache

from xclrun.report.published.facts import facts, number
from xclrun.report.published.setup import Setup

SOURCE = "en"
# Name of a row in Table 5 → name of its selection rule in `xclrun.analysis.points.RULES`.
ROWS_OF_TABLE_5 = {"best_en_dev": "current_dev", "target_dev_oracle": "oracle"}
# Dataset → setup; the length of training is unknown.
SETUPS = {
    name: Setup("ED", name, "mbert", (train, train), (test, test), None, 10, {"class_accuracy": "class accuracy"})
    for name, train, test in (("mldoc", 10_000, 4_000), ("xnli", 393_000, 5_000))
}


@cache
def ed_tables() -> dict[tuple[str, str], dict[tuple[str, str, str], float]]:
    """Return (table, dataset) → (row, language, measure) → value, as a fraction; NaN for empty cells.

    The rows of Table 4 begin with the encoder.
    """
    tables: dict[tuple[str, str], dict[tuple[str, str, str], float]] = {}
    for row in facts("ed_tables.csv"):
        name = row["row"] if row["table"] != "4" else f"{row['encoder']} {row['row']}"
        table = tables.setdefault((row["table"], row["dataset"]), {})
        table[name, row["language"], row["measure"]] = number(row)
    return tables


def published(table: str, dataset: str, row: str, language: str) -> float:
    measure = "directional_agreement" if table == "3" else "accuracy"
    return ed_tables().get((table, dataset), {}).get((row, language, measure), math.nan)
