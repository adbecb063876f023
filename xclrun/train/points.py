"""Evaluation points inside a hop: dev and test of every language, at intervals during training.

A point is taken after every b sentences of the hop's own data (``evaluate.every_examples``, or ``evaluate.every_share``
of it; replayed sentences do not count, so that all strategies are evaluated at the same steps), and at the end of the
training. Predictions change
nothing in the training. What a point predicted is next to the checkpoints until the hop is done, one file for each,
put in place whole: a training that is taken up again at a checkpoint keeps the points before it and makes those after
it again, the same ones. So do the weights of the last points, if they are kept (``evaluate.keep_points``).
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
from xclrun.strategy import Context
from xclrun.train.evaluate import Answer

if TYPE_CHECKING:
    import pyarrow as pa

    from xclrun.train.workbench import Workbench

# ``evaluate.point_splits`` → the splits that are evaluated.
SPLITS = {PointSplits.dev_test: ("dev", "test"), PointSplits.test: ("test",)}
# The predictions of all points, in the store's folder of a training and of an evaluation.
FILE = "points.parquet"


def weights_file(step: int) -> str:
    """Return the name of the file with the weights of a point, in the store's folder of a training."""
    return f"point-{step:09d}.safetensors"


@dataclass(frozen=True)
class Points:
    """Takes the evaluation points of one hop.

    Attributes:
        bench: the run's strategy, evaluator and sentences.
        context: of the training; its model is evaluated as it is.
        every: b, sentences of the hop's own data.
        kept: of how many of some points, the last ones, the weights are kept.
        folder: where the rows and weights of each point lie.
        warn: called with a line on files that are damaged.
    """

    bench: Workbench
    context: Context
    every: int
    kept: Callable[[int], int]
    folder: Path
    warn: Callable[[str], None] = note

    def due(self, before: int, now: int) -> bool:
        """Return whether a point lies between two numbers of sentences seen, the second one included."""
        return now // self.every > before // self.every

    def has(self, facts: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the rows of earlier points, and the weights that are kept, are still there and undamaged."""
        steps = [point["step"] for point in facts]
        files = [*map(self._rows, steps), *map(self._weights, self._last(steps))]
        return all(file.find() is not None for file in files)

    def take(self, step: int, examples: int, own: int) -> dict[str, Any]:
        """Evaluate the model, write its rows, and return the point's facts.

        Args:
            step: main steps taken in the hop.
            examples: sentences seen in the hop, replayed ones included.
            own: sentences of the hop's own data among them.

        Returns:
            ``step``, ``examples`` and ``own``; scores are computed from the rows, after the fact.

        Raises:
            Stopped: the run was asked to stop before there were rows; weights are as they were.
        """
        bench, hop = self.bench, self.context.hop
        languages, split_rows = sorted({language for language, _ in bench.point_splits()}), {}
        splits = list(dict.fromkeys(split for _, split in bench.point_splits()))
        with self._restored():
            # The language being learned first: its parts are in the model, and are served as they are now.
            for language in sorted(languages, key=lambda language: language not in hop.train):
                if language not in hop.train:
                    bench.strategy.for_language(language, bench.learnt(hop.index - 1))
                for split in splits:
                    self.context.stop_here()
                    encoded, answer = bench.sentences(hop, language, split), self._answer(language, split)
                    found = bench.evaluator.predict(self.context.model, encoded, language, split, answer)
                    split_rows[split, language] = found
        columns = predictions.joined(split_rows[split, language] for split in splits for language in languages)
        n = len(columns["split"])
        # The hop's number is the run's, not the stage's: it is set when a run copies the rows.
        columns |= {"hop": [-1] * n, "step": [step] * n, "examples_seen": [examples] * n}
        if self.kept(1):
            self._weights(step).write(content(bench.stored_weights(hop)))
        self._rows(step).write(predictions.content(predictions.table(columns)))
        return {"step": step, "examples": examples, "own": own}

    def forget(self, facts: Sequence[Mapping[str, Any]]) -> None:
        """Remove the weights of all but the last points, those that are kept, of a checkpoint that has been saved.

        Not earlier: a training that is taken up at the checkpoint before needs those that were the last ones there.
        """
        steps = [point["step"] for point in facts]
        for step in steps[: len(steps) - len(self._last(steps))] if self.kept(1) else ():
            self._weights(step).remove()

    def table(self, facts: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Return the rows of all points, in the order in which they were taken."""
        import pyarrow as pa

        parts = [predictions.read(self._there(self._rows(point["step"]))) for point in facts]
        # Rows that an earlier version wrote may lack a column.
        return pa.concat_tables(parts, promote_options="default").unify_dictionaries().combine_chunks()

    def write(self, folder: Path, facts: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of all points, and the weights of those that are kept, into a folder of the store."""
        predictions.write(folder / FILE, self.table(facts))
        for step in self._last([point["step"] for point in facts]):
            shutil.copyfile(self._there(self._weights(step)), folder / weights_file(step))

    def _there(self, file: CachedFile) -> Path:
        path = file.find()
        if path is None:
            raise RunError(f"{self.folder}: files of evaluation points are gone; give the same command again")
        return path

    def _last(self, steps: Sequence[int]) -> Sequence[int]:
        """Return the steps of those points of which the weights are kept."""
        return steps[len(steps) - self.kept(len(steps)) :]

    def _answer(self, language: str, split: str) -> Answer | None:
        """Return what predicts at a point: as after the hop in the test split, where the strategy asks for it.

        Dev rows are what checkpoints are selected by, and so the model's own.
        """
        if split != "test" or not self.bench.strategy.points_signature(self.context.hop):
            return None
        return lambda batch: self.bench.strategy.answer(batch, language, split, self.context)

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Restore the parts of the model that serving other languages replaces."""
        strategy = self.bench.strategy
        if not strategy.serving_signature(self.context.hop):
            yield
            return
        own = self.context.model.state_dict()
        kept = {name: t.clone() for name, t in own.items() if strategy.language_specific(name)}
        try:
            yield
        finally:
            for name, tensor in kept.items():
                own[name].copy_(tensor)

    def _rows(self, step: int) -> CachedFile:
        return CachedFile(self.folder, f"point-{step:09d}", ".parquet", self.warn)

    def _weights(self, step: int) -> CachedFile:
        return CachedFile(self.folder, f"point-{step:09d}", ".weights", self.warn)
