"""Score matrices as the counts that they are ratios of: small enough to be kept with a page, and exact.

A run that is made again, elsewhere or later, can be compared with them digit by digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.base_scores import Predictions
from xclrun.analysis.record import RunRecord
from xclrun.core.task import BY_NAME

if TYPE_CHECKING:
    import pandas as pd


def counted(runs: Iterable[RunRecord], predictions: Mapping[str, Predictions]) -> pd.DataFrame:
    """Return a row for each run, metric and hop, and a column for each language.

    A cell is ``right/sentences`` of an accuracy, ``2 TP/(2 TP + FP + FN)`` of an F1 over spans, on the test sentences;
    the score alone, with all its digits, if it is no ratio of such sums or a run has no predictions; empty where it
    was not tested.
    """
    import pandas as pd

    rows = []
    for run in runs:
        known = predictions.get(run.run_id)
        head = {"run_id": run.run_id, "strategy": run.strategy, "order": run.order, "seed": run.seed}
        for metric in run.metrics:
            cells = {language: _cells(run, metric, language, known) for language in run.languages}
            rows += [
                head | {"metric": metric, "hop": hop, **{language: of[hop] for language, of in cells.items()}}
                for hop in range(run.hops + 1)
            ]
    return pd.DataFrame(rows)


def _cells(run: RunRecord, metric: str, language: str, known: Predictions | None) -> list[str]:
    """Return what represents a language after each hop."""
    scores = [float(score) for score in run.scores[metric][:, run.languages.index(language)]]
    texts = ["" if math.isnan(score) else repr(score) for score in scores]
    try:
        counts = None if known is None else known.sentences[language].counts(BY_NAME[metric])
    except ValueError:
        counts = None  # no ratio of sums
    if counts is None or counts.starts is not None:
        return texts
    hits, n = counts.hits.sum(axis=0, dtype=float), float(len(counts.hits))
    totals = [n] * len(hits) if counts.totals is None else counts.totals.sum(axis=0, dtype=float)
    same = np.isclose(counts.scores(), scores, rtol=0, atol=1e-12)  # not where F1 is over tags
    return [
        f"{hit:g}/{total:g}" if equal else text
        for text, equal, hit, total in zip(texts, same, hits, totals, strict=True)
    ]
