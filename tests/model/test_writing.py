"""The head of language models: it scores as transformers' own forward pass does, and writes as `generate` does."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import some
from tests.data.test_texts import encode, example
from tests.model.decoders import END, language_model, tokenizer
from xclrun.config.schema import LossPer, Template, TextConfig
from xclrun.core.errors import UsageError
from xclrun.core.task import TEXT_TO_TEXT
from xclrun.data.batches import Encoded
from xclrun.data.example import Targets
from xclrun.model.families import FAMILIES as KNOWN
from xclrun.model.heads import Limits
from xclrun.model.network import Model, with_weights
from xclrun.model.writing import Writer

PROMPTS = ("wake me", "will it rain in Rome at seven", "six", "a b c d", "weck mich um sechs at six")
EXAMPLES = tuple(example(prompt, "at six", id=str(i)) for i, prompt in enumerate(PROMPTS))
FAMILIES = {
    "tied": ("llama", {}),
    "untied": ("llama", {"tie_word_embeddings": False}),
    "gpt2": ("gpt2", {}),
    "soft-capped": ("gemma2", {"final_logit_softcapping": 2.0, "sliding_window": 4}),
}
# All families that write, and those above in the fast tier.
OTHERS = {
    family: (family, {})
    for family, facts in KNOWN.items()
    if facts.causal and family not in ("llama", "gpt2", "gemma2")
}
EVERY = FAMILIES | OTHERS
LIMITS = Limits(new=8, prompt=40)


def built(case: str = "tied", settings: TextConfig | None = None, **further: Any) -> tuple[Model, Writer]:
    family, given = EVERY[case]
    model = Model(
        language_model(family, **given, **further), 0, 0, 0.0, task=TEXT_TO_TEXT, last=True, settings=settings
    )
    head = model.head_of("")
    assert isinstance(head, Writer)
    return model.eval(), head


def scored(model: Model, encoded: Encoded, rows: list[int]) -> np.ndarray:
    batch = encoded.batch(rows)
    return model.head_of("").noted(batch, model.predict(batch), encoded)["log2"]


@pytest.mark.some_cases(*FAMILIES, "gemma3_text")
@pytest.mark.parametrize("case", EVERY)
def test_the_probability_of_a_reference_is_that_of_the_library_s_own_forward_pass(case: str) -> None:
    """In a padded batch, to 1e-6 relative plus 1e-6 for each subword."""
    model, head = built(case)
    encoded = encode(*EXAMPLES, split="test")
    ours = scored(model, encoded, list(range(len(EXAMPLES))))
    whole = copy.deepcopy(head.language_model)
    for row, log2 in some(enumerate(ours)):
        ids = encoded.pieces.values[encoded.pieces.offsets[row] : encoded.pieces.offsets[row + 1]].tolist()
        target = encoded.tags.values[encoded.tags.offsets[row] : encoded.tags.offsets[row + 1]].tolist()
        with torch.no_grad():
            logs = whole(torch.tensor([[*ids, target[-1]]])).logits[0].log_softmax(1)
        first = len(ids) - len(target)
        theirs = sum(float(logs[first + i, piece]) for i, piece in enumerate(target)) / math.log(2)
        assert abs(log2 - theirs) <= 1e-6 * (abs(theirs) + len(target))


@pytest.mark.some_cases(*FAMILIES)
@pytest.mark.parametrize("case", EVERY)
def test_texts_of_a_batch_are_those_that_generate_writes_for_each_prompt(case: str) -> None:
    _, head = built(case)
    encoded = encode(*EXAMPLES, split="test")
    texts = head.write_texts(encoded, np.arange(len(EXAMPLES)), LIMITS)
    pieces = tokenizer()
    for row in range(len(EXAMPLES)):
        ids = torch.tensor([pieces.encode(PROMPTS[row])])
        [made] = head.language_model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, eos_token_id=1, pad_token_id=1
        )
        new = made[ids.shape[1] :].tolist()
        assert texts["ended"][row] == (1 in new)
        assert texts["generated"][row] == pieces.decode(new, skip_special_tokens=True)
    assert len(set(texts["generated"])) > 1


def test_only_the_states_of_targets_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    model, head = built()
    encoded, sizes = encode(*EXAMPLES), list[int]()
    scores = head.score_states
    monkeypatch.setattr(head, "score_states", lambda states: sizes.append(len(states)) or scores(states))
    model.loss(encoded.batch([0, 1, 2]))
    assert sizes == [3 * len(["Ġat", "Ġsix", END])]


def test_a_tied_output_layer_has_no_parameters_of_its_own_and_an_untied_one_has() -> None:
    names = {case: set(dict(built(case)[0].named_parameters())) for case in ("tied", "untied")}
    assert names["untied"] - names["tied"] == {"output.weight"}
    assert "encoder.embed_tokens.weight" in names["tied"]


@pytest.mark.parametrize("case", ["tied", "untied"])
def test_a_step_of_the_optimizer_changes_what_is_scored_and_written(case: str) -> None:
    """The language model that writes shares its parameters with the one that is trained, also in a copy."""
    model, _ = built(case)
    model = copy.deepcopy(model)
    encoded = encode(*EXAMPLES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(40):
        loss = model.train().loss(encoded.batch([0, 1, 2, 3, 4]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 < losses[0]
    texts = model.eval().head_of("").write_texts(encoded, np.arange(5), LIMITS)
    # The end is learned, so the model stops by itself.
    assert [text.strip() for text in texts["generated"]] == ["at six"] * 5
    assert texts["ended"].all()


@pytest.mark.parametrize("case", ["tied", "untied"])
def test_replaced_weights_of_the_output_layer_are_scored(case: str) -> None:
    model, _ = built(case)
    batch = encode(*EXAMPLES).batch([0])
    name = "encoder.embed_tokens.weight" if case == "tied" else "output.weight"
    weights = {name: torch.zeros_like(model.state_dict()[name])}
    loss = with_weights(model, weights, lambda other: other.loss(batch))
    assert loss.item() == pytest.approx(math.log(len(tokenizer())), rel=1e-5)


def test_a_loss_is_a_mean_over_subwords_or_over_examples() -> None:
    encoded = encode(example("six", "six"), example("six", "a b c d"))
    batch, [first, second] = encoded.batch([0, 1]), [encoded.batch([i]) for i in (0, 1)]
    token, _ = built()
    each = [-token.log_likelihood(part).item() for part in (first, second)]
    assert batch.words.tolist() == [2, 5]
    assert token.loss(batch).item() == pytest.approx(sum(each) / 7, rel=1e-6)
    example_, _ = built(settings=TextConfig(loss_per=LossPer.example))
    assert example_.loss(batch).item() == pytest.approx(sum(each) / 2, rel=1e-6)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_micro_batches_give_the_gradient_of_the_whole_batch(parts: int) -> None:
    """A mean of the means of micro-batches would weigh the subwords of short answers more."""
    encoded = encode(*(example("six", "a " * n + "b") for n in (1, 9, 2, 5)))
    whole = encoded.batch([0, 1, 2, 3])
    model, _ = built()
    model.loss(whole).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for part in some(whole.split(4 // parts)):
        (model.loss(part) * (model.units(part) / model.units(whole))).backward()
    for name, p in some(model.named_parameters()):
        assert torch.allclose(p.grad, expected[name], rtol=1e-5, atol=1e-6), name


def test_several_ids_end_a_text_and_the_first_one_counts() -> None:
    _, head = built()
    encoded = encode(*EXAMPLES, split="test")
    plain = head.write_texts(encoded, np.arange(5), LIMITS)
    row = int(np.flatnonzero(~plain["ended"])[0])
    ids = tokenizer().encode(PROMPTS[row])
    [made] = head.language_model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=8, eos_token_id=1, pad_token_id=1
    )
    new = made[len(ids) :].tolist()
    stop = next(piece for piece in new[2:] if piece not in new[:2])
    at = new.index(stop)
    head.language_model.config.eos_token_id = [1, stop]
    ended = head.write_texts(encoded, np.array([row]), LIMITS)
    assert ended["ended"].tolist() == [True]
    assert ended["generated"][0] == tokenizer().decode(new[:at])
    head.language_model.config.eos_token_id = 1
    named = head.write_texts(encoded, np.array([row]), Limits(8, 40, (tokenizer().decode([stop]),)))
    assert named["generated"][0] == ended["generated"][0]


def test_a_stop_of_several_subwords_is_refused() -> None:
    _, head = built()
    with pytest.raises(UsageError, match=r"generation\.stop=wake me up: must be one subword"):
        head.write_texts(encode(*EXAMPLES), np.array([0]), Limits(8, 40, ("wake me up",)))


def test_a_generation_config_of_the_folder_does_not_leak() -> None:
    from transformers import GenerationConfig

    family, given = FAMILIES["tied"]
    whole = language_model(family, **given)
    encoded = encode(*EXAMPLES, split="test")
    expected = built()[1].write_texts(encoded, np.arange(5), LIMITS)
    whole.generation_config = GenerationConfig(
        do_sample=True, temperature=9.0, repetition_penalty=5.0, num_beams=2, min_new_tokens=8, bad_words_ids=[[5]]
    )
    model = Model(whole, 0, 0, 0.0, task=TEXT_TO_TEXT, last=True).eval()
    texts = model.head_of("").write_texts(encoded, np.arange(5), LIMITS)
    assert texts["generated"].tolist() == expected["generated"].tolist()


def test_a_prompt_for_writing_is_shortened_after_bos() -> None:
    _, head = built()
    long, short = encode(example("a b c d e f", "x")), encode(example("e f", "x"))
    short.prompts.pieces.values[1] = long.prompts.pieces.values[5]  # type: ignore[union-attr]
    ours, theirs = (head.write_texts(encoded, np.array([0]), Limits(8, 3)) for encoded in (long, short))
    assert ours["generated"].tolist() == theirs["generated"].tolist()


def test_columns_of_a_prediction() -> None:
    asked = (
        example("wake", ["me", "mé!"], id="a"),
        example("six", {"choices": ["a", "b c"], "answer": 1}, id="b"),
        example("six", "x " * 40, id="c"),
    )
    model, head = built()
    encoded = encode(*asked, split="test", max_length=20, max_target=3)
    batch = encoded.batch(range(len(encoded)))
    values = head.noted(batch, model.predict(batch), encoded)
    target = Targets(TEXT_TO_TEXT, ("en",), (), ())
    columns = head.columns(values, asked, target, encoded)
    assert columns["references"] == [["me", "mé!"], ["b c"], ["x " * 40]]
    assert columns["reference_bytes"] == [2, 3, 80]
    assert columns["reference_pieces"][:2] == [2, 3]
    assert math.isnan(columns["log2_reference"][2])
    assert columns["choices"] == [None, ["a", "b c"], None]
    assert columns["right_choice"] == [None, 1, None]
    assert columns["choice_log2"][1][1] == pytest.approx(columns["log2_reference"][1], rel=1e-5)
    assert columns["choice_log2"][1][0] == pytest.approx(scored(model, encode(example("six", "a")), [0])[0], rel=1e-5)
    assert "generated" not in columns
    values |= {"generated": np.array([" me", " b", " x", "", ""], object), "ended": np.array([True] * 5)}
    written = head.columns(values, asked, target, encoded)
    assert (written["generated"], written["ended"]) == (["me", "b", "x"], [True] * 3)
    head.settings = TextConfig(template=Template.chat)
    headed = replace(encoded, prompts=replace(encoded.prompts, header="b"))
    assert head.columns(values, asked, target, headed)["generated"] == ["me", "", "x"]


def test_a_batch_without_any_target_has_no_probability() -> None:
    model, _ = built()
    encoded = encode(example("six", "x " * 40), split="test", max_length=20, max_target=3)
    assert np.isnan(scored(model, encoded, [0])).all()


def test_spaces_before_punctuation_are_part_of_a_text() -> None:
    """The library's clean-up would remove them, and a tokenizer can ask for it."""
    model, head = built()
    pieces = tokenizer(clean_up_tokenization_spaces=True)
    encoded = encode(*EXAMPLES, pieces=pieces, split="test")
    answer = pieces.encode(" six , six", add_special_tokens=False)
    made = torch.tensor([[0, 0, *answer, 1]])
    head.language_model.generate = lambda ids, **given: torch.cat([ids, made[:, 2:]], dim=1)
    texts = head.write_texts(encoded, np.array([0]), LIMITS)
    assert (texts["generated"].tolist(), texts["ended"].tolist()) == ([" six , six"], [True])
    assert model.head_of("") is head


