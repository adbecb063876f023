"""Encoding and batching, compared with the tokenizers and with plain loops."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from xclrun.config.schema import DatasetConfig, LabelOn
from xclrun.core.errors import UsageError
from xclrun.data.batches import UNSEEN, Encoded, Ragged, concat, epoch_batches, length_sorted_batches
from xclrun.data.encode import encode, tag_outputs, word_numbers
from xclrun.data.example import Example
from xclrun.data.load import load_dataset
from xclrun.model.vocabulary import wordpiece_tokenizer

SENTENCES = [
    "remind me to water the plants on Monday",
    "Erinnere mich am Montag daran , die Blumen zu gießen !",
    "rappelle-moi d' arroser les plantes",
    "सोमवार को पौधों को पानी देना याद दिलाना",
    "เตือน ฉัน ให้ รด น้ำ ต้นไม้ วัน จันทร์",
    "Привет",
    "set the 3rd alarm for 7:30 , unaffable",
]
PAIRS = [("is it warm", "it is 30 degrees warm today"), ("nein", "doch"), ("a b c d e f g", "h")]
LABELS = ("alarm", "reminder")
TAGS = ("O", "B-when", "I-when")
UNAFFABLE = ["un", "##aff", "##able"]


def wordpiece(folder: Path) -> PreTrainedTokenizerFast:
    """Return a BERT tokenizer that knows every second character of the sentences, so that some words are unknown."""
    characters = sorted({c for s in SENTENCES for c in s if c != " "})[::2]
    words = ["remind", "water", "##er", "plants", "un", "##aff", "##able", "Mon", "##day", "the"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *characters, *(f"##{c}" for c in characters)]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(vocabulary)), encoding="utf-8")
    return wordpiece_tokenizer(folder / "vocab.txt")


def unigram(sentences: Sequence[str] = SENTENCES[:5]) -> PreTrainedTokenizerFast:
    """Return a tokenizer built like XLM-R's: NFKC, Metaspace, unigram pieces, two separators in a pair."""
    core = Tokenizer(models.Unigram())
    core.normalizer = normalizers.NFKC()
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    core.decoder = decoders.Metaspace(prepend_scheme="always")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=special, unk_token="<unk>", show_progress=False)
    core.train_from_iterator(sentences, trainer)
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>", cls_token="<s>"
    )


