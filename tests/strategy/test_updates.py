"""Low-rank updates through peft: their formula, what hops train, resumed, averaged, merged and exported models."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import some
from tests.model.decoders import language_model, tokenizer, write_decoder
from tests.train.conftest import predicted, stopped
from tests.train.test_average import averaged
from xclrun.config.schema import ModelConfig
from xclrun.core import errors
from xclrun.core.errors import UsageError
from xclrun.model.encoder import empty_encoder, shape_of
from xclrun.model.families import FAMILIES
from xclrun.plan import Run
from xclrun.strategy.o_lora import overlap
from xclrun.strategy.shared import adapters
from xclrun.strategy.shared.adapters import LoraLibrary, LowRankSettings
from xclrun.strategy.shared.updates import TARGETS_OF, added_up, target_layers
from xclrun.train.export import export

from .real import graph, weights

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="needs xclrun[peft]"),
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]

Make = Callable[..., Run]
TASK = ("dataset.task=text_to_text", "model.max_length=40", "model.max_target=8", "generation.max_new_tokens=6")
ANSWERS = {"en": ("six", "Rome"), "de": ("sechs", "Anna"), "es": ("x", "b")}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts and answers in three languages."""
    folder = tmp_path_factory.mktemp("asked")
    for language, answers in ANSWERS.items():
        (folder / language).mkdir()
        for split, size in (("train", 6), ("dev", 2), ("test", 3)):
            rows = ({"id": f"{split}{i}", "text": "me at", "target": answers[i % 2]} for i in range(size))
            path = folder / language / f"{split}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a separate output layer."""
    return write_decoder(tmp_path_factory.mktemp("decoder"), tie_word_embeddings=False)


@pytest.fixture
def make_text_run(make_run: Make, asked: Path, decoder: Path) -> Make:
    given = (*TASK, f"model.path={decoder}", "trainer.epochs=2", "trainer.batch_size=4", "model.lr=5e-2")
    return lambda *overrides, **more: make_run(*given, *overrides, data=asked, **more)


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


# --- The updates.


