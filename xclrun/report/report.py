"""A written report: its sections, numbers and paths."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.analysis.record import RunRecord
from xclrun.analysis.tuning import Choice
from xclrun.report.section import Section

if TYPE_CHECKING:
    import pandas as pd

FEW_SHOT = "few_shot.csv"


@dataclass(frozen=True)
class Report:
    """A written report.

    Attributes:
        frame: all numbers in long form; see `xclrun.analysis.aggregate.summarise`.
        few_shot: few-shot scores; see `xclrun.analysis.fewshot.scores.few_shot_scores`.
        records: all runs, each once; only finished runs are used.
        caveats: notes on the whole report.
        figures: paths, in the order of the report.
        excluded: see `Sources`.
    """

    name: str
    directory: Path
    frame: pd.DataFrame
    few_shot: pd.DataFrame
    sections: list[Section]
    records: list[RunRecord]
    caveats: list[str]
    figures: list[Path]
    choice: Choice | None = None
    excluded: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def index(self) -> Path:
        return self.directory / "index.html"

    @property
    def summary_csv(self) -> Path:
        return self.directory / "summary.csv"

    @property
    def numbers(self) -> list[Path]:
        """The paths of ``summary.csv`` and ``few_shot.csv``; a file without rows is omitted."""
        few_shot = [] if self.few_shot.empty else [self.directory / FEW_SHOT]
        return [*([] if self.frame.empty else [self.summary_csv]), *few_shot]

    @property
    def summary_md(self) -> Path:
        return self.directory / "summary.md"

    def render(self, width: int = 80) -> str:
        """Return what was found, the main tables and notes as plain text for a terminal, in the order of the page."""
        blocks = []
        for section in self.sections:
            blocks.append(f"{section.title}\n{'=' * len(section.title)}\n")
            blocks += [_wrapped(section.conclusions, width)] if section.conclusions else []
            blocks += [table.text(width) for table in section.terminal]
            blocks += [_wrapped(section.caveats, width)] if section.caveats else []
        blocks += [_wrapped(self.caveats, width)] if self.caveats else []
        blocks += dict.fromkeys(textwrap.fill(section.legend, width) for section in self.sections)
        return "\n".join(blocks)

    def to_json(self) -> dict[str, Any]:
        """Return aggregates (fractions; null where not available), notes and paths as plain data."""
        rows = self.frame[self.frame["language"] == ""].drop(columns="language")
        return {
            "name": self.name,
            "directory": str(self.directory),
            "index": str(self.index),
            "summary_csv": str(self.summary_csv),
            "summary_md": str(self.summary_md),
            "figures": [str(path) for path in self.figures],
            "runs": dict(Counter(record.status for record in self.records)),
            "rows": _plain(rows),
            **({} if self.few_shot.empty else {"few_shot": _plain(self.few_shot)}),
            **({} if self.choice is None else {"chosen": self.choice.to_json()}),
            "notes": [*(note for section in self.sections for note in section.caveats), *self.caveats],
        }


def _plain(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return rows.astype(object).where(rows.notna(), None).to_dict(orient="records")


def _wrapped(notes: Sequence[str], width: int) -> str:
    """Return notes as a wrapped list; a command at the end of a note has a separate line, to be copied."""
    lines = []
    for note in notes:
        text, command, rest = note.partition(": xclrun ")
        lines.append(textwrap.fill(text + command[:1], width, initial_indent="- ", subsequent_indent="  "))
        lines += [f"    xclrun {rest}"] if command else []
    return "\n".join(lines) + "\n"
