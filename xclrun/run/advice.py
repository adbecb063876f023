"""Warnings of a planned run: settings that do nothing, or something else than they seem to."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING, Any

from xclrun.config.schema import BucketCounts, Config, PointSplits, Sampler, SlotF1
from xclrun.core.stream import sequence
from xclrun.core.task import INTENT_SLOTS, SEQUENCE_CLASS
from xclrun.data.example import Dataset
from xclrun.data.load import size_limits
from xclrun.data.orders import notes as notes_of_order
from xclrun.data.parts import stating
from xclrun.strategy import Length, Strategy, recordable
from xclrun.strategy.naive import Naive
from xclrun.strategy.shared.expansion import Expandable

if TYPE_CHECKING:
    from xclrun.run.plan import Run


def notes_of(run: Run) -> Iterator[str]:
    """Yield the warnings of a run, a line each."""
    config, dataset = run.config, run.dataset
    yield from _of_equal_sizes(run)
    yield from notes_of_order(config.order, dataset)
    for of in dataset.targets:
        if of.task == INTENT_SLOTS and not of.tags:
            yield (
                f"dataset.task={of.task.name}: {dataset.name} has labels and no tags, so intents alone are "
                f"learned, from [CLS]; dataset.task={SEQUENCE_CLASS.name} is that of such texts, and of pairs"
            )
    strategy = run.strategy()
    asked = [key for key, trainer in config.trainers.items() if trainer.cuda_graphs]
    if asked and not (recordable(strategy) and strategy.adapters is None):
        yield (
            f"strategy={run.strategy_name} {asked[0]}.cuda_graphs=true: its steps cannot be recorded; batches are "
            "padded as with others, and all else is as without"
        )
    yield from _of_strategies_without_effect(run, strategy)
    yield from _of_evaluation(config, dataset)
    yield from _of_subsets(config)
    for name, trainer in config.trainers.items():
        if trainer.patience is not None and trainer.patience >= trainer.epochs:
            yield f"{name}.patience={trainer.patience}: ends no hop early, with {name}.epochs={trainer.epochs}"
    lengths = []
    for hop in run.stream.hops[1:]:
        sentences, epochs = run.sentences(hop), run.epochs(hop)
        steps = epochs * ceil(sentences / max(1, run.trainer(hop).batch(sentences)))
        lengths.append(Length(hop, sentences, steps, epochs * sentences, config.evaluate.has_points))
    yield from strategy.notes(lengths)


def _of_equal_sizes(run: Run) -> Iterator[str]:
    """Tell of languages of equal size, where sizes decide the order."""
    config, order, sizes = run.config, run.config.order, run.dataset.sizes()
    named = [sizes[language] for language in run.stream.languages]
    if order.by_size is not None and len(set(named)) < len(named):
        # Of buckets it is no limit.
        cut = None if config.shots is not None else config.dataset.max_train
        limit = "" if cut is None else f" (dataset.max_train={cut})"
        yield (
            f"order={order.name}: languages have equally many training sentences{limit}, and so come as the "
            f"dataset has them: {','.join(run.stream.languages)}; order=[…] names another"
        )


def _of_strategies_without_effect(run: Run, strategy: Strategy[Any]) -> Iterator[str]:
    """Tell of a strategy whose settings leave nothing of it: tables would show it next to what it is."""
    without = strategy.expansion if isinstance(strategy, Expandable) else Naive(run.config.strategy)
    order = ("a", "b")
    if isinstance(strategy, Naive) or strategy.stream(order) != sequence(order):
        return
    if all(
        strategy.signature(hop) == without.signature(hop)
        and strategy.serving_signature(hop) == without.serving_signature(hop)
        for hop in run.stream.hops[1:]
    ):
        other = "naive" if isinstance(without, Naive) else without.settings.name
        yield (
            f"strategy={run.strategy_name}: with these settings and this order no hop differs from "
            f"strategy={other}, so its scores are those of {other}"
        )


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
    limits = [(key, size) for key, size in size_limits(cfg) if size is not None and key != "repeat_to"]
    # In few-shot transfer a source is learned whole, or as many of its sentences as this says.
    if few_shot and (config.protocol is None or config.from_source is None):
        for key, size in limits:
            if key.endswith("max_train"):
                yield f"dataset.{key}={size}: limits no bucket of shots={config.shots}, and nothing else is learned"
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
