"""The figures of "Learning and Evaluating General Linguistic Intelligence", as data.

``gli_tables.csv`` holds facts from GLI (Yogatama et al. 2019): Tables 1 to 3 and numbers in its text. Reports set them
next to ours.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from xclrun.report.published.facts import facts
from xclrun.report.published.setup import Setup

# The dataset whose models Table 2 tests on others.
SOURCE = "squad"
# Why the printed codelengths are next to ours and not compared with them.
IMPOSSIBLE = (
    "GLI's printed codelengths cannot be those of its formula. Of MNLI the first block of 40,000 examples costs 63.4 "
    "kbits uniformly (log2 3 for each), so that 25.9 of its 89.25 remain for the other 353,000. An example that is "
    "predicted wrongly costs at least 1 bit, so fewer than 7.4 % could be wrong; BERT's MNLI accuracy in Table 3 is "
    "81.1 %. What may be compared is the order: other tasks first, a pretrained encoder, one from scratch."
)


# Sizes are those of SQuAD, of all sets and of all blocks, as the paper rounds them. Seeds and epochs are not known.
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
    """Return (table, model, what it was trained on, dataset, measure) → number: percent, or kbits."""
    keys = ("table", "model", "trained_on", "dataset", "measure")
    return {tuple(row[key] for key in keys): float(row["value"]) for row in facts("gli_tables.csv")}  # type: ignore[misc]


def codelengths(dataset: str) -> dict[tuple[str, bool], float]:
    """Return (model, whether it learned other tasks first) → kbits of a dataset, as Table 1 and the text print them."""
    found: dict[tuple[str, bool], float] = {}
    for (table, model, trained, of, measure), value in gli_tables().items():
        if of == dataset and measure == "codelength" and table in ("1", "s5.1"):
            # The text has one more digit than the table.
            found[model, trained.startswith("supervised")] = value
    return found


# Key of ``dataset=gli`` → what Tables 1 and 3 call it; metric → measure there.
DATASETS = {"triviaqa": "triviaqa_web"}
MEASURES = {"answer_f1": "f1", "exact_match": "em", "class_accuracy": "accuracy"}


def scores_of_tasks(model: str, trained_on: str) -> dict[tuple[str, str], float]:
    """Return (dataset, measure) → percent of Tables 1 and 3, and of the zero-shot score in section 5.2.

    Args:
        trained_on: ``squad``, ``supervised+squad``, ``supervised`` or ``random_curriculum``.
    """
    return {
        (of, what): value
        for (table, m, trained, of, what), value in gli_tables().items()
        if (m, trained) == (model, trained_on) and table in ("1", "3", "s5.2") and what != "codelength"
    }


def generalisation(model: str) -> dict[tuple[str, str], float]:
    """Return (dataset, measure) → percent of Table 2: the best SQuAD model on other datasets, unchanged."""
    found = {(of, what): v for (table, m, _, of, what), v in gli_tables().items() if table == "2" and m == model}
    # The section of TriviaQA is not in our name of it.
    return {(of.removesuffix("_web"), what): value for (of, what), value in found.items()}
