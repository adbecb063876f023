"""Documents as subwords: rows, windows and their sources, with ids by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.test_texts import marked, rows
from tests.model.decoders import BOS, END, tokenizer
from xclrun.config.schema import DatasetConfig, ModelConfig
from xclrun.core.errors import UsageError
from xclrun.core.task import LANGUAGE_MODELLING
from xclrun.data.batches import Encoded
from xclrun.data.documents import encode_documents, windows_of
from xclrun.data.example import Dataset, Example, Targets
from xclrun.data.notes import shared_ngrams
from xclrun.data.readers import read

TARGET = Targets(LANGUAGE_MODELLING, ("en",), (), ())


def document(text: str, id: str = "a", language: str = "en") -> Example:
    return Example(id, language, tuple(text.split()), None, text=text)


def encode(
    *texts: str, split: str = "test", pieces: Any = None, max_length: int = 4, stride: int | None = None
) -> Encoded:
    examples = [document(text, str(i)) for i, text in enumerate(texts)]
    model = ModelConfig(name="x", max_length=max_length)
    return encode_documents(examples, pieces or tokenizer(), TARGET, model, split, stride)


def test_a_training_document_is_one_row_that_begins_with_bos_and_learns_its_end() -> None:
    encoded = encode("a b", "a b c d e", split="train")
    assert rows(encoded) == [
        ([BOS, "a", "Ġb"], ["a", "Ġb", END]),
        ([BOS, "a", "Ġb", "Ġc"], ["a", "Ġb", "Ġc", "Ġd"]),
    ]
    assert [range_.tolist() for range_ in np.split(encoded.word_pieces.values, [3])] == [[0, 1, 2], [0, 1, 2, 3]]
    # The second one lost its end, which is counted.
    assert marked(encoded) == {"cut_targets": 1}
    assert encoded.truncated == 1


@pytest.mark.parametrize(("length", "cut"), [(4, 0), (3, 1)], ids=["the end fits", "the end does not fit"])
def test_the_end_of_a_training_document_is_the_last_subword_that_may_fit(length: int, cut: int) -> None:
    encoded = encode("a b c", split="train", max_length=length)
    assert encoded.truncated == cut
    assert (rows(encoded)[0][1][-1] == END) is not bool(cut)


def test_windows_predict_each_subword_once_and_share_one_subword() -> None:
    """The last window is as long as the others, as in lm-eval; EOS is not scored."""
    encoded = encode("a b c d e f a b c d", "a")
    assert rows(encoded) == [
        ([BOS, "a", "Ġb", "Ġc"], ["a", "Ġb", "Ġc", "Ġd"]),
        (["Ġd", "Ġe", "Ġf", "Ġa"], ["Ġe", "Ġf", "Ġa", "Ġb"]),
        (["Ġf", "Ġa", "Ġb", "Ġc"], ["Ġc", "Ġd"]),
        ([BOS], ["a"]),
    ]
    assert encoded.ids.tolist() == ["0", "0", "0", "1"]
    assert np.split(encoded.word_pieces.values, encoded.word_pieces.offsets[1:-1])[2].tolist() == [2, 3]
    assert marked(encoded) == {}


def test_a_stride_gives_each_further_window_context() -> None:
    assert rows(encode("a b c d e f", stride=1))[1:] == [
        (["a", "Ġb", "Ġc", "Ġd"], ["Ġe"]),
        (["Ġb", "Ġc", "Ġd", "Ġe"], ["Ġf"]),
    ]
    assert rows(encode("a b c d e f", stride=4)) == rows(encode("a b c d e f"))


@pytest.mark.parametrize("room", [1, 2, 3, 7])
@pytest.mark.parametrize("stride", [1, 2, 7])
@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 8, 13, 14])
def test_every_subword_is_predicted_once_from_those_directly_before_it(room: int, stride: int, size: int) -> None:
    pieces, seen = list(range(1, size + 1)), []
    for row, predicted in windows_of(pieces, [0], room, min(stride, room)):
        seen += predicted
        assert len(row) <= room
        # The input ends before the last predicted subword.
        assert row == list(range(predicted[-1] - len(row), predicted[-1]))
        assert len(row) >= len(predicted)
    assert seen == pieces


@pytest.mark.parametrize(
    ("given", "first"),
    [({}, BOS), ({"bos": False}, BOS), ({"bos": False, "bos_token": None}, END)],
    ids=["written by the tokenizer", "not written", "no BOS"],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_document_begins_after_bos_or_without_one_after_eos(given: dict[str, Any], first: str, split: str) -> None:
    pieces = tokenizer(**given)
    assert rows(encode("a b", split=split, pieces=pieces), pieces)[0][0][0] == first


def source(tmp_path: Path, **given: Any) -> dict[tuple[str, str], tuple[Example, ...]]:
    cfg = DatasetConfig(name="x", reader="documents", task=LANGUAGE_MODELLING.name, root=str(tmp_path), **given)
    return read(cfg)[0]


def write(tmp_path: Path, content: str, name: str = "txt") -> Path:
    (tmp_path / "de").mkdir(exist_ok=True)
    for split in ("train", "test"):
        (tmp_path / "de" / f"{split}.{name}").write_text(content, encoding="utf-8")
    return tmp_path


def test_blank_lines_separate_documents_which_keep_their_lines(tmp_path: Path) -> None:
    splits = source(write(tmp_path, "Der Hund  bellt.\n  Laut.\n\n \n\nEnde\n"))
    assert [(e.id, e.whole) for e in splits["de", "test"]] == [
        ("test-1", "Der Hund  bellt.\n  Laut."), ("test-6", "Ende")
    ]  # fmt: skip


def test_rows_of_json_lines_have_a_text(tmp_path: Path) -> None:
    lines = [{"text": "Ein\n\nHund ", "id": "x", "url": "y"}, {"text": "zwei"}]
    splits = source(write(tmp_path, "".join(json.dumps(line) + "\n" for line in lines), "jsonl"))
    assert [(e.id, e.whole) for e in splits["de", "train"]] == [("x", "Ein\n\nHund "), ("train-2", "zwei")]
    with pytest.raises(UsageError, match=r"train\.jsonl:1: 'text' is missing"):
        source(write(tmp_path, '{"body": "x"}\n', "jsonl"))


def test_a_dataset_of_the_library_gives_documents(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"content": ["Ein Hund", "zwei"]})
    datasets.DatasetDict(train=table, test=table).save_to_disk(tmp_path / "hub")
    cfg = DatasetConfig(
        name="x", reader="documents", task=LANGUAGE_MODELLING.name, hub=str(tmp_path / "hub"), languages=["de"],
        hub_columns={"text": "content"},
    )  # fmt: skip
    assert [e.whole for e in read(cfg)[0]["de", "test"]] == ["Ein Hund", "zwei"]


@pytest.mark.parametrize(("language", "shared"), [("de", 1), ("ja", 2)])
def test_test_documents_that_share_13_words_or_characters_with_training_are_counted(language: str, shared: int) -> None:
    words = [f"w{i}" for i in range(20)]

    def documents(*texts: str) -> tuple[Example, ...]:
        return tuple(document(text, str(i), language) for i, text in enumerate(texts))

    test = documents(" ".join(["x", *words[3:16]]).upper(), " ".join(["x", *words[3:15]]), "kurz")
    dataset = Dataset(
        "x", LANGUAGE_MODELLING, (language,),
        {(language, "train"): documents(" ".join(words)), (language, "dev"): (), (language, "test"): test},
    )  # fmt: skip
    assert shared_ngrams(dataset, language) == shared


def test_windows_are_those_of_lm_eval() -> None:
    """The model's input is context and continuation without its last subword."""
    utils = pytest.importorskip("lm_eval.utils")
    for room, size in [(4, 10), (1, 3), (7, 7), (5, 23), (8, 3)]:
        pieces = list(range(1, size + 1))
        for stride in range(1, room + 1):
            rolling = utils.get_rolling_token_windows(pieces, 0, room, room - stride + 1)
            theirs = [(([*a, *b])[:-1], list(b)) for a, b in map(utils.make_disjoint_window, rolling)]
            assert list(windows_of(pieces, [0], room, stride)) == theirs