@pytest.fixture(scope="module", params=["wordpiece", "unigram"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return unigram() if request.param == "unigram" else wordpiece(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture
def bert(tmp_path: Path) -> PreTrainedTokenizerFast:
    return wordpiece(tmp_path)


def examples(*sentences: str, tags: Sequence[str] | None = None) -> list[Example]:
    words = [tuple(sentence.split()) for sentence in sentences]
    return [Example(str(i), "xx", w, "alarm", tuple(tags or ["O"] * len(w))) for i, w in enumerate(words)]


def row(ragged: Ragged, i: int) -> list[int]:
    return ragged.values[ragged.offsets[i] : ragged.offsets[i + 1]].tolist()


def labelled(word_ids: list[int | None], words: int, label_on: str) -> list[int]:
    """Return each word's first or last position in the tokenizer's own account of its pieces."""
    positions = [[p for p, word in enumerate(word_ids) if word == w] for w in range(words)]
    return [p[0] if label_on == "first" else p[-1] for p in positions]


@pytest.mark.parametrize("label_on", ["first", "last"])
def test_sentences_are_what_the_tokenizer_makes_of_them(tokenizer: PreTrainedTokenizerFast, label_on: str) -> None:
    encoded = encode(examples(*SENTENCES), tokenizer, LABELS, TAGS, 128, label_on)
    assert encoded.truncated == 0
    for i, sentence in enumerate(SENTENCES):
        words = sentence.split()
        reference = tokenizer(words, is_split_into_words=True, return_token_type_ids=True)
        assert row(encoded.pieces, i) == reference["input_ids"]
        assert row(encoded.types, i) == reference["token_type_ids"]
        assert row(encoded.word_pieces, i) == labelled(reference.word_ids(), len(words), label_on)
    assert encoded.lengths.tolist() == [len(row(encoded.pieces, i)) for i in range(len(SENTENCES))]


def test_first_and_last_pieces_differ(bert: PreTrainedTokenizerFast) -> None:
    """``un ##aff ##able``, after ``[CLS] [UNK]`` and before ``the``."""
    sentence = examples("§ unaffable the", tags=["O", "B-when", "?"])
    first, last, every = (encode(sentence, bert, LABELS, TAGS, 128, on) for on in LabelOn)
    assert bert.convert_ids_to_tokens(row(first.pieces, 0)) == ["[CLS]", "[UNK]", *UNAFFABLE, "the", "[SEP]"]
    assert row(first.word_pieces, 0) == [1, 2, 5]
    assert row(last.word_pieces, 0) == [1, 4, 5]
    assert row(first.tags, 0) == row(last.tags, 0) == [0, 1, UNSEEN]
    # X, a separate tag after the others, is on all but the first subword of a word.
    assert row(every.word_pieces, 0) == [1, 2, 3, 4, 5]
    assert row(every.tags, 0) == [0, 1, 3, 3, UNSEEN]
    assert [tag_outputs(TAGS, on) for on in LabelOn] == [3, 3, 4]
    assert tag_outputs((), "all") == 0


def test_pairs_are_what_the_tokenizer_makes_of_them(tokenizer: PreTrainedTokenizerFast) -> None:
    """Pairs and single sentences may be mixed."""
    pairs = [Example(a, "xx", tuple(a.split()), "alarm", text_b=b) for a, b in PAIRS]
    encoded = encode([*pairs, *examples("the plants")], tokenizer, LABELS, (), 128)
    for i, (a, b) in enumerate(PAIRS):
        reference = tokenizer(a.split(), b.split(), is_split_into_words=True, return_token_type_ids=True)
        assert row(encoded.pieces, i) == reference["input_ids"]
        assert row(encoded.types, i) == reference["token_type_ids"]
        firsts = [w if s == 0 else None for w, s in zip(reference.word_ids(), reference.sequence_ids(), strict=True)]
        assert row(encoded.word_pieces, i) == labelled(firsts, len(a.split()), "first")
    assert row(encoded.pieces, len(PAIRS)) == tokenizer(["the", "plants"], is_split_into_words=True)["input_ids"]


def test_pieces_know_their_words(tokenizer: PreTrainedTokenizerFast) -> None:
    """As the tokenizer itself says; the words of a second text count on from those of the first."""
    pairs = [Example(a, "xx", tuple(a.split()), "alarm", text_b=b) for a, b in PAIRS]
    numbers = word_numbers([*pairs, *examples(*SENTENCES)], tokenizer, 128, whole_words=True)
    for i, (a, b) in enumerate(PAIRS):
        reference = tokenizer(a.split(), b.split(), is_split_into_words=True)
        texts = zip(reference.word_ids(), reference.sequence_ids(), strict=True)
        target = [-1 if w is None else w + (len(a.split()) if text else 0) for w, text in texts]
        assert row(numbers, i) == target
    for i, sentence in enumerate(SENTENCES, start=len(PAIRS)):
        reference = tokenizer(sentence.split(), is_split_into_words=True)
        assert row(numbers, i) == [-1 if w is None else w for w in reference.word_ids()]


@pytest.mark.parametrize("whole_words", [True, False])
@pytest.mark.parametrize("max_length", [5, 6, 7, 8, 9])
def test_pieces_that_are_left_know_their_words(
    bert: PreTrainedTokenizerFast, max_length: int, whole_words: bool
) -> None:
    """A pair that is cut: the pieces of the words that are named are those that `encode` leaves."""
    pair = [Example("a", "xx", ("unaffable", "the"), "alarm", text_b="the unaffable")]
    pieces = row(encode(pair, bert, LABELS, (), max_length, whole_words=whole_words).pieces, 0)
    numbers = row(word_numbers(pair, bert, max_length, whole_words), 0)
    named: dict[int, list[str]] = {}
    for piece, word in zip(bert.convert_ids_to_tokens(pieces), numbers, strict=True):
        named.setdefault(word, []).append(piece)
    assert set(named.pop(-1)) == {"[CLS]", "[SEP]"}
    whole = [UNAFFABLE, ["the"], ["the"], UNAFFABLE]
    for word, group in named.items():
        assert group == whole[word][: len(group)]
        assert not whole_words or word == 0 or group == whole[word]


@pytest.mark.parametrize("template", ["$A </s>", "<s> <s> $A", "$A"])
def test_any_template_of_special_pieces(template: str) -> None:
    tokenizer = unigram()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=template, pair="$A </s> $B", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    encoded = encode(examples(SENTENCES[0]), tokenizer, LABELS, TAGS, 128)
    reference = tokenizer(SENTENCES[0].split(), is_split_into_words=True)
    assert row(encoded.pieces, 0) == reference["input_ids"]
    assert row(encoded.word_pieces, 0) == labelled(reference.word_ids(), 8, "first")


def test_a_word_without_pieces_gets_the_unknown_piece(bert: PreTrainedTokenizerFast) -> None:
    """A zero-width space is a separate word in MTOP's Hindi, which BERT's normalizer removes."""
    encoded = encode(examples("the \u200b the"), bert, LABELS, TAGS, 128)
    assert bert.convert_ids_to_tokens(row(encoded.pieces, 0)) == ["[CLS]", "the", "[UNK]", "the", "[SEP]"]
    assert row(encoded.word_pieces, 0) == [1, 2, 3]


def test_a_text_without_spaces_that_the_tokenizer_does_not_know_counts_as_cut(bert: PreTrainedTokenizerFast) -> None:
    encoded = encode(examples("the " + "ภ" * 101, "the " + "ภ" * 9), bert, LABELS, TAGS, 128, whole_words=False)
    assert bert.convert_ids_to_tokens(row(encoded.pieces, 0)) == ["[CLS]", "the", "[UNK]", "[SEP]"]
    assert encoded.cut.tolist() == [True, False]


def test_labels_and_tags_that_training_never_had(bert: PreTrainedTokenizerFast) -> None:
    rows = [
        Example("a", "de", ("the", "the", "the"), "reminder", ("B-when", "I-when", "O")),
        Example("b", "th", ("the",), "news", ("B-where",)),
        Example("c", "th", ("the", "the"), "alarm", None),
    ]
    encoded = encode(rows, bert, LABELS, TAGS, 128)
    assert encoded.labels.tolist() == [1, -1, 0]
    assert [row(encoded.tags, i) for i in range(3)] == [[1, 2, 0], [-1], [-1, -1]]
    assert (encoded.ids.tolist(), encoded.languages.tolist()) == (["a", "b", "c"], ["de", "th", "th"])
    assert encoded.words.tolist() == [3, 1, 2]


@pytest.mark.parametrize("label_on", ["first", "last"])
@pytest.mark.parametrize("max_length", range(4, 12))
def test_a_long_sentence_is_cut_at_a_whole_word(bert: PreTrainedTokenizerFast, max_length: int, label_on: str) -> None:
    words = ["the", "unaffable", "plants", "the", "unaffable"]
    tags = ["O", "B-when", "I-when", "O", "O"]
    encoded = encode(examples(" ".join(words), tags=tags), bert, LABELS, TAGS, max_length, label_on)
    sizes = [1, 3, 1, 1, 3]
    retained = max(n for n in range(1, 6) if sum(sizes[:n]) + 2 <= max_length)
    reference = bert(words[:retained], is_split_into_words=True)
    assert row(encoded.pieces, 0) == reference["input_ids"]
    assert row(encoded.word_pieces, 0) == labelled(reference.word_ids(), retained, label_on)
    assert row(encoded.tags, 0) == [0, 1, 2, 0, 0][:retained]
    assert encoded.words.tolist() == [5]
    assert encoded.truncated == (retained < 5)


@pytest.mark.parametrize("label_on", ["first", "last"])
def test_a_first_word_that_is_too_long_is_cut_itself(bert: PreTrainedTokenizerFast, label_on: str) -> None:
    encoded = encode(examples("unaffable the"), bert, LABELS, TAGS, 4, label_on)
    assert bert.convert_ids_to_tokens(row(encoded.pieces, 0)) == ["[CLS]", "un", "##aff", "[SEP]"]
    assert row(encoded.word_pieces, 0) == [1 if label_on == "first" else 2]
    assert encoded.truncated == 1


@pytest.mark.parametrize(
    ("a", "b", "max_length", "retained"),
    [
        ("the the the the", "the", 7, "[CLS] the the the [SEP] the [SEP]"),
        ("the", "the the the the", 7, "[CLS] the [SEP] the the the [SEP]"),
        ("the the the", "the the the", 7, "[CLS] the the [SEP] the the [SEP]"),
        ("the the the", "the the the", 8, "[CLS] the the [SEP] the the the [SEP]"),
        ("unaffable", "the the", 5, "[CLS] un ##aff [SEP] [SEP]"),
    ],
)
def test_the_longer_text_of_a_pair_is_cut(
    bert: PreTrainedTokenizerFast, a: str, b: str, max_length: int, retained: str
) -> None:
    pair = Example("a", "xx", tuple(a.split()), "alarm", text_b=b)
    encoded = encode([pair], bert, LABELS, (), max_length)
    assert bert.convert_ids_to_tokens(row(encoded.pieces, 0)) == retained.split()
    assert encoded.truncated == 1


def test_what_cannot_be_encoded(bert: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UsageError, match=r"^model.max_length=2: must be above 2"):
        encode(examples("the"), bert, LABELS, TAGS, 2)
    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(UsageError, match="no padding token"):
        encode(examples("a"), bare, LABELS, TAGS, 8)
    bare.add_special_tokens({"pad_token": "a"})
    bare.backend_tokenizer.normalizer = normalizers.Replace("b", "")
    with pytest.raises(UsageError, match="no subword for 'b'"):
        encode(examples("a b"), bare, LABELS, TAGS, 8)


@pytest.fixture
def encoded(bert: PreTrainedTokenizerFast) -> Encoded:
    tags = ["O", "B-when", "I-when", "O", "B-when"]
    rows = [
        Example(str(i), language, tuple(s.split()), LABELS[i % 2], tuple((tags * 9)[i : i + len(s.split())]))
        for i, (s, language) in enumerate(zip(SENTENCES, ["en", "de", "fr", "hi", "th", "ru", "en"], strict=True))
    ]
    return encode(rows, bert, LABELS, TAGS, 128)


def test_a_batch_is_the_rows_padded_on_the_right(encoded: Encoded) -> None:
    indices = np.array([5, 0, 3, 0])
    batch = encoded.batch(indices)
    assert batch.size == 4
    assert batch.indices.tolist() == [5, 0, 3, 0]
    assert batch.labels.tolist() == [1, 0, 1, 0]
    pieces, words = max(encoded.lengths[indices]), max(encoded.words[indices])
    for got, ragged, width, fill in (
        (batch.input_ids, encoded.pieces, pieces, encoded.pad),
        (batch.token_type_ids, encoded.types, pieces, 0),
        (batch.word_pieces, encoded.word_pieces, words, 0),
        (batch.tags, encoded.tags, words, 0),
    ):
        rows = [row(ragged, i) for i in indices]
        assert got.dtype == torch.int64
        assert got.tolist() == [r + [fill] * (width - len(r)) for r in rows]
    assert batch.attention_mask.dtype == torch.int64
    assert batch.attention_mask.sum(1).tolist() == encoded.lengths[indices].tolist()
    assert batch.word_mask.dtype == torch.bool
    assert batch.word_mask.sum(1).tolist() == encoded.words[indices].tolist()
    assert bool(batch.word_mask[:, 0].all()), "the first word is always there, which the CRF needs"
    for mask in (batch.attention_mask.bool(), batch.word_mask):
        assert bool((mask[:, 1:] <= mask[:, :-1]).all()), "no value lies to the right of padding"


def test_batches_take_lists_and_move(encoded: Encoded) -> None:
    batch = encoded.batch([1]).to("meta")
    assert batch.input_ids.device.type == batch.word_mask.device.type == "meta"
    assert batch.indices.tolist() == [1]
    assert encoded.batch([]).size == 0


def test_select_and_concat(encoded: Encoded) -> None:
    """A batch of a selection, or of parts put together, is the batch of the same examples."""
    again = concat([encoded.select([6, 2]), encoded.select([]), encoded.select(np.array([0, 2]))])
    assert len(again) == 4
    assert again.ids.tolist() == ["6", "2", "0", "2"]
    assert again.languages.tolist() == ["en", "fr", "en", "fr"]
    expected, got = encoded.batch([6, 2, 0, 2]), again.batch(range(4))
    assert expected.tensors.keys() == got.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(tensor, got.tensors[name])
    assert (again.words == encoded.words[[6, 2, 0, 2]]).all()
    with pytest.raises(ValueError, match="share a tokenizer"):
        concat([])
    with pytest.raises(ValueError, match=r"share a task.*'other'"):
        concat([encoded, replace(encoded, task="other")])


RAGGED = st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=8)


@given(rows=RAGGED, data=st.data())
def test_ragged_rows_are_rows(rows: list[list[int]], data: st.DataObject) -> None:
    ragged = Ragged.of(rows)
    indices = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1), max_size=6))
    chosen = [rows[i] for i in indices]
    at = np.array(indices, np.int64)
    selected = ragged.select(at)
    assert [row(selected, i) for i in range(len(chosen))] == chosen
    width = max(map(len, chosen), default=0)
    matrix, inside = ragged.padded(at, -7)
    assert matrix.tolist() == [r + [-7] * (width - len(r)) for r in chosen]
    assert inside.tolist() == [[True] * len(r) + [False] * (width - len(r)) for r in chosen]


