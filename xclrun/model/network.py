"""The module that is trained: an encoder, and the heads of the task (`xclrun.core.task`).

What lies behind the encoder's last states is a head. So BERT's pooler is a part of the class head where the task reads
the class through it (`Task.pooled`), with the encoder's pretrained values where it has some, and a fresh one where it
has none; elsewhere it stays in the encoder, unused.

Shapes: B sentences, L word pieces, W words, H hidden size, C classes, T tags.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from xclrun.config.schema import ModelConfig
from xclrun.core.identity import derive
from xclrun.core.task import INTENT_SLOTS, Task
from xclrun.data.batches import Batch
from xclrun.data.encode import Frame
from xclrun.data.packing import Packing
from xclrun.data.transfer import sent
from xclrun.model.encoder import empty_encoder, fresh_encoder, keep_rows, pretrained_encoder, pretrained_shape, shape_of
from xclrun.model.families import family
from xclrun.model.folder import BERTS
from xclrun.model.heads import ClassHead, Pooler, SpanHead, WordHead, tag_head
from xclrun.model.shape import HeadSizes
from xclrun.model.source import check_layers, from_scratch, given_as, locate


@dataclass
class Features:
    """What heads get from the encoder.

    Attributes:
        cls: (B, H) its state at [CLS]; of encoders that read from left to right, at the last piece.
        words: (B, W, H) its state at each word's labelled piece, or None where no head reads words.
    """

    cls: Tensor
    words: Tensor | None


@dataclass
class Output:
    """What one forward pass gives.

    Attributes:
        cls: (B, H) the encoder's state at [CLS].
        logits: (B, C) float32, or None where the task has no labels.
        emissions: (B, W, T) float32, of tags, or (B, W, 2) of where an answer starts and ends; or None without both.
    """

    cls: Tensor
    logits: Tensor | None
    emissions: Tensor | None


@dataclass
class Prediction:
    """Predictions of one batch, on the model's device: reading them there would wait for it at every tensor.

    Attributes:
        label: (B,) predicted class ids, or None where the task has no labels.
        log2_label: (B,) log2 p(gold class); NaN where training never had the gold class; or None.
        tags: (B, W) predicted tag ids, or None.
        log2_tags: (B,) log2 p(gold tags) of the words that the model sees; NaN where training never had one of them;
            or None.
        answers: (B, W, 2) float32 emissions of start and end, of which `xclrun.train.answers` makes answers; or None.
    """

    label: Tensor | None = None
    log2_label: Tensor | None = None
    tags: Tensor | None = None
    log2_tags: Tensor | None = None
    answers: Tensor | None = None


class Heads(nn.Module):
    """The heads of one task.

    Attributes:
        intent: class head on [CLS] itself, or None.
        pooler, classifier: class head that reads [CLS] through BERT's pooler, or None both.
        tagger: tag head, or None.
        span: head of answers, or None.
    """

    def __init__(self, hidden: int, sizes: HeadSizes, dropout: float, pooler: nn.Module | None) -> None:
        super().__init__()
        self._make(hidden, sizes, dropout, pooler)

    def _make(self, hidden: int, sizes: HeadSizes, dropout: float, pooler: nn.Module | None) -> None:
        task = sizes.task
        self.dropout = nn.Dropout(dropout)
        self.intent = nn.Linear(hidden, sizes.classes) if task.label is not None and not task.pooled else None
        self.pooler = pooler if task.pooled else None
        self.classifier = ClassHead(hidden, sizes.classes) if task.pooled else None
        self.tagger: WordHead | None = tag_head(task)(hidden, sizes.tags) if sizes.tags else None
        self.span = SpanHead(hidden) if task.answers else None

    @property
    def reads_words(self) -> bool:
        """Whether a head reads words."""
        return self.tagger is not None or self.span is not None

    def answer(self, features: Features) -> Output:
        """Apply the heads in fp32, whatever the encoder's precision."""
        logits = emissions = None
        with torch.autocast(features.cls.device.type, enabled=False):
            cls = features.cls.float()
            if self.intent is not None:
                logits = self.intent(self.dropout(cls))
            elif self.pooler is not None and self.classifier is not None:
                # BERT's pooler takes the first of the positions that it is given.
                logits = self.classifier(self.dropout(self.pooler(cls.unsqueeze(1))))
            head = self.tagger if self.span is None else self.span
            if head is not None and features.words is not None:
                emissions = head(self.dropout(features.words.float()))
        return Output(features.cls, logits, emissions)

    def loss_of(self, batch: Batch, output: Output) -> Tensor:
        """Return class cross-entropy + negative log-likelihood of tags or answer, means over the sentences, in nats."""
        losses = []
        if output.logits is not None:
            losses.append(functional.cross_entropy(output.logits, batch.labels))
        if self.tagger is not None and output.emissions is not None:
            losses.append(-self.tagger.log_likelihood(output.emissions, batch.tags, batch.word_mask).mean())
        if self.span is not None and output.emissions is not None and batch.gold is not None:
            losses.append(-self.span.log_likelihood(output.emissions, batch.gold, batch.word_mask).mean())
        return losses[0] + losses[1] if len(losses) == 2 else losses[0]

    def prediction_of(self, batch: Batch, output: Output) -> Prediction:
        """Return predictions and the log-probabilities of the gold labels; gold ids of −1 are allowed here."""
        label = log2_label = tags = log2_tags = answers = None
        if output.logits is not None:
            label = output.logits.argmax(dim=1)
            log_label = output.logits.log_softmax(dim=1).gather(1, batch.labels.clamp(min=0).unsqueeze(1)).squeeze(1)
            log2_label = (log_label / math.log(2)).masked_fill(batch.labels < 0, math.nan)
        if self.tagger is not None and output.emissions is not None:
            tags = self.tagger.decode(output.emissions, batch.word_mask)
            likelihood = self.tagger.log_likelihood(output.emissions, batch.tags.clamp(min=0), batch.word_mask)
            unknown = ((batch.tags < 0) & batch.word_mask).any(dim=1)
            log2_tags = (likelihood / math.log(2)).masked_fill(unknown, math.nan)
        if self.span is not None and output.emissions is not None:
            answers = output.emissions
        return Prediction(label, log2_label, tags, log2_tags, answers)


