"""Runs of the task language_modelling: from files to bits per byte, resumed, on ranks, in blocks, exported."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tests.model.decoders import write_decoder
from tests.train.conftest import predicted, stopped
from tests.train.test_texts import REFUSED
from xclrun.analysis.records import read_records
from xclrun.core.errors import UsageError
from xclrun.plan import Run
from xclrun.strategy import STRATEGIES
from xclrun.train.export import export

Make = Callable[..., Run]
TEXTS = {"en": ("wake me at six", "a b c d"), "de": ("weck mich um sechs", "Anna"), "es": ("six", "x b x b")}
TASK = ("dataset.reader=documents", "dataset.task=language_modelling", "model.max_length=40", "model.dropout=0")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of three languages in text files; each is two lines long."""
    folder = tmp_path_factory.mktemp("written")
    for language, texts in TEXTS.items():
        for split, size in (("train", 10), ("dev", 4), ("test", 5)):
            path = folder / language / f"{split}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n\n".join(f"{texts[i % 2]}\nme {i % 3}" for i in range(size)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("decoder"))


@pytest.fixture
def make_document_run(make_run: Make, written: Path, decoder: Path) -> Make:
    return lambda *overrides, **given: make_run(*TASK, f"model.path={decoder}", *overrides, data=written, **given)


def rows(run: Run, hop: int = -1) -> list[dict[str, Any]]:
    return list(pq.read_table(sorted((run.directory.path / "predictions").iterdir())[hop]).to_pylist())


def losses(run: Run) -> list[float]:
    stages = run.directory.read_manifest()["stages"][1:]
    return [epoch["loss"] for stage in stages for epoch in stage["training"]["epochs"]]


def test_documents_are_learned_and_scored_in_bits_per_byte(make_document_run: Make, do: Make) -> None:
    run = do(make_document_run("strategy=er", "trainer.epochs=5", "model.lr=4e-2", "order=[en,de]"))
    before, after = ([r for r in rows(run, hop) if r["language"] == "de"] for hop in (0, -1))
    examples = run.dataset.split("de", "test")
    assert [e.whole for e in examples] == [f"{TEXTS['de'][i % 2]}\nme {i % 3}" for i in range(5)]
    assert [r["reference_bytes"] for r in after] == [len(e.whole) for e in examples]
    [record] = read_records(run.outputs)
    score = record.scores["bits_per_byte"][-1][record.languages.index("de")]
    bits, size = -sum(r["log2_reference"] for r in after), sum(r["reference_bytes"] for r in after)
    assert score == pytest.approx(bits / size, rel=1e-5)
    assert bits < -sum(r["log2_reference"] for r in before) / 2
    # Lower is better: the epoch with the fewest bits is selected.
    [*_, stage] = run.directory.read_manifest()["stages"]
    dev = [math.fsum(s["bits_per_byte"] for s in epoch["dev"].values()) for epoch in stage["training"]["epochs"]]
    assert stage["training"]["best_epoch"] == 1 + dev.index(min(dev))


def test_micro_batches_and_packing_give_the_loss_of_the_whole_batch_with_replay(
    make_document_run: Make, do: Make
) -> None:
    overrides = ("strategy=er", "order=[en,de]", "trainer.epochs=1", "trainer.selection=last")
    one = do(make_document_run(*overrides))
    for given in (("trainer.packing=true",), ("trainer.batch_size=2", "trainer.gradient_accumulation=2")):
        other = do(make_document_run(*overrides, *given, outputs=given[0]))
        assert losses(other) == pytest.approx(losses(one), rel=1e-5)


@pytest.mark.full
def test_a_stopped_run_resumes_to_equal_predictions(make_document_run: Make, do: Make) -> None:
    overrides = ("strategy=er", "order=[en,de]", "trainer.packing=true")
    whole = do(make_document_run(*overrides, outputs="whole"))
    run = do(stopped(make_document_run(*overrides), do, 2, 3))
    assert predicted(run) == predicted(whole)


@pytest.mark.full
def test_two_ranks_predict_what_one_predicts(make_document_run: Make, do: Make) -> None:
    overrides = ("strategy=er", "order=[en,de]", "trainer.batch_size=2", "trainer.gradient_accumulation=2")
    one, two = (do(make_document_run(*overrides, f"runtime.devices={n}", outputs=str(n))) for n in (1, 2))
    assert predicted(one) == predicted(two)


def test_documents_longer_than_a_window_are_scored_whole_and_cut_in_training(make_document_run: Make, do: Make) -> None:
    given = ("order=[en]", "trainer.epochs=1", "model.max_length=4")
    run = do(make_document_run(*given))
    counts = run.directory.read_manifest()["data"]
    assert counts["cut_targets"]["en/train"] == 10
    assert all(r["log2_reference"] < 0 for r in rows(run))
    strided = do(make_document_run(*given, "evaluate.stride=1", outputs="strided"))
    # The encoded splits of the first run are cached in this process.
    bits = [[row["log2_reference"] for row in rows(of, 0)] for of in (run, strided)]
    assert bits[0] != bits[1]


