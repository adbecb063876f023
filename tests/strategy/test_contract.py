"""The contract of all strategies: what they share, that they resume, what they keep, note and refuse; the registry."""

import dataclasses
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import done, small_run, some
from tests.train.conftest import predicted, stored
from xclrun.compose.jobs import Composed
from xclrun.compose.keys import expansion_choices
from xclrun.config.checks import check
from xclrun.config.files import choices, load_yaml, packaged
from xclrun.config.schema import StrategyConfig
from xclrun.core.errors import UsageError
from xclrun.core.identity import DataIdentity, digest, stages
from xclrun.core.stream import sequence
from xclrun.plan import Run, notes
from xclrun.strategy import STRATEGIES, State, Step, Strategy, adds_parameters, make, register, strategy_class
from xclrun.strategy.base import HOOKS, check_hooks
from xclrun.strategy.er import ExperienceReplay
from xclrun.strategy.naive import Naive
from xclrun.testing.strategies import one_thread

from .real import state

Make = Callable[..., Run]
Do = Callable[..., Run]

# Two epochs of two steps in each hop, of which every second one replays.
SHORT = ("dataset.max_train=7", "dataset.max_eval=4")
WRITTEN = ("strategy.replay_write=0.4", "strategy.replay_interval=5", "strategy.replay_number=4")
# What a strategy needs to do something on so few sentences.
EFFECT = {
    "replay": WRITTEN,
    "agem_replay": WRITTEN,
    "mbpa": (*WRITTEN, "strategy.neighbours=2", "strategy.adapt_steps=1"),
    "joint_replay": ("strategy.rate=0.5",),
    "der": ("strategy.memory=5",),
    "derpp": ("strategy.memory=5",),
    "gdumb": ("strategy.memory=5",),
}
EVERY = (*STRATEGIES, "er+lang_spec_trans", "er+inc_lora", "kd_logit+lang_spec_ada_t")
# Those whose first hop is not naive's: it replays, gathers, pulls, chooses or mixes. So it is of those that add
# parameters to the model.
OWN_FIRST = {"replay", "agem_replay", "mbpa", "der", "derpp", "si", "l2_init", "gdumb", "multilingual"}


def given(strategy: str) -> tuple[str, ...]:
    """Return the overrides of a small run of a strategy, or of one over another (``er+lang_spec_trans``)."""
    name, _, expansion = strategy.partition("+")
    # Those that tune BERT's pooler are for sequence classification.
    task = ("dataset.task=sequence_class",) if "pooler" in name else ()
    over = (f"strategy.expansion={expansion}",) if expansion else ()
    return (f"strategy={name}", *EFFECT.get(name, ()), *over, *task, *SHORT)


