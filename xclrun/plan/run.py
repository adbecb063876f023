"""Plan a composed job: read the data, resolve order and stream, derive run ID and store keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from xclrun.config.checks import check
from xclrun.config.schema import (
    AUTO,
    Config,
    DatasetConfig,
    Keep,
    OrderConfig,
    PartConfig,
    Selection,
    StrategyConfig,
    TrainerConfig,
    plain,
)
from xclrun.core import plugins
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.graph import Kind, Plan, Stage
from xclrun.core.identity import ALGORITHMS, DataIdentity, digest, run_id, stages, strategy_name
from xclrun.core.languages import key_of
from xclrun.core.stream import Hop, Stream, in_blocks, keys_of, resolve_order, sequence, transfer
from xclrun.core.task import TASKS, WRITTEN, unread_settings
from xclrun.data.blocks import trained_heads, with_blocks
from xclrun.data.encode import tag_outputs
from xclrun.data.example import Dataset
from xclrun.data.load import load_dataset, read_whole
from xclrun.data.orders import complete_order, compute_order
from xclrun.model.shape import HeadSizes
from xclrun.model.source import encoder_identity
from xclrun.plan.checks import (
    check_encoder,
    check_frozen,
    check_graphs,
    check_mixtures,
    check_ranks,
    check_tasks,
    with_library,
    with_packing,
)
from xclrun.scores.answers import rule_of
from xclrun.store.rundir import RunDirectory
from xclrun.store.stages import StageStore
from xclrun.strategy import Strategy, make, nested
from xclrun.strategy.lang_spec_ft import LangSpecFT
from xclrun.strategy.shared.adapters import AdapterSettings
from xclrun.strategy.shared.expansion import ExpandableSettings


@dataclass(frozen=True)
class Run:
    """A composed job with its data, stream, run ID and store keys.

    Attributes:
        config: the job's config; unset values, such as a bucket's number or an order's languages, are filled in.
        id: the run ID.
        stages: the stages of the hops, hop 0 first.
        data_fingerprint: hash of the dataset.
        algorithms: version of the code that computes results.
        whole_fingerprint: hash of the dataset that the bucket was drawn from; empty without a bucket.
        encoder: hash of the encoder before fine-tuning.
    """

    config: Config
    dataset: Dataset
    stream: Stream
    id: str
    stages: tuple[Stage, ...]
    data_fingerprint: str
    algorithms: int
    whole_fingerprint: str
    encoder: str

    @cached_property
    def resolved(self) -> dict[str, Any]:
        """The config as nested plain values, for hashing, freezing and logging."""
        values: dict[str, Any] = plain(self.config)
        return values

    @property
    def outputs(self) -> Path:
        return Path(self.config.paths.outputs).expanduser()

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.outputs / "runs" / self.id)

    @property
    def store(self) -> StageStore:
        return StageStore(
            Path(self.config.paths.store).expanduser() if self.config.paths.store else self.outputs / "store"
        )

    @property
    def cache(self) -> Path:
        return self.outputs / "cache"

    @cached_property
    def strategy_name(self) -> str:
        """Display name of the strategy: ``er``, or ``er+lang_spec_task``."""
        return strategy_name(self.resolved)

    @property
    def keys(self) -> list[str]:
        """Keys of everything in the store that the run reads or writes, sorted."""
        return sorted({key for stage in self.stages for key in stage.keys})

    @property
    def kept(self) -> set[str]:
        """Keys in the store that the run keeps after it has finished (``store.keep``).

        The final models are those after hops from which no other hop continues. Their evaluations need their weights
        and states, and others from which the strategy computes its predictions.
        """
        keep, keys = self.config.store.keep, set(self.keys)
        if keep is Keep.all:
            return keys
        parents = {stage.hop.parent for stage in self.stages if stage.hop.index}
        final = [] if keep is Keep.none else [stage for stage in self.stages if stage.hop.index not in parents]
        needs = [need for stage in final for need in stage.needs[Kind.evaluation]]
        keys -= {key for stage in self.stages for key in stage.trained}
        return keys | {self.stages[hop].results[kind] for kind, hop in needs}

    @property
    def stored(self) -> dict[str, Any]:
        """Facts for the run's files: ``keys`` and the ``store``'s path; None: the store inside the outputs folder.

        ``kept`` lists the keys that the finished run keeps; without it, these are all keys.
        """
        facts = {"keys": self.keys, "store": str(self.store.root.absolute()) if self.config.paths.store else None}
        return facts if self.config.store.keep is Keep.all else facts | {"kept": sorted(self.kept)}

    @cached_property
    def label(self) -> str:
        """Display name of the run: strategy, order, seed, and K and bucket if set."""
        c = self.config
        words = [self.strategy_name, str(c.order.name), f"seed {c.seed}"]
        words += [] if c.shots is None else [f"K = {c.shots}"]
        return " · ".join(words if c.bucket is None else [*words, f"bucket {c.bucket}"])

    @cached_property
    def costs(self) -> dict[int, dict[str, Any]]:
        """Index of a hop → the settings that determine its training time, for estimates."""
        return {hop.index: self._cost(hop) for hop in self.stream.hops}

    def _cost(self, hop: Hop) -> dict[str, Any]:
        irrelevant = {"lr", "source_lr", "path", *unread_settings(self.resolved["dataset"])}
        model = {key: value for key, value in plain(self.config.model).items() if key not in irrelevant}
        settings = plain(self.trainer(hop))
        trainer = {key: settings[key] for key in ("batch_size", "gradient_accumulation", "precision")}
        if settings["optimizer_state"] != "fresh":
            trainer["optimizer_state"] = settings["optimizer_state"]
        if self.trainer(hop).optimizer.eight_bit:
            trainer["optimizer"] = settings["optimizer"]
        trainer |= {key: True for key in ("packing", "cuda_graphs", "gradient_checkpointing") if settings[key]}
        heads = [number for target in self.dataset.targets for number in (len(target.labels), len(target.tags))]
        return {
            "model": digest([model, trainer, *heads])[:16],
            "strategy": self.strategy_name if self.plan(hop).train else "naive",
            "examples": self.sentences(hop),
            **({"steps": self._steps_of_mixture(hop)} if hop.mixed else {}),
        }

    def sentences(self, hop: Hop) -> int:
        """Return the number of sentences in an epoch of a hop; for a mixture, the number in all steps together."""
        sentences = self._training_sentences(hop)
        return self._steps_of_mixture(hop) * self.trainer(hop).batch(sentences) if hop.mixed else sentences

    @property
    def heads(self) -> list[HeadSizes]:
        """Sizes of the model's heads, one for each task."""
        label_on = self.config.model.label_on
        return [
            HeadSizes(t.task, len(t.labels), tag_outputs(t.tags, label_on), t.settings) for t in self.dataset.targets
        ]

    def _training_sentences(self, hop: Hop) -> int:
        sentences = sum(len(self.dataset.split(key, "train")) for key in hop.train)
        limit = self.plan(hop).limit
        return sentences if limit is None else min(sentences, limit)

    def _steps_of_mixture(self, hop: Hop) -> int:
        return self.trainer(hop).steps_of_mixture(self._training_sentences(hop))

    def epochs(self, hop: Hop) -> int:
        """Return the number of epochs of a hop's training; 1 for a mixture."""
        return 1 if hop.mixed else self.trainer(hop).epochs

    @property
    def in_blocks(self) -> dict[str, Any]:
        """Manifest entries of a stream in blocks: number of blocks, and heads trained before the first block."""
        number, (*start, key) = self.config.dataset.blocks, self.stream.languages
        if number is None:
            return {}
        heads = trained_heads(self.dataset, key, tuple(start))
        if self.dataset.task_of(key).writes and not self.config.model.from_scratch:
            heads = [WRITTEN]
        return {"blocks": number, "start_knows": heads}

    def trainer(self, hop: Hop) -> TrainerConfig:
        """Return the trainer settings of a hop; without dev data, the last epoch is selected."""
        protocol = self.config.protocol
        trainer = self.config.trainer if protocol is None or hop.adapts else protocol.source_trainer
        if not hop.select or any(self.dataset.split(language, "dev") for language in hop.select):
            return trainer
        return replace(trainer, selection=Selection.last, patience=None)

    def plan(self, hop: Hop) -> Plan:
        """Return what the strategy determines about a hop."""
        return self.stages[hop.index].plan

    def reference(self) -> Run:
        """Return the reference run: training on each language separately, with adapters if this run has them."""
        alone = ExpandableSettings(LangSpecFT.name, expansion=self.strategy().parameters.adapters)
        return plan_run(replace(self.config, strategy=alone, strategy_label=None))

    def packed(self, packing: bool | str = AUTO) -> Run:
        """Return the run with this value of ``trainer.packing``."""
        return plan_run(replace(self.config, trainer=replace(self.config.trainer, packing=packing)))

    def merged_run(self) -> Run | None:
        """Return the run whose trained hops this run merges; None if it trains its own hops."""
        settings = self.strategy().merged_strategy()
        return None if settings is None else plan_run(replace(self.config, strategy=settings, strategy_label=None))

    def strategy(self) -> Strategy[Any]:
        """Return a new strategy object that knows the number of hops."""
        strategy = make(self.config.strategy)
        strategy.stream(self.config.order.languages or ())
        return strategy


