"""The embedded corpus: its sizes, its quality, and a checksum against unnoticed changes."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable

import pytest

from tests.conftest import some
from xclrun.data.example import SPLITS, Example, fingerprint
from xclrun.data.readers.mini import DEV, LANGUAGES, TEST, TRAIN, WEIGHTS, read

# MTOP's training sentences (Li et al. 2021, Table 1).
MTOP = {"en": 15667, "de": 13424, "fr": 11814, "hi": 11330, "es": 10934, "th": 10759}
# SHA-256 of all splits. If it changes, all results on mini change with it, and the changelog must say so.
PINNED = "8b429bb7d3e6997c89d0d09d576a3ef4df1a93bdd3cd256326cad4541a6d6693"


def _all(language: str) -> list[Example]:
    return [example for split in SPLITS for example in read([language])[language, split]]


def test_sizes_are_proportional_to_those_of_mtop() -> None:
    sizes = {key: len(examples) for key, examples in read().items()}
    assert sizes == {
        (language, split): size
        for language in LANGUAGES
        for split, size in (("train", TRAIN[language]), ("dev", DEV), ("test", TEST))
    }
    assert sorted(TRAIN, key=lambda language: -TRAIN[language]) == sorted(MTOP, key=lambda language: -MTOP[language])
    for language, size in TRAIN.items():
        assert size / TRAIN["en"] == pytest.approx(MTOP[language] / MTOP["en"], abs=0.002)


@pytest.mark.parametrize("language", LANGUAGES)
class TestEachLanguage:
    def test_ids_and_sentences_are_distinct(self, language: str) -> None:
        examples = _all(language)
        assert len({example.id for example in examples}) == len(examples)
        assert {example.language for example in examples} == {language}
        assert len({tuple(token.casefold() for token in example.tokens) for example in examples}) == len(examples)

    def test_intents_have_their_shares(self, language: str) -> None:
        counts = Counter(example.label for example in _all(language))
        assert set(counts) == set(WEIGHTS)
        for intent, weight in WEIGHTS.items():
            assert counts[intent] == pytest.approx(counts.total() * weight / sum(WEIGHTS.values()), abs=1)

    def test_tags_are_bio(self, language: str) -> None:
        for example in some(_all(language)):
            assert example.tags is not None
            assert len(example.tags) == len(example.tokens)
            for before, tag in zip(("O", *example.tags), example.tags, strict=False):
                assert before in (f"B-{tag[2:]}", tag) if tag[0] == "I" else tag == "O" or tag.startswith("B-"), example

    def test_train_contains_every_intent_and_every_tag(self, language: str) -> None:
        train = read([language])[language, "train"]
        assert {example.label for example in train} == set(WEIGHTS)
        tags = {tag for other in LANGUAGES for example in _all(other) for tag in example.tags or ()}
        assert {tag for example in train for tag in example.tags or ()} == tags

    def test_tokens_are_normalized_words_of_the_script(self, language: str) -> None:
        tokens = [token for example in _all(language) for token in example.tokens]
        for token in some(tokens):
            assert token == unicodedata.normalize("NFC", token) != ""
            assert not any(character.isspace() or ord(character) < 32 for character in token)
        script = {"hi": "DEVANAGARI", "th": "THAI"}.get(language, "LATIN")
        names = [unicodedata.name(letter) for letter in "".join(tokens) if letter.isalpha()]
        assert sum(name.startswith(script) for name in names) / len(names) > 0.95


def test_selected_languages_keep_their_order_and_their_sentences() -> None:
    selected = read(["th", "en"])
    assert list(selected) == [(language, split) for language in ("th", "en") for split in SPLITS]
    assert selected == {key: examples for key, examples in read().items() if key[0] in ("th", "en")}


def test_the_corpus_is_pinned_and_does_not_depend_on_the_process(run_python: Callable[..., str]) -> None:
    code = """
import hashlib
from xclrun.data.example import fingerprint
from xclrun.data.readers.mini import read
parts = [f"{language}/{split}/{fingerprint(examples)}" for (language, split), examples in read().items()]
print(hashlib.sha256(chr(10).join(parts).encode()).hexdigest())
"""
    parts = [f"{language}/{split}/{fingerprint(examples)}" for (language, split), examples in read().items()]
    assert hashlib.sha256("\n".join(parts).encode()).hexdigest() == PINNED
    assert run_python(code, PYTHONHASHSEED="1", LC_ALL="C") == PINNED
