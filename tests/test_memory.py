"""Estimates of peak memory: known answers, the parameters of built models, and what does not fit."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.memory import measurable, over_estimate
from tests.strategy.real import context_of, graph
from xclrun.core.errors import UsageError
from xclrun.launch.forecast import forecast
from xclrun.model.network import skeleton
from xclrun.model.shape import Dimensions, estimated_sizes
from xclrun.plan import Run
from xclrun.plan.memory import Memory, check_memory, heads_of, largest, of_run, peak
from xclrun.strategy.shared.parameters import sizes

Make = Callable[..., Run]
# The encoder of `make_run`: H = 16, I = 32, one layer. Subwords of one layer: 8 H + 2 I = 192 values.
WIDTH, INNER = 16, 32


def estimate(run: Run, hop: int = 1, cuda: bool = True, length: int = 10) -> Memory:
    sentences = run.sentences(run.stream.hops[hop])
    where = {"sentences": sentences, "length": length, "vocabulary": 50, "cuda": cuda}
    return peak(run.config, run.config.trainer, run.strategy(), run.stream.hops[hop], heads_of(run), **where)


def test_the_parts_of_a_small_model_are_those_counted_by_hand(make_run: Make) -> None:
    run = make_run("model.positions=64")
    tags, labels = len(run.dataset.tags), len(run.dataset.labels)
    layer = 4 * (16 * 16 + 16) + 2 * 16 * 32 + 32 + 16 + 4 * 16
    # Tables of subwords, positions and types, two norms' worth of parameters, the pooler, class head, tags and CRF.
    embeddings = (50 + 64 + 2) * 16 + 2 * 16
    heads = labels * 17 + tags * 17 + 2 * tags + tags * tags
    number = embeddings + layer + 16 * 17 + heads
    memory = estimate(run)
    assert (memory.weights, memory.gradients, memory.optimizer) == (4 * number, 4 * number, 8 * number)
    # Four sentences of ten subwords; a byte for each dropout mask, embeddings and the states of heads.
    assert memory.activations == 40 * (192 * 4 + 2 * 16 + 4 * 16 * 4)
    # 64 sentences; inner states before and after the activation function, and two of the layer.
    assert memory.evaluation == 640 * 4 * (2 * 16 + 2 * 32)
    assert (memory.strategy, memory.best) == (0, 0)
    assert memory.total == memory.weights + memory.optimizer + memory.gradients + memory.evaluation


def test_settings_change_the_parts_that_they_are_for(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    base = estimate(make_run("evaluate.batch_size=1"))
    assert base.activations > base.gradients
    assert base.total == base.weights + base.optimizer + base.activations
    added = estimate(make_run("evaluate.batch_size=1", "trainer.gradient_accumulation=2"))
    assert added.total == base.total + base.gradients
    two = ("trainer.gradient_accumulation=2", "runtime.devices=2")
    assert estimate(make_run("evaluate.batch_size=1", *two)).total == base.total
    # A launcher has started the ranks.
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert estimate(make_run("evaluate.batch_size=1", two[0])).total == base.total
    monkeypatch.delenv("WORLD_SIZE")
    # Four layers: with checkpointing their inputs, and the values of one and their gradients.
    four = ("model.hidden_layers=4", "model.dropout=0")
    plain, recomputed = (estimate(make_run(*four, *more)) for more in ((), ("trainer.gradient_checkpointing=true",)))
    assert plain.activations - recomputed.activations == 40 * 4 * (2 * 192 - 4 * WIDTH)
    # On a CPU: masks in fp32, 16 bytes for each of ten pairs of positions in two heads, the best weights.
    cpu = estimate(make_run("evaluate.batch_size=1"), cuda=False)
    assert cpu.activations - base.activations == 40 * (3 * 2 * WIDTH + 16 * 2 * 10)
    assert cpu.best == base.weights
    # Half precision: norms still read 2 H values in fp32, and autocast copies the matrices of the layer.
    half = estimate(make_run("evaluate.batch_size=1", "trainer.precision=bf16"))
    matrices = 4 * WIDTH * WIDTH + 2 * WIDTH * INNER
    assert base.activations - half.activations == 40 * 2 * (192 - 2 * WIDTH) - 2 * matrices
    budget = estimate(make_run("evaluate.batch_tokens=30"))
    assert budget.evaluation == 30 * 4 * (2 * WIDTH + 2 * INNER)


def test_frozen_layers_need_no_gradients_and_no_activations_below_the_trained_ones(make_run: Make) -> None:
    run = make_run("strategy=freeze_bottom", "strategy.layers=1", "model.hidden_layers=2")
    first, second = estimate(run, 1), estimate(run, 2)
    assert first.weights == second.weights == first.gradients
    body = [n for name, (n, _) in estimated_sizes(run.config.model, heads_of(run), 50).items() if ".layer.1." in name]
    heads = [
        n for name, (n, _) in estimated_sizes(run.config.model, heads_of(run), 50).items() if "encoder" not in name
    ]
    assert second.gradients == 4 * (sum(body) + sum(heads) + WIDTH * (WIDTH + 1))
    assert first.activations - second.activations == 40 * (192 * 4 + 2 * WIDTH)


@pytest.mark.parametrize(("strategy", "kept"), [("ewc_online", 2), ("ewc", 2), ("mas", 2), ("l2_prev", 1)])
def test_penalties_keep_as_many_tensors_as_they_say(strategy: str, kept: int, make_run: Make) -> None:
    """Precision and anchor; the change of the weights is temporary."""
    run = make_run(f"strategy={strategy}")
    real = graph(run).bench.strategy
    assert real.copies(run.stream.hops[1]) == 0
    assert real.copies(run.stream.hops[2]) == kept + 1
    context = context_of(run, 1)
    real.begin_hop(context)
    real.end_hop(context)
    real.begin_hop(context_of(run, 2, context.model))
    values = sum(t.numel() for tensors in (real.precision, real.anchor) for t in tensors.values() if t.dim())
    trained = sum(p.numel() for p in context.model.parameters())
    # Parameters without gradients, such as an unused pooler, have no precision.
    assert values == pytest.approx(kept * trained, rel=0.1)


@pytest.mark.parametrize("adapter", ["madx", "pfeiffer", "houlsby", "lora", "ia3", "prefix"])
def test_adapters_add_about_what_the_library_adds(adapter: str, make_run: Make) -> None:
    pytest.importorskip("adapters", reason="needs xclrun[adapters]")
    wide = ("model.hidden_size=64", "model.intermediate_size=96", "model.hidden_layers=2")
    run = make_run("strategy=lang_spec_ada_f", f"strategy.adapter={adapter}", "strategy.reduction=null", *wide)
    strategy, model = run.strategy(), graph(run).bench.model
    real, encoder = sizes(model), Dimensions.of(run.config.model)
    vocabulary = model.encoder.get_input_embeddings().num_embeddings
    estimated = strategy.prepared(estimated_sizes(run.config.model, heads_of(run), vocabulary), encoder)
    for trained in (0, 1):
        expected, found = (sum(n for n, t in s.values() if t == trained) for s in (real, estimated))
        assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    "name", ["lang_spec_lora_t", "seq_lora", "inc_lora", "o_lora", "lang_spec_prompt", "l2p", "coda_prompt"]
)
def test_strategies_that_add_parameters_estimate_them(name: str, make_run: Make) -> None:
    """Also which of them a hop trains."""
    wide = ("model.hidden_size=64", "model.intermediate_size=96", "model.hidden_layers=2")
    run = make_run(f"strategy={name}", *wide)
    strategy, model = run.strategy(), graph(run).bench.model
    real, encoder = sizes(model), Dimensions.of(run.config.model)
    vocabulary = model.encoder.get_input_embeddings().num_embeddings
    estimated = strategy.prepared(estimated_sizes(run.config.model, heads_of(run), vocabulary), encoder)

    def trained(numbers: Any) -> int:
        return sum(n for key, (n, trains) in numbers.items() if trains and strategy.trains(key, run.stream.hops[2]))

    assert sum(n for n, _ in estimated.values()) == pytest.approx(sum(n for n, _ in real.values()), rel=0.05)
    assert trained(estimated) == pytest.approx(trained(real), rel=0.05)


@pytest.mark.parametrize(
    ("values", "tolerance"),
    [
        (("model.family=llama", "model.settings={num_key_value_heads: 1}"), 0.01),
        (("model.family=mt5",), 0.01),
        (("model.family=gpt2",), 0.01),
        (("model.family=bloom",), 0.01),
        # A pooler and a matrix between embeddings and layers are not counted.
        (("model.family=albert", "model.settings={embedding_size: 192}"), 0.12),
    ],
)
def test_other_families_are_estimated_from_their_matrices(
    values: tuple[str, ...], tolerance: float, compose: Callable[..., Any]
) -> None:
    wide = ("model.hidden_size=192", "model.attention_heads=4", "model.intermediate_size=768", "model.vocab_size=900")
    config = compose(*values, *wide, "model.hidden_layers=3").config.model
    expected = sum(p.numel() for p in skeleton(config, 3, 0).parameters())
    assert sum(n for n, _ in estimated_sizes(config, (), None).values()) == pytest.approx(expected, rel=tolerance)


def test_the_largest_visible_gpu_counts() -> None:
    rows = "0, GPU-a, 40960\n1, GPU-b, 81920\n2, GPU-c, [N/A]\n"
    assert largest(rows, None) == 81920 * 2**20
    assert largest(rows, "0") == 40960 * 2**20
    assert largest(rows, "GPU-b,0") == 81920 * 2**20
    assert largest(rows, "") is None
    assert largest("", None) is None


def test_what_cannot_fit_is_refused_with_a_setting_that_helps(make_run: Make) -> None:
    run = make_run("runtime.device=auto", "evaluate.batch_size=1", "trainer.batch_size=64", "model.hidden_layers=4")
    least = of_run(run, cuda=True)[0]
    check_memory([run], lambda: least.total)
    check_memory([run], lambda: None)
    check_memory([make_run()], lambda: 1)
    advice = r"use trainer\.gradient_checkpointing=true$"
    with pytest.raises(UsageError, match=rf"^model=tiny strategy=naive: needs at least .* GPU has .*; {advice}"):
        check_memory([run], lambda: least.total - 1)
    deep = make_run("runtime.device=auto", "evaluate.batch_size=1", "trainer.batch_size=64", "model.hidden_layers=1")
    least = of_run(deep, cuda=True)[0]
    with pytest.raises(UsageError, match=r"use trainer\.batch_size=\d+ trainer\.gradient_accumulation=\d+$"):
        check_memory([deep], lambda: least.total * 2 // 3)
    with pytest.raises(UsageError, match="use a smaller model, or a strategy with a frozen encoder"):
        check_memory([run], lambda: 1000)


def test_a_plan_prints_the_estimate(make_run: Make) -> None:
    runs = [make_run(), make_run("strategy=ewc_online")]
    found = forecast(runs)
    least, most = found.memory["ewc_online"]
    assert least.total < most.total
    assert most.strategy == 3 * most.gradients > found.memory["naive"][1].strategy
    [line] = [line for line in found.render().splitlines() if line.startswith("peak memory per device: ")]
    assert "(ewc_online)" in line
    assert found.to_json()["memory"]["naive"]["most"]["total"] == found.memory["naive"][1].total


@pytest.mark.full
@pytest.mark.parametrize(
    ("overrides", "length"),
    [
        ((), 96),
        (("trainer.gradient_checkpointing=true",), 96),
        (("trainer.gradient_accumulation=2",), 48),
        (("strategy=si",), 32),
        (("strategy=lang_spec_lora_f",), 64),
        # Longer sentences, because buffers of about 20 MB, which the estimate leaves out, would else matter here.
        (("strategy=l2p",), 200),
    ],
    ids=str,
)
def test_measured_peaks_are_near_the_estimate(overrides: tuple[str, ...], length: int) -> None:
    """Twelve layers of width 192, in a separate process."""
    if not measurable():
        pytest.skip("peak memory cannot be measured on this system")
    if "lang_spec_lora_f" in str(overrides):
        pytest.importorskip("adapters", reason="needs xclrun[adapters]")
    narrow = ("model.hidden_size=192", "model.intermediate_size=768", "model.vocab_size=3000", "order=[en,de]")
    given = ("dataset=mini", "model=mbert", "model.hub=null", *narrow, "runtime.device=cpu", "trainer.batch_size=8")
    assert over_estimate([*given, *overrides], length)["ratio"] == pytest.approx(1, abs=0.2)


def test_libraries_of_the_estimate_are_light(run_python: Callable[..., Any]) -> None:
    assert importlib.util.find_spec("torch")
    code = "import sys, xclrun.plan.memory; assert not {'torch', 'transformers'} & {*sys.modules}"
    run_python(code)
