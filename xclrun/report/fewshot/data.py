"""What few-shot parts are made from: the runs of one metric and source, and what lies behind their scores.

Words, confusions and gains are those of the first strategy: ``full`` where it has run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from xclrun.analysis.fewshot.gains import ByLanguage
from xclrun.analysis.fewshot.scores import FULL, groups, over_buckets
from xclrun.analysis.fewshot.words import Outcome, Words, overlaps
from xclrun.analysis.record import RunRecord
from xclrun.core.task import short_name
from xclrun.report.fewshot.inference import FewShotTests
from xclrun.report.fewshot.names import method_name, shots_name, source_name, task_name
from xclrun.report.part import Plot
from xclrun.report.published import fsxlt
from xclrun.report.published.setup import setup_notes
from xclrun.report.section import Options
from xclrun.report.style import metric_title, panel_grid

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Panels in a figure: more cannot be read.
PANELS = 12

Cell = tuple[str, int]  # language, K
Shown = TypeVar("Shown")


@dataclass(frozen=True)
class FewShotData:
    """What lies behind few-shot scores, by run id.

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
        return metric_title(self.metric, self.behind(self.scores))

    @property
    def heading(self) -> dict[str, str]:
        metric = metric_title(self.metric, self.behind(self.scores), unit="")
        return {"metric": metric, "source": source_name(self.source)}

    @property
    def short(self) -> str:
        return short_name(self.metric)

    @cached_property
    def means(self) -> pd.DataFrame:
        return over_buckets(self.scores)

    @cached_property
    def published(self) -> Mapping[tuple[str, int, str], fsxlt.Reported]:
        """(language, K, method) → the paper's number; it has English and no source."""
        return fsxlt.scores(task_name(self.dataset), self.source)

    @cached_property
    def strategies(self) -> list[str]:
        """Labels of the strategies, ``full`` first."""
        return sorted(self.scores["strategy"].unique(), key=lambda s: (method_name(s) != FULL, s))

    @property
    def first(self) -> str:
        return self.strategies[0]

    @cached_property
    def tests(self) -> FewShotTests:
        return FewShotTests(
            self.scores, self.strategies, self.options.baseline,
            lambda: [other.tests for other in self.section if other is not self],
        )  # fmt: skip

    def rows(self, *strategies: str) -> pd.DataFrame:
        return self.scores[self.scores["strategy"].isin(strategies)]

    def behind(self, scores: pd.DataFrame) -> list[RunRecord]:
        return [self.records[run_id] for run_id in dict.fromkeys(scores["run_id"])]

    def setup(self, scores: pd.DataFrame) -> list[str]:
        """Compare the paper's setup and that of the runs of some scores; nothing without runs."""
        runs = self.behind(scores)
        return setup_notes(fsxlt.setup(task_name(self.dataset)), runs, [self.metric]) if runs else []

    def cells(self, strategy: str) -> dict[Cell, pd.DataFrame]:
        """Return (language, K) → rows of one strategy."""
        return {(str(c), int(k)): rows for (c, k), rows in groups(self.rows(strategy), ["language", "shots"]) if k > 0}

    @cached_property
    def words(self) -> dict[Cell, list[Words]]:
        """(language, K) → words of each bucket: seeds and strategies share them."""
        words = {
            cell: [self.given.words[i] for i in first_of_buckets(rows) if i in self.given.words]
            for cell, rows in self.cells(self.first).items()
        }
        return {cell: each for cell, each in words.items() if each}

    @cached_property
    def overlap(self) -> Mapping[int, ByLanguage]:
        """K → language → lexical overlap with the source."""
        return overlaps(self.words)

    def names(self, strategy: str) -> str:
        """Return what a figure's title says of its runs."""
        return f"{self.dataset}, {self.model}, {strategy}{source_name(self.source)}"

    def plot(self, kind: str, caption: str, draw: Callable[..., Figure], *arguments: Any) -> Plot:
        tail = "" if self.source == fsxlt.SOURCE else f"_{self.source}"
        name = f"few_shot_{kind}_{self.dataset}_{self.model}_{self.short}{tail}"
        return Plot(name, caption, draw, *arguments)


@dataclass(frozen=True)
class FewShotSource:
    """The few-shot runs of one dataset, model and source, of the first metric: what is the same for every metric."""

    runs: FewShotRuns

    @property
    def heading(self) -> dict[str, str]:
        return self.runs.heading


def first_of_buckets(rows: pd.DataFrame) -> Iterable[str]:
    return rows.sort_values(["bucket", "seed"]).drop_duplicates("bucket")["run_id"]


def panels(
    shown: Mapping[Cell, Shown], most: int, panel: tuple[float, float], margin: tuple[float, float]
) -> tuple[Figure, Iterator[tuple[Axes, Cell, Shown]]]:
    """Return a figure with a panel for each (language, K), and its axes with what they show."""
    figure, grid = panel_grid(len(shown), most, panel, margin)
    for axes, (language, k) in zip(grid, shown, strict=False):
        axes.set_title(f"{language}, {shots_name(k)}", fontsize=9)
    return figure, ((axes, cell, value) for axes, (cell, value) in zip(grid, shown.items(), strict=False))
