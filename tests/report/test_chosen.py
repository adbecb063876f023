"""What a report shows of settings that were chosen on dev, and that it shows no test score of the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from xclrun.analysis.record import RunRecord
from xclrun.analysis.tuning import choose
from xclrun.report.section import Options, Sources
from xclrun.report.write import write_report

from .study import run, section_of

pytestmark = pytest.mark.usefixtures("undrawn")


def grid() -> list[RunRecord]:
    """Make three settings; the first has the best dev score, the last the best test score."""
    runs = []
    for memory, dev, test in ((10, 0.75, 0.3125), (20, 0.5, 0.4375), (30, 0.75, 0.8125)):
        for seed in (1, 2):
            curve = tuple(
                {"hop": hop, "epoch": 1, "step": 4, "examples": 8, "loss": 1.0, "dev": {key: {"intent_accuracy": dev}}}
                for hop, key in enumerate(("en", "de"), start=1)
            )
            scores = {"intent_accuracy": np.full((3, 2), test)}
            base = run("er", "en-de", seed, ("en", "de"), settings={"memory": memory}, curve=curve)
            runs.append(replace(base, scores=scores))
    return runs


def test_a_report_shows_what_was_chosen_on_what_and_only_its_test_scores(tmp_path: Path) -> None:
    runs = grid()
    choice = choose(runs, ("strategy.memory",))
    report = write_report(choice.runs, tmp_path, "chosen", options=Options(choice=choice), sources=Sources(runs))
    caption = (
        "settings selected on dev: for each strategy, the value of strategy.memory with the highest dev score right "
        "after learning (mean over orders and seeds, 2 runs per setting), used for all orders and seeds: er: "
        "strategy.memory=10 (of 3; tied with strategy.memory=30)"
    )
    tables = {path.stem: path for path in (tmp_path / "tables").glob("*.md")}
    [means] = [path for name, path in tables.items() if name.endswith("mean_over_orders_and_seeds")]
    markdown = means.read_text(encoding="utf-8").replace("\\", "")
    assert caption in markdown
    assert "31.25 ± 0.00" in markdown
    trials = (tmp_path / "tables" / "mini_tiny_settings_chosen_on_dev.csv").read_text(encoding="utf-8")
    assert trials.splitlines() == [
        "strategy,strategy.memory,runs,dev score right after learning ↑,",
        "er,10,2,75.00 ± 0.00,chosen",
        "er,30,2,75.00 ± 0.00,equal",
        "er,20,2,50.00 ± 0.00,",
    ]
    for path in tmp_path.rglob("*"):
        if path.suffix in (".md", ".csv", ".tex", ".html"):
            text = path.read_text(encoding="utf-8")
            assert not [score for score in ("43.75", "81.25", "0.4375", "0.8125") if score in text], path
    budgets = (tmp_path / "tables" / "mini_tiny_budgets.csv").read_text(encoding="utf-8").splitlines()
    assert budgets[1].endswith(",3")  # trials
    assert "Settings chosen on dev" in report.render(80)
    selection = json.loads(json.dumps(report.to_json()))["chosen"]
    assert (selection["objective"], selection["keys"], selection["strategies"][0]["tied"]) == (
        "dev_learnt",
        ["strategy.memory"],
        2,
    )


def test_reports_without_a_choice_say_nothing_of_one() -> None:
    section = section_of(grid()[:2])
    assert section.chosen == ""
    assert not [block for block in section.blocks if block.part.name == "chosen"]
    assert not [table for table in section.lead if any("chosen" in note for note in table.notes)]
