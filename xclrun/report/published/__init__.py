"""Published tables of the CCL paper, compared with our results.

``ccl_tables.csv`` has the numbers of "Cross-lingual Continual Learning" (M'hamdi, Ren & May 2023), with the columns
table, model, order, metric, measure, language, value and unit. Table 6 has no results, so it has no rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from xclrun.analysis.aggregate import MEAN
from xclrun.analysis.correlation import correlate
from xclrun.analysis.record import RunRecord
from xclrun.core.quantity import SHARE
from xclrun.core.task import short_name
from xclrun.report.published.facts import facts, number
from xclrun.report.published.setup import SPAN_F1, Setup, setup_notes
from xclrun.report.summary import Summary
from xclrun.report.tables import Cell, Table

# Alternative names of the paper's first two orders.
SAME_ORDER = {"h2l": "order1", "l2h": "order2"}
LAYERS = 12  # number of layers of the paper's encoder
# Sentences of every language in each split of the paper's balanced data (section 4.4).
BALANCED = {"train": 9219, "dev": 1285, "test": 2299}
# Tables with three seeds; the other tables have one seed.
THREE_SEEDS = ("18", "19", "20")


def setup(table: str) -> Setup:
    """Return the setup of a table, with the sizes of MTOP or of its balanced subset (Tables 5 and 13)."""
    train = {"5": (9219, 15667), "13": (9219, 9219)}.get(table, (10759, 15667))
    test = {"5": (2299, 4386), "13": (2299, 2299)}.get(table, (2765, 4386))
    seeds = (42, 40, 35) if table in THREE_SEEDS else (42,)
    metrics = {"intent_accuracy": "intent accuracy", "slot_f1": f"slot F1 ({SPAN_F1['tag_macro']})"}
    return Setup("the CCL paper", "mtop", "mbert", train, test, "at most 10 epochs, batch 16", seeds, metrics)


@dataclass(frozen=True)
class Published:
    """A published number: scores are fractions, other numbers are in the unit ``unit``."""

    table: str
    model: str
    order: str
    metric: str
    measure: str
    language: str
    value: float
    unit: str


@cache
def ccl_tables() -> dict[str, tuple[Published, ...]]:
    """Return table number → its numbers, in the order of the paper."""
    tables: dict[str, tuple[Published, ...]] = {}
    for row in facts("ccl_tables.csv"):
        keys = {key: row[key] for key in ("table", "model", "order", "metric", "measure", "language", "unit")}
        tables[row["table"]] = (*tables.get(row["table"], ()), Published(value=number(row), **keys))
    return tables


def table_of(sweep: str) -> str | None:
    """Return the number of the published table that a sweep reproduces (``ccl_table8`` → ``8``), or None."""
    number = sweep.removeprefix("ccl_table")
    return number if number != sweep and number in ccl_tables() else None


def published_names(run: RunRecord) -> tuple[str, ...]:
    """Return possible names of a run's strategy in the paper's tables, most specific first."""
    settings = run.config.get("strategy", {})
    if run.strategy == "lang_spec_enc" and settings.get("layers"):
        return _names_of_layers(settings["layers"][0], settings["layers"][-1], encoder_layers(run))
    if run.strategy.startswith("lang_spec_ft+"):
        return (f"lang_spec_ft_{run.strategy.rpartition('lang_spec_')[2]}",)
    if run.strategy == "er":
        return (f"er_{settings.get('memory')}", "er")
    if run.strategy == "naive" and {split: set(sizes.values()) for split, sizes in run.sizes.items()} == {
        split: {size} for split, size in BALANCED.items()
    }:
        return ("naive_balanced", "naive")
    return (run.strategy,)


def encoder_layers(run: RunRecord) -> int:
    """Return the number of encoder layers of a run; the paper's number if unknown."""
    model = run.config.get("model", {})
    return int(model.get("layers") or model.get("hidden_layers") or LAYERS)


def _names_of_layers(first: int, last: int, layers: int) -> tuple[str, ...]:
    """Return possible names of a range of language-specific layers in the paper's tables, nearest first.

    The paper's range is scaled to this encoder. It matches if its start and end are less than one layer of this encoder
    away: 1 to 9 of 12 layers is 1 to 4.5 of 6 layers, so layers 1 to 4 and 1 to 5 match.
    """
    prefix, off = "lang_spec_enc_", {}
    if layers == LAYERS:
        return (f"{prefix}{first}_{last}",)
    for name in {row.model for rows in ccl_tables().values() for row in rows if row.model.startswith(prefix)}:
        begin, end = map(int, name.removeprefix(prefix).split("_"))
        off[name] = max(abs((first - 1) * LAYERS - (begin - 1) * layers), abs(last * LAYERS - end * layers))
    return tuple(sorted((name for name in off if off[name] < LAYERS), key=lambda name: (off[name], name)))


