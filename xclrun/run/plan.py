"""From a composed job to a run: the data is read, order and stream are resolved, names and keys derived."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from xclrun.analysis.answers import rule_of
from xclrun.config.checks import check
from xclrun.config.schema import Config, DatasetConfig, OrderConfig, PartConfig, StrategyConfig, TrainerConfig, plain
from xclrun.core import plugins
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.identity import DataIdentity, Stage, digest, run_id, stages, strategy_name
from xclrun.core.languages import key_of
from xclrun.core.stream import Hop, Stream, in_blocks, resolve_order, sequence, transfer
from xclrun.data.blocks import trained_heads, with_blocks
from xclrun.data.example import Dataset
from xclrun.data.load import load_dataset, read_whole
from xclrun.data.orders import complete_order, compute_order
from xclrun.model.source import encoder_identity
from xclrun.run.advice import notes_of
from xclrun.run.checks import check_dev, check_encoder, check_graphs, check_mixtures, check_packing, check_tasks
from xclrun.store.rundir import RunDirectory
from xclrun.store.stages import StageStore
from xclrun.strategy import Strategy, make
from xclrun.strategy.lang_spec_ft import LangSpecFT
from xclrun.strategy.shared.adapters import AdapterSettings
from xclrun.strategy.shared.expansion import ExpandableSettings


@dataclass(frozen=True)
class Run:
    """One composed job with everything that names it.

    Attributes:
        config: its config; what was left open (a bucket's number, an order by size) is filled in.
        dataset: the labelled examples.
        stream: the hops.
        id: the run id.
        stages: the stages of the hops, hop 0 first.
        data_fingerprint: hash of the whole dataset.
        algorithms: version of what computes the results (`DataIdentity.algorithms`).
        whole_fingerprint: hash of the dataset that the bucket was drawn from; empty without a bucket.
        encoder: identity of the encoder before fine-tuning.
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

    @property
    def resolved(self) -> dict[str, Any]:
        """The config as nested plain values: what is hashed, frozen and logged."""
        found: dict[str, Any] = plain(self.config)
        return found

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

    @property
    def strategy_name(self) -> str:
        """Name of the strategy for people: ``er``, or ``er+lang_spec_task``."""
        return strategy_name(self.resolved)

    @property
    def keys(self) -> list[str]:
        """Keys of everything in the store that the run reads or makes, sorted."""
        return sorted({key for stage in self.stages for key in stage.keys})

    @cached_property
    def label(self) -> str:
        """Short words for a person: strategy, order, seed, and K and bucket if there are any."""
        c = self.config
        words = [self.strategy_name, str(c.order.name), f"seed {c.seed}"]
        words += [] if c.shots is None else [f"K = {c.shots}"]
        return " · ".join(words if c.bucket is None else [*words, f"bucket {c.bucket}"])

    def cost(self, hop: Hop) -> dict[str, Any]:
        """Return what the time of a hop's training depends on, next to the machine: for estimates."""
        own: dict[str, Any] = plain(self.config.model)
        windowed = any(of.task.answers for of in self.dataset.targets)
        other = ("lr", "source_lr", "path", *(() if windowed else ("windows",)))
        model = {key: value for key, value in own.items() if key not in other}
        how = plain(self.trainer(hop))
        trainer = {key: how[key] for key in ("batch_size", "gradient_accumulation", "precision")}
        if how["optimizer_state"] != "fresh":
            # More is stored.
            trainer["optimizer_state"] = how["optimizer_state"]
        trainer |= {key: True for key in ("packing", "cuda_graphs") if how[key]}
        heads = [number for of in self.dataset.targets for number in (len(of.labels), len(of.tags))]
        return {
            "model": digest([model, trainer, *heads])[:16],
            "strategy": self.strategy_name if self.strategy().signature(hop) else "naive",
            "examples": self.sentences(hop),
            **({"steps": self._steps_of_mixture(hop)} if hop.mixed else {}),
        }

    def sentences(self, hop: Hop) -> int:
        """Return how many sentences a hop trains on, in each epoch; a mixture, in its steps."""
        there = self._training_sentences(hop)
        return self._steps_of_mixture(hop) * self.trainer(hop).batch(there) if hop.mixed else there

    def _training_sentences(self, hop: Hop) -> int:
        """Return how many sentences a hop has to train on."""
        there = sum(len(self.dataset.split(key, "train")) for key in hop.train)
        limit = self.strategy().limit(hop)
        return there if limit is None else min(there, limit)

    def _steps_of_mixture(self, hop: Hop) -> int:
        return self.trainer(hop).steps_of_mixture(self._training_sentences(hop))

    def epochs(self, hop: Hop) -> int:
        """Return how many epochs a hop's training has; that of a mixture is one."""
        return 1 if hop.mixed else self.trainer(hop).epochs

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Warnings to print before the run begins, a line each (`xclrun.run.advice`)."""
        return tuple(notes_of(self))

    @property
    def in_blocks(self) -> dict[str, Any]:
        """Facts of a stream in blocks, for its manifest: their number, and which of their heads the start knows.

        Empty for other streams.
        """
        number, (*start, key) = self.config.dataset.blocks, self.stream.languages
        if number is None:
            return {}
        return {"blocks": number, "start_knows": trained_heads(self.dataset, key, tuple(start))}

    def trainer(self, hop: Hop) -> TrainerConfig:
        """Return how a hop is trained."""
        protocol = self.config.protocol
        return self.config.trainer if protocol is None or hop.adapts else protocol.source_trainer

    def reference(self) -> Run:
        """Return the run whose scores are the reference scores M of this one: each language learned alone.

        With language adapters where this one has some.
        """
        alone = ExpandableSettings(LangSpecFT.name, expansion=self.strategy().adapters)
        return plan_run(replace(self.config, strategy=alone, strategy_label=None))

    def strategy(self) -> Strategy[Any]:
        """Return a fresh strategy object."""
        return make(self.config.strategy)


_datasets: dict[str, tuple[Dataset, DataIdentity, str]] = {}
# Sweeps come back to the same few datasets: one per bucket.
KEPT = 64


def _dataset(config: Config) -> tuple[Dataset, DataIdentity, str]:
    """Return a run's dataset, what of it goes into ids, and the hash of what its bucket, if any, was drawn from."""
    # Budgets of replay stand with the dataset, but are no part of it.
    source = {key: value for key, value in plain(config.dataset).items() if key != "replay"}
    # In few-shot transfer the source is learned whole.
    few_shot = [str(config.language)] if config.protocol else None
    key = json.dumps([source, config.bucket, config.shots, few_shot], sort_keys=True)
    if key not in _datasets:
        if few_shot is not None:
            few_shot = [_key(name, read_whole(config.dataset), "language") for name in few_shot]
        dataset = load_dataset(config.dataset, config.bucket, config.shots, few_shot)
        if len(_datasets) >= KEPT:
            _datasets.clear()
        whole = "" if config.bucket is None else _identity(read_whole(config.dataset)).fingerprint
        _datasets[key] = dataset, _identity(dataset), whole
    return _datasets[key]


_orders: dict[tuple[str, str], list[str]] = {}


def _arranged(order: OrderConfig, dataset: Dataset, fingerprint: str) -> list[str]:
    """Return the languages of an order that is worked out: once for all jobs, since similarity reads all words."""
    key = repr(order), fingerprint
    if key not in _orders:
        _orders[key] = list(compute_order(order, dataset))
    return list(_orders[key])


def _identity(dataset: Dataset) -> DataIdentity:
    spans = any(metric.span_f1 for metric in dataset.metrics.all)
    crf = any(of.task.crf and of.tags for of in dataset.targets)
    # MLQA's English answers were once scored as SQuAD's: epochs chosen by these scores count no more.
    mlqa = any(of.task.answers and rule_of(k, dataset.reader) == "en" for of in dataset.targets for k in of.keys)
    sets = [[*of.sets, *(["MLQA's English"] if mlqa else [])] for of in dataset.targets]
    if dataset.task is None:
        # Examples do not say by which task they are learned.
        whole = [[*own, sorted(of.keys)] for own, of in zip(sets, dataset.targets, strict=True)]
        return DataIdentity(dataset.fingerprints, digest(whole), spans, crf)
    return DataIdentity(dataset.fingerprints, digest(sets[0]), spans, crf)


def notes(runs: Iterable[Run]) -> list[str]:
    """Return the notes of several runs, each once."""
    return list(dict.fromkeys(note for run in runs for note in run.notes))


def plan_jobs(configs: Iterable[Config]) -> list[Run]:
    """Return the runs of several jobs, each once, in order."""
    runs: dict[str, Run] = {}
    for run in map(plan_run, configs):
        runs.setdefault(run.id, run)
    return list(runs.values())


def plan_run(config: Config) -> Run:
    """Read the data and work out the run.

    Raises:
        UsageError: a value, the data or the order cannot work.
    """
    check(config)
    config, dataset, data, whole = _read(config)
    config, order = _ordered(config, dataset, data.fingerprint)
    config = replace(config, plugins=_plugins(config))
    # Blocks are of the same sentences: what the encoder comes from is that of runs without them.
    encoder = encoder_identity(config.model, dataset)
    if (blocks := config.dataset.blocks) is not None:
        dataset = with_blocks(dataset, order[-1], blocks, config.dataset.subset_seed)
        data = _identity(dataset)
    strategy = make(config.strategy)
    stream = _checked(config, dataset, strategy, order)
    resolved = plain(config)
    return Run(
        config=config,
        dataset=dataset,
        stream=stream,
        id=run_id(resolved, data, encoder, strategy.identified()),
        stages=stages(resolved, stream, data, encoder, strategy),
        data_fingerprint=data.fingerprint,
        algorithms=data.algorithms,
        whole_fingerprint=whole,
        encoder=encoder,
    )


def _read(config: Config) -> tuple[Config, Dataset, DataIdentity, str]:
    """Return a config with the dataset's own keys, and its dataset as of `_dataset`."""
    if config.shots is not None and config.bucket is None:
        config = replace(config, bucket=0)
    if config.protocol is not None:
        config = replace(config, source=config.from_source)
    dataset, data, whole = _dataset(config)
    if config.dataset.languages is not None and not config.dataset.parts:
        keys = [key_of(name, dataset.languages, "dataset.languages") for name in config.dataset.languages]
        config = replace(config, dataset=replace(config.dataset, languages=keys))
    if config.protocol is not None:
        given = {"source": config.source, "language": config.language}
        named = {what: name and _key(name, dataset, what) for what, name in given.items()}
        if named != given:
            config = replace(config, source=named["source"], language=named["language"])
            # Both may be the same key.
            check(config)
    return replace(config, strategy=_with_adapters(config.strategy, dataset)), dataset, data, whole


def _ordered(config: Config, dataset: Dataset, fingerprint: str) -> tuple[Config, tuple[str, ...]]:
    """Return a config whose order has a name and lists its languages, and these."""
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
    """Return the hops of a run whose data, strategy and model can be had together."""
    check_tasks(config, dataset, strategy)
    check_packing(config, strategy)
    check_graphs(config)
    check_encoder(config, dataset, strategy)
    stream = stream_of(config, strategy, order)
    for language in stream.languages:
        learnt = any(language in (*hop.train, hop.codes.rpartition("#")[0]) for hop in stream.hops)
        if not dataset.split(language, "train") and learnt:
            raise UsageError(f"dataset={dataset.name}: '{language}' has no training data; it can only be evaluated")
    check_dev(config, dataset, stream)
    return stream


def _plugins(config: Config) -> dict[str, list[str]]:
    """Return the plug-ins that the dataset and the strategy of a config come from, if they are not the package's."""
    strategies = (config.strategy, getattr(config.strategy, "expansion", None))
    datasets: list[DatasetConfig | PartConfig] = [config.dataset, *config.dataset.parts.values()]
    kinds = {("dataset", of.reader) for of in datasets} | {("task", of.task) for of in datasets}
    plugins_of = {
        "dataset": plugins.used(*sorted((kind, name) for kind, name in kinds if name is not None)),
        "strategy": plugins.used(*(("strategy", s.name) for s in strategies if s is not None)),
    }
    return {group: used for group, used in plugins_of.items() if used}


def _key(name: str, dataset: Dataset, what: str) -> str:
    """Return the key that a name given as ``what`` means."""
    key = key_of(name, dataset.languages, what)
    if key not in dataset.languages:
        raise UsageError(f"{what}={key}: the dataset has no such language; {did_you_mean(key, dataset.languages)}")
    return key


def _with_adapters(settings: StrategyConfig, dataset: Dataset, name: str = "strategy") -> StrategyConfig:
    """Return a strategy's settings, and its expansion's, with the keys whose pretrained adapters they give."""
    if isinstance(settings, ExpandableSettings) and settings.expansion is not None:
        return replace(settings, expansion=_with_adapters(settings.expansion, dataset, f"{name}.expansion"))
    if not isinstance(settings, AdapterSettings) or not isinstance(settings.pretrained, dict):
        return settings
    what, found = f"{name}.pretrained", {}
    for language, place in settings.pretrained.items():
        key = _key(str(language), dataset, what)
        if key in found:
            raise UsageError(f"{what}: '{key}' is there twice")
        found[key] = place
    return replace(settings, pretrained=found)


def stream_of(config: Config, strategy: Strategy[Any], order: Sequence[str]) -> Stream:
    """Return the hops of a run: the strategy's own, or those of few-shot transfer.

    Raises:
        UsageError: the strategy has its own hops, which few-shot transfer or blocks cannot have; or parts for each
            language, which blocks are none.
    """
    check_mixtures(config, strategy, order)
    if config.dataset.blocks is not None:
        which = f"strategy={config.strategy.name} dataset.blocks={config.dataset.blocks}"
        if strategy.gives_parts or getattr(config.strategy, "expansion", None) is not None:
            raise UsageError(f"{which}: gives each language parts of its own; blocks are of one language")
        try:
            return in_blocks(order, config.dataset.blocks, strategy.stream)
        except ValueError as error:
            raise UsageError(f"{which}: {error}; growing, naive and inc_joint do") from None
    stream = strategy.stream(order)
    if config.protocol is None:
        return stream
    if stream != sequence(order):
        raise UsageError(
            f"strategy={config.strategy.name}: has hops of its own; few-shot transfer trains on a source, then adapts"
        )
    return transfer(config.from_source, order[-1])
