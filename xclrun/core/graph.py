"""What is known about a hop before it runs, as far as a strategy determines it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Plan:
    """All that a strategy determines about a hop before it runs.

    ``train``, ``state``, ``serve`` and ``points`` contain everything about the strategy that can change a stored
    result: usually its name, version and settings (`Strategy.described`). Runs with equal contents share the result.
    Omit the name or a setting only if all strategies that differ in it compute the result identically, and add a test
    that the results are bit-identical.

    Attributes:
        train: what can change the training; empty if the hop is trained as in `naive`.
        state: what can change the strategy's state after the hop; None without a state.
        serve: what can change the evaluation after the hop, in addition to the trained weights. Not empty if
            `for_language` changes the model, `predict` is overridden, or `prepare` adds parameters.
        points: what can change evaluations inside the hop; None: the same as ``serve``. Empty if the model's own
            `predict` is used.
        reads: hops whose weights `for_language` may read in the evaluation.
        states: earlier hops whose states `for_language` may read in the evaluation. They must be among ``reads``, and
            ``serve`` must contain the complete ``state`` of each of these hops.
        trains_with: hops whose weights the training may read.
        features: whether `predict` reads `Library.features`.
        still: whether training leaves the encoder unchanged and in eval mode. The encoder's features are then computed
            once per sentence, to train the heads.
        limit: maximum number of training sentences if `choose` selects a subset, otherwise None.
        rereads: earlier hops whose training data the training reads without a memory.
    """

    train: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] | None = None
    serve: Mapping[str, Any] = field(default_factory=dict)
    points: Mapping[str, Any] | None = None
    reads: Sequence[int] = ()
    states: Sequence[int] = ()
    trains_with: Sequence[int] = ()
    features: bool = False
    still: bool = False
    limit: int | None = None
    rereads: Sequence[int] = ()

    @property
    def at_points(self) -> Mapping[str, Any]:
        """What can change evaluations inside the hop."""
        return self.serve if self.points is None else self.points
