"""Exported hops: other programs get from them what the run computes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from tests.strategy.real import graph
from xclrun.command.show import describe
from xclrun.core.errors import RunError, UsageError
from xclrun.plan import Run
from xclrun.store.tensors import load_tensors
from xclrun.train.card import FIRST, card
from xclrun.train.export import export

Make, Do = Callable[..., Run], Callable[..., Run]
BRIEF = ("order=[en,de]", "trainer.epochs=1")


def ours(run: Run, hop: int, language: str | None = None) -> Any:
    """Return the model as it is after a hop, with the parts that serve a language."""
    stages = graph(run)
    stages.weights(hop)
    if language is not None:
        stages.strategy.for_language(language, [name for h in run.stream.hops[: hop + 1] for name in h.train])
    return stages.bench.model.eval()


@torch.no_grad()
def agree(run: Run, folder: Path, model: Any, adapter: bool = False) -> None:
    """Check that encoder and tokenizer of a folder give what the model gives, sentence by sentence."""
    encoder: Any = AutoModel.from_pretrained(folder)
    if adapter:
        import adapters

        adapters.init(encoder)
        encoder.set_active_adapters(encoder.load_adapter(str(folder / "adapter"), use_safetensors=True))
    encoder.eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    bench = graph(run).bench
    encoded, kept = bench.encodings.splits["de", "test"], bench.encodings.token_ids
    for i, example in enumerate(run.dataset.split("de", "test")[:4]):
        encoding = tokenizer(list(example.tokens), is_split_into_words=True, return_tensors="pt")
        batch = encoded.batch([i])
        ids = batch.input_ids if kept is None else torch.from_numpy(kept)[batch.input_ids]
        assert torch.equal(encoding["input_ids"], ids)
        result = encoder(**encoding)
        hidden = model.encoder(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids
        ).last_hidden_state
        assert (result.last_hidden_state - hidden).abs().max() < 1e-6
        if (pooler := model.head_of("").pooler) is not None:
            assert (result.pooler_output - pooler(hidden)).abs().max() < 1e-6


def test_the_encoder_is_read_by_transformers_and_computes_the_same(alone: Callable[..., Any], tmp_path: Path) -> None:
    run = alone(*BRIEF)[2]
    umask = os.umask(0o027)
    try:
        facts = export(run, 1, None, tmp_path / "one")
    finally:
        os.umask(umask)
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "one").iterdir()}.items() >= {
        ("model.safetensors", 0o640),
        ("heads.safetensors", 0o640),
        ("export.json", 0o640),
    }
    model = ours(run, 1)
    agree(run, tmp_path / "one", model)
    with pytest.raises(AssertionError):
        agree(run, tmp_path / "one", ours(run, 2))
    assert facts == json.loads((tmp_path / "one/export.json").read_text())
    assert (facts["run"], facts["hop"], facts["learnt"], facts["language"]) == (run.id, 1, ["en"], None)
    assert facts["labels"] == list(run.dataset.labels)
    assert set(facts["heads"]) == {"intent", "tagger.linear", "tagger.crf"}
    heads = load_tensors(tmp_path / "one/heads.safetensors")
    own = {k: v for k, v in model.state_dict().items() if not k.startswith("encoder.")}
    assert heads.keys() == own.keys()
    assert all(torch.equal(heads[name], own[name]) for name in own)
    assert not (tmp_path / "one/language.safetensors").exists()
    # The last hop where none is named; hop 0 was not trained.
    assert export(run, None, None, tmp_path / "last")["hop"] == 2
    export(run, 0, None, tmp_path / "zero")
    agree(run, tmp_path / "zero", ours(run, 0))


def test_a_pooler_is_given_back_to_the_encoder_and_a_trimmed_vocabulary_its_pieces(
    alone: Callable[..., Any], make_run: Make, do: Do, tmp_path: Path
) -> None:
    export(alone(*BRIEF)[2], 0, None, tmp_path / "encoder")
    (tmp_path / "encoder/heads.safetensors").unlink()
    pretrained = (f"model.path={tmp_path}/encoder", "model.trim_vocabulary=true", "dataset.languages=[en,de]")
    run = do(make_run(*BRIEF, *pretrained, "dataset.task=sequence_class", outputs="trimmed"))
    facts = export(run, 2, None, tmp_path / "two")
    assert set(facts["heads"]) == {"pooler", "classifier"}
    model = ours(run, 2)
    agree(run, tmp_path / "two", model)
    assert facts["transformers"] == "BertForSequenceClassification"
    prefixes = {"encoder": "", "two": "bert."}
    rows = {key: load_tensors(tmp_path / key / "model.safetensors")[f"{prefix}embeddings.word_embeddings.weight"]
            for key, prefix in prefixes.items()}  # fmt: skip
    assert rows["two"].shape == rows["encoder"].shape
    changed = (rows["two"] != rows["encoder"]).any(dim=1)
    assert 0 < changed.sum() <= model.encoder.config.vocab_size < len(changed)


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["lang_spec_task", "lang_spec_trans"])
def test_the_parts_that_serve_a_language(strategy: str, make_run: Make, do: Do, tmp_path: Path) -> None:
    run = do(make_run(*BRIEF, f"strategy={strategy}", "order=[en,de]"))
    for language in ("en", "de"):
        assert export(run, 2, language, tmp_path / language)["language"] == language
        agree(run, tmp_path / language, ours(run, 2, language))
    assert export(run, 2, None, tmp_path / "own")["language"] == "de"
    parts = {name: load_tensors(tmp_path / name / "language.safetensors") for name in ("en", "de", "own")}
    hop_1 = load_tensors(run.store.path(run.stages[1].train) / "weights.safetensors")
    assert parts["en"].keys() == {name for name in hop_1 if run.strategy().parameters.language_specific(name)}
    assert all(torch.equal(tensor, hop_1[name]) for name, tensor in parts["en"].items())
    assert any(not torch.equal(tensor, parts["de"][name]) for name, tensor in parts["en"].items())
    assert all(torch.equal(tensor, parts["de"][name]) for name, tensor in parts["own"].items())


def test_adapters_lie_beside_the_encoder(make_run: Make, do: Do, tmp_path: Path) -> None:
    run = do(make_run(*BRIEF, "strategy=lang_spec_ada_t"))
    assert export(run, 2, "eng_Latn", tmp_path / "en")["language"] == "en"
    agree(run, tmp_path / "en", ours(run, 2, "en"), adapter=True)


def test_what_cannot_be_exported_is_told(make_run: Make, do: Do, tmp_path: Path, xclrun: Callable[..., Any]) -> None:
    run = do(make_run(*BRIEF))
    with pytest.raises(UsageError, match=r"--hop 3: .* has hops 0 to 2"):
        export(run, 3, None, tmp_path / "x")
    with pytest.raises(UsageError, match=r"--language dee: .*; did you mean 'de'\?"):
        export(run, 2, "dee", tmp_path / "x")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"^cannot write .*/file/x .*; choose another folder$"):
        # Found before the hop, which does not exist either.
        export(run, 3, None, tmp_path / "file" / "x")
    with pytest.raises(UsageError, match="omit this option"):
        export(run, 2, "de", tmp_path / "x")
    arguments = ("model", "export", run.id[:-3], str(tmp_path / "done"), "--outputs", str(run.outputs), "--hop", "1")
    code, output = xclrun(*arguments)
    assert (code, output) == (0, f"hop 1 of {run.id}: {tmp_path / 'done'}\n")
    code, output = xclrun(*arguments)
    assert code == 2
    assert f"{tmp_path / 'done'}: already exists" in output
    # Outputs that were moved since: the weights are looked for beside the run.
    moved = run.outputs.rename(tmp_path / "moved")
    code, output = xclrun("model", "export", run.id, str(tmp_path / "again"), "--outputs", str(moved))
    assert (code, output) == (0, f"hop 2 of {run.id}: {tmp_path / 'again'}\n")
    moved.rename(run.outputs)
    run.store.path(run.stages[1].train).rename(tmp_path / "gone")
    with pytest.raises(RunError, match="hop 1: its weights are no longer in the store"):
        export(run, 1, None, tmp_path / "x")
    weights = run.store.path(run.stages[2].train) / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(RunError, match=f"hop 2: {weights} is damaged; retrain"):
        export(run, 2, None, tmp_path / "x")
    assert weights.is_file()
    assert not (tmp_path / "x").exists()


def stored_predictions(run: Run, hop: int) -> dict[str, list[Any]]:
    """Return the columns of a run's test predictions after a hop."""
    table = pq.read_table(run.directory.path / "predictions" / f"hop-{hop}.parquet")
    return table.filter(pc.equal(table["split"], "test")).to_pydict()


