"""Count the operators in a training step, and the operators that wait for the device, without a GPU.

Each operator that computes or copies is at least one kernel launch on a GPU; views are free. An operator that returns a
value to the host, or a tensor whose size depends on values, waits for all earlier work of the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.steps import EVERY_K, Enough, a_hop
from xclrun.train.progress import Listener, Progress

# Operators that wait for the device. Indexing also waits, but only if an index is a mask.
WAITING = (
    "_local_scalar_dense",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "equal",
    "unique_dim",
    "_unique2",
    "bincount",
)
# Strategy → number of operators in a plain step and in a step with replay, on `SMALL`, before the CRF likelihood used
# matrix products (commit 69cd1d1).
BEFORE = {
    "naive": (666, 798),
    "er": (666, 3192),
    "ewc_online": (668, 800),
    "kd_logit": (666, 1665),
    "agem": (1556, 1853),
}
# As `BEFORE`, for twelve layers instead of two. The operators of a layer have not changed since that commit.
BEFORE_IN_TWELVE_LAYERS = {
    "naive": (1486, 1618),
    "er": (1486, 6472),
    "ewc_online": (1488, 1620),
    "kd_logit": (1486, 5425),
    "agem": (3996, 4293),
}
# Upper limits of a step's operators divided by `BEFORE`. Distillation of the memory computes no CRF likelihood, so the
# steps of kd_logit with replay save fewer operators.
LIMIT, LIMIT_WITH_DISTILLATION = 0.6, 0.85
SMALL = ("dataset=mini", "dataset.max_train=110", "dataset.max_eval=4", "trainer.batch_size=16")
# Methods that wait for the device without calling an operator.
READING = ("tolist", "numpy", "cpu", "__array__")
# Methods that copy a tensor to another device, and wait if the host's memory is not pinned. The methods are counted,
# because without a GPU a copy calls no operator. `xclrun.data.transfer.to_device` copies a batch without these methods.
MOVING = ("to", "cuda")


class _Readings(TorchFunctionMode):
    """Context manager that counts calls of the methods in `READING` and `MOVING`."""

    def __init__(self, counting: Operators) -> None:
        super().__init__()
        self.counting = counting

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in READING:
            self.counting.waited[name] += 1
        elif name in MOVING and _names_device(args[1:], kwargs or {}):
            self.counting.moved[name] += 1
        return function(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Context manager that counts operators.

    Attributes:
        launched: operator → number of calls, without views.
        waited: operator → number of calls that wait for the device.
        moved: method of `MOVING` → number of calls. On a single device it is unknown which calls would copy and wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launched: Counter[str] = Counter()
        self.waited: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()
        self._readings = _Readings(self)

    def __enter__(self) -> Operators:
        self._readings.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._readings.__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if not is_view(function):
            self.launched[name] += 1
        if name in WAITING or (name.startswith("index") and _has_mask(args)):
            self.waited[name] += 1
        return function(*args, **(kwargs or {}))


def _names_device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the arguments of ``Tensor.to`` include a device, not only a dtype."""
    return kwargs.get("device") is not None or any(
        isinstance(x, str | torch.device | torch.Tensor) or (isinstance(x, int) and not isinstance(x, bool))
        for x in args[:1]
    )


def is_view(function: Any) -> bool:
    returned = [r.alias_info for r in function._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def _has_mask(args: Sequence[Any]) -> bool:
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


class _Steps(Listener):
    """Records the operators of each main step, including the strategy's operators."""

    def __init__(self, counting: Operators, steps: int) -> None:
        self.counting, self.steps = counting, steps
        self.found: list[tuple[int, Counter[str]]] = []
        self.most_used: list[Counter[str]] = []

    def stepped(self, progress: Progress) -> None:
        self.found.append((self.counting.launched.total(), self.counting.waited + self.counting.moved))
        self.most_used.append(self.counting.launched)
        if progress.step == self.steps:
            raise Enough
        self._begin()

    def epoch_ended(self, progress: Progress, facts: dict[str, Any]) -> None:
        self._begin()

    def _begin(self) -> None:
        self.counting.launched, self.counting.waited, self.counting.moved = Counter(), Counter(), Counter()


def of_steps(strategy: str, overrides: Sequence[str], outputs: Path, looks: int = 1000) -> dict[str, Any]:
    """Return the operators of a ``plain`` step and of a step with replay (``due``), and the operators that ``waited``.

    Args:
        overrides: dataset and model.
        looks: number of updates between two checks of the loss; with the default, the loss is never checked.
    """
    loop, _ = a_hop(strategy, overrides, outputs)
    loop.look_every = looks
    counting = Operators()
    steps = loop.listener = _Steps(counting, 2 * EVERY_K)
    try:
        with counting:
            loop.run()
    except Enough:
        # Skip the first steps, which also create the optimiser's state.
        plain, due = steps.found[EVERY_K], steps.found[2 * EVERY_K - 1]
        waited = sum((first for _, first in steps.found[1:]), Counter[str]())
        return {"plain": plain[0], "due": due[0], "waited": dict(waited), "most": steps.most_used[EVERY_K]}
    raise RuntimeError("the training has too few steps; use more data")


def operators_over_before(
    strategy: str, outputs: Path, model: Sequence[str] = (), before: Mapping[str, tuple[int, int]] = BEFORE
) -> dict[str, Any]:
    """Return the number of operators of a step divided by its number in ``before``.

    ``plain`` is the ratio of a plain step, ``due`` of a step with replay, and ``ratio`` the larger of the two.

    Args:
        model: overrides of the model for which ``before`` was counted.
    """
    result, (plain, due) = of_steps(strategy, [*SMALL, *model], outputs), before[strategy]
    ratios = {"plain": result["plain"] / plain, "due": result["due"] / due}
    return {"ratio": max(ratios.values()), **ratios, "waited": result["waited"]}
