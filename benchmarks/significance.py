"""Simulated studies for the significance tests of reports; `benchmarks.statistics` writes the tables.

The tables show the family-wise error and the power of the primary comparisons, and the coverage of confidence intervals
for T and T0. The orders of a seed share the reference models and hop 0, so their values of T and T0 are correlated;
orders that begin with the same languages also share hops. The code is vectorised over studies;
`tests/analysis/test_statistics.py` compares its decisions with the decisions of reports.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from xclrun.analysis import formulas
from xclrun.analysis.anova import range_quantile
from xclrun.analysis.replicates import Replicates
from xclrun.analysis.significance import ALPHA, crossed_error

# Number of studies per row / `--studies`. The default, --studies=150, gives 10,000 studies per row; a share of 5 %
# then has a standard error of .0022.
MORE = 200 / 3
# F and FP of two metrics, as in a section on intents and slots.
MEASURES = 4
# Correlation between the measures of one run.
CORRELATION = 0.5
# Standard deviation of an order's effect on all strategies, in standard deviations of a run's noise.
OF_ORDER = 2.0
SPREADS = (1, 3, 10)
STRATEGIES = (2, 3, 5, 10)
ORDERS = (2, 3, 6)
# The strategy with the larger noise: the baseline or another strategy.
NOISY = ("baseline", "another")
# In the table of power, one strategy differs from the baseline by this number of standard deviations of a run's noise.
EFFECT = 3.0
# Standard deviation of the noise that runs of a seed share, in standard deviations of their independent noise.
SHARED = (0.5, 1.0, 2.0)
SEEDS = (1, 2, 3, 5)
# Standard deviation of the interaction strategy × order, in standard deviations of the residual.
INTERACTIONS = (0.0, 1.0)
# Skewed noise: (strategies, orders) of the rows; the sign-flip test is exact, so it needs few orders.
SKEWED = tuple(itertools.product((2, 5, 11), (3, 6, 8, 12)))
# Orders that share hops: numbers of languages, all of whose orders are run (6, 24 and 120).
LANGUAGES = (3, 4, 5)
# Standard deviation of the change of a score by the noise of a hop; the change remains in later hops.
OF_HOP = 0.01
# Studies that are simulated at once, to limit memory.
BATCH = 500


def studies(
    n: int,
    strategies: int,
    orders: int,
    spread: float,
    noisy: str,
    rng: np.random.Generator,
    effect: float = 0.0,
    skewed: bool = False,
) -> np.ndarray:
    """Draw the mean of each order, shape (n, measures, strategies, orders). The first strategy is the baseline.

    The second strategy differs from the baseline by ``effect``. ``spread`` scales the noise of the strategy ``noisy``:
    the baseline or the last strategy. ``skewed``: the noise of a run has an exponential distribution (skew 2).
    """
    from scipy.special import log_ndtr

    common = np.sqrt(CORRELATION) * rng.standard_normal((n, 1, strategies, orders))
    own = np.sqrt(1 - CORRELATION) * rng.standard_normal((n, MEASURES, strategies, orders))
    run = common + own
    if skewed:
        # A Gaussian copula: exponential with mean 0 and standard deviation 1.
        run = -log_ndtr(-run) - 1
    run[:, :, 0 if noisy == "baseline" else -1] *= spread
    run[:, :, 1] += effect
    return run + OF_ORDER * rng.standard_normal((n, MEASURES, 1, orders))


def primary_p(values: np.ndarray) -> np.ndarray:
    """Return the adjusted p-values of the primary comparisons, shape (n, measures, strategies − 1)."""
    from scipy.stats import t as t_distribution

    differences = values[:, :, 1:] - values[:, :, :1]
    n = differences.shape[-1]
    t = differences.mean(axis=-1) / (differences.std(axis=-1, ddof=1) / np.sqrt(n))
    p = 2 * t_distribution.sf(np.abs(t), n - 1)
    flat = p.reshape(len(p), -1)
    # Holm's correction; all comparisons of a study are one family.
    order = np.argsort(flat, axis=1)
    steps = np.take_along_axis(flat, order, axis=1) * np.arange(flat.shape[1], 0, -1)
    adjusted = np.empty_like(flat)
    np.put_along_axis(adjusted, order, np.minimum(1, np.maximum.accumulate(steps, axis=1)), axis=1)
    return adjusted.reshape(p.shape)


def tukey_found(values: np.ndarray) -> np.ndarray:
    """Whether Tukey's HSD with orders as blocks finds a difference, shape (n, measures, strategies − 1)."""
    k, n = values.shape[-2:]
    means = values.mean(axis=-1)
    residuals = values - means[..., np.newaxis] - values.mean(axis=-2, keepdims=True)
    residuals += values.mean(axis=(-2, -1), keepdims=True)
    error = (residuals**2).sum(axis=(-2, -1)) / ((k - 1) * (n - 1))
    least = range_quantile(1 - ALPHA, k, (k - 1) * (n - 1)) * np.sqrt(error / n)
    return np.asarray(np.abs(means[:, :, 1:] - means[:, :, :1]) > least[..., np.newaxis])


