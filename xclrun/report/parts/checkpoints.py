"""What other rules than that of the training had chosen: checkpoints after the fact, and the tables of ED.

ED = "Don't Use English Dev" (Keung et al. 2020). Scores in percent, differences in points, agreement as a share; rules
are those of `xclrun.analysis.points.RULES`. docs/checkpoints.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.aggregate import compared, mean_over_orders
from xclrun.analysis.grouping import grouped
from xclrun.analysis.points import Rule, agreement_of, by_rule, exact, final_by_rule, hop_points, rules, unadapted_note
from xclrun.analysis.record import RunRecord
from xclrun.core.task import headline, short_name
from xclrun.report.part import Item, Plot, part
from xclrun.report.published.ed import ROWS_OF_TABLE_5, SETUPS, SOURCE, published
from xclrun.report.published.setup import setup_notes
from xclrun.report.strategies import StrategySection
from xclrun.report.style import colour, figure_of, metric_title, plain, tip, titled
from xclrun.report.summary import CONSTANT, Summary
from xclrun.report.tables import Table, percent_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXACT = (
    "by language and mean: after the last hop, from whose checkpoint no hop goes on: exact. Earlier hops, mean over "
    "them: what the checkpoint itself scores; the hops after it went on from the one that training chose, so what a "
    "rule would have made of the whole stream it does not say"
)
# Rules that are current_dev where there is one hop, on one language.
SAME = ("source_dev", "mean_seen_dev")
# Languages of a figure: more cannot be told apart.
LINES = 10


@part(StrategySection, place=92, title="Checkpoints by rule")
def checkpoints(section: StrategySection) -> Iterator[Item]:
    for metric in section.comparison.metrics:
        table = rules_table(section.summary, metric)
        if table is not None:
            yield table


@part(StrategySection, place=94, title="Zero-shot transfer from one source: which dev set chooses (ED)", terminal=True)
def zero_shot(section: StrategySection) -> Iterator[Item]:
    comparison = section.comparison
    for metric in comparison.metrics:
        for (label, source), runs in zero_shot_runs(section.summary, metric).items():
            of = f"{label}, from {source}, {short_name(metric)}"
            yield range_table(runs, metric, of)
            yield agreement_table(runs, metric, of)
            yield oracle_table(runs, metric, of)
            draw = partial(run_figure, runs[0], metric, f"{section.names}: {of}, seed {runs[0].seed}")
            yield Plot(
                section.file("zero_shot", metric, label, source), "Dev of the source against tests (ED Fig. 1)", draw
            )


def rules_table(summary: Summary, metric: str) -> Table | None:
    """Return what each rule's checkpoints score: a row for each strategy and rule; None where there are no points."""
    languages, rows, inexact = summary.comparison.languages, [], False
    for label, (entering, _) in compared(summary.comparison).items():
        runs = [run for run in entering if metric in run.metrics and hop_points(run, metric)]
        for rule in available(runs, metric):
            final = mean_over_orders(runs, [_placed(final_by_rule(run, metric, rule), run, languages) for run in runs])
            inexact_runs = [run for run in runs if not exact(run, 1)]
            earlier = [by_rule(run, metric, rule)[: run.hops - 1].mean() for run in inexact_runs]
            inexact |= bool(earlier)
            behind = tuple(run.run_id for run in runs)
            before = float(mean_over_orders(inexact_runs, earlier)) if earlier else math.nan
            cells = [percent_cell(value, behind) for value in (*final, np.nanmean(final), before)]
            rows.append((label, rule.name, *cells))
    if not rows:
        return None
    if floors := summary.floors(metric):
        rows.append((CONSTANT, "", *floors, "–"))
    shown = {name for _, name, *_ in rows}
    told = [f"{rule.name}: {rule.definition}" for rule in rules(summary.comparison.runs) if rule.name in shown]
    notes = (
        "test score of the checkpoint that a rule chooses of a hop's evaluation points, mean over runs, within each "
        "order first",
        *told,
        *unadapted_note(summary.comparison.strategies),
    )
    if inexact:
        header = ("strategy", "rule", *languages, "mean", "earlier hops")
        notes = (*notes, EXACT)
    else:
        header, rows = ("strategy", "rule", *languages, "mean"), [row[:-1] for row in rows]
        notes = (*notes, "exact for every rule: no hop goes on from the checkpoint that is chosen")
    starts = tuple(k for k in range(1, len(rows)) if rows[k][0] != rows[k - 1][0])
    title = f"{headline(metric)}, checkpoints by rule"
    return Table(title, header, tuple(rows), notes, left=2, ruled=starts)


