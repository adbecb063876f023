"""From overrides to configs: what Hydra composes, for thousands of jobs in seconds.

Hydra composes one job in about a tenth of a second. Jobs of a sweep differ in few groups and in many plain values, so
one config is composed per combination of groups and of values that others refer to; the remaining plain values (seed,
shots, bucket) are set on it one job after another. The result equals Hydra's own, job by job.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, QuotedString, ValueType
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from xclrun.config.files import choices, packaged, strategy_name
from xclrun.config.schema import SCHEMAS, Config, ProtocolConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.names import check_name
from xclrun.core.plugins import provided, without_yaml
from xclrun.core.secret import put_away
from xclrun.data.readers import READERS
from xclrun.strategy import STRATEGIES, having, strategy_class

# Plain values that no other value refers to, and that sweeps vary most.
FREE = ("seed", "language", "shots", "bucket")

# Jobs of one sweep.
MOST = 100_000


def no_expansion() -> str:
    """Return why the strategy chosen has no key ``expansion``."""
    able, parts, mixing = (", ".join(having(trait)) for trait in ("expandable", "gives_parts", "mixes_languages"))
    return (
        f"the strategy chosen cannot have one; {able} can. {parts} are expansions themselves, naive with one is that "
        f"one, and {mixing} mix languages in a batch, which have no parts in common"
    )


@cache
def expansions_known() -> dict[str, str]:
    """Return the choices of ``strategy.expansion``, and what each is: strategies that give languages parts."""
    parts = having("gives_parts")
    return {choice: what for choice, what in choices()["strategy"].items() if strategy_name(choice) in parts}


def register() -> None:
    """Make the typed schemas and the sweeps known to Hydra, whose store of them lasts as long as the process.

    Strategies and dataset readers of plug-ins get a choice each, unless a YAML in a config folder gives it.
    """
    _register_packaged()
    store = ConfigStore.instance()
    for name in provided("strategy"):
        cls = strategy_class(name)
        store.store(group="schema/strategy", name=name, node=cls.settings_type)
        if cls.gives_parts:
            node: dict[str, Any] = {"defaults": [f"/strategy/{name}@_here_"]}
            store.store(group="strategy/expansion", name=name, node=node, provider="plug-in")
    for name in without_yaml("strategy"):
        below: list[Any] = ["_self_", {"expansion": None}] if strategy_class(name).expandable else []
        node = {"defaults": [f"/schema/strategy/{name}@_here_", *below], "name": name}
        store.store(group="strategy", name=name, node=node, provider="plug-in")
    for name in without_yaml("dataset"):
        node = {"defaults": ["/schema/dataset@_here_"], "name": name, "reader": name, **READERS[name].config}
        store.store(group="dataset", name=name, node=node, provider="plug-in")


@cache
def _register_packaged() -> None:
    store = ConfigStore.instance()
    for name in expansions_known():
        node = {"defaults": [f"/strategy/{name}@_here_"]}
        store.store(group="strategy/expansion", name=name, node=node, provider="xclrun")
    for name, schema in SCHEMAS.items():
        store.store(group="schema", name=name, node=schema)
    for name in STRATEGIES:
        store.store(group="schema/strategy", name=name, node=strategy_class(name).settings_type)
    for path in sorted(packaged("sweeps").glob("*.yaml")):
        node = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
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
    """Rewrite ``order=[en,de]``, which is no choice of a group to Hydra, as ``order=list order.languages=[en,de]``.

    Languages that are given without an order are a list too: a list must not pass under the name of another order.
    """
    result = []
    for text in overrides:
        key, _, value = text.partition("=")
        if key.strip() == "order" and value.strip().startswith("[") and not parse([text])[0].is_sweep_override():
            result += ["order=list", f"order.languages={value}"]
        else:
            result.append(text)
    keys = {text.partition("=")[0].strip() for text in result}
    return ["order=list", *result] if "order.languages" in keys and "order" not in keys else result


def expansions(overrides: Sequence[str]) -> list[str]:
    """Rewrite ``strategy.expansion=NAME``, a choice that reads like a value, as the choice of a group that it is."""

    def rewritten(text: str) -> str:
        key, _, value = text.partition("=")
        if key.strip() not in ("strategy.expansion", "strategy/expansion") or parse([text])[0].is_sweep_override():
            return text
        # To Hydra no choice is a value.
        separator = "." if value.strip() == "null" or value.strip().startswith("{") else "/"
        return f"strategy{separator}expansion={value}"

    return [rewritten(text) for text in overrides]


def by_job(overrides: Sequence[str]) -> list[str]:
    """Make a sweep of one of each value below a group that is swept, as in ``strategy=er,agem strategy.memory=7``.

    Each job then sets it on its own choice. What is no sweep Hydra first sets on the group's default, which may have
    no such key. A sweep's YAML (``sweep=``) may sweep any group.

    Args:
        overrides: as `checked` gives them.
    """
    parsed = parse(overrides)
    groups = {group for group in choices() if "/" not in group}
    if not any(override.key_or_group == "sweep" for override in parsed):
        groups &= {override.key_or_group for override in parsed if override.is_sweep_override()}
    result = []
    for text, override in zip(overrides, parsed, strict=True):
        group, *below = re.split(r"[./]", override.key_or_group)
        key, _, value = text.partition("=")
        if below and value.strip() and group in groups and not override.is_sweep_override():
            # choice() takes no null; of values given twice `expand` makes one job.
            result.append(f"{key}=null,null" if value.strip() == "null" else f"{key}=choice({value})")
        else:
            result.append(text)
    return result


def protocols(overrides: Sequence[str]) -> list[str]:
    """Choose the experiment of a sweep's YAML at once where keys of its protocol are set: without it there are none.

    Raises:
        UsageError: nothing that is chosen has a protocol.
    """
    given = {key.strip(): value for key, _, value in (text.partition("=") for text in overrides)}
    below = [key for key in given if key.startswith("protocol.")]
    if not below or {"experiment", "protocol"} & given.keys():
        return list(overrides)
    path = packaged("sweeps") / f"{given.get('sweep')}.yaml"
    params = yaml.safe_load(path.read_text(encoding="utf-8"))["hydra"]["sweeper"]["params"] if path.is_file() else {}
    if "experiment" not in params:
        raise UsageError(f"{below[0]}={given[below[0]]}: needs experiment=fewshot")
    return [f"experiment={params['experiment']}", *overrides]


def checked(arguments: Sequence[str]) -> list[str]:
    """Return a command's overrides as Hydra takes them; refuse those that would not do there what they seem to.

    Raises:
        UsageError: a key is empty or removed; a group's choice is no name, or is added to another; several sweeps;
            Hydra's own launcher or sweeper is chosen.
        hydra.errors.HydraException: an override that cannot be parsed.
    """
    overrides = protocols(expansions(lists_of_languages([_at_home(argument) for argument in arguments])))
    groups = {**choices(), "strategy/expansion": expansions_known(), "hydra/sweeper": {}}
    parsed = parse(overrides)
    sweeps = [override for override in parsed if override.key_or_group == "sweep"]
    if len(sweeps) > 1 or any(override.is_sweep_override() for override in sweeps):
        raise UsageError(f"{' '.join(str(o.input_line) for o in sweeps)}: one sweep is taken at a time")
    for override in parsed:
        key, text = override.key_or_group, override.input_line
        if not key:
            raise UsageError(f"'{text}' has no key; values are set as key=value")
        if override.value_type is ValueType.GLOB_CHOICE_SWEEP and key not in groups:
            raise UsageError(f"{text}: glob() chooses among the files of a group; give values, as in seed=1,2,3")
        if key.startswith("hydra.") and key.endswith("._target_"):
            raise UsageError(
                f"{text}: only xclrun's own can run jobs; hydra/launcher=local and hydra/launcher=slurm can"
            )
        if override.type is OverrideType.DEL:
            raise UsageError(f"{text}: nothing can be removed; what may be without a value is set to null")
        if key == "order" and text != "order=list" and any(o.startswith("order.languages=") for o in overrides):
            raise UsageError(f"{text} has its own languages; give a list as order=[en,de], without order.languages")
        if key not in groups or override.value_type is ValueType.GLOB_CHOICE_SWEEP:
            continue
        if override.type is not OverrideType.CHANGE:
            raise UsageError(f"{text}: a choice replaces the one before it; leave out the +")
        for value in override.sweep_iterator() if override.is_discrete_sweep() else [override.value()]:
            name = value.text if isinstance(value, QuotedString) else value
            if key.startswith("hydra/") and name == "basic":
                raise UsageError(f"{text}: Hydra's own cannot run xclrun's jobs; leave it out")
            if not (isinstance(name, str) and name) and not (isinstance(name, list) and key == "order"):
                raise UsageError(f"{text}: needs a name; {did_you_mean(str(name), groups[key])}")
    return overrides


def check_files(folder: Path) -> None:
    """Check that the YAML files of a folder of the user's are text, which Hydra would not name.

    Raises:
        UsageError: one is not.
    """
    for path in sorted(folder.rglob("*.yaml")):
        try:
            if path.is_file():
                path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"--config-dir: {path} cannot be read ({error})") from None


def _at_home(text: str) -> str:
    """Return ``key=~/folder`` with the home folder's path, which neither the shell nor Hydra puts there."""
    key, _, value = text.partition("=")
    return f"{key}='{os.path.expanduser(value)}'" if value.startswith("~") and "," not in value else text


