"""The encoder inside the model: with fresh weights, or read from pretrained files and cut to what is asked for.

The library's own code makes and reads it; no code of a folder is run. Of an encoder and decoder, the encoder alone.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.model.families import FAMILIES, check_length, family, positions
from xclrun.model.folder import BERTS
from xclrun.model.shape import described
from xclrun.model.source import DROPOUTS, check_layers, from_scratch, given_as, locate

# What the library ends in that checks few of the values it reads: a size that is text, an activation of no known name.
CONFUSED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError)


def shape_of(config: ModelConfig, vocabulary: int, pad: int) -> Any:
    """Return the library's config of an encoder of the config's family and shape."""
    from transformers import AutoConfig

    wanted = described(config, vocabulary, pad)
    known = AutoConfig.for_model(config.family)
    made = AutoConfig.for_model(
        config.family, **{key: value for key, value in wanted.items() if hasattr(known, key)} | config.settings
    )
    _fit(made, config)
    return made


def fresh_encoder(config: ModelConfig, vocabulary: int, pad: int) -> nn.Module:
    return empty_encoder(shape_of(config, vocabulary, pad))


def _fit(shape: Any, config: ModelConfig) -> None:
    """Set what of a shape is not the pretrained weights' own affair."""
    for name in DROPOUTS:
        if hasattr(shape, name):
            setattr(shape, name, config.dropout)
    # Compiling takes minutes and changes last bits.
    if hasattr(shape, "reference_compile"):
        shape.reference_compile = False
    # Keys and values of a text that goes on; here none does.
    if family(shape.to_dict(), given_as(config)).causal:
        shape.use_cache = False


def _library(shape: Any) -> Any:
    """Return the library's factory of encoders of a shape; of an encoder and decoder, that of the encoder alone."""
    from transformers import AutoModel, AutoModelForTextEncoding

    return AutoModelForTextEncoding if FAMILIES[shape.model_type].with_decoder else AutoModel


def empty_encoder(shape: Any) -> Any:
    """Return an encoder of a shape, with fresh weights."""
    return _once(_library(shape).from_config(shape, trust_remote_code=False))


def _once(encoder: Any) -> Any:
    """Let the table of pieces have one name: T5's has two, and would be saved, and chosen for languages, twice."""
    seen = set()
    for parent in encoder.modules():
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Embedding) and child in seen:
                delattr(parent, name)
                # As what is no part of it, but still there.
                vars(parent)[name] = child
            seen.add(child)
    return encoder


# The encoder that was read last: the runs of one process mostly start from the same one.
# With what its files lack, which is drawn anew for each run; runs take copies, and do not change it.
_kept: dict[tuple[str, float, int | None], tuple[nn.Module, Sequence[str]]] = {}


def read_ahead(config: ModelConfig) -> None:
    """Read a pretrained encoder, so that runs of this process, and of processes forked from it, have it in memory.

    Raises:
        UsageError: it cannot be read.
    """
    if not from_scratch(config):
        with torch.random.fork_rng(devices=[]):
            pretrained_encoder(config, with_words=False)


def pretrained_encoder(config: ModelConfig, with_words: bool = True) -> nn.Module:
    """Return the encoder of a local folder or of the hub; it is read from the disk once.

    What its files lack is drawn from the global generator.

    Args:
        with_words: whether it has word embeddings of its own; without, they must be replaced before anything else.
    """
    folder = locate(config)
    key = (str(folder.resolve()), config.dropout, config.layers)
    if key in _kept:
        found, missing = _kept[key]
        encoder = _copied(found, with_words)
        _draw(encoder, missing)
    else:
        found, missing = _read_encoder(config, folder)
        _kept.clear()
        # Of other families it is not known whether what is missing can be drawn as the library does.
        if not missing or found.config.model_type in BERTS:  # type: ignore[union-attr,operator]
            _kept[key] = found, missing
            encoder = _copied(found, with_words)
        else:
            encoder = found
    shape: Any = encoder.config
    check_length(config, positions(shape.to_dict()), f"in {folder}")
    return encoder


def _copied(encoder: Any, with_words: bool) -> nn.Module:
    """Return a copy of an encoder; its word embeddings, most of its memory, are the original's if they are to go."""
    words = encoder.get_input_embeddings().weight
    return copy.deepcopy(encoder, {} if with_words else {id(words): words})


def _draw(encoder: Any, missing: Sequence[str]) -> None:
    """Give parameters that an encoder's files lack first values, as the library does when it reads them."""
    owners = {name.rpartition(".")[0] for name in missing}
    with torch.no_grad():
        for name, module in encoder.named_modules():
            if name in owners:
                encoder._init_weights(module)


def _read_encoder(config: ModelConfig, folder: Path) -> tuple[nn.Module, Sequence[str]]:
    """Read an encoder; also return the names of the parameters that its files lack."""
    from transformers.utils import logging

    # What is missing is checked below and is an error there; the library's warning about it is of no use to the reader.
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        shape = pretrained_shape(config, folder)
        _fit(shape, config)
        encoder, report = _library(shape).from_pretrained(
            folder,
            config=shape,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            dtype=torch.float32,
        )
    except (SafetensorError, OSError, *CONFUSED) as error:
        why = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UsageError(f"model.path={folder}: the encoder cannot be read ({why})") from error
    finally:
        logging.set_verbosity(verbosity)
    # Encoders are often saved without the pooler: it does not enter tasks that do not read it, and starts anew in those
    # that do.
    wrong = [key for key in report["missing_keys"] if not key.startswith("pooler.")]
    wrong += sorted(report["mismatched_keys"])
    if wrong:
        raise UsageError(
            f"model.path={folder}: the weights do not fit config.json; missing or of another shape: "
            + ", ".join(wrong[:3])
            + (", …" if len(wrong) > 3 else "")
        )
    return _once(encoder), sorted(report["missing_keys"])


def pretrained_shape(config: ModelConfig, folder: Path) -> Any:
    """Return the library's config of a pretrained encoder, cut to the layers that are asked for."""
    from transformers import AutoConfig

    shape = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if config.layers is not None:
        check_layers(config)
        shape.num_hidden_layers = config.layers
        if getattr(shape, "layer_types", None):
            shape.layer_types = shape.layer_types[: config.layers]
    return shape


def keep_rows(encoder: Any, kept: np.ndarray) -> None:
    """Cut an encoder's word embeddings to the rows ``kept``, so that row ``kept[i]`` becomes row i.

    Exact: a row that no example uses has a gradient of zero, and Adam updates each row by its own gradients alone,
    with weight decay too.

    Args:
        kept: (m,) ids of pieces, ascending; where positions are counted from the padding's, it and all below it are
            among them, so that theirs stay.
    """
    whole = encoder.get_input_embeddings()
    # In place, since some families' table does more than look up (Gemma 3 scales).
    whole.weight = nn.Parameter(whole.weight.detach()[torch.from_numpy(kept)].clone())
    whole.num_embeddings = encoder.config.vocab_size = len(kept)
    if whole.padding_idx is not None:
        at = int(np.searchsorted(kept, whole.padding_idx))
        whole.padding_idx = at if at < len(kept) and kept[at] == whole.padding_idx else None
