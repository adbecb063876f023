"""Put buckets in place of training splits, as the config asks."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from xclrun.config.schema import BucketSource, DatasetConfig, Sampler
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.identity import derive
from xclrun.data.buckets.layout import Bucket, find, load
from xclrun.data.buckets.sample import candidates, minimum, nway
from xclrun.data.example import Dataset, Example, same_sentence
from xclrun.data.readers.files import Splits


def with_buckets(cfg: DatasetConfig, whole: Dataset, shots: int, bucket: int, languages: Collection[str]) -> Splits:
    """Return the splits of a dataset in which a bucket is the training split of some languages.

    With ``dataset.buckets.draw_from=dev`` their dev splits are what none of the buckets of this K holds.
    """
    splits = dict(whole.splits)
    for language in languages:
        if language not in whole.languages:
            raise UsageError(f"the dataset has no language '{language}'; {did_you_mean(language, whole.languages)}")
        found = bucket_of(cfg, whole, language, shots, bucket)
        _check_names(found, whole)
        splits[language, "train"] = found.examples
        if cfg.buckets.draw_from is BucketSource.dev:
            splits[language, "dev"] = _left(cfg, whole, language, shots)
    return splits


def bucket_of(cfg: DatasetConfig, whole: Dataset, language: str, shots: int, bucket: int) -> Bucket:
    """Return one bucket, drawn, or read where ``dataset.buckets.sampler=files``."""
    b = cfg.buckets
    if b.sampler is Sampler.files:
        folder = find(_root(cfg), cfg.name, language, shots, bucket)
        return load(folder, language, shots, bucket)
    source = b.draw_from.value
    pool = pool_of(whole, language, source)
    if not pool:
        raise UsageError(f"{language}/{source}: every sentence is in dev or test too; there is nothing to draw from")
    try:
        if b.sampler is Sampler.nway:
            examples = nway(pool, shots, bucket, derive(cfg.subset_seed, "bucket", language, source, shots))
        else:
            seed = derive(cfg.subset_seed, "bucket", language, source, shots, bucket)
            examples = minimum(pool, shots, seed, b.counts.value)
    except UsageError as error:
        raise UsageError(f"{language}/{source}: {error}") from None
    drawn: dict[str, Any] = {"language": language, "sampler": b.sampler.value, "from": source}
    if b.sampler is Sampler.minimum:
        drawn["counts"] = b.counts.value
    drawn |= {"seed": cfg.subset_seed, "of": whole.fingerprints[language, source]}
    return Bucket(language, shots, bucket, examples, drawn)


_pools: dict[tuple[str, ...], tuple[Example, ...]] = {}


def pool_of(whole: Dataset, language: str, source: str) -> tuple[Example, ...]:
    """Return what the buckets of a language are drawn from: each sentence of the split once, none that dev or test has.

    A bucket from dev may not hold what the test split holds; dev itself then loses what its buckets hold.
    """
    held_out = ("dev", "test") if source == "train" else ("test",)
    key = tuple(whole.fingerprints[language, split] for split in (source, *held_out))
    if key not in _pools:
        others = (example for split in held_out for example in whole.split(language, split))
        _pools[key] = candidates(whole.split(language, source), others)
    return _pools[key]


def _left(cfg: DatasetConfig, whole: Dataset, language: str, shots: int) -> tuple[Example, ...]:
    """Return the dev split without what any bucket of this K holds.

    Files of buckets that hold other sentences are refused: what would have to be left out of dev is not known then.
    """
    dev = whole.split(language, "dev")
    there, held = {same_sentence(e) for e in dev}, set()
    for number in range(cfg.buckets.number):
        bucket = bucket_of(cfg, whole, language, shots, number)
        for e in bucket.examples:
            if (sentence := same_sentence(e)) not in there:
                raise UsageError(
                    f"{bucket.shown}: '{e.id}' is not in {language}/dev, which dataset.buckets.draw_from=dev takes "
                    "buckets out of; are they of another release?"
                )
            held.add(sentence)
    left = tuple(e for e in dev if same_sentence(e) not in held)
    if not left:
        raise UsageError(
            f"{language}/dev: {cfg.buckets.number} buckets of shots={shots} leave no example to select a model by; "
            "fewer dataset.buckets.number, or dataset.buckets.draw_from=train"
        )
    return left


def _root(cfg: DatasetConfig) -> Path:
    if cfg.buckets.root is None:
        raise UsageError("dataset.buckets.root is needed: the folder with the files of dataset.buckets.sampler=files")
    return Path(cfg.buckets.root).expanduser()


def _check_names(bucket: Bucket, whole: Dataset) -> None:
    """Refuse what has no id: label sets come from the whole training splits, so they are equal in all buckets."""
    for e in bucket.examples:
        for what, names, known in (("label", (e.label,), whole.labels), ("tag", e.tags or (), whole.tags)):
            new = next((name for name in names if name is not None and name not in known), None)
            if new is not None:
                raise UsageError(
                    f"{bucket.shown}: '{e.id}' has the {what} '{new}', which no training split of {whole.name} has; "
                    f"it has {', '.join(known)}"
                )
