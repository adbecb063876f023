"""The contract of a strategy's hooks: nothing is shared that the class itself does not say can be."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from xclrun.compose.jobs import Composed
from xclrun.compose.keys import expansions_known
from xclrun.config.checks import check
from xclrun.config.files import choices, load_yaml, packaged
from xclrun.config.schema import StrategyConfig
from xclrun.core.errors import UsageError
from xclrun.core.identity import DataIdentity, digest, stages
from xclrun.run import Run
from xclrun.strategy import STRATEGIES, Strategy, make, register, strategy_class
from xclrun.strategy.base import ANSWERED_BY
from xclrun.strategy.er import ExperienceReplay
from xclrun.strategy.naive import Naive


def hook(self: Any, *given: Any) -> Any: ...


@pytest.mark.parametrize("base", [Strategy, Naive, ExperienceReplay])
@pytest.mark.parametrize(("name", "signature"), ANSWERED_BY.items())
def test_a_hook_without_its_signature_is_refused(base: type, name: str, signature: str) -> None:
    """Also over a base that has one: it speaks of the base's hooks; and where a mixin brings the hook."""
    message = rf"Mine: overrides {name} and inherits {signature}, .* {signature} = Strategy\.signature"
    with pytest.raises(UsageError, match=message):
        type("Mine", (base,), {name: hook})
    with pytest.raises(UsageError, match=message):
        type("Mine", (type("Mixin", (), {name: hook}), base), {})
    own = type("Mine", (base,), {name: hook, signature: Strategy.signature})
    # A class derived from it that overrides nothing inherits both.
    assert getattr(type("Further", (own,), {}), signature) is Strategy.signature


