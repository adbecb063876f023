"""Language adapters: where they sit, what is trained, what they share. What serves a language: test_parts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from xclrun.compose import Composed
from xclrun.errors import UsageError
from xclrun.model.network import Model, skeleton
from xclrun.run import Run
from xclrun.store.tensors import load_tensors
from xclrun.strategy import make
from xclrun.strategy.parameters import Count, count, sizes
from xclrun.train.listen import Listener
from xclrun.train.making import Maker
from xclrun.train.stop import StopFlag

Make = Callable[..., Run]
Do = Callable[..., Run]
KINDS = ["lang_spec_ada_t", "lang_spec_ada_f"]


def untrained(run: Run) -> Model:
    return Maker(run, Listener(), StopFlag()).model


def weights(run: Run, hop: int) -> dict[str, Tensor]:
    return load_tensors(run.store.path(run.stages[hop].train) / "weights.safetensors")


def states(model: Model) -> Tensor:
    model.eval()
    pieces = torch.arange(5, 17).view(2, 6)
    with torch.no_grad():
        return model.encoder(input_ids=pieces, attention_mask=torch.ones_like(pieces)).last_hidden_state


def test_adapters_that_add_nothing_leave_the_encoder_as_it_is(make_run: Make) -> None:
    """With zeros in the way up and in the coupling, every adapter is the identity; else it is not."""
    plain, model = untrained(make_run()), untrained(make_run("strategy=lang_spec_ada_t"))
    expected = states(plain)
    assert not torch.allclose(states(model), expected, atol=1e-4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".adapter_up." in name or ".F.2." in name or ".G.2." in name:
                parameter.zero_()
    torch.testing.assert_close(states(model), expected, atol=1e-6, rtol=0)


def test_the_bottleneck_is_its_equation(make_run: Make) -> None:
    """A layer ends with LN(f + U relu(D LN(f + x) + b) + c + x), f its feed-forward output and x what went in there."""
    model: Any = untrained(make_run("strategy=lang_spec_ada_t", "model.hidden_layers=2"))
    seen: list[tuple[Any, Tensor, Tensor, Tensor]] = []
    for layer in model.encoder.encoder.layer:
        layer.output.register_forward_hook(lambda module, given, out: seen.append((module, *given, out)))
    states(model)
    assert len(seen) == 2
    for module, wide, x, out in seen:
        adapter, norm, f = module.adapters["language"], module.LayerNorm, module.dense(wide)
        down, up = adapter.adapter_down[0], adapter.adapter_up
        assert down.weight.shape == (8, 16)
        added = torch.relu(norm(f + x) @ down.weight.T + down.bias) @ up.weight.T + up.bias
        torch.testing.assert_close(out, norm(f + added + x))


@pytest.mark.parametrize("name", KINDS)
def test_what_is_trained(name: str, make_run: Make, do: Do) -> None:
    """Ada(F) leaves the encoder bit-identical, hop after hop; Ada(T) does not. Both train adapters and heads."""
    run = do(make_run(f"strategy={name}", "trainer.epochs=1"))
    start = dict(untrained(run).state_dict())
    for hop in (1, 2, 3):
        after = weights(run, hop)
        assert after.keys() == start.keys()
        changed = {key for key in start if not torch.equal(after[key], start[key])}
        adapters = {key for key in start if "adapters." in key}
        heads = {key for key in start if key.startswith(("intent.", "tagger."))}
        assert adapters <= changed
        assert heads & changed
        assert bool(changed - adapters - heads) == (name == "lang_spec_ada_t")


@pytest.mark.parametrize("name", KINDS)
def test_nothing_is_shared_with_strategies_without_adapters(name: str, make_run: Make) -> None:
    own, naive = make_run(f"strategy={name}").stages, make_run().stages
    assert own[0].train == naive[0].train
    assert not {s.train for s in own[1:]} & {s.train for s in naive}
    assert not {s.evaluation for s in own} & {s.evaluation for s in naive}


def test_first_values_follow_from_the_seed(make_run: Make) -> None:
    def adapters(*overrides: str) -> list[Tensor]:
        model = untrained(make_run("strategy=lang_spec_ada_f", *overrides))
        return [p for key, p in model.named_parameters() if "adapter_down.0.weight" in key]

    torch.manual_seed(5)
    [first] = adapters()
    torch.manual_seed(6)
    before = torch.random.get_rng_state()
    [again], [other] = adapters(), adapters("seed=2")
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.fixture(scope="module")
def counted(compose: Callable[..., Composed]) -> Callable[[str], Count]:
    """Count with mBERT, six languages and MTOP's labels."""

    def run(name: str) -> Count:
        composed = compose(f"strategy={name}", "model=mbert").config
        strategy = make(composed.strategy)
        stream, model = strategy.stream(tuple("abcdef")), skeleton(composed.model, 114, 152)
        nowhere: Any = None
        with torch.device("meta"):
            strategy.prepare(model, stream, nowhere)
        return count(sizes(model), strategy, stream)

    return run


def test_both_counts_of_the_library_s_adapters(counted: Callable[[str], Count]) -> None:
    """The paper's totals, 222,301,402 and 44,447,962, imply 7,370,000 per language: 17,776 fewer."""
    tuned, frozen = counted("lang_spec_ada_t"), counted("lang_spec_ada_f")
    [adapters] = [part for part in tuned.parts if part.name == "adapters"]
    assert (adapters.parameters, adapters.copies, adapters.specific) == (7_387_776, 6, True)
    assert tuned.total == tuned.learnt == 222_301_402 + 6 * 17_776
    assert tuned.trained == 178_081_402 + 7_387_776
    # The paper leaves out the frozen encoder.
    assert frozen.learnt == 44_447_962 + 6 * 17_776
    assert frozen.trained == 227_962 + 7_387_776
    assert frozen.total == tuned.total


def test_without_the_library(make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adapters", None)
    with pytest.raises(
        UsageError, match=r"^strategy=lang_spec_ada_t needs the library adapters: pip install 'xclrun\[a"
    ):
        do(make_run("strategy=lang_spec_ada_t"))


@pytest.mark.parametrize(
    ("reduction", "told"), [(0, "must be a whole number of at least 1"), (3, "must divide .* 16$")]
)
def test_reductions_that_cannot_work(reduction: int, told: str, make_run: Make, do: Do) -> None:
    with pytest.raises(UsageError, match=rf"^strategy\.reduction={reduction}: {told}"):
        do(make_run("strategy=lang_spec_ada_t", f"strategy.reduction={reduction}"))
