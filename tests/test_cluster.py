"""Submission to a cluster, and states of its jobs; small scripts replace the commands of Slurm."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import pytest

from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import UsageError
from xclrun.core.version import PACKAGE, code_version
from xclrun.launch import local, workers
from xclrun.launch.cluster import job as cluster_job
from xclrun.launch.cluster import slurm
from xclrun.launch.cluster.code import copy_code
from xclrun.launch.cluster.files import Job, Pack, Submission
from xclrun.launch.cluster.job import fruitless
from xclrun.launch.cluster.launcher import Slurm
from xclrun.launch.cluster.lookup import find_jobs
from xclrun.launch.cluster.packs import pack, shared_first
from xclrun.launch.cluster.slurm import JobState
from xclrun.launch.local import Local
from xclrun.launch.status import sweep_status
from xclrun.launch.sweep import Sweep
from xclrun.plan import Run, freeze, plan_run, thaw
from xclrun.tracking.mirror import Mirror
from xclrun.train.loop import HopTraining
from xclrun.train.progress import Listener, Progress


class During(Listener):
    """Does something at the first step of hop 1."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def stepped(self, progress: Progress) -> None:
        if (progress.hop.index, progress.step) == (1, 1):
            self.act()


Say = Callable[..., Path]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Replace Slurm's commands: ``say(squeue="text")`` prints it; those not named are not there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("squeue", "sacct", "scontrol", "scancel", "sbatch", "srun"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)

    def put(**commands: str) -> Path:
        for name, text in commands.items():
            printed = folder / f"{name}.txt"
            printed.write_text(text)
            (folder / name).write_text(f'#!/bin/sh\necho "{name} $@" >> {folder}/calls\n/bin/cat {printed}\n')
        return folder

    return put


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


# --- Slurm's words.


@pytest.mark.parametrize(
    ("squeue", "sacct", "expected"),
    [
        (
            "7_0|PENDING|Resources\n7_1|RUNNING|None\n8_0|RUNNING|None\n",
            "7_2|CANCELLED by 0|0:0\n7_3|OUT_OF_MEMORY|0:125\n7_[4-5]|PENDING|0:0\n",
            {
                "7_0": ("PENDING", "Resources"), "7_1": ("RUNNING", ""), "7_2": ("CANCELLED", ""),
                "7_3": ("OUT_OF_MEMORY", "0:125"), "7_4": ("PENDING", ""), "7_6": ("UNKNOWN", ""),
            },
        ),
        # An array that was cancelled before any of its jobs began is one row.
        (
            "7|CANCELLED|None\n8_1|RUNNING|None\n",
            "9_[0-2,5%2]|CANCELLED by 0|0:0\n",
            dict.fromkeys(("7", "7_0", "7_3", "9_1", "9_5"), ("CANCELLED", ""))
            | {"8_0": ("UNKNOWN", ""), "8_1": ("RUNNING", ""), "9_4": ("UNKNOWN", "")},
        ),
        ("", None, {"7_0": ("UNKNOWN", "")}),
        (None, None, {"7_0": ("", "squeue failed")}),
        ("", "", {}),
    ],
    ids=["squeue first", "whole arrays", "no accounting", "no Slurm", "no jobs"],
)  # fmt: skip
def test_states(squeue: str | None, sacct: str | None, expected: dict[str, tuple[str, str]], say: Say) -> None:
    say(**{name: text for name, text in (("squeue", squeue), ("sacct", sacct)) if text is not None})
    result = slurm.states(expected)
    assert result == {job: JobState(job, *facts) for job, facts in expected.items()}
    assert {job for job, state in result.items() if state.live} == {
        job for job, (state, _) in expected.items() if state in ("PENDING", "RUNNING")
    }


def test_one_call_finds_ten_thousand_jobs(say: Say) -> None:
    folder = say(squeue="".join(f"7_{i}|RUNNING|None\n" for i in range(10_000)))
    states = slurm.states(f"7_{i}" for i in range(10_000))
    assert states == {f"7_{i}": JobState(f"7_{i}", "RUNNING") for i in range(10_000)}
    assert len(calls(folder)) == 1


