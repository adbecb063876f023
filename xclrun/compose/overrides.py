"""Check command-line overrides, and rewrite overrides that Hydra would misread."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Quote, QuotedString, ValueType

from xclrun.compose.keys import nested_choices
from xclrun.config.files import choices, yaml_danger, yaml_files
from xclrun.config.schema import MEASURES, WAYS
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.files import read_text
from xclrun.core.identity import NESTED, flat
from xclrun.core.plugins import load_folder

# An order with arguments, as in random(1), which Hydra would parse as a function call. Excludes Hydra's own functions.
_CALL = re.compile(r"(?<![\w'\"])(?!(?:choice|range|interval|glob|sort|shuffle)\()([A-Za-z_]\w*)\(([^()]*)\)")
# Keys whose value is another strategy.
_NESTED = re.compile(rf"strategy[./]({'|'.join(NESTED)})")
_EXAMPLES = {"expansion": "lang_spec_task", "merged": "er"}
# Maps whose keys the user chooses.
_MAPS = re.compile(r"dataset\.(parts(\.[^.]+\.where)?|hub_columns|statements\.kinds)|model\.settings")

# Nodes of Hydra's config that a user may set.
USED = ("launcher", "sweeper")
# Nodes that Hydra fills in.
_FILLED = ("overrides", "runtime", "searchpath")
# Node that xclrun does not use → advice.
_OUTPUTS = "set paths.outputs; each run has a folder named by its ID"
_LOGS = "xclrun writes no log files; XCLRUN_DEBUG=1 shows the traceback of an error"
INSTEAD = {
    "run": _OUTPUTS,
    "sweep": _OUTPUTS,
    "output": _OUTPUTS,
    "output_subdir": "the config of a run is config.yaml in the run's folder",
    "verbose": _LOGS,
    "hydra_logging": _LOGS,
    "job_logging": _LOGS,
    "job": "use cd and export before the command, and sweep_name=NAME to name the sweep",
    "mode": "give a key several values for a sweep, as in seed=1,2,3",
    "searchpath": "--config-dir=DIR adds a folder of YAML files and plug-ins",
    "callbacks": "extend xclrun by a plug-in: --plugin FILE.py",
}
# Overrides from `load_config_dir`.
_config_dirs: set[str] = set()


def parse(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides; a syntax error raises Hydra's OverrideParseException."""
    state = GlobalHydra.instance()
    # For glob(), which lists the choices of a group.
    config_loader = state.config_loader() if state.is_initialized() else None
    return OverridesParser.create(config_loader=config_loader).parse_overrides(list(overrides))


def rewritten(overrides: Sequence[str]) -> list[str]:
    """Rewrite overrides that Hydra would misread; overrides of a sweep are rewritten for each job.

    - ``order=[en,de]`` becomes ``order=list order.languages=[en,de]``. ``order=list`` is also added to
      ``order.languages`` alone; otherwise, the run would use the name of the default order for this list.
    - ``order=random(1)`` becomes ``order=random order.seed=1``; see `_order_call`.
    - ``strategy.expansion=NAME`` becomes ``strategy/expansion=NAME``, the choice of a group.
    - ``dataset.parts={…}`` and other maps in `_MAPS` get the prefix ``+``, because their entries are new.
      ``model.settings.KEY=VALUE`` gets ``++``, because its entry may be new.
    - ``~/folder`` is expanded, because shells do not expand it after ``=``.
    """
    result = []
    for text in overrides:
        key, _, value = text.partition("=")
        key, bare = key.strip(), value.strip()
        if value.startswith("~") and "," not in value:
            text = f"{key}={_quoted(os.path.expanduser(value))}"
        elif key == "order" and bare.startswith("["):
            if not _swept(text):
                result.append("order=list")
                text = f"order.languages={value}"
        elif key == "order" and (call := _CALL.fullmatch(bare.strip("'\""))):
            result += _order_call(text, *call.groups())
            continue
        elif key == "order":
            text = f"{key}={_CALL.sub(lambda call: repr(call[0]), value)}" if "(" in bare else text
        elif _MAPS.fullmatch(key) and bare.startswith("{"):
            text = f"+{text}"
        elif key.startswith("model.settings."):
            text = f"++{text}"
        elif (nested := _NESTED.fullmatch(key)) and not _swept(text):
            if bare.startswith("{"):
                result += _nested_mapping(text, nested[1])
                continue
            # null is a value, not a choice.
            separator = "." if bare == "null" else "/"
            text = f"strategy{separator}{nested[1]}={value}"
        result.append(text)
    keys = {text.partition("=")[0].strip() for text in result}
    return ["order=list", *result] if "order.languages" in keys and "order" not in keys else result


def _quoted(text: str) -> str:
    """Return a text as a quoted string of Hydra's grammar."""
    return QuotedString(text, Quote.single).with_quotes()


def _nested_mapping(text: str, key: str) -> list[str]:
    """Return the overrides for ``strategy.expansion={name: NAME, KEY: VALUE, …}``; ``key``: ``expansion``."""
    settings = parse([text])[0].value()
    assert isinstance(settings, dict)
    plain = {str(key): setting for key, setting in settings.items()}
    if not isinstance(name := plain.pop("name", None), str):
        raise UsageError(f"{text}: needs a name, as in strategy.{key}={_EXAMPLES[key]}")
    if deeper := next((key for key, setting in plain.items() if isinstance(setting, dict | list)), None):
        raise UsageError(f"{text}: use strategy.{key}={name} strategy.{key}.{deeper}=…")
    return [f"strategy/{key}={name}", *(f"strategy.{key}.{k}={_scalar(v)}" for k, v in plain.items())]


