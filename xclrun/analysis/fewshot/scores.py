"""Scores of few-shot runs by (language, K, strategy, bucket, seed), and their averages over buckets.

Source: FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021) §4. A run of stream ``transfer``
trains on a source language, then adapts to a bucket of a target language. The zero-shot score (K = 0) is the score on
the target before adaptation. Without a source, this is the score before fine-tuning. Scores are fractions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.analysis.grouping import grouped, numbered_labels, strategy_labels
from xclrun.analysis.record import RunRecord, point_score
from xclrun.analysis.replicates import Replicates, most_shared
from xclrun.core.task import BY_NAME, short_name

if TYPE_CHECKING:
    import pandas as pd

STREAM = "transfer"
NO_SOURCE = "none"
FULL = "full"
# Value of ``shots`` for the whole training split.
WHOLE = -1

# One row per run and metric. ``shots`` is K or WHOLE; ``bucket`` is −1 without a bucket; ``task`` is the metric's short
# name.
COLUMNS = ("run_id", "dataset", "model", "metric", "source", "language", "shots", "strategy", "bucket", "seed",
           "zero_shot", "score", "task")  # fmt: skip
# Columns that identify a row of averages.
KEYS = ["dataset", "model", "metric", "source", "language", "shots", "strategy"]

# Settings that may differ between runs with the same label, since tables have columns for them.
_IGNORED = ("shots", "language", "source", "order.name", "order.languages", "dataset.languages", "languages", "data")


def is_few_shot(record: RunRecord) -> bool:
    return record.stream == STREAM


def target(record: RunRecord) -> str:
    return record.languages[-1]


def source(record: RunRecord) -> str:
    return record.languages[0] if len(record.languages) > 1 else NO_SOURCE


def labels(records: Iterable[RunRecord]) -> dict[str, str]:
    """Return run ID → strategy label: the name (see `called`), and the settings that differ between runs of that name.

    Labels omit K, language, bucket and source, since tables have columns for them. If buckets with equal K, language
    and source were drawn from different data, labels contain the first six digits of the data's fingerprint.
    """
    records = list(records)
    named = {run_id: called(label) for run_id, label in strategy_labels(records, _IGNORED).items()}
    # Fingerprints of the data that buckets were drawn from, since the buckets themselves always differ.
    drawn = {r.run_id: r.data_fingerprint if r.bucket is None else r.whole_fingerprint for r in records}
    several: dict[tuple[str, str, str], set[str]] = {}
    rows = grouped(
        records, lambda r: (r.dataset, r.model, named[r.run_id], source(r), target(r), r.shots, r.bucket is None)
    )
    for (dataset, model, label, *_), runs in rows.items():
        if len(fingerprints := {drawn[r.run_id] for r in runs}) > 1:
            several.setdefault((dataset, model, label), set()).update(fingerprints)
    for r in records:
        label, data = named[r.run_id], drawn[r.run_id]
        if data in several.get((r.dataset, r.model, label), ()):
            settings = label[:-1] + ", " if label.endswith(")") else f"{label}("
            named[r.run_id] = f"{settings}data={data[:6] or 'unknown'})"
    return named


def numbered(records: Iterable[RunRecord]) -> dict[str, str]:
    """Return numbered label → the settings that it stands for, for few-shot runs (see `numbered_labels`)."""
    numbers = numbered_labels((r for r in records if is_few_shot(r)), _IGNORED)
    return {called(label): meaning for label, meaning in numbers.items()}


def called(label: str) -> str:
    """Convert a strategy label for few-shot tables: ``naive`` becomes ``full``, its name in the paper."""
    return re.sub(r"^naive\b", FULL, label)


def few_shot_scores(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Return the finished few-shot runs as a table with `COLUMNS`: a row for each run and metric."""
    import pandas as pd

    runs = sorted({r.run_id: r for r in records if is_few_shot(r) and r.finished}.values(), key=lambda r: r.run_id)
    named = labels(runs)
    rows = []
    for run in runs:
        shots = WHOLE if run.shots is None else int(run.shots)
        bucket = -1 if run.bucket is None else run.bucket
        for metric in run.metrics:
            zero_shot, score = map(float, run.scores[metric][-2:, -1])
            head = (run.run_id, run.dataset, run.model, metric, source(run), target(run))
            rows.append((*head, shots, named[run.run_id], bucket, run.seed, zero_shot, score, short_name(metric)))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"zero_shot": float, "score": float})


def over_buckets(scores: pd.DataFrame) -> pd.DataFrame:
    """Average the scores of each bucket over seeds, then average these means over buckets.

    A missing score makes the mean NaN. ``scores`` comes from `few_shot_scores`.

    Returns:
        Columns `KEYS`, ``mean``, ``std`` (sample standard deviation over buckets, n − 1), ``zero_shot`` (averaged in
        the same way), ``buckets`` (their number), ``fewest`` (minimum number of seeds per bucket), ``seeds`` (maximum
        number of seeds per bucket), ``n`` (number of runs), ``runs`` (their IDs). Every strategy also has a row K = 0
        with 0 buckets: the zero-shot mean and its standard deviation over seeds.
    """
    import pandas as pd

    rows: list[tuple[Any, ...]] = []
    for key, runs in groups(scores, KEYS):
        values, before = (
            runs.groupby("bucket")[name].apply(lambda s: s.mean(skipna=False)).to_numpy()
            for name in ("score", "zero_shot")
        )
        seeds = runs.groupby("bucket")["seed"].nunique()
        counts = (len(values), int(seeds.min()), int(seeds.max()), len(runs))
        rows.append((*key, *_mean_std(values), float(before.mean()), *counts, tuple(runs["run_id"])))
    for key, runs in groups(scores, [key for key in KEYS if key != "shots"]):
        values = runs.groupby("seed")["zero_shot"].first().to_numpy()
        mean, std = _mean_std(values)
        counts = (0, len(values), len(values), len(runs))
        rows.append((*key[:-1], 0, key[-1], mean, std, mean, *counts, tuple(runs["run_id"])))
    columns = [*KEYS, "mean", "std", "zero_shot", "buckets", "fewest", "seeds", "n", "runs"]
    return pd.DataFrame(rows, columns=columns).sort_values(KEYS, ignore_index=True)


