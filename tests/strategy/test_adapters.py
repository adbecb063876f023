"""Language adapters: where they sit, what is trained, what they share. What serves a language: test_parts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import stored_scores
from xclrun.compose.jobs import Composed
from xclrun.core.errors import UsageError
from xclrun.model.network import Model, skeleton
from xclrun.plan import Run, notes
from xclrun.store.tensors import load_tensors
from xclrun.strategy import make
from xclrun.strategy.shared.adapters import Adapter
from xclrun.strategy.shared.parameters import Count, count, sizes
from xclrun.train.stop import Stopped

from .real import StopAfter, files, graph, weights

Make = Callable[..., Run]
Do = Callable[..., Run]
# What is trained in the fast tier.
FAST = {("lora", "er"), ("prefix", "lang_spec_ada_f")}
KINDS = ["lang_spec_ada_t", "lang_spec_ada_f"]


def untrained(run: Run) -> Model:
    return graph(run).bench.model


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
def test_what_is_trained(name: str, finished: Make) -> None:
    """Ada(F) leaves the encoder bit-identical, hop after hop; Ada(T) does not. Both train adapters and heads."""
    run = finished(f"strategy={name}", "trainer.epochs=1")
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
def counted(compose: Callable[..., Composed]) -> Callable[..., Count]:
    """Count with mBERT, six languages and MTOP's labels."""

    def run(*overrides: str) -> Count:
        composed = compose(*overrides, "model=mbert").config
        strategy = make(composed.strategy)
        stream, model = strategy.stream(tuple("abcdef")), skeleton(composed.model, 114, 152)
        nowhere: Any = None
        with torch.device("meta"):
            strategy.prepare(model, stream, nowhere)
        return count(sizes(model), strategy, stream)

    return run


def test_both_counts_of_the_library_s_adapters(counted: Callable[..., Count]) -> None:
    """The paper's totals, 222,301,402 and 44,447,962, imply 7,370,000 per language: 17,776 fewer."""
    tuned, frozen = (counted(f"strategy={name}") for name in KINDS)
    [adapters] = [part for part in tuned.parts if part.name == "adapters"]
    assert (adapters.parameters, adapters.copies, adapters.specific) == (7_387_776, 6, True)
    assert tuned.total == tuned.learned == 222_301_402 + 6 * 17_776
    assert tuned.trained == 178_081_402 + 7_387_776
    # The paper leaves out the frozen encoder.
    assert frozen.learned == 44_447_962 + 6 * 17_776
    assert frozen.trained == 227_962 + 7_387_776
    assert frozen.total == tuned.total


# --- Other kinds.

KINDS_OF = tuple(kind.value for kind in Adapter)
D, F, LAYERS = 768, 3072, 12
BOTTLENECK = 2 * D * 48 + 48 + D
# Kind, and what is set beside it → parameters a language in mBERT. Prefixes: a table, an MLP, keys and values of each
# layer. Compacter: the Kronecker products' rule, once, and for each of the two adapters of a layer two matrices of
# rank 1 and two biases.
PARAMETERS = {
    ("pfeiffer", "strategy.reduction=16"): LAYERS * BOTTLENECK,
    ("pfeiffer", "strategy.reduction=null"): LAYERS * BOTTLENECK,
    ("houlsby", "strategy.reduction=16"): 2 * LAYERS * BOTTLENECK,
    ("lora",): LAYERS * 2 * 8 * 2 * D,
    ("lora", "strategy.lora_rank=4", "strategy.lora_targets=[k]"): LAYERS * 4 * 2 * D,
    ("lora", "strategy.lora_targets=[intermediate,output]"): LAYERS * 2 * 8 * (D + F),
    ("ia3",): LAYERS * (2 * D + F),
    ("prefix",): 30 * D + (D + 1) * 512 + (512 + 1) * LAYERS * 2 * D,
    ("compacter", "strategy.reduction=null"): 4**3 + LAYERS * 2 * (2 * (D + 24) + 24 + D),
}


@pytest.mark.some_cases
@pytest.mark.parametrize("given", PARAMETERS, ids=" ".join)
def test_parameters_of_each_kind(given: tuple[str, ...], counted: Callable[..., Count]) -> None:
    found = counted("strategy=lang_spec_ada_f", f"strategy.adapter={given[0]}", *given[1:])
    [part] = [part for part in found.parts if part.name == "adapters"]
    assert (part.parameters, part.copies, part.specific) == (PARAMETERS[given], 6, True)
    assert found.total == 178_081_402 + 6 * PARAMETERS[given]
    assert found.trained == 227_962 + PARAMETERS[given]