def _scalar(value: Any) -> str:
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _order_call(text: str, name: str, arguments: str) -> list[str]:
    """Return the overrides for ``order=NAME(ARGUMENTS)``."""
    words = [word.strip() for word in arguments.split(",")]
    settings = [
        ("seed" if word.isdecimal() else "measure" if word in MEASURES else "start", word)
        for word in words
        if (name, word) != ("similarity", "greedy")
    ]
    keys = {key for key, _ in settings}
    if not all(words) or len(keys) < len(settings) or not keys <= set(WAYS.get(name, ())):
        raise UsageError(
            f"{text}: orders with arguments are random(SEED), typology(START), similarity(greedy) and "
            f"similarity(greedy,MEASURE,START); MEASURE is {' or '.join(MEASURES)}, START is the first language"
        )
    return [f"order={name}", *(f"order.{key}={word}" for key, word in settings)]


def _swept(text: str) -> bool:
    return parse([text])[0].is_sweep_override()


def checked(arguments: Sequence[str]) -> list[str]:
    """Return a command's overrides for Hydra. Raise a `UsageError` if one would be ignored or misread."""
    overrides = rewritten(arguments)
    groups = choices() | {key.replace(".", "/"): names for key, names in nested_choices().items()}
    parsed = parse(overrides)
    if "strategy=merge" in overrides:
        for typed in arguments:
            name, _, value = typed.partition("=")
            if name in ("strategy.expansion", "strategy/expansion"):
                raise UsageError(f"{typed}: strategy=merge has no expansion; use strategy.merged={value}")
    sweeps = [override for override in parsed if override.key_or_group == "sweep"]
    if len(sweeps) > 1 or any(override.is_sweep_override() for override in sweeps):
        raise UsageError(f"{' '.join(str(o.input_line) for o in sweeps)}: run one sweep at a time")
    for override in parsed:
        key, text = override.key_or_group, override.input_line
        if not key:
            raise UsageError(f"'{text}' has no key; values are set as key=value")
        if override.value_type is ValueType.GLOB_CHOICE_SWEEP and key not in groups:
            raise UsageError(f"{text}: glob() is for choices of a group; give values, as in seed=1,2,3")
        if key.startswith("hydra.") and key.endswith("._target_"):
            raise UsageError(f"{text}: cannot be changed; use hydra/launcher=local or hydra/launcher=slurm")
        if text not in _config_dirs:
            _check_used_key(key, str(text))
        if override.type is OverrideType.DEL:
            raise UsageError(f"{text}: keys cannot be removed; set the key to null")
        if key == "order" and text != "order=list" and any(o.startswith("order.languages=") for o in overrides):
            raise UsageError(f"{text} sets its own languages; for a list, use order=[en,de] without order.languages")
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
    """Raise a `UsageError` if YAML files in --config-dir set keys of Hydra's config that xclrun does not use.

    Args:
        node, default: Hydra's config with and without the files, as nested dicts.
    """
    values, before = (dict(flat(config, {*USED, *_FILLED, "job.override_dirname"})) for config in (node, default))
    for key in values:
        if values[key] != before.get(key):
            _check_used_key(f"hydra.{key}", f"--config-dir: hydra.{key}={values[key]}")


def _check_choice(override: Override, names: Iterable[str]) -> None:
    key, text = override.key_or_group, override.input_line
    if override.type is not OverrideType.CHANGE:
        raise UsageError(f"{text}: a choice replaces the previous one; remove the +")
    for value in override.sweep_iterator() if override.is_discrete_sweep() else [override.value()]:
        name = value.text if isinstance(value, QuotedString) else value
        if key.startswith("hydra/") and name == "basic":
            raise UsageError(f"{text}: cannot run xclrun's jobs; remove it")
        if not (isinstance(name, str) and name) and not (isinstance(name, list) and key == "order"):
            raise UsageError(f"{text}: needs a name; {did_you_mean(str(name), names)}")


def load_config_dir(folder: Path, overrides: Sequence[str] = ()) -> str:
    """Return the override for a folder of YAML files (``--config-dir``), and load its plug-ins.

    Raise a `UsageError` for an unreadable or dangerous file whose name the overrides or another file contain. Other
    files are not loaded.
    """
    if not folder.is_dir():
        raise UsageError(f"--config-dir {folder}: there is no such folder")
    load_folder(folder)
    texts, broken = list(overrides), {}
    for path in yaml_files(folder):
        try:
            text = read_text(path)
            danger = yaml_danger(text)
        except (OSError, ValueError) as error:
            broken[path] = f"{path} cannot be read ({getattr(error, 'strerror', None) or error})"
            continue
        if danger is None:
            texts.append(text)
        else:
            broken[path] = f"{path}:{danger[0]}: cannot be read as YAML ({danger[1]})"
    for path, problem in broken.items():
        if any(re.search(rf"(?<![\w-]){re.escape(path.stem)}(?![\w-])", text) for text in texts):
            raise UsageError(f"--config-dir: {problem}")
    place = f"file://{folder.resolve()}"
    # Quote only if Hydra's grammar requires it, so printed commands are easy to read and copy.
    plain = re.fullmatch(r"[\w:/.+-]+", place, re.ASCII)
    text = f"hydra.searchpath=[{place if plain else _quoted(place)}]"
    _config_dirs.add(text)
    return text
