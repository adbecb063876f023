"""Few-shot scores: means over buckets, published ones beside (FS Tables 2, 6, 11–13).

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xclrun.analysis.correlation import correlate
from xclrun.analysis.fewshot.scores import NO_SOURCE, WHOLE, common, groups, over_buckets
from xclrun.report.fewshot.data import FewShotRuns
from xclrun.report.fewshot.names import mean_and_std, method_name, shots_name, source_name, task_name
from xclrun.report.part import Item, part
from xclrun.report.parts.fewshot_tests import fewshot_tests
from xclrun.report.published import fsxlt
from xclrun.report.published.setup import setup_notes
from xclrun.report.tables import Cell, Table, mark_best, percent

if TYPE_CHECKING:
    import pandas as pd


OVER_BUCKETS = "mean ± sample standard deviation over buckets; a bucket's score is the mean over seeds"
ZERO = "K = 0: zero-shot, the score on the target before adapting; mean ± standard deviation over seeds"
UNTRAINED = "K = 0: the score before any fine-tuning, with untrained heads; mean ± standard deviation over seeds"
# Rows that a note names.
NAMED = 8


@part(FewShotRuns, place=10, title="{metric}{source}: means over buckets")
def fewshot_means(runs: FewShotRuns) -> Iterator[Item]:
    for strategy in runs.strategies:
        yield by_language(runs, strategy)
    if len(runs.strategies) > 1:
        yield by_strategy(runs)


def by_language(runs: FewShotRuns, strategy: str) -> Table:
    """Return one strategy's scores: languages down, K across, the published numbers beside (FS 2, 11–13)."""
    own, method = runs.means[runs.means["strategy"] == strategy], method_name(strategy)
    shots = sorted(own["shots"].unique(), key=lambda k: (k == WHOLE, k))
    beside = {k: any((c, k, method) in runs.published for c in own["language"]) for k in shots}
    means = {(r.language, r.shots): r for r in own.itertuples(index=False)}
    rows, pairs = [], dict[int, list[tuple[float, float]]]()
    for language in sorted(own["language"].unique()):
        row: list[str] = [language]
        for k in shots:
            row.append(_score(means.get((language, k))))
            theirs = runs.published.get((language, k, method))
            row += [_published(theirs)] if beside[k] else []
            if theirs is not None and (language, k) in means:
                pairs.setdefault(k, []).append((means[language, k].mean, theirs.mean))
        rows.append(tuple(row))
    header = ["language", *(name for k in shots for name in (shots_name(k), *(["published"] if beside[k] else [])))]
    notes = [OVER_BUCKETS, UNTRAINED if runs.source == NO_SOURCE else ZERO, _counts(own)]
    if pairs:
        notes.append(f"published: FS paper, {method}, over 40 buckets")
        notes += [*_setup(runs, [strategy]), *_ranks(pairs)]
    title = f"{runs.short} by language, {strategy}{source_name(runs.source)}"
    return Table(title, tuple(header), tuple(rows), tuple(notes))


# Of a table of strategies: language, K, the cells of the strategies, and whether these have the marks of the tests.
Line = tuple[str, int, list[Cell], bool]


def by_strategy(runs: FewShotRuns) -> Table:
    """Return what is tuned against each other: (language, K) down, strategies across (FS Table 6).

    A mean is over the buckets and seeds that all strategies have of its row, or with ``unpaired`` over all that a
    strategy has. Where languages are the blocks of tests, a last row of each K has means over languages, and the marks;
    else the row of the language that was tested has them.
    """
    shared = common(runs.scores)
    means = over_buckets(runs.scores if runs.options.unpaired else shared)
    of_languages, across = list(_of_languages(runs, means)), list(_across_languages(runs, shared))
    beside = {s: any(method == method_name(s) for *_, method in runs.published) for s in runs.strategies}
    marks, rows = runs.tests.marks(), []
    for language, k, cells, marked in (*of_languages, *across):
        mark_best(cells)
        row: list[str] = [language, shots_name(k)]
        for strategy, cell in zip(runs.strategies, cells, strict=True):
            cell.mark = marks.get((strategy, runs.metric, shots_name(k)), "") if marked else ""
            theirs = runs.published.get((language, k, method_name(strategy)))
            row += [cell, *([_published(theirs)] if beside[strategy] else [])]
        rows.append(tuple(row))
    names = (name for s in runs.strategies for name in (s, *([f"{method_name(s)} (FS)"] if beside[s] else [])))
    counts = [] if means.empty else [_counts(means)]
    tested = runs.tests.notes(fewshot_tests.title.format_map(runs.heading))
    setup = _setup(runs, [s for s in runs.strategies if beside[s]])
    notes = (OVER_BUCKETS, *counts, *_left_out(runs.scores, shared, runs.options.unpaired), *setup, *tested)
    shown = [cell for *_, cells, _ in (*of_languages, *across) for cell in cells]
    raised = [runs.tests.marks_meaning] if any(cell.mark for cell in shown) else []
    raised += ["bold: best of the row"] if any(cell.best for cell in shown) else []
    title, ruled = f"{runs.short}: what is tuned{source_name(runs.source)}", (len(of_languages),) if across else ()
    return Table(title, ("language", "K", *names), tuple(rows), notes, left=2, raised=tuple(raised), ruled=ruled)


