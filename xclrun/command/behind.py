"""Predictions of few-shot runs, and the words of their data, which is read again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.core.errors import RunError, UsageError

if TYPE_CHECKING:
    import pandas as pd

    from xclrun.analysis.fewshot import Outcome, Words
    from xclrun.analysis.record import RunRecord
    from xclrun.data.example import Dataset, Example
    from xclrun.report.fewshot import FewShotData
    from xclrun.store.rundir import RunDirectory


def read_behind(outputs: Path, records: Sequence[RunRecord]) -> FewShotData:
    """Return what lies behind the finished few-shot runs among the outputs; what cannot be read is told as a reason."""
    from xclrun.analysis.fewshot import is_few_shot
    from xclrun.report.fewshot import FewShotData
    from xclrun.store.records import outcomes
    from xclrun.store.rundir import RunDirectory

    by_metric: dict[str, dict[str, Outcome]] = {}
    words: dict[str, Words] = {}
    attention: dict[str, pd.DataFrame] = {}
    reasons: list[str] = []
    read: dict[tuple[object, ...], Words] = {}
    vocabularies: dict[str, frozenset[str]] = {}
    for record in records:
        directory = RunDirectory(outputs / "runs" / record.run_id)
        if not is_few_shot(record) or record.status != "finished" or not directory.done.is_file():
            continue
        if (wrong := directory.damaged()) is not None:
            reasons.append(f"predictions: n/a: {wrong} is missing or damaged")
            continue
        try:
            for metric, outcome in outcomes(directory).items():
                by_metric.setdefault(metric, {})[record.run_id] = outcome
            if directory.attention.is_file():
                attention[record.run_id] = _attention(directory)
        except (OSError, ValueError, KeyError) as error:
            reasons.append(f"predictions: n/a: {error}")
        # Seeds and strategies have the same data.
        key = (record.data_fingerprint, record.languages)
        try:
            if key not in read:
                read[key] = _words(_dataset(directory), record.languages, vocabularies)
            words[record.run_id] = read[key]
        except (UsageError, RunError) as error:
            reasons.append(f"words: n/a: needs the data of the runs: {error}")
    return FewShotData(by_metric, words, attention, tuple(dict.fromkeys(reasons))[:3])


def _dataset(directory: RunDirectory) -> Dataset:
    from xclrun.run import thaw

    return thaw(directory).dataset


def _words(dataset: Dataset, languages: Sequence[str], vocabularies: dict[str, frozenset[str]]) -> Words:
    from xclrun.analysis.fewshot import Words

    source: frozenset[str] = frozenset()
    if len(languages) > 1:
        known = dataset.fingerprints[languages[0], "train"]
        if known not in vocabularies:
            vocabularies[known] = _vocabulary(dataset.split(languages[0], "train"))
        source = vocabularies[known]
    bucket = dataset.split(languages[-1], "train")
    pairs = frozenset(pair for e in bucket for pair in zip(e.tokens, e.tags or (), strict=False))
    test = {e.id: e.tokens for e in dataset.split(languages[-1], "test")}
    return Words(source, _vocabulary(bucket), pairs, test)


def _vocabulary(examples: Iterable[Example]) -> frozenset[str]:
    """Return the distinct words of examples, as written; of both texts of a pair."""
    return frozenset(word for e in examples for word in (*e.tokens, *e.tokens_b))


def _attention(directory: RunDirectory) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.read_table(pa.BufferReader(directory.content(directory.attention))).to_pandas()
