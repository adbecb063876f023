"""MLflow unreachable, locked or damaged: training neither waits nor fails; `mlflow sync` sends the runs later."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import copy_tracked

from .commands import small, whole

# MLflow's own affair: it calls SQLAlchemy in a way that will end.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TRACKED = small("tracking=mlflow")
Command = Callable[..., tuple[int, str]]
# Seconds that a command may take longer for a mirror that does not work; the training is a matter of a second.
PATIENCE = 45.0


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs of a run that was sent while it ran, to be copied."""
    from xclrun.cli import main

    outputs = tmp_path_factory.mktemp("sent")
    assert main([*TRACKED, f"paths.outputs={outputs}", "-m"]) == 0
    assert (outputs / "mlflow-sync.log").read_bytes() == b""
    return outputs


def _trains_all_the_same(xclrun: Command, outputs: Path, *overrides: str) -> None:
    began = time.monotonic()
    code, output = xclrun(*TRACKED, *overrides, f"paths.outputs={outputs}", "-m")
    assert code == 0, output
    assert time.monotonic() - began < PATIENCE
    assert "1 of 1 runs finished" in output
    assert "note: MLflow is unreachable" in output
    assert "send the runs later with `xclrun mlflow sync`" in output
    assert "Traceback" not in output
    assert whole(outputs)


@pytest.mark.full
def test_server_that_refuses(xclrun: Command, tmp_path: Path) -> None:
    _trains_all_the_same(xclrun, tmp_path, "tracking.uri=http://127.0.0.1:9")
    began = time.monotonic()
    code, output = xclrun("mlflow", "sync", "--outputs", str(tmp_path), "--uri", "http://127.0.0.1:9")
    assert code == 1
    assert time.monotonic() - began < PATIENCE
    assert len(output.splitlines()) == 1
    assert "MLflow at http://127.0.0.1:9 cannot be used" in output


@pytest.mark.full
def test_locked_database(xclrun: Command, sent: Path, tmp_path: Path) -> None:
    outputs = copy_tracked(sent, tmp_path / "outputs")
    with closing(sqlite3.connect(outputs / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        _trains_all_the_same(xclrun, outputs, "seed=2")
        code, output = xclrun("mlflow", "sync", "--outputs", str(outputs))
        assert code == 1
        assert output.splitlines()[-1].endswith("database is locked")
        # The report says so, and is made from the runs.
        code, output = xclrun("report", "--outputs", str(outputs))
        assert code == 0
        assert "reading the run directories instead" in output
    assert "1 run sent" in xclrun("mlflow", "sync", "--outputs", str(outputs))[1]
    assert "0 runs sent" in xclrun("mlflow", "sync", "--outputs", str(outputs))[1]


@pytest.mark.full
def test_a_lock_that_another_process_holds_is_waited_for_with_a_limit(
    xclrun: Command, sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(sent / "runs", tmp_path / "runs")
    monkeypatch.setattr("xclrun.tracking.mirror.LOCKED", 0.3)
    with (tmp_path / "mlflow.lock").open("w") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        began = time.monotonic()
        code, output = xclrun("mlflow", "sync", "--outputs", str(tmp_path))
        assert code == 1
        assert f"another process has locked {tmp_path / 'mlflow.lock'} for more than 0.3 s" in output
        code, output = xclrun("report", "--outputs", str(tmp_path))
        assert code == 0
        assert "reading the run directories instead" in output
        assert time.monotonic() - began < PATIENCE
    code, output = xclrun("mlflow", "sync", "--outputs", str(tmp_path))
    assert (code, "sent" in output) == (0, True), output


def _junk(database: Path) -> None:
    database.write_bytes(b"\xa5" * 50_000)


def _truncated(database: Path) -> None:
    os.truncate(database, database.stat().st_size // 2)


def _other_schema(database: Path) -> None:
    with closing(sqlite3.connect(database)) as opened, opened:
        opened.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")


@pytest.mark.full
@pytest.mark.parametrize("damage", [_junk, _truncated, _other_schema])
def test_an_unusable_database_is_moved_aside_by_a_rebuild(
    damage: Callable[[Path], None], xclrun: Command, sent: Path, tmp_path: Path
) -> None:
    outputs = copy_tracked(sent, tmp_path / "outputs")
    database = outputs / "mlflow.db"
    damage(database)
    content = database.read_bytes()
    code, output = xclrun(*TRACKED, "seed=2", f"paths.outputs={outputs}", "-m")
    assert (code, "1 of 1 runs finished" in output) == (0, True), output
    # `xclrun mlflow sync` alone would not send it.
    assert "cannot be used" in output
    assert "`xclrun mlflow sync --rebuild` replaces it" in output
    assert "send the runs later with `xclrun mlflow sync`" not in output
    assert "Traceback" not in output
    assert whole(outputs)
    code, output = xclrun("mlflow", "sync", "--outputs", str(outputs))
    assert (code, len(output.splitlines()), "`xclrun mlflow sync --rebuild` replaces it" in output) == (1, 1, True), (
        output
    )
    code, output = xclrun("mlflow", "sync", "--rebuild", "--outputs", str(outputs))
    assert (code, "2 runs sent" in output) == (0, True), output
    [aside] = outputs.glob("mlflow.db.unusable-*")
    assert aside.read_bytes() == content
    assert str(aside) in output
