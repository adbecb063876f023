"""Forecast of a command: number of hop trainings before and after sharing, time, disk and memory.

Times are estimated from stored trainings with the same encoder, batch size, precision and device, and if possible the
same strategy: from seconds per training sentence, or per step for mixtures with ``mixture_steps``. A note names the
strategies whose times are estimated from other strategies. Times include selection on dev, but not evaluation on test,
loading, or waiting in a queue.

Disk is measured in stored trainings, or computed from the shape of the model. Peak memory is what comparable trainings
with the same strategy have used; `xclrun.launch.measure` measures other strategies. Needs torch only for unusual
encoders.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import statistics
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

from xclrun.config.schema import Device, Keep
from xclrun.core.files import UNREADABLE
from xclrun.core.graph import to_train
from xclrun.core.terminal import as_note, duration, fitted, many, room, size, table
from xclrun.data.notes import note_lines, reader_notes
from xclrun.launch.cluster.packs import shared_first
from xclrun.plan import Run, notes
from xclrun.plan.disk import open_vocabulary, parameters, stored_bytes
from xclrun.store.stages import StageStore

CPU = "cpu"
# Why there is no estimate.
NO_RATE = "no comparable training on this device; do one of these runs first"
RELEASED = "disk: what stays when all runs have finished (store.keep); until then, weights that runs need are kept"
BOUNDED = "disk: at most, because the data determine the size of the vocabulary"
# A run and the index of a hop.
Training = tuple[Run, int]


@dataclass(frozen=True)
class Line:
    """The forecast of one strategy.

    Attributes:
        runs: requested runs, including ``finished`` ones.
        asked: hop trainings of all runs.
        needed: hop trainings after sharing with earlier strategies and with the store.
        seconds: estimated total time of the needed trainings; None if unknown.
        bytes: estimated size of their weights; None if unknown.
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


