"""Prompts and completions as subwords: every known way to get them wrong has a case with ids by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.model.decoders import BOS, CHAT, END, OTHER, TURN, tokenizer
from xclrun.config.schema import LossPer, ModelConfig, Template, TextConfig
from xclrun.core.errors import UsageError
from xclrun.core.task import TEXT_TO_TEXT
from xclrun.core.texts import reply
from xclrun.data.batches import Encoded, concat
from xclrun.data.example import Example, Targets, fingerprint
from xclrun.data.texts import MARKS, check_texts, encode_texts, written

PLAIN = TextConfig()
TALK = TextConfig(template=Template.chat, completion="{output}")


def example(text: str, target: Any, id: str = "a") -> Example:
    return Example(id, "en", tuple(text.split()) or ("",), None, text=text, target=reply(target))


def encode(
    *examples: Example, pieces: Any = None, settings: TextConfig = PLAIN, split: str = "train", **model: Any
) -> Encoded:
    of = ModelConfig(name="x", **{"max_length": 64, "max_target": 20} | model)
    target = Targets(TEXT_TO_TEXT, ("en",), (), (), settings=settings)
    return encode_texts(examples, pieces or tokenizer(), target, of, split)


def rows(encoded: Encoded, pieces: Any = None) -> list[tuple[list[str], list[str]]]:
    """Return the subwords of each row, and of its target."""
    pieces = pieces or tokenizer()
    cut = [np.split(part.values, part.offsets[1:-1]) for part in (encoded.pieces, encoded.tags)]
    return [tuple(pieces.convert_ids_to_tokens(part.tolist()) for part in row) for row in zip(*cut, strict=True)]


def marked(encoded: Encoded) -> dict[str, int]:
    assert encoded.marks is not None
    return {name: n for bit, name in enumerate(MARKS) if (n := int((encoded.marks >> bit & 1).sum()))}


def test_each_subword_of_the_target_is_predicted_from_the_one_before_and_the_end_from_the_last() -> None:
    encoded = encode(example("wake", "me"))
    [(row, target)] = rows(encoded)
    assert target == ["Ġme", END]
    assert row == [BOS, *tokenizer().tokenize("wake"), "Ġme"]
    assert encoded.word_pieces.values.tolist() == [len(row) - 2, len(row) - 1]
    assert marked(encoded) == {}


def test_padding_is_masked_by_length_although_its_id_is_that_of_the_end() -> None:
    """Masked by id, the end would leave the loss, and the model would never stop."""
    encoded = encode(example("wake", "me"), example("wake me at six", "me me me"))
    assert encoded.pad == tokenizer().eos_token_id
    batch = encoded.batch([0, 1])
    assert batch.word_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.tags[0, 1] == encoded.pad
    assert batch.words.tolist() == [2, 4]


@pytest.mark.parametrize("given", ["wake", f"{BOS}wake"])
def test_a_text_begins_with_bos_once(given: str) -> None:
    [(row, _)] = rows(encode(example(given, "me")))
    assert row.count(BOS) == 1
    assert row[0] == BOS


def test_a_tokenizer_without_bos_adds_none_and_an_empty_prompt_begins_with_the_end_of_another_text() -> None:
    pieces = tokenizer(bos=False)
    [(row, _), (empty, target)] = rows(encode(example("wake", "me"), example("  ", "me"), pieces=pieces), pieces)
    assert row[0] != BOS
    assert empty == [END, *target[:-1]]


def test_spaces_at_the_end_of_a_prompt_move_to_the_completion() -> None:
    [(row, target)] = rows(encode(example("wake ", "me"), settings=TextConfig(completion="{output}")))
    assert target == ["Ġme", END]
    assert row == [BOS, *tokenizer().tokenize("wake"), "Ġme"]


def test_a_completion_whose_subwords_merge_with_the_prompt_s_is_encoded_alone_and_counted() -> None:
    assert tokenizer().tokenize("six")[0] != "s"
    encoded = encode(example("s", "ix"), settings=TextConfig(completion="{output}"))
    [(row, target)] = rows(encoded)
    assert target == [*tokenizer().tokenize("ix"), END]
    assert row == [BOS, "s", *tokenizer().tokenize("ix")]
    assert marked(encoded) == {"encoded_alone": 1}


def test_a_prompt_that_is_too_long_loses_its_beginning_after_bos() -> None:
    encoded = encode(example("a b c d e f", "x"), max_length=5, max_target=2)
    assert rows(encoded) == [([BOS, "Ġd", "Ġe", "Ġf", "Ġx"], ["Ġx", END])]
    assert marked(encoded) == {"cut_prompts": 1}
    assert encoded.truncated == 1


def test_a_target_that_is_too_long_is_cut_in_training_without_an_end_and_whole_in_test() -> None:
    long = example("wake", "x x x x x")
    train, test = (encode(long, max_length=9, max_target=3, split=split) for split in ("train", "test"))
    assert rows(train)[0][1] == ["Ġx"] * 3
    assert marked(train) == {"cut_targets": 1}
    assert rows(test)[0][1] == ["Ġx"] * 5 + [END]


def test_a_reference_longer_than_the_positions_has_no_target_in_test() -> None:
    encoded = encode(example("wake", "x x x x x x"), example("wake", "x"), max_length=6, max_target=3, split="test")
    assert [target for _, target in rows(encoded)] == [[], ["Ġx", END]]
    assert marked(encoded)["long_references"] == 1


def test_a_prompt_and_a_target_need_room() -> None:
    with pytest.raises(UsageError, match=r"model\.max_target=8.*below model\.max_length=8"):
        check_texts(ModelConfig(name="x", max_length=8, max_target=8))


def test_words_are_not_text_so_lines_and_double_spaces_stay() -> None:
    [(row, target)] = rows(encode(example("a\n\nb  c", "d\ne")))
    assert tokenizer().convert_tokens_to_string(row[1:]) == "a\n\nb  c d\ne"
    assert tokenizer().convert_tokens_to_string(target[:-1]) == " d\ne"


def test_a_chat_template_writes_bos_once_and_the_target_ends_with_its_own_end_of_turn() -> None:
    """The template has no generation marks, which would make a mask of zeros; here it needs none."""
    pieces = tokenizer(chat=CHAT)
    encoded = encode(example("wake", "me"), pieces=pieces, settings=TALK)
    [(row, target)] = rows(encoded, pieces)
    assert target == ["m", "e", OTHER] or target == ["me", OTHER]
    assert (row.count(BOS), row.count(TURN)) == (1, 2)
    assert row[-len(target) :][0] == "Ċ"
    assert encoded.prompts is not None
    assert encoded.prompts.stops == (1, 3)
    assert encoded.prompts.start == 1


def test_a_dialogue_is_a_prompt_whose_earlier_turns_are_no_target() -> None:
    pieces = tokenizer(chat=CHAT)
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    asked = example("wake", {"references": ["me"], "turns": turns})
    settings = TextConfig(template=Template.chat, system="be kind")
    [(row, target)] = rows(encode(asked, pieces=pieces, settings=settings), pieces)
    text = pieces.convert_tokens_to_string(row)
    assert text.startswith(f"{BOS}{TURN}system\nbe kind{OTHER}\n{TURN}user\nhi{OTHER}\n{TURN}assistant\nyo{OTHER}")
    assert pieces.convert_tokens_to_string(target) == f"me{OTHER}"


@pytest.mark.parametrize(
    ("chat", "header"),
    [
        (CHAT, ""),
        ("{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}", "[assistant]"),
        ("{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}", "assistant"),
        (
            "{% for m in messages %}{{ m.role }}: {{ '<think></think> ' if m.role == 'assistant' }}{{ m.content }}"
            "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
            "<think></think>",
        ),
    ],
)
def test_what_a_template_writes_before_an_answer_is_learned_but_is_no_part_of_it(chat: str, header: str) -> None:
    """Templates without a generation prompt begin with the role, others with an empty thought."""
    pieces = tokenizer(chat=chat)
    encoded = encode(example("wake", "me"), pieces=pieces, settings=TALK)
    [(_, target)] = rows(encoded, pieces)
    text = pieces.decode(pieces.convert_tokens_to_ids(target), skip_special_tokens=True)
    assert encoded.prompts is not None
    assert (encoded.prompts.header, text.strip().startswith(header)) == (header, True)
    assert written(text, TALK, "wake", encoded.prompts.header) == "me"


def test_a_template_that_rewrites_earlier_turns_is_counted() -> None:
    chat = "{{ messages | length }}{{ messages[-1]['content'] }}{% if add_generation_prompt %}:{% endif %}"
    pieces = tokenizer(bos=False, chat=chat)
    encoded = encode(example("wake", "me"), pieces=pieces, settings=TALK)
    assert rows(encoded, pieces)[0][1][-1] == END
    assert marked(encoded) == {"encoded_alone": 1}


@pytest.mark.parametrize(
    ("chat", "settings", "asked", "message"),
    [
        (None, TALK, "me", "has no chat template"),
        (None, TextConfig(system="be kind"), "me", "needs dataset.text.template=chat"),
        (None, PLAIN, {"references": "me", "turns": [["user", "hi"]]}, "needs dataset.text.template=chat"),
        ("{{ raise_exception('no system') }}", TALK, "me", "template fails: no system"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", TALK, "me", "template fails: .*unsafe"),
        ("{% for x in range(3) %}", TALK, "me", "template fails"),
    ],
)
def test_what_cannot_be_written_is_one_line(chat: str | None, settings: TextConfig, asked: Any, message: str) -> None:
    """Templates are data: they run in a sandbox."""
    with pytest.raises(UsageError, match=message) as error:
        encode(example("wake", asked), pieces=tokenizer(chat=chat), settings=settings)
    assert "\n" not in str(error.value)


def test_a_tokenizer_without_an_end_is_refused() -> None:
    with pytest.raises(UsageError, match="no end of text"):
        encode(example("a", "b"), pieces=tokenizer(eos_token=None, pad_token=BOS))


def test_choices_are_rows_of_test_only_and_are_not_continued() -> None:
    asked = example("wake", {"choices": ["me", "Anna"], "answer": 1})
    train, test = (encode(asked, pieces=tokenizer(), split=split) for split in ("train", "test"))
    assert len(train) == 1
    assert [target for _, target in rows(test)] == [["ĠAnna", END], ["Ġme", END], ["ĠAnna", END]]
    assert test.prompts is not None
    assert test.prompts.pieces.lengths.tolist()[1:] == [0, 0]


def test_selected_and_joined_rows_keep_their_prompts() -> None:
    encoded = encode(example("wake", "me"), example("six", "me"), example("at", "me"))
    joined = concat([encoded.select([2]), encoded.select([0])])
    direct = encode(example("at", "me"), example("wake", "me"))
    assert joined.prompts is not None
    assert direct.prompts is not None
    assert joined.prompts.pieces.values.tolist() == direct.prompts.pieces.values.tolist()


@pytest.mark.parametrize(
    ("text", "settings", "prompt", "answer"),
    [
        (" me", PLAIN, "wake", "me"),
        ("me", PLAIN, "wake", "me"),
        ("  me", PLAIN, "wake", " me"),
        (" me", TextConfig(completion="{output}"), "wake ", "me"),
        (" me!", TextConfig(completion=" {output}!"), "wake", "me"),
        ("me\n", TALK, "wake", "me"),
        ("Answer: me.\n", TextConfig(template=Template.chat, completion="Answer: {output}."), "wake", "me"),
        (" not , this", PLAIN, "wake", "not , this"),
    ],
)
def test_an_answer_is_what_the_completion_puts_around_it_less(
    text: str, settings: TextConfig, prompt: str, answer: str
) -> None:
    assert written(text, settings, prompt) == answer


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "must be a text"),
        ([], "must be a text"),
        ({"choices": ["a"]}, "needs references, or choices and answer"),
        ({"choices": ["a"], "answer": 1}, "needs references, or choices and answer"),
        ({"choices": ["a"], "references": "b"}, "not one of the choices"),
        ({"reference": "b"}, "unknown key 'reference'"),
        ({"references": "b", "turns": [{"role": "tool", "content": ""}]}, "needs a role"),
    ],
)
def test_a_bad_target_says_what_is_wrong(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reply(value)


def test_targets_enter_the_fingerprint_of_the_data() -> None:
    given = ["me", ["me", "us"], {"choices": ["me", "us"], "answer": 0}, {"references": "me", "turns": [["user", "x"]]}]
    assert len({fingerprint([example("wake", value)]) for value in given}) == 4
    assert json.loads(json.dumps(reply("me"))) == [["me"], [], []]


def test_settings_of_texts_enter_the_keys_of_stages() -> None:
    sets = [
        Targets(TEXT_TO_TEXT, ("en",), (), (), settings=s).sets
        for s in (PLAIN, TALK, TextConfig(loss_per=LossPer.example))
    ]
    assert len({json.dumps(of) for of in sets}) == 3
