"""The encoder inside the model, with fresh or pretrained weights, and optionally with fewer layers or embeddings.

Only code of `transformers` is run, never code in an encoder's folder. Encoder-decoders are used without their decoder,
unless they write texts.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.model.adapter_files import quiet
from xclrun.model.families import FAMILIES, family
from xclrun.model.folder import one_line
from xclrun.model.shape import described
from xclrun.model.source import DROPOUTS, SPECIAL, TEXT_SPECIAL, check_layers, locate, subject_of

# Family → settings that transformers reads, although its config classes do not list them.
UNLISTED: Mapping[str, tuple[str, ...]] = {
    "deberta": ("embedding_size", "talking_head"),
    "deberta-v2": (
        "attention_head_size", "conv_act", "conv_groups", "conv_kernel_size", "embedding_size", "norm_rel_ebd",
        "position_buckets", "share_att_key",
    ),
    "qwen2": ("head_dim",),
    **dict.fromkeys(("mistral", "gemma", "gemma2", "modernbert"), ("rope_scaling",)),
}  # fmt: skip


def shape_of(config: ModelConfig, vocabulary: int, pad: int) -> Any:
    """Return transformers' config for the family and shape of a model config."""
    from transformers import AutoConfig

    sizes = described(config, vocabulary, pad)
    default = AutoConfig.for_model(config.family)
    settings = {key: value for key, value in sizes.items() if hasattr(default, key)} | config.settings
    shape = AutoConfig.for_model(config.family, **settings)
    _adjust(shape, config)
    return shape


def fresh_encoder(config: ModelConfig, vocabulary: int, pad: int, writes: bool = False) -> nn.Module:
    with one_line(f"model.family={config.family} model.settings={config.settings}: the encoder cannot be built"):
        shape = shape_of(config, vocabulary, pad)
        if writes:
            shape.pad_token_id, shape.bos_token_id, shape.eos_token_id = range(len(TEXT_SPECIAL))
            # As in T5. Causal models do not read it.
            shape.decoder_start_token_id = shape.pad_token_id
        return empty_encoder(shape, writes)


def check_settings(model: ModelConfig) -> None:
    """Check that the names in ``model.settings`` exist and that transformers can build the encoder.

    Transformers itself accepts any name.
    """
    from transformers import AutoConfig, PretrainedConfig

    library = AutoConfig.for_model(model.family)
    listed = {*library.to_dict(), *library.attribute_map, *UNLISTED.get(model.family, ())}
    for key in model.settings:
        if key in DROPOUTS:
            raise UsageError(f"model.settings.{key}: set model.dropout={model.dropout} instead")
        if key not in listed:
            suggestion = did_you_mean(key, listed - PretrainedConfig().to_dict().keys())
            raise UsageError(f"model.settings.{key}: {model.family} has no such setting; {suggestion}")
    with torch.device("meta"):
        fresh_encoder(model, model.vocab_size or len(SPECIAL), 0)


def _adjust(shape: Any, config: ModelConfig) -> None:
    """Set the options that do not depend on pretrained weights."""
    for name in DROPOUTS:
        if hasattr(shape, name):
            setattr(shape, name, config.dropout)
    # Compilation takes minutes and changes rounding.
    if hasattr(shape, "reference_compile"):
        shape.reference_compile = False
    # Keys and values are needed only while texts are written.
    kind = family(shape.to_dict(), subject_of(config))
    if kind.causal or kind.with_decoder:
        shape.use_cache = False


def _library(shape: Any, writes: bool = False) -> Any:
    """Return transformers' class for encoders of this family, or for its language models."""
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForTextEncoding
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    with_decoder = FAMILIES[shape.model_type].with_decoder
    if writes:
        return AutoModelForSeq2SeqLM if with_decoder else AutoModelForCausalLM
    return AutoModelForTextEncoding if with_decoder else AutoModel


def empty_encoder(shape: Any, writes: bool = False) -> Any:
    """Return an encoder of transformers' config ``shape``, with fresh weights; a language model if ``writes``."""
    return _untied(_library(shape, writes).from_config(shape, trust_remote_code=False))


def _untied(encoder: Any) -> Any:
    """Register each embedding table under one name. T5's table has two names and would be stored and copied twice."""
    tables: dict[Tensor, nn.Embedding] = {}
    for parent in encoder.modules():
        for name, child in list(parent.named_children()):
            if not isinstance(child, nn.Embedding):
                continue
            if child.weight in tables:
                delattr(parent, name)
                # A plain attribute, not a submodule.
                vars(parent)[name] = tables[child.weight]
            tables.setdefault(child.weight, child)
    return encoder


