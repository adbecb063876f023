"""Sweeps: lists of grids; those of papers hold the runs that their tables and figures need, under the same ids as ever.

`tests/golden_sweeps.json` holds, for each name that can be given as ``sweep=``, the number of its jobs and hashes of
what makes their run ids: of the identity of their configs, and of the run ids themselves on the embedded dataset.
Write it with `python -m tests.test_sweeps`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException

from xclrun.compose.explain import explain
from xclrun.compose.jobs import Composed, compose_command, compose_jobs, composing
from xclrun.compose.overrides import load_config_dir
from xclrun.compose.sweep import expand, grids, sweep_nodes
from xclrun.config.files import choices, published, sweep_files
from xclrun.config.schema import plain
from xclrun.core.errors import UsageError
from xclrun.core.identity import digest, identity
from xclrun.plan import plan_jobs, plan_run
from xclrun.plan.checks import with_library
from xclrun.report.fewshot.data import method_name
from xclrun.report.published import ccl_tables, table_of
from xclrun.report.published.ed import ed_tables
from xclrun.report.published.fsxlt import fsxlt_tables, sweep_table

GOLDEN_FILE = Path(__file__).with_name("golden_sweeps.json")
GOLDEN: dict[str, dict[str, Any]] = json.loads(GOLDEN_FILE.read_text())
SWEEPS = sorted(GOLDEN)
ZERO_SHOT = [name for name in SWEEPS if name.startswith("ed_")]
FEW_SHOT = [name for name in SWEEPS if name.startswith("fs_")]
LIFELONG = [name for name in SWEEPS if name.startswith("ll")]
INTELLIGENCE = [name for name in SWEEPS if name.startswith("gli_")]
# The others have up to a hundred combinations of choices each, and differ in these.
FAST = ("demo", "ccl_table5", "fs_pud", "fs_table5")
SMALL = ("dataset=mini", "model=tiny", "model.hidden_layers=12", "tracking=none")


@pytest.fixture(scope="module")
def jobs() -> Callable[[str], list[dict[str, str]]]:
    """Return what each job of a sweep sets: key → value."""
    nodes = sweep_nodes()
    expanded = {name: expand([], node["hydra"]["sweeper"]["params"]) for name, node in nodes.items()}
    return lambda name: [dict(text.split("=", 1) for text in job) for job in expanded[name]]


Jobs = Callable[[str], list[dict[str, str]]]


def called(job: dict[str, str]) -> set[str]:
    """Return what the paper's tables call the strategy of a job."""
    name = job["strategy"]
    if expansion := job.get("strategy/expansion"):
        name = f"lang_spec_ft_{expansion.removeprefix('lang_spec_')}"
    if layers := json.loads(job.get("strategy.layers", "[]")):
        name = f"lang_spec_enc_{layers[0]}_{layers[-1]}"
    if memory := job.get("strategy.memory"):
        return {f"er_{memory}"}
    if job.get("dataset.max_train") == "9219":
        return {"naive_balanced"} if name == "naive" else set()
    return {"er", "er_6000"} if name == "er" else {name}


# Job, as a list of overrides → hash of its identity, and its run ID on the embedded dataset: sweeps share most jobs.
identities: dict[tuple[str, ...], str] = {}
run_ids: dict[tuple[str, ...], str] = {}


def of_jobs(
    known: dict[tuple[str, ...], str], name: str, overrides: Sequence[str], value: Callable[[Composed], str]
) -> list[str]:
    """Return a value of each job of a sweep; compose the jobs that no other sweep had."""
    jobs = [tuple(job) for job in expand([*overrides], sweep_nodes()[name]["hydra"]["sweeper"]["params"])]
    with composing() as composer:
        new = [job for job in dict.fromkeys(jobs) if job not in known]
        known.update((tuple(job.overrides), value(job)) for job in compose_jobs(new, composer))
    return [known[job] for job in jobs]


def planned(name: str, runs: bool) -> dict[str, Any]:
    """Return what the golden file holds of a sweep: the number of its jobs and the hashes of their identity."""
    found = of_jobs(identities, name, (), lambda job: digest(identity(plain(with_library(job.config)))))
    result: dict[str, Any] = {"jobs": len(found), "configs": digest(sorted(found))[:16]}
    if runs:
        ids = of_jobs(run_ids, name, SMALL, lambda job: plan_run(job.config).id)
        result["runs"] = digest(sorted(set(ids)))[:16]
    return result


