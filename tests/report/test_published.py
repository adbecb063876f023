"""Published tables as an oracle for averages, and next to ours."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import some
from xclrun.analysis.anova import anova, tukey
from xclrun.analysis.record import RunRecord
from xclrun.analysis.replicates import Replicates
from xclrun.compose.jobs import compose_command
from xclrun.core.quantity import SHARE
from xclrun.data.example import SPLITS
from xclrun.data.load import load_dataset
from xclrun.report.published import beside_ours, ccl_tables, ll, published_names
from xclrun.report.published.setup import setup_notes
from xclrun.report.tables import Cell

from .study import ORDERS, run, summary_of

SIX = {
    "order1": ("en", "de", "fr", "hi", "es", "th"),
    "order2": ("th", "es", "hi", "fr", "de", "en"),
    "order3": ("es", "hi", "en", "de", "th", "fr"),
    "order4": ("fr", "th", "de", "en", "hi", "es"),
    "order5": ("hi", "en", "es", "th", "fr", "de"),
    "order6": ("de", "fr", "th", "es", "en", "hi"),
}


def per_order() -> dict[tuple[str, str, str], list[float]]:
    """(model, metric, measure) → its values in the six orders, from Tables 10 to 12."""
    values = defaultdict(list)
    for table in ("10", "11", "12"):
        for row in ccl_tables()[table]:
            values[row.model, row.metric, row.measure].append(row.value)
    return values


def test_the_averages_of_the_per_order_tables_are_table_8_to_the_printed_digit() -> None:
    table_8 = {(r.model, r.metric, r.measure): r.value for r in ccl_tables()["8"]}
    averages = {key: float(np.mean(values)) for key, values in per_order().items()}
    assert len(table_8) == 96
    assert averages.keys() == table_8.keys()
    off = {key: abs(100 * averages[key] - 100 * value) for key, value in table_8.items()}
    # The paper averaged before it rounded: six means of printed numbers fall to the other side of a half.
    assert {key for key, by in off.items() if by > 0.005 + 1e-9} == {
        ("inc_joint", "slot_f1", "F"),
        ("inc_joint", "intent_accuracy", "T0"),
        ("lang_spec_task", "slot_f1", "T"),
        ("lang_spec_task", "intent_accuracy", "FP"),
        ("lang_spec_ada_t", "intent_accuracy", "T0"),
        ("ewc_online", "intent_accuracy", "FP"),
    }
    assert max(off.values()) < 0.01  # what rounding both the numbers and their mean can do at most


def matrix(fp: float, forgotten: float, languages: int = 6) -> np.ndarray:
    """A score matrix whose final performance and forgetting are as given: every language falls alike at the end."""
    scores = np.full((languages + 1, languages), fp + forgotten)
    scores[2:, :] = fp
    return scores


def test_our_mean_of_those_orders_prints_table_8s_final_performance() -> None:
    records = []
    for (model, metric, measure), values in per_order().items():
        if measure == "FP" and metric == "intent_accuracy" and model in ("naive", "er", "kd_logit", "kd_rep"):
            for (order, languages), value in zip(SIX.items(), values, strict=True):
                record = run(model, order, 42, languages, metrics=("intent_accuracy",))
                data = record.to_json() | {"scores": {"intent_accuracy": matrix(value, 0.01).tolist()}}
                records.append(RunRecord.from_json(data))
    summary = summary_of(records)
    (table,) = [t for t in beside_ours(summary, "8") if "intent" in t.title]
    at = table.header.index("FP")
    by_model = {row[0]: (row[at], row[at + 1]) for row in table.rows}
    for model in ("naive", "er", "kd_logit", "kd_rep"):
        assert by_model[model][0] == by_model[model][1]
        assert isinstance(by_model[model][1], Cell)
        assert len(by_model[model][1].runs) == 6
    assert by_model["ewc_online"][1] == "–"
    assert any(note.startswith("FP: Spearman's ρ = 1.00 over 4 rows") for note in table.notes)
    assert "the setups differ: compare ranks, not values" in table.notes


def test_the_tests_of_the_paper_run_on_the_published_orders() -> None:
    from scipy import stats

    models = ("naive", "er", "ewc_online", "lang_spec_trans", "inc_joint")
    data = Replicates(
        models, tuple((o, 42, None) for o in SIX), [per_order()[m, "intent_accuracy", "F"] for m in models]
    )
    assert anova(data).p == pytest.approx(stats.f_oneway(*data.values).pvalue)
    theirs = stats.tukey_hsd(*data.values).pvalue
    for pair in tukey(data, anova(data)):
        assert pair.p == pytest.approx(theirs[models.index(pair.a), models.index(pair.b)], rel=1e-6, abs=1e-9)


@pytest.mark.some_cases
@pytest.mark.parametrize("table", sorted(ccl_tables(), key=int))
def test_every_table_is_set_beside_ours(table: str) -> None:
    records = [
        run(name, order, 1, SIX[order]) for name in ("naive", "er", "inc_joint") for order in ("order1", "order2")
    ]
    tables = beside_ours(summary_of(records), table)
    rows = ccl_tables()[table]
    published = [
        cell
        for our_table in tables
        for row in our_table.rows
        for k, cell in enumerate(row)
        if our_table.header[k] != "ours"
    ]
    for row in some(rows):
        text = SHARE.shown(row.value) if row.unit == "percent" else None
        assert text is None or text in published


def test_runtimes_are_minutes_like_the_published_ones() -> None:
    records = [run("naive", order, 1, SIX[order]) for order in ("order1", "order2")]
    records = [replace(r, costs={"seconds": s, "parameters": 5.0}) for r, s in zip(records, (90.0, 150.0), strict=True)]
    tables = beside_ours(summary_of(records), "7")
    cells = {
        name: (row[k], row[k + 1])
        for table in tables
        for row in table.rows
        for k, name in enumerate(table.header)
        if row[0] == "naive" and name in ("runtime", "parameters")
    }
    assert cells["runtime"] == ("196.0", "2.0")
    assert cells["parameters"][1] == "5"


def test_what_the_paper_calls_a_run() -> None:
    def names(strategy: str, settings: dict, **fields: object) -> tuple[str, ...]:
        config = {"strategy": {"name": strategy} | settings} | fields
        return published_names(run(strategy, "h2l", 1, ORDERS["h2l"], config=config))

    assert names("lang_spec_enc", {"layers": [1, 2, 3]}) == ("lang_spec_enc_1_3",)
    assert names("er", {"memory": 750}) == ("er_750", "er")
    assert names("naive", {}) == ("naive",)


def sizes(train: int, dev: int, test: int, **further: int) -> dict[str, dict[str, int]]:
    """Return split → language → sentences; ``others``: training sentences of some languages."""
    splits = {"train": train, "dev": dev, "test": test}
    return {
        split: dict.fromkeys(ORDERS["h2l"], n) | (further if split == "train" else {}) for split, n in splits.items()
    }


@pytest.mark.parametrize(
    ("by_split", "balanced"),
    [
        (sizes(9219, 1285, 2299), True),
        (sizes(9219, 1285, 2299, th=9000), False),
        (sizes(10759, 1285, 2299), False),
        (sizes(9219, 1285, 2300), False),
        # The limits of the paper on mtop16, which is balanced, but smaller.
        (sizes(7280, 1021, 1829), False),
        ({}, False),
    ],
)
def test_only_runs_with_the_paper_s_sizes_are_balanced(by_split: dict[str, dict[str, int]], balanced: bool) -> None:
    config = {"strategy": {"name": "naive"}, "dataset": {"max_train": 9219, "max_dev": 1285, "max_test": 2299}}
    record = run("naive", "h2l", 1, ORDERS["h2l"], config=config, sizes=by_split)
    assert ("naive_balanced" in published_names(record)) == balanced
    read = RunRecord.from_json(record.to_json())
    assert read.sizes == by_split


@pytest.mark.full
@pytest.mark.shared
def test_the_balanced_sweep_on_mtop16_is_not_the_paper_s(tmp_path: Path) -> None:
    root = Path(os.environ.get("XCLRUN_SHARED", Path(__file__).parents[3] / "shared" / "data")) / "mtop16"
    if not root.is_dir():
        pytest.skip(f"no public data in {root}")
    [job, *_] = compose_command(["sweep=ccl_balanced", f"dataset.root={root}", "model=tiny", "-m"])
    dataset = load_dataset(job.config.dataset)
    by_split = {split: dataset.sizes(split) for split in SPLITS}
    assert {n for sizes in by_split.values() for n in sizes.values()} == {7274, 7280, 1021, 1829}
    record = run("naive", "h2l", 1, ORDERS["h2l"], config=job.resolved, sizes=by_split)
    assert published_names(record) == ("naive",)


MTOP_SIZES = {
    "train": dict(zip(SIX["order1"], (15667, 13424, 11814, 11330, 10934, 10759), strict=True)),
    "test": dict(zip(SIX["order1"], (4386, 3549, 3193, 2789, 2998, 2765), strict=True)),
}


def study_of(metric: str = "slot_f1", slot_f1: str = "span_micro", **fields: object) -> RunRecord:
    """Return a run of the CCL paper's setup, but for ``fields``."""
    config = {
        "strategy": {"name": "naive"},
        "trainer": {"epochs": 10, "batch_size": 16},
        "evaluate": {"slot_f1": slot_f1},
    }
    defaults = {
        "dataset": "mtop",
        "model": "mbert",
        "config": config,
        "sizes": MTOP_SIZES,
        "costs": {"updates": 40_000.0},
    }
    return run("naive", "order1", 42, SIX["order1"], metrics=(metric,), **(defaults | fields))