def expand(
    overrides: Sequence[str], config_loader: ConfigLoader, preset: Mapping[str, Any] | None = None
) -> list[list[str]]:
    """Return the overrides of each job of a sweep: all combinations of the values given with commas or ranges.

    ``preset`` (of a sweep's YAML) holds further values by key; those in ``overrides`` count.

    Raises:
        UsageError: a range without steps, or without values; more than `MOST` jobs.
        hydra.errors.HydraException: an override that cannot be parsed.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    given = {text.partition("=")[0].replace("strategy/expansion", "strategy.expansion") for text in overrides}
    before = [f"{key}={value}" for key, value in (preset or {}).items() if key not in given]
    parsed = parse([*before, *overrides], config_loader)
    continuous = [o.input_line for o in parsed if o.is_sweep_override() and not o.is_discrete_sweep()]
    if continuous:
        raise UsageError(f"{continuous[0]}: a sweep needs values to choose from, as in seed=1,2,3 or seed=range(1,4)")
    # Counted before they are made: a zero too many in a range would take all memory.
    count = 1
    for override in parsed:
        if override.is_sweep_override():
            values = len(set(map(str, islice(override.sweep_iterator(), MOST + 1))))
            if not values:
                raise UsageError(f"{override.input_line}: has no values")
            if (count := count * values) > MOST:
                raise UsageError(f"{override.input_line}: more than {MOST:,} jobs; share them out among several sweeps")
    [jobs] = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    return [expansions(lists_of_languages(job)) for job in dict.fromkeys(map(tuple, jobs))]


def compose_command(arguments: Sequence[str]) -> list[Composed]:
    """Compose all jobs of a command, outside of a Hydra main: for plans.

    Args:
        arguments: as given to ``xclrun``; ``-m`` is allowed and changes nothing.
    """
    overrides = by_job(checked([a for a in arguments if a not in ("-m", "--multirun")]))
    with loader() as config_loader:
        main = config_loader.load_configuration("config", overrides, run_mode=RunMode.MULTIRUN)
        jobs = expand(list(main.hydra.overrides.task), config_loader, main.hydra.sweeper.params)
        return compose_jobs(jobs, config_loader, list(main.hydra.overrides.hydra))


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
    parsed = {text: parse([text])[0] for text in dict.fromkeys(text for job in jobs for text in job)}
    free_values = {text: _checked(override) for text, override in parsed.items() if _is_free(override)}
    bases: dict[tuple[str, ...], tuple[Config, dict[str, Any]] | None] = {}
    result = []
    for job in jobs:
        rest = tuple(text for text in job if text not in free_values)
        if rest not in bases:
            try:
                cfg = _load([*hydra_overrides, *rest], config_loader)
            except ConfigCompositionException:
                _check_all_have([parsed[text] for text in rest], list(parsed.values()), hydra_overrides, config_loader)
                raise
            bases[rest] = None if _refers_to_free(cfg) else typed(cfg)
        config, resolved = bases[rest] or typed(_load([*hydra_overrides, *job], config_loader))
        values = {parsed[text].key_or_group: free_values[text] for text in job if text in free_values}
        changed = dataclasses.replace(config, **values) if values else config
        result.append(Composed(changed, {**resolved, **values}, tuple(job)))
    return result


def _check_all_have(
    job: Sequence[Override], parsed: Sequence[Override], hydra_overrides: Sequence[str], config_loader: ConfigLoader
) -> None:
    """Check that the choices of a group that is swept all have the keys that a job sets below it.

    Args:
        job: the overrides of one job that could not be composed.
        parsed: those of all jobs.

    Raises:
        UsageError: names which have one, and which do not; nothing where none has it, which `nearest` explains.
    """
    for override in job:
        group, *below = override.key_or_group.split(".")
        given = [str(o.input_line) for o in parsed if o.key_or_group == group]
        if not below or len(given) < 2 or override.type is not OverrideType.CHANGE:
            continue
        having: dict[bool, list[str]] = {True: [], False: []}
        for text in given:
            cfg = _load([*hydra_overrides, *lists_of_languages([text])], config_loader)
            node: Any = cfg[group]
            for part in below[:-1]:
                node = node.get(part) if OmegaConf.is_dict(node) else None
            having[OmegaConf.is_dict(node) and below[-1] in node].append(text.partition("=")[2])
        if having[True] and having[False]:
            yes, no = (
                f"{', '.join(names)} {verb}"
                for names, verb in (
                    (having[True], "has" if len(having[True]) == 1 else "have"),
                    (having[False], "has not" if len(having[False]) == 1 else "have not"),
                )
            )
            raise UsageError(
                f"{override.input_line}: of {group}={','.join(t.partition('=')[2] for t in given)} {yes} "
                f"this key, {no}; give those that have it a command of their own"
            )


def _is_free(override: Override) -> bool:
    if override.type is not OverrideType.CHANGE or override.key_or_group not in FREE:
        return False
    return "${" not in str(override.value())


def _refers_to_free(cfg: DictConfig) -> bool:
    """Whether a value refers to one of `FREE`, as in ``dataset.subset_seed=${seed}``."""
    plain = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    text = OmegaConf.to_yaml(plain)
    return bool(re.search(rf"\$\{{[^}}]*\b({'|'.join(FREE)})\b", text))


def _checked(override: Override) -> Any:
    """Return the value of a free override as the schema types it."""
    schema = OmegaConf.structured(Config)
    key = override.key_or_group
    OmegaConf.update(schema, key, override.value())
    return schema[key]


def _load(overrides: Sequence[str], config_loader: ConfigLoader) -> DictConfig:
    try:
        return config_loader.load_configuration("config", list(overrides), run_mode=RunMode.RUN, from_shell=False)
    except AssertionError:
        # Hydra's answer to a key below one that is null.
        if below := [text for text in overrides if text.startswith("protocol.")]:
            raise UsageError(f"{below[0]}: needs experiment=fewshot") from None
        raise


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
    if added := next(_added(resolved, config), None):
        raise UsageError(f"no key is called '{added}'; {nearest(added)}")
    if config.tracking.uri is not None:
        config.tracking.uri = resolved["tracking"]["uri"] = put_away(config.tracking.uri)
    chosen = OmegaConf.select(cfg, "hydra.runtime.choices.strategy")
    if chosen is not None and chosen not in choices()["strategy"]:
        check_name("strategy", chosen)
        config.strategy_label = resolved["strategy_label"] = chosen
    return config, {str(key): value for key, value in resolved.items()}


def _added(node: Mapping[Any, Any], instance: Any, prefix: str = "") -> Iterator[str]:
    """Yield the keys that are no fields of the schema: ``+key=value`` gets past Hydra's check."""
    fields = {f.name for f in dataclasses.fields(instance) if not f.metadata.get("omegaconf_ignore")}
    for key, value in node.items():
        if key not in fields:
            yield f"{prefix}{key}"
        elif dataclasses.is_dataclass(getattr(instance, key)):
            yield from _added(value, getattr(instance, key), f"{prefix}{key}.")


