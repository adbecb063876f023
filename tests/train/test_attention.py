"""What [CLS] attends to: the library's own attention, summaries by hand, and runs that keep it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertModel, XLMRobertaConfig, XLMRobertaModel

from tests.strategy.few import CLASSES, planned
from tests.strategy.real import graph
from xclrun.analysis.fewshot.attention import COLUMNS
from xclrun.analysis.records import record
from xclrun.core.errors import UsageError
from xclrun.core.task import SEQUENCE_CLASS
from xclrun.data.batches import Encoded, Ragged
from xclrun.data.example import Example
from xclrun.model.network import Model
from xclrun.plan import Run
from xclrun.report import parts  # noqa: F401  (registers what sections consist of)
from xclrun.report.fewshot import few_shot_sections
from xclrun.report.fewshot.read import read_few_shot
from xclrun.store import predictions
from xclrun.train import attention
from xclrun.train.stages import StageGraph

from .conftest import predicted, stopped, stored

Make = Callable[..., Run]
Do = Callable[..., Run]
KEPT, CPU = "evaluate.attention=true", torch.device("cpu")
SHAPE = {"vocab_size": 50, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 8,
         "initializer_range": 0.8, "max_position_embeddings": 40, "pad_token_id": 1}  # fmt: skip


def pieces(*lengths: int) -> Encoded:
    """Return sentences of given numbers of pieces."""
    generator = np.random.default_rng(0)
    rows = [generator.integers(2, 50, n).tolist() for n in lengths]
    empty = Ragged.of([[]] * len(rows))
    names = np.array([str(i) for i in range(len(rows))], object)
    n = np.zeros(len(rows), np.int64)
    types = Ragged.of([[0] * k for k in lengths])
    return Encoded(names, names, Ragged.of(rows), types, empty, empty, n, n, n.astype(bool), pad=1)


@pytest.mark.parametrize(("kind", "shape"), [(BertModel, BertConfig), (XLMRobertaModel, XLMRobertaConfig)])
def test_it_is_what_the_library_computes(kind: Any, shape: Any) -> None:
    """One sentence after the other, so without padding, by an encoder that gives its attention away."""
    torch.manual_seed(1)
    fast = kind(shape(**SHAPE))
    eager = kind(shape(**SHAPE, attn_implementation="eager")).eval()
    eager.load_state_dict(fast.state_dict())
    model, sentences = Model(fast, 2, 0, dropout=0.5, task=SEQUENCE_CLASS), pieces(7, 2, 19, 4)
    model.train()
    shares = attention.subword_shares(model, sentences, CPU, "fp32")
    assert model.training
    for i in range(len(sentences)):
        own = slice(*sentences.pieces.offsets[i : i + 2])
        ids = torch.tensor(sentences.pieces.values[own], dtype=torch.long)[None]
        expected = eager(ids, output_attentions=True).attentions[-1]  # (1, heads, L, L)
        np.testing.assert_allclose(shares[own], expected[0, :, 0].mean(dim=0).detach(), rtol=1e-4, atol=1e-5)
        assert shares[own].sum() == pytest.approx(1, rel=1e-4)
    spread = [shares[a:b].std() for a, b in zip(sentences.pieces.offsets, sentences.pieces.offsets[1:], strict=False)]
    assert max(spread) > 0.05  # not all alike


def test_nothing_is_left_behind() -> None:
    fast = BertModel(BertConfig(**SHAPE))
    model, sentences = Model(fast, 2, 0, dropout=0.0, task=SEQUENCE_CLASS).eval(), pieces(5, 3)
    before = model.predict(sentences.batch([0, 1]))["log2_label"]
    attention.subword_shares(model, sentences, CPU, "fp32")
    assert torch.equal(model.predict(sentences.batch([0, 1]))["log2_label"], before)
    assert not any(module._forward_hooks for module in model.modules())


def test_relative_positions_are_refused_when_planning(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of families without BERT's attention: tests/model/test_families."""
    settings = {"model_type": "bert", "position_embedding_type": "relative_key"}
    monkeypatch.setattr("xclrun.plan.checks.settings_of", lambda model: settings)
    with pytest.raises(UsageError, match=r"^evaluate.attention=true: not supported for BERT.*; choose"):
        make_run("evaluate.attention=true")


def test_words_get_the_sum_over_pieces_and_the_mean_over_occurrences() -> None:
    """[CLS] gut gu ##t [SEP] gut [SEP], where the word "spät" of the second text was cut off; and [CLS] Gut [SEP]."""
    examples = [
        Example("0", "de", ("gut", "gut"), "x", text_b="gut spät"),
        Example("1", "de", ("Gut",), "x"),
    ]
    numbers = Ragged.of([[-1, 0, 1, 1, -1, 2, -1], [-1, 0, -1]])
    shares = np.array([0.1, 0.2, 0.05, 0.15, 0.1, 0.3, 0.1, 0.5, 0.25, 0.25])
    result = attention.by_word(shares, numbers, examples)
    assert result == {"gut": (3, pytest.approx((0.2 + 0.2 + 0.3) / 3)), "Gut": (1, 0.25)}
    rows = attention.of_hop(attention.table({"de": result, "en": {}}), 2).to_pandas()
    assert tuple(rows.columns) == COLUMNS
    assert rows["hop"].tolist() == [2, 2]
    assert rows["language"].tolist() == ["de", "de"]
    assert len(attention.table({})) == 0


def read(run: Run) -> pd.DataFrame:
    return pd.read_parquet(run.directory.attention)


