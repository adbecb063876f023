"""The graph of a run's stored results: what each hop stores, and what each result is computed from.

Planning, training, forecasts, packs, export and averaging all walk this graph. `Plan` is the strategy's part of it;
`xclrun.core.identity.stages` builds it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from xclrun.core.stream import Hop


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


class Kind(Enum):
    """Kinds of stored results of a hop."""

    weights = "weights"
    state = "state"
    evaluation = "evaluation"
    attention = "attention"


class Result(NamedTuple):
    """A stored result of a hop, given by its index."""

    kind: Kind
    hop: int


@dataclass(frozen=True)
class Stage:
    """The stored results of one hop: their keys, and what they are computed from.

    The untrained model (weights of hop 0) is not stored, so it is nobody's need.

    Attributes:
        hop: the hop.
        train: key of the trained weights; for hop 0, of the untrained model.
        state: key of the strategy's state after the hop; None without a state.
        evaluation: key of the predictions.
        attention: key of the attention summary; None without ``evaluate.attention``.
        plan: what the strategy determines about the hop.
        parts: hops whose stored weights together are the model after this hop, ancestors first: only this hop, unless
            its training leaves the encoder unchanged and therefore stores only the heads.
        needs: kind → stored results from which the result of this kind is computed.
    """

    hop: Hop
    train: str
    state: str | None
    evaluation: str
    attention: str | None
    plan: Plan
    parts: tuple[int, ...]
    needs: Mapping[Kind, tuple[Result, ...]]

    @property
    def encoder(self) -> int:
        """Index of the hop whose encoder this hop uses."""
        return self.parts[0]

    @property
    def results(self) -> Mapping[Kind, str]:
        """Kind → key of each result."""
        keys = (self.train, self.state, self.evaluation, self.attention)
        return {kind: key for kind, key in zip(Kind, keys, strict=True) if key is not None}

    @property
    def trained(self) -> tuple[str, ...]:
        """Keys of the weights and the state; of hop 0, none, because the untrained model is not stored."""
        return tuple(key for kind, key in self.results.items() if kind in TRAINED) if self.hop.index else ()

    @property
    def measured(self) -> tuple[str, ...]:
        """Keys of the evaluation and the attention summary."""
        return tuple(key for kind, key in self.results.items() if kind in MEASURED)

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys."""
        return tuple(self.results.values())


# What a run stores for reports; weights and states are needed only to compute these results.
MEASURED = (Kind.evaluation, Kind.attention)
TRAINED = (Kind.weights, Kind.state)


def needs_of(hop: Hop, plan: Plan, earlier: Sequence[Stage], points: bool) -> Mapping[Kind, tuple[Result, ...]]:
    """Return the stored results from which the results of a hop are computed.

    Args:
        earlier: the stages of all earlier hops.
        points: whether the model is evaluated inside the hop.
    """
    parent = earlier[hop.parent] if hop.index else None
    begins = parent.parts if parent else ()
    handed = [parent.hop.index] if parent and parent.state else []
    # At evaluation points, earlier languages are evaluated with their own parameters, if the strategy has any.
    inside = [index for index in plan.reads if points and plan.at_points and index < hop.index]
    after = parts_of(hop, plan, earlier)
    served = _results((*plan.reads, *after), plan.states if plan.state is None else (*plan.states, hop.index))
    return {
        Kind.weights: _results((*begins, *plan.trains_with, *inside), handed),
        Kind.state: _results(after, handed),
        Kind.evaluation: served,
        Kind.attention: served,
    }


def parts_of(hop: Hop, plan: Plan, earlier: Sequence[Stage]) -> tuple[int, ...]:
    """Return the hops whose stored weights together are the model after a hop (`Stage.parts`)."""
    return (*earlier[hop.parent].parts, hop.index) if plan.still else (hop.index,)


def _results(weights: Iterable[int], states: Iterable[int]) -> tuple[Result, ...]:
    needed = [Result(Kind.weights, index) for index in sorted({*weights} - {0})]
    return (*needed, *(Result(Kind.state, index) for index in sorted({*states} - {0})))


def missing(stages: Sequence[Stage], wanted: Iterable[Result], stored: Container[str]) -> Mapping[Result, str]:
    """Return the results to compute for the ``wanted`` ones, and their keys; each follows the results that it needs.

    Args:
        stored: the keys in the store.
    """
    found: dict[Result, str] = {}

    def visit(result: Result) -> None:
        stage = stages[result.hop]
        key = stage.results.get(result.kind)
        if key is None or result in found or key in stored:
            return
        for need in stage.needs[result.kind]:
            visit(need)
        found[result] = key

    for result in wanted:
        visit(result)
    return found


def to_train(stages: Sequence[Stage], stored: Container[str]) -> list[int]:
    """Return the hops to train for all evaluations and attention summaries of a run, given the keys in the store."""
    wanted = (Result(kind, stage.hop.index) for stage in stages for kind in MEASURED)
    return sorted(hop for kind, hop in missing(stages, wanted, stored) if kind is Kind.weights)
