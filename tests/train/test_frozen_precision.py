"""``model.frozen_precision=bf16``: frozen matrices take half the memory, keep their bytes, and compute the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.strategy.real import graph
from xclrun.core.errors import UsageError
from xclrun.plan import Run
from xclrun.train.checkpoint import Checkpoints
from xclrun.train.loop import HopTraining

from .conftest import copied, predicted

Make = Callable[..., Run]

BF16 = ("trainer.precision=bf16", "model.frozen_precision=bf16")
SHORT = ("order=[en,de]", "trainer.epochs=1", "model.hidden_layers=2")


def frozen_matrices(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name.startswith("encoder.") and tensor.dim() > 1 and not {"language", "loras"} & {*name.split(".")}
    }


@pytest.mark.parametrize("strategy", ["lang_spec_lora_f", "lang_spec_ada_f", "seq_lora"])
def test_frozen_matrices_keep_their_bytes_and_compute_as_rounded_ones_do(
    strategy: str, make_run: Make, tmp_path: Path
) -> None:
    pytest.importorskip("adapters", reason="needs xclrun[adapters]")
    result = []
    for stored in (True, False):
        given = BF16 if stored else BF16[:1]
        bench = graph(make_run(f"strategy={strategy}", *SHORT, *given)).bench
        hop, before = bench.run.stream.hops[1], frozen_matrices(copied(bench.model))
        assert {tensor.dtype for tensor in before.values()} == {torch.bfloat16 if stored else torch.float32}
        if not stored:
            # The same values, in fp32.
            with torch.no_grad():
                for name, tensor in frozen_matrices(bench.model.state_dict()).items():
                    tensor.copy_(before[name].bfloat16())
            before = frozen_matrices(copied(bench.model))
        bench.strategy.begin_hop(bench.context(hop))
        HopTraining(bench.work(bench.context(hop)), Checkpoints(tmp_path / str(stored))).run()
        after = copied(bench.model)
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
        result.append({name: tensor for name, tensor in after.items() if name not in before})
    in_bf16, in_fp32 = result
    assert {tensor.dtype for tensor in in_bf16.values()} == {torch.float32}
    assert in_bf16.keys() == in_fp32.keys()
    assert all(torch.equal(in_bf16[name], tensor) for name, tensor in in_fp32.items())


def test_a_run_resumes_from_the_store_to_the_same_predictions(make_run: Make, do: Callable[..., Run]) -> None:
    pytest.importorskip("adapters", reason="needs xclrun[adapters]")
    given = ("strategy=lang_spec_lora_f", *SHORT)
    run = make_run(*given, *BF16)
    assert run.id != make_run(*given, BF16[0]).id
    assert make_run(*given, "model.frozen_precision=fp32").id == make_run(*given).id
    expected = predicted(do(run))
    (run.directory.path / "DONE").unlink()
    evaluated = run.store.path(run.stages[2].evaluation)
    for file in evaluated.iterdir():
        file.unlink()
    evaluated.rmdir()
    assert predicted(do(make_run(*given, *BF16))) == expected


def test_what_it_needs_is_said(make_run: Make) -> None:
    with pytest.raises(UsageError, match=r"^model\.frozen_precision=bf16 strategy=naive: the encoder is not frozen"):
        make_run(*BF16)
    with pytest.raises(UsageError, match=r"trainer\.precision=fp32: needs trainer\.precision=bf16$"):
        make_run(BF16[1])
