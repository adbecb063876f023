"""Scores of the checkpoints that other selection rules would choose, and the tables of ED.

ED = "Don't Use English Dev" (Keung et al. 2020).
Rules: `xclrun.analysis.points.RULES`; see docs/checkpoints.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.aggregate import compared, mean_over_orders
from xclrun.analysis.grouping import grouped
from xclrun.analysis.points import (
    Rule,
    agreement_of,
    by_rule,
    exact,
    final_by_rule,
    hop_points,
    least,
    rules,
    unadapted_note,
)
from xclrun.analysis.record import RunRecord
from xclrun.core.quantity import SHARE
from xclrun.core.task import BY_NAME, headline, short_name
from xclrun.report.part import Item, Plot, part
from xclrun.report.published.ed import ROWS_OF_TABLE_5, SETUPS, SOURCE, published
from xclrun.report.published.setup import setup_notes
from xclrun.report.strategies import StrategySection
from xclrun.report.style import figure_of, key, line, plain, score_label, titled
from xclrun.report.summary import CONSTANT, Summary
from xclrun.report.tables import Table, group_starts, percent_cell, quantity_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXACT = (
    "columns of languages and their mean: scores after the last hop, which are exact because no later hop continues "
    "from its checkpoint; column “earlier hops”: mean score of the checkpoints that the rule chooses in earlier hops. "
    "Later hops continued from the checkpoint that was selected in training, so the effect of the rule on the whole "
    "stream is unknown"
)
# `oracle_table` omits these rules: with one hop on one language, they choose the same checkpoint as current_dev.
SAME = ("source_dev", "mean_seen_dev")
LINES = 10  # maximum number of target languages in a figure


@part(StrategySection, place=92, title="Checkpoints by rule")
def checkpoints(section: StrategySection) -> Iterator[Item]:
    for metric in section.comparison.metrics:
        yield rules_table(section.summary, metric)


@part(StrategySection, place=94, title="Zero-shot transfer from one source: selection by dev set (ED)", terminal=True)
def zero_shot(section: StrategySection) -> Iterator[Item]:
    for metric in section.comparison.metrics:
        for (label, source), runs in zero_shot_runs(section.summary, metric).items():
            names = f"{label}, from {source}, {short_name(metric)}"
            yield range_table(runs, metric, names)
            yield agreement_table(runs, metric, names)
            yield oracle_table(runs, metric, names)
            name = section.file("zero_shot", metric, label, source)
            title = f"{section.names}: {names}, seed {runs[0].seed}"
            caption = "Dev scores of the source and test scores of the targets"
            yield Plot(name, caption, run_figure, runs[0], metric, title, paper="ED Fig. 1")


def rules_table(summary: Summary, metric: str) -> Table | None:
    """Return the test scores of the checkpoints that each rule chooses: a row for each strategy and rule."""
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
            kind = BY_NAME[metric].quantity
            cells = [quantity_cell(value, kind, behind) for value in (*final, np.nanmean(final), before)]
            rows.append((label, rule.name, *cells))
    if not rows:
        return None
    if floors := summary.floors(metric):
        rows.append((CONSTANT, "", *floors, "–"))
    used = {name for _, name, *_ in rows}
    definitions = [f"{rule.name}: {rule.definition}" for rule in rules(summary.comparison.runs) if rule.name in used]
    notes = (
        "test score of the checkpoint that a rule chooses from a hop's evaluation points, averaged over the runs of "
        "each order, then over orders",
        *definitions,
        *unadapted_note(summary.comparison.strategies),
    )
    if inexact:
        header = ("strategy", "rule", *languages, "mean", "earlier hops")
        notes = (*notes, EXACT)
    else:
        header, rows = ("strategy", "rule", *languages, "mean"), [row[:-1] for row in rows]
        notes = (*notes, "scores are exact for every rule, because no hop continues from the chosen checkpoint")
    title = f"{headline(metric)}, checkpoints by rule"
    return Table(title, header, tuple(rows), notes, left=2, ruled=group_starts(rows))


def available(runs: Sequence[RunRecord], metric: str) -> list[Rule]:
    return [r for r in rules(runs) if runs and all(np.isfinite(final_by_rule(run, metric, r)).all() for run in runs)]


def zero_shot_runs(summary: Summary, metric: str) -> dict[tuple[str, str], list[RunRecord]]:
    """Return (strategy, source) → runs with one hop, on the source, and with dev scores at evaluation points."""
    runs_of: dict[tuple[str, str], list[RunRecord]] = {}
    for label, runs in summary.comparison.strategies.items():
        transfers = [run for run in runs if run.stream == "zero_shot" and metric in run.metrics]
        with_dev = [run for run in transfers if any(rule.dev for rule in available([run], metric))]
        for source, from_source in grouped(with_dev, lambda run: run.languages[0]).items():
            # Keep one of the runs that differ only in the order of the targets.
            alike = grouped(from_source, lambda run: (run.seed, run.bucket, frozenset(run.languages)))
            runs_of[label, source] = [run for run, *_ in alike.values()]
    return runs_of


def range_table(runs: Sequence[RunRecord], metric: str, names: str) -> Table:
    """Return ED's Table 2: maximum, minimum and range over seeds of the scores at the source's best dev checkpoint.

    As in the paper, the source's column has dev scores, and the other columns have test scores.
    """
    languages, scores = runs[0].languages, selected_scores(runs, metric)
    spread = np.ptp(scores, axis=0) if len(runs) > 1 else np.full(len(languages), math.nan)
    rows = {"max_over_runs": scores.max(axis=0), "min_over_runs": scores.min(axis=0), "range": spread}
    header = ("", f"{languages[0]} dev", *languages[1:])
    notes = [
        f"scores at the checkpoint with the best dev score of {languages[0]}, the first if several are equal; "
        f"{len(runs)} {'runs: seeds' if len(runs) > 1 else 'run: seed'} {', '.join(str(run.seed) for run in runs)}"
    ]
    title = f"{names}: spread over runs (ED Table 2)"
    return with_published(
        title, header, rows, "2", runs, metric, notes, {"max_over_runs": "max", "min_over_runs": "min"}
    )


def selected_scores(runs: Sequence[RunRecord], metric: str) -> np.ndarray:
    """Return the source's best dev score and the targets' test scores at its checkpoint, shape (runs, N)."""
    scores = []
    for run in runs:
        (hop,) = hop_points(run, metric)
        best = int(np.nanargmax(hop.ranked[:, 0]))
        row = np.concatenate([hop.dev[best, :1], hop.test[best, 1:]])
        scores.append(_placed(row, run, runs[0].languages))
    return np.array(scores)


def agreement_table(runs: Sequence[RunRecord], metric: str, subject: str) -> Table:
    """Return ED's Table 3: how often dev scores (of source or target) change in the same direction as test scores."""
    languages = runs[0].languages
    rows = {}
    for name, by_language in (("en_dev", False), ("target_dev", True)):
        values = [_placed(agreement_of(hop_points(run, metric)[0], by_language), run, languages) for run in runs]
        # Skip runs with undefined agreement, whose test scores never differ enough.
        defined = np.isfinite(values)
        total, n = np.where(defined, values, 0).sum(axis=0), defined.sum(axis=0)
        rows[name] = np.divide(total, n, out=np.full(len(languages), np.nan), where=n > 0)
    notes = [
        "share (%) of pairs of a run's checkpoints in which dev and test scores change in the same direction; ties "
        f"count half, 50 is chance; only pairs whose test scores differ by at least {least(metric)}; mean over "
        "runs. The paper draws random pairs and does not say how many"
    ]
    names = {"en_dev": f"dev of {languages[0]}", "target_dev": "dev of the language itself"}
    title = f"{subject}: directional agreement of dev with test (ED Table 3)"
    return with_published(title, ("", *languages), rows, "3", runs, metric, notes, names)