class Costs:
    """Costs of stored trainings, the basis of estimates. Times of different devices are never combined.

    Attributes:
        rates: (model, strategy, device) → seconds per sentence of each stored training without ``mixture_steps``.
        paces: (model, strategy, device) → seconds per step of each stored training.
        sizes: (model, strategy) → size in bytes of the weights of each stored training.
        peaks: (model, strategy, device) → largest peak memory of a stored training, in bytes (`xclrun.train.peak`).
    """

    def __init__(self, store: StageStore) -> None:
        self.keys = set(store.all_keys())
        self.rates: dict[tuple[str, str, str], list[float]] = {}
        self.paces: dict[tuple[str, str, str], list[float]] = {}
        self.sizes: dict[tuple[str, str], list[int]] = {}
        self.peaks: dict[tuple[str, str, str], int] = {}
        # Model → numbers of parameters.
        self._parameters: dict[str, tuple[int, int] | None] = {}
        for key in self.keys:
            try:
                facts = store.facts(key)
                if facts["kind"] != "train":
                    continue
                cost, training = facts["cost"], facts["training"]
                rate = training["seconds"] / (cost["examples"] * max(1, len(training["epochs"])))
                pace = training["seconds"] / training["step"]
                peak = int(training.get("peak_bytes", 0))
                weights = sum(file.stat().st_size for file in store.path(key).glob("*.safetensors"))
            except UNREADABLE:
                continue
            name = cost["model"], cost["strategy"]
            on_device = (*name, cost.get("device", CPU))
            self.paces.setdefault(on_device, []).append(pace)
            self.sizes.setdefault(name, []).append(weights)
            if peak:
                self.peaks[on_device] = max(peak, self.peaks.get(on_device, 0))
            if "steps" not in cost:
                self.rates.setdefault(on_device, []).append(rate)

    def device(self, run: Run, model: str) -> str | None:
        """Return the device for estimates: among the allowed devices, the one with the most stored trainings."""
        trained = Counter[str]()
        for (name, _, device), paces in self.paces.items():
            if name == model and _allowed(run, device):
                trained[device] += len(paces)
        return max(trained, key=lambda device: (trained[device], device != CPU, device), default=None)

    def devices(self, trainings: Iterable[Training]) -> tuple[str, ...]:
        """Return the devices whose stored trainings the estimates use."""
        devices = {self.device(run, run.costs[index]["model"]) for run, index in trainings}
        return tuple(sorted(device for device in devices if device is not None))

    def unmeasured(self, trainings: Iterable[Training]) -> tuple[str, ...]:
        """Return the strategies without a stored training, whose times are estimated from other strategies."""
        strategies = set[str]()
        for run, index in trainings:
            model, strategy = run.costs[index]["model"], run.costs[index]["strategy"]
            device = self.device(run, model)
            if device is not None and (model, strategy, device) not in self.paces:
                strategies.add(strategy)
        return tuple(sorted(strategies))

    def seconds(self, training: Training) -> float | None:
        """Return the estimated seconds of a training, or None."""
        run, index = training
        hop = run.stages[index].hop
        cost = run.costs[index]
        device = self.device(run, cost["model"])
        # Only ``mixture_steps`` makes the number of steps independent of the number of sentences.
        by_step = hop.mixed and run.trainer(hop).mixture_steps is not None
        rate = None if by_step else _median(_on_device(device, self.rates), cost)
        if rate is not None:
            return rate * cost["examples"] * run.epochs(hop)
        steps = (
            cost["steps"]
            if hop.mixed
            else run.epochs(hop) * ceil(cost["examples"] / run.trainer(hop).batch(cost["examples"]))
        )
        pace = _median(_on_device(device, self.paces), cost)
        return None if pace is None else pace * steps

    def bytes(self, training: Training) -> int | None:
        """Return the size of the weights of a training: measured, or computed from the model's shape; or None."""
        run, index = training
        cost = run.costs[index]
        same = self.sizes.get((cost["model"], cost["strategy"]))
        if same or (open_vocabulary(run) and self._trained(cost["model"])):
            return round(_median(self.sizes, cost) or 0)
        if cost["model"] not in self._parameters:
            self._parameters[cost["model"]] = parameters(run)
        numbers = self._parameters[cost["model"]]
        return None if numbers is None else stored_bytes(run, run.stages[index].hop, *numbers)

    def total_bytes(self, trainings: Iterable[Training], kept: Container[str]) -> int | None:
        """Return the size of the weights of those trainings whose keys are ``kept`` after the runs, or None."""
        stay = ((run, index) for run, index in trainings if run.stages[index].train in kept)
        return None if (size := total(map(self.bytes, stay))) is None else int(size)

    def bounded(self, trainings: Iterable[Training]) -> bool:
        """Whether a size is an upper bound, because it counts the largest possible vocabulary."""
        return any(open_vocabulary(run) and not self._trained(run.costs[index]["model"]) for run, index in trainings)

    def _trained(self, model: str) -> bool:
        return any(name == model for name, _ in self.sizes)

    def memory(self, trainings: Iterable[Training]) -> dict[str, dict[str, int]]:
        """Return device → strategy → peak memory of comparable stored trainings with this strategy, in bytes."""
        found: dict[str, dict[str, int]] = {}
        for run, index in trainings:
            model, strategy = run.costs[index]["model"], run.costs[index]["strategy"]
            for (name, of, device), peak in self.peaks.items():
                if (name, of) == (model, strategy) and _allowed(run, device):
                    by_strategy = found.setdefault(device, {})
                    by_strategy[strategy] = max(peak, by_strategy.get(strategy, 0))
        return found

    def of_run(self, run: Run) -> float | None:
        """Return the estimated seconds of all trainings that a run needs, or None."""
        return total(self.seconds((run, index)) for index in to_train(run.stages, self.keys))


def _allowed(run: Run, device: str) -> bool:
    """Whether a run can be trained on a device, given its name."""
    allowed = run.config.runtime.device
    return allowed is Device.auto or (device == CPU) is (allowed is Device.cpu)


