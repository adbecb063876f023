"""Do buckets have the properties that they are drawn for? What breaks which one, a line each.

- examples: a bucket has some; nothing else is asked of one that has none.
- counts: N-way: every class exactly K times. Minimum-Including: every tag at least K times, or as often as there is.
- minimality (Minimum-Including): dropping any sentence breaks the counts.
- disjointness (N-way): no sentence is in two buckets of the same K.
- duplicates: no sentence is in a bucket twice.
- overlap: no sentence is in the dev or test split that it is scored with.

Sentences are the same where their words are, but for case. Without a dataset at hand, the classes and tags are those
that any bucket of the same task and language has, and overlap is not checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xclrun.data.buckets.draw import pool_of
from xclrun.data.buckets.layout import Bucket
from xclrun.data.buckets.sample import needed, spared, tag_counts
from xclrun.data.example import Dataset, same_sentence

# A bucket, one of `PROPERTIES`, and what breaks it.
Broken = tuple[Bucket, str, str]
PROPERTIES = ("examples", "counts", "minimality", "disjointness", "duplicates", "overlap")


@dataclass(frozen=True)
class Violation:
    """One bucket breaks one property.

    Attributes:
        language, shots, bucket: which.
        broken: one of `PROPERTIES`.
        why: what breaks it, for a person.
    """

    language: str
    shots: int
    bucket: int
    broken: str
    why: str

    def line(self) -> str:
        """Return the violation as a line."""
        return f"{self.shots}-shots/{self.language}/{self.bucket}-th: {self.broken}: {self.why}"


def violations(buckets: Sequence[Bucket], whole: Dataset | None = None, counts: str = "words") -> list[Violation]:
    """Return what is wrong with buckets of one task.

    Args:
        buckets: of any languages and K. Those whose examples have a label are N-way, unless they say otherwise.
        whole: the dataset that they were drawn from, or are used with.
        counts: what K counts for Minimum-Including, where a bucket does not say: see `tag_counts`.
    """
    found = [(b, "examples", "the file holds none") for b in buckets if not b.examples]
    groups: dict[str, list[Bucket]] = {}
    for bucket in buckets:
        if bucket.examples:
            groups.setdefault(bucket.language, []).append(bucket)
    for language, group in groups.items():
        for nway in (True, False):
            same = [bucket for bucket in group if is_nway(bucket) is nway]
            if same:
                found += _of_counts(same, _there(same, language, whole, counts), counts)
        found += _of_sentences(group, _scored(group, language, whole))
    listed = [Violation(b.language, b.shots, b.number, broken, why) for b, broken, why in found]
    return sorted(listed, key=lambda v: (v.language, v.shots, v.bucket, PROPERTIES.index(v.broken)))


def is_nway(bucket: Bucket) -> bool:
    """Whether a bucket has to hold K examples of each class."""
    sampler = bucket.drawn.get("sampler")
    return sampler == "nway" if sampler else bucket.examples[0].label is not None


def _counts(bucket: Bucket, counts: str) -> list[Counter[str]]:
    """Return for each example of a bucket how often it counts for which class or tag."""
    if is_nway(bucket):
        return [Counter([str(e.label)]) for e in bucket.examples]
    return [tag_counts(e, bucket.drawn.get("counts", counts)) for e in bucket.examples]


def _there(same: Sequence[Bucket], language: str, whole: Dataset | None, counts: str) -> Counter[str]:
    """Return how often each class or tag could be in buckets of one sampler."""
    if whole is None:
        # Each is taken to be there often enough for all buckets.
        names = {name for bucket in same for row in _counts(bucket, counts) for name in row}
        return Counter(dict.fromkeys(names, max(bucket.shots for bucket in same)))
    pool = pool_of(whole, language, same[0].drawn.get("from", "train"))
    return sum(_counts(replace(same[0], examples=pool), counts), Counter())


def _of_counts(same: Iterable[Bucket], there: Mapping[str, int], counts: str) -> Iterator[Broken]:
    for b in same:
        held, need = _counts(b, counts), needed(there, b.shots)
        total = sum(held, Counter[str]())
        if is_nway(b):
            wrong = {name: total[name] for name in sorted({*need, *total}) if total[name] != b.shots}
        else:
            wrong = {name: total[name] for name in sorted(need) if total[name] < need[name]}
        if wrong:
            listed = ", ".join(f"'{name}' {n}" for name, n in wrong.items())
            wanted = f"K = {b.shots}" if is_nway(b) else f"at least {b.shots}"
            yield b, "counts", f"{listed} times instead of {wanted}"
        if not is_nway(b) and (spare := spared(held, need)):
            ids = ", ".join(f"'{b.examples[i].id}'" for i in spare)
            yield b, "minimality", f"{ids} can be dropped" + (", each by itself" if len(spare) > 1 else "")


def _scored(group: Sequence[Bucket], language: str, whole: Dataset | None) -> dict[tuple[str, ...], str]:
    """Return sentence → the split that is scored and has it: dev (unless the buckets are drawn from it) or test."""
    if whole is None:
        return {}
    from_dev = any(b.drawn.get("from") == "dev" for b in group)
    splits = ("test",) if from_dev else ("dev", "test")
    return {same_sentence(e): split for split in splits for e in whole.split(language, split)}


def _of_sentences(group: Iterable[Bucket], scored: Mapping[tuple[str, ...], str]) -> Iterator[Broken]:
    elsewhere: dict[tuple[int, tuple[str, ...]], tuple[int, str]] = {}
    for b in sorted(group, key=lambda b: (b.shots, b.number)):
        here: dict[tuple[str, ...], str] = {}
        for e in b.examples:
            sentence = same_sentence(e)
            if sentence in here:
                yield b, "duplicates", f"'{e.id}' is the same sentence as '{here[sentence]}'"
                continue
            here[sentence] = e.id
            if split := scored.get(sentence):
                yield b, "overlap", f"'{e.id}' is in {split} too"
            other = elsewhere.setdefault((b.shots, sentence), (b.number, e.id))
            if is_nway(b) and other[0] != b.number:
                yield b, "disjointness", f"'{e.id}' is in {other[0]}-th too, as '{other[1]}'"
