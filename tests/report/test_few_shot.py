"""The report's section on few-shot runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy import stats
from statsmodels.stats.multitest import multipletests

from tests.conftest import blank_figures
from xclrun.analysis.fewshot.attention import COLUMNS
from xclrun.analysis.fewshot.data import FewShotData
from xclrun.analysis.fewshot.gains import mean_gains
from xclrun.analysis.fewshot.scores import dev_curve, few_shot_scores
from xclrun.analysis.fewshot.words import Outcome, improvement, jaccards, overlaps
from xclrun.analysis.record import RunRecord
from xclrun.core.errors import UsageError
from xclrun.core.quantity import SHARE
from xclrun.report.fewshot import few_shot_sections
from xclrun.report.fewshot.data import PANELS, FewShotRuns
from xclrun.report.inference import p_text
from xclrun.report.parts.fewshot_gains import gain_figure, scatter, script_table, table_3
from xclrun.report.parts.fewshot_means import by_language, by_strategy
from xclrun.report.parts.fewshot_variance import adapting_curves
from xclrun.report.published import fsxlt
from xclrun.report.report import Report
from xclrun.report.section import Options, Sources
from xclrun.report.tables import Cell, Table
from xclrun.report.write import write_report

from .few_shot import given, run, study
from .study import run as other

FIGURES = (
    "histograms", "improved", "improved_words", "confusions", "gains", "gains_by_language", "curves", "curves_fc",
    "p_values",
)  # fmt: skip


# A run of another experiment, whose figures are quickly drawn.
OTHER = other("naive", "h2l", 1, ("en", "de"), metrics=("intent_accuracy",), curve=())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report over few-shot runs of two languages, and runs of other experiments."""
    records = study(languages=("de", "hi"), shots=(1,), buckets=3, strategies=("naive", "fc"))
    folder = tmp_path_factory.mktemp("report")
    options = Options(few_shot_table="3")
    with blank_figures(drawn=True):
        sources = Sources(few_shot=given(records, 5))
        return write_report([*records, OTHER], folder, "both", options=options, sources=sources)


def test_few_shot_runs_have_a_section_of_their_own(written: Report) -> None:
    assert [section.title for section in written.sections] == ["mini · tiny", "pud · tiny · few-shot"]
    assert set(written.frame["dataset"]) == {"mini"}
    assert len(written.few_shot) == len(pd.read_csv(written.directory / "few_shot.csv")) == 24
    assert len(written.to_json()["few_shot"]) == 24
    assert [path.name for path in written.numbers] == ["summary.csv", "few_shot.csv"]


def test_of_few_shot_runs_alone_the_numbers_are_in_their_own_file(tmp_path: Path, undrawn: None) -> None:
    records = study(languages=("de",), shots=(1,), buckets=2, strategies=("naive",))
    # Of these runs too a baseline may be named; naive is their full.
    report = write_report(records, tmp_path, "few", options=Options(baseline="naive"))
    assert [path.name for path in report.numbers] == ["few_shot.csv"]
    text = report.summary_md.read_text(encoding="utf-8")
    assert "summary.csv" not in text
    assert "`few_shot.csv` has every score" in text


def test_every_figure_of_the_paper_is_drawn(written: Report) -> None:
    page = written.index.read_text(encoding="utf-8")
    for kind in FIGURES:
        name = f"few_shot_{kind}_pud_tiny_tokens"
        assert (written.directory / "figures" / f"{name}.svg").stat().st_size > 5000
        assert f"figures/{name}.svg" in page
    for text in ("FS Table 3, panx: recomputed", "Lexical overlap", "where the variance comes from", "improved"):
        assert text in page
    assert "data missing for “Attention of [CLS]”: attention summaries" in page


def test_the_terminal_shows_means_over_buckets(written: Report) -> None:
    text = written.render()
    assert "tokens by language, full" in text
    assert "buckets: 3; seeds: 2" in text
    assert "what is tuned" in text
    assert "tests are under “token accuracy: tests of the fine-tuning strategies”" in " ".join(text.split())


def test_without_few_shot_runs_there_is_nothing_of_them(tmp_path: Path, undrawn: None) -> None:
    (tmp_path / "few_shot.csv").write_text("from an earlier report", encoding="utf-8")
    report = write_report([OTHER], tmp_path, "x")
    assert not (tmp_path / "few_shot.csv").exists()
    assert "few_shot" not in report.to_json()
    assert "few-shot" not in report.index.read_text(encoding="utf-8") + report.render()