@pytest.mark.full
def test_jobs_of_a_command_are_those_of_its_sweep() -> None:
    command = compose_command(["sweep=demo", "-m"])
    assert planned("demo", False)["configs"] == digest(sorted(digest(identity(job.resolved)) for job in command))[:16]


def test_every_name_is_in_the_golden_file() -> None:
    """`sweep=NAME`: a sweep of a file, or what a table or figure needs."""
    tables = {f"ccl_table{k}" for k in ccl_tables()} | {f"ccl_fig{k}" for k in range(3, 14) if k != 5}
    benchmark = {"methods_mtop16"}
    assert set(published()) - {*FEW_SHOT, *LIFELONG, *ZERO_SHOT, *INTELLIGENCE} == tables | benchmark
    lifelong = {"ll", "ll_classes", "ll_mixed", "ll_mtop16", "ll_permutations", "ll_pud"}
    zero_shot = {"ed_mldoc", "ed_xnli", "ed_mtop", "ed_mini"}
    intelligence = {"gli_mnli", "gli_squad", "gli_after_others", "gli_mtop16", "gli_generalisation"}
    intelligence |= {"gli_continual", "gli_curriculum", "gli_supervised"}
    demos = {"demo", "demo_text"}
    assert set(SWEEPS) == set(published()) | demos | {"fs_pud", "fs_seeds"} | lifelong | zero_shot | intelligence
    assert set(choices()["sweep"]) == set(published()) | set(sweep_files()) == set(sweep_nodes())
    assert set(ccl_tables()) == {str(k) for k in range(2, 21)} - {"6"}
    assert table_of("ccl_table8") == "8"
    assert table_of("ccl_fig3") is None
    assert table_of("demo") is None


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_has_as_many_jobs_as_ever(name: str, jobs: Jobs) -> None:
    assert len(jobs(name)) == GOLDEN[name]["jobs"]


@pytest.mark.xdist_group("sweeps")  # In one process, which has planned most of the jobs for another sweep.
@pytest.mark.in_turn
@pytest.mark.some_cases(*FAST)
@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_has_the_run_ids_that_it_always_had(name: str) -> None:
    assert planned(name, "runs" in GOLDEN[name]) == GOLDEN[name]


@pytest.mark.parametrize("name", sorted(sweep_files()))
def test_every_value_is_a_choice(name: str, jobs: Jobs) -> None:
    for key in ("dataset", "model", "strategy", "order"):
        assert {job[key] for job in jobs(name) if key in job} <= choices()[key].keys()


@pytest.mark.parametrize("table", sorted(ccl_tables(), key=int))
def test_a_sweep_runs_all_that_its_table_holds(table: str, jobs: Jobs) -> None:
    found, rows = jobs(f"ccl_table{table}"), ccl_tables()[table]
    assert {(job["dataset"], job["model"]) for job in found} == {("mtop", "mbert")}
    made = set.union(*map(called, found))
    assert {row.model for row in rows} <= made
    named = {"h2l": "order1", "l2h": "order2"}
    asked = {named.get(row.order, row.order) for row in rows} - {"", "mean"}
    orders = list(dict.fromkeys(job["order"] for job in found))
    assert asked <= set(orders)
    if {row.order for row in rows} == {"mean"}:
        assert orders == [f"order{k}" for k in range(1, 7)]
    if any(row.measure == "T" for row in rows):
        assert "lang_spec_ft" in {job["strategy"] for job in found}


@pytest.mark.parametrize("name", [name for name in SWEEPS if name.startswith("ccl_fig")])
def test_figures_have_six_orders_and_references(name: str, jobs: Jobs) -> None:
    for strategy in ("naive", "lang_spec_ft"):
        found = [job["order"] for job in jobs(name) if called(job) == {strategy}]
        assert list(dict.fromkeys(found)) == [f"order{k}" for k in range(1, 7)]


def test_seeds_are_those_of_the_paper(jobs: Jobs) -> None:
    assert {job["seed"] for job in jobs("ccl_table8")} == {"42"}
    assert {job["seed"] for job in jobs("ccl_table20")} == {"42", "40", "35"}
    assert {job["seed"] for job in jobs("ccl_fig10")} == {"42"}
    assert {job["seed"] for job in jobs("ccl_fig12")} == {"42", "40", "35"}


