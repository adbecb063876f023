"""A stream: the hops that an order of languages and a strategy make of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xclrun.core.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class Hop:
    """One step of a stream: train on this hop's data, then evaluate on every language.

    Attributes:
        index: 0 is the model before any fine-tuning; 1…N follow the order.
        train: languages whose training data is used; empty for hop 0.
        select: languages whose dev data selects the best epoch.
        parent: index of the hop whose model this one starts from.
        depth: number of trainings since hop 0, this one included. Random numbers depend on it and not on ``index``,
            so that a model trained from hop 0 on one language is the same model wherever the language stands in an
            order.
        adapts: whether it adapts to few sentences of a target language: the last hop of few-shot transfer.
    """

    index: int
    train: tuple[str, ...]
    select: tuple[str, ...]
    parent: int
    depth: int
    adapts: bool = False

    @property
    def name(self) -> str:
        """What the hop learns: ``en``, ``en+de``, or ``before fine-tuning``."""
        return "+".join(self.train) or "before fine-tuning"


@dataclass(frozen=True)
class Stream:
    """The sequence of hops that an order and a strategy make of a dataset.

    Attributes:
        kind: ``sequence`` (hop after hop), ``independent`` (every hop starts from hop 0), ``joint`` (one hop on the
            union), ``zero_shot`` (one hop on the first language), ``transfer`` (source training, where there is any,
            then target adapting).
        languages: the order; all of them are evaluated after every hop.
        hops: hop 0 first.
    """

    kind: str
    languages: tuple[str, ...]
    hops: tuple[Hop, ...]


BEFORE = Hop(index=0, train=(), select=(), parent=-1, depth=0)


def sequence(order: Sequence[str], *, cumulative: bool = False) -> Stream:
    """Return the stream that learns one language after another; ``cumulative``: hop i trains on the first i."""
    hops = [BEFORE]
    for i, language in enumerate(order, start=1):
        train = tuple(order[:i]) if cumulative else (language,)
        hops.append(Hop(i, train, train, parent=i - 1, depth=i))
    return Stream("sequence", tuple(order), tuple(hops))


def independent(order: Sequence[str]) -> Stream:
    """Return the stream that trains each language alone, always from hop 0."""
    hops = [Hop(i, (language,), (language,), parent=0, depth=1) for i, language in enumerate(order, start=1)]
    return Stream("independent", tuple(order), (BEFORE, *hops))


def joint(order: Sequence[str]) -> Stream:
    """Return the stream of one training on the union of all languages."""
    # Sorted, since the union has no order: all orders of the same languages share this one training.
    union = tuple(sorted(order))
    return Stream("joint", tuple(order), (BEFORE, Hop(1, union, union, parent=0, depth=1)))


def zero_shot(order: Sequence[str]) -> Stream:
    """Return the stream that trains on the first language alone and tests all (ED, section 3)."""
    source = (order[0],)
    return Stream("zero_shot", tuple(order), (BEFORE, Hop(1, source, source, parent=0, depth=1)))


def transfer(source: str | None, target: str) -> Stream:
    """Return the stream of few-shot transfer: train on the source, then adapt to the target.

    FS (Zhao et al. 2021), section 3. Without a source the model before any fine-tuning is adapted.
    """
    languages = (target,) if source is None else (source, target)
    before = [BEFORE] if source is None else [BEFORE, Hop(1, (source,), (source,), parent=0, depth=1)]
    last = len(before)
    adapting = Hop(last, (target,), (target,), parent=last - 1, depth=last, adapts=True)
    return Stream("transfer", languages, (*before, adapting))


def resolve_order(languages: Sequence[str] | None, by_size: str | None, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the order of languages that a config asks for.

    Args:
        languages: an explicit list, or None.
        by_size: ``descending`` or ``ascending`` number of training sentences; of equal sizes the one that the
            dataset has first counts as the larger.
        sizes: language → number of training sentences, in the dataset's order.

    Raises:
        UsageError: a language is unknown or repeated, or the list is empty.
    """
    if languages is None:
        if by_size is None:
            raise UsageError("order.languages is needed: a list of languages, for example order=[en,de,th]")
        descending = sorted(sizes, key=lambda language: -sizes[language])
        return tuple(descending if by_size == "descending" else reversed(descending))
    if not languages:
        raise UsageError(f"order.languages is empty; the dataset has {', '.join(sizes)}")
    for language in languages:
        if language not in sizes:
            raise UsageError(f"order: the dataset has no language '{language}'; {did_you_mean(language, sizes)}")
        if list(languages).count(language) > 1:
            raise UsageError(f"order: the language '{language}' is repeated in [{', '.join(languages)}]")
    return tuple(languages)
