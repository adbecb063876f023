"""Few-shot scores: means over buckets, published ones beside (FS Tables 2, 6, 11–13).

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xclrun.analysis.correlation import correlate
from xclrun.analysis.fewshot.scores import WHOLE, common, groups, over_buckets
from xclrun.analysis.fewshot.scores import rows as rows_of
from xclrun.core.task import short_name
from xclrun.report.fewshot.data import FewShotRuns
from xclrun.report.fewshot.inference import UNTESTED
from xclrun.report.fewshot.names import mean_and_std, method_name, shots_name, source_name, task_name
from xclrun.report.inference import Verdicts
from xclrun.report.part import Item, part
from xclrun.report.parts.fewshot_tests import fewshot_tests
from xclrun.report.published import fsxlt
from xclrun.report.tables import Cell, Table, percent

if TYPE_CHECKING:
    import pandas as pd


OVER_BUCKETS = "mean ± sample standard deviation over buckets; a bucket's score is the mean over seeds"
ZERO = "K = 0: zero-shot, the score on the target before adapting; mean ± standard deviation over seeds"
# Rows that a note names.
NAMED = 8


@part(FewShotRuns, place=10, title="{metric}{source}: means over buckets")
def fewshot_means(runs: FewShotRuns) -> Iterator[Item]:
    for strategy in runs.strategies:
        yield by_language(runs.means, strategy)
    told = runs.tests.notes(fewshot_tests.title.format_map(runs.heading))
    across = by_strategy(runs.scores, runs.strategies, runs.tests, runs.options.unpaired, told)
    if across is not None:
        yield across


def by_language(own: pd.DataFrame, strategy: str) -> Table:
    """Return one strategy's scores: languages down, K across, the published numbers beside (FS 2, 11–13).

    Args:
        own: averages (`xclrun.analysis.fewshot.scores.over_buckets`) of one dataset, model, metric and source.
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
                line.append("–" if theirs is None else mean_and_std(theirs.mean, theirs.std))
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
            published = "–" if theirs is None else mean_and_std(theirs.mean, theirs.std)
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


def _score(row: Any) -> Cell:
    if row is None or row.mean != row.mean:
        return Cell("–")
    return Cell(mean_and_std(row.mean, row.std), row.mean, row.runs)


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
