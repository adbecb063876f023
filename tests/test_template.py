"""MLflow's database is a copy of a template that MLflow made."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from xclrun.config.schema import TrackingConfig
from xclrun.tracking import template
from xclrun.tracking.mirror import Mirror
from xclrun.tracking.trackers import MARKERS


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the user, and a folder to work in."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XCLRUN_CACHE", str(tmp_path / "user"))
    return tmp_path / "user"


def content(database: Path) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the tables and indexes of a database without their order, and its experiments without their times."""
    with closing(sqlite3.connect(database)) as connection:
        schema = [row[0] or "" for row in connection.execute("SELECT name FROM sqlite_master")]
        columns = "experiment_id, name, artifact_location, lifecycle_stage"
        return sorted(schema), connection.execute(f"SELECT {columns} FROM experiments ORDER BY 1").fetchall()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_copy_of_the_template_is_what_mlflow_would_make(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Mirror(Path("copied"), TrackingConfig())
    assert len(list(cache.glob("mlflow-*.db"))) == 1
    assert copy.client.create_run(copy.experiment).info.run_id
    monkeypatch.setattr(template, "_template", lambda: None)
    Mirror(Path("made"), TrackingConfig())
    (copied, of_copy), (made, of_made) = (content(Path(name, "mlflow.db")) for name in ("copied", "made"))
    assert copied == made
    assert of_copy == [
        tuple(str(cell).replace("/made/", "/copied/") if k else cell for k, cell in enumerate(row)) for row in of_made
    ]
    assert not list(Path().glob("mlruns"))


def test_the_template_is_made_once_and_again_if_damaged(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter((b"first", b"second"))
    monkeypatch.setattr(template, "_make", lambda: next(made))
    for _ in range(2):
        template.create_database(Path("mlflow.db"))
        assert Path("mlflow.db").read_bytes() == b"first"
    [path] = cache.glob("mlflow-*.db")
    path.write_bytes(b"fir")
    template.create_database(Path("mlflow.db"))
    assert Path("mlflow.db").read_bytes() == b"second"


def test_without_a_cache_or_a_template_a_database_is_made_all_the_same(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("in the way", encoding="utf-8")
    monkeypatch.setattr(template, "_make", lambda: b"kept nowhere")
    template.create_database(Path("mlflow.db"))
    assert Path("mlflow.db").read_bytes() == b"kept nowhere"
    monkeypatch.setattr(template, "_make", lambda: None)
    template.create_database(Path("second.db"))
    assert Path("second.db").read_bytes() == b""


def test_a_cache_that_cannot_be_read_or_a_user_without_a_home_is_no_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(path: Path) -> str:
        raise PermissionError(path)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(template, "_make", lambda: b"made")
    template.create_database(Path("first.db"))
    with monkeypatch.context() as patch:
        patch.setattr("xclrun.store.cache.sha256", unreadable)
        template.create_database(Path("second.db"))
    assert Path("second.db").read_bytes() == b"made"
    monkeypatch.setattr(template, "cache_folder", homeless)
    template.create_database(Path("third.db"))
    assert Path("third.db").read_bytes() == b""


def test_a_failure_of_mlflow_leaves_no_template(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "_MAKE", "raise SystemExit(1)")
    assert template._make() is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_process_that_ends_when_the_database_is_made_leaves_no_marker_that_runs_were_sent(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(uri: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(template, "_template", lambda: b"made")
    monkeypatch.setattr("mlflow.MlflowClient", ended)
    marker = Path("out", MARKERS, "of-a-lost-database.json")
    marker.parent.mkdir(parents=True)
    marker.touch()
    with pytest.raises(KeyboardInterrupt):
        Mirror(Path("out"), TrackingConfig())
    assert Path("out", "mlflow.db").read_bytes() == b"made"
    assert not marker.exists()
