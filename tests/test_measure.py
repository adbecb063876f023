"""`xclrun plan --measure`: what is trained, what is printed, and what does not fit."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from xclrun.cli import main
from xclrun.launch import measure as launch_measure
from xclrun.launch.cluster import launcher
from xclrun.launch.measure import Row, kinds, measure_kinds, render
from xclrun.plan import Run
from xclrun.train.encodings import encodings
from xclrun.train.measure import STEPS, HopCost, Measured, _Clock, _shortened, measure
from xclrun.train.stages import StageGraph

Make = Callable[..., Run]
MB = 10**6


def test_batches_consist_of_the_longest_sentences_of_each_split(make_run: Make, tmp_path: Path) -> None:
    run = make_run("trainer.gradient_accumulation=2", "evaluate.batch_size=3", "strategy=er")
    short, splits = _shortened(run, tmp_path), encodings(run).splits
    size = 2 * run.config.trainer.batch_size
    for key, split in short.dataset.splits:
        if key in run.stream.languages:
            expected = sorted(splits[key, split].lengths)[-(size if split == "train" else 3) :]
            assert sorted(encodings(short).splits[key, split].lengths) == expected
    # Models have the same sizes, and memories are used although the steps are few.
    assert [target.labels for target in short.dataset.targets] == [target.labels for target in run.dataset.targets]
    assert encodings(short).tokenizer.vocab_size == encodings(run).tokenizer.vocab_size
    assert short.config.strategy.every_k == 1
    assert short.config.trainer.epochs == STEPS


def test_each_hop_is_measured_and_nothing_is_stored(make_run: Make) -> None:
    run = make_run("strategy=er", "order=[en,de]")
    measured = measure(run)
    assert [(cost.hop, cost.name) for cost in measured.hops] == [(1, "en"), (2, "de")]
    assert all(cost.peak_bytes > 10 * MB and 0 < cost.seconds < 100 for cost in measured.hops)
    assert (measured.device, measured.capacity, measured.error) == ("cpu", None, None)
    assert not run.outputs.exists()


def test_the_time_of_a_step_includes_what_it_launched_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    now, launched, clock, nothing = [0.0], [0.0], _Clock(), cast(Any, None)

    def synchronize() -> None:
        now[0], launched[0] = now[0] + launched[0], 0.0

    def step() -> None:
        now[0], launched[0] = now[0] + 1, 4.0
        clock.stepped(nothing)

    monkeypatch.setattr("xclrun.train.measure.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    now[0] = 1000.0
    clock.hop_started(nothing, nothing)
    step()
    assert clock.seconds == 5
    # An evaluation.
    now[0], launched[0] = now[0] + 100, 50.0
    clock.epoch_ended(nothing, {})
    step()
    assert clock.seconds == 5


def test_orders_and_seeds_are_one_kind(make_run: Make) -> None:
    runs = [make_run(*given) for given in ((), ("seed=2",), ("order=[de,en,es]",), ("strategy=er",))]
    runs.append(make_run("trainer.batch_size=2"))
    assert kinds(runs) == [runs[0], runs[3], runs[4]]


def test_the_table_gives_the_first_hop_and_the_largest_of_the_later_ones(make_run: Make) -> None:
    run = make_run()
    costs = (HopCost(1, "en", 100 * MB, 0.5), HopCost(2, "de", 300 * MB, 0.25), HopCost(3, "es", 200 * MB, 0.75))
    first, _, _, *rows = render([Row(run, Measured("A100", 80_000 * MB, costs), None)]).splitlines()
    assert first.startswith("Measured on A100 (80.00 GB): 3 steps")
    assert [row.split()[-5:] for row in rows] == [
        [*f"{run.label} 1 100.0 MB 0.5 s".split()[-5:]],
        [*["to", "3", "300.0", "MB", "0.75", "s"][-6:]][-5:],
    ]


def test_too_little_memory_is_a_row_with_a_remedy_and_exit_code_1(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = StageGraph.weights

    def full(self: StageGraph, index: int) -> None:
        if index == 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        weights(self, index)

    monkeypatch.setattr(StageGraph, "weights", full)
    measured = measure(make_run())
    assert [cost.hop for cost in measured.hops] == [1]
    assert measured.error is not None
    assert "trainer.batch_size=2 trainer.gradient_accumulation=2" in measured.error
    text = render([Row(make_run(), measured, measured.error)])
    assert text.splitlines()[-1].endswith(measured.error)


def test_a_killed_measurement_is_named_and_the_next_one_is_taken(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_first(run: Run, answer: object) -> None:
        if run.strategy_name == "naive":
            os.kill(os.getpid(), signal.SIGKILL)
        answer.send(Measured("cpu", None, ()))  # type: ignore[attr-defined]

    monkeypatch.setattr(launch_measure, "_measure", kill_first)
    killed, measured = measure_kinds([make_run(), make_run("strategy=er")])
    assert killed.error is not None
    assert "too little memory" in killed.error
    assert (measured.error, measured.measured) == (None, Measured("cpu", None, ()))


@pytest.mark.parametrize("error", [ZeroDivisionError("no rows"), SystemExit("no rows")], ids=["error", "exit"])
def test_an_error_of_a_plug_in_is_named(error: BaseException, make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: StageGraph, index: int) -> None:
        raise error

    monkeypatch.setattr(StageGraph, "weights", fail)
    [row] = measure_kinds([make_run()])
    assert row.measured is None
    assert row.error is not None
    assert f"{type(error).__name__}: no rows" in row.error
    assert "batch_size" not in row.error


def test_what_cannot_be_trained_ends_with_exit_code_1(
    make_run: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Row(make_run(), Measured("cpu", None, (HopCost(1, "en", MB, 1.0),)), None)]
    monkeypatch.setattr(launch_measure, "measure_kinds", lambda runs: iter(found))
    assert main(["plan", "strategy=naive", "--measure", "--json"]) == 0
    [facts] = json.loads(capsys.readouterr().out)
    assert facts["hops"] == [{"hop": 1, "name": "en", "peak_bytes": MB, "seconds": 1.0}]
    found.append(Row(make_run(), None, "the GPU is out of memory"))
    assert main(["plan", "strategy=naive", "--measure"]) == 1
    assert "the GPU is out of memory" in capsys.readouterr().out


def test_on_slurm_a_job_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("srun", 'printf "%s\\n" "$@"; exit 3'), ("sbatch", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    monkeypatch.setattr(launcher, "copy_code", lambda folder: folder)
    monkeypatch.setattr(launcher, "require", lambda *names: None)
    keys = ["hydra.launcher.partition=gpu", "hydra.launcher.mem=9G", "hydra.launcher.setup=[module load x]"]
    command = ["plan", "strategy=naive", f"paths.outputs={tmp_path}", "hydra/launcher=slurm", *keys, "--measure"]
    assert main(command) == 3
    words = capfd.readouterr().out.splitlines()
    assert {"--partition=gpu", "--mem=9G", "--ntasks=1", "--time=60"} < {*words}
    assert words.index("module load x") < words.index("xclrun") < words.index("plan") < words.index("--measure")
    # In the job's task, this machine is measured.
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setattr(launch_measure, "measure_kinds", lambda runs: iter(()))
    assert main(command) == 0
