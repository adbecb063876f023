"""Shell completion. It replaces Hydra's, which takes seconds because it composes a config at every TAB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from xclrun.compose.keys import known_keys, nested_choices
from xclrun.config.files import choices, choices_in, default_outputs


def complete(words: Sequence[str]) -> list[str]:
    """Return the completions of the last word. Dotted keys are completed one part at a time, like paths.

    Args:
        words: the words after the program's name; the last one is unfinished or empty.
    """
    *before, last = words or [""]
    names = {group: list(by_choice) for group, by_choice in choices().items()}
    for folder in _config_dirs(before):
        for group, by_choice in choices_in(folder).items():
            names.setdefault(group, []).extend(by_choice)
    key, equals, value = last.partition("=")
    if equals:
        nested = nested_choices()
        candidates = [*nested[key], "null"] if key in nested else names.get(key, ())
        head, comma, part = value.rpartition(",")
        return [f"{key}={head}{comma}{name}" for name in candidates if name.startswith(part)]
    chosen = next((word.partition("=")[2].partition(",")[0] for word in before if word.startswith("strategy=")), None)
    possible = set()
    for word in [f"{name}=" for name in (*names, *known_keys(chosen))]:
        if word.startswith(last):
            dot = word.find(".", len(last))
            possible.add(word if dot < 0 else word[: dot + 1])
    return sorted(possible)


def names(folder: str, words: Sequence[str]) -> list[str]:
    """Return the names of runs or sweeps that begin with the last word.

    Args:
        folder: ``runs`` or ``sweeps``, in the directory of ``--outputs``.
        words: see `complete`.
    """
    *before, last = words
    outputs = [word for option, word in pairwise(before) if option == "--outputs"]
    outputs += [word.partition("=")[2] for word in before if word.startswith("--outputs=")]
    directory = Path(outputs[-1] if outputs else default_outputs()).expanduser() / folder
    names = (path.name.removesuffix(".json") for path in directory.glob("*") if not path.name.startswith("."))
    return sorted(name for name in names if name.startswith(last))


def _config_dirs(words: Sequence[str]) -> Iterator[Path]:
    for i, word in enumerate(words):
        if word.startswith("--config-dir"):
            folder = Path(word.partition("=")[2] or "".join(words[i + 1 : i + 2]) or "--").expanduser()
            if folder.is_dir():
                yield folder
