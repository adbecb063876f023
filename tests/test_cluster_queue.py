"""Slurm that is silent, hides jobs, rejects them or answers late; small scripts replace its commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xclrun.cli import main
from xclrun.core.errors import RunError, UsageError
from xclrun.launch.cluster import job as cluster_job
from xclrun.launch.cluster import launcher, lookup, script, slurm
from xclrun.launch.cluster.files import Pack, Submission, accepted, job_name, submitting
from xclrun.launch.cluster.launcher import Slurm, _incomplete
from xclrun.launch.cluster.lookup import find_jobs, settled_jobs
from xclrun.launch.cluster.packs import shared_first
from xclrun.launch.status import sweep_status
from xclrun.launch.sweep import Sweep
from xclrun.plan import Run

Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Replace Slurm's commands by shell scripts, which write their arguments to ``calls``; the others fail."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "copy_code", lambda folder: folder)  # takes a second

    def write(**content: str) -> Path:
        for name, text in content.items():
            (folder / name).write_text(f'#!/bin/bash\necho "{name} $*" >> {folder}/calls\n{text}\n')
            (folder / name).chmod(0o755)
        return folder

    write(**dict.fromkeys(("squeue", "sacct", "scontrol", "scancel", "sbatch", "srun"), "exit 1"))
    return write


def calls(folder: Path, name: str) -> list[str]:
    return [line for line in (folder / "calls").read_text().splitlines() if line.startswith(f"{name} ")]


def record(run: Run, number: str = "", user: int | None = None, sweep: str = "mine") -> Submission:
    """Record the submission of a run; without a number, Slurm has not answered yet."""
    submission = Submission.new(run.outputs, sweep)
    submission.user = os.getuid() if user is None else user
    submission.add_array([Pack(runs=(run.id,))], [[run.stages[1].train]], job_name(run.outputs, sweep))
    if number:
        accepted(submission.arrays[0], number)
    submission.write()
    return submission


# --- Silence.


def test_a_submitted_run_is_unknown_while_slurm_is_silent(put: Put, make_run: Callable[..., Run]) -> None:
    run = make_run()
    record(run, "7")
    put(squeue="echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    [status] = sweep_status(run.outputs, [run.id])
    assert (status.state, status.busy) == ("unknown", True)
    assert "Unable to contact slurm controller" in status.detail


def test_nothing_is_submitted_while_slurm_is_silent(put: Put, make_run: Callable[..., Run]) -> None:
    run = make_run()
    record(run, "7")
    folder = put(sbatch="echo Submitted batch job 8")
    with pytest.raises(RunError, match="nothing was submitted"):
        Slurm().do(Sweep("mine", "xclrun", (run,)), [run])
    assert calls(folder, "sbatch") == []


def test_jobs_of_another_user_that_slurm_hides_are_unknown_and_not_lost(put: Put, make_run: Callable[..., Run]) -> None:
    run = make_run()
    record(run, "7", user=os.getuid() + 1)
    put(squeue="", scontrol="echo 'PrivateData             = accounts,jobs'")
    expected = "interrupted" if os.getuid() == 0 else "unknown"  # root sees everything
    assert [status.state for status in sweep_status(run.outputs, [run.id])] == [expected]
    jobs = find_jobs(run.outputs)
    jobs.__dict__["_hidden"] = True
    [(job, _)] = jobs.submissions[0].jobs()
    assert jobs.states([job])["7"].state == ""


def test_a_slurm_that_does_not_answer_soon_is_named(
    put: Put, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slurm.PATIENCE < 5
    monkeypatch.setattr(slurm, "PATIENCE", 0.01)
    put(squeue="sleep 0.1", sbatch="sleep 0.1; echo Submitted batch job 8")
    assert slurm.queue([0]) == {}
    assert submit() == "8"
    said = capsys.readouterr().err.splitlines()
    assert [("squeue" in line, "sbatch" in line, "slurmctld" in line) for line in said] == [
        (True, False, True),
        (False, True, True),
    ]


# --- The record comes first.


def test_the_record_is_written_before_a_job_is_submitted(put: Put, make_run: Callable[..., Run]) -> None:
    run = make_run()
    folder = put(
        squeue="",
        sbatch=f"cp {run.outputs}/slurm/*/*/submission.json $0.record; cp $1 $0.script; echo Submitted batch job 8",
    )
    Slurm().do(Sweep("mine", "xclrun", (run,)), [run])
    [array] = json.loads((folder / "sbatch.record").read_text())["arrays"]
    assert (array["packs"], array["jobs"]) == ([[run.id]], [])
    assert array["job_name"].startswith("xclrun-mine-")
    assert f"--job-name={array['job_name']}\n" in (folder / "sbatch.script").read_text()
    assert [status.job for status in sweep_status(run.outputs, [run.id])] == ["8"]


def test_a_job_whose_number_is_not_recorded_is_found_by_its_name(put: Put, make_run: Callable[..., Run]) -> None:
    run = make_run()
    submission = record(run)
    name, folder = submission.arrays[0]["job_name"], submission.folder / "array-0"
    put(squeue=f"echo '9|PENDING|Priority||{name}|{folder}/job.sh'")
    assert [(s.state, s.job) for s in sweep_status(run.outputs, [run.id])] == [("waiting", "9")]
    assert settled_jobs(run.outputs).of_runs[run.id].id == "9"
    # Now it is recorded.
    assert json.loads((submission.folder / "submission.json").read_text())["arrays"][0]["jobs"] == ["9"]
    (submission.folder / "submission.json").unlink()
    assert [(s.state, s.job) for s in sweep_status(run.outputs, [run.id])] == [("waiting", "9")]


def test_a_record_whose_jobs_never_came_is_removed_after_a_while(
    put: Put, make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    submission = record(run)
    put(squeue="")
    # They may still come.
    assert [status.state for status in sweep_status(run.outputs, [run.id])] == ["waiting"]
    monkeypatch.setattr(lookup, "YOUNG", 0.0)
    assert [status.state for status in sweep_status(run.outputs, [run.id])] == ["missing"]
    assert settled_jobs(run.outputs).undecided == []
    assert json.loads((submission.folder / "submission.json").read_text())["arrays"] == []


def test_one_command_at_a_time_submits(tmp_path: Path) -> None:
    inside = threading.Event()

    def second() -> None:
        with submitting(tmp_path):
            inside.set()

    other = threading.Thread(target=second)
    with submitting(tmp_path):
        other.start()
        assert not inside.wait(0.1)
    other.join(10)
    assert inside.is_set()


def test_a_command_whose_turn_another_took_submits_nothing(
    put: Put, make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = make_run(), put(squeue="", sbatch="echo Submitted batch job 8")
    other = run.outputs / "slurm" / "submit.lease-2"

    def suspended(code: Path) -> Path:
        other.touch()
        return code

    monkeypatch.setattr(launcher, "copy_code", suspended)
    with pytest.raises(RunError, match=r"0 of 1 job submitted.*another command"):
        Slurm().do(Sweep("mine", "xclrun", (run,)), [run])
    assert not calls(folder, "sbatch")
    assert other.exists()


def test_the_age_of_a_record_is_that_of_the_file_server(
    put: Put, make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    path = record(run).folder / "submission.json"
    put(squeue="")
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    monkeypatch.setattr(lookup, "file_time", lambda folder: hour_ago)
    assert [status.state for status in sweep_status(run.outputs, [run.id])] == ["waiting"]


def test_logs_finds_a_job_whose_number_was_not_recorded(
    put: Put, make_run: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    submission = record(run)
    name, folder = submission.arrays[0]["job_name"], submission.folder / "array-0"
    put(squeue=f"echo '9|PENDING|Priority||{name}|{folder}/job.sh'")
    assert main(["logs", "--path", "--outputs", str(run.outputs), run.id]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "9_0_log.out")


def test_status_fails_while_the_state_of_a_run_is_unknown(put: Put, make_run: Callable[..., Run]) -> None:
    run = make_run()
    record(run, "7")
    Sweep("mine", "xclrun", (run,)).write()
    assert main(["status", "--outputs", str(run.outputs)]) == 1
    put(squeue="echo '7|PENDING|Priority'")
    assert main(["status", "--outputs", str(run.outputs)]) == 0


def test_a_sweep_whose_jobs_train_runs_of_another_sweep_is_not_deleted(
    put: Put, make_run: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    record(run, "7")
    for name in ("mine", "other"):
        Sweep(name, "xclrun", (run,)).write()
    put(squeue="echo '7|PENDING|Priority'")
    assert main(["rm", "--outputs", str(run.outputs), "mine", "--yes"]) == 2
    assert "xclrun cancel" in capsys.readouterr().err
    assert main(["rm", "--outputs", str(run.outputs), "other", "--yes", "--dry-run"]) == 0


def test_trainings_queued_by_another_sweep_become_dependencies(put: Put, make_run: Callable[..., Run]) -> None:
    first, second, third = make_run(), make_run("strategy=er"), make_run("strategy=ewc")
    record(first, "7", sweep="other")
    folder = put(squeue="echo '7|PENDING|Priority'", sbatch="cp $1 $0.script; echo Submitted batch job 8")
    key = second.stages[1].train
    assert key == first.stages[1].train
    assert shared_first([second, third]) != []
    assert shared_first([second, third], {key}) == []
    Slurm().do(Sweep("mine", "xclrun", (second, third)), [second, third])
    assert len(calls(folder, "sbatch")) == 1
    assert "--dependency=afterany:7\n" in (folder / "sbatch.script").read_text()


# --- Submission.


def submit() -> str:
    """Submit a job."""
    import submitit

    executor = submitit.SlurmExecutor("jobs", python="true")
    executor.update_parameters(job_name="name")
    return slurm.submit(executor, 1, "name")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without delays."""
    monkeypatch.setattr(slurm, "DELAYS", (0.0, 0.0))


