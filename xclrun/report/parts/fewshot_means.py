"""Few-shot scores next to published scores: means, tests, and runs without a source (FS Tables 2, 4, 6, 11–13).

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xclrun.analysis.all_tests import PAIRED_T
from xclrun.analysis.correlation import correlate
from xclrun.analysis.fewshot.scores import FULL, NO_SOURCE, WHOLE, entering, groups, over_buckets
from xclrun.core.quantity import SHARE, Quantity
from xclrun.core.task import BY_NAME, short_name
from xclrun.report.fewshot.data import FewShotRuns, by_shots, method_name, shots_name, source_name, task_name
from xclrun.report.fewshot.section import FewShotSection
from xclrun.report.p_figures import p_value_figure, rank_figure
from xclrun.report.part import Item, part
from xclrun.report.published import fsxlt
from xclrun.report.published.setup import setup_notes
from xclrun.report.tables import BEST_OF_ROW, Cell, Table, mark_best, quantity_cell

if TYPE_CHECKING:
    import pandas as pd


OVER_BUCKETS = "mean ± sample standard deviation over buckets; a bucket's score is the mean over seeds"
ZERO = "K = 0: zero-shot, the score on the target before adapting; mean ± standard deviation over seeds"
UNTRAINED = "K = 0: the score before any fine-tuning, with untrained heads; mean ± standard deviation over seeds"
# Maximum number of rows named in a note.
NAMED = 8


@part(FewShotRuns, place=10, title="{metric}{source}: means over buckets", terminal=True)
def fewshot_means(runs: FewShotRuns) -> Iterator[Item]:
    for strategy in runs.strategies:
        yield by_language(runs, strategy)
    if len(runs.strategies) > 1:
        yield by_strategy(runs)


@part(FewShotRuns, place=20, title="{metric}{source}: tests of the fine-tuning strategies")
def fewshot_tests(runs: FewShotRuns) -> Iterator[Item]:
    yield (
        "The blocks of the tests are the target languages (buckets and seeds are averaged first) or, with a single "
        "language, its buckets. All strategies adapt to the same languages, so the tests remove differences between "
        "blocks that affect all strategies equally from the error term."
    )
    yield (
        f"Primary comparisons (confirmatory): each strategy against the baseline, {runs.tests.baseline}, at each K, by "
        "paired t-tests with Holm's correction over all primary comparisons of this section. All other tests are "
        "exploratory."
    )
    yield runs.tests.comparisons(f"{runs.short}{source_name(runs.source)}: primary comparisons with the baseline")


@part(FewShotRuns, place=25, title="{metric}{source}: exploratory tests", folded=True)
def fewshot_exploratory(runs: FewShotRuns) -> Iterator[Item]:
    title = f"{runs.short}{source_name(runs.source)}"
    yield runs.tests.anovas(f"{title}: do strategies differ")
    yield runs.tests.all_pairs(f"{title}: all pairs of strategies")
    tests = {k: test for k, test in runs.tests.of_metric(runs.metric).items() if len(test.averaged.blocks) > 1}
    if tests:
        replicates = " or ".join(dict.fromkeys(test.replicates for test in tests.values()))
        names = f"{runs.dataset}, {runs.model}{source_name(runs.source)}: {runs.title}"
        title = (
            f"{names}; p-values (exploratory). Below the diagonal: paired t-test (Holm); above: Tukey's HSD, "
            f"{replicates} as blocks"
        )
        yield runs.plot("p_values", "p-values of all pairs", p_value_figure, tests, title, PAIRED_T)
        title = f"{names}; mean ranks over {replicates}, 1 is best; CD: critical difference at 0.05"
        yield runs.plot("critical", "Critical differences of mean ranks", rank_figure, tests, title)


@part(FewShotSection, place=15, title="Without source training")
def fewshot_sources(section: FewShotSection) -> Iterator[Item]:
    """Compare runs without a source to runs with English as the source, at equal language, K and strategy."""
    task = task_name(section.dataset)
    scores = section.scores[section.scores["shots"] > 0]
    for (metric, strategy), group in groups(scores, ["metric", "strategy"]):
        rows_of: Any = over_buckets(group).itertuples(index=False)
        means: dict[tuple[str, str, int], float] = {(r.source, r.language, r.shots): r.mean for r in rows_of}
        drops = {
            (c, k): mean - means[fsxlt.SOURCE, c, k]
            for (source, c, k), mean in means.items()
            if source == NO_SOURCE and k > 0 and (fsxlt.SOURCE, c, k) in means
        }
        if not drops:
            continue
        languages, shots = sorted({c for c, _ in drops}), sorted({k for _, k in drops})
        every = fsxlt.drops(task) if method_name(strategy) == FULL else {}
        published = {(c, k): drop for (c, k), drop in every.items() if c in languages and k in shots}
        difference = BY_NAME[metric].difference
        ours, theirs = (
            {place: quantity_cell(drop, difference) for place, drop in each.items()} for each in (drops, published)
        )
        header, rows = by_shots(("language",), [(c,) for c in languages], shots, ours, theirs)
        notes = [
            f"drop in {difference.unit}: mean score over buckets without source training, minus mean score with "
            "English as source"
        ]
        if published:
            behind = [section.records[run_id] for run_id in dict.fromkeys(group["run_id"])]
            notes += ["published: FS Table 4, mean over 40 buckets", *setup_notes(fsxlt.setup(task), behind, [metric])]
        for (misprinted, language, k), subtracted in fsxlt.MISPRINTS.items() if published else ():
            if misprinted == task and (language, k) in drops:
                notes.append(f"{language}, K = {k}: Table 4 subtracts the score of K = {subtracted} (a misprint)")
        title = f"{short_name(metric)}: drop without source training, {strategy} (FS Table 4)"
        yield Table(title, header, rows, tuple(notes))


def by_language(runs: FewShotRuns, strategy: str) -> Table:
    """Return published and our scores of one strategy by language (rows) and K (columns), as FS Tables 2, 11–13."""
    scores, method = runs.means[runs.means["strategy"] == strategy], method_name(strategy)
    quantity = BY_NAME[runs.metric].quantity
    rows_of: Any = scores.itertuples(index=False)
    means: dict[tuple[str, int], Any] = {(row.language, row.shots): row for row in rows_of}
    languages, shots = sorted({c for c, _ in means}), sorted({k for _, k in means}, key=lambda k: (k == WHOLE, k))
    theirs = {(c, k): n for (c, k, name), n in runs.published.items() if name == method and c in languages}
    header, rows = by_shots(
        ("language",), [(c,) for c in languages], shots, {place: _score(row, quantity) for place, row in means.items()},
        {place: _published(number) for place, number in theirs.items()},
    )  # fmt: skip
    pairs = {
        k: [(means[c, k].mean, theirs[c, k].mean) for c in languages if (c, k) in theirs and (c, k) in means]
        for k in shots
    }
    pairs = {k: both for k, both in pairs.items() if both}
    notes = [OVER_BUCKETS, UNTRAINED if runs.source == NO_SOURCE else ZERO, _counts(scores)]
    if pairs:
        notes.append(f"published: FS paper, {method}, mean over 40 buckets")
        notes += [*runs.setup(runs.rows(strategy)), *_ranks(pairs)]
    title = f"{runs.short} by language, {strategy}{source_name(runs.source)}"
    return Table(title, header, rows, tuple(notes))


# Language, K, the cells of the strategies, and whether they have significance marks.
Line = tuple[str, int, list[Cell], bool]


def by_strategy(runs: FewShotRuns) -> Table:
    """Compare strategies (columns) at each language and K (rows), as FS Table 6.

    Means use the buckets and seeds that all complete strategies have or, with ``unpaired``, all buckets and seeds of
    each strategy. Incomplete strategies (`entering`) are not ranked. If languages are the blocks of tests, a last row
    for each K has the means over languages and the significance marks; otherwise the row of the tested language has
    the marks.
    """
    shared, incomplete = entering(runs.scores)
    means = over_buckets(runs.scores if runs.options.unpaired else shared)
    of_languages, across = list(_of_languages(runs, means)), list(_across_languages(runs, shared))
    published = {s: any(method == method_name(s) for *_, method in runs.published) for s in runs.strategies}
    marks, rows, quantity = runs.tests.marks(), [], BY_NAME[runs.metric].quantity
    all_cells: list[Cell] = []
    for language, k, cells, marked in (*of_languages, *across):
        behind = set() if runs.options.unpaired else {label for c, n, label in incomplete if (c, n) == (language, k)}
        compared = [cell for label, cell in zip(runs.strategies, cells, strict=True) if label not in behind]
        mark_best(compared, quantity)
        all_cells += cells
        row: list[str] = [language, shots_name(k)]
        for strategy, cell in zip(runs.strategies, cells, strict=True):
            cell.mark = marks.get((strategy, runs.metric, shots_name(k)), "") if marked else ""
            theirs = runs.published.get((language, k, method_name(strategy)))
            row += [cell, *([_published(theirs)] if published[strategy] else [])]
        rows.append(tuple(row))
    names = (name for s in runs.strategies for name in (s, *([f"{method_name(s)} (FS)"] if published[s] else [])))
    notes = (
        OVER_BUCKETS,
        *([] if means.empty else [_counts(means)]),
        *_fewer(runs.scores, shared, incomplete, runs.options.unpaired),
        *runs.setup(runs.rows(*(s for s in runs.strategies if published[s]))),
        *runs.tests.notes(fewshot_tests.title.format_map(runs.heading)),
    )
    raised = [runs.tests.marks_meaning] if any(cell.mark for cell in all_cells) else []
    raised += [BEST_OF_ROW] if any(cell.best for cell in all_cells) else []
    title, ruled = f"{runs.short}: what is tuned{source_name(runs.source)}", (len(of_languages),) if across else ()
    return Table(title, ("language", "K", *names), tuple(rows), notes, left=2, raised=tuple(raised), ruled=ruled)


def _of_languages(runs: FewShotRuns, means: pd.DataFrame) -> Iterator[Line]:
    """Yield a row for each language and K; ``means`` are from `over_buckets`."""
    quantity = BY_NAME[runs.metric].quantity
    by_cell = {(r.language, r.shots, r.strategy): r for r in means.itertuples(index=False)}
    for (language, k), _ in groups(runs.scores, ["language", "shots"]):
        tests = runs.tests.tests.get((runs.metric, shots_name(k)))
        marked = tests is not None and tests.data.kind != "languages" and tests.data.languages[0] == language
        yield language, int(k), [_score(by_cell.get((language, k, s)), quantity) for s in runs.strategies], marked


def _across_languages(runs: FewShotRuns, shared: pd.DataFrame) -> Iterator[Line]:
    """Yield the means over languages, for each K with languages as the blocks of tests."""
    quantity = BY_NAME[runs.metric].quantity
    for (k,), rows in groups(shared, ["shots"]):
        tests = runs.tests.tests.get((runs.metric, shots_name(k)))
        if tests is not None and tests.data.kind == "languages":
            rows = rows[rows["language"].isin(tests.data.languages)]
            behind = {label: tuple(scores["run_id"]) for (label,), scores in groups(rows, ["strategy"])}
            means = dict(zip(tests.data.strategies, tests.averaged.values.mean(axis=1).tolist(), strict=True))
            cells = [quantity_cell(means.get(s), quantity, behind.get(s, ())) for s in runs.strategies]
            yield f"mean of {len(tests.averaged.blocks)} languages", int(k), cells, True


def _fewer(
    scores: pd.DataFrame, shared: pd.DataFrame, incomplete: Collection[tuple[str, int, str]], unpaired: bool
) -> list[str]:
    """Note where strategies have different buckets and seeds; ``shared`` and ``incomplete`` are from `entering`."""
    fewer, behind = [], []
    for (language, k), rows in groups(scores, ["language", "shots"]):
        names = [label for label in dict.fromkeys(rows["strategy"]) if (language, k, label) in incomplete]
        both = shared[(shared["language"] == language) & (shared["shots"] == k) & ~shared["strategy"].isin(names)]
        n, every = (len(frame[["bucket", "seed"]].drop_duplicates()) for frame in (both, rows))
        fewer += [f"{language} {shots_name(k)}: {n} of {every}"] if n < every else []
        behind += [f"{language} {shots_name(k)}: {', '.join(names)}"] if names else []
    if not fewer:
        return []
    over = f"the buckets and seeds that all {'complete ' if behind else ''}strategies have"
    if unpaired:
        over = f"all buckets and seeds of its strategy, but tests and means over languages use {over}"
    notes = [f"strategies have different buckets and seeds; each mean is over {over} ({_some(fewer)})"]
    if behind and not unpaired:
        text = "incomplete (not ranked), each mean over the buckets and seeds of its strategy"
        notes.append(f"{text}: {_some(behind)}")
    return notes


def _some(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return f"{'; '.join(texts[:NAMED])}{more}"


def _score(row: Any, quantity: Quantity) -> Cell:
    if row is None or row.mean != row.mean:
        return Cell("–")
    return Cell(quantity.spread(row.mean, row.std), row.mean, row.runs)


def _published(number: fsxlt.Reported | None) -> str:
    return "–" if number is None else SHARE.spread(number.mean, number.std)


def _counts(rows: pd.DataFrame) -> str:
    few = rows[rows["shots"] != 0]
    buckets = _range(few["buckets"], few["buckets"], "rows")
    return f"buckets: {buckets}; seeds: {_range(few['fewest'], few['seeds'], 'buckets')}"


def _range(lows: pd.Series, highs: pd.Series, unit: str) -> str:
    low, high = int(lows.min()), int(highs.max())
    return f"{low}" if low == high else f"{low} to {high}, different between {unit}"


def _ranks(pairs: Mapping[int, Sequence[tuple[float, float]]]) -> list[str]:
    correlations = {k: correlate(*zip(*both, strict=True)) for k, both in pairs.items()}
    defined = [
        f"{c.spearman:.2f} at {shots_name(k)} ({c.n} languages)"
        for k, c in correlations.items()
        if c.spearman == c.spearman
    ]
    if defined:
        return [f"Spearman's ρ with the published numbers: {', '.join(defined)}"]
    return ["no rank correlation with the published numbers: it needs at least three languages with different scores"]
