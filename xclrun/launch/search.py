"""Searches: settings that are tried one after another, each chosen by how those before it did on dev.

A trial is a setting of the keys that are searched, done in all orders, seeds and buckets given: ordinary runs, with
their ids, which share hops with each other and with all others. What Optuna knows of them is in
``<outputs>/searches/<name>.log`` (`xclrun.launch.trials`), under a lease. Until the search has ended nothing that it
writes or prints has a score of the test split, which must not choose: see ``blind`` of `xclrun.launch.sweep.Sweep`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

from xclrun.analysis.grouping import setting_text
from xclrun.analysis.record import RunRecord
from xclrun.analysis.tuning import (
    DEV,
    Objective,
    Trial,
    Tuned,
    check_keys,
    check_objective,
    choose,
    objectives,
    scored_trial,
    unsighted,
)
from xclrun.compose.jobs import compose_trials
from xclrun.compose.space import SWEEPER, Space
from xclrun.config.schema import PointSplits
from xclrun.core.errors import UsageError, XclrunError, did_you_mean, require
from xclrun.core.identity import digest, flat
from xclrun.core.plugins import typed_command
from xclrun.core.terminal import as_note, duration, if_slow, line, many, note
from xclrun.data.notes import read_notes, told
from xclrun.launch.forecast import Budget, Line, budget, forecast, forecast_table
from xclrun.launch.sweep import Launcher, Sweep, SweepFailed, check_writable, given_name
from xclrun.launch.trials import SAMPLERS, Asked, Trials
from xclrun.run import Run, notes, plan_jobs
from xclrun.store.lease import Lease
from xclrun.store.records import record
from xclrun.tracking.background import BackgroundMirror

# Rows of the table at the end.
SHOWN = 10


@dataclass(frozen=True)
class Search:
    """A search that was checked; nothing is trained.

    Attributes:
        space: what is searched.
        objective: what by.
        probe: the runs of one setting: how many a trial has, and what it costs.
        name: of its sweep and journal.
        identity: hash of all that decides which settings come.
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
        """Where Optuna keeps its trials."""
        return self.outputs / "searches" / f"{self.name}.log"

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.space.searched)

    @property
    def most(self) -> int:
        """Settings that are tried."""
        return int(min(self.space.settings["trials"], self.space.number))

    @property
    def together(self) -> int:
        """Settings that are tried at the same time."""
        return int(self.space.settings["parallel"])

    def trials(self, copied: bool = False) -> Trials:
        """Return its trials so far; only who holds the lease may go on with them, others take a copy."""
        return Trials(self.space, self.identity, self.objective.higher_is_better, self.journal, copied=copied)

    def done(self) -> int:
        """Return how many settings have been tried; nothing is written."""
        return len(self.trials(copied=True).told) if self.journal.is_file() else 0

    def runs(self, trials: Sequence[Asked]) -> list[list[Run]]:
        """Return the runs of some settings, a list for each."""
        return [
            plan_jobs(job.config for job in jobs) for jobs in compose_trials(self.space, [one.values for one in trials])
        ]

    @cached_property
    def told(self) -> list[str]:
        """What is searched, in lines for a person."""
        wide = max(map(len, self.keys))
        return [f"  {key:<{wide}}  {of}" for key, of in self.space.searched.items()]


def plan_search(space: Space, launcher: Launcher) -> Search:
    """Check a search: its settings, every value that can be checked beforehand, and the dev scores that it needs.

    Raises:
        UsageError: something cannot work; nothing has been written.
    """
    require("optuna", SWEEPER, "search")
    _check_settings(space.settings)
    # Told before anything is asked of the machine: it is wrong on a machine without Slurm too.
    if not launcher.waits:
        raise UsageError(
            f"{SWEEPER} hydra/launcher=slurm: each trial waits for those before it; give hydra.launcher.wait=true"
        )
    launcher.check()
    first, *others = compose_trials(space, space.probes)
    runs = plan_jobs(job.config for job in first)
    for jobs in others:
        plan_jobs([jobs[0].config])
    if len(places := {run.outputs for run in runs}) > 1:
        raise UsageError(f"paths.outputs={','.join(sorted(map(str, places)))}: the runs of a search share one folder")
    settings = {key: setting_text(value) for key, value in flat(runs[0].resolved)}
    check_keys(tuple(space.searched), [settings], SWEEPER)
    objective = _objective(space.settings["objective"], runs)
    known = {
        "objective": objective.name,
        "space": {key: [*of.ends, str(of)] for key, of in space.searched.items()},
        "sampler": [space.settings["sampler"], space.settings["seed"]],
        "runs": sorted(run.id for run in runs),
    }
    identity = digest(known)
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


