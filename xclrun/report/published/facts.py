"""Files of published numbers in the package, with a row for each number."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from importlib import resources


def facts(name: str) -> list[dict[str, str]]:
    text = resources.files("xclrun.report.published").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def number(row: Mapping[str, str], column: str = "value") -> float:
    """Return a number of a row, with percent and points as fractions; NaN if it is not printed."""
    scale = 100 if row["unit"] in ("percent", "points") else 1
    return float(row[column]) / scale if row[column] else math.nan
