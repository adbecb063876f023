"""Compose typed configs from overrides: the same configs as Hydra's, but thousands of jobs in seconds.

Hydra takes about 0.1 s per job, mostly to read and merge the choices of groups. This module composes each combination
of choices once, and each order and each strategy once for all combinations. Other values are set in a copy. Values of
`FREE` keys are set directly on the typed config, unless another value refers to these keys.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from xclrun.compose.keys import nearest, nested_choices
from xclrun.compose.overrides import check_hydra_node, checked, parse
from xclrun.compose.space import NAME as SEARCHES
from xclrun.compose.space import SWEEPER, Space, space
from xclrun.compose.sweep import GRIDS, expand, sweep_nodes
from xclrun.config.checks import check_effects
from xclrun.config.files import choices, packaged
from xclrun.config.schema import SCHEMAS, Config, plain
from xclrun.core.errors import UsageError
from xclrun.core.names import check_name
from xclrun.core.plugins import hashes, provided, without_yaml
from xclrun.data.readers import READERS
from xclrun.strategy import STRATEGIES, strategy_class

# Keys that sweeps vary most often, and that other values rarely refer to.
FREE = ("seed", "language", "shots", "bucket")
# Groups whose files set nothing outside their own node: their nodes are composed once for all other choices.
APART = ("order", "strategy")
# Cache of this process: choices of packaged files → composed config.
_COMPOSED: dict[tuple[str, ...], DictConfig] = {}


def register(sweeps: bool = True) -> None:
    """Add the schemas, the sweeps, and the strategies and readers of plug-ins to Hydra's config store.

    A YAML file in a config folder replaces the choice of a plug-in.
    """
    _register_packaged()
    if sweeps:
        _register_sweeps()
    store = ConfigStore.instance()
    for name in provided("strategy"):
        cls = strategy_class(name)
        store.store(group="schema/strategy", name=name, node=cls.settings_type)
        node: dict[str, Any] = {"defaults": [f"/strategy/{name}@_here_"]}
        for group in ["merged", *(["expansion"] if cls.expands else [])]:
            store.store(group=f"strategy/{group}", name=name, node=node, provider="plug-in")
    for name in without_yaml("strategy"):
        expansion: list[Any] = ["_self_", {"expansion": None}] if strategy_class(name).expandable else []
        node = {"defaults": [f"/schema/strategy/{name}@_here_", *expansion], "name": name}
        store.store(group="strategy", name=name, node=node, provider="plug-in")
    for name in without_yaml("dataset"):
        node = {"defaults": ["/schema/dataset@_here_"], "name": name, "reader": name, **READERS[name].config}
        store.store(group="dataset", name=name, node=node, provider="plug-in")


@cache
def _register_packaged() -> None:
    store = ConfigStore.instance()
    # Hydra deep-copies the whole store for every job, although it only reads the store: return the store itself.
    store.__deepcopy__ = lambda memo: store  # type: ignore[attr-defined]
    for key, names in nested_choices().items():
        for name in names:
            node = {"defaults": [f"/strategy/{name}@_here_"]}
            store.store(group=key.replace(".", "/"), name=name, node=node, provider="xclrun")
    for name, schema in SCHEMAS.items():
        store.store(group="schema", name=name, node=schema)
    for name, strategy in STRATEGIES.items():
        store.store(group="schema/strategy", name=name, node=strategy.settings_type)


@cache
def _register_sweeps() -> None:
    for name, node in sweep_nodes().items():
        ConfigStore.instance().store(group="sweep", name=name, package="_global_", node=node, provider="sweeps")


@contextmanager
def composing(hydra_overrides: Sequence[str] = ()) -> Iterator[Composer]:
    """Initialize Hydra for the packaged configs; yield a composer of one command's jobs.

    Args:
        hydra_overrides: overrides of Hydra's node, common to all jobs.
    """
    register(sweeps=False)
    with hydra.initialize_config_dir(str(packaged("conf").resolve()), version_base="1.3", job_name="xclrun"):
        yield Composer(hydra_overrides)


class Composer:
    """Composes configs and caches Hydra's results; see `composing`."""

    def __init__(self, hydra_overrides: Sequence[str]) -> None:
        self.hydra_overrides = tuple(hydra_overrides)
        # Share the cache only without a config folder, whose files may change.
        self.config_dir = any(text.startswith("hydra.searchpath") for text in hydra_overrides)
        self._composed = {} if self.config_dir or hashes() else _COMPOSED

    def chosen(self, overrides: tuple[str, ...]) -> DictConfig:
        """Return the config that Hydra composes. It is cached: do not change it."""
        words = (*self.hydra_overrides, *overrides)
        if words not in self._composed:
            # Adding the sweeps takes a tenth of the time of `xclrun plan`. A config folder can refer to any of them.
            if self.config_dir or any(word.lstrip("+").startswith("sweep=") for word in words):
                _register_sweeps()
            try:
                self._composed[words] = hydra.compose("config", list(words), return_hydra_config=True)
            except AssertionError:
                # Raised by Hydra for a key below a null value.
                keys = {text: text.partition("=")[0] for text in overrides}
                chosen = [text for text, key in keys.items() if "." not in key]
                config = hydra.compose("config", [*self.hydra_overrides, *chosen])
                for text, key in keys.items():
                    parent = key.rpartition(".")[0]
                    if parent and OmegaConf.select(config, parent) is None:
                        advice = f"{parent} is null; set it too"
                        if key.startswith("protocol."):
                            advice = "needs experiment=fewshot"
                        raise UsageError(f"{text}: {advice}") from None
                raise
        return self._composed[words]

    def _apart(self, override: Override) -> str | None:
        """Return the group of `APART` that an override chooses a file of."""
        group: str = override.key_or_group.partition("/")[0]
        plain_choice = override.type is OverrideType.CHANGE and override.package is None
        return group if group in APART and plain_choice and not self.config_dir else None

    def compose(self, overrides: Sequence[Override]) -> DictConfig:
        """Return the config of some overrides, as a copy."""
        values = [override for override in overrides if _is_value(override)]
        words = [(str(o.input_line), self._apart(o)) for o in overrides if not _is_value(o)]
        groups = {group for _, group in words if group}
        without_orders = tuple(text for text, group in words if group != "order")
        if (*self.hydra_overrides, *without_orders) in self._composed:
            groups.discard("strategy")
        try:
            config = copy.deepcopy(self.chosen(tuple(text for text, group in words if group not in groups)))
            for group in sorted(groups):
                choice = tuple(text for text, own in words if own == group)
                # The default choice is in the config already. Composing it again takes a fifth of `xclrun plan`.
                if len(groups) == len(words) and choice == (f"{group}={config.hydra.runtime.choices[group]}",):
                    continue
                part = self.chosen(choice)
                config[group] = part[group]
                with read_write(config.hydra):
                    config.hydra.runtime.choices[group] = part.hydra.runtime.choices[group]
            for override in values:
                OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
        except (OmegaConfBaseException, ConfigCompositionException, AssertionError):
            # Compose with Hydra alone, to raise its own error.
            return copy.deepcopy(self.chosen(tuple(str(override.input_line) for override in overrides)))
        return config