@pytest.mark.parametrize("task", ["sequence_class", "token_tags"])
@pytest.mark.parametrize("family", ["bert", pytest.param("roberta", marks=pytest.mark.full)])
def test_plain_transformers_predicts_what_the_run_predicted(
    task: str, family: str, make_run: Make, do: Do, tmp_path: Path
) -> None:
    run = do(make_run(*BRIEF, f"dataset.task={task}", f"model.family={family}"))
    facts = export(run, 2, None, tmp_path / "model")
    kind = AutoModelForSequenceClassification if task == "sequence_class" else AutoModelForTokenClassification
    model = kind.from_pretrained(tmp_path / "model")
    assert type(model).__name__ == facts["transformers"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    examples = {(e.language, e.id): e for k in ("en", "de") for e in run.dataset.split(k, "test")}
    rows = stored_predictions(run, 2)
    column = rows["predicted" if task == "sequence_class" else "predicted_tags"]
    log2_gold = rows["log2_gold" if task == "sequence_class" else "log2_gold_tags"]
    for language, key, stored, log2 in zip(rows["language"], rows["example_id"], column, log2_gold, strict=True):
        if (example := examples.get((language, key))) is None:
            continue
        encoding = tokenizer(list(example.tokens), is_split_into_words=True, truncation=True, max_length=128,
                             return_tensors="pt")  # fmt: skip
        with torch.no_grad():
            logits = model(**encoding).logits[0]
        best, ln = logits.argmax(-1), logits.log_softmax(-1)
        if task == "sequence_class":
            assert model.config.id2label[int(best)] == run.dataset.labels[stored]
            gold = model.config.label2id[example.label]
            assert ln[gold].item() / math.log(2) == pytest.approx(log2, abs=1e-4)
            continue
        words = encoding.word_ids()
        first = [words.index(word) for word in range(len(example.tokens))]
        assert [model.config.id2label[int(best[at])] for at in first] == [run.dataset.tags[i] for i in stored]


def test_the_card_of_a_merge_lists_the_settings_of_the_merge_only(make_run: Make) -> None:
    """The strategy's name names the merged strategy; its settings would be printed as a dict."""
    run = make_run("strategy=merge", "strategy.start=previous", "strategy.merged=er")
    facts = {"transformers": None, "hop": 1, "language": None, "learnt": ["en"], "task": "intent_slots",
             "sentence": FIRST, "heads": {}, "max_length": 8}  # fmt: skip
    [line] = [line for line in card(run, facts, ()).splitlines() if line.startswith("- **Strategy**")]
    assert "merge+er (" in line
    assert "method=" in line
    assert "memory" not in line
    assert "merged=" not in line


CLASSES = "dataset.task=sequence_class"


@pytest.mark.parametrize(
    "given", [(CLASSES,), (), pytest.param((CLASSES, "strategy=lang_spec_prompt"), marks=pytest.mark.full)], ids=str
)
def test_the_card_names_the_run_and_its_code_loads_the_model(
    given: tuple[str, ...], make_run: Make, do: Do, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = do(make_run(*BRIEF, *given))
    folder = tmp_path / "model"
    facts = export(run, None, None, folder, describe(run.directory))
    text = (folder / "README.md").read_text()
    assert (facts["transformers"] is not None) == (given == (CLASSES,))
    assert all(part in text for part in (run.id, run.strategy_name, "| test | en | de", "trained on en, de"))
    # Scores of the last hop, in percent.
    for metric, matrix in describe(run.directory)["scores"].items():
        assert f"| {metric} (%) | {100 * matrix[2][0]:.2f} |" in text
    code = text.partition("```python\n")[2].partition("```")[0]
    assert len(code.splitlines()) <= 14
    space: dict[str, Any] = {}
    exec(code.replace("DIR", str(folder)), space)
    assert {"best", "labels", "tags"} & space.keys()
