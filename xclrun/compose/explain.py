"""Convert errors of Hydra, OmegaConf and YAML to one-line messages with the key and the valid values."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, KeyValidationError, ValidationError
from yaml import YAMLError

from xclrun.compose.keys import nearest, nested_choices
from xclrun.config.files import YAML_WORDS, choices
from xclrun.core.errors import did_you_mean

# Type of a key → its values.
_VALUES = {int: "a whole number", float: "a number", bool: "true or false"}
# Group → end of the message: other valid values.
_CUSTOM = "; or your own, with --plugin FILE.py or --config-dir DIR"
_ALSO = {"order": "; or a list of languages, as in order=[en,de]", "strategy": _CUSTOM, "dataset": _CUSTOM}


def explain(error: BaseException) -> str:
    """Return one line for an exception of Hydra or OmegaConf."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    for cause in chain:
        if isinstance(cause, OverrideParseException):
            return _grammar(cause)
        if isinstance(cause, MissingConfigException):
            return _unknown_choice(cause)
        if unknown := re.match(r"Could not override '([^']+)'", str(cause)):
            key = unknown[1].replace("/", ".")
            return f"unknown key '{key}'; {nearest(key)}"
    # OmegaConf sets `full_key` on every error, to an empty text if a key of a map is null.
    for cause in chain:
        key = getattr(cause, "full_key", None)
        if key or (key == "" and str(error).startswith("Error merging override ")):
            return _wrong_value(key or str(error).split()[3].partition("=")[0].lstrip("+"), cause)
    first, *rest = (str(error).strip() or type(error).__name__).splitlines()
    # If the first line ends with a colon, the problem is in the second.
    return f"{first} {rest[0].strip()}" if first.endswith(":") and rest else first


def explain_yaml(error: YAMLError) -> str:
    """Return one line for an unreadable YAML file: the location and the problem."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    if "tag:yaml.org,2002:python" in problem:
        problem = "tags such as !!python/… would run code; remove them"
    place = "" if mark is None else f"{mark.name}:{mark.line + 1}: "
    return f"{place}cannot be read as YAML ({problem})"


def _grammar(error: OverrideParseException) -> str:
    reason = next((line for line in str(error).splitlines() if not line.startswith("Error parsing")), "")
    if reason.startswith("LexerNoViableAltException"):
        # The rest of the message quotes the whole override.
        odd = next((c for c in error.override or "" if not c.isprintable() or c in "“”„‘’–—"), None)
        reason = "a space or special character needs quotes" if odd is None else f"contains {_named(odd)}"
    advice = """values are set as key=value, or "key='a value'" if they contain spaces or special characters"""
    return f"'{error.override}' cannot be read ({reason.partition(' expecting {')[0]}); {advice}"


def _named(character: str) -> str:
    """Describe a character that cannot be seen, or that looks like another one."""
    return f"{unicodedata.name(character, 'a control character').lower()}, U+{ord(character):04X}"


def _unknown_choice(error: MissingConfigException) -> str:
    group, _, choice = str(error.missing_cfg_file).rpartition("/")
    dotted, nested = group.replace("/", "."), nested_choices()
    key = dotted if dotted in nested else group
    names = nested[key] if key in nested else choices().get(group, {})
    if key == "strategy.expansion" and choice in choices()["strategy"]:
        reason = "it changes training or predictions, and an expansion only adds parameters"
        return f"{key}={choice}: cannot be an expansion, because {reason}; choose {', '.join(names)}"
    if group.partition("/")[0] == "model":
        # Hydra takes the slashes of a path for groups.
        path = f"{group}/{choice}".removeprefix("model/")
        if "/" in path or Path(path).is_dir():
            hub = f"; for a name on the hub, model.hub={path}" if re.fullmatch(r"[^/.~]+/[^/]+", path) else ""
            return f"model={path}: not a choice; for a folder, use model=xlmr model.path={path}{hub}"
    return f"{key}={choice}: unknown; {did_you_mean(choice, names)}{_ALSO.get(group, '')}"


def _wrong_value(key: str, error: BaseException) -> str:
    """Explain an error of OmegaConf by its class and the schema, or else by the first line of its message."""
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        return f"unknown key '{key}'; {nearest(key)}"
    if isinstance(error, KeyValidationError):
        if words := YAML_WORDS.get(name := key.rpartition(".")[2]):
            return f"{key}: YAML reads {words} without quotes as {name}; quote it"
        return f"{key}: numbers and null cannot be names here; choose a word that begins with a letter"
    if isinstance(error, ValidationError):
        if error.value is None:
            return f"{key}: cannot be null"
        field = get_type_hints(error.object_type).get(str(error.key)) if is_dataclass(error.object_type) else None
        for kind in (field, *get_args(field)):
            if kind in _VALUES:
                return f"{key}={error.value}: must be {_VALUES[kind]}"
            if get_origin(kind) in (list, tuple):
                return f"{key}: must be a list, as in [a,b]"
            if is_dataclass(kind):
                return f"{key}: has several settings; set the keys below it"
    return f"{key}: {str(error).partition(chr(10))[0]}"
