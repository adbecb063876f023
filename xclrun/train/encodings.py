"""The encoded splits of a run's dataset: what is encoded once serves all runs of a process that agree on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xclrun.core.errors import UsageError
from xclrun.core.identity import digest
from xclrun.core.terminal import note
from xclrun.data.batches import Encoded
from xclrun.data.example import Dataset
from xclrun.data.windows import encode_task
from xclrun.model.source import family_of
from xclrun.model.vocabulary import load_tokenizer, used_pieces
from xclrun.run import Run
from xclrun.store.cache import CachedFile


@dataclass(frozen=True)
class Encodings:
    """Tokenizer and encoded splits, kept between runs of one process that agree on data and encoder.

    Attributes:
        kept: where the vocabulary is trimmed, the tokenizer's ids (m,) of its pieces: piece i of the splits is
            ``kept[i]``.
    """

    tokenizer: Any
    splits: dict[tuple[str, str], Encoded]
    kept: np.ndarray | None = None

    def cut(self, dataset: Dataset) -> dict[str, dict[str, int]]:
        """Return what the length limit cuts, for the manifest: what → ``language/split`` → count, if any.

        ``truncated``: sentences, or windows with a question that was; ``unscored_words``, where a task leaves out the
        words beyond: their number; ``split_answers``: gold answers that no window has whole; ``long_answers``: those
        longer than ``model.windows.answer``.
        """
        named = {f"{language}/{split}": encoded for (language, split), encoded in self.splits.items()}
        found = {"truncated": {name: e.truncated for name, e in named.items() if e.truncated}}
        left_out = {k for k in dataset.languages if (of := dataset.task_of(k)).words and of.outside is None}
        if left_out:
            of_them = {name: e for name, e in named.items() if name.rpartition("/")[0] in left_out}
            beyond = {name: int((e.words - e.word_pieces.lengths).sum()) for name, e in of_them.items()}
            found["unscored_words"] = {name: count for name, count in beyond.items() if count}
        windowed = {name: e.windows for name, e in named.items() if e.windows is not None}
        for what in ("split_answers", "long_answers") if windowed else ():
            counts = {name: getattr(windows, what) for name, windows in windowed.items()}
            found[what] = {name: count for name, count in counts.items() if count}
        return found


# What the runs of this process share as long as they agree on a key, of encoder and label sets; its splits are known by
# the fingerprint of their examples and the name of their task.
_common: tuple[tuple[str, ...], Encodings] | None = None


def encodings(run: Run, warn: Callable[[str], None] = note) -> Encodings:
    """Return tokenizer and encoded splits of a run's dataset.

    What is encoded is kept: runs with other buckets encode these alone. A trimmed vocabulary is the same for all
    buckets: it keeps the pieces of what they were drawn from.

    Args:
        warn: called with a line on a kept file that is damaged, and is made again.

    Raises:
        UsageError: a bucket has other pieces, since it was not drawn from this data.
    """
    global _common
    dataset, config = run.dataset, run.config.model
    sets = digest([[of.task.identified, of.labels, of.tags] for of in dataset.targets])
    key = (run.encoder, json.dumps(run.resolved["model"]), sets, str(run.cache))
    if _common is None or _common[0] != key:
        tokenizer, whole = load_tokenizer(config, dataset, run.cache, warn), dataset.origin
        kept = None
        if config.trim_vocabulary:
            pieces = (_encode(run, whole, name, tokenizer) for name in whole.splits)
            kept = used_pieces(pieces, tokenizer, family_of(config).from_padding)
        _common = key, Encodings(tokenizer, {}, kept)
    common, splits = _common[1], {}
    for name in dataset.splits:
        content = dataset.fingerprints[name], dataset.task_of(name[0]).identified
        if content not in common.splits:
            encoded = _encode(run, dataset, name, common.tokenizer)
            common.splits[content] = encoded if common.kept is None else _trimmed(encoded, common.kept)
        splits[name] = common.splits[content]
    found = replace(common, splits=splits)
    _kept_cut(run, warn).write(json.dumps(found.cut(dataset), sort_keys=True).encode())
    return found


def _encode(run: Run, dataset: Dataset, split: tuple[str, str], tokenizer: Any) -> Encoded:
    of = dataset.targets_of(split[0])
    found = encode_task(of.task, dataset.splits[split], tokenizer, of.labels, of.tags, run.config.model)
    return found if dataset.task is not None else replace(found, task=of.task.head)


def _trimmed(encoded: Encoded, kept: np.ndarray) -> Encoded:
    if not np.isin(encoded.pieces.values, kept).all():
        raise UsageError(
            "model.trim_vocabulary=true: the buckets have word pieces that the dataset has not; set it to false"
        )
    return encoded.renumbered(kept)


def kept_cut(run: Run, warn: Callable[[str], None] = note) -> dict[str, dict[str, int]] | None:
    """Return the stored counts of what is cut (see `Encodings.cut`), for runs that encode nothing."""
    path = _kept_cut(run, warn).find()
    found: dict[str, dict[str, int]] | None = None if path is None else json.loads(path.read_bytes())
    return found


def _kept_cut(run: Run, warn: Callable[[str], None]) -> CachedFile:
    return CachedFile(run.cache, f"cut-{digest([run.data_fingerprint, run.resolved['model']])[:16]}", ".json", warn)
