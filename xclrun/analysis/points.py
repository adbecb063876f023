"""Evaluation points inside hops (``evaluate.every_…``): learning curves, and checkpoint selection.

Sources: LL = "Towards a robust experimental framework … lifelong language learning" §4.2; ED = "Don't Use English Dev"
§4, §7. docs/checkpoints.md, "Checkpoint selection". Scores are fractions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from xclrun.analysis import formulas
from xclrun.analysis.record import RunRecord, point_score
from xclrun.core.task import BY_NAME


@dataclass(frozen=True)
class HopPoints:
    """The P evaluation points inside one hop of a run with N languages.

    Attributes:
        hop: index, from 1.
        sources: columns of the languages that the hop trains on.
        seen: columns of all languages learned up to the hop's end.
        examples: number of sentences of the hop seen up to each point, without replay, shape (P,).
        dev, test: scores, shape (P, N); NaN if not measured.
        averaged: name of an average of checkpoints (``last-5``, ``all``) → its test scores, shape (N,).
        metric: name of the metric.
    """

    hop: int
    sources: tuple[int, ...]
    seen: tuple[int, ...]
    examples: np.ndarray
    dev: np.ndarray
    test: np.ndarray
    averaged: Mapping[str, np.ndarray] = field(default_factory=dict)
    metric: str = ""

    @property
    def ranked(self) -> np.ndarray:
        """The dev scores such that higher is better, shape (P, N)."""
        return np.asarray(BY_NAME[self.metric].goodness(self.dev) if self.metric else self.dev)


def hop_points(record: RunRecord, metric: str) -> list[HopPoints]:
    """Return the evaluation points of each hop that has any."""

    def scores(by_language: Mapping[str, Any]) -> list[float]:
        return [point_score(by_language, language, metric) for language in record.languages]

    hops = []
    for hop in range(1, record.hops + 1):
        points = [point for point in record.points if point["hop"] == hop]
        if not points:
            continue
        # The languages with dev scores in the hop's training curve are those that the hop trains on.
        trained = {language for epoch in record.curve if epoch["hop"] == hop for language in epoch.get("dev") or {}}
        trained = trained or set(record.trains(hop))
        sources = tuple(j for j, language in enumerate(record.languages) if language in trained)
        continuing = record.stream in ("sequence", "transfer", "mixture")
        earlier = {k for before in range(1, hop + 1) for k in record.trains(before)} if continuing else ()
        seen = tuple(sorted({*sources, *(record.languages.index(k) for k in earlier)}))
        examples = np.array([point["own"] for point in points], dtype=float)
        dev, test = (np.array([scores(point.get(split, {})) for point in points]) for split in ("dev", "test"))
        averaged = {mean["of"]: np.array(scores(mean["test"])) for mean in record.averaged if mean["hop"] == hop}
        hops.append(HopPoints(hop, sources, seen, examples, dev, test, averaged, metric))
    return hops


# Streams with hops that do not continue from the previous hop.
DISCONTINUOUS = ("independent", "growing", "blocks")


def curves(record: RunRecord, metric: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return two arrays for the E evaluations of a run with N languages, from hop 0 on.

    They are the number of sentences seen so far, without replay, shape (E,), and the test scores, shape (E, N). None if
    a hop has no points, or the stream is `DISCONTINUOUS`.
    """
    hops = hop_points(record, metric)
    if len(hops) < record.hops or record.stream in DISCONTINUOUS:
        return None
    ends = np.cumsum([0.0, *(hop.examples[-1] for hop in hops)])
    seen = np.concatenate([[0.0], *(hop.examples + start for hop, start in zip(hops, ends[:-1], strict=True))])
    return seen, np.concatenate([record.scores[metric][:1], *(hop.test for hop in hops)])


