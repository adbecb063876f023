"""Input of tests: one measure of several strategies in the same blocks. docs/metrics.md, "Significance".

A block is one (order, seed, bucket); a replicate is an order. Strategies interact with orders, so the seeds of an order
are not independent evidence and are averaged first (`Replicates.averaged`). Orders that share trained hops are not
independent either: they form a cluster, which is averaged before (`Replicates.clustered`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

# Smaller differences count as rounding errors; scores are of order 1.
TIE = 1e-12

Block = tuple[str, int, int | None]


@dataclass(frozen=True)
class Replicates:
    """One measure of several strategies in the same blocks.

    Attributes:
        strategies: labels of the rows.
        blocks: (order, seed, bucket) of the columns.
        values: shape (strategies, blocks), finite.
        languages: languages of each block; empty if all blocks have the same languages.
        hops: keys of the trained hops behind each value, shape (strategies, blocks); empty: no two orders share one.
    """

    strategies: tuple[str, ...]
    blocks: tuple[Block, ...]
    values: np.ndarray
    languages: tuple[str, ...] = ()
    hops: tuple[tuple[frozenset[str], ...], ...] = ()

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=float)
        if values.shape != (len(self.strategies), len(self.blocks)) or not np.isfinite(values).all():
            raise ValueError("replicates need one finite value for each strategy and block")
        object.__setattr__(self, "values", values)

    @property
    def kind(self) -> str:
        """What a replicate is: ``order``, or ``seed`` with only one order; few-shot: ``languages`` or ``bucket``."""
        buckets = {bucket for _, _, bucket in self.blocks}
        if buckets != {None} and len(set(self.languages)) > 1:
            return "languages"
        if len({order for order, _, _ in self.blocks}) > 1:
            return "order"
        return "bucket" if len(buckets) > 1 else "seed"

    @property
    def tolerance(self) -> float:
        """Largest difference that counts as a rounding error: `TIE`, times the largest |value| if this exceeds 1."""
        return TIE * max(1.0, float(np.abs(self.values).max(initial=0.0)))

    def differences(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield (a, b, values of a − values of b) for all pairs of strategies."""
        for (a, values_a), (b, values_b) in combinations(zip(self.strategies, self.values, strict=True), 2):
            yield a, b, values_a - values_b

    def only(self, strategies: Sequence[str]) -> Replicates:
        """Return the rows of some strategies."""
        rows = [self.strategies.index(label) for label in strategies]
        hops = tuple(self.hops[row] for row in rows) if self.hops else ()
        return replace(self, strategies=tuple(strategies), values=self.values[rows], hops=hops)

    @cached_property
    def clusters(self) -> list[list[str]]:
        """The orders of each cluster.

        Two orders are in one cluster if they share a trained hop of a strategy, directly or through further orders. A
        hop that all strategies have in common (such as the first hop of naive and er) does not count: it has the same
        effect on all of them.
        """
        orders = [order for order, _, _ in self.blocks]
        cluster = {order: {order} for order in orders}
        first: dict[str, str] = {}
        for order, keys in zip(orders, zip(*self.hops, strict=True) if self.hops else (), strict=False):
            for key in frozenset().union(*keys) - keys[0].intersection(*keys[1:]):
                other = first.setdefault(key, order)
                if cluster[order] is not cluster[other]:
                    cluster[other] |= cluster[order]
                    cluster |= dict.fromkeys(cluster[other], cluster[other])
        return [
            [order for order in dict.fromkeys(orders) if order in members]
            for members in {id(members): members for members in cluster.values()}.values()
        ]

    def clustered(self) -> Replicates:
        """Average the orders of each cluster, for each seed and bucket; a cluster then takes the place of an order."""
        if len(self.clusters) == len({order for order, _, _ in self.blocks}):
            return self
        named = {order: _joined(orders) for orders in self.clusters for order in orders}
        groups: dict[Block, list[int]] = {}
        for k, (order, seed, bucket) in enumerate(self.blocks):
            groups.setdefault((named[order], seed, bucket), []).append(k)
        means = [self.values[:, members].mean(axis=1) for members in groups.values()]
        languages = tuple(self.languages[members[0]] for members in groups.values()) if self.languages else ()
        return Replicates(self.strategies, tuple(groups), np.stack(means, axis=1), languages)

    def averaged(self) -> Replicates:
        """Average the blocks of each replicate."""
        return self._means(self.kind)

    def by_order(self) -> Replicates:
        """Average the blocks of each order; these averages are the samples of CCL's ANOVA."""
        return self._means("order")

    def levels(self, kind: str | None = None) -> list[str | int | None]:
        """Return the replicate that each block belongs to, such as its order (see `kind`)."""
        kind = kind or self.kind
        position = {"order": 0, "seed": 1, "bucket": 2}.get(kind)
        return list(self.languages) if position is None else [block[position] for block in self.blocks]

    def _means(self, kind: str) -> Replicates:
        levels = self.levels(kind)
        distinct = list(dict.fromkeys(levels))
        index = np.array([distinct.index(level) for level in levels])
        # Buckets of a language have equal weights, regardless of their number of seeds.
        cells = [(index[j], bucket if kind == "languages" else j) for j, (_, _, bucket) in enumerate(self.blocks)]
        counts = Counter(cells)
        weights = np.array([1 / counts[cell] for cell in cells])
        means = [
            np.average(self.values[:, index == k], axis=1, weights=weights[index == k]) for k in range(len(distinct))
        ]
        order = self.blocks[0][0]
        blocks: list[Block] = [
            (order, -1, int(level)) if kind == "bucket" and level is not None
            else (order, int(level or 0), None) if kind == "seed" else (str(level), -1, None)
            for level in distinct
        ]  # fmt: skip
        return Replicates(self.strategies, tuple(blocks), np.stack(means, axis=1))


