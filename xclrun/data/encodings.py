"""Encodings of examples as rows of subwords. `ENCODINGS` is the registry: `xclrun.core.task.Task.encoding` → encoding.

``words`` (`xclrun.data.encode`): an example is one row, truncated at ``model.max_length``. ``windows``
(`xclrun.data.windows`): a question with a part of its text; an example is one row or several. ``texts``
(`xclrun.data.texts`): a prompt and a completion; in dev and test, an example has a further row for each of its choices.
``documents`` (`xclrun.data.documents`): a document; in dev and test, it is split into windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.plugins import packaged, provides, replaces
from xclrun.core.task import OPTIONAL_SETTINGS, SETTINGS_READ, Task
from xclrun.data.batches import Encoded
from xclrun.data.documents import encode_documents
from xclrun.data.encode import encode as encode_words
from xclrun.data.example import Example, Targets
from xclrun.data.texts import encode_texts
from xclrun.data.windows import check_windows, encode_windows

# (examples, fast tokenizer, label sets of their task, model's config) → encoded examples. With `Encoding.by_split`, the
# fifth argument is the split: ``train``, ``dev`` or ``test``.
Encode = Callable[..., Encoded]


@dataclass(frozen=True)
class Encoding:
    """A way to encode examples.

    Attributes:
        encode: encodes the examples of a split, in order.
        whole: whether each example is one row; otherwise long texts become several rows and are never truncated.
        settings: those of `xclrun.core.task.OPTIONAL_SETTINGS` that the encoding reads; they are then part of IDs.
        check: raises a `UsageError` if a model's config cannot be used.
        by_split: whether training examples are encoded differently.
        as_written: whether texts are encoded as they are written; otherwise as words.
        decodes: whether it also encodes for encoder-decoders, with the keyword argument ``decoder=True``.
        strides: whether ``encode`` has the argument ``stride``, the value of ``evaluate.stride``.
    """

    encode: Encode
    whole: bool = True
    settings: tuple[str, ...] = ()
    check: Callable[[ModelConfig], None] = lambda model: None
    by_split: bool = False
    as_written: bool = False
    decodes: bool = False
    strides: bool = False


ENCODINGS: dict[str, Encoding] = {}


def register(name: str, encoding: Encoding) -> None:
    """Register an encoding under the name that tasks use."""
    if name in ENCODINGS and not replaces("encoding", name):
        raise UsageError(f"encoding '{name}': this name is already registered; choose another")
    if unknown := [key for key in encoding.settings if key not in OPTIONAL_SETTINGS]:
        raise UsageError(
            f"encoding '{name}': settings={unknown[0]}: list only {', '.join(OPTIONAL_SETTINGS)}; other keys of model "
            "are always part of IDs"
        )
    ENCODINGS[name], SETTINGS_READ[name] = encoding, encoding.settings
    provides("encoding", name, encoding.encode.__doc__)


def encoding_of(task: Task) -> Encoding:
    """Return the encoding that a task names."""
    if task.encoding not in ENCODINGS:
        problem = f"unknown encoding '{task.encoding}'; {did_you_mean(task.encoding, ENCODINGS)}"
        raise UsageError(f"task '{task.name}': {problem}")
    return ENCODINGS[task.encoding]


def encode_task(
    examples: Sequence[Example],
    tokenizer: Any,
    target: Targets,
    model: ModelConfig,
    split: str = "test",
    decoder: bool = False,
    stride: int | None = None,
) -> Encoded:
    """Encode the examples of a task.

    Args:
        decoder: whether the model is an encoder-decoder, which matters for texts.
        stride: value of ``evaluate.stride``.
    """
    encoding = encoding_of(target.task)
    further = {**({"decoder": decoder} if encoding.decodes else {}), **({"stride": stride} if encoding.strides else {})}
    return encoding.encode(examples, tokenizer, target, model, *([split] if encoding.by_split else []), **further)


def words(examples: Sequence[Example], tokenizer: Any, target: Targets, model: ModelConfig) -> Encoded:
    """Encode each example as one row. Targets, which must be numbers or lists of equal length, become `Batch.gold`."""
    task = target.task
    encoded = encode_words(
        examples, tokenizer, target.labels, target.tags, model.max_length, model.label_on, task.words
    )
    if task.target is None:
        return encoded
    try:
        gold = np.array([e.target for e in examples], np.float32)
    except ValueError:
        raise UsageError(
            f"task '{task.name}': targets must be numbers or lists of equal length; register an encoding for others"
        ) from None
    return replace(encoded, gold=gold)


def _windows(examples: Sequence[Example], tokenizer: Any, target: Targets, model: ModelConfig) -> Encoded:
    return encode_windows(examples, tokenizer, model.max_length, model.windows)


register("words", Encoding(words))
register(
    "windows",
    Encoding(
        _windows, whole=False, settings=SETTINGS_READ["windows"], check=lambda m: check_windows(m.max_length, m.windows)
    ),
)
register(
    "texts",
    Encoding(encode_texts, whole=False, settings=SETTINGS_READ["texts"], by_split=True, as_written=True, decodes=True),
)
register("documents", Encoding(encode_documents, by_split=True, as_written=True, strides=True))
packaged("encoding", ENCODINGS)
