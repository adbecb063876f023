"""Score matrices as exact ratios of counts, for exact comparison of a reproduced run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.record import RunRecord
from xclrun.core.task import BY_NAME
from xclrun.scores.base_scores import Predictions

if TYPE_CHECKING:
    import pandas as pd


def counted(runs: Iterable[RunRecord], predictions: Mapping[str, Predictions]) -> pd.DataFrame:
    """Return a row for each run, metric and hop, and a column for each language.

    A cell is ``hits/sentences`` for an accuracy and ``2 TP/(2 TP + FP + FN)`` for F1 over spans. Without counts, the
    cell is the score in full precision. A cell is empty if the language was not tested.
    """
    import pandas as pd

    rows = []
    for run in runs:
        head = {"run_id": run.run_id, "strategy": run.strategy, "order": run.order, "seed": run.seed}
        for metric in run.metrics:
            cells = {k: _cells(run, metric, k, predictions.get(run.run_id)) for k in run.languages}
            rows += [
                head | {"metric": metric, "hop": hop, **{language: by_hop[hop] for language, by_hop in cells.items()}}
                for hop in range(run.hops + 1)
            ]
    return pd.DataFrame(rows)


def _cells(run: RunRecord, metric: str, language: str, predictions: Predictions | None) -> list[str]:
    scores = [float(score) for score in run.scores[metric][:, run.languages.index(language)]]
    texts = ["" if math.isnan(score) else repr(score) for score in scores]
    try:
        counts = None if predictions is None else predictions.sentences[language].counts(BY_NAME[metric])
    except ValueError:
        counts = None
    if counts is None or counts.statistics.shape[-1] != 2:
        return texts
    hits, totals = counts.statistics.sum(axis=0, dtype=float).T
    exact = counts.scores()
    same = np.isclose(exact, scores, rtol=0, atol=1e-12) & np.isclose(exact * totals, hits, rtol=1e-12)
    return [
        f"{hit:g}/{total:g}" if equal else text
        for text, equal, hit, total in zip(texts, same, hits, totals, strict=True)
    ]
