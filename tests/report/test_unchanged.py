"""A report whose inputs are unchanged is printed again; any change of an input makes it anew."""

from __future__ import annotations

import argparse
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from xclrun.cli import main
from xclrun.command import unchanged
from xclrun.command.unchanged import Unchanged
from xclrun.plan import Run
from xclrun.store.locks import alone
from xclrun.store.rundir import RunDirectory


def opened(outputs: Path, *arguments: str, source: str = "runs", uri: str | None = None, width: int = 80) -> Unchanged:
    return Unchanged(arguments, argparse.Namespace(outputs=outputs, source=source, uri=uri, into=None), width)


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The outputs of a finished run and a lost one, with a report that was stored."""
    monkeypatch.chdir(tmp_path)
    package, outputs = tmp_path / "package", tmp_path / "outputs"
    monkeypatch.setattr(unchanged, "PACKAGE", package)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    for path in (
        package / "report" / "style.py", package / "report" / "page.html", outputs / "sweeps" / "demo.json",
        outputs / "runs" / "a" / "DONE", outputs / "runs" / "a" / "predictions" / "hop-1.parquet",
        outputs / "runs" / "b" / "config.yaml", outputs / "mlflow.db", outputs / "reports" / "demo" / "index.html",
    ):  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name, encoding="utf-8")
    opened(outputs).store("demo", "the table")
    return outputs


def test_an_unchanged_report_is_printed_again(outputs: Path) -> None:
    assert opened(outputs).text() == "the table"
    # Bytecode is no source.
    (outputs.parent / "package" / "__pycache__").mkdir()
    (outputs.parent / "package" / "__pycache__" / "style.pyc").touch()
    assert opened(outputs).text() == "the table"


CHANGES: dict[str, str] = {
    "another file of a run": "outputs/runs/a/averages.parquet",
    "predictions of the same size": "outputs/runs/a/predictions/hop-1.parquet",
    "another run": "outputs/runs/c/DONE",
    "an unfinished run": "outputs/runs/b/manifest.json",
    "another sweep": "outputs/sweeps/second.json",
    "a table of the report": "outputs/reports/demo/index.html",
    "the style": "package/report/style.py",
    "a template": "package/report/page.html",
    "matplotlib's settings here": "matplotlibrc",
    "matplotlib's settings of the user": "settings/matplotlib/matplotlibrc",
}


@pytest.mark.parametrize("path", CHANGES.values(), ids=CHANGES)
def test_any_changed_input_makes_the_report_anew(path: str, outputs: Path) -> None:
    changed = outputs.parent / path
    changed.parent.mkdir(parents=True, exist_ok=True)
    changed.with_name("new").write_text(changed.name[::-1], encoding="utf-8")
    os.replace(changed.with_name("new"), changed)
    assert opened(outputs).text() is None


def test_a_missing_file_of_the_report_or_of_the_cache_makes_it_anew(outputs: Path) -> None:
    [stored] = (outputs / "cache").iterdir()
    stored.write_bytes(stored.read_bytes()[:-9])
    assert opened(outputs).text() is None
    opened(outputs).store("demo", "the table")
    (outputs / "reports" / "demo" / "index.html").unlink()
    assert opened(outputs).text() is None


def test_options_environment_and_width_are_inputs(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened(outputs, "--full").text() is None
    monkeypatch.setenv("XCLRUN_OTHER", "1")
    assert opened(outputs).text() is None
    monkeypatch.delenv("XCLRUN_OTHER")
    assert opened(outputs, width=71).text() is None


@pytest.mark.parametrize("library", ["scipy", "statsmodels", "sacrebleu", "matplotlib", "rich"])
def test_versions_of_libraries_are_inputs(library: str, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = unchanged.version
    monkeypatch.setattr(unchanged, "version", lambda name: "0.0" if name == library else installed(name))
    assert opened(outputs).text() is None


def test_plug_ins_and_servers_are_never_taken_for_unchanged(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for uri in ("http://127.0.0.1:1", None):
        if uri is None:
            monkeypatch.setattr("xclrun.core.plugins.hashes", lambda: ["0" * 64])
        opened(outputs, uri=uri).store("demo", "another table")
        assert opened(outputs, uri=uri).text() is None


def test_a_changed_database_may_need_the_report_again(outputs: Path) -> None:
    opened(outputs, source="mlflow").store("demo", "the table")
    assert opened(outputs, source="mlflow").text() == "the table"
    with (outputs / "mlflow.db").open("a", encoding="utf-8") as file:
        file.write("sent by another command")
    assert opened(outputs, source="mlflow").text() is None


@pytest.mark.parametrize("mine", [True, False])
def test_runs_that_mlflow_got_while_the_report_was_made_are_not_missing_from_the_next(
    outputs: Path, mine: bool
) -> None:
    report = opened(outputs, source="mlflow")
    report.check()
    with (outputs / "mlflow.db").open("a", encoding="utf-8") as file:
        file.write("runs")
    if mine:
        report.accept()
    report.check()
    report.store("demo", "the table")
    assert (opened(outputs, source="mlflow").text() is not None) is mine


def test_a_process_that_died_before_it_wrote_a_manifest_changes_the_state_of_its_run(
    outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert RunDirectory(outputs / "runs" / "b").lease.try_acquire()
    opened(outputs).store("demo", "the table")
    assert opened(outputs).text() == "the table"
    monkeypatch.setattr("xclrun.store.lease._alive", lambda pid, birth: False)
    assert opened(outputs).text() is None


def test_a_report_whose_files_could_not_be_read_is_made_again(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(path: Path) -> str:
        raise PermissionError(path)

    with monkeypatch.context() as patch:
        patch.setattr(unchanged, "sha256", unreadable)
        opened(outputs).store("demo", "the table")
    shutil.rmtree(outputs / "reports")
    assert opened(outputs).text() is None


def test_two_processes_never_write_one_report_at_the_same_time(tmp_path: Path) -> None:
    written: list[str] = []

    def second() -> None:
        with alone(tmp_path, "report", "demo") as locked:
            written.append(f"second {locked}")

    thread = threading.Thread(target=second)
    with alone(tmp_path, "report", "demo") as locked, alone(tmp_path, "report", "another") as also:
        thread.start()
        thread.join(0.05)
        written.append(f"first {locked and also}")
    thread.join()
    assert written == ["first True", "second True"]


def test_without_a_writable_folder_reports_are_written_unlocked(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way", encoding="utf-8")
    with alone(tmp_path, "report", "demo") as locked:
        assert not locked


@pytest.mark.usefixtures("undrawn")
def test_the_same_command_prints_and_leaves_the_same_bytes(
    finished: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished("strategy=naive")
    outputs = tmp_path / "outputs"
    shutil.copytree(run.directory.path, outputs / "runs" / run.id)
    command = ["report", "--all", "--from-runs", "--outputs", str(outputs)]

    def report() -> tuple[str, dict[str, bytes]]:
        assert main(command) == 0
        paths = [path for path in (outputs / "reports").rglob("*") if path.is_file()]
        return capsys.readouterr().out, {str(path): path.read_bytes() for path in paths}

    cold = report()
    with monkeypatch.context() as patch:
        patch.setattr("xclrun.report.write.write_report", None)
        assert report() == cold
    # A report that prints a note is made again, and the note with it.
    (outputs / "runs" / "unreadable").mkdir()
    (outputs / "runs" / "unreadable" / "manifest.json").write_text("{", encoding="utf-8")
    for _ in range(2):
        assert main(command) == 1
        assert "unreadable" in capsys.readouterr().err
