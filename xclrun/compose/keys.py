"""Known config keys, and suggestions for unknown keys."""

from __future__ import annotations

import dataclasses
import re
from difflib import get_close_matches
from typing import Any

from xclrun.config import schema
from xclrun.config.files import choices
from xclrun.core.errors import did_you_mean
from xclrun.strategy import STRATEGIES, names_with

# Entries of maps with free names: dataset.parts.NAME.KEY.
_ENTRY = re.compile(r"\+*dataset\.(parts|statements\.kinds)\.([^.]+)\.([^.]+)")


def expansion_choices() -> dict[str, str]:
    """Return choice → description for ``strategy.expansion``: the strategies that only add parameters."""
    descriptions = choices()["strategy"]
    return {name: descriptions.get(name, "") for name in names_with("expands")}


def known_keys(strategy: str | None = None) -> list[str]:
    """Return all dotted keys, with the settings of one strategy or of all."""
    keys: set[str] = set()

    def collect(node: Any, prefix: str) -> None:
        for f in dataclasses.fields(node):
            kind = getattr(schema, f.type, None) if isinstance(f.type, str) else f.type
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                collect(kind, f"{prefix}{f.name}.")
            elif not f.metadata.get("omegaconf_ignore"):
                keys.add(prefix + f.name)

    collect(schema.Config, "")
    collect(schema.ProtocolConfig, "protocol.")
    for name in STRATEGIES if strategy is None or strategy not in STRATEGIES else [strategy]:
        collect(STRATEGIES[name].settings_type, "strategy.")
    return sorted(keys)


def nearest(key: str) -> str:
    """Return the end of an error message about an unknown key: the nearest key and the keys of its group."""
    keys = known_keys()
    if entry := _ENTRY.fullmatch(key):
        group, name, setting = entry.groups()
        node = schema.PartConfig if group == "parts" else schema.StatementKind
        names = [f.name for f in dataclasses.fields(node)]
        if setting in names:
            return f"there is no '{name}'; add it with dataset.{group}={{{name}: {{{setting}: …}}}}"
        return did_you_mean(setting, names)
    if key == "strategy.expansion":
        traits = ("expandable", "adds_language_parts", "mixes_languages")
        expandable, expansions, mixing = (", ".join(names_with(trait)) for trait in traits)
        return (
            f"choose one of the strategies {expandable}. {expansions} are expansions themselves; {mixing} mix "
            "languages in a batch, so they cannot have language-specific parameters"
        )
    if key in ("sweep", "experiment"):
        return f"begin the YAML of the {key} with the line '# @package _global_': it sets keys of the whole config"
    if key in keys:
        owners = [name for name in STRATEGIES if has_setting(name, key.removeprefix("strategy."))]
        return f"this strategy does not have it, only {', '.join(owners)}"
    top = {name.partition(".")[0] for name in keys} | {group for group in choices() if "/" not in group}
    near = get_close_matches(key, {*keys, *top}, n=1) or [key]
    parent, dot, _ = near[0].rpartition(".")
    siblings = [name for name in keys if dot and name.startswith(parent + dot)]
    return did_you_mean(key, siblings or top, limit=20)


def has_setting(strategy: str, setting: str) -> bool:
    """Whether a strategy has a setting. True for a YAML file with another name: its strategy is unknown here."""
    if strategy not in STRATEGIES:
        return True
    return setting in {f.name for f in dataclasses.fields(STRATEGIES[strategy].settings_type)}
