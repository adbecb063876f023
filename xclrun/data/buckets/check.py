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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from xclrun.data.buckets.draw import pool_of
from xclrun.data.buckets.layout import Bucket
from xclrun.data.buckets.sample import needed, spared, tag_counts
from xclrun.data.example import Dataset, same_sentence

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
    found: list[Violation] = []
    groups: dict[str, list[Bucket]] = {}
    for bucket in buckets:
        if bucket.examples:
            groups.setdefault(bucket.language, []).append(bucket)
        else:
            found.append(Violation(bucket.language, bucket.shots, bucket.number, "examples", "the file holds none"))
    for language, group in groups.items():
        found += _of_counts(group, _there(group, language, whole, counts), counts)
        found += _of_sentences(group, _scored(group, language, whole))
    order = {name: i for i, name in enumerate(PROPERTIES)}
    return sorted(found, key=lambda v: (v.language, v.shots, v.bucket, order[v.broken]))


def is_nway(bucket: Bucket) -> bool:
    """Whether a bucket has to hold K examples of each class."""
    sampler = bucket.drawn.get("sampler")
    return sampler == "nway" if sampler else bucket.examples[0].label is not None


def _counts(bucket: Bucket, counts: str) -> list[Counter[str]]:
    """Return for each example of a bucket how often it counts for which class or tag."""
    if is_nway(bucket):
        return [Counter([str(e.label)]) for e in bucket.examples]
    return [tag_counts(e, bucket.drawn.get("counts", counts)) for e in bucket.examples]


def _there(group: Sequence[Bucket], language: str, whole: Dataset | None, counts: str) -> dict[bool, Counter[str]]:
    """Return, for N-way (True) and Minimum-Including (False), how often each class or tag could be in a bucket."""
    there = {True: Counter[str](), False: Counter[str]()}
    for nway in (True, False):
        same = [bucket for bucket in group if is_nway(bucket) is nway]
        if same and whole is not None:
            pool = pool_of(whole, language, same[0].drawn.get("from", "train"))
            for row in _counts(replace(same[0], examples=pool), counts):
                there[nway].update(row)
        else:
            # Without the data, what one bucket has is taken to be there often enough for all.
            names = {name for bucket in same for row in _counts(bucket, counts) for name in row}
            there[nway] = Counter(dict.fromkeys(names, max((bucket.shots for bucket in same), default=0)))
    return there


def _of_counts(group: Iterable[Bucket], there: Mapping[bool, Counter[str]], counts: str) -> list[Violation]:
    found = []
    for b in group:
        held = _counts(b, counts)
        total: Counter[str] = Counter()
        for row in held:
            total.update(row)
        need = needed(there[is_nway(b)], b.shots)
        if is_nway(b):
            wrong = {name: total[name] for name in sorted({*need, *total}) if total[name] != b.shots}
            told = f"K = {b.shots}"
        else:
            wrong = {name: total[name] for name in sorted(need) if total[name] < need[name]}
            told = f"at least {b.shots}"
        if wrong:
            said = ", ".join(f"'{name}' {n}" for name, n in wrong.items())
            found.append(Violation(b.language, b.shots, b.number, "counts", f"{said} times instead of {told}"))
        if not is_nway(b) and (spare := spared(held, need)):
            ids = ", ".join(f"'{b.examples[i].id}'" for i in spare)
            why = f"{ids} can be dropped" + (", each by itself" if len(spare) > 1 else "")
            found.append(Violation(b.language, b.shots, b.number, "minimality", why))
    return found


def _scored(group: Sequence[Bucket], language: str, whole: Dataset | None) -> dict[tuple[str, ...], str]:
    """Return sentence → the split that is scored and has it: dev (unless the buckets are drawn from it) or test."""
    if whole is None:
        return {}
    from_dev = any(b.drawn.get("from") == "dev" for b in group)
    splits = ("test",) if from_dev else ("dev", "test")
    return {same_sentence(e): split for split in splits for e in whole.split(language, split)}


def _of_sentences(group: Iterable[Bucket], scored: Mapping[tuple[str, ...], str]) -> list[Violation]:
    found = []
    elsewhere: dict[tuple[int, tuple[str, ...]], tuple[int, str]] = {}
    for b in sorted(group, key=lambda b: (b.shots, b.number)):
        here: dict[tuple[str, ...], str] = {}
        for e in b.examples:
            sentence = same_sentence(e)

            def broken(what: str, why: str, b: Bucket = b) -> None:
                found.append(Violation(b.language, b.shots, b.number, what, why))

            if sentence in here:
                broken("duplicates", f"'{e.id}' is the same sentence as '{here[sentence]}'")
                continue
            here[sentence] = e.id
            if split := scored.get(sentence):
                broken("overlap", f"'{e.id}' is in {split} too")
            other = elsewhere.setdefault((b.shots, sentence), (b.number, e.id))
            if is_nway(b) and other[0] != b.number:
                broken("disjointness", f"'{e.id}' is in {other[0]}-th too, as '{other[1]}'")
    return found
