"""Sentences that go through the encoder end to end: what each head gets is what it gets of a padded batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.core.task import INTENT_SLOTS, SEQUENCE_CLASS, TOKEN_TAGS, Task
from xclrun.data.batches import Batch
from xclrun.model.network import Model
from xclrun.model.source import check_masks
from xclrun.train.precision import autocast

from .conftest import batch

SHAPE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    # Large weights: a sentence that looked at another would be seen.
    "initializer_range": 0.5,
    "vocab_size": 120,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def encoder(family: str) -> Any:
    torch.manual_seed(3)
    if family == "bert":
        return BertModel(BertConfig(**SHAPE, max_position_embeddings=20))
    # As many positions as the longest sentence needs: those of a whole row would be out of range.
    return RobertaModel(RobertaConfig(**SHAPE, max_position_embeddings=14, pad_token_id=1))


def sentences() -> Batch:
    lengths = [2, 9, 1, 7, 3, 3]
    result = batch(lengths, labels=[0, 1, 2, 0, 1, 2], tags=[[i % 3 for i in range(n)] for n in lengths])
    # RoBERTa tells padding by its piece, 1.
    return replace(result, input_ids=result.input_ids + 2, token_type_ids=result.input_ids % 2)


def made(family: str, task: Task) -> Model:
    """Return a model whose encoder computes in float64; heads compute in fp32."""
    torch.manual_seed(4)
    model = in_fp32(family, task)
    model.encoder.double()
    return model


def in_fp32(family: str, task: Task) -> Model:
    return Model(encoder(family), 3, 3 if task.tag is not None else 0, dropout=0.0, task=task)


def gradients(model: Model) -> dict[str, Tensor]:
    model.zero_grad()
    model.loss(sentences()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("rows", [slice(0, 6), slice(4, 6)], ids=["padded", "whole"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_padded_states_are_those_of_the_encoder_s_own_forward_pass(family: str, rows: slice, precision: str) -> None:
    """Bit for bit, though the mask is made of what the host knows, and the device is never asked."""
    model, some = in_fp32(family, INTENT_SLOTS), sentences().at(rows)
    if rows.start:
        longest = int(some.lengths.max())
        names = ("input_ids", "attention_mask", "token_type_ids")
        some = replace(some, **{name: getattr(some, name)[:, :longest] for name in names})
    with autocast(torch.device("cpu"), precision):
        result = model.encode(some)
        reference = model.encoder(some.input_ids, some.attention_mask, some.token_type_ids).last_hidden_state
    assert torch.equal(result.cls, reference[:, 0])
    assert result.words is not None
    assert torch.equal(
        result.words[some.word_mask], reference[torch.arange(some.size)[:, None], some.word_pieces][some.word_mask]
    )
    other = model.encoder(some.input_ids, None, some.token_type_ids).last_hidden_state[:, 0]
    assert torch.allclose(other, reference[:, 0].float(), atol=0.1) == bool(some.attention_mask.all())


@pytest.mark.parametrize("task", [INTENT_SLOTS, TOKEN_TAGS, SEQUENCE_CLASS], ids=lambda task: task.name)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_packed_and_padded_sentences_have_the_same_loss_and_gradients(family: str, task: Task) -> None:
    model = made(family, task)
    padded, of_padded = model.encode(sentences()), gradients(model)
    rows: list[int] = []
    embeddings: Any = model.encoder.embeddings
    embeddings.register_forward_pre_hook(
        lambda module, args, named: rows.append(len(named["input_ids"])), with_kwargs=True
    )
    model.packs = True
    packed, of_packed = model.encode(sentences()), gradients(model)
    assert max(rows) < sentences().size
    assert torch.allclose(packed.cls, padded.cls, atol=1e-10)
    if padded.words is not None and packed.words is not None:
        mask = sentences().word_mask
        assert torch.allclose(packed.words[mask], padded.words[mask], atol=1e-10)
    assert of_packed.keys() == of_padded.keys()
    assert all(torch.allclose(of_packed[name], of_padded[name], rtol=1e-4, atol=1e-6) for name in of_padded)


def test_losses_of_single_sentences_agree_to_a_millionth_in_fp32() -> None:
    model = in_fp32("bert", SEQUENCE_CLASS)
    alone = [model.loss(sentences().at(slice(i, i + 1))).item() for i in range(sentences().size)]
    model.packs = True
    output = model(sentences())
    together = -output.logits.log_softmax(dim=1).gather(1, sentences().labels.unsqueeze(1)).squeeze(1)
    assert together.tolist() == pytest.approx(alone, abs=1e-6)


def test_a_part_of_a_batch_is_packed_by_itself() -> None:
    model = made("bert", INTENT_SLOTS)
    some = sentences().at(slice(1, 4))
    padded = model.loss(some).item()
    model.packs = True
    assert model.loss(some).item() == pytest.approx(padded, rel=1e-6)


def test_in_eval_mode_batches_are_padded() -> None:
    model = made("bert", INTENT_SLOTS).eval()
    padded = model.encode(sentences())
    model.packs = True
    result = model.encode(sentences())
    assert torch.equal(result.cls, padded.cls)
    assert result.words is not None
    assert padded.words is not None
    assert torch.equal(result.words, padded.words)


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"model_type": "xlm-roberta"}, None),
        ({"model_type": "distilbert"}, "trainer.packing=true model.path=.*bert, roberta.*'distilbert'"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "absolute positions.*'relative_key'"),
    ],
)
def test_other_encoders_are_refused(tmp_path: Path, settings: dict[str, str], refused: str | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "model.safetensors").write_bytes(b"")
    model = ModelConfig(name="own", path=str(tmp_path))
    if refused is None:
        check_masks(model, "trainer.packing")
        return
    with pytest.raises(UsageError, match=refused):
        check_masks(model, "trainer.packing")
