"""The section of a report about strategies that learn in sequence, for one dataset and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from xclrun.analysis.aggregate import Comparison, incomplete, summarise, without_finished_run
from xclrun.analysis.bootstrap import SENTENCES
from xclrun.analysis.finished import finished_run, tuning_trials
from xclrun.analysis.measures import quantity
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.analysis.resampling import Resampled
from xclrun.core.task import BY_NAME, short_name
from xclrun.report.caveats import comparison_caveats
from xclrun.report.conclusions import conclusions
from xclrun.report.inference import Inference
from xclrun.report.section import Options, Section, Sources
from xclrun.report.summary import Summary
from xclrun.report.tables import Table
from xclrun.scores.base_scores import Predictions

if TYPE_CHECKING:
    import pandas as pd

UNPAIRED = (
    "--unpaired: means are over all runs of each strategy. “What was found” and significance marks use the runs that "
    "both strategies of a pair have; other tests, bootstrap intervals, score matrices, learning curves, confusions and "
    "figures of distances and hops use the combinations of order, seed and bucket that complete strategies have "
    "finished, so they can differ from the means"
)


def _listed(of_metrics: Mapping[str, str]) -> str:
    """Return the text of all metrics; if it differs between metrics: ``percent (intent), bits (label bits)``."""
    names: dict[str, list[str]] = {}
    for metric, text in of_metrics.items():
        names.setdefault(text, []).append(short_name(metric))
    return ", ".join(f"{text} ({', '.join(of)})" if len(names) > 1 else text for text, of in names.items())


class ReportData:
    """Data shared by the sections of a report, computed on first use.

    Args:
        records: the runs to compare.
    """

    def __init__(
        self, records: Sequence[RunRecord], options: Options | None = None, sources: Sources | None = None
    ) -> None:
        self.records, self.options, self.sources = records, options or Options(), sources or Sources()

    @cached_property
    def frame(self) -> pd.DataFrame:
        return summarise(self.records, self.options.unpaired, self.sources.references)

    @cached_property
    def references(self) -> References:
        return References([*self.records, *self.sources.references])

    @cached_property
    def predictions(self) -> Mapping[str, Predictions]:
        return self.sources.predictions()

    @cached_property
    def gradients(self) -> Mapping[str, Mapping[str, pd.DataFrame]]:
        return self.sources.gradients()

    @cached_property
    def trials(self) -> dict[tuple[str, str, str], int]:
        pool = self.records if self.sources.pool is None else self.sources.pool
        return tuning_trials([*(finished_run(run) for run in pool if run.finished), *self.sources.other_runs])


class StrategySection(Section):
    """The runs of one dataset and model; see `ReportData` for ``shared``."""

    def __init__(self, comparison: Comparison, shared: ReportData) -> None:
        super().__init__()
        self.comparison, self.shared, self.options = comparison, shared, shared.options
        self.title = f"{comparison.dataset} · {comparison.model}"
        self.where = f"{comparison.dataset}_{comparison.model}"
        self.names = names_of(comparison)
        kinds = {m: {k: quantity(k, m.name) for k in comparison.metrics} for m in comparison.headlines}
        arrows = {m: {k: kind.arrow for k, kind in of_metrics.items()} for m, of_metrics in kinds.items()}
        self.definitions = {
            f"{m.name} {a}": m.definition for m, of_metrics in arrows.items() for a in of_metrics.values()
        }
        named = ", ".join(f"{m.name} {_listed(of_metrics)} {m.title}" for m, of_metrics in arrows.items())
        self.units = _listed({metric: quantity(metric).label for metric in comparison.metrics})
        self.legend = f"{named} (↑: higher is better) · {self.units}, mean ± standard deviation over runs"
        self.heading = {"published": self.options.table}

    def file(self, kind: str, *details: str) -> str:
        """Return the file name of a figure; metrics are abbreviated."""
        return "_".join([kind, self.where, *(short_name(name) if name in BY_NAME else name for name in details)])

    @cached_property
    def _bootstrap(self) -> tuple[dict[str, Resampled], list[str]]:
        """Metric → its bootstrap, and the reasons why other metrics have no bootstrap."""
        resampled, reasons = {}, []
        for metric in self.comparison.metrics:
            try:
                size = None if self.options.full else SENTENCES
                resampled[metric] = Resampled(
                    self.comparison, self.shared.references, self.shared.predictions, metric, size=size
                )
            except ValueError as error:
                reasons.append(f"{short_name(metric)} has no bootstrap intervals: {error}")
        return resampled, reasons

    @cached_property
    def chosen(self) -> str:
        """How settings were selected on dev scores; empty if they were not."""
        choice, comparison = self.options.choice, self.comparison
        if choice is None or not choice.strategies(comparison.dataset, comparison.model):
            return ""
        return choice.caption(comparison.dataset, comparison.model)

    @cached_property
    def inference(self) -> Inference:
        options = self.options
        return Inference(
            self.comparison, self.shared.references, self._bootstrap[0], options.interval, options.baseline,
            options.primary, options.margin, without_finished_run(self.comparison, self.shared.records),
        )  # fmt: skip

    @cached_property
    def summary(self) -> Summary:
        inference = self.inference
        return Summary(
            self.shared.frame, self.comparison, inference.marks(), self.options.unpaired, inference.marks_meaning,
            self.chosen, inference.baseline, inference.baseline_means(incomplete(self.comparison)),
        )  # fmt: skip

    @property
    def conclusions(self) -> list[str]:
        return conclusions(self.inference)

    @property
    def caveats(self) -> list[str]:
        unpaired = [UNPAIRED] if self.options.unpaired else []
        caveats = comparison_caveats(
            self.comparison, self.shared.sources.commands, self.options.command, self.options.unpaired
        )
        return [*caveats, *self._bootstrap[1], *self.inference.baseline_notes(), *unpaired, *super().caveats]

    @property
    def terminal(self) -> list[Table]:
        return [*self.summary.means(), *super().terminal]

    @property
    def lead(self) -> list[Table]:
        return [self.summary.main(self.comparison.metrics)]


def names_of(comparison: Comparison) -> str:
    return f"{comparison.dataset}, {comparison.model}"
