"""``python -m benchmarks.statistics``: coverage of the intervals of reports, and error rates of their tests.

The studies are simulated, so the true scores are known; intervals and tests come from `xclrun.analysis`. ``--write``
replaces the tables and the figure of docs/results/statistics.md. The default takes eleven CPU minutes; ``--studies 20``
is a quick run, ``--only skewed hops`` computes two of the tables.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.significance import TABLES
from xclrun.analysis import formulas
from xclrun.analysis.anova import anova, blocked_anova, honest_difference
from xclrun.analysis.bootstrap import (
    INTERVALS,
    SENTENCES,
    bias,
    draws,
    interval,
    mean_of_intervals,
    paired_p_value,
    standard_error_of_mean,
)
from xclrun.analysis.critical_difference import critical_difference
from xclrun.analysis.replicates import TIE, Replicates
from xclrun.analysis.significance import ALPHA, MIXED_ORDERS, holm, mixed_model
from xclrun.core.quantity import SHARE
from xclrun.report.style import figure_of, legend, line, plain, save, titled
from xclrun.scores.base_scores import Counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCUMENT = Path(__file__).parents[1] / "docs" / "results" / "statistics.md"
FIGURES = DOCUMENT.with_suffix("")
PAGES = (DOCUMENT, FIGURES / "tables.md")
# Fraction of the variance of sentence difficulty that all models have in common.
COMMON = 0.7
KINDS = tuple(INTERVALS)
NOT_BCA = tuple(kind for kind in KINDS if kind != "bca")
# The table of coverages omits `paper`, which is not an interval for the score.
SHORT = tuple(kind for kind in KINDS if kind != "paper")


# Coverage of intervals.

# Name → function of the score right after learning: (drop at the next hop, drop at each further hop,
# standard deviation over cells).
FORGETTING: dict[str, Callable[[float], tuple[float, float, float]]] = {
    "none": lambda level: (0.0, 0.0, 0.0),
    "little": lambda level: (0.05 * (1 - level), 0.05 * (1 - level), 0.06 * (1 - level)),
    "much": lambda level: (0.10, 0.02, 0.02),
}


@dataclass(frozen=True)
class Setting:
    """Design and true scores of simulated studies.

    Attributes:
        languages, orders: number of languages and of orders.
        level: true score right after a language is learned.
        forgetting: key of `FORGETTING`.
    """

    languages: int
    orders: int
    level: float
    forgetting: str


@dataclass(frozen=True)
class World:
    """True scores of one strategy.

    Attributes:
        R: score matrix of each order, columns in the order of learning; shape (orders, N + 1, N).
        M: reference score of each language, shape (N,).
        at: position of each language in each order, shape (orders, N).
    """

    R: np.ndarray
    M: np.ndarray
    at: np.ndarray

    @classmethod
    def of(cls, setting: Setting, rng: np.random.Generator) -> World:
        n, level = setting.languages, setting.level
        first, further, noise = FORGETTING[setting.forgetting](level)
        # Number of hops since the language was learned; negative before it is learned.
        since = np.arange(n)[:, np.newaxis] - np.arange(n)
        before = (1 - level) * (0.5 - 0.1 * since)
        after = np.where(since > 0, first + further * (since - 1), 0)
        R = np.full((setting.orders, n + 1, n), 0.02)
        R[:, 1:] = level - np.where(since < 0, before, after) + rng.normal(0, noise, (setting.orders, n, n))
        # The reference M is lower than ``level`` by 10 % of 1 − level, or by 50 % with much forgetting.
        lower = 0.5 if setting.forgetting == "much" else 0.1
        M = level - (1 - level) * lower + rng.normal(0, 0.02 * (1 - level), n)
        return cls(np.clip(R, 0.01, 0.995), M, np.array([rng.permutation(n) for _ in range(setting.orders)]))

    def cells(self, language: int) -> np.ndarray:
        """Return the true scores of one language: the scores after each hop, order by order, then M."""
        columns = [R[:, at[language]] for R, at in zip(self.R, self.at, strict=True)]
        return np.concatenate([*columns, self.M[[language]]])

    def measures(self, cells: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return each measure by order, shape (..., orders), given each language's `cells`, shape (..., cells)."""
        shape = np.broadcast_shapes(*(of.shape[:-1] for of in cells))
        orders, rows, languages = self.R.shape
        R, M = np.empty((*shape, orders, rows, languages)), np.empty((*shape, orders, languages))
        for language, of in enumerate(cells):
            for order, at in enumerate(self.at[:, language]):
                R[..., order, :, at] = of[..., order * rows : (order + 1) * rows]
                M[..., order, at] = of[..., -1]
        return {
            "F": formulas.forgetting(R), "T": formulas.transfer(R, M),
            "T0": formulas.zero_shot_transfer(R), "FP": R[..., -1, :].mean(axis=-1),
        }  # fmt: skip