@pytest.mark.parametrize("family", ["bloom", "llama"])
def test_the_fisher_information_of_a_tied_table_counts_both_of_its_uses(family: str) -> None:
    """Modules' inputs and outputs show only the first use; BLOOM has no other module that would be unknown."""
    from xclrun.strategy.shared.fisher import diagonal_fisher

    model = Model(language_model(family), 0, 0, 0.0, task=TEXT_TO_TEXT, last=True).eval()
    encoded = encode(*EXAMPLES[:3])
    ours = diagonal_fisher(model, encoded, torch.device("cpu"))
    [name] = [n for n, p in model.named_parameters() if p is model.encoder.get_input_embeddings().weight]
    total = torch.zeros_like(ours[name])
    for row in range(3):
        model.zero_grad()
        model.log_likelihood(encoded.batch([row])).sum().backward()
        total += model.get_parameter(name).grad.square() / 3
    assert torch.allclose(ours[name], total, rtol=1e-4)


def test_the_importance_of_weights_is_that_of_the_scores_of_targets() -> None:
    from xclrun.strategy.mas import sensitivity

    model, head = built()
    encoded = encode(*EXAMPLES[:2])
    ours = sensitivity(model, encoded, torch.device("cpu"))
    total = torch.zeros_like(ours["encoder.norm.weight"])
    for row in range(2):
        model.zero_grad()
        batch = encoded.batch([row])
        head.score_states(batch.word_rows(model(batch).states)).square().sum().backward()
        total += model.get_parameter("encoder.norm.weight").grad.abs() / 2
    assert torch.allclose(ours["encoder.norm.weight"], total, rtol=1e-4)
