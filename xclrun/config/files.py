"""Where the YAML files of the configs lie, which choices they give, and which sweep yields a published table."""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from xclrun.core.plugins import provided
from xclrun.core.version import PACKAGE

# Values of a YAML file in --config-dir once its aliases are expanded. So many take Hydra some seconds.
MOST_VALUES = 20_000
# The composer of libyaml recurses: at ten thousand levels the process dies.
MOST_LEVELS = 100
# Characters of an unquoted value: Python refuses to read a number of more than 4,300 digits.
LONGEST_PLAIN = 4_000
# In addition to the sweeps, and not one of them.
PUBLISHED = "published.yaml"
PAPERS = ("ccl", "fs", "ll", "gli", "ed")
# Names of entries that are a table or a figure of a paper: `ccl_fig4`, `fs_table2_marc`.
_NUMBERED = re.compile(rf"({'|'.join(PAPERS)})_(fig|table)(\d+)(?:_\w+)?")


def default_outputs() -> str:
    """Return where commands look for outputs that are not told."""
    return os.environ.get("XCLRUN_OUTPUTS") or "outputs"


def packaged(folder: str) -> Path:
    """Return where ``conf`` or ``sweeps`` lies: inside the installed package, or at the top of a checkout."""
    inside = PACKAGE / folder
    return inside if inside.is_dir() else PACKAGE.parent / folder


def load_yaml(path: Path) -> dict[str, Any]:
    """Return what a YAML file holds."""
    return dict(yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) or {})


def yaml_danger(text: str) -> tuple[int, str] | None:
    """Return the line and the reason why a YAML text must not be loaded: too deep, or its aliases expand to too much.

    None where the text is safe, or is no YAML, which its reader reports. No alias is expanded, and nothing recurses.
    """
    # Collections that are open: line, anchor, and number of values so far.
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
                    return holder, "an alias to what holds it"
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
class Shown:
    """What a published table or figure needs.

    Attributes:
        shows: one line: paper, number and caption.
        sweep: the sweep that yields it; several with commas: their runs together.
        figure: the report's figure that shows it, as its file name begins; "": none does.
        set: values, as if typed.
        without: values that are left out.
    """

    shows: str
    sweep: str
    figure: str = ""
    set: dict[str, Any] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)


@cache
def published() -> dict[str, Shown]:
    """Return name of a published table or figure, which can be given as a sweep → what it needs."""
    entries = load_yaml(packaged("sweeps") / PUBLISHED)
    return {name: Shown(**({"shows": _caption(name, entry)} | entry)) for name, entry in entries.items()}


@cache
def captions() -> dict[tuple[str, str, str], str]:
    """Return (paper, ``figure`` or ``table``, number) → what it shows; ``10-12`` represents three numbers."""
    caption_of = {}
    # By path: importing `xclrun.report` from here would load it for every command.
    with (PACKAGE / "report" / "published" / "captions.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            first, _, last = row["number"].partition("-")
            for number in range(int(first), int(last or first) + 1):
                caption_of[row["paper"], row["kind"], str(number)] = row["shows"]
    return caption_of


def _caption(name: str, entry: dict[str, Any]) -> str:
    """Return the line of an entry that is a numbered table or figure; takes ``detail`` out of the entry."""
    parts = _NUMBERED.fullmatch(name)
    if parts is None:
        return ""
    paper, kind, number = parts.groups()
    written = {"fig": ("figure", f"Fig. {number}"), "table": ("table", f"Table {number}")}[kind]
    added = [entry.pop("detail", ""), f"figure {entry['figure']} of the report" if "figure" in entry else ""]
    line = "; ".join(filter(None, [captions()[paper, written[0], number], *added]))
    return f"{paper.upper()} paper, {written[1]}: {line}."


def yielded(sweep: str) -> list[str]:
    """Return the published tables and figures that a sweep yields, alone or as the first of several."""
    return [name for name, entry in published().items() if entry.sweep.partition(",")[0] == sweep]


@cache
def sweep_files() -> dict[str, Path]:
    """Return name → file of the packaged sweeps."""
    return {path.stem: path for path in sorted(packaged("sweeps").glob("*.yaml")) if path.name != PUBLISHED}


def choices() -> dict[str, dict[str, str]]:
    """Return group → choice → what it is: the first comment of its YAML, to the end of a sentence.

    Sweeps are the group ``sweep``, first those of files, then published tables and figures. Datasets and strategies of
    plug-ins are choices without a YAML.
    """
    return {group: {**found, **provided(group)} for group, found in _choices().items()}


@cache
def _choices() -> dict[str, dict[str, str]]:
    of_files = {name: _first_comment(path) for name, path in sweep_files().items()}
    of_tables = {name: entry.shows for name, entry in published().items()}
    return choices_in(packaged("conf")) | {"sweep": of_files | of_tables}


def choices_in(folder: Path) -> dict[str, dict[str, str]]:
    """Return group → choice → what it is, of the YAML files below a folder of configs."""
    choices_of_group: dict[str, dict[str, str]] = {}
    for path in sorted(folder.rglob("*.yaml")):
        group = path.parent.relative_to(folder).as_posix()
        if group != ".":
            choices_of_group.setdefault(group, {})[path.stem] = _first_comment(path)
    return choices_of_group


def _first_comment(path: Path) -> str:
    """Return the first line of comment, and those after it until a sentence ends; an indented one is no part of it."""
    sentences: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and not line.startswith("# @package") and not (sentences and line.startswith("#  ")):
            sentences.append(line[2:])
            if line.endswith((".", "?")):
                break
        elif sentences:
            break
    return " ".join(sentences)