def right(scores: np.ndarray, sentences: int, rng: np.random.Generator) -> np.ndarray:
    """Draw which sentences are right in each cell, shape (sentences, cells). Cells share a part of each difficulty."""
    from scipy.special import ndtri

    hard = np.sqrt(COMMON) * rng.standard_normal((sentences, 1), dtype=np.float32)
    own = np.sqrt(1 - COMMON) * rng.standard_normal((sentences, len(scores)), dtype=np.float32)
    return hard + own < ndtri(scores)


def coverage(
    setting: Setting,
    sentences: int,
    size: int | None,
    studies: int,
    kinds: Sequence[str] = KINDS,
    resamples: int = 600,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Simulate studies with random test sentences, and return how often intervals contain the true value.

    Args:
        sentences: size of each test set.
        size: sentences of each resample; None: ``sentences``.
        resamples: number of bootstrap resamples B.
        seed: random seed of true scores, test sentences and resamples.

    Returns:
        Measure → results. ``KIND``: share of studies whose interval contains the true value. ``excludes KIND``: share
        of studies whose interval excludes the value computed from the data, or does not exist. ``error``: mean error
        of this value. ``bias``: mean bootstrap estimate of the error.
    """
    rng = np.random.default_rng(seed)
    world = World.of(setting, rng)
    every = range(setting.languages)
    truth = world.measures([world.cells(k) for k in every])
    # All studies use the same resampled positions, but each study draws new test sentences.
    drawn = [draws(sentences, seed, f"{k}", resamples, size) for k in every]
    tallies: dict[str, Counter[str]] = {name: Counter() for name in truth}
    for _ in range(studies):
        counts = [Counts.of_accuracy(right(world.cells(k), sentences, rng)) for k in every]
        scores = [of.scores() for of in counts]
        values = world.measures(scores)
        resampled = world.measures([of.resampled(draw) for of, draw in zip(counts, drawn, strict=True)])
        left = []
        if "bca" in kinds:
            left = [world.measures([*scores[:k], counts[k].jackknife(), *scores[k + 1 :]]) for k in every]
        for name, tally in tallies.items():
            value, of, true = float(values[name].mean()), resampled[name], float(truth[name].mean())
            leaving = [each[name].mean(axis=-1) for each in left]
            bounds = (SHARE if name == "FP" else SHARE.difference).bounds
            for kind in kinds:
                found = (
                    mean_of_intervals([standard_error_of_mean(order) for order in of.T])
                    if kind == "paper"
                    else interval(kind, of.mean(axis=-1), value, lambda leaving=leaving: leaving, bounds)
                )
                tally[kind] += int(found.low <= true <= found.high)
                tally[f"excludes {kind}"] += not found.low - TIE <= value <= found.high + TIE
            tally["error"] += value - true  # type: ignore[assignment]
            tally["bias"] += bias(of, value)  # type: ignore[assignment]
    return {name: {what: total / studies for what, total in tally.items()} for name, tally in tallies.items()}


# False positive rates of tests.

# Standard deviations of scores: effects of orders and of seeds on all strategies, and the residual of a run.
OF_ORDER, OF_SEED, RESIDUAL = 0.02, 0.005, 0.01
# Standard deviations of the interaction strategy × order, in standard deviations of the residual.
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
# Reports do not contain this test, so its rates are never bold.
SEED_BLOCKS = "two-way ANOVA, seeds as blocks (not in reports)"
TESTS = (
    "primary (marks)", "two-way ANOVA, blocks", "Tukey, blocks", "mixed model", "paired t", "Wilcoxon", "Friedman",
    "Nemenyi", "one-way ANOVA, orders (CCL)", "one-way Tukey, orders (CCL)", "paired bootstrap",
    SEED_BLOCKS,
)  # fmt: skip
# False positive rates above this limit are bold; reports do not mark significance with such tests.
LIMIT = 0.07
# Number of studies per row / `--studies`. Tests need more studies than intervals, to distinguish 5 % from 7 %.
STUDIES_OF_TESTS = 20 / 3


def null(
    seeds: Sequence[int], interaction: float, rng: np.random.Generator, strategies: int = STRATEGIES
) -> Replicates:
    """Draw final scores of strategies with equal expected scores; ``seeds`` has the number of runs of each order.

    Args:
        interaction: standard deviation of strategy × order, in standard deviations of the residual.
    """
    of = np.repeat(np.arange(len(seeds)), seeds)
    common = rng.normal(0.8, OF_ORDER, len(seeds))[of] + rng.normal(0, OF_SEED, len(of))
    own = rng.normal(0, interaction * RESIDUAL, (strategies, len(seeds)))[:, of]
    values = common + own + rng.normal(0, RESIDUAL, (strategies, len(of)))
    blocks = [(f"order{order}", seed, None) for order, n in enumerate(seeds) for seed in range(n)]
    return Replicates(tuple(f"strategy{k}" for k in range(strategies)), tuple(blocks), values)


def rejected(data: Replicates) -> dict[str, bool]:
    """Return test → whether it finds a significant difference (5 %), among all strategies or between any two."""
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
        SEED_BLOCKS: seeds.p < ALPHA,
    }


def bootstrap_rejected(data: Replicates, sentences: int, drawn: np.ndarray, rng: np.random.Generator) -> bool:
    """Return whether the paired bootstrap with the resamples ``drawn`` finds a significant difference (5 %)."""
    own = Counts.of_accuracy(right(data.values.ravel(), sentences, rng)).resampled(drawn)
    means = own.reshape(len(own), *data.values.shape).mean(axis=2).T
    return bool((holm([paired_p_value(a - b) for a, b in itertools.combinations(means, 2)]) < ALPHA).any())


def rejection(
    seeds: Sequence[int], interaction: float, studies: int, seed: int = 0, strategies: int = STRATEGIES
) -> dict[str, float]:
    """Return test → false positive rate at 5 % in studies without any difference.

    The paired bootstrap, on test sets of 3,000 sentences, is computed only for every tenth study.
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


# (size of the test set, size of a resample, studies divided by `--studies`); None: the test set's size.
SIZES = ((100, None, 1.5), (600, None, 1.0), (3000, SENTENCES, 0.5), (3000, None, 0.5))
# Largest test set with BCa. With 3,000 sentences, its jackknife would take most of the time.
WITH_BCA = 600
# The default kinds are chosen on `SETTINGS`, because without forgetting no kind covers F.
SETTINGS = [Setting(*of) for of in itertools.product((2, 6), (2, 6), (0.5, 0.95, 0.99), ("little", "much"))]
UNFORGETTING = [Setting(6, 6, level, "none") for level in (0.5, 0.95, 0.99)]

Simulated = dict[tuple[Setting, int, int | None], dict[str, dict[str, float]]]


@cache
def simulated(studies: int) -> Simulated:
    return {
        (setting, sentences, size): coverage(
            setting, sentences, size, max(2, round(part * studies)), KINDS if sentences <= WITH_BCA else NOT_BCA
        )
        for setting in (*SETTINGS, *UNFORGETTING)
        for sentences, size, part in SIZES
    }


def worst(found: Simulated, measure: str, kind: str) -> tuple[float, float, str]:
    """Return a kind's lowest coverage, its highest exclusion rate, and the setting of the lowest coverage.

    Settings without forgetting are ignored.
    """
    own = {key: by[measure] for key, by in found.items() if key[0] in SETTINGS and kind in by[measure]}
    key = min(own, key=lambda key: own[key][kind])
    excludes = max(of[f"excludes {kind}"] for of in own.values())
    setting, sentences, size = key
    design = f"{setting.languages} × {setting.orders}, {setting.level:g}, {setting.forgetting}"
    return own[key][kind], excludes, f"{design}, {size or sentences:,} of {sentences:,}"


def choose_kind(found: Simulated, measure: str) -> str:
    """Return the kind whose lowest coverage is highest, among kinds that contain the computed value in every study."""
    of = {kind: worst(found, measure, kind) for kind in KINDS}
    return max((kind for kind in KINDS if of[kind][1] == 0), key=lambda kind: of[kind][0])


def choice_table(studies: int) -> Iterator[str]:
    """Yield the lines of the table of lowest coverages, which determines the default kind of each measure."""
    found = simulated(studies)
    yield "| measure | interval | lowest coverage | setting | excludes | default |"
    yield "|---|---|--:|---|--:|---|"
    for measure in ("F", "T", "T0", "FP"):
        chosen = choose_kind(found, measure)
        for kind in KINDS:
            lowest, excludes, where = worst(found, measure, kind)
            cells = [measure, f"`{kind}`", _decimals(lowest), where]
            cells += [f"{excludes:.3f}".removeprefix("0") if excludes else "never", "yes" if kind == chosen else ""]
            yield f"| {' | '.join(cells)} |"


def coverage_table(studies: int) -> Iterator[str]:
    """Yield the lines of the table of the lowest coverages over numbers of languages and orders."""
    yield "| forgetting | scores near | test set | resamples of | F | T | T0 | FP |"
    yield "|---|--:|--:|--:|" + "---|" * 4
    groups: dict[tuple[str, float, int, int], list[dict[str, dict[str, float]]]] = {}
    for (setting, sentences, size), shares in simulated(studies).items():
        groups.setdefault((setting.forgetting, setting.level, sentences, size or sentences), []).append(shares)
    for (forgetting, level, sentences, size), group in groups.items():
        # Without forgetting, only the coverage of F is of interest.
        measures = ("F",) if forgetting == "none" else ("F", "T", "T0", "FP")
        cells = [" ".join(_lowest(group, name, kind) for kind in SHORT) for name in measures]
        row = [forgetting, f"{level:g}", f"{sentences:,}", f"{size:,}", *cells, *["–"] * (4 - len(cells))]
        yield f"| {' | '.join(row)} |"


def _lowest(group: Sequence[dict[str, dict[str, float]]], measure: str, kind: str) -> str:
    return _decimals(min(shares[measure][kind] for shares in group)) if kind in group[0][measure] else "–"


def _decimals(share: float) -> str:
    return f"{share:.2f}".removeprefix("0")


def rejection_table(studies: int) -> Iterator[str]:
    """Yield the lines of the table of `rejection`."""
    yield "| design | strategy × order |" + "".join(f" {name} |" for name in TESTS)
    yield "|---|--:|" + "--:|" * len(TESTS)
    for design, seeds in DESIGNS.items():
        # With a single order, only 0 is simulated: an interaction would be a true difference between strategies.
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
    return f"**{text}**" if value > LIMIT and name != SEED_BLOCKS else text


def documented(name: str, text: str) -> list[dict[str, str]]:
    """Return the rows of a table of the document, each as column → cell."""
    table = text.partition(f"<!-- {name} -->\n")[2].partition("\n<!-- end")[0]
    header, _, *rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [dict(zip(header, row, strict=True)) for row in rows]


def power_figure(text: str) -> Figure:
    """Draw the power of the primary comparisons with equal standard deviations, from the document's table."""
    figure = figure_of(5, 3)
    axes = figure.subplots()
    groups = itertools.groupby(documented("power", text), lambda row: f"{row['strategies']} strategies")
    names = []
    for k, (name, rows) in enumerate(groups):
        points = [(int(row["orders"]), float(row["primary comparisons"].split()[0])) for row in rows]
        line(axes, *zip(*points, strict=True), k, name)
        names.append(name)
    plain(axes, "orders", "share of studies")
    axes.set(xticks=[2, 3, 6], ylim=(0, 1))
    legend(figure, names, names)
    titled(figure, "Power for a difference of three standard deviations")
    return figure


# Marker in the document → function that takes `--studies` and yields the lines of the table.
EVERY = {"intervals": choice_table, "coverage": coverage_table, "rejection": rejection_table, **TABLES}
NAMES = tuple(EVERY)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.statistics", description=__doc__)
    parser.add_argument("--studies", type=int, default=150, help="studies per row (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="replace tables and figure in docs/results")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="tables (default: all)")
    given = parser.parse_args(arguments)
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for name in given.only:
        lines = []
        for row in EVERY[name](given.studies):
            print(row, flush=True)
            lines.append(row)
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        [page] = [page for page, text in texts.items() if begin in text]
        before, _, rest = texts[page].partition(begin)
        assert end in rest, f"no end of table {name}"
        texts[page] = before + begin + "\n".join(lines) + end + rest.partition(end)[2]
    if given.write:
        for page, text in texts.items():
            page.write_text(text, encoding="utf-8")
        save(power_figure(texts[DOCUMENT]), FIGURES, "power")


if __name__ == "__main__":
    main()