def test_a_run_keeps_it_and_changes_nothing_else(make_run: Make, do: Do) -> None:
    run, plain = do(planned(make_run, KEPT, *CLASSES)), do(planned(make_run, *CLASSES, outputs="plain"))
    assert run.id != plain.id
    for mine, other in zip(run.stages, plain.stages, strict=True):
        assert dataclasses.replace(mine, attention=None) == other
        rows = [predictions.read(r.directory.predictions(mine.hop.index)) for r in (run, plain)]
        assert rows[0].drop_columns("run_id").equals(rows[1].drop_columns("run_id"))
    assert not plain.directory.attention.exists()
    assert "attention.parquet" in run.directory.done.read_text()
    rows = read(run)
    words = defaultdict(int)
    for example in run.dataset.split("de", "test"):
        for word in example.tokens:
            words[word] += 1
    for hop in (0, 1, 2):
        own = rows[(rows["hop"] == hop) & (rows["language"] == "de")]
        assert dict(zip(own["word"], own["count"], strict=True)) == words
        # What is left is that of special pieces.
        assert 0 < (own["count"] * own["attention"]).sum() < len(run.dataset.split("de", "test"))
    pivot = rows[rows["language"] == "de"].pivot_table(index="word", columns="hop", values="attention", observed=True)
    assert (pivot[2] - pivot[1]).abs().max() > 1e-4


@pytest.mark.some_cases
@pytest.mark.parametrize(
    "task", [CLASSES, ("dataset.task=token_tags",), ("model.max_length=5", "model.trim_vocabulary=true", *CLASSES)]
)
def test_a_run_s_summary_is_that_of_its_model(task: tuple[str, ...], make_run: Make, do: Do) -> None:
    """Recomputed sentence by sentence, from the tokenizer's own account of words and the library's attention."""
    run = do(planned(make_run, KEPT, *task))
    stages = graph(run)
    stages.weights(2)
    encoder: Any = stages.bench.model.eval().encoder
    tokenizer, kept = stages.bench.encodings.tokenizer, stages.bench.encodings.token_ids
    shares: dict[str, list[float]] = defaultdict(list)
    for example in run.dataset.split("de", "test"):
        cut = not run.dataset.task.words
        own = tokenizer(
            example.tokens, is_split_into_words=True, truncation=cut, max_length=run.config.model.max_length
        )
        ids = np.array(own["input_ids"]) if kept is None else np.searchsorted(kept, own["input_ids"])
        row = encoder(torch.from_numpy(ids)[None].long(), output_attentions=True).attentions[-1][0, :, 0].mean(dim=0)
        numbers = own.word_ids()
        for i in dict.fromkeys(n for n in numbers if n is not None):
            shares[example.tokens[i]].append(sum(row[p].item() for p, n in enumerate(numbers) if n == i))
    rows = read(run)
    own = rows[(rows["hop"] == 2) & (rows["language"] == "de")].set_index("word")
    assert own["count"].to_dict() == {word: len(them) for word, them in shares.items()}
    expected = {word: pytest.approx(np.mean(them), abs=1e-5) for word, them in shares.items()}
    assert own["attention"].to_dict() == expected


def test_heads_alone_attend_as_the_source_does(make_run: Make, do: Do) -> None:
    run = do(planned(make_run, "strategy=fc", KEPT, *CLASSES))
    assert run.stages[1].attention == run.stages[2].attention
    rows = read(run)
    one, two = (rows[rows["hop"] == hop].drop(columns="hop").reset_index(drop=True) for hop in (1, 2))
    pd.testing.assert_frame_equal(one, two)


def test_it_is_made_without_training_again(make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a run that comes after one that did not ask for it; and by none where it is there."""
    do(planned(make_run, *CLASSES))
    run = planned(make_run, KEPT, *CLASSES)
    monkeypatch.setattr(StageGraph, "_train", None)
    do(run)
    monkeypatch.setattr(StageGraph, "_attend", None)
    run.directory.done.unlink()
    run.directory.attention.unlink()
    do(run)
    assert set(read(run)["hop"]) == {0, 1, 2}


@pytest.mark.full
def test_a_run_that_is_stopped_has_the_same(make_run: Make, do: Do) -> None:
    """Where other parts of the model serve other languages, which attend otherwise."""
    overrides = ("strategy=lang_spec_trans", "order=[en,de]", KEPT)
    whole, run = do(make_run(*overrides, outputs="whole")), make_run(*overrides)
    do(stopped(run, do, 4, 9, 7))
    assert predicted(run) == predicted(whole)
    assert stored(run.store) == stored(whole.store)
    assert run.directory.attention.read_bytes() == whole.directory.attention.read_bytes()
    # After the last hop English is served by the parts of hop 1: it attends as it did then.
    rows = read(run)
    english = rows[rows["language"] == "en"].pivot_table(index="word", columns="hop", values="attention", observed=True)
    assert (english[2] - english[1]).abs().max() == 0
    assert (english[1] - english[0]).abs().max() > 1e-4


def test_a_report_shows_it(make_run: Make, do: Do) -> None:
    few = ("shots=1", "bucket=1", "dataset.buckets.sampler=minimum", "dataset.max_train=null")
    run = do(planned(make_run, KEPT, *few))
    records = [record(run.directory)]
    behind = read_few_shot(run.outputs, records, lambda _: run.dataset)
    assert behind.attention[run.id].equals(read(run))
    (section,) = few_shot_sections(records, behind)
    (table,) = next(block for block in section.blocks if block.title == "Attention of [CLS]").tables
    rows = read(run).pivot_table(
        index=["language", "word"], columns="hop", values=["count", "attention"], observed=True
    )
    assert table.rows
    for row in table.rows:
        own = rows.loc["de", row[0]]
        assert int(row[2]) == own["count", 2] >= 5
        assert float(row[3]) == pytest.approx(100 * own["attention", 1], abs=0.006)
