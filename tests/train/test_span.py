"""Runs that answer questions, from config to rows, under every strategy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers.data.metrics.squad_metrics import compute_exact, compute_f1

from tests.questions import SIZES, questions, write_questions
from tests.strategy.real import context_of
from tests.strategy.test_kd import distance
from xclrun.analysis.codelength import blocks, code_of
from xclrun.analysis.records import read_predictions, record
from xclrun.core.errors import UsageError
from xclrun.core.task import ANSWER_F1, EXACT_MATCH
from xclrun.plan import Run
from xclrun.scores.answers import best, exact, f1
from xclrun.strategy import STRATEGIES
from xclrun.strategy.shared.fisher import diagonal_fisher
from xclrun.train.stop import Stopped

from .conftest import StopAt, predicted, stored

Make = Callable[..., Run]

Do = Callable[..., Run]
SPAN = (
    "dataset=questions",
    "dataset.replay.memory=8",
    "dataset.replay.every_k=2",
    "order=[en,th]",
    "model.vocab_size=220",
    "model.max_length=48",
    "model.windows.stride=16",
    "model.windows.question=8",
    "trainer.epochs=1",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_questions(tmp_path_factory.mktemp("questions"), "en", "th", long=4)


def rows(run: Run, hop: int = 2) -> pd.DataFrame:
    return pd.read_parquet(run.directory.predictions(hop)).set_index(["language", "example_id"]).sort_index()


def test_answers_are_stored_with_places_and_scored_from_what_is_stored(make_run: Make, do: Do, data: Path) -> None:
    run = do(make_run(*SPAN, data=data))
    result, mine = rows(run), record(run.directory)
    assert mine.metrics == ("answer_f1", "exact_match")
    scores = {"answer_f1": (compute_f1, f1), "exact_match": (compute_exact, exact)}
    for j, language in enumerate(("en", "th")):
        own, examples = result.loc[language], {e.id: e for e in run.dataset.split(language, "test")}
        assert own.index.tolist() == sorted(examples)
        for name, row in own.iterrows():
            example = examples[str(name)]
            assert row["answer"] == example.whole[int(row["answer_start"]) : int(row["answer_end"])]
            assert row["gold_answers"].tolist() == [answer.text for answer in example.answers or ()]
        for metric, (theirs, ours) in scores.items():
            expected = np.mean([theirs(r["gold_answers"][0], r["answer"]) for _, r in own.iterrows()])
            assert mine.scores[metric][2, j] == pytest.approx(expected)
            again = np.mean([best(ours, r["answer"], r["gold_answers"], "squad") for _, r in own.iterrows()])
            assert again == pytest.approx(expected)
    assert (result["log2_gold"] < 0).all()
    assert (result["log2_classes"] > 0).all()
    assert result[["gold", "predicted", "gold_tags"]].isna().all(axis=None)
    [predictions] = read_predictions(run.outputs, [mine], pytest.fail).values()
    kept = read_predictions(run.outputs, [mine], pytest.fail)[run.id]
    for language, them in predictions.sentences.items():
        for metric in (ANSWER_F1, EXACT_MATCH):
            sums = [of.counts(metric).statistics for of in (them, kept.sentences[language])]
            assert np.array_equal(*sums)
        text_of = {e.id: e.whole for e in run.dataset.split(language, "test")}
        for of in (them, kept.sentences[language]):
            assert of.texts is not None
            texts = [text_of[name] for name in of.ids.tolist()]
            assert len(set(texts)) < len(texts)
            assert len(set(zip(texts, of.texts.tolist(), strict=True))) == len(set(texts)) == len(set(of.texts))


def test_fisher_information_of_windows_is_the_mean_of_squared_gradients(
    make_run: Make, data: Path, threads: None
) -> None:
    context = context_of(make_run(*SPAN, data=data), 1)
    train, model, device = context.train["en"], context.model, torch.device("cpu")
    assert len(train) > SIZES["train"]
    result = diagonal_fisher(model, train, device)
    assert result.keys() == {name for name, _ in model.named_parameters() if ".pooler." not in name}
    total = {name: torch.zeros_like(value) for name, value in result.items()}
    model.eval()
    for index in range(len(train)):
        batch = train.batch([index])
        assert batch.gold is not None
        logs = model(batch).emissions[0].log_softmax(dim=0)
        model.zero_grad()
        (logs[batch.gold[0, 0], 0] + logs[batch.gold[0, 1], 1]).backward()
        for name, parameter in model.named_parameters():
            if name in total and parameter.grad is not None:
                total[name] += parameter.grad**2 / len(train)
    for name, value in total.items():
        torch.testing.assert_close(result[name], value, rtol=1e-4, atol=1e-6 * float(value.max()) + 1e-12)


def test_distillation_compares_starts_and_ends_of_each_window(make_run: Make, data: Path, threads: None) -> None:
    """The teacher's outputs are of words, [CLS] and pieces, without padding; after a step they differ."""
    run = make_run(*SPAN, "strategy=kd_logit", data=data)
    strategy, context = run.strategy(), context_of(run, 1)
    strategy.end_hop(context)
    kept = context.train["en"].select(strategy.memory.indices["en"])
    assert strategy.teacher["en"]["emissions"].shape == (kept.word_pieces.lengths.sum(), 2)
    model = context.model.eval()
    assert distance(strategy, "en", len(kept), context).item() == pytest.approx(0, abs=1e-9)
    with torch.no_grad():
        model.span.linear.bias += torch.tensor([3.0, 1.0])
    assert distance(strategy, "en", len(kept), context).item() == pytest.approx((9 + 1) / 2, rel=1e-4)