def _objective(what: str, runs: Sequence[Run]) -> Objective:
    """Return what settings are compared by.

    Raises:
        UsageError: the runs have no such dev scores, or none of what they test.
    """
    known = objectives()
    if what == DEV:
        what = "dev_fp" if _points_lacking(runs) is None else "dev_learnt"
    objective, option = known[what], f"{SWEEPER} hydra.sweeper.objective={what}"
    for run in runs:
        if run.config.protocol is not None:
            raise UsageError(f"{SWEEPER}: few-shot runs are not chosen among")
        if (blind := unsighted(run.strategy_name, run.resolved)) is not None:
            raise UsageError(f"{SWEEPER}: strategy={run.strategy_name}: {blind.reason}")
        if run.stream.kind not in objective.streams:
            fitting = [name for name, one in known.items() if run.stream.kind in one.streams]
            raise UsageError(f"{option}: not of strategy={run.strategy_name}; Known: {', '.join(fitting)}")
    if objective.points and (lacking := _points_lacking(runs)) is not None:
        raise UsageError(f"{option}: {lacking}")
    for run in runs:
        needed = run.stream.languages if objective.points else [k for hop in run.stream.hops[1:] for k in hop.select]
        if lacking_dev := [language for language in needed if not run.dataset.split(language, "dev")]:
            raise UsageError(f"{option}: dataset={run.dataset.name}: '{lacking_dev[0]}' has no dev data to choose by")
    return objective


