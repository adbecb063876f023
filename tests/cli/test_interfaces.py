"""What scripts of users rely on: exit codes, places, columns, JSON."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.analysis.build import M, alone, record
from tests.conftest import TINY
from xclrun.analysis.finished import FinishedRun, finished_run
from xclrun.analysis.record import RunRecord

from .conftest import Told

COLUMNS = "dataset,model,strategy,order,metric,measure,language,value,std,ci_low,ci_high,n,status,task,ci_given"


def test_quiet_prints_notes_and_errors_alone(xclrun: Callable[..., Told], here: Path) -> None:
    told = xclrun(*TINY, "-q", "-m")
    assert (told.code, told.out) == (0, "")
    assert [text for text in told.err.splitlines() if "note: " not in text] == []
    command = json.loads(next((here / "outputs" / "sweeps").glob("*.json")).read_text())["command"]
    assert "-q" not in command.split()
    told = xclrun(*TINY, "trainer.lr=1e30", "--quiet", "-m")
    assert told.code == 1
    failed = [text for text in told.err.splitlines() if "note: " not in text]
    assert len(failed) == 2
    assert "the loss is" in failed[0]
    assert failed[1].startswith("xclrun: failed: mini-naive")
    # The option holds for one command.
    assert "; 1 already finished" in xclrun(*TINY, "-m").err


def test_the_store_as_json(xclrun: Callable[..., Told], here: Path) -> None:
    assert xclrun(*TINY, "-m").code == 0
    told = xclrun("store", "ls", "--json")
    entries = json.loads(told.out)
    assert {"train", "evaluation"} <= {entry["kind"] for entry in entries}
    for entry in entries:
        path = Path(entry["path"])
        assert path.name == entry["key"]
        assert entry["bytes"] == sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        assert (entry["finished"], entry["unfinished"]) == (1, 0)
    planned = json.loads(xclrun("store", "gc", "--weights", "--dry-run", "--json").out)
    assert planned
    assert not any(entry["removed"] for entry in planned)
    removed = json.loads(xclrun("store", "gc", "--weights", "--json").out)
    assert removed == [{**entry, "removed": True} for entry in planned]
    assert not any(Path(entry["path"]).exists() for entry in removed)
    assert json.loads(xclrun("store", "verify", "--json").out) == []
    kept = next(Path(entry["path"]) for entry in entries if entry["kind"] == "evaluation")
    next(kept.glob("*.parquet")).write_bytes(b"")
    told = xclrun("store", "verify", "--json")
    assert told.code == 1
    assert len(json.loads(told.out)) == 1


@pytest.mark.full
def test_the_files_and_columns_of_a_report(xclrun: Callable[..., Told], here: Path, undrawn: None) -> None:
    assert xclrun(*TINY, "strategy=naive,lang_spec_ft", "seed=1,2", "-m").code == 0
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
    assert {(row["metric"], row["task"]) for row in rows} == {("intent_accuracy", "intent"), ("slot_f1", "slots")}
    assert {row["language"] for row in rows} == {"", "en", "de"}
    assert {"F", "T", "T0", "FP"} <= {row["measure"] for row in rows}
    final = next(
        r for r in rows if (r["strategy"], r["order"], r["measure"], r["language"]) == ("naive", "mean", "FP", "")
    )
    assert 0 <= float(final["value"]) <= 1
    assert (final["n"], final["status"]) == ("2", "ok")
    # A number that is not there says why.
    assert all(row["value"] or row["status"].startswith("n/a: ") for row in rows)
    # A page is looked at before anything is drawn, and filled in the end.
    (here / "page.md").write_text("<!-- report: mine/summary.csv -->\n<!-- end -->\n")
    into = ("report", "--into", "page.md", "--name")
    told = xclrun(*into, "other")
    assert (told.code, "report 'other'" in told.line) == (2, True)
    assert not (here / "outputs" / "reports" / "other").exists()
    told = xclrun(*into, "mine")
    assert told.code == 0
    assert told.out.endswith("\npage.md: 1 place filled.\n")
    assert (here / "page.md").read_text().splitlines()[1] == "Numbers: [mine.csv](page/mine.csv)."
    # No run was asked to be in MLflow, and so no report is.
    assert not (here / "outputs" / "mlflow.db").exists()
    told = xclrun("report", "demo", "--from-runs")
    assert told.code == 2
    assert told.line.startswith("unknown sweep 'demo' in outputs; Known: sweep-")
    for name, why in {
        "../elsewhere": "leads to another folder",
        "--help": "looks like an option",
        "": "is empty",
    }.items():
        told = xclrun("report", "--from-runs", f"--name={name}")
        assert told.code == 2
        assert told.line.startswith(f"--name={name}: {why}")


def test_a_failed_run_gives_exit_code_1_everywhere(xclrun: Callable[..., Told]) -> None:
    assert xclrun(*TINY, "trainer.lr=1e30").code == 1
    assert xclrun("status").code == 1
    [sweep] = json.loads(xclrun("status", "--json").out)
    assert [run["state"] for run in sweep["runs"]] == ["failed"]
    assert "the loss is nan" in sweep["runs"][0]["detail"]


def test_a_report_without_finished_runs(xclrun: Callable[..., Told], here: Path) -> None:
    (here / "outputs").mkdir()
    told = xclrun("report", "--from-runs")
    assert told.code == 2
    assert told.line.startswith("no finished runs in outputs; create some first, for example: xclrun ")


def are_there(runs: list[RunRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these be the runs of the outputs folder, whatever files are in it."""

    def read_records(*_: object, only: Collection[str] | None = None) -> list[RunRecord]:
        return [run for run in runs if only is None or run.run_id in only]

    def finished_runs(_: Path, own: Iterable[RunRecord], *__: object) -> list[FinishedRun]:
        mine = {run.run_id for run in own}
        return [finished_run(run) for run in runs if run.status == "finished" and run.run_id not in mine]

    for module in ("records", "finished"):
        monkeypatch.setattr(f"xclrun.analysis.{module}.read_records", read_records)
    monkeypatch.setattr("xclrun.analysis.finished.finished_runs", finished_runs)


