"""GLI's Table 2 next to ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.analysis.build import record
from xclrun.analysis.record import RunRecord
from xclrun.report.part import make_block
from xclrun.report.parts.generalisation import gli_generalisation

from .study import section_of

KEYS = ("squad", "quac", "qa_srl")


def on_others(
    seed: int, shift: float = 0.0, languages: tuple[str, ...] = KEYS, stream: str = "zero_shot", **fields: Any
) -> RunRecord:
    f1, exact = np.array([[0.1] * 3, [0.8, 0.5, 0.6]]) + shift, np.array([[0.0] * 3, [0.7, 0.4, 0.5]]) + shift
    scores = {"answer_f1": f1, "exact_match": exact}
    return record(stream, seed=seed, scores=scores, languages=languages, stream=stream, dataset="gli", **fields)


def test_a_model_of_squad_stands_beside_glis_on_each_dataset_that_it_was_tested_on() -> None:
    block = make_block(gli_generalisation, section_of([on_others(1), on_others(2, shift=0.02)]))
    (table,) = block.tables
    assert table.header == ("key", "F1", "ours", "EM", "ours")
    by_key = {row[0]: row[1:] for row in table.rows}
    # The model was tuned on SQuAD's validation set alone.
    assert any("tuned on the validation set of squad" in note for note in table.notes)
    # Means of 50 and 52, 40 and 42.
    assert by_key["quac"] == ("56.20", "51.00", "43.90", "41.00")
    assert by_key["qa_srl"] == ("77.50", "61.00", "65.00", "51.00")
    assert by_key["triviaqa"][1] == by_key["qa_zre"][1] == "–"


def test_runs_with_other_settings_are_no_part_of_one_mean() -> None:
    few, more = ({"trainer": {"epochs": epochs}} for epochs in (1, 2))
    runs = [
        on_others(1, config=few, run_id="few"),
        on_others(1, shift=0.02, config=more),
        on_others(2, shift=0.06, config=more),
    ]
    (table,) = make_block(gli_generalisation, section_of(runs)).tables
    labels = ("zero_shot(trainer.epochs=1)", "zero_shot(trainer.epochs=2)")
    assert table.header == ("key", "F1", *labels, "EM", *labels)
    assert {row[0]: row[1:] for row in table.rows}["quac"] == ("56.20", "50.00", "54.00", "43.90", "40.00", "44.00")
    assert "mean over 1 run, 2 runs" in table.notes[0]


def test_runs_from_another_source_have_no_such_table() -> None:
    assert not make_block(gli_generalisation, section_of([on_others(1, languages=("quac", "squad", "qa_srl"))]))