TIMED_OUT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2"


@pytest.mark.usefixtures("at_once")
def test_a_passing_error_is_retried_and_announced(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    once = f"if [ ! -e $0.seen ]; then touch $0.seen; {TIMED_OUT}; exit 1; fi; echo Submitted batch job 8"
    folder = put(sbatch=once, squeue="")
    assert submit() == "8"
    assert len(calls(folder, "sbatch")) == 2
    assert "Socket timed out" in capsys.readouterr().err


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("answer", [f"{TIMED_OUT}; exit 1", "echo Welcome"])
def test_jobs_that_were_accepted_despite_an_error_are_not_submitted_again(answer: str, put: Put) -> None:
    folder = put(sbatch=answer, squeue="echo '8|PENDING|None||name'")
    assert submit() == "8"
    assert len(calls(folder, "sbatch")) == 1


@pytest.mark.usefixtures("at_once")
def test_a_rejection_is_not_retried_and_its_last_line_is_the_verdict(put: Put) -> None:
    errors = ("sbatch: error: slurm_persist_conn_open: retrying", "sbatch: error: invalid partition specified: x",
              "sbatch: error: Batch job submission failed: Invalid partition name specified")  # fmt: skip
    folder = put(sbatch=f"printf '%s\\n' {' '.join(map(repr, errors))} >&2; exit 1", squeue="")
    with pytest.raises(slurm.Rejected, match=r"^Invalid partition name specified \(invalid partition specified: x\)$"):
        submit()
    assert len(calls(folder, "sbatch")) == 1
    assert not list(Path("jobs").glob("*.pkl"))


def test_after_a_rejection_the_accepted_jobs_stay_recorded(make_run: Callable[..., Run]) -> None:
    run, other = make_run(), make_run("seed=2")
    submission = record(run, "7")
    submission.add_array([Pack(runs=(other.id,))])
    assert _incomplete(submission, "why").startswith("1 of 2 jobs submitted; ")
    written = json.loads((submission.folder / "submission.json").read_text())["arrays"]
    assert [array["job"] for array in written] == ["7"]


def test_jobs_do_not_inherit_a_session_of_slurm() -> None:
    session = {
        "SLURM_JOB_ID": "9",
        "SLURM_MEM_PER_CPU": "1",
        "SLURM_CPU_BIND": "x",
        "SBATCH_QOS": "x",
        "PMIX_RANK": "0",
    }
    kept = {"SLURM_CONF": "/etc/x", "HOME": "/home/me"}
    assert slurm.session_free(session | kept) == kept
    # Defaults that a user has chosen for sbatch.
    assert slurm.session_free({"SBATCH_ACCOUNT": "lab", "SLURM_TIME_FORMAT": "x"}) == {"SBATCH_ACCOUNT": "lab"}


def test_sbatch_does_not_inherit_a_session_of_slurm(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = put(sbatch="env > $0.environment; echo Submitted batch job 8")
    for name in ("SLURM_JOB_ID", "SLURM_CONF", "SBATCH_QOS"):
        monkeypatch.setenv(name, "9")
    submit()
    environment = (folder / "sbatch.environment").read_text()
    assert ("SLURM_JOB_ID=" in environment, "SLURM_CONF=9" in environment, "SBATCH_QOS" in environment) == (
        False,
        True,
        False,
    )
    assert os.environ["SLURM_JOB_ID"] == "9"


@pytest.mark.parametrize(
    ("limit", "minutes"),
    [(90, 90), ("90", 90), ("90:01", 91), ("1:30:00", 90), ("2-12", 3600), ("1-0:30", 1470), ("1-00:00:30", 1441),
     ("1h", None), ("", None), (True, None), ("1:2:3:4", None), (1.5, None), (0, 0)],
)  # fmt: skip
def test_time_limits_have_the_formats_of_slurm(limit: Any, minutes: int | None) -> None:
    assert slurm.minutes_of(limit) == minutes
    if not minutes:
        with pytest.raises(UsageError, match=r"hydra\.launcher\.time="):
            Slurm(time=limit).check()


def test_a_path_in_the_pattern_of_a_log_is_the_path() -> None:
    assert script.log_pattern(Path("/o%j/100%"), 2, "0") == "/o%%j/100%%/%A_%a_0_log.out"
    assert script.log_pattern(Path("/o"), 1, "%t") == "/o/%j_%t_log.out"


def test_a_folder_named_like_a_pattern_leaves_no_other_folder(
    put: Put, make_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(outputs="o%j")
    put(squeue="", sbatch="echo Submitted batch job 8")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "bin"))
    before = set(tmp_path.glob("**/"))
    Slurm().do(Sweep("mine", "xclrun", (run,)), [run])
    assert {path for path in set(tmp_path.glob("**/")) - before if not path.is_relative_to(run.outputs)} == set()


def test_options_that_xclrun_sets_are_refused() -> None:
    with pytest.raises(UsageError, match=r"hydra\.launcher\.options\.job-name"):
        Slurm(options={"job_name": "x"}).check()


# --- The script of a job.


@pytest.mark.parametrize(
    ("setup", "code", "said"),
    [
        (["false", "true"], 1, "false"),
        (["bash -c 'exit 7'"], 7, "exit 7"),
        (["nothing_of_this_name x"], 127, "nothing_of_this_name"),
        # As `conda activate`: a function that fails, and one in which something fails.
        (["f() { return 3; }", "f x"], 3, "return 3"),
        (["f() { false; true; }", "f"], 0, None),
        (["true", "export A=1"], 0, None),
        (["false || true", "if false; then true; fi"], 0, None),
        ([], 0, None),
    ],
)
def test_a_job_fails_if_a_line_of_its_setup_fails(setup: list[str], code: int, said: str | None) -> None:
    done = subprocess.run(
        ["bash", "-c", script.script(setup, "echo trained")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "trained" in done.stdout) == (code, not code)
    assert said is None or said in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["TERM", "USR2", "HUP"])
def test_a_signal_does_not_end_a_script_that_starts(name: str) -> None:
    lines = script.script([f"kill -{name} $$"], "echo trained")
    assert subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=False).stdout == "trained\n"