def available(runs: Sequence[RunRecord], metric: str) -> list[Rule]:
    """Return the rules that all the runs have what they need for."""
    return [
        rule
        for rule in rules(runs)
        if runs and all(np.isfinite(final_by_rule(run, metric, rule)).all() for run in runs)
    ]


def zero_shot_runs(summary: Summary, metric: str) -> dict[tuple[str, str], list[RunRecord]]:
    """Return (strategy, source) → the runs with one hop on a source, those with dev scores at points, by seed."""
    found: dict[tuple[str, str], list[RunRecord]] = {}
    for label, runs in summary.comparison.strategies.items():
        having = [
            r
            for r in runs
            if r.stream == "zero_shot" and metric in r.metrics and any(one.dev for one in available([r], metric))
        ]
        for source, them in grouped(having, lambda run: run.languages[0]).items():
            # Orders of the same targets are the same training and the same tests.
            once: dict[object, RunRecord] = {}
            for run in them:
                once.setdefault((run.seed, run.bucket, frozenset(run.languages)), run)
            found[label, source] = list(once.values())
    return found


def range_table(runs: Sequence[RunRecord], metric: str, of: str) -> Table:
    """Return ED's Table 2: largest and smallest score over seeds at the source's best dev, and their difference.

    The source's own column is its dev score, as there; those of the others are test scores.
    """
    languages, scores = runs[0].languages, selected_scores(runs, metric)
    # One run says nothing of how others scatter.
    spread = np.ptp(scores, axis=0) if len(runs) > 1 else np.full(len(languages), math.nan)
    rows = {"max_over_runs": scores.max(axis=0), "min_over_runs": scores.min(axis=0), "range": spread}
    header = ("", f"{languages[0]} dev", *languages[1:])
    notes = [
        f"at the checkpoint with the best dev score of {languages[0]}, the first of equals; {len(runs)} "
        f"{'runs: seeds' if len(runs) > 1 else 'run: seed'} {', '.join(str(run.seed) for run in runs)}"
    ]
    body = _beside(rows, "2", runs, metric, notes, {name: name for name in rows})
    return Table(f"{of}: spread over runs (ED Table 2)", header, body, tuple(notes))


def selected_scores(runs: Sequence[RunRecord], metric: str) -> np.ndarray:
    """Return the scores at the source's best dev, shape (runs, N): of the source on dev, of the others on test."""
    found = []
    for run in runs:
        (hop,) = hop_points(run, metric)
        best = int(np.nanargmax(hop.dev[:, hop.first]))
        found.append(np.concatenate([hop.dev[best, :1], hop.test[best, 1:]]))
    return np.array([_placed(row, run, runs[0].languages) for row, run in zip(found, runs, strict=True)])


def agreement_table(runs: Sequence[RunRecord], metric: str, of: str) -> Table:
    """Return ED's Table 3: how often dev of the source, and of the language itself, rises and falls with test."""
    languages = runs[0].languages
    rows = {}
    for name, own in (("en_dev", False), ("target_dev", True)):
        values = [_placed(agreement_of(hop_points(run, metric)[0], own), run, languages) for run in runs]
        # Of a run whose test scores never differ enough there is nothing to say.
        there = np.isfinite(values)
        total = np.where(there, values, 0).sum(axis=0)
        rows[name] = np.divide(total, there.sum(axis=0), out=np.full(len(languages), np.nan), where=there.any(axis=0))
    notes = [
        "share (%) of all pairs of checkpoints of a run whose test scores differ by 0.5 points or more in which dev "
        "changes in the same direction (a tie in dev: half), mean over runs; 50 is chance. How the paper drew its "
        "pairs it does not say"
    ]
    names = {"en_dev": f"dev of {languages[0]}", "target_dev": "dev of the language itself"}
    return Table(
        f"{of}: directional agreement of dev with test (ED Table 3)", ("", *languages),
        _beside(rows, "3", runs, metric, notes, names), tuple(notes),
    )  # fmt: skip


