"""The trained module: an encoder with the head of each task (`xclrun.model.heads`).

If a head reads [CLS] through BERT's pooler (`Task.pooled`), the pooler is part of the head. It starts with pretrained
values, or with fresh values if the encoder has no pooler. Other tasks do not use it.

Shapes: B sentences, L subwords, W words, H hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import Parameter, signature
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.core.identity import derive
from xclrun.core.task import INTENT_SLOTS, Task
from xclrun.data.batches import Batch
from xclrun.data.encode import Frame
from xclrun.data.packing import Packing
from xclrun.data.transfer import to_device
from xclrun.model.encoder import empty_encoder, fresh_encoder, keep_rows, pretrained_encoder, pretrained_shape
from xclrun.model.families import family
from xclrun.model.folder import BERTS
from xclrun.model.heads import Features, Head, Output, Pooler, Prediction, make_head
from xclrun.model.prompts import Prompts
from xclrun.model.shape import HeadSizes
from xclrun.model.source import check_layers, locate, subject_of
from xclrun.model.writing import before_targets, below_output, has_decoder

Result = TypeVar("Result")


class Model(nn.Module):
    """An encoder with the head of one task, whose layers are attributes of the model, or with the heads of several.

    Attributes:
        vocabulary: rows of the encoder's word embeddings before trimming; None: unknown.
        still: whether the encoder stays in eval mode while heads are trained.
        packs: whether sentences are packed in training mode (`xclrun.data.packing`); in eval mode, batches are padded.
        last: whether the last subword represents a sentence, instead of the first.
        typed: whether the encoder reads token types.
        decodes: whether the encoder is followed by a decoder, which reads the targets of texts.
        prompts: prompts of texts (`xclrun.model.prompts`), or None.
        tasks: name (`Task.place`) → head, if there are several tasks; empty otherwise.
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
        settings: Any = None,
    ) -> None:
        super().__init__()
        self.vocabulary, self.still, self.packs = vocabulary, False, False
        self.prompts: Prompts | None = None
        hidden: int = encoder.config.hidden_size  # type: ignore[union-attr,assignment]
        single = HeadSizes(task, classes, tags, settings)
        every = several or (single,)
        # Heads that write take the output layer of a whole language model.
        writes = any(sizes.task.writes for sizes in every)
        self.encoder = below_output(encoder) if writes else encoder
        self.decodes = writes and has_decoder(encoder)
        # States are then those of targets, so no subword of the prompt represents it.
        self.last, self.typed = last and not self.decodes, _reads_types(self.encoder)
        pooled = any(sizes.task.pooled for sizes in every)
        pooler = _taken_pooler(self.encoder) if pooled else None
        # The only head, in a tuple, so that it is no submodule: its layers are submodules, under their own names.
        self._only: tuple[Head, ...] = () if several else (make_head(hidden, single, dropout, pooler, encoder),)
        for head in self._only:
            for name, layer in head.named_children():
                self.add_module(name, layer)
        # Each pooled task trains a separate copy of the pooler.
        self.tasks = nn.ModuleDict(
            {sizes.task.place: make_head(hidden, sizes, dropout, copy.deepcopy(pooler), encoder) for sizes in several}
        )

    def head_of(self, task: str) -> Head:
        """Return the head of a task (`Batch.task`)."""
        head = self._only[0] if self._only else self.tasks[task]
        assert isinstance(head, Head)
        return head

    @property
    def heads(self) -> dict[str, Head]:
        """Task (`Batch.task`) → head; the only head has an empty name."""
        return {name: self.head_of(name) for name in self.tasks or ("",)}

    def train(self, mode: bool = True) -> Model:
        """Set training or eval mode; a still encoder stays in eval mode."""
        for head in self._only:
            head.training = mode
        if not self.still:
            return super().train(mode)
        # Do not visit the encoder's hundreds of modules, because a training step of the heads takes only milliseconds.
        self.training = mode
        for name, part in self.named_children():
            if name != "encoder":
                part.train(mode)
            elif part.training:
                part.eval()
        return self

    def forward(self, batch: Batch) -> Output:
        """Encode a batch and apply the head of its task."""
        output: Output = self.head_of(batch.task)(self.encode(batch))
        return output

    def encode(self, batch: Batch) -> Features:
        """Return the features of a batch; run the encoder unless the batch contains them."""
        if batch.cls is not None:
            return Features(batch.cls, batch.word_states)
        if self.packs and self.training:
            return self._encode_packed(batch)
        hidden, at = self._states(batch, self._prompts(batch)), batch.word_pieces
        cls = self._cls(batch, hidden)
        head = self.head_of(batch.task)
        if not head.reads_words:
            return Features(cls, None)
        if self.last and head.sentence_first:
            at = torch.cat([_end(batch), at[:, 1:]], dim=1)
        return Features(cls, hidden.gather(1, at.unsqueeze(2).expand(-1, -1, hidden.shape[2])))

    def _cls(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Select the states that represent sentences, (B, H), from all states (B, L, H)."""
        if not self.last:
            return hidden[:, 0]
        return hidden.gather(1, _end(batch).unsqueeze(2).expand(-1, -1, hidden.shape[2])).squeeze(1)

    def _prompts(self, batch: Batch) -> Tensor | None:
        """Return the prompts of the texts of a batch, (B, P, E), or None."""
        if self.prompts is None:
            return None
        if not self.prompts.reads_queries:
            return self.prompts(batch.size)
        with torch.no_grad():
            queries = self._cls(batch, self._states(batch)).float()
        return self.prompts(queries)

    def _states(self, batch: Batch, prompts: Tensor | None = None) -> Tensor:
        """Return the encoder's last states of the subwords, (B, L, H); the decoder's, (B, W, H), if the model decodes.

        BERT's own forward pass synchronizes with the device to test whether the batch has padding, and computes a
        pooler output that is not used. This method therefore calls BERT's parts directly, with the same mask.

        Prompts precede the embeddings of the subwords. In BERT they have no positions or types, but pass the layer
        normalization of the embedding layer, so their scale is that of the subwords.
        """
        encoder: Any = self.encoder
        types = {"token_type_ids": batch.token_type_ids} if self.typed else {}
        mask, length = batch.attention_mask, 0
        if prompts is not None:
            length = prompts.shape[1]
            mask = functional.pad(mask, (length, 0), value=1)
        # Prompts take the same path in every batch: BERT's own forward pass would give them positions.
        if not takes_masks(encoder) or (batch.lengths is None and prompts is None):
            inputs = {"input_ids": batch.input_ids}
            if self.decodes:
                inputs["decoder_input_ids"] = before_targets(batch, encoder.config)
            if prompts is not None:
                words = encoder.get_input_embeddings()(batch.input_ids)
                inputs = {"inputs_embeds": torch.cat([prompts.to(words.dtype), words], dim=1)}
                types = {name: functional.pad(ids, (length, 0)) for name, ids in types.items()}
            output = encoder(**inputs, attention_mask=mask, **types)
        else:
            with _parts_callable(encoder, batch.input_ids):
                embedded = encoder.embeddings(input_ids=batch.input_ids, **types)
                if prompts is not None:
                    normalized = encoder.embeddings.LayerNorm(prompts)
                    embedded = torch.cat([normalized.to(embedded.dtype), embedded], dim=1)
                output = encoder.encoder(embedded, attention_mask=None if batch.whole else _additive(mask, embedded))
        states: Tensor = output.last_hidden_state
        return states[:, length:] if length else states

    def _encode_packed(self, batch: Batch) -> Features:
        """Return the features of packed sentences, equal to those of a padded batch up to rounding and dropout."""
        encoder: Any = self.encoder
        if batch.packing is not None and batch.first is not None:
            rows, first = batch.packing, batch.first
        else:
            assert batch.lengths is not None
            shape = encoder.config
            inner = getattr(shape, "intermediate_size", None) or 4 * shape.hidden_size
            linear = 2 * shape.hidden_size + inner
            packing = Packing.of(batch.lengths, batch.input_ids.shape[1], linear)
            arrays = {"rows": torch.from_numpy(packing.rows), "first": torch.from_numpy(packing.first)}
            moved = to_device(arrays, batch.input_ids.device)
            rows, first = moved["rows"], moved["first"]
        source, positions, sentences = rows
        # Let padding attend to padding, because softmax needs a finite score in each row.
        blocks = sentences.unsqueeze(2) == sentences.unsqueeze(1)
        if self.last:
            hidden = _causal_states(encoder, batch.input_ids.take(source), positions, blocks).flatten(0, 1)
            return self._selected(batch, hidden, first, first + _end(batch).squeeze(1))
        # In RoBERTa's family, positions start after the padding's row.
        padding: int | None = encoder.embeddings.position_embeddings.padding_idx
        positions = positions if padding is None else positions + (padding + 1)
        inputs = {
            "input_ids": batch.input_ids.take(source),
            "token_type_ids": batch.token_type_ids.take(source),
            "position_ids": positions,
        }
        if takes_masks(encoder):
            with _parts_callable(encoder, batch.input_ids):
                embedded = encoder.embeddings(**inputs)
                output = encoder.encoder(embedded, attention_mask=_additive(blocks, embedded))
        else:
            output = encoder(**inputs, attention_mask=blocks.to(torch.float32))
        return self._selected(batch, output.last_hidden_state.flatten(0, 1), first, first)

    def _selected(self, batch: Batch, hidden: Tensor, first: Tensor, at: Tensor) -> Features:
        """Return features of packed sentences from all states (R · C, H); ``at``: places of whole sentences, (B,)."""
        cls = hidden.index_select(0, at)
        if not self.head_of(batch.task).reads_words:
            return Features(cls, None)
        return Features(cls, functional.embedding(first.unsqueeze(1) + batch.word_pieces, hidden))

    def log_likelihood(self, batch: Batch, output: Output | None = None) -> Tensor:
        """Return ln p(gold) of each sentence under the head of its task, (B,), in nats."""
        return self.head_of(batch.task).log_likelihood(batch, self(batch) if output is None else output)

    def units(self, batch: Batch) -> float:
        """Return the number of units that the loss of a batch averages over (`Head.units`)."""
        return float(self.head_of(batch.task).units(batch).sum())

    def loss(self, batch: Batch, output: Output | None = None) -> Tensor:
        """Return the loss of a batch: −Σ log-likelihood / Σ units; without units −Σ log-likelihood, which is then 0."""
        # The negative divisor saves an operator forward and one backward.
        return self.log_likelihood(batch, output).sum() / -(self.units(batch) or 1.0)

    @torch.no_grad()
    def predict(self, batch: Batch) -> Prediction:
        """Return the predictions of the head of a batch's task (`Head.predict`)."""
        return self.head_of(batch.task).predict(batch, self(batch))


def _causal_states(encoder: Any, ids: Tensor, positions: Tensor, blocks: Tensor) -> Tensor:
    """Return the states (R, C, H) of packed texts in a causal encoder; ``blocks``, (R, C, C): equal texts.

    The mask is explicit: with positions alone, transformers separates texts only without a cache and without a mask.
    """
    if encoder.config._attn_implementation != "sdpa":
        raise UsageError("trainer.packing=true: needs the attention implementation sdpa; use packing=false")
    causal = torch.ones(blocks.shape[1:], dtype=torch.bool, device=blocks.device).tril()
    mask = (blocks & causal).unsqueeze(1)
    states: Tensor = encoder(
        input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False
    ).last_hidden_state
    return states


def _end(batch: Batch) -> Tensor:
    """Return the position of the last subword of each text, (B, 1)."""
    return batch.attention_mask.sum(dim=1, keepdim=True) - 1


def takes_masks(encoder: Any) -> bool:
    """Whether the layers of an encoder accept an additive mask: in BERT's families, with SDPA and without prefixes."""
    config = encoder.config
    return (
        getattr(config, "model_type", None) in BERTS
        and not _has_prefixes(encoder)
        and getattr(config, "_attn_implementation", None) == "sdpa"
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
        and not config.is_decoder
    )


def has_adapters(encoder: nn.Module) -> bool:
    """Return whether the library ``adapters`` has changed the modules of an encoder."""
    return hasattr(encoder, "adapters_config")


def _has_prefixes(encoder: Any) -> bool:
    if not has_adapters(encoder):
        return False
    known = encoder.adapters_config
    return any(known.get(name).get("architecture") == "prefix_tuning" for name in known.adapters)


def _parts_callable(encoder: nn.Module, input_ids: Tensor) -> AbstractContextManager[object]:
    """Return a context in which the parts of an encoder may be called one by one, also with adapters."""
    if not has_adapters(encoder):
        return nullcontext()
    from adapters import ForwardContext

    return ForwardContext(encoder, input_ids=input_ids)


def _additive(mask: Tensor, embedded: Tensor) -> Tensor:
    """Return an additive attention mask, 0 or the lowest float32: (B, L) → (B, 1, 1, L), (B, L, L) → (B, 1, L, L).

    The mask has the dtype of the attention, and rows padded in memory to multiples of 8; otherwise every layer would
    convert the mask.
    """
    length, device = mask.shape[1], mask.device.type
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else embedded.dtype
    wide = functional.pad(mask, (0, -length % 8)) if length % 8 else mask
    lowest = torch.finfo(torch.float32).min
    added = torch.where(wide.bool(), 0.0, lowest).to(kind)[..., :length]
    return added[:, None, None] if mask.dim() == 2 else added[:, None]


def _reads_types(encoder: nn.Module) -> bool:
    """Return whether an encoder has embeddings of token types. XLM and GPT-2 would read types as subwords."""
    argument = signature(encoder.forward).parameters.get("token_type_ids")
    kinds = getattr(encoder.config, "type_vocab_size", None)
    return argument is not None and (argument.default is Parameter.empty if kinds is None else kinds > 0)


def _taken_pooler(encoder: Any) -> nn.Module:
    """Remove and return the pooler of an encoder. If the encoder has no pooler like BERT's, return a new pooler."""
    pooler: nn.Module | None = getattr(encoder, "pooler", None)
    if not isinstance(getattr(pooler, "dense", None), nn.Linear):
        return Pooler(encoder.config.hidden_size, getattr(encoder.config, "initializer_range", 0.02))
    encoder.pooler = None
    assert pooler is not None
    return pooler


def store_frozen_in_bf16(encoder: nn.Module) -> None:
    """Convert the frozen matrices of an encoder to bf16, in place.

    Results of linear layers do not change, because autocast to bf16 rounds their weights anyway. Embeddings are
    rounded, but their layers still return fp32.
    """
    for module in encoder.modules():
        frozen = [p for p in module.parameters(recurse=False) if p.dim() > 1 and not p.requires_grad]
        for parameter in frozen:
            parameter.data = parameter.data.bfloat16()
        if frozen and isinstance(module, nn.Embedding):
            module.register_forward_hook(_in_fp32)


def _in_fp32(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output.float()


def skeleton(
    config: ModelConfig,
    classes: int,
    tags: int,
    vocabulary: int | None = None,
    task: Task = INTENT_SLOTS,
    several: Sequence[HeadSizes] = (),
) -> Model:
    """Return the model on torch's meta device, for counting parameters.

    Args:
        vocabulary: number of word embeddings if the vocabulary is trimmed or learned; None: as in the encoder's config.
        several: see `build`.
    """
    if config.path is not None:
        shape = pretrained_shape(config, locate(config))
        shape.vocab_size = vocabulary or shape.vocab_size
        if isinstance(shape.pad_token_id, int):
            # Reduce the padding's id, which can exceed a trimmed vocabulary.
            shape.pad_token_id = min(shape.pad_token_id, shape.vocab_size - 1)
    check_layers(config)
    writes = any(sizes.task.writes for sizes in several) if several else task.writes
    with torch.device("meta"):
        if config.path is not None:
            encoder = empty_encoder(shape, writes)
        else:
            encoder = fresh_encoder(config, vocabulary or config.vocab_size or 0, 0, writes)
        return Model(encoder, classes, tags, config.dropout, task=task, several=several)


def build(
    config: ModelConfig,
    tokenizer: Any,
    classes: int,
    tags: int,
    seed: int,
    rows: np.ndarray | None = None,
    task: Task = INTENT_SLOTS,
    several: Sequence[HeadSizes] = (),
    settings: Any = None,
) -> Model:
    """Return the untrained model (hop 0): a pretrained or fresh encoder, and fresh heads.

    Args:
        classes: number of classes; ignored if the task has no labels.
        tags: number of tags; 0 for a dataset without tags.
        seed: the run's seed. The global random state does not change.
        rows: rows of the word embeddings to keep (see `keep_rows`); None: all.
        several: the heads of a model with several tasks; classes, tags, task and settings are then ignored.
        settings: the settings of the task (`HeadSizes.settings`).
    """
    writes = any(sizes.task.writes for sizes in several) if several else task.writes
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "encoder"))
        if config.from_scratch:
            encoder: Any = fresh_encoder(config, len(tokenizer), tokenizer.pad_token_id, writes)
        else:
            encoder = pretrained_encoder(config, with_words=rows is None, writes=writes)
        vocabulary = encoder.get_input_embeddings().num_embeddings
        if rows is not None:
            keep_rows(encoder, rows)
        torch.default_generator.manual_seed(derive(seed, "heads"))
        last = _reads_last(encoder, config, tokenizer)
        return Model(encoder, classes, tags, config.dropout, vocabulary, task, several, last, settings)


