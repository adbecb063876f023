"""Codelength tables by hand, switching between coders, and GLI's numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.analysis.build import record
from xclrun.analysis.measures import measure
from xclrun.analysis.record import RunRecord
from xclrun.report.codelength import codelength_sections
from xclrun.report.part import make_block
from xclrun.report.parts.codelength import by_size, codelengths, gli_codelengths, score_table, total_table
from xclrun.report.published import gli
from xclrun.report.tables import Cell

from .study import drawn, summary_of
from .study import rows_of as rows

# Ten examples a block, 4 bits each in the uniform code.
UNIFORM = 40.0


def coded(
    bits: Sequence[float], *, start: Sequence[str] = (), knows: Sequence[str] | bool | None = None,
    tags: Sequence[float] | None = None, key: str = "de", seed: int = 1, selection: str = "last",
    scores: Sequence[float] = (), **fields: Any,
) -> RunRecord:  # fmt: skip
    """Make a run whose blocks of ten German examples cost so many bits under the models before them."""
    languages, hops = (*start, key), len(start) + len(bits) - 1
    matrix = np.full((hops + 1, len(languages)), 0.5)
    matrix[len(start) :, -1] = scores or np.linspace(0.1, 0.4, len(bits))
    bits_of = {"labels": bits} | ({} if tags is None else {"tags": tags})
    blocks = tuple(
        {
            "hop": len(start) + i,
            "block": i + 1,
            "start_knows": (["labels", "tags"] if start else []) if knows is None else knows,
            "codes": {
                part: {"examples": 10, "bits": values[i], "uniform": UNIFORM} for part, values in bits_of.items()
            },
        }
        for i in range(len(bits))
    )
    fields = {
        "config": {"dataset": {"blocks": len(bits)}, "trainer": {"selection": selection, "patience": None}}
    } | fields
    fields.setdefault("run_id", f"{fields.get('model', 'tiny')}-{'-'.join(languages)}-{selection}-{seed}")
    return record("growing", seed=seed, scores=matrix, languages=languages, stream="blocks", coded=blocks, **fields)


STUDY = [
    *(coded([99, 30, 20, 10], seed=seed) for seed in (1, 2)),
    *(coded([99, 20 + seed, 12, 12], seed=seed, model="e5_small") for seed in (1, 2)),
    coded([9, 8, 7, 6], start=("en",), model="e5_small"),
]


def test_totals_by_hand_the_shortest_code_first() -> None:
    (section,) = codelength_sections(STUDY)
    table = total_table(section)
    assert [row[:2] for row in table.rows] == [
        ("e5_small", "en"), ("e5_small", "–"), ("tiny", "–"), ("–", "–"), ("uniform", "–")
    ]  # fmt: skip
    by_coder = rows(table)
    # The first block is uniform, 40 bits, but for a start that knows the head.
    assert by_coder["e5_small", "en", "growing", "strict"]["L kbits ↓"] == "0.030"
    assert by_coder["tiny", "–", "growing", "strict"]["L/example ↓"] == "2.50 ± 0.00"
    e5 = by_coder["e5_small", "–", "growing", "strict"]
    assert (e5["runs"], e5["L kbits ↓"], e5["% of uniform"]) == ("2", "0.085 ± 0.001", "53.4 ± 0.4")
    assert e5["intent at the end"] == "40.00 ± 0.00"
    assert by_coder["uniform", "–", "–", "strict"]["L/example ↓"] == "4.00"
    assert table.notes[-1] == "mean ± standard deviation over seeds"
    assert score_table(section, "intent_accuracy").notes[-1] == "mean over seeds"
    (single,) = codelength_sections(STUDY[-1:])
    assert not any("seeds" in note for note in total_table(single).notes)


def test_switching_to_the_best_counts_the_choice_and_only_seeds_that_all_have() -> None:
    (section,) = codelength_sections(STUDY)
    bits, among = section.switching(strict=True) or (np.zeros(0), 0)
    assert (bits.shape, among) == ((1, 4), 3)
    np.testing.assert_allclose(bits[0], np.array([9, 8, 7, 6]) + math.log2(3))
    assert section.switching(strict=False) is None
    (alone,) = codelength_sections(STUDY[:1])
    assert alone.switching(strict=True) is None
    assert [row[0] for row in total_table(alone).rows] == ["tiny", "uniform"]


def test_a_code_whose_checkpoints_dev_data_chose_is_not_strict() -> None:
    (section,) = codelength_sections([coded([99, 30]), coded([99, 20], selection="best")])
    assert [(coder.strict, coder.name) for coder in section.coders] == [
        (False, "tiny, growing, with dev"), (True, "tiny, growing")
    ]  # fmt: skip
    assert section.switching(strict=True) is None


def test_labels_and_tags_are_counted_apart_and_together() -> None:
    (section,) = codelength_sections([coded([99, 10], tags=[99, 30])])
    (row,) = [row for row in rows(total_table(section)).values() if row["model"] == "tiny"]
    assert (row["L/example ↓"], row["labels"], row["tags"]) == ("6.00", "2.50", "3.50")
    note_text = " ".join(total_table(section).notes)
    assert ("gold class" in note_text, "gold tags" in note_text, "gold answer" in note_text) == (True, True, False)


def test_a_start_that_knows_the_labels_alone_codes_them_alone_in_the_first_block() -> None:
    def bits(knows: Sequence[str] | bool) -> tuple[float, str]:
        (section,) = codelength_sections([coded([8, 30], tags=[7, 20], start=("en",), knows=knows)])
        return float(section.coders[0].bits(section.parts).sum()), " ".join(section.caveats)

    total, note = bits(["labels"])
    assert total == (8 + 30) + (UNIFORM + 20)
    assert note.startswith("these rows encode the first block with the model instead of the uniform code")
    assert note.endswith("tiny after en, growing (labels only)")
    assert [bits(knows)[0] for knows in (["labels", "tags"], [])] == [65, 130]


def test_runs_on_other_blocks_have_a_section_of_their_own() -> None:
    assert len(codelength_sections([coded([99, 30]), coded([99, 30, 20]), coded([99, 9], dataset="mtop")])) == 3
    unfinished = coded([99, 30], status="running")
    assert codelength_sections([unfinished, record()]) == []


def test_a_start_of_a_mixture_is_told_from_a_sequence() -> None:
    sequence, mixed = (coded([9, 8, 7], start=start) for start in (("en", "fr"), ("en+fr",)))
    (section,) = codelength_sections([sequence, mixed])
    assert {coder.name for coder in section.coders} == {"tiny after en → fr, growing", "tiny after en+fr, growing"}


def test_beside_the_code_means_over_other_languages_are_not_compared() -> None:
    """After English the mean final score is one over English and German; scores on German alone are compared."""
    summary = summary_of([coded([9, 8], scores=(0.1, 0.4)), coded([9, 8], start=("en",), scores=(0.1, 0.2))])

    def finals(table_rows: Sequence[Sequence[str]], column: int) -> dict[str, bool]:
        cells = [row[column] for row in table_rows]
        return {str(cell): cell.best for cell in cells if isinstance(cell, Cell)}

    main, german = summary.main(["intent_accuracy"]), summary.languages("intent_accuracy", "FP")
    assert finals(main.rows, main.header.index("FP ↑")) == {"40.00": False, "35.00": False}
    assert finals(german.rows, german.header.index("de")) == {"40.00": True, "20.00": False}


def test_scores_stand_by_the_examples_that_were_learnt() -> None:
    (section,) = codelength_sections([coded([9, 8, 7], start=("en",), scores=(0.2, 0.5, 0.625))])
    table = score_table(section, "intent_accuracy")
    assert table.header[4:] == ("0", "10", "20")
    assert table.rows[0][4:] == ("20.00", "50.00", "62.50")


def test_the_measures_are_kbits_and_bits_of_what_their_metric_scores() -> None:
    mine = coded([99, 10], tags=[99, 30])
    measures = {metric: measure(mine, metric, np.full(1, math.nan)) for metric in mine.scores}
    assert (measures["intent_accuracy"]["L", ""], measures["intent_accuracy"]["L_example", ""]) == (0.05, 2.5)
    plain = measure(record(), "intent_accuracy", np.full(3, math.nan))["L", ""]
    assert getattr(plain, "reason", None) == "needs the labels of all blocks (dataset.blocks)"


def test_figures_are_drawn_and_the_findings_name_the_order() -> None:
    (section,) = codelength_sections(STUDY)
    assert section.conclusions == [
        "Bits per example, shortest code first: e5_small after en, growing 0.75; e5_small, growing 2.14; "
        "tiny, growing 2.50; uniform code 4.00."
    ]
    (caveat,) = section.caveats
    assert caveat.endswith(": e5_small after en, growing")
    figure = drawn(section, codelengths, section.where)
    assert figure.get_suptitle().endswith("(dashed: the uniform code; mean over seeds)")
    (axes,) = figure.axes
    *lines, dashed = axes.lines
    assert [line.get_ydata().tolist() for line in lines] == [
        [0.9, 0.8, 0.7, 0.6], [4.0, 2.15, 1.2, 1.2], [4.0, 3.0, 2.0, 1.0]
    ]  # fmt: skip
    assert {tuple(line.get_xdata()) for line in (*lines, dashed)} == {(0, 10, 20, 30)}
    assert dashed.get_ydata().tolist() == [4.0] * 4
    (axes,) = drawn(section, by_size, section.where).axes
    assert [line.get_xdata().tolist() for line in axes.lines] == [[10, 20, 30]] * 3
    assert axes.lines[0].get_ydata() == pytest.approx([20, 30, 40])


@pytest.mark.parametrize(("dataset", "expected"), [("squad", [102.42, 112.96, 31.7, 54.5]), ("mnli", [89.25, 132.17])])
def test_glis_codelengths_are_those_of_its_text(dataset: str, expected: list[float]) -> None:
    assert sorted(gli.codelengths(dataset).values()) == sorted(expected)


def test_glis_numbers_stand_beside_ours_with_what_is_wrong_with_them() -> None:
    (section,) = codelength_sections([coded([99, 30], dataset="squad", model="bert")])
    block = make_block(gli_codelengths, section)
    assert "do not follow from its formula" in block.paragraphs[0]
    (table,) = block.tables
    assert rows(table)["bert", "–"]["L kbits"] == "102.42"
    assert rows(table)["bert", "–"]["ours"] == "0.07"
    assert rows(table)["elmo", "–"]["ours"] == "–"
    # A key of several datasets in one.
    (keyed,) = codelength_sections([coded([9, 3], dataset="gli", model="bert", start=("triviaqa",), key="squad")])
    (table,) = make_block(gli_codelengths, keyed).tables
    assert rows(table)["bert", "other tasks first"]["ours"] == "0.01"
    # Codes that dev data helped to, or that had another start, stand apart: the shortest is not chosen.
    several = [
        coded([99, 3], dataset="gli", model="bert", start=(first,), key="squad", selection=selection)
        for first, selection in (("triviaqa", "last"), ("triviaqa", "best"), ("quac", "last"))
    ]
    (mixed,) = codelength_sections(several)
    (table,) = make_block(gli_codelengths, mixed).tables
    assert sorted(row[3] for row in table.rows if row[:2] == ("bert", "other tasks first")) == [
        "quac, growing, strict", "triviaqa, growing, strict", "triviaqa, growing, with dev"
    ]  # fmt: skip
    (other,) = codelength_sections([coded([99, 30])])
    assert not make_block(gli_codelengths, other)
    # What the paragraph says, from the printed numbers.
    remaining = gli.codelengths("mnli")["bert", False] - 40_000 * math.log2(3) / 1000
    assert round(remaining, 1) == 25.9
    assert remaining / 353 < 0.074 < 1 - gli.gli_tables()["3", "bert", "random_curriculum", "mnli", "accuracy"] / 100
