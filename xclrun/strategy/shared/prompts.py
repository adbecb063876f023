"""Strategies that train prompts and heads, in a frozen encoder (`xclrun.model.prompts`).

The encoder is in eval mode, because the papers' vision transformers have no dropout. Deviation of all strategies:
prompts are prepended to the subword embeddings. In BERT's and RoBERTa's families they follow the embedding layer: they
pass its layer normalization, but have no positions. Heads read the states of [CLS] and of the words, not those of the
prompt.

Cost: a forward and backward pass over prompt and text. To compute the query, pools need one more forward pass without
gradients, in training and in evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from xclrun.config.schema import StrategyConfig
from xclrun.core.stream import Stream
from xclrun.strategy.base import Context, Library, Settings, bounded
from xclrun.strategy.shared.added import AddsParameters
from xclrun.strategy.shared.steps import Step

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch
    from xclrun.model.network import Model
    from xclrun.model.prompts import Prompts


class Prompted(AddsParameters[Settings]):
    """Base of the strategies that train prompts and heads."""

    cannot_write = "texts are written without prompts of vectors; use strategy=naive"

    def prompts(self, embeddings: Any, hidden: int) -> Prompts:
        """Return new prompts for an encoder with these embeddings and hidden size."""
        raise NotImplementedError

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        encoder: Any = model.encoder
        model.prompts, model.still = self.prompts(encoder.get_input_embeddings(), encoder.config.hidden_size), True
        for parameter in encoder.parameters():
            parameter.requires_grad_(False)
        super().prepare(model, stream, library)


@dataclass
class PoolSettings(StrategyConfig):
    """Settings of the strategies with a pool; the default values are from L2P's paper."""

    pool: int = bounded(10, at_least=1)
    length: int = bounded(5, at_least=1)
    penalty: float = bounded(0.5, at_least=0)


PoolSettingsType = TypeVar("PoolSettingsType", bound=PoolSettings)


class PromptPools(Prompted[PoolSettingsType]):
    """Base of the strategies with a pool of prompts that all languages share, and a penalty on its keys."""

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        def loss(part: Batch, rows: slice) -> Tensor:
            result, prompts = context.model.loss(part), context.model.prompts
            assert prompts is not None
            return result + self.settings.penalty * prompts.penalty(context.hop.index)

        yield Step(main, loss)