class Model(Heads):
    """An encoder with the heads of a task, or with those of several: then a batch says whose it is for.

    A model of one task is its own heads, under the names that parameters had before there were several.

    Attributes:
        vocabulary: rows of the encoder's word embeddings before they were trimmed, where that is known.
        still: whether the encoder stays in eval mode while heads are trained.
        packs: whether the encoder gets sentences end to end in training mode (`xclrun.data.packing`). In eval mode
            batches are padded, as for a model that was trained in another way.
        last: whether a sentence's state is that of its last piece, and not of its first.
        typed: whether the encoder is told the types of pieces.
        tasks: name (`Task.head`) → the heads of a task, where there are several; empty otherwise.
    """

    def __init__(
        self,
        encoder: nn.Module,
        classes: int,
        tags: int,
        dropout: float,
        vocabulary: int | None = None,
        task: Task = INTENT_SLOTS,
        several: Sequence[HeadSizes] = (),
        last: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        self.vocabulary, self.still, self.packs = vocabulary, False, False
        self.last, self.typed = last, _reads_types(encoder)
        hidden: int = encoder.config.hidden_size  # type: ignore[union-attr,assignment]
        self.encoder = encoder
        own = HeadSizes(task, classes, tags)
        pooled = any(sizes.task.pooled for sizes in several or (own,))
        pooler = _taken_pooler(encoder) if pooled else None
        if several:
            self.dropout = nn.Dropout(dropout)
            self.intent = self.pooler = self.classifier = self.tagger = self.span = None
        else:
            self._make(hidden, own, dropout, pooler)
        # Each task that reads through the pooler trains one of its own.
        self.tasks = nn.ModuleDict(
            {sizes.task.head: Heads(hidden, sizes, dropout, copy.deepcopy(pooler)) for sizes in several}
        )

    def heads_of(self, task: str) -> Heads:
        """Return the heads that answer the batches of a task (`Batch.task`)."""
        heads = self.tasks[task] if self.tasks else self
        assert isinstance(heads, Heads)
        return heads

    def train(self, mode: bool = True) -> Model:
        """Put the model into training or eval mode; of a still encoder, the heads alone into training mode."""
        if not self.still:
            return super().train(mode)
        # Skip the encoder's hundreds of modules: steps that train heads take milliseconds.
        self.training = mode
        for name, part in self.named_children():
            if name != "encoder":
                part.train(mode)
            elif part.training:
                part.eval()
        return self

    def forward(self, batch: Batch) -> Output:
        """Encode a batch and apply the heads of its task."""
        return self.heads_of(batch.task).answer(self.encode(batch))

    def encode(self, batch: Batch) -> Features:
        """Return what the heads get of a batch: what it brings, or what the encoder makes of it."""
        if batch.cls is not None:
            return Features(batch.cls, batch.word_states)
        if self.packs and self.training:
            return self._encode_packed(batch)
        hidden = self._states(batch)
        at, cls = batch.word_pieces, hidden[:, 0]
        if self.last:
            end = batch.attention_mask.sum(dim=1, keepdim=True) - 1
            cls = hidden.gather(1, end.unsqueeze(2).expand(-1, -1, hidden.shape[2])).squeeze(1)
            # The first word of a window stands for [CLS] (`xclrun.data.batches.Windows`).
            at = at if batch.gold is None else torch.cat([end, at[:, 1:]], dim=1)
        if not self.heads_of(batch.task).reads_words:
            return Features(cls, None)
        return Features(cls, hidden.gather(1, at.unsqueeze(2).expand(-1, -1, hidden.shape[2])))

    def _states(self, batch: Batch) -> Tensor:
        """Return the encoder's last states, (B, L, H).

        BERT's own forward pass asks the device whether there is padding, and applies a pooler whose output nothing
        reads. Here its parts get the mask that it would have made, of what the host knows of the padding.
        """
        encoder: Any = self.encoder
        types = {"token_type_ids": batch.token_type_ids} if self.typed else {}
        if batch.lengths is None or not takes_masks(encoder):
            found = encoder(input_ids=batch.input_ids, attention_mask=batch.attention_mask, **types)
        else:
            embedded = encoder.embeddings(input_ids=batch.input_ids, **types)
            mask = None if batch.whole else _additive(batch.attention_mask, embedded)
            found = encoder.encoder(embedded, attention_mask=mask)
        states: Tensor = found.last_hidden_state
        return states

    def _encode_packed(self, batch: Batch) -> Features:
        """Return what `encode` does, of sentences that go through the encoder end to end.

        Equal but for rounding, and for dropout: what it drops of a sentence depends on where the sentence stands.
        """
        assert batch.lengths is not None
        shape: Any = self.encoder.config
        packing = Packing.of(batch.lengths, batch.input_ids.shape[1], 2 * shape.hidden_size + shape.intermediate_size)
        device = batch.input_ids.device
        numbers = [packing.source, packing.positions + _first_position(self.encoder), packing.sentences]
        there = sent({"rows": torch.from_numpy(np.stack(numbers)), "first": torch.from_numpy(packing.first)}, device)
        source, positions, sentences = there["rows"]
        first = there["first"]
        # Where no sentence stands, attention looks at the other such places: each needs something to look at.
        blocks = sentences.unsqueeze(2) == sentences.unsqueeze(1)
        given = {
            "input_ids": batch.input_ids.take(source),
            "token_type_ids": batch.token_type_ids.take(source),
            "position_ids": positions,
        }
        encoder: Any = self.encoder
        if takes_masks(encoder):
            embedded = encoder.embeddings(**given)
            found = encoder.encoder(embedded, attention_mask=_additive(blocks, embedded))
        else:
            found = encoder(**given, attention_mask=blocks.to(torch.float32))
        hidden = found.last_hidden_state.flatten(0, 1)
        cls = hidden.index_select(0, first)
        if not self.heads_of(batch.task).reads_words:
            return Features(cls, None)
        return Features(cls, functional.embedding(first.unsqueeze(1) + batch.word_pieces, hidden))

    def loss(self, batch: Batch, output: Output | None = None) -> Tensor:
        """Return the loss of a batch's task (`Heads.loss_of`)."""
        return self.heads_of(batch.task).loss_of(batch, self(batch) if output is None else output)

    @torch.no_grad()
    def predict(self, batch: Batch) -> Prediction:
        """Return the predictions of a batch's task (`Heads.prediction_of`)."""
        return self.heads_of(batch.task).prediction_of(batch, self(batch))


def takes_masks(encoder: Any) -> bool:
    """Whether an encoder is of BERT's or RoBERTa's family, and its attention is torch's, to which a mask is added.

    Not with adapters in it: what they need (prefixes, shared weights) comes with a call of the whole encoder.
    """
    config = encoder.config
    return (
        getattr(config, "model_type", None) in BERTS
        and not hasattr(encoder, "adapters_config")
        and getattr(config, "_attn_implementation", None) == "sdpa"
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
        and not config.is_decoder
    )


def _additive(mask: Tensor, embedded: Tensor) -> Tensor:
    """Return a mask as what is added to attention, 0 or next to −∞.

    Of one (B, L), which is 1 on pieces, (B, 1, 1, L); of one (B, L, L), true where a piece looks at another,
    (B, 1, L, L).

    In the type that attention computes in (that of ``embedded``, unless there is autocast), and in rows whose lengths
    in memory are multiples of 8, as GPUs read them: it would else be made anew in every layer.
    """
    length, device = mask.shape[1], mask.device.type
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else embedded.dtype
    wide = functional.pad(mask, (0, -length % 8)) if length % 8 else mask
    nothing = torch.finfo(torch.float32).min
    added = torch.where(wide.bool(), 0.0, nothing).to(kind)[..., :length]
    return added[:, None, None] if mask.dim() == 2 else added[:, None]


def _reads_types(encoder: nn.Module) -> bool:
    """Whether an encoder reads types of pieces: it takes them, and has a table of them.

    Some take them without a table of their own, and would look them up among the pieces (XLM, GPT-2).
    """
    argument = signature(encoder.forward).parameters.get("token_type_ids")
    kinds = getattr(encoder.config, "type_vocab_size", None)
    return argument is not None and (argument.default is Parameter.empty if kinds is None else kinds > 0)


def _taken_pooler(encoder: Any) -> nn.Module:
    """Take the pooler out of an encoder, which works without one; where it has none of BERT's kind, make one."""
    pooler: nn.Module | None = getattr(encoder, "pooler", None)
    if not isinstance(getattr(pooler, "dense", None), nn.Linear):
        return Pooler(encoder.config.hidden_size, getattr(encoder.config, "initializer_range", 0.02))
    encoder.pooler = None
    assert pooler is not None
    return pooler


def _first_position(encoder: Any) -> int:
    """Return the row of a first piece's position: RoBERTa's family counts positions from behind the padding's."""
    padding: int | None = encoder.embeddings.position_embeddings.padding_idx
    return 0 if padding is None else padding + 1


def skeleton(
    config: ModelConfig,
    classes: int,
    tags: int,
    vocabulary: int | None = None,
    task: Task = INTENT_SLOTS,
    several: Sequence[HeadSizes] = (),
) -> Model:
    """Return the model without any numbers in it, on torch's meta device: for counting, in seconds and without weights.

    The shape is that of the local folder where ``path`` is given, else the config's own.

    Args:
        vocabulary: rows of the word embeddings, where they are trimmed or learnt from the data; default: the shape's.
        several: as of `build`.

    Raises:
        UsageError: the shape is not known.
    """
    if config.path is not None:
        shape = pretrained_shape(config, locate(config))
        shape.vocab_size = vocabulary or shape.vocab_size
        if isinstance(shape.pad_token_id, int):
            # Where the vocabulary is trimmed, the padding's row has come down.
            shape.pad_token_id = min(shape.pad_token_id, shape.vocab_size - 1)
    else:
        check_layers(config)
        shape = shape_of(config, vocabulary or config.vocab_size or 0, 0)
    with torch.device("meta"):
        return Model(empty_encoder(shape), classes, tags, config.dropout, task=task, several=several)


def build(
    config: ModelConfig,
    tokenizer: Any,
    classes: int,
    tags: int,
    seed: int,
    kept: np.ndarray | None = None,
    task: Task = INTENT_SLOTS,
    several: Sequence[HeadSizes] = (),
) -> Model:
    """Return the untrained model (hop 0): the encoder as pretrained or freshly initialised, and fresh heads.

    Args:
        tokenizer: the encoder's tokenizer.
        classes: number of classes; not used where the task has no labels.
        tags: number of tags; 0 for a dataset without tags.
        seed: the run's seed: equal seeds give equal weights, and the global random state is left as it was.
        kept: rows of the word embeddings to keep (see `keep_rows`), or None for all. The other weights are the same.
        task: decides on the heads.
        several: the heads of a model of several tasks; then classes, tags and task say nothing.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "encoder"))
        if from_scratch(config):
            encoder: Any = fresh_encoder(config, len(tokenizer), tokenizer.pad_token_id)
        else:
            encoder = pretrained_encoder(config, with_words=kept is None)
        rows = encoder.get_input_embeddings().num_embeddings
        if kept is not None:
            keep_rows(encoder, kept)
        torch.default_generator.manual_seed(derive(seed, "heads"))
        return Model(encoder, classes, tags, config.dropout, rows, task, several, _ends(encoder, config, tokenizer))


def redrawn_heads(model: Model, seed: int) -> dict[str, Tensor]:
    """Return name → values of the model's heads drawn anew, as `build` draws them; the model stays as it is.

    Not of poolers, which belong to the pretrained encoder or are drawn with it.

    Args:
        seed: equal seeds give equal values, and the global random state is left as it was.
    """
    found: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for place, module in model.named_modules():
            parts = place.split(".")
            if parts[0] == "encoder" or "pooler" in parts or not [*module.parameters(recurse=False)]:
                continue
            fresh = copy.deepcopy(module).cpu()
            fresh.reset_parameters()
            found |= {f"{place}.{name}": value for name, value in fresh.state_dict().items()}
    return found


def _ends(encoder: Any, config: ModelConfig, tokenizer: Any) -> bool:
    """Whether a sentence's state is that of its last piece: of what reads from left to right, and of the encoders of T5
    and the like, whose tokenizers put a special piece there alone.
    """
    kind = family(encoder.config.to_dict(), given_as(config))
    if not kind.with_decoder:
        return kind.causal
    runs = Frame.of(tokenizer, paired=False).runs
    return runs[0][0] is not None and runs[-1][0] is None