_datasets: dict[str, tuple[Dataset, DataIdentity, str]] = {}
# Maximum number of cached datasets: sweeps use one per bucket.
CACHED = 64


def _dataset(config: Config) -> tuple[Dataset, DataIdentity, str]:
    """Return (dataset, identity of the dataset, hash of the dataset from which the run's bucket was drawn)."""
    source = {key: value for key, value in plain(config.dataset).items() if key != "replay"}
    # In few-shot transfer, the bucket limits only the target language.
    few_shot = [str(config.language)] if config.protocol else None
    key = json.dumps([source, config.bucket, config.shots, few_shot], sort_keys=True)
    if key not in _datasets:
        if few_shot is not None:
            few_shot = [_key(name, read_whole(config.dataset), "language") for name in few_shot]
        dataset = load_dataset(config.dataset, config.bucket, config.shots, few_shot)
        if len(_datasets) >= CACHED:
            _datasets.clear()
        whole = "" if config.bucket is None else _identity(read_whole(config.dataset)).fingerprint
        _datasets[key] = dataset, _identity(dataset), whole
    return _datasets[key]


_orders: dict[tuple[str, str], list[str]] = {}


def _arranged(order: OrderConfig, dataset: Dataset, fingerprint: str) -> list[str]:
    """Return the languages of a computed order, cached because similarity reads all words."""
    key = repr(order), fingerprint
    if key not in _orders:
        _orders[key] = list(compute_order(order, dataset))
    return list(_orders[key])