def family_table(count: int) -> Iterator[str]:
    """Yield the lines of the table of family-wise errors: share of studies with a false positive, by test."""
    yield "| strategies | orders | primary comparisons | Tukey, one measure |"
    yield "|--:|--:|---|---|"
    for strategies, orders in itertools.product(STRATEGIES, ORDERS):
        rng = np.random.default_rng([strategies, orders])
        found: dict[str, list[float]] = {"primary comparisons": [], "Tukey, one measure": []}
        for spread, noisy in _spreads():
            values = studies(round(MORE * count), strategies, orders, spread, noisy, rng)
            found["primary comparisons"].append(float((primary_p(values) < ALPHA).any(axis=(1, 2)).mean()))
            found["Tukey, one measure"].append(float(tukey_found(values[:, :1]).any(axis=(1, 2)).mean()))
        cells = (" ".join(map(_share, shares)) for shares in found.values())
        yield f"| {strategies} | {orders} | {' | '.join(cells)} |"


def power_table(count: int) -> Iterator[str]:
    """Yield the lines of the table of power: share of studies that find the only true difference."""
    yield "| strategies | orders | primary comparisons | Tukey, one measure |"
    yield "|--:|--:|---|---|"
    for strategies, orders in itertools.product(STRATEGIES[1:], ORDERS):
        rng = np.random.default_rng([strategies, orders, 1])
        found: dict[str, list[float]] = {"primary comparisons": [], "Tukey, one measure": []}
        for spread in SPREADS:
            values = studies(round(MORE * count), strategies, orders, spread, "another", rng, EFFECT)
            found["primary comparisons"].append(float((primary_p(values)[:, 0, 0] < ALPHA).mean()))
            found["Tukey, one measure"].append(float(tukey_found(values[:, :1])[:, 0, 0].mean()))
        cells = (" ".join(f"{share:.2f}" for share in shares) for shares in found.values())
        yield f"| {strategies} | {orders} | {' | '.join(cells)} |"


def shared_coverage(
    n: int, orders: int, seeds: int, shared: float, interaction: float, rng: np.random.Generator
) -> dict[str, float]:
    """Return interval → share of studies in which the interval covers the true mean of a measure such as T.

    Runs of a seed share noise with ``shared`` times the standard deviation of their independent noise.
    """
    from scipy.stats import t as t_distribution

    own = rng.standard_normal((n, orders, seeds)) + interaction * rng.standard_normal((n, orders, 1))
    values = own + shared * np.hypot(1, interaction) * rng.standard_normal((n, 1, seeds))
    means = values.mean(axis=(1, 2))
    of_orders = values.mean(axis=2).std(axis=1, ddof=1) / np.sqrt(orders)
    found = {"orders": float((np.abs(means) <= t_distribution.ppf(0.975, orders - 1) * of_orders).mean())}
    if seeds > 1:
        error, df = crossed_error(values)
        found["crossed"] = float((np.abs(means) <= t_distribution.ppf(0.975, df) * error).mean())
    return found


def shared_table(count: int) -> Iterator[str]:
    """Yield the lines of the table of `shared_coverage`."""
    yield "| orders | seeds | strategy × order | orders as samples | crossed |"
    yield "|--:|--:|--:|---|---|"
    for orders, seeds, interaction in itertools.product(ORDERS, SEEDS, INTERACTIONS):
        rng = np.random.default_rng([orders, seeds, round(interaction)])
        found = [
            shared_coverage(round(MORE * count), orders, seeds, shared, interaction, rng) for shared in (0.0, *SHARED)
        ]
        cells = [
            " ".join(_share(by_interval[name]) for by_interval in found) if name in found[0] else "–"
            for name in ("orders", "crossed")
        ]
        yield f"| {orders} | {seeds} | {interaction:g} | {' | '.join(cells)} |"


def sign_flip_p(differences: np.ndarray) -> np.ndarray:
    """Return exact p-values of the two-sided sign-flip test, shape (n,), given differences of shape (n, orders)."""
    orders = differences.shape[1]
    # Flipping all signs gives the same absolute sum, so the first sign remains.
    signs = np.array(list(itertools.product((1.0,), *[(1.0, -1.0)] * (orders - 1)))).T
    sums, observed = np.abs(differences @ signs), np.abs(differences.sum(axis=1))
    return np.asarray((sums >= observed[:, np.newaxis] - 1e-9).mean(axis=1))


def skewed_table(count: int) -> Iterator[str]:
    """Yield the lines of the table of error rates with skewed noise."""
    yield "| strategies | orders | primary comparisons | t-test, one comparison | sign-flip test, one comparison |"
    yield "|--:|--:|---|---|---|"
    for strategies, orders in SKEWED:
        rng = np.random.default_rng([strategies, orders, 2])
        found: list[tuple[float, float, float]] = []
        for spread, noisy in ((1, "baseline"), (3, "baseline"), (3, "another")):
            values = studies(round(MORE * count), strategies, orders, spread, noisy, rng, skewed=True)
            one = values[:, :1, [0, -1]]
            flipped = np.concatenate([sign_flip_p(part[:, 0, 1] - part[:, 0, 0]) for part in _batches(one)])
            found.append((
                float((primary_p(values) < ALPHA).any(axis=(1, 2)).mean()),
                float((primary_p(one) < ALPHA).mean()),
                float((flipped < ALPHA).mean()),
            ))  # fmt: skip
        cells = (" ".join(map(_share, shares)) for shares in zip(*found, strict=True))
        yield f"| {strategies} | {orders} | {' | '.join(cells)} |"


