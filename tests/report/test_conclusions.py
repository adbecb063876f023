"""The paragraphs under “What was found” contain the tested numbers, and no others."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from statsmodels.stats.power import TTestPower

from xclrun.report.conclusions import UNRANKED, UNTESTED, conclusions
from xclrun.report.inference import p_text
from xclrun.report.section import Options

from .study import LANGUAGES, ORDERS, run, section_of, study
from .study import inference_of as inference
from .test_figures import texts

ALL = ("h2l", "l2h", "order3", "order4")


def test_each_strategy_has_a_sentence_with_its_differences_and_p_values() -> None:
    verdicts = inference(study(("naive", "er", "kd_logit", "multilingual"), ALL, (1, 2)))
    er, kd_logit, *slots, caveat = conclusions(verdicts)  # without the reference
    pair = verdicts.primary["er", "intent_accuracy", "F"]
    naive, mean = (100 * verdicts.tests["intent_accuracy", "F"].mean(label) for label in ("naive", "er"))
    p = p_text(pair.p, sign=True)
    assert pair.p < 0.05
    assert er.startswith(
        f"Intent accuracy: er forgets {-100 * pair.difference:.2f} points less than naive "
        f"({naive:.2f} → {mean:.2f}; p {p}) and has "
    )
    assert er.endswith("; 4 orders.")
    assert kd_logit.startswith("Intent accuracy: kd_logit forgets ")
    # No other p-values than those of the marks.
    p_values = [p_text(pair.p, sign=True) for (label, *_), pair in verdicts.primary.items() if label == "er"]
    assert re.findall(r"p ([<=] [\d.]+\d)", f"{er} {slots[0]}") == [p_values[k] for k in (0, 1, 2, 3)]
    assert [text.split(" forgets")[0] for text in slots] == ["Slot F1: er", "Slot F1: kd_logit"]
    assert caveat.startswith("Caveat: replicates: 4 orders (8 runs per strategy, ")
    assert "p-values: paired t-test over orders" in caveat
    assert "8 comparisons (F and FP); " in caveat
    assert "with 4 replicates, a paired t-test has 80 % power" in caveat


def test_differences_that_may_be_chance_are_not_significant() -> None:
    records = study(("naive",), ALL, (1,))
    # The same but for the noise, with which one difference is nearly significant.
    records += [
        replace(run("naive", r.order, 5, r.languages), strategy="twin", seed=1, run_id=f"twin-{r.order}")
        for r in records
    ]
    verdicts = inference(records)
    assert 0.05 < min(pair.p for pair in verdicts.primary.values()) < 0.06
    sentences = conclusions(verdicts)[:2]
    assert [text.count("; not significant, p = ") for text in sentences] == [2, 2]


def test_the_words_say_which_strategy_is_better() -> None:
    records = study(("naive", "er"), ALL, (1, 2))
    (er, *_), (naive, *_) = conclusions(inference(records)), conclusions(inference(records, baseline="er"))
    assert re.search(r"er forgets [\d.]+ points less than naive .* points higher final performance", er)
    assert re.search(r"naive forgets [\d.]+ points more than er .* points lower final performance", naive)


def test_the_power_is_that_of_each_number_of_replicates() -> None:
    records = study(("naive", "er", "kd_logit"), ALL, (1,))
    caveat = conclusions(inference([r for r in records if (r.strategy, r.order) != ("kd_logit", "h2l")]))[-1]
    for n in (3, 4):
        detected = TTestPower().solve_power(nobs=n, power=0.8, alpha=0.05)
        assert f"with {n} replicates, a paired t-test has 80 % power if the true difference is {detected:.2f}" in caveat
    # T of one seed is conditional on its reference models, so it has no test.
    alone = conclusions(inference([*records, *study(("lang_spec_ft",), ALL, (1,))], primary=("T",)))[-1]
    assert alone.startswith("Caveat: ")
    assert "power" not in alone


def test_lower_bits_are_said_to_be_better() -> None:
    records = [
        replace(r, scores={"reference_bits": 4 - 3 * r.scores["intent_accuracy"]})
        for r in study(("naive", "er"), ALL, (1, 2), LANGUAGES)
    ]
    (er, *_), (naive, *_) = conclusions(inference(records)), conclusions(inference(records, baseline="er"))
    assert re.search(r"er forgets [\d.]+ bits per byte less .* bits per byte lower \(better\) final performance", er)
    assert re.search(r"naive forgets [\d.]+ bits .* more .* bits per byte higher \(worse\) final performance", naive)


def test_only_primary_measures_are_reported() -> None:
    records = study(("naive", "lang_spec_trans", "er"), ALL, (1, 2, 3))
    verdicts = inference(records)
    assert ("intent_accuracy", "T0") in verdicts.tests
    assert not any("transfer" in text for text in conclusions(verdicts)[:-1])
    chosen = inference(records, primary=("T0",))
    assert all("zero-shot transfer" in text and "forgets" not in text for text in conclusions(chosen)[:-1])
    assert {name for _, _, name in chosen.marks()} == {"T0"}


def test_settings_of_one_strategy_are_compared_with_a_caveat() -> None:
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
    assert any("er(memory=100) forgets" in text for text in section.conclusions)
    (caveat,) = (text for text in section.caveats if "on test scores" in text)
    assert caveat.endswith(": xclrun report grid --select-on dev strategy.memory")
    assert "er(memory=100), er(memory=6000)" in caveat
    plain = section_of(study(("naive", "er"), ALL, (1, 2)))
    assert not any("on test scores" in text for text in plain.caveats)


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
    forgetting, performance, _ = conclusions(verdicts)
    assert forgetting == "Intent accuracy: no strategy shows forgetting above 0."
    assert re.match(r"Intent accuracy: er has [\d.]+ points higher final performance than naive", performance)


def test_equal_numbers_and_untested_ones_are_said_to_be_so() -> None:
    records = study(("naive",), ALL, (1,))
    twins = [replace(r, strategy="twin", run_id=f"twin-{r.order}") for r in records]
    verdicts = inference([*records, *twins])
    (intent, *_, caveat) = conclusions(verdicts)
    assert re.match(
        r"Intent accuracy: twin has the same forgetting as naive \([\d.]+\) and has the same final ", intent
    )
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
