"""The paragraphs under "What was found": the primary comparisons of a section in words."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from xclrun.analysis.measures import MEASURES
from xclrun.analysis.power import power_warnings
from xclrun.analysis.reference import is_ranked
from xclrun.analysis.significance import ALPHA, Pair
from xclrun.core.quantity import Quantity
from xclrun.report.caveats import grids
from xclrun.report.inference import Inference, Verdicts, p_text
from xclrun.report.style import metric_title

UNTESTED = (
    "No differences were tested: a test needs two strategies with at least two orders, buckets or seeds in common{}. "
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
            for text in compare(inference, (metric, name), MEASURES[name].title, unranked, best)
        ]
        if sentences:
            title = metric_title(metric, inference.comparison.runs, unit="")
            paragraphs.append(f"{title[0].upper()}{title[1:]}: {' '.join(sentences)}")
    if not paragraphs:
        compared = {label for label, *_ in inference.unadjusted}.difference(unranked)
        notes = [] if compared else inference.baseline_notes()
        reasons = f" ({'; '.join(inference.why_untested)})" if inference.why_untested else ""
        return notes or [UNRANKED if inference.tests else UNTESTED.format(reasons)]
    return [*paragraphs, caveat(inference, "Intervals and tests")]


def caveat(verdicts: Verdicts, heading: str) -> str:
    """Describe the tests of the primary comparisons and their power, and refer to ``heading`` for all tests."""
    counts = [pair.n for pair in verdicts.primary.values()]
    warning = power_warnings(max(counts, default=0), 1)[-1]
    method = f" p-values: {verdicts.method}." if verdicts.is_tested else ""
    return f"Caveat: {'; '.join([*verdicts.each_scope(), warning])}.{method} See “{heading}” for all pairs and tests."


def compare(
    verdicts: Verdicts, key: tuple[str, str], title: str, unranked: Collection[str] = (), best: bool = True
) -> Iterator[str]:
    """Yield sentences on one primary measure: the best strategy, and the difference of each strategy from the baseline.

    Args:
        key: metric and measure.
        title: name of the measure in words.
        unranked: strategies to exclude.
        best: name the best strategy if it differs significantly from the baseline.
    """
    tests, baseline = verdicts.tests[key], verdicts.baseline
    quantity, higher_is_better = tests.quantity, tests.quantity.higher_is_better
    pairs = {label: pair for (label, *k), pair in verdicts.primary.items() if (*k,) == key and label not in unranked}
    if not pairs:
        return
    means = {label: tests.mean(label) for label in [baseline, *pairs]}
    if not higher_is_better and not any(mean > tests.data.tolerance for mean in means.values()):
        yield f"No strategy shows {title} above 0."
        return
    # Only means over the same replicates are ranked.
    ranked = [label for label in pairs.keys() | ({baseline} - set(unranked)) if label in tests.data.strategies]
    ranked.sort(key=means.__getitem__, reverse=higher_is_better)
    first = next(iter(ranked), "")
    untied = len(ranked) > 1 and abs(means[first] - means[ranked[1]]) > tests.data.tolerance
    if best and untied and first in pairs and pairs[first].p < ALPHA:
        most = "highest" if higher_is_better else "lowest"
        value = f"{quantity.shown(means[first])} {quantity.unit}"
        yield f"{first} has the {most} {title} of {len(ranked)} strategies ({value})."
    equivalent = {} if verdicts.margin is None else {k: verdicts.equivalent[k, key[0], key[1]] < ALPHA for k in pairs}
    alike = [label for label, is_equivalent in equivalent.items() if is_equivalent]
    text = f"{baseline} ({quantity.shown(means[baseline])} {quantity.unit})"
    nouns = {label: verdicts.replicates_of(label, key) for label in pairs}
    yield from _differences(pairs, quantity.difference, text, title, tests.data.tolerance, nouns, len(verdicts.family))
    if alike and verdicts.margin is not None:
        yield (
            f"{title[0].upper()}{title[1:]} differs from the baseline's by less than "
            f"{quantity.shown(verdicts.margin)} points for {' and '.join(alike)} (equivalence test)."
        )


def _differences(
    pairs: Mapping[str, Pair],
    quantity: Quantity,
    baseline: str,
    title: str,
    tolerance: float,
    replicates: Mapping[str, str],
    family: int,
) -> Iterator[str]:
    """Yield sentences on the differences from the baseline.

    Args:
        quantity: the quantity of the differences.
        replicates: label → the plural noun for its replicates.
        family: number of comparisons of the simultaneous intervals.
    """
    higher = [label for label, pair in pairs.items() if pair.p < ALPHA and pair.difference > 0]
    lower = [label for label, pair in pairs.items() if pair.p < ALPHA and pair.difference < 0]
    similar = [label for label, pair in pairs.items() if pair.p >= ALPHA]
    over = _over(pairs, replicates)
    ways = [
        f"{way} for {_listed(pairs, quantity, labels, over)}"
        for way, labels in (("higher", higher), ("lower", lower))
        if labels
    ]
    subject = f"Compared with the baseline, {baseline}, {title}"
    if ways:
        yield f"{subject} is significantly {' and significantly '.join(ways)}."
    if similar:
        intervals = {k: quantity.interval(*pairs[k].interval(family)) for k in similar}
        listed = _listed(pairs, quantity, similar, {k: f", {ends}{over.get(k, '')}" for k, ends in intervals.items()})
        brackets = "simultaneous 95 % interval" + "s" * (len(similar) > 1)
        yield f"{'It' if ways else subject} does not differ significantly for {listed}; in brackets: {brackets}."
    for label, pair in pairs.items():
        if pair.reason and abs(pair.difference) <= tolerance:
            yield f"{label} and the baseline, {baseline}, have equal {title}."
        elif pair.reason:
            difference = "" if math.isnan(pair.difference) else f" ({_signed(pair, quantity)}{over.get(label, '')})"
            yield f"{label} was not tested against the baseline, {baseline}{difference}: {pair.reason}."


def _over(pairs: Mapping[str, Pair], replicates: Mapping[str, str]) -> dict[str, str]:
    """Return label → its number of replicates, if other pairs have more or other replicates."""
    most: dict[str, int] = {}
    for label, pair in pairs.items():
        most[replicates[label]] = max(pair.n, most.get(replicates[label], 0))
    several = sum(n > 0 for n in most.values()) > 1
    over = {}
    for label, pair in pairs.items():
        noun = replicates[label]
        if pair.n > 0 and (several or pair.n < most[noun]):
            of = f" of {most[noun]}" if pair.n < most[noun] else ""
            over[label] = f", over {pair.n}{of} {noun}"
    return over


def _listed(pairs: Mapping[str, Pair], quantity: Quantity, labels: Sequence[str], over: Mapping[str, str]) -> str:
    """List labels with differences and p-values: ``a (−1.20 points, p = 0.012) and b (…)``."""
    each = [
        f"{label} ({_signed(pairs[label], quantity)}, p {p_text(pairs[label].p, sign=True)}{over.get(label, '')})"
        for label in labels
    ]
    return " and ".join([", ".join(each[:-1]), each[-1]] if len(each) > 1 else each)


def _signed(pair: Pair, quantity: Quantity) -> str:
    return f"{quantity.change(pair.difference).replace('-', '−')} {quantity.unit}"
