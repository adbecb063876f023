"""Draw a bucket: N-way K-shot for classes, Minimum-Including for tags.

N-way K-shot: K examples of every class; the buckets of one K are disjoint. The examples of each class are shuffled, and
bucket b takes positions b·K to (b+1)·K − 1. Each bucket can therefore be drawn without the others.

Minimum-Including (Hou et al. 2020, algorithm 1): every tag occurs at least K times, and no sentence can be removed
without violating this. Tags are processed from rare to frequent: sentences are added until the tag occurs K times. Then
superfluous sentences are removed. A tag with n < K occurrences in all sentences must occur n times. Buckets are drawn
independently and can overlap.

Examples are shuffled by sorting hashes of (seed, example id), so a new example in the file does not change the order of
the others. In `nway`, the new example moves the later examples of its class by one position. Every bucket from this
position on, on average half of the buckets, then has one different example. In `minimum`, most buckets usually stay the
same.

`nway` returns examples by class, in file order within a class; `minimum` returns them in file order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from xclrun.core.errors import UsageError
from xclrun.data.example import OUTSIDE, Example, same_sentence


def candidates(examples: Iterable[Example], held_out: Iterable[Example] = ()) -> tuple[Example, ...]:
    """Return the first example of each distinct sentence that is not in ``held_out``."""
    seen = {same_sentence(example) for example in held_out}
    distinct = []
    for example in examples:
        sentence = same_sentence(example)
        if sentence not in seen:
            seen.add(sentence)
            distinct.append(example)
    return tuple(distinct)


def by_class(examples: Iterable[Example]) -> dict[str, list[Example]]:
    """Return class → its examples, sorted by class."""
    classes: dict[str, list[Example]] = {}
    for example in examples:
        if example.label is None:
            raise UsageError(f"sampler=nway needs classes; '{example.id}' has none; use minimum for tags")
        classes.setdefault(example.label, []).append(example)
    return dict(sorted(classes.items()))


def nway(examples: Sequence[Example], shots: int, bucket: int, seed: int) -> tuple[Example, ...]:
    """Return one bucket of N-way K-shot.

    Args:
        examples: see `candidates`.
        bucket: number of the bucket, from 0.
        seed: buckets with the same seed are disjoint.
    """
    place = {example.id: i for i, example in enumerate(examples)}
    drawn: list[Example] = []
    for label, members in by_class(examples).items():
        if len(members) < (bucket + 1) * shots:
            raise UsageError(
                f"bucket={bucket}: the {len(members)} sentences of '{label}' are only enough for "
                f"{len(members) // shots} disjoint buckets of shots={shots}, numbered from 0; lower bucket or shots"
            )
        chosen = _shuffled(members, seed)[bucket * shots : (bucket + 1) * shots]
        drawn += sorted(chosen, key=lambda example: place[example.id])
    return tuple(drawn)


def tag_counts(example: Example, counts: str) -> Counter[str]:
    """Return how often a sentence has each tag except ``O``.

    Args:
        counts: ``words``: number of words with the tag; ``sentences``: 1 if any word has the tag.
    """
    if example.tags is None:
        raise UsageError(f"sampler=minimum needs tags; '{example.id}' has none; use nway for classes")
    words = Counter(tag for tag in example.tags if tag != OUTSIDE)
    return Counter(dict.fromkeys(words, 1)) if counts == "sentences" else words


def needed(total: Mapping[str, int], shots: int) -> dict[str, int]:
    """Return tag → required count: ``shots``, or the tag's count in all sentences (``total``) if this is smaller."""
    return {tag: min(shots, count) for tag, count in total.items()}


def spared(rows: Sequence[Mapping[str, int]], need: Mapping[str, int]) -> list[int]:
    """Return the positions of superfluous sentences: after removing any single one, all required counts still hold.

    Args:
        rows: tag counts of the bucket's sentences.
        need: tag → required count.
    """
    total: Counter[str] = Counter()
    for counts in rows:
        total.update(counts)
    return [i for i, counts in enumerate(rows) if all(total[t] - n >= need.get(t, 0) for t, n in counts.items())]


def minimum(examples: Sequence[Example], shots: int, seed: int, counts: str = "words") -> tuple[Example, ...]:
    """Return one bucket of Minimum-Including.

    Args:
        examples: see `candidates`.
        counts: see `tag_counts`.
    """
    place = {example.id: i for i, example in enumerate(examples)}
    order = [place[example.id] for example in _shuffled(examples, seed)]
    rows = [tag_counts(example, counts) for example in examples]
    total: Counter[str] = Counter()
    members: dict[str, list[int]] = {}
    for i in order:
        total.update(rows[i])
        for tag in rows[i]:
            members.setdefault(tag, []).append(i)
    need = needed(total, shots)
    chosen: dict[int, None] = {}
    got: Counter[str] = Counter()
    for tag in sorted(need, key=lambda tag: (total[tag], tag)):
        for i in members[tag]:
            if got[tag] >= need[tag]:
                break
            if i not in chosen:
                chosen[i] = None
                got.update(rows[i])
    # One pass is enough: a necessary sentence stays necessary when other sentences are removed.
    for i in list(chosen):
        if all(got[tag] - n >= need[tag] for tag, n in rows[i].items()):
            del chosen[i]
            got.subtract(rows[i])
    return tuple(examples[i] for i in sorted(chosen))


def _shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    return sorted(examples, key=lambda e: (blake2b(f"{seed}/{e.id}".encode(), digest_size=8).digest(), e.id))