def learning_curve(record: RunRecord, metric: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return `curves`, with test scores averaged over all languages: two arrays of shape (E,)."""
    curve = curves(record, metric)
    return None if curve is None else (curve[0], curve[1].mean(axis=1))


def adapts(config: Mapping[str, Any]) -> bool:
    """Whether the strategy in a config adapts the model to each test example after a hop (MbPA)."""
    strategy = config.get("strategy") or {}
    return all(strategy.get(key) for key in ("neighbours", "adapt_steps", "replay_write"))


def unadapted(record: RunRecord) -> bool:
    """Whether a run adapts the model to each test example only after hops, not at points inside hops (MbPA)."""
    strategy = record.config.get("strategy") or {}
    return bool(record.points) and adapts(record.config) and strategy.get("adapt_points") is False


def unadapted_note(strategies: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    """Return a note that names the strategies (label → runs) with `unadapted` runs, if any."""
    labels = [label for label, runs in strategies.items() if any(map(unadapted, runs))]
    note = (
        "at points inside hops (AULTC, curves, F_m_curve, I_m_curve), the model is not adapted to each test example, "
        "unlike after hops; strategy.adapt_points=true adapts it at all points"
    )
    return [f"{', '.join(labels)}: {note}"] if labels else []


def switches(record: RunRecord) -> np.ndarray:
    """Return the number of sentences seen before hops 2, 3, …, shape (hops − 1,)."""
    lasts = {point["hop"]: point["own"] for point in record.points}
    return np.cumsum([lasts[hop] for hop in sorted(lasts)])[:-1]


def aultc(record: RunRecord, metric: str) -> float:
    """Return `formulas.aultc` of a run, with higher values better; NaN if the curve is incomplete."""
    curve = learning_curve(record, metric)
    return float("nan") if curve is None else float(formulas.aultc(curve[0], BY_NAME[metric].goodness(curve[1])))


def curve_forgetting(record: RunRecord, metric: str) -> np.ndarray:
    """Return `formulas.curve_forgetting` of a run with N languages, shape (N,); NaN if the curve is incomplete."""
    curve = curves(record, metric)
    if curve is None:
        return np.full(len(record.languages), np.nan)
    return formulas.curve_forgetting(BY_NAME[metric].goodness(curve[1]))


def curve_intransigence(record: RunRecord, metric: str, reference: np.ndarray) -> float:
    """Return the mean over languages i = 1…N of M[i] − a_i(i/N): LL's intransigence for multi-task training.

    M is ``reference``, with higher values better (`Metric.goodness`). a_i(x) is the score on language i at the last
    evaluation within the first fraction x of the stream. NaN if the curve or M is incomplete.
    """
    curve = curves(record, metric)
    if curve is None:
        return float("nan")
    seen, scores = curve[0], BY_NAME[metric].goodness(curve[1])
    n = len(record.languages)
    places = [int(np.searchsorted(seen, seen[-1] * i / n * (1 + 1e-12), side="right")) - 1 for i in range(1, n + 1)]
    return float(np.mean([reference[i] - scores[place, i] for i, place in enumerate(places)]))


# `directional_agreement` ignores pairs of points whose test scores differ by less (ED §4).
LEAST = 0.005


def least(metric: str) -> str:
    """Return `LEAST` in words, for a metric."""
    difference = BY_NAME[metric].difference
    unit = "percentage points" if difference.unit == "points" else difference.unit
    return f"{difference.scale * LEAST:g} {unit}"


def selected(dev: ArrayLike, test: ArrayLike, sources: Sequence[int]) -> np.ndarray:
    """Return the test scores at the point with the best mean dev score over the languages ``sources``, shape (..., N).

    ``dev`` and ``test`` have shape (..., P, N), for P points and N languages; higher dev scores are better. In a tie,
    the first point is chosen. Points without a dev score are ignored.
    """
    return _at_best(np.asarray(dev, dtype=float)[..., list(sources)].mean(axis=-1)[..., None], test)


def oracle(dev: ArrayLike, test: ArrayLike) -> np.ndarray:
    """Return the test score of each language at the point with this language's best dev score (see `selected`)."""
    return _at_best(np.asarray(dev, dtype=float), test)


def _at_best(dev: np.ndarray, test: ArrayLike) -> np.ndarray:
    """Return the test scores at the point with the highest ``dev``, shape (..., N).

    ``dev`` has shape (..., P, N) to choose a point for each language, or (..., P, 1) to choose one point for all.
    """
    # Replace NaN, which argmax would choose.
    best = np.where(np.isnan(dev), -np.inf, dev).argmax(axis=-2, keepdims=True)
    at = np.take_along_axis(np.asarray(test, dtype=float), best, axis=-2)
    return np.where(np.isnan(dev).all(axis=-2), np.nan, at[..., 0, :])


def directional_agreement(dev: ArrayLike, test: ArrayLike) -> float:
    """Return the directional agreement of a dev and a test score over P points (ED §4).

    It is the share of the pairs of points with |Δ test| ≥ 0.005 in which dev and test scores change in the same
    direction. A pair with equal dev scores counts as half. NaN if there are no such pairs. ``dev`` and ``test`` have
    shape (P,).
    """
    a, b = np.asarray(dev, dtype=float), np.asarray(test, dtype=float)
    first, second = np.triu_indices(len(a), k=1)
    change_dev, change_test = a[second] - a[first], b[second] - b[first]
    # 1e-12 allows for rounding errors of differences of exactly 0.005.
    different = (np.abs(change_test) >= LEAST - 1e-12) & ~np.isnan(change_dev)
    if not different.any():
        return float("nan")
    agrees = np.sign(change_dev[different]) * np.sign(change_test[different])
    return float(np.mean((agrees + 1) / 2))


@dataclass(frozen=True)
class Rule:
    """A rule that selects a checkpoint of a hop after training.

    Attributes:
        definition: the criterion, for tables.
        scores: returns the test scores on the N languages at the selected points, shape (N,).
        dev: whether the rule needs dev scores.
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
            "mean dev score of the languages that the hop trains on",
            lambda hop: selected(hop.ranked, hop.test, hop.sources),
        ),
        Rule("source_dev", "dev score of the order's first language", lambda hop: selected(hop.ranked, hop.test, [0])),
        Rule(
            "mean_seen_dev",
            "mean dev score of all languages learned so far, including the current hop",
            lambda hop: selected(hop.ranked, hop.test, hop.seen),
        ),
        Rule("oracle", "dev score of each tested language", lambda hop: oracle(hop.ranked, hop.test)),
        Rule("last", "the last checkpoint, without dev data", lambda hop: hop.test[-1], dev=False),
    )
}  # fmt: skip


def rules(records: Iterable[RunRecord]) -> list[Rule]:
    """Return `RULES`, and a rule for each average of checkpoints (`xclrun model average`) in the records."""
    averages = sorted({mean["of"] for record in records for mean in record.averaged})
    return [*RULES.values(), *map(_averaging, averages)]


def _averaging(average: str) -> Rule:
    points = "all checkpoints" if average == "all" else f"the last {average.removeprefix('last-')} checkpoints"

    def scores(hop: HopPoints) -> np.ndarray:
        return hop.averaged.get(average, np.full(hop.test.shape[1], np.nan))

    return Rule(f"average_{average}", f"mean of the weights of {points}, without dev data", scores, dev=False)


def by_rule(record: RunRecord, metric: str, rule: Rule) -> np.ndarray:
    """Return the test scores of the checkpoint that the rule selects in each hop, shape (hops, N); NaN without points.

    Later hops did not continue from this checkpoint, so only `exact` hops have the scores of a complete run.
    """
    scores = np.full((record.hops, len(record.languages)), np.nan)
    for hop in hop_points(record, metric):
        scores[hop.hop - 1] = rule.scores(hop)
    return scores


def final_by_rule(record: RunRecord, metric: str, rule: Rule) -> np.ndarray:
    """Return the final test scores with the selected checkpoints, shape (N,).

    They belong to `exact` hops: to the last hop, or to each language's hop if languages are trained separately.
    """
    scores = by_rule(record, metric, rule)
    return np.diagonal(scores).copy() if record.stream == "independent" else scores[-1]


def exact(record: RunRecord, hop: int) -> bool:
    """Whether each checkpoint of a hop has the scores of a complete run, since no later hop continues from this hop."""
    return hop == record.hops or record.stream == "independent"


@dataclass(frozen=True)
class Selected:
    """Effect of checkpoint selection on the runs of one strategy. Arrays have one value per language.

    Attributes:
        selected: test score with the rule ``current_dev``, averaged within each order, then over orders.
        oracle: the same mean with the rule ``oracle``.
        selected_spread, oracle_spread: max − min of the test score over seeds, averaged over hops and streams; NaN with
            one seed.
        source: directional agreement of the test score and the mean dev score of the hop's training languages.
        target: directional agreement of the test score and the dev score on the same language.
    """

    languages: tuple[str, ...]
    selected: np.ndarray
    oracle: np.ndarray
    selected_spread: np.ndarray
    oracle_spread: np.ndarray
    source: np.ndarray
    target: np.ndarray


def selection(runs: Sequence[RunRecord], metric: str, languages: Sequence[str]) -> Selected | None:
    """Return the effect of checkpoint selection on the runs of one strategy; None without dev scores inside hops."""
    by_order: dict[tuple[str, ...], list[tuple[np.ndarray, ...]]] = {}
    by_stream: dict[tuple[object, ...], list[tuple[np.ndarray, ...]]] = {}
    for run in runs:
        hops = hop_points(run, metric) if metric in run.scores else []
        if not any(np.isfinite(hop.dev).any() for hop in hops):
            continue
        columns = [run.languages.index(k) if k in run.languages else None for k in languages]
        chosen = tuple(_placed(by_rule(run, metric, RULES[rule]), columns) for rule in ("current_dev", "oracle"))
        agreement = (_placed([agreement_of(hop, target) for hop in hops], columns) for target in (False, True))
        by_order.setdefault(run.path, []).append((*chosen, *agreement))
        by_stream.setdefault((run.languages, run.bucket, run.hops), []).append(chosen)
    if not by_order:
        return None
    order_means = [[_mean(parts) for parts in zip(*same, strict=True)] for same in by_order.values()]
    means = [_mean([mean[np.newaxis] for mean in parts]) for parts in zip(*order_means, strict=True)]
    several = [same for same in by_stream.values() if len(same) > 1]
    none = np.full((1, len(languages)), np.nan)
    spreads = [_mean([np.ptp([pair[k] for pair in same], axis=0) for same in several] or [none]) for k in (0, 1)]
    return Selected(tuple(languages), means[0], means[1], *spreads, *means[2:])


def agreement_of(hop: HopPoints, target: bool) -> np.ndarray:
    """Return the directional agreement of each language's test score and a dev score over the hop's points, shape (N,).

    With ``target``, the dev score is on the same language; otherwise, it is the mean over the training languages.
    """
    source = hop.dev[:, list(hop.sources)].mean(axis=1)
    dev = hop.dev.T if target else [source] * hop.test.shape[1]
    return np.array([directional_agreement(scores, test) for scores, test in zip(dev, hop.test.T, strict=True)])


def _mean(parts: Sequence[np.ndarray]) -> np.ndarray:
    with warnings.catch_warnings():
        # Ignore numpy's warning about means without values.
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(np.concatenate(parts), axis=0))


def _placed(rows: ArrayLike, columns: Sequence[int | None]) -> np.ndarray:
    values = np.asarray(rows)
    return np.stack([np.full(len(values), np.nan) if c is None else values[:, c] for c in columns], axis=1)