def _on_device(
    device: str | None, measured: dict[tuple[str, str, str], list[float]]
) -> dict[tuple[str, str], list[float]]:
    """Return the measurements of one device, by model and strategy."""
    return {(model, strategy): values for (model, strategy, name), values in measured.items() if name == device}


def _median(measured: dict[tuple[str, str], list[Any]], cost: dict[str, Any]) -> float | None:
    """Return the median for the same model and strategy, else for the same model, else None."""
    same = measured.get((cost["model"], cost["strategy"]))
    alike = same or [value for (model, _), values in measured.items() if model == cost["model"] for value in values]
    return statistics.median(alike) if alike else None


def total(values: Iterable[float | None]) -> Any:
    """Return the sum, or None if a value is unknown."""
    terms = list(values)
    return None if None in terms else sum(term for term in terms if term is not None)


def new_trainings(runs: Iterable[Run], in_store: set[str], counted: set[str]) -> Iterator[Training]:
    """Yield the trainings of unfinished runs that are not in ``counted``, and add their keys to it."""
    for run in runs:
        for index in to_train(run.stages, in_store):
            if (key := run.stages[index].train) not in counted:
                counted.add(key)
                yield run, index


@dataclass(frozen=True)
class Forecast:
    """Forecast of a command.

    Attributes:
        finished: IDs of the finished runs.
        lines: one per strategy, in the order of the command.
        devices: devices of the estimates.
        unmeasured: strategies whose times are estimated from other strategies.
        memory: device → strategy → peak memory of comparable stored trainings, in bytes.
        bounded: whether the disk space is an upper bound.
    """

    runs: tuple[Run, ...]
    finished: frozenset[str]
    lines: tuple[Line, ...]
    devices: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()
    memory: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    bounded: bool = False

    @property
    def total(self) -> Line:
        """All strategies together."""
        counts = (sum(getattr(line, name) for line in self.lines) for name in ("runs", "finished", "asked", "needed"))
        return Line(
            "all", *counts, *(total(getattr(line, name) for line in self.lines) for name in ("seconds", "bytes"))
        )

    @property
    def notes(self) -> list[str]:
        """Warnings about skipped or changed data, and about settings without effect."""
        datasets = {id(run.dataset): run.dataset for run in self.runs}
        return [*note_lines(datasets.values(), reader_notes), *notes(self.runs)]

    @property
    def shared(self) -> list[dict[str, Any]]:
        """The trained hops that several runs share, and everything about the strategy on which each depends.

        ``strategy`` is empty if the hop is trained as in `naive`: then no setting of the strategies changes it.
        """
        users: dict[str, list[str]] = {}
        stages = {stage.train: stage for run in self.runs for stage in run.stages if stage.hop.index}
        for run in self.runs:
            for stage in run.stages[1:]:
                users.setdefault(stage.train, []).append(run.id)
        return [
            {"train": key, "hop": stages[key].hop.name, "strategy": dict(stages[key].plan.train), "runs": ids}
            for key, ids in users.items()
            if len(ids) > 1
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the data for ``--json``."""
        return {
            "runs": [{"run_id": r.id, "label": r.label, "finished": r.id in self.finished} for r in self.runs],
            "strategies": [asdict(line) for line in self.lines],
            "total": asdict(self.total),
            "devices": list(self.devices),
            "unmeasured": list(self.unmeasured),
            "memory": self.memory,
            "shared": self.shared,
            "disk_is_upper_bound": self.bounded,
            "notes": self.notes,
        }

    def render(self) -> str:
        """Return the table for a terminal."""
        lines = [*self.lines, *([self.total] if len(self.lines) > 1 else [])]
        memory = [fitted(text, sys.stdout) for text in memory_lines(self.memory)]
        unknown = [f"time unknown: {NO_RATE}"] if any(line.seconds is None for line in self.lines) else []
        unknown += [BOUNDED] if self.bounded else []
        unknown += [RELEASED] if any(run.config.store.keep is not Keep.all for run in self.runs) else []
        notes = (as_note(text, sys.stdout) for text in (*unknown, *unmeasured_note(self.unmeasured), *self.notes))
        return "\n".join([forecast_table(lines), *memory, *notes])


def unmeasured_note(strategies: Sequence[str]) -> list[str]:
    """Return the warning about strategies whose times are estimated from other strategies, if any."""
    if not strategies:
        return []
    return [
        f"no training with {', '.join(strategies)} has been timed: the time is estimated from other strategies and may "
        "be too low; do one run first for a better estimate"
    ]


def memory_lines(memory: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a line for each device, with the measured peak memory of each strategy."""
    return [
        f"peak memory on {device}, measured: {', '.join(f'{name} {size(peak)}' for name, peak in peaks.items())}"
        for device, peaks in sorted(memory.items())
    ]


def forecast_table(lines: Iterable[Line], first: str = "strategy") -> str:
    """Return forecasts as a table for a terminal; ``first``: header of the column of names."""
    header = (first, "runs", "finished", "hop trainings", "needed", "time", "disk")
    rows = [line.cells for line in lines]
    text = table(header, rows)
    if max(map(len, text.splitlines())) <= room():
        return text
    # Wrap the long names of strategies with an expansion.
    return table(header, [(name.replace("+", "\n+"), *cells) for name, *cells in rows])


def forecast(runs: Sequence[Run]) -> Forecast:
    """Estimate the cost of runs.

    A training is needed if an unfinished run needs it for an evaluation that is not in the store.
    """
    by_strategy: dict[str, list[Run]] = {}
    for run in runs:
        by_strategy.setdefault(run.strategy_name, []).append(run)
    costs, counted, todo = Costs(runs[0].store), set[str](), list[Training]()
    kept = {key for run in runs for key in run.kept}
    finished = frozenset(run.id for run in runs if run.directory.finished)
    lines = []
    for strategy, group in by_strategy.items():
        unfinished = [run for run in group if run.id not in finished]
        requested = sum(len(run.stages) - 1 for run in group)
        trainings = list(new_trainings(unfinished, costs.keys, counted))
        seconds, weights = total(map(costs.seconds, trainings)), costs.total_bytes(trainings, kept)
        counts = (len(group), len(group) - len(unfinished), requested, len(trainings))
        lines.append(Line(strategy, *counts, seconds, weights))
        todo += trainings
    return Forecast(
        tuple(runs),
        finished,
        tuple(lines),
        costs.devices(todo),
        costs.unmeasured(todo),
        costs.memory(todo),
        costs.bounded(todo),
    )


@dataclass(frozen=True)
class Budget:
    """Cost of the unfinished runs; unknown values are None.

    Attributes:
        trainings: number of needed hop trainings after sharing.
        width: number of parallel jobs.
        seconds: total time of all trainings.
        wall: wall-clock seconds with ``width`` parallel jobs.
        bytes: size of the weights.
        devices: devices of the estimates.
        unmeasured: strategies whose times are estimated from other strategies.
    """

    runs: int
    trainings: int
    width: int
    seconds: float | None
    wall: float | None
    bytes: int | None
    devices: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the data for ``--json``."""
        return asdict(self)

    def render(self) -> str:
        """Return the text for a terminal."""
        lines = [f"{many(self.runs, 'run')} to do, {many(self.trainings, 'hop training')} after sharing"]
        disk = "unknown" if self.bytes is None else f"{size(self.bytes)} of weights"
        if self.seconds is None or self.wall is None:
            unknown = fitted(f"cannot estimate hours and wall time: {NO_RATE}", sys.stdout)
            return "\n".join([*lines, f"disk       {disk}", unknown])
        wall = f"{duration(self.wall)} with {many(self.width, 'parallel job')}, without waiting in the queue"
        name = "CPU-hours" if self.devices == (CPU,) else "GPU-hours" if CPU not in self.devices else "hours"
        on = f" on {', '.join(self.devices)}" if self.devices else ""
        facts = {name: f"{self.seconds / 3600:.2f}{on}", "disk": disk, "wall time": wall}
        notes = (as_note(text, sys.stdout) for text in unmeasured_note(self.unmeasured))
        return "\n".join([*lines, *(f"{name:<9}  {value}" for name, value in facts.items()), *notes])


Cost = TypeVar("Cost", Line, Budget)


def budget(runs: Sequence[Run], width: int) -> Budget:
    """Estimate the cost of the unfinished runs with ``width`` parallel jobs: shared trainings first, then the runs."""
    todo = [run for run in runs if not run.directory.finished]
    if not todo:
        return Budget(0, 0, width, 0.0, 0.0, 0)
    costs, by_id, counted = Costs(todo[0].store), {run.id: run for run in todo}, set[str]()
    ahead = [[(by_id[run], hop) for run, hop in pack.stages] for pack in shared_first(todo)]
    counted.update(run.stages[hop].train for job in ahead for run, hop in job)
    waves = [ahead, [list(new_trainings([run], costs.keys, counted)) for run in todo]]
    seconds = [[total(map(costs.seconds, job)) for job in wave] for wave in waves]
    complete = None not in (time for wave in seconds for time in wave)
    trainings = [training for wave in waves for job in wave for training in job]
    return Budget(
        runs=len(todo),
        trainings=len(trainings),
        width=width,
        seconds=total(time for wave in seconds for time in wave),
        wall=sum(makespan([time or 0.0 for time in wave], width) for wave in seconds) if complete else None,
        bytes=costs.total_bytes(trainings, {key for run in runs for key in run.kept}),
        devices=costs.devices(trainings),
        unmeasured=costs.unmeasured(trainings),
    )


def scaled(cost: Cost, n: int, **changes: Any) -> Cost:
    """Multiply a cost by ``n``; unknown values stay unknown."""
    numbers = {name: value * n for name, value in vars(cost).items() if isinstance(value, int | float)}
    return replace(cost, **(numbers | changes))


def makespan(seconds: Sequence[float], width: int) -> float:
    """Return the time at which the last job ends if ``width`` jobs run in parallel and start in order."""
    free = [0.0] * width
    for job in seconds:
        heapq.heapreplace(free, free[0] + job)
    return max(free)


def missing(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Return (measures, unfinished runs that they need) for the measures that are unavailable.

    Transfer T needs `lang_spec_ft` with the same data, model, trainer, seed and language adapters.
    """
    unfinished = [run for run in runs if not run.directory.finished]
    lacking = [("F, T0, FP", unfinished)] if unfinished else []
    by_evaluations: dict[str, Run] = {}
    for run in runs:
        if run.stream.kind == "sequence":
            reference = run.reference()
            # References that differ only in the order of their hops count once.
            by_evaluations.setdefault("/".join(sorted(stage.evaluation for stage in reference.stages)), reference)
    by_strategy: dict[str, list[Run]] = {}
    finished: dict[Path, set[str]] = {}
    counted: set[frozenset[str]] = set()
    for reference in by_evaluations.values():
        if reference.outputs not in finished:
            finished[reference.outputs] = _evaluated_alone(reference.outputs)
        # References with and without packing count once, and each serves runs of both kinds.
        both = reference.packed(False), reference.packed()
        kinds = [frozenset(stage.evaluation for stage in run.stages[1:]) for run in both]
        evaluations = frozenset.union(*kinds)
        if evaluations not in counted and not any(kind <= finished[reference.outputs] for kind in kinds):
            counted.add(evaluations)
            by_strategy.setdefault(json.dumps(reference.resolved["strategy"]), []).append(reference)
    return [*lacking, *(("T", references) for references in by_strategy.values())]


def _evaluated_alone(outputs: Path) -> set[str]:
    """Return the evaluations of finished runs that train on each language separately."""
    from xclrun.store.rundir import run_directories

    evaluations: set[str] = set()
    for directory in run_directories(outputs):
        # Unreadable runs are ignored here; `report` names them.
        with contextlib.suppress(*UNREADABLE):
            if directory.finished and (manifest := directory.read_manifest())["stream"]["kind"] == "independent":
                evaluations |= {stage["evaluation"] for stage in manifest["stages"]}
    return evaluations
