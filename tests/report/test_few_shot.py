"""The report's section on few-shot runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from xclrun.analysis.attention import COLUMNS
from xclrun.analysis.fewshot import few_shot_scores, over_buckets
from xclrun.report import write_report
from xclrun.report.fewshot import Behind, few_shot_sections
from xclrun.report.fewshot.figures import PANELS
from xclrun.report.fewshot.tables import by_language, by_strategy, table_3
from xclrun.report.fewshot.words import improvement, jaccards, overlaps
from xclrun.report.sections import Options
from xclrun.report.write import Report

from .few_shot import behind, run, study
from .study import run as other

FIGURES = ("histograms", "jaccard", "improved", "confusions", "gains", "curves", "curves_fc")


# A run of another experiment, whose figures are quickly drawn.
OTHER = other("naive", "h2l", 1, ("en", "de"), tasks=("intent_accuracy",), curve=())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report over few-shot runs of two languages, and runs of other experiments."""
    records = study(languages=("de", "hi"), shots=(1,), buckets=3, strategies=("naive", "fc"))
    given, folder = behind(records, 5), tmp_path_factory.mktemp("report")
    return write_report([*records, OTHER], folder, "both", options=Options(few_shot_table="3"), behind=given)


def test_few_shot_runs_have_a_section_of_their_own(written: Report) -> None:
    assert [section.title for section in written.sections] == ["mini · tiny", "pud · tiny · few-shot"]
    assert set(written.frame["dataset"]) == {"mini"}
    assert len(written.few_shot) == len(pd.read_csv(written.directory / "few_shot.csv")) == 24
    assert len(written.to_json()["few_shot"]) == 24
    assert [path.name for path in written.numbers] == ["summary.csv", "few_shot.csv"]


def test_of_few_shot_runs_alone_the_numbers_are_in_their_own_file(tmp_path: Path, undrawn: None) -> None:
    report = write_report(study(languages=("de",), shots=(1,), buckets=2, strategies=("naive",)), tmp_path, "few")
    assert [path.name for path in report.numbers] == ["few_shot.csv"]
    told = report.summary_md.read_text(encoding="utf-8")
    assert "summary.csv" not in told
    assert "`few_shot.csv` has every score" in told


def test_every_figure_of_the_paper_is_drawn(written: Report) -> None:
    page = written.index.read_text(encoding="utf-8")
    for kind in FIGURES:
        name = f"few_shot_{kind}_pud_tiny_tokens"
        assert (written.directory / "figures" / f"{name}.png").stat().st_size > 5000
        assert f"figures/{name}.svg" in page
    for told in ("FS Table 3, panx: recomputed", "Lexical overlap", "where the variance comes from", "improved"):
        assert told in page
    assert "attention of [CLS] (FS Table 5): n/a: needs attention summaries" in page


def test_the_terminal_shows_means_over_buckets(written: Report) -> None:
    text = written.render()
    assert "tokens by language, full" in text
    assert "buckets: 3; seeds: 2" in text
    assert "what is tuned" in text
    assert "strategies are not tested against each other here" in " ".join(text.split())


def test_without_few_shot_runs_there_is_nothing_of_them(tmp_path: Path, undrawn: None) -> None:
    (tmp_path / "few_shot.csv").write_text("from an earlier report", encoding="utf-8")
    made = write_report([OTHER], tmp_path, "x")
    assert not (tmp_path / "few_shot.csv").exists()
    assert "few_shot" not in made.to_json()
    assert "few-shot" not in made.index.read_text(encoding="utf-8") + made.render()


def test_what_is_missing_is_told() -> None:
    (section,) = few_shot_sections(study(languages=("de",), shots=(1,), buckets=2, seeds=(1,)))
    told = "\n".join(section.notes)
    assert "lexical overlap: n/a: needs the words of the buckets" in told
    assert "token accuracy: confusions: n/a: needs predictions" in told
    records = [*study(languages=("de",), shots=(1,), buckets=3, seeds=(1,)), run("hi", 1, 0)]
    (section,) = few_shot_sections(records, Behind(reasons=("words: n/a: needs the data",)))
    assert section.notes[0] == "words: n/a: needs the data"
    assert "means over fewer buckets than the 3 of others: hi K = 1 full: 1" in section.notes


def test_published_numbers_stand_beside_ours() -> None:
    means = over_buckets(few_shot_scores(study(shots=(1, 2), buckets=2, strategies=("naive", "fc"))))
    table = by_language(means, "full")
    assert table.header == ("language", "K = 0", "published", "K = 1", "published", "K = 2", "published")
    german = next(row for row in table.rows if row[0] == "de")
    assert (german[2], german[4], german[6]) == ("86.38", "89.38 ± 0.90", "90.21 ± 0.50")
    assert table.notes[-1].startswith("Spearman's ρ with the published numbers: 1.00 at K = 0 (5 languages)")
    assert "not the paper's data and encoder: ranks may be compared, values may not" in table.notes
    # The paper's POS has no such head.
    assert "published" not in by_language(means, "fc").header
    across = by_strategy(means)
    assert across is not None
    assert across.header == ("language", "K", "full", "full (FS)", "fc")
    assert across.raised == ("bold: best of the row",)


def test_another_source_has_no_published_numbers() -> None:
    means = over_buckets(few_shot_scores(study(shots=(1,), buckets=2, source=None)))
    assert "published" not in by_language(means, "full").header
    assert by_language(means, "full").title.endswith("source none")


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
    found = behind(records, 5)
    words = {("de", 1): [found.words[r.run_id] for r in records]}
    union = frozenset().union(*(w.bucket for w in words["de", 1]))
    source = words["de", 1][0].source
    assert overlaps(words)[1]["de"] == len(union & source) / len(source)
    assert 0 < jaccards(words)[1]["de"] < 1
    counts = improvement((found.outcomes["tokens"][r.run_id], found.words[r.run_id]) for r in records)
    assert counts[:, 0].sum() == 3 * 5 * 8
    # The study puts words of the bucket right more often.
    assert counts[0, 2] / counts[0, 1] > counts[2, 2] / counts[2, 1]


def test_attention_is_shown_where_it_was_kept() -> None:
    records = study(languages=("de",), shots=(1,), buckets=2, seeds=(1,))
    rows = [(hop, "de", word, 9, 0.1 + 0.1 * hop * (word == "gut")) for hop in (1, 2) for word in ("gut", "ein")]
    summary = pd.DataFrame(rows, columns=list(COLUMNS))
    (section,) = few_shot_sections(records, Behind(attention={records[0].run_id: summary}))
    (table,) = next(part for part in section.parts if part.title == "Attention of [CLS]").tables
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
    (section,) = few_shot_sections(records, Behind(attention=summaries))
    tables = next(part for part in section.parts if part.title == "Attention of [CLS]").tables
    assert len(tables) == PANELS
    assert not any("bucket 0" in table.title for table in tables)
