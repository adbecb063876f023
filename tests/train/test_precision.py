"""Devices and precisions that can be had, and those that cannot."""

import pytest
import torch

from xclrun.config.schema import Device, Precision
from xclrun.core.errors import UsageError
from xclrun.train.precision import autocast, choose_device


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("device", list(Device))
@pytest.mark.parametrize("precision", list(Precision))
def test_device(gpu: bool, device: Device, precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    on_gpu = gpu and device is not Device.cpu
    if device is Device.cuda and not gpu:
        with pytest.raises(UsageError, match=r"runtime\.device=cuda: torch sees no GPU"):
            choose_device(device, precision)
    elif precision is Precision.fp16 and not on_gpu:
        with pytest.raises(UsageError, match=r"trainer\.precision=fp16 needs a GPU"):
            choose_device(device, precision)
    else:
        assert choose_device(device, precision).type == ("cuda" if on_gpu else "cpu")


@pytest.mark.parametrize(("precision", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast(precision: str, expected: torch.dtype) -> None:
    with autocast(torch.device("cpu"), precision):
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype is expected
