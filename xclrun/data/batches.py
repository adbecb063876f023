"""Encoded examples as flat arrays, and batches as padded tensors.

`xclrun.data.encode` encodes examples. `xclrun.data.windows` encodes extractive question answering, where an "example"
below is a window. Shapes: n examples, B examples of a batch, L subwords, W words that the model sees, H hidden units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.data.packing import Packing
from xclrun.data.transfer import to_device

if TYPE_CHECKING:
    import torch

# Batch widths (in subwords and in words) are rounded up to these multiples to limit the number of different shapes.
EVEN_PIECES, EVEN_WORDS = 16, 8

# Batches whose examples are sorted together by length (`epoch_batches`).
GROUPED = 10

# Id of a missing label or tag, or one that is not in the training data.
UNSEEN = -1


@dataclass(frozen=True)
class Ragged:
    """Concatenated rows of different lengths: row i is ``values[offsets[i] : offsets[i + 1]]``.

    Attributes:
        values: (sum of lengths,) int32; or float32 vectors, (sum of lengths, …).
        offsets: (n + 1,) int64.
    """

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        values = np.fromiter((value for row in rows for value in row), np.int32, lengths.sum())
        return cls(values, offsets_of(lengths))

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def select(self, indices: np.ndarray) -> Ragged:
        """Return the rows at ``indices``, in this order."""
        starts, lengths = self.offsets[:-1][indices], self.lengths[indices]
        offsets = offsets_of(lengths)
        source = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Ragged(self.values[source], offsets)

    def padded(self, indices: np.ndarray, fill: int, multiple: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows at ``indices`` as a matrix (B, width, …), padded with ``fill`` on the right, and its mask.

        Integers become int64. The width is that of the longest row, rounded up to a multiple of ``multiple``.
        """
        starts = self.offsets[:-1][indices]
        lengths = self.offsets[1:][indices] - starts
        columns = np.arange(-(-lengths.max(initial=0) // multiple) * multiple)
        inside = columns < lengths[:, None]
        kind = np.int64 if self.values.dtype.kind == "i" else self.values.dtype
        matrix = np.full((*inside.shape, *self.values.shape[1:]), fill, kind)
        matrix[inside] = self.values[(starts[:, None] + columns)[inside]]
        return matrix, inside


@dataclass(frozen=True)
class Batch:
    """Padded examples, ready for the model.

    Attributes:
        input_ids: (B, L) int64 subwords.
        attention_mask: (B, L) int64, 0 on padding.
        token_type_ids: (B, L) int64.
        word_pieces: (B, W) int64, position of each word's labeled subword, 0 on padding. If all subwords have labels,
            a "word" here and below is a subword.
        word_mask: (B, W) bool, true on words.
        labels: (B,) int64, −1 for an unseen or missing label.
        tags: (B, W) int64, −1 for an unseen or missing tag, 0 on padding.
        indices: (B,) positions of the examples in their `Encoded`.
        gold: (B, …) targets that are neither labels nor tags, as the encoding defines them, or None. For answers,
            (B, 2) int64, first and last word of the answer; for tasks with targets, float32.
        cls: (B, H) float32, states of a frozen encoder at [CLS]; None: the encoder must be run.
        word_states: (B, W, H) float32, states of a frozen encoder at the words, or None.
        task: name of the task's heads (`xclrun.core.task.Task.place`) in a model of several tasks; otherwise empty.
        packing: (3, R, C) int64, subwords, positions and sentences of R packed rows (`xclrun.data.packing.Packing`),
            or None: the model packs the batch if it should be packed. Parts of a batch have none.
        first: (B,) int64, flat index of each sentence's first subword in ``packing``, or None.
        lengths: (B,) int64 number of subwords, always on the CPU; None under `torch.func.vmap`.
        words: (B,) int64 number of words, always on the CPU.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    token_type_ids: torch.Tensor
    word_pieces: torch.Tensor
    word_mask: torch.Tensor
    labels: torch.Tensor
    tags: torch.Tensor
    indices: np.ndarray
    gold: torch.Tensor | None = None
    cls: torch.Tensor | None = None
    word_states: torch.Tensor | None = None
    task: str = ""
    packing: torch.Tensor | None = None
    first: torch.Tensor | None = None
    lengths: np.ndarray | None = None
    words: np.ndarray | None = None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The batch's tensors by name; attributes that are None are omitted."""
        on_host = ("indices", "task", "lengths", "words")
        return {name: v for name, v in vars(self).items() if v is not None and name not in on_host}

    @property
    def size(self) -> int:
        return len(self.indices)

    @property
    def pieces(self) -> int:
        """Number of subwords without padding."""
        return int(self.attention_mask.sum() if self.lengths is None else self.lengths.sum())

    @property
    def whole(self) -> bool:
        """Whether the lengths on the CPU show that the batch has no padding; does not wait for the device."""
        return self.lengths is not None and bool(self.lengths.min() == self.input_ids.shape[1])

    def word_rows(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the rows of ``padded``, shape (B, W, …), that are words: shape (number of words, …)."""
        return padded[self.word_mask] if self.words is None else padded.flatten(0, 1)[self._places(padded.device)]

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """Undo `word_rows`: return ``rows``, shape (number of words, K), as shape (B, W, K) with 0 on padding."""
        full = rows.new_zeros((self.word_mask.numel(), rows.shape[1]))
        full[self.word_mask.flatten() if self.words is None else self._places(rows.device)] = rows
        return full.unflatten(0, self.word_mask.shape)

    def _places(self, device: torch.device) -> torch.Tensor:
        """Return the flat indices of words, computed from `words`, to avoid waiting for the mask on the device."""
        import torch

        inside = np.arange(self.word_mask.shape[1]) < np.asarray(self.words)[:, None]
        return to_device({"rows": torch.from_numpy(np.flatnonzero(inside))}, device)["rows"]

    def split(self, size: int) -> list[Batch]:
        """Return parts of at most ``size`` examples, with unchanged padding."""
        if self.size <= size:
            return [self]
        parts = [slice(start, start + size) for start in range(0, self.size, size)]
        return [self.at(part) for part in parts]

    def at(self, rows: slice | np.ndarray) -> Batch:
        """Return the examples at ``rows``, with unchanged padding."""
        chosen: dict[str, Any] = {
            name: None if name in ("packing", "first") else value[rows] for name, value in self.tensors.items()
        }
        on_host: dict[str, Any] = {
            name: None if (v := getattr(self, name)) is None else v[rows] for name in ("lengths", "words")
        }
        return replace(self, **chosen, indices=self.indices[rows], **on_host)

    def copied(self) -> Batch:
        copies: dict[str, Any] = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return replace(self, **copies)

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch with its tensors on ``device``, without waiting for the copy."""
        moved: dict[str, Any] = to_device(self.tensors, device)
        return replace(self, **moved)


@dataclass(frozen=True)
class Windows:
    """The n windows of an `Encoded` with answers. A "word" is [CLS] (no answer) or a subword of the text.

    Attributes:
        examples: (n,) int64, position of the window's example in the split.
        gold: (n, 2) int64, first and last word of the first gold answer; (0, 0) if it is not in this window.
        first: (n,) int64, position of the window's first subword in the text.
        pieces: (n,) int64, number of subwords of the whole text.
        answer: (n,) int64, number of subwords of the first gold answer; 0 without an answer.
        longest: largest number of subwords of an answer.
        characters: character range [start, end) of each word, int32 pairs; same rows as ``word_pieces``.
    """

    examples: np.ndarray
    gold: np.ndarray
    first: np.ndarray
    pieces: np.ndarray
    answer: np.ndarray
    longest: int
    characters: Ragged

    @property
    def starts(self) -> np.ndarray:
        """Index of each example's first window, int64. Requires all windows of one split, in order."""
        return np.flatnonzero(np.diff(self.examples, prepend=-1))

    @property
    def split_answers(self) -> int:
        """Number of examples whose answer no window contains completely."""
        ends = np.maximum.reduceat(self.gold[:, 1], self.starts) if len(self.examples) else np.empty(0)
        return int(((self.answer[self.starts] > 0) & (ends == 0)).sum())

    @property
    def long_answers(self) -> int:
        """Number of answers with more than ``longest`` subwords."""
        return int((self.answer[self.starts] > self.longest).sum())

    def select(self, indices: np.ndarray) -> Windows:
        return Windows(**{name: _select(value, indices) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Prompts:
    """What the head of an `Encoded` continues when it writes texts.

    Attributes:
        pieces: subwords of each prompt; an empty row is not continued.
        start: number of subwords at the beginning that a shortened prompt keeps.
        stops: ids that end a text.
        header: what a model writes before each answer, which is no part of it.
    """

    pieces: Ragged
    start: int
    stops: tuple[int, ...]
    header: str = ""

    def select(self, indices: np.ndarray) -> Prompts:
        return replace(self, pieces=self.pieces.select(indices))


@dataclass(frozen=True)
class Encoded:
    """Encoded examples, in columns.

    Attributes:
        ids, languages: (n,) ids and languages of the examples, as objects.
        pieces: subwords, including special tokens.
        types: token type of each subword; same rows as ``pieces``.
        word_pieces: positions in the row of ``pieces``: of each word's labeled subword, or of every subword of the
            words if all subwords have labels.
        tags: tag id of each word, −1 for an unseen tag; same rows as ``word_pieces``.
        labels: (n,) int64 label ids, −1 for an unseen or missing label.
        words: (n,) int64 number of words of the sentence before truncation.
        cut: (n,) bool, whether the sentence was truncated at ``max_length``.
        pad: id of the padding token.
        windows: set only if rows are windows of texts (`xclrun.data.windows`).
        gold: (n, …) targets, see `Batch`; None for windows, whose targets are `Windows.gold`.
        cls: (n, H) float32, states of a frozen encoder at [CLS]; None: the encoder must be run.
        word_states: states of a frozen encoder, a vector (H,) for each word; None: the encoder must be run.
        task: see `Batch`.
        even: whether the widths of batches are multiples of `EVEN_PIECES` and `EVEN_WORDS`.
        packed: width of the rows into which batches are packed (`Batch.packing`), at least that of the longest example;
            0: batches are not packed. Packed batches are padded to this width, so few shapes occur.
        tokenizer: set by encodings whose head makes texts of subwords.
        prompts: set only if the head writes texts.
        marks: (n,) int64, bits of what was cut in a text (`xclrun.data.texts.MARKS`), or None.
    """

    ids: np.ndarray
    languages: np.ndarray
    pieces: Ragged
    types: Ragged
    word_pieces: Ragged
    tags: Ragged
    labels: np.ndarray
    words: np.ndarray
    cut: np.ndarray
    pad: int
    windows: Windows | None = None
    gold: np.ndarray | None = None
    cls: np.ndarray | None = None
    word_states: Ragged | None = None
    task: str = ""
    even: bool = False
    packed: int = 0
    tokenizer: Any = None
    prompts: Prompts | None = None
    marks: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """(n,) int64 subwords per example, including special tokens."""
        return self.pieces.lengths

    @property
    def truncated(self) -> int:
        """Number of examples that were truncated at ``max_length``."""
        return int(self.cut.sum())

    def select(self, indices: np.ndarray | Sequence[int]) -> Encoded:
        """Return the examples at ``indices``, in this order."""
        at = np.asarray(indices, np.int64)
        return Encoded(**{name: _select(value, at) for name, value in vars(self).items()})

    def renumbered(self, rows: np.ndarray) -> Encoded:
        """Renumber the subwords: the id ``rows[i]`` becomes i, for a model with fewer embeddings.

        ``rows``, shape (m,), is ascending and contains the id of every subword in these examples.
        """
        pieces = Ragged(np.searchsorted(rows, self.pieces.values).astype(np.int32), self.pieces.offsets)
        return replace(self, pieces=pieces, pad=int(np.searchsorted(rows, self.pad)))

    def batch(self, indices: np.ndarray | Sequence[int]) -> Batch:
        """Return the examples at ``indices``, in this order, padded to the longest (see ``even``), on the CPU."""
        import torch

        at = np.asarray(indices, np.int64)
        per_pieces, per_words = (EVEN_PIECES, EVEN_WORDS) if self.even else (1, 1)
        per_pieces = self.packed or per_pieces
        input_ids, inside = self.pieces.padded(at, self.pad, per_pieces)
        word_pieces, words = self.word_pieces.padded(at, 0, per_words)
        gold = self.gold if self.windows is None else self.windows.gold
        states = None if self.word_states is None else self.word_states.padded(at, 0, per_words)[0]
        packing = Packing.fixed(self.lengths[at], input_ids.shape[1], self.packed) if self.packed else None
        return Batch(
            input_ids=torch.from_numpy(input_ids),
            attention_mask=torch.from_numpy(inside.astype(np.int64)),
            token_type_ids=torch.from_numpy(self.types.padded(at, 0, per_pieces)[0]),
            word_pieces=torch.from_numpy(word_pieces),
            word_mask=torch.from_numpy(words),
            labels=torch.from_numpy(self.labels[at]),
            tags=torch.from_numpy(self.tags.padded(at, 0, per_words)[0]),
            indices=at,
            gold=None if gold is None else torch.from_numpy(gold[at]),
            cls=None if self.cls is None else torch.from_numpy(self.cls[at]),
            word_states=None if states is None else torch.from_numpy(states),
            task=self.task,
            packing=None if packing is None else torch.from_numpy(packing.rows),
            first=None if packing is None else torch.from_numpy(packing.first),
            lengths=self.lengths[at],
            words=words.sum(axis=1),
        )


def concat(parts: Sequence[Encoded]) -> Encoded:
    """Concatenate parts, which must share a tokenizer and a task."""
    if len({part.pad for part in parts}) != 1:
        raise ValueError(f"the parts must share a tokenizer; their padding ids are {[part.pad for part in parts]}")
    if len({part.task for part in parts}) > 1:
        raise ValueError(f"the parts must share a task; their tasks are {[part.task for part in parts]}")
    return Encoded(**{name: _concat([getattr(part, name) for part in parts]) for name in vars(parts[0])})


def by_task(parts: Sequence[Encoded]) -> list[tuple[Encoded, np.ndarray]]:
    """Concatenate the parts of each task.

    Returns:
        For each task, its examples and their positions in the concatenation of all parts.
    """
    starts = offsets_of(np.array([len(part) for part in parts]))
    groups: dict[str, list[int]] = {}
    for i, part in enumerate(parts):
        groups.setdefault(part.task, []).append(i)
    return [
        (concat([parts[i] for i in group]), np.concatenate([np.arange(starts[i], starts[i + 1]) for i in group]))
        for group in groups.values()
    ]


def epoch_batches(
    n: int, batch_size: int, generator: np.random.Generator, lengths: np.ndarray | None = None
) -> list[np.ndarray]:
    """Return the indices 0 to n − 1, shuffled, in batches; the last batch may be smaller.

    Args:
        lengths: (n,) subwords of each example, to group examples of similar lengths: each `GROUPED` full batches of the
            shuffled examples are sorted by length, divided again, and shuffled as batches. The smaller last batch stays
            as drawn, so its examples are not the longest ones.
    """
    order = generator.permutation(n)
    if lengths is None:
        return _chunks(order, batch_size)
    whole = n - n % batch_size
    batches = list[np.ndarray]()
    for drawn in _chunks(order[:whole], GROUPED * batch_size):
        alike = _chunks(drawn[np.argsort(lengths[drawn], kind="stable")], batch_size)
        batches += [alike[i] for i in generator.permutation(len(alike))]
    return batches + _chunks(order[whole:], batch_size)


def length_sorted_batches(lengths: np.ndarray, batch_size: int, batch_tokens: int | None = None) -> list[np.ndarray]:
    """Return all indices in batches of similar lengths, longest first so that running out of memory shows at once.

    Args:
        batch_tokens: maximum number of subwords of a batch, including padding; a longer example is a separate batch.
    """
    order = np.argsort(-lengths, kind="stable")
    if batch_tokens is None:
        return _chunks(order, batch_size)
    batches, start = list[np.ndarray](), 0
    while start < len(order):
        # The first example is the longest of its batch.
        size = min(batch_size, max(1, batch_tokens // int(lengths[order[start]])))
        batches.append(order[start : start + size])
        start += size
    return batches


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def _chunks(indices: np.ndarray, size: int) -> list[np.ndarray]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def _select(column: Any, indices: np.ndarray) -> Any:
    if isinstance(column, Ragged | Windows | Prompts):
        return column.select(indices)
    return column[indices] if isinstance(column, np.ndarray) else column


def _concat(columns: Sequence[Any]) -> Any:
    if isinstance(columns[0], Ragged):
        lengths = np.concatenate([column.lengths for column in columns])
        return Ragged(np.concatenate([column.values for column in columns]), offsets_of(lengths))
    if isinstance(columns[0], Prompts):
        return replace(columns[0], pieces=_concat([column.pieces for column in columns]))
    if isinstance(columns[0], Windows):
        return Windows(**{name: _concat([getattr(part, name) for part in columns]) for name in vars(columns[0])})
    return np.concatenate(columns) if isinstance(columns[0], np.ndarray) else columns[0]
