"""Errors of Hydra and OmegaConf about a wrong override, as one line with the nearest known name."""

from __future__ import annotations

import re

from hydra.errors import MissingConfigException, OverrideParseException
from yaml import YAMLError

from xclrun.compose.keys import expansions_known, nearest
from xclrun.config.files import choices
from xclrun.core.errors import did_you_mean

# Part of a message of OmegaConf → what the user can do.
VALUES = {
    "is not Optional": "cannot be null",
    "is not a ListConfig": "must be a list, as in [a,b]",
    "is not a subclass of": "is no single value; set the keys below it",
    "is incompatible with (str)": "cannot be a name; choose a word that begins with a letter",
    "Incompatible key type": "null cannot be a name; choose a word that begins with a letter",
    "'NoneType' object has no attribute 'get'": "is null, and takes no entries; set the key above it as a whole",
}
# Group → further possible values.
OWN = "; or your own, with --plugin FILE.py or --config-dir DIR"
BESIDES = {"order": "; or a list of languages, as in order=[en,de]", "strategy": OWN, "dataset": OWN}


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
    # OmegaConf adds the key to any error; it is empty where a name in a map is null.
    for cause in chain:
        key = getattr(cause, "full_key", None)
        if key or (key == "" and str(error).startswith("Error merging override ")):
            return _wrong_value(key or str(error).split()[3].partition("=")[0].lstrip("+"), str(cause))
    first, *more = (str(error).strip() or type(error).__name__).splitlines()
    # Where the first line only announces the second.
    return f"{first} {more[0].strip()}" if first.endswith(":") and more else first


def explain_yaml(error: YAMLError) -> str:
    """Return one line for a YAML file that cannot be read: the place, and the problem."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    if "tag:yaml.org,2002:python" in problem:
        problem = "tags such as !!python/… would run code, and are never read"
    place = "" if mark is None else f"{mark.name}:{mark.line + 1}: "
    return f"{place}cannot be read as YAML ({problem})"


def _grammar(error: OverrideParseException) -> str:
    reason = next((line for line in str(error).splitlines() if not line.startswith("Error parsing")), "")
    if reason.startswith("LexerNoViableAltException"):
        # It quotes the whole override, and points below the place.
        reason = "a blank or sign that needs quotes"
    how = """values are set as key=value, or "key='a value'" where they hold blanks or signs"""
    return f"'{error.override}' cannot be read ({reason.partition(' expecting {')[0]}); {how}"


def _unknown_choice(error: MissingConfigException) -> str:
    group, _, choice = str(error.missing_cfg_file).rpartition("/")
    known = expansions_known() if group == "strategy/expansion" else choices().get(group, {})
    shown = group.replace("strategy/expansion", "strategy.expansion")
    return f"{shown}={choice}: unknown; {did_you_mean(choice, known)}{BESIDES.get(group, '')}"


def _wrong_value(key: str, message: str) -> str:
    what = message.partition("\n")[0]
    if "is not in struct" in what or " not in '" in what:
        return f"unknown key '{key}'; {nearest(key)}"
    return f"{key}: {next((said for part, said in VALUES.items() if part in what), what)}"