def known_keys() -> list[str]:
    """Return every key of every choice, dotted: what a mistyped key is compared with."""
    found: set[str] = set()

    def collect(node: Any, prefix: str) -> None:
        for f in dataclasses.fields(node):
            kind = f.type if isinstance(f.type, type) else _named(f.type)
            if kind is not None and dataclasses.is_dataclass(kind):
                collect(kind, f"{prefix}{f.name}.")
            elif not f.metadata.get("omegaconf_ignore"):
                found.add(prefix + f.name)

    collect(Config, "")
    collect(ProtocolConfig, "protocol.")
    for name in STRATEGIES:
        collect(strategy_class(name).settings_type, "strategy.")
    return sorted(found)


def nearest(key: str) -> str:
    """Return the end of an error line about a key that is not there: the nearest known one, and those beside it."""
    known = known_keys()
    if key == "strategy.expansion":
        return no_expansion()
    if key in known:
        having = [name for name in STRATEGIES if key.removeprefix("strategy.") in _settings(name)]
        last = having.pop()
        owners = f"{', '.join(having)} and {last} have" if having else f"{last} has"
        return f"the strategy chosen has no such setting; {owners} it"
    meant = _with_known_parents(key, known)
    parent, dot, _ = meant.rpartition(".")
    if siblings := [name for name in known if dot and name.startswith(parent + dot)]:
        return did_you_mean(meant, siblings, limit=20)
    top = {name.partition(".")[0] for name in known} | {group for group in choices() if "/" not in group}
    return did_you_mean(key.partition(".")[0], top, limit=20)


def _with_known_parents(key: str, known: Sequence[str]) -> str:
    """Return a dotted key with each part but the last as the nearest one there; the key itself where none is near."""
    *parts, last = key.split(".")
    before = ""
    for part in parts:
        below = (name.removeprefix(before) for name in known if name.startswith(before))
        near = get_close_matches(part, sorted({name.partition(".")[0] for name in below if "." in name}), n=1)
        if not near:
            return key
        before += f"{near[0]}."
    return before + last


def _settings(strategy: str) -> set[str]:
    return {f.name for f in dataclasses.fields(strategy_class(strategy).settings_type)}


def _named(annotation: Any) -> type | None:
    from xclrun.config import schema as config

    return getattr(config, annotation, None) if isinstance(annotation, str) else None
