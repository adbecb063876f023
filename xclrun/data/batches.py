"""Encoded examples, as flat arrays, and batches of them as padded tensors.

Rows of different lengths lie end to end (`Ragged`), so that a batch takes a few array operations. `xclrun.data.encode`
makes them of examples, and `xclrun.data.windows` of questions about texts: there an "example" below is a window.
Shapes: n examples, B examples of a batch, L subwords, W words that the model sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.data.transfer import to_device

if TYPE_CHECKING:
    import torch

# Widths of batches whose shapes are to be few are multiples of these: in pieces, and in words.
EVEN_PIECES, EVEN_WORDS = 16, 8

# The id of a label or tag that training never had, and of the labels or tags of a dataset that has none.
UNSEEN = -1


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, end to end: row i is ``values[offsets[i] : offsets[i + 1]]``.

    Attributes:
        values: (sum of lengths,) int32; or float32, with further axes (a vector for each value).
        offsets: (n + 1,) int64.
    """

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """Return the rows, as they are, in one array."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        values = np.fromiter((value for row in rows for value in row), np.int32, lengths.sum())
        return cls(values, offsets_of(lengths))

    @property
    def lengths(self) -> np.ndarray:
        """(n,) int64."""
        return np.diff(self.offsets)

    def select(self, indices: np.ndarray) -> Ragged:
        """Return the given rows, in the given order."""
        starts, lengths = self.offsets[:-1][indices], self.lengths[indices]
        offsets = offsets_of(lengths)
        # Where a row moves by d, so does each of its values.
        source = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Ragged(self.values[source], offsets)

    def padded(self, indices: np.ndarray, fill: int, multiple: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return the given rows as a matrix (B, width, …), filled up on the right, and which of it are values.

        Whole numbers come as int64. The width is that of the longest row, or the next ``multiple``.
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
        attention_mask: (B, L) int64, 1 on pieces and 0 on padding.
        token_type_ids: (B, L) int64.
        word_pieces: (B, W) int64, position of each word's labelled piece, words packed to the left, 0 on padding. Where
            all pieces are labelled, a piece represents a word here and below.
        word_mask: (B, W) bool, true on words.
        labels: (B,) int64, −1 where training never had the label or the task has none.
        tags: (B, W) int64, −1 where training never had the tag or the example has none, 0 on padding.
        indices: (B,) the examples' positions in the `Encoded` that the batch comes from.
        gold: (B, 2) int64, where the answer starts and ends among the words, both included; None without answers.
        cls: (B, H) float32, what a frozen encoder makes of [CLS]; None: the encoder is to be run.
        word_states: (B, W, H) float32, the same of the words; None where nothing reads them.
        task: name of the heads that answer it (`xclrun.core.task.Task.head`), in a model of several tasks; else empty.
        lengths: (B,) int64 subwords of each, an array on the CPU whatever the device; None where examples are mapped
            over (`torch.func.vmap`).
        words: (B,) int64 words of each, there too.
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
    lengths: np.ndarray | None = None
    words: np.ndarray | None = None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Its tensors by name, those that are there."""
        others = ("indices", "task", "lengths", "words")
        return {name: v for name, v in vars(self).items() if v is not None and name not in others}

    @property
    def size(self) -> int:
        """B, the number of examples."""
        return len(self.indices)

    @property
    def pieces(self) -> int:
        """Subwords without padding."""
        return int(self.attention_mask.sum() if self.lengths is None else self.lengths.sum())

    @property
    def whole(self) -> bool:
        """Whether it is known that no piece is padding."""
        return self.lengths is not None and bool(self.lengths.min() == self.input_ids.shape[1])

    def word_rows(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the rows (B, W, …) of words alone, sentence after sentence: what `word_mask` selects."""
        return padded[self.word_mask] if self.words is None else padded.flatten(0, 1)[self._places(padded.device)]

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows of words that lie end to end, (words, K), as (B, W, K), 0 on padding: `word_rows` undone."""
        full = rows.new_zeros((self.word_mask.numel(), rows.shape[1]))
        full[self.word_mask.flatten() if self.words is None else self._places(rows.device)] = rows
        return full.unflatten(0, self.word_mask.shape)

    def _places(self, device: torch.device) -> torch.Tensor:
        """Return where words stand, counted through the rows, from what the host knows: it would wait for the mask."""
        import torch

        inside = np.arange(self.word_mask.shape[1]) < np.asarray(self.words)[:, None]
        return to_device({"rows": torch.from_numpy(np.flatnonzero(inside))}, device)["rows"]

    def split(self, size: int) -> list[Batch]:
        """Return the batch in parts of at most ``size`` examples; the padding stays."""
        if self.size <= size:
            return [self]
        parts = [slice(start, start + size) for start in range(0, self.size, size)]
        return [self.at(part) for part in parts]

    def at(self, rows: slice | np.ndarray) -> Batch:
        """Return some of the examples; the padding stays."""
        chosen: dict[str, Any] = {name: value[rows] for name, value in self.tensors.items()}
        on_host: dict[str, Any] = {
            name: None if (v := getattr(self, name)) is None else v[rows] for name in ("lengths", "words")
        }
        return replace(self, **chosen, indices=self.indices[rows], **on_host)

    def copied(self) -> Batch:
        """Return the batch with its own tensors."""
        own: dict[str, Any] = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return replace(self, **own)

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch with its tensors on ``device``; nothing waits for them to be there."""
        moved: dict[str, Any] = to_device(self.tensors, device)
        return replace(self, **moved)


@dataclass(frozen=True)
class Windows:
    """What the rows of an `Encoded` are of texts with answers, n windows; a "word" there is a piece of the text.

    The first word of each row is [CLS], which represents "no answer in this window"; the others are the pieces of the
    text that the window has, in order.

    Attributes:
        examples: (n,) int64, the position in the split of the example that a window is of.
        gold: (n, 2) int64, the words at which the first gold answer starts and ends; (0, 0): not in this window.
        first: (n,) int64, the number of the window's first piece in the text, from 0.
        pieces: (n,) int64, how many pieces the whole text has.
        answer: (n,) int64, how many the first gold answer has; 0 without one.
        longest: how many an answer may have.
        characters: for each word, its first character in the text and the one after its last, (2,) int32 a word; same
            rows as ``word_pieces``.
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
        """The first window of each example, int64; of one split, in whose order its windows are."""
        return np.flatnonzero(np.diff(self.examples, prepend=-1))

    @property
    def split_answers(self) -> int:
        """Of how many examples no window has the whole answer."""
        held = np.maximum.reduceat(self.gold[:, 1], self.starts) if len(self.examples) else np.empty(0)
        return int(((self.answer[self.starts] > 0) & (held == 0)).sum())

    @property
    def long_answers(self) -> int:
        """How many answers are longer than one may be."""
        return int((self.answer[self.starts] > self.longest).sum())

    def select(self, indices: np.ndarray) -> Windows:
        """Return those of the given rows, in the given order."""
        return Windows(**{name: _select(value, indices) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Encoded:
    """Examples as numbers, in columns.

    Attributes:
        ids: (n,) example ids, as objects.
        languages: (n,) the examples' languages, as objects.
        pieces: subwords with the special ones.
        types: token type of each piece; same rows as ``pieces``.
        word_pieces: for each word that the model sees, the position of its labelled piece in the row of ``pieces``.
            Where all pieces are labelled, of each piece of these words; then ``tags`` has X on all but their first.
        tags: tag id of each word that the model sees, −1 for one that training never had; same rows as ``word_pieces``.
        labels: (n,) int64 label ids, −1 for one that training never had, and where the task has no labels.
        words: (n,) int64 number of words of the whole sentence.
        cut: (n,) bool, whether the sentence was cut at ``max_length``.
        pad: the piece that fills up a batch.
        windows: where a text's answers lie, if rows are windows of texts (`xclrun.data.windows`), and no whole ones.
        cls: (n, H) float32, what a frozen encoder makes of [CLS]; None: the encoder is to be run.
        word_states: the same of each word that the model sees, (H,) a word; None where nothing reads them.
        task: as of `Batch`.
        even: whether the widths of batches are multiples of `EVEN_PIECES` and `EVEN_WORDS`, so that few shapes come up.
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
    cls: np.ndarray | None = None
    word_states: Ragged | None = None
    task: str = ""
    even: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """(n,) int64 subwords per example, special ones included."""
        return self.pieces.lengths

    @property
    def truncated(self) -> int:
        """How many examples were cut at ``max_length``."""
        return int(self.cut.sum())

    def select(self, indices: np.ndarray | Sequence[int]) -> Encoded:
        """Return the given examples, in the given order."""
        at = np.asarray(indices, np.int64)
        return Encoded(**{name: _select(value, at) for name, value in vars(self).items()})

    def renumbered(self, kept: np.ndarray) -> Encoded:
        """Return the same examples where piece ``kept[i]`` has become piece i.

        Args:
            kept: (m,) ids of pieces, ascending; all pieces of the examples are among them.
        """
        pieces = Ragged(np.searchsorted(kept, self.pieces.values).astype(np.int32), self.pieces.offsets)
        return replace(self, pieces=pieces, pad=int(np.searchsorted(kept, self.pad)))

    def batch(self, indices: np.ndarray | Sequence[int]) -> Batch:
        """Return the given examples, in the given order, padded to the longest of them (see `even`), on the CPU."""
        import torch

        at = np.asarray(indices, np.int64)
        of_pieces, of_words = (EVEN_PIECES, EVEN_WORDS) if self.even else (1, 1)
        input_ids, inside = self.pieces.padded(at, self.pad, of_pieces)
        word_pieces, words = self.word_pieces.padded(at, 0, of_words)
        states = None if self.word_states is None else self.word_states.padded(at, 0, of_words)[0]
        return Batch(
            input_ids=torch.from_numpy(input_ids),
            attention_mask=torch.from_numpy(inside.astype(np.int64)),
            token_type_ids=torch.from_numpy(self.types.padded(at, 0, of_pieces)[0]),
            word_pieces=torch.from_numpy(word_pieces),
            word_mask=torch.from_numpy(words),
            labels=torch.from_numpy(self.labels[at]),
            tags=torch.from_numpy(self.tags.padded(at, 0, of_words)[0]),
            indices=at,
            gold=None if self.windows is None else torch.from_numpy(self.windows.gold[at]),
            cls=None if self.cls is None else torch.from_numpy(self.cls[at]),
            word_states=None if states is None else torch.from_numpy(states),
            task=self.task,
            lengths=self.lengths[at],
            words=words.sum(axis=1),
        )


def concat(parts: Sequence[Encoded]) -> Encoded:
    """Return the examples of all parts, one part after the other; the parts must share a tokenizer and a task."""
    if len({part.pad for part in parts}) != 1:
        raise ValueError(f"parts of one tokenizer are needed; their padding pieces are {[part.pad for part in parts]}")
    if len({part.task for part in parts}) > 1:
        raise ValueError(f"parts of one task are needed; theirs are {[part.task for part in parts]}")
    return Encoded(**{name: _concat([getattr(part, name) for part in parts]) for name in vars(parts[0])})


def by_task(parts: Sequence[Encoded]) -> list[tuple[Encoded, np.ndarray]]:
    """Return the examples of parts, those of one task together, and their positions in all parts one after the other.

    One entry, with the positions 0 to n − 1, where all parts are of one task; otherwise in the order of first parts.
    """
    starts = offsets_of(np.array([len(part) for part in parts]))
    groups: dict[str, list[int]] = {}
    for i, part in enumerate(parts):
        groups.setdefault(part.task, []).append(i)
    return [
        (concat([parts[i] for i in group]), np.concatenate([np.arange(starts[i], starts[i + 1]) for i in group]))
        for group in groups.values()
    ]


def epoch_batches(n: int, batch_size: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Return the indices 0 to n − 1, shuffled, in batches; the last one may be smaller."""
    return _chunks(generator.permutation(n), batch_size)


def length_sorted_batches(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Return all indices in batches of like lengths: little padding. Longest first: too big a batch fails at once."""
    return _chunks(np.argsort(-lengths, kind="stable"), batch_size)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def _chunks(indices: np.ndarray, size: int) -> list[np.ndarray]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def _select(column: Any, indices: np.ndarray) -> Any:
    if isinstance(column, Ragged | Windows):
        return column.select(indices)
    return column[indices] if isinstance(column, np.ndarray) else column


def _concat(columns: Sequence[Any]) -> Any:
    if isinstance(columns[0], Ragged):
        lengths = np.concatenate([column.lengths for column in columns])
        return Ragged(np.concatenate([column.values for column in columns]), offsets_of(lengths))
    if isinstance(columns[0], Windows):
        return Windows(**{name: _concat([getattr(part, name) for part in columns]) for name in vars(columns[0])})
    return np.concatenate(columns) if isinstance(columns[0], np.ndarray) else columns[0]