def items(notes: tuple[str, ...], which: str) -> dict[str, str]:
    """Return name → text of the items that differ from the paper's (`` (``), or agree with them (`` as``)."""
    [note] = [note for note in notes if note.startswith(f"setup{which}")] or [": "]
    texts = [item for item in note.split(": ", 1)[1].split("; ") if item]
    return dict(re.fullmatch(r"(\w+ examples per key|\w+) (.+)", text).groups() for text in texts)  # type: ignore[union-attr, misc]


def test_a_published_table_names_each_difference_of_the_setups() -> None:
    small = study_of(
        model="tiny",
        dataset="mini",
        config={"strategy": {"name": "naive"}, "trainer": {"epochs": 2, "batch_size": None}},
        sizes={"train": {k: 40 + n for n, k in enumerate(SIX["order1"])}, "test": dict.fromkeys(SIX["order1"], 30)},
        costs={"updates": 12.0},
    )
    [table] = [t for t in beside_ours(summary_of([small]), "8") if "slots" in t.title]
    assert items(table.notes, " (") == {
        "dataset": "mtop → mini",
        "encoder": "mbert → tiny",
        "training examples per key": "10,759 to 15,667 → 40 to 45",
        "test examples per key": "2,765 to 4,386 → 30",
        "training": "at most 10 epochs, batch 16 → at most 2 epochs, batch of all examples "
        "(12 updates per run, over all hops)",
        "metric": "slot F1 (macro F1 over tag strings) → slot F1 (micro F1 over labeled spans)",
    }
    assert items(table.notes, " as") == {"seeds": "42"}