def _identity(dataset: Dataset) -> DataIdentity:
    spans = any(metric.span_f1 for metric in dataset.metrics.all)
    # The dataset's reader determines how English answers are scored. The scoring rule is part of the identity, because
    # dev scores can determine which weights of a hop are used.
    mlqa = any(t.task.answers and rule_of(k, dataset.reader) == "en" for t in dataset.targets for k in t.keys)
    sets = [[*target.sets, *(["MLQA's English"] if mlqa else [])] for target in dataset.targets]
    if dataset.task is None:
        # Hash the keys of each task too, because the fingerprint of an example does not depend on its task.
        whole = [[*labels, sorted(target.keys)] for labels, target in zip(sets, dataset.targets, strict=True)]
        return DataIdentity(dataset.fingerprints, digest(whole), spans)
    return DataIdentity(dataset.fingerprints, digest(sets[0]), spans)


def plan_jobs(configs: Iterable[Config]) -> list[Run]:
    """Return the distinct runs of several jobs, in the order of the jobs."""
    runs: dict[str, Run] = {}
    for run in map(plan_run, configs):
        runs.setdefault(run.id, run)
    return list(runs.values())


def plan_run(config: Config) -> Run:
    """Read the data and plan the run.

    Raises:
        UsageError: a value, the data or the order is invalid.
    """
    check(config)
    config, dataset, data, whole = _read(config)
    config, order = _ordered(config, dataset, data.fingerprint)
    config = replace(config, plugins=_plugins(config))
    # Identify the encoder before the split into blocks, because blocks do not affect the encoder.
    encoder = encoder_identity(config.model, dataset)
    if (blocks := config.dataset.blocks) is not None:
        dataset = with_blocks(dataset, order[-1], blocks, config.dataset.subset_seed)
        data = _identity(dataset)
    config = with_library(config)
    strategy = make(config.strategy)
    config = with_packing(config, strategy, any(target.task.writes for target in dataset.targets))
    stream = _checked(config, dataset, strategy, order)
    resolved = plain(config)
    return Run(
        config=config,
        dataset=dataset,
        stream=stream,
        id=run_id(resolved, data, encoder, strategy.version_id()),
        stages=stages(resolved, stream, data, encoder, strategy),
        data_fingerprint=data.fingerprint,
        algorithms=ALGORITHMS,
        whole_fingerprint=whole,
        encoder=encoder,
    )


