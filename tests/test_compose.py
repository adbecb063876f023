"""Composing: equal to Hydra's own result, for every YAML and for sweeps of all kinds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from xclrun.compose.jobs import Composed, Composer, compose_command, compose_jobs, composing
from xclrun.compose.overrides import checked, load_config_dir, rewritten
from xclrun.compose.save import save
from xclrun.compose.sweep import expand
from xclrun.config.files import choices
from xclrun.config.schema import Config
from xclrun.core.errors import UsageError

# Rows of choices, one of each group: every choice stands in one of them. Sweeps are composed in `test_sweeps`.
GROUPS = {group: list(found) for group, found in choices().items() if "/" not in group and group != "sweep"}
ROWS = [
    [f"{group}={found[k % len(found)]}" for group, found in GROUPS.items()]
    for k in range(max(len(found) for found in GROUPS.values()))
]


@pytest.fixture
def composer() -> Iterator[Composer]:
    with composing() as composer:
        yield composer


def hydras_own(overrides: list[str]) -> dict[str, Any]:
    """Return what Hydra composes for one job, resolved, without Hydra's node."""
    cfg = hydra.compose("config", overrides, return_hydra_config=False)
    resolved = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def test_sweeps_are_added_only_for_commands_that_name_one(composer: Composer, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[str] = []
    composer._composed = {}
    monkeypatch.setattr("xclrun.compose.jobs._register_sweeps", lambda: added.append("all"))
    monkeypatch.setattr("xclrun.compose.jobs.hydra.compose", lambda *words, **options: words)
    for words, expected in ((("seed=971",), []), (("sweep=demo", "seed=972"), ["all"])):
        composer.chosen(words)
        assert added == expected


@pytest.mark.some_cases
@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_every_yaml_composes(row: list[str], compose: Callable[..., Composed]) -> None:
    job = compose(*row, *(["order.languages=[en,de]"] if "order=list" in row else []))
    assert isinstance(job.config, Config)
    assert f"dataset={job.config.dataset.name}" in row


MIXED = [
    ["strategy=naive,er", "seed=1,2", "bucket=null,1", "trainer=quick"],
    ["order=[en,de],h2l", "trainer.lr=1e-3,2e-3", "seed=range(1,3)"],
    ["strategy=er", "strategy.memory=5,50", "dataset.replay.every_k=7", "trainer.betas=[0.9,0.95],[0.8,0.9]"],
    ["dataset=mini,mtop", "dataset.root=x", "model=tiny,mbert", "trainer.precision=bf16", "seed=4"],
    ["experiment=smoke", "order=l2h,[de]", "dataset.max_train=5,6", "tracking=none"],
    # Values that refer to the seed cannot be shared between seeds.
    ["seed=1,2", "dataset.subset_seed=${seed}", "order.name=o${seed}", "trainer.batch_size=1${seed}", "bucket=${seed}"],
]


@pytest.mark.some_cases
@pytest.mark.parametrize("overrides", MIXED, ids=lambda overrides: overrides[0])
def test_a_sweep_equals_hydras_own_composition(overrides: list[str], composer: Composer) -> None:
    jobs = expand(checked(overrides))
    composed = compose_jobs(jobs, composer)
    assert len(composed) == len(jobs) > 1
    assert [job.overrides for job in composed] == [tuple(job) for job in jobs]
    # The first and the last differ in every value that varies.
    for job in composed[:: max(1, len(composed) - 1)]:
        assert job.resolved == hydras_own(list(job.overrides))
        assert job.config.seed == job.resolved["seed"]
        assert job.config.bucket == job.resolved["bucket"]
        assert job.config.trainer.lr == job.resolved["trainer"]["lr"]
        assert job.config.order.languages == job.resolved["order"]["languages"]


def test_each_strategy_and_order_is_composed_once_for_all_other_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    compose = hydra.compose

    def counted(name: str, overrides: list[str], **options: Any) -> Any:
        made.append(overrides)
        return compose(name, overrides, **options)

    monkeypatch.setattr("xclrun.compose.jobs._COMPOSED", {})
    monkeypatch.setattr(hydra, "compose", counted)
    expanded = expand(["strategy=er,merge,naive", "dataset=mini,pud", "dataset.root=x", "order=h2l,l2h"])
    with composing() as composer:
        composed = compose_jobs(expanded, composer)
        assert len(made) == 2 + 3 + 2 < len(expanded)
        for job in composed[::3]:
            assert job.resolved == hydras_own(list(job.overrides))
        # Without `strategy=`, parts are those of the strategy that an experiment chooses, which has none.
        with pytest.raises(ConfigCompositionException):
            compose_jobs([["experiment=codelength", "strategy/expansion=lang_spec_task"]], composer)


def test_seeds_and_buckets_need_no_composition_of_their_own(
    composer: Composer, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []
    load = composer.compose
    monkeypatch.setattr(composer, "compose", lambda overrides: loads.append(overrides) or load(overrides))
    jobs = expand(["strategy=naive,er", "order=h2l,l2h", "seed=range(1,11)", "bucket=range(0,10)"])
    composed = compose_jobs(jobs, composer)
    assert len(composed) == 400
    assert len(loads) == 4
    assert len({(j.config.strategy.name, j.config.order.name, j.config.seed, j.config.bucket) for j in composed}) == 400


def test_values_of_the_command_count_before_those_of_a_sweep() -> None:
    composed = compose_command(["sweep=demo", "seed=7", "order=[en,de]", "-m"])
    assert {job.config.seed for job in composed} == {7}
    assert {tuple(job.config.order.languages or ()) for job in composed} == {("en", "de")}
    assert {job.config.strategy.name for job in composed} == {"naive", "er", "lang_spec_ft"}


def test_a_list_of_languages_is_the_choice_list() -> None:
    assert rewritten(["seed=1", "order=[en,de]"]) == ["seed=1", "order=list", "order.languages=[en,de]"]
    assert rewritten(["order=list", "order.languages=[en]"]) == ["order=list", "order.languages=[en]"]
    assert rewritten(["seed=1", "order.languages=[en]"]) == ["order=list", "seed=1", "order.languages=[en]"]
    assert rewritten(["order=[en,de],[de,en]"]) == ["order=[en,de],[de,en]"]


def test_a_list_does_not_pass_under_the_name_of_another_order() -> None:
    for order in ("h2l", "order1", "list,h2l"):
        with pytest.raises(UsageError, match=f"^order={order} sets its own languages; for a list, use order="):
            checked([f"order={order}", "order.languages=[en,de]"])
    assert {job.config.order.name for job in compose_command(["order.languages=[en,de]"])} == {None}


def test_keys_that_are_not_in_the_schema_are_refused_though_added(composer: Composer) -> None:
    for override, key in (("+foo=1", "foo"), ("++trainer.foo=1", "trainer.foo"), ("+dataset.replay.x=1", "replay.x")):
        with pytest.raises(Exception, match=rf"{key}"):
            compose_jobs([[override]], composer)
    with pytest.raises(UsageError, match=r"^unknown key 'trainer\.foo'; did you mean"):
        compose_jobs([["+trainer.foo=1"]], composer)


@pytest.mark.parametrize(
    ("command", "group", "found"),
    [
        ("strategy=er,agem strategy.memory=7", "strategy", [("er", 7), ("agem", 7)]),
        ("strategy=er,agem strategy.expansion=null", "strategy", [("er", None), ("agem", None)]),
        ("strategy=er strategy.memory=7 seed=1,2", "strategy", [("er", 7)] * 2),
        ("model=tiny,mbert model.max_length=64", "model", [("tiny", 64), ("mbert", 64)]),
        ("order=h2l,l2h order.name=mine", "order", [("mine", "mine")] * 2),
    ],
)
def test_one_value_for_several_choices_of_its_group(command: str, group: str, found: list[tuple[Any, Any]]) -> None:
    """Each job sets it on its own choice; Hydra would first set it on the default, which may lack the key."""
    key = re.split(r" \w+\.(\w+)=", command)[1]
    jobs = [job.resolved[group] for job in compose_command([*command.split(), "-m"])]
    assert [(job["name"], job[key]) for job in jobs] == found


def test_a_value_that_must_be_given(composer: Composer) -> None:
    with pytest.raises(UsageError, match=r"^trainer\.lr must be given$"):
        compose_jobs([["trainer.lr=???"]], composer)


def test_a_continuous_range_is_no_sweep(composer: Composer) -> None:
    with pytest.raises(UsageError, match=r"trainer\.lr=interval\(0,1\): a sweep needs values to choose from"):
        expand(["trainer.lr=interval(0,1)"])


def test_maps_take_entries_as_they_are_documented() -> None:
    """Without the + that Hydra wants for a name that it does not know."""
    [job] = compose_command(["dataset=jsonl", "dataset.hub_columns={text: premise, text_b: hypothesis}"])
    assert job.config.dataset.hub_columns == {"text": "premise", "text_b": "hypothesis"}
    [job] = compose_command(["model.settings={hidden_act: relu}"])
    assert job.config.model.settings == {"hidden_act": "relu"}
    jobs = compose_command(["model.settings.hidden_act=relu,gelu"])
    assert [job.config.model.settings for job in jobs] == [{"hidden_act": "relu"}, {"hidden_act": "gelu"}]
    # Of a choice that has some, one is replaced and the others stay.
    [job] = compose_command(["model=mdeberta", "model.hub=null", "model.settings.position_buckets=32"])
    assert job.config.model.settings["position_buckets"] == 32
    assert job.config.model.settings["share_att_key"] is True
    # What some jobs of a sweep make use of is not refused for the others.
    jobs = compose_command(["dataset.buckets.number=3", "shots=null,4"])
    assert [job.config.shots for job in jobs] == [None, 4]


def test_an_encoder_is_named_after_its_folder_unless_it_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def names(*overrides: str) -> list[str]:
        return [job.config.model.name for job in compose_command(["dataset=mini", *overrides])]

    assert names("model=mbert") == ["mbert"]
    assert names("model=tiny", "model.path=../myenc/") == ["myenc"]
    assert names("model=mbert", "model.path=a/b 1,/c/.d,null") == ["b_1", "d", "mbert"]
    assert names("model=mbert", "model.path=.") == [tmp_path.name]
    # A chosen name wins, also if it is that of a packaged encoder.
    assert names("model=xlmr", "model.path=x", "model.name=mbert") == ["mbert"]
    (tmp_path / "conf" / "model").mkdir(parents=True)
    for name, line in (("mine", "name: ours"), ("other", "lr: 0.1")):
        (tmp_path / "conf" / "model" / f"{name}.yaml").write_text(f"defaults: [mbert, _self_]\n{line}\npath: x/y\n")
    folder = load_config_dir(tmp_path / "conf")
    assert names(folder, "model=mine") == ["ours"]
    assert names(folder, "model=other") == ["y"]


def test_a_saved_command_is_a_sweep_with_the_same_jobs(tmp_path: Path) -> None:
    settings = [
        "strategy=er,naive",
        "order=h2l,[en,de]",
        "seed=1,2",
        "trainer.betas=[0.9,0.95]",
        "dataset.max_dev=null",
    ]
    folder = tmp_path / "configs"
    command = save([*settings, "sweep_name=x", "paths.outputs=elsewhere", "hydra.launcher.n=2"], "mine", folder)
    assert command == f"xclrun --config-dir {folder} sweep=mine paths.outputs=elsewhere hydra.launcher.n=2 -m"
    jobs = compose_command([load_config_dir(folder, ["sweep=mine"]), "sweep=mine"])
    assert [job.resolved for job in jobs] == [job.resolved for job in compose_command(settings)]
    # The same command can be saved again, another one cannot.
    save(settings, "mine", folder)
    with pytest.raises(UsageError, match="has other settings"):
        save(settings[1:], "mine", folder)


@pytest.mark.parametrize("text", ["sweep=demo", "hydra.sweeper.trials=3"])
def test_commands_on_top_of_other_sweeps_are_not_saved(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be saved"):
        save([text], "mine", tmp_path)
    assert not list(tmp_path.iterdir())
