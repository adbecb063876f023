"""Console output of running sweeps: resumed hops, the time left, and a line at least every minute."""

from __future__ import annotations

import contextlib
import importlib
import io
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from xclrun.cli import main
from xclrun.core.terminal import about, as_note, if_slow, line, note, size, table
from xclrun.launch import workers as work
from xclrun.launch.console import BAR, Console, step_line
from xclrun.launch.time_left import TimeLeft
from xclrun.plan import Run
from xclrun.train.progress import Listener, Progress
from xclrun.train.stop import StopFlag, Stopped

Make = Callable[..., Run]


class Stopping(Listener):
    """Stops a run at a step of a hop, or where step is None at the end of a hop."""

    def __init__(self, hop: int, step: int | None) -> None:
        self.stop, self.hop, self.step = StopFlag(), hop, step

    def stepped(self, progress: Progress) -> None:
        if (progress.hop.index, progress.step) == (self.hop, self.step):
            self.stop.number = 15

    def hop_ended(self, run: Run, hop: Any, scores: Any, shared: bool) -> None:
        if hop.index == self.hop and self.step is None:
            self.stop.number = 15


def ends(output: str) -> list[str]:
    """The last word of each row of the score matrix, but for seconds."""
    rows = [line.split() for line in output.splitlines() if line.strip()[:1].isdigit()]
    return ["trained" if row[-1] == "s" else row[-1] for row in rows[1:]]


def test_no_size_is_told_as_zero_megabytes() -> None:
    output = {0: "0.0 kB", 7_340: "7.3 kB", 49_999: "50.0 kB", 50_001: "0.1 MB", 2_480_000: "2.5 MB", 12e9: "12.00 GB"}
    assert {count: size(count) for count in output} == output