@pytest.mark.parametrize(("slot_f1", "same"), [("span_micro", False), ("tag_macro", True)])
def test_slots_have_the_paper_s_metric_as_tag_macro_alone(slot_f1: str, same: bool) -> None:
    [table] = [t for t in beside_ours(summary_of([study_of(slot_f1=slot_f1)]), "8") if "slots" in t.title]
    assert ("metric" in items(table.notes, " as")) == same
    assert ("metric" in items(table.notes, " (")) == (not same)
    assert any("not values" in note for note in table.notes) == (not same)


def test_a_study_with_the_paper_s_setup_differs_in_nothing() -> None:
    [table] = [t for t in beside_ours(summary_of([study_of("intent_accuracy")]), "8") if "intent" in t.title]
    assert items(table.notes, " (") == {}
    assert len(items(table.notes, " as")) == 7
    # Tables 18 to 20 are over three seeds.
    [table] = [t for t in beside_ours(summary_of([study_of("intent_accuracy")]), "18") if "intent" in t.title]
    assert items(table.notes, " (") == {"seeds": "42, 40, 35 → 42"}
    larger = MTOP_SIZES | {"train": MTOP_SIZES["train"] | {SIX["order1"][0]: 20_000}}
    [table] = [
        t for t in beside_ours(summary_of([study_of("intent_accuracy", sizes=larger)]), "8") if "intent" in t.title
    ]
    assert items(table.notes, " (") == {"training examples per key": "10,759 to 15,667 → 10,759 to 20,000"}
    # Table 13 is about the balanced data, Table 5 about both.
    [table] = [t for t in beside_ours(summary_of([study_of("intent_accuracy")]), "5") if "intent" in t.title]
    assert items(table.notes, " (") == {
        "training examples per key": "9,219 to 15,667 → 10,759 to 15,667",
        "test examples per key": "2,299 to 4,386 → 2,765 to 4,386",
    }
    balanced = {"train": dict.fromkeys(SIX["order1"], 9219), "test": dict.fromkeys(SIX["order1"], 2299)}
    [table] = [
        t for t in beside_ours(summary_of([study_of("intent_accuracy", sizes=balanced)]), "13") if "intent" in t.title
    ]
    assert items(table.notes, " (") == {}


