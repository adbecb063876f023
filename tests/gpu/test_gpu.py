"""Training on a GPU: precision, CUDA graphs, repeatability, resume, several ranks, generation, and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks.gpu import Plan, agreement, broken
from tests.conftest import TINY
from tests.train.conftest import predicted, stopped
from xclrun.plan import Run
from xclrun.train.graphs import CapturedSteps
from xclrun.train.loop import HopTraining

Make = Callable[..., Run]

GPU = "runtime.device=cuda"
SHORT = (GPU, "order=[en,de]", "trainer.selection=last")
GRAPHS = ("trainer.cuda_graphs=true", "model.max_length=48")
TEXTS = (
    "dataset=mini_text", "model=tiny_decoder", "dataset.max_train=8", "dataset.max_eval=4", "model.vocab_size=300",
    "trainer.epochs=1", "generation.max_new_tokens=6",
)  # fmt: skip
# What differs in a step: replay, penalties, distillation, other parameters, packed rows, other precisions.
CASES = {
    "naive": ("strategy=naive", "trainer.clip_norm=0.5", "trainer.schedule=linear"),
    "er": ("strategy=er", "trainer.gradient_accumulation=2"),
    "ewc_online": ("strategy=ewc_online", "strategy.penalty=0.1"),
    "kd_logit": ("strategy=kd_logit",),
    "gem": ("strategy=gem",),
    "lora": ("strategy=inc_lora",),
    "packed": ("strategy=er", "trainer.packing=true"),
    "bf16": ("strategy=er", "trainer.precision=bf16"),
}
CAPTURED = ("naive", "er", "ewc_online", "kd_logit", "packed", "bf16")


@pytest.fixture
def outcome(make_run: Make, do: Make) -> Callable[..., tuple[dict[str, str], dict[str, str], Run]]:
    """Do a run in new outputs; return the checksums of its predictions and of its weights, and the run."""
    numbers = iter(range(100))

    def get(*overrides: str, stops: tuple[int, ...] = ()) -> tuple[dict[str, str], dict[str, str], Run]:
        run = make_run(*SHORT, *overrides, outputs=f"outputs-{next(numbers)}")
        do(stopped(run, do, *stops))
        return predicted(run), weights(run), run

    return get


def weights(run: Run) -> dict[str, str]:
    """Return stage key → checksum of its weights."""
    files = {key: run.store.facts(key)["files"] for key in run.store.all_keys()}
    return {key: sums["weights.safetensors"] for key, sums in files.items() if "weights.safetensors" in sums}


@pytest.mark.parametrize("case", CASES)
def test_a_repeated_run_is_bit_identical(case: str, outcome: Callable[..., Any]) -> None:
    first, again = outcome(*CASES[case]), outcome(*CASES[case])
    assert first[0]
    assert first[1]
    assert first[:2] == again[:2]


@pytest.mark.parametrize("graphs", [(), GRAPHS], ids=["eager", "graphs"])
@pytest.mark.parametrize("case", ["er", "ewc_online"])
def test_a_run_that_is_stopped_resumes_to_the_same_bits(
    case: str, graphs: tuple[str, ...], outcome: Callable[..., Any]
) -> None:
    whole = outcome(*CASES[case], *graphs)
    assert outcome(*CASES[case], *graphs, stops=(3, 5))[:2] == whole[:2]


@pytest.mark.parametrize("case", CAPTURED)
def test_captured_steps_train_the_same_bits_as_eager_steps(
    case: str, outcome: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = []
    capture = CapturedSteps._capture
    monkeypatch.setattr(CapturedSteps, "_capture", lambda *given: (captures.append(1), capture(*given))[1])
    graphs = outcome(*CASES[case], *GRAPHS, "trainer.gradient_accumulation=1")
    assert captures
    # Eager steps on batches with the same padding.
    monkeypatch.setattr(HopTraining, "capture", lambda *given: None)
    captures.clear()
    eager = outcome(*CASES[case], *GRAPHS, "trainer.gradient_accumulation=1")
    assert not captures
    assert graphs[:2] == eager[:2]


def test_a_gpu_computes_in_fp32_what_a_cpu_computes(tmp_path: Path) -> None:
    # All languages: the model is that of a later hop.
    shape = [*TINY[1:], "dataset=mini", "dataset.max_train=24", "dataset.max_eval=8", "model.vocab_size=400", GPU]
    found = agreement(Plan("cuda", (), {}, (), 1, 1, 1, {}, ()), shape, tmp_path)
    assert found["largest"] > 0.1
    assert max(found["logits"], found["emissions"]) < 1e-4 * found["largest"]


def losses(run: Run) -> list[float]:
    """Return the mean training loss of each epoch of each hop, in nats."""
    return [epoch["loss"] for training in trainings(run) for epoch in training["epochs"]]


def trainings(run: Run) -> list[dict[str, Any]]:
    """Return the facts of the training of each hop."""
    return [run.store.facts(stage.train)["training"] for stage in run.stages if stage.hop.index]


def test_bf16_trains_nearly_as_fp32_does(outcome: Callable[..., Any]) -> None:
    *_, exact = outcome("strategy=naive", "trainer.precision=fp32")
    *_, rounded = outcome("strategy=naive", "trainer.precision=bf16")
    assert len(losses(exact)) == 4
    assert losses(rounded) != losses(exact)
    np.testing.assert_allclose(losses(rounded), losses(exact), rtol=0.02)


def test_the_manifest_names_gpu_and_determinism(outcome: Callable[..., Any]) -> None:
    *_, run = outcome("strategy=naive", "trainer.epochs=1")
    environment = json.loads(run.directory.manifest.read_text(encoding="utf-8"))["environment"]
    assert environment["device"] == torch.cuda.get_device_name(0)
    assert environment["deterministic"] == "true"
    assert all(training["peak_bytes"] > 0 for training in trainings(run))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_texts_are_written_and_repeated(precision: str, outcome: Callable[..., Any]) -> None:
    overrides = (*TEXTS, "strategy=er", f"trainer.precision={precision}")
    first, again = outcome(*overrides), outcome(*overrides)
    assert first[:2] == again[:2]
    assert any(texts(first[2]))


def test_a_gpu_writes_the_texts_that_a_cpu_writes(outcome: Callable[..., Any]) -> None:
    *_, gpu = outcome(*TEXTS, "strategy=naive")
    *_, cpu = outcome(*TEXTS, "strategy=naive", "runtime.device=cpu")
    pairs = [*zip(texts(gpu), texts(cpu), strict=True)]
    assert sum(a == b for a, b in pairs) >= 0.9 * len(pairs)


def texts(run: Run) -> list[str]:
    """Return the texts that the untrained model writes."""
    first = sorted((run.directory.path / "predictions").iterdir())[0]
    return [str(text) for text in pq.read_table(first)["generated"].to_pylist()]


def test_more_ranks_than_gpus_are_refused_in_one_line(xclrun: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    ranks = torch.cuda.device_count() + 1
    place = f"paths.outputs={tmp_path}"
    accumulated = f"trainer.gradient_accumulation={ranks}"
    code, said = xclrun(*TINY, GPU, place, f"runtime.devices={ranks}", accumulated)
    assert code == 2
    assert said.count("\n") == 1
    assert f"runtime.devices={ranks}" in said
    assert "GPUs" in said


def test_two_ranks_on_one_gpu_are_refused_in_one_line(real_gpu: None, tmp_path: Path) -> None:
    """NCCL does not connect them; a launcher that makes one GPU visible to each rank may mean the same one."""
    settings = (*TINY, GPU, f"paths.outputs={tmp_path}", "trainer.gradient_accumulation=2")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "xclrun")
    done = subprocess.run(
        [*torchrun, *settings], capture_output=True, text=True, check=False,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]},
    )  # fmt: skip
    assert done.returncode == 1
    assert "ranks 0 and 1 use the same GPU; start one rank per GPU" in done.stdout + done.stderr
    assert "NCCL" not in done.stdout


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Give this process nearly none of the GPU's memory."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_gpu_without_memory_is_one_line_with_advice(
    little_memory: None, xclrun: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    arguments = (*TINY, GPU, "strategy=naive", "model.vocab_size=2000", "model.hidden_size=256")
    code, said = xclrun(*arguments, f"paths.outputs={tmp_path}")
    [line] = [line for line in said.splitlines() if "out of memory" in line]
    assert code == 1
    assert "try trainer.batch_size=" in line
    assert "Traceback" not in said
    # The same process can go on.
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert xclrun(*arguments, f"paths.outputs={tmp_path}")[0] == 0


def test_a_broken_gpu_is_detected(real_gpu: None) -> None:
    plan = Plan("cuda", (), {}, (), 1, 1, 1, {}, ())
    assert broken(plan) == {"assertion": True, "memory": True}


def test_workers_share_a_gpu(real_gpu: None, tmp_path: Path) -> None:
    settings = (*TINY, GPU, "seed=1,2", f"paths.outputs={tmp_path}", "hydra.launcher.n=2", "hydra.launcher.per_gpu=2")
    done = subprocess.run(
        [sys.executable, "-m", "xclrun", *settings, "-m"], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert len([*(tmp_path / "runs").glob("*/DONE")]) == 2
