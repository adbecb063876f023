"""The paragraphs under "What was found": the primary comparisons of a section in words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from xclrun.analysis.measures import MEASURES
from xclrun.analysis.power import power_warnings
from xclrun.analysis.reference import is_ranked
from xclrun.analysis.significance import ALPHA, Pair
from xclrun.report.caveats import grids
from xclrun.report.inference import Inference, Tests, Verdicts, p_text
from xclrun.report.style import metric_title
from xclrun.report.tables import percent

UNTESTED = (
    "No differences were tested: a test needs two strategies with at least two orders, buckets or seeds in common. "
    "The differences below describe these runs only."
)
UNRANKED = (
    "No strategies were ranked: all strategies but one are reference models. “Intervals and tests” compares that "
    "strategy with the reference models that learn in sequence."
)


def conclusions(inference: Inference) -> list[str]:
    """Return a paragraph for each metric and a caveat; without tests, a single paragraph that says why.

    Reference models and controls are excluded. No strategy is named as best if several settings of one strategy are
    ranked on test scores.
    """
    unranked = [k for k, runs in inference.comparison.strategies.items() if not is_ranked(runs[0])]
    best = not grids(inference.comparison)
    paragraphs = []
    for metric in inference.comparison.metrics:
        sentences = [
            text
            for name in inference.of_metric(metric)
            for text in compare(inference, (metric, name), MEASURES[name].title, MEASURES[name].unit, unranked, best)
        ]
        if sentences:
            title = metric_title(metric, inference.comparison.runs, unit="")
            paragraphs.append(f"{title[0].upper()}{title[1:]}: {' '.join(sentences)}")
    if not paragraphs:
        compared = {label for label, *_ in inference.unadjusted}.difference(unranked)
        notes = [] if compared else inference.baseline_notes()
        return notes or [UNRANKED if inference.tests else UNTESTED]
    return [*paragraphs, caveat(inference, next(iter(inference.tests.values())), "Intervals and tests")]


def caveat(verdicts: Verdicts, tests: Tests, heading: str) -> str:
    """Describe the test of the primary comparisons and its power, and refer to ``heading`` for all tests."""
    warning = power_warnings(len(tests.averaged.blocks), 1)[-1]
    method = f" p-values: {verdicts.method}." if verdicts.family else ""
    return f"Caveat: {tests.scope}; {warning}.{method} See “{heading}” for all pairs and tests."


def compare(
    verdicts: Verdicts, key: tuple[str, str], title: str, unit: str, unranked: Collection[str] = (), best: bool = True
) -> Iterator[str]:
    """Yield sentences on one primary measure: the best strategy, and the difference of each strategy from the baseline.

    Args:
        key: metric and measure.
        title: name of the measure in words.
        unit: ``%`` or ``points``.
        unranked: strategies to exclude.
        best: name the best strategy if it differs significantly from the baseline.
    """
    tests, baseline = verdicts.tests[key], verdicts.baseline
    means = dict(zip(tests.averaged.strategies, np.mean(tests.averaged.values, axis=1).tolist(), strict=True))
    pairs = {label: pair for (label, *k), pair in verdicts.primary.items() if (*k,) == key and label not in unranked}
    if not pairs:
        return
    if not tests.higher_is_better and max(means[label] for label in [baseline, *pairs]) <= tests.data.tolerance:
        yield f"No strategy shows {title} above 0."
        return
    ranked = sorted(pairs.keys() | ({baseline} - set(unranked)), key=means.__getitem__, reverse=tests.higher_is_better)
    first = ranked[0]
    untied = len(ranked) > 1 and abs(means[first] - means[ranked[1]]) > tests.data.tolerance
    if best and untied and first in pairs and pairs[first].p < ALPHA:
        most = "highest" if tests.higher_is_better else "lowest"
        yield f"{first} has the {most} {title} of {len(ranked)} strategies ({percent(means[first])} {unit})."
    yield from _differences(pairs, f"{baseline} ({percent(means[baseline])} {unit})", title, tests.data.tolerance)


def _differences(pairs: Mapping[str, Pair], baseline: str, title: str, tolerance: float) -> Iterator[str]:
    higher = [label for label, pair in pairs.items() if pair.p < ALPHA and pair.difference > 0]
    lower = [label for label, pair in pairs.items() if pair.p < ALPHA and pair.difference < 0]
    similar = [label for label, pair in pairs.items() if pair.p >= ALPHA]
    ways = [f"{way} for {_listed(pairs, labels)}" for way, labels in (("higher", higher), ("lower", lower)) if labels]
    subject = f"Compared with the baseline, {baseline}, {title}"
    if ways:
        yield f"{subject} is significantly {' and significantly '.join(ways)}."
    if similar:
        yield f"{'It' if ways else subject} does not differ significantly for {_listed(pairs, similar)}."
    for label, pair in pairs.items():
        if pair.reason and abs(pair.difference) <= tolerance:
            yield f"{label} and the baseline, {baseline}, have equal {title}."
        elif pair.reason:
            yield f"{label} was not tested against the baseline, {baseline} ({_signed(pair)}): {pair.reason}."


def _listed(pairs: Mapping[str, Pair], labels: Sequence[str]) -> str:
    """List labels with differences and p-values: ``a (−1.20 points, p = 0.012) and b (…)``."""
    each = [f"{label} ({_signed(pairs[label])}, p {p_text(pairs[label].p, sign=True)})" for label in labels]
    return " and ".join([", ".join(each[:-1]), each[-1]] if len(each) > 1 else each)


def _signed(pair: Pair) -> str:
    text = percent(pair.difference)
    return f"{text.replace('-', '−') if text.startswith('-') else f'+{text}'} points"