def test_nothing_can_be_encoded_too(bert: PreTrainedTokenizerFast) -> None:
    encoded = encode([], bert, LABELS, TAGS, 8)
    assert (len(encoded), encoded.truncated, encoded.lengths.tolist()) == (0, 0, [])


def test_epoch_batches_shuffle_and_keep_everything() -> None:
    batches = epoch_batches(10, 4, np.random.default_rng(1))
    assert [len(b) for b in batches] == [4, 4, 2]
    flat = np.concatenate(batches).tolist()
    assert sorted(flat) == list(range(10)) != flat
    assert np.concatenate(epoch_batches(10, 4, np.random.default_rng(1))).tolist() == flat
    assert np.concatenate(epoch_batches(10, 4, np.random.default_rng(2))).tolist() != flat


def test_grouped_batches_keep_everything_and_pad_little() -> None:
    """Each window of ten batches has the sentences that it would have without groups; the rest is drawn from all."""
    lengths = np.random.default_rng(0).integers(3, 60, 1603)
    plain, grouped = (epoch_batches(1603, 16, np.random.default_rng(1), of) for of in (None, lengths))
    assert [len(batch) for batch in grouped] == [len(batch) for batch in plain] == [16] * 100 + [3]
    for start in range(0, 100, 10):
        window = slice(start, start + 10)
        assert sorted(np.concatenate(grouped[window])) == sorted(np.concatenate(plain[window]))
    assert grouped[-1].tolist() == plain[-1].tolist()
    positions = [sum(len(batch) * int(lengths[batch].max()) for batch in batches) for batches in (plain, grouped)]
    assert positions[1] / lengths.sum() < 1.15 < 1.7 < positions[0] / lengths.sum()
    # Within a window, short batches do not come first.
    means = [float(lengths[batch].mean()) for batch in grouped[:10]]
    assert means != sorted(means)
    again = epoch_batches(1603, 16, np.random.default_rng(1), lengths)
    assert all(a.tolist() == b.tolist() for a, b in zip(again, grouped, strict=True))


