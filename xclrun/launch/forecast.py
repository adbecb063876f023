"""Forecast of a command: hop trainings before and after sharing, their time and disk. Without torch.

Time is estimated from the stages that are in the store already: seconds per training sentence of the same encoder,
batch size, precision and device, under the same strategy where there is one; of mixtures,
whose steps are given, seconds per step (without, they take as many as passes do). It is that of trainings with their
selection on dev; the evaluation on test, loading, and waiting in a queue come on top.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

from xclrun.config.schema import Device
from xclrun.core.terminal import as_note, duration, fitted, many, room, size, table
from xclrun.data.notes import read_notes, told
from xclrun.launch.cluster.packing import shared_first
from xclrun.run import Run, notes
from xclrun.store.stages import StageStore

# Name of the device that is no GPU, in the facts of stored trainings.
CPU = "cpu"
# A training: the run, and the hop.
Training = tuple[Run, int]


@dataclass(frozen=True)
class Line:
    """The forecast of one strategy.

    Attributes:
        strategy: its name.
        runs: runs asked for.
        finished: of these, finished already.
        asked: hop trainings that the runs consist of.
        needed: hop trainings that have to be done, after sharing with the strategies above and with the store.
        seconds: estimated time of those, one after another; None where it is not known.
        bytes: estimated disk for their weights; None where it is not known.
    """

    strategy: str
    runs: int
    finished: int
    asked: int
    needed: int
    seconds: float | None
    bytes: int | None

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        time = "unknown" if self.seconds is None else duration(self.seconds)
        disk = "unknown" if self.bytes is None else size(self.bytes)
        return (self.strategy, *map(str, (self.runs, self.finished, self.asked, self.needed)), time, disk)

    def times(self, n: int, name: str) -> Line:
        """Return the forecast of as many unfinished runs ``n`` times over."""
        counts = (self.runs * n, 0, self.asked * n, self.needed * n)
        return Line(name, *counts, total([self.seconds] * n), total([self.bytes] * n))


class Costs:
    """The cost of stored trainings: the basis of estimates. Times of different devices are never mixed.

    Attributes:
        rates: (model, strategy, device) → seconds per training sentence of each training that passes over its data. Of
            questions, whatever the windows that one has: these are not known before texts are cut into word pieces.
        paces: the same → seconds per step of each training: a step has as many windows as sentences.
        sizes: (model, strategy) → bytes of the weights.
    """

    def __init__(self, store: StageStore) -> None:
        self.keys = set(store.all_keys())
        self.rates: dict[tuple[str, str, str], list[float]] = {}
        self.paces: dict[tuple[str, str, str], list[float]] = {}
        self.sizes: dict[tuple[str, str], list[int]] = {}
        for key in self.keys:
            try:
                facts = store.facts(key)
                if facts["kind"] != "train":
                    continue
                cost, training = facts["cost"], facts["training"]
                rate = training["seconds"] / (cost["examples"] * max(1, len(training["epochs"])))
                pace = training["seconds"] / training["step"]
                weights = sum(file.stat().st_size for file in store.path(key).glob("*.safetensors"))
            except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
                continue
            of = cost["model"], cost["strategy"]
            on = (*of, cost.get("device", CPU))
            self.paces.setdefault(on, []).append(pace)
            self.sizes.setdefault(of, []).append(weights)
            if "steps" not in cost:
                self.rates.setdefault(on, []).append(rate)

    def device(self, run: Run, model: str) -> str | None:
        """Return the device that a run's times are estimated for; None if the model was trained on no such device.

        Where ``runtime.device`` leaves a choice: the device on which the model was trained most often.
        """
        asked, trained = run.config.runtime.device, Counter[str]()
        for (name, _, device), paces in self.paces.items():
            if name == model and (asked is Device.auto or (device == CPU) is (asked is Device.cpu)):
                trained[device] += len(paces)
        return max(trained, key=lambda device: (trained[device], device != CPU, device), default=None)

    def devices(self, trainings: Iterable[Training]) -> tuple[str, ...]:
        """Return the devices that the times of trainings are estimated for."""
        found = {self.device(run, run.cost(run.stages[index].hop)["model"]) for run, index in trainings}
        return tuple(sorted(device for device in found if device is not None))

    def seconds(self, training: Training) -> float | None:
        """Return the estimated seconds of a training; None if nothing comparable was trained."""
        run, index = training
        hop = run.stages[index].hop
        cost = run.cost(hop)
        device = self.device(run, cost["model"])
        # A mixture whose steps are not given takes as many as passes, over windows where there are any, as a rate does.
        given = hop.mixed and run.trainer(hop).mixture_steps is not None
        rate = None if given else _median(_on(device, self.rates), cost)
        if rate is not None:
            return rate * cost["examples"] * run.epochs(hop)
        steps = (
            cost["steps"]
            if hop.mixed
            else run.epochs(hop) * ceil(cost["examples"] / run.trainer(hop).batch(cost["examples"]))
        )
        pace = _median(_on(device, self.paces), cost)
        return None if pace is None else pace * steps

    def bytes(self, training: Training) -> int | None:
        """Return the estimated size of the weights of a training; None if nothing comparable was trained."""
        run, index = training
        weights = _median(self.sizes, run.cost(run.stages[index].hop))
        return None if weights is None else round(weights)

    def of_run(self, run: Run) -> float | None:
        """Return the estimated seconds of all that a run still needs."""
        return total(self.seconds((run, index)) for index in needed(run, self.keys))


def _on(device: str | None, measured: dict[tuple[str, str, str], list[float]]) -> dict[tuple[str, str], list[float]]:
    """Return what was measured on one device, by model and strategy."""
    return {(model, strategy): values for (model, strategy, name), values in measured.items() if name == device}


def _median(measured: dict[tuple[str, str], list[Any]], cost: dict[str, Any]) -> float | None:
    """Return the median for the same model and strategy, else for the same model, else None."""
    same = measured.get((cost["model"], cost["strategy"]))
    alike = same or [value for (model, _), values in measured.items() if model == cost["model"] for value in values]
    return statistics.median(alike) if alike else None


def total(values: Iterable[float | None]) -> Any:
    """Return the sum; None where a value is not known."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def needed(run: Run, in_store: set[str]) -> set[int]:
    """Return the hops of a run that have to be trained, given the keys in the store."""
    hops: set[int] = set()

    def weights(index: int) -> None:
        stage = run.stages[index]
        if index and index not in hops and stage.train not in in_store:
            hops.add(index)
            weights(stage.hop.parent)
            state(stage.hop.parent)

    def state(index: int) -> None:
        key = run.stages[index].state
        if index and key is not None and key not in in_store:
            weights(index)
            state(run.stages[index].hop.parent)

    for stage in run.stages:
        if not in_store.issuperset(stage.measured):
            weights(stage.hop.index)
    return hops


