"""What few-shot parts are made from: the runs of one metric and source, and what lies behind their scores.

Where several strategies have run, words, confusions and gains are of the first: ``full`` where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from xclrun.analysis.fewshot.gains import ByLanguage
from xclrun.analysis.fewshot.scores import FULL, groups, over_buckets
from xclrun.analysis.fewshot.words import Outcome, Words, overlaps
from xclrun.analysis.record import RunRecord
from xclrun.core.task import short_name
from xclrun.report.fewshot.inference import FewShotTests
from xclrun.report.fewshot.names import method_name, source_name, task_name
from xclrun.report.part import Plot
from xclrun.report.published import fsxlt
from xclrun.report.section import Options
from xclrun.report.style import metric_title

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Panels in a figure: more cannot be read.
PANELS = 12

Cell = tuple[str, int]  # language, K


@dataclass(frozen=True)
class FewShotData:
    """What lies behind few-shot scores, by run id; what is missing is told on the page with its reason.

    Attributes:
        outcomes: metric → labels of the target's test split.
        words: of source, bucket and test split.
        attention: summaries of [CLS] (see `xclrun.analysis.fewshot.attention`).
        reasons: why something could not be read, each once.
    """

    outcomes: Mapping[str, Mapping[str, Outcome]] = field(default_factory=dict)
    words: Mapping[str, Words] = field(default_factory=dict)
    attention: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class FewShotRuns:
    """The few-shot runs of one dataset, model, metric and source.

    Attributes:
        scores: their rows of `few_shot_scores`.
        records: all runs, by run id.
        given: predictions and words.
        options: how the report is made.
        section: the runs of all metrics and sources of the section, whose tests are one family.
    """

    dataset: str
    model: str
    metric: str
    source: str
    scores: pd.DataFrame
    records: Mapping[str, RunRecord]
    given: FewShotData
    options: Options = field(default_factory=Options)
    section: list[FewShotRuns] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What titles and axes of figures call the metric."""
        return metric_title(self.metric, self._runs)

    @property
    def heading(self) -> dict[str, str]:
        return {"metric": metric_title(self.metric, self._runs, unit=""), "source": source_name(self.source)}

    @property
    def _runs(self) -> list[RunRecord]:
        return [self.records[run_id] for run_id in self.scores["run_id"]]

    @property
    def short(self) -> str:
        return short_name(self.metric)

    @cached_property
    def means(self) -> pd.DataFrame:
        """Averages over buckets."""
        return over_buckets(self.scores)

    @cached_property
    def published(self) -> Mapping[tuple[str, int, str], fsxlt.Reported]:
        """(language, K, method) → the paper's number; none of a source other than English."""
        return fsxlt.scores(task_name(self.dataset), self.source)

    @cached_property
    def strategies(self) -> list[str]:
        """Labels of what was tuned, ``full`` first."""
        return sorted(self.scores["strategy"].unique(), key=lambda s: (method_name(s) != FULL, s))

    @cached_property
    def tests(self) -> FewShotTests:
        """Tests of the strategies."""
        return FewShotTests(
            self.scores, self.strategies, self.options.baseline,
            lambda: [other.tests for other in self.section if other is not self],
        )  # fmt: skip

    @property
    def first(self) -> str:
        return self.strategies[0]

    def cells(self, strategy: str) -> dict[Cell, pd.DataFrame]:
        """Return (language, K) → rows of one strategy."""
        own = self.scores[self.scores["strategy"] == strategy]
        return {(str(c), int(k)): them for (c, k), them in groups(own, ["language", "shots"]) if k > 0}

    @cached_property
    def words(self) -> dict[Cell, list[Words]]:
        """(language, K) → words of each bucket: seeds and strategies share them."""
        found = {}
        for cell, own in self.cells(self.first).items():
            ids = own.sort_values(["bucket", "seed"]).drop_duplicates("bucket")["run_id"]
            found[cell] = [self.given.words[i] for i in ids if i in self.given.words]
        return {cell: them for cell, them in found.items() if them}

    @cached_property
    def overlap(self) -> Mapping[int, ByLanguage]:
        """K → language → lexical overlap with the source."""
        return overlaps(self.words)

    def names(self, strategy: str) -> str:
        """Return what a figure's title says of its runs."""
        return f"{self.dataset}, {self.model}, {strategy}{source_name(self.source)}"

    def plot(self, kind: str, caption: str, draw: Callable[[], Figure]) -> Plot:
        """Return a figure of these runs."""
        tail = "" if self.source == fsxlt.SOURCE else f"_{self.source}"
        return Plot(f"few_shot_{kind}_{self.dataset}_{self.model}_{self.short}{tail}", caption, draw)


@dataclass(frozen=True)
class FewShotSource:
    """The few-shot runs of one dataset, model and source: what is the same for every metric.

    Attributes:
        runs: those of the first metric.
    """

    runs: FewShotRuns

    @property
    def heading(self) -> dict[str, str]:
        return self.runs.heading
