"""docs/results: the tables of a page and its appendix hold the numbers beside it; its findings stand in its tables."""

from __future__ import annotations

import re
from contextlib import suppress
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr, t, ttest_rel
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from tests.conftest import read_csv, some
from xclrun.analysis.measures import quantity
from xclrun.core.quantity import SHARE

RESULTS = Path(__file__).parents[1] / "docs" / "results"
OPENS = r"^<!-- report: ([^/\s]+)/(\S+)(?: once there is one)? -->\n"
PLACE = re.compile(OPENS + r"(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE)


def whole(page: Path) -> str:
    """Return the appendix of a page, which is in a folder with its name, and the page."""
    pages = (*sorted(page.with_suffix("").glob("*.md")), page)
    return "\n".join(file.read_text(encoding="utf-8") for file in pages)


PAGES = {page: whole(page) for page in sorted(RESULTS.glob("*.md"))}
# Pages that have numbers beside them, and pages that say what was found apart from how it was made.
NUMBERED = [page for page, text in PAGES.items() if "/summary.csv -->\n" in text]
FEW_SHOT = [page for page, text in PAGES.items() if "/few_shot.csv -->\n" in text]
PUBLISHED = [page for page, text in PAGES.items() if "_findings.md" in text]
COUNTED = [file for page in PAGES for file in sorted(page.with_suffix("").glob("*-matrices.csv"))]
FOUND = [page for page, text in PAGES.items() if "\n## Findings\n" in text]
NUMBER = re.compile(r"(?<![\w.])[-+−]?\d+\.\d+(?![\w.])")


def rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a Markdown table, column → cell without bold and significance marks."""
    plain = re.sub(r"\*\*| (\\\*)+(?= \|)", "", text)
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in plain.splitlines() if line[:1] == "|"]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def compared(page: Path) -> int:
    """Check each table of measures against the numbers beside the page; return how many cells were."""
    count = 0
    for report, file, content in PLACE.findall(whole(page)):
        table = rows(content) if file.startswith("tables/") else []
        columns = {name: name[:-2] for name in table[0] if name.endswith((" ↑", " ↓"))} if table else {}
        if not columns or "strategy" not in table[0] or "order" in table[0]:
            continue
        path = page.with_suffix("") / f"{report}.csv"
        numbers = read_csv(path, keep_default_na=False, na_values={"value": [""], "std": [""]})
        means = numbers[numbers["order"] == "mean"]
        printed = {(row["strategy"], name): row[column] for row in table for column, name in columns.items()}
        available: dict[str, dict[tuple[str, str], str]] = {}
        for row in means.itertuples():
            of = quantity(row.metric, row.measure).shown
            text = (
                "n/a" if row.value != row.value else of(row.value) + ("" if row.std != row.std else f" ± {of(row.std)}")
            )
            available.setdefault(row.metric, {})[row.strategy, row.measure] = text
        messages = {key: cell.split(" [")[0] for key, cell in printed.items() if key[0] != "constant answer"}
        assert any(messages == {key: of.get(key) for key in messages} for of in available.values()), (
            f"{page.name}: {file}"
        )
        count += len(messages)
    return count


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short_and_links_to_its_appendix(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.split()) <= 2500
    for appendix in page.with_suffix("").glob("*.md"):
        assert f"]({page.stem}/{appendix.name}" in text, appendix


@pytest.mark.parametrize("page", NUMBERED, ids=lambda page: page.stem)
def test_tables_hold_the_numbers_beside_the_page(page: Path) -> None:
    assert compared(page)


@pytest.mark.parametrize("page", FEW_SHOT, ids=lambda page: page.stem)
def test_few_shot_tables_are_means_of_the_scores_beside_the_page(page: Path) -> None:
    count = 0
    for report, file, content in PLACE.findall(PAGES[page]):
        if (table := re.fullmatch(r"tables/few_shot_\w+_by_language_(\w+)\.md", file)) is None:
            continue
        scores = read_csv(page.with_suffix("") / f"{report}.csv")
        of_strategy = scores[scores["strategy"] == table[1]]
        for row in rows(content):
            own = of_strategy[of_strategy["language"] == row["language"]]
            for k in sorted(own["shots"].unique()):
                buckets = own[own["shots"] == k].groupby("bucket")["score"].mean()
                assert row[f"K = {k}"] == SHARE.spread(buckets.mean(), buckets.std())
                count += 1
            seeds = own.groupby("seed")["zero_shot"].first()
            assert row["K = 0"] == SHARE.spread(seeds.mean(), seeds.std())
    assert count


@pytest.mark.parametrize("page", PUBLISHED, ids=lambda page: page.stem)
def test_what_stands_beside_a_paper_is_of_the_numbers_beside_the_page(page: Path) -> None:
    """Columns `ours`: means, and of findings their differences."""
    metrics, named = {"intent": "intent_accuracy", "slots": "slot_f1"}, {"lang_spec_enc_1_9": "lang_spec_enc"}
    count = 0
    for report, file, content in PLACE.findall(PAGES[page]):
        if not file.endswith(("_findings.md", "_published_beside_ours.md")):
            continue
        numbers = read_csv(page.with_suffix("") / f"{report}.csv", keep_default_na=False, na_values={"value": [""]})
        means = numbers[(numbers["order"] == "mean") & numbers["value"].notna()]
        value = {(row.strategy, row.metric, row.measure): 100 * row.value for row in means.itertuples()}
        cells: list[tuple[str, list[float | None]]] = []
        if file.endswith("_findings.md"):
            for row in rows(content):
                if (of := re.fullmatch(r"(\w+) (\w+) − (\w+)", row["difference"])) and row["metric"] in metrics:
                    keys = [(named.get(name, name), metrics[row["metric"]], of[1]) for name in of.groups()[1:]]
                    cells.append((row["ours"], [value.get(key) for key in keys]))
        else:
            metric = metrics["slots" if "_slots_" in file else "intent"]
            header, _, *lines = [
                [cell.strip() for cell in line.split("|")[1:-1]] for line in content.splitlines() if "|" in line
            ]
            for strategy, *line in lines:
                name = named.get(strategy, strategy).replace("lang_spec_ft_", "lang_spec_ft+lang_spec_")
                of_line = range(1, len(line), 2)
                cells += [(line[at], [value.get((name, metric, header[at])), 0.0]) for at in of_line]
        for cell, (first, second) in cells:
            assert (cell == "–") == (first is None or second is None), (file, cell)
            if first is not None and second is not None:
                assert float(cell) == pytest.approx(first - second, abs=0.0051), (file, cell)
                count += 1
    assert count


@pytest.mark.parametrize("file", COUNTED, ids=lambda file: file.stem)
def test_scores_beside_a_page_are_those_of_its_counts(file: Path) -> None:
    """Few-shot scores are two cells of a run's matrix; final performance is the mean of a run's last row."""
    matrices = pd.read_csv(file, dtype=str, keep_default_na=False)
    languages = matrices.columns[6:]
    table = {(row["run_id"], row["metric"], int(row["hop"])): row for row in matrices.to_dict("records")}
    last = {(run, metric): hop for run, metric, hop in table}
    score = {
        key: {language: float(Fraction(row[language])) for language in languages if row[language]}
        for key, row in table.items()
    }
    beside = read_csv(file.with_name(file.name.replace("-matrices", "")), keep_default_na=False, na_values=[""])
    count = 0
    if "zero_shot" in beside:
        for run in beside.to_dict("records"):
            hops = last[run["run_id"], run["metric"]]
            for hop, column in ((hops - 1, "zero_shot"), (hops, "score")):
                assert score[run["run_id"], run["metric"], hop][run["language"]] == pytest.approx(
                    run[column], abs=1e-12
                )
                count += 1
    else:
        means: dict[tuple[str, str, str], list[float]] = {}
        for (run, metric), hop in last.items():
            row, of = table[run, metric, hop], score[run, metric, hop]
            means.setdefault((row["strategy"], row["order"], metric), []).append(sum(of.values()) / len(of))
        for row in beside[(beside["measure"] == "FP") & beside["language"].isna()].to_dict("records"):
            own = means.get((row["strategy"], row["order"], row["metric"]), [])
            # Of models of one language each, the last row is of one of them.
            if own and len(own) == row["n"] and not row["strategy"].startswith("lang_spec_ft"):
                assert row["value"] == pytest.approx(sum(own) / len(own), abs=1e-12)
                count += 1
    assert count


@pytest.mark.parametrize("page", FOUND, ids=lambda page: page.stem)
def test_numbers_of_findings_stand_in_tables(page: Path) -> None:
    text = PAGES[page]
    tables = {number.lstrip("+") for *_, content in PLACE.findall(text) for number in NUMBER.findall(content)}
    findings = PLACE.sub("", text).split("\n## Findings\n")[1]
    numbers = NUMBER.findall(findings)
    assert numbers
    assert [number for number in numbers if number.lstrip("+") not in tables] == []


@pytest.mark.parametrize("report", ["ccl_small", "ccl_small_macro"])
def test_the_papers_findings_are_tested_as_reports_test_them(report: str) -> None:
    """Each pair by its own paired t-test over the orders, F and FP alone, with Holm's correction over all tests."""
    text = whole(RESULTS / "ccl-small.md")
    [table] = [
        rows(content) for name, file, content in PLACE.findall(text) if name == report and file.endswith("_findings.md")
    ]
    tested = [row for row in table if row["p"] != "–"]
    frame = pd.read_csv(RESULTS / "ccl-small" / f"{report}.csv", keep_default_na=False)
    of = {tuple(row[:4]): float(row[4] or "nan") for row in frame[frame["language"] == ""][
        ["strategy", "order", "metric", "measure", "value"]].itertuples(index=False)}  # fmt: skip
    orders = [order for name, order, metric, measure in of if (name, metric, measure) == ("naive", "slot_f1", "F")]
    orders.remove("mean")
    assert orders == [f"order{number}" for number in range(1, 7)]
    names, metrics = {"lang_spec_enc_1_9": "lang_spec_enc"}, {"intent": "intent_accuracy", "slots": "slot_f1"}
    p, effect = [], TTestPower().solve_power(nobs=len(orders), alpha=0.05, power=0.8)
    for row in tested:
        measure, more, _, less = row["difference"].split()
        first, second = (
            [of[names.get(k, k), order, metrics[row["metric"]], measure] for order in orders] for k in (more, less)
        )
        p.append(float(ttest_rel(first, second).pvalue))
        spread = stdev(a - b for a, b in zip(first, second, strict=True))
        assert float(row["detectable"]) == pytest.approx(100 * effect * spread, abs=0.0051)
    holm = multipletests(p, method="holm")[1]
    assert [row["p"] for row in tested] == ["< 0.001" if value < 0.001 else f"{value:.3f}" for value in holm]
    significant = [row for row, value in zip(tested, holm, strict=True) if value < 0.05]
    assert significant == [row for row in table if row["here"] in ("holds", "does not hold")]
    assert all((row["here"] == "holds") == (float(row["ours"]) > 0) for row in significant)


@cache
def findings_of(report: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return the table of findings of a report: difference and metric → row."""
    [table] = [
        rows(content)
        for name, file, content in PLACE.findall(PAGES[RESULTS / "ccl-small.md"])
        if name == report and file.endswith("_findings.md")
    ]
    return {(row["difference"].replace("lang_spec_enc_1_9", "lang_spec_enc"), row["metric"]): row for row in table}


def test_the_page_has_all_findings_of_its_reports() -> None:
    """The tables of strategies and of inc_joint: our differences with spans and with macro F1, in both regimes."""
    text = (RESULTS / "ccl-small.md").read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\| difference \|.*\n)(?:^\|.*\n)+", text, re.MULTILINE)
    found = [row for table in tables for row in raw_rows(table)]
    run = {key for key, row in findings_of("ccl_small").items() if row["here"] != "not run"}
    assert {(row["difference"], row["metric"]) for row in found} == run
    for row in some(found):
        key = row["difference"], row["metric"]
        slots = row["metric"] != "intent"
        assert row["paper"] == findings_of("ccl_small")[key]["paper"]
        for column, report in {"300 steps": "ccl_small", "300 steps, macro F1": "ccl_small_macro"}.items():
            of = findings_of(report)[key]
            tested = float(of["p"].removeprefix("< ")) < 0.05 if of["p"] != "–" else None
            marked = of["ours"] + {None: " °", True: " \\*", False: ""}[tested]
            assert row[column] == (marked if slots or "macro" not in column else "")
            assert tested is not True or float(of["ours"]) > 0
        for column, report in {"1,500 steps": "ccl_trained", "1,500 steps, macro F1": "ccl_trained_macro"}.items():
            assert row[column] == (trained_finding(report, *key) if slots or "macro" not in column else "")


def trained_finding(report: str, difference: str, metric: str) -> str:
    """Return the cell of a difference with 1,500 steps: from the six orders, and the p-values of the report's tests."""
    names = {"intent": "intent_accuracy", "slots": "slot_f1"}
    numbers = numbers_of(report)

    def mean(strategy: str, of: str, measure: str) -> float:
        return fmean(orders_of(report, strategy, of, measure))

    if difference == "F naive, slots − intent":
        return f"{mean('naive', 'slot_f1', 'F') - mean('naive', 'intent_accuracy', 'F'):+.2f} °"
    if difference == "F naive, order2 − order1":
        first, second, *_ = orders_of(report, "naive", names[metric], "F")
        return f"{second - first:+.2f} °"
    measure, more, _, less = difference.split()
    if not {more, less} <= set(numbers[numbers["value"].notna()]["strategy"]):
        return "–"
    value = mean(more, names[metric], measure) - mean(less, names[metric], measure)
    if {more, less} != {"naive", "er"}:
        return f"{value:+.2f} °"
    p = [
        float(ttest_rel(*(orders_of(report, name, of, kind) for name in ("naive", "er"))).pvalue)
        for of, kind in product(names.values(), ("F", "FP"))
    ]
    # The sweep declares four strategies; those that have not run count as p = 1.
    corrected = multipletests([*p, *[1.0] * 12], method="holm")[1]
    at = list(product(names.values(), ("F", "FP"))).index((names[metric], measure))
    return f"{value:+.2f}" + (" \\*" if corrected[at] < 0.05 else "")


def test_the_primary_comparisons_with_1500_steps() -> None:
    """Δ, intervals and p-values of the page, from the six orders."""
    text = (RESULTS / "ccl-small.md").read_text(encoding="utf-8")
    [table] = [raw_rows(block) for block in re.findall(r"(?:^\| metric \| measure \| Δ .*\n)(?:^\|.*\n)+", text, re.M)]
    deltas = [
        [
            one - two
            for one, two in zip(
                *(orders_of("ccl_trained", name, NAMED[row["metric"]], row["measure"]) for name in ("er", "naive")),
                strict=True,
            )
        ]
        for row in table
    ]
    p = multipletests([*[float(ttest_rel(each, [0.0] * 6).pvalue) for each in deltas], *[1.0] * 12], method="holm")[1]
    for row, each, value in zip(table, deltas, p, strict=False):
        mean, error = fmean(each), stdev(each) / len(each) ** 0.5
        assert row["Δ"] == f"{mean:.2f}"
        for column, level in (("95 % interval", 0.025), ("simultaneous interval", 0.025 / 16)):
            half = float(t.isf(level, 5)) * error
            assert row[column] == f"[{mean - half:.2f}, {mean + half:.2f}]"
        assert row["p (Holm)"] == ("< 0.001" if value < 0.001 else f"{value:.3f}")
    assert len(table) == 4


def raw_rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a Markdown table with their marks."""
    lines = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in text.splitlines()]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_the_second_seed_stands_beside_the_first() -> None:
    """Means, spreads and differences of both seeds, over the orders that both have."""
    text = whole(RESULTS / "ccl-small.md")
    section = text.split("\n## A second seed\n")[1].split("\n## ")[0]
    spreads, differences = (rows(block) for block in re.findall(r"(?:^\|.*\n)+", PLACE.sub("", section), re.MULTILINE))
    metrics = {"intent": "intent_accuracy", "slots": "slot_f1"}
    of: list[dict[tuple[str, ...], float]] = []
    for report in ("ccl_small", "ccl_small_seed2"):
        frame = pd.read_csv(RESULTS / "ccl-small" / f"{report}.csv", keep_default_na=False)
        own = frame[(frame["language"] == "") & (frame["value"] != "")]
        keys = own[["strategy", "order", "metric", "measure"]].itertuples(index=False)
        of.append({tuple(key): 100 * float(value) for key, value in zip(keys, own["value"], strict=True)})
    orders = sorted({key[1] for key in of[1]} - {"mean"})

    def values(row: dict[str, str], strategy: str) -> list[list[float]]:
        return [[seed[strategy, order, metrics[row["metric"]], row["measure"]] for order in orders] for seed in of]

    for row in spreads:
        first, second = values(row, row["strategy"])
        within = (sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) / 2 / len(orders)) ** 0.5
        expected = (fmean(first), fmean(second), stdev(first), stdev(second), within)
        assert [row[name] for name in list(row)[3:]] == [f"{value:.2f}" for value in expected]
    p = []
    for row in differences:
        other, naive = values(row, row["strategy"]), values(row, "naive")
        delta = [[a - b for a, b in zip(one, two, strict=True)] for one, two in zip(other, naive, strict=True)]
        both = [(a + b) / 2 for a, b in zip(*delta, strict=True)]
        expected = tuple(fmean(of_seed) for of_seed in (*delta, both))
        assert [row[name] for name in ("seed 1", "seed 2", "both")] == [f"{value:.2f}" for value in expected]
        p.append(float(ttest_rel(both, [0.0] * len(both)).pvalue))
    holm = multipletests(p, method="holm")[1]
    assert [row["p (Holm)"] for row in differences] == [
        "< 0.001" if value < 0.001 else f"{value:.3f}" for value in holm
    ]
    assert (len(spreads), len(differences)) == (12, 8)


@cache
def numbers_of(report: str) -> pd.DataFrame:
    """Return the measures of ccl-small."""
    return read_csv(RESULTS / "ccl-small" / f"{report}.csv", keep_default_na=False, na_values={"value": [""]})


@cache
def orders_of(report: str, strategy: str, metric: str, measure: str) -> list[float]:
    """Return a measure in percent in each of the six orders; models that do not depend on the order have one value."""
    frame = numbers_of(report)
    own = frame[(frame["strategy"] == strategy) & (frame["metric"] == metric) & (frame["measure"] == measure)]
    values = own[(own["language"] == "") & (own["order"] != "mean") & own["value"].notna()].set_index("order")["value"]
    return [100 * float(values.get(f"order{number}", values.iloc[0])) for number in range(1, 7)]


def analyses(heading: str) -> list[dict[str, str]]:
    """Return the table below a heading of the appendix with analyses."""
    text = (RESULTS / "ccl-small" / "analyses.md").read_text(encoding="utf-8")
    return rows(text.split(f"\n## {heading}\n")[1].split("\n## ")[0].replace("`", ""))


NAMED = {"intents": "intent_accuracy", "slots": "slot_f1"}


def test_equivalences_are_two_one_sided_t_tests() -> None:
    table, margins = analyses("Equivalence with naive"), (1, 2, 3)
    found = []
    for row in some(table):
        of = [orders_of("ccl_small", name, NAMED[row["metric"]], row["measure"]) for name in (row["strategy"], "naive")]
        delta = [one - two for one, two in zip(*of, strict=True)]
        mean, error = fmean(delta), stdev(delta) / len(delta) ** 0.5
        assert row["Δ"] == f"{mean:+.2f}"
        found.append([float(t.sf((margin - abs(mean)) / error, len(delta) - 1)) for margin in margins])
    for margin, p in zip(margins, zip(*found, strict=True), strict=True):
        corrected = multipletests(p, method="holm")[1]
        expected = [f"{one:.3f} ({two:.3f})" for one, two in zip(p, corrected, strict=True)]
        assert [row[f"p, ±{margin}"] for row in table] == expected
        assert sum(corrected < 0.05) == {1: 0, 2: 3, 3: 12}[margin]


def test_components_of_variance_are_those_of_a_two_way_table() -> None:
    table = analyses("Variance of orders and seeds")
    for row in some(table):
        delta = [
            [
                one - two
                for one, two in zip(
                    orders_of(report, row["strategy"], NAMED[row["metric"]], row["measure"]),
                    orders_of(report, "naive", NAMED[row["metric"]], row["measure"]),
                    strict=True,
                )
            ]
            for report in ("ccl_small", "ccl_small_seed2")
        ]
        # With two seeds: the spread of the differences between seeds is twice the variance of runs.
        between = [one - two for one, two in zip(*delta, strict=True)]
        runs = stdev(between) ** 2 / 2
        orders = stdev([fmean(pair) for pair in zip(*delta, strict=True)]) ** 2 - runs / 2
        seeds = fmean(between) ** 2 / 2 - runs / 6
        assert row["Δ"] == f"{fmean(map(fmean, delta)):+.2f}"
        expected = [f"{max(0.0, component) ** 0.5:.2f}" for component in (orders, seeds, runs)]
        assert [row["std of orders"], row["std of seeds"], row["std of runs"]] == expected
    assert [row["std of seeds"] for row in table] == ["0.00"] * 8


def test_ranks_over_resampled_orders_are_near_those_of_random_resamples() -> None:
    published = pd.read_csv(RESULTS.parents[1] / "xclrun/report/published/ccl_tables.csv", keep_default_na=False)
    published = published[published["table"].isin([10, 11, 12]) & (published["language"] == "")]
    ours = {"lang_spec_enc_1_9": "lang_spec_enc", "lang_spec_ft_ada_t": "lang_spec_ft+lang_spec_ada_t"}
    draws = np.random.default_rng(1).integers(0, 6, (1000, 6))
    for row in some(analyses("Ranks over resampled orders")):
        metric = NAMED[row["metric"]]
        own = published[(published["metric"] == metric) & (published["measure"] == row["measure"])]
        means = own.assign(value=own["value"].astype(float)).groupby("model")["value"].mean()
        for report, name in (("ccl_small", "ρ"), ("ccl_small_macro", "ρ, macro F1")):
            if not row[name]:
                continue
            values = {}
            for model in means.index:
                with suppress(IndexError):
                    values[model] = orders_of(report, ours.get(model, model), metric, row["measure"])
            paper, table = means[list(values)].to_numpy(), np.array(list(values.values()))
            assert int(row["models"]) == len(values)
            assert row[name] == f"{spearmanr(paper, table.mean(1)).statistic:.2f}"
            low, high = map(float, row[name.replace("ρ", "interval")].strip("[]").split(", "))
            ranks = pd.DataFrame([table[:, draw].mean(1).round(9) for draw in draws]).rank(axis=1)
            rho = ranks.corrwith(pd.Series(paper).rank(), axis=1)
            assert np.percentile(rho, [2.5, 97.5]) == pytest.approx([low, high], abs=0.06)


def test_a_mean_without_an_interval_is_compared_with_the_interval_of_the_page() -> None:
    text = (RESULTS / "checkpoints.md").read_text(encoding="utf-8")
    [row] = [row for _, file, content in PLACE.findall(text) if "_bootstrap_" in file for row in rows(content)]
    low, high = map(float, re.findall(r"[\d.]+", row["FP"].split("[")[1]))
    [table] = [
        rows(content) for _, file, content in PLACE.findall(text) if file.endswith("class_checkpoints_by_rule.md")
    ]
    means = [float(row["mean"]) for row in table]
    assert len(means) == 7
    within = "contains the means of all seven rules" in " ".join(text.split())
    assert within == all(low < mean < high for mean in means)
    assert within, "no rule is called the best while all lie in one interval"


def test_a_number_that_was_changed_is_seen(tmp_path: Path) -> None:
    """Of the check itself: one digit of a table, or of the numbers beside it, is noticed."""
    header = "| strategy | F ↓ | FP ↑ |\n| :-- | --: | --: |\n"
    place = "<!-- report: few/tables/x.md -->\n{}<!-- end -->\n"
    page, numbers = tmp_path / "page.md", tmp_path / "page" / "few.csv"
    numbers.parent.mkdir()
    frame = pd.DataFrame(
        [
            ("naive", "mean", "class_accuracy", "F", 0.125, 0.01, ""),
            ("naive", "mean", "class_accuracy", "FP", 0.5, float("nan"), ""),
        ],
        columns=["strategy", "order", "metric", "measure", "value", "std", "status"],
    )
    frame.to_csv(numbers, index=False)
    page.write_text(place.format(header + f"| naive | {SHARE.shown(0.125)} ± 1.00 | 50.00 |\n"), encoding="utf-8")
    assert compared(page) == 2
    page.write_text(page.read_text(encoding="utf-8").replace("50.00", "50.01"), encoding="utf-8")
    with pytest.raises(AssertionError, match=r"page\.md: tables/x\.md"):
        compared(page)
