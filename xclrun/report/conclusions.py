"""The sentences under "What was found": the primary comparisons of a section in words."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from xclrun.analysis.measures import MEASURES
from xclrun.analysis.power import power_warnings
from xclrun.analysis.reference import is_ranked
from xclrun.analysis.significance import ALPHA, Pair
from xclrun.report.inference import Inference, Subject, Verdicts, p_text
from xclrun.report.style import metric_title

PRIMARY_TESTS = "Primary comparisons"
UNTESTED = (
    "No differences were tested: a test needs two strategies with at least two orders, buckets or seeds in common{}. "
    "The differences below describe these runs only."
)
UNRANKED = (
    "No strategies were ranked: all strategies but one are reference models. “Primary comparisons” compares that "
    "strategy with the reference models that learn in sequence."
)


def conclusions(inference: Inference) -> list[str]:
    """Return a sentence for each metric and strategy, and a caveat; without tests, a single paragraph that says why.

    Reference models and controls are excluded. No strategy is named as best: tables mark the best means.
    """
    first = {k: runs[0] for k, runs in inference.comparison.strategies.items()} | dict(inference.unfinished)
    unranked = [label for label, run in first.items() if not is_ranked(run)]
    sentences = []
    for metric in inference.comparison.metrics:
        title = metric_title(metric, inference.comparison.runs, unit="")
        titles = {(metric, name): MEASURES[name].title for name in inference.of_metric(metric)}
        sentences += [f"{title[0].upper()}{title[1:]}: {text}" for text in compare(inference, titles, unranked)]
    if not sentences:
        compared = {label for label, *_ in inference.unadjusted}.difference(unranked)
        notes = [] if compared else inference.baseline_notes()
        reasons = f" ({'; '.join(inference.why_untested)})" if inference.why_untested else ""
        return notes or [UNRANKED if inference.tests else UNTESTED.format(reasons)]
    return [*sentences, caveat(inference, PRIMARY_TESTS)]


def caveat(verdicts: Verdicts, heading: str) -> str:
    """Describe the tests of the primary comparisons and their power, and refer to ``heading`` for their table."""
    # Pairs have their own numbers of replicates. Without a test, there is no power to describe.
    counts = sorted({pair.n for pair in verdicts.primary.values() if not math.isnan(pair.p)})
    powers = [power_warnings(n, 1)[-1] for n in counts]
    method = f" p-values: {verdicts.method}; intervals: simultaneous, 95 %." if verdicts.is_tested else ""
    return f"Caveat: {'; '.join([*verdicts.each_scope(), *powers])}.{method} See “{heading}”."


def compare(verdicts: Verdicts, titles: Mapping[Subject, str], unranked: Collection[str] = ()) -> Iterator[str]:
    """Yield a sentence for each strategy: its differences from the baseline, with the corrected p-values.

    Args:
        titles: metric and measure → name of the measure in words.
        unranked: strategies to exclude.
    """
    clauses: dict[str, list[tuple[str, str]]] = {}
    for key, title in titles.items():
        pairs = {k[0]: pair for k, pair in verdicts.primary.items() if k[1:] == key and k[0] not in unranked}
        tests = verdicts.tests[key]
        means = [tests.mean(label) for label in [verdicts.baseline, *pairs]]
        if pairs and not tests.quantity.higher_is_better and not any(mean > tests.data.tolerance for mean in means):
            yield f"no strategy shows {title} above 0."
            continue
        for label, pair in pairs.items():
            against = "" if label in clauses else f" {verdicts.baseline}"
            clauses.setdefault(label, []).append(_clause(verdicts, key, title, pair, against))
    for label, of_strategy in clauses.items():
        counts = dict.fromkeys(count for _, count in of_strategy)
        # A count that all clauses share ends the sentence.
        texts = [text if len(counts) == 1 or not count else f"{text}, over {count}" for text, count in of_strategy]
        shared = next(iter(counts)) if len(counts) == 1 else ""
        yield f"{label} {' and '.join(texts)}{f'; {shared}' if shared else ''}."


def _clause(verdicts: Verdicts, key: Subject, title: str, pair: Pair, against: str) -> tuple[str, str]:
    """Return the predicate of a sentence about one primary comparison, and the replicates on which it is based.

    Args:
        against: space and name of the baseline; empty if the sentence has named it.
    """
    tests, difference = verdicts.tests[key], verdicts.quantity(key).difference
    tolerance = tests.data.tolerance
    noun = verdicts.replicates_of(pair.a, key)
    count = f"{pair.n} {noun}" if pair.n > 1 else ""
    before, after = verdicts.means_of(pair.a, key)
    shown = tests.quantity.shown
    if math.isnan(pair.difference):
        return f"was not compared with{against or ' the baseline'} on {title} ({pair.reason})", count
    if pair.reason and abs(pair.difference) <= tolerance:
        return f"has the same {title}{f' as{against}' if against else ''} ({shown(after)})", count
    size = f"{difference.shown(abs(pair.difference))} {difference.unit}"
    if key[1] == "F" and min(before, after) > tolerance:
        text = f"forgets {size} {'more' if pair.difference > 0 else 'less'}{f' than{against}' if against else ''}"
    else:
        side = "higher" if pair.difference > 0 else "lower"
        # Without a note, "lower final performance" in bits would read as worse.
        lower_is_better = key[1] != "F" and not tests.quantity.higher_is_better
        meaning = (" (worse)" if pair.difference > 0 else " (better)") if lower_is_better else ""
        text = f"has {size} {side}{meaning} {title}{f' than{against}' if against else ''}"
    facts = [_verdict(verdicts, (pair.a, *key), pair)]
    # Clusters of orders can have another mean difference than the orders that tables average.
    if difference.shown(after - before) == difference.shown(pair.difference):
        facts.insert(0, f"{shown(before)} → {shown(after)}".replace("-", "−"))
    return f"{text} ({'; '.join(facts)})", count


def _verdict(verdicts: Verdicts, key: tuple[str, str, str], pair: Pair) -> str:
    if pair.reason:
        return f"not tested: {pair.reason}"
    p = f"p {p_text(pair.p, sign=True)}"
    if pair.p < ALPHA:
        return p
    ends = verdicts.quantity(key[1:]).difference.interval(*pair.interval(len(verdicts.family)))
    text = f"not significant, {p}, {ends.replace('-', '−')}"
    if verdicts.margin is not None and verdicts.equivalent[key] < ALPHA:
        text += f", equivalent within {verdicts.quantity(key[1:]).difference.shown(verdicts.margin)} points"
    return text
