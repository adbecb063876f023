"""Settings of which a run makes no use: its results are those without them, though its id is another."""

from __future__ import annotations

from collections.abc import Iterator

from xclrun.config.schema import BucketCounts, Config, PointSplits, Sampler, SlotF1
from xclrun.data.example import Dataset
from xclrun.data.load import limits_given
from xclrun.data.parts import stating


def unused(config: Config, dataset: Dataset) -> Iterator[str]:
    """Yield a line for each setting of a planned run that changes none of its results."""
    yield from _of_evaluation(config, dataset)
    yield from _of_subsets(config)
    for name, trainer in config.trainers.items():
        if trainer.patience is not None and trainer.patience >= trainer.epochs:
            yield f"{name}.patience={trainer.patience}: ends no hop early, with {name}.epochs={trainer.epochs}"


def _of_evaluation(config: Config, dataset: Dataset) -> Iterator[str]:
    evaluate = config.evaluate
    if evaluate.slot_f1 is not SlotF1.span_micro and not any(metric.span_f1 for metric in dataset.metrics.all):
        yield f"evaluate.slot_f1={evaluate.slot_f1.value}: changes no score, since no F1 of spans is among them"
    if evaluate.point_splits is not PointSplits.dev_test and not evaluate.has_points:
        yield (
            f"evaluate.point_splits={evaluate.point_splits.value}: there are no points without evaluate.every_examples "
            "or evaluate.every_share"
        )


def _of_subsets(config: Config) -> Iterator[str]:
    cfg, few_shot = config.dataset, config.shots is not None
    limits = [(key, size) for key, size in limits_given(cfg) if size is not None and key != "repeat_to"]
    # In few-shot transfer a source is learnt whole, or as many of its sentences as this says.
    if few_shot and (config.protocol is None or config.from_source is None):
        for key, size in limits:
            if key.endswith("max_train"):
                yield f"dataset.{key}={size}: limits no bucket of shots={config.shots}, and nothing else is learnt"
    if cfg.max_eval is not None and cfg.max_dev is not None and cfg.max_test is not None and not cfg.parts:
        yield f"dataset.max_eval={cfg.max_eval}: has no effect next to dataset.max_dev and dataset.max_test"
    drawn = few_shot and cfg.buckets.sampler is not Sampler.files
    if cfg.subset_seed != 0 and not (limits or drawn or stating(cfg) or cfg.blocks is not None):
        # Without its value, which may be another in every run.
        yield "dataset.subset_seed: draws nothing without a limit, such as dataset.max_train or dataset.max_eval"
    counts, sampler = cfg.buckets.counts, cfg.buckets.sampler
    if few_shot and counts is not BucketCounts.words and sampler is not Sampler.minimum:
        yield (
            f"dataset.buckets.counts={counts.value}: is of dataset.buckets.sampler=minimum alone; here it is "
            f"{sampler.value}"
        )