def test_a_signal_before_the_work_begins_returns_the_job_to_the_queue(
    put: Put, make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    [(job, _)] = record(run, "7").jobs()
    folder = put(squeue="echo '7|RUNNING|None'", scontrol="")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    handlers = {number: signal.getsignal(number) for number in cluster_job.SIGNALS}
    # As the first lines of the copy of the code do.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        # To this thread: workers of pytest have others, which do not block it.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        with pytest.raises(SystemExit) as ended:
            cluster_job.main([str(job.files.path), "requeue"])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
    assert ended.value.code == 128 + signal.SIGUSR2
    assert calls(folder, "scontrol") == ["scontrol requeue 7"]
    assert job.files.errors() is None


# --- What status and cancel say.


def test_a_run_whose_job_ended_during_another_run_is_not_failed(put: Put, make_run: Callable[..., Run]) -> None:
    run, other = make_run(), make_run("seed=2")
    submission = Submission.new(run.outputs, "mine")
    submission.submitted = 0.0
    submission.add_array([Pack(runs=(run.id, other.id))])
    accepted(submission.arrays[0], "7")
    submission.write()
    run.directory.path.mkdir(parents=True)
    run.directory.events.write_text(json.dumps({"event": "started", "time": 5.0}) + "\n")
    put(squeue="echo '7|OUT_OF_MEMORY|OutOfMemory|node1'")
    _, second = sweep_status(run.outputs, [run.id, other.id])
    assert second.state == "missing"
    assert "hydra.launcher.mem" in second.detail
    assert "node1" in second.detail


def test_the_end_of_a_job_is_told_by_slurm_and_its_log(put: Put, make_run: Callable[..., Run]) -> None:
    run = make_run()
    [(job, _)] = record(run, "7").jobs()
    job.log.write_text("epoch 1\nRuntimeError: no space\nslurmstepd: error: Exited with exit code 1\n")
    put(squeue="", sacct="echo '7|FAILED|0:9|node1'")
    [status] = sweep_status(run.outputs, [run.id])
    assert status.state == "failed"
    assert "SIGKILL" in status.detail
    assert "node1" in status.detail
    assert status.detail.endswith("RuntimeError: no space")


@pytest.mark.parametrize("denied", [False, True])
def test_cancel_reports_what_slurm_did(
    denied: bool, put: Put, make_run: Callable[..., Run], xclrun: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = make_run()
    record(run, "7")
    (run.outputs / "sweeps").mkdir(parents=True)
    facts = {"name": "mine", "command": "xclrun", "started": "2026-01-01T00:00:00+0000", "runs": [run.id]}
    (run.outputs / "sweeps" / "mine.json").write_text(json.dumps(facts))
    monkeypatch.setattr(slurm, "CANCEL_LOOKS", (0.0,))
    cancelled = '[ -e $0.cancelled ] && state=CANCELLED; echo "7|${state:-PENDING}|None"'
    no = "echo 'scancel: error: Kill job error on job id 7: Access/permission denied' >&2; exit 1"
    put(squeue=cancelled, scancel=no if denied else "touch ${0%/*}/squeue.cancelled")
    code, output = xclrun("cancel", "--outputs", str(run.outputs))
    if denied:
        assert code != 0
        assert "0 jobs of mine cancelled" in output
        assert "Access/permission denied" in output
    else:
        assert (code, output) == (0, "1 job of mine cancelled\n")
        assert [status.state for status in sweep_status(run.outputs, [run.id])] == ["interrupted"]
