"""The embedded corpus: its sizes, that it is sound, and that it never changes unnoticed."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable

import pytest

from tests.conftest import some
from xclrun.data.example import Example, fingerprint
from xclrun.data.readers.mini import DEV, DOMAINS, LANGUAGES, TEST, TRAIN, WEIGHTS, read

# MTOP's training sentences (Li et al. 2021, Table 1).
MTOP = {"en": 15667, "de": 13424, "fr": 11814, "hi": 11330, "es": 10934, "th": 10759}
# SHA-256 of all splits. Where it changes, all results on mini change with it, and the changelog must say so.
PINNED = "8b429bb7d3e6997c89d0d09d576a3ef4df1a93bdd3cd256326cad4541a6d6693"


def pin() -> str:
    """Return the SHA-256 of the whole corpus, all splits in order."""
    parts = [f"{language}/{split}/{fingerprint(examples)}" for (language, split), examples in read().items()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _all(language: str) -> list[Example]:
    return [example for split in ("train", "dev", "test") for example in read([language])[language, split]]


def test_sizes() -> None:
    sizes = {key: len(examples) for key, examples in read().items()}
    for language in LANGUAGES:
        assert sizes[language, "train"] == TRAIN[language]
        assert sizes[language, "dev"] == DEV
        assert sizes[language, "test"] == TEST
    assert len(sizes) == 3 * len(LANGUAGES)
    assert sum(TRAIN.values()) == 3021


def test_sizes_have_the_proportions_of_mtop() -> None:
    assert sorted(TRAIN, key=lambda language: -TRAIN[language]) == ["en", "de", "fr", "hi", "es", "th"]
    assert len(set(TRAIN.values())) == len(TRAIN)
    for language, size in TRAIN.items():
        assert size / TRAIN["en"] == pytest.approx(MTOP[language] / MTOP["en"], abs=0.002)


def test_intents_have_their_shares() -> None:
    for language in LANGUAGES:
        counts = Counter(example.label for example in _all(language))
        total = TRAIN[language] + DEV + TEST
        assert set(counts) == set(DOMAINS)
        for intent, weight in WEIGHTS.items():
            assert counts[intent] == pytest.approx(total * weight / sum(WEIGHTS.values()), abs=1)


@pytest.mark.parametrize("language", LANGUAGES)
class TestEachLanguage:
    def test_no_id_and_no_sentence_comes_twice(self, language: str) -> None:
        """Neither in one split nor in two: nothing of test can be learned by heart."""
        examples = _all(language)
        assert len({example.id for example in examples}) == len(examples)
        assert {example.language for example in examples} == {language}
        sentences = Counter(tuple(token.casefold() for token in example.tokens) for example in examples)
        assert [sentence for sentence, count in sentences.items() if count > 1] == []

    def test_tags_are_bio(self, language: str) -> None:
        for example in some(_all(language)):
            assert example.tags is not None
            assert len(example.tags) == len(example.tokens)
            for before, tag in zip(("O", *example.tags), example.tags, strict=False):
                if tag.startswith("I-"):
                    assert before in (f"B-{tag[2:]}", tag), example
                else:
                    assert tag == "O" or tag.startswith("B-"), example

    def test_train_holds_every_intent_and_every_tag(self, language: str) -> None:
        everything = [example for other in LANGUAGES for example in _all(other)]
        train = read([language])[language, "train"]
        assert {example.label for example in train} == set(DOMAINS)
        tags = {tag for example in everything for tag in example.tags or ()}
        assert {tag for example in train for tag in example.tags or ()} == tags
        assert {f"{part}-{tag[2:]}" for tag in tags if tag != "O" for part in "BI"} == tags - {"O"}

    def test_tokens_are_words_in_normal_form(self, language: str) -> None:
        for example in some(_all(language)):
            for token in some(example.tokens):
                assert token
                assert token == unicodedata.normalize("NFC", token)
                assert not any(character.isspace() or ord(character) < 32 for character in token), example

    def test_written_in_its_script(self, language: str) -> None:
        letters = "".join(token for example in _all(language) for token in example.tokens)
        script = {"hi": "DEVANAGARI", "th": "THAI"}.get(language, "LATIN")
        named = [unicodedata.name(letter) for letter in letters if letter.isalpha()]
        assert sum(name.startswith(script) for name in named) / len(named) > 0.95

    def test_alone_is_what_it_is_among_all(self, language: str) -> None:
        assert read([language]) == {key: examples for key, examples in read().items() if key[0] == language}


def test_chosen_languages_keep_their_order() -> None:
    splits = ("train", "dev", "test")
    assert list(read(["th", "en"])) == [(language, split) for language in ("th", "en") for split in splits]


def test_corpus_is_pinned() -> None:
    assert pin() == PINNED


def test_does_not_depend_on_the_process(run_python: Callable[..., str]) -> None:
    code = """
import hashlib
from xclrun.data.example import fingerprint
from xclrun.data.readers.mini import read
parts = [f"{language}/{split}/{fingerprint(examples)}" for (language, split), examples in read().items()]
print(hashlib.sha256(chr(10).join(parts).encode()).hexdigest())
"""
    assert run_python(code, PYTHONHASHSEED="1", LC_ALL="C") == PINNED
