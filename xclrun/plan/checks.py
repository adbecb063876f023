"""Checks for incompatible settings. Each raises a one-line `UsageError` before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xclrun.config.schema import (
    AUTO,
    Config,
    FrozenPrecision,
    Generated,
    LabelOn,
    ModelConfig,
    Precision,
    RuntimeConfig,
    SlotF1,
    StrategyConfig,
    Template,
    TrainerConfig,
    plain,
)
from xclrun.core.errors import UsageError
from xclrun.core.identity import NESTED
from xclrun.core.ranks import launched
from xclrun.core.stream import Mixture, keys_of, sequence
from xclrun.core.task import scores_texts
from xclrun.data.batches import EVEN_PIECES
from xclrun.data.encodings import encoding_of
from xclrun.data.example import Dataset
from xclrun.data.texts import check_texts
from xclrun.model.families import FAMILIES, Family, number, positions
from xclrun.model.folder import BERTS
from xclrun.model.source import check_masks, check_packing, depth, family_of, packs, settings_of, subject_of
from xclrun.strategy import Strategy, nested
from xclrun.strategy.shared.adapters import Adapter, AdapterSettings, LowRankSettings, resolved_library


def check_tasks(config: Config, dataset: Dataset, strategy: Strategy[Any]) -> None:
    """Check that strategy and model support the tasks of a dataset."""
    tasks = [target.task for target in dataset.targets]
    names = ", ".join(task.identified for task in tasks)
    several = None if dataset.task is not None else f"dataset.parts has several tasks ({names})"
    parts = [strategy, *filter(None, (getattr(strategy, name, None) for name in ("expansion", "source")))]
    cannot_write = next((part.cannot_write for part in parts if part.cannot_write), None)
    reason = cannot_write if any(task.writes for task in tasks) and cannot_write else strategy.unsupported(tasks)
    if reason is not None:
        tasks_text = f" dataset.task={tasks[0].name}:" if several is None else f": {several};"
        raise UsageError(f"strategy={config.strategy.name}{tasks_text} {reason}")
    for task in tasks:
        if config.model.label_on is LabelOn.all and task.tag is not None and not task.crf:
            raise UsageError(f"model.label_on=all dataset.task={task.name}: only intent_slots supports label_on=all")
        encoding = encoding_of(task)
        encoding.check(config.model)
        stride, longest = config.evaluate.stride, config.model.max_length
        if encoding.strides and stride is not None and stride > longest:
            raise UsageError(f"evaluate.stride={stride}: must be at most model.max_length={longest}")
        if config.evaluate.attention and not encoding.whole:
            raise UsageError(
                f"evaluate.attention=true dataset.task={task.name}: not supported for texts split into windows"
            )
    if several is not None and config.evaluate.slot_f1 is not SlotF1.span_micro:
        raise UsageError(f"evaluate.slot_f1={config.evaluate.slot_f1.value}: {several}; slot_f1 supports only one task")


def with_library(config: Config) -> Config:
    """Replace ``library: auto`` in the settings of the strategy, and of those inside, by the library for LoRA.

    Raises:
        UsageError: the library does not support the task.
    """
    writing = scores_texts(plain(config.dataset))

    def resolved(settings: StrategyConfig) -> StrategyConfig:
        inner = {key: value for key in NESTED if (value := getattr(settings, key, None)) is not None}
        changed: dict[str, Any] = {key: resolved(value) for key, value in inner.items()}
        if isinstance(settings, (AdapterSettings, LowRankSettings)):
            changed["library"] = resolved_library(settings, writing)
        return replace(settings, **changed) if changed else settings

    return replace(config, strategy=resolved(config.strategy))


def with_packing(config: Config, strategy: Strategy[Any], writes: bool = False) -> Config:
    """Replace ``packing: auto`` in all trainers: true if encoder, strategy and trainer support it, else false.

    Args:
        writes: whether the model is a causal language model (`Task.writes`).

    Raises:
        UsageError: ``packing`` is true, but the encoder, the strategy or another setting does not support it.
    """
    resolved = dict(config.trainers)
    for name, trainer in config.trainers.items():
        refused = _packing_refused(config, name, trainer, strategy)
        if trainer.packing is True:
            check_packing(config.model, writes, f"{name}.packing")
            if refused is not None:
                raise UsageError(refused)
        elif trainer.packing == AUTO:
            auto = refused is None and not trainer.cuda_graphs and packs(config.model, writes)
            resolved[name] = replace(trainer, packing=auto)
    if resolved == config.trainers:
        return config
    protocol = config.protocol
    if protocol is not None:
        protocol = replace(protocol, source_trainer=resolved["protocol.source_trainer"])
    return replace(config, trainer=resolved["trainer"], protocol=protocol)


def _packing_refused(config: Config, name: str, trainer: TrainerConfig, strategy: Strategy[Any]) -> str | None:
    """Return why the strategy or another setting of a trainer does not support packing; None if they do."""
    packing, adapters = f"{name}.packing=true", strategy.parameters.adapters
    if isinstance(adapters, AdapterSettings) and adapters.adapter is Adapter.prefix:
        return f"strategy.adapter=prefix {packing}: prefixes do not support packing"
    if strategy.parameters.prompt_tokens:
        return f"strategy={config.strategy.name} {packing}: prompts do not support packing"
    if trainer.cuda_graphs and trainer.gradient_accumulation > 1:
        accumulation = f"{name}.gradient_accumulation={trainer.gradient_accumulation}"
        return (
            f"{name}.cuda_graphs=true {packing} {accumulation}: parts of a packed batch cannot be captured; set it to 1"
        )
    return None


def check_graphs(config: Config) -> None:
    """Check that steps can be captured in CUDA graphs, if ``cuda_graphs`` is set."""
    longest = config.model.max_length
    for name, trainer in config.trainers.items():
        key = f"{name}.cuda_graphs"
        if not trainer.cuda_graphs:
            continue
        if trainer.gradient_checkpointing:
            raise UsageError(f"{key}=true {name}.gradient_checkpointing=true: cannot be combined; choose one")
        if trainer.optimizer.eight_bit:
            raise UsageError(
                f"{key}=true {name}.optimizer={trainer.optimizer.value}: CUDA graphs do not support 8-bit optimizers; "
                "use adam or adamw"
            )
        if trainer.precision is Precision.fp16:
            raise UsageError(f"{key}=true {name}.precision=fp16: CUDA graphs do not support the loss scaler; use bf16")
        for observed in ("gradient_overlap", "class_gradients"):
            if getattr(config.evaluate, observed):
                raise UsageError(
                    f"{key}=true evaluate.{observed}=true: gradients cannot be read in CUDA graphs; choose one"
                )
        if longest % EVEN_PIECES:
            raise UsageError(f"{key}=true model.max_length={longest}: must be a multiple of {EVEN_PIECES}")
        check_masks(config.model, key)


def check_frozen(config: Config, strategy: Strategy[Any]) -> None:
    """Check that weights can be stored in bf16 (``model.frozen_precision``): the encoder must be frozen."""
    if config.model.frozen_precision is FrozenPrecision.fp32:
        return
    key = "model.frozen_precision=bf16"
    for trainer_key, trainer in config.trainers.items():
        if trainer.precision is not Precision.bf16:
            raise UsageError(
                f"{key} {trainer_key}.precision={trainer.precision.value}: needs {trainer_key}.precision=bf16"
            )
    if not strategy.parameters.encoder_frozen:
        raise UsageError(
            f"{key} strategy={config.strategy.name}: the encoder is not frozen; use lang_spec_lora_f or lang_spec_ada_f"
        )


def check_ranks(config: Config, ranks: int) -> None:
    """Check that several ranks (``runtime.devices``, or the processes of a launcher) can train the run."""
    if ranks == 1:
        return
    name = f"runtime.devices={config.runtime.devices}"
    if config.runtime.devices == 1:
        name = f"{ranks} processes of a launcher,"
    elif config.runtime.devices != ranks:
        raise UsageError(f"{name}: the launcher starts {ranks} processes; omit runtime.devices")
    if launched() > 1 and config.runtime.rank_timeout != RuntimeConfig.rank_timeout:
        # The launcher's processes are connected before the config is read.
        raise UsageError(
            f"runtime.rank_timeout={config.runtime.rank_timeout:g}: the limit of processes that a launcher starts is "
            f"{RuntimeConfig.rank_timeout:g} minutes; omit it"
        )
    for key, trainer in config.trainers.items():
        if trainer.gradient_accumulation < ranks:
            raise UsageError(
                f"{name} {key}.gradient_accumulation={trainer.gradient_accumulation}: each device needs a micro-batch; "
                f"use {key}.gradient_accumulation={ranks} and a smaller {key}.batch_size (sentences per micro-batch)"
            )
        if trainer.cuda_graphs:
            raise UsageError(f"{name} {key}.cuda_graphs=true: CUDA graphs need a single device; choose one")


def check_encoder(config: Config, dataset: Dataset, strategy: Strategy[Any]) -> None:
    """Check that the encoder supports strategy and tasks."""
    kind = family_of(config.model)
    if config.model.from_scratch and config.model.settings:
        # Imported here, because planning needs no torch otherwise.
        from xclrun.model.encoder import check_settings

        check_settings(config.model)
    if any(target.task.writes for target in dataset.targets):
        _check_writing(config, dataset, kind)
    settings = settings_of(config.model)
    strategy.check_encoder(kind, number(settings, "width"), depth(config.model))
    _check_prompts(config, settings, strategy.parameters.prompt_tokens)
    absolute = settings.get("position_embedding_type", "absolute") == "absolute"
    if config.evaluate.attention and not (kind.attends and absolute):
        raise UsageError(
            f"evaluate.attention=true: not supported for {kind.title}; choose an encoder of BERT's or RoBERTa's family"
        )
    if config.evaluate.class_gradients and not any(target.labels for target in dataset.targets):
        raise UsageError(
            f"evaluate.class_gradients=true: dataset '{dataset.name}' has no classes; set it to false or choose a "
            "dataset with intents or classes"
        )
    for task in (target.task for target in dataset.targets):
        if task.tag is not None and kind.causal and config.model.label_on is not LabelOn.last:
            raise UsageError(
                f"model.label_on={config.model.label_on.value}: {kind.title} has causal attention, so only a word's "
                "last subword attends to the whole word; use model.label_on=last"
            )


def _check_writing(config: Config, dataset: Dataset, kind: Family) -> None:
    """Check that a language model can be trained and, if the task generates texts, can write them."""
    generates = not all(target.task.scores_only for target in dataset.targets)
    model, new = config.model, config.new_tokens
    if not (kind.causal or kind.with_decoder):
        decoders = ", ".join(name for name, other in FAMILIES.items() if other.causal or other.with_decoder)
        raise UsageError(
            f"{subject_of(model)}: {kind.title} writes no texts; use a causal model or an encoder-decoder ({decoders})"
        )
    if model.trim_vocabulary:
        raise UsageError("model.trim_vocabulary=true: texts may need any subword; use false")
    if kind.with_decoder:
        if not generates:
            raise UsageError(
                f"{subject_of(model)} dataset.task=language_modelling: {kind.title} is no causal model; choose one"
            )
        _check_decoder(model, dataset)
        return
    if not generates:
        return
    check_texts(model)
    if config.evaluate.generate is Generated.test and new >= model.max_length:
        raise UsageError(
            f"generation.max_new_tokens={new}: must be below model.max_length={model.max_length}, which prompt and "
            "text share"
        )


def _check_decoder(model: ModelConfig, dataset: Dataset) -> None:
    """Check that an encoder-decoder can be trained on all tasks of a dataset."""
    if not model.from_scratch and type(settings_of(model).get("decoder_start_token_id")) is not int:
        raise UsageError(
            f"{subject_of(model)}: config.json has no decoder_start_token_id, so it is unknown how texts begin"
        )
    for target in dataset.targets:
        if not encoding_of(target.task).decodes:
            raise UsageError(f"{subject_of(model)} dataset.task={target.task.name}: needs a causal model")
        if target.settings is not None and target.settings.template is Template.chat:
            raise UsageError("dataset.text.template=chat: encoder-decoders have no chat templates; use template=none")


def _check_prompts(config: Config, settings: Mapping[str, Any], tokens: int) -> None:
    """Check that an encoder has enough positions for prompts. In `BERTS`, prompts take no positions."""
    model, name = config.model, f"strategy={config.strategy.name}"
    if tokens and config.evaluate.attention:
        raise UsageError(f"evaluate.attention=true {name}: not supported for texts with prompts")
    rows = positions({"max_position_embeddings": model.positions or model.max_length, **settings})
    if settings["model_type"] not in BERTS and rows is not None and model.max_length + tokens > rows:
        raise UsageError(
            f"{name} model.max_length={model.max_length}: the encoder has {rows} positions, of which prompts take "
            f"{tokens}; set model.max_length={rows - tokens} or less"
        )


def check_mixtures(config: Config, strategy: Strategy[Any], order: Sequence[str]) -> None:
    """Check that the strategy supports the mixtures of an order."""
    mixture = next((element for element in order if isinstance(element, Mixture)), None)
    trainer = config.trainer
    if mixture is None:
        if trainer.mixture_steps is not None:
            raise UsageError(
                f"trainer.mixture_steps={trainer.mixture_steps}: needs an order with a mixture, such as order=[a+b,c]"
            )
        return
    name, keys = config.strategy.name, keys_of(order)
    if strategy.adds_language_parameters or nested(config.strategy):
        raise UsageError(f"strategy={name} order=[…{mixture}…]: key-specific parameters do not support mixtures")
    # Mixtures do not change independent and joint streams. With blocks, all streams are sequences, which support
    # mixtures.
    stream = strategy.stream(keys)
    if stream.kind not in ("independent", "joint") and stream != sequence(keys) and config.dataset.blocks is None:
        raise UsageError(f"strategy={name} order=[…{mixture}…]: mixtures need a strategy with one hop per element")
    if trainer.group_by_length:
        raise UsageError(
            f"trainer.group_by_length=true order=[…{mixture}…]: mixtures draw each batch separately; set it to false"
        )
    if trainer.batch_size is None:
        raise UsageError(f"trainer.batch_size=null order=[…{mixture}…]: a mixture needs a batch size")