def _is_value(override: Override) -> bool:
    """Whether an override sets a value, instead of choosing a file of a group."""
    key = override.key_or_group
    return override.type is OverrideType.CHANGE and override.package is None and not (key in choices() or "/" in key)


@dataclasses.dataclass(frozen=True)
class Composed:
    """The config of one job, its overrides, and the primary comparisons of its command."""

    config: Config
    overrides: tuple[str, ...]
    comparisons: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def resolved(self) -> dict[str, Any]:
        """The config as nested plain values."""
        values: dict[str, Any] = plain(self.config)
        return values


def compose_command(arguments: Sequence[str]) -> list[Composed]:
    """Compose all jobs of a command. Raise a `UsageError` for a search, whose jobs depend on results."""
    jobs, _ = command_jobs(arguments)
    if isinstance(jobs, Space):
        raise UsageError(f"{SWEEPER}: only `xclrun` and `xclrun plan` accept a search; give the values to use")
    return jobs


def command_jobs(arguments: Sequence[str]) -> tuple[list[Composed] | Space, dict[str, Any]]:
    """Compose all jobs of a command, or its search space.

    Returns:
        The jobs or the space, and ``hydra.launcher`` (see `xclrun.launch.sweep.make_launcher`).
    """
    overrides = parse(checked([a for a in arguments if a not in ("-m", "--multirun")]))
    hydra_overrides = [str(o.input_line) for o in overrides if o.is_hydra_override()]
    task = [o for o in overrides if not o.is_hydra_override()]
    groups = {group for group in choices() if "/" not in group}
    # Compose only choices of groups here, without the other overrides. For a swept group, the default choice is
    # composed, which may lack keys that the command sets.
    chosen = [str(o.input_line) for o in task if o.key_or_group in groups and not o.is_sweep_override()]
    with composing(hydra_overrides) as composer:
        main = composer.chosen(tuple(text for text in chosen if not text.startswith("order=")))
        if composer.config_dir:
            default = hydra.compose("config", return_hydra_config=True)
            nodes: list[Any] = [OmegaConf.to_container(config.hydra) for config in (main, default)]
            check_hydra_node(*nodes)
        launcher: Any = OmegaConf.to_container(main.hydra.launcher, resolve=True)
        sweeper: Any = OmegaConf.to_container(main.hydra.sweeper)
        params = sweeper["params"] or ()
        sweeper["comparisons"] = _comparisons(sweeper.get("comparisons") or {})
        if not params and (sweep := next((text for text in chosen if text.startswith("sweep=")), None)):
            raise UsageError(f"{sweep}: its YAML must set hydra.sweeper.params to {GRIDS}")
        texts = [str(o.input_line) for o in task]
        if main.hydra.runtime.choices["hydra/sweeper"] == SEARCHES:
            return space(texts, params, hydra_overrides, sweeper), launcher
        jobs = compose_jobs(expand(texts, params), composer)
    check_effects([(o.key_or_group, str(o.input_line)) for o in task], [job.config for job in jobs])
    return [dataclasses.replace(job, comparisons=sweeper["comparisons"]) for job in jobs], launcher


