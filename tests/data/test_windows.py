"""Windows of extractive question answering, compared with the tokenizers and the texts."""

import random
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from tests.data.test_encode import SENTENCES, unigram, wordpiece
from xclrun.config.schema import WindowsConfig
from xclrun.core.errors import UsageError
from xclrun.data.batches import concat
from xclrun.data.example import Answer, Example
from xclrun.data.windows import check_windows, encode_windows
from xclrun.model.answers import answers_of
from xclrun.model.vocabulary import learn_wordpieces, wordpiece_tokenizer

# Scripts that tokenizers treat differently; the answer is between bars.
TEXTS = {
    "th": "เตือนฉันให้รดน้ำ|ต้นไม้|วันจันทร์",
    "hi": "सोमवार को |पौधों को पानी| देना याद दिलाना",
    "ar": "ذكّرني بسقي |النباتات| يوم الاثنين",
    "zh": "提醒我|星期一|给植物浇水。",
    "ja": "ｔｈｅ　３ｒｄ |㍿| Ⅳ",
    "emoji": "👩‍👩‍👧 water |🌵🌵🏽| on Monday 😀",
    "composed": "cafe\u0301 |nai\u0308ve| ﬁn",
    "spaces": "a  \u00a0 |b\u200b c|\t\n d",
}


