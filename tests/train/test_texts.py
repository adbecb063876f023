"""Runs that train language models to write: from rows to predictions, resumed, with strategies, exported."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tests.model.decoders import CHAT, write_decoder
from tests.train.conftest import predicted, stopped
from xclrun.analysis.records import read_records
from xclrun.command.compare import differences
from xclrun.core.errors import UsageError
from xclrun.model.families import FAMILIES
from xclrun.model.vocabulary import learned_size
from xclrun.plan import Run
from xclrun.store.tensors import load_tensors
from xclrun.strategy import STRATEGIES
from xclrun.train.export import export

Make = Callable[..., Run]
ANSWERS = {"en": ("six", "Rome"), "de": ("sechs", "Anna"), "es": ("x", "b")}
TASK = (
    "dataset.task=text_to_text", "model.max_length=40", "model.max_target=8", "generation.max_new_tokens=6",
    "model.dropout=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts and answers in three languages, as JSON Lines."""
    folder = tmp_path_factory.mktemp("asked")
    for language, answers in ANSWERS.items():
        for split, size in (("train", 10), ("dev", 4), ("test", 5)):
            rows = [
                {"id": f"{split}{i}", "text": f"{'a b'[: 3 * (i % 2)]} me at", "target": answers[i % 2]}
                for i in range(size)
            ]
            path = folder / language / f"{split}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("decoder"), chat=CHAT)


@pytest.fixture
def make_text_run(make_run: Make, asked: Path, decoder: Path) -> Make:
    return lambda *overrides, **given: make_run(*TASK, f"model.path={decoder}", *overrides, data=asked, **given)


def rows(run: Run, hop: int = -1) -> list[dict[str, Any]]:
    return list(pq.read_table(sorted((run.directory.path / "predictions").iterdir())[hop]).to_pylist())


def test_a_model_learns_to_write_and_is_scored_in_bits_per_byte(make_text_run: Make, do: Make) -> None:
    run = do(make_text_run("strategy=er", "trainer.epochs=5", "model.lr=4e-2", "order=[en,de]"))
    before, after = ([r for r in rows(run, hop) if r["language"] == "de"] for hop in (0, -1))
    assert [r["generated"] for r in after] == [ANSWERS["de"][i % 2] for i in range(5)]
    assert all(r["ended"] for r in after)
    assert [r["references"] for r in after] == [[ANSWERS["de"][i % 2]] for i in range(5)]
    [record] = read_records(run.outputs)
    score = record.scores["reference_bits"][-1][record.languages.index("de")]
    bits, size = -sum(r["log2_reference"] for r in after), sum(len(r["references"][0].encode()) for r in after)
    assert score == pytest.approx(bits / size, rel=1e-5)
    assert bits < -sum(r["log2_reference"] for r in before) / 4
    # Lower is better: the epoch with the fewest bits is selected.
    [*_, stage] = run.directory.read_manifest()["stages"]
    dev = [math.fsum(s["reference_bits"] for s in epoch["dev"].values()) for epoch in stage["training"]["epochs"]]
    assert stage["training"]["best_epoch"] == 1 + dev.index(min(dev))


@pytest.mark.full
def test_a_stopped_run_resumes_to_equal_predictions(make_text_run: Make, do: Make) -> None:
    overrides = ("strategy=er", "order=[en,de]")
    whole = do(make_text_run(*overrides, outputs="whole"))
    run = do(stopped(make_text_run(*overrides), do, 2, 3))
    assert predicted(run) == predicted(whole)


@pytest.mark.parametrize(
    ("overrides", "target", "text"),
    [
        ((), 20, 20),
        (("model.max_target=7",), 7, 7),
        (("model.max_target=7", "generation.max_new_tokens=9"), 7, 9),
        (("generation.max_new_tokens=9",), 20, 9),
    ],
)
def test_lengths_of_targets_and_texts_fit_by_default(
    overrides: tuple[str, ...], target: int, text: int, make_run: Make, asked: Path, decoder: Path
) -> None:
    given = ("dataset.task=text_to_text", "model.max_length=40", f"model.path={decoder}", *overrides)
    config = make_run(*given, data=asked).config
    assert (config.model.target_limit, config.new_tokens) == (target, text)