def test_a_report_on_settings_chosen_on_dev_has_their_runs_and_the_references_of_these(
    xclrun: Callable[..., Told], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    for lr, dev in ((0.1, 0.4), (0.2, 0.7)):
        curve = tuple({"hop": hop, "epoch": 1, "step": 3, "dev": {key: {"intent_accuracy": dev}}}
                      for hop, key in enumerate(("en", "de", "th"), start=1))  # fmt: skip
        config = {"trainer": {"lr": lr}}
        runs += [record(seed=seed, config=config, curve=curve, run_id=f"{lr}-{seed}") for seed in (1, 2)]
        runs += [alone(M, seed=seed, config=config, run_id=f"ft{lr}-{seed}") for seed in (1, 2)]
    (here / "outputs" / "sweeps").mkdir(parents=True)

    def sweep(*more: str) -> None:
        facts = {"name": "mine", "command": "xclrun mine", "started": "", "runs": [*(r.run_id for r in runs), *more]}
        (here / "outputs" / "sweeps" / "mine.json").write_text(json.dumps(facts))

    taken: list[tuple[str, list[str]]] = []

    def write_report(records: list[RunRecord], folder: Path, name: str, *_: object) -> SimpleNamespace:
        taken.append((name, sorted(r.run_id for r in records)))
        return SimpleNamespace(render=lambda *_: "", index=folder, numbers=[folder])

    monkeypatch.setattr("xclrun.report.write.write_report", write_report)
    are_there(runs, monkeypatch)
    sweep()
    assert xclrun("report", "--from-runs", "--select-on", "dev", "trainer.lr").code == 0
    assert taken == [("mine-dev=trainer.lr", ["0.2-1", "0.2-2", "ft0.2-1", "ft0.2-2"])]
    # A run of the sweep that nobody has begun may be the best.
    sweep("0.3-1")
    told = xclrun("report", "--from-runs", "--select-on", "dev", "trainer.lr")
    assert told.code == 2
    assert told.line.startswith("--select-on dev trainer.lr: 1 of the sweep's runs is missing or unreadable (0.3-1), ")
    told = xclrun("report", "--from-runs", "--select-on", "dev", " ,")
    assert told.line == "--select-on dev ' ,': needs config keys, as in trainer.lr,strategy.weight"
    assert len(taken) == 1


def test_a_report_takes_the_runs_that_are_meant_and_the_references_of_these(
    xclrun: Callable[..., Told], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"config": {"trainer": {"lr": 0.5}}}
    runs = [record(seed=seed) for seed in (1, 2)]
    runs += [alone(M, seed=seed, run_id=f"ft{seed}{name}", **of) for seed in (1, 2, 3)
             for name, of in {"": {}, "-lr": other, "-data": {"data_fingerprint": "0"}}.items()]  # fmt: skip
    sweeps = {"mine": ["naive-en-de-th-1", "naive-en-de-th-2"], "references": [r.run_id for r in runs[2:]]}
    (here / "outputs" / "sweeps").mkdir(parents=True)
    (here / "outputs" / "runs" / "x").mkdir(parents=True)
    (here / "outputs" / "runs" / "x" / "manifest.json").touch()
    for k, (name, ids) in enumerate(sweeps.items()):
        facts = {"name": name, "command": f"xclrun {name}", "started": "", "given": k, "runs": ids}
        (here / "outputs" / "sweeps" / f"{name}.json").write_text(json.dumps(facts))
    taken: list[tuple[str, list[str]]] = []

    def write_report(records: list[RunRecord], folder: Path, name: str, *_: object) -> SimpleNamespace:
        taken.append((name, sorted(r.run_id.removeprefix("naive-en-de-") for r in records)))
        return SimpleNamespace(render=lambda *_: "", index=folder, numbers=[folder])

    monkeypatch.setattr("xclrun.report.write.write_report", write_report)
    are_there(runs, monkeypatch)

    def report(*arguments: str) -> Told:
        return xclrun("report", "--from-runs", *arguments)

    # The sweep of references alone is later, but serves the other.
    last = "The last sweep of 2; choose another with `xclrun report NAME`, or all with --all:\nmine: xclrun mine\n"
    assert report().out.startswith(last)
    assert report("mine", "--filter", "seed=2").code == 0
    assert report("--all", "--filter", "strategy=naive", "--filter", "trainer.lr=1e-3,7").code == 0
    assert report("references", "--filter", "order=en-de-th", "--filter", "seed=3").code == 0
    assert report("--all").code == 0
    # Other values are another folder, where their names would become the same.
    hashed = hashlib.sha256(b"all-strategy=naive-trainer.lr=1e-3,7").hexdigest()[:6]
    assert taken[:4] == [
        ("mine", ["ft1", "ft2", "th-1", "th-2"]),
        ("mine-seed=2", ["ft2", "th-2"]),
        (f"all-strategy=naive-trainer.lr=1e-3_7-{hashed}", ["ft1", "ft2", "th-1", "th-2"]),
        ("references-order=en-de-th-seed=3", ["ft3", "ft3-data", "ft3-lr"]),
    ]
    assert (taken[4][0], len(taken[4][1])) == ("all", 11)
    wrong = {
        "trainer.lrr=1": "--filter trainer.lrr=1: unknown key; did you mean 'trainer.lr'? Known: ",
        "seed=7": "--filter seed=7: no run has this value; available: 1, 2",
        "seed": "--filter seed: expected KEY=VALUE, for example --filter trainer.epochs=5",
    }
    for given, line in wrong.items():
        told = report("mine", "--filter", given)
        assert (told.code, told.line[: len(line)]) == (2, line)
    # The last command was cut short: what others have finished is still there, and a reference alone is no report.
    runs.append(record("er", seed=1, status="interrupted"))
    facts = {"name": "cut", "command": "xclrun cut", "started": "", "given": 1e12, "runs": [runs[-1].run_id]}
    (here / "outputs" / "sweeps" / "cut.json").write_text(json.dumps(facts))
    cut = "no finished runs in the last sweep, cut: 1 interrupted; report another sweep with `xclrun report NAME`"
    assert (report().code, report().line[: len(cut)]) == (2, cut)
    runs[:] = runs[-1:]
    assert report("cut").line.endswith("in cut: 1 interrupted; re-run its command to resume: xclrun cut")
    # A manifest says "running" also after its process was killed, or its directory deleted.
    runs[:] = [record("er", seed=1, status="running")]
    assert "in cut: 1 missing; " in report("cut").line


@pytest.mark.full
def test_a_sweep_is_called_as_its_command_says(xclrun: Callable[..., Told], here: Path) -> None:
    assert "Next: `xclrun report mine` creates tables" in xclrun(*TINY, "seed=1,2", "sweep_name=mine").err
    # A name is of the runs of all commands with it, and is no part of what a run is.
    noted = here / "outputs" / "sweeps" / "mine.json"
    noted.write_text(json.dumps(json.loads(noted.read_text()) | {"started": "2020-01-01T00:00:00+0000"}))
    again = xclrun(*TINY, "seed=2", "sweep_name=mine")
    assert json.loads(noted.read_text())["started"] == "2020-01-01T00:00:00+0000"  # the first start is kept
    assert "note: mine also includes 1 run of earlier commands" in again.err
    assert "1 run (1 strategy × 1 order × 1 seed) on mini with tiny → outputs; 1 already finished" in again.err
    assert [sweep["sweep"] for sweep in json.loads(xclrun("status", "--json").out)] == ["mine"]
    line = "sweep_name=../x: use 1 to 60 letters, digits, '-', '_' and '.'"
    assert xclrun(*TINY, "sweep_name=../x").line.startswith(line)
    assert "needs a single name" in xclrun(*TINY, "sweep_name=a,b").line


@pytest.mark.full
def test_outputs_of_the_environment_serve_all_commands(
    xclrun: Callable[..., Told], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XCLRUN_OUTPUTS", str(here.parent / "kept"))
    told = xclrun(*TINY, "seed=1")
    assert told.code == 0
    assert "--outputs" not in told.err.splitlines()[-1]
    [sweep] = json.loads(xclrun("status", "--json").out)
    assert [run["state"] for run in sweep["runs"]] == ["finished"]
    plan = json.loads(xclrun("plan", *TINY, "seed=1,2", "-m", "--json").out)
    assert [run["finished"] for run in plan["runs"]] == [True, False]
    assert plan["total"]["needed"] == 2
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
    small = [override for override in TINY if override != "tracking=none"]
    done = shell(*small, "strategy=naive,er,lang_spec_ft", "seed=1", "-m")
    assert (done.returncode, done.stdout) == (0, "")
    assert "3 of 3 runs finished" in done.stderr
    # Beside that of an order by size where all have as many.
    assert not [line for line in done.stderr.splitlines() if "note:" in line and "order=h2l" not in line]
    report = shell("report", "--json")
    assert (report.returncode, report.stderr) == (0, "")
    found = json.loads(report.stdout)
    assert found["runs"] == {"finished": 3}
    assert {row["strategy"] for row in found["rows"]} == {"naive", "er", "lang_spec_ft"}


@pytest.mark.full
def test_outputs_that_were_moved_or_whose_database_is_damaged(
    shell: Callable[..., subprocess.CompletedProcess[str]], xclrun: Callable[..., Told], here: Path
) -> None:
    assert xclrun(*TINY).code == 0
    before = json.loads(shell("report", "--json").stdout)["rows"]
    (here / "outputs").rename(here / "moved")
    moved = shell("report", "--json", "--outputs", "moved")
    assert json.loads(moved.stdout)["rows"] == before
    (here / "moved" / "mlflow.db").write_text("no database")
    damaged = shell("report", "--json", "--outputs", "moved")
    assert damaged.returncode == 0
    assert damaged.stderr.startswith("note: ")
    assert "mlflow.db" in damaged.stderr
    assert "`xclrun mlflow sync --rebuild`" in damaged.stderr
    assert damaged.stderr.endswith("; reading the run directories instead\n")
    assert json.loads(damaged.stdout)["rows"] == before
    sync = shell("mlflow", "sync", "--outputs", "moved")
    assert sync.returncode == 1
    assert "mlflow.db" in sync.stderr
    assert len(sync.stderr.splitlines()) == 1