def test_what_is_missing_is_told() -> None:
    (section,) = few_shot_sections(study(languages=("de",), shots=(1,), buckets=2, seeds=(1,)))
    notes = "\n".join(section.caveats)
    assert "data missing for “Lexical overlap”: the words of the buckets" in notes
    assert "data missing for “token accuracy: confusions”: predictions" in notes
    records = [*study(languages=("de",), shots=(1,), buckets=3, seeds=(1,)), run("hi", 1, 0)]
    (section,) = few_shot_sections(records, FewShotData(reasons=("words could not be read",)))
    assert section.caveats[0] == "words could not be read"
    assert "some means are over fewer than 3 buckets: hi K = 1 full: 1" in section.caveats


def first_of(records: list[RunRecord]) -> FewShotRuns:
    """What the first metric and source of a report are made from."""
    (section,) = few_shot_sections(records)
    runs = section.data[0]
    assert isinstance(runs, FewShotRuns)
    return runs


def test_published_numbers_stand_beside_ours() -> None:
    runs = first_of(study(shots=(1, 2), buckets=2, strategies=("naive", "fc")))
    table = by_language(runs, "full")
    assert table.header == ("language", "K = 0", "published", "K = 1", "published", "K = 2", "published")
    german = next(row for row in table.rows if row[0] == "de")
    assert (german[2], german[4], german[6]) == ("86.38", "89.38 ± 0.90", "90.21 ± 0.50")
    assert table.notes[-1].startswith("Spearman's ρ with the published numbers: 1.00 at K = 0 (5 languages)")
    assert any("encoder mbert → " in note for note in table.notes)
    # The paper's POS has no such head.
    assert "published" not in by_language(runs, "fc").header
    across = by_strategy(runs)
    assert across.header == ("language", "K", "full", "full (FS)", "fc")
    assert across.rows[0][:4:3] == ("de", "89.38 ± 0.90")
    assert across.raised[-1] == "bold: best of the row"


def test_what_could_not_be_tested_is_said_under_the_means() -> None:
    across = by_strategy(first_of([run("de", 1, 0, strategy="naive"), run("de", 1, 1, strategy="fc")]))
    assert across.notes[-1].startswith("the strategies have not been tested")


def test_other_sources_have_no_published_numbers_and_no_source_has_those_of_table_11() -> None:
    french = by_language(first_of(study(shots=(1,), buckets=2, source="fr")), "full")
    assert "published" not in french.header
    assert french.title.endswith("source fr")
    table = by_language(first_of(study(("tr", "de"), (1, 2), 2, source=None)), "full")
    assert table.header == ("language", "K = 0", "K = 1", "published", "K = 2")
    # FS has no German POS there.
    assert {row[0]: row[3] for row in table.rows} == {"tr": "48.96 ± 3.15", "de": "–"}


def test_the_drop_without_source_training_is_a_difference_of_means() -> None:
    runs = [*study(("tr", "de"), (1, 2), 3), *study(("tr",), (1,), 2, source=None)]
    (section,) = few_shot_sections(runs)
    (table,) = next(block.tables for block in section.blocks if block.part.name == "fewshot_sources")
    assert table.header == ("language", "K = 1", "published")
    ((language, drop, published),) = table.rows
    means = {s: np.mean([r.scores["token_accuracy"][-1, -1] for r in runs if r.config["source"] == s
             and r.languages[-1] == "tr" and r.config["shots"] == 1]) for s in ("none", "en")}  # fmt: skip
    assert (language, drop, published) == ("tr", f"{100 * (means['none'] - means['en']):.2f}", "-15.05")
    assert not any("misprint" in note for note in table.notes)
    (without,) = few_shot_sections(study(("tr",), (1,), 2))
    assert "fewshot_sources" not in {block.part.name for block in without.blocks}


