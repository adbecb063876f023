"""The head of language models: their own output layer, which scores texts and writes them.

The encoder is the part of a language model of `transformers` below its output layer; in T5's family, this part has an
encoder and a decoder. If the output layer's weights are those of the word embeddings (tied), the head has no
parameters. Only the states that predict a subword of a target are scored (`xclrun.data.texts`), so the logits of
prompts are never computed.

Texts are written greedily, by `generate` of transformers with a cache of keys and values; prompts of causal models are
padded on the left. A folder's generation_config.json is never read, so no sampling, penalty or length limit leaks from
it.

`Documents` is the same head for the task ``language_modelling``, which scores documents and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from xclrun.config.schema import LossPer, TextConfig
from xclrun.core.errors import UsageError
from xclrun.core.plugins import packaged
from xclrun.data.batches import Batch, Encoded
from xclrun.data.example import Example, Targets
from xclrun.data.texts import CUT_TARGET, shortened, written
from xclrun.model.heads import NOT_FINITE, Features, Head, Limits, Output, Prediction, objects, register
from xclrun.model.shape import HeadSizes


def has_decoder(language_model: Any) -> bool:
    """Return whether a language model is an encoder-decoder."""
    return bool(language_model.config.is_encoder_decoder)


def _scaled(config: Any) -> bool:
    """Return whether an encoder-decoder multiplies its last states by 1/√H, as T5 does if the output layer is tied.

    In transformers 5, configs say that it is tied even if it is not; T5's has a separate setting, and mT5 never scales.
    """
    if config.model_type == "mt5" and int(version("transformers").partition(".")[0]) >= 5:
        return False
    return bool(getattr(config, "scale_decoder_outputs", config.tie_word_embeddings))


def before_targets(batch: Batch, config: Any) -> Tensor:
    """Return what a decoder reads to predict the targets of a batch, (B, W): its start, and all but their last subword.

    Padding follows the target, so causal attention keeps it away.
    """
    return functional.pad(batch.tags[:, :-1], (1, 0), value=config.decoder_start_token_id)


def below_output(language_model: Any) -> nn.Module:
    """Return the encoder of a language model: all but its output layer."""
    if has_decoder(language_model):
        from transformers import AutoModel

        with torch.device("meta"):
            below: nn.Module = AutoModel.from_config(language_model.config, trust_remote_code=False)
        for name in dict(below.named_children()):
            setattr(below, name, getattr(language_model, name))
        return below
    base = language_model.base_model
    # Gemma 3's prefix names the part of a model for images and texts, so its base model is the whole.
    encoder: nn.Module = language_model.get_decoder() if base is language_model else base
    return encoder


@register("writer")
class Writer(Head):
    """The output layer of a language model.

    Attributes:
        output: the output layer; absent if its weights are the word embeddings.
        own: whether there is an ``output``.
    """

    reads_words = reads_encoder = True
    about = {"output": "the language model's output layer: logits of the next subword"}

    def build(self, hidden: int, sizes: HeadSizes) -> None:
        settings: TextConfig = sizes.settings or TextConfig()
        self.settings = settings

    def join_encoder(self, encoder: nn.Module) -> None:
        from transformers import GenerationConfig

        model: Any = encoder
        # In a tuple, so that it is no submodule: it shares all parameters with the encoder and this head.
        self._whole: tuple[Any, ...] = (model.eval(),)
        model.generation_config = GenerationConfig()
        output = model.get_output_embeddings()
        self.own = output.weight is not model.get_input_embeddings().weight
        if self.own:
            self.output = output

    @property
    def language_model(self) -> Any:
        """The model of `transformers` with this head, which shares its parameters."""
        return self._whole[0]

    def answer(self, features: Features) -> Output:
        return Output(features.cls, states=features.words)

    @property
    def layer(self) -> dict[str, Tensor]:
        """Weight (V, H) of the output layer, and its bias (V,) if it has one."""
        # Not `get_output_embeddings`: weights can be replaced in this head and in the encoder (`with_weights`).
        layer = self.output if self.own else self.language_model.get_input_embeddings()
        bias = getattr(layer, "bias", None)
        return {"weight": layer.weight} if bias is None else {"weight": layer.weight, "bias": bias}

    def score_states(self, states: Tensor, layer: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the logits (N, V) of the subwords that follow states (N, H); ``layer``: another output layer."""
        config = self.language_model.config
        states = states * config.d_model**-0.5 if has_decoder(self.language_model) and _scaled(config) else states
        logits = functional.linear(states, **(layer or self.layer)).float()
        cap = getattr(config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def log_likelihood(self, batch: Batch, output: Output) -> Tensor:
        """Return ln p(target) of each row, (B,): the sum over its subwords; 0 without a target."""
        assert output.states is not None
        logits, target = self.score_states(batch.word_rows(output.states)), batch.word_rows(batch.tags)
        each = -functional.cross_entropy(logits, target, reduction="none")
        return batch.padded(each.unsqueeze(1)).sum(dim=(1, 2))

    def units(self, batch: Batch) -> np.ndarray:
        assert batch.words is not None
        return super().units(batch) if self.settings.loss_per is LossPer.example else batch.words

    def predict(self, batch: Batch, output: Output) -> Prediction:
        return {"log2": self.log_likelihood(batch, output) / math.log(2)}

    def noted(self, batch: Batch, predicted: Prediction, encoded: Encoded) -> dict[str, np.ndarray]:
        log2 = predicted["log2"].numpy()
        scored = np.where(np.isfinite(log2), log2, NOT_FINITE)
        return {"log2": np.where(batch.words == 0, np.nan, scored)}

    @torch.no_grad()
    def write_texts(self, encoded: Encoded, rows: np.ndarray, limits: Limits) -> dict[str, np.ndarray]:
        from transformers import GenerationConfig

        prompts, tokenizer, model = encoded.prompts, encoded.tokenizer, self.language_model
        assert prompts is not None
        stops = self.stops(encoded, limits)
        values, offsets = prompts.pieces.values, prompts.pieces.offsets
        given = [
            shortened(values[offsets[row] : offsets[row + 1]].tolist(), limits.prompt, prompts.start) for row in rows
        ]
        width, decodes = max(map(len, given)), has_decoder(model)
        # A causal model continues the prompt, a decoder its own start.
        before = 1 if decodes else width
        ids, mask = (torch.full((len(given), width), fill) for fill in (encoded.pad, 0))
        for i, row in enumerate(given):
            at = slice(0, len(row)) if decodes else slice(width - len(row), width)
            ids[i, at], mask[i, at] = torch.tensor(row), 1
        device = model.get_input_embeddings().weight.device
        greedy = GenerationConfig(
            max_new_tokens=limits.new,
            do_sample=False,
            # The cache of transformers 4.57 has a layer for each of the encoder, not of the decoder.
            use_cache=not decodes or model.config.num_decoder_layers == model.config.num_layers,
            eos_token_id=stops,
            pad_token_id=encoded.pad,
            decoder_start_token_id=model.config.decoder_start_token_id if decodes else None,
        )
        made = model.generate(ids.to(device), attention_mask=mask.to(device), generation_config=greedy)
        texts, ended = [], []
        for row in made[:, before:].tolist():
            end = next((i for i, piece in enumerate(row) if piece in stops), None)
            ended.append(end is not None)
            texts.append(tokenizer.decode(row[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False))
        return {"generated": objects(texts), "ended": np.array(ended)}

    def stops(self, encoded: Encoded, limits: Limits) -> list[int]:
        """Return the ids that end a text: those of the encoding, of config.json, and of ``generation.stop``."""
        assert encoded.prompts is not None
        stops, own = set(encoded.prompts.stops), self.language_model.config.eos_token_id
        stops |= set(own) if isinstance(own, list) else {own} - {None}
        for name in limits.stop:
            pieces = encoded.tokenizer(name, add_special_tokens=False)["input_ids"]
            if len(pieces) != 1:
                raise UsageError(f"generation.stop={name}: must be one subword of the tokenizer, not {len(pieces)}")
            stops.add(pieces[0])
        return sorted(stops)

    def describe_end(self, whole: Any, splits: Iterable[Encoded]) -> None:
        """Set in an exported language model how it generates: greedily, to the ends that it has learned."""
        from transformers import GenerationConfig

        encoded = list(splits)
        stops = sorted({stop for part in encoded for stop in self.stops(part, Limits(1, 1))})
        whole.generation_config = GenerationConfig(
            do_sample=False,
            eos_token_id=stops,
            pad_token_id=encoded[0].pad,
            decoder_start_token_id=whole.config.decoder_start_token_id if has_decoder(whole) else None,
        )

    def columns(
        self, values: Mapping[str, np.ndarray], examples: Sequence[Example], target: Targets, encoded: Encoded
    ) -> dict[str, list[Any]]:
        n, log2 = len(examples), values["log2"]
        # Of a training example whose target lost its end, the probability is not that of the reference.
        log2 = np.where(np.asarray(encoded.marks)[: len(log2)] & CUT_TARGET, np.nan, log2).tolist()
        replies = [example.target for example in examples]
        columns: dict[str, list[Any]] = {
            "log2_reference": log2[:n],
            "reference_bytes": [len(reply.references[0].encode()) for reply in replies],
            "reference_pieces": encoded.word_pieces.lengths[:n].tolist(),
            "references": [list(reply.references) for reply in replies],
        }
        if any(reply.choices for reply in replies) and len(log2) > n:
            ends = np.cumsum([len(reply.choices) for reply in replies]) + n
            columns["choices"] = [list(reply.choices) or None for reply in replies]
            columns["choice_log2"] = [
                log2[end - len(reply.choices) : end] or None for reply, end in zip(replies, ends.tolist(), strict=True)
            ]
            columns["right_choice"] = [reply.right if reply.choices else None for reply in replies]
        if "generated" in values:
            shown = [self.settings.prompt.replace("{input}", example.whole) for example in examples]
            texts = values["generated"][:n].tolist()
            header = encoded.prompts.header if encoded.prompts is not None else ""
            columns["generated"] = [
                written(text, self.settings, prompt, header) for text, prompt in zip(texts, shown, strict=True)
            ]
            columns["ended"] = values["ended"][:n].tolist()
        return columns


# Logits that are computed at once. More would need gigabytes: every subword of a document is predicted.
LOGITS = 1 << 26


@register("documents")
class Documents(Writer):
    """The output layer of a causal language model, for documents in one row or several (`xclrun.data.documents`)."""

    def log_likelihood(self, batch: Batch, output: Output) -> Tensor:
        """Return ln p(predicted subwords) of each row, (B,)."""
        assert output.states is not None
        layer = self.layer
        states, target = batch.word_rows(output.states), batch.word_rows(batch.tags)
        size = max(1, LOGITS // len(layer["weight"]))

        def score(states: Tensor, target: Tensor) -> Tensor:
            return -functional.cross_entropy(self.score_states(states, layer), target, reduction="none")

        if len(states) <= size:
            each = score(states, target)
        else:
            # The backward pass computes the logits again, part by part.
            parts = zip(states.split(size), target.split(size), strict=True)
            each = torch.cat([checkpoint(score, *part, use_reentrant=False) for part in parts])
        return batch.padded(each.unsqueeze(1)).sum(dim=(1, 2))

    def stops(self, encoded: Encoded, limits: Limits) -> list[int]:
        return [encoded.tokenizer.eos_token_id]

    def columns(
        self, values: Mapping[str, np.ndarray], examples: Sequence[Example], target: Targets, encoded: Encoded
    ) -> dict[str, list[Any]]:
        # The windows of a document are consecutive rows with its ID.
        starts = np.flatnonzero(np.append(True, encoded.ids[1:] != encoded.ids[:-1]))
        log2, marks = values["log2"].astype(float), np.asarray(encoded.marks)
        # Of a training document that was cut, the probability is not that of the whole document.
        log2[(marks & CUT_TARGET) > 0] = np.nan
        return {
            "log2_reference": np.add.reduceat(log2, starts).tolist(),
            "reference_bytes": [len(example.whole.encode()) for example in examples],
            "reference_pieces": np.add.reduceat(encoded.word_pieces.lengths, starts).tolist(),
        }


packaged("head", ["writer", "documents"])
