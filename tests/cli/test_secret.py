"""A password in the address of the tracking server reaches the server, and nothing that is written or shown."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import TINY
from xclrun.config.schema import TrackingConfig
from xclrun.core import secret
from xclrun.core.errors import RunError
from xclrun.tracking import background
from xclrun.tracking.mirror import Mirror

from .conftest import Told

Command = Callable[..., Told]
# With signs by which addresses, shells and Hydra divide what they read.
PASSWORD = "hunter2/@=,x"
RUN = [o for o in TINY if o != "tracking=none"]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No password from before, and none left behind."""
    for name in (secret.ENVIRONMENT, "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def server() -> Iterator[tuple[str, list[str | None]]]:
    """A server that lets nobody in: its ``host:port``, and the credentials that it was given."""
    given: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given.append(self.headers["Authorization"])
            self.send_error(403)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"127.0.0.1:{found.server_port}", given
        found.shutdown()
        thread.join()


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"me:{password}".encode()).decode()


def nowhere(folder: Path, *said: str) -> None:
    """Check that no file below a folder, no name of one and nothing said holds a part of the password."""
    for text in said:
        assert "hunter2" not in text
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if b"hunter2" in path.read_bytes() or "hunter2" in str(path)] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://host:5000/x", "http://host:5000/x"),
        ("sqlite:////home/a@b/x.db", "sqlite:////home/a@b/x.db"),
        ("http://u:p@host", "http://***@host"),
        ("failed: postgresql://u:a/b@c@host:1/db (no)", "failed: postgresql://***@host:1/db (no)"),
        ("http://host/#access_token=abc", "http://host/#access_token=***"),
        ("https://token@host/p?x=1&api_key=abc&y=2", "https://***@host/p?x=1&api_key=***&y=2"),
    ],
)
def test_what_addresses_hide(text: str, shown: str) -> None:
    assert secret.redact(text) == secret.redact(shown) == shown


def test_a_password_given_as_an_argument(
    xclrun: Command, here: Path, server: tuple[str, list[str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, given = server
    uri = f"http://me:{PASSWORD}@{host}"
    started: list[tuple[Any, dict[str, str]]] = []

    class Process:
        """Stands for the process that sends to MLflow."""

        def __init__(self, command: list[str], **_: Any) -> None:
            # What it reads from its standard input.
            self.stdin = (here / f"request-{len(started)}").open("wb")
            started.append((command, dict(os.environ)))

        def wait(self, timeout: float) -> int:
            return 0

    with monkeypatch.context() as patched:
        patched.setattr(background, "subprocess", SimpleNamespace(Popen=Process, PIPE=subprocess.PIPE))
        told = xclrun(*RUN, f"tracking.uri={uri}")
    assert told.code == 0, told.err
    nowhere(here, told.out, told.err)
    assert "MLFLOW_TRACKING_PASSWORD" in xclrun("plan", *RUN, f"tracking.uri={uri}x").err
    # The process that sends is given the address by its environment.
    assert started
    for i, (command, environment) in enumerate(started):
        request = (here / f"request-{i}").read_text()
        assert f"http://***@{host}" in request
        assert "hunter2" not in f"{request} {command}"
        assert environment[secret.ENVIRONMENT] == uri
    for name in ("sweeps/*.json", "runs/*/config.yaml", "mlflow-sync.log"):
        found = list((here / "outputs").glob(name))
        assert found
        assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
    # What is only shown, and what fails.
    for command in (
        ["--cfg", "job", f"tracking.uri={uri}"],
        ["--cfg", "all", "--resolve", f"++tracking.uri='{uri}'"],
        ["--info", "config", f"tracking.uri={uri}"],
        ["plan", *RUN, f"tracking.uri={uri}", "--json"],
        [*RUN, f"tracking.uri={uri}", "seed=x"],
        [*RUN, f"trackng.uri={uri}"],
        [*RUN, f"dataset.root={uri}", "dataset=jsonl"],
        ["sync", "--uri", uri],
        ["sync", "--uri", f"foo://me:{PASSWORD}@{host}"],
        ["status"],
    ):
        told = xclrun(*command)
        nowhere(here, told.out, told.err)
    assert given
    assert set(given) == {basic(PASSWORD)}


def test_a_password_in_a_file_or_the_environment(
    xclrun: Command, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"http://me:{PASSWORD}@127.0.0.1:9"
    mine = tmp_path / "conf" / "tracking" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text(f"defaults: [mlflow]\nenabled: false\nuri: '{uri}'\n")
    monkeypatch.setenv("SERVER", uri)
    from_file = ("--config-dir", str(tmp_path / "conf"), "tracking=mine")
    from_environment = ("tracking.enabled=false", "tracking.uri=${oc.env:SERVER}")
    for i, how in enumerate((from_file, from_environment)):
        told = xclrun(*RUN, *how, f"seed={i}")
        assert told.code == 0, told.err
        shown = xclrun("--cfg", "job", "--resolve", *how)
        assert "http://***@127.0.0.1:9" in shown.out
        nowhere(here, told.out, told.err, shown.out, shown.err)


def test_the_address_that_hides_one_asks_with_mlflow_s_own(
    server: tuple[str, list[str | None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, given = server
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "other")
    with pytest.raises(RunError, match=rf"^MLflow at http://\*\*\*@{host} cannot be used: "):
        Mirror(tmp_path, TrackingConfig(uri=f"http://***@{host}"))
    assert set(given) == {basic("other")}


@pytest.mark.full
def test_sweeps_jobs_and_reports_are_handed_it_by_the_environment(
    xclrun: Command, here: Path, server: tuple[str, list[str | None]]
) -> None:
    host, given = server
    uri = f"http://me:{PASSWORD}@{host}"
    debug = ("hydra/launcher=slurm", "hydra.launcher.cluster=debug")
    for how in (debug, ["hydra.launcher.n=2"], []):
        asked, seeds = len(given), f"seed=1{len(how)},2{len(how)}"
        told = xclrun(*RUN, f"tracking.uri={uri}", seeds, *how, "-m")
        assert told.code == 0, told.err
        nowhere(here, told.out, told.err)
        # On a cluster the command itself asks once; the jobs' own processes ask too.
        assert len(given) > asked + (how is debug)
    for command in (["report", f"--uri={uri}"], ["report", "--from-runs", "--uri", uri]):
        told = xclrun(*command)
        assert told.code == 0, told.err
        nowhere(here, told.out, told.err)
    assert set(given) == {basic(PASSWORD)}


def test_arguments_are_clean_before_anything_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes see them, and messages quote them: each way in which an address can be given."""
    whole, shown = f"http://me:{PASSWORD}@host", "http://***@host"
    for before, after in (
        (["sync", "--uri", whole], ["sync", "--uri", shown]),
        (["sync", f"--uri={whole}"], ["sync", f"--uri={shown}"]),
        ([f"tracking.uri='{whole}'", "seed=1"], [f"tracking.uri='{shown}'", "seed=1"]),
        ([f"+tracking.uri={whole}"], [f"+tracking.uri={shown}"]),
    ):
        monkeypatch.delenv(secret.ENVIRONMENT, raising=False)
        assert secret.put_away_arguments(before) == after
        assert os.environ[secret.ENVIRONMENT] == whole
