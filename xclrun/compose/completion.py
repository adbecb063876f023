"""Shell completion, for which the shell waits at every TAB; Hydra's own composes a config first, a second or two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from xclrun.config.files import choices, choices_in, default_outputs


def complete(
    typed: Sequence[str], keys: Callable[[str | None], Iterable[str]], expansions: Callable[[], Iterable[str]]
) -> list[str]:
    """Return what the last word may be; keys up to their next dot, as shells complete folders.

    Args:
        typed: the words after the program's name; the last one is unfinished, and may be empty.
        keys: called with the strategy chosen, if any, for the keys that can be set: it imports strategies.
        expansions: called for the choices of ``strategy.expansion`` if they are asked for; as ``keys``.
    """
    *before, last = typed or [""]
    names = {group: list(by_choice) for group, by_choice in choices().items()}
    for folder in _own_folders(before):
        for group, own in choices_in(folder).items():
            names.setdefault(group, []).extend(own)
    key, equals, value = last.partition("=")
    if equals:
        candidates = [*expansions(), "null"] if key == "strategy.expansion" else names.get(key, ())
        head, comma, part = value.rpartition(",")
        return [f"{key}={head}{comma}{name}" for name in candidates if name.startswith(part)]
    chosen = next((word.partition("=")[2].partition(",")[0] for word in before if word.startswith("strategy=")), None)
    possible = set()
    for word in [f"{name}=" for name in (*names, *keys(chosen))]:
        if word.startswith(last):
            dot = word.find(".", len(last))
            possible.add(word if dot < 0 else word[: dot + 1])
    return sorted(possible)


def names(folder: str, typed: Sequence[str]) -> list[str]:
    """Return the names of runs or sweeps that begin with the last word.

    Args:
        folder: ``runs`` or ``sweeps``, in the outputs that ``--outputs`` names.
        typed: as in `complete`.
    """
    *before, last = typed
    given = [word for option, word in pairwise(before) if option == "--outputs"]
    given += [word.partition("=")[2] for word in before if word.startswith("--outputs=")]
    place = Path(given[-1] if given else default_outputs()).expanduser() / folder
    found = (path.name.removesuffix(".json") for path in place.glob("*") if not path.name.startswith("."))
    return sorted(name for name in found if name.startswith(last))


def _own_folders(words: Sequence[str]) -> Iterator[Path]:
    for i, word in enumerate(words):
        if word.startswith("--config-dir"):
            folder = Path(word.partition("=")[2] or "".join(words[i + 1 : i + 2]) or "--").expanduser()
            if folder.is_dir():
                yield folder
