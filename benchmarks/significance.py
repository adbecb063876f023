"""Simulated studies for the significance tests of reports; `benchmarks.statistics` writes the tables.

The tables show the family-wise error and the power of the primary comparisons, and the coverage of confidence intervals
for T and T0. The orders of a seed share the reference models and hop 0, so their values of T and T0 are correlated. The
code is vectorised over studies; `tests/analysis/test_statistics.py` compares its decisions with the decisions of
reports.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from xclrun.analysis.anova import range_quantile
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


def studies(
    n: int, strategies: int, orders: int, spread: float, noisy: str, rng: np.random.Generator, effect: float = 0.0
) -> np.ndarray:
    """Draw the mean of each order, shape (n, measures, strategies, orders). The first strategy is the baseline.

    The second strategy differs from the baseline by ``effect``. ``spread`` scales the noise of the strategy ``noisy``:
    the baseline or the last strategy.
    """
    common = np.sqrt(CORRELATION) * rng.standard_normal((n, 1, strategies, orders))
    own = np.sqrt(1 - CORRELATION) * rng.standard_normal((n, MEASURES, strategies, orders))
    run = common + own
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


def _spreads() -> Iterator[tuple[int, str]]:
    """Yield (spread, strategy with this spread); spread 1 occurs once, because all strategies have it."""
    yield 1, NOISY[0]
    yield from itertools.product(SPREADS[1:], NOISY)


def _share(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


# Marker in the document → function that takes `--studies` and yields the lines of the table.
TABLES = {"family": family_table, "power": power_table, "shared": shared_table}
