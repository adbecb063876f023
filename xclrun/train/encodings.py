"""The encoded splits of a run's dataset, cached for later runs of the process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xclrun.config.schema import plain
from xclrun.core.errors import UsageError
from xclrun.core.identity import digest
from xclrun.core.terminal import note
from xclrun.data.batches import Encoded
from xclrun.data.encodings import encode_task, encoding_of
from xclrun.data.example import Dataset
from xclrun.data.texts import MARKS
from xclrun.model.source import family_of
from xclrun.model.vocabulary import load_tokenizer, used_pieces
from xclrun.plan import Run
from xclrun.store.cache import CachedFile


@dataclass(frozen=True)
class Encodings:
    """Tokenizer and encoded splits.

    Attributes:
        token_ids: (m,) the tokenizer's ID of each subword in a trimmed vocabulary; None without trimming.
    """

    tokenizer: Any
    splits: dict[Any, Encoded]
    token_ids: np.ndarray | None = None

    def cut(self, dataset: Dataset) -> dict[str, dict[str, int]]:
        """Count the data lost to the length limit, for the manifest: kind → ``language/split`` → count.

        ``truncated``: truncated sentences; for extractive question answering, windows with a truncated question;
        ``unscored_words``: words beyond the limit, if the task does not score them; ``split_answers``: gold answers
        that no window contains; ``long_answers``: gold answers longer than ``model.windows.answer``; and the kinds of
        `xclrun.data.texts.MARKS`.
        """
        named = {f"{language}/{split}": encoded for (language, split), encoded in self.splits.items()}
        counts = {"truncated": {name: e.truncated for name, e in named.items()}}
        unscored = {k for k in dataset.languages if (task := dataset.task_of(k)).words and task.outside is None}
        if unscored:
            counts["unscored_words"] = {
                name: int((e.words - e.word_pieces.lengths).sum())
                for name, e in named.items()
                if name.rpartition("/")[0] in unscored
            }
        windowed = {name: e.windows for name, e in named.items() if e.windows is not None}
        for kind in ("split_answers", "long_answers") if windowed else ():
            counts[kind] = {name: getattr(windows, kind) for name, windows in windowed.items()}
        marked = {name: e.marks for name, e in named.items() if e.marks is not None}
        for bit, kind in enumerate(MARKS if marked else ()):
            counts[kind] = {name: int((marks >> bit & 1).sum()) for name, marks in marked.items()}
        return {kind: {name: n for name, n in by_name.items() if n} for kind, by_name in counts.items()}


# Cache for later runs: (cache key, encodings) of the most recent run. The cache key contains the encoder and the label
# sets. The splits of these encodings are indexed by (fingerprint of the examples, task, whether they are encoded as
# training examples), not by (language, split).
_common: tuple[tuple[str, ...], Encodings] | None = None


def encodings(run: Run, warn: Callable[[str], None] = note) -> Encodings:
    """Return tokenizer and encoded splits of a run's dataset; splits that an earlier run encoded are reused.

    With buckets, a trimmed vocabulary contains the subwords of the whole dataset from which the buckets were drawn.
    Therefore all buckets have the same vocabulary.

    Args:
        warn: reports damaged cache files.

    Raises:
        UsageError: a bucket has subwords outside the trimmed vocabulary, because it was not drawn from this data.
    """
    global _common
    dataset, config = run.dataset, run.config.model
    sets = digest(
        [
            [target.task.identified, target.labels, target.tags, *([plain(target.settings)] if target.settings else [])]
            for target in dataset.targets
        ]
    )
    stride = run.config.evaluate.stride
    key = (run.encoder, json.dumps([run.resolved["model"], stride]), sets, str(run.cache))
    if _common is None or _common[0] != key:
        tokenizer, whole = load_tokenizer(config, dataset, run.cache, warn), dataset.origin
        token_ids = None
        if config.trim_vocabulary:
            pieces = (_encode(run, whole, name, tokenizer) for name in whole.splits)
            token_ids = used_pieces(pieces, tokenizer, family_of(config).from_padding)
        _common = key, Encodings(tokenizer, {}, token_ids)
    common, splits = _common[1], {}
    for name in dataset.splits:
        task = dataset.task_of(name[0])
        content = dataset.fingerprints[name], task.identified, name[1] == "train" and encoding_of(task).by_split
        if content not in common.splits:
            encoded = _encode(run, dataset, name, common.tokenizer)
            common.splits[content] = encoded if common.token_ids is None else _trimmed(encoded, common.token_ids)
        splits[name] = common.splits[content]
    result = replace(common, splits=splits)
    _cut_file(run, warn).write(json.dumps(result.cut(dataset), sort_keys=True).encode())
    return result


def _encode(run: Run, dataset: Dataset, split: tuple[str, str], tokenizer: Any) -> Encoded:
    target = dataset.targets_of(split[0])
    config = run.config
    decoder = target.task.writes and family_of(config.model).with_decoder
    stride = config.evaluate.stride
    encoded = encode_task(dataset.splits[split], tokenizer, target, config.model, split[1], decoder, stride)
    return encoded if dataset.task is not None else replace(encoded, task=target.task.place)


def _trimmed(encoded: Encoded, token_ids: np.ndarray) -> Encoded:
    if not np.isin(encoded.pieces.values, token_ids).all():
        raise UsageError(
            "model.trim_vocabulary=true: the buckets have subwords that the dataset does not have; use false"
        )
    return encoded.renumbered(token_ids)


def cached_cut(run: Run, warn: Callable[[str], None] = note) -> dict[str, dict[str, int]] | None:
    """Return the cached counts of `Encodings.cut`, for runs that encode nothing; None if they are not cached."""
    path = _cut_file(run, warn).find()
    counts: dict[str, dict[str, int]] | None = None if path is None else json.loads(path.read_bytes())
    return counts


def _cut_file(run: Run, warn: Callable[[str], None]) -> CachedFile:
    return CachedFile(run.cache, f"cut-{digest([run.data_fingerprint, run.resolved['model']])[:16]}", ".json", warn)