def new_trainings(runs: Iterable[Run], in_store: set[str], counted: set[str]) -> Iterator[Training]:
    """Yield the trainings that unfinished runs need and that are not in ``counted``, which gets their keys."""
    for run in runs:
        if not run.directory.finished:
            for index in sorted(needed(run, in_store)):
                if (key := run.stages[index].train) not in counted:
                    counted.add(key)
                    yield run, index


@dataclass(frozen=True)
class Forecast:
    """What a command would do.

    Attributes:
        runs: each run once.
        lines: one per strategy, in the order of the command.
        devices: those whose times the estimates come from.
    """

    runs: tuple[Run, ...]
    lines: tuple[Line, ...]
    devices: tuple[str, ...] = ()

    @property
    def total(self) -> Line:
        """All strategies together."""
        counts = (sum(getattr(line, name) for line in self.lines) for name in ("runs", "finished", "asked", "needed"))
        return Line(
            "all", *counts, *(total(getattr(line, name) for line in self.lines) for name in ("seconds", "bytes"))
        )

    @property
    def notes(self) -> list[str]:
        """What a person should know beforehand: what readers left out or changed, and settings that do little."""
        return [*told({id(run.dataset): run.dataset for run in self.runs}.values(), read_notes), *notes(self.runs)]

    def to_json(self) -> dict[str, Any]:
        """Return the facts for ``--json``."""
        finished = {run.id: run.directory.finished for run in self.runs}
        return {
            "runs": [{"run_id": run.id, "label": run.label, "finished": finished[run.id]} for run in self.runs],
            "strategies": [asdict(line) for line in self.lines],
            "total": asdict(self.total),
            "devices": list(self.devices),
            "notes": self.notes,
        }

    def render(self) -> str:
        """Return the forecast as a table for a person."""
        lines = [*self.lines, *([self.total] if len(self.lines) > 1 else [])]
        return "\n".join([forecast_table(lines), *(as_note(text, sys.stdout) for text in self.notes)])