@pytest.fixture(scope="module")
def calm(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Return a run that nothing disturbed, in a store of its own; each is done once."""

    @cache
    def get(*overrides: str) -> Run:
        with one_thread():
            return done(small_run(overrides, tmp_path_factory.mktemp("calm"), corpus))

    return get


def results(run: Run) -> tuple[Any, Any]:
    return stored(run.store), predicted(run)


# --- Sharing.


# One of each kind of state, and of what is not naive's in a first hop; the full tier has all.
SOME = (
    *("er", "ewc_online", "derpp", "replay", "lang_spec_ada_t", "er+lang_spec_trans"),
    *("agem", "kd_logit", "si", "mbpa", "multilingual", "growing"),
)


@pytest.mark.some_cases(*SOME)
@pytest.mark.in_turn
@pytest.mark.parametrize("strategy", [name for name in EVERY if name != "naive"])
def test_a_run_shares_its_first_hop_with_naive_and_no_later_one(strategy: str, make_run: Make) -> None:
    """That what is shared is equal is in the contract (tests/testing/test_strategy_contract)."""
    run = make_run(*given(strategy))
    naive = make_run("strategy=naive", *(text for text in given(strategy) if text.startswith("dataset.")))
    known = {stage.train for stage in naive.stages}
    own_first = strategy in OWN_FIRST or adds_parameters(run.strategy())
    assert (run.stages[1].train in known) == (not own_first)
    # No later hop of a sequence is naive's; of reference models each is some naive run's first hop.
    assert not any(stage.train in known for stage in run.stages[2:])


# Settings that leave a strategy nothing to do.
IDLE = [
    ("er", "memory=0"),
    ("agem", "memory=0"),
    ("kd_logit", "weight=0"),
    ("ewc", "penalty=0"),
    ("mas", "penalty=0"),
    ("si", "penalty=0"),
    ("l2_prev", "penalty=0"),
    ("l2_init", "penalty=0"),
    ("lwf", "weight=0"),
    ("der", "memory=0"),
    ("der", "alpha=0"),
    ("derpp", "alpha=0", "beta=0"),
    ("replay", "replay_write=0"),
    ("agem_replay", "replay_number=0"),
    ("joint_replay", "rate=0"),
    ("model_average", "weight=1"),
]


@pytest.mark.some_cases
@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("under", "idle"),
    [("naive", idle) for idle in IDLE] + [("lang_spec_task", idle) for idle in IDLE if STRATEGIES[idle[0]].expandable],
    ids=str,
)
def test_a_strategy_whose_settings_leave_it_nothing_to_do_is_naive_or_the_parts_beneath_it(
    under: str, idle: tuple[str, ...], calm: Make
) -> None:
    name, *settings = idle
    over = ("strategy.expansion=lang_spec_task",) if under != "naive" else ()
    run = calm(f"strategy={name}", *(f"strategy.{text}" for text in settings), *over, *SHORT)
    found, wanted = stored(run.store), stored(calm(f"strategy={under}", *SHORT).store)
    # Over parts, what a strategy gathers is stored with the weights: here nothing, in a file of its own.
    assert found.keys() == wanted.keys()
    assert all(found[key].items() >= files.items() for key, files in wanted.items())


# --- What is kept.


def test_a_hop_ends_with_the_model_in_eval_mode(make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was trained or loaded: dropout would make the state of a loaded one another."""
    modes: list[bool] = []
    monkeypatch.setattr(ExperienceReplay, "end_hop", lambda self, context: modes.append(context.model.training))
    monkeypatch.setattr(ExperienceReplay, "steps", Naive.steps)
    do(make_run("strategy=er", *SHORT, "trainer.epochs=1"))
    assert modes == [False] * 3


@pytest.mark.some_cases(*SOME)
@pytest.mark.in_turn
@pytest.mark.parametrize("strategy", EVERY)
def test_the_size_of_a_state_is_that_of_its_tensors_and_of_a_number_for_each_example(strategy: str, calm: Make) -> None:
    run = calm(*given(strategy))
    facts = run.directory.read_manifest()["stages"]
    for hop, stage in enumerate(some(run.stages[1:]), start=1):
        examples, size = (facts[hop]["kept"][name] for name in ("examples", "bytes"))
        tensors = {} if stage.state is None else state(run, hop).tensors
        assert size == sum(tensor.nbytes for tensor in tensors.values()) + 8 * examples
        assert size > 0 or stage.state is None


# --- Notes and refusals.


MANY = "strategy=gem dataset=mini order=[en,de] model.vocab_size=600"
ADAPTING = " ".join(("strategy=mbpa", *WRITTEN))
POINTS = f"{ADAPTING} evaluate.every_examples=20 trainer.selection=last"


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("overrides", "note"),
    [
        (f"{MANY} strategy.memory=600", "each step uses the whole memory, up to 600 sentences; "),
        (f"{MANY} strategy.memory=500", None),
        (f"{MANY} strategy.memory=600 strategy.compared=16", None),
        ("strategy=replay strategy.replay_interval=26", None),
        (
            "strategy=replay strategy.replay_interval=40",
            "strategy=replay does not use its memory in 2 of the 3 hops: strategy.replay_interval=40 exceeds their "
            "26 to 36 training examples, counted over all epochs. Set it to 26 or less.",
        ),
        (
            "strategy=joint_replay strategy.rate=0.12",
            "strategy=joint_replay does not replay in 1 of the 2 hops after the first: strategy.rate=0.12 is too low "
            "for the shortest hop, which has 8 steps. Set strategy.rate to 0.125 or more.",
        ),
        ("strategy=joint_replay strategy.rate=0.125", None),
        (ADAPTING, None),
        (POINTS, "strategy=mbpa: evaluation points inside hops, and AULTC, use the unadapted model; "),
        (f"{POINTS} strategy.adapt_points=true", None),
        (f"{POINTS} strategy.neighbours=0", None),
    ],
)
def test_settings_that_do_not_do_what_they_seem_to_are_noted(overrides: str, note: str | None, make_run: Make) -> None:
    found = notes([make_run(*overrides.split())])
    assert [note is not None and note in text for text in found] == [True] * (note is not None)


