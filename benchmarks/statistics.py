"""``python -m benchmarks.statistics``: how often the intervals of reports hold the truth, and their tests err.

Simulated studies whose truth is known; the intervals and tests are those of `xclrun.analysis`. With ``--write`` the
tables replace those in docs/statistics.md. Five minutes on one quiet core; ``--studies 20`` for a quick run.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.significance import TABLES
from xclrun.analysis import metrics
from xclrun.analysis.anova import anova, blocked_anova, honest_difference
from xclrun.analysis.base_scores import Counts
from xclrun.analysis.bootstrap import (
    SENTENCES,
    basic,
    bca,
    bias,
    centred,
    draws,
    paired_p_value,
    percentile,
    standard_error_of_mean,
)
from xclrun.analysis.ranks import critical_difference
from xclrun.analysis.replicates import Replicates
from xclrun.analysis.significance import ALPHA, MIXED_ORDERS, holm, mixed_model

DOCUMENT = Path(__file__).parents[1] / "docs" / "statistics.md"
LANGUAGES = ORDERS = 6
# Of what decides whether a sentence is right, the share that all models have in common.
COMMON = 0.7
KINDS = ("centred", "basic", "percentile", "bca", "paper")


# Coverage of intervals.


@dataclass(frozen=True)
class World:
    """True scores of one strategy: R of each order, shape (orders, hops + 1, N), by place; and M by language, (N,).

    Attributes:
        at: place of each language in each order, shape (orders, N).
    """

    R: np.ndarray
    M: np.ndarray
    at: np.ndarray

    @classmethod
    def of(cls, level: float, forgets: bool, rng: np.random.Generator) -> World:
        """Make true scores: ``level`` right after learning; after that each hop costs a little, or nothing."""
        room = 1 - level
        learnt = np.tri(LANGUAGES, dtype=bool)
        since = np.arange(LANGUAGES)[:, np.newaxis] - np.arange(LANGUAGES)
        after = level - 0.05 * room * np.maximum(since, 0) * forgets - room * (0.5 - 0.1 * since) * ~learnt
        R = np.full((ORDERS, LANGUAGES + 1, LANGUAGES), 0.02)
        R[:, 1:] = after + forgets * rng.normal(0, 0.06 * room, (ORDERS, LANGUAGES, LANGUAGES))
        M = level - room * 0.1 + rng.normal(0, 0.02 * room, LANGUAGES)
        return cls(np.clip(R, 0.01, 0.995), M, np.array([rng.permutation(LANGUAGES) for _ in range(ORDERS)]))

    def cells(self, language: int) -> np.ndarray:
        """True scores of all cells of one language: hop after hop of each order, then M."""
        columns = [R[:, at[language]] for R, at in zip(self.R, self.at, strict=True)]
        return np.concatenate([*columns, self.M[[language]]])

    def measures(self, cells: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Mean over orders of each measure, shape (...), from the `cells` of each language, shape (..., cells)."""
        shape = np.broadcast_shapes(*(of.shape[:-1] for of in cells))
        R, M = np.empty((*shape, *self.R.shape)), np.empty((*shape, ORDERS, LANGUAGES))
        for language, of in enumerate(cells):
            for order, at in enumerate(self.at[:, language]):
                R[..., order, :, at] = of[..., order * (LANGUAGES + 1) : (order + 1) * (LANGUAGES + 1)]
                M[..., order, at] = of[..., -1]
        found = {
            "F": metrics.forgetting(R), "T": metrics.transfer(R, M),
            "T0": metrics.zero_shot_transfer(R), "FP": R[..., -1, :].mean(axis=-1),
        }  # fmt: skip
        return {name: values.mean(axis=-1) for name, values in found.items()}


def right(scores: np.ndarray, sentences: int, rng: np.random.Generator) -> np.ndarray:
    """Draw whether each cell is right on each sentence, shape (sentences, cells): hard ones are hard for all cells."""
    from scipy.special import ndtri

    hard = np.sqrt(COMMON) * rng.standard_normal((sentences, 1), dtype=np.float32)
    own = np.sqrt(1 - COMMON) * rng.standard_normal((sentences, len(scores)), dtype=np.float32)
    return hard + own < ndtri(scores)