def test_the_sweep_of_attention_keeps_it(jobs: Jobs) -> None:
    assert [name for name in SWEEPS if any("evaluate.attention" in job for job in jobs(name))] == ["fs_table5"]


# Streams of LL, section 4.1 (LIFELONG, section 1.3).
STREAMS = {
    "standard": "boolq udpos wic fewrel yelp",
    "large": "boolq udpos wic fewrel yelp",
    "larger": "boolq udpos wic fewrel yelp",
    "long": "udpos panner wic fewrel agnews yahoo dbpedia amazon yelp boolq",
    "forgetting": "fewrel udpos wic yelp boolq",
    "intransigence": "yelp udpos wic boolq fewrel",
    "final": "wic udpos boolq fewrel yelp",
    "aultc": "udpos wic fewrel yelp boolq",
    "multidomain_a": "yelp agnews dbpedia amazon yahoo",
    "multidomain_b": "fiction government slate telephone travel",
    "multilingual_a": "ar hi tr fi zh",
    "multilingual_b": "ar bn tr fi zh",
    "linguistic": "udpos panner wic wsc fewrel",
}


@pytest.mark.some_cases
@pytest.mark.parametrize("stream", STREAMS)
def test_streams_of_lifelong_learning_are_those_of_the_paper(stream: str, jobs: Jobs, compose: Any) -> None:
    found = jobs(f"ll_{stream}")
    assert {job["seed"] for job in found} == {"1", "2", "3", "4", "42"}
    job = next(job for job in found if job["strategy"] == "replay")
    config = compose(*(f"{key}={value}" for key, value in job.items())).config
    assert config.order.languages == STREAMS[stream].split()
    dataset, trainer = config.dataset, config.trainer
    kinds = [dataset.statements.kind, *(part.statements for part in dataset.parts.values())]
    assert any(kinds)
    assert set(STREAMS[stream].split()) <= {*dataset.parts, *(dataset.languages or ())}
    size = {"large": 50_000, "larger": 100_000}.get(stream, 10_000)
    assert (dataset.max_train, dataset.max_eval, dataset.stratified) == (size, 1000, True)
    assert (trainer.epochs, trainer.batch_size, trainer.lr) == (1, 25, 3e-5)
    assert config.model.name == ("mbert" if "multilingual" in stream else "bert")


def test_the_study_of_orders_has_each_order_of_the_standard_stream_once(jobs: Jobs) -> None:
    found = [
        job["order.languages"].strip("[]").split(",") for job in jobs("ll_permutations") if job["strategy"] == "naive"
    ]
    assert len(found) == 120
    assert {*map(tuple, found)} == {*permutations(STREAMS["standard"].split())}


def test_the_shared_head_is_studied_on_five_sets_in_the_order_of_the_paper(jobs: Jobs, compose: Any) -> None:
    found = jobs("ll_classes")
    assert {job["seed"] for job in found} == {"1", "2", "3", "4", "42"}
    assert {job["strategy"] for job in found} == {"naive", "lang_spec_task"}
    assert {job["strategy"] for job in jobs("ll_fig1")} == {"naive"}
    config = compose(*(f"{key}={value}" for key, value in found[0].items())).config
    assert config.order.languages == ["yelp", "agnews", "dbpedia", "amazon", "yahoo"] == list(config.dataset.parts)
    assert (config.dataset.max_train, config.dataset.statements.kind) == (10_000, None)
    assert not any(part.statements for part in config.dataset.parts.values())
    assert config.evaluate.class_gradients
    assert config.model.name == "bert"


def test_seeds_are_set_against_buckets_as_in_the_paper(jobs: Jobs) -> None:
    for dataset, language in (("marc", "de"), ("mldoc", "es")):
        own = jobs(f"fs_fig1_{dataset}")
        assert {(job["dataset"], job["language"]) for job in own} == {(dataset, language)}
        assert len({job["bucket"] for job in own if job["seed"] == "1"}) == 40
        assert len({job["seed"] for job in own if job["bucket"] == "0"}) == 40


