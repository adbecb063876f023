"""Settings chosen on dev after the fact: of each strategy's settings in a grid, the one that is best on dev.

Nothing here reads a test score. What an objective is computed from are dev scores, fractions, of the weights that were
tested after each hop: those of its selected epoch (``trainer.selection``). docs/reports.md, "Settings chosen on dev".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xclrun.analysis.aggregate import BASELINE, combinations, mean_over_orders
from xclrun.analysis.fewshot.scores import is_few_shot
from xclrun.analysis.grouping import FREE, NAMED, grouped, natural, setting_text, strategy_labels
from xclrun.analysis.measures import MEASURES, Absent, Measure, measure
from xclrun.analysis.points import adapts
from xclrun.analysis.record import STREAMS, RunRecord
from xclrun.analysis.reference import REFERENCE
from xclrun.analysis.replicates import TIE
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.identity import flat
from xclrun.core.task import BY_NAME, KEY_SCORE, short_name

# What stands for FP on dev where all runs have it, and else for what all runs have.
DEV = "dev"
# How a strategy says which key it does not have.
WITHOUT = "–"


@dataclass(frozen=True)
class Objective:
    """What settings are chosen by.

    Attributes:
        name: as ``--select-on`` takes it.
        title: in tables.
        definition: what it is, for captions.
        higher_is_better: which way is better.
        of: run and metric → its value, a fraction, or why there is none.
        streams: kinds of run that have it.
        points: whether it needs the dev scores after each hop (`dev_scores`), of all languages.
    """

    name: str
    title: str
    definition: str
    higher_is_better: bool
    of: Callable[[RunRecord, str], float | Absent]
    streams: tuple[str, ...] = tuple(STREAMS)
    points: bool = False

    def value(self, run: RunRecord) -> float | Absent:
        """Return the mean over the metrics of a run, or why it has none."""
        blind = unsighted(run.strategy, run.config, bool(run.edited))
        found = [blind or self.of(run, metric) for metric in run.metrics]
        lacking = next((value for value in found if isinstance(value, Absent)), None)
        return lacking or float(np.mean([value for value in found if not isinstance(value, Absent)]))


@dataclass(frozen=True)
class Trial:
    """One setting of a strategy.

    Attributes:
        values: key → its value as text; `WITHOUT` where the strategy has no such key.
        score: the objective, mean over orders of the means over seeds and buckets.
        std: sample standard deviation over runs; NaN of one run.
        runs: that it is over: all of the setting, which have finished.
    """

    values: dict[str, str]
    score: float
    std: float
    runs: tuple[RunRecord, ...]

    @property
    def set(self) -> dict[str, str]:
        """Those of the values that there are."""
        return {key: value for key, value in self.values.items() if value != WITHOUT}

    @property
    def name(self) -> str:
        """The same in words: ``trainer.lr=0.001, strategy.memory=100``."""
        return ", ".join(f"{key}={value}" for key, value in self.set.items())


@dataclass(frozen=True)
class Tuned:
    """The settings of one strategy, the best on dev first.

    Attributes:
        dataset, model, strategy: of the runs; the strategy by its label, in which the chosen keys do not count.
        trials: all of its settings; the first one is chosen.
        tied: how many of them are as good as the first.
    """

    dataset: str
    model: str
    strategy: str
    trials: tuple[Trial, ...]
    tied: int

    @property
    def told(self) -> str:
        """What was chosen, in words."""
        first = self.trials[0]
        same = f"; equal on dev: {' and '.join(t.name for t in self.trials[1 : self.tied])}" if self.tied > 1 else ""
        return f"{self.strategy}: {first.name or 'it has none of these keys'} (of {len(self.trials)}{same})"


@dataclass(frozen=True)
class Choice:
    """What was chosen on dev.

    Attributes:
        objective: what by.
        keys: that were chosen, dotted.
        tuned: each strategy.
        why: why ``dev`` is not FP on dev; empty where it is, or was not asked for.
    """

    objective: Objective
    keys: tuple[str, ...]
    tuned: tuple[Tuned, ...]
    why: str = ""

    @property
    def runs(self) -> list[RunRecord]:
        """The finished runs of the chosen settings."""
        return [run for one in self.tuned for run in one.trials[0].runs]

    def of(self, dataset: str, model: str) -> list[Tuned]:
        """Return what was chosen of one dataset and model."""
        return [one for one in self.tuned if (one.dataset, one.model) == (dataset, model)]

    def caption(self, dataset: str, model: str) -> str:
        """Say exactly what was chosen on what, for the tables of one dataset and model."""
        tuned = self.of(dataset, model)
        runs = [run for one in tuned for run in one.trials[0].runs]
        metrics = list(dict.fromkeys(short_name(metric) for run in runs for metric in run.metrics))
        mean = f"mean of {' and '.join(metrics)}; " if len(metrics) > 1 else ""
        best = "highest" if self.objective.higher_is_better else "lowest"
        counts = sorted({len(one.trials[0].runs) for one in tuned})
        each = f"{' or '.join(map(str, counts))} run{'s' if counts != [1] else ''} a setting"
        return (
            f"settings chosen on dev: of each strategy's {' and '.join(self.keys)} the one with the {best} "
            f"{self.objective.title} ({mean}mean over orders and seeds, {each}), the same for all its orders and "
            f"seeds: {'; '.join(one.told for one in tuned)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data; scores are fractions."""
        return {
            "objective": self.objective.name,
            "keys": list(self.keys),
            "why": self.why,
            "strategies": [
                {
                    "dataset": one.dataset,
                    "model": one.model,
                    "strategy": one.strategy,
                    "tied": one.tied,
                    "trials": [
                        {"values": t.values, "score": t.score, "runs": [run.run_id for run in t.runs]}
                        for t in one.trials
                    ],
                }
                for one in self.tuned
            ],
        }