def _joined(orders: Sequence[str]) -> str:
    """Return a name for a cluster of orders."""
    return " + ".join(orders) if len(orders) < 4 else f"{orders[0]} + {len(orders) - 1} orders"


# Name of an order's sequence of languages instead of the order; otherwise as `Block`.
Key = tuple[str, int, int | None]


@dataclass(frozen=True)
class Measured:
    """One measure of several strategies, each in the blocks that it has finished.

    Attributes:
        values: strategy → block → value, or the reason why there is none.
        orders: sequence of languages (the first part of a `Key`) → name of its order.
        languages: sequence of languages → name of the set of these languages.
        merged: the strategies of merged models, which remove no blocks from tests of all strategies.
        hops: strategy → block → keys of its trained hops (`Replicates.hops`).
    """

    values: Mapping[str, Mapping[Key, float | str]]
    orders: Mapping[str, str]
    languages: Mapping[str, str]
    merged: AbstractSet[str] = frozenset()
    hops: Mapping[str, Mapping[Key, frozenset[str]]] = field(default_factory=dict)

    def of(self, strategies: Sequence[str]) -> Replicates | str:
        """Return the blocks in which all of ``strategies`` have values; if there is none, return the reason."""
        rows = [self.values.get(label, {}) for label in strategies]
        if lacking := next((label for label, row in zip(strategies, rows, strict=True) if not row), None):
            return f"{lacking} has no runs with this metric"
        common = [key for key in rows[0] if all(key in row for row in rows)]
        if not common:
            return f"{' and '.join(strategies)} have no combination of order, seed and bucket in common"
        keys = [key for key in common if not any(isinstance(row[key], str) for row in rows)]
        if not keys:
            return next(str(row[common[0]]) for row in rows if isinstance(row[common[0]], str))
        blocks = tuple((self.orders[path], seed, bucket) for path, seed, bucket in keys)
        values = np.array([[row[key] for key in keys] for row in rows], dtype=float)
        languages = tuple(self.languages[path] for path, _, _ in keys)
        hops = tuple(tuple(self.hops[label][key] for key in keys) for label in strategies if self.hops)
        return Replicates(tuple(strategies), blocks, values, languages, hops)

    def most(self) -> Replicates | None:
        """Return the strategies and blocks for tests of all strategies, at least two of each; None if there are none.

        Strategies that lack blocks of most others are left out (`most_shared`), so that they remove no blocks.
        """
        have = {
            label: {key for key, value in row.items() if not isinstance(value, str)}
            for label, row in self.values.items()
        }
        trained = {label: keys for label, keys in have.items() if label not in self.merged}
        common = most_shared(trained, fewest=2)
        if len(common) < 2:
            common = most_shared(have, fewest=2)
        labels = [label for label, keys in have.items() if common and keys >= common]
        data = self.of(labels) if len(labels) > 1 else ""
        return None if isinstance(data, str) else data


def most_shared(have: Mapping[str, AbstractSet[Any]], fewest: int = 1) -> AbstractSet[Any]:
    """Return the keys that a group of names shares, for the group with most (names × shared keys).

    Groups grow from each name by the name that keeps most of the shared keys, so two names that share two keys are
    always found. Of equal groups, the larger one wins; a group that shares a single key wins only if no group shares
    two.

    Args:
        have: name → its keys.
        fewest: minimum number of names of the group.
    """
    # Names with equal keys always join a group together.
    names = Counter(frozenset(keys) for keys in have.values() if keys)
    shared: AbstractSet[Any] = frozenset()
    best = (False, 0, 0)
    for start in sorted(names, key=len, reverse=True):
        if (len(start) > 1, names.total() * len(start), names.total()) <= best:
            break
        common, size, rest = start, names[start], [keys for keys in names if keys != start]
        while common:
            score = (len(common) > 1, size * len(common), size)
            if size >= fewest and score > best:
                shared, best = common, score
            if not rest:
                break
            _, at = max((len(keys & common), -i) for i, keys in enumerate(rest))
            joining = rest.pop(-at)
            common, size = common & joining, size + names[joining]
    return shared


def crossed(blocks: Sequence[Block]) -> np.ndarray | None:
    """Return the index of the block of each order and seed, shape (orders, seeds); None if the blocks are not crossed.

    Crossed: there are two or more orders, and all have the same two or more seeds. A bucket counts as a separate seed,
    since it has its own reference models.
    """
    orders = list(dict.fromkeys(order for order, _, _ in blocks))
    seeds = list(dict.fromkeys((seed, bucket) for _, seed, bucket in blocks))
    at = {block: k for k, block in enumerate(blocks)}
    if min(len(orders), len(seeds)) < 2 or len(at) < len(orders) * len(seeds):
        return None
    return np.array([[at[order, seed, bucket] for seed, bucket in seeds] for order in orders])


def given_references(blocks: Sequence[Block]) -> str:
    """Return a caveat if results hold only for these reference models and this hop 0; otherwise empty.

    All orders of a seed share the noise of its reference models and hop 0.
    """
    if len({order for order, _, _ in blocks}) < 2 or crossed(blocks) is not None:
        return ""
    several = len({block[1:] for block in blocks}) > 1
    return f"conditional on the reference models {'(orders differ in their seeds)' if several else 'of one seed'}"