CLS = r"\[CLS\] depends on frozen"


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("strategy=er strategy.interleave=replace strategy.every_k=1", r"strategy\.interleave=replace: "),
        ("strategy=fc_pooler", r"strategy=fc_pooler dataset\.task=intent_slots: tunes BERT's pooler, "),
        ("strategy=fc_reset_pooler", r"strategy=fc_reset_pooler dataset\.task=intent_slots: tunes BERT's pooler, "),
        ("strategy=cos_pooler", r"strategy=cos_pooler dataset\.task=intent_slots: tunes BERT's pooler, "),
        ("strategy=freeze_bottom strategy.layers=2", r"strategy\.layers=2: must be at most 1"),
        ("strategy=lang_spec_enc strategy.layers=[]", r"strategy\.layers=\[\]: must be distinct layers"),
        ("strategy=lang_spec_enc strategy.layers=[1,1]", r"strategy\.layers=\[.*\]: must be distinct layers"),
        ("strategy=lang_spec_enc strategy.layers=[0]", r"strategy\.layers: .* no layer 0, only layers 1 to 1$"),
        ("strategy=lang_spec_enc strategy.layers=[2]", r"strategy\.layers: .* no layer 2, only layers 1 to 1$"),
        ("strategy=kd_rep strategy.expansion=lang_spec_trans", rf"strategy=kd_rep strategy\.expansion=\w+: .*{CLS}"),
        ("strategy=kd_rep strategy.expansion=lang_spec_ada_f", rf"strategy=kd_rep strategy\.expansion=\w+: .*{CLS}"),
        ("strategy=lang_spec_ft strategy.expansion=lang_spec_task", r"strategy=lang_spec_ft .*; only adapters"),
        ("strategy=kd_rep strategy.expansion=lang_spec_prompt", rf"strategy=kd_rep strategy\.expansion=\w+: .*{CLS}"),
        ("strategy=l2p strategy.selected=11", r"strategy\.selected=11: must be at most strategy\.pool=10$"),
        ("strategy=coda_prompt strategy.pool=2", r"strategy\.pool=2: must be at least 3, one component for each hop$"),
        ("strategy=l2p trainer.packing=true", r"strategy=l2p trainer\.packing=true: prompts do not support packing"),
        (
            "strategy=l2p evaluate.attention=true",
            r"evaluate\.attention=true strategy=l2p: not supported for texts with",
        ),
        (
            "strategy=l2p model.family=distilbert",
            r"strategy=l2p model\.max_length=64: the encoder has 64 positions, of which prompts take 25; .*=39 or l",
        ),
        ("strategy=o_lora dataset.blocks=3", r"strategy=o_lora dataset\.blocks=3: added or language-specific param"),
        ("strategy=seq_lora strategy.lora_targets=[w]", r"strategy\.lora_targets=\['w'\]: must be distinct values of"),
        ("strategy=inc_lora model.family=gpt2 model.label_on=last", r"strategy=inc_lora: GPT-2 has one matrix for que"),
    ],
)
def test_what_cannot_work_is_refused_when_a_run_is_planned(overrides: str, told: str, make_run: Make) -> None:
    with pytest.raises(UsageError, match=f"^{told}"):
        make_run(*overrides.split())


@pytest.mark.parametrize(
    ("strategy", "expansion", "told"),
    [
        ("naive", "null,lang_spec_task", "choose one of the strategies agem, der"),
        ("multilingual", "lang_spec_task", "multilingual mix languages in a batch"),
        ("er", "lang_spec_tsk", "strategy.expansion=lang_spec_tsk: unknown; did you mean 'lang_spec_task'"),
    ],
)
def test_an_expansion_that_cannot_be_is_refused_in_a_line(
    strategy: str, expansion: str, told: str, xclrun: Callable[..., tuple[int, str]]
) -> None:
    code, said = xclrun("plan", f"strategy={strategy}", f"strategy.expansion={expansion}", "-m")
    assert (code, said.count("\n"), told in said) == (2, 1, True), said


# --- Hooks and plans.


def hook(self: Any, *given: Any) -> Any: ...


