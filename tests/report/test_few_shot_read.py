"""What a report reads again of real few-shot runs: it must be what the runs were scored on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.strategy.few import planned
from xclrun.analysis.fewshot.scores import few_shot_scores
from xclrun.analysis.records import outcomes, record
from xclrun.plan import Run, thaw
from xclrun.report.fewshot.read import read_few_shot
from xclrun.study import Study


@pytest.fixture
def few(make_run: Callable[..., Run], do: Callable[..., Run]) -> Run:
    """One few-shot run: sentences that hold every tag, from English to German."""
    return do(planned(make_run, "shots=1", "bucket=1", "dataset.buckets.sampler=minimum", "dataset.max_train=null"))


def test_outcomes_and_words_are_those_of_the_run(few: Run) -> None:
    scored = record(few.directory)
    data = read_few_shot(few.outputs, [scored], lambda directory: thaw(directory).dataset)
    assert data.reasons == ()
    outcome = data.outcomes["intent_accuracy"][few.id]
    matrix = scored.scores["intent_accuracy"]
    assert np.mean(outcome.before == outcome.gold) == matrix[1, 1]
    assert np.mean(outcome.after == outcome.gold) == matrix[2, 1]
    tags, words = data.outcomes["slot_f1"][few.id], data.words[few.id]
    test = {e.id: e for e in few.dataset.split("de", "test")}
    assert tags.lengths.tolist() == [len(words.test[i]) for i in tags.ids] == [len(test[i].tokens) for i in tags.ids]
    gold = [tag for i in tags.ids for tag in test[i].tags or ()]
    assert [tags.names[k] for k in tags.gold] == gold
    bucket = few.dataset.split("de", "train")
    assert words.bucket == {word for e in bucket for word in e.tokens}
    assert words.pairs == {pair for e in bucket for pair in zip(e.tokens, e.tags or (), strict=True)}
    assert words.source == {word for e in few.dataset.split("en", "train") for word in e.tokens}
    (row, _) = few_shot_scores([scored]).itertuples(index=False)
    assert (row.shots, row.bucket, row.score) == (1, 1, matrix[2, 1])


def test_the_python_api_has_the_figures_of_predictions_and_words(few: Run) -> None:
    figures = Study.read(few.outputs).figures()
    assert {"confusions", "improved"} <= {name.split("_")[2] for name in figures}, figures


def test_what_is_gone_is_a_reason(few: Run, tmp_path: Path) -> None:
    config = few.directory.config
    config.write_text(config.read_text(encoding="utf-8").replace(str(few.config.dataset.root), str(tmp_path / "gone")))
    few.directory.finish()
    mine = record(few.directory)
    data = read_few_shot(few.outputs, [mine], lambda directory: thaw(directory).dataset)
    assert few.id not in data.words
    assert few.id in data.outcomes["slot_f1"]
    (reason,) = data.reasons
    assert reason.startswith("words of the training and test data could not be read: ")
    shutil.rmtree(few.directory.path / "predictions")
    data = read_few_shot(few.outputs, [mine], lambda directory: thaw(directory).dataset)
    assert not data.outcomes
    assert data.reasons[0].startswith("predictions could not be read: ")
    with pytest.raises(OSError, match="hop-1"):
        outcomes(few.directory)
