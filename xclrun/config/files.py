"""YAML config files: locations, choices, and the sweeps of published tables and figures."""

from __future__ import annotations

import contextlib
import csv
import os
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from xclrun.core.files import read_text
from xclrun.core.plugins import provided
from xclrun.core.version import PACKAGE

# Maximum number of values of a YAML file in --config-dir, with aliases expanded. Hydra loads this many in seconds.
MOST_VALUES = 20_000
# Maximum nesting depth: libyaml recurses, and the process crashes at ten thousand levels.
MOST_LEVELS = 100
# Maximum characters of an unquoted value. Python cannot parse numbers of more than 4,300 digits.
LONGEST_PLAIN = 4_000
# Text of a boolean → words of YAML 1.1 that are this boolean unless they are quoted.
YAML_WORDS = {"False": "no, off and false", "True": "yes, on and true"}
# File in the sweeps folder that lists published tables and figures; it is not a sweep.
PUBLISHED = "published.yaml"
PAPERS = ("ccl", "fs", "ll", "gli", "ed")
# Names of entries for a table or a figure of a paper: `ccl_fig4`, `fs_table2_marc`.
_NUMBERED = re.compile(rf"({'|'.join(PAPERS)})_(fig|table)(\d+)(?:_\w+)?")


def default_outputs() -> str:
    """Return the outputs directory of commands without ``--outputs``."""
    return os.environ.get("XCLRUN_OUTPUTS") or "outputs"


def packaged(folder: str) -> Path:
    """Return the path of ``conf`` or ``sweeps``: in the installed package, or at the top of a checkout."""
    inside = PACKAGE / folder
    return inside if inside.is_dir() else PACKAGE.parent / folder


def load_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file."""
    return dict(yaml.load(read_text(path), Loader=yaml.CSafeLoader) or {})


def yaml_danger(text: str) -> tuple[int, str] | None:
    """Return the line and the reason if loading a YAML text could exhaust the memory or crash the process.

    Return None if the text is safe. Return None also for invalid YAML, which is reported when the file is loaded. This
    function neither expands aliases nor recurses.
    """
    # Open collections: line, anchor, and number of values so far.
    opened: list[tuple[int, str | None, int]] = []
    sizes: dict[str | None, int] = {}
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            line, size = 0 if event.start_mark is None else event.start_mark.line + 1, 0
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append((line, event.anchor, 1))
                if len(opened) > MOST_LEVELS:
                    return line, f"nested more than {MOST_LEVELS} levels deep"
            elif isinstance(event, yaml.CollectionEndEvent):
                line, anchor, size = opened.pop()
                if anchor is not None:
                    sizes[anchor] = size
            elif isinstance(event, yaml.AliasEvent):
                if holder := next((start for start, anchor, _ in opened if anchor == event.anchor), None):
                    return holder, "an alias inside the value that it refers to"
                size = sizes.get(event.anchor, 1)
            elif isinstance(event, yaml.ScalarEvent):
                size = 1
                if event.implicit[0] and len(event.value) > LONGEST_PLAIN:
                    return line, f"an unquoted value of more than {LONGEST_PLAIN:,} characters"
            if opened:
                start, anchor, so_far = opened[-1]
                opened[-1] = start, anchor, so_far + size
                if so_far + size > MOST_VALUES:
                    return line, f"more than {MOST_VALUES:,} values once aliases are expanded"
    except yaml.YAMLError:
        return None
    return None


@dataclass(frozen=True)
class Published:
    """A published table or figure.

    Attributes:
        shows: description in one line: paper, number and caption.
        sweep: sweep with its runs, or several separated by commas.
        figure: prefix of the file name of the corresponding figure in a report; empty if there is none.
        set: key → value that replaces the sweep's value.
        without: key → values to remove from the sweep, separated by commas.
    """

    shows: str
    sweep: str
    figure: str = ""
    set: dict[str, Any] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)


@cache
def published() -> dict[str, Published]:
    """Return name → entry of the published tables and figures. Each name is also the name of a sweep."""
    entries = load_yaml(packaged("sweeps") / PUBLISHED)
    return {name: Published(**({"shows": _caption(name, entry)} | entry)) for name, entry in entries.items()}


@cache
def captions() -> dict[tuple[str, str, str], str]:
    """Return (paper, ``figure`` or ``table``, number) → caption; a row of the file may cover a range: ``10-12``."""
    caption_of = {}
    # Use the path, because importing `xclrun.report` would slow down every command.
    with (PACKAGE / "report" / "published" / "captions.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            first, _, last = row["number"].partition("-")
            for number in range(int(first), int(last or first) + 1):
                caption_of[row["paper"], row["kind"], str(number)] = row["shows"]
    return caption_of


def _caption(name: str, entry: dict[str, Any]) -> str:
    """Return the description of an entry for a numbered table or figure; remove ``detail`` from the entry."""
    parts = _NUMBERED.fullmatch(name)
    if parts is None:
        return ""
    paper, kind, number = parts.groups()
    written = {"fig": ("figure", f"Fig. {number}"), "table": ("table", f"Table {number}")}[kind]
    added = [entry.pop("detail", ""), f"figure {entry['figure']} of the report" if "figure" in entry else ""]
    line = "; ".join(filter(None, [captions()[paper, written[0], number], *added]))
    return f"{paper.upper()} paper, {written[1]}: {line}."


def yielded(sweep: str) -> list[str]:
    """Return the published tables and figures whose only or first sweep is ``sweep``."""
    return [name for name, entry in published().items() if entry.sweep.partition(",")[0] == sweep]


@cache
def sweep_files() -> dict[str, Path]:
    """Return name → file of the packaged sweeps."""
    return {path.stem: path for path in sorted(packaged("sweeps").glob("*.yaml")) if path.name != PUBLISHED}


def choices() -> dict[str, dict[str, str]]:
    """Return group → choice → description, which is the first sentence of the YAML file's comments.

    The group ``sweep`` contains sweeps with a file, then published tables and figures. Datasets and strategies of
    plug-ins are choices without a file.
    """
    return {group: {**by_choice, **provided(group)} for group, by_choice in _choices().items()}


@cache
def _choices() -> dict[str, dict[str, str]]:
    sweeps = {name: _first_comment(path) for name, path in sweep_files().items()}
    sweeps |= {name: entry.shows for name, entry in published().items()}
    return choices_in(packaged("conf")) | {"sweep": sweeps}


def yaml_files(folder: Path) -> list[Path]:
    """Return the YAML files below a folder of configs, without hidden folders, such as those of editors and Git."""
    paths = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(place, name) for name in names if name.endswith(".yaml")]
    return sorted(paths)


def choices_in(folder: Path) -> dict[str, dict[str, str]]:
    """Return group → choice → description for the YAML files below a folder of configs; skip unreadable files."""
    choices_of_group: dict[str, dict[str, str]] = {}
    for path in yaml_files(folder):
        group = path.parent.relative_to(folder).as_posix()
        if group != "." and not path.name.startswith("."):
            with contextlib.suppress(OSError, ValueError):
                choices_of_group.setdefault(group, {})[path.stem] = _first_comment(path)
    return choices_of_group


def _first_comment(path: Path) -> str:
    """Return the first sentence of a file's comments, without indented lines."""
    sentences: list[str] = []
    for line in read_text(path).splitlines():
        if line.startswith("# ") and not line.startswith("# @package") and not (sentences and line.startswith("#  ")):
            sentences.append(line[2:])
            if line.endswith((".", "?")):
                break
        elif sentences:
            break
    return " ".join(sentences)
