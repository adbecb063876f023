"""Read the data of few-shot runs beyond their scores: predictions, words and attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.analysis.fewshot.data import FewShotData
from xclrun.analysis.fewshot.scores import is_few_shot
from xclrun.analysis.fewshot.words import Outcome, Words
from xclrun.analysis.record import RunRecord
from xclrun.analysis.records import outcomes
from xclrun.core.errors import RunError, UsageError
from xclrun.core.files import UNREADABLE
from xclrun.data.example import Dataset, Example
from xclrun.store.rundir import RunDirectory

if TYPE_CHECKING:
    import pandas as pd


def read_few_shot(
    outputs: Path, records: Sequence[RunRecord], dataset_of: Callable[[RunDirectory], Dataset]
) -> FewShotData:
    """Read predictions, words and attention of finished few-shot runs; note why if data cannot be read.

    Args:
        outputs: the directory with ``runs``.
        records: runs of any kind.
        dataset_of: reads the dataset of a run; may raise `UsageError` or `RunError`.
    """
    by_metric: dict[str, dict[str, Outcome]] = {}
    words: dict[str, Words] = {}
    attention: dict[str, pd.DataFrame] = {}
    reasons: list[str] = []
    # Read once: runs that differ only in seed or strategy have the same data, and many have the same source.
    read: dict[tuple[object, ...], Words] = {}
    vocabularies: dict[str, frozenset[str]] = {}
    for record in records:
        directory = RunDirectory(outputs / "runs" / record.run_id)
        if not is_few_shot(record) or record.status != "finished" or not directory.done.is_file():
            continue
        if (file := directory.damaged()) is not None:
            reasons.append(f"predictions could not be read: {file} is missing or damaged")
            continue
        try:
            for metric, outcome in outcomes(directory).items():
                by_metric.setdefault(metric, {})[record.run_id] = outcome
            if directory.attention.is_file():
                attention[record.run_id] = directory.table(directory.attention).to_pandas()
        except UNREADABLE as error:
            reasons.append(f"predictions could not be read: {error}")
        key = (record.data_fingerprint, record.languages)
        try:
            if key not in read:
                read[key] = _words(dataset_of(directory), record.languages, vocabularies)
            words[record.run_id] = read[key]
        except (UsageError, RunError) as error:
            reasons.append(f"words of the training and test data could not be read: {error}")
    return FewShotData(by_metric, words, attention, tuple(dict.fromkeys(reasons))[:3])


def _words(dataset: Dataset, languages: Sequence[str], vocabularies: dict[str, frozenset[str]]) -> Words:
    """Return the words of a run's data; ``vocabularies`` caches the words of source languages."""
    source: frozenset[str] = frozenset()
    if len(languages) > 1:
        key = dataset.fingerprints[languages[0], "train"]
        if key not in vocabularies:
            vocabularies[key] = _vocabulary(dataset.split(languages[0], "train"))
        source = vocabularies[key]
    bucket = dataset.split(languages[-1], "train")
    pairs = frozenset(pair for e in bucket for pair in zip(e.tokens, e.tags or (), strict=False))
    test = {e.id: e.tokens for e in dataset.split(languages[-1], "test")}
    return Words(source, _vocabulary(bucket), pairs, test)


def _vocabulary(examples: Iterable[Example]) -> frozenset[str]:
    """Return the distinct words of examples; a text pair counts with both texts."""
    return frozenset(word for e in examples for word in (*e.tokens, *e.tokens_b))