def test_the_stride_is_part_of_keys_and_its_default_is_not(make_document_run: Make, make_run: Make) -> None:
    plain, strided = make_document_run(), make_document_run("evaluate.stride=7")
    assert plain.id != strided.id
    assert plain.stages[0].evaluation != strided.stages[0].evaluation
    with pytest.raises(UsageError, match=r"^evaluate\.stride=7: needs dataset\.task=language_modelling$"):
        make_run("evaluate.stride=7")


def test_settings_of_generation_have_no_effect_on_ids(make_document_run: Make) -> None:
    first, second = (make_document_run(f"generation.max_new_tokens={n}") for n in (5, 600))
    assert first.id == second.id


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model.trim_vocabulary=true",), "texts may need any subword"),
        (("evaluate.stride=41",), r"^evaluate\.stride=41: must be at most model\.max_length=40"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    overrides: tuple[str, ...], message: str, make_document_run: Make
) -> None:
    with pytest.raises(UsageError, match=message):
        make_document_run(*overrides)


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [("bloom", {}, "does not read positions"), ("mistral", {"sliding_window": 39}, "must be at least")],
)
def test_packing_is_refused_where_documents_would_be_mixed(
    family: str, settings: dict[str, Any], message: str, make_run: Make, written: Path, tmp_path: Path
) -> None:
    folder = write_decoder(tmp_path / "decoder", family, **settings)
    given = (*TASK, f"model.path={folder}")
    with pytest.raises(UsageError, match=message):
        make_run(*given, "trainer.packing=true", data=written)
    assert make_run(*given, "trainer.packing=auto", data=written).config.trainer.packing is False


def test_packing_is_possible_by_default_where_it_is_exact(make_document_run: Make) -> None:
    assert make_document_run("trainer.packing=auto").config.trainer.packing is True


@pytest.mark.some_cases("der", "fc", "lang_spec_task", "l2p")
@pytest.mark.parametrize("strategy", sorted(REFUSED))
def test_strategies_that_cannot_work_say_why_in_one_line(strategy: str, make_document_run: Make) -> None:
    with pytest.raises(UsageError, match=rf"^strategy={strategy} dataset\.task=language_modelling: \S+ .+$"):
        make_document_run(f"strategy={strategy}")


@pytest.mark.full
@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - REFUSED - {"lang_spec_embed"}))
def test_other_strategies_train_on_documents(strategy: str, make_document_run: Make, do: Make) -> None:
    do(make_document_run(f"strategy={strategy}", "order=[en,de]", "trainer.epochs=1"))


@pytest.mark.parametrize("tied", [True, False])
def test_an_export_is_read_by_transformers_and_scores_the_same(
    tied: bool, make_run: Make, do: Make, written: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = write_decoder(tmp_path / "untrained", tie_word_embeddings=tied)
    run = do(make_run(*TASK, f"model.path={folder}", "order=[en]", "model.lr=3e-2", data=written))
    facts = export(run, None, None, tmp_path / "out")
    assert facts["transformers"] == "LlamaForCausalLM"
    model, pieces = (kind.from_pretrained(tmp_path / "out") for kind in (AutoModelForCausalLM, AutoTokenizer))
    assert model.generation_config.eos_token_id == [1]
    for row, example in zip(rows(run), run.dataset.split("en", "test"), strict=True):
        ids = pieces(example.whole, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            loss = model(ids, labels=ids).loss
        expected = -float(loss) * (ids.shape[1] - 1) / math.log(2)
        assert row["log2_reference"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("scratch", [False, True])
def test_documents_are_transmitted_in_blocks(
    scratch: bool, make_run: Make, do: Make, written: Path, decoder: Path
) -> None:
    """A pretrained model encodes the first block itself; documents that lost their end are encoded uniformly."""
    model = ("model=tiny_decoder", "model.vocab_size=300") if scratch else (f"model.path={decoder}",)
    given = ("dataset.blocks=2", "strategy=growing", "order=[en]", "trainer.selection=last", "trainer.epochs=1")
    run = do(make_run(*TASK, *model, *given, data=written))
    [record] = read_records(run.outputs)
    first, second = record.coded
    assert first["start_knows"] == ([] if scratch else ["texts"])
    size = sum(8 * (len(e.whole) + 1) for e in run.dataset.split("en", "train"))
    assert first["codes"]["texts"]["uniform"] + second["codes"]["texts"]["uniform"] == size
    assert second["codes"]["texts"]["bits"] > 0