@pytest.mark.parametrize(
    ("family", "targets", "layer", "other"),
    [
        ("llama", ["q", "output"], "layers.1.mlp.down_proj", "layers.1.self_attn.k_proj"),
        ("gpt2", ["q", "k", "v"], "h.1.attn.c_attn", "h.1.mlp.c_fc"),
    ],
)
def test_updates_are_added_up(family: str, targets: list[str], layer: str, other: str) -> None:
    """W x + b + α/rank Σ B_i A_i x, for each target and for no other matrix; also the weights without updates."""
    encoder: Any = language_model(family).base_model
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    settings = LowRankSettings("inc_lora", lora_rank=3, lora_alpha=5, lora_targets=targets)
    adapters.add_updates(SimpleNamespace(encoder=encoder, heads={}), settings, ["hop1", "hop2"])  # type: ignore[arg-type]
    module, plain = encoder.get_submodule(layer), encoder.get_submodule(other)
    assert not hasattr(plain, "base_layer")
    generator = torch.Generator().manual_seed(1)
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name in some(name for name in parameters if "lora_B" in name):
            assert not parameters[name].any()
            parameters[name].normal_(generator=generator)
    found = {name: tensor.detach().double().numpy() for name, tensor in parameters.items()}
    weight = found["base_layer.weight"].T if family == "gpt2" else found["base_layer.weight"]
    update = sum(found[f"lora_B.{hop}.weight"] @ found[f"lora_A.{hop}.weight"] for hop in ("hop1", "hop2"))
    expected, x = weight + 5 / 3 * update, torch.arange(2.0 * weight.shape[1]).reshape(1, 2, -1) / 9
    bias = found.get("base_layer.bias", 0)
    with torch.no_grad():
        np.testing.assert_allclose(module(x).numpy(), x.numpy() @ expected.T + bias, rtol=1e-4, atol=1e-5)
    after = added_up(encoder)
    assert after.keys() == before.keys()
    stored = after[f"{layer}.weight"].numpy()
    np.testing.assert_allclose(stored.T if family == "gpt2" else stored, expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(after[f"{other}.weight"], before[f"{other}.weight"])


@pytest.mark.some_cases("llama", "gpt2", "bert", "t5")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_layers_for_each_target(family: str) -> None:
    from tests.model.encoders import FURTHER

    model = ModelConfig(
        name=family,
        family=family,
        hidden_size=16,
        hidden_layers=2,
        attention_heads=2,
        intermediate_size=24,
        vocab_size=99,
        max_length=24,
        settings=FURTHER.get(family, {}),
    )
    with torch.device("meta"):
        encoder = empty_encoder(shape_of(model, 99, 0))
    for target in some(TARGETS_OF):
        layers = target_layers(encoder, LowRankSettings("seq_lora", lora_targets=[target]))
        shapes = {tuple(encoder.get_submodule(layer).weight.shape) for layer in layers}
        inner = {width for shape in shapes for width in shape} - {16}
        # Layers of the attention have the width of the hidden states, or three of them; the others its own width.
        assert inner <= ({24, 48, 64} if target in ("intermediate", "output") else {32, 48}), (layers, shapes)
        assert len(layers) in (1, 2, 4), layers
        [other] = {"q": "output", "k": "output", "v": "output", "intermediate": "v", "output": "q"}[target].split()
        assert set(layers).isdisjoint(target_layers(encoder, LowRankSettings("seq_lora", lora_targets=[other])))


def test_overlap_is_its_formula() -> None:
    random = np.random.default_rng(1)
    rows = {(place, hop): random.normal(size=(2, 5)).astype("float32") for place in "ab" for hop in (1, 2, 3)}
    parameters = {f"{place}.lora_A.hop{hop}.weight": torch.from_numpy(a) for (place, hop), a in rows.items()}
    parameters["a.lora_B.hop3.weight"] = torch.ones(9, 2)
    expected = sum(np.abs(rows[place, i] @ rows[place, 3].T).sum() for place in "ab" for i in (1, 2))
    np.testing.assert_allclose(overlap(parameters, 3).item(), expected, rtol=1e-5)


# --- Which library, and refusals.


@pytest.mark.parametrize(
    ("version", "task", "given", "library"),
    [
        ("4.57.6", "intent_slots", "auto", "adapters"),
        ("4.57.6", "intent_slots", "peft", "peft"),
        ("4.57.6", "text_to_text", "auto", "peft"),
        ("5.24.0", "intent_slots", "auto", "peft"),
        ("5.24.0", "intent_slots", "adapters", "adapters"),
    ],
)
def test_the_library_follows_from_the_task_and_from_transformers(
    version: str, task: str, given: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "version", lambda package: version)
    settings = LowRankSettings("seq_lora", library=LoraLibrary(given))
    assert adapters.resolved_library(settings, task == "text_to_text").value == library


def test_ids_contain_the_library_unless_it_is_adapters(make_run: Make) -> None:
    auto, one, other = (make_run("strategy=seq_lora", f"strategy.library={n}") for n in ("auto", "adapters", "peft"))
    assert (auto.id, auto.stages) == (one.id, one.stages)
    assert other.id != one.id
    assert other.stages[1].train != one.stages[1].train
    inner = [
        make_run("strategy=er", "strategy.expansion=seq_lora", f"strategy.expansion.library={name}").id
        for name in ("auto", "adapters", "peft")
    ]
    assert (inner[0] == inner[1], inner[1] == inner[2]) == (True, False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            "strategy=lang_spec_ada_f strategy.library=peft",
            r"strategy=lang_spec_ada_f strategy\.library=peft: adds LoRA",
        ),
        (
            "strategy=lang_spec_lora_f strategy.library=peft strategy.pretrained={en:DIR}",
            r"strategy\.pretrained strategy\.library=peft: only the library 'adapters' ",
        ),
        (
            "strategy=seq_lora strategy.library=peft model.family=gpt2 model.label_on=last",
            r"strategy\.lora_targets=\[q,v\]: GPT-2 has one matrix .*; set strategy\.lora_targets=\[q,k,v\]$",
        ),
        (
            "strategy=seq_lora strategy.library=adapters model.family=modernbert",
            r"strategy=seq_lora: the library adapters .*; use strategy\.library=peft$",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(overrides: str, message: str, make_run: Make) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        make_run(*overrides.split())


def test_without_peft_one_line_says_how_to_get_it(make_text_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.delitem(errors.sys.modules, "peft", raising=False)  # type: ignore[attr-defined]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "peft" else found(name, *more))
    with pytest.raises(UsageError, match=r"^strategy=seq_lora: package 'peft' is not installed; .*\[peft\]'"):
        make_text_run("strategy=seq_lora")


# --- Runs.


@pytest.mark.some_cases("inc_lora")
@pytest.mark.parametrize("strategy", ["seq_lora", "inc_lora", "o_lora", "er+inc_lora"])
def test_each_hop_trains_its_update_alone(strategy: str, make_text_run: Make, do: Make) -> None:
    """The language model stays as it was, bit for bit, with its output layer, and so do updates of other hops."""
    name, _, expansion = strategy.partition("+")
    run = do(make_text_run(f"strategy={name}", *([f"strategy.expansion={expansion}"] if expansion else [])))
    before = dict(graph(run).bench.model.state_dict())
    for hop in (1, 2, 3):
        after = weights(run, hop)
        update = "shared" if strategy == "seq_lora" else f"hop{hop}"
        expected = {key for key in after if f".lora_A.{update}." in key or f".lora_B.{update}." in key}
        assert len(expected) == 2 * 2 * 2
        assert changed(before, after) == expected
        before = after
    counts = run.directory.read_manifest()["parameters"]
    # Two matrices of 16 × 16 in two layers.
    assert counts["trained_by_hop"] == [2 * 2 * 2 * 8 * 16] * 3
    assert {part["name"] for part in counts["parts"] if part["trained"]} == {"adapters"}


def test_an_export_adds_updates_and_writes_the_same(make_text_run: Make, do: Make, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    run = do(make_text_run("strategy=o_lora", "strategy.lora_targets=[q,k,v,intermediate,output]", "order=[en,de]"))
    facts = export(run, None, None, tmp_path / "out")
    assert facts["transformers"] == "LlamaForCausalLM"
    assert not list((tmp_path / "out").rglob("adapter*"))
    writes_as(run, tmp_path / "out", AutoModelForCausalLM)


@pytest.mark.full
def test_an_export_of_a_language_adds_its_update(make_text_run: Make, do: Make, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    run = do(make_text_run("strategy=lang_spec_lora_f", "order=[en,de]"))
    for language in ("en", "de"):
        export(run, None, language, tmp_path / language)
        writes_as(run, tmp_path / language, AutoModelForCausalLM, language)


def writes_as(run: Run, folder: Path, library: Any, language: str = "de") -> None:
    """Check that an exported model generates the texts of a run's last hop."""
    import pyarrow.parquet as pq

    *_, last = sorted((run.directory.path / "predictions").iterdir())
    rows = [row for row in pq.read_table(last).to_pylist() if row["language"] == language and row["split"] == "test"]
    model, pieces = library.from_pretrained(folder), tokenizer()
    for row in some(rows):
        ids = pieces("me at", return_tensors="pt")
        [made] = model.generate(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"], max_new_tokens=6)
        text = pieces.decode(made[ids["input_ids"].shape[1] :], skip_special_tokens=True)
        assert text.removeprefix(" ") == row["generated"]


def test_a_stopped_run_resumes_to_equal_predictions(make_text_run: Make, do: Make) -> None:
    whole = do(make_text_run("strategy=o_lora", "order=[en,de]", outputs="whole"))
    run = do(stopped(make_text_run("strategy=o_lora", "order=[en,de]"), do, 2, 1))
    assert predicted(run) == predicted(whole)


def test_updates_are_not_averaged(make_text_run: Make) -> None:
    keeping = ("evaluate.every_examples=4", "evaluate.keep_points=all", "trainer.selection=last")
    with pytest.raises(UsageError, match=r"^--last 1: inc_lora adds parameters or"):
        averaged(make_text_run("strategy=inc_lora", "order=[en,de]", *keeping), 1)
