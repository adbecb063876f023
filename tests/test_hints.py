"""`xclrun plan` names at most two settings that are faster on this machine, and none that is chosen already."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY
from xclrun.cli import main
from xclrun.launch import hints as module
from xclrun.launch.hints import HINTS, Processor, hints, this_processor
from xclrun.launch.local import Local
from xclrun.plan import Run
from xclrun.store.rundir import RunDirectory

Make = Callable[..., Run]

SERVER, OLD = Processor(cores=8, bf16=True), Processor(cores=1, bf16=False)
WIDE = ("model.hidden_size=384", "model.attention_heads=12")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def first_words(*runs: Run, processor: Processor = SERVER, launcher: Local | None = None) -> list[str]:
    """Return the settings that are named, without their reasons."""
    return [hint.partition(":")[0] for hint in hints(runs, launcher or Local(), processor)]


def test_a_wide_encoder_on_a_cpu_with_bf16_instructions(make_run: Make) -> None:
    assert first_words(make_run(*WIDE)) == ["trainer.precision=bf16", "runtime.threads=8"]
    assert first_words(make_run(*WIDE, "trainer.precision=bf16")) == ["runtime.threads=8"]
    assert first_words(make_run(*WIDE, "runtime.threads=4")) == ["trainer.precision=bf16"]
    assert first_words(make_run(*WIDE), processor=Processor(8, bf16=False)) == ["runtime.threads=8"]
    assert first_words(make_run(*WIDE), processor=OLD) == []


def test_a_small_encoder_gets_neither_bf16_nor_threads(make_run: Make) -> None:
    assert first_words(make_run()) == []


def test_several_runs_get_workers_instead_of_threads(make_run: Make) -> None:
    runs = [make_run(*WIDE, "trainer.precision=bf16", f"seed={seed}") for seed in (1, 2, 3)]
    assert first_words(*runs) == ["hydra.launcher.n=3"]
    assert first_words(*runs, processor=Processor(2, bf16=True)) == ["hydra.launcher.n=2"]
    assert first_words(*runs, launcher=Local(n=2)) == []
    assert first_words(*runs, processor=OLD) == []


def test_a_gpu_gets_its_presets(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    def of(*overrides: str) -> Run:
        return make_run("runtime.device=auto", *overrides)

    assert first_words(of(*WIDE)) == ["trainer=gpu evaluate=gpu"]
    assert first_words(of(*WIDE), of(*WIDE, "seed=2"), processor=OLD) == ["trainer=gpu evaluate=gpu"]
    assert first_words(of("evaluate=gpu")) == ["trainer=gpu"]
    assert first_words(of("trainer.precision=bf16")) == []
    # No step of these can be captured in a CUDA graph.
    assert first_words(of("strategy=seq_lora")) == ["trainer.precision=bf16 evaluate=gpu"]
    for refused in ("evaluate.class_gradients=true", "model.max_length=100", "trainer.gradient_checkpointing=true"):
        assert first_words(of(refused)) == ["trainer.precision=bf16 evaluate=gpu"]
    assert first_words(of("runtime.device=cpu")) == []


def test_there_are_at_most_two(make_run: Make) -> None:
    runs = [make_run(*WIDE), make_run(*WIDE, "trainer.epochs=2", "seed=2")]
    assert len(first_words(*runs)) == HINTS
    assert first_words() == []


@pytest.mark.parametrize(
    ("flags", "bf16"), [("fpu avx512_bf16 sse", True), ("fpu amx_bf16", True), ("fpu avx2", False)]
)
def test_bf16_instructions_are_flags_of_the_processor(flags: str, bf16: bool, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nmodel name\t: avx512_bf16 in a name\nflags\t\t: {flags}\nbugs\t\t: none\n")
    assert this_processor(file).bf16 == bf16
    assert not this_processor(tmp_path / "no file").bf16


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_plan_prints_them(
    form: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "this_processor", lambda: SERVER)
    assert main(["plan", *TINY, *WIDE, "trainer.precision=bf16", f"paths.outputs={tmp_path}", *form]) == 0
    out = capsys.readouterr().out
    told: Any = json.loads(out)["faster"] if form else [s for s in out.splitlines() if s.startswith("faster: ")]
    assert len(told) == 1
    assert "runtime.threads=8" in told[0]


def test_finished_runs_need_no_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "this_processor", lambda: SERVER)
    monkeypatch.setattr(RunDirectory, "finished", True)
    assert main(["plan", *TINY, *WIDE, f"paths.outputs={tmp_path}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["faster"] == []


def test_a_cluster_whose_nodes_are_unknown_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "this_processor", lambda: SERVER)
    assert main(["plan", *TINY, *WIDE, f"paths.outputs={tmp_path}", "hydra/launcher=slurm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["faster"] == []
