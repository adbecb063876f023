"""Draw a bucket: N-way K-shot for classes, Minimum-Including for tags.

N-way K-shot: K examples of every class; the buckets of one K are disjoint. Bucket b holds the places b·K … (b+1)·K − 1
of each class in one random order of its examples, so any number of buckets can be drawn, each by itself.

Minimum-Including (Hou et al. 2020, algorithm 1): every tag at least K times, and dropping any sentence breaks that.
Sentences are added for the rarest tag that still lacks some, then those that can be spared are dropped. Buckets are
drawn with replacement between them. A tag that all sentences together hold n < K times has to be there n times.

Random orders are hashes of (seed, example id), so that an example more in the file changes few buckets. Both return
examples in a fixed order: by class, and within a class, or without classes, in that of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from xclrun.core.errors import UsageError
from xclrun.data.example import OUTSIDE, Example, same_sentence


def candidates(examples: Iterable[Example], held_out: Iterable[Example] = ()) -> tuple[Example, ...]:
    """Return what may enter a bucket: each sentence once, its first example, and none that ``held_out`` has too."""
    seen = {same_sentence(example) for example in held_out}
    found = []
    for example in examples:
        sentence = same_sentence(example)
        if sentence not in seen:
            seen.add(sentence)
            found.append(example)
    return tuple(found)


def by_class(examples: Iterable[Example]) -> dict[str, list[Example]]:
    """Return class → its examples, classes by name."""
    found: dict[str, list[Example]] = {}
    for example in examples:
        if example.label is None:
            raise UsageError(f"sampler=nway draws examples of each class; '{example.id}' has none (tags: minimum)")
        found.setdefault(example.label, []).append(example)
    return dict(sorted(found.items()))


def nway(examples: Sequence[Example], shots: int, bucket: int, seed: int) -> tuple[Example, ...]:
    """Return the bucket of N-way K-shot.

    Args:
        examples: what is drawn from; see `candidates`.
        shots: K.
        bucket: its id, from 0.
        seed: the same for all buckets that have to be disjoint.
    """
    place = {example.id: i for i, example in enumerate(examples)}
    drawn: list[Example] = []
    for label, members in by_class(examples).items():
        if len(members) < (bucket + 1) * shots:
            raise UsageError(
                f"bucket={bucket}: '{label}' has {len(members)} sentences to draw from: {len(members) // shots} "
                f"disjoint buckets of shots={shots}, from 0"
            )
        chosen = _shuffled(members, seed)[bucket * shots : (bucket + 1) * shots]
        drawn += sorted(chosen, key=lambda example: place[example.id])
    return tuple(drawn)


def tag_counts(example: Example, counts: str) -> Counter[str]:
    """Return how often a sentence has each tag but ``O``, which marks what has none.

    Args:
        example: a sentence with tags.
        counts: ``words``: words with the tag; ``sentences``: 1 where any word has it.
    """
    if example.tags is None:
        raise UsageError(f"sampler=minimum draws sentences by their tags; '{example.id}' has none (classes: nway)")
    found = Counter(tag for tag in example.tags if tag != OUTSIDE)
    return Counter(dict.fromkeys(found, 1)) if counts == "sentences" else found


def needed(total: Mapping[str, int], shots: int) -> dict[str, int]:
    """Return tag → how often a bucket must have it: K times, or as often as there is, ``total``."""
    return {tag: min(shots, there) for tag, there in total.items()}


def spared(held: Sequence[Mapping[str, int]], need: Mapping[str, int]) -> list[int]:
    """Return the positions of the sentences without any one of which every tag is still there often enough.

    Args:
        held: tag counts of the bucket's sentences.
        need: tag → how often it must be there; one that is there less often already is nobody's to spare.
    """
    total: Counter[str] = Counter()
    for counts in held:
        total.update(counts)
    return [i for i, counts in enumerate(held) if all(total[t] - n >= need.get(t, 0) for t, n in counts.items())]


def minimum(examples: Sequence[Example], shots: int, seed: int, counts: str = "words") -> tuple[Example, ...]:
    """Return a bucket of Minimum-Including.

    Args:
        examples: what is drawn from; see `candidates`.
        shots: K.
        seed: that of the bucket.
        counts: see `tag_counts`.
    """
    place = {example.id: i for i, example in enumerate(examples)}
    order = [place[example.id] for example in _shuffled(examples, seed)]
    held = [tag_counts(example, counts) for example in examples]
    total: Counter[str] = Counter()
    having: dict[str, list[int]] = {}
    for i in order:
        total.update(held[i])
        for tag in held[i]:
            having.setdefault(tag, []).append(i)
    need = needed(total, shots)
    chosen: dict[int, None] = {}
    got: Counter[str] = Counter()
    for tag in sorted(need, key=lambda tag: (total[tag], tag)):
        for i in having[tag]:
            if got[tag] >= need[tag]:
                break
            if i not in chosen:
                chosen[i] = None
                got.update(held[i])
    # One pass is enough: what cannot be spared now can be spared no more when others are gone.
    for i in list(chosen):
        if all(got[tag] - n >= need[tag] for tag, n in held[i].items()):
            del chosen[i]
            got.subtract(held[i])
    return tuple(examples[i] for i in sorted(chosen))


def _shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    return sorted(examples, key=lambda e: (blake2b(f"{seed}/{e.id}".encode(), digest_size=8).digest(), e.id))