def common(scores: pd.DataFrame) -> pd.DataFrame:
    """Keep only the (bucket, seed) pairs that all strategies of a language and K have measured."""
    cell = [key for key in KEYS if key != "strategy"]
    measured = scores[scores["score"].notna()]
    # Includes strategies without any measured score.
    strategies = scores.groupby(cell)["strategy"].nunique().rename("strategies")
    have = measured.groupby([*cell, "bucket", "seed"])["strategy"].transform("nunique")
    return measured[have == measured.join(strategies, on=cell)["strategies"]]


def entering(scores: pd.DataFrame) -> tuple[pd.DataFrame, set[tuple[str, int, str]]]:
    """Return the rows that enter means, and (language, K, strategy) of incomplete strategies.

    As for continual learning (`xclrun.analysis.aggregate.compared`): the complete strategies of a language and K enter
    with the (bucket, seed) pairs that they share, incomplete strategies with their own pairs. ``scores`` must have only
    one metric and source.
    """
    measured = scores[scores["score"].notna()]
    chosen, incomplete = [], set()
    for (language, shots), rows in groups(measured, ["language", "shots"]):
        pairs = list(zip(rows["bucket"], rows["seed"], strict=True))
        have: dict[str, set[tuple[int, int]]] = {}
        for label, pair in zip(rows["strategy"], pairs, strict=True):
            have.setdefault(label, set()).add(pair)
        shared = most_shared(have, fewest=min(2, len(have)))
        behind = {label for label, own in have.items() if not (shared and own >= shared)}
        incomplete |= {(str(language), int(shots), label) for label in behind}
        enters = [label in behind or pair in shared for label, pair in zip(rows["strategy"], pairs, strict=True)]
        chosen.append(rows[enters])
    return measured[:0] if not chosen else measured.loc[[k for rows in chosen for k in rows.index]], incomplete


def replicates(scores: pd.DataFrame, strategies: Sequence[str]) -> Replicates | None:
    """Return the scores in the blocks (language, bucket, seed) that all ``strategies`` have, for significance tests.

    ``scores`` must have only one metric, source and K. If there is only one bucket of one language, its seeds are
    averaged into one replicate. None if ``strategies`` have no block in common.
    """
    blocked = common(scores).pivot_table(index=["language", "bucket", "seed"], columns="strategy", values="score")
    table = blocked.reindex(columns=list(strategies)).dropna()
    if table.empty:
        return None
    start = scores["source"].iloc[0]
    languages = tuple(map(str, table.index.get_level_values("language")))
    values = table.to_numpy().T
    blocks = tuple((f"{start}-{language}", int(seed), int(bucket)) for language, bucket, seed in table.index)
    if len({block[::2] for block in blocks}) == 1:
        blocks, languages = ((blocks[0][0], -1, blocks[0][2]),), languages[:1]
        values = values.mean(axis=1, keepdims=True)
    return Replicates(tuple(strategies), blocks, values, languages)


def groups(frame: pd.DataFrame, names: Sequence[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    yield from frame.groupby(list(names), sort=True)


def _mean_std(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class Spreads:
    """Scores of one language, K and strategy, to compare the effects of buckets and seeds.

    Attributes:
        buckets: scores of all buckets with the seed ``seed``.
        seeds: scores of all seeds with the bucket ``bucket``.
    """

    buckets: np.ndarray
    seed: int
    seeds: np.ndarray
    bucket: int


def seeds_against_buckets(scores: pd.DataFrame) -> Spreads | None:
    """Return the scores of all buckets for the seed with most buckets, and of all seeds for the bucket with most seeds.

    Source: FS Fig. 1. ``scores`` must have only one combination of `KEYS`. In a tie, the smallest seed or bucket is
    used. None if no seed has two buckets.
    """
    scores = scores.dropna(subset="score")
    pairs = scores[["seed", "bucket"]].drop_duplicates()
    buckets, seeds = pairs.groupby("seed").size(), pairs.groupby("bucket").size()
    if buckets.empty or buckets.max() < 2:
        return None
    seed, bucket = int(buckets.idxmax()), int(seeds.idxmax())
    over_seeds = scores[scores["bucket"] == bucket].sort_values("seed")["score"].to_numpy()
    return Spreads(scores[scores["seed"] == seed].sort_values("bucket")["score"].to_numpy(), seed, over_seeds, bucket)


def selected_dev(run: RunRecord, metric: str) -> float:
    """Return the dev score on the target at the best adaptation epoch, which is selected; NaN without dev scores."""
    goodness = BY_NAME[metric].goodness
    curve = goodness(dev_curve(run, metric))
    return float(goodness(np.nanmax(curve))) if np.isfinite(curve).any() else math.nan


def dev_curve(run: RunRecord, metric: str) -> np.ndarray:
    """Return the dev score on the target after each adaptation epoch, shape (epochs,) (FS Fig. 6)."""
    points = [point for point in run.curve if point["hop"] == run.hops]
    curve = np.full(max((point["epoch"] for point in points), default=0), np.nan)
    for point in points:
        curve[point["epoch"] - 1] = point_score(point.get("dev") or {}, target(run), metric)
    return curve
