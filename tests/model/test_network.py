"""Building: the same seed gives the same weights, heads and encoder draw apart, and nothing else moves."""

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertModel, XLMRobertaConfig, XLMRobertaModel

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.core.identity import derive
from xclrun.model import encoder
from xclrun.model.network import build

from .conftest import batch

PIECES = 50


class Tokenizer(SimpleNamespace):
    """What `build` needs of a tokenizer: it puts [CLS] and [SEP] around a text."""

    def __len__(self) -> int:
        return PIECES

    def __call__(self, *texts: Any, **options: Any) -> Any:
        return SimpleEncoding(input_ids=[2, 5, 3], token_type_ids=[0, 0, 0])


class SimpleEncoding(dict[str, list[int]]):
    def sequence_ids(self) -> list[int | None]:
        return [None, 0, None]


TOKENIZER = Tokenizer(pad_token_id=0)


def small(**changes: Any) -> ModelConfig:
    shape: dict[str, Any] = {"hidden_size": 16, "hidden_layers": 1, "attention_heads": 2, "intermediate_size": 32}
    return ModelConfig(**{"name": "small", "vocab_size": PIECES, "max_length": 20, **shape, **changes})


def weights(seed: int = 1, classes: int = 5, tags: int = 7, **changes: Any) -> dict[str, Tensor]:
    return build(small(**changes), TOKENIZER, classes, tags, seed).state_dict()


def same(a: dict[str, Tensor], b: dict[str, Tensor], part: str = "") -> bool:
    keys = [key for key in a if key.startswith(part)]
    assert keys
    return all(key in b and torch.equal(a[key], b[key]) for key in keys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pretrained encoder on disk, without a pooler, as many are saved."""
    torch.manual_seed(11)
    shape = BertConfig(
        vocab_size=PIECES,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        hidden_dropout_prob=0.3,
    )
    BertModel(shape, add_pooling_layer=False).save_pretrained(tmp_path)
    return tmp_path


def test_same_seed_same_weights() -> None:
    first = weights(seed=3)
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)  # noqa: NPY002 - the global state must not matter
    assert same(first, weights(seed=3))


@pytest.mark.parametrize("part", ["encoder.", "intent.weight", "tagger.linear.weight", "tagger.crf."])
def test_another_seed_changes_every_part(part: str) -> None:
    assert not same(weights(seed=3), weights(seed=4), part)


def test_the_encoder_does_not_depend_on_the_heads() -> None:
    assert same(weights(classes=5, tags=7), weights(classes=9, tags=0), "encoder.")


def test_the_heads_do_not_depend_on_the_encoder(folder: Path) -> None:
    first = weights()
    for other in (weights(hidden_layers=2), weights(path=str(folder))):
        assert same(first, other, "intent.")
        assert same(first, other, "tagger.")


def test_encoder_and_heads_are_drawn_from_different_seeds() -> None:
    """The first head holds the first numbers of the generator of heads, not those of the encoder's."""
    first = {}
    for purpose in ("encoder", "heads"):
        torch.default_generator.manual_seed(derive(3, purpose))
        first[purpose] = torch.nn.Linear(16, 5).weight
    result = weights(seed=3)["intent.weight"]
    assert torch.equal(result, first["heads"])
    assert not torch.equal(result, first["encoder"])


def test_global_random_states_stay(folder: Path) -> None:
    before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    weights()
    weights(path=str(folder))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (random.getstate(), repr(np.random.get_state())) == before[1:]  # noqa: NPY002


def test_pretrained_weights_are_taken_over(folder: Path) -> None:
    model = build(small(path=str(folder), dropout=0.25), TOKENIZER, 5, 7, seed=1)
    stored = load_file(folder / "model.safetensors")
    assert len(stored) > 20
    result = model.encoder.state_dict()
    assert all(torch.equal(result[name], tensor) for name, tensor in stored.items())
    # The config's dropout holds, in the encoder and before the heads.
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.25}


def test_pretrained_weights_do_not_depend_on_the_seed(folder: Path) -> None:
    first, second = (weights(seed=seed, path=str(folder)) for seed in (1, 2))
    assert same(
        {key: value for key, value in first.items() if key.startswith("encoder.") and "pooler" not in key}, second
    )
    assert not same(first, second, "intent.")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda tensor: None, ".*do not match config.json.*"),
        (lambda tensor: tensor[:5].clone(), ".*do not match config.json.*"),
        (lambda tensor: tensor.fill_(math.nan), ""),
        (lambda tensor: tensor.bfloat16().fill_(math.inf), ""),
    ],
)
def test_pretrained_weights_that_do_not_fit_are_refused(
    folder: Path, damage: Callable[[Tensor], Tensor | None], message: str
) -> None:
    path, name = folder / "model.safetensors", "encoder.layer.0.intermediate.dense.weight"
    stored = load_file(path)
    damaged = damage(stored.pop(name))
    save_file(stored if damaged is None else {**stored, name: damaged}, path, metadata={"format": "pt"})
    with pytest.raises(UsageError, match=rf"^model\.path=\S+ {message}{re.escape(name)}[^\n]*$"):
        weights(path=str(folder))


