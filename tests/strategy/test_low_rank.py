"""Low-rank updates that languages share: their sum, what each hop trains, orthogonal subspaces, replay, exports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import some
from tests.train.test_export import agree
from xclrun.core.errors import UsageError
from xclrun.model.families import FAMILIES
from xclrun.plan import Run
from xclrun.strategy.o_lora import overlap
from xclrun.train.export import export

from .real import graph, weights

Make = Callable[..., Run]
Do = Callable[..., Run]
HEADS = ("intent.", "tagger.")
LONG = ("trainer.epochs=20", "trainer.selection=last")


def untrained(run: Run) -> Any:
    return graph(run).bench.model


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_the_updates_of_all_hops_are_added_up(make_run: Make) -> None:
    """W x + b + α/rank Σ B_i A_i x, for each target and for no other matrix."""
    given = ("strategy.lora_rank=3", "strategy.lora_alpha=5", "strategy.lora_targets=[q,output]")
    model = untrained(make_run("strategy=inc_lora", *given)).eval()
    [layer], x = model.encoder.encoder.layer, torch.arange(32.0)[None, None] / 9
    parameters, generator = dict(model.named_parameters()), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name in some(name for name in parameters if ".lora_B" in name):
            parameters[name].normal_(generator=generator)
    for module, width, hops in (
        (layer.attention.self.query, 16, 3),
        (layer.output.dense, 32, 3),
        (layer.attention.self.value, 16, 0),
    ):
        assert len(module.loras) == hops
        update = sum(lora.lora_B.detach().numpy() @ lora.lora_A.detach().numpy() for lora in module.loras.values())
        weight = module.weight.detach().numpy() + 5 / 3 * update
        given_x = x[..., :width]
        with torch.no_grad():
            result = module(given_x).numpy()
        np.testing.assert_allclose(result, given_x.numpy() @ weight.T + module.bias.detach().numpy(), rtol=1e-4)


@pytest.mark.some_cases
@pytest.mark.parametrize("strategy", ["seq_lora", "inc_lora", "o_lora"])
def test_what_each_hop_trains(strategy: str, finished: Make) -> None:
    """The encoder stays as it was, bit for bit, and so do the updates of other hops."""
    run = finished(f"strategy={strategy}")
    before = dict(untrained(run).state_dict())
    for hop in (1, 2, 3):
        after = weights(run, hop)
        name = "shared" if strategy == "seq_lora" else f"hop{hop}"
        trained = {key for key in after if f".loras.{name}." in key}
        heads = {key for key in after if key.startswith(HEADS)}
        found = changed(before, after)
        assert trained < found <= trained | heads
        before = after
    counts = run.directory.read_manifest()["parameters"]
    # Two matrices of 16 × 16 in one layer.
    each = 2 * 2 * 8 * 16
    [adapters] = [part for part in counts["parts"] if part["name"] == "adapters" and part["trained"][:1] == [1]]
    assert (adapters["parameters"], adapters["copies"]) == (each, 1)
    copies = 1 if strategy == "seq_lora" else 3
    assert sum(part["parameters"] for part in counts["parts"] if part["name"] == "adapters") == copies * each
    assert counts["trained_by_hop"] == [each + 233] * 3


def test_the_number_of_hops_is_part_of_the_identity(make_run: Make) -> None:
    """A model for three hops has other parameters than one for two; those of seq_lora are the same."""
    for strategy, shared in (("seq_lora", True), ("inc_lora", False), ("o_lora", False), ("coda_prompt", False)):
        runs = [make_run(f"strategy={strategy}", f"order={order}") for order in ("[en,de,es]", "[en,de]")]
        assert (runs[0].stages[1].train == runs[1].stages[1].train) == shared


def test_overlap_is_its_formula() -> None:
    random = np.random.default_rng(1)
    rows = {(place, hop): random.normal(size=(2, 5)).astype("float32") for place in "ab" for hop in (1, 2, 3)}
    parameters = {f"{place}.loras.hop{hop}.lora_A": torch.from_numpy(a) for (place, hop), a in rows.items()}
    parameters["a.loras.hop3.lora_B"] = torch.ones(9, 2)
    expected = sum(np.abs(rows[place, i] @ rows[place, 3].T).sum() for place in "ab" for i in (1, 2))
    np.testing.assert_allclose(overlap(parameters, 3).item(), expected, rtol=1e-5)


@pytest.mark.full
def test_a_large_penalty_makes_subspaces_orthogonal(finished: Make) -> None:
    """The greatest cosine between a row of a hop and one of an earlier hop."""

    def cosine(penalty: float) -> float:
        run = finished("strategy=o_lora", "strategy.lora_rank=2", f"strategy.penalty={penalty}", *LONG)
        rows = {name: torch.nn.functional.normalize(a) for name, a in weights(run, 3).items() if ".lora_A" in name}
        pairs = [
            (a, rows[name.replace("hop3", hop)])
            for name, a in rows.items()
            if "hop3" in name
            for hop in ("hop1", "hop2")
        ]
        return max(float((a @ b.T).abs().max()) for a, b in some(pairs))

    assert cosine(50.0) < 0.02
    assert cosine(0.0) > 0.2


def test_without_penalty_it_is_incremental_lora(finished: Make, make_run: Make) -> None:
    plain, free = finished("strategy=inc_lora"), finished("strategy=o_lora", "strategy.penalty=0")
    assert [stage.keys for stage in plain.stages] == [stage.keys for stage in free.stages]
    run = make_run("strategy=o_lora")
    assert run.stages[1].train == plain.stages[1].train
    assert run.stages[2].train != plain.stages[2].train


def test_hop_1_is_trained_as_incremental_lora_trains_it(finished: Make, make_run: Make, do: Do) -> None:
    """In a store of its own: bit for bit."""
    alone = do(make_run("strategy=o_lora", outputs="alone"))
    assert not changed(weights(finished("strategy=inc_lora"), 1), weights(alone, 1))


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["seq_lora", "inc_lora"])
def test_replay_trains_updates_and_heads_only(strategy: str, finished: Make) -> None:
    run, plain = finished("strategy=er", f"strategy.expansion={strategy}"), finished(f"strategy={strategy}")
    assert run.stages[1].train == plain.stages[1].train
    first, last = weights(run, 1), weights(run, 3)
    found = changed(first, last)
    assert {name for name in found if ".loras." in name}
    assert all(".loras." in name or name.startswith(HEADS) for name in found)
    assert changed(last, weights(plain, 3))
    assert run.directory.read_manifest()["stages"][3]["kept"]["examples"] > 0


def test_an_export_has_the_updates_in_its_weights(finished: Make, tmp_path: Path) -> None:
    run = finished("strategy=inc_lora", "strategy.lora_targets=[q,intermediate]")
    stages = graph(run)
    stages.weights(3)
    facts = export(run, None, None, tmp_path / "export")
    assert "adapter" not in facts
    agree(run, tmp_path / "export", stages.bench.model.eval())
    encoder = torch.equal
    before = untrained(run).encoder.state_dict()["encoder.layer.0.attention.self.query.weight"]
    assert not encoder(before, _exported(tmp_path / "export"))


def _exported(folder: Path) -> Tensor:
    from transformers import AutoModel

    encoder: Any = AutoModel.from_pretrained(folder)
    return encoder.state_dict()["encoder.layer.0.attention.self.query.weight"]


@pytest.mark.parametrize("family", ["gpt2", "deberta"])
def test_families_with_fused_matrices_take_one_update(family: str, make_run: Make) -> None:
    one, several = (make_run(f"strategy={name}").strategy() for name in ("seq_lora", "inc_lora"))
    one.check_encoder(FAMILIES[family], 16, 1)
    message = r"^strategy=inc_lora: .* one matrix for queries, keys and values; .*seq_lora or strategy\.library=peft$"
    with pytest.raises(UsageError, match=message):
        several.check_encoder(FAMILIES[family], 16, 1)