def test_tables_with_published_scores_compare_the_setups() -> None:
    pud = [*study(("tr", "de"), (1,), 2), *study(("tr",), (1,), 2, source=None)]
    marc = study(("de",), (1,), 2, dataset="marc", metric="class_accuracy")
    stars = np.array([0, 1, 2, 3, 4])
    outcomes = {r.run_id: Outcome(tuple("12345"), ("a",), np.array([5]), stars, stars, stars) for r in marc}
    sections = few_shot_sections([*pud, *marc], FewShotData({"class_accuracy": outcomes}))
    tables = [
        (block.part.name, table)
        for section in sections for block in section.blocks for table in block.tables
        if any("published" in name for name in table.header)
    ]  # fmt: skip
    names = {name for name, _ in tables}
    assert names == {"fewshot_means", "fewshot_sources", "fewshot_confusions", "fewshot_gains"}
    for name, table in tables:
        assert any("encoder mbert → tiny" in note for note in table.notes), name


def test_without_a_source_nothing_is_zero_shot() -> None:
    (section,) = few_shot_sections(study(("tr",), (1,), 2, source=None))
    assert "before any fine-tuning" in " ".join(section.conclusions)
    assert "zero-shot" not in " ".join(section.conclusions)
    (table,) = next(block.tables for block in section.blocks if block.part.name == "fewshot_means")
    assert not any("zero-shot" in note for note in table.notes)


def test_gains_by_script_and_language() -> None:
    runs = first_of(study(shots=(1, 4), buckets=3, seeds=(1, 2)))
    gained = mean_gains(runs.means, "full")
    table = script_table("gain by script", "pud", gained)
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows) == ["Latin", "Devanagari", "Chinese ideograms"]
    assert rows["Latin"][0] == "de, fi, tr"
    assert rows["Latin"][1] == f"{100 * np.mean([gained[1][c] for c in ('de', 'fi', 'tr')]):.2f}"
    published = {c: fsxlt.published_gains("udpos")[4][c] for c in ("de", "fi", "tr")}
    assert rows["Latin"][4] == f"{100 * np.mean(list(published.values())):.2f}"

    (axes,) = gain_figure(runs).axes
    bars = {tuple(gid.split(":")[1].strip().split(", ")): patch.get_height()
            for patch in axes.patches if (gid := patch.get_gid())}  # fmt: skip
    assert bars["de", "K = 4"] == pytest.approx(100 * gained[4]["de"])
    assert axes.get_xticklabels()[0].get_text() == f"de\n{100 * (0.86 + 0.004 * 1.5):.1f}"
    assert len(gain_figure(replace(runs, scores=pd.concat(
        [runs.scores.assign(language=runs.scores["language"] + str(i)) for i in range(5)]))).axes) == 2  # fmt: skip


def test_histograms_are_of_dev_scores() -> None:
    """As FS Fig. 1; test scores are other numbers."""
    records = study(("de",), (1,), buckets=4, seeds=(1,)) + study(("de",), (1,), buckets=1, seeds=(2, 3))
    for bucket, record in enumerate(records):
        for point in record.curve:
            point["dev"]["de"]["token_accuracy"] += 0.01 * bucket
    (section,) = few_shot_sections(records)
    plot = next(p for block in section.blocks for p in block.plots if "histograms" in p.name)
    dev = [100 * max(p["dev"]["de"]["token_accuracy"] for p in r.curve) for r in records]
    test = [100 * r.scores["token_accuracy"][-1, -1] for r in records]
    drawn = {text.get_text() for text in plot.draw().axes[0].get_legend().get_texts()}
    stds = [f"4 buckets, std {np.std(series[:4], ddof=1):.2f}" for series in (dev, test)]
    assert stds[0] in drawn
    assert stds[0] != stds[1]
    silent = [replace(r, curve=()) for r in records]
    assert not [p for s in few_shot_sections(silent) for b in s.blocks for p in b.plots if "histograms" in p.name]


def test_learning_curves_fall_where_dev_scores_fall() -> None:
    def curve(*scores: float) -> tuple[dict[str, object], ...]:
        return tuple({"hop": 2, "epoch": e, "dev": {"de": {"token_accuracy": s}}} for e, s in enumerate(scores, 1))

    falling, rising = (
        replace(run("de", 1, 0), curve=curve(0.9, 0.8, 0.85)),
        replace(run("de", 1, 1), curve=curve(0.5, 0.6)),
    )
    lines = {("de", 1): [dev_curve(r, "token_accuracy") for r in (falling, rising)]}
    figure = adapting_curves(lines, "token_accuracy", "score", "x")
    (axes,) = figure.axes
    lines = [line for line in axes.lines if line.get_marker() == "None"]
    assert [line.get_ydata().tolist() for line in lines] == [pytest.approx([50, 60]), pytest.approx([90, 80, 85])]
    assert lines[0].get_color() != lines[1].get_color()
    assert "first epoch best in 1 of 2" in axes.get_title()


