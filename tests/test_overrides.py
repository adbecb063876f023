"""Overrides of a command: what Hydra would misread is rewritten, what would be ignored is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from xclrun.compose.overrides import checked, rewritten
from xclrun.core.errors import UsageError

LIST = ["order=list", "order.languages=[en,de]"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("order=[en,de]", LIST),
        ("order= [en,de]", ["order=list", "order.languages= [en,de]"]),
        ("order.languages=[en,de]", LIST),
        # Several values are rewritten for each job.
        ("order=[en],[de]", ["order=[en],[de]"]),
        ("order=h2l", ["order=h2l"]),
        ("order=typology(de)", ["order=typology", "order.start=de"]),
        ("order='random(2)'", ["order=random", "order.seed=2"]),
        ("order=similarity(greedy)", ["order=similarity"]),
        ("order=typology(greedy)", ["order=typology", "order.start=greedy"]),
        # A choice, by the name of a group; null is a value.
        ("strategy.expansion=lang_spec_task", ["strategy/expansion=lang_spec_task"]),
        ("strategy/expansion=lang_spec_task", ["strategy/expansion=lang_spec_task"]),
        ("strategy.expansion=null", ["strategy.expansion=null"]),
        ("strategy/expansion=null", ["strategy.expansion=null"]),
        (
            "strategy.expansion={name: 'lang_spec_lora_f', lora_rank: 3, start: 'own'}",
            ["strategy/expansion=lang_spec_lora_f", "strategy.expansion.lora_rank=3", "strategy.expansion.start='own'"],
        ),
        ("strategy.expansion=lang_spec_task,null", ["strategy.expansion=lang_spec_task,null"]),
        ("strategy.expansion.layers=[1]", ["strategy.expansion.layers=[1]"]),
        # Entries of maps are new.
        ("dataset.parts={a: {task: span}}", ["+dataset.parts={a: {task: span}}"]),
        ("dataset.parts.a.where={x: y}", ["+dataset.parts.a.where={x: y}"]),
        ("dataset.hub_columns={a: b}", ["+dataset.hub_columns={a: b}"]),
        ("dataset.statements.kinds={a: {}}", ["+dataset.statements.kinds={a: {}}"]),
        ("model.settings={a: 1}", ["+model.settings={a: 1}"]),
        ("model.settings.a=1", ["++model.settings.a=1"]),
        ("dataset.parts=null", ["dataset.parts=null"]),
        ("dataset.parts.a.task=span", ["dataset.parts.a.task=span"]),
        ("seed=1", ["seed=1"]),
    ],
)
def test_each_override_is_written_as_hydra_reads_it(text: str, found: list[str]) -> None:
    assert rewritten([text]) == found
    # Again, it changes no more: jobs of a sweep are rewritten after their command.
    again = [word for word in rewritten(found) if not word.startswith("+")]
    assert again == [word for word in found if not word.startswith("+")]
    assert rewritten(["seed=3", text])[-len(found) :] == found or found[0] == "order=list"


def test_a_home_folder_is_expanded_where_it_is_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me,you")
    assert rewritten(["paths.data=~/x"]) == ["paths.data='/home/me,you/x'"]
    assert rewritten(["paths.data=~/x,~/y"]) == ["paths.data=~/x,~/y"]
    assert rewritten(["paths.data=x/~"]) == ["paths.data=x/~"]


# Each mistake, and what the one line about it says.
REFUSED = [
    (["=3"], "has no key"),
    (["sweep=demo", "sweep=ccl_table5"], "run one sweep at a time"),
    (["sweep=demo,ccl_table5"], "run one sweep at a time"),
    (["seed=glob(*)"], "is for choices of a group"),
    (["hydra.launcher._target_=x"], "use hydra/launcher=local"),
    (["hydra.run.dir=x"], "set paths.outputs"),
    (["hydra/job_logging=none"], "xclrun writes no log files"),
    (["~seed"], "set the key to null"),
    (["order=h2l", "order.languages=[en,de]"], "sets its own languages"),
    (["+strategy=er"], "remove the +"),
    (["strategy="], "needs a name"),
    (["strategy=3"], "needs a name"),
    (["strategy={name: er}"], "needs a name"),
    (["strategy=[er]"], "needs a name"),
    (["strategy=er,{name: er}"], "needs a name"),
    (["strategy/expansion=3"], "needs a name"),
    (["strategy.expansion={layers: 2}"], "needs a name"),
    (["strategy.expansion={name: lang_spec_enc, layers: [1]}"], "use strategy.expansion=lang_spec_enc strategy."),
    (["strategy.expansion={name: lang_spec_enc, layers: {a: 1}}"], "use strategy.expansion=lang_spec_enc strategy."),
    (["hydra/launcher=basic"], "cannot run xclrun's jobs"),
    (["order=random()"], "orders with arguments are"),
    (["order=random(1,2)"], "orders with arguments are"),
    (["order=h2l(1)"], "orders with arguments are"),
    (["order=typology(3)"], "orders with arguments are"),
]


@pytest.mark.parametrize(("overrides", "told"), REFUSED, ids=lambda value: " ".join(value))
def test_what_would_be_ignored_or_misread_is_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(UsageError) as raised:
        checked(overrides)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_choices_of_any_spelling_pass() -> None:
    for text in ("strategy=er,naive", "strategy=glob(l*)", "strategy='er'", "sweep=demo", "hydra/launcher=local"):
        assert checked([text]) == [text]
    assert checked(["order=[en,de]"]) == LIST


def test_a_folder_of_configs_is_the_only_use_of_hydras_search_path(tmp_path: Path) -> None:
    from xclrun.compose.overrides import load_config_dir

    odd = tmp_path / "a,b"
    odd.mkdir()
    for folder in (tmp_path, odd):
        text = load_config_dir(folder)
        assert checked([text]) == [text]
    assert "'" in text
    with pytest.raises(UsageError, match="--config-dir=DIR"):
        checked([f"hydra.searchpath=[file://{tmp_path}/other]"])
    with pytest.raises(UsageError, match="there is no such folder"):
        load_config_dir(tmp_path / "none")


def test_a_broken_file_matters_where_it_is_named(tmp_path: Path) -> None:
    """A part of a longer name is another name."""
    from xclrun.compose.overrides import load_config_dir

    (tmp_path / "er.yaml").write_text("a: &a [*a]")
    (tmp_path / "good.yaml").write_text("strategy: derpp")
    for text in ("strategy=derpp", "strategy=er-2", "strategy=naive"):
        load_config_dir(tmp_path, [text])
    for text in ("strategy=er", "sweep=x,er", "defaults: [/strategy/er]"):
        with pytest.raises(UsageError, match=r"er\.yaml:1: cannot be read as YAML"):
            load_config_dir(tmp_path, [text])
    (tmp_path / "good.yaml").write_text("strategy: er")
    with pytest.raises(UsageError, match=r"er\.yaml"):
        load_config_dir(tmp_path)