@pytest.mark.parametrize(("model", "other"), [("bert", False), ("tiny", True)])
def test_ll_s_encoder_is_bert(model: str, other: bool) -> None:
    keys = ll.STREAMS["standard"]
    config = {"strategy": {"name": "naive"}, "trainer": {"epochs": 1, "batch_size": 25}}
    by_split = {"train": dict.fromkeys(keys, 10_000), "test": dict.fromkeys(keys, 638) | {"yelp": 1000}}
    fields = {
        "metrics": ("intent_accuracy",),
        "model": model,
        "dataset": "lifelong",
        "config": config,
        "sizes": by_split,
    }
    runs = [run("naive", "standard", seed, keys, **fields) for seed in ll.SETUP.seeds]
    notes = tuple(setup_notes(ll.SETUP, runs))
    assert ("encoder" in items(notes, " (")) == other
    assert set(items(notes, " as")) >= {"dataset", "training examples per key", "test examples per key", "training"}


def test_balanced_and_whole_data_have_rows_of_their_own_in_table_5() -> None:
    def made(limits: dict[str, int | None], by_split: dict[str, dict[str, int]], name: str) -> RunRecord:
        config = {"strategy": {"name": "naive"}, "dataset": {"name": "mtop"} | limits}
        return run("naive", "h2l", 42, ORDERS["h2l"], config=config, sizes=by_split, data_fingerprint=name, run_id=name)

    none = dict.fromkeys(("max_train", "max_dev", "max_test"))
    records = [
        made(none, MTOP_SIZES, "whole"),
        made({"max_train": 9219, "max_dev": 1285, "max_test": 2299}, sizes(9219, 1285, 2299), "balanced"),
    ]
    [table] = [t for t in beside_ours(summary_of(records), "5") if "intent" in t.title]
    at = table.header.index("FP") + 1
    behind = {row[1]: row[at].runs for row in table.rows if row[0] == "h2l" and isinstance(row[at], Cell)}
    assert behind == {"naive": ("whole",), "naive_balanced": ("balanced",)}
