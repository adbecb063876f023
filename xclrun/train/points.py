"""Evaluation points inside a hop: the model is evaluated on every language at intervals during training.

A point is taken after every b sentences of the hop's own data (``evaluate.every_examples`` or
``evaluate.every_share``), and at the end of the training. Replayed sentences do not count, so all strategies are
evaluated at the same steps. Evaluation does not affect the training. Until the hop is done, the predictions of each
point, and the weights of the last points (``evaluate.keep_points``), are files next to the checkpoints. A hop that
resumes from a checkpoint keeps the points before the checkpoint and repeats the points after it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.config.schema import PointSplits
from xclrun.core.errors import RunError
from xclrun.core.terminal import note
from xclrun.store import predictions
from xclrun.store.cache import CachedFile
from xclrun.store.tensors import content
from xclrun.train.evaluate import Answer
from xclrun.train.hop import HopWork

if TYPE_CHECKING:
    import pyarrow as pa

# ``evaluate.point_splits`` → the splits that are evaluated.
SPLITS = {PointSplits.dev_test: ("dev", "test"), PointSplits.test: ("test",)}
# File with a hop's predictions at all points, stored in the folders of the hop's training and evaluation.
FILE = "points.parquet"


def weights_file(step: int) -> str:
    """Return the file name of the weights at a step, in the store's folder of the training."""
    return f"point-{step:09d}.safetensors"


@dataclass(frozen=True)
class Points:
    """Takes the evaluation points of one hop.

    Attributes:
        every: b, the number of the hop's own sentences between two points.
        stored: returns how many of the last points keep their weights, given the number of points.
        folder: folder for the rows and weights of each point.
        warn: reports damaged files.
    """

    work: HopWork
    every: int
    stored: Callable[[int], int]
    folder: Path
    warn: Callable[[str], None] = note

    def due(self, before: int, now: int) -> bool:
        """Return whether a point is due when the number of sentences seen grows from ``before`` to ``now``."""
        return now // self.every > before // self.every

    def has(self, facts: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the files of earlier points exist and are undamaged."""
        steps = [point["step"] for point in facts]
        files = [*map(self._rows, steps), *map(self._weights, self._last(steps))]
        return all(file.find() is not None for file in files)

    def take(self, step: int, examples: int, seen: int) -> dict[str, Any]:
        """Evaluate the model, write the prediction rows, and return the point's entry for `Position.points`.

        Args:
            step: main steps taken in the hop.
            examples: sentences trained on in the hop, including replayed sentences.
            seen: how many of these sentences belong to the hop's own data.

        Raises:
            Stopped: a signal was received; no row was written, and the weights are unchanged.
        """
        work, hop = self.work, self.work.context.hop
        languages, split_rows = sorted({language for language, _ in work.points}), {}
        splits = list(dict.fromkeys(split for _, split in work.points))
        with self._restored():
            # Start with the language being learned, because its parameters are already in the model.
            for language in sorted(languages, key=lambda language: language not in hop.train):
                if language not in hop.train:
                    work.strategy.for_language(language, work.earlier)
                for split in splits:
                    work.stop.check()
                    encoded, answer = work.points[language, split], self._answer(language, split)
                    rows = work.evaluator.predict(work.context.model, encoded, language, split, answer)
                    split_rows[split, language] = rows
        columns = predictions.joined(split_rows[split, language] for split in splits for language in languages)
        n = len(columns["split"])
        # −1 is a placeholder: runs may number the hop differently, and each sets its number when it copies the rows.
        columns |= {"hop": [-1] * n, "step": [step] * n, "examples_seen": [examples] * n}
        if not work.ranks.rank:
            if self.stored(1):
                self._weights(step).write(content(work.weights()))
            self._rows(step).write(predictions.content(predictions.table(columns)))
        return {"step": step, "examples": examples, "own": seen}

    def forget(self, facts: Sequence[Mapping[str, Any]]) -> None:
        """Remove the weights of all points except the last ones, after a checkpoint was saved.

        Until then, a hop that resumes from the previous checkpoint still needs these weights.
        """
        steps = [point["step"] for point in facts]
        for step in steps[: len(steps) - len(self._last(steps))] if self.stored(1) else ():
            self._weights(step).remove()

    def table(self, facts: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Return the rows of all points, in the order of the points."""
        import pyarrow as pa

        parts = [predictions.read(self._path(self._rows(point["step"]))) for point in facts]
        return pa.concat_tables(parts).unify_dictionaries().combine_chunks()

    def write(self, folder: Path, facts: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of all points, and the weights of the last ones, into a folder of the store."""
        predictions.write(folder / FILE, self.table(facts))
        for step in self._last([point["step"] for point in facts]):
            shutil.copyfile(self._path(self._weights(step)), folder / weights_file(step))

    def _path(self, file: CachedFile) -> Path:
        path = file.find()
        if path is None:
            raise RunError(f"{self.folder}: files of evaluation points are missing; re-run the same command")
        return path

    def _last(self, steps: Sequence[int]) -> Sequence[int]:
        """Return the steps of the points whose weights are stored."""
        return steps[len(steps) - self.stored(len(steps)) :]

    def _answer(self, language: str, split: str) -> Answer | None:
        """Return a function that calls the strategy's `predict`; None if the model predicts without the strategy.

        Dev splits, whose scores select checkpoints, are always predicted by the model alone.
        """
        if split != "test" or not self.work.plan.at_points:
            return None
        return lambda batch: self.work.strategy.predict(batch, language, split, self.work.context)

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Restore the language-specific parameters after the block, which loads parameters of other languages."""
        strategy = self.work.strategy
        if not self.work.plan.serve:
            yield
            return
        weights = self.work.context.model.state_dict()
        saved = {name: t.clone() for name, t in weights.items() if strategy.parameters.language_specific(name)}
        try:
            yield
        finally:
            for name, tensor in saved.items():
                weights[name].copy_(tensor)

    def _rows(self, step: int) -> CachedFile:
        return CachedFile(self.folder, f"point-{step:09d}", ".parquet", self.warn)

    def _weights(self, step: int) -> CachedFile:
        return CachedFile(self.folder, f"point-{step:09d}", ".weights", self.warn)
