"""The paragraphs under "What was found": the primary comparisons of a section, in words."""

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
    "Nothing was tested: a test needs two strategies that have run the same two orders, buckets or seeds. "
    "The differences below are those of these runs alone."
)
UNRANKED = (
    "Nothing is ranked here: beside one strategy there are reference models alone. How it differs from those that "
    "learn in sequence is under “Intervals and tests”."
)


def conclusions(inference: Inference) -> list[str]:
    """Return a paragraph for each metric, then the test and its limits; a single paragraph where nothing was tested.

    Reference models and controls are left out. No strategy is called the best where settings of one strategy are
    ranked on test scores.
    """
    unranked = [k for k, runs in inference.comparison.strategies.items() if not is_ranked(runs[0])]
    best = not grids(inference.comparison)
    paragraphs = []
    for metric in inference.comparison.metrics:
        said = [
            text
            for name in inference.of(metric)
            for text in compare(inference, (metric, name), MEASURES[name].title, MEASURES[name].unit, unranked, best)
        ]
        if said:
            title = metric_title(metric, inference.comparison.runs, unit="")
            paragraphs.append(f"{title[0].upper()}{title[1:]}: {' '.join(said)}")
    if not paragraphs:
        compared = {label for label, *_ in inference.unadjusted}.difference(unranked)
        without = [] if compared else inference.baseline_notes()
        return without or [UNRANKED if inference.tests else UNTESTED]
    return [*paragraphs, caveat(inference, next(iter(inference.tests.values())), "Intervals and tests")]


def caveat(verdicts: Verdicts, tests: Tests, where: str) -> str:
    """Return the test of the primary comparisons, what so few replicates cannot show, and where all tests are."""
    warning = power_warnings(len(tests.averaged.blocks), 1)[-1]
    return f"Caveat: {tests.scope}; {warning}. p-values: {verdicts.method}. All pairs and tests: under “{where}”."


def compare(
    verdicts: Verdicts,
    key: tuple[str, str],
    title: str,
    unit: str,
    unranked: Collection[str] = (),
    best: bool = True,
) -> Iterator[str]:
    """Yield the sentences on one primary measure: the best strategy, and how each differs from the baseline.

    Args:
        key: metric and measure.
        title: of the measure, in words; ``unit``: ``%`` or ``points``.
        unranked: strategies that are left out.
        best: whether the best strategy is named, where it differs significantly from the baseline.
    """
    tests, baseline = verdicts.tests[key], verdicts.baseline
    means = dict(zip(tests.averaged.strategies, np.mean(tests.averaged.values, axis=1).tolist(), strict=True))
    pairs = {label: pair for (label, *of), pair in verdicts.primary.items() if (*of,) == key and label not in unranked}
    if not pairs:
        return
    if not tests.higher_is_better and max(means[label] for label in [baseline, *pairs]) <= tests.data.tolerance:
        yield f"No strategy has {title} above 0."
        return
    ranked = sorted(pairs.keys() | ({baseline} - set(unranked)), key=means.__getitem__, reverse=tests.higher_is_better)
    first = ranked[0]
    alone = len(ranked) > 1 and abs(means[first] - means[ranked[1]]) > tests.data.tolerance
    sign = "%" if unit == "%" else f" {unit}"
    if best and alone and first in pairs and pairs[first].p < ALPHA:
        most = "highest" if tests.higher_is_better else "lowest"
        yield f"{first} has the {most} {title} of {len(ranked)} strategies ({percent(means[first])}{sign})."
    yield from _differences(pairs, f"{baseline} ({percent(means[baseline])}{sign})", title, tests.data.tolerance)


def _differences(pairs: Mapping[str, Pair], baseline: str, title: str, tolerance: float) -> Iterator[str]:
    higher = [label for label, pair in pairs.items() if pair.p < ALPHA and pair.difference > 0]
    lower = [label for label, pair in pairs.items() if pair.p < ALPHA and pair.difference < 0]
    chance = [label for label, pair in pairs.items() if pair.p >= ALPHA]
    found = [f"{way} for {_listed(pairs, of)}" for way, of in (("higher", higher), ("lower", lower)) if of]
    if found:
        yield f"Compared with the baseline, {baseline}, {title} is significantly {' and significantly '.join(found)}."
        if chance:
            yield f"It does not differ significantly for {_listed(pairs, chance)}."
    elif chance:
        yield (
            f"The difference in {title} from the baseline, {baseline}, is not significant for {_listed(pairs, chance)}."
        )
    untested = {label: pair for label, pair in pairs.items() if pair.reason}
    for label, pair in untested.items():
        if abs(pair.difference) <= tolerance:
            yield f"{label} and the baseline, {baseline}, have the same {title}."
        else:
            yield f"{label} was not tested against the baseline, {baseline} ({_signed(pair)}): {pair.reason}."


def _listed(pairs: Mapping[str, Pair], labels: Sequence[str]) -> str:
    """Return labels with their differences and p-values: ``a (−1.20 points, p = 0.012) and b (…)``."""
    each = [f"{label} ({_signed(pairs[label])}, p {p_text(pairs[label].p, sign=True)})" for label in labels]
    return " and ".join([", ".join(each[:-1]), each[-1]] if len(each) > 1 else each)


def _signed(pair: Pair) -> str:
    text = percent(pair.difference)
    return f"{text.replace('-', '−') if text.startswith('-') else f'+{text}'} points"
