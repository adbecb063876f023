"""Commands in this process and in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from .commands import XCLRUN, predictions


@pytest.fixture(scope="session")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Call a function of ``faults.py`` in a child of a process that imports once, and return what it found."""
    output = tmp_path_factory.mktemp("faults") / "stderr"
    command = [sys.executable, str(Path(__file__).with_name("faults.py")), "serve"]
    with (
        output.open("w") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as server,
    ):

        def call(name: str, *arguments: object, timeout: float = 500.0) -> Any:
            requested = {"name": name, "arguments": [*map(str, arguments)], "folder": os.getcwd()}
            assert server.stdin is not None
            assert server.stdout is not None
            print(json.dumps(requested | {"environment": dict(os.environ)}), file=server.stdin, flush=True)
            answered, _, _ = select.select([server.stdout], [], [], timeout)
            answer = server.stdout.readline().strip() if answered else ""
            assert answer, f"{name}: no answer in {timeout} s, or an error:\n{output.read_text()}"
            return json.loads(answer)

        yield call
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)


@pytest.fixture
def start() -> Any:
    """Start commands as a shell would: ``start("strategy=er", …)``; those that live on are killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*XCLRUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """Return the predictions of a command that nothing disturbs; each is run once."""
    from xclrun.cli import main

    result: dict[tuple[str, ...], dict[str, str]] = {}

    def run(overrides: Sequence[str]) -> dict[str, str]:
        key = tuple(overrides)
        if key not in result:
            outputs = tmp_path_factory.mktemp("undisturbed")
            before = dict(os.environ)
            assert main([*overrides, f"paths.outputs={outputs}", "-m"]) == 0
            os.environ.clear()
            os.environ.update(before)
            result[key] = predictions(outputs)
        return result[key]

    return run
