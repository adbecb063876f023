"""Select each strategy's best settings in a grid on dev scores.

docs/reports.md, "Select hyperparameters on dev scores".

Test scores are never read. Objectives are fractions, computed from dev scores. A hop's dev scores are those of its
selected epoch (``trainer.selection``), since the weights of this epoch were tested.
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
from xclrun.core.quantity import Quantity
from xclrun.core.task import BY_NAME, short_name
from xclrun.scores.base_scores import selection_score

# The default objective: ``dev_fp`` if all runs have it, otherwise ``dev_learnt``.
DEV = "dev"
# Value of a key that a strategy does not have.
WITHOUT = "–"


@dataclass(frozen=True)
class Objective:
    """A criterion for selecting settings.

    Attributes:
        name: argument of ``--select-on``.
        title: name in tables.
        definition: text for captions.
        compute: takes a run and a metric; returns the value, a fraction, or the reason why it is missing.
        streams: streams for which the objective is defined.
        points: whether the objective needs the dev scores of all languages after each hop (`dev_scores`).
        measure: the measure that is computed from dev scores; None: a score.
    """

    name: str
    title: str
    definition: str
    compute: Callable[[RunRecord, str], float | Absent]
    streams: tuple[str, ...] = tuple(STREAMS)
    points: bool = False
    measure: Measure | None = None

    def quantity(self, metrics: Iterable[str]) -> Quantity:
        """Return the quantity of the objective's mean over metrics.

        Raises:
            UsageError: the metrics differ in unit or direction.
        """
        entries = [BY_NAME[metric] for metric in dict.fromkeys(metrics)]
        kinds = {entry.quantity if self.measure is None else self.measure.quantity(entry) for entry in entries}
        if len(kinds) > 1:
            names = ", ".join(entry.name for entry in entries)
            raise UsageError(f"{self.name}: {names} differ in unit or direction, so their mean selects no settings")
        return kinds.pop()

    def value(self, run: RunRecord) -> float | Absent:
        """Return the objective's mean over the metrics of a run, or the reason why it is missing."""
        if (reason := dev_mismatch(run.strategy, run.config, bool(run.edited))) is not None:
            return reason
        values = []
        for metric in run.metrics:
            if isinstance(value := self.compute(run, metric), Absent):
                return value
            values.append(value)
        return float(np.mean(values))


@dataclass(frozen=True)
class Trial:
    """One setting of a strategy.

    Attributes:
        values: key → value as text; `WITHOUT` if the strategy does not have the key.
        score: the objective, averaged within orders, then over orders.
        std: sample standard deviation of the objective over runs; NaN for one run.
        runs: the finished runs.
    """

    values: dict[str, str]
    score: float
    std: float
    runs: tuple[RunRecord, ...]

    @property
    def set(self) -> dict[str, str]:
        """Values of the keys that the strategy has."""
        return {key: value for key, value in self.values.items() if value != WITHOUT}

    @property
    def name(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.set.items())


@dataclass(frozen=True)
class Tuned:
    """The settings of one strategy, the best on dev first.

    Attributes:
        strategy: the strategy's label, which excludes the selected keys.
        trials: all settings, the selected setting first.
        tied: number of settings with the best score.
    """

    dataset: str
    model: str
    strategy: str
    trials: tuple[Trial, ...]
    tied: int

    @property
    def description(self) -> str:
        """The selection in words, for captions."""
        first = self.trials[0]
        ties = f"; tied with {' and '.join(t.name for t in self.trials[1 : self.tied])}" if self.tied > 1 else ""
        return f"{self.strategy}: {first.name or 'without these keys'} (of {len(self.trials)}{ties})"


