"""Runs that train encoder-decoders to write: with strategies, merged, averaged, exported."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.model.decoders import T5S, write_encoder_decoder
from tests.train.conftest import predicted, stopped
from tests.train.test_texts import ANSWERS, REFUSED, TASK, asked, rows
from xclrun.core.errors import UsageError
from xclrun.plan import Run
from xclrun.store.tensors import load_tensors
from xclrun.strategy import STRATEGIES
from xclrun.train.export import export

__all__ = ["asked"]

Make = Callable[..., Run]


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder_decoder(tmp_path_factory.mktemp("t5"))


@pytest.fixture
def make_t5_run(make_run: Make, asked: Path, t5: Path) -> Make:
    return lambda *overrides, **given: make_run(*TASK, f"model.path={t5}", *overrides, data=asked, **given)


def test_an_encoder_decoder_learns_to_write(make_t5_run: Make, do: Make) -> None:
    run = do(make_t5_run("strategy=er", "trainer.epochs=12", "model.lr=3e-2", "order=[en,de]"))
    before, after = ([r for r in rows(run, hop) if r["language"] == "de"] for hop in (0, -1))
    right = [r["generated"] == ANSWERS["de"][i % 2] for i, r in enumerate(after)]
    assert sum(right) > sum(r["generated"] in r["references"] for r in before)
    assert all(r["ended"] for r in after)
    assert sum(r["log2_reference"] for r in after) > sum(r["log2_reference"] for r in before) / 4
    # The table of embeddings, which encoder and decoder share, is stored once.
    names = load_tensors(run.store.path(run.stages[1].train) / "weights.safetensors").keys()
    assert [name for name in names if "embed_tokens" in name or "shared" in name] == ["encoder.shared.weight"]


@pytest.mark.some_cases("T5", "mT5")
@pytest.mark.parametrize("layout", T5S)
def test_an_export_is_read_by_transformers_and_writes_the_same(
    layout: str, make_run: Make, do: Make, asked: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    folder = write_encoder_decoder(tmp_path / "untrained", layout)
    run = do(make_run(*TASK, f"model.path={folder}", "order=[en,de]", "model.lr=2e-2", data=asked))
    assert export(run, None, None, tmp_path / "out")["transformers"].endswith("5ForConditionalGeneration")
    assert "AutoModelForSeq2SeqLM" in (tmp_path / "out" / "README.md").read_text()
    model, pieces = (kind.from_pretrained(tmp_path / "out") for kind in (AutoModelForSeq2SeqLM, AutoTokenizer))
    for row, example in zip(
        [r for r in rows(run) if r["language"] == "de"], run.dataset.split("de", "test"), strict=True
    ):
        given = pieces(example.whole, return_tensors="pt")
        [made] = model.generate(**given, max_new_tokens=6)
        assert pieces.decode(made, skip_special_tokens=True) == row["generated"]
        labels = pieces(example.target.references[0], return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logs = model(**given, labels=labels).logits[0].log_softmax(1)
        log2 = float(logs.gather(1, labels.T).sum()) / math.log(2)
        assert row["log2_reference"] == pytest.approx(log2, rel=1e-5)


@pytest.mark.parametrize("strategy", ["naive", "lwf", "kd_logit", "ewc", "model_average"])
def test_strategies_train_encoder_decoders(strategy: str, make_t5_run: Make, do: Make) -> None:
    run = do(make_t5_run(f"strategy={strategy}", "order=[en,de]", "trainer.epochs=1", "generation.max_new_tokens=3"))
    assert all(math.isfinite(row["log2_reference"]) for row in rows(run))


def test_a_merge_of_encoder_decoders_is_evaluated(make_t5_run: Make, do: Make) -> None:
    run = do(make_t5_run("strategy=merge", "order=[en,de]", "trainer.epochs=1", "generation.max_new_tokens=3"))
    assert all(math.isfinite(row["log2_reference"]) for row in rows(run))


@pytest.mark.full
# The library adapters passes an old name to T5.
@pytest.mark.filterwarnings("ignore:.past_key_value. is deprecated:FutureWarning")
@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - REFUSED - {"lang_spec_embed"}))
def test_other_strategies_train_encoder_decoders(strategy: str, make_t5_run: Make, do: Make) -> None:
    do(make_t5_run(f"strategy={strategy}", "order=[en,de]", "trainer.epochs=1", "generation.max_new_tokens=3"))


@pytest.mark.full
def test_a_stopped_run_resumes_to_equal_predictions(make_t5_run: Make, do: Make) -> None:
    overrides = ("strategy=er", "order=[en,de]")
    whole = do(make_t5_run(*overrides, outputs="whole"))
    run = do(stopped(make_t5_run(*overrides), do, 2, 3))
    assert predicted(run) == predicted(whole)


def test_micro_batches_give_the_loss_of_the_whole_batch_with_replay(make_t5_run: Make, do: Make) -> None:
    overrides = ("strategy=er", "order=[en,de]", "trainer.epochs=1", "trainer.selection=last", "evaluate.generate=none")
    one = do(make_t5_run(*overrides))
    two = do(make_t5_run(*overrides, "trainer.batch_size=2", "trainer.gradient_accumulation=2", outputs="two"))
    losses = [
        [
            epoch["loss"]
            for stage in run.directory.read_manifest()["stages"][1:]
            for epoch in stage["training"]["epochs"]
        ]
        for run in (one, two)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_t5_from_scratch_writes_bytes(make_run: Make, do: Make, asked: Path, tmp_path: Path) -> None:
    run = do(
        make_run(
            "model=tiny_decoder", "model.family=t5", "model.settings={}", "dataset.task=text_to_text",
            "model.vocab_size=300", "generation.max_new_tokens=6", "order=[en]", "model.lr=2e-2", "trainer.epochs=12",
            "model.dropout=0", data=asked,
        )
    )  # fmt: skip
    assert {row["generated"] for row in rows(run)} <= {*ANSWERS["en"]}
    assert export(run, None, None, tmp_path / "out")["transformers"] == "T5ForConditionalGeneration"


def test_prompt_and_text_do_not_share_positions(make_t5_run: Make) -> None:
    given = ("model.max_length=6", "model.max_target=8", "generation.max_new_tokens=9")
    assert make_t5_run(*given).config.new_tokens == 9


@pytest.mark.parametrize(
    ("changes", "overrides", "message"),
    [
        ({"decoder_start_token_id": None}, (), "has no decoder_start_token_id"),
        ({}, ("dataset.text.template=chat",), "encoder-decoders have no chat templates"),
        ({}, ("model.trim_vocabulary=true",), "texts may need any subword"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    changes: dict[str, None], overrides: tuple[str, ...], message: str, t5: Path, make_t5_run: Make, tmp_path: Path
) -> None:
    folder = tmp_path / "changed"
    folder.mkdir()
    for path in t5.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in (config | changes).items() if v is not None}))
    with pytest.raises(UsageError, match=message):
        make_t5_run(f"model.path={folder}", *overrides)
