"""Devices and precisions that can be had, and those that cannot."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from xclrun.config.schema import Config, Device, Precision, ProtocolConfig, RuntimeConfig, TrainerConfig
from xclrun.core.errors import UsageError
from xclrun.plan import Run
from xclrun.train.precision import (
    autocast,
    bf16_over_fp32,
    choose_device,
    device_facts,
    products,
    set_deterministic,
    slow_precision,
)


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("device", list(Device))
@pytest.mark.parametrize(
    "requested", [*(f"precision={precision.value}" for precision in Precision), "cuda_graphs=true"]
)
def test_device(gpu: bool, device: Device, requested: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    key, value = requested.split("=")
    trainer = replace(TrainerConfig(), **{key: Precision(value) if key == "precision" else True})
    config = Config(trainer=trainer, runtime=RuntimeConfig(device=device))
    on_gpu = gpu and device is not Device.cpu
    if device is Device.cuda and not gpu:
        with pytest.raises(UsageError, match=r"runtime\.device=cuda: torch sees no GPU"):
            choose_device(config)
    elif requested not in ("precision=fp32", "precision=bf16") and not on_gpu:
        with pytest.raises(UsageError, match=rf"^trainer\.{requested} needs a GPU"):
            choose_device(config)
        # Of few-shot transfer, also where the source alone is learnt so.
        protocol = ProtocolConfig(source_trainer=trainer)
        with pytest.raises(UsageError, match=rf"^protocol\.source_trainer\.{requested} needs a GPU"):
            choose_device(replace(config, trainer=TrainerConfig(), protocol=protocol))
        assert trainer.needs_gpu
    else:
        assert choose_device(config).type == ("cuda" if on_gpu else "cpu")


@pytest.fixture
def algorithms() -> Iterator[None]:
    """Restore PyTorch's settings, which belong to the whole process."""
    before = torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = before


@pytest.mark.usefixtures("algorithms")
@pytest.mark.parametrize("requested", [True, False])
def test_deterministic_algorithms_are_set_for_each_run_on_a_gpu(
    requested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of one process may differ; a CPU needs none, and keeps its kernels."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    config = Config(runtime=RuntimeConfig(deterministic=requested))
    for device, enabled in (("cuda", requested), ("cpu", False), ("cuda", requested)):
        set_deterministic(config, torch.device(device))
        assert torch.are_deterministic_algorithms_enabled() is enabled
    # cuBLAS reads it before the first run's products, which a later run cannot undo.
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_runs_on_a_cpu_do_not_import_pytorchs_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    monkeypatch.setattr(torch, "use_deterministic_algorithms", None)
    set_deterministic(Config(), torch.device("cpu"))


@pytest.mark.usefixtures("algorithms")
def test_a_workspace_that_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    set_deterministic(Config(), torch.device("cuda"))
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


@pytest.mark.usefixtures("algorithms")
def test_a_manifest_names_gpu_cuda_and_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    driver = tmp_path / "version"
    driver.write_text("560.35.03\n")
    set_deterministic(Config(), torch.device("cuda"))
    assert device_facts(torch.device("cuda"), driver) == {
        "device": "NVIDIA A100-SXM4-80GB", "cuda": "12.6", "driver": "560.35.03", "deterministic": "true",
    }  # fmt: skip
    assert "driver" not in device_facts(torch.device("cuda"), tmp_path / "none")
    assert device_facts(torch.device("cpu"), driver) == {"device": "cpu"}


def test_the_presets_for_a_gpu_can_be_planned_and_change_what_they_say(make_run: Callable[..., Run]) -> None:
    plain, gpu = make_run().resolved, make_run("trainer=gpu", "evaluate=gpu").resolved
    changed = {
        f"{group}.{key}": value
        for group in ("trainer", "evaluate")
        for key, value in gpu[group].items()
        if plain[group][key] != value
    }
    evaluated = {"evaluate.batch_size": 2048, "evaluate.batch_tokens": 16384}
    assert changed == {"trainer.precision": "bf16", "trainer.cuda_graphs": True, **evaluated}
    packed = make_run("trainer=gpu", "trainer.cuda_graphs=false", "trainer.packing=true")
    assert packed.config.trainer.packing
    with pytest.raises(UsageError, match=r"trainer\.cuda_graphs=true needs a GPU"):
        choose_device(make_run("trainer=gpu").config)


def test_tf32_lasts_for_its_block() -> None:
    """The setting is of the whole process, which does other runs later."""
    for before in ("highest", "high"):
        torch.set_float32_matmul_precision(before)
        for precision, within in (("tf32", "high"), ("fp32", "highest"), ("bf16", "highest")):
            with products(precision), autocast(torch.device("cpu"), precision):
                assert torch.get_float32_matmul_precision() == within
            assert torch.get_float32_matmul_precision() == before
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(("precision", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast(precision: str, expected: torch.dtype) -> None:
    with autocast(torch.device("cpu"), precision):
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype is expected


def test_a_precision_that_the_cpu_emulates_is_told() -> None:
    """A study in bf16 took thirty times as long on another machine, and nothing said why."""
    cpu, bf16 = torch.device("cpu"), TrainerConfig(precision=Precision.bf16)
    warning = slow_precision(Config(trainer=bf16), cpu, lambda: 30.0)
    assert warning is not None
    assert warning.startswith("trainer.precision=bf16: ")
    assert "30 times" in warning
    source = Config(trainer=TrainerConfig(), protocol=ProtocolConfig(source_trainer=bf16))
    assert (slow_precision(source, cpu, lambda: 30.0) or "").startswith("protocol.source_trainer.precision=bf16")
    assert slow_precision(Config(trainer=bf16), cpu, lambda: 1.2) is None
    for config, device in ((Config(trainer=TrainerConfig()), cpu), (Config(trainer=bf16), torch.device("cuda"))):
        assert slow_precision(config, device, lambda: 30.0) is None
    assert bf16_over_fp32() > 0
