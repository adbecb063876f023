"""Load a dataset as the config asks: read its parts, check what was read, draw the buckets and subsets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import cycle, islice

from xclrun.config.schema import DatasetConfig, PartConfig, Unanswerable
from xclrun.core.errors import UsageError
from xclrun.core.names import check_name
from xclrun.core.task import STATEMENT_TRUTH, Task, statement_of
from xclrun.data.buckets.draw import with_buckets
from xclrun.data.example import Dataset, Example
from xclrun.data.parts import read_parts, stating
from xclrun.data.readers.files import Notes
from xclrun.data.statements import stated


def load_dataset(
    cfg: DatasetConfig,
    bucket: int | None = None,
    shots: int | None = None,
    few_shot: Collection[str] | None = None,
) -> Dataset:
    """Read a dataset and draw its subsets.

    Relative roots are relative to the current folder; ``~`` is the home folder.

    Args:
        cfg: which dataset, and how much of it.
        bucket: with ``shots``: id of the bucket, None for the first. Without: which of the disjoint subsets of
            ``max_train`` training sentences; None: the one that grows with it.
        shots: K of the buckets that are drawn as ``cfg.buckets`` says; None: no such bucket.
        few_shot: languages whose training split is a bucket; None: all. Those of the others, and all dev and test
            splits, are what they are without a bucket, but for what ``draw_from=dev`` takes from dev.

    Raises:
        UsageError: the config asks for what the data do not have, or a line cannot be read (``path:line``).
    """
    for key, size in size_limits(cfg):
        if size is not None and size < 1:
            raise UsageError(f"dataset.{key}={size}: must be at least 1, or null for all examples")
    if shots is not None:
        return _few_shot(cfg, shots, bucket or 0, few_shot)
    if bucket is not None and (bucket < 0 or cfg.max_train is None):
        raise UsageError(
            f"bucket={bucket}: a number from 0, with shots=K, or dataset.max_train=K sentences of each language"
        )
    whole = read_whole(cfg)
    if bucket is not None:
        _check_blocks(cfg, whole, bucket)
    drawn = {}
    for at, examples in whole.splits.items():
        skip = (bucket or 0) * (limit(cfg, whole, *at) or 0) if at[1] == "train" else 0
        drawn[at] = _drawn(cfg, whole, examples, at, skip)
    if cfg.repeat_to is not None:
        drawn |= {at: repeated(drawn[at], cfg.repeat_to) for at in drawn if at[1] == "train"}
    return replace(whole, splits=drawn)


def _check_blocks(cfg: DatasetConfig, whole: Dataset, bucket: int) -> None:
    """Check that every key has so many disjoint sets of training examples."""
    for key in whole.languages:
        size, there = limit(cfg, whole, key, "train"), len(whole.split(key, "train"))
        if size is not None and (bucket + 1) * size > there:
            raise UsageError(
                f"bucket={bucket}: {key}/train has {there} sentences: {there // size} disjoint buckets of "
                f"dataset.max_train={size}, from 0"
            )


def limit(cfg: DatasetConfig, whole: Dataset, key: str, split: str) -> int | None:
    """Return the largest number of examples of a key and split; None: all.

    The limit of the key's part comes first, then ``max_train``, ``max_dev`` or ``max_test``, then ``max_eval``.
    """
    part = cfg.parts[whole.part_of[key]] if cfg.parts else PartConfig()
    limits = {
        "train": (part.max_train, cfg.max_train),
        "dev": (part.max_eval, cfg.max_dev, cfg.max_eval),
        "test": (part.max_eval, cfg.max_test, cfg.max_eval),
    }
    return next((size for size in limits[split] if size is not None), None)


def size_limits(cfg: DatasetConfig) -> Iterator[tuple[str, int | None]]:
    """Yield the keys below ``dataset`` that say how many examples there are, with their values."""
    yield from ((key, getattr(cfg, key)) for key in ("max_train", "max_eval", "max_dev", "max_test", "repeat_to"))
    for name, part in cfg.parts.items():
        yield from ((f"parts.{name}.max_train", part.max_train), (f"parts.{name}.max_eval", part.max_eval))


def _drawn(
    cfg: DatasetConfig, whole: Dataset, examples: Sequence[Example], key: tuple[str, str], skip: int = 0
) -> tuple[Example, ...]:
    """Return the subset of one split that the config asks for."""
    size, seed = limit(cfg, whole, *key), (cfg.subset_seed, *key)
    if cfg.stratified and key[1] != "train":
        return stratified(examples, size, seed, whole.task_of(key[0]))
    return subset(examples, size, seed, skip)


def _few_shot(cfg: DatasetConfig, shots: int, bucket: int, few_shot: Collection[str] | None) -> Dataset:
    """Return the dataset with buckets in place of training splits; subsets are drawn of the splits that are none."""
    for name, given in (("statements", stating(cfg)), ("repeat_to", cfg.repeat_to is not None)):
        if given:
            raise UsageError(f"shots={shots}: few-shot training sets cannot be had with dataset.{name}")
    whole = read_whole(cfg)
    if whole.task is None:
        raise UsageError(f"shots={shots}: few-shot training sets are of one task; dataset.parts has several")
    if whole.task.answers and cfg.buckets.root is None:
        raise UsageError(
            f"shots={shots}: few-shot training sets are drawn by classes or tags, and dataset.task={whole.task.name} "
            "has none; dataset.max_train=K takes K questions of each language"
        )
    few = whole.languages if few_shot is None else few_shot
    splits = with_buckets(cfg, whole, shots, bucket, few)
    for key, examples in splits.items():
        if key[1] != "train" or key[0] not in few:
            splits[key] = _drawn(cfg, whole, examples, key)
    found = replace(whole, splits=splits, whole=whole)
    _check_tags(found)
    return found


_last: tuple[str, Dataset] | None = None


def read_whole(cfg: DatasetConfig) -> Dataset:
    """Read all examples; what was read last is kept, since the subsets of a sweep come from the same files."""
    global _last
    key = repr([(name, getattr(cfg, name)) for name in SOURCE])
    if _last is None or _last[0] != key:
        parts = read_parts(cfg)
        if stating(cfg):
            parts = [stated(cfg, part) for part in parts]
        splits = {at: examples for part in parts for at, examples in part.splits.items()}
        notes: Notes = {}
        for part in parts:
            for what, counts in part.notes.items():
                notes.setdefault(what, {}).update(counts)
        languages = tuple(dict.fromkeys(language for language, _ in splits))
        for language in languages:
            # Files and columns name them: what no order could name would be refused when the run is taken up again.
            check_name("dataset.languages", language)
        part_of = {key: part.name for part in parts for key in part.keys if part.name}
        tasks = {key: part.task for part in parts for key in part.keys}
        _check_unanswerable(cfg, tasks.values())
        task = parts[0].task if len(set(tasks.values())) == 1 else None
        own = {} if task else tasks
        whole = Dataset(cfg.name, task, languages, splits, notes, None, part_of, own, cfg.reader or "")
        _check_tags(whole)
        _last = key, whole
    return _last[1]


# What of the config decides what is read.
SOURCE = (
    "name", "reader", "task", "tags_are", "root", "hub", "hub_config", "hub_columns", "parts", "statements",
    "languages", "on_bad_line", "unanswerable", "subset_seed", "word_column", "tag_column",
)  # fmt: skip


def subset(
    examples: Sequence[Example], size: int | None, seed: tuple[int, str, str], skip: int = 0
) -> tuple[Example, ...]:
    """Return ``size`` examples drawn without replacement, in file order; all of them if there are not more.

    ``skip`` leaves out that many that would have been drawn first.

    Each example's rank is a hash of ``seed`` (subset seed, language, split) and its id. So a smaller subset is part of
    a larger one, and one example more or less in the file changes at most one example of the subset.
    """
    if size is None or size >= len(examples):
        return tuple(examples)
    ranks = [_rank(seed, example.id) for example in examples]
    chosen = sorted(range(len(examples)), key=ranks.__getitem__)[skip : skip + size]
    return tuple(examples[i] for i in sorted(chosen))


def stratified(
    examples: Sequence[Example], size: int | None, seed: tuple[int, str, str], task: Task
) -> tuple[Example, ...]:
    """Return at most ``size`` examples in which classes have the shares that they have in all, in file order.

    Statements about one context stay together, and count as one of their own class: of one that is true and three
    that are false, say. Within a class the hash rank decides, as in `subset`; a smaller subset is part of a larger one.
    The share of a class is right to within one example (or group of statements), and no group is cut, so a few
    examples may be missing from ``size``; the first group is always there.
    """
    if size is None or size >= len(examples):
        return tuple(examples)
    groups: dict[str, list[int]] = {}
    for i, example in enumerate(examples):
        groups.setdefault(statement_of(example.id)[0] if task == STATEMENT_TRUTH else example.id, []).append(i)
    strata: dict[tuple[str, ...], list[tuple[bytes, str]]] = {}
    for name, members in groups.items():
        labels = tuple(sorted(examples[i].label or "" for i in members))
        strata.setdefault(labels, []).append((_rank(seed, name), name))
    # The r-th of n in a stratum is at (r − ½)/n: whatever is cut off behind some place, each loses its share.
    places = [
        ((2 * r + 1) / (2 * len(stratum)), rank, name)
        for stratum in strata.values()
        for r, (rank, name) in enumerate(sorted(stratum))
    ]
    chosen: list[int] = []
    for _, _, name in sorted(places):
        if chosen and len(chosen) + len(groups[name]) > size:
            break
        chosen += groups[name]
    return tuple(examples[i] for i in sorted(chosen))


def repeated(examples: Sequence[Example], size: int) -> tuple[Example, ...]:
    """Return the examples again and again, in order, until there are ``size``; as they are if there are as many.

    A copy's id ends in ``*2``, ``*3``, …
    """
    n = len(examples)
    copies = [
        e if i < n else replace(e, id=f"{e.id}*{i // n + 1}") for i, e in enumerate(islice(cycle(examples), size))
    ]
    return tuple(examples) if n >= size else tuple(copies)


def _rank(seed: tuple[int, str, str], name: str) -> bytes:
    return blake2b(f"{'/'.join(map(str, seed))}/{name}".encode(), digest_size=8).digest()


def _check_unanswerable(cfg: DatasetConfig, tasks: Collection[Task]) -> None:
    """Refuse to keep questions without an answer if there are none: the setting would enter ids and do nothing."""
    if Unanswerable(cfg.unanswerable) is Unanswerable.keep and not any(task.answers for task in tasks):
        names = ", ".join(sorted({task.name for task in tasks}))
        raise UsageError(
            f"dataset.unanswerable=keep: is about questions, and dataset={cfg.name} has none (task {names}); "
            f"dataset.unanswerable={Unanswerable.drop.value} there"
        )


def _check_tags(dataset: Dataset) -> None:
    """Refuse a task of which some examples have tags and some have none: its tag head would learn from a part."""
    one_of_each: dict[Task, dict[bool, str]] = {}
    for (language, split), examples in dataset.splits.items():
        found = one_of_each.setdefault(dataset.task_of(language), {})
        for example in examples:
            found.setdefault(example.tags is None, f"{language}/{split} example '{example.id}'")
    for found in one_of_each.values():
        if len(found) == 2:
            raise UsageError(
                f"dataset={dataset.name}: tags must be on every example or on none: "
                f"{found[False]} has them, {found[True]} has none"
            )
