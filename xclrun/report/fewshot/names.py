"""How few-shot tables and figures write things.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from xclrun.analysis.fewshot.scores import WHOLE
from xclrun.report.published import fsxlt

# Our names → those of the paper's tasks.
TASK_OF = {"pud": "udpos"}

# (row, K) → cell.
Cells = Mapping[tuple[str, int], str]


def shots_name(shots: int) -> str:
    return "all data" if shots == WHOLE else f"K = {shots}"


def task_name(dataset: str) -> str:
    return TASK_OF.get(dataset, dataset)


def source_name(source: str) -> str:
    """Return what a title says of the source: nothing of English, the paper's."""
    return "" if source == fsxlt.SOURCE else f", source {source}"


def method_name(label: str) -> str:
    """Return what the paper calls a strategy: its name without settings."""
    return re.split(r"[(#]", label)[0]


def by_shots(
    header: Sequence[str],
    rows: Iterable[tuple[str, ...]],
    shots: Iterable[int],
    ours: Cells,
    theirs: Cells,
    more: Mapping[str, Cells] = MappingProxyType({}),
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Lay out a table with a column for each K, next to it the published one; return header and rows.

    Args:
        header: of the columns at the left.
        rows: the cells at the left; the first names the row.
        theirs: published cells; a K without any has no such column.
        more: name → cells of further columns of each K.
    """
    published = {k for _, k in theirs}
    columns = [
        (k, name, cells)
        for k in shots
        for name, cells in ((shots_name(k), ours), *([("published", theirs)] if k in published else []), *more.items())
    ]
    names = (*header, *(name for _, name, _ in columns))
    return names, tuple((*row, *(cells.get((row[0], k), "–") for k, _, cells in columns)) for row in rows)