def test_sacct_is_asked_for_some_hundred_jobs_at_a_time(say: Say) -> None:
    # All numbers in one argument would exceed its maximum length.
    ids = [f"{job}_0" for job in range(10_000_000, 10_001_800)]
    folder = say(squeue="", sacct="")
    failed = "echo $7 | tr , '\\n' | sed 's/$/_0|FAILED|1:0/'"
    (folder / "sacct").write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\necho x >> {folder}/calls\n{failed}\n")
    states = slurm.states(ids)
    assert [job for job in ids if states[job] != JobState(job, "FAILED", "1:0")] == []
    assert calls(folder).count("x") == 4
    (folder / "sacct").write_text(f"#!/bin/sh\necho y >> {folder}/calls\nexit 1\n")
    assert {state.state for state in slurm.states(ids).values()} == {"UNKNOWN"}
    assert calls(folder).count("y") == 1, "repeated calls without accounting"


def test_a_command_that_does_not_answer_is_not_waited_for(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = say(squeue="")
    (folder / "squeue").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setattr(slurm, "TIMEOUT", 0.3)
    assert slurm.states(["7_0"])["7_0"].state == ""


def test_max_array(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    say(scontrol="Configuration data\nMaxArraySize            = 17\nMaxJobCount = 5\n")
    assert slurm.max_array() == 17
    monkeypatch.setenv("PATH", "/nowhere")
    assert slurm.max_array() == slurm.DEFAULT_MAX_ARRAY


# --- Packing.


def test_pack_by_number_and_by_minutes(make_run: Callable[..., Run]) -> None:
    runs = [make_run(f"seed={seed}") for seed in range(5)]
    sizes = dict(zip([run.id for run in runs], [60, 120, 60, 600, 60], strict=True))

    def packed(count: int, minutes: float | None, known: bool = True) -> list[int]:
        packs = pack(runs, count, minutes, lambda run: sizes[run.id] if known else None)
        assert [run for p in packs for run in p.runs] == [run.id for run in runs]
        return [len(p.runs) for p in packs]

    assert packed(1, None) == [1, 1, 1, 1, 1]
    assert packed(2, None) == [2, 2, 1]
    # Minutes: 1 + 2, 1, 10, 1.
    assert packed(2, 3) == [2, 1, 1, 1]
    assert packed(2, 100) == [5]
    assert packed(2, 3, known=False) == [2, 2, 1]


def test_what_several_runs_share_goes_first(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    naive, er, other = make_run(), make_run("strategy=er"), make_run("seed=2")
    ewc = make_run("strategy=naive", "order=[en,de]")
    # English is shared by three, German after it by naive's two orders; seed 2 is alone.
    assert shared_first([naive, er, other]) == [Pack(stages=((naive.id, 1),))]
    assert shared_first([naive, er, ewc]) == [Pack(stages=((naive.id, 1), (naive.id, 2)))]
    assert shared_first([naive, other]) == []
    do(naive)
    assert shared_first([naive, er, ewc]) == []
    # Weights that were removed are not trained again for evaluations that are stored.
    shutil.rmtree(naive.store.path(naive.stages[1].train))
    assert shared_first([naive, make_run("strategy=er", "strategy.memory=0")]) == []
    assert shared_first([naive, er, ewc]) == [Pack(stages=((er.id, 1),))]


# --- Frozen runs and code.


@pytest.mark.parametrize(
    "overrides",
    [
        ["strategy=er", "strategy.memory=7"],
        ["strategy=er", "strategy.expansion=lang_spec_enc", "strategy.expansion.layers=[1]"],
        ["strategy=lang_spec_ft", "strategy.expansion=lang_spec_ada_f", "strategy.expansion.reduction=4"],
    ],
    ids=["er", "er over parts", "adapters alone"],
)
def test_a_frozen_run_is_the_same_run_elsewhere(
    overrides: list[str], make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(*overrides, "order=h2l")
    freeze(run)
    monkeypatch.chdir("/")
    again = thaw(run.directory)
    assert (again.id, again.stages, again.config) == (run.id, run.stages, run.config)


def test_relative_paths_are_frozen_as_they_are_meant(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run()
    paths = dataclasses.replace(run.config.paths, outputs="outputs", store="elsewhere")
    freeze(dataclasses.replace(run, config=dataclasses.replace(run.config, paths=paths)))
    monkeypatch.chdir("/")
    assert thaw(run.directory).outputs == tmp_path / "outputs"
    assert thaw(run.directory).store.root == tmp_path / "elsewhere"


def test_a_local_hub_dataset_is_found_from_elsewhere(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for language in ("en", "de"):
        table = datasets.Dataset.from_dict({"text": [f"{language} a", f"{language} b"], "label": ["x", "y"]})
        datasets.DatasetDict({"train": table, "test": table}).save_to_disk(f"saved/{language}")
    config = make_run("order=[en,de]").config
    saved = {"root": None, "hub": "./saved", "reader": "jsonl", "task": "sequence_class"}
    run = plan_run(dataclasses.replace(config, dataset=dataclasses.replace(config.dataset, **saved)))
    freeze(run)
    monkeypatch.chdir("/")
    assert thaw(run.directory).config.dataset.hub == str(tmp_path / "saved")
    assert thaw(run.directory).id == run.id


def test_files_of_buckets_are_found_from_elsewhere(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, xclrun: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    drawn = make_run("shots=1", "dataset.buckets.sampler=minimum")
    created = ("make", "dataset=jsonl", f"dataset.root={drawn.config.dataset.root}", "dataset.buckets.sampler=minimum")
    assert xclrun("data", "buckets", *created, "shots=1", "--to", "few")[0] == 0
    run = make_run("shots=1", "dataset.buckets.sampler=files", "dataset.buckets.root=few")
    # Read or drawn, it is the same training, though not the same run.
    assert (run.stages, run.data_fingerprint) == (drawn.stages, drawn.data_fingerprint)
    assert run.id != drawn.id
    freeze(run)
    monkeypatch.chdir("/")
    assert thaw(run.directory).config.dataset.buckets.root == str(tmp_path / "few")
    assert thaw(run.directory).id == run.id


def test_changed_data_is_told(
    changed_corpus: Callable[..., Path], make_run: Callable[..., Run], run_python: Callable[..., str]
) -> None:
    data = changed_corpus({})
    run = make_run(data=data)
    freeze(run)
    file = data / "de" / "train.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    message = run_python(
        "from pathlib import Path\nfrom xclrun.plan import thaw\nfrom xclrun.store.rundir import RunDirectory\n"
        f"try: thaw(RunDirectory(Path({str(run.directory.path.absolute())!r})))\n"
        "except Exception as error: print(repr(error))"
    )
    assert message.startswith(f"RunError('{run.id}: the data or the encoder has changed since the run was submitted")


def test_the_copy_of_the_code(tmp_path: Path) -> None:
    copy = copy_code(tmp_path)
    assert copy_code(tmp_path) == copy
    show = (
        "import xclrun, xclrun.config.files as c, xclrun.core.version as v; "
        "print(xclrun.__file__, v.code_version(), c.packaged('conf'))"
    )
    (tmp_path / "show.py").write_text(show)
    # In a folder that holds another xclrun, and with another on the path.
    message = subprocess.run(
        [sys.executable, str(copy), "-u", "-m", "show"],
        cwd=PACKAGE.parent,
        env={**os.environ, "PYTHONPATH": f"{PACKAGE.parent}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert message.stdout.split() == [str(copy / "xclrun/__init__.py"), code_version(), str(copy / "xclrun/conf")]


# --- Submission.


SMALL = (
    "dataset.languages=[en,de]",
    "dataset.max_train=8",
    "dataset.max_eval=4",
    "order=[en,de]",
    "model.hidden_size=16",
    "model.vocab_size=200",
    "trainer.epochs=1",
    "runtime.device=cpu",
    "tracking=none",
)


def test_what_slurm_is_asked_for(say: Say, xclrun: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    folder = say(sbatch="Submitted batch job 77\n", scontrol="MaxArraySize = 3\n", squeue="")
    outputs = tmp_path / "outputs"
    command = ["strategy=naive,er", "seed=1,2", *SMALL, "hydra/launcher=slurm", f"paths.outputs={outputs}", "-m"]
    # A micro-batch for each task.
    command.insert(0, "trainer.gradient_accumulation=4")
    options = ["partition=gpu", "gres=gpu:1", "mem=16G", "time=90", "array_parallelism=2", "setup=[module load cuda]"]
    options += ["account=lab", "qos=long", "constraint=a100", "cpus_per_task=4", "nodes=2", "tasks_per_node=2"]
    options += ["python='apptainer exec --nv \"/a b/x.sif\" python'"]
    settings = [*(f"hydra.launcher.{text}" for text in options), "+hydra.launcher.options.exclude=node7"]
    code, output = xclrun(*command, *settings)
    assert code == 0, output
    # Two shared trainings; four runs, of which an array takes three.
    assert [call.split()[0] for call in calls(folder)].count("sbatch") == 3
    [submission] = [Submission(p.parent) for p in outputs.glob("slurm/*/*/submission.json")]
    folders = [submission.folder / f"array-{i}" for i in range(3)]
    scripts = [next(folder.glob("*_submission.sh")).read_text() for folder in folders]
    for script, array in zip(scripts, folders, strict=True):
        for option in (
            "--partition=gpu", "--gres=gpu:1", "--mem=16G", "--time=90", "--account=lab", "--qos=long",
            "--constraint=a100", "--cpus-per-task=4", "--exclude=node7", "--requeue", "--signal=USR2@120",
            "--nodes=2", "--ntasks-per-node=2",
        ):  # fmt: skip
            assert f"\n#SBATCH {option}\n" in script
        assert "\nmodule load cuda\n" in script
        [started] = [line for line in script.splitlines() if line.startswith("srun")]
        assert f" -u -m xclrun.launch.cluster.job {array} requeue -- " in started
        assert f" apptainer exec --nv '/a b/x.sif' python -u {outputs}/slurm/code/" in started
    # Nothing of a submission is a pickle, which would be code that a job executes.
    assert not list(outputs.rglob("*.pkl"))
    assert "--dependency" not in scripts[0]
    assert all("\n#SBATCH --dependency=afterany:77\n" in script for script in scripts[1:])
    arrays = [re.findall("--array=([^\n]*)", script) for script in scripts]
    assert arrays == [["0-1%2"], ["0-2%2"], []]
    jobs = find_jobs(outputs, ask=False).of_runs
    assert sorted(job.id for job in jobs.values()) == ["77", "77_0", "77_1", "77_2"]
    assert {job.log.name for job in jobs.values()} == {f"77{i}_0_log.out" for i in ("", "_0", "_1", "_2")}
    # The frozen configs are there, and no run has begun.
    assert len(list(outputs.glob("runs/*/config.yaml"))) == 4
    assert not list(outputs.glob("runs/*/manifest.json"))
    # While Slurm has them, nothing is submitted again.
    say(squeue="".join(f"77{i}|PENDING|Priority\n" for i in ("", "_0", "_1", "_2")))
    code, output = xclrun(*command)
    assert (code, "4 " in output) == (0, True)
    assert [call.split()[0] for call in calls(folder)].count("sbatch") == 3


def test_slurm_refuses(say: Say, xclrun: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    folder = say(squeue="")
    (folder / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gqu' >&2\nexit 1\n")
    code, output = xclrun(*SMALL, "hydra/launcher=slurm", f"paths.outputs={tmp_path / 'o'}")
    assert code == 2
    assert output.splitlines()[-1].endswith(": invalid partition specified: gqu")
    for name in ("srun", "sbatch"):
        (folder / name).unlink()
    code, output = xclrun(*SMALL, "hydra/launcher=slurm", f"paths.outputs={tmp_path / 'o'}")
    assert (code, "srun" in output) == (2, True)


@pytest.mark.parametrize(
    ("setting", "value"), [("time", 0), ("pack", 0), ("cluster", "slrm"), ("signal_delay", 3600), ("max_array", 0),
                             ("python", ""), ("python", "exec 'x")]
)  # fmt: skip
def test_settings_that_cannot_work(setting: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"hydra.launcher.{setting}={value}: "):
        Slurm(**{setting: value}).check()


@pytest.mark.full
def test_debug_does_what_jobs_would(xclrun: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    given = [*SMALL, "trainer.lr=1e-3,1e30", "hydra/launcher=slurm", "hydra.launcher.cluster=debug"]
    code, message = xclrun(*given, "hydra.launcher.pack=2", "hydra.launcher.setup=['export CHECK=1']",
                         f"paths.outputs={tmp_path}", "-m")  # fmt: skip
    assert (code, "1 of 2 runs finished" in message) == (1, True), message
    good, bad = json.loads(xclrun("status", "--json", "--outputs", str(tmp_path))[1])[0]["runs"]
    assert (good["state"], bad["state"]) == ("finished", "failed")
    assert bad["detail"] in Path(bad["log"]).read_text()
    assert bad["detail"] in xclrun("logs", "--outputs", str(tmp_path), bad["run_id"])[1]
    assert xclrun("logs", "--path", "--outputs", str(tmp_path), bad["run_id"][:-3])[1] == bad["log"] + "\n"
    assert xclrun("logs", "--outputs", str(tmp_path), "mini")[1].startswith("xclrun: 'mini' matches 2 runs: ")
    assert xclrun("cancel", "--outputs", str(tmp_path))[1].startswith("0 jobs of sweep-")


# --- A job that is told to stop.


@pytest.mark.parametrize(
    ("starts", "now", "expected"),
    [
        ([[0, 0]], [0, 0], False),
        ([[0, 0], [0, 0]], [0, 0], True),
        ([[0, 0], [0, 0]], [0, 5], False),
        ([[0, 0], [0, 5]], [0, 5], False),
        ([[0, 0], [0, 5], [0, 5]], [0, 5], True),
        # A finished training has no checkpoint any more.
        ([[1, 90], [1, 90]], [2, 0], False),
    ],
)
def test_tries_that_get_no_further(starts: list[list[int]], now: list[int], expected: bool) -> None:
    assert fruitless([{"event": "started", "position": position} for position in starts], now) is expected


def forked(work: Callable[[], object], log: Path) -> tuple[int, str]:
    """Run a function in a forked process, which has PyTorch loaded; return its exit code and output."""
    child = os.fork()
    if not child:
        code: Any = 1
        try:
            with log.open("w") as sys.stdout:
                sys.stderr = sys.stdout
                try:
                    work()
                    code = 0
                except SystemExit as error:
                    code = error.code
                except BaseException:
                    traceback.print_exc()
        finally:
            os._exit(code % 256)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), log.read_text()


@pytest.mark.parametrize(
    ("number", "state", "requeue", "tries", "code", "requeued", "error"),
    [
        (signal.SIGUSR2, "RUNNING", True, 1, 128 + signal.SIGUSR2, True, None),
        (signal.SIGTERM, "RUNNING", True, 1, 128 + signal.SIGTERM, True, None),
        (signal.SIGUSR2, "RUNNING", True, 2, 1, False, "hydra.launcher.time"),
        (signal.SIGUSR2, "RUNNING", False, 1, 1, False, "hydra.launcher.requeue=false"),
        (signal.SIGTERM, "COMPLETING", True, 1, 128 + signal.SIGTERM, False, None),
    ],
    ids=["requeued", "preempted", "no progress", "not to be requeued", "cancelled"],
)
def test_a_stopped_job(
    number: int, state: str, requeue: bool, tries: int, code: int, requeued: bool, error: str | None, say: Say,
    make_run: Callable[..., Run],
) -> None:  # fmt: skip
    folder, run = say(scontrol="", squeue=f"7_0|{state}|None\n"), make_run()
    freeze(run)
    job = submitted(run)
    for _ in range(tries - 1):
        job.files.add_event("started", position=[0, 0])

    def execute() -> None:
        slurm_job = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "SLURM_JOB_ID": "8"}
        os.environ.update(slurm_job)
        cluster_job.position = lambda runs: [0, 0]
        update = HopTraining._update
        HopTraining._update = lambda *arguments: (os.kill(os.getpid(), number), update(*arguments))[1]
        sys.exit(cluster_job.main([str(job.files.path.parent), *(["requeue"] if requeue else [])]))

    exit_code, output = forked(execute, folder / "output")
    assert exit_code == code, output
    assert "checkpoint saved" in output
    assert ((folder / "calls").exists() and "scontrol requeue 7_0" in calls(folder)) == requeued
    assert (job.files.errors() is not None) == (error is not None)
    assert error is None or error in str(job.files.errors())


# --- Status.


def submitted(run: Run, errors: dict[str, str] | None = None) -> Job:
    """Record the submission of a run as job 7_0, and the errors of its pack if it has ended."""
    submission = Submission.new(run.outputs, "mine")
    submission.submitted = 0.0
    packs = [Pack(runs=(run.id,))]
    submission.add_array(packs)
    submission.arrays[0] |= {"job": "7", "jobs": ["7_0"]}
    submission.write()
    [(job, _)] = submission.jobs()
    if errors is not None:
        job.files.add_event("ended", errors=errors, position=[0, 0])
    return job


@pytest.mark.parametrize(
    ("squeue", "errors", "state"),
    [
        ("7_0|PENDING|Resources\n", None, "waiting"),
        ("7_0|RUNNING|None\n", None, "waiting"),
        ("7_0|CANCELLED|None\n", None, "interrupted"),
        ("7_0|NODE_FAIL|None\n", None, "failed"),
        ("7_0|OUT_OF_MEMORY|None\n", None, "failed"),
        ("7_0|COMPLETED|None\n", None, "lost"),
        # A queued job leaves Slurm only when it is cancelled.
        ("", None, "interrupted"),
        ("7_0|FAILED|NonZeroExitCode\n", "the data has changed", "failed"),
    ],
)
def test_a_run_that_has_not_begun(
    squeue: str, errors: str | None, state: str, say: Say, make_run: Callable[..., Run]
) -> None:
    say(squeue=squeue)
    run = make_run()
    job = submitted(run, errors and {run.id: errors})
    [result] = sweep_status(run.outputs, [run.id])
    assert (result.state, result.job, result.log, result.busy) == (state, "7_0", str(job.log), state == "waiting")
    assert (errors or "7_0") in result.detail


def test_a_job_that_slurm_killed_is_lost_though_its_heartbeat_is_young(
    say: Say, make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from xclrun.train.execute import execute
    from xclrun.train.stop import StopFlag

    run = make_run()
    submitted(run)
    monkeypatch.setenv("XCLRUN_JOB", "7_0")
    states = []

    def look() -> None:
        for message in ("7_0|RUNNING|None\n", "7_0|OUT_OF_MEMORY|None\n", ""):
            say(squeue=message)
            states.extend(result.state for result in sweep_status(run.outputs, [run.id]))

    execute(run, During(look), StopFlag())
    assert states == ["running", "lost", "running"]
    assert [result.state for result in sweep_status(run.outputs, [run.id])] == ["finished"]


# --- GPUs of local workers.


@pytest.mark.parametrize(
    ("launcher", "runs", "gpus", "devices", "places"),
    [
        (Local(n=3, per_gpu=2), 9, "01", 1, ["0", "1", "0"]),
        (Local(n=9, per_gpu=2), 3, "01", 1, ["0", "1", "0"]),
        (Local(n=9, per_gpu=2), 9, "01", 1, ["0", "1", "0", "1"]),
        (Local(n=9), 9, "01", 1, ["0", "1"]),
        (Local(n=2), 9, "", 1, [None, None]),
        # Each worker gets the GPUs of one run; a remainder is not used.
        (Local(n=9), 9, "01234", 2, ["0,1", "2,3"]),
        (Local(n=3, per_gpu=2), 9, "0123", 2, ["0,1", "2,3", "0,1"]),
        (Local(n=2), 9, "", 2, [None, None]),
    ],
)
def test_gpus_are_assigned_in_turn(
    launcher: Local, runs: int, gpus: str, devices: int, places: list[str | None]
) -> None:
    assert launcher.places(runs, list(gpus), devices) == places


PARTS = ("trainer.gradient_accumulation=4", "trainer.batch_size=1")


@pytest.mark.parametrize(
    ("gpus", "devices", "n", "runs", "hint"),
    [
        (8, 1, 1, 9, 8),
        (8, 1, 1, 3, 3),
        (2, 1, 2, 9, None),
        (2, 1, 1, 1, None),
        (1, 1, 1, 9, None),
        (8, 4, 1, 9, 2),
        (7, 4, 1, 9, None),
    ],
)
def test_gpus_that_a_sweep_leaves_idle_are_reported_with_the_key_that_uses_them(
    gpus: int, devices: int, n: int, runs: int, hint: int | None, make_run: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus))))
    for module, name in ((workers, "work"), (workers, "work_in_processes"), (local, "conclude")):
        monkeypatch.setattr(module, name, lambda *given: None)
    settings = ("runtime.device=auto", f"runtime.devices={devices}", *PARTS)
    planned = tuple(make_run(*settings, f"seed={seed}") for seed in range(runs))
    Local(n=n).do(Sweep("x", "xclrun", planned), planned)
    message = " ".join(capsys.readouterr().err.split())
    assert (f"{gpus} GPUs are visible" in message) is (f"hydra.launcher.n={hint}" in message) is (hint is not None)
    # A launcher has started a rank for each GPU.
    monkeypatch.setenv("WORLD_SIZE", str(gpus))
    Local(n=n).do(Sweep("x", "xclrun", planned), planned)
    assert "GPUs are visible" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("visible", "launcher", "device", "expected"),
    [
        ("2, 5", Local(), "auto", ["2", "5"]),
        ("2, 5", Local(), "cpu", []),
        ("2, 5", Local(gpus=[7]), "cpu", ["7"]),
        ("", Local(), "auto", []),
        ("-1", Local(), "auto", []),
        ("3,-1,2", Local(), "auto", ["3"]),
    ],
)
def test_the_gpus_of_workers(
    visible: str, launcher: Local, device: str, expected: list[str], make_run: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert launcher.gpus_of([make_run(f"runtime.device={device}")]) == expected


def test_more_devices_than_gpus_are_refused_at_the_start(make_run: Callable[..., Run]) -> None:
    run = make_run("runtime.device=auto", "runtime.devices=4", *PARTS)
    with pytest.raises(UsageError, match=r"^runtime\.devices=4: exceeds the number of GPUs; use at most 2$"):
        Local(n=2, gpus=[3, 5]).check_runs([run])
    Local(gpus=[0, 1, 2, 3]).check_runs([run])


@pytest.mark.parametrize(("per_gpu", "devices"), [(1, 2), (2, 2), (2, 1), (3, 4)])
def test_ranks_of_a_worker_get_different_gpus(
    per_gpu: int, devices: int, make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA is replaced by functions that return what it returns for CUDA_VISIBLE_DEVICES; nothing is computed."""
    import torch

    from xclrun.train.ranks import ALONE, Group
    from xclrun.train.stop import StopFlag
    from xclrun.train.workbench import Workbench

    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")))
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(Group, "_connect", lambda self: None)
    monkeypatch.setattr("xclrun.train.workbench.set_deterministic", lambda *given: None)
    run = make_run("runtime.device=cuda", f"runtime.devices={devices}", *PARTS)
    of_gpu = Counter[str]()
    places = Local(n=99, per_gpu=per_gpu).places(99, list("4567"), devices)
    assert len(places) == per_gpu * 4 // devices
    for place in places:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(place))
        used = []
        for rank in range(devices):
            group = ALONE
            if devices > 1:
                group = Group(rank, devices, None, local=rank, on_machine=devices, minutes=1)
                assert group.backend == "cpu:gloo,cuda:nccl"
            device = Workbench(run, Listener(), StopFlag(), group).device
            assert device.type == "cuda"
            assert devices == 1 or chosen[-1] == device
            used.append(str(place).split(",")[device.index or 0])
        assert len(set(used)) == devices
        of_gpu.update(used)
    assert dict(of_gpu) == dict.fromkeys("4567", per_gpu)


def test_a_gpu_twice_serves_two_workers_but_not_two_devices_of_a_run(make_run: Callable[..., Run]) -> None:
    Local(n=2, gpus=[0, 0]).check_runs([make_run("runtime.device=auto")])
    with pytest.raises(
        UsageError, match=r"^hydra\.launcher\.gpus=\[0,0\]: repeats a GPU.*set hydra\.launcher\.per_gpu"
    ):
        Local(gpus=[0, 0]).check_runs([make_run("runtime.device=auto", "runtime.devices=2", *PARTS)])


@pytest.mark.parametrize(
    ("launcher", "visible", "settings", "message"),
    [
        (Local(), "0,1,2,3", PARTS, None),
        # The launcher shows each rank its own GPU.
        (Local(), "3", (*PARTS, "runtime.devices=4"), None),
        (Local(), "0,1", (*PARTS, "runtime.device=cpu"), None),
        (Local(), "0,1", PARTS, r"^a launcher started 4 ranks on a machine with 2 GPUs; start at most 2, or set "),
        (Local(n=2), "", PARTS, r"^a launcher started 4 ranks.*use hydra\.launcher\.n=1 without hydra\.launcher\.gpus"),
        (Local(gpus=[0]), "", PARTS, r"^a launcher started 4 ranks.*without hydra\.launcher\.gpus"),
        (Local(), "", (), r"^4 processes of a launcher, trainer\.gradient_accumulation=1: "),
        (Local(), "", (*PARTS, "runtime.devices=2"), r"^runtime\.devices=2: the launcher starts 4 processes"),
    ],
)
def test_ranks_of_torchrun_that_cannot_train_a_run_are_refused_at_the_start(
    launcher: Local, visible: str, settings: tuple[str, ...], message: str | None, make_run: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = make_run("runtime.device=auto", *settings)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    if message is None:
        launcher.check_runs([run])
        return
    with pytest.raises(UsageError, match=message):
        launcher.check_runs([run])


def test_tasks_of_a_node_need_as_many_gpus(make_run: Callable[..., Run]) -> None:
    launcher, message = (
        Slurm(tasks_per_node=2, gpus_per_node=1),
        r"^hydra\.launcher\.gpus_per_node=1 tasks_per_node=2: ",
    )
    launcher.check_runs([make_run(*PARTS)])
    Slurm(tasks_per_node=2, gpus_per_node=2).check_runs([make_run("runtime.device=auto", *PARTS)])
    with pytest.raises(UsageError, match=message):
        launcher.check_runs([make_run("runtime.device=auto", *PARTS)])


def test_tasks_of_a_job_need_as_many_parts(make_run: Callable[..., Run]) -> None:
    launcher = Slurm(nodes=2, tasks_per_node=2)
    launcher.check_runs([make_run(*PARTS)])
    with pytest.raises(UsageError, match=r"^4 processes of a launcher, trainer\.gradient_accumulation=1: "):
        launcher.check_runs([make_run()])
    with pytest.raises(
        UsageError, match=r"^runtime\.devices=2: the launcher starts 4 processes; omit runtime.devices$"
    ):
        launcher.check_runs([make_run("runtime.devices=2", *PARTS)])
    # In place, a job has one process.
    Slurm(cluster="debug", tasks_per_node=2).check_runs([make_run()])


@pytest.mark.full
def test_workers_see_their_gpu_alone(tmp_path: Path) -> None:
    given = [*SMALL, "seed=1,2,3,4", "hydra.launcher.n=3", "hydra.launcher.gpus=[3,5]", f"paths.outputs={tmp_path}"]
    code = "import sys; from xclrun.cli import main; sys.exit(main())"
    subprocess.run([sys.executable, "-c", code, *given, "-m"], check=True, capture_output=True)
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/manifest.json")]
    by_process = {manifest["pid"]: manifest["environment"]["gpus"] for manifest in manifests}
    assert len(manifests) == 4
    assert set(by_process.values()) <= {"3", "5"}
    assert len(by_process) <= 2
    if len(by_process) == 2:
        assert set(by_process.values()) == {"3", "5"}


# --- Many.


@pytest.mark.full
@pytest.mark.in_turn
def test_a_thousand_runs_are_submitted_in_two_arrays(
    say: Say, xclrun: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    folder = say(sbatch="Submitted batch job 77\n", squeue="")
    given = ["strategy=naive,er", "order=[en,de],[de,en]", "seed=range(0,250)", *(o for o in SMALL if "order" not in o)]
    code, message = xclrun(*given, "hydra/launcher=slurm", f"paths.outputs={tmp_path / 'outputs'}", "-m")
    assert code == 0, message
    assert "with runs" in message
    assert len(list((tmp_path / "outputs").glob("runs/*/config.yaml"))) == 1000
    # Slurm's own limit of an array takes them all.
    assert [call.split()[0] for call in calls(folder)].count("sbatch") == 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """An MLflow server, as docs/slurm.md starts it; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = ["--port", str(port), "--backend-store-uri", f"sqlite:///{tmp_path / 'server.db'}"]
    started = [sys.executable, "-m", "mlflow", "server", *given, "--artifacts-destination", str(tmp_path / "artifacts")]
    process = subprocess.Popen(started, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
                    break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.full
@pytest.mark.in_turn
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jobs_that_start_at_once_land_in_one_experiment(
    server: str, xclrun: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    tracking, together = TrackingConfig(uri=server, experiment="study"), threading.Barrier(16)

    def start(job: int) -> str:
        together.wait()
        return Mirror(tmp_path / str(job), tracking).experiment

    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(start, range(16)))) == 1
    # Jobs talk to the server themselves, below the sweep that was made at submission.
    given = [o for o in SMALL if o != "tracking=none"] + ["seed=1,2", f"tracking.uri={server}"]
    given += ["tracking.experiment=study", "hydra/launcher=slurm", "hydra.launcher.cluster=debug"]
    code, message = xclrun(*given, f"paths.outputs={tmp_path / 'outputs'}", "-m")
    assert code == 0, message
    mirror = Mirror(tmp_path / "outputs", tracking)
    runs = mirror.client.search_runs([mirror.experiment], max_results=100)
    kinds = {kind: [r for r in runs if r.data.tags["xclrun.kind"] == kind] for kind in ("run", "sweep")}
    [parent] = kinds["sweep"]
    assert [run.info.status for run in kinds["run"]] == ["FINISHED", "FINISHED"]
    assert {run.data.tags["mlflow.parentRunId"] for run in kinds["run"]} == {parent.info.run_id}
    assert not (tmp_path / "outputs" / "mlflow.db").exists()