def test_length_sorted_batches_start_with_the_longest() -> None:
    batches = length_sorted_batches(np.array([3, 9, 3, 5, 9]), 2)
    assert [b.tolist() for b in batches] == [[1, 4], [3, 0], [2]]


def test_batches_have_as_many_sentences_as_their_tokens_allow() -> None:
    """Widths 9, 9, 5, 3, 3, 3: two of 9 take 18 positions, one of 5 and three of 3 take 20."""
    lengths = np.array([3, 9, 3, 5, 9, 3])
    assert [b.tolist() for b in length_sorted_batches(lengths, 10, 20)] == [[1, 4], [3, 0, 2, 5]]
    assert [b.tolist() for b in length_sorted_batches(lengths, 3, 20)] == [[1, 4], [3, 0, 2], [5]]
    # A sentence beyond the limit is a batch by itself.
    assert [b.tolist() for b in length_sorted_batches(lengths, 10, 8)] == [[1], [4], [3], [0, 2], [5]]
    assert length_sorted_batches(np.array([], np.int64), 10, 8) == []


@pytest.mark.full
@pytest.mark.shared
@pytest.mark.parametrize("language", ["de", "hi", "th"])
def test_real_sentences(shared_data: Path, bert: PreTrainedTokenizerFast, language: str) -> None:
    """Combining marks and zero-width characters: the tokenizer's own pieces, wherever each word has some."""
    config = DatasetConfig("mtop", "mtop", root=str(shared_data / "mtop16"), languages=[language], max_eval=500)
    sentences = load_dataset(config).split(language, "test")
    encoded = encode(sentences, bert, LABELS, TAGS, 512)
    compared = 0
    for i, example in enumerate(sentences):
        reference = bert(list(example.tokens), is_split_into_words=True)
        if len(set(reference.word_ids()) - {None}) == len(example.tokens):
            assert row(encoded.pieces, i) == reference["input_ids"]
            compared += 1
        assert (np.diff(row(encoded.word_pieces, i)) > 0).all()
        assert len(row(encoded.word_pieces, i)) == len(example.tokens)
    assert compared > 490