# Cache of the pretrained encoder that was read last, because most runs of a process use the same encoder. Runs use
# copies.
_last_read: dict[tuple[str, float, int | None, bool], tuple[nn.Module, Sequence[str]]] = {}


def read_ahead(config: ModelConfig) -> None:
    """Read a pretrained encoder into memory for the runs of this process and of forked processes."""
    if not config.from_scratch:
        _read_once(config)


def pretrained_encoder(config: ModelConfig, with_words: bool = True, writes: bool = False) -> nn.Module:
    """Return a copy of a pretrained encoder; if its files lack the pooler, initialize the pooler.

    Args:
        with_words: copy the word embeddings, which need most memory; if false, the caller must replace them.
        writes: return a language model with its output layer.
    """
    original, missing = _read_once(config, writes)
    words = original.get_input_embeddings().weight
    encoder = copy.deepcopy(original, {} if with_words else {id(words): words})
    for name in missing:
        parameter = encoder.get_parameter(name)
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=encoder.config.initializer_range)
    return encoder


def _read_once(config: ModelConfig, writes: bool = False) -> tuple[Any, Sequence[str]]:
    """Return (encoder, names of the parameters that its files lack). The encoder is cached: do not change it."""
    folder = locate(config)
    key = (str(folder.resolve()), config.dropout, config.layers, writes)
    if key not in _last_read:
        with (
            one_line(f"model.path={folder}: the encoder cannot be read"),
            quiet("transformers"),
            torch.random.fork_rng(devices=[]),
        ):
            read = _read_encoder(config, folder, writes)
        _last_read.clear()
        _last_read[key] = read
    return _last_read[key]


def _read_encoder(config: ModelConfig, folder: Path, writes: bool) -> tuple[nn.Module, Sequence[str]]:
    shape = pretrained_shape(config, folder)
    _adjust(shape, config)
    encoder, report = _library(shape, writes).from_pretrained(
        folder,
        config=shape,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        dtype=torch.float32,
    )
    # Encoders are often saved without the pooler, which is then trained from fresh values.
    wrong = [name for name in report["missing_keys"] if not name.startswith("pooler.")]
    # In transformers 5, a mismatched key is (name, shape in the file, expected shape).
    wrong += sorted(key if isinstance(key, str) else key[0] for key in report["mismatched_keys"])
    if wrong:
        raise UsageError(
            f"model.path={folder}: the weights do not match config.json; missing or of another shape: "
            + ", ".join(wrong[:3])
            + (", …" if len(wrong) > 3 else "")
        )
    for name, parameter in encoder.named_parameters():
        if not parameter.isfinite().all():
            raise UsageError(f"model.path={folder}: {name} holds values that are not finite (NaN, infinite)")
    return _untied(encoder), sorted(report["missing_keys"])


def pretrained_shape(config: ModelConfig, folder: Path) -> Any:
    """Return transformers' config of a pretrained encoder, with at most ``model.layers`` layers."""
    from transformers import AutoConfig

    shape = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if config.layers is not None:
        check_layers(config)
        shape.num_hidden_layers = config.layers
        if getattr(shape, "num_decoder_layers", None):
            shape.num_decoder_layers = min(shape.num_decoder_layers, config.layers)
        if getattr(shape, "layer_types", None):
            shape.layer_types = shape.layer_types[: config.layers]
    return shape


def keep_rows(encoder: Any, rows: np.ndarray) -> None:
    """Keep only some rows of an encoder's word embeddings: row ``rows[i]`` becomes row i.

    Training does not change: an unused row has a zero gradient, and Adam (also with weight decay) updates each row only
    by its own gradients.

    Args:
        rows: (m,) ids of subwords, ascending. Families that number positions from the padding's ID (RoBERTa) need all
            IDs up to the padding's ID.
    """
    whole = encoder.get_input_embeddings()
    # Replace the weights, not the module: the tables of some families do more than a lookup (Gemma 3 scales).
    whole.weight = nn.Parameter(whole.weight.detach()[torch.from_numpy(rows)].clone())
    whole.num_embeddings = encoder.config.vocab_size = len(rows)
    if whole.padding_idx is not None:
        at = int(np.searchsorted(rows, whole.padding_idx))
        whole.padding_idx = at if at < len(rows) and rows[at] == whole.padding_idx else None
