"""Tokenizers: the encoder's own, or WordPiece with a vocabulary learned from the training splits.

The WordPiece trainer of `tokenizers` is not deterministic, but its BPE trainer is. Subwords are therefore learned by
BPE on words that start with a marker, and then converted: ``▁wa`` becomes ``wa`` (at the beginning of a word), and
``ke`` becomes ``##ke`` (inside a word).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.core.identity import digest
from xclrun.core.terminal import note
from xclrun.data.batches import Encoded
from xclrun.data.encodings import encoding_of
from xclrun.data.example import Dataset
from xclrun.model.folder import TOKENIZER_FILES, one_line
from xclrun.model.source import (
    SPECIAL,
    TEXT_SPECIAL,
    alphabet,
    check_vocabulary,
    learned_from,
    locate,
    of_bytes,
    pairs,
    source_identity,
)
from xclrun.store.cache import CachedFile

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MARKER = "▁"

# Longer words, such as Thai documents, are learned in pieces of 1,000 characters, because the time to learn subwords
# grows with the square of a word's length: seconds at 20,000 characters, hours at a million.
_LONG_WORD = re.compile(r"\S{20001,}")
_PIECE = re.compile(r"(\S{1000})(?=\S)")


def learn_wordpieces(sentences: Iterable[str], size: int) -> list[str]:
    """Return a WordPiece vocabulary of at most ``size`` tokens, special tokens first, equal on every machine.

    The vocabulary contains every character of the sentences twice: at the beginning of a word, and inside.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Metaspace(MARKER, prepend_scheme="always")]
    )
    sentences = [_LONG_WORD.sub(lambda word: _PIECE.sub(r"\1 ", word[0]), sentence) for sentence in sentences]
    characters = alphabet(sentences)
    check_vocabulary(size, characters)
    # BPE counts each character once, but WordPiece has two forms of it: reserve room for the second form.
    budget = size - len(SPECIAL) - len(characters)
    trainer = trainers.BpeTrainer(vocab_size=budget, show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    vocabulary = tokenizer.get_vocab()
    learned = [piece for piece in sorted(vocabulary, key=vocabulary.__getitem__) if piece != MARKER]
    single = [piece for piece in learned if len(piece) == 1]
    pieces = [piece[1:] if piece.startswith(MARKER) else "##" + piece for piece in learned]
    return list(dict.fromkeys([*SPECIAL, *single, *pieces]))


def learn_bytes(texts: Iterable[str], size: int) -> str:
    """Return a tokenizer.json: byte-level BPE of at most ``size`` subwords, as in GPT-2, with BOS before each text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = list(TEXT_SPECIAL)
    tokenizer.train_from_iterator(
        (_LONG_WORD.sub(lambda word: _PIECE.sub(r"\1 ", word[0]), text) for text in texts),
        trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    bos = TEXT_SPECIAL[1]
    tokenizer.post_processor = processors.TemplateProcessing(f"{bos} $A", f"{bos} $A {bos} $B", [(bos, 1)])
    text: str = tokenizer.to_str()
    return text


def used_pieces(splits: Iterable[Encoded], tokenizer: PreTrainedTokenizerFast, from_padding: bool = True) -> np.ndarray:
    """Return the ids (m,) int64, ascending, of a trimmed vocabulary: used subwords and special tokens.

    Args:
        from_padding: keep all ids up to the padding's id, from which RoBERTa's family counts positions.
    """
    pad = tokenizer.pad_token_id
    assert isinstance(pad, int)
    always = np.array([*(range(pad) if from_padding else ()), pad, *tokenizer.all_special_ids], np.int64)
    return np.unique(np.concatenate([always, *(np.unique(split.pieces.values) for split in splits)]))


def learned_vocabulary(model: ModelConfig, dataset: Dataset, cache: Path, warn: Callable[[str], None] = note) -> Path:
    """Return the cached file of a vocabulary learned from the data, one token per line.

    Args:
        warn: called with a line about a damaged file, which is written again.
    """
    key = digest([source_identity(model, dataset), model.vocab_size, pairs(dataset)])
    cached = CachedFile(cache, f"vocabulary-{key[:16]}", ".txt", warn)
    if (path := cached.find()) is not None:
        return path
    assert model.vocab_size is not None
    pieces = learn_wordpieces(learned_from(dataset), model.vocab_size)
    return cached.write("".join(f"{piece}\n" for piece in pieces).encode())


def learned_bytes(model: ModelConfig, dataset: Dataset, cache: Path, warn: Callable[[str], None] = note) -> Path:
    """Return the cached tokenizer.json of subwords of bytes, learned from texts and their references."""
    key = digest([source_identity(model, dataset), model.vocab_size, "bytes"])
    cached = CachedFile(cache, f"vocabulary-{key[:16]}", ".json", warn)
    if (path := cached.find()) is not None:
        return path
    assert model.vocab_size is not None
    return cached.write(learn_bytes(learned_from(dataset), model.vocab_size).encode())


def learned_size(model: ModelConfig, dataset: Dataset, cache: Path) -> int:
    """Return the number of subwords of a vocabulary that is learned from the data; without transformers."""
    if not of_bytes(dataset):
        return learned_vocabulary(model, dataset, cache).read_bytes().count(b"\n")
    from tokenizers import Tokenizer

    size: int = Tokenizer.from_file(str(learned_bytes(model, dataset, cache))).get_vocab_size()
    return size


def bytes_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of subwords of bytes in a file."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    pad, bos, eos = TEXT_SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(path.read_text(encoding="utf-8")),
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        clean_up_tokenization_spaces=False,
        # Causal models read no token types.
        model_input_names=["input_ids", "attention_mask"],
    )


def wordpiece_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Return BERT's cased tokenizer with the vocabulary in a file."""
    from transformers import BertTokenizerFast

    vocabulary: dict[str, Any] = {"vocab_file": str(path)}
    if "vocab" in signature(BertTokenizerFast).parameters:
        # transformers 5 ignores vocab_file.
        pieces = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        vocabulary = {"vocab": {piece: i for i, piece in enumerate(pieces)}}
    return BertTokenizerFast(**vocabulary, do_lower_case=False, strip_accents=False)


def load_tokenizer(
    model: ModelConfig, dataset: Dataset, cache: Path, warn: Callable[[str], None] = note
) -> PreTrainedTokenizerFast:
    """Return the encoder's tokenizer; a vocabulary learned from the data is cached in ``cache``."""
    if model.from_scratch and of_bytes(dataset):
        return bytes_tokenizer(learned_bytes(model, dataset, cache, warn))
    if model.from_scratch:
        return wordpiece_tokenizer(learned_vocabulary(model, dataset, cache, warn))
    # Imported only here: AutoTokenizer takes seconds, and `data audit` with `tiny` does not need it.
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = locate(model, warn)
    if not any(file for pattern in TOKENIZER_FILES for file in folder.glob(pattern)):
        raise UsageError(f"model.path={folder}: has no tokenizer.json; save the tokenizer with save_pretrained as well")
    # fix_mistral_regex suppresses a warning about folders that another version of the library saved.
    options = {"use_fast": True, "local_files_only": True, "trust_remote_code": False, "fix_mistral_regex": False}
    with one_line(f"model.path={folder}: its tokenizer cannot be read"):
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UsageError(f"model.path={folder}: has no fast tokenizer; it needs a tokenizer.json")
    if tokenizer.pad_token_id is None:
        # Decoders have no padding token. Padding is masked, so any token can be used.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.bos_token
    as_written = all(encoding_of(target.task).as_written for target in dataset.targets)
    if hasattr(tokenizer, "add_prefix_space") and not as_written:
        # GPT-2's tokenizer accepts lists of words only with this option. `xclrun.data.encode` adds the spaces.
        tokenizer.add_prefix_space = True
    return tokenizer