def test_settings_of_generation_change_evaluations_alone(make_text_run: Make) -> None:
    runs = [
        make_text_run(*given)
        for given in (
            (),
            ("generation.max_new_tokens=5",),
            ("evaluate.generate=none",),
            ("dataset.text.loss_per=example",),
        )
    ]
    assert len({run.id for run in runs}) == 4
    for part, distinct in (("train", 2), ("evaluation", 4)):
        assert len({getattr(run.stages[1], part) for run in runs}) == distinct, part


def test_without_generation_it_has_no_effect_on_ids(make_text_run: Make) -> None:
    first, second = (make_text_run("evaluate.generate=none", f"generation.max_new_tokens={n}") for n in (5, 6))
    assert first.id == second.id


def test_nothing_is_written_without_generation(make_text_run: Make, do: Make) -> None:
    run = do(make_text_run("evaluate.generate=none", "order=[en,de]", "trainer.epochs=1"))
    assert {row["generated"] for row in rows(run)} == {None}
    assert all(row["log2_reference"] < 0 for row in rows(run))


@pytest.mark.parametrize("tied", [True, False])
def test_an_export_is_read_by_transformers_and_writes_the_same(
    tied: bool, make_run: Make, do: Make, asked: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = write_decoder(tmp_path / "untrained", tie_word_embeddings=tied)
    run = do(make_run(*TASK, f"model.path={folder}", "order=[en,de]", "model.lr=3e-2", data=asked))
    facts = export(run, None, None, tmp_path / "out")
    assert facts["transformers"] == "LlamaForCausalLM"
    model, pieces = (kind.from_pretrained(tmp_path / "out") for kind in (AutoModelForCausalLM, AutoTokenizer))
    assert model.config.tie_word_embeddings is tied
    for row, example in zip(
        [r for r in rows(run) if r["language"] == "de"], run.dataset.split("de", "test"), strict=True
    ):
        ids = pieces(example.whole, return_tensors="pt")
        [made] = model.generate(**ids, max_new_tokens=6)
        text = pieces.decode(made[ids["input_ids"].shape[1] :], skip_special_tokens=True)
        assert text.removeprefix(" ") == row["generated"]
        target = [*pieces.encode(" " + example.target.references[0], add_special_tokens=False), 1]
        with torch.no_grad():
            logs = model(torch.tensor([[*ids["input_ids"][0].tolist(), *target]])).logits[0].log_softmax(1)
        at = ids["input_ids"].shape[1] - 1
        log2 = sum(float(logs[at + i, piece]) for i, piece in enumerate(target)) / math.log(2)
        assert row["log2_reference"] == pytest.approx(log2, rel=1e-5)


REFUSED = {
    "er_ace", "der", "derpp", "mbpa", "cos_pooler", "fc", "fc_pooler", "fc_reset_pooler", "l2p", "coda_prompt",
    "lang_spec_task", "lang_spec_prompt",
}  # fmt: skip


@pytest.mark.some_cases("der", "fc", "lang_spec_task", "l2p")
@pytest.mark.parametrize("strategy", sorted(REFUSED))
def test_strategies_that_cannot_work_say_why_in_one_line(strategy: str, make_text_run: Make) -> None:
    with pytest.raises(UsageError, match=rf"^strategy={strategy} dataset\.task=text_to_text: \S+ .+$"):
        make_text_run(f"strategy={strategy}")


def test_an_expansion_that_cannot_work_is_refused(make_text_run: Make) -> None:
    with pytest.raises(UsageError, match="output layer"):
        make_text_run("strategy=er", "strategy.expansion=lang_spec_task")


def test_embeddings_that_are_the_output_layer_cannot_belong_to_a_language(make_text_run: Make, do: Make) -> None:
    with pytest.raises(UsageError, match="tie_word_embeddings=false"):
        do(make_text_run("strategy=lang_spec_embed"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model.trim_vocabulary=true",), "texts may need any subword"),
        (("generation.max_new_tokens=40",), r"must be below model\.max_length=40"),
        (("model.max_target=40",), r"must be below model\.max_length=40"),
        (("dataset.text.prompt=x",), "must contain"),
        (("evaluate.attention=true",), "not supported"),
    ],
)
def test_settings_that_cannot_work_are_refused(overrides: tuple[str, ...], message: str, make_text_run: Make) -> None:
    with pytest.raises(UsageError, match=message):
        make_text_run(*overrides)


def test_a_bidirectional_encoder_writes_no_texts(make_run: Make, asked: Path) -> None:
    with pytest.raises(UsageError, match="use a causal model"):
        make_run(*TASK, "model.vocab_size=300", data=asked)


def test_dialogues_are_learned_with_a_template(make_text_run: Make, do: Make) -> None:
    run = do(
        make_text_run("dataset.text.template=chat", "order=[en]", "strategy=naive", "trainer.epochs=8", "model.lr=3e-2")
    )
    assert [r["generated"] for r in rows(run)] == [ANSWERS["en"][i % 2] for i in range(5)]


def test_a_model_from_scratch_learns_its_subwords_and_is_exported_with_them(
    make_run: Make, do: Make, asked: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = do(
        make_run(
            "model=tiny_decoder", "dataset.task=text_to_text", "model.vocab_size=300", "generation.max_new_tokens=6",
            "order=[en]", "model.lr=2e-2", "trainer.epochs=8", "model.dropout=0", data=asked,
        )
    )  # fmt: skip
    assert {row["generated"] for row in rows(run)} <= {*ANSWERS["en"]}
    assert all(row["ended"] for row in rows(run))
    learned = learned_size(run.config.model, run.dataset, run.cache)
    assert load_tensors(run.store.path(run.stages[1].train) / "weights.safetensors")[
        "encoder.embed_tokens.weight"
    ].shape == (learned, 16)
    export(run, None, None, tmp_path / "out")
    pieces, model = (kind.from_pretrained(tmp_path / "out") for kind in (AutoTokenizer, AutoModelForCausalLM))
    given = pieces(run.dataset.split("en", "test")[0].whole, return_tensors="pt")
    [made] = model.generate(**given, max_new_tokens=6)
    written = pieces.decode(made[given["input_ids"].shape[1] :], skip_special_tokens=True)
    assert written.removeprefix(" ") == rows(run)[0]["generated"]


def test_a_vocabulary_of_bytes_needs_room_for_all_bytes(make_run: Make, asked: Path) -> None:
    with pytest.raises(UsageError, match=r"model\.vocab_size=258: subwords of bytes need at least 259"):
        make_run("model=tiny_decoder", "dataset.task=text_to_text", "model.vocab_size=258", data=asked)


def test_learned_bytes_are_equal_each_time_and_write_any_text() -> None:
    from tokenizers import Tokenizer

    from xclrun.model.vocabulary import learn_bytes

    texts = ["wake me at six", "weck mich um sechs", "सुबह छह बजे"] * 3
    first, second = learn_bytes(texts, 300), learn_bytes(iter(texts), 300)
    assert first == second
    tokenizer = Tokenizer.from_str(first)
    text = "  ตื่น\n  me 🙂"
    ids = tokenizer.encode(text).ids
    assert ids[0] == 1
    assert tokenizer.decode(ids) == text


def test_micro_batches_give_the_loss_of_the_whole_batch_with_replay(make_text_run: Make, do: Make) -> None:
    overrides = ("strategy=er", "order=[en,de]", "trainer.epochs=1", "trainer.selection=last", "evaluate.generate=none")
    one = do(make_text_run(*overrides))
    two = do(make_text_run(*overrides, "trainer.batch_size=2", "trainer.gradient_accumulation=2", outputs="two"))
    losses = [
        [
            epoch["loss"]
            for stage in run.directory.read_manifest()["stages"][1:]
            for epoch in stage["training"]["epochs"]
        ]
        for run in (one, two)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_what_was_cut_is_counted_in_the_manifest(make_text_run: Make, do: Make) -> None:
    given = (
        "order=[en]",
        "trainer.epochs=1",
        "model.max_length=4",
        "model.max_target=1",
        "generation.max_new_tokens=2",
    )
    counts = do(make_text_run(*given)).directory.read_manifest()["data"]
    assert counts["cut_targets"]["en/train"] == 10
    assert counts["cut_prompts"]["en/test"] > 0


@pytest.mark.full
@pytest.mark.parametrize("family", [name for name, facts in FAMILIES.items() if facts.causal])
def test_every_causal_family_is_trained_and_exported(
    family: str, make_run: Make, do: Make, asked: Path, tmp_path: Path
) -> None:
    folder = write_decoder(tmp_path / "untrained", family)
    run = do(make_run(*TASK, f"model.path={folder}", "order=[en]", "trainer.epochs=1", data=asked))
    assert export(run, None, None, tmp_path / "out")["transformers"].endswith(("ForCausalLM", "LMHeadModel"))


@pytest.mark.full
@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - REFUSED - {"lang_spec_embed"}))
def test_other_strategies_train_models_that_write(strategy: str, make_text_run: Make, do: Make) -> None:
    do(make_text_run(f"strategy={strategy}", "order=[en,de]", "trainer.epochs=1", "generation.max_new_tokens=3"))


def test_no_texts_are_written_inside_hops(make_text_run: Make, do: Make) -> None:
    run = do(make_text_run("order=[en]", "trainer.epochs=1", "evaluate.every_examples=5"))
    [points] = [pq.read_table(path).to_pylist() for path in run.directory.path.rglob("points*.parquet")]
    assert {row["generated"] for row in points} == {None}
    assert all(row["log2_reference"] < 0 for row in points)


def test_runs_with_choices_are_scored_and_compared(
    make_run: Make, do: Make, asked: Path, decoder: Path, tmp_path: Path
) -> None:
    data = tmp_path / "choices"
    for path in asked.rglob("*.jsonl"):
        given = [json.loads(line) for line in path.read_text().splitlines()]
        choices = list(ANSWERS[path.parent.name])
        given = [{**row, "target": {"choices": choices, "answer": choices.index(row["target"])}} for row in given]
        (data / path.parent.name).mkdir(parents=True, exist_ok=True)
        (data / path.parent.name / path.name).write_text("".join(json.dumps(row) + "\n" for row in given))
    first, second = (
        do(make_run(*TASK, f"model.path={decoder}", "order=[en]", "trainer.epochs=1", f"seed={n}", data=data))
        for n in (1, 2)
    )
    for row in rows(first):
        best = row["choice_log2"].index(max(row["choice_log2"]))
        assert row["choice_log2"][row["right_choice"]] == pytest.approx(row["log2_reference"], rel=1e-5)
        assert best in (0, 1)
    facts = differences([first.directory, second.directory])
    assert set(facts["tests"]) >= {"reference_bits", "text_choice"}
    assert all("not tested" not in str(result) for result in facts["tests"].values())


@pytest.mark.parametrize("scratch", [False, True])
def test_texts_are_transmitted_in_blocks(scratch: bool, make_run: Make, do: Make, asked: Path, decoder: Path) -> None:
    """A pretrained model encodes the first block itself; targets that lost their end are encoded uniformly."""
    model = ("model=tiny_decoder", "model.vocab_size=300") if scratch else (f"model.path={decoder}",)
    given = ("dataset.blocks=2", "strategy=growing", "order=[en]", "trainer.selection=last", "trainer.epochs=1")
    run = do(make_run("dataset.task=text_to_text", "model.max_target=2", "generation.max_new_tokens=3", *model, *given,
                      data=asked))  # fmt: skip
    [record] = read_records(run.outputs)
    first, second = record.coded
    assert first["start_knows"] == ([] if scratch else ["texts"])
    uniform = [8 * (len(ANSWERS["en"][i % 2].encode()) + 1) for i in range(10)]
    assert first["codes"]["texts"]["uniform"] + second["codes"]["texts"]["uniform"] == sum(uniform)
    assert second["codes"]["texts"]["bits"] > 0


@pytest.mark.full
def test_two_ranks_write_what_one_writes(make_text_run: Make, do: Make) -> None:
    overrides = ("strategy=er", "order=[en,de]", "trainer.batch_size=2", "trainer.gradient_accumulation=2")
    one, two = (do(make_text_run(*overrides, f"runtime.devices={n}", outputs=str(n))) for n in (1, 2))
    assert predicted(one) == predicted(two)
