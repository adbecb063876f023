"""What a command would do: runs, hop trainings asked for and needed after sharing, time and disk. Without torch.

Time is estimated from the stages that are in the store already: seconds per training sentence of the same encoder,
batch size and precision, under the same strategy where there is one, and on the machines that made them.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xclrun.launch.console import duration
from xclrun.launch.remaining import needed
from xclrun.run import Run, notes
from xclrun.store.stages import StageStore


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


class Costs:
    """What trainings of the store have cost: the basis of estimates."""

    def __init__(self, store: StageStore) -> None:
        self.rates: dict[tuple[str, str], list[float]] = {}
        self.sizes: dict[tuple[str, str], list[int]] = {}
        for key in store.all_keys():
            try:
                facts = store.facts(key)
                if facts["kind"] != "train":
                    continue
                cost, training = facts["cost"], facts["training"]
                rate = training["seconds"] / (cost["examples"] * max(1, len(training["epochs"])))
                size = sum(file.stat().st_size for file in store.path(key).glob("*.safetensors"))
            except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
                continue
            self.rates.setdefault((cost["model"], cost["strategy"]), []).append(rate)
            self.sizes.setdefault((cost["model"], cost["strategy"]), []).append(size)

    def seconds(self, cost: dict[str, Any], epochs: int) -> float | None:
        """Return the estimated seconds of a training."""
        same = self.rates.get((cost["model"], cost["strategy"]))
        alike = [r for (model, _), rates in self.rates.items() if model == cost["model"] for r in rates]
        rates = same or alike
        return statistics.median(rates) * cost["examples"] * epochs if rates else None

    def bytes(self, cost: dict[str, Any]) -> int | None:
        """Return the estimated size of the weights of a training."""
        same = self.sizes.get((cost["model"], cost["strategy"]))
        sizes = same or [s for (model, _), sizes in self.sizes.items() if model == cost["model"] for s in sizes]
        return round(statistics.median(sizes)) if sizes else None


@dataclass(frozen=True)
class Forecast:
    """What a command would do.

    Attributes:
        runs: each run once.
        lines: one per strategy, in the order of the command.
    """

    runs: tuple[Run, ...]
    lines: tuple[Line, ...]

    @property
    def total(self) -> Line:
        """All strategies together."""
        return Line(
            "all",
            sum(line.runs for line in self.lines),
            sum(line.finished for line in self.lines),
            sum(line.asked for line in self.lines),
            sum(line.needed for line in self.lines),
            _sum(line.seconds for line in self.lines),
            _sum(line.bytes for line in self.lines),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the facts for ``--json``."""
        finished = {run.id: run.directory.finished for run in self.runs}
        return {
            "runs": [{"run_id": run.id, "label": run.label, "finished": finished[run.id]} for run in self.runs],
            "strategies": [vars(line) for line in self.lines],
            "total": vars(self.total),
            "notes": notes(self.runs),
        }

    def render(self) -> str:
        """Return the forecast as a table for a person."""
        header = ("strategy", "runs", "finished", "hop trainings asked", "needed", "time", "disk")
        rows = [header, *(_cells(line) for line in self.lines)]
        if len(self.lines) > 1:
            rows.append(_cells(self.total))
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        text = [
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        text.insert(1, "─" * len(text[0]))
        return "\n".join([*text, *(f"note: {note}" for note in notes(self.runs))])


def _sum(values: Iterable[float | None]) -> Any:
    known = list(values)
    return None if any(value is None for value in known) else sum(value for value in known if value is not None)


def _cells(line: Line) -> tuple[str, ...]:
    time = "unknown" if line.seconds is None else duration(line.seconds)
    disk = (
        "unknown"
        if line.bytes is None
        else f"{line.bytes / 1e6:.0f} MB"
        if line.bytes < 1e9
        else f"{line.bytes / 1e9:.1f} GB"
    )
    return (line.strategy, str(line.runs), str(line.finished), str(line.asked), str(line.needed), time, disk)


def forecast(runs: Sequence[Run]) -> Forecast:
    """Return what doing these runs would take.

    A training is needed where an unfinished run's evaluation, or a later one that builds on it, is not in the store.
    """
    by_strategy: dict[str, list[Run]] = {}
    for run in runs:
        by_strategy.setdefault(run.strategy_name, []).append(run)
    store = runs[0].store
    costs = Costs(store)
    there = set(store.all_keys())
    counted: set[str] = set()
    lines = []
    for strategy, them in by_strategy.items():
        finished = sum(run.directory.finished for run in them)
        asked = sum(len(run.stages) - 1 for run in them)
        trainings: list[tuple[dict[str, Any], int]] = []
        for run in them:
            if not run.directory.finished:
                for index in needed(run, there):
                    key = run.stages[index].train
                    if key not in counted:
                        counted.add(key)
                        hop = run.stages[index].hop
                        trainings.append((run.cost(hop), run.trainer(hop).epochs))
        seconds = _sum([costs.seconds(cost, epochs) for cost, epochs in trainings])
        size = _sum([costs.bytes(cost) for cost, _ in trainings])
        lines.append(Line(strategy, len(them), finished, asked, len(trainings), seconds, size))
    return Forecast(tuple(runs), tuple(lines))


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
            # Any order serves: what counts is that each of its hops is there.
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

    found: set[str] = set()
    for directory in run_directories(outputs):
        # What cannot be read counts for nothing; `report` names it.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if directory.finished and (manifest := directory.read_manifest())["stream"]["kind"] == "independent":
                found |= {stage["evaluation"] for stage in manifest["stages"]}
    return found
