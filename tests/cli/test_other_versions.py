"""Runs made by another version of xclrun, and copies of run directories: named as such, never as damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY
from xclrun.cli import main
from xclrun.store.files import sha256
from xclrun.store.rundir import RunDirectory

from .conftest import Told

Xclrun = Callable[..., Told]
COMMAND = (*TINY, "strategy=naive,er")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of two finished runs."""
    outputs = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYDRA_FULL_ERROR", "1")
        assert main([*COMMAND, f"paths.outputs={outputs}", "-m"]) == 0
    return outputs


@pytest.fixture
def run(two: Path, here: Path) -> RunDirectory:
    """One of these runs, copied to where commands look for it."""
    shutil.copytree(two, here / "outputs")
    [path] = (here / "outputs" / "runs").glob("*-er-*")
    return RunDirectory(path)


def rewrite_manifest(run: RunDirectory, **facts: Any) -> None:
    """Change facts of a manifest as another version would have written them, with its checksum in DONE."""
    run.write_manifest(run.read_manifest() | {"code_version": "0.0.3", **facts})
    done = run.read_done()
    done["manifest.json"] = {"bytes": run.manifest.stat().st_size, "sha256": sha256(run.manifest)}
    run.done.write_text(json.dumps(done))


def with_format_0(run: RunDirectory) -> None:
    rewrite_manifest(run, format=0)


def with_checksums_alone(run: RunDirectory) -> None:
    """DONE as it was before it had sizes."""
    rewrite_manifest(run)
    run.done.write_text(json.dumps({name: facts["sha256"] for name, facts in run.read_done().items()}))


def test_a_finished_run_has_a_format_and_a_run_without_one_is_read(run: RunDirectory, xclrun: Xclrun) -> None:
    assert run.read_manifest()["format"] == 1
    manifest = run.read_manifest()
    del manifest["format"], manifest["config_sha256"]
    run.write_manifest(manifest)
    done = run.read_done()
    done["manifest.json"] = {"bytes": run.manifest.stat().st_size, "sha256": sha256(run.manifest)}
    run.done.write_text(json.dumps(done))
    assert run.finished
    assert xclrun("show", run.run_id).code == 0


@pytest.mark.parametrize("older", [with_format_0, with_checksums_alone])
@pytest.mark.usefixtures("undrawn")
def test_runs_of_an_older_version(
    older: Callable[[RunDirectory], None], run: RunDirectory, xclrun: Xclrun, tmp_path: Path
) -> None:
    older(run)
    codes = {
        ("status", "all"): 0,
        ("show", run.run_id): 1,
        ("show", run.run_id, "mini-naive"): 1,
        ("model", "export", run.run_id, str(tmp_path / "exported")): 1,
        ("rerun", run.run_id): 1,
        ("rerun", run.run_id, "--fresh", str(tmp_path / "fresh")): 1,
        ("model", "average", run.run_id, "--all"): 1,
        ("store", "verify"): 0,
        # The other run is reported, now and for ever.
        ("report", "--all", "--from-runs"): 0,
    }
    for command, code in codes.items():
        told = xclrun(*command)
        said = told.out + told.err
        assert (told.code, "older version (0.0.3)" in said) == (code, True), (command, said)
        assert "damaged" not in said, command
        assert "changed" not in said, command
    [facts] = json.loads(xclrun("status", "--json").out)
    assert {one["run_id"]: one["state"] for one in facts["runs"]}[run.run_id] == "older"
    # The command retrains it, from the store.
    assert xclrun(*COMMAND).code == 0
    assert run.finished


@pytest.mark.usefixtures("undrawn")
def test_runs_of_a_newer_version_are_not_overwritten(run: RunDirectory, xclrun: Xclrun) -> None:
    rewrite_manifest(run, format=2, code_version="0.9.0")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    for command in (("show", run.run_id), ("rerun", run.run_id), ("report", "--all", "--from-runs"), COMMAND):
        told = xclrun(*command)
        assert told.code == 1, command
        assert "newer version (0.9.0); upgrade" in told.err, command
        assert "damaged" not in told.err, command
    assert before == {path: path.read_bytes() for path in before}


def test_a_run_whose_id_an_older_version_gave_is_not_blamed_on_the_data(run: RunDirectory, xclrun: Xclrun) -> None:
    other = RunDirectory(run.path.with_name("mini-er-h2l-s1-000000000000"))
    shutil.move(run.path, other.path)
    rewrite_manifest(other, run_id=other.run_id)
    told = xclrun("model", "export", other.run_id, "exported")
    assert (told.code, "older version (0.0.3)" in told.err) == (1, True), told.err
    assert "the data" not in told.err
    rewrite_manifest(other, data=other.read_manifest()["data"] | {"fingerprint": "0" * 64})
    assert "the data has changed" in xclrun("model", "export", other.run_id, "exported").err


def test_a_copied_run_is_named_as_a_copy(run: RunDirectory, xclrun: Xclrun) -> None:
    copy = RunDirectory(run.path.with_name("backup"))
    shutil.copytree(run.path, copy.path)
    assert (run.finished, copy.finished) == (True, False)
    for command in (("show", "backup"), ("rerun", "backup"), ("store", "verify")):
        told = xclrun(*command)
        said = told.out + told.err
        assert (told.code, f"holds the run {run.run_id}" in said) == (1, True), (command, said)
        assert "damaged" not in said, command