def beside_ours(summary: Summary, table: str) -> list[Table]:
    """Return a table for each metric with published and our values next to each other, and their rank correlations."""
    return with_ours(summary, f"Table {table}", ccl_tables()[table], setup(table))


def with_ours(summary: Summary, name: str, rows: Sequence[Published], theirs: Setup) -> list[Table]:
    """Return published and our numbers next to each other: a table for each metric, and separate tables by language.

    Args:
        name: name of the published table with these ``rows``.
        theirs: setup of the published runs.
    """
    labels = labels_of(summary, {row.model for row in rows})
    parts: dict[tuple[str, bool], list[Published]] = {}
    for row in rows:
        parts.setdefault((row.metric, bool(row.language)), []).append(row)
    return [_with_ours(summary, name, metric, part, labels, theirs) for (metric, _), part in parts.items()]


def labels_of(summary: Summary, models: Iterable[str]) -> dict[str, str]:
    """Map each model name in the paper to our strategy label; if several labels match, use the most specific match."""
    ranked = sorted(
        (
            (rank, name, label)
            for label, runs in summary.comparison.strategies.items()
            for rank, name in enumerate(published_names(runs[0]))
            if name in set(models)
        ),
        key=lambda match: match[0],
    )
    nearest: dict[str, str] = {}
    for _, name, label in ranked:
        nearest.setdefault(name, label)
    labels: dict[str, str] = {}
    for name, label in nearest.items():
        if label not in labels.values():
            labels[name] = label
    return labels


def _with_ours(
    summary: Summary, name: str, metric: str, rows: Sequence[Published], labels: dict[str, str], theirs: Setup
) -> Table:
    """Return a table for one metric. Each measure (or language) has two columns: published value and our value."""
    # Name of a column, such as "FP" or "FP de" → (published number, our number).
    pairs: dict[str, list[tuple[float, float]]] = {f"{row.measure} {row.language}".strip(): [] for row in rows}
    lines = list(dict.fromkeys((row.order, row.model) for row in rows))
    values = {(row.order, row.model, f"{row.measure} {row.language}".strip()): row for row in rows}
    several = len({order for order, _ in lines}) > 1
    body = []
    for order, model in lines:
        cells: list[str] = []
        for column, numbers in pairs.items():
            row = values.get((order, model, column))
            if row is None:
                cells += ["–", "–"]
                continue
            value, run_ids = _ours(summary, labels[model], row) if model in labels else (math.nan, ())
            ours = "–" if math.isnan(value) else Cell(_format(value, row.unit), value, run_ids)
            cells += [Cell(_format(row.value, row.unit), row.value), ours]
            numbers.append((row.value, value))
        body.append((*((order,) if several else ()), model, *cells))
    header = (*(["order"] if several else []), "strategy", *(name for column in pairs for name in (column, "ours")))
    comparison = summary.comparison
    runs = [run for label in labels.values() for run in comparison.strategies[label]]
    notes = setup_notes(theirs, runs or comparison.runs, [metric] if metric else [])
    for label in (label for model, label in labels.items() if model.startswith("lang_spec_enc_")):
        run = comparison.strategies[label][0]
        if (layers := encoder_layers(run)) != LAYERS:
            specific = run.config["strategy"]["layers"]
            note = (
                f"lang_spec_enc: in our runs, layers {specific[0]} to {specific[-1]} of {layers} are language-specific"
            )
            notes.append(note)
    for column, numbers in pairs.items():
        c = correlate(*zip(*numbers, strict=True))
        notes.append(
            f"{column}: Spearman's ρ = {c.spearman:.2f} over {c.n} rows"
            if c.n >= 3 and not math.isnan(c.spearman)
            else f"{column}: no rank correlation: it needs at least three rows with both numbers (here {c.n}), and "
            "different values in each column"
        )
    title = f"CCL {name}{f', {short_name(metric)}' if metric else ''}: published beside ours"
    return Table(title, header, tuple(body), tuple(notes), left=2 if several else 1)


def _ours(summary: Summary, label: str, row: Published) -> tuple[float, tuple[str, ...]]:
    """Return our value for a published number, and the IDs of our runs."""
    if row.measure in ("parameters", "runtime"):
        runs = summary.comparison.strategies[label]
        name, unit = ("parameters", 1.0) if row.measure == "parameters" else ("seconds", 60.0)
        costs = [run.costs[name] / unit for run in runs if name in run.costs]
        return (sum(costs) / len(costs) if costs else math.nan), tuple(run.run_id for run in runs)
    for order in dict.fromkeys((MEAN if row.order == "mean" else row.order, SAME_ORDER.get(row.order, row.order))):
        value = summary.value(label, row.metric, row.measure, order, row.language)
        if not math.isnan(value):
            return value, summary.behind(label, order, row.metric, row.measure, row.language)
    return math.nan, ()


def _format(value: float, unit: str) -> str:
    return SHARE.shown(value) if unit == "percent" else f"{value:,.0f}" if unit == "count" else f"{value:.1f}"