def _batches(values: np.ndarray) -> list[np.ndarray]:
    return np.array_split(values, max(1, len(values) // BATCH))


def shared_hops(
    n: int, languages: int, own_first: bool, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], Replicates]:
    """Simulate two strategies with equal expected scores in all orders of some languages; equal hops train once.

    Each hop changes the score on each language by a normal deviate, which remains in later hops.

    Args:
        own_first: the first hop is specific to the strategy (as of adapters); otherwise both strategies share it.

    Returns:
        Measure → difference of the strategies in each order, shape (n, orders); the orders with the keys of their
        hops, without values.
    """
    orders = list(itertools.permutations(range(languages)))
    prefixes = [order[:hop] for hop in range(1, languages + 1) for order in orders]
    state: dict[tuple[int, ...], np.ndarray] = {}
    for prefix in dict.fromkeys(prefixes):
        shape = (n, 2, languages) if len(prefix) > 1 or own_first else (n, 1, languages)
        deviate = OF_HOP * np.sqrt(CORRELATION) * rng.standard_normal((*shape[:2], 1))
        deviate = deviate + OF_HOP * np.sqrt(1 - CORRELATION) * rng.standard_normal(shape)
        state[prefix] = deviate + state.get(prefix[:-1], 0.0)
    # Expected scores: 0.9 right after learning, 3 points less per further hop; 0.5 before learning.
    since = np.arange(languages)[:, np.newaxis] - np.arange(languages)
    expected = np.where(since < 0, 0.5, 0.9 - 0.03 * since)
    found: dict[str, list[np.ndarray]] = {"F": [], "FP": []}
    for order in orders:
        R = np.full((n, 2, languages + 1, languages), 0.1)
        for hop in range(languages):
            R[:, :, hop + 1] = expected[hop] + state[order[: hop + 1]][..., list(order)]
        for name, values in (("F", formulas.forgetting(R)), ("FP", R[..., -1, :].mean(axis=-1))):
            found[name].append(values[:, 1] - values[:, 0])

    def key(strategy: str, prefix: tuple[int, ...]) -> str:
        return f"{strategy if len(prefix) > 1 or own_first else ''}{prefix}"

    hops = range(1, languages + 1)
    keys = tuple(
        tuple(frozenset(key(strategy, order[:hop]) for hop in hops) for order in orders) for strategy in ("a", "b")
    )
    blocks = tuple(("".join(map(str, order)), 1, None) for order in orders)
    data = Replicates(("a", "b"), blocks, np.zeros((2, len(orders))), hops=keys)
    return {name: np.stack(values, axis=1) for name, values in found.items()}, data


def clusters_of(differences: np.ndarray, data: Replicates) -> np.ndarray:
    """Average the differences, shape (n, orders), over the orders of each cluster; shape (n, clusters)."""
    at = {order: k for k, (order, _, _) in enumerate(data.blocks)}
    return np.stack([differences[:, [at[order] for order in orders]].mean(axis=1) for orders in data.clusters], axis=1)


def hops_table(count: int) -> Iterator[str]:
    """Yield the lines of the table of error rates with orders that share hops."""
    yield "| languages | orders | first hop | clusters | F, orders | F, clusters | FP, orders | FP, clusters |"
    yield "|--:|--:|---|--:|--:|--:|--:|--:|"
    for languages, own_first in itertools.product(LANGUAGES, (False, True)):
        rng = np.random.default_rng([languages, own_first])
        p_values: dict[tuple[str, str], list[np.ndarray]] = {}
        for part in _batches(np.arange(round(MORE * count))):
            found, data = shared_hops(len(part), languages, own_first, rng)
            for name, differences in found.items():
                for what, values in (("orders", differences), ("clusters", clusters_of(differences, data))):
                    zero_and_values = np.stack([np.zeros_like(values), values], axis=1)[:, np.newaxis]
                    p_values.setdefault((name, what), []).append(primary_p(zero_and_values))
        shares = [_share(float((np.concatenate(p) < ALPHA).mean())) for p in p_values.values()]
        first = "own" if own_first else "shared"
        yield f"| {languages} | {len(data.blocks)} | {first} | {len(data.clusters)} | {' | '.join(shares)} |"


def _spreads() -> Iterator[tuple[int, str]]:
    """Yield (spread, strategy with this spread); spread 1 occurs once, because all strategies have it."""
    yield 1, NOISY[0]
    yield from itertools.product(SPREADS[1:], NOISY)


def _share(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


# Marker in the document → function that takes `--studies` and yields the lines of the table.
TABLES = {
    "family": family_table, "skewed": skewed_table, "hops": hops_table, "power": power_table, "shared": shared_table,
}  # fmt: skip
