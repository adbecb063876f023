"""The learned vocabulary: the same wherever it is learned, without unknown characters, in its bounds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.core.task import INTENT_SLOTS, SEQUENCE_CLASS
from xclrun.data.example import Dataset, Example
from xclrun.model.source import SPECIAL, encoder_identity
from xclrun.model.vocabulary import learn_wordpieces, load_tokenizer

from .pretrained import write_encoder

SENTENCES = [
    "remind me to water the plants on Monday",
    "Erinnere mich am Montag daran , die Blumen zu gießen !",
    "rappelle-moi d' arroser les plantes à 7:30",
    "सोमवार को पौधों को पानी देना याद दिलाना",
    "เตือนฉันให้รดน้ำต้นไม้วันจันทร์",
    "明天早上 叫醒 我",
]
CHARACTERS = sorted({c for s in SENTENCES for c in s if not c.isspace()})
# The special pieces, each character first in a word and inside one, and the marker.
LEAST = len(SPECIAL) + 2 * len(CHARACTERS) + 1


def corpus(**splits: list[str]) -> Dataset:
    """Return a dataset of one language; splits that are not given hold one sentence."""
    return Dataset(
        "made",
        INTENT_SLOTS,
        ("xx",),
        {
            ("xx", split): tuple(
                Example(str(i), "xx", tuple(s.split()), "a") for i, s in enumerate(splits.get(split, ["a b"]))
            )
            for split in ("train", "dev", "test")
        },
    )


def tiny(size: int = 400, **changes: Any) -> ModelConfig:
    return ModelConfig(**{"name": "tiny", "vocab_size": size, **changes})


def test_the_same_in_every_process(run_python: Callable[..., str]) -> None:
    """Hash seeds and threads differ; many words of like frequency make ties."""
    code = (
        "import json, random\n"
        "from xclrun.model.vocabulary import learn_wordpieces\n"
        "r = random.Random(1)\n"
        "words = [''.join(r.choice('abcdeéहकन') for _ in range(r.randint(1, 6))) for _ in range(900)]\n"
        "sentences = [' '.join(words[i : i + 6]) for i in range(0, 900, 6)]\n"
        "found = learn_wordpieces(sentences, 400)\n"
    )
    other = {"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "4", "TOKENIZERS_PARALLELISM": "true"}
    present: dict[str, Any] = {}
    exec(code, present)
    assert json.loads(run_python(f"{code}print(json.dumps(found))", **other)) == present["found"]
    assert len(present["found"]) > 300


@pytest.mark.parametrize("size", [LEAST, 200, 3000])
def test_the_bound_holds_and_nothing_is_there_twice(size: int) -> None:
    pieces = learn_wordpieces(SENTENCES, size)
    assert len(pieces) <= size
    assert len(set(pieces)) == len(pieces)
    assert tuple(pieces[:5]) == SPECIAL
    # Every word is a piece once there is room.
    assert ("plants" in pieces) == (size == 3000)


def test_texts_without_spaces_are_learned_in_pieces() -> None:
    text = "ภาษาไทย" * 3_000
    pieces = [text[i : i + 1000] for i in range(0, len(text), 1000)]
    assert learn_wordpieces([f"ก {text} ข"], 100) == learn_wordpieces([" ".join(["ก", *pieces, "ข"])], 100)


def test_a_bound_that_cannot_hold_the_characters_is_refused_while_planning() -> None:
    encoder_identity(tiny(LEAST), corpus(train=SENTENCES))
    with pytest.raises(UsageError, match=f"vocab_size={LEAST - 1}: .* need at least {LEAST}"):
        encoder_identity(tiny(LEAST - 1), corpus(train=SENTENCES))


@pytest.mark.parametrize("size", [LEAST, 400])
def test_no_seen_character_is_unknown(size: int, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny(size), corpus(train=SENTENCES), tmp_path)
    # As a word, at the beginning of a word, and inside, also in unseen words.
    for text in (" ".join(CHARACTERS[::-1]), *(f"{c}a a{c}a" for c in CHARACTERS)):
        assert tokenizer.unk_token not in tokenizer.tokenize(text), text
    assert tokenizer.tokenize("Ω") == [tokenizer.unk_token]


def test_words_are_put_together_from_their_pieces(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny(), corpus(train=SENTENCES), tmp_path)
    for word in ("plants", "Monday", "gießen", "सोमवार"):
        pieces = tokenizer.tokenize(word)
        assert "".join(piece.removeprefix("##") for piece in pieces) == word
        assert [piece.startswith("##") for piece in pieces] == [False] + [True] * (len(pieces) - 1)


def test_case_and_accents_are_kept(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny(), corpus(train=["É e E é"] * 4), tmp_path)
    assert tokenizer.tokenize("É e E é") == ["É", "e", "E", "é"]


def test_learnt_once_from_the_training_split_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_tokenizer(tiny(), corpus(train=SENTENCES, test=["Ωmega"]), tmp_path).get_vocab()
    assert not any("Ω" in piece for piece in first)
    assert len(list(tmp_path.iterdir())) == 1

    def never(*_: Any) -> None:
        raise AssertionError("the kept vocabulary was not used")

    with monkeypatch.context() as patch:
        patch.setattr("xclrun.model.vocabulary.learn_wordpieces", never)
        assert load_tokenizer(tiny(), corpus(train=SENTENCES, test=["other"]), tmp_path).get_vocab() == first
    # Another training split, or another size, is another vocabulary, in another file.
    other = load_tokenizer(tiny(), corpus(train=[*SENTENCES, "Ωmega"]), tmp_path).get_vocab()
    smaller = load_tokenizer(tiny(200), corpus(train=SENTENCES), tmp_path).get_vocab()
    assert "Ω" in other
    assert len(smaller) < len(first)
    assert len(list(tmp_path.iterdir())) == 3


def test_with_second_texts_it_is_another_vocabulary_whichever_is_learnt_first(tmp_path: Path) -> None:
    """A corpus can be read as pairs and as first texts alone; the fingerprints of its splits are the same."""
    rows = tuple(Example(str(i), "xx", tuple(s.split()), "a", text_b=s[::-1]) for i, s in enumerate(SENTENCES))
    splits = {("xx", split): rows for split in ("train", "dev", "test")}
    tasks = [Dataset("made", task, ("xx",), splits) for task in (INTENT_SLOTS, SEQUENCE_CLASS)]
    alone = [load_tokenizer(tiny(), data, tmp_path / data.task.name).get_vocab() for data in tasks]
    assert alone[0] != alone[1]
    for place, order in (("one", tasks), ("other", tasks[::-1])):
        for data in order:
            assert load_tokenizer(tiny(), data, tmp_path / place).get_vocab() == alone[tasks.index(data)]


def test_ids_are_the_lines_of_the_file(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny(), corpus(train=SENTENCES), tmp_path)
    [path] = tmp_path.iterdir()
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) == lines
    assert tokenizer.pad_token_id == 0


def test_a_pretrained_tokenizer_is_read_from_its_folder(tmp_path: Path) -> None:
    source = load_tokenizer(tiny(), corpus(train=SENTENCES), tmp_path / "cache")
    folder = tmp_path / "encoder"
    source.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (folder / "model.safetensors").touch()
    result = load_tokenizer(tiny(path=str(folder)), corpus(), tmp_path / "other")
    assert result.get_vocab() == source.get_vocab()
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("content", "message"), [(None, "has no tokenizer.json"), ("{", "its tokenizer cannot be read")]
)
def test_a_folder_without_a_tokenizer_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder")
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(UsageError, match=rf"^model\.path=\S+ {message}[^\n]*$"):
        load_tokenizer(tiny(path=str(folder)), corpus(), tmp_path / "cache")
