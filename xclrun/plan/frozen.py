"""Frozen configs: saved in the run directory, so that another process can execute or repeat the run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from xclrun.config.schema import Config, Keep
from xclrun.core import plugins
from xclrun.core.errors import RunError
from xclrun.core.files import UNREADABLE
from xclrun.core.identity import NESTED, RENAMED
from xclrun.core.version import code_version
from xclrun.plan.run import Run, plan_run
from xclrun.store.rundir import RunDirectory, UnreadableRun
from xclrun.store.users import register
from xclrun.strategy import strategy_class


def freeze(run: Run) -> None:
    """Write a run's config into its directory, with absolute paths, for another process."""
    resolved = run.resolved
    paths, dataset, model = (resolved[group] for group in ("paths", "dataset", "model"))
    for node, key in (
        (paths, "outputs"),
        (paths, "store"),
        (dataset, "root"),
        (dataset["buckets"], "root"),
        (model, "path"),
    ):
        if node[key] is not None:
            node[key] = _absolute(node[key])
    # Without dataset.root, each part has its own root.
    for part in dataset["parts"].values() if dataset["root"] is None else ():
        part["root"] = part["root"] and _absolute(part["root"])
    for node in (dataset, *dataset["parts"].values()):
        node["hub"] = node["hub"] and _folder_or_name(node["hub"])
    resolved["strategy"] = _with_folders(resolved["strategy"])
    register(run.store.root, run.outputs)
    run.directory.queue(OmegaConf.to_yaml(OmegaConf.create(resolved)), run.stored)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _folder_or_name(name: str) -> str:
    """Return the absolute path of a local folder; names on the hub are unchanged."""
    folder = Path(name).expanduser()
    return str(folder.absolute()) if folder.is_dir() else name


def _with_folders(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Make the paths of pretrained adapters absolute, in the settings of a strategy and in nested settings."""
    result = dict(settings)
    for key in NESTED:
        if result.get(key):
            result[key] = _with_folders(result[key])
    for language, name in (result.get("pretrained") or {}).items():
        result["pretrained"] = result["pretrained"] | {language: _folder_or_name(name)}
    return result


def thaw(directory: RunDirectory, outputs: Path | None = None, fresh: bool = False) -> Run:
    """Return the run whose config `freeze` wrote into a run directory.

    Config and plug-in files are compared with their checksums before a plug-in's code runs.

    Args:
        outputs: output folder; None: the config's folder.
        fresh: use the output folder's store instead of the config's store, and keep all weights (``store.keep``).

    Raises:
        RunError: the config is damaged or of another version, or the run's data or encoder has changed.
        UsageError: the data cannot be read.
    """
    try:
        directory.check_format()
        frozen = OmegaConf.create(directory.read_config())
        assert isinstance(frozen, DictConfig)
        if outputs is not None:
            frozen.paths.outputs = str(outputs)
        if fresh:
            frozen.paths.store = None
        label = frozen.pop("strategy_label", None)
        for group in ("dataset", "strategy"):
            plugins.require(frozen[group].pop("plugins", ()), directory.run_id)
        _rename(frozen)
        schema = OmegaConf.structured(Config)
        _set_types(schema, frozen, "strategy")
        config = OmegaConf.to_object(OmegaConf.merge(schema, frozen))
        assert isinstance(config, Config)
        if fresh:
            config = replace(config, store=replace(config.store, keep=Keep.all))
    except UnreadableRun as error:
        raise RunError(str(error)) from error
    except (*UNREADABLE, AssertionError, OmegaConfBaseException, YAMLError) as error:
        if (version := _other_version(directory)) and isinstance(error, OmegaConfBaseException):
            why = f"made by {version}, whose config this version cannot read"
            raise RunError(f"{directory.run_id}: {why}; re-run the command that created it") from error
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunError(f"{directory.config} cannot be read ({first}); re-run the command that created it") from error
    run = plan_run(replace(config, strategy_label=label))
    if run.id != directory.run_id:
        raise RunError(f"{directory.run_id}: {_why_another(run, directory)}; re-run its command")
    return run


def _rename(frozen: DictConfig) -> None:
    """Give keys of an earlier release the names that the strategy's settings have now."""
    names = strategy_class(frozen.strategy.name).settings_type.__dataclass_fields__
    for new, old in (tuple(name.rpartition(".")[2] for name in pair) for pair in RENAMED.items()):
        if new in names and old not in names and old in frozen.strategy:
            frozen.strategy[new] = frozen.strategy.pop(old)


def _set_types(schema: DictConfig, frozen: DictConfig, key: str) -> None:
    """Set the types of a strategy's settings and of the settings nested in them."""
    schema[key] = strategy_class(frozen[key].name).settings_type
    for inner in NESTED:
        if frozen[key].get(inner) is not None:
            _set_types(schema[key], frozen[key], inner)


def _other_version(directory: RunDirectory) -> str:
    """Describe the version that made a run; empty if the version is unknown or is the current version."""
    with contextlib.suppress(*UNREADABLE):
        version = str(directory.read_manifest()["code_version"])
        previous, current = (text.partition("+")[0].split(".") for text in (version, code_version()))
        if version != code_version():
            # Only releases have an order: another commit of the same release is not "older".
            return f"{'an older' if [*map(int, previous)] < [*map(int, current)] else 'another'} version ({version})"
    return ""


def _why_another(run: Run, directory: RunDirectory) -> str:
    """Return why an unchanged config has another run ID."""
    with contextlib.suppress(*UNREADABLE):
        manifest = directory.read_manifest()
        if manifest["data"]["fingerprint"] != run.data_fingerprint:
            return "the data has changed since the run began"
        if manifest["encoder"] != run.encoder:
            return "the encoder has changed since the run began"
        if version := _other_version(directory):
            return f"made by {version}; this version gives the run another ID"
    return "the data or the encoder has changed since the run was submitted"
