"""Streams: the sequence of hops that an order of languages and a strategy define.

Papers: GLI = Yogatama et al. 2019, ED = Keung et al. 2020, FS = Zhao et al. 2021 (docs/fidelity.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.languages import MIXED, key_of


@dataclass(frozen=True)
class Hop:
    """One step of a stream: train on the hop's data, then evaluate on every language.

    Attributes:
        index: 0 for the model before fine-tuning; 1…N in the stream's order.
        train: languages whose training data is used; empty for hop 0.
        select: languages whose dev data selects the best epoch.
        parent: index of the hop whose model this one starts from.
        depth: number of trainings since hop 0, including this one. Random numbers are seeded by ``depth`` instead of
            ``index``, so a model trained from hop 0 on one language does not depend on the language's position in the
            order.
        adapts: whether the hop is the target adaptation of few-shot transfer.
        mixed: whether the keys are a `Mixture`. Otherwise, a hop with several keys trains on the union of their data.
        codes: the block that is encoded with this hop's model to compute the online codelength. Empty unless the stream
            has blocks (`in_blocks`).
    """

    index: int
    train: tuple[str, ...]
    select: tuple[str, ...]
    parent: int
    depth: int
    adapts: bool = False
    codes: str = ""
    mixed: bool = False

    @property
    def name(self) -> str:
        """Display name: the keys, as in ``en``, ``en+de`` or ``de#1-3`` (three blocks), or ``before fine-tuning``."""
        ends = [language.rpartition("#") for language in self.train]
        if len(ends) > 1 and {key for key, _, _ in ends} == {ends[0][0]} and ends[0][0]:
            return f"{self.train[0]}-{ends[-1][2]}"
        return "+".join(self.train) or "before fine-tuning"


@dataclass(frozen=True)
class Stream:
    """The sequence of hops that an order and a strategy define.

    Attributes:
        kind: ``sequence`` (each hop continues from the previous one), ``independent`` (every hop starts from hop 0),
            ``joint`` (one hop on the union), ``growing`` (hop i starts from hop 0 and learns the first i languages),
            ``zero_shot`` (one hop on the first language), ``transfer`` (source training, if any, then target
            adaptation), ``blocks`` (earlier languages, if any, then blocks of the last one), ``mixture`` (a sequence
            with hops that learn a `Mixture`).
        languages: the order; all are evaluated after every hop.
        hops: hop 0 first.
        mixtures: keys of each element of the order; empty if the order has no `Mixture`.
    """

    kind: str
    languages: tuple[str, ...]
    hops: tuple[Hop, ...]
    mixtures: tuple[tuple[str, ...], ...] = ()


BEFORE = Hop(index=0, train=(), select=(), parent=-1, depth=0)


class Mixture(str):
    """An element of an order whose keys are learned in one hop, from batches of randomly drawn keys: ``a+b``.

    See GLI, section 4. Each step draws a key uniformly, independent of its size, and takes the next batch of the key's
    shuffled examples, in a cycle.
    """

    keys: tuple[str, ...]

    def __new__(cls, keys: Sequence[str]) -> Mixture:
        mixture = super().__new__(cls, MIXED.join(keys))
        mixture.keys = tuple(keys)
        return mixture


def keys_of(order: Iterable[str]) -> tuple[str, ...]:
    """Return the keys of an order, with mixtures split into their keys."""
    return tuple(key for element in order for key in (element.keys if isinstance(element, Mixture) else (element,)))


def sequence(order: Sequence[str], *, cumulative: bool = False) -> Stream:
    """Return the stream that learns one language or mixture per hop; with ``cumulative``, languages 1…i in hop i."""
    hops = [BEFORE]
    for i, element in enumerate(order, start=1):
        mixed = isinstance(element, Mixture)
        # Sorted: mixtures of the same keys share one training.
        train = tuple(order[:i]) if cumulative else tuple(sorted(keys_of([element])))
        hops.append(Hop(i, train, train, parent=i - 1, depth=i, mixed=mixed))
    if not any(hop.mixed for hop in hops):
        return Stream("sequence", tuple(order), tuple(hops))
    return Stream("mixture", keys_of(order), tuple(hops), tuple(keys_of([element]) for element in order))


def independent(order: Sequence[str]) -> Stream:
    """Return the stream that trains on each language separately, from hop 0."""
    order = keys_of(order)
    hops = [Hop(i, (language,), (language,), parent=0, depth=1) for i, language in enumerate(order, start=1)]
    return Stream("independent", tuple(order), (BEFORE, *hops))


def joint(order: Sequence[str]) -> Stream:
    """Return the stream of one training on the union of all languages."""
    order = keys_of(order)
    # Sorted: all orders of the same languages share this training.
    union = tuple(sorted(order))
    return Stream("joint", tuple(order), (BEFORE, Hop(1, union, union, parent=0, depth=1)))


