"""Prompts: how pools choose and mix them, where they enter the encoder, what each hop trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import some
from tests.model.encoders import write_family
from xclrun.model.network import Model
from xclrun.model.prompts import PromptComponents, PromptPool, SinglePrompt
from xclrun.plan import Run
from xclrun.train.encodings import encodings

from .real import graph, weights

# Libraries of families import what is going out of use.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

Make = Callable[..., Run]
HEADS = ("intent.", "tagger.")


def untrained(run: Run) -> Any:
    return graph(run).bench.model


def numbers(*tensors: Tensor) -> list[np.ndarray]:
    return [tensor.detach().double().numpy() for tensor in tensors]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))


# --- Pools.


def test_a_text_selects_the_nearest_keys_by_brute_force() -> None:
    """Of all sets of N keys, that with the greatest sum of cosines, nearest key first."""
    torch.manual_seed(1)
    pool = PromptPool(nn.Embedding(9, 6), 4, entries=5, tokens=2, selected=3)
    queries = torch.randn(7, 4)
    result = pool(queries)
    assert result.shape == (7, 6, 6)
    keys, prompts = numbers(pool.keys, pool.prompts)
    distances = []
    for query, [found] in zip(queries.double().numpy(), zip(numbers(*result)), strict=True):
        cosines = [cosine(query, key) for key in keys]
        best = max(combinations(range(5), 3), key=lambda chosen: sum(cosines[m] for m in chosen))
        best = sorted(best, key=lambda m: -cosines[m])
        np.testing.assert_array_equal(found, np.concatenate([prompts[m] for m in best]))
        distances.append(sum(1 - cosines[m] for m in best))
    np.testing.assert_allclose(pool.penalty(1).item(), np.mean(distances), rtol=1e-5)


@pytest.mark.parametrize("hop", [1, 2, 3])
def test_a_prompt_is_the_weighted_sum_of_the_components_of_the_hops_so_far(hop: int) -> None:
    torch.manual_seed(2)
    pool = PromptComponents(nn.Embedding(9, 6), 4, components=7, tokens=2, hops=3)
    assert [len(keys) for keys in pool.keys] == [2, 2, 3]
    with torch.no_grad():
        for parameter in pool.parameters():
            parameter.normal_()
    pool.begin(hop)
    queries = torch.randn(5, 4)
    prompts, keys, attention = (
        np.concatenate(numbers(*group[:hop])) for group in (pool.prompts, pool.keys, pool.attention)
    )
    expected = [
        sum(cosine(q * a, k) * p for p, k, a in zip(prompts, keys, attention, strict=True)).reshape(2, 6)
        for q in queries.double().numpy()
    ]
    result = pool(queries)
    np.testing.assert_allclose(result.detach().numpy(), expected, rtol=1e-4, atol=1e-6)
    errors = [((rows @ rows.T - np.eye(len(rows))) ** 2).mean() for rows in (prompts, keys, attention)]
    np.testing.assert_allclose(pool.penalty(hop).item(), sum(errors), rtol=1e-5)
    (result.sum() + pool.penalty(hop)).backward()
    trained = [number for number, keys in enumerate(pool.keys, start=1) if keys.grad is not None]
    assert trained == [hop]


def test_components_are_orthogonal_at_first() -> None:
    torch.manual_seed(3)
    pool = PromptComponents(nn.Embedding(9, 6), 8, components=8, tokens=2, hops=3)
    pool.begin(3)
    assert pool.penalty(3).item() < 1e-10


# --- In the encoder.


def batch_of(run: Run, indices: list[int]) -> Any:
    return encodings(run).splits["en", "test"].batch(np.array(indices))


@torch.no_grad()
def test_in_bert_prompts_follow_the_embedding_layer(make_run: Make) -> None:
    run = make_run("strategy=lang_spec_prompt", "strategy.length=3")
    model: Any = untrained(run).eval()
    prompt = model.prompts.prompt
    rows = model.encoder.get_input_embeddings().weight
    assert all(any(torch.equal(vector, row) for row in rows) for vector in prompt)
    for i in range(4):
        batch = batch_of(run, [i])
        embedded = model.encoder.embeddings(input_ids=batch.input_ids, token_type_ids=batch.token_type_ids)
        normalized = model.encoder.embeddings.LayerNorm(prompt)[None]
        states = model.encoder.encoder(torch.cat([normalized, embedded], dim=1)).last_hidden_state
        features = model.encode(batch)
        torch.testing.assert_close(features.cls, states[:, 3])
        torch.testing.assert_close(features.words[0], states[0, 3 + batch.word_pieces[0]])
    padded, alone = model.encode(batch_of(run, [0, 1, 2, 3])), model.encode(batch_of(run, [2]))
    torch.testing.assert_close(padded.cls[2], alone.cls[0])
    # Gradients per sentence (`torch.func.vmap`) have no lengths.
    torch.testing.assert_close(model.encode(replace(batch_of(run, [2]), lengths=None)).cls, alone.cls)


@pytest.mark.parametrize("family", ["distilbert", "xlm", "modernbert", "mt5", "llama", "deberta-v2"])
@torch.no_grad()
def test_elsewhere_prompts_stand_in_the_place_of_subwords(family: str, make_run: Make, tmp_path: Path) -> None:
    """A prompt of subwords' own embeddings gives what a text that begins with these subwords gives."""
    folder = write_family(family, tmp_path / family)
    on = "last" if family == "llama" else "first"
    run = make_run(f"model.path={folder}", f"model.name={family}", f"model.label_on={on}", "model.max_length=20")
    model: Model = untrained(run).eval()
    encoder: Any = model.encoder
    embeddings, batch = encoder.get_input_embeddings(), batch_of(run, [0, 1, 2])
    ids = torch.tensor([7, 5])
    plain = model.encode(batch).cls
    model.prompts = SinglePrompt(embeddings, 2)
    model.prompts.prompt.copy_(embeddings.weight[ids])
    longer = torch.cat([ids.expand(3, 2), batch.input_ids], dim=1)
    mask = torch.cat([torch.ones(3, 2, dtype=torch.int64), batch.attention_mask], dim=1)
    states = encoder(input_ids=longer, attention_mask=mask).last_hidden_state
    end = batch.attention_mask.sum(1) + 1 if model.last else torch.full((3,), 2)
    torch.testing.assert_close(model.encode(batch).cls, states[torch.arange(3), end], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model.encode(batch).cls, plain)