@pytest.mark.parametrize("kind", ["lora", "ia3"])
def test_kinds_that_are_nothing_at_first(kind: str, make_run: Make) -> None:
    given = (f"strategy.adapter={kind}", "strategy.lora_targets=[q,k,v,intermediate,output]")
    assert torch.equal(states(untrained(make_run())), states(untrained(make_run("strategy=lang_spec_ada_f", *given))))


def test_lora_is_its_equation(make_run: Make) -> None:
    """W x + b + α/rank B A x, of the matrices that are named and of no others."""
    given = ("strategy.lora_rank=4", "strategy.lora_alpha=6", "strategy.lora_targets=[v]")
    model: Any = untrained(make_run("strategy=lang_spec_lora_f", *given))
    [a, b] = [p for name, p in model.named_parameters() if ".loras." in name]
    assert (a.shape, b.shape) == ((4, 16), (16, 4))
    with torch.no_grad():
        b.normal_(generator=torch.Generator().manual_seed(1))
    value, x = model.encoder.encoder.layer[0].attention.self.value, torch.arange(16.0)[None]
    model.eval()
    torch.testing.assert_close(value(x), x @ (value.weight + 1.5 * b @ a).T + value.bias)


@pytest.mark.parametrize("strategy", ["lang_spec_lora_t", "lang_spec_lora_f"])
def test_lora_is_the_adapters_of_that_kind(strategy: str, make_run: Make) -> None:
    own, kind = make_run(f"strategy={strategy}"), strategy.replace("lora", "ada")
    same = make_run(f"strategy={kind}", "strategy.adapter=lora", "strategy.reduction=null")
    first, second = (untrained(run) for run in (own, same))
    assert first.state_dict().keys() == second.state_dict().keys()
    frozen = [name for name, p in first.named_parameters() if not p.requires_grad]
    assert frozen == [name for name, p in second.named_parameters() if not p.requires_grad]
    assert bool(frozen) == (strategy == "lang_spec_lora_f")
    assert own.id != same.id
    assert own.reference().config.strategy.expansion.name == strategy  # type: ignore[attr-defined]


def test_a_kind_is_part_of_the_identity(make_run: Make) -> None:
    kinds = [make_run("strategy=lang_spec_ada_f", f"strategy.adapter={kind}") for kind in KINDS_OF]
    assert len({run.id for run in kinds}) == len({run.stages[1].train for run in kinds}) == len(KINDS_OF)
    assert kinds[0].id == make_run("strategy=lang_spec_ada_f").id
    over = [
        make_run("strategy=er", "strategy.expansion=lang_spec_lora_t", f"strategy.expansion.lora_rank={rank}")
        for rank in (4, 8)
    ]
    assert over[0].id != over[1].id


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        pytest.param(kind, strategy, marks=() if (kind, strategy) in FAST else pytest.mark.full)
        for kind in KINDS_OF
        for strategy in ("lang_spec_ada_t", "lang_spec_ada_f", "er")
    ],
)
def test_each_kind_learns_and_goes_on_where_it_was_stopped(kind: str, strategy: str, make_run: Make, do: Do) -> None:
    """Alone and beneath replay; no language's adapters change in another's hop."""
    over = "strategy.expansion" if strategy == "er" else "strategy"
    given = [f"strategy={strategy}", *(["strategy.expansion=lang_spec_ada_f"] if strategy == "er" else [])]
    given += [f"{over}.adapter={kind}", f"{over}.prefix_length=3", f"{over}.reduction=2", "trainer.epochs=1"]
    whole = do(make_run(*given, outputs="whole"))
    stopped, after = make_run(*given, outputs="stopped"), StopAfter(8)
    with pytest.raises(Stopped):
        do(stopped, after, after.stop)
    assert files(do(stopped)) == files(whole)
    first, second = weights(whole, 1), weights(whole, 2)
    own = {name for name in first if "language" in name.split(".")}
    changed = {name for name in first if not torch.equal(first[name], second[name])}
    assert own & changed
    assert bool(changed - own - {n for n in first if not n.startswith("encoder.")}) == (strategy == "lang_spec_ada_t")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["strategy.lora_targets=[q,x]"], r"lora_targets=\['q', 'x'\]: must be distinct values of q, "),
        (["strategy.reduction=0"], r"reduction=0: must be at least 1"),
        (["strategy.reduction=3"], r"reduction=3: must divide .* 16$"),
        (["strategy.adapter=houlsby", "strategy.reduction=5"], r"reduction=5: must divide .* 16$"),
        (["strategy.adapter=compacter", "strategy.reduction=8"], r"reduction=8: gives a bottleneck of 2"),
        (["strategy.pretrained={en:/no/such}"], r"pretrained\.en=/no/such: neither a folder nor a name on the hub"),
    ],
)
def test_settings_that_cannot_work_are_refused_while_planning(given: Any, message: str, make_run: Make) -> None:
    with pytest.raises(UsageError, match=rf"^strategy\.{message}"):
        make_run("strategy=lang_spec_ada_f", *given)


