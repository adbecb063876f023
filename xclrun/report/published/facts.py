"""The files of published numbers, as they were packaged: facts from the papers, a row for each number."""

from __future__ import annotations

import csv
from importlib import resources


def facts(name: str) -> list[dict[str, str]]:
    text = resources.files("xclrun.report.published").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
