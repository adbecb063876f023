"""GEM: the projection against a general solver of the primal problem, and which gradients it is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from benchmarks.operators import Operators
from tests.conftest import some
from xclrun.plan import Run
from xclrun.strategy.gem import GEM, GEMSettings, dual

from .real import context_of, edit, gradients, perturbed, untrained

Make = Callable[..., Run]

pytestmark = pytest.mark.usefixtures("threads")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dependent", [False, True])
def test_the_dual_gives_the_nearest_gradient_that_opposes_none(seed: int, dependent: bool) -> None:
    """min ½ ‖x − g‖² with G x ≥ 0, solved in x by SLSQP; also where gradients of languages are multiples."""
    draw = np.random.default_rng(seed)
    g, memories = draw.normal(size=7), draw.normal(size=(4, 7))
    if dependent:
        memories[2] = 2 * memories[0]
    v = dual(memories @ memories.T, memories @ g)
    assert (v >= 0).all()
    found = g + memories.T @ v
    wanted = minimize(
        lambda x: 0.5 * ((x - g) ** 2).sum(),
        g,
        jac=lambda x: x - g,
        constraints={"type": "ineq", "fun": lambda x: memories @ x, "jac": lambda x: memories},
        options={"ftol": 1e-14, "maxiter": 500},
    ).x
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    # What holds at the solution of a convex problem, and only there.
    assert (memories @ found > -1e-9).all()
    np.testing.assert_allclose(v * (memories @ found), 0, atol=1e-9)


def in_third_hop(strategy: GEM, run: Run) -> Any:
    """End hops 1 and 2; return hop 3's context without dropout, with gradients that oppose the memory of en."""
    model = untrained(run).eval()
    for hop in (1, 2):
        strategy.end_hop(context_of(run, hop, perturbed(model, 0.1, hop)))
    context = context_of(run, 3, model)
    main = context.batch("es", np.arange(4))
    model.loss(main).backward()
    of_en = memory_gradients(strategy, context, ["en"])["en"]
    for name, p in model.named_parameters():
        if p.grad is not None:
            p.grad.sub_(3 * of_en[name])
    return context


def memory_gradients(strategy: GEM, context: Any, languages: list[str]) -> dict[str, dict[str, torch.Tensor]]:
    """Language → gradient of the mean loss on all of its memory, sentence by sentence."""
    found, before = {}, gradients(context.model)
    for language in languages:
        context.model.zero_grad()
        kept = strategy.memory.indices[language]
        for index in kept:
            (context.model.loss(context.batch(language, np.array([index]))) / len(kept)).backward()
        found[language] = gradients(context.model)
    for name, p in context.model.named_parameters():
        p.grad = before.get(name)
    return found


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_a_step_is_projected_by_the_memory_of_each_language(margin: float, make_run: Make) -> None:
    strategy = GEM(GEMSettings("gem", 10, 1, margin=margin))
    context = in_third_hop(strategy, make_run("dataset.replay.memory=10"))
    before, memories = gradients(context.model), memory_gradients(strategy, context, ["en", "de"])
    edit(strategy, 2, context.batch("es", np.arange(4)), context)
    after = gradients(context.model)
    names = list(after)

    def flat(parts: dict[str, torch.Tensor]) -> np.ndarray:
        return torch.cat([parts[name].double().flatten() for name in names]).numpy()

    g, rows = flat(before), np.stack([flat(memories[language]) for language in ("en", "de")])
    assert (rows @ g).min() < 0
    wanted = g + rows.T @ (dual(rows @ rows.T, rows @ g) + margin)
    np.testing.assert_allclose(flat(after), wanted, rtol=1e-3, atol=1e-4 * abs(wanted).max())
    assert (rows @ flat(after) > -1e-4 * (rows**2).sum()).all()