def dev_scores(record: RunRecord, metric: str) -> np.ndarray:
    """Return the score matrix of a run on dev, shape (hops + 1, N), of the weights that were tested after each hop.

    From the evaluation point (``evaluate.every_…``) at the step of the hop's selected epoch; NaN where there is none,
    and for hop 0.
    """
    found = np.full((record.hops + 1, len(record.languages)), np.nan)
    for hop in range(1, record.hops + 1):
        epoch = _selected(record, hop)
        for point in record.points:
            if epoch is not None and point["hop"] == hop and point["step"] == epoch["step"]:
                dev = point.get("dev") or {}
                found[hop] = [_score(dev, language, metric) for language in record.languages]
    return found


def learnt_on_dev(record: RunRecord, metric: str) -> float | Absent:
    """Return the mean over the languages that a run learns of the dev score right after the last hop that trains each.

    From the selected epochs of its training curves, which every run has whose languages have dev data.
    """
    last = {language: hop for hop in range(1, record.hops + 1) for language in record.trains(hop)}
    scores = []
    for language, hop in last.items():
        epoch = _selected(record, hop)
        scores.append(math.nan if epoch is None else _score(epoch.get("dev") or {}, language, metric))
    if lacking := [language for language, score in zip(last, scores, strict=True) if math.isnan(score)]:
        return Absent(f"its training has no dev score of {short_name(metric)} on {', '.join(lacking)}")
    return float(np.mean(scores))


def objectives() -> dict[str, Objective]:
    """Return what settings can be chosen by: ``dev_learnt``, and each measure of the score matrix alone, on dev.

    Measures that need hop 0, reference scores or anything beside the matrix have no dev scores to be computed from.
    """
    found = {
        "dev_learnt": Objective(
            "dev_learnt",
            "dev score right after learning",
            "mean over the languages learnt of the dev score right after a language's own hop, which forgetting later "
            "does not enter",
            True,
            learnt_on_dev,
        )
    }
    for one in MEASURES.values():
        needed = one.needs(3)
        if needed.any() and not needed[0].any() and not one.reference:
            name = f"dev_{one.name.lower()}"
            title, way = f"{one.name} on dev", one.higher_is_better
            found[name] = Objective(name, title, one.definition, way, _on_dev(one), one.streams, points=True)
    return found


def _on_dev(one: Measure) -> Callable[[RunRecord, str], float | Absent]:
    def of(record: RunRecord, metric: str) -> float | Absent:
        # Whatever a measure may look at besides is of the test split.
        scores = {metric: dev_scores(record, metric)}
        on_dev = replace(record, scores=scores, points=(), curve=(), averaged=(), coded=())
        found = measure(on_dev, metric, np.full(len(record.languages), np.nan), (one.name,))[one.name, ""]
        if not isinstance(found, Absent) or record.stream not in one.streams:
            return found
        return Absent(f"dev scores are missing ({found.reason}); evaluate.every_share=1 takes them at each epoch's end")

    return of