@pytest.mark.parametrize("table", sorted(fsxlt_tables(), key=int))
def test_few_shot_sweeps_run_all_that_their_table_holds(table: str, jobs: Jobs) -> None:
    names = [name for name in FEW_SHOT if sweep_table(name) == table]
    rows = [row for row in fsxlt_tables()[table] if row.shots > 0 and row.language]
    scores = table not in ("3", "14")
    # Of Table 4, differences, both sides.
    sources = {"4": ("en", "none"), "11": ("none",)}.get(table, ("en",))
    named = scores and table not in ("4", "11")
    wanted = {(r.task, r.language, r.shots, r.method if named else "full", of) for r in rows for of in sources}
    made = {
        (job["dataset"], job["language"], int(job["shots"]), method_name(job["strategy"]), job.get("source", "en"))
        for name in names
        for job in jobs(name)
    }
    assert names
    assert wanted <= made
    # Tables 3 and 14 need all languages of the tables of scores.
    assert made == wanted or not scores


@pytest.mark.parametrize("name", [name for name in FEW_SHOT if name != "fs_pud"])
def test_few_shot_sweeps_are_those_of_the_paper(name: str, jobs: Jobs) -> None:
    # Its settings stand in one place: the experiment.
    assert {(job["experiment"], job["model"], "model.label_on" in job) for job in jobs(name)} == {
        ("fewshot", "mbert", False)
    }
    if sweep_table(name) in ("2", "4", "6", "11", "12", "13"):
        assert {job["bucket"] for job in jobs(name)} == {str(k) for k in range(40)}


@pytest.mark.parametrize("dataset", ["mldoc", "xnli"])
def test_zero_shot_sweeps_test_the_languages_of_their_tables(dataset: str, jobs: Jobs) -> None:
    found = jobs(f"ed_{dataset}")
    assert {job["seed"] for job in found} == {str(k) for k in range(1, 11)}
    assert {job["model"] for job in found} == {"mbert"}
    (order,) = {job["order.languages"] for job in found}
    languages = order.strip("[]").split(",")
    assert languages[0] == "en"
    for table in ("2", "3", "5"):
        held = {language for _, language, _ in ed_tables()[table, dataset]}
        assert held | {"en"} == set(languages)
        assert jobs(f"ed_table{table}_{dataset}") == found


# Lists of grids.

TWO: list[dict[str, Any]] = [
    {"strategy": "naive,er", "seed": "1,2"},
    {"strategy": "er", "strategy.memory": "5,6", "seed": 1},
    {"strategy": "er,naive", "seed": 2},
]


def expanded(*typed: str, params: Any = TWO) -> list[str]:
    return [" ".join(sorted(job)) for job in expand(typed, params)]


def test_the_jobs_of_a_list_of_grids_are_those_of_each_once() -> None:
    one = ["seed=1 strategy=naive", "seed=2 strategy=naive", "seed=1 strategy=er", "seed=2 strategy=er"]
    two = [f"seed=1 strategy.memory={k} strategy=er" for k in (5, 6)]
    assert expanded() == [*one, *two]
    assert expanded(params=TWO[0]) == expanded(params=TWO[:1]) == one


def test_what_is_typed_counts_more_in_every_grid() -> None:
    found = expanded("seed=9", "trainer=quick")
    assert found[:3] == [f"seed=9 strategy={name} trainer=quick" for name in ("naive", "er")] + [
        "seed=9 strategy.memory=5 strategy=er trainer=quick"
    ]


def test_strategies_select_the_grids_that_have_them() -> None:
    assert expanded("strategy=naive") == ["seed=1 strategy=naive", "seed=2 strategy=naive"]
    other = [{"strategy": "naive,er", "seed": 1}, {"strategy": "o_lora", "seed": 1, "trainer.lr": "0.001"}]
    assert expanded("strategy=er,o_lora", params=other) == [
        "seed=1 strategy=er",
        "seed=1 strategy=o_lora trainer.lr=0.001",
    ]
    # The settings of a grid belong to its strategies; a strategy that no grid has takes none of them.
    settings = [f"seed=1 strategy.memory={k} strategy=er" for k in (5, 6)]
    assert expanded("strategy=er") == ["seed=1 strategy=er", "seed=2 strategy=er", *settings]
    assert expanded("strategy=agem,er", params=TWO[1:2]) == [*settings, "seed=1 strategy=agem"]
    assert expanded("strategy=er", "strategy.memory=7", params=TWO[1]) == ["seed=1 strategy.memory=7 strategy=er"]


