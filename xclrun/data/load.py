"""Load a dataset as the config asks: choose the reader, check what it read, draw the buckets and subsets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.core.task import task_of
from xclrun.data.buckets.draw import with_buckets
from xclrun.data.example import Dataset, Example
from xclrun.data.readers import read
from xclrun.data.readers.files import Splits


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
        UsageError: one line: an unknown reader or task, a size below 1; root, language, split or example that is
            missing; a malformed line (``path:line``); tags on some examples but not on others; a bucket that cannot
            be drawn.
    """
    sizes = {"train": cfg.max_train, "dev": cfg.max_eval, "test": cfg.max_eval}
    for key, size in (("max_train", cfg.max_train), ("max_eval", cfg.max_eval)):
        if size is not None and size < 1:
            raise UsageError(f"dataset.{key}={size}: must be at least 1, or null for all examples")
    if shots is not None:
        return _few_shot(cfg, shots, bucket or 0, few_shot)
    if bucket is not None and (bucket < 0 or cfg.max_train is None):
        raise UsageError(
            f"bucket={bucket}: a number from 0, with shots=K, or dataset.max_train=K sentences of each language"
        )
    whole = read_whole(cfg)
    splits = whole.splits
    skip = 0 if bucket is None or cfg.max_train is None else bucket * cfg.max_train
    for (language, split), examples in splits.items():
        if (
            split == "train"
            and cfg.max_train is not None
            and bucket is not None
            and skip + cfg.max_train > len(examples)
        ):
            raise UsageError(
                f"bucket={bucket}: {language}/train has {len(examples)} sentences: "
                f"{len(examples) // cfg.max_train} disjoint buckets of dataset.max_train={cfg.max_train}, from 0"
            )
    drawn = {
        key: subset(examples, sizes[key[1]], (cfg.subset_seed, *key), skip if key[1] == "train" else 0)
        for key, examples in splits.items()
    }
    return Dataset(cfg.name, whole.task, whole.languages, drawn, whole.notes)


def _few_shot(cfg: DatasetConfig, shots: int, bucket: int, few_shot: Collection[str] | None) -> Dataset:
    """Return the dataset with buckets in place of training splits; subsets are drawn of the splits that are none."""
    whole = read_whole(cfg)
    few = whole.languages if few_shot is None else few_shot
    splits = with_buckets(cfg, whole, shots, bucket, few)
    for (language, split), examples in splits.items():
        size = cfg.max_train if split == "train" else cfg.max_eval
        if split != "train" or language not in few:
            splits[language, split] = subset(examples, size, (cfg.subset_seed, language, split))
    _check_tags(cfg.name, splits)
    return Dataset(cfg.name, whole.task, whole.languages, splits, whole.notes, whole)


_last: tuple[str, Dataset] | None = None


def read_whole(cfg: DatasetConfig) -> Dataset:
    """Read all examples; what was read last is kept, since the subsets of a sweep come from the same files.

    Raises:
        UsageError: see `load_dataset`.
    """
    global _last
    key = repr([(name, getattr(cfg, name)) for name in SOURCE])
    if _last is None or _last[0] != key:
        splits, notes = read(cfg)
        _check_tags(cfg.name, splits)
        languages = tuple(dict.fromkeys(language for language, _ in splits))
        _last = key, Dataset(cfg.name, task_of(cfg.task, cfg.tags_are.value), languages, splits, notes)
    return _last[1]


# What of the config decides what is read.
SOURCE = ("name", "reader", "task", "tags_are", "root", "hub", "hub_config", "hub_columns", "languages", "on_bad_line")


def subset(
    examples: Sequence[Example], size: int | None, seed: tuple[int, str, str], skip: int = 0
) -> tuple[Example, ...]:
    """Return ``size`` examples drawn without replacement, in file order; all of them where there are not more.

    ``skip`` leaves out that many that would have been drawn first.

    Each example's rank is a hash of ``seed`` (subset seed, language, split) and its id. So a smaller subset is part of
    a larger one, and one example more or less in the file changes at most one example of the subset.
    """
    if size is None or size >= len(examples):
        return tuple(examples)
    prefix = "/".join(map(str, seed))
    ranks = [blake2b(f"{prefix}/{example.id}".encode(), digest_size=8).digest() for example in examples]
    chosen = sorted(range(len(examples)), key=ranks.__getitem__)[skip : skip + size]
    return tuple(examples[i] for i in sorted(chosen))


def _check_tags(name: str, splits: Splits) -> None:
    """Refuse a dataset in which some examples have tags and some have none: its tag head would learn from a part."""
    one_of_each: dict[bool, str] = {}
    for (language, split), examples in splits.items():
        for example in examples:
            one_of_each.setdefault(example.tags is None, f"{language}/{split} example '{example.id}'")
    if len(one_of_each) == 2:
        raise UsageError(
            f"dataset={name}: tags must be on every example or on none: "
            f"{one_of_each[False]} has them, {one_of_each[True]} has none"
        )
