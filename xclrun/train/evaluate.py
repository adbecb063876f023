"""Evaluation: compute a model's prediction rows, and base scores from the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xclrun.config.schema import SlotF1
from xclrun.core.errors import RunError
from xclrun.data.batches import Batch, Encoded, length_sorted_batches
from xclrun.data.example import Dataset, text_numbers
from xclrun.data.transfer import copy_to_host
from xclrun.model.heads import NOT_FINITE, Limits, Prediction, objects
from xclrun.model.network import Model
from xclrun.scores import base_scores
from xclrun.store import predictions
from xclrun.train.precision import autocast
from xclrun.train.ranks import ALONE, Ranks

# The prediction function: `Model.predict`, or a function that calls `Strategy.predict`.
Answer = Callable[[Batch], Prediction]


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
        self,
        model: Model,
        encoded: Encoded,
        language: str,
        split: str,
        answer: Answer | None = None,
        limits: Limits | None = None,
    ) -> dict[str, list[Any]]:
        """Predict a split with the model in eval mode; return the prediction columns, with the examples in file order.

        Args:
            answer: predicts a batch on the device; None: `Model.predict`.
            limits: limits of texts to write after prompts; None: write none.

        Raises:
            RunError: a prediction is not finite. The loss does not show weights that changed outside the training
                loop: by a merge, an average or a hook.
        """
        n, head, values = len(encoded), model.head_of(encoded.task), dict[str, np.ndarray]()
        training = model.training
        model.eval()
        order = np.argsort(-encoded.lengths, kind="stable")
        share = order[self.ranks.rank :: self.ranks.size]
        for indices, batch, output in self._late(encoded, share, answer or model.predict):
            _put(values, n, indices, head.noted(batch, output, encoded))
        if limits is not None and encoded.prompts is not None:
            lengths = encoded.prompts.pieces.lengths[share].clip(max=limits.prompt)
            asked, lengths = share[lengths > 0], lengths[lengths > 0] + limits.new
            for at in length_sorted_batches(lengths, self.batch_size, limits.batch_tokens):
                with autocast(self.device, self.precision):
                    _put(values, n, asked[at], head.write_texts(encoded, asked[at], limits))
        model.train(training)
        if self.ranks.several:
            # As lists, because ranks do not exchange arrays of objects.
            part = {name: of.tolist() if (of := array[share]).dtype == object else of for name, array in values.items()}
            for rank, parts in enumerate(self.ranks.gather(part)):
                _put(values, n, order[rank :: self.ranks.size], {name: _array(of) for name, of in parts.items()})
        # After `gather`, so that all ranks fail together, and a sweep continues with the next run.
        if any((array == NOT_FINITE).any() for array in values.values() if array.dtype.kind == "f"):
            raise RunError(
                f"{language}/{split}: the model's predictions are not finite (NaN or infinite); its weights are "
                "too large or damaged; use smaller coefficients for a merge, or a lower trainer.lr for training"
            )
        examples, target = self.dataset.split(language, split), self.dataset.targets_of(language)
        columns: dict[str, list[Any]] = {
            "split": [split] * len(examples),
            "language": [language] * len(examples),
            "example_id": [e.id for e in examples],
            **predictions.missing(len(examples), target.task),
            # The column is int16, but texts of questions can have more words: limit the value.
            "tokens": [min(len(e.tokens), 2**15 - 1) for e in examples],
        }
        columns |= head.columns(values, examples, target, encoded) if examples else {}
        return columns if predictions.TEXT in columns else columns | self._texts_of_pairs(language, split)

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
            read = copy_to_host(result)
            if before is not None:
                yield before[0], before[1], before[2]()
            before = indices, batch, read
        if before is not None:
            yield before[0], before[1], before[2]()

    def _texts_of_pairs(self, language: str, split: str) -> dict[str, list[int]]:
        """Return the column ``text`` if several pairs of the split have the same first text; otherwise no column."""
        examples = self.dataset.split(language, split)
        # Tasks whose IDs name the text (`Task.grouped`) need no column.
        if self.dataset.task_of(language).grouped or not any(e.text_b for e in examples):
            return {}
        numbers = text_numbers(examples)
        return {predictions.TEXT: numbers} if len(set(numbers)) < len(numbers) else {}

    def scores(self, columns: dict[str, list[Any]]) -> dict[str, float]:
        """Return the base scores of one split's columns: metric → score."""
        language = columns["language"][0] if columns["language"] else self.dataset.languages[0]
        metrics = self.dataset.metrics.of(language)
        tags = self.dataset.tags if self.slot_f1 is SlotF1.tag_macro else None
        return base_scores.of_split(columns, metrics, tags, self.dataset.reader)


def _put(values: dict[str, np.ndarray], n: int, rows: np.ndarray, of_rows: Mapping[str, np.ndarray]) -> None:
    """Write entries of ``rows`` into the arrays of all n rows, which are created where they are missing."""
    for name, part in of_rows.items():
        if name not in values:
            values[name] = np.zeros((n, *part.shape[1:]), part.dtype)
        values[name][rows] = part


def _array(part: np.ndarray | list[Any]) -> np.ndarray:
    return objects(part) if isinstance(part, list) else part
