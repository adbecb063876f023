"""The section of a report about one dataset and model: strategies that learn in sequence, compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from xclrun.analysis.aggregate import Comparison, summarise
from xclrun.analysis.base_scores import Predictions
from xclrun.analysis.bootstrap import SENTENCES
from xclrun.analysis.finished import FinishedRun, finished_run, tuning_trials
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.analysis.resampling import Resampled
from xclrun.core.task import BY_NAME, short_name
from xclrun.report.caveats import comparison_caveats
from xclrun.report.conclusions import conclusions
from xclrun.report.inference import Inference
from xclrun.report.section import Options, Section
from xclrun.report.summary import Summary
from xclrun.report.tables import Table

if TYPE_CHECKING:
    import pandas as pd

UNPAIRED = (
    "--unpaired: means are over all runs of each strategy; what is said to be found, significance marks, tests, "
    "bootstrap intervals, score matrices, learning curves, confusions and figures of distances and hops are still over "
    "the runs that all strategies have finished, so their values can differ"
)


class ReportData:
    """What the sections of a report share; each is computed when it is first asked for.

    Args:
        records: the runs that are compared.
        options: how the report is made.
        pool: all runs that are read, to count tuning trials; None: ``records``.
        predictions: reads run id → its predictions, for the bootstrap and the confusions; None: there are none.
        commands: run id → the command that made it, to tell how to make what is missing.
        gradients: reads ``overlap`` and ``class_gradients`` → run id → what was recorded; None: there is nothing.
        others: finished runs that are not read, to count their tuning trials too.
    """

    def __init__(
        self,
        records: Sequence[RunRecord],
        options: Options | None = None,
        pool: Sequence[RunRecord] | None = None,
        predictions: Callable[[], Mapping[str, Predictions]] | None = None,
        commands: Mapping[str, str] | None = None,
        gradients: Callable[[], Mapping[str, Mapping[str, pd.DataFrame]]] | None = None,
        others: Sequence[FinishedRun] = (),
    ) -> None:
        self.records, self.options, self.commands = records, options or Options(), commands or {}
        self._pool, self._others = records if pool is None else pool, others
        self._read_predictions, self._read_gradients = predictions, gradients

    @cached_property
    def frame(self) -> pd.DataFrame:
        return summarise(self.records, self.options.unpaired)

    @cached_property
    def references(self) -> References:
        return References(self.records)

    @cached_property
    def predictions(self) -> Mapping[str, Predictions]:
        """Run id → its predictions; there may be none."""
        return {} if self._read_predictions is None else self._read_predictions()

    @cached_property
    def gradients(self) -> Mapping[str, Mapping[str, pd.DataFrame]]:
        """``overlap`` (see `xclrun.analysis.overlap`) and ``class_gradients`` → run id → what was recorded."""
        return {} if self._read_gradients is None else self._read_gradients()

    @cached_property
    def trials(self) -> dict[tuple[str, str, str], int]:
        return tuning_trials([*(finished_run(run) for run in self._pool if run.status == "finished"), *self._others])


class StrategySection(Section):
    """What a report says of one dataset and model.

    Args:
        comparison: its runs.
        shared: what all sections are made from.
    """

    def __init__(self, comparison: Comparison, shared: ReportData) -> None:
        super().__init__()
        self.comparison, self.shared, self.options = comparison, shared, shared.options
        self.title = f"{comparison.dataset} · {comparison.model}"
        self.where = f"{comparison.dataset}_{comparison.model}"
        self.names = names_of(comparison)
        self.definitions = {f"{one.name} {one.arrow}": one.definition for one in comparison.headlines}
        self.legend = (
            f"{' '.join(self.definitions)} (the arrow: what is better) · percent, mean ± standard deviation over runs"
        )
        self.heading = {"published": self.options.table}

    def file(self, kind: str, *what: str) -> str:
        """Return the name of a figure's files; metrics have their short names."""
        return "_".join([kind, self.where, *(short_name(one) if one in BY_NAME else one for one in what)])

    @cached_property
    def _bootstrap(self) -> tuple[dict[str, Resampled], list[str]]:
        """Metric → its bootstrap, and why a metric has none."""
        found, without = {}, []
        for metric in self.comparison.metrics:
            try:
                size = None if self.options.full else SENTENCES
                found[metric] = Resampled(
                    self.comparison, self.shared.references, self.shared.predictions, metric, size=size
                )
            except ValueError as error:
                without.append(f"{short_name(metric)}: no bootstrap: {error}")
        return found, without

    @cached_property
    def chosen(self) -> str:
        """What was chosen on dev, where settings were."""
        choice, comparison = self.options.choice, self.comparison
        if choice is None or not choice.strategies(comparison.dataset, comparison.model):
            return ""
        return choice.caption(comparison.dataset, comparison.model)

    @cached_property
    def inference(self) -> Inference:
        options = self.options
        return Inference(
            self.comparison, self.shared.references, self._bootstrap[0], options.interval, options.baseline,
            options.primary,
        )  # fmt: skip

    @cached_property
    def summary(self) -> Summary:
        inference = self.inference
        return Summary(
            self.shared.frame, self.comparison, inference.marks(), self.options.unpaired, inference.marks_meaning,
            self.chosen,
        )  # fmt: skip

    @property
    def conclusions(self) -> list[str]:
        return conclusions(self.inference)

    @property
    def caveats(self) -> list[str]:
        unpaired = [UNPAIRED] if self.options.unpaired else []
        own = comparison_caveats(self.comparison, self.shared.commands, self.options.command)
        return [*own, *self._bootstrap[1], *self.inference.baseline_notes(), *unpaired, *super().caveats]

    @property
    def terminal(self) -> list[Table]:
        # Of one order it would be the same again.
        metrics = self.comparison.metrics if len(self.comparison.orders) > 1 else ()
        return [*self.summary.means(), *map(self.summary.orders, metrics), *super().terminal]

    @property
    def lead(self) -> list[Table]:
        return [self.summary.main(self.comparison.metrics)]


def names_of(comparison: Comparison) -> str:
    return f"{comparison.dataset}, {comparison.model}"
