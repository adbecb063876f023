"""The directory of a run: events survive a torn line, and DONE holds the checksums of the files of record."""

import hashlib
import json
from pathlib import Path

import pytest

from xclrun.core.errors import UsageError
from xclrun.core.version import FORMAT
from xclrun.store.files import atomic_write, read_events
from xclrun.store.rundir import RunDirectory, UnreadableRun


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "runs" / "mini-naive-h2l-s1-0123")
    directory.open("seed: 1\n", {"run_id": directory.run_id, "status": "running"})
    return directory


def kinds(directory: RunDirectory) -> list[str]:
    return [event["event"] for event in read_events(directory.events)]


def test_opening_freezes_the_config(directory: RunDirectory) -> None:
    assert directory.run_id == "mini-naive-h2l-s1-0123"
    assert directory.config.read_text() == "seed: 1\n"
    checksum = hashlib.sha256(b"seed: 1\n").hexdigest()
    begun = {"run_id": directory.run_id, "status": "running", "format": FORMAT, "config_sha256": checksum}
    assert directory.read_manifest() == begun
    assert not directory.finished
    directory.write_manifest({"status": "failed"})
    assert directory.read_manifest() == {"status": "failed"}


@pytest.mark.parametrize("known", ["done", "manifest", "queued", "both", "nothing"])
def test_an_edited_config_is_refused_where_its_checksum_is_known(known: str, directory: RunDirectory) -> None:
    if known == "done":
        atomic_write(directory.scores, "scores")
        directory.finish()
    if known in ("queued", "both"):
        directory.queue("seed: 2\n", {"store": "s", "keys": []})
    if known not in ("manifest", "done", "both"):
        directory.manifest.unlink()
    text = directory.config.read_text()
    assert directory.read_config() == text
    if known == "both":
        # It was queued again after an attempt with another text.
        directory.config.write_text("seed: 1\n")
        assert directory.read_config() == "seed: 1\n"
    directory.config.write_text("seed: 3\n")
    if known == "nothing":
        assert directory.read_config() == "seed: 3\n"
        return
    with pytest.raises(UnreadableRun, match="was edited"):
        directory.read_config()


def test_events_are_appended(directory: RunDirectory) -> None:
    assert list(read_events(directory.events)) == []
    directory.event("started", pid=1)
    directory.event("hop", shared={"en": 0.5}, name="é")
    first, second = read_events(directory.events)
    assert (first["event"], first["pid"]) == ("started", 1)
    assert (second["shared"], second["name"]) == ({"en": 0.5}, "é")
    assert first["time"] <= second["time"]
    assert len(directory.events.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_torn_last_line_costs_that_line_alone(cut: int, directory: RunDirectory) -> None:
    directory.event("started")
    directory.event("failed", error="คำ")
    content = directory.events.read_bytes()
    directory.events.write_bytes(content[:-cut])
    # The newline alone is no loss.
    whole = ["started", "failed"] if cut == 1 else ["started"]
    assert kinds(directory) == whole
    directory.event("started again")
    assert kinds(directory) == [*whole, "started again"]


@pytest.mark.parametrize("separator", ["\n", "\u2028", "\u0085", "\x0c", "\r"])
def test_an_event_is_one_line_whatever_it_says(separator: str, directory: RunDirectory) -> None:
    directory.event("failed", error=f"one{separator}two")
    assert [event["error"] for event in read_events(directory.events)] == [f"one{separator}two"]


def test_a_manifest_with_a_format_of_5000_digits_is_damaged(directory: RunDirectory) -> None:
    atomic_write(directory.scores, "scores")
    directory.finish()
    assert directory.finished
    manifest = directory.manifest.read_text()
    directory.manifest.write_text(manifest.replace(f'"format": {FORMAT}', f'"format": {"1" * 5_000}'))
    assert not directory.finished
    assert directory.damaged() == directory.manifest


def test_done_holds_the_checksums_of_the_files_of_record(directory: RunDirectory) -> None:
    for hop in (0, 1, 10):
        atomic_write(directory.predictions(hop), f"rows of hop {hop}")
    atomic_write(directory.scores, "scores")
    directory.event("started")
    assert not directory.finished
    directory.finish()
    assert directory.finished
    noted = json.loads(directory.done.read_text())
    assert sorted(noted) == [
        "config.yaml",
        "manifest.json",
        "predictions/hop-0.parquet",
        "predictions/hop-1.parquet",
        "predictions/hop-10.parquet",
        "scores.parquet",
    ]
    for name, facts in noted.items():
        content = (directory.path / name).read_bytes()
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert directory.content(directory.path / name) == content
    # A glance sees what is gone or has another size, and any change of config and manifest; a thorough look all.
    seen = {"scores.parquet": "SCORES", "predictions/hop-1.parquet": "rows of hop 2", "config.yaml": "seed: 2\n"}
    for name, other in seen.items():
        path, content = directory.path / name, (directory.path / name).read_bytes()
        path.write_text(other)
        assert directory.finished == (name != "config.yaml")
        assert directory.damaged(thorough=True) == path
        with pytest.raises(ValueError, match="has changed since the run finished"):
            directory.content(path)
        path.write_bytes(content[:-1])
        assert directory.damaged() == path
        path.unlink()
        assert (directory.finished, directory.damaged()) == (False, path)
        path.write_bytes(content)
        assert directory.finished
    for torn in ("{", "[]", "{}", json.dumps(dict.fromkeys(noted, 64))):
        directory.done.write_text(torn)
        assert (directory.finished, directory.damaged()) == (False, directory.done)


def test_a_run_without_its_scores_is_not_done(directory: RunDirectory) -> None:
    with pytest.raises(FileNotFoundError):
        directory.finish()
    assert not directory.finished


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UsageError, match="cannot write"):
        RunDirectory(tmp_path / "runs" / "id").open("", {})