def choose(records: Iterable[RunRecord], keys: Sequence[str], what: str = DEV) -> Choice:
    """Choose the settings of each strategy that are best on dev.

    Runs of a strategy that differ in more than ``keys`` are strategies of their own, as in tables. One setting is
    chosen for all orders, seeds and buckets of a strategy, by the mean over them. Reference runs (``lang_spec_ft``) are
    not chosen among where there is anything else: they follow those whose transfer they measure.

    Args:
        records: of any status. A run that has not finished is a missing cell of the grid.
        keys: dotted, of the config.
        what: name of an objective, or `DEV`: FP on dev where all runs have it, else ``dev_learnt``.

    Raises:
        UsageError: an unknown key or objective, a key of which there is one value or that is no setting, a cell of the
            grid that has not finished, or a run without the dev scores that are needed.
    """
    keys, option = tuple(dict.fromkeys(keys)), f"--select-on {what} {','.join(keys)}"
    known = objectives()
    check_objective(what, f"--select-on {what}")
    # Of records of one run a finished one is kept.
    by_id = {run.run_id: run for run in sorted(records, key=lambda run: run.finished)}
    runs = sorted(by_id.values(), key=lambda run: (natural(run.order), run.seed, run.bucket or 0, run.run_id))
    if any(map(is_few_shot, runs)):
        raise UsageError(f"{option}: few-shot runs are not chosen among; leave them out with --filter")
    settings = {run.run_id: {key: setting_text(value) for key, value in flat(run.config)} for run in runs}
    check_keys(keys, settings.values(), option)
    labels = strategy_labels(runs, keys)
    groups = grouped(runs, lambda run: (run.dataset, run.model, labels[run.run_id]))
    compared = {name: them for name, them in groups.items() if them[0].strategy.partition("+")[0] != REFERENCE}
    grids = {
        name: grouped(them, lambda run: tuple(settings[run.run_id].get(key, WITHOUT) for key in keys))
        for name, them in (compared or groups).items()
    }
    if all(len(grid) == 1 for grid in grids.values()):
        raise UsageError(f"{option}: nothing to choose from: no strategy has runs of several values")
    for (_, _, label), grid in grids.items():
        _check_cells(label, keys, grid, option)
    chosen_by, why = _objective(what, known, [run for grid in grids.values() for of in grid.values() for run in of])
    tuned = []
    for (dataset, model, label), grid in sorted(grids.items(), key=lambda item: (item[0][2] != BASELINE, item[0])):
        trials = [
            scored_trial(dict(zip(keys, values, strict=True)), of, chosen_by, option) for values, of in grid.items()
        ]
        tuned.append(_best(dataset, model, label, trials, chosen_by))
    return Choice(chosen_by, keys, tuple(tuned), why)


def check_objective(what: str, option: str) -> None:
    """Raise a UsageError where there is no objective of that name; ``option`` is what was typed."""
    if what not in (known := [DEV, *objectives()]):
        raise UsageError(f"{option}: there is no such objective; {did_you_mean(what, known)}")


def check_keys(keys: Sequence[str], settings: Iterable[Mapping[str, str]], option: str) -> None:
    """Raise a UsageError where a key is none that can be chosen, of runs with these settings (dotted key → value)."""
    known = {key for of in settings for key in of}
    for key in keys:
        if key in NAMED or key in ("strategy", "model", "dataset"):
            raise UsageError(f"{option}: {key} is what a report compares, not what is chosen; --filter leaves some out")
        if key.split(".")[0] in ("order", "seed", "bucket"):
            raise UsageError(f"{option}: {key} is averaged over, not chosen")
        if any(key == free or key.startswith(f"{free}.") for free in FREE):
            raise UsageError(f"{option}: {key} changes no result, so there is nothing to choose")
        if key not in known:
            free = [one for one in known if any(one == free or one.startswith(f"{free}.") for free in FREE)]
            possible = known.difference(NAMED, free)
            raise UsageError(f"{option}: unknown key {key}; {did_you_mean(key, possible)}")


def _check_cells(label: str, keys: Sequence[str], grid: dict[tuple[str, ...], list[RunRecord]], option: str) -> None:
    """Refuse a strategy of whose settings some have not finished the orders, seeds and buckets that others have."""
    wanted = {cell: run for of in grid.values() for cell, run in combinations(of).items()}
    for values, of in grid.items():
        finished = combinations(run for run in of if run.finished)
        if lacking := [(cell, run) for cell, run in wanted.items() if cell not in finished]:
            begun = combinations(of)
            cell, run = lacking[0]
            seed = f"seed {run.seed}" if run.bucket is None else f"seed {run.seed} bucket {run.bucket}"
            state = begun[cell].status if cell in begun else "never run"
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            setting = ", ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True) if value != WITHOUT)
            raise UsageError(
                f"{option}: {label}, {setting} lacks {run.order} {seed} ({state}){more}; settings are compared over "
                "the same orders and seeds: finish it, or leave the setting out with --filter"
            )


