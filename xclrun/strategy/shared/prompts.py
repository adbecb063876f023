"""Strategies that train prompts and heads, in a frozen encoder (`xclrun.model.prompts`).

The encoder is in eval mode, because the papers' vision transformers have no dropout. Deviation of all strategies:
prompts are prepended to the output of the embedding layer (in families other than BERT and RoBERTa, to the subword
embeddings). Heads read the states of [CLS] and of the words, not those of the prompt.

Cost: a forward and backward pass over prompt and text. Pools need one more forward pass without gradients, in training
and in evaluation, for the query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from xclrun.config.schema import StrategyConfig
from xclrun.core.stream import Stream
from xclrun.strategy.base import Context, Library, bounded
from xclrun.strategy.shared.added import AddsParameters

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch
    from xclrun.model.network import Model
    from xclrun.model.prompts import Prompts


def add_prompts(model: Model, prompts: Prompts) -> None:
    """Give a model prompts, and freeze its encoder."""
    model.prompts, model.still = prompts, True
    for parameter in model.encoder.parameters():
        parameter.requires_grad_(False)


@dataclass
class PoolSettings(StrategyConfig):
    pool: int = bounded(at_least=1)
    length: int = bounded(at_least=1)
    penalty: float = bounded(at_least=0)


Settings = TypeVar("Settings", bound=PoolSettings)


class PromptPools(AddsParameters[Settings]):
    """Base of the strategies with a pool of prompts that all languages share."""

    signature = AddsParameters.signature

    def pool(self, embeddings: Any, hidden: int, hops: int) -> Prompts:
        """Return new prompts for an encoder with these embeddings and hidden size, and a stream of ``hops``."""
        raise NotImplementedError

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        encoder: Any = model.encoder
        pool = self.pool(encoder.get_input_embeddings(), encoder.config.hidden_size, len(stream.hops) - 1)
        add_prompts(model, pool)

    def loss(self, batch: Batch, context: Context) -> Tensor:
        loss, prompts = super().loss(batch, context), context.model.prompts
        assert prompts is not None
        return loss + self.settings.penalty * prompts.penalty(context.hop.index)

    def skip(self, batch: Batch, context: Context) -> None:
        """Do nothing: `loss` does not count micro-batches."""
