"""Hyperparameter search: a sampler proposes settings based on the dev scores of earlier ones.

A trial is one setting of the searched keys, trained with all orders, seeds and buckets of the command. Its runs are
ordinary runs, so they share hops with all other runs. Optuna's journal is ``<outputs>/searches/<name>.log``
(`xclrun.launch.trials`), under a lease. Test scores are neither printed nor sent before the search has ended
(`xclrun.launch.sweep.Sweep.blind`).
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from xclrun.analysis.grouping import setting_text
from xclrun.analysis.records import record
from xclrun.analysis.tuning import (
    DEV,
    Objective,
    Trial,
    check_keys,
    check_objective,
    choose,
    dev_mismatch,
    objectives,
    scored_trial,
)
from xclrun.compose.jobs import compose_trials
from xclrun.compose.space import SWEEPER, Space
from xclrun.config.schema import PointSplits
from xclrun.core.errors import UsageError, XclrunError, did_you_mean, require
from xclrun.core.identity import digest, flat
from xclrun.core.plugins import typed_command
from xclrun.core.quantity import Quantity
from xclrun.core.terminal import as_note, duration, if_slow, line, many, note
from xclrun.data.notes import note_lines, reader_notes
from xclrun.launch.forecast import Budget, Line, budget, forecast, forecast_table, scaled, unmeasured_note
from xclrun.launch.sweep import Launcher, Sweep, SweepFailed, check_writable, given_name
from xclrun.launch.trials import SAMPLERS, Setting, Trials
from xclrun.plan import Run, notes, plan_jobs
from xclrun.store.lease import Lease
from xclrun.tracking.background import BackgroundMirror

# Maximum number of rows in the table of trials.
ROWS = 10


@dataclass(frozen=True)
class Search:
    """A validated search.

    Attributes:
        objective: the dev score to optimise.
        probe: the runs of one setting.
        name: name of its sweep and journal.
        identity: hash of everything that determines the proposed settings.
    """

    space: Space
    objective: Objective
    probe: tuple[Run, ...]
    name: str
    identity: str

    @property
    def outputs(self) -> Path:
        return self.probe[0].outputs

    @property
    def journal(self) -> Path:
        """The file of Optuna's journal."""
        return self.outputs / "searches" / f"{self.name}.log"

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.space.searched)

    @property
    def most(self) -> int:
        """Number of settings to try."""
        return int(min(self.space.settings["trials"], self.space.number))

    @property
    def quantity(self) -> Quantity:
        """The quantity of the objective."""
        metrics = (metric for run in self.probe for metric in run.dataset.metrics.columns)
        return self.objective.quantity(metric.name for metric in metrics if not metric.beside)

    @property
    def together(self) -> int:
        """Number of settings to try at the same time."""
        return int(self.space.settings["parallel"])

    def trials(self, journal: Path | None = None) -> Trials:
        """Return its trials; only the holder of the lease may open the journal, others must open a copy."""
        return Trials(self.space, self.identity, self.quantity.higher_is_better, journal or self.journal)

    def done(self) -> int:
        """Return the number of settings that have been tried, without writing to the journal."""
        if not self.journal.is_file():
            return 0
        with TemporaryDirectory() as folder:
            return len(self.trials(Path(shutil.copy(self.journal, folder))).tried)

    def runs(self, settings: Sequence[Setting]) -> list[list[Run]]:
        """Return the runs of each setting."""
        return [
            plan_jobs(job.config for job in jobs)
            for jobs in compose_trials(self.space, [setting.values for setting in settings])
        ]

    @property
    def lines(self) -> list[str]:
        """One line per searched key, with its values."""
        wide = max(map(len, self.keys))
        return [f"  {key:<{wide}}  {domain}" for key, domain in self.space.searched.items()]