def test_questions_without_an_answer_are_counted_or_kept(make_run: Make, do: Do, tmp_path: Path) -> None:
    data = write_questions(tmp_path / "data", "en", silent=3)
    dropped = make_run(*SPAN, "order=[en]", data=data)
    assert dropped.dataset.notes["unanswerable"] == {"en/train": 5, "en/dev": 2, "en/test": 3}
    assert dropped.dataset.sizes("test") == {"en": 4}
    kept = do(make_run(*SPAN, "order=[en]", "dataset.unanswerable=keep", data=data))
    assert kept.dataset.notes == {}
    assert kept.id != dropped.id
    result = rows(kept, 1)
    silent = result["gold_answers"].map(len) == 0
    assert silent.sum() == 3
    assert (result["answer_start"].isna() == (result["answer"] == "")).all()
    assert (result["log2_gold"] < 0).all()
    right = [not row["answer"] if not len(row["gold_answers"]) else row["answer"] in row["gold_answers"]
             for _, row in result.iterrows()]  # fmt: skip
    assert record(kept.directory).scores["exact_match"][1, 0] >= np.mean(right)


def test_a_release_without_dev_and_most_training_files_is_one_hop_tested_on_all(
    make_run: Make, do: Do, tmp_path: Path
) -> None:
    """XQuAD: trained on SQuAD, tested in every language, inside the hop too."""
    for name, language, split in (
        ("train-v1.1", "en", "train"),
        ("xquad.en", "en", "test"),
        ("xquad.th", "th", "test"),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(questions(language, split, 6, long=3)))
    last = ("trainer.selection=last", "trainer.patience=null", "evaluate.every_examples=4")
    few = ("dataset=xquad", "strategy=zero_shot")
    run = do(make_run(*SPAN, *few, *last, data=tmp_path, outputs=tmp_path / "outputs"))
    mine = record(run.directory)
    assert mine.languages == ("en", "th")
    assert np.isfinite(mine.scores["answer_f1"]).all()
    assert {language for point in mine.points for language in point["test"]} == {"en", "th"}


