"""Whether strategies of few-shot transfer differ."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from xclrun.report.fewshot.data import FewShotRuns
from xclrun.report.fewshot.names import source_name
from xclrun.report.inference import PAIRED_T
from xclrun.report.p_figures import p_value_figure, rank_figure
from xclrun.report.part import Item, part


@part(FewShotRuns, place=20, title="{metric}{source}: tests of what is tuned")
def fewshot_tests(runs: FewShotRuns) -> Iterator[Item]:
    yield (
        "All strategies adapt to the same languages: these are blocks (buckets and seeds are averaged first); of a "
        "single language its buckets are. What a block does to all strategies is no error."
    )
    yield (
        f"The primary comparisons are confirmatory: each strategy against the baseline, {runs.tests.baseline}, at each "
        "K, by paired t-tests with Holm's correction over all of them in this section. All other tests are exploratory."
    )
    yield from runs.tests.tables(f"{runs.short}{source_name(runs.source)}")
    tests = {k: one for k, one in runs.tests.of(runs.metric).items() if len(one.averaged.blocks) > 1}
    if tests:
        replicates = " or ".join(dict.fromkeys(one.replicates for one in tests.values()))
        what = f"{runs.dataset}, {runs.model}{source_name(runs.source)}: {runs.title}"
        title = (
            f"{what}; p-values (exploratory). Below the diagonal: paired t-test (Holm); above: Tukey's HSD, "
            f"{replicates} as blocks"
        )
        draw = partial(p_value_figure, tests, title, PAIRED_T)
        yield runs.plot("p_values", "p-values of all pairs", draw)
        title = f"{what}; mean ranks over {replicates}, 1 is best; CD: critical difference at 0.05"
        yield runs.plot("critical", "Critical differences of mean ranks", partial(rank_figure, tests, title))
