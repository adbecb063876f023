"""Dev scores used to select one setting of each strategy; test scores are not shown."""

from __future__ import annotations

from collections.abc import Iterator

from xclrun.analysis.tuning import Choice, Tuned
from xclrun.report.part import Item, part
from xclrun.report.strategies import StrategySection
from xclrun.report.tables import Cell, Table

FORGETTING = "The selection ignores forgetting, because some runs lack dev scores of all languages after their last hop"


@part(StrategySection, place=15, title="Settings chosen on dev", terminal=True)
def chosen(section: StrategySection) -> Iterator[Item]:
    choice = section.options.choice
    if choice is None or not section.chosen:
        return
    yield f"{section.chosen[0].upper()}{section.chosen[1:]}."
    tuned = choice.strategies(section.comparison.dataset, section.comparison.model)
    notes = (f"{FORGETTING} ({choice.why})",) if choice.why else ()
    yield trial_table(tuned, choice, notes)


def trial_table(tuned: list[Tuned], choice: Choice, notes: tuple[str, ...] = ()) -> Table:
    """Return the dev score of each strategy and setting, best first: mean ± standard deviation."""
    keys, objective, quantity = choice.keys, choice.objective, choice.quantity
    rows: list[tuple[str, ...]] = []
    starts = []
    for strategy in tuned:
        starts.append(len(rows))
        for k, trial in enumerate(strategy.trials):
            ids = tuple(run.run_id for run in trial.runs)
            score = Cell(quantity.spread(trial.score, trial.std), trial.score, best=not k)
            status = "chosen" if not k else "equal" if k < strategy.tied else ""
            rows.append(
                (strategy.strategy, *trial.values.values(), Cell(str(len(ids)), float(len(ids))), score, status)
            )
    header = ("strategy", *keys, "runs", f"{objective.title} {quantity.arrow}", "")
    all_notes = (
        f"{objective.title}: {objective.definition}; {quantity.label}, mean ± standard deviation over runs",
        "among settings with equal scores, the first in the order of their values is chosen; the selection uses no "
        "test scores, and the report shows test scores of the chosen settings only",
        *notes,
    )
    return Table("Settings chosen on dev", header, tuple(rows), all_notes, left=1 + len(keys), ruled=tuple(starts[1:]))