def forecast_table(lines: Iterable[Line], first: str = "strategy") -> str:
    """Return forecasts as a table for a person; ``first`` heads the column of their names."""
    header = (first, "runs", "finished", "hop trainings", "needed", "time", "disk")
    rows = [line.cells for line in lines]
    made = table(header, rows)
    if max(map(len, made.splitlines())) <= room():
        return made
    # With an expansion a strategy's name is twice as long as any other.
    return table(header, [(name.replace("+", "\n+"), *others) for name, *others in rows])


def forecast(runs: Sequence[Run]) -> Forecast:
    """Return what doing these runs would take.

    A training is needed where an unfinished run's evaluation, or a later one that builds on it, is not in the store.
    """
    by_strategy: dict[str, list[Run]] = {}
    for run in runs:
        by_strategy.setdefault(run.strategy_name, []).append(run)
    costs, counted, todo = Costs(runs[0].store), set[str](), list[Training]()
    lines = []
    for strategy, own in by_strategy.items():
        finished = sum(run.directory.finished for run in own)
        asked = sum(len(run.stages) - 1 for run in own)
        trainings = list(new_trainings(own, costs.keys, counted))
        seconds, weights = total(map(costs.seconds, trainings)), total(map(costs.bytes, trainings))
        lines.append(Line(strategy, len(own), finished, asked, len(trainings), seconds, weights))
        todo += trainings
    return Forecast(tuple(runs), tuple(lines), costs.devices(todo))


@dataclass(frozen=True)
class Budget:
    """The cost of the runs that are not finished.

    Attributes:
        runs: how many those are.
        trainings: hop trainings that they need, each once.
        width: jobs that run side by side.
        seconds: of all trainings, one after another; None where it is not known.
        wall: seconds until all are done, ``width`` at a time; None where it is not known.
        bytes: disk for the weights; None where it is not known.
        devices: those whose times the estimates come from.
    """

    runs: int
    trainings: int
    width: int
    seconds: float | None
    wall: float | None
    bytes: int | None
    devices: tuple[str, ...] = ()

    def times(self, n: int, rounds: int) -> Budget:
        """Return the cost of ``n`` such sets of runs in several rounds, one after another."""
        seconds, wall, weights = total([self.seconds] * n), total([self.wall] * rounds), total([self.bytes] * n)
        return Budget(self.runs * n, self.trainings * n, self.width, seconds, wall, weights, self.devices)

    def to_json(self) -> dict[str, Any]:
        """Return the facts for ``--json``."""
        return asdict(self)

    def render(self) -> str:
        """Return the budget for a person."""
        lines = [f"{many(self.runs, 'run')} to do, {many(self.trainings, 'hop training')} after sharing"]
        if self.seconds is None or self.wall is None or self.bytes is None:
            why = "no comparable training on such a device; do one run of this model first"
            return "\n".join([*lines, fitted(f"cannot estimate hours, disk and wall time: {why}", sys.stdout)])
        wall = f"{duration(self.wall)} with {many(self.width, 'job')} side by side, without waiting in the queue"
        name = "CPU-hours" if self.devices == (CPU,) else "GPU-hours" if CPU not in self.devices else "hours"
        on = f" on {', '.join(self.devices)}" if self.devices else ""
        facts = {name: f"{self.seconds / 3600:.2f}{on}", "disk": f"{size(self.bytes)} of weights", "wall time": wall}
        return "\n".join([*lines, *(f"{name:<9}  {value}" for name, value in facts.items())])


