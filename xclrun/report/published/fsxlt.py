"""Published tables of the few-shot paper, and the language features behind its Table 3.

From "A Closer Look at Few-Shot Crosslingual Transfer" (FS; Zhao et al. 2021): ``fsxlt_tables.csv`` (Tables 2, 3,
6, 12, 13, 14), ``fsxlt_more_tables.csv`` (Tables 4, 11), ``fsxlt_confusions.csv`` (Table 10) and ``wals_features.csv``
(Table 9). Where English is the source, K = 0 is zero-shot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from xclrun.analysis.correlation import shared_features
from xclrun.analysis.fewshot.gains import Association, ByLanguage, associations, with_mean
from xclrun.analysis.fewshot.scores import FULL, NO_SOURCE
from xclrun.report.published.facts import facts
from xclrun.report.published.setup import SPAN_F1, Setup

SOURCE = "en"
# Tables of scores with English as the source.
OF_SCORES = ("2", "6", "12", "13")
# Task of Table 3 → table of its scores.
TABLES = {"panx": "13", "udpos": "12"}
# Table 4 should be Table 11 minus Tables 2, 12 and 13 at the same K. Misprints: (task, language, K) → K of the score
# that is subtracted instead.
MISPRINTS = {("udpos", "ru", 4): 2, ("udpos", "es", 4): 2}


def setup(task: str) -> Setup:
    """Return the setup of target adapting on a task; test sizes and seeds are unknown."""
    return Setup(
        "FS", task, "mbert", steps="at most 50 epochs, batch of all examples", sizes=False,
        metrics={"class_accuracy": "class accuracy", "token_accuracy": "token accuracy",
                 "entity_f1": f"entity F1 ({SPAN_F1['span_micro']})"},
    )  # fmt: skip


@dataclass(frozen=True)
class Reported:
    """A published fraction with standard deviation over 40 buckets (NaN: not printed), or a coefficient (Table 3)."""

    table: str
    task: str
    language: str
    shots: int
    method: str
    mean: float
    std: float


@cache
def fsxlt_tables() -> dict[str, tuple[Reported, ...]]:
    """Return table number → its numbers, in the order of the paper."""
    scale = {"3": 1.0, "14": 1000.0}
    tables: dict[str, tuple[Reported, ...]] = {}
    for row in facts("fsxlt_tables.csv") + facts("fsxlt_more_tables.csv"):
        table, unit = row["table"], scale.get(row["table"], 100.0)
        mean, std = (float(row[key]) / unit if row[key] else math.nan for key in ("mean", "std"))
        reported = Reported(table, row["task"], row["language"], int(row["shots"]), row["method"], mean, std)
        tables[table] = (*tables.get(table, ()), reported)
    return tables


@cache
def wals() -> dict[str, dict[str, str]]:
    """Return language → WALS feature → value; unknown values and languages without known values are omitted."""
    rows = {row["iso"]: {k: v for k, v in row.items() if k[0].isdigit() and v} for row in facts("wals_features.csv")}
    return {language: features for language, features in rows.items() if features}


@cache
def shared_with_english() -> dict[str, float]:
    """Return language → number of WALS features that it shares with English; unknown features count as not shared."""
    english = wals()[SOURCE]
    return {k: float(shared_features(english, features)) for k, features in wals().items() if k != SOURCE}


def sweep_table(sweep: str) -> str | None:
    """Return the number of the published table that a sweep reproduces (``fs_table2_marc`` → ``2``), or None."""
    number = sweep.removeprefix("fs_table").partition("_")[0]
    return number if sweep.startswith("fs_table") and number in fsxlt_tables() else None


def scores(task: str, source: str = SOURCE) -> dict[tuple[str, int, str], Reported]:
    """Return the published scores of a task: (language, K, method) → number; K = 0 has an entry for each method.

    Without source training (`NO_SOURCE`), the scores are from Table 11. Other sources have no published scores.
    """
    if source != SOURCE:
        rows = [r for r in fsxlt_tables()["11"] if r.task == task and source == NO_SOURCE]
        return {(r.language, r.shots, FULL): r for r in rows}
    rows = [r for table in OF_SCORES for r in fsxlt_tables()[table] if r.task == task]
    methods = {r.method for r in rows}
    few_shot = {(r.language, r.shots, r.method): r for r in rows}
    zero = {(r.language, 0, method): r for r in rows if r.shots == 0 for method in methods}
    return zero | few_shot


def drops(task: str) -> dict[tuple[str, int], float]:
    return {(r.language, r.shots): r.mean for r in fsxlt_tables()["4"] if r.task == task}


@cache
def confusions(task: str) -> dict[tuple[str, int], dict[tuple[str, str], int]]:
    """Return (language, K) → (gold label, predicted label) → number of test examples (Table 10); K = 0: zero-shot."""
    counts: dict[tuple[str, int], dict[tuple[str, str], int]] = {}
    for row in facts("fsxlt_confusions.csv"):
        if row["task"] == task:
            cells = counts.setdefault((row["language"], int(row["shots"])), {})
            cells[row["gold_stars"], row["predicted_stars"]] = int(row["count"])
    return counts


@cache
def scripts() -> dict[str, str]:
    return {row["iso"]: row["script"] for row in facts("wals_features.csv")}


def published_overlap(task: str) -> dict[int, ByLanguage]:
    """Return K → language → lexical overlap as a fraction (Table 14); `ALL` has the mean over K."""
    overlap: dict[int, dict[str, float]] = {}
    for r in fsxlt_tables()["14"]:
        if r.task == task:
            overlap.setdefault(r.shots, {})[r.language] = r.mean
    return with_mean(overlap)


def published_gains(task: str) -> dict[int, ByLanguage]:
    """Return K → language → few-shot score minus zero-shot score (Tables 12, 13); `ALL` has the mean over K."""
    rows = [r for r in fsxlt_tables()[TABLES[task]] if r.task == task and r.language != SOURCE]
    zero = {r.language: r.mean for r in rows if r.shots == 0}
    gains: dict[int, dict[str, float]] = {}
    for r in rows:
        if r.shots > 0:
            gains.setdefault(r.shots, {})[r.language] = r.mean - zero[r.language]
    return with_mean(gains)


def published_associations(task: str) -> list[Association]:
    """Recompute Table 3 from the printed Tables 9 and 12 to 14."""
    return associations(published_gains(task), published_overlap(task), shared_with_english())


def printed(task: str, factor: str) -> tuple[float, float]:
    """Return Spearman's and Pearson's coefficient as printed in Table 3."""
    coefficients = {r.method: r.mean for r in fsxlt_tables()["3"] if r.task == task}
    return coefficients[f"{factor}:spearman"], coefficients[f"{factor}:pearson"]


def distance(task: str, association: Association) -> float:
    """Return the larger of the absolute differences of Spearman's and Pearson's coefficient from Table 3."""
    spearman, pearson = printed(task, association.factor)
    return max(abs(association.correlation.spearman - spearman), abs(association.correlation.pearson - pearson))


def closest(task: str, factor: str) -> Association:
    return min((a for a in published_associations(task) if a.factor == factor), key=lambda a: distance(task, a))
