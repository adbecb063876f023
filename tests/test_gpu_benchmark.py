"""`benchmarks.gpu` is for a machine that few have: it is rehearsed here, and refused where there is no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import main


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "gpu.json")]) == 2
    assert capsys.readouterr().err == "benchmarks.gpu: torch sees no GPU here; --cpu rehearses on tiny shapes\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_the_rehearsal_goes_through_every_part(tmp_path: Path) -> None:
    assert main(["--cpu", "--out", str(tmp_path / "gpu.json")]) == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["machine"]["gpu"] is None
    assert found["failed"] == {}
    kinds = {name.split(",")[0] for name in found["results"]}
    others = {"workers", "agreement", "recorded", "repeated", "broken"}
    assert kinds == {"steps", "operators", "evaluation", "packing", "ends"} | others
    # What a tape repeats is the same to the bit.
    recorded = found["results"]["recorded"]
    assert recorded["weights"] == 0.0 < recorded["moved"]
    assert found["results"]["workers"].keys() == {"1", "2"}
    assert {"er", "derpp", "si", "gem"} <= {name.rpartition(", ")[2] for name in found["results"]}
    assert found["results"]["repeated"] == {"again": True, "stopped": True}
    # On the CPU itself nothing differs.
    assert found["results"]["agreement"]["logits"] == found["results"]["agreement"]["emissions"] == 0.0
    assert not found["results"]["operators, naive"]["waited"]
