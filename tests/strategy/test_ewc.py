"""Both kinds of EWC: the Fisher information against per-example gradients, the penalty against autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchcrf import CRF

from xclrun.model.network import Model
from xclrun.plan import Run
from xclrun.strategy import Context, State
from xclrun.strategy.ewc import EWC
from xclrun.strategy.ewc_online import EWCOnline, EWCOnlineSettings, PenaltySettings
from xclrun.strategy.shared.fisher import _SUMS, LARGE, by_batches, diagonal_fisher, one_by_one

from .real import context_of, edit, gradients, perturbed, state, untrained, weights

Make = Callable[..., Run]

pytestmark = pytest.mark.usefixtures("threads")


def by_definition(context: Context, language: str) -> dict[str, Tensor]:
    """The mean over examples of squared gradients of ln p(gold intent) + ln p(gold tags), example by example."""
    model, train = context.model, context.train[language]
    model.eval()
    total: dict[str, Tensor] = {}
    for index in range(len(train)):
        batch, output = train.batch(np.array([index])), None
        output = model(batch)
        intent = output.logits.log_softmax(dim=1)[0, batch.labels[0]]
        assert model.tagger is not None
        tags = CRF.forward(model.tagger.crf, output.emissions, batch.tags, mask=batch.word_mask)
        model.zero_grad()
        (intent + tags).backward()
        for name, gradient in gradients(model).items():
            total[name] = total.get(name, torch.zeros_like(gradient)) + gradient.double() ** 2
    model.zero_grad()
    return {name: (value / len(train)).float() for name, value in total.items()}


def close(a: dict[str, Tensor], b: dict[str, Tensor], rtol: float = 1e-4) -> None:
    assert a.keys() == b.keys()
    for name in a:
        # Beside the largest entry of a tensor, tiny ones are rounding; a key's bias has no effect, so its are all that.
        atol = 1e-12 + 1e-6 * float(b[name].abs().max())
        torch.testing.assert_close(
            a[name], b[name], rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_fisher_is_the_mean_of_squared_per_example_gradients(make_run: Make) -> None:
    """Batches of unlike lengths, with padding and a second, incomplete one: 22 sentences in batches of 16."""
    context = context_of(make_run("model.hidden_layers=2"), 1)
    context.model.train()
    found = diagonal_fisher(context.model, context.train["en"], context.device)
    close(found, by_definition(context, "en"))
    # All but the pooler, which the joint task does not use.
    assert {n for n, _ in context.model.named_parameters() if n not in found} == {
        "encoder.pooler.dense.weight",
        "encoder.pooler.dense.bias",
    }
    assert all(p.grad is None for p in context.model.parameters())


def test_fisher_leaves_the_model_in_its_mode(make_run: Make) -> None:
    context = context_of(make_run(), 1)
    for mode in (True, False):
        context.model.train(mode)
        diagonal_fisher(context.model, context.train["en"], context.device)
        assert all(module.training is mode for module in context.model.modules())


def test_both_ways_are_equal_where_parts_are_frozen(make_run: Make) -> None:
    context = context_of(make_run(), 1)
    model = context.model.eval()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(
            "word_embeddings" not in name and "intent.bias" not in name and "attention" not in name
        )
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    fast, slow = (
        {names[p]: total for p, total in way(model, context.train["en"], context.device).items()}
        for way in (by_batches, one_by_one)
    )
    close(fast, slow)
    assert "intent.weight" in fast
    assert not any("word_embeddings" in name or "attention" in name or name == "intent.bias" for name in fast)


def test_a_large_layer_is_summed_in_the_memory_of_one_sentence() -> None:
    """Whole numbers, so that the order of products and sums does not matter: the sums must be equal."""
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randint(-9, 10, (16, 7, width), generator=generator).float() for width in (512, 128))
    layer = nn.Linear(512, 128)
    assert layer.weight.numel() >= LARGE
    places: list[tuple[int, torch.Size]] = []

    def square(gradients: Tensor) -> Tensor:
        places.append((gradients.data_ptr(), gradients.shape))
        return gradients.square_()

    sums = dict(_SUMS[nn.Linear](layer, (x,), g, square))
    assert torch.equal(sums[layer.weight], (g.transpose(1, 2) @ x).square().sum(dim=0))
    *sentences, _ = places
    assert len(sentences) == 16
    assert {*sentences} == {(sentences[0][0], layer.weight.shape)}


class Scaled(nn.Module):
    """A module of a kind that has no formula."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


class Twice(nn.Module):
    """A module that uses another one twice."""

    def __init__(self, inner: nn.Module, hidden: int) -> None:
        super().__init__()
        self.inner, self.mix = inner, nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.mix(torch.tanh(self.mix(x))))


class Past(nn.Module):
    """A module that uses the weights of another one without calling it: no hook sees that."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.inner.weight, self.inner.bias)


@pytest.mark.parametrize(
    "wrap", [Scaled, lambda inner: Twice(inner, 16), Past], ids=["unknown", "used twice", "not called"]
)
def test_fisher_of_models_with_other_modules(wrap: Callable[[nn.Module], nn.Module], make_run: Make) -> None:
    context = context_of(make_run(), 1)
    model: Any = context.model
    model.head_of("").intent = model.intent = wrap(model.intent)
    found = diagonal_fisher(model, context.train["es"], context.device)
    assert {f"intent.{name}" for name, _ in model.intent.named_parameters()} <= found.keys()
    close(found, by_definition(context, "es"))


def ewc(**settings: Any) -> EWC:
    return EWC(PenaltySettings("ewc", **settings))


def online(**settings: Any) -> EWCOnline:
    return EWCOnline(EWCOnlineSettings("ewc_online", **settings))


def added(strategy: Any, context: Context) -> dict[str, Tensor]:
    """Return what a strategy adds to the gradients of the model's loss on a batch."""
    context.model.eval()
    context.model.zero_grad()
    batch = context.batch("es", np.arange(4))
    context.model.loss(batch).backward()
    before = gradients(context.model)
    edit(strategy, 1, batch, context)
    return {name: gradient - before[name] for name, gradient in gradients(context.model).items()}


