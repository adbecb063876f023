"""Generalisation to datasets that the model was not trained on: GLI's Table 2 next to our scores, in percent."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from xclrun.analysis.grouping import grouped, strategy_labels
from xclrun.analysis.record import RunRecord
from xclrun.core.terminal import many
from xclrun.report.part import Item, part
from xclrun.report.published import gli
from xclrun.report.published.setup import setup_notes
from xclrun.report.strategies import StrategySection
from xclrun.report.tables import Table, percent_cell

# GLI's name of a measure → name of our metric.
METRICS = {"f1": "answer_f1", "em": "exact_match"}


@part(StrategySection, place=28, title="GLI paper, Table 2")
def gli_generalisation(section: StrategySection) -> Iterator[Item]:
    runs = [run for run in section.comparison.runs if run.stream == "zero_shot" and run.languages[0] == gli.SOURCE]
    if runs:
        yield published_table(runs, section.names)


def published_table(runs: list[RunRecord], names: str) -> Table:
    """Return F1 and exact match of models trained only on SQuAD; each row has published and our scores of a dataset."""
    theirs, labels = gli.generalisation("bert"), strategy_labels(runs)
    alike = grouped(runs, lambda run: labels[run.run_id])
    rows = []
    for key in dict.fromkeys(dataset for dataset, _ in theirs):
        cells: list[str] = []
        for measure, metric in METRICS.items():
            cells.append(percent_cell(theirs[key, measure] / 100))
            for same_settings in alike.values():
                scores = {
                    run.run_id: float(run.scores[metric][-1, run.languages.index(key)])
                    for run in same_settings
                    if metric in run.scores and key in run.languages
                }
                scores = {run_id: score for run_id, score in scores.items() if not math.isnan(score)}
                mean = float(np.mean(list(scores.values()))) if scores else math.nan
                cells.append(percent_cell(mean, tuple(scores)))
        rows.append((key, *cells))
    ours = ["ours"] if len(alike) == 1 else list(alike)
    number = ", ".join(many(len(group), "run") for group in alike.values())
    notes = (
        f"published: the best model trained only on {gli.SOURCE}; ours: {names}, mean over {number}",
        *setup_notes(gli.SQUAD, runs, METRICS.values()),
        "the published scores are on validation sets without unanswerable questions; the published model was tuned on "
        f"the validation set of {gli.SOURCE}",
    )
    header = ("key", *(name for measure in ("F1", "EM") for name in (measure, *ours)))
    return Table("GLI Table 2: published beside ours", header, tuple(rows), notes)
