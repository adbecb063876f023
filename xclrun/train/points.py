"""Evaluation points inside a hop: dev and test of every language, at intervals during training.

A point is taken after every b sentences of the hop's own data (``evaluate.every_examples``; replayed sentences do not
count, so that all strategies are evaluated at the same steps), and at the end of the training. Predictions change
nothing in the training. What a point predicted lies beside the checkpoints until the hop is done, one file for each,
put in place whole: a training that is taken up again at a checkpoint keeps the points before it and makes those after
it anew, the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.core.errors import RunError
from xclrun.core.terminal import note
from xclrun.data.encode import Encoded
from xclrun.store import predictions
from xclrun.store.kept import Kept
from xclrun.strategy import Context, Strategy
from xclrun.train.evaluate import Evaluator

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("dev", "test")
# The predictions of all points, in the store's folder of a training and of an evaluation.
FILE = "points.parquet"


@dataclass(frozen=True)
class Points:
    """Takes the evaluation points of one hop.

    Attributes:
        every: b, sentences of the hop's own data.
        context: of the training; its model is evaluated as it is.
        strategy: says which parts serve the languages that are not being learnt.
        evaluator: predicts.
        splits: (language, split) → sentences.
        folder: where the rows of each point lie.
        tell: hears of rows that are damaged.
    """

    every: int
    context: Context
    strategy: Strategy[Any]
    evaluator: Evaluator
    splits: Mapping[tuple[str, str], Encoded]
    folder: Path
    tell: Callable[[str], None] = note

    def due(self, before: int, now: int) -> bool:
        """Return whether a point lies between two numbers of sentences seen, the second one included."""
        return now // self.every > before // self.every

    def has(self, facts: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the rows of earlier points are still there and undamaged."""
        return all(self._kept(point["step"]).find() is not None for point in facts)

    def take(self, step: int, examples: int, own: int, stopped: Callable[[], bool]) -> dict[str, Any] | None:
        """Evaluate the model, write its rows, and return the point's facts; None where it was stopped before that.

        Args:
            step: main steps taken in the hop.
            examples: sentences seen in the hop, replayed ones included.
            own: sentences of the hop's own data among them.
            stopped: asked now and then; the model is as it was when this returns.

        Returns:
            ``step``, ``examples`` and ``own``; scores are computed from the rows, after the fact.
        """
        languages, split_rows = sorted(self.context.stream.languages), {}
        with self._restored():
            # The language being learnt first: its parts are in the model, and are served as they are now.
            for language in sorted(languages, key=lambda language: language not in self.context.hop.train):
                if language not in self.context.hop.train:
                    self.strategy.for_language(language, self._learnt_before())
                for split in SPLITS:
                    if stopped():
                        return None
                    encoded = self.splits[language, split]
                    split_rows[split, language] = self.evaluator.predict(self.context.model, encoded, language, split)
        columns: dict[str, list[Any]] = {}
        for split in SPLITS:
            for language in languages:
                for name, values in split_rows[split, language].items():
                    columns.setdefault(name, []).extend(values)
        n = len(columns["split"])
        # The hop's number is the run's, not the stage's: it is set when a run copies the rows.
        columns |= {"hop": [-1] * n, "step": [step] * n, "examples_seen": [examples] * n}
        self._kept(step).write(predictions.content(predictions.table(columns)))
        return {"step": step, "examples": examples, "own": own}

    def table(self, facts: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Return the rows of all points, in the order in which they were taken."""
        import pyarrow as pa

        paths = [self._kept(point["step"]).find() for point in facts]
        if None in paths:
            raise RunError(f"{self.folder}: predictions of evaluation points are gone; give the same command again")
        parts = [predictions.read(path) for path in paths if path is not None]
        return pa.concat_tables(parts).unify_dictionaries().combine_chunks()

    def _learnt_before(self) -> list[str]:
        hops = self.context.stream.hops[: self.context.hop.index]
        return [language for hop in hops for language in hop.train]

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Restore the parts of the model that serving other languages replaces."""
        if not self.strategy.serving_signature(self.context.hop):
            yield
            return
        own = self.context.model.state_dict()
        kept = {name: t.clone() for name, t in own.items() if self.strategy.language_specific(name)}
        try:
            yield
        finally:
            for name, tensor in kept.items():
                own[name].copy_(tensor)

    def _kept(self, step: int) -> Kept:
        return Kept(self.folder, f"point-{step:09d}", ".parquet", self.tell)
