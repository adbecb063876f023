"""Containers, cron jobs and daemons: without a home directory, the name of a user, or the working directory."""

from __future__ import annotations

import getpass
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from xclrun.cli import main
from xclrun.core.surroundings import check_surroundings

NAMES = ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME")


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a user without an entry in passwd and without the variables that a login sets."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    for name in NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.usefixtures("nobody")
def test_libraries_find_a_home_directory_and_a_user() -> None:
    with pytest.raises(RuntimeError):
        Path.home()
    check_surroundings()
    assert getpass.getuser() == str(os.getuid())
    assert not Path.home().exists()


@pytest.mark.usefixtures("nobody")
def test_nothing_is_written_to_a_missing_home_directory() -> None:
    """The error names the variable, instead of a run that is lost with a temporary folder."""
    check_surroundings()
    with pytest.raises(OSError, match="HOME"):
        Path("~/outputs").expanduser().mkdir(parents=True)


def test_an_empty_variable_is_no_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    monkeypatch.setenv("LOGNAME", "someone")
    monkeypatch.setattr(pwd, "getpwuid", lambda number: SimpleNamespace(pw_dir="/home/someone"))
    check_surroundings()
    assert Path.home() == Path("/home/someone")


def test_existing_surroundings_are_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "someone")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    before = dict(os.environ)
    check_surroundings()
    assert dict(os.environ) == before


def test_mlflow_sends_no_usage_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "")
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY")
    check_surroundings()
    # MLflow reads the variable when it is imported.
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


@pytest.mark.parametrize("chosen", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_waiting_threads_leave_their_core_to_others_unless_the_user_chose(
    chosen: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    check_surroundings()
    # libgomp reads these when it is loaded, with PyTorch.
    found = {name: os.environ[name] for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY") if name in os.environ}
    assert found == (chosen or {"GOMP_SPINCOUNT": "1000"})


def test_a_deleted_working_directory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["strategy=naive"]) == 2
    output = capsys.readouterr().err
    assert "working directory" in output
    assert output.count("\n") == 1


@pytest.mark.parametrize("arguments", [["status", "--outputs", "~no-such-user/o"], ["paths.outputs=~no-such-user/o"]])
def test_the_folder_of_an_unknown_user_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr().err
    assert "~" in output
    assert output.count("\n") == 1
