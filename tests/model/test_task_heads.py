"""Heads of sequence_class and token_tags against direct computation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from xclrun.core.task import INTENT_SLOTS, SEQUENCE_CLASS, TOKEN_TAGS
from xclrun.data.batches import Batch
from xclrun.model.heads import Features
from xclrun.model.network import Model
from xclrun.strategy.shared.fisher import by_batches, one_by_one
from xclrun.strategy.shared.language_parameters import BODY
from xclrun.strategy.shared.parameters import count, sizes

from .conftest import KnownEncoder, batch

SHAPE = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12,
         "initializer_range": 0.5}  # fmt: skip


@pytest.fixture
def bert() -> BertModel:
    torch.manual_seed(3)
    return BertModel(BertConfig(**SHAPE)).eval()


def given() -> Batch:
    return batch([3, 2, 4], labels=[1, 0, 2], tags=[[0, 1, 2], [2, 2], [1, 1, 0, 2]])


def test_class_head_is_bert_s_pooler_and_a_linear_layer(bert: BertModel) -> None:
    """What BERT itself gives as pooler output, with a linear layer on it."""
    expected = bert(given().input_ids, given().attention_mask, given().token_type_ids).pooler_output.detach()
    model = Model(bert, 3, 0, dropout=0.0, task=SEQUENCE_CLASS)
    output = model(given())
    assert output.emissions is None
    assert torch.allclose(output.logits, model.classifier(expected), rtol=1e-4, atol=1e-5)
    shares = output.logits.softmax(dim=1)
    nats = -sum(shares[i, label].log().item() for i, label in enumerate([1, 0, 2])) / 3
    assert model.loss(given()).item() == pytest.approx(nats, rel=1e-4)
    result = model.predict(given())
    assert result["log2_label"].tolist() == pytest.approx(
        [math.log2(shares[i, k].item()) for i, k in enumerate([1, 0, 2])], abs=1e-4
    )
    assert result.keys() == {"label", "log2_label"}
    assert bert.pooler is None  # it is a part of the head, and counted once


def test_dropout_acts_between_pooler_and_classifier(bert: BertModel) -> None:
    """With all dropped, logits are the classifier's bias; with all kept, they are those of eval mode."""
    model = Model(bert, 3, 0, dropout=1.0, task=SEQUENCE_CLASS)
    # Else the pooler makes zeros of zeros, and dropout before it would do the same.
    torch.nn.init.ones_(model.pooler.dense.bias)
    torch.testing.assert_close(model.train()(given()).logits, model.classifier.bias.expand(3, 3))
    assert not torch.allclose(model.eval()(given()).logits, model.classifier.bias.expand(3, 3), atol=1e-3)


def test_a_still_encoder_stays_in_eval_mode(bert: BertModel) -> None:
    """Every module of it, whatever it was in before; the heads follow, until it is no longer still."""
    model = Model(bert, 3, 0, dropout=0.5, task=SEQUENCE_CLASS)

    def modes() -> tuple[bool, set[bool], set[bool]]:
        encoder = {module.training for module in model.encoder.modules()}
        heads = {m.training for n, m in model.named_modules() if n and not n.startswith("encoder")}
        return model.training, encoder, heads

    assert model.train() is model
    assert modes() == (True, {True}, {True})
    model.still = True
    for mode in (True, False, True):
        assert model.train(mode) is model
        assert modes() == (mode, {False}, {mode})
    model.still = False
    model.train()
    assert modes() == (True, {True}, {True})


def test_second_text_enters_by_its_token_type(bert: BertModel) -> None:
    model = Model(bert, 3, 0, dropout=0.0, task=SEQUENCE_CLASS).eval()
    first = given()
    other = given()
    other.token_type_ids[:, 3:] = 1
    assert not torch.allclose(model(first).logits, model(other).logits, atol=1e-4)


def test_an_encoder_without_a_pooler_gets_one_of_bert_s_kind() -> None:
    model: Any = Model(KnownEncoder(8), 3, 0, dropout=0.0, task=SEQUENCE_CLASS).eval()
    cls = model.encoder.table[given().input_ids[:, 0]]
    pooled = torch.tanh(cls @ model.pooler.dense.weight.T + model.pooler.dense.bias)
    torch.testing.assert_close(model(given()).logits, model.classifier(pooled))
    assert Model(KnownEncoder(8), 3, 0, dropout=0.0).head_of("").pooler is None


