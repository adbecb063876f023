"""The section of a report about the few-shot runs of one dataset and model.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.fewshot.data import FewShotData
from xclrun.analysis.fewshot.gains import ALL, mean_gains
from xclrun.analysis.fewshot.scores import NO_SOURCE, few_shot_scores, groups, numbered, over_buckets
from xclrun.analysis.record import RunRecord
from xclrun.core.task import BY_NAME
from xclrun.report.conclusions import caveat, compare
from xclrun.report.fewshot.data import FewShotRuns, FewShotSource, shots_name
from xclrun.report.section import Options, Section

if TYPE_CHECKING:
    import pandas as pd


def few_shot_sections(
    records: Sequence[RunRecord], data: FewShotData | None = None, options: Options | None = None
) -> list[FewShotSection]:
    """Return a section for each dataset and model of finished few-shot runs; other runs are skipped."""
    scores, by_id = few_shot_scores(records), {record.run_id: record for record in records}
    return [
        FewShotSection(rows, by_id, data or FewShotData(), options or Options())
        for _, rows in (groups(scores, ["dataset", "model"]) if not scores.empty else ())
    ]


class FewShotSection(Section):
    """The few-shot runs of one dataset and model.

    Args:
        scores: rows of `xclrun.analysis.fewshot.scores.few_shot_scores`.
        records: run ID → run; also contains runs that are not in ``scores``.
    """

    def __init__(
        self, scores: pd.DataFrame, records: Mapping[str, RunRecord], few_shot_data: FewShotData, options: Options
    ) -> None:
        super().__init__()
        self.scores, self.records, self.few_shot_data, self.options = scores, records, few_shot_data, options
        metrics = [BY_NAME[metric] for metric in scores["metric"].unique()]
        units = dict.fromkeys(metric.quantity.label for metric in metrics)
        differences = dict.fromkeys(metric.difference.unit for metric in metrics)
        self.definitions = {
            "K": "shots: how often each label occurs in a bucket; K = 0 is zero-shot: the score on the target language "
            "before adapting to it",
            "gain": f"few-shot score minus zero-shot score on the target's test split, in {' or '.join(differences)}",
            "bucket": "one fixed few-shot training set of a language and K; means and ± are over buckets",
        }
        self.legend = f"{', '.join(units)}, mean ± standard deviation over buckets"
        self.dataset, self.model = str(scores["dataset"].iloc[0]), str(scores["model"].iloc[0])
        self.title = f"{self.dataset} · {self.model} · few-shot"
        self.where = f"few_shot_{self.dataset}_{self.model}"

    @cached_property
    def data(self) -> list[object]:
        """The objects passed to parts: for each source, a `FewShotRuns` for each metric and a `FewShotSource`.

        This section is the last object.
        """
        data: list[object] = []
        family: list[FewShotRuns] = []
        for (source,), scores in groups(self.scores, ["source"]):
            runs = [
                FewShotRuns(self.dataset, self.model, str(metric), str(source), rows, self.records,
                            self.few_shot_data, self.options, family)
                for (metric,), rows in groups(scores, ["metric"])
            ]  # fmt: skip
            family += runs
            data += [*runs, FewShotSource(runs[0])]
        return [*data, self]

    @property
    def caveats(self) -> list[str]:
        strategies = {label.partition("(")[0] for label in self.scores["strategy"]}
        numbers = numbered(self.records[i] for i in self.scores["run_id"])
        names = [f"{label}: {meaning}" for label, meaning in numbers.items() if label in strategies]
        uneven = _uneven(over_buckets(self.scores))
        return list(dict.fromkeys([*names, *self.few_shot_data.reasons, *uneven, *super().caveats]))

    @property
    def conclusions(self) -> list[str]:
        return [text for runs in self.data if isinstance(runs, FewShotRuns) for text in _conclusions(runs)]


def _conclusions(runs: FewShotRuns) -> list[str]:
    """Return sentences about one metric and source, and a caveat about their tests."""
    sentences, difference = [], BY_NAME[runs.metric].difference
    for k, gains in mean_gains(runs.means, runs.first).items():
        if k != ALL:
            mean, over = float(np.mean(list(gains.values()))), f"{len(gains)} language{'s' if len(gains) > 1 else ''}"
            better = BY_NAME[runs.metric].goodness(mean) >= 0
            size = f"{difference.shown(abs(mean))} {difference.unit}"
            verb = f"gains {size} over" if better else f"loses {size} against"
            before = "the model before any fine-tuning" if runs.source == NO_SOURCE else "zero-shot"
            sentences.append(f"{runs.first} {verb} {before} at {shots_name(k)} (mean over {over}).")
    tests = runs.tests.of_metric(runs.metric)
    sentences += compare(runs.tests, {(runs.metric, shots): f"mean score at {shots}" for shots in tests})
    if not sentences:
        return []
    title = f"{runs.heading['metric']}{runs.heading['source']}"
    found = [f"{title[0].upper()}{title[1:]}: {text}" for text in sentences]
    tested = [test for test in tests.values() if len(test.averaged.blocks) > 1]
    tests_title = f"{title}: tests of the fine-tuning strategies"
    return [*found, *([caveat(runs.tests, tests_title)] if tested else [])]


def _uneven(means: pd.DataFrame) -> list[str]:
    few = means[means["shots"] != 0]
    most = int(few["buckets"].max())
    rows = few[few["buckets"] < most].itertuples(index=False)
    fewer = [f"{r.language} {shots_name(r.shots)} {r.strategy}: {r.buckets}" for r in rows]
    named = "; ".join(fewer[:8]) + (f"; and {len(fewer) - 8} more" if len(fewer) > 8 else "")
    return [f"some means are over fewer than {most} buckets: {named}"] if fewer else []