def growing(order: Sequence[str]) -> Stream:
    """Return the stream whose hop i trains on the first i languages together, from hop 0."""
    hops = [Hop(i, tuple(order[:i]), tuple(order[:i]), parent=0, depth=1) for i in range(1, len(order) + 1)]
    return Stream("growing", tuple(order), (BEFORE, *hops))


def block_names(key: str, number: int) -> tuple[str, ...]:
    """Return the names of the blocks of a key's training data: ``de#1``, ``de#2``, …"""
    return tuple(f"{key}#{i}" for i in range(1, number + 1))


def in_blocks(order: Sequence[str], number: int, stream: Callable[[Sequence[str]], Stream]) -> Stream:
    """Return the stream for online codelengths: the last language of an order is learned block by block.

    Training on the first block starts from the model trained on the other languages, or from hop 0 if there are none.
    Each model predicts the next block before that block is learned, so the last block is never learned.

    Args:
        number: number of blocks, at least 2.
        stream: function that returns the strategy's stream for the block names. Its hop 0 stands for the model before
            the first block.

    Raises:
        ValueError: the order ends with a mixture, or the strategy does not train on the blocks one after another.
    """
    *first, key = order
    if isinstance(key, Mixture):
        raise ValueError(f"only a single key can be split into blocks; the last element of order is the mixture {key}")
    names = block_names(key, number)
    before_blocks = sequence(first)
    start = before_blocks.hops
    of_blocks, at = stream(names[:-1]), len(start) - 1
    hops = of_blocks.hops[1:]
    in_turn = [hop.train[-1:] for hop in hops] == [(name,) for name in names[:-1]]
    if of_blocks.kind not in ("sequence", "growing") or not in_turn:
        raise ValueError("the strategy does not train on the blocks one after another")
    before = (*start[:-1], replace(start[-1], codes=names[0]))
    after = (
        replace(
            hop, index=at + i, parent=at + hop.parent, depth=at + hop.depth, select=(key,), codes=names[i]
        )
        for i, hop in enumerate(hops, start=1)
    )  # fmt: skip
    mixtures = (*before_blocks.mixtures, (key,)) if before_blocks.mixtures else ()
    return Stream("blocks", keys_of(order), (*before, *after), mixtures)


def zero_shot(order: Sequence[str]) -> Stream:
    """Return the stream that trains only on the first language and evaluates on all (ED, section 3)."""
    source = (order[0],)
    return Stream("zero_shot", tuple(order), (BEFORE, Hop(1, source, source, parent=0, depth=1)))


def transfer(source: str | None, target: str) -> Stream:
    """Return the stream of few-shot transfer (FS, section 3): train on the source, then adapt to the target.

    Without a source, the model before fine-tuning is adapted.
    """
    languages = (target,) if source is None else (source, target)
    before = [BEFORE] if source is None else [BEFORE, Hop(1, (source,), (source,), parent=0, depth=1)]
    last = len(before)
    adapting = Hop(last, (target,), (target,), parent=last - 1, depth=last, adapts=True)
    return Stream("transfer", languages, (*before, adapting))


def with_mixtures(elements: Sequence[str], languages: Collection[str] = ()) -> tuple[str, ...]:
    """Return an order with each element ``a+b`` as a mixture, unless ``a+b`` is itself the name of a language."""
    parts = (tuple(element.split(MIXED)) if element not in languages else (element,) for element in elements)
    return tuple(Mixture(keys) if len(keys) > 1 else keys[0] for keys in parts)


def resolve_order(languages: Sequence[str] | None, by_size: str | None, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the order of languages that a config sets.

    Args:
        languages: an explicit list, or None. ``a+b`` is a `Mixture`, unless a language has this name. A tag such as
            ``de`` can stand for the key ``de-DE`` (`xclrun.core.languages.key_of`).
        by_size: ``descending`` or ``ascending`` number of training sentences. Ties are resolved by the dataset's order:
            the first language counts as the largest.
        sizes: language → number of training sentences, in the dataset's order.
    """
    if languages is None:
        if by_size is None:
            raise UsageError("order.languages is needed: a list of languages, for example order=[en,de,th]")
        descending = sorted(sizes, key=lambda language: -sizes[language])
        return tuple(descending if by_size == "descending" else reversed(descending))
    if not languages:
        raise UsageError(f"order.languages is empty; the dataset has {', '.join(sizes)}")
    order = with_mixtures([key_of(element, sizes, "order") for element in languages], sizes)
    keys = keys_of(order)
    for language in keys:
        if language not in sizes:
            yaml = "; YAML reads an unquoted no as false: write 'no' with quotes" if language == "False" else ""
            raise UsageError(f"order: the dataset has no language '{language}'; {did_you_mean(language, sizes)}{yaml}")
        if keys.count(language) > 1:
            raise UsageError(f"order: the language '{language}' is repeated in [{', '.join(languages)}]")
    return order