def test_a_setting_is_set_in_the_grids_whose_strategies_have_it() -> None:
    apart = [{"strategy": "naive"}, {"strategy": "er", "strategy.memory": "5,6"}]
    assert expanded("strategy.memory=7", params=apart) == [
        "strategy=naive",
        "strategy.memory=7 strategy=er",
    ]
    # None has it: it stays, and is refused.
    assert expanded("strategy.weight=7", params=apart)[0] == "strategy.weight=7 strategy=naive"
    assert expanded("strategy.memory=7", "strategy=agem", params=apart) == ["strategy.memory=7 strategy=agem"]


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("strategy.weight=7", r"^unknown key 'strategy\.weight'; .*only kd_logit, .*, model_average"),
        ("strategy.memori=7", r"^unknown key 'strategy\.memori'; did you mean 'strategy.memory'"),
        ("trainer.lrr=7", r"^unknown key 'trainer\.lrr'; did you mean 'trainer.lr'"),
    ],
)
def test_a_setting_that_no_grid_has_is_refused(typed: str, told: str) -> None:
    with pytest.raises(HydraException) as error:
        compose_command(["sweep=ccl_memory", typed, "-m"])
    assert re.match(told, explain(error.value))


def test_steps_of_mixtures_are_set_in_the_jobs_that_have_mixtures() -> None:
    found = compose_command(["sweep=gli_supervised", "trainer.mixture_steps=20", "-m"])
    assert {tuple(job.config.order.languages): job.config.trainer.mixture_steps for job in found} == {
        ("squad",): None,
        ("qa_srl+qa_zre+mnli+triviaqa+quac", "squad"): 20,
    }
    grid = ["order=[en,de],[en+de,fr]", "trainer.mixture_steps=20,30", "dataset=mini", "model=tiny", "-m"]
    runs = plan_jobs(job.config for job in compose_command(grid))
    assert [run.config.trainer.mixture_steps for run in runs] == [None, 20, 30]
    # Without a mixture in any job the key has no effect at all.
    with pytest.raises(UsageError, match=r"trainer\.mixture_steps=20: "):
        plan_jobs(job.config for job in compose_command([grid[0].partition(",[")[0], *grid[1:]]))


def test_a_list_of_grids_in_a_file_of_one_s_own(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "mine.yaml").write_text(
        "# @package _global_\n# Mine.\nhydra:\n  sweeper:\n    params:\n"
        "      - {strategy: naive, seed: 3}\n      - {strategy: er, strategy.memory: '5,6'}\n"
    )
    found = compose_command([load_config_dir(tmp_path), "sweep=mine", "trainer.epochs=2", "-m"])
    assert [(job.config.strategy.name, job.config.seed) for job in found] == [("naive", 3), ("er", 1), ("er", 1)]
    assert [getattr(job.config.strategy, "memory", None) for job in found] == [None, 5, 6]
    assert {job.config.trainer.epochs for job in found} == {2}


def test_a_config_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "it's \\'a, #b%20?=${c}]"
    (folder / "strategy").mkdir(parents=True)
    (folder / "strategy" / "mine.yaml").write_text("defaults: [er, _self_]\n")
    [job] = compose_command([load_config_dir(folder), "strategy=mine", "dataset=mini", "model=tiny"])
    assert job.config.strategy.name == "er"


def test_what_a_table_needs_is_made_of_sweeps_and_values() -> None:
    nodes = sweep_nodes()

    def of(name: str) -> list[Any]:
        return grids(nodes[name]["hydra"]["sweeper"]["params"])

    assert of("ccl_table8") == of("ccl_strategies")
    assert [grid["order"] for grid in of("ccl_table10")] == ["order1,order2"] * 3
    # A strategy given anew makes one grid of three.
    assert len(of("ccl_table2")) == 1
    assert of("ccl_table7") == [grid | {"order": "order1"} for grid in [*of("ccl_strategies"), *of("ccl_layers")]]
    # A grid without strategies is none.
    assert [grid["strategy"].count(",") for grid in of("ccl_table20")] == [9, 0]


@pytest.mark.parametrize("params", ["hello", 3, ["a", "b"], [[{"strategy": "naive"}]]])
def test_what_is_no_grid_is_refused(params: Any) -> None:
    with pytest.raises(UsageError, match=r"^hydra\.sweeper\.params: must be a grid, for example "):
        grids(params)


if __name__ == "__main__":
    lines = (f" {json.dumps(name)}: {json.dumps(planned(name, 'runs' in GOLDEN[name]))}" for name in SWEEPS)
    GOLDEN_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
