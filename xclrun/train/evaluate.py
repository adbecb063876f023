"""Evaluation: compute a model's prediction rows, and base scores from the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xclrun.config.schema import SlotF1
from xclrun.core.errors import RunError
from xclrun.core.task import STATEMENT_TRUTH, Scored
from xclrun.data.batches import Batch, Encoded, length_sorted_batches
from xclrun.data.example import Dataset, text_numbers
from xclrun.data.transfer import copy_to_host
from xclrun.model.network import Model, Prediction
from xclrun.scores import base_scores
from xclrun.scores.spans import span_counts, word_counts
from xclrun.store import predictions
from xclrun.train.answers import Readings, answers_of
from xclrun.train.precision import autocast
from xclrun.train.ranks import ALONE, Ranks

# The prediction function: `Model.predict`, or a function that calls `Strategy.predict`.
Answer = Callable[[Batch], Prediction]
# Marks a sentence whose prediction is not finite; log2-probabilities are at most 0 (up to rounding) or NaN.
NOT_FINITE = float("inf")


@dataclass
class Rows:
    """Prediction rows under construction, by column (see `xclrun.store.predictions`)."""

    columns: dict[str, list[Any]] = field(default_factory=dict)

    def extend(self, **columns: Sequence[Any]) -> None:
        for name, values in columns.items():
            self.columns.setdefault(name, []).extend(values)


@dataclass(frozen=True)
class Evaluator:
    """Evaluates a model on encoded splits, in batches of sentences of similar lengths.

    Each rank predicts a part of the sentences.

    Attributes:
        batch_size: maximum number of sentences of a batch.
        batch_tokens: maximum number of subwords of a batch, including padding; None: no limit.
    """

    dataset: Dataset
    device: torch.device
    batch_size: int
    precision: str
    slot_f1: SlotF1
    batch_tokens: int | None = None
    ranks: Ranks = ALONE

    def predict(
        self, model: Model, encoded: Encoded, language: str, split: str, answer: Answer | None = None
    ) -> dict[str, list[Any]]:
        """Predict a split with the model in eval mode; return the prediction columns, with the examples in file order.

        Args:
            answer: predicts a batch on the device; None: `Model.predict`.

        Raises:
            RunError: a prediction is not finite. The loss does not show weights that changed outside the training
                loop: by a merge, an average or a hook.
        """
        n = len(encoded)
        predicted, log2_gold = np.zeros(n, dtype=np.int64), np.full(n, np.nan)
        log2_tags = np.full(n, np.nan)
        sequences: list[list[int]] = [[] for _ in range(n)]
        names = self.dataset.targets_of(language).tags
        readings = None if encoded.windows is None else Readings.empty(encoded.windows)
        training = model.training
        model.eval()
        order = np.argsort(-encoded.lengths, kind="stable")
        share = order[self.ranks.rank :: self.ranks.size]
        for indices, batch, output in self._late(encoded, share, answer or model.predict):
            if "label" in output:
                predicted[indices] = output["label"].numpy()
                log2_gold[indices] = _marked(output["log2_label"], batch.labels >= 0)
            if "tags" in output:
                known = ((batch.tags >= 0) | ~batch.word_mask).all(dim=1)
                log2_tags[indices] = _marked(output["log2_tags"], known)
                seen = batch.word_mask.sum(dim=1).tolist()
                rows = zip(output["tags"].tolist(), batch.tags.tolist(), indices, seen, strict=True)
                for row, gold, index, words in rows:
                    sequences[index] = _word_tags(row[:words], gold[:words], names)
            if "answers" in output and readings is not None:
                finite = (output["answers"].isfinite().all(dim=2) | ~batch.word_mask).all(dim=1)
                log2_gold[indices] = np.where(finite.numpy(), np.nan, NOT_FINITE)
                readings.note(indices, output["answers"].numpy(), batch.word_mask.numpy())
        model.train(training)
        if self.ranks.several:
            arrays = [predicted, log2_gold, log2_tags, *([] if readings is None else readings.arrays)]
            values = [array[share] for array in arrays], [sequences[i] for i in share]
            for rank, (parts, tags) in enumerate(self.ranks.gather(values)):
                places = order[rank :: self.ranks.size]
                for array, part in zip(arrays, parts, strict=True):
                    array[places] = part
                for place, sequence in zip(places, tags, strict=True):
                    sequences[place] = sequence
        # After `gather`, so that all ranks fail together, and a sweep continues with the next run.
        if (log2_gold == NOT_FINITE).any() or (log2_tags == NOT_FINITE).any():
            raise RunError(
                f"{language}/{split}: the model's predictions are not finite (NaN or infinite); its weights are "
                "too large or damaged; use smaller coefficients for a merge, or a lower trainer.lr for training"
            )
        if readings is not None:
            # Combine the windows of an example into one answer.
            first = readings.windows.starts
            predicted, log2_gold, log2_tags = predicted[first], log2_gold[first], log2_tags[first]
            columns = self._columns(encoded, language, split, predicted, log2_gold, log2_tags, [[]] * len(first))
            examples = self.dataset.split(language, split)
            return columns | answers_of(readings, examples, self.dataset.targets_of(language).unanswerable)
        columns = self._columns(encoded, language, split, predicted, log2_gold, log2_tags, sequences)
        return columns | self._texts_of_pairs(language, split)

    def _late(
        self, encoded: Encoded, rows: np.ndarray, answer: Answer
    ) -> Iterator[tuple[np.ndarray, Batch, dict[str, Tensor]]]:
        """Yield (indices, batch, predictions) on the CPU.

        Each batch is yielded after the next batch is launched, so that the device does not wait.
        """
        before: tuple[np.ndarray, Batch, Callable[[], dict[str, Tensor]]] | None = None
        for at in length_sorted_batches(encoded.lengths[rows], self.batch_size, self.batch_tokens):
            indices = rows[at]
            batch = encoded.batch(indices)
            with autocast(self.device, self.precision):
                result = answer(batch.to(self.device))
            read = copy_to_host({name: tensor for name, tensor in vars(result).items() if tensor is not None})
            if before is not None:
                yield before[0], before[1], before[2]()
            before = indices, batch, read
        if before is not None:
            yield before[0], before[1], before[2]()

    def _texts_of_pairs(self, language: str, split: str) -> dict[str, list[int]]:
        """Return the column ``text`` if several pairs of the split have the same first text; otherwise no column."""
        examples = self.dataset.split(language, split)
        # Statements need no column, because their IDs contain the number of their text.
        if self.dataset.task_of(language) == STATEMENT_TRUTH or not any(e.text_b for e in examples):
            return {}
        numbers = text_numbers(examples)
        return {predictions.TEXT: numbers} if len(set(numbers)) < len(numbers) else {}

    def _columns(
        self,
        encoded: Encoded,
        language: str,
        split: str,
        predicted: np.ndarray,
        log2_gold: np.ndarray,
        log2_tags: np.ndarray,
        sequences: list[list[int]],
    ) -> dict[str, list[Any]]:
        examples = self.dataset.split(language, split)
        target = self.dataset.targets_of(language)
        task, names, ids = target.task, target.tags, {tag: i for i, tag in enumerate(target.tags)}
        labels = {label: i for i, label in enumerate(target.labels)}
        labelled = task.label is not None
        columns: dict[str, list[Any]] = {
            "split": [split] * len(examples),
            "language": [language] * len(examples),
            "example_id": [e.id for e in examples],
            "gold": [labels.get(str(e.label), -1) if labelled else None for e in examples],
            "predicted": predicted.tolist() if labelled else [None] * len(examples),
            "log2_gold": log2_gold.tolist(),
            # The column is int16, but texts of questions can have more words: limit the value.
            "tokens": [min(len(e.tokens), 2**15 - 1) for e in examples],
            "log2_gold_tags": log2_tags.tolist(),
            "seen": list(map(len, sequences)),
        }
        count = word_counts if task.tag is not None and task.tag.of is Scored.words else span_counts
        for name in ("gold_tags", "predicted_tags", "tp", "fp", "fn"):
            columns[name] = []
        for e, sequence in zip(examples, sequences, strict=True):
            if not names:
                values: tuple[Any, ...] = (None, None, 0, 0, 0)
            else:
                gold = e.tags or ()
                # Words beyond the length limit have no predictions: ignore these words, or count them as outside of
                # spans.
                if task.outside is None:
                    gold = gold[: len(sequence)]
                else:
                    sequence = sequence + [ids.get(task.outside, 0)] * (len(gold) - len(sequence))
                counts = count(gold, [names[i] for i in sequence])
                values = ([ids.get(tag, -1) for tag in gold], sequence, *counts)
            for name, value in zip(("gold_tags", "predicted_tags", "tp", "fp", "fn"), values, strict=True):
                columns[name].append(value)
        return columns

    def scores(self, columns: dict[str, list[Any]]) -> dict[str, float]:
        """Return the base scores of one split's columns: metric → value in [0, 1]."""
        language = columns["language"][0] if columns["language"] else self.dataset.languages[0]
        metrics = self.dataset.metrics.of(language)
        tags = self.dataset.tags if self.slot_f1 is SlotF1.tag_macro else None
        return base_scores.of_split(columns, metrics, tags, self.dataset.reader)


def _marked(log2: Tensor, known: Tensor) -> np.ndarray:
    """Return log2-probabilities (B,), with `NOT_FINITE` in place of NaN and −∞ where the gold class is known."""
    marked: np.ndarray = torch.where(known & ~log2.isfinite(), NOT_FINITE, log2).numpy()
    return marked


def _word_tags(predicted: list[int], gold: list[int], names: Sequence[str]) -> list[int]:
    """Return the predicted tag of each word. With ``label_on=all``, this is the tag of the word's first subword.

    X is the gold tag of a word's later subwords. If X is predicted for a first subword, O replaces X.
    """
    tail = len(names)
    if tail not in gold and tail not in predicted:
        return predicted
    outside = names.index("O") if "O" in names else 0
    pairs = zip(predicted, gold, strict=True)
    return [outside if tag == tail else tag for tag, target in pairs if target != tail]
