"""Tables of few-shot scores: means over buckets with the published ones beside, correlations of gains, variance.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xclrun.analysis.correlation import correlate
from xclrun.analysis.fewshot import WHOLE, common, groups, over_buckets
from xclrun.analysis.fewshot import rows as rows_of
from xclrun.analysis.gains import ALL, FACTORS, Association, ByLanguage, associations, with_mean
from xclrun.analysis.variance import balanced, nested_variance
from xclrun.core.task import short_name
from xclrun.report.inference import Verdicts, p_text
from xclrun.report.published import fsxlt
from xclrun.report.tables import Cell, Table, percent

if TYPE_CHECKING:
    import pandas as pd

# Our names → those of the paper's tasks.
TASK_OF = {"pud": "udpos"}
OVER_BUCKETS = "mean ± sample standard deviation over buckets; a bucket's score is the mean over seeds"
ZERO = "K = 0: zero-shot, the score on the target before adapting; mean ± standard deviation over seeds"

UNTESTED = "strategies are not tested against each other here: a difference between columns may be chance"
# Rows that a note names.
NAMED = 8


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


def by_language(own: pd.DataFrame, strategy: str) -> Table:
    """Return one strategy's scores: languages down, K across, the published numbers beside (FS 2, 11–13).

    Args:
        own: averages (`xclrun.analysis.fewshot.over_buckets`) of one dataset, model, metric and source.
    """
    rows = own[own["strategy"] == strategy]
    dataset, model, metric, source = (rows[k].iloc[0] for k in ("dataset", "model", "metric", "source"))
    reported = fsxlt.scores(task_name(dataset)) if source == fsxlt.SOURCE else {}
    method = method_name(strategy)
    shots = sorted(rows["shots"].unique(), key=lambda k: (k == WHOLE, k))
    beside = {k: any((c, k, method) in reported for c in rows["language"]) for k in shots}
    cells = {(r.language, r.shots): r for r in rows_of(rows)}
    body, pairs = [], dict[int, list[tuple[float, float]]]()
    for language in sorted(rows["language"].unique()):
        line: list[str] = []
        for k in shots:
            line.append(_score(cells.get((language, k))))
            if beside[k]:
                theirs = reported.get((language, k, method))
                line.append("–" if theirs is None else _plain(theirs.mean, theirs.std))
                if theirs is not None and (language, k) in cells:
                    pairs.setdefault(k, []).append((cells[language, k].mean, theirs.mean))
        body.append((language, *line))
    header = ["language", *(name for k in shots for name in (shots_name(k), *(["published"] if beside[k] else [])))]
    notes = [OVER_BUCKETS, ZERO, _counts(rows)]
    if pairs:
        notes.append(
            f"published: FS paper, {task_name(dataset)}, mBERT, {method}, 40 buckets; ours: {dataset} with {model}"
        )
        if (dataset, model) != (task_name(dataset), "mbert"):
            notes.append("not the paper's data and encoder: ranks may be compared, values may not")
        notes += _ranks(pairs)
    return Table(
        f"{short_name(metric)} by language, {strategy}{source_name(source)}", tuple(header), tuple(body), tuple(notes)
    )


def by_strategy(
    scores: pd.DataFrame,
    strategies: Sequence[str],
    tests: Verdicts | None = None,
    unpaired: bool = False,
    told: Sequence[str] = (UNTESTED,),
) -> Table | None:
    """Return what is tuned against each other: (language, K) down, strategies across (FS Table 6).

    A mean is over the buckets and seeds that all strategies have of its row. Where languages are the blocks of tests,
    a last row of each K has means over languages, and the marks; else the row of the language that was tested has them.

    Args:
        scores: rows of `few_shot_scores` of one dataset, model, metric and source.
        strategies: labels, in this order.
        tests: of them.
        unpaired: means are over all that a strategy has.
        told: what is to be said of the tests.

    Returns:
        None where there is one strategy.
    """
    if len(strategies) < 2:
        return None
    dataset, metric, source = (str(scores[k].iloc[0]) for k in ("dataset", "metric", "source"))
    reported = fsxlt.scores(task_name(dataset)) if source == fsxlt.SOURCE else {}
    shared = common(scores)
    shown = scores if unpaired else shared
    own = over_buckets(shown)
    cells = {(r.language, r.shots, r.strategy): r for r in rows_of(own)}
    marks = tests.marks() if tests is not None else {}
    given = tests.tests if tests is not None else {}
    body, beside = [], {s: any(m == method_name(s) for _, _, m in reported) for s in strategies}

    def line(language: str, k: int, found: Sequence[Cell], marked: bool) -> None:
        best = max((percent(c.value) for c in found if c.value == c.value), key=float, default="")
        row: list[str] = []
        for strategy, ours in zip(strategies, found, strict=True):
            ours.best = percent(ours.value) == best
            ours.mark = marks.get((strategy, metric, shots_name(k)), "") if marked else ""
            theirs = reported.get((language, k, method_name(strategy)))
            published = "–" if theirs is None else _plain(theirs.mean, theirs.std)
            row += [ours, *([published] if beside[strategy] else [])]
        body.append((language, shots_name(k), *row))

    for language, k in sorted({(str(c), int(k)) for c, k in zip(scores["language"], scores["shots"], strict=True)}):
        alone = given.get((metric, shots_name(k)))
        marked = alone is not None and alone.data.kind != "languages" and alone.data.languages[0] == language
        line(language, k, [_score(cells.get((language, k, s))) for s in strategies], marked)
    first = len(body)
    for k in sorted(set(scores["shots"])):
        across = given.get((metric, shots_name(k)))
        if across is not None and across.data.kind == "languages":
            tested = shared[(shared["shots"] == k) & shared["language"].isin(across.data.languages)]
            behind = {label: tuple(them["run_id"]) for (label,), them in groups(tested, ["strategy"])}
            means = dict(zip(across.data.strategies, across.averaged.values.mean(axis=1), strict=True))
            found = [
                Cell(percent(means[s]), float(means[s]), behind[s]) if s in means else Cell("–") for s in strategies
            ]
            line(f"mean of {len(across.averaged.blocks)} languages", int(k), found, True)
    header = [
        "language",
        "K",
        *(x for s in strategies for x in (s, *([f"{method_name(s)} (FS)"] if beside[s] else []))),
    ]
    notes = [OVER_BUCKETS, *([] if own.empty else [_counts(own)]), *_left_out(scores, shared, unpaired)]
    notes += told
    made = [c for row in body for c in row if isinstance(c, Cell)]
    raised = [tests.marks_told] if tests is not None and any(c.mark for c in made) else []
    raised += ["bold: best of the row"] if any(c.best for c in made) else []
    ruled = (first,) if 0 < first < len(body) else ()
    title = f"{short_name(metric)}: what is tuned{source_name(source)}"
    return Table(title, tuple(header), tuple(body), tuple(notes), left=2, raised=tuple(raised), ruled=ruled)


def _left_out(scores: pd.DataFrame, shared: pd.DataFrame, unpaired: bool) -> list[str]:
    """Say where strategies have not the same buckets and seeds, and what the means are over then."""
    told = []
    for (language, k), own in groups(scores, ["language", "shots"]):
        both = shared[(shared["language"] == language) & (shared["shots"] == k)]
        n, of = (len(frame[["bucket", "seed"]].drop_duplicates()) for frame in (both, own))
        told += [f"{language} {shots_name(k)}: {n} of {of}"] if n < of else []
    if not told:
        return []
    more = f"; and {len(told) - NAMED} more" if len(told) > NAMED else ""
    over = "all that its own strategy has; tests and means of languages over those that all have" if unpaired else ""
    begin = "not all strategies have the same buckets and seeds; each mean is over "
    return [f"{begin}{over or 'those that all have'} ({'; '.join(told[:NAMED])}{more})"]


def gains(own: pd.DataFrame, strategy: str) -> dict[int, ByLanguage]:
    """Return K → language → few-shot score minus zero-shot score; under ALL the mean over K."""
    found: dict[int, dict[str, float]] = {}
    for row in rows_of(own[(own["strategy"] == strategy) & (own["shots"] > 0)]):
        if math.isfinite(row.mean - row.zero_shot):
            found.setdefault(row.shots, {})[row.language] = row.mean - row.zero_shot
    return with_mean(found)


def association_table(title: str, gained: Mapping[int, ByLanguage], overlap: Mapping[int, ByLanguage]) -> Table:
    """Return our gains against lexical overlap and shared WALS features (FS Table 3)."""
    found = [
        one
        for one in associations(gained, with_mean(overlap) if overlap else {}, fsxlt.shared_with_english())
        if one.overlap in (None, one.gains)
    ]
    lines = [(FACTORS[one.factor], _k(one.gains), *_coefficients(one)) for one in sorted(found, key=_order)]
    notes = [
        "gain: few-shot score minus zero-shot score, mean over buckets; one pair for each language; p-values two-sided",
        "shared WALS features: of 81A, 85A–89A, those on which the language agrees with English; a feature that is not "
        "known is not shared, a language without any is left out",
    ]
    if not overlap:
        notes.append("lexical overlap: n/a: needs the words of the buckets and of a source")
    return Table(title, ("factor", "gain at", *_COEFFICIENTS), tuple(lines), tuple(notes), left=2)


def table_3() -> list[Table]:
    """Return what the printed tables of FS give for its Table 3: a row for each K, and for what comes closest."""
    tables = []
    for task in fsxlt.TABLES:
        rows: list[tuple[str, ...]] = []
        for factor, name in FACTORS.items():
            spearman, pearson = fsxlt.printed(task, factor)
            rows.append((name, "as printed", "", "", f"{spearman:.2f}", "–", f"{pearson:.2f}", "–", "–", ""))
            best = fsxlt.closest(task, factor)
            them = [a for a in fsxlt.published_associations(task) if a.factor == factor]
            chosen = [a for a in them if a.overlap in (None, a.gains)]
            for one in sorted([*chosen, *([] if best in chosen else [best])], key=_order):
                told = "closest" if one == best else ""
                of = "" if one.overlap is None else _k(one.overlap)
                off = fsxlt.distance(task, one)
                rows.append((name, _k(one.gains), of, told, *_coefficients(one), Cell(f"{off:.3f}", off)))
        header = ("factor", "gain at", "overlap at", "", *_COEFFICIENTS, "off by")
        notes = (
            f"gains from Table {fsxlt.TABLES[task]}, overlap from Table 14, features from Table 9, as printed; off by: "
            "the larger difference of the two coefficients from Table 3's",
            "closest: of all pairs (K of the gain, K of the overlap), each 1, 2, 4 or the mean over K",
        )
        tables.append(
            Table(f"FS Table 3, {task}: recomputed from the printed tables", header, tuple(rows), notes, left=4)
        )
    return tables


def variance_table(title: str, scores: pd.DataFrame) -> Table | None:
    """Return variance components of each K: language, bucket in language, seed. None where no K has two buckets.

    Args:
        scores: rows of `few_shot_scores` of one dataset, model, metric, source and strategy.
    """
    rows: list[tuple[str, ...]] = []
    notes = [
        "balanced random-effects model: language, bucket nested in language, seed crossed with both; components from "
        "expected mean squares; std: square root of the component in points; share: of the sum of all components",
        "p: F test that the component is 0; where the estimate is negative, it is 0",
    ]
    for (k,), own in groups(scores[scores["shots"] > 0], ["shots"]):
        cells = {(r.language, r.bucket, r.seed): r.score for r in rows_of(own) if r.score == r.score}
        values, languages, left = balanced(cells)
        if values.shape[1] < 2:
            continue
        shape = f"{len(languages)} languages × {values.shape[1]} buckets × {values.shape[2]} seeds"
        notes.append(f"{shots_name(k)}: {shape}" + (f"; {left} runs outside this balanced part" if left else ""))
        for one in nested_variance(values):
            std = math.sqrt(max(one.variance, 0.0)) if one.variance == one.variance else math.nan
            rows.append(
                (shots_name(k), one.source, str(one.df), cell(std, 100, 2), cell(one.share, 100, 1), p_text(one.p))
            )
    if not rows:
        return None
    if all("rest" in row[1] or row[1] == "language" for row in rows):
        notes.append("one seed: what the bucket does cannot be told from the rest; run a second seed")
    return Table(title, ("K", "source of variance", "df", "std", "share (%)", "p"), tuple(rows), tuple(notes), left=2)


_COEFFICIENTS = ("Spearman's ρ", "p", "Pearson's r", "p", "n")


def _coefficients(one: Association) -> tuple[str, ...]:
    f = one.found
    return (cell(f.spearman, 1, 2), p_text(f.spearman_p), cell(f.pearson, 1, 2), p_text(f.pearson_p), str(f.n))


def _order(one: Association) -> tuple[Any, ...]:
    return (list(FACTORS).index(one.factor), one.gains == ALL, one.gains, one.overlap or 0)


def _k(k: int) -> str:
    return "mean over K" if k == ALL else shots_name(k)


def _score(row: Any) -> Cell:
    if row is None or row.mean != row.mean:
        return Cell("–")
    return Cell(_plain(row.mean, row.std), row.mean, row.runs)


def _plain(mean: float, std: float) -> str:
    return percent(mean) + (f" ± {percent(std)}" if std == std else "")


def cell(value: float | None, scale: float, digits: int) -> Cell:
    if value is None or value != value:
        return Cell("–")
    return Cell(f"{round(scale * value, digits) + 0.0:.{digits}f}", value)


def _counts(rows: pd.DataFrame) -> str:
    """Say how many buckets and seeds are behind the means."""
    few = rows[rows["shots"] != 0]
    buckets = _range(few["buckets"], few["buckets"], "in all rows")
    return f"buckets: {buckets}; seeds: {_range(few['fewest'], few['seeds'], 'for all buckets')}"


def _range(lows: pd.Series, highs: pd.Series, what: str) -> str:
    low, high = int(lows.min()), int(highs.max())
    return f"{low}" if low == high else f"{low} to {high}, not the same {what}"


def _ranks(pairs: Mapping[int, Sequence[tuple[float, float]]]) -> list[str]:
    found = {k: correlate(*zip(*them, strict=True)) for k, them in pairs.items()}
    told = [
        f"{f.spearman:.2f} at {shots_name(k)} ({f.n} languages)" for k, f in found.items() if f.spearman == f.spearman
    ]
    if told:
        return [f"Spearman's ρ with the published numbers: {', '.join(told)}"]
    return ["no rank correlation with the published numbers: it needs three languages that differ"]