@pytest.mark.parametrize("base", [Naive, ExperienceReplay])
@pytest.mark.parametrize(("name", "entries"), HOOKS.items())
def test_a_plugin_that_overrides_a_hook_of_a_strategy_defines_plan(
    base: type, name: str, entries: tuple[str, ...]
) -> None:
    """Otherwise it would share the results of the strategy that it extends; also where a mixin brings the hook."""
    own = ", ".join(f"{entry}=self.described()" for entry in entries)
    message = (
        rf"Mine: overrides {name} but inherits plan .*: return replace\(super\(\).plan\(hop\), {re.escape(own)}\)$"
    )
    content = {"name": "mine", name: hook}
    with pytest.raises(UsageError, match=message):
        check_hooks(type("Mine", (base,), content))
    with pytest.raises(UsageError, match=message):
        check_hooks(type("Mine", (type("Mixin", (), {name: hook}), base), {}))
    planned = type("Mine", (base,), {**content, "plan": Naive.plan})
    check_hooks(planned)
    # A class derived from it that overrides nothing inherits both.
    check_hooks(type("Further", (planned,), {}))
    with pytest.raises(UsageError, match="Further: overrides"):
        check_hooks(type("Further", (planned, base), {name: hook}))


@pytest.mark.parametrize(("name", "entries"), HOOKS.items())
def test_a_strategy_without_a_plan_shares_no_result_that_its_hooks_can_change(
    name: str, entries: tuple[str, ...]
) -> None:
    mine = type("Mine", (Strategy,), {name: hook})
    check_hooks(mine)
    strategy = mine(StrategyConfig("mine"))
    plan = strategy.plan(sequence(("en", "de")).hops[1])
    assert plan.train == strategy.described()
    assert all(getattr(plan, entry) == strategy.described() for entry in entries)