def redrawn_heads(model: Model, seed: int) -> dict[str, Tensor]:
    """Return name → fresh values for the parameters of the heads, except poolers; the model does not change."""
    drawn: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for place, module in model.named_modules():
            parts = place.split(".")
            if parts[0] == "encoder" or "pooler" in parts or not [*module.parameters(recurse=False)]:
                continue
            fresh = copy.deepcopy(module).cpu()
            fresh.reset_parameters()
            drawn |= {f"{place}.{name}": value for name, value in fresh.state_dict().items()}
    return drawn


def _reads_last(encoder: Any, config: ModelConfig, tokenizer: Any) -> bool:
    """Whether the last subword represents a sentence.

    This holds for causal encoders, and for encoder-decoders whose tokenizer adds a special token only at the end.
    """
    kind = family(encoder.config.to_dict(), subject_of(config))
    if not kind.with_decoder:
        return kind.causal
    runs = Frame.of(tokenizer, paired=False).runs
    return runs[0][0] is not None and runs[-1][0] is None


class _Call(nn.Module):
    """Wrap a function of a model as a module, for `functional_call`."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[Model], Any]) -> Any:
        return function(self.model)


def with_weights(model: Model, weights: Mapping[str, Tensor], function: Callable[[Model], Result]) -> Result:
    """Return ``function(model)`` with ``weights`` in place of the parameters with these names.

    Gradients reach ``weights`` and the other parameters. Nothing is copied, and the model's weights do not change.
    """
    named = {f"model.{name}": tensor for name, tensor in weights.items()}
    result: Result = functional_call(_Call(model), named, (function,), tie_weights=False)
    return result