def test_a_hook_that_is_assigned_later_is_refused_when_the_strategy_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the class, which inherits naive's empty signature, or to the object: it would share naive's hops."""

    class Mine(Naive):
        pass

    class OnObject(Naive):
        def __init__(self, settings: StrategyConfig) -> None:
            super().__init__(settings)
            self.loss = hook

    found: dict[str, type] = {"assigned": Mine, "object": OnObject}
    monkeypatch.setattr("xclrun.strategy.strategy_class", found.__getitem__)
    make(StrategyConfig("assigned"))
    Mine.loss = hook  # type: ignore[method-assign]
    for name, told in (("assigned", "overrides loss and inherits signature"), ("object", "sets loss on the object")):
        with pytest.raises(UsageError, match=told):
            make(StrategyConfig(name))


def test_a_new_strategy_shares_no_training_with_another(make_run: Callable[..., Run]) -> None:
    class Penalised(Strategy[StrategyConfig]):
        signature = Strategy.signature

        def loss(self, batch: Any, context: Any) -> Any:
            return 1e6 * super().loss(batch, context)

    run = make_run()
    data = DataIdentity(run.dataset.fingerprints, digest([run.dataset.labels]))

    def keys(strategy: Strategy[Any]) -> list[str]:
        return [stage.train for stage in stages(run.resolved, run.stream, data, run.encoder, strategy)]

    found = [keys(made(StrategyConfig(name))) for made, name in ((Naive, "naive"), (Penalised, "mine"))]
    assert found[0][0] == found[1][0], "hop 0 is the untrained model"
    assert set(found[0]).isdisjoint(found[1][1:])
    # One that says nothing at all is not taken for naive either.
    assert keys(Strategy(StrategyConfig("mine")))[1:] != found[0][1:]


def test_every_hook_that_can_change_a_result_is_answered_for() -> None:
    """What is left out here says something of a run, or of parts that a hook puts in; a new hook has to be placed."""
    public = {name for name, value in vars(Strategy).items() if callable(value) and not name.startswith("_")}
    signatures = set(ANSWERED_BY.values()) | {"points_signature", "described", "identified"}
    told = {
        "stream",
        "unfit",
        "notes",
        "check_encoder",
        "footprint",
        "trains",
        "recalled",
        "relied_on",
        "looks_up",
        "limit",
        # Of what a step asks of the device, not of what it computes: tests/train/test_graphs.
        "repeats",
    }
    assert public - {"settings_type"} == set(ANSWERED_BY) | signatures | told | {"language_specific"}


@pytest.mark.parametrize(
    ("name", "key", "value", "possible"),
    [
        ("er", "memory", -1, "at least 0"),
        ("er", "every_k", 0, "at least 1"),
        ("kd_logit", "weight", -0.1, "at least 0"),
        ("gem", "margin", -1.0, "at least 0"),
        ("gem", "compared", 0, "at least 1"),
        ("der", "memory", -1, "at least 0"),
        ("der", "alpha", -1, "at least 0"),
        ("derpp", "alpha", -1, "at least 0"),
        ("derpp", "beta", -1, "at least 0"),
        ("gdumb", "memory", 0, "at least 1"),
        ("joint_replay", "rate", -0.1, "at least 0"),
        ("joint_replay", "rate", float("inf"), "a finite number"),
        ("joint_replay", "rate", float("nan"), "a finite number"),
        ("l2_init", "penalty", -1, "at least 0"),
        ("ewc", "fisher_examples", 0, "at least 1"),
        ("ewc_online", "gamma", -0.1, "at least 0 and at most 1"),
        ("ewc_online", "gamma", 1.1, "at least 0 and at most 1"),
        ("mas", "examples", 0, "at least 1"),
        ("si", "damping", 0.0, "above 0"),
        ("lwf", "weight", -1, "at least 0"),
        ("lwf", "temperature", 0, "above 0"),
        ("model_average", "weight", 0.0, "above 0 and at most 1"),
        ("model_average", "weight", 1.1, "above 0 and at most 1"),
        ("freeze_bottom", "layers", -1, "at least 0"),
        ("cos_pooler", "alpha", 0.0, "above 0"),
        ("replay", "replay_write", 1.5, "at least 0 and at most 1"),
        ("replay", "replay_write", -0.1, "at least 0 and at most 1"),
        ("replay", "replay_interval", 0, "at least 1"),
        ("replay", "replay_number", -1, "at least 0"),
        *(("mbpa", key, -1, "at least 0") for key in ("neighbours", "adapt_steps", "adapt_lr", "adapt_penalty")),
        ("mbpa", "adapt_together", 0, "at least 1"),
        *(
            ("lang_spec_ada_t", key, 0, "at least 1")
            for key in ("reduction", "lora_rank", "lora_alpha", "prefix_length")
        ),
    ],
)
def test_a_setting_outside_of_its_bounds_is_refused(
    name: str, key: str, value: float, possible: str, compose: Callable[..., Composed]
) -> None:
    config = compose(f"strategy={name}", "order=[en,de]", "tracking=none").config
    check(config)
    with pytest.raises(UsageError, match=rf"^strategy\.{key}={value}: must be {possible}$"):
        check(dataclasses.replace(config, strategy=dataclasses.replace(config.strategy, **{key: value})))


# --- The registry.


def test_every_strategy_has_a_yaml_and_traits_that_its_settings_bear_out() -> None:
    """A module without its class, or a class without its YAML, is found here."""
    names = {path.stem: load_yaml(path)["name"] for path in packaged("conf").glob("strategy/*.yaml")}
    assert names == {name: name for name in STRATEGIES} | {"full": "naive"}
    assert names.keys() == choices()["strategy"].keys()
    for name, cls in STRATEGIES.items():
        settings = {f.name for f in dataclasses.fields(cls.settings_type)}
        assert (cls.name, cls.expandable) == (name, "expansion" in settings)
        assert cls.has_adapters == ("pretrained" in settings), "how analysis, which imports no strategy, knows adapters"
        assert cls.gives_parts >= cls.has_adapters, "adapters are parts"


def test_the_parts_that_are_offered_beneath_a_strategy_can_be_laid_there(compose: Callable[..., Composed]) -> None:
    for name in expansions_known():
        strategy: Any = make(compose("strategy=er", f"strategy.expansion={name}").config.strategy)
        assert strategy.expansion.gives_parts, name
    assert "lang_spec_task" in expansions_known()
    assert not {"naive", "lang_spec_ft", "er"} & set(expansions_known())


def test_a_strategy_from_outside_is_registered_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STRATEGIES, "registered", {})

    @register
    class Mine(Naive):
        name = "mine"

    assert strategy_class("mine") is Mine
    assert list(STRATEGIES)[-1] == "mine"
    assert type(make(StrategyConfig("mine"))) is Mine
    with pytest.raises(UsageError, match="already a strategy called 'mine'"):
        register(Mine)
    with pytest.raises(UsageError, match="already a strategy called 'er'"):
        register(type("Er", (Naive,), {"name": "er"}))
    with pytest.raises(UsageError, match="needs a name of its own"):
        register(type("Unnamed", (Naive,), {}))
    with pytest.raises(UsageError, match="not a strategy"):
        register(dict)  # type: ignore[type-var]
    with pytest.raises(UsageError, match="no strategy is called 'min'; did you mean 'mine'"):
        strategy_class("min")


def test_a_hook_that_is_misspelt_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would call it: the numbers would be those of the class above, under another name."""
    monkeypatch.setattr(STRATEGIES, "registered", {})
    for wrong, right in (("los", "loss"), ("endhop", "end_hop"), ("on_begin_hop", "begin_hop")):
        with pytest.raises(UsageError, match=f"nothing calls a method {wrong}; did you mean '{right}'"):
            register(type("Mine", (Naive,), {"name": "mine", wrong: lambda *_: None}))
    mixin = type("Mixin", (), {"los": lambda *_: None})
    with pytest.raises(UsageError, match="did you mean 'loss'"):
        register(type("Mine", (mixin, Naive), {"name": "mine"}))
    fine = {"name": "mine", "_los": lambda *_: None, "distance": lambda *_: None, "memory_batches": lambda *_: None}
    register(type("Mine", (Naive,), fine))
