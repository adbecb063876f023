"""Warnings about a planned run: settings without effect, or with an unexpected effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil
from typing import Any

from xclrun.config.schema import BucketCounts, Config, PointSplits, Sampler, SlotF1
from xclrun.core.stream import sequence
from xclrun.core.task import SEQUENCE_CLASS
from xclrun.data.example import Dataset
from xclrun.data.load import size_limits
from xclrun.data.orders import notes as order_notes
from xclrun.data.parts import stating
from xclrun.plan.run import Run
from xclrun.strategy import Length, Strategy, adds_parameters
from xclrun.strategy.naive import Naive
from xclrun.strategy.shared.expansion import Expandable


def notes(runs: Iterable[Run]) -> list[str]:
    """Return the distinct warnings about several runs, one line each."""
    return list(dict.fromkeys(note for run in runs for note in _notes_of(run)))


def _notes_of(run: Run) -> Iterator[str]:
    config, dataset = run.config, run.dataset
    yield from _equal_sizes(run)
    yield from _without_dev(run)
    yield from order_notes(config.order, dataset)
    for target in dataset.targets:
        task = target.task
        if task.label is not None and task.tag is not None and not target.tags and not task.pooled:
            yield (
                f"dataset.task={task.name}: {dataset.name} has no tags, so only the {task.label.nouns} are learned, "
                f"from [CLS]; consider dataset.task={SEQUENCE_CLASS.name}"
            )
    strategy = run.strategy()
    keys = [key for key, trainer in config.trainers.items() if trainer.cuda_graphs]
    # Added parameters other than prompts change the encoder's modules, which prevents capture.
    if keys and adds_parameters(strategy) and not strategy.parameters.prompt_tokens:
        yield (
            f"{keys[0]}.cuda_graphs=true only adds padding, because no step of strategy={run.strategy_name} can be "
            f"captured in CUDA graphs; consider {keys[0]}.cuda_graphs=false"
        )
    yield from _strategies_without_effect(run, strategy)
    yield from _evaluation(config, dataset)
    yield from _subsets(config)
    for name, trainer in config.trainers.items():
        if trainer.patience is not None and trainer.patience >= trainer.epochs:
            yield (
                f"{name}.patience={trainer.patience} has no effect with {name}.epochs={trainer.epochs}; lower it to "
                "allow early stopping"
            )
    lengths = []
    for hop in run.stream.hops[1:]:
        sentences, epochs = run.sentences(hop), run.epochs(hop)
        steps = epochs * ceil(sentences / max(1, run.trainer(hop).batch(sentences)))
        lengths.append(Length(hop, sentences, steps, epochs * sentences, config.evaluate.has_points))
    yield from strategy.notes(lengths)


def _equal_sizes(run: Run) -> Iterator[str]:
    config, order, sizes = run.config, run.config.order, run.dataset.sizes()
    counts = [sizes[language] for language in run.stream.languages]
    if order.by_size is not None and len(set(counts)) < len(counts):
        # max_train does not limit buckets.
        cut = None if config.shots is not None else config.dataset.max_train
        limit = "" if cut is None else f" (dataset.max_train={cut})"
        yield (
            f"order={order.name}: some languages have equally many training sentences{limit} and keep the dataset's "
            f"order: {','.join(run.stream.languages)}; to change it, set order=[…]"
        )


def _without_dev(run: Run) -> Iterator[str]:
    """Yield a note on the languages whose dev data should select epochs, but which have none."""
    protocol = run.config.protocol
    for key, trainer in run.config.trainers.items():
        if not trainer.uses_dev:
            continue
        hops = [hop for hop in run.stream.hops[1:] if protocol is None or hop.adapts == (trainer is run.config.trainer)]
        lacking: dict[str, None] = {}
        unselected = False
        for hop in hops:
            without = [language for language in hop.select if not run.dataset.split(language, "dev")]
            lacking |= dict.fromkeys(without)
            unselected |= len(without) == len(hop.select)
        if lacking:
            effect = "a hop without dev data keeps its last epoch" if unselected else "other languages select the epoch"
            yield f"no dev data for {', '.join(lacking)}: {effect} ({key}.selection={trainer.selection.value})"


def _strategies_without_effect(run: Run, strategy: Strategy[Any]) -> Iterator[str]:
    without = strategy.expansion if isinstance(strategy, Expandable) else Naive(run.config.strategy)
    order = ("a", "b")
    if isinstance(strategy, Naive) or strategy.stream(order) != sequence(order):
        return
    plans = [(strategy.plan(hop), without.plan(hop)) for hop in run.stream.hops[1:]]
    if all(plan.train == other.train and plan.serve == other.serve for plan, other in plans):
        other = "naive" if isinstance(without, Naive) else without.settings.name
        yield (
            f"strategy={run.strategy_name} equals strategy={other}: with these settings and this order, both "
            "strategies train and evaluate every hop identically"
        )


def _evaluation(config: Config, dataset: Dataset) -> Iterator[str]:
    evaluate = config.evaluate
    if evaluate.slot_f1 is not SlotF1.span_micro and not any(metric.span_f1 for metric in dataset.metrics.all):
        yield f"evaluate.slot_f1={evaluate.slot_f1.value} has no effect: no metric is an F1 of spans"
    if evaluate.point_splits is not PointSplits.dev_test and not evaluate.has_points:
        yield (
            f"evaluate.point_splits={evaluate.point_splits.value} has no effect without evaluate.every_examples or "
            "evaluate.every_share"
        )


def _subsets(config: Config) -> Iterator[str]:
    cfg, few_shot = config.dataset, config.shots is not None
    limits = [(key, size) for key, size in size_limits(cfg) if size is not None and key != "repeat_to"]
    # In few-shot transfer, these limits apply to the source.
    if few_shot and (config.protocol is None or config.from_source is None):
        for key, size in limits:
            if key.endswith("max_train"):
                yield f"dataset.{key}={size} has no effect: it does not limit buckets (shots={config.shots})"
    if cfg.max_eval is not None and cfg.max_dev is not None and cfg.max_test is not None and not cfg.parts:
        yield f"dataset.max_eval={cfg.max_eval} has no effect with dataset.max_dev and dataset.max_test"
    drawn = few_shot and cfg.buckets.sampler is not Sampler.files
    if cfg.subset_seed != 0 and not (limits or drawn or stating(cfg) or cfg.blocks is not None):
        # Omit the value, because it can differ between runs, and only equal warnings are printed once.
        yield "dataset.subset_seed has no effect without a limit such as dataset.max_train or dataset.max_eval"
    counts, sampler = cfg.buckets.counts, cfg.buckets.sampler
    if few_shot and counts is not BucketCounts.words and sampler is not Sampler.minimum:
        yield (
            f"dataset.buckets.counts={counts.value} has no effect with dataset.buckets.sampler={sampler.value}; "
            "only dataset.buckets.sampler=minimum uses it"
        )