def test_confusions_of_marc_stand_next_to_those_of_table_10() -> None:
    records = [run("de", 1, b, dataset="marc", metric="class_accuracy") for b in (0, 1)]
    names, gold = ("5", "1", "2", "3", "4"), np.array([1, 1, 0])
    outcomes = {
        r.run_id: Outcome(names, ("a", "b", "c"), np.ones(3, int), gold, before=np.array([1, 2, 0]), after=after)
        for r, after in zip(records, (np.array([1, 1, 0]), np.array([2, 1, 0])), strict=True)
    }
    (section,) = few_shot_sections(records, FewShotData({"class_accuracy": outcomes}))
    (table,) = next(block.tables for block in section.blocks if block.part.name == "fewshot_confusions")
    assert [row[:2] for row in table.rows] == [(k, str(s)) for k in ("K = 0", "K = 1") for s in range(1, 6)]
    # Gold 1: once right and once 2 before; after it 1.5 times right on average, over the two buckets.
    assert table.rows[0][2:6] == ("292", "1.0", "584", "1.0")
    assert table.rows[5][2:6] == ("526", "1.5", "361", "0.5")
    # The gold label 5 is the first of the names, and the last row.
    assert table.rows[9][-2:] == ("670", "1.0")


def test_table_3_says_what_comes_closest() -> None:
    panx, udpos = table_3()
    closest = [row for row in panx.rows if row[3] == "closest"]
    assert [row[:3] for row in closest] == [
        ("lexical overlap", "mean over K", "K = 2"),
        ("shared WALS features", "mean over K", ""),
    ]
    assert [row[4] for row in closest] == ["-0.34", "-0.37"]
    assert len(udpos.rows) >= 10


def test_words_of_buckets() -> None:
    records = study(languages=("de",), shots=(1,), buckets=3, seeds=(1,))
    data = given(records, 5)
    words = {("de", 1): [data.words[r.run_id] for r in records]}
    union = frozenset().union(*(w.bucket for w in words["de", 1]))
    source = words["de", 1][0].source
    assert overlaps(words)[1]["de"] == len(union & source) / len(source)
    assert 0 < jaccards(words)[1]["de"] < 1
    counts = improvement((data.outcomes["token_accuracy"][r.run_id], data.words[r.run_id]) for r in records)
    assert counts[:, 0].sum() == 3 * 5 * 8
    # The study puts words of the bucket right more often.
    assert counts[0, 2] / counts[0, 1] > counts[2, 2] / counts[2, 1]


def test_attention_is_shown_where_it_was_kept() -> None:
    records = study(languages=("de",), shots=(1,), buckets=2, seeds=(1,))
    rows = [(hop, "de", word, 9, 0.1 + 0.1 * hop * (word == "gut")) for hop in (1, 2) for word in ("gut", "ein")]
    summary = pd.DataFrame(rows, columns=list(COLUMNS))
    (section,) = few_shot_sections(records, FewShotData(attention={records[0].run_id: summary}))
    (table,) = next(block for block in section.blocks if block.title == "Attention of [CLS]").tables
    assert table.rows[0] == ("gut", "?", "9", "20.00", "30.00", "10.00")
    assert table.title == "[CLS] in de, K = 1, bucket 0, full, seed 1"


def test_attention_that_no_word_gets_more_of_is_not_shown() -> None:
    """Where heads alone adapt; and of the others no more than the page has room for."""
    records = study(languages=("de",), shots=(1,), buckets=20, seeds=(1,))
    summaries = {}
    for record in records:
        change = 0.1 * (record.bucket != 0)
        rows = [(hop, "de", word, 9, 0.2 + change * hop) for hop in (1, 2) for word in ("gut", "ein")]
        summaries[record.run_id] = pd.DataFrame(rows, columns=list(COLUMNS))
    (section,) = few_shot_sections(records, FewShotData(attention=summaries))
    tables = next(block for block in section.blocks if block.title == "Attention of [CLS]").tables
    assert len(tables) == PANELS
    assert not any("bucket 0" in table.title for table in tables)


TUNED = ("naive", "fc", "fc_pooler")