def coverage(
    level: float, forgets: bool, sentences: int, size: int | None, studies: int, resamples: int = 600, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Return measure → shares of studies, by kind of interval: that it holds the truth; and more beside these.

    ``excluded``: the percentile interval does not hold the value from the data; ``no bca``: there is none; ``bias``:
    mean error of the value; ``bootstrap bias``: its mean estimate.
    """
    rng = np.random.default_rng(seed)
    world = World.of(level, forgets, rng)
    truth = world.measures([world.cells(k) for k in range(LANGUAGES)])
    # Sentences are drawn anew for each study; which of them a resample takes need not be.
    drawn = [draws(sentences, seed, f"{k}", resamples, size) for k in range(LANGUAGES)]
    found: dict[str, Counter[str]] = {name: Counter() for name in truth}
    for _ in range(studies):
        counts = [Counts.of_accuracy(right(world.cells(k), sentences, rng)) for k in range(LANGUAGES)]
        scores = [of.scores() for of in counts]
        values = world.measures(scores)
        resampled = world.measures([of.resampled(draw) for of, draw in zip(counts, drawn, strict=True)])
        left = [world.measures([*scores[:k], counts[k].jackknife(), *scores[k + 1 :]]) for k in range(LANGUAGES)]
        for name, tally in found.items():
            value, of = float(values[name]), resampled[name]
            intervals = (
                centred(of, value), basic(of, value), percentile(of), bca(of, value, [each[name] for each in left]),
                standard_error_of_mean(of),
            )  # fmt: skip
            for kind, interval in zip(KINDS, intervals, strict=True):
                tally[kind] += int(interval.low <= truth[name] <= interval.high)
            tally["no bca"] += bool(intervals[3].reason)
            tally["excluded"] += not intervals[2].low <= value <= intervals[2].high
            tally["bias"] += value - float(truth[name])  # type: ignore[assignment]
            tally["bootstrap bias"] += bias(of, value)  # type: ignore[assignment]
    return {name: {what: total / studies for what, total in tally.items()} for name, tally in found.items()}


# Null rejection of tests.

# Standard deviations in points, of what all strategies have in common and of what is a run's own. What an order does
# to a strategy is the variable.
OF_ORDER, OF_SEED, RESIDUAL = 0.02, 0.005, 0.01
INTERACTIONS = (0.0, 0.5, 1.0, 2.0)
STRATEGIES = 4
DESIGNS = {
    "6 orders × 3 seeds": (3,) * 6,
    "3 orders × 1 seed": (1,) * 3,
    "2 orders × 3 seeds": (3,) * 2,
    "6 orders, 3 3 1 1 1 1 seeds": (3, 3, 1, 1, 1, 1),
    "1 order × 5 seeds": (5,),
    "2 strategies, 2 orders × 2 seeds": (2, 2),
}
TESTS = (
    "primary (marks)", "two-way ANOVA, blocks", "Tukey, blocks", "mixed model", "paired t", "Wilcoxon", "Friedman",
    "Nemenyi", "one-way ANOVA, orders (CCL)", "one-way Tukey, orders (CCL)", "paired bootstrap",
    "(seeds as blocks)",
)  # fmt: skip
# Tests that reject more are shown in bold, and give no marks.
LIMIT = 0.07
# Tests are tried on more studies than intervals: 5 % and 7 % are to be told apart.
STUDIES_OF_TESTS = 20 / 3


def null(
    seeds: Sequence[int], interaction: float, rng: np.random.Generator, strategies: int = STRATEGIES
) -> Replicates:
    """Draw final scores of strategies that do not differ over all orders: ``seeds`` runs of each order.

    Args:
        interaction: standard deviation of strategy × order, in those of the residual.
    """
    of = np.repeat(np.arange(len(seeds)), seeds)
    common = rng.normal(0.8, OF_ORDER, len(seeds))[of] + rng.normal(0, OF_SEED, len(of))
    own = rng.normal(0, interaction * RESIDUAL, (strategies, len(seeds)))[:, of]
    values = common + own + rng.normal(0, RESIDUAL, (strategies, len(of)))
    blocks = [(f"order{order}", seed, None) for order, n in enumerate(seeds) for seed in range(n)]
    return Replicates(tuple(f"strategy{k}" for k in range(strategies)), tuple(blocks), values)


def rejected(data: Replicates) -> dict[str, bool]:
    """Return test → whether it finds any difference at 5 %, over all strategies or between any two of them."""
    from scipy.stats import ttest_rel, wilcoxon

    averaged = data.averaged()
    k, n = averaged.values.shape
    means = averaged.values.mean(axis=1)
    ranks = critical_difference(averaged, higher_is_better=True)
    two_way, one_way, seeds = blocked_anova(averaged), anova(data.by_order()), blocked_anova(data)
    a, b = averaged.values[np.transpose(list(itertools.combinations(range(k), 2)))]
    return {
        "primary (marks)": bool((holm(ttest_rel(a, b, axis=1).pvalue[: k - 1]) < ALPHA).any()),
        "two-way ANOVA, blocks": two_way.p < ALPHA,
        "Tukey, blocks": float(np.ptp(means)) > honest_difference(two_way, k, n),
        "mixed model": n >= MIXED_ORDERS and any(pair.p < ALPHA for pair in mixed_model(data)),
        "paired t": bool((holm(ttest_rel(a, b, axis=1).pvalue) < ALPHA).any()),
        "Wilcoxon": bool((holm(wilcoxon(a - b, axis=1).pvalue) < ALPHA).any()),
        "Friedman": ranks.p < ALPHA,
        "Nemenyi": float(np.ptp(ranks.ranks)) > ranks.critical,
        "one-way ANOVA, orders (CCL)": one_way.p < ALPHA,
        "one-way Tukey, orders (CCL)": float(np.ptp(means)) > honest_difference(one_way, k, n),
        "(seeds as blocks)": seeds.p < ALPHA,
    }


def bootstrap_rejected(data: Replicates, sentences: int, drawn: np.ndarray, rng: np.random.Generator) -> bool:
    """Whether the paired bootstrap over ``sentences`` test sentences, by ``drawn``, finds any difference at 5 %."""
    own = Counts.of_accuracy(right(data.values.ravel(), sentences, rng)).resampled(drawn)
    means = own.reshape(len(own), *data.values.shape).mean(axis=2).T
    return bool((holm([paired_p_value(a - b) for a, b in itertools.combinations(means, 2)]) < ALPHA).any())


def rejection(
    seeds: Sequence[int], interaction: float, studies: int, seed: int = 0, strategies: int = STRATEGIES
) -> dict[str, float]:
    """Return test → share of studies without any difference in which it finds one at 5 %.

    The paired bootstrap, over 3,000 sentences, is tried on every tenth of the studies.
    """
    rng, sentences = np.random.default_rng(seed), 3000
    drawn = draws(sentences, seed, "en", size=SENTENCES)
    tally: Counter[str] = Counter()
    for study in range(studies):
        data = null(seeds, interaction, rng, strategies)
        tally.update(name for name, found in rejected(data).items() if found)
        if study % 10 == 0:
            tally["paired bootstrap"] += bootstrap_rejected(data, sentences, drawn, rng)
    tried = {"paired bootstrap": len(range(0, studies, 10))}
    return {name: tally[name] / tried.get(name, studies) for name in TESTS}


# Tables.


def coverage_table(studies: int) -> Iterator[str]:
    """Yield the lines of the table of `coverage`."""
    yield f"| forgetting | scores near | test set | resamples of | measure | {' | '.join(KINDS)} | error | bias |"
    yield "|---|---|--:|--:|---|" + "--:|" * (len(KINDS) + 2)
    for forgets, level in itertools.product((True, False), (0.5, 0.95)):
        for sentences, size, part in ((600, 600, 1.0), (3000, 600, 0.4), (3000, None, 0.4)):
            found = coverage(level, forgets, sentences, size, max(2, round(part * studies)))
            # What is not forgotten concerns F alone.
            for name, of in found.items() if forgets else (("F", found["F"]),):
                shares = " | ".join(f"{of[kind]:.2f}".removeprefix("0") for kind in KINDS)
                errors = f"{100 * of['bias']:+.2f} | {100 * of['bootstrap bias']:+.2f}"
                where = f"{'some' if forgets else 'none'} | {level} | {sentences:,} | {size or sentences:,}"
                yield f"| {where} | {name} | {shares} | {errors} |"


def rejection_table(studies: int) -> Iterator[str]:
    """Yield the lines of the table of `rejection`."""
    yield "| design | strategy × order |" + "".join(f" {name} |" for name in TESTS)
    yield "|---|--:|" + "--:|" * len(TESTS)
    for design, seeds in DESIGNS.items():
        # Of one order alone strategies do differ where they interact with it.
        for interaction in INTERACTIONS if len(seeds) > 1 else (0.0,):
            strategies = 2 if design.startswith("2 strategies") else STRATEGIES
            found = rejection(seeds, interaction, round(STUDIES_OF_TESTS * studies), strategies=strategies)
            offered = (name != "mixed model" or len(seeds) >= MIXED_ORDERS for name in TESTS)
            shares = " | ".join(
                _share(found[name], name) if one else "–" for name, one in zip(TESTS, offered, strict=True)
            )
            yield f"| {design} | {interaction:g} | {shares} |"


def _share(value: float, name: str) -> str:
    text = f"{value:.3f}".removeprefix("0")
    return f"**{text}**" if value > LIMIT and not name.startswith("(") else text


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or write them into the document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.statistics", description=__doc__)
    parser.add_argument("--studies", type=int, default=150, help="simulated for each row (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"replace the tables in docs/{DOCUMENT.name}")
    given = parser.parse_args(arguments)
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, table in (("coverage", coverage_table), ("rejection", rejection_table), *TABLES.items()):
        lines = []
        for line in table(given.studies):
            print(line, flush=True)
            lines.append(line)
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = before + begin + "\n".join(lines) + end + rest.partition(end)[2]
    if given.write:
        DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