def test_pretrained_weights_that_cannot_be_read_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UsageError, match="cannot be read"):
        weights(path=str(folder))


def test_positions_of_xlmr_start_behind_the_padding_s(tmp_path: Path) -> None:
    shape = XLMRobertaConfig(
        vocab_size=PIECES,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=22,
    )
    XLMRobertaModel(shape).save_pretrained(tmp_path)
    model = build(small(path=str(tmp_path), max_length=20), TOKENIZER, 5, 7, seed=1)
    longest = batch([9], labels=[0], tags=[[0] * 9], extra=1)
    assert longest.input_ids.shape == (1, 20)
    assert model.loss(longest).isfinite()


def test_the_first_layers_are_those_of_the_whole_encoder(tmp_path: Path) -> None:
    shape = {"vocab_size": PIECES, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    whole = BertModel(BertConfig(num_hidden_layers=3, **shape)).eval()
    whole.save_pretrained(tmp_path)
    cut = build(small(path=str(tmp_path), layers=2), TOKENIZER, 5, 7, seed=1).encoder.eval()
    pieces = torch.tensor([[2, 5, 6, 3]])
    with torch.no_grad():
        states = whole(pieces, output_hidden_states=True).hidden_states
        assert torch.equal(cut(pieces).last_hidden_state, states[2])
    assert not torch.equal(states[2], states[3])
    with pytest.raises(UsageError, match=r"^model\.layers=4: .* 3"):
        weights(path=str(tmp_path), layers=4)


def test_a_pretrained_encoder_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BertModel(
        BertConfig(vocab_size=PIECES, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    ).save_pretrained(tmp_path)
    first = weights(path=str(tmp_path))
    monkeypatch.setattr(encoder, "_read_encoder", None)
    second = weights(path=str(tmp_path))
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name])
        # What is trained from one is not seen by the other.
        assert value.data_ptr() != second[name].data_ptr()


@pytest.mark.parametrize("family", [(BertConfig, BertModel), (XLMRobertaConfig, XLMRobertaModel)])
def test_what_the_files_lack_is_drawn_for_each_run_as_when_they_are_read(
    family: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler, which many encoders are saved without: the same whether a run of another seed read the files before."""
    config, model = family
    shape = config(
        vocab_size=PIECES, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=40
    )
    model(shape, add_pooling_layer=False).save_pretrained(tmp_path)
    alone = {}
    for seed in (1, 2):
        monkeypatch.setattr(encoder, "_last_read", {})
        alone[seed] = weights(seed=seed, path=str(tmp_path))
    assert not same(alone[1], alone[2], "encoder.pooler.dense.weight")
    monkeypatch.setattr(encoder, "_read_encoder", None)
    assert same(weights(seed=1, path=str(tmp_path)), alone[1])
    assert same(weights(seed=2, path=str(tmp_path)), alone[2])


def test_a_trimmed_copy_leaves_the_encoder_that_was_read_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its word embeddings are not copied before they are cut, so they must not be the ones that are trained."""
    monkeypatch.setattr(encoder, "_last_read", {})
    encoder.read_ahead(small(path=str(folder)))
    read, words = load_file(folder / "model.safetensors"), "embeddings.word_embeddings.weight"
    rows = np.array([0, 3, 7, 8])
    trimmed = build(small(path=str(folder)), TOKENIZER, 5, 7, seed=1, rows=rows)
    assert torch.equal(trimmed.encoder.state_dict()[words], read[words][torch.from_numpy(rows)])
    with torch.no_grad():
        for parameter in trimmed.parameters():
            parameter.zero_()
    whole = build(small(path=str(folder)), TOKENIZER, 5, 7, seed=1)
    assert all(torch.equal(whole.encoder.state_dict()[name], tensor) for name, tensor in read.items())


def test_an_unknown_architecture_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "bret"}))
    with pytest.raises(UsageError, match=r"the encoder cannot be read .*bret"):
        weights(path=str(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None, "attention_heads": None}, "hidden_size, attention_heads"),
        ({"vocab_size": None}, "sizes vocab_size"),
        ({"hidden_size": 15}, "hidden_size=15 must be a multiple of attention_heads=2"),
    ],
)
def test_shapes_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        weights(**changes)


def test_output_depends_on_no_padding() -> None:
    """A sentence has the same output alone and in a batch with a longer one."""
    model = build(small(), TOKENIZER, 5, 7, seed=1).eval()
    together = batch([2, 5], labels=[1, 2], tags=[[0, 1], [0, 1, 2, 3, 4]])
    alone = batch([2], labels=[1], tags=[[0, 1]])
    together.input_ids[0, :4] = alone.input_ids[0]
    with torch.no_grad():
        a, b = model(together), model(alone)
    assert torch.allclose(a.logits[0], b.logits[0], rtol=1e-4, atol=1e-5)
    assert torch.allclose(a.emissions[0, :2], b.emissions[0], rtol=1e-4, atol=1e-5)


def test_package_does_not_import_torch(run_python: Callable[[str], str]) -> None:
    assert run_python("import sys, xclrun.model, xclrun.strategy.er; print('torch' in sys.modules)") == "False"
