"""Reports on streams of many languages: tables by family, and matrices and curves that can be read."""

from __future__ import annotations

import numpy as np
from matplotlib.text import Text

from xclrun.analysis.aggregate import comparisons
from xclrun.report.heatmaps import heatmap, heatmaps
from xclrun.report.parts.curves import learning_curve_pages, training_curve_pages
from xclrun.report.style import MOST, WIDEST

from .study import run, summary_of

# 20 languages: Germanic and Romance ones, Semitic ones in two scripts, two that are alone, and a key that is none.
KEYS = (
    "de-DE", "en-US", "sv-SE", "da-DK", "nl-NL", "nb-NO", "is-IS", "af-ZA", "fr-FR", "it-IT", "es-ES", "pt-PT", "ro-RO",
    "ru-RU", "pl-PL", "ar-SA", "he-IL", "am-ET", "ja-JP", "notes",
)  # fmt: skip
METRIC = "intent_accuracy"


def test_a_table_by_language_has_a_row_for_each_family_by_family_with_script() -> None:
    records = [run(name, "o", 1, KEYS, metrics=(METRIC,)) for name in ("naive", "er")]
    summary = summary_of(records)
    table = summary.languages(METRIC, "FP")
    assert table.header == ("language", "name", "family", "script", "naive", "er")
    assert table.left == 4
    assert [row[0] for row in table.rows[:3]] == ["am-ET", "ar-SA", "he-IL"]
    assert table.rows[1][1:4] == ("Arabic", "Afro-Asiatic", "Arabic")
    assert table.rows[-1][:4] == ("notes", "–", "–", "–")
    assert len(table.rows) == 20
    # Rules separate families: Indo-European, Japonic, unknown.
    assert [table.rows[k][0] for k in table.ruled] == ["af-ZA", "ja-JP", "notes"]
    for row in table.rows:
        values = {record.strategy: record.scores[METRIC][-1, KEYS.index(row[0])] for record in records}
        assert row[4:] == tuple(f"{100 * values[name]:.2f}" for name in ("naive", "er"))
        best = max(values, key=lambda name: values[name])
        assert [cell.best for cell in row[4:]] == [name == best for name in ("naive", "er")]  # type: ignore[attr-defined]
    assert table.raised == ("bold: best of the row",)


def test_families_and_scripts_are_means_over_their_languages() -> None:
    (record,) = records = [run("naive", "o", 1, KEYS, metrics=(METRIC,))]
    table = summary_of(records).groups(METRIC, "FP")
    assert table is not None
    final = dict(zip(KEYS, record.scores[METRIC][-1], strict=True))
    semitic = np.mean([final[key] for key in ("ar-SA", "he-IL", "am-ET")])
    rows = {row[0]: row[1:] for row in table.rows}
    # Indo-European 15; those of one language, and keys of none, are left out. Then scripts: Latin 14.
    assert [(row[0], row[1]) for row in table.rows] == [("Indo-European", "15"), ("Afro-Asiatic", "3"), ("Latin", "14")]
    assert rows["Afro-Asiatic"][1] == f"{100 * semitic:.2f}"
    assert table.ruled == (2,)
    assert summary_of(records).groups(METRIC, "T") is None
    assert summary_of(records).languages(METRIC, "T").rows == ()


def test_few_languages_have_a_column_each_and_a_note_of_scripts() -> None:
    keys = ("en", "th", "de_gsd", "yelp")
    table = summary_of([run("naive", "o", 1, keys, metrics=(METRIC,))]).languages(METRIC, "FP")
    assert sorted(table.header[1:]) == sorted(keys)
    assert "scripts: Latin (" in table.notes[-1]
    assert "Thai (th)" in table.notes[-1]
    assert "yelp" not in table.notes[-1]
    tasks = summary_of([run("naive", "o", 1, ("yelp", "boolq"), metrics=(METRIC,))]).languages(METRIC, "FP")
    assert not any("scripts" in note for note in tasks.notes)


def test_a_matrix_of_51_languages_fits_a_page_in_colours_and_names_each() -> None:
    keys = tuple(f"l{k}-XX" for k in range(51))
    records = [run(name, "o", 1, keys, metrics=(METRIC,)) for name in ("naive", "er")]
    single, both = heatmap(records[0], METRIC), heatmaps({r.strategy: [r] for r in records}, METRIC, "o")
    for figure in (single, both):
        assert figure.get_size_inches()[0] <= WIDEST
    panels = [single.axes[0], *both.axes[:2]]
    for axes in panels:
        assert not [text for text in axes.texts if text.get_text()]
        assert [label.get_text() for label in axes.get_xticklabels()] == list(keys)
        assert axes.get_images()[0].get_array().shape == (52, 51)
    # Names are lower than a cell, so they do not overlap.
    height = single.get_size_inches()[1] / 54 * 72
    assert max(label.get_fontsize() for label in single.axes[0].get_yticklabels()) < height
    few = heatmap(run("naive", "o", 1, keys[:MOST], metrics=(METRIC,)), METRIC)
    assert len([text for text in few.axes[0].texts if text.get_text()]) == MOST * (MOST + 1)


def test_curves_of_many_languages_are_means_of_those_learnt_and_those_to_come() -> None:
    record = run("naive", "o", 1, KEYS, metrics=(METRIC,))
    (comparison,) = comparisons([record])
    (page,) = learning_curve_pages(comparison, METRIC)
    axes = page().axes[0]
    scores = 100 * record.scores[METRIC]
    learnt, unseen = axes.lines
    assert np.allclose(learnt.get_xdata(), range(1, 21))
    assert np.allclose(learnt.get_ydata(), [scores[i, :i].mean() for i in range(1, 21)])
    assert np.allclose(unseen.get_xdata(), range(20))
    assert np.allclose(unseen.get_ydata(), [scores[i, i:].mean() for i in range(20)])
    each, _ = axes.collections  # the other: lines upright
    assert len(each.get_segments()) == 20  # type: ignore[attr-defined]
    (training,) = training_curve_pages(comparison, "loss")
    # Names are not there, and nothing says that they are.
    drawn = training()
    assert not [text for text in drawn.axes[0].texts if text.get_text()]
    labels = [text.get_text() for text in drawn.findobj(Text)]
    assert "main steps (vertical: start of a hop)" in labels
    assert not any("above" in text for text in labels)