def budget(runs: Sequence[Run], width: int) -> Budget:
    """Return what doing the unfinished ones of these runs would cost, ``width`` at a time.

    The wall time follows the order in which jobs are submitted: shared trainings first, then the runs.
    """
    todo = [run for run in runs if not run.directory.finished]
    if not todo:
        return Budget(0, 0, width, 0.0, 0.0, 0)
    costs, by_id, counted = Costs(todo[0].store), {run.id: run for run in todo}, set[str]()
    wanted = {run.id: needed(run, costs.keys) for run in todo}
    ahead = [[(by_id[run], hop) for run, hop in pack.stages if hop in wanted[run]] for pack in shared_first(todo)]
    counted.update(run.stages[hop].train for job in ahead for run, hop in job)
    waves = [ahead, [list(new_trainings([run], costs.keys, counted)) for run in todo]]
    seconds = [[total(map(costs.seconds, job)) for job in wave] for wave in waves]
    known = None not in (time for wave in seconds for time in wave)
    trainings = [training for wave in waves for job in wave for training in job]
    return Budget(
        runs=len(todo),
        trainings=len(trainings),
        width=width,
        seconds=total(time for wave in seconds for time in wave),
        wall=sum(makespan([time or 0.0 for time in wave], width) for wave in seconds) if known else None,
        bytes=total(map(costs.bytes, trainings)),
        devices=costs.devices(trainings),
    )


def makespan(seconds: Sequence[float], width: int) -> float:
    """Return when the last of some jobs ends, where ``width`` run at a time and start in order.

    >>> makespan([3, 1, 1, 2], 2)
    4.0
    """
    free = [0.0] * width
    for job in seconds:
        heapq.heapreplace(free, free[0] + job)
    return max(free)


def missing(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Return what the measures of these runs lack: (what it gives, runs that are not finished).

    A transfer T needs `lang_spec_ft` of the same data, model, trainer, seed and language adapters; all runs need hop 0,
    which they bring.
    """
    unfinished = [run for run in runs if not run.directory.finished]
    found = [("F, T0, FP", unfinished)] if unfinished else []
    references: dict[str, Run] = {}
    for run in runs:
        if run.stream.kind == "sequence":
            reference = run.reference()
            # Any order will do, as long as all its hops exist.
            references.setdefault("/".join(sorted(stage.evaluation for stage in reference.stages)), reference)
    by_strategy: dict[str, list[Run]] = {}
    finished: dict[Path, set[str]] = {}
    for reference in references.values():
        if reference.outputs not in finished:
            finished[reference.outputs] = _evaluated_alone(reference.outputs)
        if not {stage.evaluation for stage in reference.stages[1:]} <= finished[reference.outputs]:
            by_strategy.setdefault(json.dumps(reference.resolved["strategy"]), []).append(reference)
    return [*found, *(("T", needed) for needed in by_strategy.values())]


def _evaluated_alone(outputs: Path) -> set[str]:
    """Return the evaluations of finished runs that learn each language alone."""
    from xclrun.store.records import run_directories

    evaluations: set[str] = set()
    for directory in run_directories(outputs):
        # Unreadable runs are ignored here; `report` names them.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if directory.finished and (manifest := directory.read_manifest())["stream"]["kind"] == "independent":
                evaluations |= {stage["evaluation"] for stage in manifest["stages"]}
    return evaluations
