"""`xclrun status`: every state in which a run can be; and `xclrun plan --missing`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xclrun.analysis.measures import measure
from xclrun.analysis.records import read_records
from xclrun.analysis.reference import References
from xclrun.core.errors import RunError
from xclrun.launch import status
from xclrun.launch.cluster.slurm import JobState
from xclrun.launch.status import STATES, RunStatus, _on_cluster, render, run_status, sweep_status, wait_until_calm
from xclrun.launch.workers import ProgressListener
from xclrun.plan import Run
from xclrun.store.files import read_events, write_json
from xclrun.store.rundir import RunDirectory
from xclrun.store.sweeps import sweeps
from xclrun.train.execute import Busy, execute
from xclrun.train.progress import Listener, Progress
from xclrun.train.stop import StopFlag, Stopped


class Interrupter(ProgressListener):
    """Does something at the third step of hop 2."""

    def __init__(self, run: Run, act: Callable[[], Any]) -> None:
        super().__init__(run, every=0.0)
        self.act = act

    def stepped(self, progress: Progress) -> None:
        super().stepped(progress)
        if progress.hop.index == 2 and progress.step == 3:
            self.act()


def write_events(directory: RunDirectory, events: list[dict[str, Any]]) -> None:
    directory.events.write_text("".join(json.dumps(event) + "\n" for event in events))


def note_sweep(outputs: Path, *runs: str) -> None:
    """Note a sweep among the outputs, as its start does."""
    facts = {"name": "mine", "command": "xclrun seed=1,2 -m", "started": "2026-01-01T00:00:00+0000", "runs": runs}
    write_json(outputs / "sweeps" / "mine.json", facts)


def test_who_waits_looks_until_nothing_runs_twice_in_a_row() -> None:
    answers = iter([True, False, True, False, False, True])
    wait_until_calm(lambda: next(answers), 0.0)
    assert list(answers) == [True]


def test_of_a_large_sweep_only_runs_that_run_or_need_attention_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LISTED", 20)
    states = [*STATES, *["finished"] * (20 - len(STATES))]
    all_listed = render("mine", "xclrun -m", [RunStatus(f"run{k}", state) for k, state in enumerate(states)])
    assert len(all_listed.splitlines()) == 4 + 20
    large = render("mine", "xclrun -m", [RunStatus(f"run{k}", s) for k, s in enumerate([*states, "waiting"])])
    printed, _, how, *lines = large.splitlines()
    assert printed.startswith("mine: 21 runs: 10 finished, 1 running, 2 waiting, 1 unknown (Slurm does not answer), 1 ")
    assert "are not listed in sweeps" in how
    listed = ["running", "unknown", "interrupted", "failed", "lost", "damaged", "newer"]
    assert [row.split()[1] for row in lines[2:]] == listed
    nothing = render("mine", "xclrun -m", [RunStatus(f"run{k}", "finished") for k in range(21)])
    assert nothing.splitlines() == ["mine: 21 runs: 21 finished", "  xclrun -m", how]


def test_missing_and_finished(tmp_path: Path, finished: Callable[..., Run]) -> None:
    assert run_status(RunDirectory(tmp_path / "runs" / "a")) == RunStatus("a", "missing")
    run = finished()
    result = run_status(run.directory)
    assert (result.run_id, result.state, result.hop, result.hops) == (run.id, "finished", 3, 3)
    assert result.host == f"{socket.gethostname()}:{os.getpid()}"
    assert result.seconds == run.directory.read_manifest()["seconds"]
    joint = run_status(finished("strategy=multilingual").directory)
    assert (joint.state, joint.hop, joint.hops) == ("finished", 1, 1)


def test_the_time_of_a_resumed_run_includes_its_earlier_sessions(
    make_run: Callable[..., Run], do: Callable[..., Run]
) -> None:
    run, stop = make_run(), StopFlag()
    with pytest.raises(Stopped):
        do(run, Interrupter(run, lambda: stop.handle(15, None)), stop)
    do(run)
    last = run.directory.read_manifest()["seconds"]
    events = list(read_events(run.directory.events))
    interrupted = next(k for k, event in enumerate(events) if event["event"] == "interrupted")
    for event in events[: interrupted + 1]:
        event["time"] += (event["event"] == "interrupted") * 60 - 100
    write_events(run.directory, events)
    result = run_status(run.directory)
    first = events[interrupted]["time"] - events[0]["time"]
    assert (first > 60, result.seconds, result.at_least) == (True, pytest.approx(first + last, abs=0.001), False)
    # A killed process leaves no last event: its session counts until the last hop.
    write_events(run.directory, events[:interrupted] + events[interrupted + 1 :])
    result = run_status(run.directory)
    until = events[interrupted - 1]["time"] - events[0]["time"]
    assert (result.seconds, result.at_least) == (pytest.approx(until + last, abs=0.001), True)
    assert " > " in render("mine", "xclrun -m", [result]).splitlines()[-1]


def test_running_tells_hop_step_and_host(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    run, seen = make_run(), []
    do(run, Interrupter(run, lambda: seen.append(run_status(run.directory))))
    [result] = seen
    assert (result.state, result.hop, result.hops) == ("running", 2, 3)
    # 18 sentences of German in batches of 4, 2 epochs.
    assert result.detail == "de: step 3/10"
    assert result.host == f"{socket.gethostname()}:{os.getpid()}"
    assert 0 <= result.seconds < 60


def test_a_run_that_hangs_tells_for_how_long(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    run, seen = make_run(), []

    def look() -> None:
        for path in (run.directory.progress, run.directory.events):
            earlier = time.time() - 1800
            os.utime(path, (earlier, earlier))
        seen.append(run_status(run.directory))

    do(run, Interrupter(run, look))
    [result] = seen
    assert (result.state, result.detail) == ("running", "de: step 3/10; no progress for 30 min")
    assert 1800 <= result.idle < 1860


def test_interrupted(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    run, stop = make_run(), StopFlag()
    with pytest.raises(Stopped):
        do(run, Interrupter(run, lambda: stop.handle(15, None)), stop)
    result = run_status(run.directory)
    assert (result.state, result.hop, result.hops, result.detail) == ("interrupted", 1, 3, "SIGTERM")


def test_failed_tells_the_error_in_one_line(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    run = make_run()

    def fail() -> None:
        raise RunError("a first line\nthe loss is nan")

    with pytest.raises(RunError):
        do(run, Interrupter(run, fail))
    result = run_status(run.directory)
    assert (result.state, result.hop, result.detail) == ("failed", 1, "a first line the loss is nan")


def test_lost(make_run: Callable[..., Run], do: Callable[..., Run], tmp_path: Path) -> None:
    run, remaining = make_run(), tmp_path / "left" / "runs"
    do(run, Interrupter(run, lambda: shutil.copytree(run.directory.path, remaining / run.id)))
    [lease] = (remaining / run.id).glob("run.lease-*")
    lease.write_text(json.dumps({**json.loads(lease.read_text()), "birth": "0"}))
    result = run_status(RunDirectory(remaining / run.id))
    assert (result.state, result.hop, result.hops) == ("lost", 1, 3)


def test_waiting_for_a_stage_of_another(make_run: Callable[..., Run]) -> None:
    run = make_run()
    lease = run.store.lease(run.stages[1].train)
    mine = lease.try_acquire()
    assert mine is not None
    with lease.held(mine), pytest.raises(Busy):
        execute(run, Listener(), StopFlag(), patient=False)
    assert run_status(run.directory).state == "waiting"
    # Nothing runs that could come back to it.
    [result] = sweep_status(run.outputs, [run.id])
    assert result.state == "interrupted"


def test_not_started_waits_while_another_runs(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    run, seen = make_run(), []
    do(run, Interrupter(run, lambda: seen.extend(sweep_status(run.outputs, [run.id, "other"]))))
    assert [result.state for result in seen] == ["running", "waiting"]
    assert [result.state for result in sweep_status(run.outputs, [run.id, "other"])] == ["finished", "missing"]


def test_exit_codes_table_and_json(
    make_run: Callable[..., Run], do: Callable[..., Run], xclrun: Callable[..., tuple[int, str]]
) -> None:
    run, other = do(make_run()), make_run("seed=2")
    outputs = str(run.outputs)
    note_sweep(run.outputs, run.id, other.id)
    code, output = xclrun("status", "--outputs", outputs)
    assert code == 0
    assert output.splitlines()[0] == "mine: 2 runs: 1 finished, 1 missing"
    assert [line.split()[:2] for line in output.splitlines()[4:]] == [[run.id, "finished"], [other.id, "missing"]]

    def fail() -> None:
        raise RunError("the loss is nan")

    with pytest.raises(RunError):
        do(other, Interrupter(other, fail))
    code, output = xclrun("status", "mine", "--outputs", outputs)
    assert code == 1
    assert "the loss is nan" in output
    code, output = xclrun("status", "all", "--outputs", outputs, "--json")
    assert code == 1
    [sweep] = json.loads(output)
    assert (sweep["sweep"], sweep["command"]) == ("mine", "xclrun seed=1,2 -m")
    assert [result["state"] for result in sweep["runs"]] == ["finished", "failed"]
    assert {result["state"] for result in sweep["runs"]} <= set(STATES)


@pytest.mark.full
def test_missing_commands_make_transfer_appear(xclrun: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    small = ["experiment=smoke", "dataset.max_train=16", "dataset.max_eval=8", "model.hidden_size=16", "tracking=none"]
    options = [*small, "strategy=naive,er", "order=[en,de],[de,en]", "seed=1,2", f"paths.outputs={tmp_path}"]

    def missing() -> list[dict[str, str]]:
        return json.loads(xclrun("plan", "--missing", "--json", *options)[1])

    def transfer() -> set[bool]:
        """Whether T is known, over all runs of a strategy that has one."""
        records = read_records(tmp_path)
        references = References(records)
        sequential = [record for record in records if record.strategy != "lang_spec_ft"]
        result = [measure(r, "intent_accuracy", references.scores(r, "intent_accuracy"))["T", ""] for r in sequential]
        assert len(result) == 8
        return {isinstance(value, float) for value in result}

    assert [entry["gives"] for entry in missing()] == ["F, T0, FP", "T"]
    program, *arguments = shlex.split(missing()[0]["command"])
    assert program == "xclrun"
    assert xclrun(*arguments)[0] == 0
    assert transfer() == {False}
    [entry] = missing()
    assert entry["gives"] == "T"
    assert xclrun(*shlex.split(entry["command"])[1:])[0] == 0
    assert missing() == []
    assert xclrun("plan", "--missing", *options)[1] == "Nothing is missing.\n"
    assert transfer() == {True}


# --- Slurm's word about a run's job, against what the run's files say.

# The run's own state; Slurm's state of its job; what else holds → the state that is shown.
ON_CLUSTER: list[tuple[str, str, dict[str, Any], str]] = [
    # A running run counts by its own signs of life, unless Slurm says that the job which holds its lease has ended.
    ("running", "RUNNING", {}, "running"),
    ("running", "COMPLETED", {}, "lost"),
    ("running", "OUT_OF_MEMORY", {}, "lost"),
    ("running", "COMPLETED", {"holder": "8"}, "running"),
    ("running", "COMPLETED", {"holder": None}, "running"),
    ("running", "UNKNOWN", {}, "running"),
    ("running", "", {}, "running"),
    # A failure counts if it came after the submission; an earlier one is what the job repairs.
    ("failed", "RUNNING", {"failed": True}, "failed"),
    ("failed", "RUNNING", {}, "waiting"),
    ("failed", "PENDING", {}, "waiting"),
    ("interrupted", "PENDING", {}, "waiting"),
    ("missing", "PENDING", {}, "waiting"),
    ("damaged", "PENDING", {}, "waiting"),
    ("damaged", "COMPLETED", {}, "damaged"),
    ("older", "FAILED", {}, "older"),
    # What the job says of a run counts before how it ended.
    ("missing", "COMPLETED", {"errors": {"run": "x\nno data"}}, "failed"),
    ("missing", "", {"errors": {"other": "x"}}, "lost"),
    ("missing", "", {}, "unknown"),
    ("interrupted", "", {}, "unknown"),
    ("missing", "CANCELLED", {}, "interrupted"),
    ("lost", "PREEMPTED", {}, "interrupted"),
    # Gone from Slurm's memory: cancelled, never started there, or over.
    ("missing", "UNKNOWN", {"cancelled": True}, "interrupted"),
    ("missing", "UNKNOWN", {"log": False}, "interrupted"),
    ("missing", "UNKNOWN", {"log": False, "on_cluster": False}, "lost"),
    ("missing", "UNKNOWN", {}, "lost"),
    # Its job ended with another run of its pack.
    ("missing", "TIMEOUT", {"started": True}, "missing"),
    ("missing", "TIMEOUT", {"started": False}, "failed"),
    ("lost", "TIMEOUT", {}, "lost"),
    ("interrupted", "TIMEOUT", {}, "interrupted"),
    ("missing", "NODE_FAIL", {}, "failed"),
    ("missing", "COMPLETED", {}, "lost"),
]


@pytest.mark.parametrize(("own", "slurm", "facts", "shown"), ON_CLUSTER, ids=str)
def test_a_run_s_state_on_a_cluster(
    own: str, slurm: str, facts: dict[str, Any], shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, log = tmp_path / "runs", tmp_path / "log"
    (runs / "other").mkdir(parents=True)
    if facts.get("log", True):
        log.write_text("last words\n")
    job: Any = SimpleNamespace(
        id="7",
        submitted=1000.0,
        log=log,
        on_cluster=facts.get("on_cluster", True),
        runs=["other", "run"],
        files=SimpleNamespace(errors=lambda: facts.get("errors"), cancelled=facts.get("cancelled", False)),
    )
    if "started" in facts:
        write_events(RunDirectory(runs / "other"), [{"time": 1000.0 - (not facts["started"]), "event": "started"}])
    holder = facts.get("holder", "7")
    owner = holder and SimpleNamespace(facts={"job": holder})
    directory: Any = SimpleNamespace(
        path=runs / "run",
        lease=SimpleNamespace(owner=lambda: owner),
        failed_since=lambda since: since == job.submitted and facts.get("failed", False),
    )
    found = _on_cluster(RunStatus("run", own, detail="as it was", seconds=5.0), job, JobState("7", slurm), directory)
    assert found.state == shown
    # Slurm's reason, unless the run's own state is shown; and no time of an earlier attempt while it waits.
    if shown == own and (slurm in ("", "UNKNOWN", "RUNNING") or own in ("running", "damaged", "older")):
        assert found.detail == "as it was"
    else:
        assert "Slurm job 7" in found.detail or "no data" in found.detail
    assert (found.seconds is None) == (shown == "waiting")


@pytest.mark.parametrize(("done", "shown"), [(0, (1, "de: step 3/9")), (1, (1, "")), (2, (2, ""))])
def test_progress_of_a_hop_that_is_done_is_not_shown(done: int, shown: tuple[int, str], tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    write_json(directory.progress, {"hop": 1, "name": "de", "step": 3, "steps": 9})
    assert status._progress(directory, done) == shown


def test_sweeps_are_in_the_order_in_which_their_commands_were_given(tmp_path: Path) -> None:
    for name, given in (("a", {"given": 20.0}), ("b", {"given": 100.0}), ("c", {"given": 3.0}), ("d", {})):
        facts = {"name": name, "command": "xclrun", "started": "2026-01-01T00:00:00+0000", "runs": [], **given}
        write_json(tmp_path / "sweeps" / f"{name}.json", facts)
    assert [sweep["name"] for sweep in sweeps(tmp_path)] == ["d", "c", "a", "b"]


@pytest.mark.parametrize(
    ("times", "seconds", "killed"),
    [
        # A session that was killed counts until its last event.
        ([(0, "started"), (5, "hop"), (9, "started"), (20, "hop")], 5.0, True),
        ([(0, "started"), (5, "hop"), (6, "stopped"), (9, "started")], 6.0, False),
        # The clock was set back.
        ([(100, "started"), (10, "stopped"), (11, "started")], 0.0, False),
        ([(0, "started")], 0.0, False),
    ],
)
def test_earlier_sessions_count_until_they_ended(
    times: list[tuple[float, str]], seconds: float, killed: bool, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path)
    write_events(directory, [{"time": time, "event": event} for time, event in times])
    assert status._earlier_sessions(directory) == (seconds, killed)


@pytest.mark.parametrize(
    ("written", "alive", "state"),
    [
        ("running", True, "running"),
        ("running", False, "lost"),
        ("finished", False, "lost"),  # It died before it was marked as finished.
        ("interrupted", False, "interrupted"),
        ("failed", None, "failed"),
    ],
)
def test_a_run_without_its_mark_is_what_its_owner_and_its_last_words_say(
    written: str, alive: bool | None, state: str, tmp_path: Path
) -> None:
    owner = None if alive is None else SimpleNamespace(alive=alive, host="h", pid=1, facts={})
    paths = {name: tmp_path / name for name in ("done", "events", "progress")}
    directory: Any = SimpleNamespace(run_id="r", lease=SimpleNamespace(owner=lambda: owner), **paths)
    ahead = time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime(time.time() + 3600))
    manifest = {
        "stream": {"kind": "sequence", "languages": ["en", "de"]},
        "stages": [{"hop": 0}, {"hop": 1}],
        "host": "h",
        "pid": 1,
        "status": written,
        "started": ahead,
        "error": "first\nlast",
    }
    found = status._run_status(directory, manifest)
    assert (found.state, found.hop, found.hops, found.host) == (state, 1, 2, "h:1")
    # The clock was set back by an hour.
    assert found.seconds == (0.0 if state == "running" else None)
