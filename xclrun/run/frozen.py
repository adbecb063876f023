"""Configs of runs that another process will do, or has done: frozen in the run directory, and thawed there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from xclrun.config.schema import Config
from xclrun.core import plugins
from xclrun.core.errors import RunError
from xclrun.core.version import code_version
from xclrun.run.plan import Run, plan_run
from xclrun.store.rundir import RunDirectory, UnreadableRun
from xclrun.strategy import strategy_class


def freeze(run: Run) -> None:
    """Write the config of a run that another process will do, with paths that hold in any current folder."""
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
    # Those of parts lie below the dataset's, if there is one.
    for part in dataset["parts"].values() if dataset["root"] is None else ():
        part["root"] = part["root"] and _absolute(part["root"])
    resolved["strategy"] = _with_folders(resolved["strategy"])
    run.directory.queue(OmegaConf.to_yaml(OmegaConf.create(resolved)), run.keys)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _with_folders(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a strategy in which folders of pretrained adapters, also its expansion's, are absolute."""
    result = dict(settings)
    if result.get("expansion"):
        result["expansion"] = _with_folders(result["expansion"])
    for language, name in (result.get("pretrained") or {}).items():
        folder = Path(name).expanduser()
        result["pretrained"] = result["pretrained"] | {language: str(folder.absolute()) if folder.is_dir() else name}
    return result


def thaw(directory: RunDirectory, outputs: Path | None = None, fresh: bool = False) -> Run:
    """Return the run whose config was frozen in a directory.

    No code of a plug-in runs before the config and the plug-in's file have been compared with their checksums.

    Args:
        outputs: the folder that it is to write to; None: as its config says.
        fresh: with the store of that folder, wherever the run had its own.

    Raises:
        RunError: its config has changed or cannot be read, another version made it, or the same config is another run
            now, since the data or the encoder has changed.
        UsageError: its data cannot be read any more.
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
        schema = OmegaConf.structured(Config)
        schema.strategy = strategy_class(frozen.strategy.name).settings_type
        if (expansion := frozen.strategy.get("expansion")) is not None:
            schema.strategy.expansion = strategy_class(expansion.name).settings_type
        config = OmegaConf.to_object(OmegaConf.merge(schema, frozen))
        assert isinstance(config, Config)
    except UnreadableRun as error:
        raise RunError(str(error)) from error
    except (OSError, ValueError, TypeError, AttributeError, AssertionError, OmegaConfBaseException, YAMLError) as error:
        if (made := _other_version(directory)) and isinstance(error, OmegaConfBaseException):
            why = f"made by {made}, and this version cannot read its config"
            raise RunError(f"{directory.run_id}: {why}; give the command of the run again") from error
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunError(f"{directory.config} cannot be read ({first}); give the command of the run again") from error
    run = plan_run(replace(config, strategy_label=label))
    if run.id != directory.run_id:
        raise RunError(f"{directory.run_id}: {_why_another(run, directory)}; give the command again")
    return run


def _other_version(directory: RunDirectory) -> str:
    """Return which version made a run, in words; empty if it is this one, or not known."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        version = str(directory.read_manifest()["code_version"])
        made, now = (text.partition("+")[0].split(".") for text in (version, code_version()))
        if version != code_version():
            # Between two commits of a release there is no order.
            return f"{'an older' if [*map(int, made)] < [*map(int, now)] else 'another'} version ({version})"
    return ""


def _why_another(run: Run, directory: RunDirectory) -> str:
    """Return why a config that has not changed is another run now."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        manifest = directory.read_manifest()
        if manifest["data"]["fingerprint"] != run.data_fingerprint:
            return "the data has changed since the run began"
        if manifest["encoder"] != run.encoder:
            return "the encoder has changed since the run began"
        if made := _other_version(directory):
            return f"made by {made}; this version gives the run another ID"
    return "the data or the encoder has changed since it was submitted"
