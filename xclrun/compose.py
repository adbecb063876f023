"""From overrides to configs: what Hydra composes, for thousands of jobs in seconds.

Hydra composes one job in about a tenth of a second. Jobs of a sweep differ in few groups and in many plain values, so
one config is composed per combination of groups and of values that others refer to; the remaining plain values (seed,
bucket) are set on it one job after another. The result equals Hydra's own, job by job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from xclrun.config import SCHEMAS, Config, packaged
from xclrun.errors import UsageError
from xclrun.strategy import STRATEGIES, strategy_class

# Plain values that no other value refers to, and that sweeps vary most.
FREE = ("seed", "bucket")


def register() -> None:
    """Make the typed schemas and the sweeps known to Hydra."""
    store = ConfigStore.instance()
    for name, schema in SCHEMAS.items():
        store.store(group="schema", name=name, node=schema)
    for name in STRATEGIES:
        store.store(group="schema/strategy", name=name, node=strategy_class(name).settings_type)
    for path in sorted(packaged("sweeps").glob("*.yaml")):
        node = yaml.safe_load(path.read_text(encoding="utf-8"))
        store.store(group="sweep", name=path.stem, package="_global_", node=node, provider="sweeps")


@contextmanager
def loader() -> Iterator[ConfigLoader]:
    """Yield Hydra's config loader on the packaged configs, outside of a Hydra main."""
    from hydra import initialize_config_dir

    register()
    with initialize_config_dir(str(packaged("conf").resolve()), version_base="1.3", job_name="xclrun"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        yield hydra.config_loader


def parse(overrides: Sequence[str], config_loader: ConfigLoader | None = None) -> list[Override]:
    """Return parsed overrides; a mistake in their grammar is Hydra's OverrideParseException."""
    return OverridesParser.create(config_loader=config_loader).parse_overrides(list(overrides))


def lists_of_languages(overrides: Sequence[str]) -> list[str]:
    """Rewrite ``order=[en,de]``, which is no choice of a group to Hydra, as ``order=list order.languages=[en,de]``."""
    result = []
    for text in overrides:
        key, _, value = text.partition("=")
        if key.strip() == "order" and value.strip().startswith("[") and not parse([text])[0].is_sweep_override():
            result += ["order=list", f"order.languages={value}"]
        else:
            result.append(text)
    return result


def expand(overrides: Sequence[str], config_loader: ConfigLoader) -> list[list[str]]:
    """Return the overrides of each job of a sweep: all combinations of the values given with commas or ranges."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    parsed = parse(overrides, config_loader)
    continuous = [o.input_line for o in parsed if o.is_sweep_override() and not o.is_discrete_sweep()]
    if continuous:
        raise UsageError(f"{continuous[0]}: a sweep needs values to choose from, as in seed=1,2,3 or seed=range(1,4)")
    [jobs] = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    return [lists_of_languages(job) for job in jobs]


@dataclasses.dataclass(frozen=True)
class Composed:
    """The config of one job.

    Attributes:
        config: typed.
        resolved: nested plain values.
        overrides: what the job was asked for.
    """

    config: Config
    resolved: dict[str, Any]
    overrides: tuple[str, ...]


def compose_jobs(
    jobs: Sequence[Sequence[str]], config_loader: ConfigLoader, hydra_overrides: Sequence[str] = ()
) -> list[Composed]:
    """Compose the configs of many jobs.

    Args:
        jobs: overrides of each job, as `expand` gives them.
        hydra_overrides: overrides of Hydra's own node, common to all jobs.

    Raises:
        hydra.errors.HydraException: an override does not fit the configs.
    """
    parsed = {text: parse([text])[0] for job in jobs for text in job}
    bases: dict[tuple[str, ...], tuple[Config, dict[str, Any]]] = {}
    result = []
    for job in jobs:
        free = {text: parsed[text] for text in job if _is_free(parsed[text])}
        rest = tuple(text for text in job if text not in free)
        if rest not in bases:
            bases[rest] = _compose([*hydra_overrides, *rest], config_loader)
        config, resolved = bases[rest]
        values = {o.key_or_group: _checked(o) for o in free.values()}
        changed = dataclasses.replace(config, **values) if values else config
        result.append(Composed(changed, {**resolved, **values}, tuple(job)))
    return result


def _is_free(override: Override) -> bool:
    return override.type is OverrideType.CHANGE and override.key_or_group in FREE


def _checked(override: Override) -> Any:
    """Return the value of a free override as the schema types it."""
    schema = OmegaConf.structured(Config)
    key = override.key_or_group
    OmegaConf.update(schema, key, override.value())
    return schema[key]


def _compose(overrides: Sequence[str], config_loader: ConfigLoader) -> tuple[Config, dict[str, Any]]:
    cfg = config_loader.load_configuration("config", list(overrides), run_mode=RunMode.RUN, from_shell=False)
    return typed(cfg)


def typed(cfg: DictConfig) -> tuple[Config, dict[str, Any]]:
    """Return a composed config as dataclasses and as nested plain values, without Hydra's node.

    Raises:
        UsageError: a value that must be given is missing.
    """
    plain = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    missing = sorted(OmegaConf.missing_keys(plain))
    if missing:
        raise UsageError(f"{missing[0]} must be given")
    resolved = OmegaConf.to_container(plain, resolve=True, enum_to_str=True)
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), plain))
    assert isinstance(config, Config)
    assert isinstance(resolved, dict)
    return config, {str(key): value for key, value in resolved.items()}


def known_keys() -> list[str]:
    """Return every key of every choice, dotted: what a mistyped key is compared with."""
    found: set[str] = set()

    def collect(node: Any, prefix: str) -> None:
        for f in dataclasses.fields(node):
            kind = f.type if isinstance(f.type, type) else _named(f.type)
            if kind is not None and dataclasses.is_dataclass(kind):
                collect(kind, f"{prefix}{f.name}.")
            else:
                found.add(prefix + f.name)

    collect(Config, "")
    for name in STRATEGIES:
        collect(strategy_class(name).settings_type, "strategy.")
    return sorted(found)


def _named(annotation: Any) -> type | None:
    from xclrun import config

    return getattr(config, annotation, None) if isinstance(annotation, str) else None
