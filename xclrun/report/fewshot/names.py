"""How few-shot tables and figures write things.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021).
"""

from __future__ import annotations

import re

from xclrun.analysis.fewshot.scores import WHOLE
from xclrun.report.published import fsxlt
from xclrun.report.tables import Cell, percent

# Our names → those of the paper's tasks.
TASK_OF = {"pud": "udpos"}


def shots_name(shots: int) -> str:
    """Return how a K is written."""
    return "all data" if shots == WHOLE else f"K = {shots}"


def task_name(dataset: str) -> str:
    """Return what the paper calls the task of a dataset."""
    return TASK_OF.get(dataset, dataset)


def source_name(source: str) -> str:
    """Return what a title says of the source: nothing of English, the paper's."""
    return "" if source == fsxlt.SOURCE else f", source {source}"


def method_name(label: str) -> str:
    """Return what the paper calls a strategy: its name without settings."""
    return re.split(r"[(#]", label)[0]


def mean_and_std(mean: float, std: float) -> str:
    """Return fractions as percent: ``91.06 ± 0.40``; the mean alone where there is no spread."""
    return percent(mean) + (f" ± {percent(std)}" if std == std else "")


def cell(value: float | None, scale: float, digits: int) -> Cell:
    """Return a cell with so many digits of ``scale * value``; – where there is no value."""
    if value is None or value != value:
        return Cell("–")
    return Cell(f"{round(scale * value, digits) + 0.0:.{digits}f}", value)
