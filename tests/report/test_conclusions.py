"""The paragraphs under “What was found” contain the tested numbers, and no others."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from xclrun.report.conclusions import UNRANKED, UNTESTED, conclusions
from xclrun.report.inference import p_text
from xclrun.report.section import Options

from .study import LANGUAGES, ORDERS, run, section_of, study
from .study import inference_of as inference
from .test_figures import texts

ALL = ("h2l", "l2h", "order3", "order4")


def test_they_name_the_lowest_forgetting_and_each_difference_with_its_p_value() -> None:
    verdicts = inference(study(("naive", "er", "kd_logit", "multilingual"), ALL, (1, 2)))
    intent, slots, caveat = conclusions(verdicts)
    key = ("er", "intent_accuracy", "F")
    er = verdicts.primary[key]
    assert er.p < 0.05
    assert "er has the lowest forgetting of 3 strategies (" in intent  # without the reference
    expected = f"er (−{-100 * er.difference:.2f} points, p {p_text(er.p, sign=True)})"
    assert re.search(rf"forgetting is significantly lower for {re.escape(expected)}", intent)
    # No other p-values than those of the marks.
    p_values = {
        p_text(pair.p, sign=True) for (_, metric, _), pair in verdicts.primary.items() if metric == "intent_accuracy"
    }
    assert set(re.findall(r"p ([<=] [\d.]+\d)", intent)) <= p_values
    assert slots.startswith("Slot F1: er has the lowest forgetting of 3 strategies (")
    assert caveat.startswith("Caveat: replicates: 4 orders (8 runs per strategy, ")
    assert "p-values: paired t-test over orders" in caveat
    assert "8 comparisons (F and FP)." in caveat
    assert "with 4 replicates, a paired t-test has 80 % power" in caveat


def test_differences_that_may_be_chance_are_not_significant_and_no_strategy_is_the_best() -> None:
    records = study(("naive",), ALL, (1,))
    # Of one making, but for the noise.
    records += [
        replace(run("naive", r.order, 9, r.languages), strategy="twin", seed=1, run_id=f"twin-{r.order}")
        for r in records
    ]
    verdicts = inference(records)
    intent, *_ = conclusions(verdicts)
    assert all(pair.p > 0.05 for pair in verdicts.primary.values())
    assert intent.count("does not differ significantly for twin (") == 2
    assert "is significantly" not in intent
    assert "lowest" not in intent
    assert "highest" not in intent


def test_only_primary_measures_are_reported() -> None:
    records = study(("naive", "lang_spec_trans", "er"), ALL, (1, 2, 3))
    verdicts = inference(records)
    assert ("intent_accuracy", "T0") in verdicts.tests
    assert not any("transfer" in text for text in conclusions(verdicts)[:-1])
    chosen = inference(records, primary=("T0",))
    assert all("zero-shot transfer" in text and "forgetting" not in text for text in conclusions(chosen)[:-1])
    assert {name for _, _, name in chosen.marks()} == {"T0"}


def test_no_strategy_is_the_best_where_the_baseline_is() -> None:
    records = study(("naive", "er", "kd_logit"), ALL, (1,))
    verdicts = inference(records, baseline="er")
    (intent, *_) = conclusions(verdicts)
    assert "lowest" not in intent
    assert re.search(
        r"Compared with the baseline, er \([\d.]+ points\), forgetting is significantly higher for", intent
    )


def test_settings_of_one_strategy_are_compared_with_a_caveat_and_no_best() -> None:
    """A grid: the best of its settings was chosen on test scores."""
    grid = [
        run("er", order, seed, LANGUAGES, settings={"memory": memory})
        for order in ALL for seed in (1, 2) for memory in (100, 6000)
    ]  # fmt: skip
    # Each order has its own languages in sequence; the larger memory is a little better throughout.
    grid = [
        replace(
            r,
            languages=ORDERS[r.order],
            scores={
                metric: R + np.arange(7)[:, np.newaxis] / 2000 * ("6000" in r.run_id) for metric, R in r.scores.items()
            },
        )
        for r in grid
    ]
    records = study(("naive",), ALL, (1, 2)) + grid
    section = section_of(records, options=Options(command="xclrun report grid"))
    assert "of 3 strategies" not in " ".join(section.conclusions)
    assert any("significantly lower for er(memory=100)" in text for text in section.conclusions)
    (caveat,) = (text for text in section.caveats if "on test scores" in text)
    assert caveat.endswith(": xclrun report grid --select-on dev strategy.memory")
    assert "er(memory=100), er(memory=6000)" in caveat
    plain = section_of(study(("naive", "er"), ALL, (1, 2)))
    assert not any("on test scores" in text for text in plain.caveats)
    assert "of 2 strategies" in " ".join(plain.conclusions)


def test_no_strategy_forgets_least_where_none_forgets() -> None:
    records = []
    for label, gain in (("naive", 0.02), ("er", 0.04)):
        for k, order in enumerate(ALL):
            R = np.full((7, 6), 0.4) + gain * np.arange(7)[:, np.newaxis] + 0.001 * k * np.arange(7)[:, np.newaxis]
            R[-1] += 0.003 * k * (label == "er")
            records.append(replace(run(label, order, 1, ORDERS[order], metrics=("intent_accuracy",)),
                                   scores={"intent_accuracy": R}))  # fmt: skip
    verdicts = inference(records)
    assert verdicts.primary["er", "intent_accuracy", "F"].p < 0.05
    intent, _ = conclusions(verdicts)
    assert intent.startswith(
        "Intent accuracy: No strategy shows forgetting above 0. er has the highest final performance"
    )


def test_equal_numbers_and_untested_ones_are_said_to_be_so() -> None:
    records = study(("naive",), ALL, (1,))
    twins = [replace(r, strategy="twin", run_id=f"twin-{r.order}") for r in records]
    verdicts = inference([*records, *twins])
    (intent, *_, caveat) = conclusions(verdicts)
    assert re.search(r"twin and the baseline, naive \([\d.]+ points\), have equal forgetting\.", intent)
    # Nothing was tested, so no correction is mentioned.
    assert "Holm" not in caveat
    assert not any("Holm" in note for note in verdicts.comparisons().notes)
    assert conclusions(inference(study(("naive", "er"), ("h2l",), (1,)))) == [UNTESTED.format("")]
    assert conclusions(inference([run("naive", "h2l", 1, LANGUAGES)])) == [UNTESTED.format("")]
    apart = [*study(("naive",), ("h2l",), (1, 2)), *study(("er",), ("l2h",), (1, 2))]
    reason = "er and naive have no combination of order, seed and bucket in common"
    assert conclusions(inference(apart)) == [UNTESTED.format(f" ({reason})")]


def test_tests_against_a_reference_alone_are_not_denied() -> None:
    verdicts = inference(study(("naive", "inc_joint"), ALL, (1, 2)))
    assert verdicts.marks()["inc_joint", "intent_accuracy", "F"] == "***"
    assert conclusions(verdicts) == [UNRANKED]


def test_another_f1_is_named_wherever_slots_are() -> None:
    records = [
        replace(record, config=record.config | {"evaluate": {"slot_f1": "tag_macro"}})
        for record in study(orders=("h2l",), languages=("en", "de"))
    ]
    section = section_of(records)
    assert any(text.startswith("Slot F1 (tag_macro): ") for text in section.conclusions)
    plots = [plot for block in section.blocks for plot in block.plots if plot.name.endswith("_slots")]
    drawn = [figure for plot in plots if (figure := plot.draw()) is not None]
    titles = [" ".join(text.split()) for figure in drawn for text in texts(figure) if "slot F1" in text]
    assert len(titles) >= len(drawn) > 4
    assert [text for text in titles if "slot F1 (%, tag_macro)" not in text] == []
