"""Data of report parts on few-shot runs: the runs of one metric and source, their tests, predictions and words.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021). Words, confusions and gains are shown for the
first strategy: ``full`` if it has run. Strategies are tested at each K. The blocks of a test are the target languages
(scores are first averaged over buckets and seeds) or, with a single language, its buckets; see docs/metrics.md,
"Significance".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from xclrun.analysis.all_tests import Tests
from xclrun.analysis.fewshot.data import FewShotData
from xclrun.analysis.fewshot.gains import ByLanguage
from xclrun.analysis.fewshot.scores import FULL, NO_SOURCE, WHOLE, called, groups, over_buckets, replicates
from xclrun.analysis.fewshot.words import Words, overlaps
from xclrun.analysis.record import RunRecord
from xclrun.analysis.replicates import Replicates, most_shared
from xclrun.analysis.significance import not_compared
from xclrun.core.task import BY_NAME, short_name
from xclrun.report.inference import Verdicts
from xclrun.report.part import Plot
from xclrun.report.published import fsxlt
from xclrun.report.published.setup import setup_notes
from xclrun.report.section import Options
from xclrun.report.style import metric_title, panel_grid

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 12  # maximum in a figure
# Name of a dataset here → name of its task in the paper.
TASK_OF = {"pud": "udpos"}
UNTESTED = "the strategies have not been tested: differences between columns may be due to chance"
NOTHING_SHARED = "{} have no bucket and seed in common"
ONE_SOURCE = "all languages share the same source models, one for each seed: the tests apply only to these models"

Cell = tuple[str, int]  # language, K
Cells = Mapping[tuple[str, int], str]  # (row, K) → cell
Value = TypeVar("Value")


def shots_name(shots: int) -> str:
    return "all data" if shots == WHOLE else f"K = {shots}"


def task_name(dataset: str) -> str:
    return TASK_OF.get(dataset, dataset)


def source_name(source: str) -> str:
    """Return the suffix of a title that names the source language; empty for English, the paper's source."""
    return "" if source == fsxlt.SOURCE else f", source {source}"


def method_name(label: str) -> str:
    """Return the paper's name of a strategy: the label without settings."""
    return re.split(r"[(#]", label)[0]


