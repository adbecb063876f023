"""`xclrun plan --budget`: GPU time, disk and wall time, against sums done by hand."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from xclrun.cli import main
from xclrun.launch.forecast import budget, makespan
from xclrun.run import Run


def test_makespan() -> None:
    """Two machines: 3 on the first; 1, then 1, then 2 on the second."""
    assert makespan([3, 1, 1, 2], 2) == 4
    assert makespan([3, 1, 1, 2], 1) == 7
    assert makespan([3, 1, 1, 2], 9) == 3
    assert makespan([], 2) == 0


def test_unknown_before_anything_ran(make_run: Callable[..., Run]) -> None:
    found = budget([make_run()], 4)
    assert (found.runs, found.trainings, found.seconds, found.wall, found.bytes) == (1, 3, None, None, None)
    assert "do one run of this model first" in found.render()


def test_by_hand(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    done = do(make_run("seed=9"))
    trainings = [stage["training"] for stage in done.directory.read_manifest()["stages"][1:]]
    rate = sorted(t["seconds"] / t["examples"] for t in trainings)[1]
    en, de, es = (2 * rate * size for size in (22, 18, 13))
    # naive and er share English; their other hops are their own.
    runs = [make_run(), make_run("strategy=er"), done]
    found = budget(runs, 2)
    assert (found.runs, found.trainings) == (2, 5)
    assert found.seconds == pytest.approx(en + 2 * (de + es))
    assert found.wall == pytest.approx(en + de + es)
    assert budget(runs, 1).wall == pytest.approx(found.seconds)
    weights = (done.store.path(done.stages[1].train) / "weights.safetensors").stat().st_size
    assert found.bytes == 5 * weights
    assert budget([done], 2).to_json() == {
        "runs": 0, "trainings": 0, "width": 2, "seconds": 0.0, "wall": 0.0, "bytes": 0,
    }  # fmt: skip


def test_command(tmp_path: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    given = ["plan", "--budget", "--json", "strategy=naive,er", "--outputs", str(tmp_path)]
    assert main([*given, "--width", "3"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["trainings"], told["width"], told["wall"]) == (2, 11, 3, None)
    assert main([*given, "--width", "0"]) == 2
    assert capsys.readouterr().err == "xclrun: --width 0: must be a number of jobs of at least 1\n"
