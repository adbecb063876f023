"""Few-shot runs → one table of scores by (language, K, strategy, bucket, seed), and its averages over buckets.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021) §4. A run trains on a source language, then
adapts to a bucket of a target: stream ``transfer``. Its zero-shot score is the score on the target before adapting
(K = 0); without a source, the score before any fine-tuning. All scores are fractions.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.analysis.grouping import (
    grouped,
    numbered_labels,
    strategy_labels,
)
from xclrun.analysis.record import RunRecord
from xclrun.analysis.replicates import Replicates
from xclrun.core.task import short_name

if TYPE_CHECKING:
    import pandas as pd

STREAM = "transfer"
NO_SOURCE = "none"
FULL = "full"
# K where the whole training split is used, in place of a bucket.
WHOLE = -1

# One row per run and metric. ``shots`` is K or WHOLE; ``bucket`` is −1 where there are none. ``task`` is the metric's
# short name, as that column was called; it goes with the next version.
COLUMNS = ("run_id", "dataset", "model", "metric", "source", "language", "shots", "strategy", "bucket", "seed",
           "zero_shot", "score", "task")  # fmt: skip
# What a row of averages is about.
KEYS = ["dataset", "model", "metric", "source", "language", "shots", "strategy"]

# Beside order, seed and bucket, what may differ between the runs of one strategy: rows have columns for these.
_OWN = ("shots", "language", "source", "order.name", "order.languages", "dataset.languages", "languages", "data")


def is_few_shot(record: RunRecord) -> bool:
    """Whether a run is few-shot transfer."""
    return record.stream == STREAM


def target(record: RunRecord) -> str:
    """Return the language that a few-shot run adapts to."""
    return record.languages[-1]


def source(record: RunRecord) -> str:
    """Return the language of source training, or ``none``."""
    return record.languages[0] if len(record.languages) > 1 else NO_SOURCE


def labels(records: Iterable[RunRecord]) -> dict[str, str]:
    """Return run id → label of its strategy: the name, and settings where runs of that name differ in them.

    Not told apart by K, language, bucket and source, nor by data that differs with them; but where runs of one K,
    language and source drew from different data, that is named (its fingerprint's first six digits). ``naive`` is
    called ``full``, as the paper and the choice of conf call it.
    """
    records = list(records)
    given = strategy_labels(records, _OWN)
    named = {run_id: called(label) for run_id, label in given.items()}
    # Of a bucket whose whole data is not known nothing can be said: buckets of one set differ too.
    drawn = {r.run_id: r.data_fingerprint if r.bucket is None else r.whole_fingerprint for r in records}
    several: dict[tuple[str, str, str], set[str]] = {}
    rows = grouped(
        records, lambda r: (r.dataset, r.model, named[r.run_id], source(r), target(r), r.shots, r.bucket is None)
    )
    for (dataset, model, label, *_), runs in rows.items():
        if len(found_data := {drawn[r.run_id] for r in runs}) > 1:
            several.setdefault((dataset, model, label), set()).update(found_data)
    for r in records:
        label, data = named[r.run_id], drawn[r.run_id]
        if data in several.get((r.dataset, r.model, label), ()):
            settings = label[:-1] + ", " if label.endswith(")") else f"{label}("
            named[r.run_id] = f"{settings}data={data[:6] or 'unknown'})"
    return named


def numbered(records: Iterable[RunRecord]) -> dict[str, str]:
    """Return what labels of few-shot runs that are numbers stand for (`xclrun.analysis.grouping.numbered_labels`)."""
    numbers = numbered_labels((r for r in records if is_few_shot(r)), _OWN)
    return {called(label): meaning for label, meaning in numbers.items()}


def called(label: str) -> str:
    """Return what a strategy is called in few-shot tables: ``naive`` is ``full``."""
    return re.sub(r"^naive\b", FULL, label)


def few_shot_scores(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Return the finished few-shot runs, each run id once, as a table with `COLUMNS`, a row for each metric."""
    import pandas as pd

    runs = sorted({r.run_id: r for r in records if is_few_shot(r) and r.finished}.values(), key=lambda r: r.run_id)
    named = labels(runs)
    found = []
    for run in runs:
        shots = run.config.get("shots")
        for metric in run.metrics:
            column = run.scores[metric][:, -1]
            bucket = -1 if run.bucket is None else run.bucket
            what = (run.run_id, run.dataset, run.model, metric, source(run), target(run))
            how = (WHOLE if shots is None else int(shots), named[run.run_id], bucket, run.seed)
            found.append((*what, *how, float(column[-2]), float(column[-1]), short_name(metric)))
    return pd.DataFrame(found, columns=list(COLUMNS)).astype({"zero_shot": float, "score": float})


def over_buckets(scores: pd.DataFrame) -> pd.DataFrame:
    """Average over buckets: for each of `KEYS` the mean over buckets of the means over seeds.

    Returns:
        Columns `KEYS`, ``mean``, ``std`` (sample standard deviation over buckets, n − 1; NaN for one bucket),
        ``zero_shot`` (of the same runs, averaged likewise), ``buckets``, ``fewest`` and ``seeds`` (of the bucket that
        has fewest seeds, and most), ``n`` (runs), ``runs`` (their ids). K = 0 is a row of its own under every strategy:
        mean and standard deviation of zero-shot scores over seeds, 0 buckets. A score that was not measured makes the
        mean NaN.
    """
    import pandas as pd

    found: list[tuple[Any, ...]] = []
    for key, own in groups(scores, KEYS):
        values, before = (
            own.groupby("bucket")[name].apply(lambda s: s.mean(skipna=False)).to_numpy()
            for name in ("score", "zero_shot")
        )
        seeds = own.groupby("bucket")["seed"].nunique()
        found.append((*key, *_mean_std(values), float(before.mean()), len(values), int(seeds.min()), int(seeds.max()),
                     len(own), tuple(own["run_id"])))  # fmt: skip
    without = [key for key in KEYS if key != "shots"]
    for key, own in groups(scores, without):
        values = own.groupby("seed")["zero_shot"].first().to_numpy()
        dataset, model, metric, of, language, strategy = key
        mean, std = _mean_std(values)
        what = (dataset, model, metric, of, language, 0, strategy)
        found.append((*what, mean, std, mean, 0, len(values), len(values), len(own), tuple(own["run_id"])))
    columns = [*KEYS, "mean", "std", "zero_shot", "buckets", "fewest", "seeds", "n", "runs"]
    return pd.DataFrame(found, columns=columns).sort_values(KEYS, ignore_index=True)


def common(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the measured rows whose bucket and seed all strategies have that have any of the same language and K."""
    cell = [key for key in KEYS if key != "strategy"]
    given = scores[scores["score"].notna()]
    # A strategy of which nothing was measured still is one that lacks it.
    wanted = scores.groupby(cell)["strategy"].nunique().rename("wanted")
    have = given.groupby([*cell, "bucket", "seed"])["strategy"].transform("nunique")
    return given[have == given.join(wanted, on=cell)["wanted"]]


def replicates(scores: pd.DataFrame, strategies: Sequence[str]) -> Replicates | None:
    """Return the scores of one metric, source and K as tests take them: what all ``strategies`` have of a language.

    Blocks are (language, bucket, seed); replicates: languages, or the buckets of one (docs/metrics.md, "Significance").
    A single bucket of one language is a single replicate, the mean over its seeds: these say nothing of others.

    Returns:
        None where nothing is common.
    """
    of = ["language", "bucket", "seed"]
    table = common(scores).pivot_table(index=of, columns="strategy", values="score").reindex(columns=list(strategies))
    table = table.dropna()
    if table.empty:
        return None
    start = scores["source"].iloc[0]
    languages = tuple(map(str, table.index.get_level_values("language")))
    values = table.to_numpy().T
    blocks = tuple((f"{start}-{language}", int(seed), int(bucket)) for language, bucket, seed in table.index)
    if len({block[::2] for block in blocks}) == 1:
        blocks, languages, values = (
            ((blocks[0][0], -1, blocks[0][2]),),
            languages[:1],
            values.mean(axis=1, keepdims=True),
        )
    return Replicates(tuple(strategies), blocks, values, languages)


def groups(frame: pd.DataFrame, names: Sequence[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Yield (values of ``names``, rows), sorted."""
    yield from frame.groupby(list(names), sort=True)


def _mean_std(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class Spreads:
    """Scores of one language, K and strategy by what differs (FS Fig. 1).

    Attributes:
        buckets: scores of all buckets with one seed, and that seed.
        seeds: scores of all seeds with one bucket, and that bucket.
    """

    buckets: np.ndarray
    seed: int
    seeds: np.ndarray
    bucket: int


def seeds_against_buckets(own: pd.DataFrame) -> Spreads | None:
    """Return the scores over buckets with the seed that has most of them, and over seeds likewise.

    Args:
        own: rows of one of `KEYS`; those without a score are left out. Of equals the smallest seed or bucket counts.

    Returns:
        None where there are not two buckets with a seed in common.
    """
    own = own.dropna(subset="score")
    pairs = own[["seed", "bucket"]].drop_duplicates()
    buckets, seeds = Counter(sorted(pairs["seed"].tolist())), Counter(sorted(pairs["bucket"].tolist()))
    if not buckets or max(buckets.values()) < 2:
        return None
    (seed, _), (bucket, _) = buckets.most_common(1)[0], seeds.most_common(1)[0]
    of_seed = own[own["seed"] == seed].sort_values("bucket")["score"].to_numpy()
    return Spreads(of_seed, seed, own[own["bucket"] == bucket].sort_values("seed")["score"].to_numpy(), bucket)


def selected_dev(run: RunRecord, metric: str) -> float:
    """Return the dev score on the target of the epoch that was selected; NaN where dev was not evaluated."""
    curve = dev_curve(run, metric)
    return float(np.nanmax(curve)) if np.isfinite(curve).any() else math.nan


def dev_curve(run: RunRecord, metric: str) -> np.ndarray:
    """Return the dev score on the target after each epoch of adapting, shape (epochs,); NaN: not measured (FS Fig. 6).

    The curve ends where training stopped.
    """
    points = [point for point in run.curve if point["hop"] == run.hops]
    curve = np.full(max((point["epoch"] for point in points), default=0), np.nan)
    for point in points:
        score = (point.get("dev") or {}).get(target(run), {}).get(metric)
        curve[point["epoch"] - 1] = np.nan if score is None else score
    return curve