def _comparisons(node: Any) -> dict[str, Any]:
    """Check ``hydra.sweeper.comparisons``; return the values that are set."""
    if isinstance(node, dict) and all(value is None for value in node.values()):
        return {}
    from xclrun.analysis.confirmatory import chosen

    return chosen(node)


def compose_trials(searched: Space, trials: Sequence[Mapping[str, str]]) -> list[list[Composed]]:
    """Compose the jobs of each trial of a search; a trial maps searched keys to values as text."""
    with composing(searched.hydra_overrides) as composer:
        return [compose_jobs(expand(checked(searched.overrides(values))), composer) for values in trials]


def compose_jobs(jobs: Sequence[Sequence[str]], composer: Composer) -> list[Composed]:
    """Compose the configs of jobs, given the overrides of each from `expand`."""
    parsed = {text: parse([text])[0] for text in dict.fromkeys(text for job in jobs for text in job)}
    free = {text: _checked_value(override) for text, override in parsed.items() if _is_free(override)}
    bases: dict[tuple[str, ...], Config | None] = {}
    result = []
    for job in jobs:
        words = tuple(text for text in job if text not in free)
        if words not in bases:
            config = composer.compose([parsed[text] for text in words])
            bases[words] = None if _refers_to_free(config) else _named(typed(config), parsed, words)
        if (base := bases[words]) is None:
            base = _named(typed(composer.compose([parsed[text] for text in job])), parsed, job)
        values = {parsed[text].key_or_group: free[text] for text in job if text in free}
        result.append(Composed(dataclasses.replace(base, **values), tuple(job)))
    return result


def _named(config: Config, parsed: Mapping[str, Override], words: Sequence[str]) -> Config:
    """Name an encoder after its folder, ``model.path``, unless ``model.name`` or the user's own YAML file names it."""
    path, inherited = config.model.path, (packaged("conf") / "model" / f"{config.model.name}.yaml").is_file()
    if path is None or not inherited or any(parsed[text].key_or_group == "model.name" for text in words):
        return config
    folder = os.path.basename(os.path.abspath(os.path.expanduser(path)))
    name = re.sub(r"[^\w.+-]", "_", folder).lstrip(".-") or config.model.name
    return dataclasses.replace(config, model=dataclasses.replace(config.model, name=name))


def _is_free(override: Override) -> bool:
    """Whether an override sets a `FREE` key and refers to no other value."""
    change = override.type is OverrideType.CHANGE and override.key_or_group in FREE
    return change and "${" not in str(override.value())


def _refers_to_free(cfg: DictConfig) -> bool:
    """Whether a value refers to a `FREE` key, as in ``dataset.subset_seed=${seed}``."""
    text = OmegaConf.to_yaml(OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"]))
    return bool(re.search(rf"\$\{{[^}}]*\b({'|'.join(FREE)})\b", text))


def _checked_value(override: Override) -> Any:
    """Return the value of an override, converted to the type in the schema."""
    schema = OmegaConf.structured(Config)
    key = override.key_or_group
    OmegaConf.update(schema, key, override.value())
    return schema[key]


def typed(cfg: DictConfig) -> Config:
    """Return a composed config as dataclasses."""
    with open_dict(cfg):
        strategy = cfg.pop("hydra").runtime.choices.strategy
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise UsageError(f"{missing[0]} must be given")
    config = OmegaConf.to_object(cfg)
    assert isinstance(config, Config)
    if added := next(_added(cfg, config), None):
        raise UsageError(f"unknown key '{added}'; {nearest(added)}")
    if strategy not in choices()["strategy"]:
        check_name("strategy", strategy)
        config.strategy_label = strategy
    return config


def _added(node: Mapping[Any, Any], instance: Any, prefix: str = "") -> Iterator[str]:
    """Yield the keys that are not in the schema; Hydra accepts them with ``+key=value``."""
    fields = {f.name for f in dataclasses.fields(instance) if not f.metadata.get("omegaconf_ignore")}
    for key in node:
        if key not in fields:
            yield f"{prefix}{key}"
        elif dataclasses.is_dataclass(getattr(instance, key)):
            yield from _added(node[key], getattr(instance, key), f"{prefix}{key}.")
