"""What was found, in words: from the tested numbers alone, and saying so where nothing was tested."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from xclrun.analysis.measures import MEASURES
from xclrun.analysis.power import power_warnings
from xclrun.analysis.reference import is_ranked
from xclrun.analysis.significance import ALPHA, Pair
from xclrun.report.inference import Inference, Tests, Verdicts, p_text
from xclrun.report.style import metric_title
from xclrun.report.tables import percent

# Measures of which something is said whatever came out; of the others where the difference from the baseline is one.
ALWAYS = ("F", "FP")

UNTESTED = (
    "Nothing was tested: a test needs two strategies that have run the same two orders, buckets or seeds. "
    "The differences below are those of these runs alone."
)
UNRANKED = (
    "Nothing is ranked here: beside one strategy there are reference models alone. How it differs from those that "
    "learn in sequence is under “Intervals and tests”."
)


def conclusions(inference: Inference) -> list[str]:
    """Return paragraphs, one for each metric, and what they do not say; one alone where nothing was tested.

    The differences and p-values are those of Tukey's HSD with replicates as blocks, the test that the marks come from.
    Reference models, and what never saw the texts, are not ranked.
    """
    unranked = [k for k, runs in inference.comparison.strategies.items() if not is_ranked(runs[0])]
    paragraphs = []
    for metric in inference.comparison.metrics:
        tests = inference.of(metric)
        measures = [MEASURES[name] for name in tests if MEASURES[name].finding]
        said = [
            text
            for one in sorted(measures, key=lambda one: one.name not in ALWAYS)
            for text in compare(
                inference, tests[one.name], unranked, one.finding, one.name, one.unit, one.name in ALWAYS
            )
        ]
        if said:
            title = metric_title(metric, inference.comparison.runs, unit="")
            paragraphs.append(f"{title[0].upper()}{title[1:]}: {' '.join(said)}")
    if not paragraphs:
        return [UNRANKED if inference.tests else UNTESTED]
    return [*paragraphs, caveat(next(iter(inference.tests.values())), "Intervals and tests")]


def caveat(tests: Tests, where: str) -> str:
    """Return what so few replicates cannot show, and under which heading all tests stand."""
    warning = power_warnings(len(tests.averaged.blocks), 1)[-1]
    return f"Caveat: {tests.scope}; {warning}. All pairs and tests: under “{where}”."


def compare(
    verdicts: Verdicts, tests: Tests, unranked: Collection[str], doing: str, name: str, unit: str, always: bool = True
) -> Iterator[str]:
    """Yield what one measure says: the best strategy, and how it differs from the baseline, else from the next.

    Args:
        verdicts: know the baseline.
        tests: of the measure.
        unranked: strategies that are not ranked.
        doing: what the best one does: ``forgets least``.
        name: of the measure.
        unit: of its values: ``%`` or ``points``.
        always: whether it is said too where the difference is none.
    """
    means = dict(zip(tests.averaged.strategies, np.mean(tests.averaged.values, axis=1), strict=True))
    sign = -1 if tests.higher_is_better else 1
    ranked = sorted((label for label in means if label not in unranked), key=lambda label: sign * means[label])
    if len(ranked) < 2:
        return
    best, other = ranked[0], verdicts.baseline if verdicts.baseline in ranked[1:] else ranked[1]
    pair = _pair(tests, best, other)
    if not always and not pair.p < ALPHA:
        return
    gap = abs(means[best] - means[other])
    role = f"{other}, the baseline" if other == verdicts.baseline else other
    if percent(gap) == "0.00":
        yield f"{best} and {role}{',' if role != other else ''} have the same {name}, {percent(means[best])}."
        return
    value = f"{name} {percent(means[best])}{unit if unit == '%' else f' {unit}'}"
    way = "more" if tests.higher_is_better else "less"
    begin = f"{best} {doing} of {len(ranked)} strategies ({value}), {percent(gap)} points {way} than {role}"
    test = f"Tukey's HSD over {tests.replicates}, p {p_text(pair.p, sign=True)}"
    if pair.reason:
        yield f"{begin}; this was not tested: {pair.reason}."
    elif pair.p < ALPHA:
        yield f"{begin} ({test})."
    else:
        yield f"{begin}; this may be chance ({test}), so no difference is shown."
    # Second to none of them that it was not told apart from.
    near = ranked[1]
    if near != other and pair.p < ALPHA and not (close := _pair(tests, best, near)).p < ALPHA:
        yield f"It is not told apart from {near} (p {p_text(close.p, sign=True)})."


def _pair(tests: Tests, a: str, b: str) -> Pair:
    return next(pair for pair in tests.blocked[1] if {pair.a, pair.b} == {a, b})