def test_what_a_run_of_questions_cannot_have_is_told_while_planning(make_run: Make, data: Path) -> None:
    for wrong, message in (
        (["model.max_length=27"], r"^model.max_length=27: must be above 28"),
        (["shots=2"], r"^shots=2: .*dataset.task=span"),
        (["evaluate.attention=true"], r"^evaluate.attention=true dataset.task=span: .*texts split into windows"),
        (["strategy=fc_pooler"], r"^strategy=fc_pooler dataset.task=span: tunes BERT's pooler"),
        (
            ["strategy=er", "strategy.selection=ring"],
            r"^strategy=er dataset.task=span: strategy.selection=ring chooses",
        ),
        (
            ["dataset.task=sequence_class"],
            r"^dataset.task=sequence_class: .*dataset.reader=questions",
        ),
        (
            ["dataset=mini", "dataset.task=span"],
            r"^dataset.task=span: .*dataset.reader=mini contain only a label",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            make_run(*SPAN, *wrong, data=data)


def test_windows_are_part_of_what_a_run_of_questions_is_alone(make_run: Make, data: Path) -> None:
    other = "model.windows.stride=9"
    assert make_run(*SPAN, data=data).id != make_run(*SPAN, other, data=data).id
    assert make_run().id == make_run(other).id


def test_a_stream_of_questions_classes_and_tags_has_a_head_for_each(
    make_run: Make, do: Do, data: Path, corpus: Path
) -> None:
    """One encoder; each key is scored by its own task's metrics, and the first of them stand in one matrix."""
    parts = {
        "asked": f"{{reader: questions, task: span, root: {data}, languages: [en]}}",
        "intents": f"{{reader: jsonl, task: sequence_class, root: {corpus}, languages: [en]}}",
        "tagged": f"{{reader: jsonl, task: token_tags, root: {corpus}, languages: [de]}}",
    }
    message = ", ".join(f"{name}: {part}" for name, part in parts.items())
    order = ("dataset=jsonl", "order=[asked,intents,tagged]", f"dataset.parts={{{message}}}")
    run = do(make_run(*SPAN, *order, "strategy=er", data=Path("/")))
    mine = record(run.directory)
    assert mine.metric_of == {"asked": "answer_f1", "intents": "class_accuracy", "tagged": "entity_f1"}
    scores = mine.scores["key_score"]
    assert np.isfinite(scores).all()
    result = rows(run, 3)
    assert result.loc["asked", "answer"].notna().all()
    assert result.loc["intents", "answer"].isna().all()
    expected = [best(f1, r["answer"], r["gold_answers"], "squad") for _, r in result.loc["asked"].iterrows()]
    assert scores[3, 0] == pytest.approx(np.mean(expected))


def test_blocks_of_questions_are_coded_by_their_own_numbers_of_spans(make_run: Make, do: Do, data: Path) -> None:
    run = do(make_run(*SPAN, "order=[en]", "dataset.blocks=3", "strategy=growing", data=data))
    mine = record(run.directory)
    first, *others = blocks(mine, "answers") or ()
    files = [pd.read_parquet(run.directory.next_block(hop)) for hop in range(3)]
    for block, rows_of in zip((first, *others), files, strict=True):
        assert block.uniform == pytest.approx(rows_of["log2_classes"].sum())
        assert block.bits == pytest.approx(-rows_of["log2_gold"].fillna(-rows_of["log2_classes"]).sum())
    length = code_of(mine, "answer_f1")
    assert length is not None
    assert length.bits == pytest.approx(first.uniform + sum(block.bits for block in others))
    assert length.examples == SIZES["train"]


@pytest.mark.full
@pytest.mark.in_turn
def test_every_strategy_answers_questions_or_says_why_it_cannot(make_run: Make, do: Do, data: Path) -> None:
    """Each trains, replays, distils, counts Fisher information or adapts on windows as it does on sentences."""
    refused = []
    written = ("strategy.replay_write=0.5", "strategy.replay_interval=8", "strategy.replay_number=4")
    few = {
        "mbpa": (*written, "strategy.neighbours=2", "strategy.adapt_steps=1"),
        "replay": written,
        "joint_replay": ("strategy.rate=0.5",),
    }
    for name in sorted(STRATEGIES):
        try:
            run = do(make_run(*SPAN, f"strategy={name}", *few.get(name, ()), data=data))
        except UsageError:
            refused.append(name)
            continue
        assert np.isfinite(record(run.directory).scores["answer_f1"]).any(), name
    assert refused == ["cos_pooler", "er_ace", "fc_pooler", "fc_reset_pooler"]


@pytest.mark.full
@pytest.mark.in_turn
@pytest.mark.parametrize("strategy", ["er", "kd_logit", "mbpa"])
def test_a_run_of_questions_that_is_stopped_goes_on_bit_for_bit(
    strategy: str, make_run: Make, do: Do, data: Path
) -> None:
    options = (*SPAN, f"strategy={strategy}", "evaluate.every_examples=8", "trainer.selection=best")
    if strategy == "mbpa":
        options += ("strategy.replay_write=0.5", "strategy.replay_interval=8", "strategy.replay_number=4")
    whole, run = (make_run(*options, data=data, outputs=name) for name in ("whole", "stopped"))
    do(whole)
    stops = 0
    while not run.directory.finished:
        listener = StopAt(1)
        try:
            do(run, listener, listener.stop)
        except Stopped:
            stops += 1
    assert stops > 3
    assert predicted(run) == predicted(whole)
    assert stored(run.store) == stored(whole.store)
