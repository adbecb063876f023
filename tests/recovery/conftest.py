"""Commands in this process and in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from .commands import XCLRUN, predictions


@pytest.fixture
def faults() -> Callable[..., Any]:
    """Call a function of ``faults.py`` in a process of its own, and return what it found."""

    def call(name: str, *arguments: object, timeout: float = 500.0) -> Any:
        script = Path(__file__).with_name("faults.py")
        done = subprocess.run(
            [sys.executable, str(script), name, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return call


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

    found: dict[tuple[str, ...], dict[str, str]] = {}

    def run(overrides: Sequence[str]) -> dict[str, str]:
        key = tuple(overrides)
        if key not in found:
            outputs = tmp_path_factory.mktemp("undisturbed")
            before = dict(os.environ)
            assert main([*overrides, f"paths.outputs={outputs}", "-m"]) == 0
            os.environ.clear()
            os.environ.update(before)
            found[key] = predictions(outputs)
        return found[key]

    return run
