"""The keys that can be set, and the nearest one to a key that cannot."""

from __future__ import annotations

import dataclasses
import re
from difflib import get_close_matches
from typing import Any

from xclrun.config import schema
from xclrun.config.files import choices
from xclrun.core.errors import did_you_mean
from xclrun.strategy import STRATEGIES, names_with

# Parts and kinds of statements have any name; the keys below the name are fixed.
_ENTRY = re.compile(r"\+*dataset\.(parts|statements\.kinds)\.([^.]+)\.([^.]+)")


def no_expansion() -> str:
    """Return why the strategy chosen has no key ``expansion``."""
    traits = ("expandable", "adds_language_parts", "mixes_languages")
    able, parts, mixing = (", ".join(names_with(trait)) for trait in traits)
    return (
        f"the strategy chosen cannot have one; {able} can. {parts} are expansions themselves, naive with one is that "
        f"one, and {mixing} mix languages in a batch, which have no parts in common"
    )


def expansions_known() -> dict[str, str]:
    """Return the choices of ``strategy.expansion``, and what each is: strategies that give languages parts."""
    descriptions = choices()["strategy"]
    return {name: descriptions.get(name, "") for name in names_with("adds_language_parts")}


def known_keys(strategy: str | None = None) -> list[str]:
    """Return every key that can be set, dotted; with the settings of one strategy, or of all."""
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
    """Return the end of an error line about an unknown key: the nearest known key, and the keys next to it."""
    known = known_keys()
    if entry := _ENTRY.fullmatch(key):
        group, name, setting = entry.groups()
        node = schema.PartConfig if group == "parts" else schema.StatementKind
        names = [f.name for f in dataclasses.fields(node)]
        if setting in names:
            return f"'{name}' is unknown; a new one is set as a whole: dataset.{group}={{{name}: {{{setting}: …}}}}"
        return did_you_mean(setting, names)
    if key == "strategy.expansion":
        return no_expansion()
    if key in ("sweep", "experiment"):
        return f"the YAML of a {key} begins with the line '# @package _global_': its keys are those of the whole config"
    if key in known:
        *others, last = (name for name in STRATEGIES if has_setting(name, key.removeprefix("strategy.")))
        owners = f"{', '.join(others)} and {last} have" if others else f"{last} has"
        return f"the strategy chosen has no such setting; {owners} it"
    top = {name.partition(".")[0] for name in known} | {group for group in choices() if "/" not in group}
    near = get_close_matches(key, {*known, *top}, n=1) or [key]
    parent, dot, _ = near[0].rpartition(".")
    siblings = [name for name in known if dot and name.startswith(parent + dot)]
    return did_you_mean(key, siblings or top, limit=20)


def has_setting(strategy: str, setting: str) -> bool:
    """Whether a strategy has a setting of that name; of a choice that is no strategy's own name nothing is known."""
    if strategy not in STRATEGIES:
        return True
    return setting in {f.name for f in dataclasses.fields(STRATEGIES[strategy].settings_type)}
