"""The GPU of these tests: a real one, or with ``XCLRUN_EMULATED_GPU=FILE`` an emulation (see `emulated`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from . import emulated

EMULATION = os.environ.get("XCLRUN_EMULATED_GPU")
if EMULATION:
    # Before any test file imports xclrun's training code.
    emulated.install(Path(EMULATION))


@pytest.hookimpl(tryfirst=True)  # Before pytest selects by `-m`.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and skip them where there is no GPU."""
    marks = [pytest.mark.gpu, pytest.mark.full]
    if not torch.cuda.is_available():
        marks.append(pytest.mark.skip(reason="torch sees no GPU"))
    for item in items:
        if item.path.parent == Path(__file__).parent:
            for mark in marks:
                item.add_marker(mark)


@pytest.fixture
def real_gpu() -> None:
    """Skip the test on an emulated GPU."""
    if EMULATION:
        pytest.skip("an emulation cannot show this")