@torch.no_grad()
def test_a_query_is_the_state_of_cls_without_prompts(make_run: Make) -> None:
    run = make_run("strategy=l2p")
    model, batch = untrained(run).train(), batch_of(run, [0, 1, 2])
    expected = untrained(make_run()).eval().encode(batch).cls
    seen: list[Tensor] = []
    model.prompts.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model.encode(batch)
    torch.testing.assert_close(seen[0], expected)


# --- Training.


@pytest.mark.some_cases
@pytest.mark.parametrize("strategy", ["lang_spec_prompt", "l2p", "coda_prompt"])
def test_what_each_hop_trains(strategy: str, finished: Make) -> None:
    """The encoder stays as it was, bit for bit, and so do the components of other hops."""
    run = finished(f"strategy={strategy}")
    before = dict(untrained(run).state_dict())
    for hop in (1, 2, 3):
        after = weights(run, hop)
        found = {name for name in some(before) if not torch.equal(before[name], after[name])}
        allowed = {
            name for name in after if name.startswith("prompts.") and (strategy != "coda_prompt" or _own(name, hop))
        }
        assert found & allowed
        assert found <= allowed | {name for name in after if name.startswith(HEADS)}
        before = after
    if strategy == "coda_prompt":
        assert int(before["prompts.learned"]) == 100


def _own(name: str, hop: int) -> bool:
    return name.endswith((f".{hop - 1}", ".learned"))


def test_parameters(finished: Make) -> None:
    """L2P: 10 prompts of 5 × 16 and keys of 16. CODA: 100 of 8 × 16 + 16 + 16, a third in each hop."""
    counts = {
        name: finished(f"strategy={name}").directory.read_manifest()["parameters"] for name in ("l2p", "coda_prompt")
    }
    prompts = {
        name: sum(part["parameters"] for part in found["parts"] if part["name"] == "prompts")
        for name, found in counts.items()
    }
    assert prompts == {"l2p": 10 * (5 * 16 + 16), "coda_prompt": 100 * (8 * 16 + 2 * 16)}
    assert counts["coda_prompt"]["trained_by_hop"] == [233 + share * 160 for share in (33, 33, 34)]


def test_a_language_is_served_by_its_own_prompt(finished: Make) -> None:
    run = finished("strategy=lang_spec_prompt")
    stages = graph(run)
    stages.weights(3)
    fresh = untrained(run).prompts.prompt
    for language, expected in (("en", weights(run, 1)), ("de", weights(run, 2)), ("es", weights(run, 3))):
        stages.strategy.for_language(language, ["en", "de", "es"])
        found: Any = stages.bench.model.prompts
        assert torch.equal(found.prompt, expected["prompts.prompt"])
    stages.strategy.for_language("es", ["en"])
    assert torch.equal(found.prompt, fresh)


def test_prompts_of_a_language_are_its_own_on_a_frozen_encoder(make_run: Make) -> None:
    parameters = make_run("strategy=lang_spec_prompt", "strategy.length=3").strategy().parameters
    assert parameters.language_specific("prompts.tokens")
    assert (parameters.encoder_frozen, parameters.prompt_tokens) == (True, 3)
