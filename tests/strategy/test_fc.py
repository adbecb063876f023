"""Adapting the output layers alone: what changes, what is kept, and that features change no prediction."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pandas as pd
import pytest

from xclrun.core.stream import independent, sequence, transfer
from xclrun.run import Run
from xclrun.strategy import make
from xclrun.strategy.fc import FC
from xclrun.train.workbench import Workbench

from .few import CLASSES, changed, planned, shares_source_training, stored

Make = Callable[..., Run]
Do = Callable[..., Run]


@pytest.fixture
def fc(compose: Callable[..., object]) -> FC:
    strategy = make(compose("strategy=fc").config.strategy)  # type: ignore[attr-defined]
    assert isinstance(strategy, FC)
    return strategy


def test_the_first_training_is_plain_fine_tuning_unless_it_adapts(fc: FC) -> None:
    def signed(stream: object) -> list[bool]:
        return [bool(fc.signature(hop)) for hop in stream.hops]  # type: ignore[attr-defined]

    assert signed(transfer("en", "de")) == [False, False, True]
    assert signed(transfer(None, "de")) == [False, True]
    assert signed(sequence(("en", "de", "es"))) == [False, False, True, True]
    assert signed(independent(("en", "de"))) == [False, False, False]


def test_output_layers_of_the_joint_task_change(finished: Make) -> None:
    run = planned(finished, "strategy=fc")
    heads = {name for name in stored(run, 1) if not name.startswith("encoder.")}
    assert set(stored(run, 2)) == heads  # the encoder lies in the store once
    assert {"intent.weight", "tagger.linear.weight", "tagger.crf.transitions"} <= changed(run)


@pytest.mark.parametrize(
    ("name", "pooler"), [("fc", set()), ("fc_pooler", {"pooler.dense.weight", "pooler.dense.bias"})]
)
def test_output_layers_of_a_sequence_classifier_change(name: str, pooler: set[str], finished: Make) -> None:
    run = planned(finished, f"strategy={name}", *CLASSES)
    assert changed(run) == set(stored(run, 2)) == {"classifier.weight", "classifier.bias"} | pooler


def test_all_ways_of_adapting_share_source_training(make_run: Make) -> None:
    names = ("full", "fc", "fc_pooler", "fc_reset_pooler", "cos_pooler")
    assert shares_source_training([planned(make_run, f"strategy={name}", *CLASSES) for name in names])
    assert planned(make_run, "strategy=full").id == planned(make_run, "strategy=naive").id


@pytest.mark.parametrize(
    "given",
    [
        ("strategy=fc",),
        ("strategy=fc", "dataset.task=token_tags", "dataset.tags_are=words"),
        ("strategy=fc_pooler", *CLASSES),
        ("strategy=cos_pooler", *CLASSES),
    ],
    ids=lambda given: " ".join(given),
)
def test_kept_features_change_no_prediction(
    given: tuple[str, ...], make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout before the heads draws the same numbers, since the encoder draws none in eval mode."""
    kept = do(planned(make_run, *given, outputs="kept"))
    assert len(kinds(kept, "features")) == 4  # train and dev of de, test of en and de
    monkeypatch.setattr(Workbench, "features_key", lambda self, hop, split: None)
    anew = do(planned(make_run, *given, outputs="anew"))
    assert kinds(anew, "features") == []
    one, other = (pd.read_parquet(run.directory.predictions(2)) for run in (kept, anew))
    for column in ("example_id", "gold", "predicted", "tp", "fp", "fn"):
        assert one[column].equals(other[column]), column
    assert one["predicted_tags"].map(str).equals(other["predicted_tags"].map(str))
    for column in ("log2_gold", "log2_gold_tags"):
        assert (one[column] - other[column]).abs().fillna(0).max() < 1e-3
    curves = [run.directory.read_manifest()["stages"][2]["training"]["epochs"] for run in (kept, anew)]
    assert [e["dev"] for e in curves[0]] == [e["dev"] for e in curves[1]]
    assert [e["loss"] for e in curves[0]] == pytest.approx([e["loss"] for e in curves[1]], rel=1e-4)


def kinds(run: Run, kind: str) -> list[str]:
    """Return the keys of what a store holds of one kind."""
    return [key for key in run.store.all_keys() if run.store.facts(key)["kind"] == kind]


def test_what_is_kept_serves_all_buckets_and_heads(make_run: Make, do: Do) -> None:
    """Buckets, K and heads: one source training, one zero-shot evaluation, one pass over dev and test."""
    few = ("dataset.task=token_tags", "dataset.buckets.sampler=minimum", "shots=1")
    runs = [do(planned(make_run, f"strategy={name}", f"bucket={b}", *few)) for name in ("full", "fc") for b in (0, 1)]
    trained = [runs[0].store.facts(key)["hop"] for key in kinds(runs[0], "train")]
    assert sorted(trained) == ["de"] * 4 + ["en"]
    assert len(kinds(runs[0], "evaluation")) == 2 + 4
    # train of two buckets, dev of de, test of en and de
    assert len(kinds(runs[0], "features")) == 5


@pytest.mark.parametrize("given", [("strategy=fc",), ("strategy=cos_pooler", *CLASSES)], ids=lambda given: given[0])
def test_a_run_goes_on_where_encoder_and_heads_were_removed(given: tuple[str, ...], make_run: Make, do: Do) -> None:
    """Weights after a hop that kept the encoder are put together from both hops; a cosine head serves as one again."""
    run = do(planned(make_run, *given))
    before = pd.read_parquet(run.directory.predictions(2))
    shutil.rmtree(run.store.path(run.stages[2].evaluation))
    shutil.rmtree(run.directory.path)
    do(run)
    assert pd.read_parquet(run.directory.predictions(2)).equals(before)
