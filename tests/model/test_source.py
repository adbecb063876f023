"""Where an encoder comes from: local folders, the hub, and what identifies it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.model import source
from xclrun.model.source import encoder_identity, locate

from .pretrained import write_encoder
from .test_vocabulary import corpus


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "encoder")


def at(path: Path) -> ModelConfig:
    return ModelConfig(name="mine", path=str(path))


def test_from_scratch_where_neither_path_nor_hub_is_given() -> None:
    assert ModelConfig(name="tiny").from_scratch
    assert not ModelConfig(name="mine", path="somewhere").from_scratch
    assert not ModelConfig(name="mbert", hub="some/name").from_scratch


def test_a_local_folder_goes_before_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate(ModelConfig(name="mbert", hub="some/name", path=str(folder))) == folder
    monkeypatch.setenv("HOME", str(folder.parent))
    assert locate(ModelConfig(name="mine", path="~/encoder")) == folder


def test_folders_that_hold_no_encoder_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"model\.path=.*nowhere: is not a folder"):
        locate(at(folder / "nowhere"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"has no model\.safetensors.*pickles"):
        locate(at(folder))
    (folder / "config.json").unlink()
    with pytest.raises(UsageError, match=r"has no config\.json"):
        locate(at(folder))


GONE = RepositoryNotFoundError(
    "gone", response=httpx.Response(404, request=httpx.Request("GET", "https://example.org"))
)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (LocalEntryNotFoundError("offline"), "the hub cannot be reached for 'some/name'; set model.path=DIR"),
        (OSError("no route"), "the hub cannot be reached for 'some/name'; set model.path=DIR"),
        (GONE, "the hub has no 'some/name'; set model.path=DIR"),
        (HFValidationError("bad"), "model.hub=some/name: is not a name on the hub"),
    ],
)
def test_hub_errors_are_one_line(error: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fails)
    source._from_hub.cache_clear()
    with pytest.raises(UsageError) as raised:
        locate(ModelConfig(name="mbert", hub="some/name"))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_pickle_is_fetched_from_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **more: options.update(more) or str(folder))
    source._from_hub.cache_clear()
    assert locate(ModelConfig(name="mbert", hub="some/name", revision="abc")) == folder
    assert options["revision"] == "abc"
    assert not any("bin" in pattern or pattern.startswith("*") for pattern in options["allow_patterns"])
    source._from_hub.cache_clear()


@pytest.fixture
def identity(folder: Path) -> Callable[[], str]:
    def compute() -> str:
        source._folder_identity.cache_clear()
        return encoder_identity(at(folder), corpus())

    return compute


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_one_byte_of_a_pretrained_encoder_changes_its_identity(
    name: str, folder: Path, identity: Callable[[], str]
) -> None:
    before = identity()
    path = folder / name
    content = bytearray(path.read_bytes())
    # The last character of JSON text, and the last weight's lowest bits.
    at = -4 if name == "model.safetensors" else -1
    content[at:at] = b" " if at == -1 else b""
    content[at] ^= at == -4
    path.write_bytes(content)
    assert identity() != before


@pytest.mark.parametrize("name", ["merges.txt", "special_tokens_map.json", "added_tokens.json"])
def test_files_of_older_tokenizers_count_where_they_are_read(
    name: str, folder: Path, identity: Callable[[], str]
) -> None:
    """transformers takes special tokens from them unless ``tokenizer_config.json`` has them all."""
    before = identity()
    (folder / name).write_text("{}")
    assert identity() != before
    (folder / "tokenizer_config.json").write_text('{"added_tokens_decoder": {}}')
    whole = identity()
    (folder / name).unlink()
    assert identity() == whole


def test_where_a_pretrained_encoder_lies_does_not_matter(folder: Path, identity: Callable[[], str]) -> None:
    before = identity()
    (folder / "README.md").write_text("not read")
    assert identity() == before
    copy = shutil.copytree(folder, folder.parent / "copy")
    assert encoder_identity(at(copy), corpus(train=["other sentences"])) == before


def test_an_encoder_from_scratch_is_its_training_sentences() -> None:
    model = ModelConfig(name="tiny", vocab_size=100)
    before = encoder_identity(model, corpus(train=["one two"]))
    assert encoder_identity(model, corpus(train=["one two"], dev=["x"], test=["y"])) == before
    assert encoder_identity(model, corpus(train=["one three"])) != before
