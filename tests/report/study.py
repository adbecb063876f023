"""Synthetic studies: records whose numbers look like those of real ones, made from a seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.analysis.aggregate import comparisons, summarise
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.core.task import short_name
from xclrun.report.inference import Inference, Verdicts
from xclrun.report.page import templates
from xclrun.report.part import Part, make_block
from xclrun.report.section import Options, Sources
from xclrun.report.strategies import ReportData, StrategySection
from xclrun.report.summary import Summary
from xclrun.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LANGUAGES = ("en", "de", "fr", "hi", "es", "th")
ORDERS = {
    "h2l": LANGUAGES,
    "l2h": LANGUAGES[::-1],
    "order3": ("es", "hi", "en", "de", "th", "fr"),
    "order4": ("fr", "th", "de", "en", "hi", "es"),
}
STREAMS = {"lang_spec_ft": "independent", "multilingual": "joint"}
# Share of the score lost at each further hop.
FORGETS = {
    "naive": 0.06,
    "er": 0.02,
    "ewc_online": 0.055,
    "kd_logit": 0.045,
    "lang_spec_trans": 0.008,
    "inc_joint": 0.0,
}


def matrix(rng: np.random.Generator, strategy: str, languages: Sequence[str], top: float) -> np.ndarray:
    """Make a score matrix of shape (hops + 1, N) that rises by transfer, jumps at a language's hop, then falls."""
    n = len(languages)
    hops = 1 if STREAMS.get(strategy) == "joint" else n
    scores = np.full((hops + 1, n), 0.04)
    for j, language in enumerate(languages):
        best = top - 0.03 * LANGUAGES.index(language) if language in LANGUAGES else top
        for i in range(1, hops + 1):
            if strategy in STREAMS:
                scores[i, j] = best if STREAMS[strategy] == "joint" or i == j + 1 else 0.5 * best
            elif i <= j:
                scores[i, j] = best * (0.45 + 0.06 * i)
            else:
                scores[i, j] = best * (1 - FORGETS.get(strategy, 0.03)) ** (i - j - 1)
    return np.clip(scores + rng.normal(0, 0.006, scores.shape), 0, 1)


def curve(rng: np.random.Generator, languages: Sequence[str], hops: int, epochs: int = 4) -> tuple[dict[str, Any], ...]:
    """Make a training curve: the loss falls and the dev score rises within each hop."""
    points = []
    for hop in range(1, hops + 1):
        for epoch in range(1, epochs + 1):
            score = 0.9 - 0.5 / (epoch + 0.3 * hop) + rng.normal(0, 0.01)
            steps = (60 - 6 * hop) * epoch
            loss = 3.5 / (epoch + hop) + rng.normal(0, 0.02)
            learnt = languages if hops == 1 else (languages[hop - 1],)
            dev = {language: {"intent_accuracy": score, "slot_f1": 0.8 * score} for language in learnt}
            points.append({"hop": hop, "epoch": epoch, "step": steps, "examples": 16 * steps, "loss": loss, "dev": dev})
    return tuple(points)


def run(
    strategy: str,
    order: str,
    seed: int,
    languages: Sequence[str],
    *,
    metrics: Sequence[str] = ("intent_accuracy", "slot_f1"),
    settings: dict[str, Any] | None = None,
    **fields: Any,
) -> RunRecord:
    """Make one finished run."""
    rng = np.random.default_rng([seed, len(strategy), *map(ord, order)])
    stream = STREAMS.get(strategy, "sequence")
    hops = 1 if stream == "joint" else len(languages)
    suffix = "".join(f"-{v}" for v in (settings or {}).values())
    defaults: dict[str, Any] = {
        "run_id": f"{strategy}{suffix}-{order}-{seed}",
        "dataset": "mini",
        "model": "tiny",
        "bucket": None,
        "config": {"strategy": {"name": strategy} | (settings or {}), "trainer": {"lr": 0.001}, "seed": seed},
        "data_fingerprint": "0f1e2d3c4b5a69788796",
        "code_version": "0.1.0+gabc123",
        "algorithms": 1,
        "status": "finished",
        "curve": curve(rng, languages, hops),
    }
    tops = {"intent_accuracy": 0.94, "slot_f1": 0.78}
    scores = {metric: matrix(rng, strategy, languages, tops[metric]) for metric in metrics}
    return RunRecord(
        strategy=strategy, order=order, languages=tuple(languages), seed=seed, stream=stream, scores=scores,
        **(defaults | fields),
    )  # fmt: skip


def section_of(records: Sequence[RunRecord], options: Options | None = None, **sources: Any) -> StrategySection:
    """Return the section of a report about records of one dataset and model."""
    (comparison,) = comparisons(records)
    return StrategySection(comparison, ReportData(records, options, Sources(**sources)))


def inference_of(
    records: Sequence[RunRecord], resampled: Any = None, kind: str | None = None, **options: Any
) -> Inference:
    """Return the tests of records of one dataset and model."""
    (comparison,) = comparisons(records)
    return Inference(comparison, References(records), resampled or {}, kind, **options)


def summary_of(records: Sequence[RunRecord]) -> Summary:
    """Return the summary of records of one dataset and model."""
    (comparison,) = comparisons(records)
    return Summary(summarise(records), comparison)


def drawn(section: StrategySection, part: Part, name: str) -> Figure:
    """Draw the figure of a part whose name begins so."""
    (plot,) = (plot for plot in make_block(part, section).plots if plot.name.startswith(name))
    return plot.draw()


def rows_of(table: Table) -> dict[tuple[str, ...], dict[str, str]]:
    """Return the rows by their cells at the left, as header → cell."""
    return {row[: table.left]: dict(zip(table.header, row, strict=True)) for row in table.rows}


@cache
def table_html(table: Table) -> str:
    module: Any = templates().get_template("table.html").module
    return str(module.table(table, {}))


def all_pairs(verdicts: Verdicts) -> Table:
    """Return the table of all pairs, made once: its tests take most of the time."""
    return verdicts.all_pairs()


def pairs_of(verdicts: Verdicts, metric: str, measure: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return the rows of the table of all pairs that are about one measure: (a, b) → column → cell."""
    table = all_pairs(verdicts)
    return {
        row[2:4]: dict(zip(table.header, row, strict=True))
        for row in table.rows
        if row[:2] == (short_name(metric), measure)
    }


def study(
    strategies: Iterable[str] = ("naive", "er"),
    orders: Iterable[str] = ("h2l", "l2h"),
    seeds: Iterable[int] = (1, 2),
    languages: Sequence[str] = LANGUAGES,
) -> list[RunRecord]:
    """Make every combination; orders keep the languages that the study has."""
    keys_of = {order: [language for language in ORDERS[order] if language in languages] for order in orders}
    seeds = list(seeds)
    return [
        run(strategy, order, seed, keys) for strategy in strategies for order, keys in keys_of.items() for seed in seeds
    ]
