"""What a comparison found, in words: from the tested numbers alone, and saying so where nothing was tested."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xclrun.analysis.reference import is_reference
from xclrun.analysis.significance import ALPHA, Pair, power_warnings
from xclrun.core.task import BY_NAME
from xclrun.report.inference import Inference, Tests, p_text
from xclrun.report.tables import percent

# Measure → what the best strategy does, and how a difference to its advantage is said.
SAID = {
    "F": ("forgets least", "less"),
    "FP": ("ends highest on the mean of all languages", "more"),
    "T": ("learns each language best compared with learning it alone", "more"),
    "T0": ("gains most on languages before it learns them", "more"),
}
# What is said whatever came out; the others where the difference from the baseline is one.
ALWAYS = ("F", "FP")

UNTESTED = (
    "Nothing was tested: a test needs two strategies that all ran the same two orders, buckets or seeds. "
    "The differences below are those of these runs alone."
)
UNRANKED = (
    "Nothing is ranked here: beside one strategy there are reference models alone. How it differs from those that "
    "learn in sequence is under “Intervals and tests”."
)


def findings(inference: Inference) -> list[str]:
    """Return paragraphs, one for each metric, and what they do not say; one alone where nothing was tested.

    The differences and p-values are those of Tukey's HSD with replicates as blocks, the test that the marks come from.
    Reference models are not ranked.
    """
    told = []
    for metric in inference.comparison.metrics:
        said = [text for name in SAID for text in _of_measure(inference, metric, name)]
        if said:
            told.append(f"{BY_NAME[metric].title[0].upper()}{BY_NAME[metric].title[1:]}: {' '.join(said)}")
    if not told:
        return [UNRANKED if inference.tests else UNTESTED]
    first = next(iter(inference.tests.values()))
    count = len(first.averaged.blocks)
    warning = power_warnings(count, 1)[-1]
    return [*told, f"Caveat: {first.told}; {warning}. All pairs and tests: under “Intervals and tests”."]


def _of_measure(inference: Inference, metric: str, name: str) -> Iterator[str]:
    """Yield what one measure says: the best strategy, and how it differs from the baseline, else from the next."""
    tests = inference.tests.get((metric, name))
    if tests is None:
        return
    means = dict(zip(tests.averaged.strategies, np.mean(tests.averaged.values, axis=1), strict=True))
    ranked = sorted(
        (label for label in means if not is_reference(inference.comparison.strategies[label][0])),
        key=lambda label: -means[label] if tests.higher_is_better else means[label],
    )
    if len(ranked) < 2:
        return
    best, other = ranked[0], inference.baseline if inference.baseline in ranked[1:] else ranked[1]
    pair = _pair(tests, best, other)
    if name not in ALWAYS and not pair.p < ALPHA:
        return
    doing, way = SAID[name]
    gap = abs(means[best] - means[other])
    role = f"{other}, the baseline" if other == inference.baseline else other
    if percent(gap) == "0.00":
        yield f"{best} and {role}{',' if role != other else ''} have the same {name}, {percent(means[best])}."
        return
    unit = "%" if name == "FP" else " points"
    value = f"{name} {percent(means[best])}{unit}"
    begin = f"{best} {doing} of {len(ranked)} strategies ({value}), {percent(gap)} points {way} than {role}"
    if pair.reason:
        yield f"{begin}; this was not tested: {pair.reason}."
    elif pair.p < ALPHA:
        yield f"{begin} (Tukey's HSD over {tests.replicates}, p {p_text(pair.p, sign=True)})."
    else:
        test = f"Tukey's HSD over {tests.replicates}, p {p_text(pair.p, sign=True)}"
        yield f"{begin}; this may be chance ({test}), so no difference is shown."
    # Second to none of them that it was not told apart from.
    near = ranked[1]
    if near != other and pair.p < ALPHA and not (close := _pair(tests, best, near)).p < ALPHA:
        yield f"It is not told apart from {near} (p {p_text(close.p, sign=True)})."


def _pair(tests: Tests, a: str, b: str) -> Pair:
    return next(pair for pair in tests.blocked[1] if {pair.a, pair.b} == {a, b})