def oracle_table(runs: Sequence[RunRecord], metric: str, subject: str) -> Table:
    """Return ED's Table 5: test scores by rule, as the maximum over runs (as in the paper) and as the mean."""
    languages = runs[0].languages
    rows: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}
    published_rows = {rule: row for row, rule in ROWS_OF_TABLE_5.items()}
    compared_rules = [rule for rule in available(runs, metric) if rule.name not in SAME]
    for rule in compared_rules:
        values = np.array([_placed(final_by_rule(run, metric, rule), run, languages) for run in runs])
        row = published_rows.get(rule.name, f"{rule.name} ")
        best = BY_NAME[metric].goodness(BY_NAME[metric].goodness(values).max(axis=0))
        rows |= {row: best, f"{row} mean": values.mean(axis=0)}
        names |= {row: f"{rule.name}, maximum", f"{row} mean": f"{rule.name}, mean"}
    notes = [
        "test scores of the checkpoint that a rule chooses; in the paper, the row of English dev is the maximum over "
        "runs; the paper does not say whether the oracle row is a maximum or a mean",
        *(f"{rule.name}: {rule.definition}" for rule in compared_rules),
    ]
    title = f"{subject}: oracle and other rules (ED Table 5)"
    return with_published(title, ("", *languages), rows, "5", runs, metric, notes, names)