def test_tags_of_words_are_independent(encoder: KnownEncoder) -> None:
    torch.manual_seed(1)
    model = Model(encoder, 0, 3, dropout=0.0, task=TOKEN_TAGS)
    reference = given()
    output = model(reference)
    assert (output.logits, model.head_of("").class_head) == (None, None)
    nats = []
    for i, row in enumerate(reference.tags.tolist()):
        words = int(reference.word_mask[i].sum())
        scores = [
            model.tagger.linear(encoder.table[reference.input_ids[i, p]]) for p in reference.word_pieces[i, :words]
        ]
        nats.append(-sum(s.log_softmax(dim=0)[tag].item() for s, tag in zip(scores, row, strict=False)))
        assert [int(s.argmax()) for s in scores] == model.predict(reference)["tags"][i, :words].tolist()
    assert model.loss(reference).item() == pytest.approx(sum(nats) / 3, rel=1e-4)
    result = model.predict(reference)
    assert result["log2_tags"].tolist() == pytest.approx([-n / math.log(2) for n in nats], rel=1e-4)
    assert result.keys() == {"tags", "log2_tags"}
    unseen = batch([2, 1], labels=[-1, -1], tags=[[0, -1], [1]])
    assert model.predict(unseen)["log2_tags"].isnan().tolist() == [True, False]


@pytest.mark.parametrize("kind", ["intent_slots", "sequence_class", "cosine", "token_tags"])
def test_heads_compute_in_fp32_where_the_encoder_does_not(kind: str, bert: BertModel) -> None:
    """Logits and emissions are not rounded to bf16, where sentences are encoded and where kept features are read."""
    task = {"intent_slots": INTENT_SLOTS, "token_tags": TOKEN_TAGS}.get(kind, SEQUENCE_CLASS)
    model = Model(bert, 3 if task.label else 0, 3 if task.tag else 0, dropout=0.0, task=task).eval()
    if kind == "cosine":
        model.classifier.scale = 10.0
    reference = given()
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            states, result, loss = model.encode(reference), model(reference), model.loss(reference)
            retained = model(replace(reference, cls=states.cls.float(), word_states=states.words))
        # The same by hand: every head is given fp32, outside of autocast.
        words = None if states.words is None else states.words.float()
        expected = model.head_of("")(Features(states.cls.float(), words))
        assert loss == model.loss(reference, expected)
    for name in ("logits", "emissions"):
        values = [getattr(output, name) for output in (result, retained, expected)]
        if values[2] is None:
            continue
        assert torch.equal(values[0], values[2])
        assert torch.equal(values[1], values[2])
        assert not torch.equal(values[0], values[0].bfloat16().float())


@pytest.mark.parametrize(("task", "sizes_of_heads"), [(SEQUENCE_CLASS, (3, 0)), (TOKEN_TAGS, (0, 3))])
def test_fisher_information_of_the_new_heads(bert: BertModel, task: Any, sizes_of_heads: tuple[int, int]) -> None:
    """By batches and one by one are two ways to the same numbers."""
    from xclrun.data.batches import Encoded, Ragged

    model = Model(bert, *sizes_of_heads, dropout=0.0, task=task).eval()
    rows = [[2, 7, 8, 3], [2, 9, 3], [2, 7, 11, 12, 3]]
    words = [[1, 2], [1], [1, 2, 3]]
    sentences = Encoded(
        ids=torch.arange(3).numpy().astype(object),
        languages=torch.zeros(3).numpy().astype(object),
        pieces=Ragged.of(rows),
        types=Ragged.of([[0] * len(row) for row in rows]),
        word_pieces=Ragged.of(words),
        tags=Ragged.of([[k % 3 for k in row] for row in words]),
        labels=torch.tensor([0, 2, 1]).numpy(),
        words=torch.tensor([2, 1, 3]).numpy(),
        cut=torch.zeros(3, dtype=torch.bool).numpy(),
        pad=0,
    )
    device = torch.device("cpu")
    fast, slow = by_batches(model, sentences, device), one_by_one(model, sentences, device)
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert {names[p] for p in fast} == {names[p] for p in slow}
    heads = {name for name in names.values() if not name.startswith(BODY)}
    assert heads <= {names[p] for p in fast}
    for parameter, values in slow.items():
        assert torch.allclose(fast[parameter], values, rtol=1e-3, atol=1e-7), names[parameter]


def test_parameters_of_the_new_heads() -> None:
    """The pooler belongs to the heads of tasks that read it."""
    from xclrun.strategy import strategy_class

    bert = BertModel(BertConfig(**SHAPE))
    whole = sum(p.numel() for p in bert.parameters())
    model = Model(bert, 3, 0, dropout=0.0, task=SEQUENCE_CLASS)
    naive = strategy_class("naive")
    strategy = naive(naive.settings_type(name="naive"))
    counted = count(sizes(model), strategy, strategy.stream(("a", "b")))
    by_name = {part.name: (part.of, part.parameters) for part in counted.parts}
    assert by_name["pooler"] == ("heads", 8 * 8 + 8)
    assert by_name["class head"] == ("heads", 3 * 8 + 3)
    assert counted.total == whole + 3 * 8 + 3
