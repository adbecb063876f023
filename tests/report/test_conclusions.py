"""What the page says was found: the tested numbers, and nothing that was not tested."""

from __future__ import annotations

import re
from dataclasses import replace

from xclrun.analysis.aggregate import comparisons
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.report.conclusions import UNRANKED, UNTESTED, conclusions
from xclrun.report.inference import Inference

from .study import LANGUAGES, pairs_of, run, section_of, study
from .test_figures import texts

ALL = ("h2l", "l2h", "order3", "order4")


def inference(records: list[RunRecord]) -> Inference:
    return Inference(comparisons(records)[0], References(records), {})


def test_they_say_who_forgets_least_by_how_much_and_with_which_p() -> None:
    made = inference(study(("naive", "er", "kd_logit", "multilingual"), ALL, (1, 2)))
    intent, slots, caveat = conclusions(made)
    row = pairs_of(made, "intent_accuracy", "F")["naive", "er"]
    assert "er forgets least of 3 strategies (F " in intent  # a reference is none of them
    assert f", {row['Δ'].lstrip('-')} points less than naive, the baseline (Tukey's HSD over orders, p " in intent
    p = row["Tukey, blocks"]
    assert re.search(rf"over orders, p (= )?{re.escape(p)}\)\.", intent)
    assert slots.startswith("Slot F1: er forgets least of 3 strategies (F ")
    assert caveat.startswith("Caveat: replicates: 4 orders (8 runs of each strategy; ")
    assert "with 4 replicates a paired t-test finds a difference of" in caveat


def test_what_a_test_does_not_tell_apart_is_no_finding() -> None:
    records = study(("naive",), ALL, (1,))
    # Of one making, but for the noise.
    records += [
        replace(run("naive", r.order, 9, r.languages), strategy="twin", seed=1, run_id=f"twin-{r.order}")
        for r in records
    ]
    intent, *_ = conclusions(inference(records))
    assert intent.count("; this may be chance (Tukey") == intent.count("no difference is shown") >= 1
    assert "zero" not in intent  # T and T0 are told where they differ alone


def test_the_best_is_compared_with_the_next_where_it_is_the_baseline() -> None:
    records = study(("naive", "er", "kd_logit"), ALL, (1,))
    comparison = comparisons(records)[0]
    made = Inference(comparison, References(records), {}, baseline="er")
    (intent, *_) = conclusions(made)
    assert re.search(
        r"er forgets least of 3 strategies \(F -?[\d.]+ points\), [\d.]+ points less than kd_logit \(Tukey", intent
    )


def test_equal_numbers_and_untested_ones_are_said_to_be_so() -> None:
    records = study(("naive",), ALL, (1,))
    twins = [replace(r, strategy="twin", run_id=f"twin-{r.order}") for r in records]
    (intent, *_) = conclusions(inference([*records, *twins]))
    assert "naive and twin have the same F, " in intent or "twin and naive, the baseline, have the same F, " in intent
    assert conclusions(inference(study(("naive", "er"), ("h2l",), (1,)))) == [UNTESTED]
    assert conclusions(inference([run("naive", "h2l", 1, LANGUAGES)])) == [UNTESTED]


def test_tests_against_a_reference_alone_are_not_denied() -> None:
    made = inference(study(("naive", "inc_joint"), ALL, (1, 2)))
    assert made.marks()["inc_joint", "intent_accuracy", "F"] == "***"
    assert conclusions(made) == [UNRANKED]


def test_another_f1_is_named_wherever_slots_are() -> None:
    records = [
        replace(record, config=record.config | {"evaluate": {"slot_f1": "tag_macro"}})
        for record in study(orders=("h2l",), languages=("en", "de"))
    ]
    section = section_of(records)
    assert any(text.startswith("Slot F1 (tag_macro): ") for text in section.conclusions)
    plots = [plot for block in section.blocks for plot in block.plots if plot.name.endswith("_slots")]
    drawn = [figure for plot in plots if (figure := plot.draw()) is not None]
    said = [" ".join(text.split()) for figure in drawn for text in texts(figure) if "slot F1" in text]
    assert len(said) >= len(drawn) > 4
    assert [text for text in said if "slot F1 (%, tag_macro)" not in text] == []
