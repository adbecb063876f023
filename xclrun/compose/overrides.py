"""Overrides of the command line: checked, and rewritten where Hydra would misread them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, QuotedString, ValueType

from xclrun.compose.keys import expansions_known
from xclrun.config.files import choices, yaml_danger
from xclrun.config.schema import MEASURES, WAYS
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.identity import flat
from xclrun.core.plugins import load_folder

# An order with arguments, random(1), which Hydra would take for a function call; not the functions of Hydra itself.
_CALL = re.compile(r"(?<![\w'\"])(?!(?:choice|range|interval|glob|sort|shuffle)\()([A-Za-z_]\w*)\(([^()]*)\)")
# Keys of maps with free names.
_MAPS = re.compile(r"dataset\.(parts(\.[^.]+\.where)?|hub_columns|statements\.kinds)|model\.settings")

# Nodes of Hydra's config that xclrun uses, and that ``--config-dir`` sets.
USED = ("launcher", "sweeper")
# Nodes that Hydra fills in.
_FILLED = ("overrides", "runtime", "searchpath")
# Other nodes → what to do instead.
_OUTPUTS = "outputs lie in paths.outputs, runs in a folder named by their ID"
_LOGS = "xclrun writes no log files; XCLRUN_DEBUG=1 shows the traceback of an error"
INSTEAD = {
    "run": _OUTPUTS,
    "sweep": _OUTPUTS,
    "output": _OUTPUTS,
    "output_subdir": "each run has its config in config.yaml of its own folder",
    "verbose": _LOGS,
    "hydra_logging": _LOGS,
    "job_logging": _LOGS,
    "job": "set the current folder and environment variables before the command, and sweep_name=NAME for the runs",
    "mode": "several values of a key make a sweep, as in seed=1,2,3",
    "searchpath": "--config-dir=DIR adds a folder of YAML files and plug-ins",
    "callbacks": "plug-ins extend xclrun: --plugin FILE.py",
}
# Overrides that `own_files` has returned.
_config_dirs: set[str] = set()


def parse(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides; a mistake in their grammar raises Hydra's OverrideParseException."""
    state = GlobalHydra.instance()
    # With it, glob() finds the choices of a group.
    config_loader = state.config_loader() if state.is_initialized() else None
    return OverridesParser.create(config_loader=config_loader).parse_overrides(list(overrides))


def rewritten(overrides: Sequence[str]) -> list[str]:
    """Rewrite overrides that Hydra would misread; a sweep is rewritten job by job.

    - ``order=[en,de]`` becomes ``order=list order.languages=[en,de]``, and so does ``order.languages`` alone: a list
      must not have the name of another order.
    - ``order=random(1)`` becomes ``order=random order.seed=1``; see `_of_call`.
    - ``strategy.expansion=NAME`` is the choice of a group.
    - ``dataset.parts={…}`` and other maps in `_MAPS` take new entries, and ``model.settings.KEY=VALUE`` a new or
      another one.
    - ``~/folder`` is a path, which the shell does not expand after a ``=``.
    """
    result = []
    for text in overrides:
        key, _, value = text.partition("=")
        key, bare = key.strip(), value.strip()
        if value.startswith("~") and "," not in value:
            text = f"{key}='{os.path.expanduser(value)}'"
        elif key == "order" and bare.startswith("["):
            if not _swept(text):
                result.append("order=list")
                text = f"order.languages={value}"
        elif key == "order" and (call := _CALL.fullmatch(bare.strip("'\""))):
            result += _of_call(text, *call.groups())
            continue
        elif key == "order":
            text = f"{key}={_CALL.sub(lambda call: repr(call[0]), value)}" if "(" in bare else text
        elif _MAPS.fullmatch(key) and bare.startswith("{"):
            text = f"+{text}"
        elif key.startswith("model.settings."):
            text = f"++{text}"
        elif key in ("strategy.expansion", "strategy/expansion") and not _swept(text):
            # No expansion is a value, not a choice.
            separator = "." if bare == "null" or bare.startswith("{") else "/"
            text = f"strategy{separator}expansion={value}"
        result.append(text)
    keys = {text.partition("=")[0].strip() for text in result}
    return ["order=list", *result] if "order.languages" in keys and "order" not in keys else result