def tables(records: list[RunRecord], options: Options | None = None) -> tuple[Table, ...]:
    """What is tuned; and its tests: of all strategies, and of pairs."""
    (section,) = few_shot_sections(records, options=options)
    by_title = {table.title: table for block in section.blocks for table in block.tables}
    names = ("what is tuned", "do strategies differ", "all pairs of strategies")
    return tuple(by_title[f"tokens: {name}"] for name in names if f"tokens: {name}" in by_title)


def cells(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.header, row, strict=True)) for row in table.rows]


@pytest.mark.full
def test_tests_of_what_is_tuned_are_those_of_other_libraries_on_means_of_languages() -> None:
    records = study(languages=("de", "fi", "hi", "tr"), shots=(1,), buckets=3, strategies=TUNED)
    # A bucket with fewer seeds counts like another; one that a strategy lacks is in no mean.
    gone = {"pud-fc-en-de-k1-b0-s2", "pud-naive-en-hi-k1-b2-s1", "pud-naive-en-hi-k1-b2-s2"}
    records = [r for r in records if r.run_id not in gone]
    means, anovas, pairs = tables(records)

    long = few_shot_scores(records)
    lacking = {("de", 0, 2), ("hi", 2, 1), ("hi", 2, 2)}
    keys = zip(long["language"], long["bucket"], long["seed"], strict=True)
    both = long[[key not in lacking for key in keys]]
    of_bucket = both.groupby(["strategy", "language", "bucket"])["score"].mean()
    of_language = of_bucket.groupby(["strategy", "language"]).mean().rename("value").reset_index()
    fit = smf.ols("value ~ C(strategy) + C(language)", of_language).fit()
    line = sm.stats.anova_lm(fit, typ=2).loc["C(strategy)"]
    (row,) = cells(anovas)
    assert (row["analysis of variance"], row["df"]) == ("two-way, blocks: languages", "2, 6")
    assert row["p"].value == pytest.approx(line["PR(>F)"], rel=1e-6)
    assert "replicates: 4 languages (21 runs per strategy" in anovas.notes[0]

    wide = of_language.pivot_table(index="strategy", columns="language", values="value").loc[
        ["full", "fc", "fc_pooler"]
    ]
    values, pair_rows = wide.to_numpy(), cells(pairs)
    at = [(0, 1), (0, 2), (1, 2)]
    assert [(r["K"], r["a"], r["b"]) for r in pair_rows] == [
        ("K = 1", "full", "fc"), ("K = 1", "full", "fc_pooler"), ("K = 1", "fc", "fc_pooler"),
    ]  # fmt: skip
    differences = [values[i].mean() - values[j].mean() for i, j in at]
    assert [r["Δ"].value for r in pair_rows] == pytest.approx(differences)
    error = np.sqrt(fit.mse_resid / 4)
    tukey = [stats.studentized_range.sf(abs(d) / error, 3, 6) for d in differences]
    assert [r["Tukey, blocks"].value for r in pair_rows] == pytest.approx(tukey, rel=1e-6)
    half = stats.studentized_range.ppf(0.95, 3, 6) * error
    assert pair_rows[0]["interval"] == f"[{100 * (differences[0] - half):.2f}, {100 * (differences[0] + half):.2f}]"
    paired = multipletests([stats.ttest_rel(values[i], values[j]).pvalue for i, j in at], method="holm")[1]
    ranked = multipletests([stats.wilcoxon(values[i], values[j]).pvalue for i, j in at], method="holm")[1]
    assert [r["paired t"].value for r in pair_rows] == pytest.approx(paired)
    assert [r["Wilcoxon"].value for r in pair_rows] == pytest.approx(ranked)

    # The table shows the same means, over what all strategies have, and the marks of paired t-tests against the first.
    *rows, across = cells(means)
    assert across["language"] == "mean of 4 languages"
    assert [across[s].value for s in wide.index] == pytest.approx(values.mean(axis=1))
    assert [row[s].value for s in wide.index for row in rows] == pytest.approx(values.ravel())
    family = multipletests([stats.ttest_rel(values[i], values[0]).pvalue for i in (1, 2)], method="holm")[1]
    marks = ["", *("***" if p < 0.001 else "**" if p < 0.01 else "*" if p < 0.05 else "" for p in family)]
    assert [across[s].mark for s in wide.index] == marks
    assert marks[1]
    assert not any(row[s].mark for row in rows for s in wide.index)
    assert means.raised[0].startswith("* ** ***: different from the baseline, full, at p <")
    assert any(note.endswith("(de K = 1: 5 of 6; hi K = 1: 4 of 6)") for note in means.notes)
    assert any(re.match("buckets: 2 to 3, .*; seeds: 1 to 2, ", note) for note in means.notes)