def _read(config: Config) -> tuple[Config, Dataset, DataIdentity, str]:
    """Return (config with the dataset's spelling of keys, and the three results of `_dataset`)."""
    if config.shots is not None and config.bucket is None:
        config = replace(config, bucket=0)
    if config.protocol is not None:
        config = replace(config, source=config.from_source)
    dataset, data, whole = _dataset(config)
    if config.dataset.languages is not None and not config.dataset.parts:
        keys = [key_of(name, dataset.languages, "dataset.languages") for name in config.dataset.languages]
        config = replace(config, dataset=replace(config.dataset, languages=keys))
    if config.protocol is not None:
        names = {"source": config.source, "language": config.language}
        resolved = {setting: name and _key(name, dataset, setting) for setting, name in names.items()}
        if resolved != names:
            config = replace(config, source=resolved["source"], language=resolved["language"])
            # Check again: two different names may turn out to be the same key.
            check(config)
    return replace(config, strategy=_with_adapters(config.strategy, dataset)), dataset, data, whole


def _ordered(config: Config, dataset: Dataset, fingerprint: str) -> tuple[Config, tuple[str, ...]]:
    """Return (config in which the order's name and languages are filled in, order)."""
    settings, listed = config.order, config.order.languages
    if config.protocol is not None:
        listed = [name for name in (config.source, config.language) if name is not None]
    elif listed is None and settings.by is not None:
        settings = complete_order(settings, dataset)
        listed = _arranged(settings, dataset, fingerprint)
    order = resolve_order(listed, settings.by_size, dataset.sizes())
    name = settings.name or "-".join(order)
    return replace(config, order=replace(settings, name=name, languages=list(map(str, order)))), order


def _checked(config: Config, dataset: Dataset, strategy: Strategy[Any], order: Sequence[str]) -> Stream:
    """Check data, strategy and model; return the stream."""
    check_tasks(config, dataset, strategy)
    check_graphs(config)
    check_frozen(config, strategy)
    check_ranks(config, config.runtime.devices)
    check_encoder(config, dataset, strategy)
    stream = stream_of(config, strategy, order)
    learned = {language for hop in stream.hops for language in (*hop.train, hop.codes.rpartition("#")[0])}
    untrained = [key for key in stream.languages if key in learned and not dataset.split(key, "train")]
    if untrained:
        advice = _untrained_advice(config, dataset, order)
        raise UsageError(f"dataset={dataset.name}: no training data in {_listed(untrained)}; {advice}")
    return stream


