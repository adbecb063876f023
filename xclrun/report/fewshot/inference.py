"""Tests of what is tuned: do strategies of few-shot transfer differ? docs/metrics.md, "Significance".

At each K blocks are target languages, buckets and seeds averaged first; of a single language they are its buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from xclrun.analysis.fewshot.scores import NO_SOURCE, called, groups, replicates
from xclrun.report.fewshot.names import shots_name
from xclrun.report.inference import Tests, Verdicts

if TYPE_CHECKING:
    import pandas as pd

UNTESTED = "strategies are not tested against each other here: a difference between columns may be chance"
ONE_SOURCE = "all languages adapt the same source models, one for each seed: the tests speak of these"


class FewShotTests(Verdicts):
    """Tests of the strategies of one dataset, model, metric and source, at each K at which two have run.

    Args:
        scores: their rows of `xclrun.analysis.fewshot.scores.few_shot_scores`.
        strategies: labels, in the order of the tables.
        baseline: label that marks compare with; None: the first that is tested (``full`` stands first).
        others: returns the tests of the section's other metrics and sources, which Holm's correction includes.
    """

    SUBJECTS = ("metric", "K")

    def __init__(
        self, scores: pd.DataFrame, strategies: Sequence[str], baseline: str | None = None,
        others: Callable[[], Sequence[FewShotTests]] = tuple,
    ) -> None:  # fmt: skip
        self.without: list[str] = []
        tests: dict[tuple[str, str], Tests] = {}
        for (metric, k), rows in groups(scores, ["metric", "shots"]):
            shown = [label for label in strategies if label in set(rows["strategy"])]
            if len(shown) < 2:
                continue
            if (data := replicates(rows, shown)) is not None:
                tests[metric, shots_name(k)] = Tests(data, higher_is_better=True, few_shot=True)
            else:
                lacking = f"no bucket and seed that all of {', '.join(shown)} have"
                self.without.append(f"{shots_name(k)}: not tested: {lacking}")
        self.several_languages = any(t.data.kind == "languages" for t in tests.values())
        self.source = str(scores["source"].iloc[0])
        first = next((t.data.strategies[0] for t in tests.values()), "")
        self._others = others
        super().__init__(tests, first if baseline is None else called(baseline), primary=None)

    @property
    def family(self) -> list[float]:
        return [*self.p_values, *(p for other in self._others() for p in other.p_values)]

    def notes(self, where: str) -> list[str]:
        """Return what the table of means says of the tests, which are under ``where``."""
        if not self.tests:
            return [*self.without, UNTESTED]
        shared = self.several_languages and self.source != NO_SOURCE
        notes = [*self.without, *self.baseline_notes(), *([ONE_SOURCE] if shared else [])]
        mean = "a mean of languages is over those of which all strategies have runs; " if self.several_languages else ""
        return [*notes, f"{mean}tests are under “{where}”"]