@pytest.mark.full
def test_the_section_opens_with_gains_and_with_which_strategy_is_best() -> None:
    records = study(languages=("de", "fi", "hi", "tr"), shots=(1,), buckets=3, strategies=TUNED)
    (section,) = few_shot_sections(records)
    opening, *strategies, caveat = section.conclusions
    means, *_ = tables(records)
    *_, across = cells(means)
    of_language = (
        few_shot_scores(records).query("strategy == 'full'").groupby("language")[["score", "zero_shot"]].mean()
    )
    gain = 100 * (of_language["score"] - of_language["zero_shot"]).mean()
    assert opening == f"Token accuracy: full gains {gain:.2f} points over zero-shot at K = 1 (mean over 4 languages)."
    runs = section.data[0]
    assert isinstance(runs, FewShotRuns)
    p_values = {label: pair.p for (label, *_), pair in runs.tests.primary.items()}
    assert max(p_values.values()) < 0.05
    assert strategies == [
        f"Token accuracy: {label} has {100 * (across['full'].value - across[label].value):.2f} points lower mean score "
        f"at K = 1 than full ({across['full']} → {across[label]}; p {p_text(p, sign=True)}); 4 languages."
        for label, p in p_values.items()
    ]
    assert caveat.startswith("Caveat: replicates: 4 languages")
    assert "paired t-test over languages" in caveat
    assert "2 comparisons (K = 1)" in caveat
    assert "“token accuracy: tests of the fine-tuning strategies”" in caveat
    # Of one strategy there is its gain alone.
    (alone,) = few_shot_sections(study(languages=("de",), shots=(1,), buckets=2, seeds=(1,)))
    assert [text.count("gains") for text in alone.conclusions] == [1]
    # The scores before adapting and after it exchanged.
    fallen = [replace(r, scores={m: R[[*range(len(R) - 2), -1, -2]] for m, R in r.scores.items()}) for r in records]
    (section,) = few_shot_sections(fallen)
    assert f"full loses {gain:.2f} points against zero-shot at K = 1" in section.conclusions[0]


def test_the_family_of_a_section_holds_every_k_metric_and_source() -> None:
    """Holm's correction over strategies × K × metrics × sources, as statsmodels computes it."""
    several = study(languages=("de", "fi", "hi", "tr"), shots=(1, 4), buckets=2, strategies=("naive", "fc"))
    several += study(languages=("de", "fi", "hi", "tr"), shots=(1,), buckets=2, strategies=("naive", "fc"), source=None)
    (section,) = few_shot_sections(several)
    parts = [part for part in section.data if isinstance(part, FewShotRuns)]
    assert len(parts) == 2
    raw = [pair.p for part in parts for pair in part.tests.unadjusted.values()]
    adjusted = [pair.p for part in parts for pair in part.tests.primary.values()]
    assert len(raw) == 3
    assert adjusted == pytest.approx(multipletests(raw, method="holm")[1])


@pytest.mark.full
def test_of_one_language_the_replicates_are_its_buckets() -> None:
    records = study(languages=("de",), shots=(1,), buckets=5, strategies=("naive", "fc"))
    means, anovas, pairs = tables(records, Options(baseline="fc"))
    of_bucket = few_shot_scores(records).groupby(["strategy", "bucket"])["score"].mean()
    p = stats.ttest_rel(of_bucket["full"], of_bucket["fc"]).pvalue
    (row,), (mean_row,) = cells(pairs), cells(means)
    # Of two strategies Tukey's test with blocks is the paired t-test.
    assert (row["Tukey, blocks"].value, row["paired t"].value) == pytest.approx((p, p), rel=1e-5)
    assert anovas.notes[0].startswith("replicates: 5 buckets (10 runs per strategy, averaged within each replicate)")
    assert "only to de" in anovas.notes[0]
    assert (mean_row["language"], mean_row["fc"].mark) == ("de", "")
    assert bool(mean_row["full"].mark) == (p < 0.05)
    assert "the baseline, fc, at" in means.raised[0]
    assert "paired t-test over buckets" in means.raised[0]
    # Few-shot tables call naive full.
    assert "the baseline, full, at" in tables(records, Options(baseline="naive"))[0].raised[0]


