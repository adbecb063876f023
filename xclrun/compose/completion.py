"""Shell completion from the YAML files alone, since the shell waits for it at every TAB.

Hydra's own completion composes a config first, which takes it a second or two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from xclrun.config.files import choices, choices_in, packaged


def complete(typed: Sequence[str], expansions: Callable[[], Iterable[str]] = tuple) -> list[str]:
    """Return what the last word may be; keys up to their next dot, as shells complete folders.

    Args:
        typed: the words after the program's name; the last one is unfinished, and may be empty.
        expansions: called for the choices of ``strategy.expansion`` where they are asked for: it imports strategies.
    """
    *before, last = typed or [""]
    given = {key: value for key, equals, value in (word.partition("=") for word in before) if equals}
    names = {group: list(by_choice) for group, by_choice in choices().items()}
    for folder in _own_folders(before):
        for group, own in choices_in(folder).items():
            names.setdefault(group, []).extend(own)
    key, equals, value = last.partition("=")
    names["strategy.expansion"] = [*expansions(), "null"] if equals and key == "strategy.expansion" else []
    if equals:
        head, comma, part = value.rpartition(",")
        return [f"{key}={head}{comma}{name}" for name in names.get(key, ()) if name.startswith(part)]
    found = set()
    for word in [*(f"{group}=" for group in names), *(f"{name}=" for name in _keys(given))]:
        if word.startswith(last):
            dot = word.find(".", len(last))
            found.add(word if dot < 0 else word[: dot + 1])
    return sorted(found)


def _own_folders(words: Sequence[str]) -> Iterator[Path]:
    for i, word in enumerate(words):
        if word.startswith("--config-dir"):
            folder = Path(word.partition("=")[2] or "".join(words[i + 1 : i + 2]) or "--").expanduser()
            if folder.is_dir():
                yield folder


def _keys(given: Mapping[str, str]) -> Iterator[str]:
    """Yield the dotted keys of a job: its own, and those of each group's choice, given or by default."""
    own = _load("config.yaml")
    chosen = {group: name for entry in own["defaults"] if isinstance(entry, dict) for group, name in entry.items()}
    if experiment := given.get("experiment"):
        for entry in _load(f"experiment/{experiment.partition(',')[0]}.yaml").get("defaults", ()):
            if isinstance(entry, dict):
                chosen |= {group.removeprefix("override /"): name for group, name in entry.items()}
    chosen |= {group: value.partition(",")[0] for group, value in given.items() if group in chosen}
    yield from _flat({key: value for key, value in own.items() if key not in ("defaults", "hydra")}, "")
    for group, name in chosen.items():
        if "/" not in group and group not in ("experiment", "sweep"):
            yield from _of_choice(group, str(name), f"{group}.")


def _of_choice(group: str, name: str, prefix: str) -> Iterator[str]:
    content = _load(f"{group}/{name}.yaml")
    for entry in content.pop("defaults", ()):
        if isinstance(entry, str) and not entry.startswith(("/", "_self_")):
            yield from _of_choice(group, entry.partition("@")[0], prefix)
        elif isinstance(entry, dict):
            for place, other in entry.items():
                if place.startswith("/") and "@" in place:
                    of, _, at = place[1:].partition("@")
                    yield from _of_choice(of, other, f"{prefix}{at}.")
    yield from _flat(content, prefix)


def _flat(node: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _load(name: str) -> dict[str, Any]:
    """Return what a packaged YAML file says; nothing where there is none, as for a name that is not finished."""
    path = packaged("conf") / name
    if not path.is_file():
        return {}
    return dict(yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) or {})