def plan_search(space: Space, launcher: Launcher) -> Search:
    """Validate a search: its settings, its values as far as possible, and the dev scores that it needs."""
    require("optuna", SWEEPER, "search")
    _check_settings(space.settings)
    # Check this before `launcher.check`, which fails on a machine without Slurm and would hide this error.
    if not launcher.waits:
        raise UsageError(
            f"{SWEEPER} hydra/launcher=slurm: trials depend on earlier trials; set hydra.launcher.wait=true"
        )
    launcher.check()
    first, *rest = compose_trials(space, space.probes)
    runs = plan_jobs(job.config for job in first)
    for jobs in rest:
        plan_jobs([jobs[0].config])
    if len(folders := {run.outputs for run in runs}) > 1:
        raise UsageError(f"paths.outputs={','.join(sorted(map(str, folders)))}: a search needs a single folder")
    settings = {key: setting_text(value) for key, value in flat(runs[0].resolved)}
    check_keys(tuple(space.searched), [settings], SWEEPER)
    objective = _objective(space.settings["objective"], runs)
    identity = digest(
        {
            "objective": objective.name,
            "space": {key: [*domain.ends, str(domain)] for key, domain in space.searched.items()},
            "sampler": [space.settings["sampler"], space.settings["seed"]],
            "runs": sorted(run.id for run in runs),
        }
    )
    name = given_name(first) or f"search-{identity[:8]}"
    return Search(space, objective, tuple(runs), name, identity)


def _check_settings(settings: Mapping[str, Any]) -> None:
    for key, least in (("trials", 2), ("parallel", 1), ("seed", 0)):
        value = settings[key]
        if type(value) is not int or not least <= value < 2**31:
            raise UsageError(f"hydra.sweeper.{key}={value}: must be a whole number of at least {least}")
    if settings["sampler"] not in SAMPLERS:
        name = settings["sampler"]
        raise UsageError(f"hydra.sweeper.sampler={name}: unknown; {did_you_mean(str(name), SAMPLERS)}")
    check_objective(str(settings["objective"]), f"hydra.sweeper.objective={settings['objective']}")


def _objective(name: str, runs: Sequence[Run]) -> Objective:
    """Return the dev score that compares settings."""
    available = objectives()
    if name == DEV:
        name = "dev_fp" if _points_lacking(runs) is None else "dev_learnt"
    objective, option = available[name], f"{SWEEPER} hydra.sweeper.objective={name}"
    for run in runs:
        if run.config.protocol is not None:
            raise UsageError(f"{SWEEPER}: few-shot runs cannot be searched")
        if (blind := dev_mismatch(run.strategy_name, run.resolved)) is not None:
            raise UsageError(f"{SWEEPER}: strategy={run.strategy_name}: {blind.reason}")
        if run.stream.kind not in objective.streams:
            fitting = ", ".join(name for name, candidate in available.items() if run.stream.kind in candidate.streams)
            raise UsageError(f"{option}: not available for strategy={run.strategy_name}; use one of {fitting}")
    if objective.points and (lacking := _points_lacking(runs)) is not None:
        raise UsageError(f"{option}: {lacking}")
    for run in runs:
        needed = run.stream.languages if objective.points else [k for hop in run.stream.hops[1:] for k in hop.select]
        if without := [language for language in needed if not run.dataset.split(language, "dev")]:
            raise UsageError(f"{option}: dataset={run.dataset.name}: '{without[0]}' has no dev data")
    return objective