def test_a_strategy_with_other_buckets_removes_no_test_of_the_others() -> None:
    whole = study(languages=("de",), shots=(1,), buckets=5, strategies=("naive", "fc"))
    records = [*whole, *(run("de", 1, b, 1, "fc_pooler") for b in (9, 10))]
    first, both = first_of(whole).tests, first_of(records).tests
    key = next(iter(first.unadjusted))
    assert (both.unadjusted[key].p, both.unadjusted[key].n) == (first.unadjusted[key].p, 5)
    (other,) = both.primary.keys() - first.primary.keys()
    assert both.primary[other].reason == f"{other[0]} and full have no bucket and seed in common"
    assert both.primary[key].p == pytest.approx(min(1, 2 * first.unadjusted[key].p))
    # Nor does it change the means of the others; its own mean is shown and not ranked.
    (before,), (after,) = (cells(by_strategy(first_of(each))) for each in (whole, records))
    assert {name: after[name] for name in ("full", "fc")} == {name: before[name] for name in ("full", "fc")}
    assert (after["fc_pooler"] != "–", after["fc_pooler"].best, before["fc"].best or before["full"].best) == (
        True, False, True
    )  # fmt: skip
    assert any(note.endswith("of its strategy: de K = 1: fc_pooler") for note in by_strategy(first_of(records)).notes)


def test_what_cannot_be_tested_says_why() -> None:
    one_bucket = [run("de", 1, 0, seed, s) for seed in (1, 2, 3) for s in ("naive", "fc")]
    apart = [run("de", 4, b, 1, s) for b, s in enumerate(("naive", "fc"))]
    means, anovas, pairs = tables([*one_bucket, *apart])
    (row,) = cells(pairs)
    # Seeds of one bucket are no evidence about others.
    assert [row[name] for name in ("K", "Tukey, blocks", "paired t", "Wilcoxon")] == ["K = 1", *["n/a [1]"] * 3]
    assert pairs.notes[0] == "[1] needs two replicates or more"
    assert "one bucket of de; a test needs two" in anovas.notes[1]
    assert "K = 4: strategies were not tested, because full, fc have no bucket and seed in common" in means.notes
    own = {label: f"{100 * score:.2f}" for label, score in few_shot_scores(apart)[["strategy", "score"]].to_numpy()}
    assert means.rows[1] == ("de", "K = 4", own["full"], "91.32 ± 0.43", own["fc"])
    assert not any(isinstance(cell, Cell) and cell.best for cell in means.rows[1])
    (alone,) = tables(apart)
    assert alone.notes[-1].startswith("the strategies have not been tested")
    # With --unpaired a mean is over what its own strategy has.
    wide, *_ = tables([*one_bucket, *apart], Options(unpaired=True))
    assert [row["full"] for row in cells(wide)][1] != "–"
    assert any("each mean is over all buckets and seeds of its strategy" in note for note in wide.notes)


@pytest.mark.full
def test_a_baseline_that_no_run_has_is_refused_and_one_of_other_runs_marks_nothing(
    tmp_path: Path, undrawn: None
) -> None:
    records = [*study(languages=("de",), shots=(1,), buckets=2, seeds=(1,), strategies=("naive", "fc")), OTHER]
    with pytest.raises(UsageError, match="--baseline: unknown strategy 'fcc'; did you mean 'fc'"):
        write_report(records, tmp_path, "x", options=Options(baseline="fcc"))
    means, *_ = tables(records, Options(baseline="er"))
    # Nor has a baseline of few-shot runs a mark to give elsewhere, and the section says why.
    report = write_report(records, tmp_path, "x", options=Options(baseline="full"))
    assert "no significance marks: the baseline, full, has no runs in this section" in report.sections[0].caveats
    assert "no significance marks: the baseline, er, is not among the tested strategies" in means.notes


def test_names_of_points_that_lie_on_one_another_stand_beside_one_another() -> None:
    points = {"de": (4, 0.05), "hi": (3, 0.22), "fi": (4, 0.053), "zh": (4, 0.13)}
    figure = scatter({"shared WALS features": points}, "tokens", SHARE.difference, "gains")
    assert [text.get_text() for text in figure.axes[0].texts] == ["de, fi", "hi", "zh"]
