"""Choose each strategy's best settings in a grid by dev scores, after the fact.

No test score is read here. Objectives are computed from dev scores, fractions, of the weights that were tested after
each hop: those of its selected epoch (``trainer.selection``). docs/reports.md, "Select settings on dev scores".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from xclrun.analysis.aggregate import BASELINE, combinations, mean_over_orders
from xclrun.analysis.fewshot.scores import is_few_shot
from xclrun.analysis.grouping import FREE, NAMED, grouped, natural, setting_text, strategy_labels
from xclrun.analysis.measures import MEASURES, Absent, Measure, measure
from xclrun.analysis.points import adapts
from xclrun.analysis.record import STREAMS, RunRecord, point_score
from xclrun.analysis.reference import REFERENCE
from xclrun.analysis.replicates import TIE
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.identity import flat
from xclrun.core.task import BY_NAME, KEY_SCORE, short_name

# Name of the default objective: FP on dev where all runs have it, else ``dev_learnt``.
DEV = "dev"
# Value of a key that a strategy does not have.
WITHOUT = "–"


@dataclass(frozen=True)
class Objective:
    """A value by which settings are chosen.

    Attributes:
        name: as ``--select-on`` takes it.
        title: in tables.
        definition: for captions.
        of: run and metric → value, a fraction, or the reason why there is none.
        streams: kinds of run that have it.
        points: whether it needs the dev scores of all languages after each hop (`dev_scores`).
    """

    name: str
    title: str
    definition: str
    higher_is_better: bool
    of: Callable[[RunRecord, str], float | Absent]
    streams: tuple[str, ...] = tuple(STREAMS)
    points: bool = False

    def value(self, run: RunRecord) -> float | Absent:
        """Return the mean over the metrics of a run, or the reason why there is none."""
        if (blind := unsighted(run.strategy, run.config, bool(run.edited))) is not None:
            return blind
        values = []
        for metric in run.metrics:
            if isinstance(value := self.of(run, metric), Absent):
                return value
            values.append(value)
        return float(np.mean(values))


@dataclass(frozen=True)
class Trial:
    """One setting of a strategy.

    Attributes:
        values: key → its value as text; `WITHOUT` where the strategy has no such key.
        score: the objective, averaged over seeds and buckets, then over orders.
        std: sample standard deviation over runs; NaN for one run.
        runs: all runs of the setting; they have finished.
    """

    values: dict[str, str]
    score: float
    std: float
    runs: tuple[RunRecord, ...]

    @property
    def set(self) -> dict[str, str]:
        """The values of the keys that the strategy has."""
        return {key: value for key, value in self.values.items() if value != WITHOUT}

    @property
    def name(self) -> str:
        """The setting in words: ``trainer.lr=0.001, strategy.memory=100``."""
        return ", ".join(f"{key}={value}" for key, value in self.set.items())


@dataclass(frozen=True)
class Tuned:
    """The settings of one strategy, the best on dev first.

    Attributes:
        strategy: its label, without the chosen keys.
        trials: all settings; the first one is chosen.
        tied: number of settings as good as the first.
    """

    dataset: str
    model: str
    strategy: str
    trials: tuple[Trial, ...]
    tied: int

    @property
    def told(self) -> str:
        """The choice, in words."""
        first = self.trials[0]
        same = f"; equal on dev: {' and '.join(t.name for t in self.trials[1 : self.tied])}" if self.tied > 1 else ""
        return f"{self.strategy}: {first.name or 'it has none of these keys'} (of {len(self.trials)}{same})"


@dataclass(frozen=True)
class Choice:
    """The settings chosen on dev.

    Attributes:
        keys: the chosen keys, dotted.
        tuned: one entry for each strategy.
        why: why ``dev`` is not FP on dev; empty if it is, or another objective was asked for.
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
        """Return the choices of one dataset and model."""
        return [one for one in self.tuned if (one.dataset, one.model) == (dataset, model)]

    def caption(self, dataset: str, model: str) -> str:
        """Describe the choice, for the tables of one dataset and model."""
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
        """Return the choice as plain data; scores are fractions."""
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

    It comes from the evaluation points (``evaluate.every_…``) at the step of each hop's selected epoch; NaN where there
    is none, and for hop 0.
    """
    scores = np.full((record.hops + 1, len(record.languages)), np.nan)
    for hop in range(1, record.hops + 1):
        epoch = _selected(record, hop)
        for point in record.points:
            if epoch is not None and point["hop"] == hop and point["step"] == epoch["step"]:
                dev = point.get("dev") or {}
                scores[hop] = [point_score(dev, language, metric) for language in record.languages]
    return scores


def learnt_on_dev(record: RunRecord, metric: str) -> float | Absent:
    """Return the dev score right after the last hop that trains a language, averaged over the languages learned.

    It comes from the selected epochs of the training curves, which exist wherever languages have dev data.
    """
    last = {language: hop for hop in range(1, record.hops + 1) for language in record.trains(hop)}
    scores = {}
    for language, hop in last.items():
        epoch = _selected(record, hop) or {}
        scores[language] = point_score(epoch.get("dev") or {}, language, metric)
    if missing := [language for language, score in scores.items() if math.isnan(score)]:
        return Absent(f"its training has no dev score of {short_name(metric)} on {', '.join(missing)}")
    return float(np.mean(list(scores.values())))


def objectives() -> dict[str, Objective]:
    """Return the available objectives: ``dev_learnt``, and on dev each measure of the score matrix alone.

    Measures that need hop 0, reference scores or anything besides the matrix cannot be computed from dev scores.
    """
    available = {
        "dev_learnt": Objective(
            "dev_learnt",
            "dev score right after learning",
            "mean over the languages learned of the dev score right after a language's own hop, which forgetting later "
            "does not enter",
            True,
            learnt_on_dev,
        )
    }
    for one in MEASURES.values():
        cells = one.needs(3)
        if cells.any() and not cells[0].any() and not one.reference:
            name, title, on_dev = f"dev_{one.name.lower()}", f"{one.name} on dev", partial(_on_dev, one)
            available[name] = Objective(
                name, title, one.definition, one.higher_is_better, on_dev, one.streams, points=True
            )
    return available


def _on_dev(one: Measure, record: RunRecord, metric: str) -> float | Absent:
    """Compute a measure from dev scores."""
    # Everything else that a measure could read belongs to the test split.
    scores = {metric: dev_scores(record, metric)}
    on_dev = replace(record, scores=scores, points=(), curve=(), averaged=(), coded=())
    value = measure(on_dev, metric, np.full(len(record.languages), np.nan), (one.name,))[one.name, ""]
    if not isinstance(value, Absent) or record.stream not in one.streams:
        return value
    return Absent(f"dev scores are missing ({value.reason}); evaluate.every_share=1 takes them at each epoch's end")


def choose(records: Iterable[RunRecord], keys: Sequence[str], what: str = DEV) -> Choice:
    """Choose the settings of each strategy that are best on dev.

    Runs of a strategy that differ in more than ``keys`` are separate strategies, as in tables. One setting is chosen
    for all orders, seeds and buckets of a strategy, by the mean over them. Reference runs (``lang_spec_ft``) are
    compared only if there is nothing else: they follow the runs whose transfer they measure.

    Args:
        records: of any status; an unfinished run is a missing cell of the grid.
        keys: dotted, of the config.
        what: name of an objective, or `DEV`.
    """
    keys, option = tuple(dict.fromkeys(keys)), f"--select-on {what} {','.join(keys)}"
    known = objectives()
    check_objective(what, f"--select-on {what}")
    # Of several records of one run, keep a finished one.
    by_id = {run.run_id: run for run in sorted(records, key=lambda run: run.finished)}
    runs = sorted(by_id.values(), key=lambda run: (natural(run.order), run.seed, run.bucket or 0, run.run_id))
    if any(map(is_few_shot, runs)):
        raise UsageError(f"{option}: few-shot runs are not chosen among; leave them out with --filter")
    settings = {run.run_id: {key: setting_text(value) for key, value in flat(run.config)} for run in runs}
    check_keys(keys, settings.values(), option)
    labels = strategy_labels(runs, keys)
    groups = grouped(runs, lambda run: (run.dataset, run.model, labels[run.run_id]))
    compared = {name: group for name, group in groups.items() if group[0].strategy.partition("+")[0] != REFERENCE}
    grids = {
        name: grouped(group, lambda run: tuple(settings[run.run_id].get(key, WITHOUT) for key in keys))
        for name, group in (compared or groups).items()
    }
    if all(len(grid) == 1 for grid in grids.values()):
        raise UsageError(f"{option}: nothing to choose from: no strategy has runs of several values")
    for (_, _, label), grid in grids.items():
        _check_cells(label, keys, grid, option)
    every = [run for grid in grids.values() for cell in grid.values() for run in cell]
    objective, why = (known[what], "") if what != DEV else _default_objective(known, every)
    tuned = []
    for (dataset, model, label), grid in sorted(grids.items(), key=lambda item: (item[0][2] != BASELINE, item[0])):
        trials = [
            scored_trial(dict(zip(keys, values, strict=True)), cell, objective, option) for values, cell in grid.items()
        ]
        tuned.append(_best(dataset, model, label, trials, objective))
    return Choice(objective, keys, tuple(tuned), why)


def check_objective(what: str, option: str) -> None:
    """Raise a `UsageError` for an unknown objective; ``option`` is what was typed."""
    if what not in (known := [DEV, *objectives()]):
        raise UsageError(f"{option}: there is no such objective; {did_you_mean(what, known)}")


def check_keys(keys: Sequence[str], settings: Iterable[Mapping[str, str]], option: str) -> None:
    """Raise a `UsageError` for a key that cannot be chosen, given the settings of the runs (dotted key → value)."""
    known = {key for of_run in settings for key in of_run}
    without_effect = {key for key in (*known, *keys) if any(f"{key}.".startswith(f"{free}.") for free in FREE)}
    for key in keys:
        if key in NAMED or key in ("strategy", "model", "dataset"):
            raise UsageError(f"{option}: {key} is what a report compares, not what is chosen; --filter leaves some out")
        if key.split(".")[0] in ("order", "seed", "bucket"):
            raise UsageError(f"{option}: {key} is averaged over, not chosen")
        if key in without_effect:
            raise UsageError(f"{option}: {key} changes no result, so there is nothing to choose")
        if key not in known:
            raise UsageError(f"{option}: unknown key {key}; {did_you_mean(key, known - NAMED - without_effect)}")


def _check_cells(label: str, keys: Sequence[str], grid: dict[tuple[str, ...], list[RunRecord]], option: str) -> None:
    """Raise a `UsageError` where a setting lacks an order, seed or bucket of the others."""
    needed = {cell: run for runs in grid.values() for cell, run in combinations(runs).items()}
    for values, runs in grid.items():
        begun, finished = combinations(runs), combinations(run for run in runs if run.finished)
        if missing := [(cell, run) for cell, run in needed.items() if cell not in finished]:
            cell, run = missing[0]
            seed = f"seed {run.seed}" if run.bucket is None else f"seed {run.seed} bucket {run.bucket}"
            state = begun[cell].status if cell in begun else "never run"
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            setting = ", ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True) if value != WITHOUT)
            raise UsageError(
                f"{option}: {label}, {setting} lacks {run.order} {seed} ({state}){more}; settings are compared over "
                "the same orders and seeds: finish it, or leave the setting out with --filter"
            )


def _default_objective(known: dict[str, Objective], runs: Sequence[RunRecord]) -> tuple[Objective, str]:
    """Return the objective of `DEV`, and why it is not FP."""
    for run in runs:
        if isinstance(value := known["dev_fp"].value(run), Absent):
            return known["dev_learnt"], f"{run.run_id}: {value.reason}"
    return known["dev_fp"], ""


def scored_trial(values: dict[str, str], runs: Sequence[RunRecord], objective: Objective, option: str) -> Trial:
    """Score a setting on dev over its finished runs."""
    distinct = list(combinations(runs).values())
    scores = []
    for run in distinct:
        score = objective.value(run)
        if isinstance(score, Absent) or not math.isfinite(score):
            why = score.reason if isinstance(score, Absent) else f"it is {score}"
            raise UsageError(f"{option}: {run.run_id} ({run.strategy}) has no {objective.title}: {why}")
        scores.append(score)
    std = float(np.std(scores, ddof=1)) if len(scores) > 1 else math.nan
    return Trial(values, float(mean_over_orders(distinct, scores)), std, tuple(distinct))


def _best(dataset: str, model: str, label: str, trials: Sequence[Trial], objective: Objective) -> Tuned:
    sign = -1 if objective.higher_is_better else 1
    best = min(sign * trial.score for trial in trials)

    def distance(trial: Trial) -> float:
        # Differences by rounding alone are ties.
        difference = sign * trial.score - best
        return 0.0 if difference <= TIE else difference

    ranked = sorted(trials, key=lambda trial: (distance(trial), [_by_size(value) for value in trial.values.values()]))
    return Tuned(dataset, model, label, tuple(ranked), sum(distance(trial) == 0 for trial in trials))


def _by_size(value: str) -> tuple[bool, float, Any]:
    """Sort key of values: numbers by size, before words."""
    try:
        return False, float(value), []
    except ValueError:
        return True, 0.0, natural(value)


def _selected(record: RunRecord, hop: int) -> dict[str, Any] | None:
    """Return the curve's entry of the epoch whose weights a hop ended with; None where unknown.

    With ``trainer.selection=best`` this is the first epoch with the best mean over languages and their metrics.
    """
    epochs = [epoch for epoch in record.curve if epoch["hop"] == hop]
    if not epochs or record.config.get("trainer", {}).get("selection") != "best":
        return epochs[-1] if epochs else None
    if not all(epoch.get("dev") for epoch in epochs):
        return None
    scores = [of_language for epoch in epochs for of_language in epoch["dev"].values()]
    # If span F1 is now computed in another way, the curve lacks it, and the epoch that training chose is unknown.
    span_f1 = {metric for metric in record.scores if BY_NAME[metric].span_f1}
    if not all(scores) or (span_f1 and not record.metric_of and not all(span_f1 & of.keys() for of in scores)):
        return None
    return max(epochs, key=lambda epoch: _mean_score(epoch["dev"]))


def _mean_score(dev: dict[str, dict[str, float]]) -> float:
    by_language = [[value for name, value in of.items() if name != KEY_SCORE.name] for of in dev.values()]
    return math.fsum(value / len(values) for values in by_language for value in values) / len(by_language)


def unsighted(strategy: str, config: Mapping[str, Any], edited: bool = False) -> Absent | None:
    """Return why the dev scores of a run are not those of the tested model; None if they are.

    Args:
        edited: whether the strategy changed weights at the end of a training (`RunRecord.edited`).
    """
    if strategy.partition("+")[0] == "model_average":
        return Absent("its dev scores are of the weights before they are averaged")
    if edited:
        return Absent("its dev scores are of the weights before its strategy changed them at the end of training")
    if adapts(config):
        return Absent("its dev scores are of the model as it was trained, not adapted to each example")
    return None