def _points_lacking(runs: Iterable[Run]) -> str | None:
    """Return the reason why runs lack dev scores of all languages after each hop; None if they have them."""
    for run in runs:
        evaluate = run.config.evaluate
        if not evaluate.has_points:
            return "needs dev scores after each hop; set evaluate.every_share=1"
        if evaluate.point_splits is not PointSplits.dev_test:
            return f"evaluate.point_splits={evaluate.point_splits.value}: evaluation on dev is needed; use dev_test"
        for hop in run.stream.hops[1:]:
            # Each hop ends with a point; if an earlier epoch can be selected, each epoch must end with a point too.
            sentences, trainer = run.sentences(hop), run.trainer(hop)
            every = evaluate.every(sentences)
            if every is None or run.epochs(hop) == 1 or trainer.selection.value != "best":
                continue
            size = trainer.batch(sentences)
            last = sentences % size or size
            if any(k * sentences // every == (k * sentences - last) // every for k in range(1, run.epochs(hop))):
                return (
                    f"trainer.selection=best: needs an evaluation point at the end of each epoch of hop {hop.index}; "
                    "set evaluate.every_share=1"
                )
    return None


def search_forecast(search: Search, width: int | None = None) -> tuple[dict[str, Any], str]:
    """Estimate the cost of a search, assuming that all settings cost the same and share no hops.

    Args:
        width: number of parallel jobs for a budget; None returns a forecast instead.

    Returns:
        The data for ``--json``, and the text for a terminal.
    """
    completed, probe = search.done(), search.probe
    remaining = search.most - completed
    trial: Line | Budget
    total: Line | Budget
    warnings = [*note_lines([probe[0].dataset], reader_notes), *notes(probe)]
    if width is None:
        result = forecast(probe)
        trial = result.total
        total = scaled(trial, remaining, strategy=f"{remaining} left of {search.most}", finished=0)
        costs = forecast_table([replace(trial, strategy="one trial"), total], "trials")
        warnings = [*unmeasured_note(result.unmeasured), *warnings]
    else:
        trial = replace(budget(probe, max(1, width // search.together)), width=width)
        wall = None if trial.wall is None else trial.wall * ceil(remaining / search.together)
        total = scaled(trial, remaining, width=width, wall=wall)
        costs = total.render()
    about = {
        "name": search.name,
        "objective": search.objective.name,
        "searched": {key: str(domain) for key, domain in search.space.searched.items()},
        "trials": search.most,
        "made": completed,
        "runs_of_a_trial": len(probe),
    }
    runs = f"{many(search.most, 'trial')} of {many(len(probe), 'run')}" + (f"; {completed} completed" * (completed > 0))
    text = [f"{search.name}: search by {search.objective.title} ({search.objective.name}): {runs}", *search.lines, ""]
    text += [costs, f"estimated from the trial {_text(search.space.probe)}; trials train shared hops only once"]
    text += [as_note(warning, sys.stdout) for warning in warnings]
    return {"search": about, "trial": asdict(trial), "total": asdict(total), "notes": warnings}, "\n".join(text)


def search(space: Space, launcher: Launcher) -> Sequence[Run]:
    """Run all trials of a search; print the best setting on dev. Returns the runs of all trials."""
    with if_slow("xclrun: reading the data and planning …", terminal_only=True):
        planned = plan_search(space, launcher)
    launcher.check_runs(planned.probe)
    for folder in dict.fromkeys([*(run.store.root for run in planned.probe), planned.outputs, planned.journal.parent]):
        check_writable(folder)
    lease = Lease(planned.journal)
    if (mine := lease.try_acquire()) is None:
        raise UsageError(
            f"{planned.name}: already running ({lease.owner()}); `xclrun status {planned.name}` shows its progress"
        )
    with lease.held(mine):
        searching = _Searching(planned, launcher)
        searching.run()
    return [run for runs in searching.runs.values() for run in runs]


class _Searching:
    """A running search; this process holds its lease."""

    def __init__(self, search: Search, launcher: Launcher) -> None:
        self.search, self.launcher, self.trials = search, launcher, search.trials()
        # Trial number → runs.
        self.runs: dict[int, list[Run]] = {}
        self.scored: list[Trial] = []
        self.failed = 0

    def run(self) -> None:
        began = time.monotonic()
        self._announce()
        self._resume()
        while batch := self.trials.next(self.search.most, self.search.together):
            self._try(batch)
        self._end(time.monotonic() - began)

    def _announce(self) -> None:
        s, before = self.search, len(self.trials.tried)
        run, each = s.probe[0], many(len(s.probe), "run")
        line(
            f"xclrun: search by {s.objective.title}: {many(s.most, 'trial')} of {each} of {run.strategy_name} on "
            f"{run.dataset.name} with {run.config.model.name} → {s.outputs}"
            + (f"; {before} already completed" if before else "")
        )
        warnings = [*note_lines([run.dataset]), *notes(s.probe)]
        for text in [*s.lines, *(as_note(text, sys.stderr, "  ") for text in warnings)]:
            line(text)

    def _resume(self) -> None:
        """Score the earlier settings; first retry settings with unfinished runs.

        The journal still lists retried settings as failed, so a retry does not change which settings are sampled next.
        """
        before = self.trials.tried
        self.runs = {setting.number: runs for setting, runs in zip(before, self.search.runs(before), strict=True)}
        again = [setting for setting in before if not self._finished(setting)]
        for setting in before:
            if setting not in again:
                self._score(setting)
        if again:
            line(f"\nretrying {many(len(again), 'trial')} with failed runs or with missing or damaged files")
            self._do(again)
        for setting in again:
            self._score(setting)

    def _try(self, batch: Sequence[Setting]) -> None:
        search, tried = self.search, len(self.trials.tried)
        for k, (setting, runs) in enumerate(zip(batch, search.runs(batch), strict=True), start=tried + 1):
            self.runs[setting.number] = runs
            line(f"\ntrial {k} of {search.most}: {_text(setting.values)}")
        failed_before = all(any(run.directory.failed_since(0) for run in self.runs[s.number]) for s in batch)
        self._do(batch)
        # If the first settings fail for the first time, the machine or the data may be the cause, so the user must
        # repeat the command. If they fail again, for example with a high learning rate, the search continues.
        if not self.scored and not failed_before and not any(map(self._finished, batch)):
            raise SweepFailed(f"{search.name}: all settings have failed so far; re-run the same command to retry")
        for setting in batch:
            trial = self._score(setting)
            self.trials.tell(setting, None if trial is None else trial.score)

    def _do(self, trials: Sequence[Setting]) -> None:
        """Execute the unfinished runs of settings; a failed run does not stop the others."""
        self._write(ended=False)
        runs = {run.id: run for setting in trials for run in self.runs[setting.number]}
        sweep = self._sweep(runs.values(), ended=False)
        if unfinished := sweep.unfinished:
            try:
                self.launcher.do(sweep, unfinished)
            except SweepFailed as error:
                line(f"  {error}")

    def _finished(self, setting: Setting) -> bool:
        return all(run.directory.finished for run in self.runs[setting.number])

    def _score(self, setting: Setting) -> Trial | None:
        """Score a setting on dev and print it; None if a run has failed or has no dev score."""
        trial, reason = None, "failed; re-run the same command to retry it"
        if self._finished(setting):
            try:
                records = [record(run.directory) for run in self.runs[setting.number]]
                settings = {key: setting_text(value) for key, value in flat(records[0].config)}
                values = {key: settings[key] for key in self.search.keys}
                trial = scored_trial(values, records, self.search.objective, SWEEPER)
            except (XclrunError, ValueError) as error:
                reason = f"skipped: {error}"
        if trial is None:
            self.failed += 1
            line(f"  {_text(setting.values)}: {reason}")
            return None
        self.scored.append(trial)
        if setting.open:
            quantity = self.search.quantity
            best = quantity.best(self.scored, key=lambda trial: trial.score)
            texts = [quantity.spread(each.score, each.std) for each in (trial, best)]
            so_far = "the best so far" if best is trial else f"best so far {texts[1]}: {best.name}"
            line(f"  {self.search.objective.title} {texts[0]}; {so_far}")
        return trial

    def _sweep(self, runs: Iterable[Run], ended: bool) -> Sweep:
        facts = {
            "objective": self.search.objective.name,
            "keys": list(self.search.keys),
            "trials": self.search.most,
            "made": len(self.trials.tried),
            "ended": ended,
            "runs": [run.run_id for trial in self.scored for run in trial.runs],
        }
        comparisons = self.search.space.settings["comparisons"]
        return Sweep(self.search.name, typed_command(), tuple(runs), facts, comparisons)

    def _write(self, ended: bool) -> None:
        every = {run.id: run for runs in self.runs.values() for run in runs}
        self._sweep(every.values(), ended).write()

    def _end(self, seconds: float) -> None:
        """Print the best setting, and send the runs to their tracker."""
        from xclrun.report.parts.chosen import trial_table

        s = self.search
        if len(self.scored) < 2:
            self._write(ended=False)
            raise SweepFailed(
                f"{s.name}: only {len(self.scored)} of {many(len(self.scored) + self.failed, 'setting')} succeeded, "
                "but at least 2 are needed; re-run the same command to retry"
            )
        self._write(ended=True)
        runs = [run for trial in self.scored for run in trial.runs]
        choice = choose(runs, s.keys, s.objective.name)
        [tuned] = choice.tuned
        failed = f", {self.failed} failed" if self.failed else ""
        line(f"\n{many(len(tuned.trials), 'setting')} tried{failed} in {duration(seconds)}.\n")
        more = len(tuned.trials) - ROWS
        footnotes = (f"{more} more in the report",) if more > 0 else ()
        few = replace(tuned, trials=tuned.trials[:ROWS])
        line(trial_table([few], choice, footnotes).text())
        sweep = self._sweep(s.probe, ended=True)
        with BackgroundMirror(sweep.outputs, sweep.tracking, [run.run_id for run in runs]) as mirror:
            pass
        if not mirror.close():
            note("some runs were not sent to the tracker; send them later with `xclrun mlflow sync`")
        line(f"Best on dev: {tuned.trials[0].name}")
        options = f"{sweep.outputs_option}{sweep.tracking_options}"
        line(f"Next: `xclrun report {s.name}{options}` shows the test scores of this setting only")


def _text(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
