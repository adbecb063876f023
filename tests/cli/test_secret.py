"""A password in the address of a tracking server is refused, written nowhere, and shown in no message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import TINY
from xclrun.config.checks import check_uri
from xclrun.core.errors import UsageError, redact

from .conftest import Told

# With signs by which addresses, shells and Hydra divide what they read.
URI = "http://me:hunter2/@=,x@127.0.0.1:9"
RUN = [o for o in TINY if o != "tracking=none"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://host:5000/x", "http://host:5000/x"),
        ("sqlite:////home/a@b/x.db", "sqlite:////home/a@b/x.db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("http://u:p@host", "http://***@host"),
        ("failed: postgresql://u:a/b@c@host:1/db (no)", "failed: postgresql://u:***@host:1/db (no)"),
        ("http://host/#access_token=abc", "http://host/#access_token=***"),
        ("https://token@host/p?x=1&api_key=abc&y=2", "https://***@host/p?x=1&api_key=***&y=2"),
    ],
)
def test_redact(text: str, shown: str) -> None:
    assert redact(text) == redact(shown) == shown


def test_a_password_is_refused(
    xclrun: Callable[..., Told], here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "conf" / "tracking" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text(f"defaults: [mlflow]\nuri: '{URI}'\n")
    monkeypatch.setenv("SERVER", URI)
    given = [
        [*RUN, f"tracking.uri='{URI}'"],
        ["plan", *RUN, f"tracking.uri='{URI}'"],
        [*RUN, "--config-dir", str(tmp_path / "conf"), "tracking=mine"],
        [*RUN, "tracking.uri=${oc.env:SERVER}"],
        ["mlflow", "sync", "--outputs", ".", "--uri", URI],
        ["report", "--outputs", ".", f"--uri={URI}"],
    ]
    for command in given:
        told = xclrun(*command)
        assert told.code == 2
        assert "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" in told.line
        assert "hunter2" not in told.err
    told = xclrun("plan", *RUN, "tracking.uri=postgresql://me:hunter2@host/db")
    assert told.code == 2
    assert "PGPASSWORD" in told.line, "MLflow's variables are for its server, not for a database"
    assert "hunter2" not in told.err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("uri", ["HTTP://me:hunter2@host", "Https://hunter2@host/x", "hTTp://me:hunter2@host"])
def test_a_password_is_refused_in_an_address_in_capital_letters(uri: str) -> None:
    with pytest.raises(UsageError, match="MLFLOW_TRACKING_PASSWORD in the environment") as error:
        check_uri("tracking.uri", uri)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("uri", ["http:/me:hunter2@host", "ftp:me:hunter2@host", "http://[me:hunter2@host"])
def test_an_address_that_is_refused_for_another_reason_shows_no_password(uri: str) -> None:
    with pytest.raises(UsageError) as error:
        check_uri("tracking.uri", uri)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "command",
    [
        ["--cfg", "job", f"tracking.uri='{URI}'"],
        [*RUN, f"tracking.uri={URI}", "seed=x"],
        [*RUN, f"trackng.uri={URI}"],
    ],
    ids=lambda command: command[0] + command[-1],
)
def test_no_message_shows_a_password(command: list[str], xclrun: Callable[..., Told]) -> None:
    told = xclrun(*command)
    assert "***" in told.out + told.err
    assert "hunter2" not in told.out + told.err
