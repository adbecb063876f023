"""Adapting output layers alone, old ones or fresh, linear or cosine: what changes, and that features change nothing."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch

from tests.conftest import stored_scores
from xclrun.core.stream import independent, sequence, transfer
from xclrun.model.heads import ClassHead
from xclrun.plan import Run
from xclrun.strategy import Context, make
from xclrun.strategy.fc import FC
from xclrun.train.workbench import Workbench

from .few import CLASSES, changed, planned, shares_source_training, stored
from .real import graph

Make = Callable[..., Run]


Do = Callable[..., Run]


@pytest.fixture
def fc(compose: Callable[..., object]) -> FC:
    strategy = make(compose("strategy=fc").config.strategy)  # type: ignore[attr-defined]
    assert isinstance(strategy, FC)
    return strategy


def test_the_first_training_is_plain_fine_tuning_unless_it_adapts(fc: FC) -> None:
    def signed(stream: object) -> list[bool]:
        return [bool(fc.plan(hop).train) for hop in stream.hops]  # type: ignore[attr-defined]

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


@pytest.mark.some_cases
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


@pytest.mark.full
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


POOLER, CLASSIFIER = {"pooler.dense.weight", "pooler.dense.bias"}, {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize(
    ("given", "fresh", "trained"),
    [
        (("fc_reset_pooler", ""), CLASSIFIER, POOLER | CLASSIFIER),
        (("fc_reset_pooler", "reset=pooler"), POOLER, POOLER | CLASSIFIER),
        (("fc_reset_pooler", "reset=both"), POOLER | CLASSIFIER, POOLER | CLASSIFIER),
        (("cos_pooler", "alpha=4"), CLASSIFIER, POOLER | {"classifier.weight"}),
    ],
    ids=["reset=classifier", "reset=pooler", "reset=both", "cos_pooler alpha=4"],
)
def test_what_starts_anew(
    given: tuple[str, str], fresh: set[str], trained: set[str], make_run: Make, threads: None
) -> None:
    name, setting = given
    run = planned(make_run, f"strategy={name}", *([f"strategy.{setting}"] if setting else []), *CLASSES)
    stages = graph(run)
    stages._need_features(run.stream.hops[2], [(run.stream.hops[2].train[0], "train")])
    context: Context = stages.bench.context(run.stream.hops[2])
    before = {name: tensor.clone() for name, tensor in context.model.state_dict().items()}
    stages.strategy.begin_hop(stages.bench.context(run.stream.hops[1]))
    assert all(torch.equal(before[name], tensor) for name, tensor in context.model.state_dict().items())
    state = torch.random.get_rng_state()
    stages.strategy.begin_hop(context)
    after = {name: tensor.clone() for name, tensor in context.model.state_dict().items()}
    assert {name for name in after if not torch.equal(after[name], before[name])} == fresh - {"pooler.dense.bias"}
    assert torch.equal(state, torch.random.get_rng_state())
    assert {name for name, p in context.model.named_parameters() if p.requires_grad} == trained
    # As BERT is initialised: normal with its range, without bias. Anew it is the same.
    if "pooler.dense.bias" in fresh:
        assert after["pooler.dense.weight"].std().item() == pytest.approx(0.02, rel=0.2)
        assert not after["pooler.dense.bias"].any()
    stages.strategy.begin_hop(context)
    assert all(torch.equal(after[name], tensor) for name, tensor in context.model.state_dict().items())
    if name == "cos_pooler":
        # Its logits are cosines, α times: those of the vectors of the classes themselves are α.
        head: Any = context.model.classifier
        assert head(3 * head.weight).diagonal().tolist() == pytest.approx([4.0] * len(head.weight))


def test_logits_are_scaled_cosines() -> None:
    head = ClassHead(2, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 0.5], [-3.0, -3.0]]))
    x = torch.tensor([[1.0, 1.0], [0.0, -4.0]])
    linear = head(x)
    assert torch.allclose(linear, x @ head.weight.T + head.bias)
    head.scale = 10.0
    half = 10 / math.sqrt(2)
    assert torch.allclose(head(x), torch.tensor([[half, half, -10.0], [0.0, -10.0, half]]), atol=1e-5)
    head.scale = None
    assert torch.equal(head(x), linear)


def test_pooler_and_fresh_classifier_are_tuned(make_run: Make, do: Do, finished: Make) -> None:
    run = do(planned(make_run, "strategy=cos_pooler", *CLASSES))
    assert changed(run) == {"pooler.dense.weight", "pooler.dense.bias", "classifier.weight"}
    # Before adapting the source's linear classifier serves both languages, as under any other strategy.
    full = planned(finished, "strategy=full", *CLASSES)
    assert stored_scores(run)[:2] == stored_scores(full)[:2]