def oracle_table(runs: Sequence[RunRecord], metric: str, of: str) -> Table:
    """Return ED's Table 5: test scores by rule, as the maximum over runs, as there, and as the mean."""
    languages = runs[0].languages
    rows: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}
    published_rows = {rule: row for row, rule in ROWS_OF_TABLE_5.items()}
    shown = [rule for rule in available(runs, metric) if rule.name not in SAME]
    for rule in shown:
        values = np.array([_placed(final_by_rule(run, metric, rule), run, languages) for run in runs])
        row = published_rows.get(rule.name, f"{rule.name} ")
        rows |= {row: values.max(axis=0), f"{row} mean": values.mean(axis=0)}
        names |= {row: f"{rule.name}, maximum", f"{row} mean": f"{rule.name}, mean"}
    notes = [
        "test scores of the checkpoint that a rule chooses; the paper's row of English dev is the maximum over its "
        "runs, and of the oracle it does not say",
        *(f"{rule.name}: {rule.definition}" for rule in shown),
    ]
    return Table(
        f"{of}: oracle and other rules (ED Table 5)", ("", *languages),
        _beside(rows, "5", runs, metric, notes, names), tuple(notes), left=1,
    )  # fmt: skip


def _beside(
    rows: Mapping[str, np.ndarray],
    table: str,
    runs: Sequence[RunRecord],
    metric: str,
    notes: list[str],
    names: Mapping[str, str],
) -> tuple[tuple[str, ...], ...]:
    """Return rows of a table, each with the published one below where the paper has it; ``notes`` says what that is."""
    body: list[tuple[str, ...]] = []
    there, run = False, runs[0]
    for name, values in rows.items():
        body.append((names[name].replace("_over_runs", ""), *(percent_cell(value, (run.run_id,)) for value in values)))
        theirs = [
            published(table, run.dataset, name, k) if run.languages[0] == SOURCE else math.nan for k in run.languages
        ]
        if not all(map(math.isnan, theirs)):
            there = True
            body.append(("published", *(percent_cell(value) for value in theirs)))
    if there:
        notes += setup_notes(SETUPS[runs[0].dataset], runs, [metric])
    return tuple(body)


def run_figure(run: RunRecord, metric: str, title: str) -> Figure | None:
    """Draw dev of the source and test of the others over one run (ED Fig. 1); thick: the source's dev."""
    (hop,) = hop_points(run, metric)
    figure = figure_of(6.4, 3.6)
    axes = figure.subplots()
    chosen = int(np.nanargmax(hop.dev[:, hop.first]))
    lines = [
        (f"{run.languages[0]} dev", hop.dev[:, hop.first]),
        *zip(run.languages[1:], hop.test[:, 1:].T, strict=True),
    ]
    for k, (name, values) in enumerate(lines[: LINES + 1]):
        (line,) = axes.plot(
            hop.own,
            100 * values,
            color=colour(k),
            linewidth=2.2 if not k else 1.1,
            label=name,
        )
        tip(
            line, f"{name}: at the best {run.languages[0]} dev {100 * values[chosen]:.2f}, best {100 * max(values):.2f}"
        )
    axes.axvline(hop.own[chosen], color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xlabel("sentences of the source seen", fontsize=8)
    axes.set_ylabel(metric_title(metric, [run]), fontsize=8)
    plain(axes)
    figure.legend(loc="outside right center", fontsize=7, frameon=False)
    titled(figure, f"{title}; dev of the source, test of the others; dotted: best dev")
    return figure


def _placed(values: np.ndarray, run: RunRecord, languages: Sequence[str]) -> np.ndarray:
    """Return values of a run's languages in another order; NaN for those that it lacks."""
    return np.array([values[run.languages.index(k)] if k in run.languages else math.nan for k in languages])
