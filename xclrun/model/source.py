"""Where an encoder comes from, and what identifies it: a local folder, the hub, or training from scratch."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from xclrun.config import ModelConfig
from xclrun.data.example import Dataset
from xclrun.errors import UsageError
from xclrun.plan import digest
from xclrun.store.files import sha256

# What is fetched from the hub: weights as safetensors alone, since pickle is never read.
HUB_FILES = ("config.json", "model.safetensors", "tokenizer*", "vocab*", "sentencepiece*", "special_tokens_map.json")
# Files whose content decides what an encoder computes.
IDENTITY_FILES = ("config.json", "*.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.*", "*.model")


def from_scratch(model: ModelConfig) -> bool:
    """Whether the encoder is trained from scratch: neither a path nor a name on the hub is given."""
    return model.path is None and model.hub is None


def locate(model: ModelConfig) -> Path:
    """Return the local folder of a pretrained encoder, fetching it from the hub where no path is given.

    Raises:
        UsageError: the folder does not hold an encoder, or the hub cannot be reached.
    """
    if model.path is None:
        assert model.hub is not None
        return _from_hub(model.hub, model.revision, model.name)
    folder = Path(model.path).expanduser()
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"model.path={model.path}: "
            + ("has no config.json" if folder.is_dir() else "is no folder")
            + "; it must hold an encoder in the transformers layout (config.json, model.safetensors, tokenizer.json)"
        )
    if not list(folder.glob("*.safetensors")):
        raise UsageError(
            f"model.path={model.path}: has no model.safetensors; weights in other formats are pickles, never read: "
            "save the model with transformers' save_pretrained"
        )
    return folder


@lru_cache
def _from_hub(name: str, revision: str, choice: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    remedy = (
        f"give a local folder with model.path=DIR (transformers layout, as `save_pretrained` of '{name}' writes it)"
    )
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(HUB_FILES)))
    except RepositoryNotFoundError as error:
        raise UsageError(f"model={choice}: the hub has no '{name}'; {remedy}") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise UsageError(f"model={choice}: the hub cannot be reached for '{name}'; {remedy}") from error


@lru_cache
def _folder_identity(folder: Path) -> str:
    files = sorted({file for pattern in IDENTITY_FILES for file in folder.glob(pattern)})
    return digest([[file.name, sha256(file)] for file in files])


def encoder_identity(model: ModelConfig, dataset: Dataset) -> str:
    """Return the hash of what the encoder is before fine-tuning.

    Pretrained: the content of its files. From scratch: the training splits that its vocabulary is learnt from (its
    shape is in the config, its initial weights follow from the seed).
    """
    if from_scratch(model):
        return digest([dataset.fingerprints[language, "train"] for language in sorted(dataset.languages)])
    return _folder_identity(locate(model).resolve())
