"""T5's family writes: rows, probabilities and texts equal those of transformers' own calls."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import some
from tests.data.test_texts import example, marked
from tests.model.decoders import END, T5S, encoder_decoder, t5_tokenizer, tokenizer
from xclrun.config.schema import ModelConfig, TextConfig
from xclrun.core.task import TEXT_TO_TEXT
from xclrun.data.batches import Encoded
from xclrun.data.example import Example, Targets
from xclrun.data.texts import encode_texts
from xclrun.model.heads import Limits
from xclrun.model.network import Model, with_weights
from xclrun.model.writing import Writer

PAIRS = (("wake me", "at six"), ("will it rain in Rome at seven", "x"), ("six", "a b c d"), ("weck mich", "um sechs"))
EXAMPLES = tuple(example(prompt, target, id=str(i)) for i, (prompt, target) in enumerate(PAIRS))
LIMITS = Limits(new=8, prompt=40)


def encode(
    *examples: Example, pieces: Any = None, split: str = "train", settings: TextConfig | None = None, **model: Any
) -> Encoded:
    of = ModelConfig(name="x", **{"max_length": 64, "max_target": 20} | model)
    target = Targets(TEXT_TO_TEXT, ("en",), (), (), settings=settings)
    return encode_texts(examples, pieces or t5_tokenizer(), target, of, split, decoder=True)


def built(layout: str = "T5") -> tuple[Model, Writer]:
    model = Model(encoder_decoder(layout), 0, 0, 0.0, task=TEXT_TO_TEXT, last=True)
    head = model.head_of("")
    assert isinstance(head, Writer)
    return model.eval(), head


def rows(ragged: Any) -> list[list[int]]:
    return [part.tolist() for part in np.split(ragged.values, ragged.offsets[1:-1])]


def test_inputs_and_labels_are_those_of_the_tokenizer() -> None:
    pieces, encoded = t5_tokenizer(), encode(*EXAMPLES)
    assert rows(encoded.pieces) == [pieces(prompt)["input_ids"] for prompt, _ in PAIRS]
    assert rows(encoded.tags) == [pieces(target)["input_ids"] for _, target in PAIRS]
    assert {row[-1] for row in rows(encoded.pieces) + rows(encoded.tags)} == {pieces.eos_token_id}
    assert marked(encoded) == {}


def test_a_tokenizer_that_adds_no_end_gets_one_and_keeps_its_beginning() -> None:
    pieces = tokenizer()
    encoded = encode(example("wake", "me"), pieces=pieces)
    assert pieces.convert_ids_to_tokens(rows(encoded.pieces)[0])[-1] == END
    assert rows(encoded.pieces)[0][:-1] == pieces("wake")["input_ids"]
    # White space before the completion belongs to causal models.
    assert rows(encoded.tags)[0][:-1] == pieces("me", add_special_tokens=False)["input_ids"]


def test_a_long_prompt_loses_its_beginning_and_keeps_its_end_and_a_long_target_its_end_in_training() -> None:
    asked = example("a b c d e f", "x a b c d e f")
    whole, cut = encode(asked), encode(asked, max_length=4, max_target=2)
    assert rows(cut.pieces)[0] == rows(whole.pieces)[0][-4:]
    assert rows(cut.tags)[0] == rows(whole.tags)[0][:2]
    assert marked(cut) == {"cut_prompts": 1, "cut_targets": 1}
    tested = encode(asked, split="test", max_length=4, max_target=2)
    assert rows(tested.tags) == rows(whole.tags)
    assert marked(tested) == {"cut_prompts": 1}


def test_each_choice_is_a_further_row() -> None:
    encoded = encode(example("six", {"choices": ["a", "b c"], "answer": 1}), split="test")
    pieces = t5_tokenizer()
    assert rows(encoded.tags) == [pieces(text)["input_ids"] for text in ("b c", "a", "b c")]
    assert len({tuple(row) for row in rows(encoded.pieces)}) == 1


def given(row: int) -> tuple[Any, Any]:
    pieces = t5_tokenizer()
    prompt, target = PAIRS[row]
    return pieces(prompt, return_tensors="pt"), pieces(target, return_tensors="pt")["input_ids"]


@pytest.mark.parametrize("layout", T5S)
def test_the_probability_of_a_reference_is_that_of_the_library_s_own_forward_pass(layout: str) -> None:
    """In a padded batch, to 1e-6 relative plus 1e-6 for each subword."""
    model, head = built(layout)
    encoded, whole = encode(*EXAMPLES, split="test"), copy.deepcopy(head.language_model)
    batch = encoded.batch(range(len(PAIRS)))
    ours = head.noted(batch, model.predict(batch), encoded)["log2"]
    for row, log2 in some(enumerate(ours)):
        asked, labels = given(row)
        with torch.no_grad():
            logs = whole(**asked, labels=labels).logits[0].log_softmax(1)
        theirs = float(logs.gather(1, labels.T).sum()) / math.log(2)
        assert abs(log2 - theirs) <= 1e-6 * (abs(theirs) + labels.shape[1])


def test_the_loss_of_a_batch_is_that_of_the_library() -> None:
    model, head = built()
    longest = max(given(row)[1].shape[1] for row in range(len(PAIRS)))
    labels = torch.full((len(PAIRS), longest), -100)
    for row in range(len(PAIRS)):
        target = given(row)[1][0]
        labels[row, : len(target)] = target
    asked = t5_tokenizer()([prompt for prompt, _ in PAIRS], padding=True, return_tensors="pt")
    theirs = copy.deepcopy(head.language_model)(
        input_ids=asked["input_ids"], attention_mask=asked["attention_mask"], labels=labels
    ).loss
    assert model.loss(encode(*EXAMPLES).batch([0, 1, 2, 3])).item() == pytest.approx(theirs.item(), rel=1e-6)


@pytest.mark.parametrize("layout", T5S)
def test_texts_of_a_batch_are_those_that_generate_writes_for_each_prompt(layout: str) -> None:
    _, head = built(layout)
    texts = head.write_texts(encode(*EXAMPLES, split="test"), np.arange(len(PAIRS)), LIMITS)
    for row in range(len(PAIRS)):
        [made] = head.language_model.generate(
            **given(row)[0], max_new_tokens=8, do_sample=False, eos_token_id=1, pad_token_id=0, decoder_start_token_id=0
        )
        assert texts["ended"][row] == (1 in made[1:].tolist())
        assert texts["generated"][row] == t5_tokenizer().decode(made, skip_special_tokens=True)
    assert len(set(texts["generated"])) > 1


def test_a_decoder_with_fewer_layers_than_the_encoder_writes() -> None:
    model = Model(encoder_decoder(num_decoder_layers=1), 0, 0, 0.0, task=TEXT_TO_TEXT).eval()
    head: Any = model.head_of("")
    texts = head.write_texts(encode(*EXAMPLES, split="test"), np.array([0]), LIMITS)
    [made] = head.language_model.generate(
        **given(0)[0], max_new_tokens=8, use_cache=False, eos_token_id=1, pad_token_id=0, decoder_start_token_id=0
    )
    assert texts["generated"][0] == t5_tokenizer().decode(made, skip_special_tokens=True)


def test_only_the_states_of_targets_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    model, head = built()
    encoded, sizes = encode(*EXAMPLES), list[int]()
    scores = head.score_states
    monkeypatch.setattr(head, "score_states", lambda states: sizes.append(len(states)) or scores(states))
    model.loss(encoded.batch([0, 1, 2, 3]))
    assert sizes == [int(encoded.tags.lengths.sum())]


@pytest.mark.parametrize("layout", ["T5", "Flan-T5"])
def test_a_step_of_the_optimizer_changes_what_is_scored_and_written(layout: str) -> None:
    """The language model that writes shares its parameters with the one that is trained, also in a copy."""
    model, _ = built(layout)
    model = copy.deepcopy(model)
    encoded = encode(*EXAMPLES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for _ in range(60):
        loss = model.train().loss(encoded.batch([0, 1, 2, 3]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 < losses[0]
    texts = model.eval().head_of("").write_texts(encoded, np.arange(4), LIMITS)
    assert [text.strip() for text in texts["generated"]] == [target for _, target in PAIRS]
    assert texts["ended"].all()


@pytest.mark.parametrize("layout", ["T5", "mT5"])
def test_replaced_weights_of_the_output_layer_are_scored(layout: str) -> None:
    model, _ = built(layout)
    batch = encode(*EXAMPLES).batch([0])
    name = "encoder.shared.weight" if layout == "T5" else "output.weight"
    weights = {name: torch.zeros_like(model.state_dict()[name])}
    loss = with_weights(model, weights, lambda other: other.loss(batch))
    assert loss.item() == pytest.approx(math.log(len(t5_tokenizer())), rel=1e-5)
