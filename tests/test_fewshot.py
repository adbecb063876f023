"""Few-shot transfer: its hops, what they are trained with, and what runs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.strategy.few import planned
from xclrun.compose.jobs import compose_command
from xclrun.core.errors import UsageError
from xclrun.plan import Run, thaw
from xclrun.plan import freeze as freeze_run
from xclrun.store import predictions

Make = Callable[..., Run]


@pytest.fixture
def make(make_run: Make) -> Make:
    """Plan a small few-shot run from English to German, with 2 epochs for the source and 3 for the target."""
    epochs = ("protocol.source_trainer.epochs=2", "trainer.epochs=3")
    return lambda *overrides: planned(make_run, *epochs, *overrides)


def keys(run: Run, part: str = "train") -> list[str | None]:
    return [getattr(stage, part) for stage in run.stages]


def test_a_run_goes_from_source_to_target(make: Make) -> None:
    run = make("bucket=1", "dataset.max_train=3")
    assert [(hop.train, hop.select, hop.adapts) for hop in run.stream.hops[1:]] == [
        (("en",), ("en",), False),
        (("de",), ("de",), True),
    ]
    assert (run.stream.kind, run.stream.languages) == ("transfer", ("en", "de"))
    assert [run.trainer(hop).epochs for hop in run.stream.hops[1:]] == [2, 3]
    assert [run.trainer(hop).batch(18) for hop in run.stream.hops[1:]] == [4, 18]
    assert run.label == "naive · en-de · seed 1 · bucket 1"
    assert "-naive-en-de-s1-b1-" in run.id


def test_the_papers_settings(compose: Callable[..., Any]) -> None:
    config = compose("experiment=fewshot", "language=de").config
    source, target = config.protocol.source_trainer, config.trainer
    assert (source.epochs, source.batch_size, source.patience) == (10, 32, None)
    assert (target.epochs, target.batch_size, target.patience) == (50, None, 10)
    # Adam with default parameters in both stages; words carry their label on the last piece.
    assert [(t.optimizer.value, *t.betas, t.eps) for t in (source, target)] == [("adam", 0.9, 0.999, 1e-8)] * 2
    assert config.model.label_on.value == "last"
    # All other experiments keep the parameters of the CCL paper.
    plain = compose().config
    assert (*plain.trainer.betas, plain.model.label_on.value) == (0.9, 0.99, "first")


@pytest.mark.full
def test_source_training_has_the_papers_rate_for_each_dataset(compose: Callable[..., Any]) -> None:
    """FS, Table 7. It suits pretrained encoders; those that are trained from scratch keep their own."""

    def rates(dataset: str, model: str) -> tuple[float, float]:
        config = compose("experiment=fewshot", "language=de", f"dataset={dataset}", f"model={model}").config
        return config.protocol.source_trainer.lr, config.trainer.lr

    few = ("mldoc", "marc", "pawsx", "udpos", "panx", "xnli")
    assert [rates(dataset, "mbert")[0] for dataset in few] == [1e-5] * 5 + [3e-5]
    assert rates("marc", "mbert")[1] == rates("mtop", "mbert")[0] == 3e-5
    assert rates("xnli", "tiny") == rates("pud", "tiny") == (2e-3, 2e-3)


def test_without_a_source_the_target_is_learnt_from_hop_0(make: Make) -> None:
    run, same = make("source=none"), make("source=null")
    assert run.stream.languages == ("de",)
    assert [(hop.train, hop.parent, hop.adapts) for hop in run.stream.hops[1:]] == [(("de",), 0, True)]
    assert run.trainer(run.stream.hops[1]).epochs == 3
    assert (run.id, run.stages) == (same.id, same.stages)


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("overrides", "source", "evaluated", "target"),
    [
        # What changes: source training, evaluations of hops 0 and 1, target adapting.
        (["trainer.lr=1e-4"], False, [False, False], True),
        (["trainer.epochs=4"], False, [False, False], True),
        (["strategy=er"], False, [False, False], True),
        (["protocol.source_trainer.lr=1e-4"], True, [False, True], True),
        (["protocol.source_trainer.epochs=1"], True, [False, True], True),
        (["protocol.source_trainer.checkpoint_minutes=5"], False, [False, False], False),
        (["language=es"], False, [True, True], True),
        (["source=es"], True, [True, True], True),
        (["seed=2"], True, [True, True], True),
    ],
)
def test_what_changes_what(overrides: list[str], source: bool, evaluated: list[bool], target: bool, make: Make) -> None:
    one, other = make(), make(*overrides)
    differs = [a != b for a, b in zip(keys(one), keys(other), strict=True)]
    assert differs[1:] == [source, target]
    pairs = zip(keys(one, "evaluation"), keys(other, "evaluation"), strict=True)
    assert [a != b for a, b in pairs][:2] == evaluated
    # Where checkpoints are written is no part of any identity; everything else here is of the run's.
    assert (one.id != other.id) == ("checkpoint" not in overrides[0])


def test_source_training_is_that_of_a_plain_run(make: Make, make_run: Make) -> None:
    settings = ("trainer.betas=[0.9,0.999]", "model.label_on=last")
    plain = make_run("order=[en]", "dataset.max_train=9", "trainer.epochs=2", "trainer.batch_size=4", *settings)
    assert plain.stages[1].train == make().stages[1].train


@pytest.mark.full
def test_one_source_training_whatever_is_adapted(make: Make) -> None:
    """Over languages, K, buckets and heads; and one evaluation of the source model for each target."""
    few = ("dataset.task=token_tags", "dataset.buckets.sampler=minimum")
    runs = [
        make(f"strategy={name}", f"language={language}", f"shots={k}", f"bucket={b}", *few)
        for name in ("full", "fc")
        for language in ("de", "es")
        for k in (1, 2)
        for b in (0, 1)
    ]
    assert {run.dataset.sizes()["en"] for run in runs} == {9}
    assert len({run.stages[1].train for run in runs}) == 1
    assert len({run.stages[1].evaluation for run in runs}) == 2
    assert len({run.id for run in runs}) == 16


def test_a_run_has_predictions_of_source_and_target_alone(make: Make, do: Callable[..., Run]) -> None:
    run = do(make())
    for hop in (0, 1, 2):
        assert set(predictions.read(run.directory.predictions(hop))["language"].to_pylist()) == {"en", "de"}
    manifest = run.directory.read_manifest()
    assert manifest["stages"][2]["training"]["updates"] == len(manifest["stages"][2]["training"]["epochs"])
    assert manifest["stages"][1]["training"]["updates"] == 2 * 3  # 9 sentences in batches of 4


def test_a_frozen_run_is_itself(make: Make) -> None:
    run = make("source=none")
    freeze_run(run)
    assert thaw(run.directory).id == run.id
    other = make()
    freeze_run(other)
    assert thaw(other.directory).stages == other.stages


@pytest.mark.parametrize("sentences", ["shots=1", "dataset.max_train=3"])
def test_source_and_target_are_found_by_any_of_their_codes(sentences: str, make: Make) -> None:
    run, named = make(sentences, "source=eng", "language=de-DE"), make(sentences)
    assert run.stream.languages == ("en", "de")
    assert (run.id, run.stages) == (named.id, named.stages)
    assert (run.config.source, run.config.language) == ("en", "de")


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["language=null"], "language=null: the target must be given"),
        (["language=en"], "language=en: is also the source"),
        (["language=eng_Latn"], "language=en: is also the source"),
        (["language=fi"], "language=fi: not a language of the dataset; Known: de, en, es"),
        (["language=fi", "shots=1"], "language=fi: not a language of the dataset; Known: de, en, es"),
        (["source=fi"], "source=fi: not a language of the dataset"),
        (["order=h2l"], "order=h2l: few-shot transfer learns the source, then the language"),
        (["order.languages=[de,en]"], r"order=\[de,en\]: few-shot transfer learns"),
        (["strategy=multilingual"], "strategy=multilingual: few-shot transfer needs a strategy"),
        (["strategy=inc_joint"], "strategy=inc_joint: few-shot transfer needs a strategy"),
        (["protocol.source_trainer.epochs=0"], "protocol.source_trainer.epochs=0: must be at least 1"),
        (
            ["protocol.source_trainer.optimizer_state=kept"],
            "trainer.optimizer_state=fresh: must equal protocol.source_tr",
        ),
        (["protocol.source_trainer.precision=bf16"], "trainer.precision=fp32: must equal protocol.source_trainer.prec"),
    ],
)
def test_what_cannot_be_planned(overrides: list[str], message: str, make: Make) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        make(*overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["language=de"], "language=de: needs experiment=fewshot"),
        (["source=en"], "source=en: needs experiment=fewshot"),
        (["protocol.source_trainer.epochs=3"], "protocol.source_trainer.epochs=3: needs experiment=fewshot"),
    ],
)
def test_without_the_protocol(overrides: list[str], message: str, make_run: Make) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        make_run(*overrides)


@pytest.mark.full
def test_keys_of_the_protocol_may_be_set_beside_a_sweep_that_chooses_it() -> None:
    typed = ["sweep=fs_pud", "protocol.source_trainer.epochs=3", "language=hi", "shots=1", "bucket=0", "strategy=fc"]
    [job] = compose_command(typed)
    assert job.config.protocol is not None
    assert job.config.protocol.source_trainer.epochs == 3
    with pytest.raises(UsageError, match=r"^protocol\.name=a: needs experiment=fewshot$"):
        compose_command(["sweep=ccl_table8", "protocol.name=a"])


def test_a_list_of_languages_is_no_sweep(xclrun: Callable[..., tuple[int, str]]) -> None:
    code, output = xclrun("plan", "experiment=fewshot", "language=[de,fr]", "-m")
    assert code == 2
    assert output.startswith("xclrun: language: ")
    assert "['de', 'fr']" in output