def _points_lacking(runs: Iterable[Run]) -> str | None:
    """Return why runs have no dev scores of all languages after each hop; None where they have them."""
    for run in runs:
        evaluate = run.config.evaluate
        if not evaluate.has_points:
            return "dev scores after each hop are measured with evaluate.every_share=1"
        if evaluate.point_splits is not PointSplits.dev_test:
            return f"evaluate.point_splits={evaluate.point_splits.value}: points on dev too are needed"
        for hop in run.stream.hops[1:]:
            # A point is taken at the end of each hop; where an earlier epoch may be selected, at the ends of all.
            sentences, trainer = run.sentences(hop), run.trainer(hop)
            every = evaluate.every(sentences)
            if every is None or run.epochs(hop) == 1 or trainer.selection.value != "best":
                continue
            size = trainer.batch(sentences)
            last = sentences % size or size
            if any(k * sentences // every == (k * sentences - last) // every for k in range(1, run.epochs(hop))):
                return (
                    f"hop {hop.index} has no evaluation point at the end of each epoch, among which "
                    "trainer.selection=best chooses; give evaluate.every_share=1"
                )
    return None


@dataclass(frozen=True)
class SearchForecast:
    """What a search would take if each setting took what its first does, and shared no hop with another.

    Attributes:
        search: the search.
        made: settings that have been tried.
        trial: of one setting that has not: its cost, or with a ``width`` its budget.
        width: jobs side by side; None: no budget is asked for.
    """

    search: Search
    made: int
    trial: Line | Budget
    width: int | None

    @property
    def left(self) -> int:
        """Settings that are yet to be tried."""
        return self.search.most - self.made

    @property
    def total(self) -> Line | Budget:
        """All settings that are left."""
        one, n = self.trial, self.left

        def times(value: Any) -> Any:
            return None if value is None else value * n

        if isinstance(one, Line):
            name = f"{n} left of {self.search.most}"
            return Line(name, one.runs * n, 0, one.asked * n, one.needed * n, times(one.seconds), times(one.bytes))
        wall = None if one.wall is None else one.wall * ceil(n / self.search.together)
        width = self.width or 1
        return Budget(one.runs * n, one.trainings * n, width, times(one.seconds), wall, times(one.bytes), one.devices)

    def to_json(self) -> dict[str, Any]:
        """Return the facts for ``--json``."""
        s = self.search
        return {
            "search": {
                "name": s.name,
                "objective": s.objective.name,
                "searched": {key: str(of) for key, of in s.space.searched.items()},
                "trials": s.most,
                "made": self.made,
                "runs_of_a_trial": len(s.probe),
            },
            "trial": asdict(self.trial),
            "total": asdict(self.total),
            "notes": self.notes,
        }

    @property
    def notes(self) -> list[str]:
        """What a person should know beforehand."""
        return [*told([self.search.probe[0].dataset], read_notes), *notes(self.search.probe)]

    def render(self) -> str:
        """Return it for a person."""
        s, total = self.search, self.total
        made = f"; {many(self.made, 'trial')} made" if self.made else ""
        lines = [
            f"{s.name}: search by {s.objective.title} ({s.objective.name}): {many(s.most, 'trial')} of "
            f"{many(len(s.probe), 'run')}{made}",
            *s.told,
            "",
        ]
        if isinstance(total, Budget):
            lines.append(total.render())
        else:
            assert isinstance(self.trial, Line)
            lines.append(forecast_table([replace(self.trial, strategy="one trial"), total], "trials"))
        basis = f"each trial as {_shown(s.space.probe)}; hops that settings share are trained once"
        return "\n".join([*lines, basis, *(as_note(one, sys.stdout) for one in self.notes)])


def search_forecast(search: Search, width: int | None = None) -> SearchForecast:
    """Return what a search would take.

    Args:
        width: jobs side by side, for a budget; None: a forecast.
    """
    if width is None:
        return SearchForecast(search, search.done(), forecast(search.probe).total, None)
    each = max(1, width // search.together)
    return SearchForecast(search, search.done(), replace(budget(search.probe, each), width=width), width)


def search(space: Space, launcher: Launcher) -> None:
    """Try settings until there are as many as asked for; say which is best on dev.

    Raises:
        UsageError: it cannot work; nothing has been computed.
        SweepFailed: no setting could be done, or too few to choose among.
        Stopped: a signal ended it; the same command goes on.
    """
    with if_slow("xclrun: reading the data and planning …", terminal_only=True):
        planned = plan_search(space, launcher)
    launcher.check_runs(planned.probe)
    for folder in dict.fromkeys([*(run.store.root for run in planned.probe), planned.outputs, planned.journal.parent]):
        check_writable(folder)
    lease = Lease(planned.journal)
    if (mine := lease.try_acquire()) is None:
        raise UsageError(
            f"{planned.name}: {lease.owner()} is at it already; `xclrun status {planned.name}` shows how far"
        )
    with lease.held(mine):
        _Searching(planned, launcher).run()


class _Searching:
    """A search under way, by the holder of its lease."""

    def __init__(self, search: Search, launcher: Launcher) -> None:
        self.search, self.launcher, self.trials = search, launcher, search.trials()
        # Number of a trial → its runs, of those that were planned here.
        self.runs: dict[int, list[Run]] = {}
        self.scored: list[Trial] = []
        self.failed = 0

    def run(self) -> None:
        began = time.monotonic()
        self._announce()
        self._take_up()
        while batch := self.trials.next(self.search.most, self.search.together):
            self._try(batch)
        self._end(time.monotonic() - began)

    def _announce(self) -> None:
        s, before = self.search, len(self.trials.told)
        run, each = s.probe[0], many(len(s.probe), "run")
        line(
            f"xclrun: search by {s.objective.title}: {many(s.most, 'trial')} of {each} of {run.strategy_name} on "
            f"{run.dataset.name} with {run.config.model.name} → {s.outputs}"
            + (f"; {many(before, 'trial')} made before" if before else "")
        )
        for text in [*s.told, *(as_note(one, sys.stderr, "  ") for one in [*told([run.dataset]), *notes(s.probe)])]:
            line(text)

    def _take_up(self) -> None:
        """Read how the settings that were tried before did; those whose runs have not finished are done again.

        What made one fail may have passed. The journal keeps that it failed, so that the same settings come next.
        """
        told = self.trials.told
        self.runs = {one.number: runs for one, runs in zip(told, self.search.runs(told), strict=True)}
        again = [one for one in told if not self._finished(one)]
        for one in told:
            if one not in again:
                self._score(one)
        if again:
            line(f"\nagain: {many(len(again), 'trial')} of which runs failed, or whose files are gone or damaged")
            self._do(again)
        for one in again:
            self._score(one)

    def _try(self, batch: Sequence[Asked]) -> None:
        s, tried = self.search, len(self.trials.told)
        for k, (one, runs) in enumerate(zip(batch, s.runs(batch), strict=True), start=tried + 1):
            self.runs[one.number] = runs
            line(f"\ntrial {k} of {s.most}: {_shown(one.values)}")
        before = all(any(run.directory.failed_since(0) for run in self.runs[one.number]) for one in batch)
        self._do(batch)
        # With nothing done yet it may be the machine that fails, or the data: who looks tries once more. What fails
        # then too, as training with too high a learning rate does each time, must not stop the search for ever.
        if not self.scored and not before and not any(map(self._finished, batch)):
            raise SweepFailed(f"{s.name}: no setting could be done yet; give the same command again to retry")
        for one in batch:
            trial = self._score(one)
            self.trials.tell(one, None if trial is None else trial.score)

    def _do(self, trials: Sequence[Asked]) -> None:
        """Do the unfinished runs of settings; a run that fails stops no other."""
        self._write(ended=False)
        sweep = self._sweep({run.id: run for one in trials for run in self.runs[one.number]}.values(), ended=False)
        if unfinished := sweep.unfinished:
            try:
                self.launcher.do(sweep, unfinished)
            except SweepFailed as error:
                line(f"  {error}")

    def _finished(self, one: Asked) -> bool:
        return all(run.directory.finished for run in self.runs[one.number])

    def _score(self, one: Asked) -> Trial | None:
        """Read how a setting did and say it; None where it could not be done, or has no score on dev."""
        trial, why = None, "failed; the search goes on without it, and the same command tries it again"
        if self._finished(one):
            try:
                records = [record(run.directory) for run in self.runs[one.number]]
                trial = scored_trial(_values(records[0], self.search.keys), records, self.search.objective, SWEEPER)
            except (XclrunError, ValueError) as error:
                why = f"left out: {error}"
        if trial is None:
            self.failed += 1
            line(f"  {_shown(one.values)}: {why}")
            return None
        self.scored.append(trial)
        if one.open:
            best = self._best()
            so_far = "the best so far" if best is trial else f"best so far {_percent(best)}: {best.name}"
            line(f"  {self.search.objective.title} {_percent(trial)}; {so_far}")
        return trial

    def _best(self) -> Trial:
        sign = 1 if self.search.objective.higher_is_better else -1
        return max(self.scored, key=lambda trial: sign * trial.score)

    def _sweep(self, runs: Iterable[Run], ended: bool) -> Sweep:
        done = [run.run_id for trial in self.scored for run in trial.runs]
        facts = {
            "objective": self.search.objective.name,
            "keys": list(self.search.keys),
            "trials": self.search.most,
            "made": len(self.trials.told),
            "ended": ended,
            "runs": done,
        }
        return Sweep(self.search.name, typed_command(), tuple(runs), facts)

    def _write(self, ended: bool) -> None:
        every = {run.id: run for runs in self.runs.values() for run in runs}
        self._sweep(every.values(), ended).write()

    def _end(self, seconds: float) -> None:
        """Say which setting is best, and send the runs to where they are tracked."""
        s = self.search
        if len(self.scored) < 2:
            self._write(ended=False)
            raise SweepFailed(
                f"{s.name}: {many(len(self.scored), 'setting')} of {len(self.scored) + self.failed} could be done: "
                "there is nothing to choose from; give the same command again to retry"
            )
        self._write(ended=True)
        choice = choose([run for trial in self.scored for run in trial.runs], s.keys, s.objective.name)
        from xclrun.report.parts.chosen import trial_table

        [tuned] = choice.tuned
        line(f"\n{_count(tuned, self.failed)} in {duration(seconds)}.\n")
        few = replace(tuned, trials=tuned.trials[:SHOWN])
        more = len(tuned.trials) - SHOWN
        line(
            trial_table(
                [few], choice.keys, choice.objective, (f"{more} more are in the report",) if more > 0 else ()
            ).text()
        )
        self._send()
        at = self._sweep(s.probe, ended=True)
        line(f"Chosen on dev: {tuned.trials[0].name}")
        line(
            f"Next: `xclrun report {s.name}{at.outputs_option}{at.tracking_options}` shows its test scores, "
            "and no others"
        )

    def _send(self) -> None:
        sweep = self._sweep(self.search.probe, ended=True)
        runs = [run.run_id for trial in self.scored for run in trial.runs]
        with BackgroundMirror(sweep.outputs, sweep.tracking, runs) as mirror:
            pass
        if not mirror.close():
            note("not all runs could be sent to where they are tracked; `xclrun sync` sends them later")


def _count(tuned: Tuned, failed: int) -> str:
    more = f", {failed} failed" if failed else ""
    return f"{many(len(tuned.trials), 'setting')} tried{more}"


def _values(run: RunRecord, keys: Sequence[str]) -> dict[str, str]:
    """Return key → value of a run, as reports write them."""
    settings = {key: setting_text(value) for key, value in flat(run.config)}
    return {key: settings[key] for key in keys}


def _shown(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _percent(trial: Trial) -> str:
    spread = f" ± {100 * trial.std:.2f}" if trial.std == trial.std else ""
    return f"{100 * trial.score + 0.0:.2f}{spread}"
