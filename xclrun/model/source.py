"""Locate and identify an encoder: a local folder, a package, the hub, or training from scratch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.core.identity import digest
from xclrun.core.terminal import note
from xclrun.data.example import Dataset
from xclrun.model.e5 import E5
from xclrun.model.families import Family, check_length, family, number
from xclrun.model.folder import BERTS, check_folder, read_object, refuse_code, weight_files
from xclrun.model.package import Package
from xclrun.model.smollm2 import SMOLLM2
from xclrun.store.files import sha256

# Name of a package (``model.package``) → its weights.
PACKAGES: Mapping[str, Package] = {package.module: package for package in (E5, SMOLLM2)}
# Files to download from the hub; weights only as safetensors, since pickles are never read.
HUB_FILES = (
    "config.json", "model.safetensors", "model.safetensors.index.json", "model-*.safetensors", "tokenizer*", "vocab*",
    "merges.txt", "sentencepiece*", "spm.model", "spiece.model", "added_tokens.json", "special_tokens_map.json",
)  # fmt: skip
# Files whose content determines an encoder.
IDENTITY_FILES = ("config.json", "*.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.*", "*.model")
# Additional tokenizer files of transformers before 4.34.
OLD_IDENTITY_FILES = ("merges.txt", "special_tokens_map.json", "added_tokens.json")

# Settings with dropout probabilities, in all families.
DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "dropout_rate",
    "embedding_dropout", "mlp_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop",
)  # fmt: skip


def subject_of(model: ModelConfig) -> str:
    """Return the config key and value that select the pretrained encoder, for messages."""
    return f"model={model.name}" if model.path is None else f"model.path={model.path}"


def packaged(model: ModelConfig) -> Package | None:
    """Return the package with the weights of a model, or None."""
    return None if model.path is not None or model.package is None else PACKAGES[model.package]


def locate(model: ModelConfig, warn: Callable[[str], None] = note) -> Path:
    """Return the local folder of a pretrained encoder; packages are converted, hub models downloaded.

    Args:
        warn: called with a line about a damaged converted folder, which is converted again.
    """
    if (package := packaged(model)) is not None:
        return package.folder(warn)
    if model.path is None:
        assert model.hub is not None
        return _from_hub(model.hub, model.revision, model.name)
    folder = Path(model.path).expanduser()
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"{subject_of(model)}: "
            + ("has no config.json" if folder.is_dir() else "is not a folder")
            + "; use a folder in the transformers layout (config.json, model.safetensors, tokenizer.json)"
        )
    weight_files(folder, subject_of(model))
    refuse_code(folder, subject_of(model))
    return folder


@lru_cache
def _from_hub(name: str, revision: str, choice: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    remedy = f"set model.path=DIR to a local folder (transformers layout, as `save_pretrained` of '{name}' writes it)"
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(HUB_FILES)))
    except HFValidationError:
        raise UsageError(f"model.hub={name}: is not a name on the hub (owner/name, or name); {remedy}") from None
    except RepositoryNotFoundError as error:
        raise UsageError(f"model={choice}: the hub has no '{name}'; {remedy}") from error
    except OSError as error:
        raise UsageError(f"model={choice}: the hub cannot be reached for '{name}'; {remedy}") from error
    refuse_code(folder, f"model={choice}")
    return folder


@lru_cache
def _folder_identity(folder: Path) -> str:
    settings = folder / "tokenizer_config.json"
    whole = (folder / "tokenizer.json").is_file() and settings.is_file()
    whole = whole and "added_tokens_decoder" in read_object(settings, f"model.path={folder}")
    patterns = IDENTITY_FILES if whole else (*IDENTITY_FILES, *OLD_IDENTITY_FILES)
    files = sorted({file for pattern in patterns for file in folder.glob(pattern)})
    return digest([[file.name, sha256(file)] for file in files])


def source_identity(model: ModelConfig, dataset: Dataset) -> str:
    """Return a hash of the encoder's source.

    The hash of a pretrained encoder is over its files, which are checked first (see `check_folder`). The hash of an
    encoder from scratch is over the training splits, which determine the vocabulary; config and seed determine
    everything else.
    """
    if model.from_scratch:
        origin = dataset.origin
        identity = digest([origin.fingerprints[language, "train"] for language in sorted(origin.languages)])
        if model.vocab_size is not None and of_bytes(dataset):
            if model.vocab_size < (least := len(TEXT_SPECIAL) + 256):
                raise UsageError(f"model.vocab_size={model.vocab_size}: subwords of bytes need at least {least}")
        elif model.vocab_size is not None:
            key = identity, pairs(dataset)
            if key not in _alphabets:
                _alphabets[key] = alphabet(learned_from(dataset))
            check_vocabulary(model.vocab_size, _alphabets[key])
        return identity
    if (package := packaged(model)) is not None:
        package.source()
        check_length(model, package.positions, f"of {subject_of(model)}")
        return digest([package.sha256, package.version])
    folder = locate(model).resolve()
    check_folder(folder, subject_of(model), model)
    return _folder_identity(folder)


# The first tokens of a learned vocabulary.
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The first tokens of a vocabulary of bytes: padding, beginning and end, with the ids that Llama's config has.
TEXT_SPECIAL = ("<pad>", "<s>", "</s>")
# (identity of training splits, `pairs`) → characters of their texts.
_alphabets: dict[tuple[str, bool | tuple[str, ...]], frozenset[str]] = {}


def pairs(dataset: Dataset) -> bool | tuple[str, ...]:
    """Return whether the vocabulary is also learned from the second text of text pairs.

    With several tasks, return the keys whose task has text pairs.
    """
    if dataset.task is not None:
        return dataset.task.pairs
    return tuple(sorted(key for key, task in dataset.tasks.items() if task.pairs))


def of_bytes(dataset: Dataset) -> bool:
    """Return whether an encoder from scratch has subwords of bytes, which can write any text."""
    return all(target.task.writes for target in dataset.origin.targets)


def learned_from(dataset: Dataset) -> Iterator[str]:
    """Yield the texts of all training splits, for learning a vocabulary."""
    origin = dataset.origin
    for language in sorted(origin.languages):
        for example in origin.split(language, "train"):
            if dataset.task_of(language).writes:
                yield from (example.whole, *([] if example.target is None else [" " + example.target.references[0]]))
                continue
            yield " ".join(example.tokens)
            if dataset.task_of(language).pairs and example.text_b is not None:
                yield example.text_b


def alphabet(texts: Iterable[str]) -> frozenset[str]:
    """Return the characters of texts, without white space."""
    characters = set().union(*texts)
    return frozenset(character for character in characters if not character.isspace())


def check_vocabulary(size: int, characters: Collection[str]) -> None:
    """Check that a vocabulary has room for each character twice: at the beginning of a word, and inside."""
    if size < (least := len(SPECIAL) + 2 * len(characters) + 1):
        raise UsageError(
            f"model.vocab_size={size}: {len(characters)} characters need at least {least}; "
            "set this value, or use fewer languages (dataset.languages=[…])"
        )


def encoder_identity(model: ModelConfig, dataset: Dataset) -> str:
    """Return a hash of the encoder before fine-tuning; if the vocabulary is trimmed, the hash covers all splits too."""
    check_layers(model)
    identity = source_identity(model, dataset)
    if not model.trim_vocabulary:
        return identity
    return digest([identity, sorted((*key, value) for key, value in dataset.origin.fingerprints.items())])


def check_layers(model: ModelConfig) -> None:
    """Check that the encoder has at least ``model.layers`` layers."""
    if model.layers is not None and (layers := _depth(model)) is not None and model.layers > layers:
        raise UsageError(f"model.layers={model.layers}: the encoder has {layers} layers")


def check_packing(model: ModelConfig, writes: bool, key: str) -> None:
    """Check that texts can be packed; ``writes``: whether the model is a causal language model."""
    if not writes:
        check_masks(model, key)
    elif (reason := _causal_unpacked(model)) is not None:
        raise UsageError(f"{key}=true {subject_of(model)}: {reason}; use {key}=false")


def packs(model: ModelConfig, writes: bool) -> bool:
    """Whether texts can be packed; ``writes``: whether the model is a causal language model."""
    return (_causal_unpacked(model) if writes else _without_masks(model)) is None


def _causal_unpacked(model: ModelConfig) -> str | None:
    """Return why texts cannot be packed for a causal language model; None if they can."""
    config = settings_of(model)
    kind = family(config, subject_of(model))
    if not kind.causal or config.get("model_type") == "bloom":
        return f"{kind.title} does not read positions"
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if window is not None and window < model.max_length:
        return f"its layers attend to {window} subwords, which must be at least model.max_length={model.max_length}"
    return None


def check_masks(model: ModelConfig, key: str) -> None:
    """Check that the encoder accepts positions and masks, which packing and CUDA graphs need.

    Args:
        key: the config key of packing or CUDA graphs, for messages.
    """
    if (unfit := _without_masks(model)) is not None:
        needed = f"needs an encoder of BERT's or RoBERTa's family ({', '.join(BERTS)}) with absolute positions"
        raise UsageError(f"{key}=true {subject_of(model)}: {needed}, not '{unfit}'")


def _without_masks(model: ModelConfig) -> str | None:
    """Return the encoder's family or kind of positions if it does not accept positions and masks; None if it does."""
    config = settings_of(model)
    kind, positions = config.get("model_type"), config.get("position_embedding_type", "absolute")
    if kind in BERTS:
        return None if positions == "absolute" else str(positions)
    return str(kind)


def depth(model: ModelConfig) -> int | None:
    """Return the number of layers in use; None if the encoder's files do not contain this number."""
    return model.layers or _depth(model)


def _depth(model: ModelConfig) -> int | None:
    """Return the number of layers of the whole encoder."""
    if model.path is None and model.hidden_layers is not None:
        return model.hidden_layers
    return number(settings_of(model), "layers")


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """Return the content of an encoder's config.json; if there is no such file, equivalent entries."""
    if (package := packaged(model)) is not None:
        return {"model_type": package.family, "hidden_size": model.hidden_size}
    if not model.from_scratch:
        return read_object(locate(model) / "config.json", subject_of(model))
    return {"model_type": model.family, "hidden_size": model.hidden_size, **model.settings}


def family_of(model: ModelConfig) -> Family:
    return family(settings_of(model), f"model.family={model.family}" if model.from_scratch else subject_of(model))
