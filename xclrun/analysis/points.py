"""Evaluation points inside hops (``evaluate.every_…``): learning curves, and scores of other checkpoints.

Sources: LL = "Towards a robust experimental framework … lifelong language learning" §4.2 (AULTC); ED = "Don't Use
English Dev" §4, §7 (selected and oracle scores, spread, directional agreement). docs/metrics.md. Scores are fractions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from xclrun.analysis import metrics
from xclrun.analysis.record import RunRecord, point_score


@dataclass(frozen=True)
class HopPoints:
    """The P evaluation points inside one hop of a run with N languages.

    Attributes:
        hop: its index, from 1.
        sources: columns of the languages that the hop trains on.
        seen: columns of all languages learned up to the hop's end.
        own: sentences of the hop's own data seen at each point, shape (P,).
        dev, test: scores, shape (P, N), in the order of the run's languages; NaN where not measured.
        averaged: average of checkpoints (``last-5``, ``all``) → test scores of the averaged weights, shape (N,).
    """

    # Column of the order's first language.
    first: ClassVar[int] = 0

    hop: int
    sources: tuple[int, ...]
    seen: tuple[int, ...]
    own: np.ndarray
    dev: np.ndarray
    test: np.ndarray
    averaged: Mapping[str, np.ndarray] = field(default_factory=dict)


def hop_points(record: RunRecord, metric: str) -> list[HopPoints]:
    """Return the points of each hop that has some, in order."""

    def scores(by_language: Mapping[str, Any]) -> list[float]:
        return [point_score(by_language, language, metric) for language in record.languages]

    hops = []
    for hop in range(1, record.hops + 1):
        points = [point for point in record.points if point["hop"] == hop]
        if not points:
            continue
        sources = _sources(record, hop)
        continuing = record.stream in ("sequence", "transfer", "mixture")
        earlier = {k for before in range(1, hop + 1) for k in record.trains(before)} if continuing else ()
        seen = tuple(sorted({*sources, *(record.languages.index(k) for k in earlier)}))
        own = np.array([point["own"] for point in points], dtype=float)
        dev, test = (np.array([scores(point.get(split, {})) for point in points]) for split in ("dev", "test"))
        averaged = {one["of"]: np.array(scores(one["test"])) for one in record.averaged if one["hop"] == hop}
        hops.append(HopPoints(hop, sources, seen, own, dev, test, averaged))
    return hops


# Streams whose hops do not continue from the hop before, or need not.
ANEW = ("independent", "growing", "blocks")


def curves(record: RunRecord, metric: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return sentences of the stream's own data seen, shape (E,), and the test score on each language, (E, N).

    Begins at 0 with hop 0. None where a hop has no points, or hops may not continue from each other (`ANEW`).
    """
    hops = hop_points(record, metric)
    if len(hops) < record.hops or record.stream in ANEW:
        return None
    ends = np.cumsum([0.0, *(hop.own[-1] for hop in hops)])
    seen = np.concatenate([[0.0], *(hop.own + start for hop, start in zip(hops, ends[:-1], strict=True))])
    return seen, np.concatenate([record.scores[metric][:1], *(hop.test for hop in hops)])