def autograd(model: Model, penalty: Callable[[str, Tensor], Tensor]) -> dict[str, Tensor]:
    """Return the gradient of Σ penalty(name, weights)."""
    parameters = {name: p for name, p in model.named_parameters() if "pooler" not in name}
    torch.stack([penalty(name, p).sum() for name, p in parameters.items()]).sum().backward()
    return {name: p.grad for name, p in parameters.items() if p.grad is not None}


def through_two_hops(strategy: Any, run: Run) -> tuple[Context, list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """End two hops with different weights and begin the third; return its context, Fisher and weights after each."""
    model = untrained(run)
    fishers, anchors = [], []
    for hop, language in ((1, "en"), (2, "de")):
        context = context_of(run, hop, model)
        strategy.begin_hop(context)
        perturbed(model, 0.05, hop)
        fishers.append(diagonal_fisher(model, context.train[language], context.device))
        anchors.append({name: p.detach().clone() for name, p in model.named_parameters()})
        strategy.end_hop(context)
    context = context_of(run, 3, model)
    # As between processes: the state is stored and read.
    again = State(strategy.state_dict().facts, {k: t.clone() for k, t in strategy.state_dict().tensors.items()})
    strategy.load_state_dict(again)
    strategy.begin_hop(context)
    perturbed(model, 0.05, 3)
    return context, fishers, anchors


def test_online_penalty_against_autograd(make_run: Make) -> None:
    """λ/2 Σ (γ F_1 + F_2) (θ − θ_2)², with the loss's own gradient beside it."""
    strategy = online(penalty=20.0, gamma=0.5)
    context, (f1, f2), (_, last) = through_two_hops(strategy, make_run())
    found = added(strategy, context)
    context.model.zero_grad()
    wanted = autograd(context.model, lambda n, p: 20.0 / 2 * (0.5 * f1[n] + f2[n]) * (p - last[n]) ** 2)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
    assert max(float(g.abs().max()) for g in wanted.values()) > 0.1


def test_penalties_per_hop_against_autograd(make_run: Make) -> None:
    """Σ_j λ/2 Σ F_j (θ − θ*_j)², each hop with its own Fisher information and weights."""
    strategy = ewc(penalty=20.0)
    context, fishers, anchors = through_two_hops(strategy, make_run())
    found = added(strategy, context)
    context.model.zero_grad()
    wanted = autograd(
        context.model,
        lambda n, p: torch.stack([10.0 * f[n] * (p - a[n]) ** 2 for f, a in zip(fishers, anchors, strict=True)]),
    )
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
    strategy_online = online()
    context, *_ = through_two_hops(strategy_online, make_run())
    other = added(strategy_online, context)
    assert any(not torch.allclose(found[name], other[name], rtol=1e-2, atol=1e-4) for name in found)


@pytest.mark.parametrize("strategy", [ewc, online])
def test_weights_that_no_hop_cared_for_are_free(strategy: Callable[..., Any], make_run: Make) -> None:
    """Word pieces that no sentence of hops 1 and 2 had: no gradient, and nothing that is not a number."""
    chosen = strategy()
    context, fishers, _ = through_two_hops(chosen, make_run())
    found = added(chosen, context)["encoder.embeddings.word_embeddings.weight"]
    unused = (sum(f["encoder.embeddings.word_embeddings.weight"] for f in fishers) == 0).all(dim=1)
    assert unused.any()
    assert found[unused].eq(0).all()
    assert all(tensor.isfinite().all() for tensor in chosen.state_dict().tensors.values())


def test_fisher_examples_bound_a_random_sample(make_run: Make) -> None:
    run = make_run()
    context = context_of(run, 1)
    strategy = online(fisher_examples=5)
    found = strategy.fisher(context)
    chosen = context.generator("fisher").permutation(len(context.train["en"]))[:5]
    close(found, diagonal_fisher(context.model, context.train["en"].select(chosen), context.device))
    whole = diagonal_fisher(context.model, context.train["en"], context.device)
    close(online(fisher_examples=10**6).fisher(context), whole)
    assert not torch.allclose(found["intent.weight"], whole["intent.weight"])


@pytest.mark.full
@pytest.mark.parametrize("name", ["ewc", "ewc_online"])
def test_a_whole_run(name: str, finished: Make) -> None:
    """Weights that mattered move less than naive's; what is stored is the Fisher information."""
    held, naive = finished(f"strategy={name}", "strategy.penalty=10"), finished()
    model = untrained(held)
    model.load_state_dict(weights(held, 1))
    context = context_of(held, 1, model)
    stored = {k.removeprefix("precision/"): t for k, t in state(held, 1).tensors.items() if k.startswith("precision/")}
    close(stored, diagonal_fisher(model, context.train["en"], context.device))
    key = "intent.weight"
    important = stored[key] > stored[key].quantile(0.5)

    def moved(run: Run) -> float:
        return float((weights(run, 2)[key] - weights(run, 1)[key])[important].abs().mean())

    assert moved(held) < moved(naive)
