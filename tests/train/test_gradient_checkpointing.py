"""`trainer.gradient_checkpointing`: less is stored for the backward pass, and results are bit-identical."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xclrun.core.errors import UsageError
from xclrun.plan import Run
from xclrun.train.loop import HopTraining

from .conftest import predicted

Make = Callable[..., Run]

ON = "trainer.gradient_checkpointing=true"


def saved_bytes(training: HopTraining) -> int:
    """Return the bytes that the hop's first forward pass stores for its backward pass."""
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    model = training.context.model.train()
    batch = training.context.train["en"].batch(range(8))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), training._checkpointing():
        training.context.model.loss(batch)
    assert model.training
    return sum(sizes)


@pytest.mark.some_cases
@pytest.mark.parametrize("overrides", [("strategy=agem",), ("trainer.packing=true", "strategy=er")], ids=["agem", "er"])
def test_results_are_bit_identical(overrides: tuple[str, ...], make_run: Make, do: Make) -> None:
    """With dropout, which the backward pass repeats."""
    settings = (*overrides, "order=[en,de]", "trainer.epochs=1")
    run, plain = make_run(*settings, ON, outputs="checkpointed"), make_run(*settings, outputs="plain")
    assert run.id == plain.id
    assert predicted(do(run)) == predicted(do(plain))


def test_less_is_stored_for_the_backward_pass(make_run: Make, training: Any) -> None:
    deep = "model.hidden_layers=6"
    assert saved_bytes(training(make_run(deep, ON))) < saved_bytes(training(make_run(deep))) / 2


def test_an_encoder_without_it_is_refused(make_run: Make, training: Any) -> None:
    hop = training(make_run(ON))
    hop.context.model.encoder.supports_gradient_checkpointing = False
    with pytest.raises(UsageError, match=r"^trainer\.gradient_checkpointing=true: BertModel does not support "):
        hop.run()