def learning_curve(record: RunRecord, metric: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return sentences seen, shape (E,), and the mean test score over all languages, (E,); None as for `curves`."""
    curve = curves(record, metric)
    return None if curve is None else (curve[0], curve[1].mean(axis=1))


def adapts(config: Mapping[str, Any]) -> bool:
    """Whether the model is adapted to each test example after a hop (MbPA)."""
    strategy = config.get("strategy") or {}
    return all(strategy.get(key) for key in ("neighbours", "adapt_steps", "replay_write"))


def unadapted(record: RunRecord) -> bool:
    """Whether the model is adapted to each test example at the ends of hops, but not at the points of a run (MbPA)."""
    strategy = record.config.get("strategy") or {}
    return bool(record.points) and adapts(record.config) and strategy.get("adapt_points") is False


def unadapted_note(strategies: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    """Return a note on strategies (label → runs) whose points are of the unadapted model, if any."""
    labels = [label for label, runs in strategies.items() if any(map(unadapted, runs))]
    what = "points inside hops, so AULTC, curves, F_m_curve and I_m_curve too, are of the model as it was trained, not "
    how = "adapted to each test example as at the ends of hops (strategy.adapt_points=true adapts there too)"
    return [f"{', '.join(labels)}: {what}{how}"] if labels else []


def switches(record: RunRecord) -> np.ndarray:
    """Return the number of sentences of the stream's own data seen when each next hop begins, shape (hops − 1,)."""
    lasts = {point["hop"]: point["own"] for point in record.points}
    return np.cumsum([lasts[hop] for hop in sorted(lasts)])[:-1]


def aultc(record: RunRecord, metric: str) -> float:
    """Return the area under the learning curve of a run (`metrics.aultc`); NaN if there is no whole curve."""
    curve = learning_curve(record, metric)
    return float("nan") if curve is None else float(metrics.aultc(*curve))


def curve_forgetting(record: RunRecord, metric: str) -> np.ndarray:
    """Return `metrics.curve_forgetting` of a run, shape (N,); NaN if there is no whole curve."""
    curve = curves(record, metric)
    return np.full(len(record.languages), np.nan) if curve is None else metrics.curve_forgetting(curve[1])


def curve_intransigence(record: RunRecord, metric: str, reference: np.ndarray) -> float:
    """Return the mean over i = 1…N of M[i] − a_i(i/N of the stream), as LL reads its multi-task training off the curve.

    a_i comes from the last evaluation at or before that place; NaN without a whole curve or reference.
    """
    curve = curves(record, metric)
    if curve is None:
        return float("nan")
    seen, scores = curve
    n = len(record.languages)
    places = [int(np.searchsorted(seen, seen[-1] * i / n * (1 + 1e-12), side="right")) - 1 for i in range(1, n + 1)]
    return float(np.mean([reference[i] - scores[place, i] for i, place in enumerate(places)]))


# Smaller differences of test scores are no evidence that one checkpoint is better than another (ED §4).
LEAST = 0.005


def selected(dev: ArrayLike, test: ArrayLike, sources: Sequence[int]) -> np.ndarray:
    """Return the test scores at the point with the best mean dev score of the hop's training languages, ``sources``.

    Scores of P points in N languages have shape (..., P, N), the result (..., N). Of equal points the first is chosen.
    A point that lacks one of the dev scores is never chosen; NaN without any candidate.
    """
    return _at_best(np.asarray(dev, dtype=float)[..., list(sources)].mean(axis=-1)[..., None], test)


def oracle(dev: ArrayLike, test: ArrayLike) -> np.ndarray:
    """Return the test score of each language at the point with its best dev score; shapes as for `selected`."""
    return _at_best(np.asarray(dev, dtype=float), test)


def _at_best(dev: np.ndarray, test: ArrayLike) -> np.ndarray:
    """Return the test scores at the best point of ``dev``, shape (..., P, N), or (..., P, 1) for all languages."""
    # argmax would choose NaN.
    best = np.where(np.isnan(dev), -np.inf, dev).argmax(axis=-2, keepdims=True)
    at = np.take_along_axis(np.asarray(test, dtype=float), best, axis=-2)
    return np.where(np.isnan(dev).all(axis=-2), np.nan, at[..., 0, :])


def directional_agreement(dev: ArrayLike, test: ArrayLike) -> float:
    """Return the share of pairs of points in which dev of a changes in the direction of test of b, |Δ test| ≥ 0.005.

    ``dev`` and ``test`` are scores of languages a and b at the P points, shape (P,). Ties in dev count as half. Pairs
    without a score are left out; NaN if no pair differs enough.
    """
    a, b = np.asarray(dev, dtype=float), np.asarray(test, dtype=float)
    first, second = np.triu_indices(len(a), k=1)
    change_dev, change_test = a[second] - a[first], b[second] - b[first]
    # Scores are multiples of 1/n, so a difference may be 0.005 but for rounding.
    apart = (np.abs(change_test) >= LEAST - 1e-12) & ~np.isnan(change_dev)
    if not apart.any():
        return float("nan")
    agrees = np.sign(change_dev[apart]) * np.sign(change_test[apart])
    return float(np.mean((agrees + 1) / 2))


@dataclass(frozen=True)
class Rule:
    """A rule that chooses a checkpoint of a hop after the fact, for each tested language.

    Attributes:
        definition: which dev scores choose.
        scores: returns the test scores of the N languages at the chosen points, shape (N,).
        dev: whether it needs dev scores.
    """

    name: str
    definition: str
    scores: Callable[[HopPoints], np.ndarray]
    dev: bool = True


RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "current_dev",
            "dev of the languages that the hop trains on",
            lambda hop: selected(hop.dev, hop.test, hop.sources),
        ),
        Rule("source_dev", "dev of the order's first language", lambda hop: selected(hop.dev, hop.test, [hop.first])),
        Rule(
            "mean_seen_dev",
            "mean dev score of the languages learned so far, the hop's included",
            lambda hop: selected(hop.dev, hop.test, hop.seen),
        ),
        Rule("oracle", "for each tested language its own dev", lambda hop: oracle(hop.dev, hop.test)),
        Rule("last", "the last checkpoint, without any dev data", lambda hop: hop.test[-1], dev=False),
    )
}  # fmt: skip


def rules(records: Iterable[RunRecord]) -> list[Rule]:
    """Return the rules, and one for each average of checkpoints that a run has."""
    averages = sorted({one["of"] for record in records for one in record.averaged})
    return [*RULES.values(), *map(_averaging, averages)]


def _averaging(of: str) -> Rule:
    points = "all checkpoints" if of == "all" else f"the last {of.removeprefix('last-')} checkpoints"

    def scores(hop: HopPoints) -> np.ndarray:
        return hop.averaged.get(of, np.full(hop.test.shape[1], np.nan))

    return Rule(f"average_{of}", f"mean of the weights of {points}, without any dev data", scores, dev=False)


