"""Published tables of "Learning and Evaluating General Linguistic Intelligence".

``gli_tables.csv`` has the numbers of GLI (Yogatama et al. 2019): Tables 1 to 3, and numbers in the text. Reports show
these numbers next to our results.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from xclrun.report.published.facts import facts
from xclrun.report.published.setup import Setup

# The training dataset of the models in Table 2.
SOURCE = "squad"
# Why the printed codelengths are not comparable with ours.
IMPOSSIBLE = (
    "GLI's printed codelengths do not follow from its formula. For MNLI, the first block of 40,000 examples costs "
    "63.4 kbits in the uniform code (log2 3 for each), which leaves 25.9 of the 89.25 kbits for the other 353,000 "
    "examples. A wrongly predicted example costs at least 1 bit, so fewer than 7.4 % could be wrong; but BERT's MNLI "
    "accuracy in Table 3 is 81.1 %. Only the ranking can be compared: an encoder that learned other tasks first, a "
    "pretrained encoder, an encoder trained from scratch."
)
# Setups of models trained on SQuAD, on several datasets, and on a dataset in blocks. Sizes are rounded; seeds and
# epochs are unknown.
SQUAD = Setup(
    "GLI", "gli", "bert", (90_000, 90_000), (300, 25_000),
    metrics={"exact_match": "exact match", "class_accuracy": "class accuracy", "answer_f1": "answer F1"},
)  # fmt: skip
SEVERAL = replace(
    SQUAD, train=(76_000, 900_000), steps="100,000 mixture steps (supervised) or 200,000 (random curriculum)"
)
CODED = {
    "squad": replace(SQUAD, dataset="squad", train=(80_000, 80_000), test=(10_000, 10_000)),
    "mnli": replace(SQUAD, dataset="mnli", train=(400_000, 400_000), test=(20_000, 20_000)),
}


@cache
def gli_tables() -> dict[tuple[str, str, str, str, str], float]:
    """Return (table, model, what it was trained on, dataset, measure) → number, in percent or kbits."""
    keys = ("table", "model", "trained_on", "dataset", "measure")
    return {tuple(row[key] for key in keys): float(row["value"]) for row in facts("gli_tables.csv")}  # type: ignore[misc]


def codelengths(dataset: str) -> dict[tuple[str, bool], float]:
    """Return (model, whether it learned other tasks first) → kbits of a dataset, from Table 1 and section 5.1."""
    kbits: dict[tuple[str, bool], float] = {}
    for (table, model, trained, tested, measure), value in gli_tables().items():
        if tested == dataset and measure == "codelength" and table in ("1", "s5.1"):
            # Numbers of the text come last and replace numbers of the table: they have one more digit.
            kbits[model, trained.startswith("supervised")] = value
    return kbits


# Key of ``dataset=gli`` → its name in Tables 1 and 3; metric → measure in these tables.
DATASETS = {"triviaqa": "triviaqa_web"}
MEASURES = {"answer_f1": "f1", "exact_match": "em", "class_accuracy": "accuracy"}


def scores_of_tasks(model: str, trained_on: str) -> dict[tuple[str, str], float]:
    """Return (dataset, measure) → percent, from Tables 1 and 3 and the zero-shot score in section 5.2.

    Args:
        trained_on: ``squad``, ``supervised+squad``, ``supervised`` or ``random_curriculum``.
    """
    return {
        (dataset, measure): value
        for (table, m, trained, dataset, measure), value in gli_tables().items()
        if (m, trained) == (model, trained_on) and table in ("1", "3", "s5.2") and measure != "codelength"
    }


def generalisation(model: str) -> dict[tuple[str, str], float]:
    """Return (dataset, measure) → score in percent of GLI's best SQuAD model on other datasets (Table 2)."""
    # GLI names the section "web" of TriviaQA; our key does not.
    return {
        (dataset.removesuffix("_web"), measure): value
        for (table, m, _, dataset, measure), value in gli_tables().items()
        if table == "2" and m == model
    }