def test_a_hook_that_is_assigned_later_is_refused_when_the_strategy_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the class, which inherits naive's empty plan, or to the object: it would share naive's hops."""

    class Mine(Naive):
        pass

    class OnObject(Naive):
        def __init__(self, settings: StrategyConfig) -> None:
            super().__init__(settings)
            self.steps = hook

    found: dict[str, type] = {"assigned": Mine, "object": OnObject}
    monkeypatch.setattr("xclrun.strategy.strategy_class", found.__getitem__)
    make(StrategyConfig("assigned"))
    Mine.steps = hook  # type: ignore[method-assign]
    for name, told in (("assigned", "overrides steps but inherits plan"), ("object", "assigns steps to the object")):
        with pytest.raises(UsageError, match=told):
            make(StrategyConfig(name))


def test_a_new_strategy_shares_no_training_with_another(make_run: Callable[..., Run]) -> None:
    class Penalised(Strategy[StrategyConfig]):
        def steps(self, number: int, main: Any, context: Any) -> Any:
            yield Step(main, lambda part, rows: 1e6 * context.model.loss(part))

    run = make_run()
    data = DataIdentity(run.dataset.fingerprints, digest([run.dataset.labels]))

    def keys(strategy: Strategy[Any]) -> list[str]:
        return [stage.train for stage in stages(run.resolved, run.stream, data, run.encoder, strategy)]

    found = [keys(made(StrategyConfig(name))) for made, name in ((Naive, "naive"), (Penalised, "mine"))]
    assert found[0][0] == found[1][0], "hop 0 is the untrained model"
    assert set(found[0]).isdisjoint(found[1][1:])
    # One that says nothing at all is not taken for naive either.
    assert keys(Strategy(StrategyConfig("mine")))[1:] != found[0][1:]


def test_by_default_the_size_of_a_state_is_that_of_its_tensors() -> None:
    class WithState(Strategy[StrategyConfig]):
        def state_dict(self) -> State:
            return State({"n": 3}, {"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.int64)})

    assert WithState(StrategyConfig("mine")).footprint() == {"examples": 0, "bytes": 3 * 4 + 2 * 8}


def test_every_hook_that_can_change_a_result_is_answered_for() -> None:
    """What is left out here says something of a run, or of parts that a hook puts in; a new hook has to be placed."""
    public = {name for name, value in vars(Strategy).items() if callable(value) and not name.startswith("_")}
    told = {
        "stream",
        "unsupported",
        "notes",
        "check_encoder",
        "footprint",
        # Which run a merge needs.
        "merged_strategy",
        # What can change results, and how it is written.
        "plan",
        "described",
        "version_id",
    }
    assert public - {"settings_type"} == set(HOOKS) | told


def test_a_strategy_has_at_most_20_public_methods_and_properties() -> None:
    """What an author has to know: a new one replaces another, or is an entry of `Plan` or `Parameters`."""
    names = {name for name in dir(Strategy) if not name.startswith("_")} - {"settings_type"}
    found = sorted(name for name in names if not isinstance(getattr(Strategy, name), (str, int, bool)))
    assert len(found) <= 20, found


@pytest.mark.some_cases
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
        *((name, key, 0, "at least 1") for name in ("l2p", "coda_prompt") for key in ("pool", "length")),
        *((name, "penalty", -1, "at least 0") for name in ("l2p", "coda_prompt", "o_lora")),
        *(("seq_lora", key, 0, "at least 1") for key in ("lora_rank", "lora_alpha")),
        ("l2p", "selected", 0, "at least 1"),
        ("lang_spec_prompt", "length", 0, "at least 1"),
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
        assert (cls.name, cls.expandable <= ("expansion" in settings)) == (name, True)
        assert cls.has_adapters == ("pretrained" in settings), "how analysis, which imports no strategy, knows adapters"
        assert cls.expands >= cls.adds_language_parameters >= cls.has_adapters, "adapters are parts, and parts expand"


@pytest.mark.full
def test_the_parts_that_are_offered_beneath_a_strategy_can_be_laid_there(compose: Callable[..., Composed]) -> None:
    for name in expansion_choices():
        strategy: Any = make(compose("strategy=er", f"strategy.expansion={name}").config.strategy)
        assert strategy.expansion.expands, name
    assert {"lang_spec_task", "lang_spec_prompt", "seq_lora", "inc_lora"} <= {*expansion_choices()}
    assert not {"naive", "lang_spec_ft", "er", "o_lora", "l2p"} & {*expansion_choices()}


def test_a_strategy_from_outside_is_registered_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STRATEGIES, "registered", {})

    @register
    class Mine(Naive):
        name = "mine"

    assert strategy_class("mine") is Mine
    assert list(STRATEGIES)[-1] == "mine"
    assert type(make(StrategyConfig("mine"))) is Mine
    with pytest.raises(UsageError, match="'er' is already taken"):
        register(type("Er", (Naive,), {"name": "er"}))
    with pytest.raises(UsageError, match="sets no name"):
        register(type("Unnamed", (Naive,), {}))
    with pytest.raises(UsageError, match="not a strategy"):
        register(dict)  # type: ignore[type-var]
    with pytest.raises(UsageError, match="unknown strategy 'min'; did you mean 'mine'"):
        strategy_class("min")


def test_a_hook_that_is_misspelt_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would call it: the numbers would be those of the class above, under another name."""
    monkeypatch.setattr(STRATEGIES, "registered", {})
    # The last four were hooks in version 0.2.0.
    former = (("loss", "steps"), ("signature", "plan"), ("limit", "plan"), ("trains", "parameters"))
    for wrong, right in (("step", "steps"), ("endhop", "end_hop"), *former):
        with pytest.raises(UsageError, match=f"'{wrong}' is not a hook and is never called; did you mean '{right}'"):
            register(type("Mine", (Naive,), {"name": "mine", wrong: lambda *_: None}))
    mixin = type("Mixin", (), {"stepz": lambda *_: None})
    with pytest.raises(UsageError, match="did you mean 'steps'"):
        register(type("Mine", (mixin, Naive), {"name": "mine"}))
    fine = {"name": "mine", "_loss": lambda *_: None, "distance": lambda *_: None, "memory_batches": lambda *_: None}
    register(type("Mine", (Naive,), fine))


@pytest.mark.some_cases
@pytest.mark.parametrize("strategy", ["der", "derpp", "kd_logit", "kd_rep", "lwf"])
def test_tags_that_the_task_does_not_learn_are_left_alone(strategy: str, make_run: Make, do: Make) -> None:
    """The embedded data has tags, which a class task does not read: models have no tag head."""
    data = ("dataset=mini", "dataset.languages=[en,de]", "order=[en,de]", "model.vocab_size=400")
    sizes = ("dataset.task=sequence_class", "dataset.max_train=12", "dataset.max_eval=4", "trainer.epochs=1")
    memory = () if strategy == "lwf" else ("strategy.memory=8",)
    often = ("strategy.every_k=1",) if strategy.startswith("kd") else ()
    run = make_run(*data, *sizes, f"strategy={strategy}", *memory, *often)
    assert not run.dataset.tags
    do(run)
    assert run.directory.finished