def _of_call(text: str, name: str, arguments: str) -> list[str]:
    """Return the overrides that ``order=NAME(ARGUMENTS)`` represents.

    Raises:
        UsageError: there is no such order, or it has no such arguments.
    """
    words = [word.strip() for word in arguments.split(",")]
    settings = [
        ("seed" if word.isdecimal() else "measure" if word in MEASURES else "start", word)
        for word in words
        if (name, word) != ("similarity", "greedy")
    ]
    keys = {key for key, _ in settings}
    if not all(words) or len(keys) < len(settings) or not keys <= set(WAYS.get(name, ())):
        raise UsageError(
            f"{text}: orders with arguments are random(SEED), typology(LANGUAGE), similarity(greedy) and, with "
            f"{' or '.join(MEASURES)} and the language to start with, similarity(greedy,typology,de)"
        )
    return [f"order={name}", *(f"order.{key}={word}" for key, word in settings)]


def _swept(text: str) -> bool:
    return parse([text])[0].is_sweep_override()


def checked(arguments: Sequence[str]) -> list[str]:
    """Return a command's overrides as Hydra takes them; refuse those without the effect that they seem to have.

    Raises:
        UsageError: one line with the override and the reason.
        hydra.errors.HydraException: an override cannot be parsed.
    """
    overrides = rewritten(arguments)
    groups = {**choices(), "strategy/expansion": expansions_known()}
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
        if text not in _config_dirs:
            _check_used_key(key, str(text))
        if override.type is OverrideType.DEL:
            raise UsageError(f"{text}: nothing can be removed; what may be without a value is set to null")
        if key == "order" and text != "order=list" and any(o.startswith("order.languages=") for o in overrides):
            raise UsageError(f"{text} has its own languages; give a list as order=[en,de], without order.languages")
        if key in groups and override.value_type is not ValueType.GLOB_CHOICE_SWEEP:
            _check_choice(override, groups[key])
    return overrides


def _check_used_key(key: str, text: str) -> None:
    top, _, below = key.replace("/", ".").partition(".")
    node = below.partition(".")[0]
    if top == "hydra" and node not in USED:
        advice = f"; {INSTEAD[node]}" if node in INSTEAD else ""
        raise UsageError(f"{text}: xclrun does not use this key{advice}")


def check_hydra_node(node: Mapping[str, Any], default: Mapping[str, Any]) -> None:
    """Refuse keys of Hydra's config that a user's YAML files set and xclrun does not use.

    Args:
        node, default: Hydra's config with and without the files, as nested dicts.

    Raises:
        UsageError: names the key.
    """
    found, before = (dict(flat(config, {*USED, *_FILLED, "job.override_dirname"})) for config in (node, default))
    for key in found:
        if found[key] != before.get(key):
            _check_used_key(f"hydra.{key}", f"--config-dir: hydra.{key}={found[key]}")


def _check_choice(override: Override, known: Sequence[str] | dict[str, str]) -> None:
    key, text = override.key_or_group, override.input_line
    if override.type is not OverrideType.CHANGE:
        raise UsageError(f"{text}: a choice replaces the one before it; leave out the +")
    for value in override.sweep_iterator() if override.is_discrete_sweep() else [override.value()]:
        name = value.text if isinstance(value, QuotedString) else value
        if key.startswith("hydra/") and name == "basic":
            raise UsageError(f"{text}: Hydra's own cannot run xclrun's jobs; leave it out")
        if not (isinstance(name, str) and name) and not (isinstance(name, list) and key == "order"):
            raise UsageError(f"{text}: needs a name; {did_you_mean(str(name), known)}")


def own_files(folder: Path) -> str:
    """Return the override that adds a folder of YAML files (``--config-dir``), and load its plug-ins.

    Raises:
        UsageError: the folder is missing, or a file in it is unreadable or dangerous (`yaml_danger`); or see
            `load_folder`.
    """
    if not folder.is_dir():
        raise UsageError(f"--config-dir {folder}: there is no such folder")
    load_folder(folder)
    for path in sorted(folder.rglob("*.yaml")):
        try:
            danger = yaml_danger(path.read_text(encoding="utf-8")) if path.is_file() else None
        except (OSError, ValueError) as error:
            raise UsageError(f"--config-dir: {path} cannot be read ({error})") from None
        if danger is not None:
            raise UsageError(f"--config-dir: {path}:{danger[0]}: cannot be read as YAML ({danger[1]})")
    place = f"file://{folder.resolve()}"
    # Quotes only where Hydra's grammar wants them: commands are shown to be typed again.
    plain = re.fullmatch(r"[\w:/.+-]+", place, re.ASCII)
    text = f"hydra.searchpath=[{place}]" if plain else f"hydra.searchpath=['{place}']"
    _config_dirs.add(text)
    return text