def by_shots(
    header: Sequence[str],
    rows: Iterable[tuple[str, ...]],
    shots: Iterable[int],
    ours: Cells,
    theirs: Cells,
    more: Mapping[str, Cells] = MappingProxyType({}),
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return header and rows of a table with a column for each K, followed by the published cells if the paper has any.

    Args:
        header, rows: names and cells of the left columns; the first cell is the row's name in the mappings.
        more: name of a further column for each K → its cells.
    """
    published = {k for _, k in theirs}
    columns = [
        (k, name, cells)
        for k in shots
        for name, cells in ((shots_name(k), ours), *([("published", theirs)] if k in published else []), *more.items())
    ]
    names = (*header, *(name for _, name, _ in columns))
    return names, tuple((*row, *(cells.get((row[0], k), "–") for k, _, cells in columns)) for row in rows)


class FewShotTests(Verdicts):
    """Tests between the strategies of one dataset, model, metric and source, at each K with at least two strategies.

    Args:
        scores: rows of `xclrun.analysis.fewshot.scores.few_shot_scores`.
        strategies: labels, in the order of the tables.
        baseline: label of the baseline strategy; None: the first tested strategy (``full`` comes first).
        family: returns the tests of the section's other metrics and sources; Holm's correction includes them.
        margin: see `Verdicts`.
    """

    SUBJECTS = ("metric", "K")

    def __init__(
        self, scores: pd.DataFrame, strategies: Sequence[str], baseline: str | None = None,
        family: Callable[[], Sequence[FewShotTests]] = tuple, margin: float | None = None,
    ) -> None:  # fmt: skip
        self.untested: list[str] = []
        tests: dict[tuple[str, str], Tests] = {}
        apart: dict[tuple[str, str], list[str]] = {}
        for (metric, k), rows in groups(scores, ["metric", "shots"]):
            labels = [label for label in strategies if label in set(rows["strategy"])]
            if len(labels) < 2:
                continue
            if (data := _most(rows, labels)) is not None:
                tests[metric, shots_name(k)] = Tests(
                    data, BY_NAME[metric].quantity, few_shot=True, labels=tuple(labels), of=partial(_shared, rows)
                )
            else:
                apart[metric, shots_name(k)] = labels
                reason = NOTHING_SHARED.format(", ".join(labels))
                self.untested.append(f"{shots_name(k)}: strategies were not tested, because {reason}")
        self.several_languages = any(t.data.kind == "languages" for t in tests.values())
        self.source = str(scores["source"].iloc[0])
        first = next((t.strategies[0] for t in tests.values()), "")
        self._family = family
        super().__init__(tests, first if baseline is None else called(baseline), primary=None, margin=margin)
        for (metric, k), labels in apart.items():
            for label in labels if self.baseline in labels else ():
                if label != self.baseline:
                    reason = NOTHING_SHARED.format(f"{label} and {self.baseline}")
                    self._without_tests[label, metric, k] = not_compared(label, self.baseline, reason)

    @property
    def family(self) -> list[float]:
        return [*self.p_values, *(p for other in self._family() for p in other.p_values)]

    @property
    def equivalence_family(self) -> list[float]:
        return [*self.equivalences, *(p for other in self._family() for p in other.equivalences)]

    def notes(self, heading: str) -> list[str]:
        """Return notes about the tests for the table of means; ``heading`` is the heading above the tests."""
        if not self.tests:
            return [*self.untested, UNTESTED]
        shared = self.several_languages and self.source != NO_SOURCE
        notes = [*self.untested, *self.baseline_notes(), *([ONE_SOURCE] if shared else [])]
        mean = (
            "means over languages include only languages that all strategies have; " if self.several_languages else ""
        )
        return [*notes, f"{mean}tests are under “{heading}”"]


def _most(scores: pd.DataFrame, labels: Sequence[str]) -> Replicates | None:
    """Return the scores of the strategies that share most blocks (`most_shared`); None if no two share a block."""
    measured = scores[scores["score"].notna()]
    blocks = {
        label: set(rows[["language", "bucket", "seed"]].itertuples(index=False, name=None))
        for (label,), rows in groups(measured, ["strategy"])
    }
    shared = most_shared(blocks, fewest=2)
    chosen = [label for label in labels if shared and blocks.get(label, set()) >= shared]
    return replicates(scores[scores["strategy"].isin(chosen)], chosen) if len(chosen) > 1 else None


def _shared(scores: pd.DataFrame, labels: Sequence[str]) -> Replicates | str:
    """Return the scores of ``labels`` in all blocks that these strategies have (`Tests.of`)."""
    data = replicates(scores[scores["strategy"].isin(labels)], labels)
    return NOTHING_SHARED.format(" and ".join(labels)) if data is None else data


@dataclass(frozen=True)
class FewShotRuns:
    """The few-shot runs of one dataset, model, metric and source.

    Attributes:
        scores: rows of `few_shot_scores`.
        records: run ID → run; also contains runs that are not in ``scores``.
        section: the runs of every metric and source in the section; Holm's correction is over all their tests.
    """

    dataset: str
    model: str
    metric: str
    source: str
    scores: pd.DataFrame
    records: Mapping[str, RunRecord]
    data: FewShotData
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
        """(language, K, method) → published number; empty unless the source is English or there is no source."""
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
            lambda: [other.tests for other in self.section if other is not self], self.options.margin,
        )  # fmt: skip

    def rows(self, *strategies: str) -> pd.DataFrame:
        return self.scores[self.scores["strategy"].isin(strategies)]

    def behind(self, scores: pd.DataFrame) -> list[RunRecord]:
        return [self.records[run_id] for run_id in dict.fromkeys(scores["run_id"])]

    def setup(self, scores: pd.DataFrame) -> list[str]:
        """Return notes that compare the paper's setup with the setup of the runs behind these scores."""
        runs = self.behind(scores)
        return setup_notes(fsxlt.setup(task_name(self.dataset)), runs, [self.metric]) if runs else []

    def cells(self, strategy: str) -> dict[Cell, pd.DataFrame]:
        """Return (language, K) → scores of one strategy."""
        return {(str(c), int(k)): rows for (c, k), rows in groups(self.rows(strategy), ["language", "shots"]) if k > 0}

    @cached_property
    def words(self) -> dict[Cell, list[Words]]:
        """(language, K) → the words of each bucket, which are the same for all seeds and strategies."""
        words = {
            cell: [self.data.words[i] for i in first_of_buckets(rows) if i in self.data.words]
            for cell, rows in self.cells(self.first).items()
        }
        return {cell: each for cell, each in words.items() if each}

    @cached_property
    def overlap(self) -> Mapping[int, ByLanguage]:
        """K → language → lexical overlap with the source."""
        return overlaps(self.words)

    def names(self, strategy: str) -> str:
        return f"{self.dataset}, {self.model}, {strategy}{source_name(self.source)}"

    def plot(
        self, kind: str, caption: str, draw: Callable[..., Figure | None], *arguments: Any, paper: str = ""
    ) -> Plot:
        tail = "" if self.source == fsxlt.SOURCE else f"_{self.source}"
        name = f"few_shot_{kind}_{self.dataset}_{self.model}_{self.short}{tail}"
        return Plot(name, caption, draw, *arguments, paper=paper)


@dataclass(frozen=True)
class FewShotSource:
    """The few-shot runs of one source, for report parts that do not depend on the metric.

    Attributes:
        runs: the runs of the first metric.
    """

    runs: FewShotRuns

    @property
    def heading(self) -> dict[str, str]:
        return self.runs.heading


def first_of_buckets(rows: pd.DataFrame) -> Iterable[str]:
    return rows.sort_values(["bucket", "seed"]).drop_duplicates("bucket")["run_id"]


def panels(
    contents: Mapping[Cell, Value], most: int, panel: tuple[float, float], margin: tuple[float, float]
) -> tuple[Figure, Iterator[tuple[Axes, Cell, Value]]]:
    """Return a figure with a panel for each (language, K), and an iterator over (axes, (language, K), content)."""
    figure, grid = panel_grid(len(contents), most, panel, margin)
    for axes, (language, k) in zip(grid, contents, strict=False):
        axes.set_title(f"{language}, {shots_name(k)}", fontsize=9)
    return figure, ((axes, cell, value) for axes, (cell, value) in zip(grid, contents.items(), strict=False))
