"""Replace training splits by buckets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from xclrun.config.schema import BucketSource, DatasetConfig, Sampler
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.identity import derive
from xclrun.data.buckets.layout import Bucket, find, load
from xclrun.data.buckets.sample import candidates, minimum, nway
from xclrun.data.example import Dataset, Example, predicted, same_sentence
from xclrun.data.readers.collect import Splits


def with_buckets(cfg: DatasetConfig, whole: Dataset, shots: int, bucket: int, languages: Collection[str]) -> Splits:
    """Return the splits of a dataset, with a bucket as the training split of each of ``languages``.

    With ``dataset.buckets.draw_from=dev``, dev loses the examples of all buckets of this K.
    """
    splits = dict(whole.splits)
    for language in languages:
        if language not in whole.languages:
            raise UsageError(f"the dataset has no language '{language}'; {did_you_mean(language, whole.languages)}")
        drawn = bucket_of(cfg, whole, language, shots, bucket)
        examples = tuple(predicted(e, whole.task_of(language)) for e in drawn.examples)
        _check_names(examples, drawn.file, whole)
        splits[language, "train"] = examples
        if cfg.buckets.draw_from is BucketSource.dev:
            splits[language, "dev"] = _rest_of_dev(cfg, whole, language, shots)
    return splits


def bucket_of(cfg: DatasetConfig, whole: Dataset, language: str, shots: int, bucket: int) -> Bucket:
    """Return one bucket: drawn, or read if ``dataset.buckets.sampler=files``."""
    b = cfg.buckets
    if b.sampler is Sampler.files:
        if b.root is None:
            raise UsageError("dataset.buckets.root is needed: the folder with the buckets for sampler=files")
        return load(find(Path(b.root).expanduser(), cfg.name, language, shots, bucket), language, shots, bucket)
    source = b.draw_from.value
    pool = pool_of(whole, language, source)
    if not pool:
        raise UsageError(f"{language}/{source}: every sentence is also in dev or test, so there are none to draw")
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
    """Return the candidates for the buckets of a language: distinct sentences of a split that are not evaluated.

    Candidates from train are not in dev or test, and candidates from dev are not in test.
    """
    held_out = ("dev", "test") if source == "train" else ("test",)
    key = tuple(whole.fingerprints[language, split] for split in (source, *held_out))
    if key not in _pools:
        evaluated = (example for split in held_out for example in whole.split(language, split))
        _pools[key] = candidates(whole.split(language, source), evaluated)
    return _pools[key]


def _rest_of_dev(cfg: DatasetConfig, whole: Dataset, language: str, shots: int) -> tuple[Example, ...]:
    """Return the dev split without the examples of all buckets of this K, which must come from dev."""
    dev = whole.split(language, "dev")
    in_dev, in_buckets = {same_sentence(e) for e in dev}, set()
    for number in range(cfg.buckets.number):
        bucket = bucket_of(cfg, whole, language, shots, number)
        for e in bucket.examples:
            if (sentence := same_sentence(e)) not in in_dev:
                raise UsageError(
                    f"{bucket.file}: '{e.id}' is not in {language}/dev, as dataset.buckets.draw_from=dev requires; use "
                    "buckets of the same release"
                )
            in_buckets.add(sentence)
    rest = tuple(e for e in dev if same_sentence(e) not in in_buckets)
    if not rest:
        raise UsageError(
            f"{language}/dev: {cfg.buckets.number} buckets of shots={shots} leave no example for model selection; "
            "lower dataset.buckets.number, or set dataset.buckets.draw_from=train"
        )
    return rest


def _check_names(examples: Sequence[Example], file: str, whole: Dataset) -> None:
    """Refuse labels and tags that do not occur in the complete training splits, which define the label sets."""
    for e in examples:
        for kind, names, available in (("label", (e.label,), whole.labels), ("tag", e.tags or (), whole.tags)):
            new = next((name for name in names if name is not None and name not in available), None)
            if new is not None:
                raise UsageError(
                    f"{file}: '{e.id}' has the {kind} '{new}', which no training split of {whole.name} has; "
                    f"known: {', '.join(available)}"
                )
