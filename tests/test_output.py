"""Standard streams: output that cannot be written or encoded never changes what a command does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SMALL
from xclrun.command.common import repeated
from xclrun.core import output

# Commands that stand for a training: they print, work, print again, and write a file at the end.
WORK = """
import sys
from pathlib import Path
from xclrun import cli

def work(arguments):
    for _ in range(3):
        print("─ result" * 5000, flush=True)
        print("progress …", file=sys.stderr)
    Path(arguments[0]).write_text("complete", encoding="utf-8")
    return int(arguments[1])

cli._dispatch = work
sys.exit(cli.main())
"""


def command(done: Path, code: int = 0) -> list[str]:
    return [sys.executable, "-c", WORK, str(done), str(code)]


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("redirect", ["2>&1 | head -n 1", "| head -n 1", "2>&- >&-", "2>&-", "2>/dev/full"])
def test_lost_output_does_not_stop_the_work_or_change_the_exit_code(redirect: str, code: int, tmp_path: Path) -> None:
    if "full" in redirect and not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    stream, _, pipe = redirect.partition("|")
    line = f'{{ "$@" {stream}; echo $? > code; }} {"|" + pipe if pipe else ""}'
    done = tmp_path / "done"
    subprocess.run(["bash", "-c", line, "", *command(done, code)], cwd=tmp_path, timeout=60, check=True)
    assert done.read_text() == "complete"
    assert int((tmp_path / "code").read_text()) == code


def test_results_that_do_not_fit_on_the_disk_are_an_error(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command(tmp_path / "done"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (tmp_path / "done").read_text() == "complete"
    assert done.returncode == 1
    assert "cannot write to the standard output" in done.stderr


@pytest.mark.parametrize("encoding", ["latin-1", "ascii:strict", "cp1252"])
def test_characters_that_an_encoding_lacks_are_replaced(encoding: str, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command(tmp_path / "done"), capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"- result")
    assert done.stderr.startswith((b"progress ...", "progress …".encode("cp1252")))


@pytest.mark.parametrize(
    ("text", "expected"), [("Škoda é", "Skoda \xe9"), ("日本", "??"), ("a\udcff", "a?"), ("≥ ½", ">= \xbd")]
)
def test_simpler_characters(text: str, expected: str) -> None:
    output.codecs.register_error(output.SIMPLER, output._simpler)
    assert text.encode("latin-1", output.SIMPLER).decode("latin-1") == expected


def test_a_file_never_receives_the_output_of_a_closed_stream(tmp_path: Path) -> None:
    script = (
        "import os, sys; from xclrun.core.output import protect; protect(); file = open(sys.argv[1], 'w');"
        "os.write(2, b'warning'); print('result')"
    )
    line = '"$@" <&- >&- 2>&-'
    subprocess.run(["bash", "-c", line, "", sys.executable, "-c", script, str(tmp_path / "file")], check=True)
    assert (tmp_path / "file").read_bytes() == b""


def test_a_command_that_watches_ends_when_nobody_reads_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = []
    monkeypatch.setattr("xclrun.command.common.reader_left", lambda: len(rounds) >= 3)
    repeated(lambda: rounds.append(1) is None, 0.0)
    assert len(rounds) < 6


def test_a_stream_that_must_not_block_loses_nothing() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    stream = output._protected(None, write)
    sent = "x" * 300_000
    reader = subprocess.Popen([sys.executable, "-c", "import sys; print(len(sys.stdin.read()))"], stdin=read, stdout=-1)
    os.close(read)
    try:
        stream.write(sent)
        stream.flush()
    finally:
        output._outputs.pop(write)
        os.close(write)
    assert int(reader.communicate(timeout=60)[0]) == len(sent)


@pytest.mark.full
def test_a_training_whose_output_nobody_reads_finishes(corpus: Path, tmp_path: Path) -> None:
    settings = (*SMALL, f"dataset.root={corpus}", "order=[en,de]", "trainer.epochs=1", f"paths.outputs={tmp_path}")
    line = '{ "$@" 2>&1; echo $? > code; } | head -n 1'
    program = [sys.executable, "-m", "xclrun", *settings]
    subprocess.run(["bash", "-c", line, "", *program], cwd=tmp_path, timeout=300, check=True)
    assert (tmp_path / "code").read_text() == "0\n"
    assert list(tmp_path.glob("runs/*/DONE"))