def _objective(what: str, known: dict[str, Objective], runs: Sequence[RunRecord]) -> tuple[Objective, str]:
    """Return the objective of a name; for `DEV` also why it is not FP."""
    if what != DEV:
        return known[what], ""
    for run in runs:
        if isinstance(found := known["dev_fp"].value(run), Absent):
            return known["dev_learnt"], f"{run.run_id}: {found.reason}"
    return known["dev_fp"], ""


def scored_trial(values: dict[str, str], runs: Sequence[RunRecord], objective: Objective, option: str) -> Trial:
    """Return how a setting did on dev, over its finished runs.

    Raises:
        UsageError: a run has no such score; it says why.
    """
    own = list(combinations(runs).values())
    scores = []
    for run in own:
        if isinstance(score := objective.value(run), Absent):
            raise UsageError(f"{option}: {run.run_id} ({run.strategy}) has no {objective.title}: {score.reason}")
        if not math.isfinite(score):
            raise UsageError(f"{option}: {run.run_id} ({run.strategy}) has no {objective.title}: it is {score}")
        scores.append(score)
    std = float(np.std(scores, ddof=1)) if len(scores) > 1 else math.nan
    return Trial(values, float(mean_over_orders(own, scores)), std, tuple(own))


def _best(dataset: str, model: str, label: str, trials: Sequence[Trial], objective: Objective) -> Tuned:
    sign = -1 if objective.higher_is_better else 1
    best = min(sign * trial.score for trial in trials)
    # What differs by rounding alone is equal, wherever in the order of sums it came from.
    ranked = sorted(trials, key=lambda t: (0.0 if (d := sign * t.score - best) <= TIE else d, _in_order(t)))
    return Tuned(dataset, model, label, tuple(ranked), sum(sign * t.score - best <= TIE for t in trials))


def _in_order(trial: Trial) -> list[tuple[bool, float, Any]]:
    """Sort key of settings: numbers by size, before words."""
    found: list[tuple[bool, float, Any]] = []
    for value in trial.values.values():
        try:
            found.append((False, float(value), []))
        except ValueError:
            found.append((True, 0.0, natural(value)))
    return found


def _selected(record: RunRecord, hop: int) -> dict[str, Any] | None:
    """Return the entry of a run's curve of the epoch whose weights a hop ended with; None where that is not known.

    With ``trainer.selection=best`` the first epoch with the best mean over languages of the mean over their metrics.
    """
    epochs = [epoch for epoch in record.curve if epoch["hop"] == hop]
    if not epochs or record.config.get("trainer", {}).get("selection") != "best":
        return epochs[-1] if epochs else None
    if any(not epoch.get("dev") or any(not of for of in epoch["dev"].values()) for epoch in epochs):
        return None
    # Metrics that were computed in another way in training are not in the curve, nor can be what it chose.
    own = {metric for metric in record.scores if BY_NAME[metric].span_f1}
    if own and not all(own & of.keys() for epoch in epochs for of in epoch["dev"].values()) and not record.metric_of:
        return None
    return max(epochs, key=lambda epoch: _mean_score(epoch["dev"]))


def _mean_score(dev: dict[str, dict[str, float]]) -> float:
    own = [[value for name, value in of.items() if name != KEY_SCORE.name] for of in dev.values()]
    return math.fsum(value / len(values) for values in own for value in values) / len(own)


def _score(scores: dict[str, dict[str, float]], language: str, metric: str) -> float:
    value = scores.get(language, {}).get(metric)
    return math.nan if value is None else float(value)


def unsighted(strategy: str, config: Mapping[str, Any], edited: bool = False) -> Absent | None:
    """Return why the dev scores of a run are not of what is tested; None where they are.

    Args:
        edited: whether its strategy changed weights at the end of a training (`RunRecord.edited`).
    """
    if strategy.partition("+")[0] == "model_average":
        return Absent("its dev scores are of the weights before they are averaged")
    if edited:
        return Absent("its dev scores are of the weights before its strategy changed them at the end of training")
    if adapts(config):
        return Absent("its dev scores are of the model as it was trained, not adapted to each example")
    return None