def test_a_reduction_that_is_another_kind_s_is_told(make_run: Make) -> None:
    found = [notes([make_run("strategy=lang_spec_ada_f", f"strategy.adapter={kind}")]) for kind in ("houlsby", "madx")]
    assert [note for own in found for note in own if "reduction" in note] == [
        "strategy.reduction=2 is MAD-X's default, not houlsby's; set strategy.reduction=null to use 16"
    ]


def test_without_the_library(make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adapters", None)
    with pytest.raises(
        UsageError, match=r"^strategy=lang_spec_ada_t: package 'adapters' is not installed; run pip install -e '"
    ):
        do(make_run("strategy=lang_spec_ada_t"))


# --- Pretrained adapters.


def save(run: Run, folder: Path, seed: int, name: str = "wiki", **changes: Any) -> Path:
    """Save an adapter as the library does, with random values, for the encoder of a run."""
    import adapters
    from adapters import SeqBnInvConfig

    encoder: Any = untrained(run).encoder
    adapters.init(encoder)
    encoder.add_adapter(name, config=SeqBnInvConfig(**{"reduction_factor": 2, **changes}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in encoder.named_parameters():
            if f"adapters.{name}." in key:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    folder.mkdir(exist_ok=True)
    encoder.save_adapter(str(folder), name, use_safetensors=True)
    return folder


def values(folder: Path, name: str = "wiki") -> dict[str, Tensor]:
    """Return the values in a folder by the names that they have in a model with our adapters."""
    saved = load_tensors(folder / "adapter.safetensors")
    return {f"encoder.{key.removeprefix('bert.').replace(f'.{name}.', '.language.')}": t for key, t in saved.items()}


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_pretrained_adapters_are_where_a_hop_starts(kind: str, make_run: Make, do: Do, tmp_path: Path) -> None:
    """And not what serves a language that was not seen: that stays the fresh ones."""
    en, es = (save(make_run(), tmp_path / language, seed) for seed, language in enumerate(("en", "es")))
    given = f"strategy.pretrained={{en:'{en}',es:'{es}'}}"
    run = make_run(f"strategy={kind}", given, "trainer.epochs=1")
    stages = graph(run)
    fresh = {key: t.clone() for key, t in stages.bench.model.state_dict().items() if "adapters." in key}
    assert fresh.keys() == values(en).keys()
    assert "wiki" not in str(stages.bench.model.state_dict().keys())
    starts: dict[str, dict[str, Tensor]] = {"de": fresh, "en": values(en), "es": values(es)}
    for hop in run.stream.hops[1:]:
        stages.strategy.begin_hop(stages.bench.context(hop))
        own = stages.bench.model.state_dict()
        assert all(torch.equal(own[key], value) for key, value in starts[hop.name].items())
    stages.strategy.for_language("es", ["de"])
    assert all(torch.equal(stages.bench.model.state_dict()[key], value) for key, value in fresh.items())
    do(run)
    # A rate of nothing but 3e-3 and few steps: what was learnt is still near where it started.
    for hop, folder in ((1, en), (3, es)):
        after, start = weights(run, hop), values(folder)
        assert any(not torch.equal(after[key], start[key]) for key in start)
        assert all((after[key] - start[key]).abs().max() < 0.05 for key in start)


@pytest.mark.full
def test_the_content_of_pretrained_adapters_is_the_identity(make_run: Make, tmp_path: Path) -> None:
    first, other = (save(make_run(), tmp_path / str(seed), seed) for seed in (1, 2))
    moved = tmp_path / "moved"
    moved.symlink_to(first)

    def planned(folder: Path | None, *overrides: str) -> Run:
        given = (f"strategy.pretrained={{en:'{folder}'}}",) if folder else ()
        return make_run("strategy=lang_spec_ada_f", *given, *overrides)

    a, b, c, none = planned(first), planned(moved), planned(other), planned(None)
    assert (a.id, a.stages) == (b.id, b.stages)
    assert len({run.id for run in (a, c, none)}) == 3
    assert len({run.stages[1].train for run in (a, c, none)}) == 3
    over = [
        make_run(
            "strategy=er", "strategy.expansion=lang_spec_ada_f", f"strategy.expansion.pretrained={{en:'{folder}'}}"
        )
        for folder in (first, moved, other)
    ]
    assert over[0].id == over[1].id != over[2].id
    assert [s.train for s in over[0].stages[:2]] == [s.train for s in a.stages[:2]]
    # Any code of a language finds it, and none is passed over in silence.
    for strategy, key in (("lang_spec_ada_f", "strategy"), ("er", "strategy.expansion")):
        beneath = ("strategy.expansion=lang_spec_ada_f",) if strategy == "er" else ()
        coded = make_run(f"strategy={strategy}", *beneath, f"{key}.pretrained={{eng_Latn:'{first}'}}")
        assert coded.id == (over[0] if beneath else a).id
        with pytest.raises(
            UsageError, match=rf"^{key}\.pretrained=dee: not a language of the dataset; did you mean 'de'"
        ):
            make_run(f"strategy={strategy}", *beneath, f"{key}.pretrained={{dee:'{first}'}}")
        with pytest.raises(UsageError, match=rf"^{key}\.pretrained: 'en' is listed twice$"):
            make_run(f"strategy={strategy}", *beneath, f"{key}.pretrained={{en:'{first}',eng:'{first}'}}")


def unlink(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def settings(text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "adapter_config.json").write_text(text)


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("saved", "damage", "message"),
    [
        ({}, unlink("adapter.safetensors"), "has no adapter.safetensors, .* pickles"),
        ({}, unlink("adapter_config.json"), "has no adapter_config.json"),
        ({}, settings("{}"), "does not fit this encoder"),
        ({}, settings('{"auto_map": {"A": "b.C"}}'), ".* names Python code"),
        ({}, lambda f: (f / "adapter.safetensors").write_bytes(b"no tensors"), "adapter.safetensors is damaged or cut"),
        ({"reduction_factor": 4}, None, r"is another kind of adapter \(reduction_factor=4"),
        ({"inv_adapter": None}, None, r"is another kind of adapter \(inv_adapter=None"),
        ({"width": 32}, None, "does not fit this encoder"),
    ],
)
def test_folders_that_hold_no_adapter_for_the_encoder(
    saved: dict[str, Any], damage: Any, message: str, make_run: Make, do: Do, tmp_path: Path
) -> None:
    changes = {key: value for key, value in saved.items() if key != "width"}
    folder = save(make_run(f"model.hidden_size={saved.get('width', 16)}"), tmp_path / "en", 1, **changes)
    if damage is not None:
        damage(folder)
    with pytest.raises(UsageError, match=rf"^strategy\.pretrained\.en={folder}: {message}"):
        do(make_run("strategy=lang_spec_ada_f", f"strategy.pretrained={{en:'{folder}'}}"))


# --- Each language alone with adapters: the reference of strategies that have them.


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_alone_with_adapters_is_hop_1_of_the_strategy(kind: str, finished: Make, make_run: Make, do: Do) -> None:
    given = ("strategy=lang_spec_ft", f"strategy.expansion={kind}", "trainer.epochs=1")
    alone = finished(*given)
    for language, order in (("de", "[de,en,es]"), ("es", "[es,de,en]")):
        first = make_run(f"strategy={kind}", f"order={order}", "trainer.epochs=1")
        index = ("en", "de", "es").index(language) + 1
        assert first.stages[1].train == alone.stages[index].train
        assert first.stages[0].evaluation == alone.stages[0].evaluation
        # There unseen languages are served by fresh adapters, here all by the one model.
        assert first.stages[1].evaluation != alone.stages[index].evaluation
        assert make_run(f"strategy={kind}", "trainer.epochs=1").reference().id == alone.id
    over = make_run("strategy=er", f"strategy.expansion={kind}", "trainer.epochs=1")
    assert over.reference().id == alone.id
    assert make_run("strategy=er", "trainer.epochs=1").reference().id == make_run(given[0], given[2]).id
    mono = do(make_run(f"strategy={kind}", "order=[de,en,es]", "trainer.epochs=1"))
    own, other = stored_scores(alone)[2], stored_scores(mono)[1]
    assert {key: own[key] for key in own if key[0] == "de"} == {key: other[key] for key in other if key[0] == "de"}


def test_the_counts_of_models_alone(counted: Callable[..., Count]) -> None:
    """Of Ada(F) the frozen encoder is one for all languages; of Ada(T) every language has its own."""
    tuned, frozen = (counted("strategy=lang_spec_ft", f"strategy.expansion={name}").total for name in KINDS)
    assert tuned == 6 * (178_081_402 + 7_387_776)
    assert frozen == 177_853_440 + 6 * (227_962 + 7_387_776)