def by_rule(record: RunRecord, metric: str, rule: Rule) -> np.ndarray:
    """Return the test scores after each hop had the rule chosen its checkpoint, shape (hops, N); NaN without points.

    A row holds the scores of the hop's checkpoint; how later hops would continue from it is unknown (`exact`).
    """
    scores = np.full((record.hops, len(record.languages)), np.nan)
    for hop in hop_points(record, metric):
        scores[hop.hop - 1] = rule.scores(hop)
    return scores


def final_by_rule(record: RunRecord, metric: str, rule: Rule) -> np.ndarray:
    """Return the last score on each language had the rule chosen the checkpoint of its hop, shape (N,).

    After the last hop; in a run that trains each language alone, after its own. These scores are exact.
    """
    scores = by_rule(record, metric, rule)
    return np.diagonal(scores).copy() if record.stream == "independent" else scores[-1]


def exact(record: RunRecord, hop: int) -> bool:
    """Whether scores of another checkpoint of a hop are those of a whole run: no hop continues from it."""
    return hop == record.hops or record.stream == "independent"


@dataclass(frozen=True)
class Selected:
    """Effect of checkpoint selection on the runs of one strategy, for each of N languages: arrays (N,).

    Attributes:
        selected, oracle: mean test score over hops and runs (within each order first) at the points that the rules
            ``current_dev`` and ``oracle`` choose.
        selected_spread, oracle_spread: max − min over seeds, averaged over hops and everything else; NaN with one seed.
        source, own: directional agreement of test with dev of the training languages, and of the language itself.
    """

    languages: tuple[str, ...]
    selected: np.ndarray
    oracle: np.ndarray
    selected_spread: np.ndarray
    oracle_spread: np.ndarray
    source: np.ndarray
    own: np.ndarray


def selection(runs: Sequence[RunRecord], metric: str, languages: Sequence[str]) -> Selected | None:
    """Return the effect of checkpoint selection over runs of one strategy; None if no run has dev points."""
    by_order: dict[tuple[str, ...], list[tuple[np.ndarray, ...]]] = {}
    by_stream: dict[tuple[object, ...], list[tuple[np.ndarray, ...]]] = {}
    for run in runs:
        hops = hop_points(run, metric) if metric in run.scores else []
        # Points may have been evaluated on test only.
        if not any(np.isfinite(hop.dev).any() for hop in hops):
            continue
        columns = [run.languages.index(k) if k in run.languages else None for k in languages]
        chosen = tuple(_placed(by_rule(run, metric, RULES[rule]), columns) for rule in ("current_dev", "oracle"))
        agreement = (_placed([agreement_of(hop, own) for hop in hops], columns) for own in (False, True))
        by_order.setdefault(run.path, []).append((*chosen, *agreement))
        by_stream.setdefault((run.languages, run.bucket, run.hops), []).append(chosen)
    if not by_order:
        return None
    # Each order counts the same, however many runs it has.
    of_orders = [[_mean(parts) for parts in zip(*same, strict=True)] for same in by_order.values()]
    means = [_mean([of[np.newaxis] for of in parts]) for parts in zip(*of_orders, strict=True)]
    several = [same for same in by_stream.values() if len(same) > 1]
    none = np.full((1, len(languages)), np.nan)
    spreads = [_mean([np.ptp([pair[k] for pair in same], axis=0) for same in several] or [none]) for k in (0, 1)]
    return Selected(tuple(languages), means[0], means[1], *spreads, *means[2:])


def agreement_of(hop: HopPoints, own: bool) -> np.ndarray:
    """Return the directional agreement of each language's test scores with a dev score over the hop's points, (N,).

    Args:
        own: with dev of the language itself; otherwise with the mean dev of the hop's training languages.
    """
    source = hop.dev[:, list(hop.sources)].mean(axis=1)
    return np.array([
        directional_agreement(hop.dev[:, j] if own else source, hop.test[:, j]) for j in range(hop.test.shape[1])
    ])  # fmt: skip


def _mean(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean over the rows of several (hops, N), without NaN, shape (N,)."""
    with warnings.catch_warnings():
        # The mean of a language without values is NaN.
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(np.concatenate(parts), axis=0))


def _placed(rows: ArrayLike, columns: Sequence[int | None]) -> np.ndarray:
    """Return the columns of rows (hops, N) in another order; NaN for None."""
    values = np.asarray(rows)
    return np.stack([np.full(len(values), np.nan) if c is None else values[:, c] for c in columns], axis=1)


def _sources(record: RunRecord, hop: int) -> tuple[int, ...]:
    """Return the columns of a hop's training languages: those whose dev scores its epochs have."""
    trained = {language for epoch in record.curve if epoch["hop"] == hop for language in epoch.get("dev") or {}}
    return tuple(j for j, language in enumerate(record.languages) if language in (trained or record.trains(hop)))
