"""Documents are scored as by transformers' own forward pass, in windows, in packed rows and in parts."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import some
from tests.data.test_documents import TARGET, document, encode
from tests.model.decoders import language_model, tokenizer
from tests.model.test_writing import EVERY, FAMILIES
from xclrun.core.task import LANGUAGE_MODELLING
from xclrun.data.batches import Encoded
from xclrun.model import writing
from xclrun.model.network import Model
from xclrun.model.writing import Documents

TEXTS = ("wake me at six", "x", "will it rain in Rome at seven", "weck mich um sechs a b c d e f", "six me")
PACKED = [case for case in EVERY if case != "bloom"]


def built(case: str = "tied", **further: Any) -> tuple[Model, Documents]:
    family, given = EVERY[case]
    given = {k: v for k, v in given.items() if k != "sliding_window"} | further
    if family == "gpt2":
        given |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    model = Model(language_model(family, **given), 0, 0, 0.0, task=LANGUAGE_MODELLING, last=True)
    head = model.head_of("")
    assert isinstance(head, Documents)
    return model.eval(), head


def columns(model: Model, encoded: Encoded, *texts: str) -> dict[str, list[Any]]:
    batch, head = encoded.batch(range(len(encoded))), model.head_of("")
    examples = [document(text, str(i)) for i, text in enumerate(texts)]
    return head.columns(head.noted(batch, model.predict(batch), encoded), examples, TARGET, encoded)


@pytest.mark.some_cases(*FAMILIES, "gemma3_text")
@pytest.mark.parametrize("case", EVERY)
def test_the_probability_of_a_document_is_that_of_the_library_s_own_forward_pass(case: str) -> None:
    """In padded batches, to 1e-6 relative plus 1e-6 for each subword; BOS and the end are not scored."""
    model, head = built(case)
    encoded = encode(*TEXTS, max_length=60)
    ours = columns(model, encoded, *TEXTS)
    whole = copy.deepcopy(head.language_model)
    for text, log2, count in some(list(zip(TEXTS, ours["log2_reference"], ours["reference_pieces"], strict=True))):
        ids = tokenizer().encode(text)
        with torch.no_grad():
            logs = whole(torch.tensor([ids])).logits[0].log_softmax(1)
        theirs = sum(float(logs[i, piece]) for i, piece in enumerate(ids[1:])) / math.log(2)
        assert count == len(ids) - 1
        assert abs(log2 - theirs) <= 1e-6 * (abs(theirs) + count)
    assert ours["reference_bytes"] == [len(text) for text in TEXTS]


@pytest.mark.parametrize("stride", [None, 2])
def test_the_bits_of_windows_are_summed_by_document(stride: int | None) -> None:
    model, head = built()
    texts = ("a b c d e f a b c d", "Ünlü six", "weck mich um sechs")
    encoded = encode(*texts, stride=stride)
    ours = columns(model, encoded, *texts)
    expected = [0.0, 0.0, 0.0]
    for row in range(len(encoded)):
        ids, target = (part.select(np.array([row])).values.tolist() for part in (encoded.pieces, encoded.tags))
        with torch.no_grad():
            logs = head.language_model(torch.tensor([ids])).logits[0].log_softmax(1)[-len(target) :]
        expected[int(encoded.ids[row])] += sum(float(logs[i, t]) for i, t in enumerate(target)) / math.log(2)
    assert ours["log2_reference"] == pytest.approx(expected, rel=1e-6)
    assert ours["reference_bytes"] == [19, 10, 18]
    assert sum(ours["reference_pieces"]) == sum(len(tokenizer().encode(text)) - 1 for text in texts)


def gradients(model: Model, encoded: Encoded, rows: list[int]) -> tuple[float, dict[str, torch.Tensor]]:
    model.train().zero_grad()
    loss = model.loss(encoded.batch(rows))
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.some_cases(*FAMILIES, "gemma3_text")
@pytest.mark.parametrize("case", PACKED)
def test_packed_documents_have_the_loss_and_gradient_of_padded_ones(case: str) -> None:
    model, _ = built(case)
    encoded = encode(*TEXTS, split="train", max_length=60)
    loss, expected = gradients(model, encoded, [0, 1, 2, 3, 4])
    model.packs = True
    packed, ours = gradients(model, encoded, [0, 1, 2, 3, 4])
    assert packed == pytest.approx(loss, rel=1e-6)
    for name, gradient in some(expected.items()):
        assert torch.allclose(ours[name], gradient, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("case", ["tied", "gpt2"])
def test_attention_never_crosses_documents(case: str) -> None:
    """Each packed document has the probability that it has alone; without the mask, it would depend on the others."""
    model, _ = built(case)
    model.train().packs = True
    encoded = encode(*TEXTS, split="train", max_length=60)
    together = model.log_likelihood(encoded.batch([0, 1, 2, 3, 4]))
    for row in range(5):
        alone = model.log_likelihood(encoded.batch([row]))
        assert together[row].item() == pytest.approx(alone.item(), rel=1e-6)


def test_without_the_mask_documents_would_be_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail."""
    model, _ = built()
    model.train().packs = True
    encoded = encode(*TEXTS, split="train", max_length=60)
    right = model.log_likelihood(encoded.batch([0, 1, 2, 3, 4]))
    forward = model.encoder.forward

    def mixed(**given: Any) -> Any:
        return forward(**given | {"attention_mask": torch.ones_like(given["input_ids"])})

    monkeypatch.setattr(model.encoder, "forward", mixed)
    assert (model.log_likelihood(encoded.batch([0, 1, 2, 3, 4])) - right).abs().max() > 0.1


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_micro_batches_give_the_gradient_of_the_whole_batch(parts: int, packs: bool) -> None:
    encoded = encode("six", "a b c d e f a b c d", "x me", "wake me at six", split="train", max_length=60)
    model, _ = built()
    model.packs = packs
    _, expected = gradients(model, encoded, [0, 1, 2, 3])
    model.zero_grad()
    whole = encoded.batch([0, 1, 2, 3])
    for part in some(whole.split(4 // parts)):
        (model.loss(part) * (model.units(part) / model.units(whole))).backward()
    for name, p in some(model.named_parameters()):
        assert torch.allclose(p.grad, expected[name], rtol=1e-5, atol=1e-6), name


def test_the_loss_is_that_of_transformers_with_the_end_and_a_mean_over_subwords() -> None:
    """As in TRL's trainer, whose labels are the ids of the packed documents."""
    model, head = built()
    encoded = encode("wake me at six", "six", split="train", max_length=60)
    loss = model.loss(encoded.batch([0, 1])).item()
    total = count = 0.0
    for text in ("wake me at six", "six"):
        ids = torch.tensor([[*tokenizer().encode(text), 1]])
        n = ids.shape[1] - 1
        total, count = total + n * head.language_model(ids, labels=ids).loss.item(), count + n
    assert loss == pytest.approx(total / count, rel=1e-6)


def test_logits_in_parts_give_the_same_loss_and_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of all subwords of a batch would need gigabytes."""
    model, head = built()
    encoded = encode(*TEXTS, split="train", max_length=60)
    loss, expected = gradients(model, encoded, [0, 1, 2, 3, 4])
    monkeypatch.setattr(writing, "LOGITS", 3 * len(tokenizer()))
    sizes, scores = list[int](), head.score_states
    monkeypatch.setattr(head, "score_states", lambda states, layer: sizes.append(len(states)) or scores(states, layer))
    parts, ours = gradients(model, encoded, [0, 1, 2, 3, 4])
    assert max(sizes) == 3
    assert parts == pytest.approx(loss, rel=1e-6)
    for name, gradient in some(expected.items()):
        assert torch.allclose(ours[name], gradient, rtol=1e-4, atol=1e-6), name


def test_a_training_document_that_was_cut_has_no_probability() -> None:
    """Codelengths encode it uniformly."""
    model, _ = built()
    texts = ("a b c d e f", "a b")
    found = columns(model, encode(*texts, split="train"), *texts)["log2_reference"]
    assert math.isnan(found[0])
    assert found[1] < 0
