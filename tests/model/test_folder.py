"""Checks of the folder of a pretrained encoder while planning; its code is never run."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xclrun.cli import main
from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.model.folder import check_folder
from xclrun.model.source import check_layers, locate

from .pretrained import PIECES, tokenizer_model, write_encoder

Damage = Callable[[Path], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "encoder")


def check(folder: Path, **expected: Any) -> None:
    check_folder(folder, "model.path=X", ModelConfig(name="mine", path=str(folder), **expected))


def settings(name: str = "config.json", **changes: Any) -> Damage:
    """Change a JSON file of the folder."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

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


CODE = {"AutoConfig": "evil.C", "AutoModel": "evil.M"}
DAMAGES: dict[str, tuple[Damage, str]] = {
    "code": (settings(auto_map=CODE), "config.json names Python code (auto_map), which is never run"),
    "code of the tokenizer": (
        settings("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", None]}),
        "tokenizer_config.json names Python code",
    ),
    "compiled code": (settings(attn_implementation="some/kernel"), "names code on the hub (attn_implementation)"),
    "another encoder": (
        lambda folder: (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "evil/model"}'),
        "contains adapter_config.json",
    ),
    "an index of pickles": (indexed("pytorch_model.bin"), "names 'pytorch_model.bin', which is not a safetensors file"),
    "an index that leaves the folder": (indexed("../x.safetensors"), "names '../x.safetensors', which is no"),
    "an index of a missing file": (indexed("model-2.safetensors"), "has no model-2.safetensors, which"),
    "no JSON": (cut("config.json", 20), "config.json cannot be read"),
    "cut header": (cut("model.safetensors", 100), "model.safetensors is damaged or cut short"),
    "cut": (cut("model.safetensors", 6000), "model.safetensors is damaged or cut short"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json; save the tokenizer"),
    "a tokenizer that its library refuses": (
        settings("tokenizer.json", pre_tokenizer={"type": "Nope"}),
        "its tokenizer cannot be read (",
    ),
    "broken tokenizer": (cut("tokenizer.json", 50), "its tokenizer cannot be read ("),
    "more pieces than embeddings": (
        settings("tokenizer.json", model=tokenizer_model([*PIECES, "x"])),
        "ids up to 12, but the encoder has 12 embeddings",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_folder_that_cannot_work_is_refused_in_one_line(name: str, folder: Path) -> None:
    check(folder)
    damage, message = DAMAGES[name]
    damage(folder)
    with pytest.raises(UsageError) as raised:
        check(folder)
    assert str(raised.value).startswith("model.path=X: ")
    assert message in str(raised.value)
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


def test_code_in_a_folder_is_never_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings(model_type="evil", auto_map=CODE)(folder)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\n")
    # Whoever answers yes to everything is not asked.
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    monkeypatch.chdir(tmp_path)
    small = ["experiment=smoke", "tracking=none", "model=mbert", f"model.path={folder}"]
    for command in (small, ["plan", *small], ["plan", "--params", *small], ["data", "audit", *small]):
        assert main(command) == 2
        message = capsys.readouterr().err
        assert message.startswith(f"xclrun: model.path={folder}: its config.json names Python code")
        assert message.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder"]


def test_what_is_no_file_is_no_part_of_a_folder(folder: Path) -> None:
    from os import mkfifo

    (folder / "model.safetensors").unlink()
    mkfifo(folder / "model.safetensors")
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(UsageError, match=r"has no model\.safetensors.*pickles"):
        locate(ModelConfig(name="mine", path=str(folder)))
