"""What scripts of users rely on: exit codes, places, columns, JSON."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL, Told

COLUMNS = "dataset,model,strategy,order,task,measure,language,value,std,ci_low,ci_high,n,status"


def test_the_files_and_columns_of_a_report(xclrun: Callable[..., Told], here: Path) -> None:
    assert xclrun(*SMALL, "strategy=naive,lang_spec_ft", "seed=1,2", "-m").code == 0
    told = xclrun("report", "--from-runs", "--json", "--name", "mine", "--outputs", str(here / "outputs"))
    assert told.code == 0
    found = json.loads(told.out)
    assert found["runs"] == {"finished": 4}
    assert set(found["rows"][0]) == set(COLUMNS.split(",")) - {"language"}
    assert Path(found["summary_md"]).is_file()
    path = here / "outputs" / "reports" / "mine" / "summary.csv"
    assert found["summary_csv"] == str(path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert ",".join(rows[0]) == COLUMNS
    assert {row["order"] for row in rows} == {"h2l", "mean"}
    assert {row["task"] for row in rows} == {"intent", "slots"}
    assert {row["language"] for row in rows} == {"", "en", "de"}
    assert {"F", "T", "T0", "FP"} <= {row["measure"] for row in rows}
    final = next(
        r for r in rows if (r["strategy"], r["order"], r["measure"], r["language"]) == ("naive", "mean", "FP", "")
    )
    assert 0 <= float(final["value"]) <= 1
    assert (final["n"], final["status"]) == ("2", "ok")
    # A number that is not there says why.
    assert all(row["value"] or row["status"].startswith("n/a: ") for row in rows)


def test_status_and_plan_as_json(xclrun: Callable[..., Told]) -> None:
    assert xclrun(*SMALL, "seed=1").code == 0
    [sweep] = json.loads(xclrun("status", "--json").out)
    assert [run["state"] for run in sweep["runs"]] == ["finished"]
    plan = json.loads(xclrun("plan", *SMALL, "seed=1,2", "-m", "--json").out)
    assert [run["finished"] for run in plan["runs"]] == [True, False]
    assert plan["total"]["needed"] == 2


def test_a_failed_run_gives_exit_code_1_everywhere(xclrun: Callable[..., Told]) -> None:
    assert xclrun(*SMALL, "trainer.lr=1e30").code == 1
    assert xclrun("status").code == 1
    [sweep] = json.loads(xclrun("status", "--json").out)
    assert [run["state"] for run in sweep["runs"]] == ["failed"]
    assert "the loss is nan" in sweep["runs"][0]["detail"]


def test_a_report_without_finished_runs(xclrun: Callable[..., Told], here: Path) -> None:
    (here / "outputs").mkdir()
    told = xclrun("report", "--from-runs")
    assert told.code == 2
    assert told.line.startswith("no finished runs; make some first, for example: xclrun ")


def test_a_report_on_what_is_not_there(xclrun: Callable[..., Told]) -> None:
    assert xclrun(*SMALL).code == 0
    told = xclrun("report", "demo", "--from-runs")
    assert told.code == 2
    assert told.line.startswith("no sweep is called 'demo' in outputs; Known: sweep-")
    for name, why in {
        "../elsewhere": "leads to another folder",
        "--help": "looks like an option",
        "": "is empty",
    }.items():
        told = xclrun("report", "--from-runs", f"--name={name}")
        assert told.code == 2
        assert told.line.startswith(f"--name={name}: {why}")


def test_outputs_of_the_environment_serve_all_commands(
    xclrun: Callable[..., Told], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XCLRUN_OUTPUTS", str(here.parent / "kept"))
    assert xclrun(*SMALL).code == 0
    assert xclrun("status").code == 0
    assert json.loads(xclrun("plan", *SMALL, "--json").out)["total"]["needed"] == 0
    assert xclrun("store", "verify").code == 0
    assert list(here.iterdir()) == []


def test_a_reader_that_goes_away_is_no_error(xclrun: Callable[..., Told], here: Path) -> None:
    command = f"{sys.executable} -c 'from xclrun.cli import main; import sys; sys.exit(main())' --help"
    told = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | true"], capture_output=True, text=True, check=False
    )
    assert told.stderr == ""
    assert told.returncode == 0


@pytest.fixture
def shell(here: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the installed program in the empty folder, as a person does."""
    program = shutil.which("xclrun", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("xclrun is not installed beside this Python")
    return lambda *arguments: subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.full
def test_a_sweep_and_its_report_through_mlflow(shell: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    small = [override for override in SMALL if override != "tracking=none"]
    done = shell(*small, "strategy=naive,er,lang_spec_ft", "seed=1", "-m")
    assert (done.returncode, done.stdout) == (0, "")
    assert "3 of 3 runs finished" in done.stderr
    assert "note:" not in done.stderr
    report = shell("report", "--json")
    assert (report.returncode, report.stderr) == (0, "")
    found = json.loads(report.stdout)
    assert found["runs"] == {"finished": 3}
    assert {row["strategy"] for row in found["rows"]} == {"naive", "er", "lang_spec_ft"}


@pytest.mark.full
def test_outputs_that_were_moved_or_whose_database_is_damaged(
    shell: Callable[..., subprocess.CompletedProcess[str]], xclrun: Callable[..., Told], here: Path
) -> None:
    assert xclrun(*SMALL).code == 0
    before = json.loads(shell("report", "--json").stdout)["rows"]
    (here / "outputs").rename(here / "moved")
    moved = shell("report", "--json", "--outputs", "moved")
    assert json.loads(moved.stdout)["rows"] == before
    (here / "moved" / "mlflow.db").write_text("no database")
    damaged = shell("report", "--json", "--outputs", "moved")
    assert damaged.returncode == 0
    assert damaged.stderr.startswith("note: MLflow at sqlite:///")
    assert damaged.stderr.endswith("; reading the run directories instead\n")
    assert json.loads(damaged.stdout)["rows"] == before
    sync = shell("sync", "--outputs", "moved")
    assert sync.returncode == 1
    assert sync.stderr.startswith("xclrun: MLflow at sqlite:///")
    assert len(sync.stderr.splitlines()) == 1
