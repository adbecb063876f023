"""Check that buckets have the properties that their sampler guarantees.

- examples: a bucket is not empty; an empty bucket is not checked further.
- counts (N-way): every class occurs exactly K times.
- counts (Minimum-Including): every tag occurs at least K times, or as often as in the data.
- minimality (Minimum-Including): removing any single sentence breaks the counts.
- disjointness (N-way): no sentence is in two buckets of the same K.
- duplicates: no sentence is in a bucket twice.
- overlap: no sentence is in the dev or test split that is evaluated.

Sentences are compared by their words, ignoring case. Without a dataset, counts are checked only for the classes and
tags that occur in the buckets of the same task and language, and overlap is not checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xclrun.data.buckets.draw import pool_of
from xclrun.data.buckets.layout import Bucket
from xclrun.data.buckets.sample import needed, spared, tag_counts
from xclrun.data.example import Dataset, same_sentence

# A bucket, the broken property (one of `PROPERTIES`), and the reason.
Broken = tuple[Bucket, str, str]
PROPERTIES = ("examples", "counts", "minimality", "disjointness", "duplicates", "overlap")


@dataclass(frozen=True)
class Violation:
    """A broken property (``broken``, one of `PROPERTIES`) of one bucket, and the reason."""

    language: str
    shots: int
    bucket: int
    broken: str
    why: str

    def line(self) -> str:
        return f"{self.shots}-shots/{self.language}/{self.bucket}-th: {self.broken}: {self.why}"


def violations(buckets: Sequence[Bucket], whole: Dataset | None = None, counts: str = "words") -> list[Violation]:
    """Return all violations in the buckets of one task.

    Args:
        buckets: buckets of any languages and K. Buckets with labels are N-way, unless they record another sampler.
        whole: the dataset that the buckets were drawn from or are used with.
        counts: the argument of `tag_counts` for Minimum-Including, if a bucket does not record it.
    """
    broken = [(b, "examples", "the file has none") for b in buckets if not b.examples]
    groups: dict[str, list[Bucket]] = {}
    for bucket in buckets:
        if bucket.examples:
            groups.setdefault(bucket.language, []).append(bucket)
    for language, group in groups.items():
        for nway in (True, False):
            same = [bucket for bucket in group if is_nway(bucket) is nway]
            if same:
                broken += _check_counts(same, _available(same, language, whole, counts), counts)
        broken += _check_sentences(group, _evaluated(group, language, whole))
    listed = [Violation(b.language, b.shots, b.number, name, why) for b, name, why in broken]
    return sorted(listed, key=lambda v: (v.language, v.shots, v.bucket, PROPERTIES.index(v.broken)))


def is_nway(bucket: Bucket) -> bool:
    """Whether a bucket must have K examples of each class."""
    sampler = bucket.drawn.get("sampler")
    return sampler == "nway" if sampler else bucket.examples[0].label is not None


def _counts(bucket: Bucket, counts: str) -> list[Counter[str]]:
    if is_nway(bucket):
        return [Counter([str(e.label)]) for e in bucket.examples]
    return [tag_counts(e, bucket.drawn.get("counts", counts)) for e in bucket.examples]


def _available(same: Sequence[Bucket], language: str, whole: Dataset | None, counts: str) -> Counter[str]:
    """Return how often each class or tag can be drawn into buckets of one sampler."""
    if whole is None:
        # The data is unknown: assume that each class or tag is frequent enough.
        names = {name for bucket in same for row in _counts(bucket, counts) for name in row}
        return Counter(dict.fromkeys(names, max(bucket.shots for bucket in same)))
    pool = pool_of(whole, language, same[0].drawn.get("from", "train"))
    return sum(_counts(replace(same[0], examples=pool), counts), Counter())


def _check_counts(same: Iterable[Bucket], available: Mapping[str, int], counts: str) -> Iterator[Broken]:
    for b in same:
        rows, need = _counts(b, counts), needed(available, b.shots)
        total = sum(rows, Counter[str]())
        if is_nway(b):
            wrong = {name: total[name] for name in sorted({*need, *total}) if total[name] != b.shots}
        else:
            wrong = {name: total[name] for name in sorted(need) if total[name] < need[name]}
        if wrong:
            listed = ", ".join(f"'{name}' {n}" for name, n in wrong.items())
            target = f"K = {b.shots}" if is_nway(b) else f"at least {b.shots}"
            yield b, "counts", f"{listed} times instead of {target}"
        if not is_nway(b) and (spare := spared(rows, need)):
            ids = ", ".join(f"'{b.examples[i].id}'" for i in spare)
            yield b, "minimality", f"{ids} can be removed" + (", each alone" if len(spare) > 1 else "")


def _evaluated(group: Sequence[Bucket], language: str, whole: Dataset | None) -> dict[tuple[str, ...], str]:
    """Return sentence → evaluated split that contains it: test or, for buckets that are not drawn from dev, dev."""
    if whole is None:
        return {}
    from_dev = any(b.drawn.get("from") == "dev" for b in group)
    splits = ("test",) if from_dev else ("dev", "test")
    return {same_sentence(e): split for split in splits for e in whole.split(language, split)}


def _check_sentences(group: Iterable[Bucket], evaluated: Mapping[tuple[str, ...], str]) -> Iterator[Broken]:
    elsewhere: dict[tuple[int, tuple[str, ...]], tuple[int, str]] = {}
    for b in sorted(group, key=lambda b: (b.shots, b.number)):
        seen: dict[tuple[str, ...], str] = {}
        for e in b.examples:
            sentence = same_sentence(e)
            if sentence in seen:
                yield b, "duplicates", f"'{e.id}' is the same sentence as '{seen[sentence]}'"
                continue
            seen[sentence] = e.id
            if split := evaluated.get(sentence):
                yield b, "overlap", f"'{e.id}' is also in {split}"
            other = elsewhere.setdefault((b.shots, sentence), (b.number, e.id))
            if is_nway(b) and other[0] != b.number:
                yield b, "disjointness", f"'{e.id}' is also in {other[0]}-th, as '{other[1]}'"
