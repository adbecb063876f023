"""Configs of runs that another process will do, or has done: frozen in the run directory, and thawed there."""

from __future__ import annotations

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
from xclrun.core.secret import private
from xclrun.run.plan import Run, plan_run
from xclrun.store.files import atomic_write, write_json
from xclrun.store.rundir import RunDirectory
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
    # Those of parts lie below the dataset's, where there is one.
    for part in dataset["parts"].values() if dataset["root"] is None else ():
        part["root"] = part["root"] and _absolute(part["root"])
    resolved["strategy"] = _with_folders(resolved["strategy"])
    content = OmegaConf.to_yaml(OmegaConf.create(resolved))
    atomic_write(run.directory.config, content, private())
    write_json(run.directory.queued, {"keys": run.keys})


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

    Args:
        outputs: the folder that it is to write to; None: as its config says.
        fresh: with the store of that folder, wherever the run had its own.

    Raises:
        RunError: it is another run now: the data or the encoder has changed; or its config cannot be read.
        UsageError: its data cannot be read any more.
    """
    try:
        frozen = OmegaConf.load(directory.config)
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
    except (OSError, ValueError, TypeError, AttributeError, AssertionError, OmegaConfBaseException, YAMLError) as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunError(f"{directory.config} cannot be read ({first}); give the command of the run again") from error
    run = plan_run(replace(config, strategy_label=label))
    if run.id != directory.run_id:
        raise RunError(
            f"{directory.run_id}: the data or the encoder has changed since it was submitted; give the command again"
        )
    return run
