"""Killed anywhere, between and inside writes, and continued: the predictions are the same, bit for bit."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.questions import write_questions
from xclrun.launch import selftest
from xclrun.launch.selftest import Outcome
from xclrun.strategy import STRATEGIES, strategy_class

from .commands import XCLRUN, predictions, small, wait_for, whole


def _selftest(*arguments: str) -> dict[str, tuple[int, str]]:
    """Return strategy → (kills, predictions) as `xclrun selftest` tells."""
    done = subprocess.run([*XCLRUN, "selftest", *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(\w+) +(\d+) +[\d.]+ +(.+)$", done.stdout, re.MULTILINE)
    return {name: (int(kills), result) for name, kills, result in rows}


def test_what_was_never_killed_is_not_tested(
    xclrun: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [Outcome("er", 4, 9.0, True, ()), Outcome("mbpa", 0, 9.0, True, ())]
    monkeypatch.setattr(selftest, "selftest", lambda *_: outcomes)
    code, output = xclrun("selftest", "er", "mbpa", "--kills", "4")
    # Nothing differs, and yet not all was shown.
    assert code == 3
    assert re.search(r"^er +4 +9\.0 +identical$", output, re.MULTILINE)
    assert re.search(r"^mbpa +0 +9\.0 +inconclusive$", output, re.MULTILINE)
    assert "Inconclusive: no time to kill mbpa;" in output
    outcomes.append(Outcome("si", 2, 9.0, False, ("scores.parquet",)))
    assert xclrun("selftest", "er", "mbpa", "si")[0] == 1
    outcomes[1:] = []
    code, output = xclrun("selftest", "er", "--kills", "4")
    assert code == 0
    # Fewer kills than asked for are enough.
    outcomes[0] = Outcome("er", 1, 9.0, True, ())
    code, output = xclrun("selftest", "er", "--kills", "4")
    assert (code, "nconclusive" in output) == (0, False)


def test_the_default_has_one_strategy_of_each_kind_of_state() -> None:
    kinds = [strategy_class(name).state_dict for name in selftest.KINDS]
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == {strategy_class(name).state_dict for name in STRATEGIES}


def test_a_slow_machine_kills_each_run_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock, folders = [0.0], {"calm": False}

    def in_child(work: Callable[[], object], seconds: float | None = None) -> int:
        clock[0] += 10.0
        if seconds is None:
            folders[name[0]] = True
        return 0 if seconds is None else signal.SIGKILL

    name: list[str] = []

    def job(strategy: str, folder: Path, extra: Sequence[str] = ()) -> Any:
        name[:] = [folder.name]
        return SimpleNamespace(directory=_Directory(folder.name, folders))

    monkeypatch.setattr(selftest, "import_everything", lambda: None)
    monkeypatch.setattr(selftest, "in_child", in_child)
    monkeypatch.setattr(selftest, "job", job)
    monkeypatch.setattr(selftest, "differing_results", lambda *_: [])
    monkeypatch.setattr(selftest.time, "monotonic", lambda: clock[0])
    assert selftest.kill_test("er", 3, 0, tmp_path, budget=8.0).kills == 1


class _Directory:
    """The directory of a run that finishes as soon as it is not killed."""

    def __init__(self, name: str, done: dict[str, bool]) -> None:
        self.name, self.done = name, done

    @property
    def finished(self) -> bool:
        return self.done.get(self.name, False)


@pytest.mark.full
def test_selftest_kills_and_compares() -> None:
    [(kills, result)] = _selftest("er", "--kills", "4").values()
    assert kills >= 4
    assert result == "identical"


# `make test-kills` kills each run of all twenty times, and all inside writes too.
THOROUGH = bool(os.environ.get("XCLRUN_THOROUGH"))
KILLS = 20 if THOROUGH else 6
COMBINED = (
    *("er+lang_spec_trans", "agem+lang_spec_task", "kd_logit+lang_spec_ada_t", "ewc+lang_spec_enc"),
    *("derpp+lang_spec_task", "lwf+lang_spec_task", "si+lang_spec_enc"),
)


# Each landing kills one strategy of each kind of state.
@pytest.mark.full
@pytest.mark.in_turn(*selftest.KINDS)
@pytest.mark.parametrize("strategy", [*STRATEGIES, *COMBINED])
def test_killed_at_random_instants(faults: Callable[..., Any], tmp_path: Path, strategy: str) -> None:
    result = faults("kills", strategy, tmp_path, KILLS)
    assert result["kills"] >= KILLS
    assert result["equal"], result["differing"]


@pytest.mark.full
@pytest.mark.in_turn
@pytest.mark.parametrize("strategy", ["growing", "er"])
def test_a_run_in_blocks_that_was_killed_has_the_same_codelength(
    faults: Callable[..., Any], tmp_path: Path, strategy: str
) -> None:
    # What is compared are all files of predictions, those of the next blocks too.
    result = faults("kills", strategy, tmp_path, KILLS, "order=[en,de]", "dataset.blocks=4", "trainer.selection=last")
    assert result["kills"] >= KILLS
    assert result["equal"], result["differing"]


# Beside runs on sentences: texts in several windows, from which answers and their probabilities are put together.
@pytest.mark.full
@pytest.mark.in_turn
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("strategy", ["er", "agem", "ewc_online", "kd_logit", "growing"])
def test_a_run_on_questions_that_was_killed_has_the_same_answers(
    faults: Callable[..., Any], tmp_path: Path, strategy: str, blocks: bool
) -> None:
    data = write_questions(tmp_path / "data", "en", "th", "zh", long=4)
    extra = ["dataset=questions", f"dataset.root={data}", "dataset.languages=[en,th,zh]", "order=[en,zh,th]"]
    extra += ["model.windows.stride=8", "model.windows.question=8", "model.max_length=32"]
    extra += ["dataset.blocks=4", "trainer.selection=last"] if blocks else []
    result = faults("kills", strategy, tmp_path / "runs", KILLS, *extra)
    assert result["kills"] >= KILLS
    assert result["equal"], result["differing"]


# Questions, classes and tags under one encoder, one after another; and the first two in one hop.
@pytest.mark.full
@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("strategy", "order"),
    [*((name, "asked,kind,where") for name in ("er", "agem", "ewc_online", "kd_logit")), ("naive", "asked+kind,where")],
)
def test_a_run_of_several_tasks_that_was_killed_has_the_same_answers(
    faults: Callable[..., Any], tmp_path: Path, strategy: str, order: str
) -> None:
    data = write_questions(tmp_path / "data", "en", long=4)
    options = f"asked: {{reader: questions, root: '{data}', task: span, languages: [en]}}"
    parts = (
        f"{{{options}, kind: {{task: sequence_class, languages: [de]}}, where: {{task: token_tags, languages: [th]}}}}"
    )
    result = faults(
        "kills", strategy, tmp_path / "runs", KILLS, f"dataset.parts={parts}", "dataset.languages=[asked,kind,where]",
        f"order=[{order}]", "dataset.name=several", "dataset.max_train=24", "dataset.max_eval=12",
        "model.windows.stride=8", "model.windows.question=8", "model.max_length=32",
    )  # fmt: skip
    assert result["kills"] >= KILLS
    assert result["equal"], result["differing"]


@pytest.mark.full
def test_selftest_finds_what_is_forgotten(faults: Callable[..., Any], tmp_path: Path) -> None:
    assert faults("broken", tmp_path) is False


# Every n-th of the places in which a run changes files. Of strategies that keep the same kind of thing one is enough
# for a landing: examples, gradients, Fisher information, teachers, outputs of passing batches, paths of weights,
# pieces per hop, stages, blocks.
KINDS = ("agem", "ewc_online", "kd_logit", "derpp", "si", "mbpa", "lang_spec_trans", "cos_pooler", "growing")
WRITES = dict.fromkeys(STRATEGIES, 19) if THOROUGH else dict.fromkeys(KINDS, 47)


@pytest.mark.full
@pytest.mark.in_turn("er-5", "agem-47")
@pytest.mark.parametrize(("strategy", "every"), (WRITES | {"naive": 40, "er": 3 if THOROUGH else 5}).items())
def test_killed_inside_writes(faults: Callable[..., Any], tmp_path: Path, strategy: str, every: int) -> None:
    result = faults("writes", strategy, tmp_path, every)
    assert result["problems"] == []
    assert {"write", "create", "fsync", "replace", "rename", "unlink"} <= set(result["places"])
    places = sum(result["places"].values())
    assert places > 100
    assert result["killed"] == -(-places // every)


@pytest.mark.full
def test_an_average_that_was_killed_inside_writes_is_made_when_it_is_given_again(
    faults: Callable[..., Any], tmp_path: Path
) -> None:
    result = faults("averages", tmp_path, 3)
    assert result["problems"] == []
    assert [name.rpartition("-")[0] for name in result["files"]] == ["all-hop-1", "all-hop-2"]
    assert result["killed"] == -(-sum(result["places"].values()) // 3) > 5


def _ranks_of(process: int) -> list[int]:
    """Return the other ranks that a process has started."""
    listed = Path(f"/proc/{process}/task/{process}/children")
    children = listed.read_text().split() if listed.exists() else []
    commands = {int(child): Path(f"/proc/{child}/cmdline") for child in children}
    return [child for child, path in commands.items() if path.exists() and "spawn_main" in path.read_text()]


def _trains_or_ended(process: subprocess.Popen[str], outputs: Path, since: float) -> bool:
    """Return whether a run has taken a step since a time, or its process has ended."""
    return process.poll() is not None or any(
        path.stat().st_mtime > since for path in outputs.glob("runs/*/progress.json")
    )


@pytest.mark.full
def test_any_rank_is_killed_at_random_instants(
    start: Callable[..., Any], undisturbed: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """The run ends with one line and a nonzero exit code, no rank survives, and the resumed run has the same files."""
    generator, kills, wanted, seconds = random.Random("ranks"), 0, 20 if THOROUGH else 4, 3.0
    # Each step saves a checkpoint.
    sweep = small(
        "strategy=derpp", "order=[en,de]", "trainer.epochs=4", "trainer.batch_size=2",
        "trainer.gradient_accumulation=2", "trainer.checkpoint_minutes=0.0001", "runtime.devices=2",
        "runtime.rank_timeout=1",
    )  # fmt: skip
    expected, outputs = undisturbed(sweep), tmp_path / "0"
    while kills < wanted:
        started, process = time.time(), start(*sweep, f"paths.outputs={outputs}")
        # A run whose hops are all stored needs no second rank.
        wait_for(lambda p=process: p.poll() is not None or _ranks_of(p.pid), 200)
        rank, number = generator.choice(
            [("first", process.pid), *(("second", other) for other in _ranks_of(process.pid))]
        )
        if generator.random() < 0.8:
            wait_for(partial(_trains_or_ended, process, outputs, started), 200)
        began = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(generator.random() * seconds)
        # A rank may end just now, with its run.
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        # The second rank has the same output, so this waits for both.
        output, _ = process.communicate(timeout=200)
        if process.returncode == 0:
            seconds = time.monotonic() - began
            assert predictions(outputs) == expected
            assert whole(outputs, killed=True)
            print(f"after {kills} kills: finished with equal predictions")
            outputs = tmp_path / str(kills)
            continue
        kills += 1
        if rank == "first":
            assert process.returncode == -signal.SIGKILL
            # The other rank prints no C++ stack.
            assert "frame #" not in output
        else:
            assert process.returncode == 1, output
            lines = [line for line in output.splitlines() if "rank 1 was killed by SIGKILL" in line]
            assert len(lines) == 1, output
            assert "re-run the same command" in lines[0]
            assert "Traceback" not in output
        print(f"kill {kills} of {wanted}: the {rank} rank, {time.time() - started:.1f} s after the start")
    process = start(*sweep, f"paths.outputs={outputs}")
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert predictions(outputs) == expected