@dataclass(frozen=True)
class Choice:
    """The settings selected on dev.

    Attributes:
        keys: the selected keys, dotted.
        tuned: one entry for each strategy.
        quantity: the objective's quantity.
        why: the reason if the default objective is ``dev_learnt`` instead of ``dev_fp``; otherwise empty.
    """

    objective: Objective
    keys: tuple[str, ...]
    tuned: tuple[Tuned, ...]
    quantity: Quantity
    why: str = ""

    @property
    def runs(self) -> list[RunRecord]:
        """The finished runs of the selected settings."""
        return [run for tuned in self.tuned for run in tuned.trials[0].runs]

    def strategies(self, dataset: str, model: str) -> list[Tuned]:
        return [tuned for tuned in self.tuned if (tuned.dataset, tuned.model) == (dataset, model)]

    def caption(self, dataset: str, model: str) -> str:
        """Describe the selection, for the tables of one dataset and model."""
        chosen = self.strategies(dataset, model)
        runs = [run for tuned in chosen for run in tuned.trials[0].runs]
        metrics = list(dict.fromkeys(short_name(metric) for run in runs for metric in run.metrics))
        mean = f"mean of {' and '.join(metrics)}; " if len(metrics) > 1 else ""
        best = "highest" if self.quantity.higher_is_better else "lowest"
        counts = sorted({len(tuned.trials[0].runs) for tuned in chosen})
        each = f"{' or '.join(map(str, counts))} run{'s' if counts != [1] else ''} per setting"
        return (
            f"settings selected on dev: for each strategy, the value of {' and '.join(self.keys)} with the {best} "
            f"{self.objective.title} ({mean}mean over orders and seeds, {each}), used for all orders and seeds: "
            f"{'; '.join(tuned.description for tuned in chosen)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the selection for ``json.dumps``; scores are fractions."""
        strategies = []
        for tuned in self.tuned:
            trials = [
                {"values": t.values, "score": t.score, "runs": [run.run_id for run in t.runs]} for t in tuned.trials
            ]
            head = {name: getattr(tuned, name) for name in ("dataset", "model", "strategy", "tied")}
            strategies.append({**head, "trials": trials})
        return {"objective": self.objective.name, "keys": list(self.keys), "why": self.why, "strategies": strategies}


def dev_scores(record: RunRecord, metric: str) -> np.ndarray:
    """Return the score matrix on dev, shape (hops + 1, N), from the evaluation points at the selected epochs.

    Row 0 (hop 0) is NaN, and so is the row of a hop without such a point.
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
    """Return the mean over languages of the dev score right after the last hop that trains the language."""
    last = {language: hop for hop in range(1, record.hops + 1) for language in record.trains(hop)}
    scores = {}
    for language, hop in last.items():
        epoch = _selected(record, hop) or {}
        scores[language] = point_score(epoch.get("dev") or {}, language, metric)
    if missing := [language for language, score in scores.items() if math.isnan(score)]:
        return Absent(f"the training curve has no dev score of {short_name(metric)} on {', '.join(missing)}")
    return float(np.mean(list(scores.values())))


def objectives() -> dict[str, Objective]:
    """Return name → objective: ``dev_learnt``, and each measure that needs neither reference scores nor hop 0."""
    definition = (
        "dev score on a language right after its hop, averaged over the languages learned; ignores later forgetting"
    )
    title = "dev score right after learning"
    available = {"dev_learnt": Objective("dev_learnt", title, definition, learnt_on_dev)}
    for entry in MEASURES.values():
        cells = entry.needs(3)
        if cells.any() and not cells[0].any() and not entry.reference:
            name, title, on_dev = f"dev_{entry.name.lower()}", f"{entry.name} on dev", partial(_on_dev, entry)
            available[name] = Objective(
                name, title, entry.definition, on_dev, entry.streams, points=True, measure=entry
            )
    return available


def _on_dev(entry: Measure, record: RunRecord, metric: str) -> float | Absent:
    """Compute a measure from dev scores; fields with test scores are emptied first."""
    scores = {metric: dev_scores(record, metric)}
    on_dev = replace(record, scores=scores, points=(), curve=(), averaged=(), coded=())
    value = measure(on_dev, metric, np.full(len(record.languages), np.nan), (entry.name,))[entry.name, ""]
    if not isinstance(value, Absent) or record.stream not in entry.streams:
        return value
    return Absent(f"dev scores are missing ({value.reason}); set evaluate.every_share=1 to evaluate after each epoch")


def choose(records: Iterable[RunRecord], keys: Sequence[str], objective: str = DEV) -> Choice:
    """Select the settings of each strategy whose dev objective has the best mean over orders, seeds and buckets.

    Runs of a strategy that differ in settings other than ``keys`` count as separate strategies, as in tables. Reference
    runs (``lang_spec_ft``) are compared only if there are no other runs.

    Args:
        records: runs of any status; an unfinished run is a missing cell of the grid.
        keys: dotted config keys.
        objective: name of an objective, or `DEV`.
    """
    keys, option = tuple(dict.fromkeys(keys)), f"--select-on {objective} {','.join(keys)}"
    available = objectives()
    check_objective(objective, f"--select-on {objective}")
    # If a run has several records, prefer a finished one.
    by_id = {run.run_id: run for run in sorted(records, key=lambda run: run.finished)}
    runs = sorted(by_id.values(), key=lambda run: (natural(run.order), run.seed, run.bucket or 0, run.run_id))
    if any(map(is_few_shot, runs)):
        raise UsageError(f"{option}: few-shot runs are not supported; exclude them with --filter")
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
        raise UsageError(f"{option}: no strategy has runs with several values; select other keys")
    for (_, _, label), grid in grids.items():
        _check_cells(label, keys, grid, option)
    every = [run for grid in grids.values() for cell in grid.values() for run in cell]
    criterion, why = available[objective if objective != DEV else "dev_fp"], ""
    if objective == DEV:
        missing = ((run, value) for run in every if isinstance(value := criterion.value(run), Absent))
        if (first := next(missing, None)) is not None:
            criterion, why = available["dev_learnt"], f"{first[0].run_id}: {first[1].reason}"
    tuned, kind = [], criterion.quantity(metric for run in every for metric in run.metrics)
    for (dataset, model, label), grid in sorted(grids.items(), key=lambda item: (item[0][2] != BASELINE, item[0])):
        trials = [
            scored_trial(dict(zip(keys, values, strict=True)), cell, criterion, option) for values, cell in grid.items()
        ]
        tuned.append(_best(dataset, model, label, trials, kind))
    return Choice(criterion, keys, tuple(tuned), kind, why)


def check_objective(objective: str, option: str) -> None:
    """Raise a `UsageError` for an unknown objective; ``option`` is the command-line option in the message."""
    if objective not in (available := [DEV, *objectives()]):
        raise UsageError(f"{option}: unknown objective; {did_you_mean(objective, available)}")


def check_keys(keys: Sequence[str], settings: Iterable[Mapping[str, str]], option: str) -> None:
    """Raise a `UsageError` for a key that cannot be selected; ``settings``: dotted key → value of each run."""
    available = {key for run in settings for key in run}
    compared = NAMED | {"strategy.name", "strategy.expansion", "strategy.expansion.name"}
    without_effect = {key for key in (*available, *keys) if any(f"{key}.".startswith(f"{free}.") for free in FREE)}
    for key in keys:
        if key in compared or key in ("strategy", "model", "dataset"):
            raise UsageError(f"{option}: {key} cannot be selected, since reports compare its values")
        if key.split(".")[0] in ("order", "seed", "bucket"):
            raise UsageError(f"{option}: {key} cannot be selected, since results are averaged over it")
        if key in without_effect:
            raise UsageError(f"{option}: {key} cannot be selected, since it has no effect on results")
        if key not in available:
            raise UsageError(f"{option}: unknown key {key}; {did_you_mean(key, available - compared - without_effect)}")


def _check_cells(label: str, keys: Sequence[str], grid: dict[tuple[str, ...], list[RunRecord]], option: str) -> None:
    """Raise a `UsageError` if a setting lacks an order, seed or bucket of the other settings."""
    needed = {cell: run for runs in grid.values() for cell, run in combinations(runs).items()}
    for values, runs in grid.items():
        begun, finished = combinations(runs), combinations(run for run in runs if run.finished)
        if missing := [(cell, run) for cell, run in needed.items() if cell not in finished]:
            cell, run = missing[0]
            seed = f"seed {run.seed}" if run.bucket is None else f"seed {run.seed} bucket {run.bucket}"
            state = begun[cell].status if cell in begun else "not run"
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            setting = ", ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True) if value != WITHOUT)
            raise UsageError(
                f"{option}: {label}, {setting} lacks {run.order} {seed} ({state}){more}; finish these runs, or exclude "
                "the setting with --filter"
            )


def scored_trial(values: dict[str, str], runs: Sequence[RunRecord], objective: Objective, option: str) -> Trial:
    distinct = list(combinations(runs).values())
    scores = []
    for run in distinct:
        score = objective.value(run)
        if isinstance(score, Absent) or not math.isfinite(score):
            why = score.reason if isinstance(score, Absent) else f"the value is {score}"
            raise UsageError(f"{option}: {run.run_id} ({run.strategy}) has no {objective.title}: {why}")
        scores.append(score)
    std = float(np.std(scores, ddof=1)) if len(scores) > 1 else math.nan
    return Trial(values, float(mean_over_orders(distinct, scores)), std, tuple(distinct))


def _best(dataset: str, model: str, label: str, trials: Sequence[Trial], kind: Quantity) -> Tuned:
    sign = -1 if kind.higher_is_better else 1
    best = min(sign * trial.score for trial in trials)

    def distance(trial: Trial) -> float:
        difference = sign * trial.score - best
        return 0.0 if difference <= TIE else difference

    ranked = sorted(trials, key=lambda trial: (distance(trial), [_by_size(value) for value in trial.values.values()]))
    return Tuned(dataset, model, label, tuple(ranked), sum(distance(trial) == 0 for trial in trials))


def _by_size(value: str) -> tuple[bool, float, Any]:
    """Return a sort key that puts numbers, by size, before words."""
    try:
        return False, float(value), []
    except ValueError:
        return True, 0.0, natural(value)


def _selected(record: RunRecord, hop: int) -> dict[str, Any] | None:
    """Return the training curve's entry for the epoch whose weights the hop selected; None if unknown.

    With ``trainer.selection=best``, this is the first epoch with the best `selection_score`; otherwise the last epoch.
    """
    epochs = [epoch for epoch in record.curve if epoch["hop"] == hop]
    if not epochs or record.config.get("trainer", {}).get("selection") != "best":
        return epochs[-1] if epochs else None
    if not all(epoch.get("dev") for epoch in epochs):
        return None
    measured = [{(key, metric) for key, scores in epoch["dev"].items() for metric in scores} for epoch in epochs]
    # An epoch without a value of one of the scores is not selected.
    epochs = [epoch for epoch, names in zip(epochs, measured, strict=True) if names == set().union(*measured)]
    scores = [by_metric for epoch in epochs for by_metric in epoch["dev"].values()]
    # If the curve lacks the run's span F1, another kind of span F1 selected the epoch, which is therefore unknown.
    span_f1 = {metric for metric in record.metrics if BY_NAME[metric].span_f1}
    if (
        not epochs
        or not all(scores)
        or (span_f1 and not record.metric_of and not all(span_f1 & by.keys() for by in scores))
    ):
        return None
    return max(epochs, key=lambda epoch: selection_score(epoch["dev"]), default=None)


def dev_mismatch(strategy: str, config: Mapping[str, Any], edited: bool = False) -> Absent | None:
    """Return the reason why a run's dev scores are not those of the tested model; None if they are.

    ``edited``: whether the strategy changed weights at the end of training (`RunRecord.edited`).
    """
    if strategy.partition("+")[0] in ("model_average", "merge"):
        return Absent("dev scores were computed before averaging the weights")
    if edited:
        return Absent("dev scores were computed before the strategy changed the weights at the end of training")
    if adapts(config):
        return Absent("dev scores were computed without adaptation to each example")
    return None
