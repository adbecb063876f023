"""From prediction rows to the score matrix R. docs/metrics.md, "Base scores"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.spans import f1, macro_f1
from xclrun.core.task import BY_NAME, Scored

if TYPE_CHECKING:
    import pandas as pd

SLOT_F1 = ("span_micro", "tag_macro")


def score_matrix(
    predictions: pd.DataFrame,
    languages: Sequence[str],
    hops: int,
    metric: str,
    slot_f1: str = "span_micro",
    tags: Sequence[str] | None = None,
    split: str = "test",
) -> np.ndarray:
    """Compute R from prediction rows of one evaluation point for each hop.

    Args:
        predictions: one row per (hop, split, language, example_id). An accuracy of labels needs ``gold`` and
            ``predicted`` (class ids; a gold −1, a label that training never had, is always wrong); a score of tags
            ``tp``, ``fp`` and ``fn`` (spans or words), or ``gold_tags`` and ``predicted_tags`` (lists of ids) for
            ``tag_macro``.
        languages: column j is ``languages[j]``.
        hops: number of hops N; rows 0…N.
        metric: name of a base score (`xclrun.core.task.METRICS`).
        slot_f1: how F1 of spans is computed. ``span_micro``: micro F1 over labelled spans; ``tag_macro``: macro F1 over
            single tags, over those that occur in gold or predicted tags of the cell, with all tags that training never
            had (−1) as one more class.
        tags: names of the tag ids, for ``tag_macro``.
        split: rows of other splits are left out.

    Returns:
        Shape (hops + 1, N), in [0, 1]; NaN where a cell has no rows, or rows without the counts that the metric
        needs.

    Raises:
        ValueError: an unknown metric or way, a hop or language out of range, the same example twice in a cell, or
            cells of a language that were not measured on the same number of examples.
    """
    if metric not in BY_NAME or slot_f1 not in SLOT_F1:
        raise ValueError(f"no way to score {metric} by {slot_f1}")
    of = BY_NAME[metric].of
    rows = predictions[predictions["split"] == split]
    matrix = np.full((hops + 1, len(languages)), np.nan)
    if rows.empty:
        return matrix
    _check(rows, languages, hops)
    if of is Scored.labels:
        rows = rows.assign(right=(rows["gold"] == rows["predicted"]) & (rows["gold"] >= 0))
    cells = rows.groupby(["hop", "language"], observed=True)
    if of is Scored.labels:
        scores = cells["right"].mean()
    elif of is Scored.words or slot_f1 == "span_micro":
        counts = cells[["tp", "fp", "fn"]]
        complete = counts.count().eq(cells.size(), axis=0).all(axis=1)
        scores = counts.sum().assign(f1=lambda c: f1(c["tp"], c["fp"], c["fn"]))["f1"].where(complete)
    elif tags is not None:
        scores = cells[["gold_tags", "predicted_tags"]].apply(_tag_macro, len(tags))
    else:
        raise ValueError("slot_f1=tag_macro needs the names of the tags")
    column = {language: j for j, language in enumerate(languages)}
    for (hop, language), score in scores.items():
        matrix[hop, column[language]] = score
    return matrix


def _check(rows: pd.DataFrame, languages: Sequence[str], hops: int) -> None:
    unknown = sorted(set(rows["language"].unique()) - set(languages))
    if unknown:
        raise ValueError(f"predictions on languages that the stream does not have: {', '.join(unknown)}")
    if not rows["hop"].between(0, hops).all():
        raise ValueError(f"predictions of hops outside 0…{hops}")
    if rows.duplicated(["hop", "language", "example_id"]).any():
        raise ValueError("predictions hold an example twice in a cell: choose one evaluation point for each hop")
    sizes = rows.groupby(["language", "hop"], observed=True).size()
    uneven = sizes.groupby(level="language", observed=True).nunique().loc[lambda n: n > 1]
    if len(uneven):
        raise ValueError(f"hops measured on different numbers of examples: {', '.join(map(str, uneven.index))}")


def _tag_macro(cell: pd.DataFrame, tags: int) -> float:
    if cell.isna().any(axis=None):
        return float("nan")
    gold, predicted = (
        np.concatenate(cell[name].to_list()).astype(np.int64) for name in ("gold_tags", "predicted_tags")
    )
    return macro_f1(gold + 1, predicted + 1, tags + 1)