def test_a_gradient_that_opposes_one_of_two_memories_is_projected(make_run: Make) -> None:
    strategy = GEM(GEMSettings("gem", 10, 1, margin=0.0))
    context = in_third_hop(strategy, make_run("dataset.replay.memory=10"))
    memories = memory_gradients(strategy, context, ["en", "de"])
    names = list(memories["en"])
    rows = np.stack([torch.cat([m[n].double().flatten() for n in names]).numpy() for m in memories.values()])
    # The combination of both memories' gradients whose products with them are -1 and +1.
    shares = np.linalg.solve(rows @ rows.T, [-1.0, 1.0])
    for name, p in context.model.named_parameters():
        p.grad = None
        if name in names:
            p.grad = shares[0] * memories["en"][name] + shares[1] * memories["de"][name]
    edit(strategy, 2, context.batch("es", np.arange(4)), context)
    after = torch.cat([gradients(context.model)[n].double().flatten() for n in names]).numpy()
    wanted = shares @ rows + rows.T @ dual(rows @ rows.T, np.array([-1.0, 1.0]))
    np.testing.assert_allclose(after, wanted, atol=1e-4 * abs(wanted).max())
    assert (rows @ after > -1e-2).all()


def test_each_language_of_the_memory_has_its_own_draw(make_run: Make) -> None:
    """Shares of equal size: with one generator for both languages, the drawn positions would be the same."""
    strategy = GEM(GEMSettings("gem", 16, 1, compared=2))
    context = in_third_hop(strategy, make_run("dataset.replay.memory=16"))
    kept = strategy.memory.indices
    assert len(kept["en"]) == len(kept["de"]) == 8
    drawn: dict[str, list[list[int]]] = {"en": [], "de": []}
    for step in range(1, 6):
        for language, batch in strategy.memory_batches(step, context):
            drawn[language].append([int(np.flatnonzero(kept[language] == index)[0]) for index in batch.indices])
    assert drawn["en"] != drawn["de"]


def test_a_gradient_that_opposes_none_stays_and_steps_in_between_are_plain(make_run: Make) -> None:
    strategy = GEM(GEMSettings("gem", 10, 2))
    context = in_third_hop(strategy, make_run("dataset.replay.memory=10"))
    memories = memory_gradients(strategy, context, ["en", "de"])
    sums = {name: memories["en"][name] + memories["de"][name] for name in memories["en"]}
    dots = [sum(float((sums[n] * memories[language][n]).sum()) for n in sums) for language in ("en", "de")]
    assert min(dots) > 0, "so the sum opposes neither"
    for step, given in ((2, sums), (3, {name: -tensor for name, tensor in sums.items()})):
        for name, p in context.model.named_parameters():
            p.grad = given[name].clone() if name in given else None
        edit(strategy, step, context.batch("es", np.arange(4)), context)
        assert all(torch.equal(p.grad, given[name]) for name, p in context.model.named_parameters() if name in given)


@pytest.mark.parametrize("opposing", [False, True])
def test_a_step_waits_for_the_device_at_most_twice(opposing: bool, make_run: Make) -> None:
    """Once for the products of all memories with the gradient; if one is negative, once for those with each other."""
    strategy = GEM(GEMSettings("gem", 10, 1))
    context = in_third_hop(strategy, make_run("dataset.replay.memory=10"))
    memories = memory_gradients(strategy, context, ["en", "de"])
    for name, p in context.model.named_parameters():
        p.grad = (-1 if opposing else 1) * (memories["en"][name] + memories["de"][name]) if p.grad is not None else None
    main = context.batch("es", np.arange(4))
    with Operators() as counting:
        edit(strategy, 2, main, context)
    waits = 2 if opposing else 1
    assert counting.waited == {"cpu": waits, "numpy": waits}


def test_compared_bounds_what_a_step_looks_at(make_run: Make) -> None:
    strategy = GEM(GEMSettings("gem", 10, 1, compared=2))
    context = in_third_hop(strategy, make_run("dataset.replay.memory=10"))
    for language, batch in some(strategy.memory_batches(2, context)):
        assert batch.size == 2
        assert set(batch.indices) <= set(strategy.memory.indices[language])
