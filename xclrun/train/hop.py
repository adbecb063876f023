"""What the training of a hop, and its evaluation points, use of the workbench."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from xclrun.config.schema import TrainerConfig
from xclrun.core.graph import Plan
from xclrun.data.batches import Encoded
from xclrun.strategy import Context, Strategy
from xclrun.train.evaluate import Evaluator
from xclrun.train.progress import Listener
from xclrun.train.ranks import Ranks
from xclrun.train.stop import StopFlag


@dataclass(frozen=True)
class HopWork:
    """A hop to train: its model and sentences, and what it is trained and evaluated with.

    Attributes:
        context: context of the training, with the model; `begin_hop` of the strategy must have been called.
        dev: the nonempty dev splits that select the best epoch.
        points: (language, split) → sentences that are evaluated at points inside the hop.
        earlier: languages of the earlier hops.
        weights: returns the weights to store after the hop.
    """

    context: Context
    strategy: Strategy[Any]
    trainer: TrainerConfig
    plan: Plan
    dev: Mapping[str, Encoded]
    points: Mapping[tuple[str, str], Encoded]
    earlier: Sequence[str]
    weights: Callable[[], Mapping[str, Tensor]]
    evaluator: Evaluator
    listener: Listener
    stop: StopFlag
    ranks: Ranks
