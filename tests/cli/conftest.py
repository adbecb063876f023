"""Commands run in this process, in an empty folder, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from xclrun.cli import main


@dataclass(frozen=True)
class Told:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The error, which must be all that was said: one line that begins with the program's name."""
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("xclrun: ")
        return lines[0].removeprefix("xclrun: ")

    @property
    def last(self) -> str:
        """The last line of a command that failed while it ran."""
        assert "Traceback" not in self.err
        *_, last = self.err.splitlines()
        assert last.startswith("xclrun: ")
        return last.removeprefix("xclrun: ")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, with none of xclrun's environment variables set."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("XCLRUN_OUTPUTS", "XCLRUN_DEBUG", "COMP_LINE"):
        monkeypatch.delenv(name, raising=False)
    # The command sets it for Hydra; so it is put back.
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    return folder


@pytest.fixture
def xclrun(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """Run a command in the empty folder."""

    def run(*arguments: str) -> Told:
        capsys.readouterr()
        code = main(list(arguments))
        said = capsys.readouterr()
        return Told(code, said.out, said.err)

    return run


@pytest.fixture
def refused(xclrun: Callable[..., Told], here: Path) -> Callable[..., str]:
    """Run a command that must be refused: exit code 2, one line, nothing written. Return the line."""

    def run(*arguments: str) -> str:
        before = sorted(here.rglob("*"))
        told = xclrun(*arguments)
        assert told.code == 2, told.err
        assert sorted(here.rglob("*")) == before
        return told.line

    return run