def _untrained_advice(config: Config, dataset: Dataset, order: Sequence[str]) -> str:
    """Return what to set if a strategy would train on languages without training data, for an error line."""
    if config.protocol is not None:
        return "adapt to a language with training data"
    elements = [[key for key in keys_of([element]) if dataset.split(key, "train")] for element in order]
    trained = ["+".join(keys) for keys in elements if keys]
    if not trained:
        return "add a language with training data to the order"
    if config.strategy.name == "zero_shot":
        return f"begin the order with {trained[0]}"
    alone = f"order=[{','.join(trained)}]" if len(trained) <= 20 else "an order without these languages"
    keys = sorted(keys_of(order), key=lambda key: not dataset.split(key, "train"))
    if len(keys) > 20:
        return f"set strategy=zero_shot (trains on the first language of the order, evaluates all), or {alone}"
    return f"set strategy=zero_shot order=[{','.join(keys)}] (trains on {keys[0]}, evaluates all), or {alone}"


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(map(repr, keys[:5])) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")


def _plugins(config: Config) -> dict[str, list[str]]:
    """Return the plug-ins that define the dataset and the strategy of a config, by config group."""
    strategies = [config.strategy, *nested(config.strategy)]
    datasets: list[DatasetConfig | PartConfig] = [config.dataset, *config.dataset.parts.values()]
    kinds = {("dataset", d.reader) for d in datasets} | {("task", d.task) for d in datasets}
    for task in (TASKS[d.task] for d in datasets if d.task in TASKS):
        kinds |= {("head", task.head), ("encoding", task.encoding)}
    plugins_of = {
        "dataset": plugins.used(*sorted((kind, name) for kind, name in kinds if name is not None)),
        "strategy": plugins.used(*(("strategy", s.name) for s in strategies)),
    }
    return {group: used for group, used in plugins_of.items() if used}


def _key(name: str, dataset: Dataset, setting: str) -> str:
    """Return the dataset's key for a language that a setting names."""
    key = key_of(name, dataset.languages, setting)
    if key not in dataset.languages:
        raise UsageError(f"{setting}={key}: not a language of the dataset; {did_you_mean(key, dataset.languages)}")
    return key


def _with_adapters(settings: StrategyConfig, dataset: Dataset, name: str = "strategy") -> StrategyConfig:
    """Replace the languages of pretrained adapters by the dataset's keys; if there is an expansion, in its settings."""
    if isinstance(settings, ExpandableSettings) and settings.expansion is not None:
        return replace(settings, expansion=_with_adapters(settings.expansion, dataset, f"{name}.expansion"))
    if not isinstance(settings, AdapterSettings) or not isinstance(settings.pretrained, dict):
        return settings
    setting, folders = f"{name}.pretrained", {}
    for language, folder in settings.pretrained.items():
        key = _key(str(language), dataset, setting)
        if key in folders:
            raise UsageError(f"{setting}: '{key}' is listed twice")
        folders[key] = folder
    return replace(settings, pretrained=folders)


def stream_of(config: Config, strategy: Strategy[Any], order: Sequence[str]) -> Stream:
    """Return the stream of a run: the strategy's stream, a few-shot transfer, or a stream in blocks.

    Raises:
        UsageError: the strategy does not support few-shot transfer, blocks or mixtures.
    """
    check_mixtures(config, strategy, order)
    if config.dataset.blocks is not None:
        settings = f"strategy={config.strategy.name} dataset.blocks={config.dataset.blocks}"
        if strategy.expands or strategy.parts_per_hop or nested(config.strategy):
            raise UsageError(f"{settings}: added or language-specific parameters do not support blocks of one language")
        try:
            return in_blocks(order, config.dataset.blocks, strategy.stream)
        except ValueError as error:
            raise UsageError(f"{settings}: {error}; use growing, naive or inc_joint") from None
    stream = strategy.stream(order)
    if config.protocol is None:
        return stream
    if stream != sequence(order):
        raise UsageError(
            f"strategy={config.strategy.name}: few-shot transfer needs a strategy with one hop per language"
        )
    return transfer(config.from_source, order[-1])
