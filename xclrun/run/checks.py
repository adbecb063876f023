"""What a run asks for that cannot be had together: each check raises one line, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xclrun.config.schema import Config, LabelOn, Precision, SlotF1
from xclrun.core.errors import UsageError
from xclrun.core.stream import Mixture, Stream, keys_of, sequence
from xclrun.data.batches import EVEN_PIECES
from xclrun.data.example import Dataset
from xclrun.data.windows import check_windows
from xclrun.model.families import number
from xclrun.model.source import check_masks, check_settings, depth, family_of, settings_of
from xclrun.strategy import Strategy
from xclrun.strategy.shared.adapters import Adapter, AdapterSettings


def check_tasks(config: Config, dataset: Dataset, strategy: Strategy[Any]) -> None:
    """Check that a strategy and a model can learn the tasks of a dataset."""
    tasks = [of.task for of in dataset.targets]
    names = ", ".join(task.identified for task in tasks)
    several = None if dataset.task is not None else f"dataset.parts has several tasks ({names})"
    if (reason := strategy.unfit(tasks)) is not None:
        learnt = f" dataset.task={tasks[0].name}:" if several is None else f": {several};"
        raise UsageError(f"strategy={config.strategy.name}{learnt} {reason}")
    for task in tasks:
        if config.model.label_on is LabelOn.all and task.tag is not None and not task.crf:
            raise UsageError(f"model.label_on=all dataset.task={task.name}: every piece has a tag only in intent_slots")
        if task.answers:
            check_windows(config.model.max_length, config.model.windows)
            if config.evaluate.attention:
                raise UsageError(
                    f"evaluate.attention=true dataset.task={task.name}: texts in windows have no such means"
                )
    if several is not None and config.evaluate.slot_f1 is not SlotF1.span_micro:
        raise UsageError(f"evaluate.slot_f1={config.evaluate.slot_f1.value}: {several}; it is of one task")


def check_packing(config: Config, strategy: Strategy[Any]) -> None:
    """Check that the encoder can be given sentences end to end, if that is asked for."""
    for name, trainer in config.trainers.items():
        if trainer.packing:
            check_masks(config.model, f"{name}.packing")
            if isinstance(strategy.adapters, AdapterSettings) and strategy.adapters.adapter is Adapter.prefix:
                raise UsageError(f"strategy.adapter=prefix {name}.packing=true: sentences end to end have no prefixes")


def check_graphs(config: Config) -> None:
    """Check that steps can be recorded, if that is asked for."""
    longest = config.model.max_length
    for name, trainer in config.trainers.items():
        key = f"{name}.cuda_graphs"
        if not trainer.cuda_graphs:
            continue
        if trainer.packing:
            raise UsageError(
                f"{key}=true {name}.packing=true: where sentences lie end to end differs from step to step; choose one"
            )
        if trainer.precision is Precision.fp16:
            raise UsageError(f"{key}=true {name}.precision=fp16: its loss scaler looks at each step; use bf16")
        for observed in ("gradient_overlap", "class_gradients"):
            if getattr(config.evaluate, observed):
                raise UsageError(
                    f"{key}=true evaluate.{observed}=true: gradients of recorded steps cannot be looked at"
                )
        if longest % EVEN_PIECES:
            raise UsageError(f"{key}=true model.max_length={longest}: must be a multiple of {EVEN_PIECES}")
        check_masks(config.model, key)


def check_encoder(config: Config, dataset: Dataset, strategy: Strategy[Any]) -> None:
    """Check that a strategy and the tasks of a dataset can be had with the encoder's family."""
    kind = family_of(config.model)
    check_settings(config.model)
    settings = settings_of(config.model)
    strategy.check_encoder(kind, number(settings, "width"), depth(config.model))
    absolute = settings.get("position_embedding_type", "absolute") == "absolute"
    if config.evaluate.attention and not (kind.attends and absolute):
        raise UsageError(
            f"evaluate.attention=true: how {kind.title} attends is not known; choose an encoder of BERT's or RoBERTa's "
            "family"
        )
    if config.evaluate.class_gradients and not any(of.labels for of in dataset.targets):
        raise UsageError(
            f"evaluate.class_gradients=true: dataset '{dataset.name}' has no classes; set it to false or choose a "
            "dataset with intents or classes"
        )
    for task in (of.task for of in dataset.targets):
        if task.tag is not None and kind.causal and config.model.label_on is not LabelOn.last:
            raise UsageError(
                f"model.label_on={config.model.label_on.value}: {kind.title} reads from left to right, so only a "
                "word's last piece has read all of it; give model.label_on=last"
            )


def check_dev(config: Config, dataset: Dataset, stream: Stream) -> None:
    """Check that there is dev data where it decides."""
    for hop in stream.hops[1:]:
        of_source = config.protocol is not None and not hop.adapts
        trainer = config.protocol.source_trainer if config.protocol and of_source else config.trainer
        lacking = [language for language in hop.select if not dataset.split(language, "dev")]
        if trainer.uses_dev and lacking:
            key = "protocol.source_trainer" if of_source else "trainer"
            raise UsageError(
                f"dataset={dataset.name}: '{lacking[0]}' has no dev data to select by; give {key}.selection=last "
                f"{key}.patience=null"
            )


def check_mixtures(config: Config, strategy: Strategy[Any], order: Sequence[str]) -> None:
    """Check that the strategy can learn the mixtures of an order."""
    mixture = next((element for element in order if isinstance(element, Mixture)), None)
    trainer = config.trainer
    if mixture is None:
        if trainer.mixture_steps is not None:
            raise UsageError(
                f"trainer.mixture_steps={trainer.mixture_steps}: the order has no mixture of keys, as in order=[a+b,c]"
            )
        return
    name, keys = config.strategy.name, keys_of(order)
    if strategy.gives_parts or getattr(config.strategy, "expansion", None) is not None:
        raise UsageError(f"strategy={name} order=[…{mixture}…]: gives each key parts of its own; a mixture has several")
    # Those that learn each key alone, or all at once, pass over mixtures. Before blocks all learn in sequence.
    made = strategy.stream(keys)
    if made.kind not in ("independent", "joint") and made != sequence(keys) and config.dataset.blocks is None:
        raise UsageError(f"strategy={name} order=[…{mixture}…]: has hops of its own; a mixture is one of a sequence")
    if trainer.batch_size is None:
        raise UsageError(f"trainer.batch_size=null order=[…{mixture}…]: batches of a mixture need a size")