@pytest.fixture(scope="module", params=["wordpiece", "unigram"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return unigram() if request.param == "unigram" else wordpiece(tmp_path_factory.mktemp("vocabulary"))


def asked(text: str, question: str = "is it warm", language: str = "en") -> Example:
    """Return the example of a text whose answer stands between bars; without any it has no answer."""
    before, bar, rest = text.partition("|")
    answer, _, after = rest.partition("|")
    answers = (Answer(answer, len(before)),) if bar else ()
    text = before + answer + after
    return Example(f"q{len(text)}", language, tuple(text.split()), None, None, text, question, answers=answers)


def long_texts(seed: int) -> list[Example]:
    generator = random.Random(seed)
    texts = [" ".join(generator.choices(SENTENCES, k=generator.randint(1, 9))) for _ in range(8)]
    return [asked(text, generator.choice(SENTENCES)) for text in texts]


@pytest.mark.parametrize(("max_length", "stride", "question"), [(40, 7, 12), (64, 0, 30), (33, 20, 5), (400, 16, 50)])
def test_windows_are_those_of_the_tokenizer(
    tokenizer: PreTrainedTokenizerFast, max_length: int, stride: int, question: int
) -> None:
    examples = long_texts(max_length)
    encoded = encode_windows(examples, tokenizer, max_length, WindowsConfig(stride, question))
    assert encoded.windows is not None
    rows = 0
    for i, example in enumerate(examples):
        pieces = tokenizer(example.text_b, add_special_tokens=False, return_offsets_mapping=True)
        # The tokenizer does not cut questions: one is given whose pieces are those that are kept.
        retained = pieces["offset_mapping"][: min(question, len(pieces["input_ids"]))][-1][1]
        theirs = tokenizer(
            str(example.text_b)[:retained],
            example.whole,
            max_length=max_length,
            stride=stride,
            truncation="only_second",
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_token_type_ids=True,
        )
        reference = np.flatnonzero(encoded.windows.examples == i)
        assert [encoded.pieces.select(reference[[k]]).values.tolist() for k in range(len(reference))] == theirs[
            "input_ids"
        ]
        # The library gives the texts of further windows BERT's types, whichever the tokenizer has.
        assert encoded.types.select(reference[[0]]).values.tolist() == theirs["token_type_ids"][0]
        for k, row in enumerate(reference):
            text = [j for j, entry in enumerate(theirs.sequence_ids(k)) if entry == 1]
            assert encoded.word_pieces.select(np.array([row])).values.tolist() == [0, *text]
            characters = encoded.windows.characters.select(np.array([row])).values[1:].tolist()
            for (start, end), (first, last) in zip(
                characters, (theirs["offset_mapping"][k][j] for j in text), strict=True
            ):
                assert example.whole[start:end] == example.whole[first:last].lstrip()
        assert encoded.cut[reference].all() == encoded.cut[reference].any() == (len(pieces["input_ids"]) > question)
        rows += len(reference)
    assert rows == len(encoded)


def all_characters(kind: str, folder: Path) -> PreTrainedTokenizerFast:
    """Return a tokenizer that knows every character of the texts."""
    if kind == "unigram":
        return unigram(tuple(TEXTS.values()))
    pieces = learn_wordpieces([*TEXTS.values(), "is it warm"], 500)
    (folder / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    return wordpiece_tokenizer(folder / "vocab.txt")


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
@pytest.mark.parametrize("script", TEXTS)
def test_characters_survive_every_script(script: str, kind: str, tmp_path: Path) -> None:
    example = asked(TEXTS[script])
    assert example.answers
    encoded = encode_windows([example], all_characters(kind, tmp_path), 99, WindowsConfig(4, 10))
    assert encoded.windows is not None
    [(first, last)] = encoded.windows.gold
    entry = encoded.windows.characters.values
    assert example.whole[entry[first, 0] : entry[last, 1]].strip("\u200b") == example.answers[0].text


def test_only_windows_with_the_whole_answer_have_it(tokenizer: PreTrainedTokenizerFast) -> None:
    """The answer is found again in each of them; all others say [CLS]."""
    example = asked(f"{'the plants on Monday ' * 5}|remind me the water|{' plants on the Monday' * 5}")
    encoded = encode_windows([example, asked("no answer at all")], tokenizer, 36, WindowsConfig(14, 9, 99))
    assert encoded.windows is not None
    assert example.answers
    windows, answer = encoded.windows, example.answers[0]
    assert windows.starts.tolist() == [0, (windows.examples == 0).sum()]
    whole = 0
    for row in range(windows.starts[1]):
        reference = windows.characters.select(np.array([row])).values
        first, last = windows.gold[row]
        has = reference[1:, 0].min() <= answer.start and reference[:, 1].max() >= answer.start + len(answer.text)
        assert has == (first > 0) == (last > 0)
        assert not has or example.whole[reference[first, 0] : reference[last, 1]] == answer.text
        whole += has
    assert 0 < whole < windows.starts[1]
    assert windows.gold[windows.starts[1] :].tolist() == [[0, 0]]
    assert (windows.split_answers, windows.long_answers) == (0, 0)


@pytest.mark.parametrize("length", [1, 3])
def test_an_answer_that_ends_a_piece_outside_of_a_window_is_not_in_it(length: int, tmp_path: Path) -> None:
    """Every answer of a text of one piece per word, in every window: also those at its ends, and one piece beyond."""
    words, tokenizer = ["water"] * 24, wordpiece(tmp_path)
    ends = set()
    for begin in range(len(words) - length + 1):
        parts = (words[:begin], words[begin : begin + length], words[begin + length :])
        before, answer, after = (" ".join(part) for part in parts)
        text = f"{before}{' ' if before else ''}|{answer}|{' ' if after else ''}{after}"
        encoded = encode_windows([asked(text)], tokenizer, 24, WindowsConfig(4, 9))
        windows = encoded.windows
        assert windows is not None
        assert windows.pieces[0] == len(words)
        for row, (first, last) in enumerate(windows.gold.tolist()):
            # The first of a window's pieces is [CLS].
            counts = len(windows.characters.select(np.array([row])).values) - 1
            start = begin - int(windows.first[row])
            whole = start >= 0 and start + length <= counts
            assert (first, last) == ((start + 1, start + length) if whole else (0, 0))
            ends.add(counts - start - length)
    assert {-1, 0} <= ends


def test_answers_that_no_window_has_are_counted(tokenizer: PreTrainedTokenizerFast) -> None:
    example = asked(f"the |{'plants on the Monday ' * 8}water| me on")
    encoded = encode_windows([example, asked("the |water|")], tokenizer, 24, WindowsConfig(2, 9, 8))
    assert encoded.windows is not None
    assert (encoded.windows.split_answers, encoded.windows.long_answers) == (1, 1)


def test_windows_are_chosen_and_joined_like_sentences(tokenizer: PreTrainedTokenizerFast) -> None:
    first, other = (encode_windows(long_texts(seed), tokenizer, 48, WindowsConfig(5, 12)) for seed in (1, 2))
    both = concat([first, other])
    picked = both.select(np.array([len(first) + 1, 0]))
    assert picked.windows is not None
    assert other.windows is not None
    batch = both.batch([0, len(first) + 1])
    assert batch.gold is not None
    assert batch.gold.shape == (2, 2)
    want = other.windows.characters.select(np.array([1])).values
    assert np.array_equal(picked.windows.characters.select(np.array([0])).values, want)
    assert picked.windows.longest == 30


def test_a_text_without_pieces_is_unknown_as_a_whole(tmp_path: Path) -> None:
    encoded = encode_windows([asked("|\u200b\u200b|")], wordpiece(tmp_path), 64, WindowsConfig(4, 10))
    assert encoded.windows is not None
    assert encoded.windows.characters.values.tolist() == [[0, 0], [0, 2]]
    assert encoded.windows.gold.tolist() == [[1, 1]]


def test_windows_without_room_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^model.max_length=128: must be above 196"):
        check_windows(128, WindowsConfig())
    with pytest.raises(UsageError, match=r"^model.windows.stride=-1: must be at least 0"):
        check_windows(384, WindowsConfig(stride=-1))
    check_windows(197, WindowsConfig())


def test_a_split_without_questions_is_no_rows(tokenizer: PreTrainedTokenizerFast) -> None:
    """Languages that are only evaluated have no training split, and most releases no dev split."""
    encoded = encode_windows([], tokenizer, 64, WindowsConfig(4, 10))
    assert encoded.windows is not None
    assert len(encoded) == len(encoded.pieces.lengths) == 0
    assert (encoded.windows.split_answers, encoded.windows.long_answers) == (0, 0)
    nothing = {name: np.zeros(0) for name in ("best", "total", "gold_span", "none")} | {"span": np.zeros((0, 2), int)}
    result = answers_of(encoded.windows, nothing, [], nullable=True)
    assert all(values == [] for values in result.values())
    both = concat([encoded, encode_windows([asked("the |water|")], tokenizer, 64, WindowsConfig(4, 10))])
    assert both.windows is not None
    assert both.windows.characters.select(np.array([0])).values.shape[1] == 2
