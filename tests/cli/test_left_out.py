"""A report names the runs that it could not count, and why, in each of its files."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import TINY
from xclrun.cli import main
from xclrun.store.rundir import RunDirectory

from .conftest import Told


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of a sweep of four runs, one of which has not begun."""
    outputs = tmp_path_factory.mktemp("three")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYDRA_FULL_ERROR", "1")
        assert main([*TINY, "strategy=naive,er", "seed=1,2", f"paths.outputs={outputs}", "-m"]) == 0
    [path] = (outputs / "runs").glob("*-er-*-s2-*")
    shutil.rmtree(path)
    return outputs


@pytest.mark.parametrize("which", [(), ("--all",)])
@pytest.mark.usefixtures("undrawn")
def test_damaged_lost_and_missing_runs_are_named(
    which: tuple[str, ...], three: Path, here: Path, xclrun: Callable[..., Told]
) -> None:
    outputs = here / "outputs"
    shutil.copytree(three, outputs)
    [er] = (RunDirectory(path) for path in (outputs / "runs").glob("*-er-*-s1-*"))
    _, lost = (RunDirectory(path) for path in sorted((outputs / "runs").glob("*-naive-*")))
    # A byte of a prediction file, whose size stays.
    flipped = bytearray(er.predictions(1).read_bytes())
    flipped[len(flipped) // 2] ^= 1
    er.predictions(1).write_bytes(flipped)
    lost.done.unlink()
    told = xclrun("report", "--from-runs", *which)
    # What is damaged is no normal state of a study; what has not finished is.
    assert told.code == 1, told.err
    [folder] = (outputs / "reports").iterdir()
    with (folder / "runs.csv").open() as file:
        states = {row["run"]: row["status"] for row in csv.DictReader(file)}
    assert (states[er.run_id], states[lost.run_id]) == ("damaged", "lost")
    for text in (told.out, (folder / "index.html").read_text(), (folder / "summary.md").read_text()):
        # Without spaces: a narrow terminal has line breaks in names, too.
        text = "".join(text.replace("\\", "").split())
        assert f"(1damaged):{er.run_id}(predictions/hop-1.parquetismissingordamaged" in text
        assert f"(1lost):{lost.run_id}(" in text
        assert "hasnotrun" not in text
    if not which:
        [missing] = states.keys() - {path.name for path in (outputs / "runs").iterdir()}
        assert "-er-" in missing
        assert states[missing] == "missing"
        assert f"(1 missing): {missing}" in (folder / "summary.md").read_text().replace("\\", "")


@pytest.mark.full
@pytest.mark.usefixtures("undrawn")
def test_finished_runs_that_a_filter_leaves_out_are_not_named(
    three: Path, here: Path, xclrun: Callable[..., Told]
) -> None:
    shutil.copytree(three, here / "outputs")
    told = xclrun("report", "--from-runs", "--all", "--filter", "strategy=naive")
    assert told.code == 0, told.err
    [folder] = (here / "outputs" / "reports").iterdir()
    with (folder / "runs.csv").open() as file:
        statuses = {row["run"].split("-")[1]: row["status"] for row in csv.DictReader(file)}
    assert statuses == {"naive": "finished"}