def with_published(
    title: str,
    header: tuple[str, ...],
    rows: Mapping[str, np.ndarray],
    table: str,
    runs: Sequence[RunRecord],
    metric: str,
    notes: Sequence[str],
    names: Mapping[str, str],
) -> Table:
    """Return a table of our rows, each followed by the published row if there is one.

    Args:
        rows: the paper's name of a row → our values.
        table: number of the table in the paper.
        names: the paper's name of a row → name in this table, if different.
    """
    body: list[tuple[str, ...]] = []
    run, kind = runs[0], SHARE if table == "3" else BY_NAME[metric].quantity
    for name, values in rows.items():
        body.append((names.get(name, name), *(quantity_cell(value, kind, (run.run_id,)) for value in values)))
        theirs = [published(table, run.dataset, name, k) for k in run.languages]
        if run.languages[0] == SOURCE and not all(map(math.isnan, theirs)):
            body.append(("published", *map(percent_cell, theirs)))
    setup = setup_notes(SETUPS[run.dataset], runs, [metric]) if len(body) > len(rows) else []
    return Table(title, header, tuple(body), (*notes, *setup))


def run_figure(run: RunRecord, metric: str, title: str) -> Figure:
    """Draw dev scores of the source (thick) and test scores of the targets during one run (ED Fig. 1)."""
    (hop,) = hop_points(run, metric)
    figure = figure_of(6.4, 3.6)
    axes = figure.subplots()
    dev, source = hop.dev[:, 0], run.languages[0]
    chosen, kind = int(np.nanargmax(hop.ranked[:, 0])), BY_NAME[metric].quantity
    lines = [(f"{source} dev", dev), *zip(run.languages[1:], hop.test[:, 1:].T, strict=True)]
    for k, (name, values) in enumerate(lines[: LINES + 1]):
        text = f"{name}: at the best {source} dev {kind.shown(values[chosen])}, best {kind.shown(kind.best(values))}"
        line(axes, hop.examples, kind.scale * values, k, text, marker="", linewidth=1.1 if k else 2.2, label=name)
    axes.axvline(hop.examples[chosen], color="#999999", linewidth=0.8, linestyle=":")
    plain(axes, "sentences of the source seen", score_label(metric, [run]))
    key(figure, axes.get_legend_handles_labels()[0], 7)
    titled(figure, f"{title}; dev of the source, test of the others; dotted: best dev")
    return figure


def _placed(values: np.ndarray, run: RunRecord, languages: Sequence[str]) -> np.ndarray:
    """Reorder the values of a run's languages; NaN for languages that it lacks."""
    return np.array([values[run.languages.index(k)] if k in run.languages else math.nan for k in languages])
