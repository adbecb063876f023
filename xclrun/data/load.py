"""Load the dataset of a config: read its parts, check them, and draw buckets and subsets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import cycle, islice

from xclrun.config.schema import DatasetConfig, PartConfig, Unanswerable
from xclrun.core.errors import UsageError
from xclrun.core.names import check_name
from xclrun.core.task import Task, statement_of
from xclrun.data.as_text import texts_of
from xclrun.data.buckets.draw import with_buckets
from xclrun.data.content import content_notes
from xclrun.data.example import Dataset, Example
from xclrun.data.parts import read_parts, stating
from xclrun.data.readers.collect import Notes
from xclrun.data.statements import stated


def load_dataset(
    cfg: DatasetConfig,
    bucket: int | None = None,
    shots: int | None = None,
    few_shot: Collection[str] | None = None,
) -> Dataset:
    """Read a dataset and draw its subsets.

    Args:
        bucket: number of the training set, from 0; None means 0. With ``shots``, the training sets are buckets. Without
            ``shots``, they are disjoint subsets of ``max_train`` sentences; subset 0 contains all smaller subsets 0.
        shots: K of the buckets that ``cfg.buckets`` describes; None means no buckets.
        few_shot: languages whose training split is a bucket; None means all languages. Other splits are not affected,
            except that ``draw_from=dev`` removes the buckets from dev.
    """
    for key, size in size_limits(cfg):
        if size is not None and size < 1:
            raise UsageError(f"dataset.{key}={size}: must be at least 1, or null for all examples")
    if shots is not None:
        return _few_shot(cfg, shots, bucket or 0, few_shot)
    if bucket is not None and (bucket < 0 or cfg.max_train is None):
        raise UsageError(f"bucket={bucket}: must be at least 0, and needs shots=K or dataset.max_train=K")
    whole = read_whole(cfg)
    drawn = {}
    for (language, split), examples in whole.splits.items():
        size, skip = limit(cfg, whole, language, split), 0
        if bucket is not None and split == "train" and size is not None:
            skip = bucket * size
            if skip + size > len(examples):
                raise UsageError(
                    f"bucket={bucket}: the {len(examples)} sentences of {language}/train are only enough for "
                    f"{len(examples) // size} disjoint buckets of dataset.max_train={size}, numbered from 0; lower "
                    "bucket or dataset.max_train"
                )
        drawn[language, split] = _drawn(cfg, whole, examples, (language, split), skip)
        if split == "train" and cfg.repeat_to is not None:
            drawn[language, split] = repeated(drawn[language, split], cfg.repeat_to)
    return replace(whole, splits=drawn)


def limit(cfg: DatasetConfig, whole: Dataset, key: str, split: str) -> int | None:
    """Return the maximum number of examples of a key and split, or None without a limit.

    The first limit that is set applies: the limit of the key's part; ``max_train``, ``max_dev`` or ``max_test``; for
    dev and test also ``max_eval``.
    """
    part = cfg.parts[whole.part_of[key]] if cfg.parts else PartConfig()
    limits = {
        "train": (part.max_train, cfg.max_train),
        "dev": (part.max_eval, cfg.max_dev, cfg.max_eval),
        "test": (part.max_eval, cfg.max_test, cfg.max_eval),
    }
    return next((size for size in limits[split] if size is not None), None)


def size_limits(cfg: DatasetConfig) -> Iterator[tuple[str, int | None]]:
    """Yield the keys below ``dataset`` that limit numbers of examples, and their values."""
    yield from ((key, getattr(cfg, key)) for key in ("max_train", "max_eval", "max_dev", "max_test", "repeat_to"))
    for name, part in cfg.parts.items():
        yield from ((f"parts.{name}.max_train", part.max_train), (f"parts.{name}.max_eval", part.max_eval))


def _drawn(
    cfg: DatasetConfig, whole: Dataset, examples: Sequence[Example], key: tuple[str, str], skip: int = 0
) -> tuple[Example, ...]:
    size, seed = limit(cfg, whole, *key), (cfg.subset_seed, *key)
    if cfg.stratified and key[1] != "train":
        return stratified(examples, size, seed, whole.task_of(key[0]))
    return subset(examples, size, seed, skip)


def _few_shot(cfg: DatasetConfig, shots: int, bucket: int, few_shot: Collection[str] | None) -> Dataset:
    """Return the dataset with buckets as training splits, and subsets of all other splits."""
    for name, present in (("statements", stating(cfg)), ("repeat_to", cfg.repeat_to is not None)):
        if present:
            raise UsageError(f"shots={shots}: cannot be combined with dataset.{name}; remove one of them")
    whole = read_whole(cfg)
    if whole.task is None:
        raise UsageError(f"shots={shots}: few-shot training sets need one task; dataset.parts has several")
    if not whole.task.needs & {"label", "tags"} and cfg.buckets.root is None:
        raise UsageError(
            f"shots={shots}: buckets are drawn by classes or tags, which dataset.task={whole.task.name} does not have; "
            "set dataset.max_train=K to take K examples of each language"
        )
    few = whole.languages if few_shot is None else few_shot
    splits = with_buckets(cfg, whole, shots, bucket, few)
    for key, examples in splits.items():
        if key[1] != "train" or key[0] not in few:
            splits[key] = _drawn(cfg, whole, examples, key)
    dataset = replace(whole, splits=splits, whole=whole)
    _check_tags(dataset)
    return dataset


_last: tuple[str, Dataset] | None = None


def read_whole(cfg: DatasetConfig) -> Dataset:
    """Read all examples. The last dataset is cached, since the runs of a sweep read the same files."""
    global _last
    key = repr([(name, getattr(cfg, name)) for name in SOURCE])
    if _last is None or _last[0] != key:
        parts = read_parts(cfg)
        if stating(cfg):
            parts = [stated(cfg, part) for part in parts]
        asked = any(part.task.answers for part in parts)
        if cfg.as_text is not None:
            parts = [texts_of(cfg, part) for part in parts]
        splits = {at: examples for part in parts for at, examples in part.splits.items()}
        notes: Notes = {}
        for part in parts:
            for name, counts in part.notes.items():
                notes.setdefault(name, {}).update(counts)
        languages = tuple(dict.fromkeys(language for language, _ in splits))
        for language in languages:
            # Refuse keys that cannot be used in an order: their runs could not be resumed.
            check_name("dataset.languages", language)
        part_of = {key: part.name for part in parts for key in part.keys if part.name}
        tasks = {key: part.task for part in parts for key in part.keys}
        if Unanswerable(cfg.unanswerable) is Unanswerable.keep and not asked:
            # Refuse the setting, which would change run IDs without any effect on results.
            raise UsageError(
                f"dataset.unanswerable=keep: dataset={cfg.name} has no questions; set "
                f"dataset.unanswerable={Unanswerable.drop.value}"
            )
        task = parts[0].task if len(set(tasks.values())) == 1 else None
        several = {} if task else tasks
        settings = {of.settings: getattr(cfg, of.settings) for of in tasks.values() if of.settings}
        whole = Dataset(cfg.name, task, languages, splits, notes, None, part_of, several, cfg.reader or "", settings)
        _check_tags(whole)
        whole = replace(whole, notes={**notes, **content_notes(whole)})
        _last = key, whole
    return _last[1]


# Config keys that decide which examples are read.
SOURCE = (
    "name", "reader", "task", "tags_are", "root", "hub", "hub_config", "hub_columns", "parts", "statements", "as_text",
    "text",
    "languages", "on_bad_line", "unanswerable", "subset_seed", "word_column", "tag_column",
    "tag_names", "text_column", "label_column", "text_b_column", "language_column", "header",
)  # fmt: skip


def subset(
    examples: Sequence[Example], size: int | None, seed: tuple[int, str, str], skip: int = 0
) -> tuple[Example, ...]:
    """Return ``size`` examples drawn without replacement, in file order; all examples if ``size`` is None or too large.

    Examples are ranked by a hash of ``seed`` (subset seed, language, split) and their id. A smaller subset is therefore
    part of a larger one, and adding or removing an example of the data changes at most one example of the subset.

    Args:
        skip: number of lowest ranks to skip, which draws a disjoint subset.
    """
    if size is None or size >= len(examples):
        return tuple(examples)
    ranks = [_rank(seed, example.id) for example in examples]
    chosen = sorted(range(len(examples)), key=ranks.__getitem__)[skip : skip + size]
    return tuple(examples[i] for i in sorted(chosen))


def stratified(
    examples: Sequence[Example], size: int | None, seed: tuple[int, str, str], task: Task
) -> tuple[Example, ...]:
    """Return at most ``size`` examples in file order, preserving the class distribution.

    Statements about one context form a group that stays together; its class is the multiset of its labels. Within a
    class, examples (or groups) are ranked as in `subset`, so a smaller subset is part of a larger one. The share of a
    class is exact up to one example or group. Groups are not split, so the result may be slightly smaller than
    ``size``. The first group is always returned, even if it is larger than ``size``.
    """
    if size is None or size >= len(examples):
        return tuple(examples)
    groups: dict[str, list[int]] = {}
    for i, example in enumerate(examples):
        groups.setdefault(statement_of(example.id)[0] if task.grouped else example.id, []).append(i)
    strata: dict[tuple[str, ...], list[tuple[bytes, str]]] = {}
    for name, members in groups.items():
        labels = tuple(sorted(examples[i].label or "" for i in members))
        strata.setdefault(labels, []).append((_rank(seed, name), name))
    # Sort by (r − ½)/n for the r-th of n groups of a stratum: then any prefix preserves the strata's shares.
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
    """Repeat the examples in order until there are ``size``; the ids of copies end in ``*2``, ``*3``, …"""
    n = len(examples)
    copies = [
        e if i < n else replace(e, id=f"{e.id}*{i // n + 1}") for i, e in enumerate(islice(cycle(examples), size))
    ]
    return tuple(examples) if n >= size else tuple(copies)


def _rank(seed: tuple[int, str, str], name: str) -> bytes:
    return blake2b(f"{'/'.join(map(str, seed))}/{name}".encode(), digest_size=8).digest()


def _check_tags(dataset: Dataset) -> None:
    """Refuse a task in which only some examples have tags."""
    first: dict[Task, dict[bool, str]] = {}
    for (language, split), examples in dataset.splits.items():
        by_tagged = first.setdefault(dataset.task_of(language), {})
        for example in examples:
            by_tagged.setdefault(example.tags is None, f"{language}/{split} example '{example.id}'")
    for by_tagged in first.values():
        if len(by_tagged) == 2:
            raise UsageError(
                f"dataset={dataset.name}: all examples or none must have tags: "
                f"{by_tagged[False]} has tags, {by_tagged[True]} has none"
            )
