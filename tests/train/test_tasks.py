"""One run of each new task, from config to rows: scores against seqeval and by hand, under strategies of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import seqeval.metrics

from xclrun.analysis.records import read_predictions, record
from xclrun.plan import Run

Make = Callable[..., Run]

Do = Callable[..., Run]
ORDER = "order=[en,de]"


def rows(run: Run, hop: int = 2) -> pd.DataFrame:
    """Return the rows of a hop by language and example."""
    return pd.read_parquet(run.directory.predictions(hop)).set_index(["language", "example_id"]).sort_index()


def add_pairs(result: list[dict[str, Any]]) -> None:
    """Give every second example a second text, one of them far beyond the length limit; two share the first one."""
    result[4] |= {name: result[0][name] for name in ("tokens", "tags")}
    for i, row in enumerate(result):
        row["text_b"] = ("so be it " * (40 if i == 2 else 1)) if i % 2 == 0 else None


def test_sequence_class(make_run: Make, do: Do, changed_corpus: Callable[..., Any]) -> None:
    data = changed_corpus({(language, split): add_pairs for language in ("en", "de") for split in ("train", "test")})
    run = do(make_run("dataset.task=sequence_class", "strategy=er", "strategy.selection=herding", ORDER, data=data))
    result, mine = rows(run), record(run.directory)
    read = read_predictions(run.outputs, [mine], pytest.fail)[run.id]
    assert mine.metrics == ("class_accuracy",)
    for j, language in enumerate(("en", "de")):
        own = result.loc[language]
        gold = {e.id: run.dataset.labels.index(str(e.label)) for e in run.dataset.split(language, "test")}
        assert own["gold"].to_dict() == gold
        assert mine.scores["class_accuracy"][2, j] == pytest.approx((own["predicted"] == own["gold"]).mean())
        # What is drawn together: pairs with the same first text.
        words = {e.id: e.tokens for e in run.dataset.split(language, "test")}
        sentences = read.sentences[language]
        units = sentences.units
        assert units is not None
        drawn = dict(zip(sentences.ids.tolist(), units.tolist(), strict=True))
        assert {(words[a] == words[b], drawn[a] == drawn[b]) for a in words for b in words} == {
            (True, True), (False, False)
        }  # fmt: skip
        assert max(map(list(drawn.values()).count, drawn.values())) > 1
    assert result["gold_tags"].isna().all()
    assert (result["log2_gold"] < 0).all()
    assert read.confusion(2).sum() == len(result)
    assert run.directory.read_manifest()["data"]["truncated"]


def test_token_tags_as_spans(make_run: Make, do: Do) -> None:
    run = do(make_run("dataset.task=token_tags", "strategy=kd_logit", "trainer.epochs=6", ORDER))
    result, mine = rows(run), record(run.directory)
    assert mine.metrics == ("entity_f1",)
    names = run.dataset.tags
    for j, language in enumerate(("en", "de")):
        own = result.loc[language]
        gold = [list(e.tags or ()) for e in sorted(run.dataset.split(language, "test"), key=lambda e: e.id)]
        guess = [[names[i] for i in ids] for ids in own["predicted_tags"]]
        expected = seqeval.metrics.f1_score(gold, guess, zero_division=0)
        assert mine.scores["entity_f1"][2, j] == pytest.approx(expected)
    assert 0 < mine.scores["entity_f1"][2].mean() < 1
    assert result[["gold", "predicted", "log2_gold"]].isna().all(axis=None)
    assert (result["log2_gold_tags"] < 0).all()
    assert read_predictions(run.outputs, [mine], pytest.fail)[run.id].confusion(2).size == 0


def test_token_tags_as_words_beyond_the_limit(make_run: Make, do: Do) -> None:
    """Words that the model does not see are not scored, and the rows tell how many there were."""
    few = ("model.max_length=8", "model.label_on=last")
    run = do(make_run("dataset.task=token_tags", "dataset.tags_are=words", "strategy=ewc_online", *few, ORDER))
    result, mine = rows(run), record(run.directory)
    assert mine.metrics == ("token_accuracy",)
    seen = result["gold_tags"].map(len)
    assert (seen == result["predicted_tags"].map(len)).all()
    assert (seen <= result["tokens"]).all()
    assert (seen < result["tokens"]).any()
    for j, language in enumerate(("en", "de")):
        own = result.loc[language]
        gold, guess = (np.concatenate(own[name].to_list()) for name in ("gold_tags", "predicted_tags"))
        assert mine.scores["token_accuracy"][2, j] == pytest.approx((gold == guess).mean())
    assert (result["tp"] + result["fp"] == seen).all()
    assert (result["fp"] == result["fn"]).all()
    unscored = run.directory.read_manifest()["data"]["unscored_words"]
    assert sum(n for key, n in unscored.items() if key.endswith("test")) >= int((result["tokens"] - seen).sum()) > 0


def test_identity_of_tasks(make_run: Make) -> None:
    """Each task, and each way of scoring its tags, is a run of its own; a key at its old meaning changes no id."""
    spans, words = (make_run("dataset.task=token_tags", f"dataset.tags_are={way}") for way in ("spans", "words"))
    joint, message = make_run(), make_run("dataset.tags_are=spans")
    assert joint.id == message.id
    assert len({joint.id, spans.id, words.id}) == 3
    assert len({run.stages[0].train for run in (joint, spans, words)}) == 3
