"""Checkpoints: the newest whole one is read; at every moment there is one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from xclrun.train import checkpoint
from xclrun.train.checkpoint import Checkpoints, Unchanged

FACTS: dict[str, Any] = {"step": 12, "best_score": None, "loss_sum": 0.1 + 0.2, "epochs": [{"dev": {"en": 1e-17}}]}


def tensors(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"model/a": torch.full((2, 3), value), "optimizer/0.step": torch.tensor(value), "best/a": torch.randn(4).t()}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "ab" / "key.checkpoints")


def test_none_at_first(checkpoints: Checkpoints) -> None:
    assert checkpoints.load() is None
    checkpoints.clear()


def test_what_is_saved_is_read(checkpoints: Checkpoints) -> None:
    saved = tensors()
    checkpoints.save(FACTS, saved)
    result = checkpoints.load()
    assert result is not None
    assert result[0] == FACTS
    assert result[1].keys() == saved.keys()
    assert all(torch.equal(result[1][name], saved[name]) for name in saved)
    checkpoints.clear()
    assert checkpoints.load() is None
    assert not checkpoints.folder.exists()


def test_one_is_kept(checkpoints: Checkpoints) -> None:
    for step in (9, 10, 100):
        checkpoints.save({**FACTS, "step": step}, tensors(step))
        assert len(list(checkpoints.folder.iterdir())) == 1
    result = checkpoints.load()
    assert result is not None
    assert (result[0]["step"], result[1]["optimizer/0.step"].item()) == (100, 100)


def test_the_newest_by_step_is_read(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a crash before the older ones were removed."""
    for step in (9, 1000, 10):
        other = Checkpoints(checkpoints.folder.with_name(f"only-{step}"))
        other.save({**FACTS, "step": step}, tensors(step))
        checkpoints.folder.mkdir(parents=True, exist_ok=True)
        for path in other.folder.iterdir():
            path.rename(checkpoints.folder / path.name)
    result = checkpoints.load()
    assert result is not None
    assert result[0]["step"] == 1000


# Of the last byte, which belongs to a tensor, only the checksum can tell.
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "truncated": lambda content: content[:-10],
    "emptied": lambda content: b"",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_one_is_said_and_the_one_before_is_read(how: str, checkpoints: Checkpoints) -> None:
    checkpoints.save(FACTS, tensors())
    [older] = checkpoints.folder.iterdir()
    content = older.read_bytes()
    checkpoints.save({**FACTS, "step": 13}, tensors(2.0))
    [newer] = checkpoints.folder.iterdir()
    older.write_bytes(content)
    newer.write_bytes(DAMAGE[how](newer.read_bytes()))
    message: list[str] = []
    result = Checkpoints(checkpoints.folder, message.append).load()
    assert result is not None
    assert (result[0], result[1]["model/a"].unique().tolist()) == (FACTS, [1.0])
    assert len(message) == 1
    assert str(newer) in message[0]


def test_a_save_that_fails_leaves_the_one_before(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.save(FACTS, tensors())

    def fails(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("xclrun.store.files.os.replace", fails)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save({**FACTS, "step": 13}, tensors())
    result = checkpoints.load()
    assert result is not None
    assert result[0]["step"] == 12
    assert len(list(checkpoints.folder.iterdir())) == 1


PEAK = """
import resource, sys, torch
from pathlib import Path
from xclrun.store.tensors import save_tensors
from xclrun.train.checkpoint import Checkpoints

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

checkpoints = Checkpoints(Path({folder!r}) / "checkpoints")
checkpoints.save({{"step": 0}}, {{"model/a": torch.ones(1)}})
tensors = {{f"model/{{i}}": torch.ones(2_000_000) for i in range(16)}}
size, before = sum(t.nbytes for t in tensors.values()), peak()
checkpoints.save({{"step": 1}}, tensors)
save_tensors(Path({folder!r}) / "weights.safetensors", tensors)
print((peak() - before) / size)
"""


@pytest.mark.full
def test_saving_takes_no_memory_for_a_second_copy(tmp_path: Path, run_python: Callable[[str], str]) -> None:
    """Of 128 MB; it was more than once the size for weights, and twice for checkpoints."""
    assert float(run_python(PEAK.format(folder=str(tmp_path)))) < 0.3


def test_another_format_is_not_read(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.save(FACTS, tensors())
    monkeypatch.setattr(checkpoint, "FORMAT", "another")
    assert checkpoints.load() is None


def test_a_tensor_is_unchanged_while_it_is_the_same_and_nothing_was_written_into_it() -> None:
    kept, replaced, written = (torch.ones(2) for _ in range(3))
    with torch.inference_mode():
        uncounted = torch.ones(2)
    now = {"kept": kept, "replaced": replaced, "written": written, "uncounted": uncounted}
    began = Unchanged(now)
    assert began.among(now) == ["kept", "replaced", "written"]
    written.add_(1)
    assert began.among({**now, "replaced": replaced.clone(), "new": torch.ones(2)}) == ["kept"]
    assert began.named(["kept"]) == {"kept": kept}
    assert began.named(["kept", "new"]) is None