def test_a_run_that_goes_on_says_where_and_keeps_its_hops(
    make_run: Make, do: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run("trainer.batch_size=4")
    for hop, step, output in (
        (1, None, "note: resuming at the start of hop 2 (de)"),
        (2, 7, "note: resuming at hop 2 (de), epoch 2, step 7 of 10"),
    ):
        stopping = Stopping(hop, step)
        with pytest.raises(Stopped):
            do(run, stopping, stopping.stop)
        capsys.readouterr()
        again = Stopping(2, 1 if step is None else None)
        with pytest.raises(Stopped):
            do(run, _both(Console([run.id]), again), again.stop)
        assert output in capsys.readouterr().err
    do(run, Console([run.id]))
    assert ends(capsys.readouterr().err) == ["cached", "cached", "trained"]
    assert not any(stage["shared"] for stage in run.directory.read_manifest()["stages"])
    other = make_run("trainer.batch_size=4", "strategy=er")
    do(other, Console([run.id, other.id]))
    output = capsys.readouterr().err
    assert ends(output) == ["shared", "trained", "trained"]
    assert "resuming" not in output


def test_a_worker_says_once_that_a_run_was_started(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    console = Console([run.id], buffered=True)
    for _ in range(3):
        console.run_started(run)
        console.deferred(run, "another process")
    assert capsys.readouterr().err.splitlines() == [f"[1/1] {run.label}: started"]


def _both(*listeners: Listener) -> Listener:
    from xclrun.train.progress import Listeners

    return Listeners(listeners)


def test_the_time_left_is_what_sentences_have_taken(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    first, two = make_run(), make_run("strategy=er")
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    left = TimeLeft([first, two])
    assert left.seconds() is None
    left.start()
    now = 110.0
    left.progressed(first.stages[1].train, 1.0)
    # Two epochs of 22, 18 and 13 sentences; hop 1 is common to both runs.
    assert left.seconds(first.id) == pytest.approx(10 * (18 + 13) / 22)
    assert left.seconds(two.id) == left.seconds(first.id)
    assert left.seconds() == pytest.approx(10 * 2 * (18 + 13) / 22)
    # Of a mixture, the sentences of its steps: seven of four; then two epochs of 18.
    mixed = make_run("order=[en+es,de]", "trainer.mixture_steps=7")
    of_mixture = TimeLeft([mixed])
    of_mixture.start()
    now += 10
    of_mixture.progressed(mixed.stages[1].train, 1.0)
    assert of_mixture.seconds() == pytest.approx(10 * 2 * 18 / 28)
    now -= 10
    # What was done before took no time.
    left.progressed(first.stages[2].train, 0.75, before=0.5)
    assert left.seconds(first.id) == pytest.approx(10 * (18 / 4 + 13) / (22 + 18 / 4))
    # Nor for one who only looks on: what the first look finds was done before.
    onlooker = TimeLeft([first])
    first.directory.path.mkdir(parents=True)
    first.directory.write_progress({"hop": 1, "step": 2, "steps": 4})
    onlooker.observe()
    assert onlooker.seconds() is None
    now += 10
    first.directory.write_progress({"hop": 1, "step": 3, "steps": 4})
    onlooker.observe()
    assert onlooker.seconds() == pytest.approx(10 * (22 / 4 + 18 + 13) / (22 / 4))
    assert [about(s) for s in (0.2, 59, 61, 3599, 7800)] == ["1 s", "59 s", "1 min", "1 h 00 min", "2 h 10 min"]


def test_the_time_left_excludes_loading_when_a_sweep_resumes(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run, now = make_run(), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    console = Console([run.id], time_left=TimeLeft([run]), blind=True)
    first, second, _ = (stage.hop for stage in run.stages[1:])
    console.run_started(run)
    console.hop_ended(run, first, {}, shared=True)
    now += 30  # data and model are loaded
    console.hop_started(run, second)
    now += 30  # the checkpoint is loaded
    assert console.time_left is not None
    console.stepped(Progress(second, 1, 2, 3, 10, 12, 2.0))
    assert console.time_left.seconds() is None
    now += 1
    console.stepped(Progress(second, 1, 2, 4, 10, 16, 3.0))
    # One step of German took a second. Six steps are left, and two epochs of 13 sentences at 3.6 sentences per step.
    assert console.time_left.seconds() == pytest.approx(6 + 26 / 3.6)


def test_no_minute_is_silent(
    make_run: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    console = Console([run.id, "another"], time_left=TimeLeft([run]))
    console.run_started(run)
    console.hop_started(run, run.stages[1].hop)
    progress = Progress(run.stages[1].hop, 1, 2, 3, 4, 48, 2.0)
    capsys.readouterr()
    console.stepped(replace(progress, step=2))
    assert capsys.readouterr().err == ""
    console.last_line -= 50
    console.stepped(progress)
    console.stepped(progress)
    output = capsys.readouterr().err
    assert output.startswith("  hop 1/3 en · epoch 1/2 · step 3/4 · 24 examples/s · left: run ")
    assert output.count("\n") == 1
    # Several workers: the parent tells for them.
    monkeypatch.setattr(work, "HEARTBEAT", 0.01)
    run.directory.path.mkdir(parents=True)
    run.directory.write_progress({"hop": 1, "hops": 3, "name": "en", "step": 3, "steps": 4})
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])
    work._wait_for({worker.pid: None}, [run], console, lambda place: None)
    output = capsys.readouterr().err
    assert "1 of 2 runs finished · [1/2] hop 1/3 en, step 3/4 · about " in output
    worker.wait()


@pytest.mark.parametrize(
    "left", ["", " · left: run 2 min, sweep 4 min", " · left: run 12 h 34 min, sweep 123 h 45 min"]
)
def test_the_bar_fits_the_terminal_and_the_time_left_is_never_cut(make_run: Make, left: str) -> None:
    hop = make_run().stages[1].hop
    for steps, width in ((99, 80), (12345, 80), (99, 100), (12345, 200)):
        output, after = step_line(Progress(hop, 10, 10, steps, steps, 4800, 4.0), 6, left, width)
        display = f"  {output}" + (f" {'━' * BAR} {after}" if after else "")
        assert len(display) < width
        assert display.endswith(left)
        assert f"step {steps}/{steps}" in display
    assert after
    assert "epoch 10/10" in display
    assert "1200 examples/s" in display


def test_what_takes_long_is_said_before_it_ends(
    make_run: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with if_slow("slow", seconds=0.01):
        time.sleep(0.2)
    with if_slow("quick", seconds=5):
        pass
    with if_slow("for eyes", terminal_only=True, seconds=0.01):
        time.sleep(0.05)
    assert capsys.readouterr().err == "slow\n"
    # PyTorch takes seconds, once; not where nothing is left to do.
    importlib.import_module("xclrun.train.execute")
    run = make_run()
    work.load(Console([run.id]))
    monkeypatch.delitem(sys.modules, "torch")
    work.load(Console([run.id]))
    assert capsys.readouterr().err == "  loading PyTorch …\n"


def test_a_slow_block_that_collects_errors_keeps_the_line_and_the_terminal_s_stream(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream, collected = sys.stderr, io.StringIO()
    with if_slow("slow", seconds=0.01), contextlib.redirect_stderr(collected):
        time.sleep(0.1)
    assert (capsys.readouterr().err, collected.getvalue()) == ("slow\n", "")
    assert sys.stderr is stream


def test_a_table_widens_before_it_cuts_a_number() -> None:
    rows = [("0", "before fine-tuning", *["96.50"] * 9), ("1", "en", *["11.25"] * 9)]
    display = table(("hop", "learnt", *["de"] * 9), rows, text_columns=2)
    assert (display.count("96.50"), display.count("11.25")) == (9, 9)


def test_columns_of_a_table_are_aligned_and_its_last_one_wraps() -> None:
    rows = [("日本\nen", "1", "one two"), ("de", "1000", "three")]
    assert table(("key", "runs", "files"), rows).splitlines() == [
        "key    runs     files",
        "─────────────────────",
        "日本      1   one two",
        "en",
        "de     1000     three",
    ]
    # 80 columns: 6 for the key and the gap, and 15 words of 4 letters.
    lines = table(("key", "files"), [("a", " ".join(["word"] * 20))], wrapped=True).splitlines()
    assert lines[2:] == [f"a     {' '.join(['word'] * 15)}", f"      {' '.join(['word'] * 5)}"]


def test_a_note_is_printed_with_option_q_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xclrun.core.terminal._quiet", True)
    line("progress")
    note("something is odd")
    assert capsys.readouterr() == ("", "note: something is odd\n")


def test_a_note_wraps_on_a_terminal_alone_and_breaks_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    text = (
        "MLflow could not be reached (see outputs/mlflow.log), and none of it is lost; `xclrun mlflow sync --to it` "
        "sends it"
    )
    assert as_note(text, io.StringIO(), "  ") == f"  note: {text}"
    for width in range(40, 90):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = as_note(text, Terminal(), "  ").splitlines()
        assert max(map(len, lines)) <= width
        assert all(line.startswith("        ") for line in lines[1:])
        assert " ".join(line.strip() for line in lines) == f"note: {text}"
        assert any("`xclrun mlflow sync --to it`" in line for line in lines), lines


def test_a_stopped_command_says_so_in_lines_that_fit_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(arguments: list[str]) -> int:
        raise Stopped(2)

    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("xclrun.core.terminal._quiet", False)  # so that it is reset
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr("xclrun.cli._dispatch", stop)
    assert main(["--quiet"]) == 130
    first, *lines = out.getvalue().splitlines()
    assert first == ""  # below the ^C of the terminal
    assert max(map(len, lines)) <= 80
    said = " ".join(line.strip() for line in lines)
    assert said == "xclrun: stopped by SIGINT; finished work is saved; re-run the same command to resume"


def test_a_long_line_wraps_below_its_beginning_and_a_laid_out_row_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    row = f"\033[7m{'x' * 20}\033[0m  {'y' * 20}"
    for isatty in (False, True):
        out = io.StringIO()
        out.isatty = lambda isatty=isatty: isatty  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stderr", out)
        line(f"\n  naive: {'word ' * 9}".rstrip())
        line(row)
        *lines, last = out.getvalue().splitlines()
        assert last == row
        wrapped = ["", "  naive: word word word word word word", "    word word word"]
        assert lines == (wrapped if isatty else ["", f"  naive: {'word ' * 9}".rstrip()])