def _of_languages(runs: FewShotRuns, means: pd.DataFrame) -> Iterator[Line]:
    """Yield the rows of each language and K; ``means`` as `over_buckets` gives them."""
    by_cell = {(r.language, r.shots, r.strategy): r for r in means.itertuples(index=False)}
    for (language, k), _ in groups(runs.scores, ["language", "shots"]):
        tests = runs.tests.tests.get((runs.metric, shots_name(k)))
        marked = tests is not None and tests.data.kind != "languages" and tests.data.languages[0] == language
        yield language, int(k), [_score(by_cell.get((language, k, s))) for s in runs.strategies], marked


def _across_languages(runs: FewShotRuns, shared: pd.DataFrame) -> Iterator[Line]:
    """Yield the means over the languages that are the blocks of tests, for each K that has such."""
    for (k,), own in groups(shared, ["shots"]):
        tests = runs.tests.tests.get((runs.metric, shots_name(k)))
        if tests is not None and tests.data.kind == "languages":
            own = own[own["language"].isin(tests.data.languages)]
            behind = {label: tuple(them["run_id"]) for (label,), them in groups(own, ["strategy"])}
            means = dict(zip(tests.data.strategies, tests.averaged.values.mean(axis=1).tolist(), strict=True))
            cells = [Cell(percent(means[s]), means[s], behind[s]) if s in means else Cell("–") for s in runs.strategies]
            yield f"mean of {len(tests.averaged.blocks)} languages", int(k), cells, True


def _left_out(scores: pd.DataFrame, shared: pd.DataFrame, unpaired: bool) -> list[str]:
    """Say where strategies have not the same buckets and seeds, and what the means are over then."""
    fewer = []
    for (language, k), own in groups(scores, ["language", "shots"]):
        both = shared[(shared["language"] == language) & (shared["shots"] == k)]
        n, of = (len(frame[["bucket", "seed"]].drop_duplicates()) for frame in (both, own))
        fewer += [f"{language} {shots_name(k)}: {n} of {of}"] if n < of else []
    if not fewer:
        return []
    more = f"; and {len(fewer) - NAMED} more" if len(fewer) > NAMED else ""
    over = "all that its own strategy has; tests and means of languages over those that all have" if unpaired else ""
    begin = "not all strategies have the same buckets and seeds; each mean is over "
    return [f"{begin}{over or 'those that all have'} ({'; '.join(fewer[:NAMED])}{more})"]


def _setup(runs: FewShotRuns, strategies: Sequence[str]) -> list[str]:
    """Return how the paper's setup and that of our few-shot runs differ; nothing without runs."""
    ids = runs.scores.loc[runs.scores["strategy"].isin(strategies), "run_id"]
    behind = [runs.records[run_id] for run_id in dict.fromkeys(ids)]
    return setup_notes(fsxlt.setup(task_name(runs.dataset)), behind, [runs.metric]) if behind else []


def _score(row: Any) -> Cell:
    if row is None or row.mean != row.mean:
        return Cell("–")
    return Cell(mean_and_std(row.mean, row.std), row.mean, row.runs)


def _published(number: fsxlt.Reported | None) -> str:
    return "–" if number is None else mean_and_std(number.mean, number.std)


def _counts(rows: pd.DataFrame) -> str:
    """Say how many buckets and seeds are behind the means."""
    few = rows[rows["shots"] != 0]
    buckets = _range(few["buckets"], few["buckets"], "in all rows")
    return f"buckets: {buckets}; seeds: {_range(few['fewest'], few['seeds'], 'for all buckets')}"


def _range(lows: pd.Series, highs: pd.Series, what: str) -> str:
    low, high = int(lows.min()), int(highs.max())
    return f"{low}" if low == high else f"{low} to {high}, not the same {what}"


def _ranks(pairs: Mapping[int, Sequence[tuple[float, float]]]) -> list[str]:
    of = {k: correlate(*zip(*them, strict=True)) for k, them in pairs.items()}
    known = [
        f"{c.spearman:.2f} at {shots_name(k)} ({c.n} languages)" for k, c in of.items() if c.spearman == c.spearman
    ]
    if known:
        return [f"Spearman's ρ with the published numbers: {', '.join(known)}"]
    return ["no rank correlation with the published numbers: it needs three languages that differ"]
