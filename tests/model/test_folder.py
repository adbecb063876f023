"""What the folder of a pretrained encoder holds is checked while planning, and none of it is ever run."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from xclrun.cli import main
from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.model.folder import check_finite, check_folder
from xclrun.model.source import check_layers, locate

from .pretrained import PIECES, tensors, tokenizer_model, write_encoder

Damage = Callable[[Path], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "encoder")


def check(folder: Path, **wanted: Any) -> None:
    check_finite.cache_clear()
    check_folder(folder, "model.path=X", ModelConfig(name="mine", path=str(folder), **wanted))


def settings(name: str = "config.json", **changes: Any) -> Damage:
    """Change a JSON file of the folder."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def weights(**changes: np.ndarray | None) -> Damage:
    """Replace tensors, by the ends of their names; None: leave them out."""

    def change(folder: Path) -> None:
        found = tensors()
        for end, value in changes.items():
            [name] = [name for name in found if name.endswith(end.replace("_at_", "."))]
            found.pop(name)
            found |= {} if value is None else {name: value}
        save_file(found, folder / "model.safetensors")

    return change


def indexed(*names: str) -> Damage:
    """Have an index name the files of the weights."""

    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        listed = {f"tensor {i}": name for i, name in enumerate(names)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))

    return change


def cut(name: str, keep: int) -> Damage:
    def change(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:keep])

    return change


def halves(folder: Path) -> None:
    """Store one tensor as bfloat16, one value of which is infinite."""
    values = tensors()
    name = "embeddings.LayerNorm.bias"
    raw = {key: value.tobytes() for key, value in values.items()} | {name: struct.pack("<8H", *[0x3F80] * 7, 0x7F80)}
    header, at = {}, 0
    for key, content in raw.items():
        kind = "BF16" if key == name else "F32"
        header[key] = {"dtype": kind, "shape": values[key].shape, "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(raw.values()))


NAN = np.array([1, 2, np.nan, 4, 5, 6, 7, 8], np.float32)
CODE = {"AutoConfig": "evil.C", "AutoModel": "evil.M"}
DAMAGES: dict[str, tuple[Damage, str]] = {
    "code": (settings(auto_map=CODE), "config.json names Python code of its own (auto_map), which is never run"),
    "code of the tokenizer": (
        settings("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", None]}),
        "tokenizer_config.json names Python code",
    ),
    "compiled code": (settings(attn_implementation="some/kernel"), "names code on the hub (attn_implementation)"),
    "another encoder": (
        lambda folder: (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "evil/model"}'),
        "holds adapter_config.json, by which transformers may load another encoder",
    ),
    "an index of pickles": (indexed("pytorch_model.bin"), "names 'pytorch_model.bin', which is not a safetensors file"),
    "an index that leaves the folder": (indexed("../x.safetensors"), "names '../x.safetensors', which is no"),
    "an index of what is not there": (indexed("model-2.safetensors"), "has no model-2.safetensors, which"),
    "no JSON": (cut("config.json", 20), "config.json cannot be read"),
    "no size": (settings(hidden_size=0), "config.json says hidden_size=0"),
    "heads": (settings(num_attention_heads=3), "hidden_size=8, no multiple of num_attention_heads=3"),
    "cut header": (cut("model.safetensors", 100), "model.safetensors is damaged or cut short"),
    "cut": (cut("model.safetensors", 6000), "model.safetensors is damaged or cut short"),
    "missing tensor": (
        weights(layer_at_1_at_intermediate_at_dense_at_bias=None),
        "the weights lack encoder.layer.1.intermediate.dense.bias",
    ),
    "wrong shape": (
        weights(word_embeddings_at_weight=np.zeros((12, 6), np.float32)),
        "embeddings.word_embeddings.weight is 12 × 6 in the weights, and 12 × 8 by config.json",
    ),
    "NaN": (weights(layer_at_1_at_attention_at_output_at_dense_at_bias=NAN), "1.attention.output.dense.bias in model"),
    "an infinite bfloat16": (halves, "embeddings.LayerNorm.bias in model.safetensors holds values that are not finite"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json; save the tokenizer"),
    "a tokenizer that its library refuses": (
        settings("tokenizer.json", pre_tokenizer={"type": "Nope"}),
        "its tokenizer cannot be read (",
    ),
    "broken tokenizer": (cut("tokenizer.json", 50), "its tokenizer cannot be read ("),
    "more pieces than embeddings": (
        settings("tokenizer.json", model=tokenizer_model([*PIECES, "x"])),
        "tokenizer has pieces up to id 12, the encoder embeddings for 12",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_folder_that_cannot_work_is_refused_in_one_line(name: str, folder: Path) -> None:
    check(folder)
    damage, told = DAMAGES[name]
    damage(folder)
    with pytest.raises(UsageError) as raised:
        check(folder)
    assert str(raised.value).startswith("model.path=X: ")
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_is_asked_for_must_be_there(folder: Path) -> None:
    check(folder, max_length=128)
    check_layers(ModelConfig(name="mine", path=str(folder), layers=2))
    with pytest.raises(UsageError, match=r"model\.layers=3: the encoder has 2 layers"):
        check_layers(ModelConfig(name="mine", path=str(folder), layers=3))
    with pytest.raises(UsageError, match=r"model\.max_length=129: .* set model\.max_length=128 or less"):
        check(folder, max_length=129)
    # RoBERTa's family counts positions from behind the padding's.
    settings(model_type="xlm-roberta", pad_token_id=1)(folder)
    check(folder, max_length=126)
    with pytest.raises(UsageError, match=r"model\.max_length=127: .* set model\.max_length=126 or less"):
        check(folder, max_length=127)


def test_layers_that_are_not_wanted_may_be_missing_and_old_names_are_known(folder: Path) -> None:
    old = {f"bert.{k}".replace("LayerNorm.weight", "LayerNorm.gamma"): v for k, v in tensors().items()}
    save_file({k: v for k, v in old.items() if "layer.1." not in k}, folder / "model.safetensors")
    check(folder, layers=1)


def test_code_in_a_folder_is_never_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings(model_type="evil", auto_map=CODE)(folder)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\n")
    # Whoever answers yes to everything is not asked.
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    monkeypatch.chdir(tmp_path)
    small = ["experiment=smoke", "tracking=none", "model=mbert", f"model.path={folder}"]
    for command in (small, ["plan", *small], ["params", *small], ["data", "audit", *small]):
        assert main(command) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"xclrun: model.path={folder}: its config.json names Python code of its own")
        assert told.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder"]


def test_what_is_no_file_is_no_part_of_a_folder(folder: Path) -> None:
    from os import mkfifo

    (folder / "model.safetensors").unlink()
    mkfifo(folder / "model.safetensors")
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(UsageError, match=r"has no model\.safetensors; weights in other formats are pickles, never"):
        locate(ModelConfig(name="mine", path=str(folder)))
