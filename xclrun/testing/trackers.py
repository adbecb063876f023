"""The contract of trackers: a destination holds each value of a run once, whenever and however often runs are sent.

The runs are made up, so no model is trained.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from xclrun.analysis.measures import quantity
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.core.task import short_name
from xclrun.store.files import write_json
from xclrun.store.rundir import RunDirectory
from xclrun.testing.suite import Check, bound, expect, expect_equal, run_all
from xclrun.tracking import payload
from xclrun.tracking.trackers import Tracker

Curves = dict[str, list[tuple[int, float]]]

STEPS = 4  # updates of an epoch of the example
EPOCHS = 2  # epochs of a hop of the example


@dataclass(frozen=True)
class Sent:
    """What a tracker's destination holds of a run.

    Attributes:
        curves: name → (step, value) in the order in which they were sent: ``intent.score.de`` (percent; the step is the
            hop), ``intent.dev.de`` (percent) and ``train.loss``; their steps are updates over all hops.
        measures: name → value: ``intent.FP``, …
        status: ``finished``, ``running``, ``interrupted`` or ``failed``.
    """

    curves: Curves
    measures: dict[str, float] = field(default_factory=dict)
    status: str = ""


@dataclass(frozen=True)
class TrackerCase:
    """A tracker under test.

    Attributes:
        make: outputs folder → the tracker of a new process.
        read: tracker and run ID → what its destination holds of the run; None if it holds nothing.
    """

    make: Callable[[Path], Tracker]
    read: Callable[[Tracker, str], Sent | None]

    @contextlib.contextmanager
    def outputs(self, *records: RunRecord) -> Iterator[Path]:
        """Yield an outputs folder with the directories of these runs."""
        with tempfile.TemporaryDirectory() as folder:
            for record in records:
                place(Path(folder), record)
            yield Path(folder)

    def sent(self, outputs: Path, *records: RunRecord, rebuild: bool = False) -> int:
        """Send runs in a new process; return the number of runs that were sent."""
        tracker = self.make(outputs)
        number = tracker.send_records(records, References(records), rebuild=rebuild)
        tracker.close()
        return number

    def holds(self, outputs: Path, run: RunRecord) -> Sent:
        """Return what the destination holds of a run."""
        copy = self.read(self.make(outputs), run.run_id)
        expect(copy is not None, f"nothing of run {run.run_id}")
        assert copy is not None
        return copy


def example_record(
    run_id: str = "made-up", languages: tuple[str, ...] = ("en", "de", "es"), seed: int = 1
) -> RunRecord:
    """Return a finished run that was never trained: two metrics, a hop per language, two epochs per hop."""
    hops, numbers = len(languages), np.random.default_rng([7, seed])
    scores = {metric: numbers.uniform(size=(hops + 1, hops)).round(4) for metric in ("intent_accuracy", "slot_f1")}
    curve = [
        {
            "hop": hop,
            "epoch": epoch,
            "step": STEPS * epoch,
            "examples": 8 * STEPS * epoch,
            "loss": 1 / (hop + epoch),
            "dev": {
                language: {metric: 0.1 * epoch + 0.01 * hop + 0.001 * (j + len(metric)) for metric in scores}
                for j, language in enumerate(languages)
            },
        }
        for hop in range(1, hops + 1)
        for epoch in range(1, EPOCHS + 1)
    ]
    config = {
        "strategy": {"name": "naive"},
        "dataset": {"name": "mini"},
        "model": {"name": "tiny"},
        "order": {"name": "list", "languages": list(languages)},
        "trainer": {"lr": 0.001, "epochs": EPOCHS},
        "evaluate": {"slot_f1": "span_micro"},
        "seed": seed,
    }
    return RunRecord(
        run_id=run_id,
        dataset="mini",
        model="tiny",
        strategy="naive",
        order="list",
        languages=languages,
        seed=seed,
        bucket=None,
        stream="sequence",
        scores=scores,
        config=config,
        data_fingerprint="0" * 8,
        code_version="0",
        algorithms=1,
        status="finished",
        curve=tuple(curve),
        environment={"started": "2026-01-01T00:00:00+0000"},
    )


def until(record: RunRecord, hop: int, status: str = "interrupted") -> RunRecord:
    """Return a run as it was after a hop."""
    scores = {metric: np.where(np.arange(len(R))[:, None] <= hop, R, np.nan) for metric, R in record.scores.items()}
    curve = tuple(epoch for epoch in record.curve if epoch["hop"] <= hop)
    return replace(record, scores=scores, curve=curve, status=status)


def place(outputs: Path, record: RunRecord) -> None:
    """Write the directory of a run that was never trained."""
    directory = RunDirectory(outputs / "runs" / record.run_id)
    directory.path.mkdir(parents=True)
    write_json(directory.manifest, {"run_id": record.run_id, "seconds": 60.0, "stages": []})


def curves_of(record: RunRecord) -> Curves:
    """Return the curves of a run, computed from its record."""
    curves: Curves = {}
    for metric in record.metrics:
        for j, language in enumerate(record.languages):
            printed = quantity(metric).printed
            values = [(hop, printed(float(row[j]))) for hop, row in enumerate(record.scores[metric])]
            if measured := [(hop, value) for hop, value in values if value == value]:
                curves[f"{short_name(metric)}.score.{language}"] = measured
    last = {hop: max(epoch["step"] for epoch in record.curve if epoch["hop"] == hop) for hop in _hops(record)}
    for epoch in record.curve:
        step = sum(last[hop] for hop in last if hop < epoch["hop"]) + epoch["step"]
        curves.setdefault("train.loss", []).append((step, float(epoch["loss"])))
        for language, scores in epoch["dev"].items():
            for metric, value in scores.items():
                dev = curves.setdefault(f"{short_name(metric)}.dev.{language}", [])
                dev.append((step, quantity(metric).printed(float(value))))
    return curves


def _hops(record: RunRecord) -> list[int]:
    return sorted({epoch["hop"] for epoch in record.curve})


def _rounded(curves: Curves, once: bool = True) -> Curves:
    """Round to single precision, which some destinations store; ``once``: remove repetitions of a value."""
    rounded = {
        name: [(step, round(float(np.float32(value)), 4)) for step, value in curve] for name, curve in curves.items()
    }
    return {name: sorted({*curve} if once else curve) for name, curve in rounded.items()}


def _expect_curves(found: Curves, record: RunRecord, part: str = "", once: bool = True) -> None:
    """Compare the curves whose names contain a part; ``once``: ignore repetitions of a value."""
    ours, theirs = _rounded(curves_of(record), once), _rounded(found, once)
    names = sorted(name for name in ours.keys() | theirs.keys() if part in name)
    for name in names:
        expect_equal(theirs.get(name, []), ours.get(name, []), f"{name} has (step, value)")


def names_its_place(case: TrackerCase) -> None:
    """``name`` can be the name of a folder, and ``place`` is one line that names the destination."""
    with case.outputs() as outputs:
        tracker = case.make(outputs)
        expect(re.fullmatch(r"[a-z0-9][a-z0-9_-]*", tracker.name), f"name {tracker.name!r}")
        expect(tracker.place and len(tracker.place.splitlines()) == 1, f"place {tracker.place!r}")


def sends_scores(case: TrackerCase) -> None:
    """The scores after each hop are stored in percent, at the number of the hop; hop 0 is before training."""
    run = example_record()
    with case.outputs(run) as outputs:
        expect_equal(case.sent(outputs, run), 1, "runs sent:")
        _expect_curves(case.holds(outputs, run).curves, run, ".score.")


def sends_losses_and_dev_scores(case: TrackerCase) -> None:
    """Losses and dev scores (percent) of epochs are stored at the number of updates over all hops."""
    run = example_record()
    with case.outputs(run) as outputs:
        case.sent(outputs, run)
        copy = case.holds(outputs, run)
        for part in ("train.loss", ".dev."):
            _expect_curves(copy.curves, run, part)


def sends_measures(case: TrackerCase) -> None:
    """All measures of a finished run are stored with their values; an interrupted run has none."""
    run = example_record()
    with case.outputs(run) as outputs:
        case.sent(outputs, until(run, 1))
        expect_equal(case.holds(outputs, run).measures, {}, "measures of an interrupted run:")
        case.sent(outputs, run)
        expected = payload.measures(run, References([run]))
        found = case.holds(outputs, run).measures
        expect_equal(sorted(found), sorted(expected), "measures")
        for name, value in expected.items():
            expect(abs(found[name] - value) <= 1e-4 * max(1.0, abs(value)), f"{name} is {found[name]}, not {value}")


def sends_the_status(case: TrackerCase) -> None:
    """The status of a run is stored, and changes when the run is resumed."""
    run = example_record()
    with case.outputs(run) as outputs:
        for record in (until(run, 1, "failed"), until(run, 2, "interrupted"), run):
            case.sent(outputs, record)
            expect_equal(case.holds(outputs, run).status, record.status, "status")


def omits_missing_scores(case: TrackerCase) -> None:
    """A score that was not measured is stored neither as NaN nor as 0."""
    run = example_record()
    scores = {metric: R.copy() for metric, R in run.scores.items()}
    scores["slot_f1"][:, 1] = scores["intent_accuracy"][0] = np.nan
    run = replace(run, scores=scores)
    with case.outputs(run) as outputs:
        case.sent(outputs, run)
        _expect_curves(case.holds(outputs, run).curves, run, ".score.")


def continues_a_run(case: TrackerCase) -> None:
    """A resumed run continues its curves: after several processes, the destination holds each value exactly once."""
    run = example_record()
    with case.outputs(run) as outputs:
        for record in (until(run, 0), until(run, 2), run):
            expect_equal(case.sent(outputs, record), 1, "runs sent:")
        _expect_curves(case.holds(outputs, run).curves, run, once=False)


def sends_unchanged_runs_once(case: TrackerCase) -> None:
    """A run that has not changed is not sent again, neither by the same process nor by a later one."""
    run = example_record()
    with case.outputs(run) as outputs:
        tracker = case.make(outputs)
        numbers = [tracker.send_records([run], References([run])) for _ in range(2)]
        tracker.close()
        expect_equal([*numbers, case.sent(outputs, run)], [1, 0, 0], "runs sent:")


def sends_changed_runs_again(case: TrackerCase) -> None:
    """A finished run is sent again if its record changes, for example by an average of its checkpoints."""
    run = example_record()
    changed = replace(run, averaged=({"hop": 1, "of": "all", "test": {}},))
    with case.outputs(run) as outputs:
        case.sent(outputs, run)
        expect_equal(case.sent(outputs, changed), 1, "runs sent:")
        _expect_curves(case.holds(outputs, run).curves, run)


def rebuilds(case: TrackerCase) -> None:
    """``rebuild=True`` sends an unchanged run again, and changes no value at the destination."""
    run = example_record()
    with case.outputs(run) as outputs:
        case.sent(outputs, run)
        before = case.holds(outputs, run)
        expect_equal(case.sent(outputs, run, rebuild=True), 1, "runs sent:")
        after = case.holds(outputs, run)
        expect_equal(_rounded(after.curves), _rounded(before.curves), "curves")
        expect_equal((after.measures, after.status), (before.measures, before.status), "measures and status")


def separates_runs(case: TrackerCase) -> None:
    """Values of two runs that are sent together are not mixed."""
    runs = (example_record("first"), example_record("second", seed=2))
    with case.outputs(*runs) as outputs:
        expect_equal(case.sent(outputs, *runs), 2, "runs sent:")
        for run in runs:
            _expect_curves(case.holds(outputs, run).curves, run, once=False)


def follows_a_running_run(case: TrackerCase) -> None:
    """A running run is sent several times by one process; ``close`` stores everything, and can be called twice."""
    run = example_record()
    with case.outputs(run) as outputs:
        tracker = case.make(outputs)
        for hop in (0, 1, 2):
            tracker.send_records([until(run, hop, "running")], References([]))
        tracker.close()
        tracker.close()
        copy = case.holds(outputs, run)
        _expect_curves(copy.curves, until(run, 2, "running"), once=False)
        case.sent(outputs, run)
        _expect_curves(case.holds(outputs, run).curves, run, once=False)


def removes_runs(case: TrackerCase) -> None:
    """``remove`` deletes the copy of a run, unless it returns False; a removed run that is retrained is sent again."""
    runs = (example_record("first"), example_record("second", seed=2))
    with case.outputs(*runs) as outputs:
        case.sent(outputs, *runs)
        tracker = case.make(outputs)
        if tracker.remove([runs[0].run_id, "never-sent"]):
            expect(case.read(case.make(outputs), runs[0].run_id) is None, "the copy of the removed run")
        _expect_curves(case.holds(outputs, runs[1]).curves, runs[1])
        expect_equal(case.sent(outputs, *runs), 1, "runs sent after the removal of one:")
        _expect_curves(case.holds(outputs, runs[0]).curves, runs[0])


def accepts_names_of_languages(case: TrackerCase) -> None:
    """Every valid name of a language can be sent, and different names give different curves."""
    run = example_record(languages=("zh-Hans", "en_ewt", "größe", "日本語", "a.b", "boolq+wic"))
    with case.outputs(run) as outputs:
        case.sent(outputs, run)
        found, expected = _rounded(case.holds(outputs, run).curves), _rounded(curves_of(run))
        scores = [sorted(c for name, c in curves.items() if ".score." in name) for curves in (found, expected)]
        expect_equal(scores[0], scores[1], "curves of scores")


def leaves_runs_unchanged(case: TrackerCase) -> None:
    """Files in run directories are never changed."""
    run = example_record()
    with case.outputs(run) as outputs:
        before = {path: path.read_bytes() for path in (outputs / "runs").rglob("*") if path.is_file()}
        for work in (lambda: case.sent(outputs, run), lambda: case.make(outputs).remove([run.run_id])):
            work()
            after = {path: path.read_bytes() for path in (outputs / "runs").rglob("*") if path.is_file()}
            expect(after == before, f"files {sorted(path.name for path in after)} in the run directory")


def prints_nothing(case: TrackerCase) -> None:
    """Nothing is printed while runs are sent; xclrun prints progress and errors."""
    run, printed = example_record(), io.StringIO()
    with case.outputs(run) as outputs, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        case.sent(outputs, run)
    expect(not printed.getvalue(), f"printed {printed.getvalue()!r}")


TRACKER_CONTRACT = (
    names_its_place,
    sends_scores,
    sends_losses_and_dev_scores,
    sends_measures,
    sends_the_status,
    omits_missing_scores,
    continues_a_run,
    sends_unchanged_runs_once,
    sends_changed_runs_again,
    rebuilds,
    separates_runs,
    follows_a_running_run,
    removes_runs,
    accepts_names_of_languages,
    leaves_runs_unchanged,
    prints_nothing,
)


def tracker_checks(
    name: str, make: Callable[[Path], Tracker], read: Callable[[Tracker, str], Sent | None]
) -> list[Check]:
    """Return the checks of a tracker, for ``pytest.mark.parametrize``.

    Args:
        make: outputs folder → the tracker of a new process.
        read: tracker and run ID → what its destination holds of the run; None if it holds nothing.
    """
    return bound(f"tracker '{name}'", TRACKER_CONTRACT, TrackerCase(make, read))


def check_tracker(name: str, make: Callable[[Path], Tracker], read: Callable[[Tracker, str], Sent | None]) -> None:
    """Run `tracker_checks`.

    Raises:
        ContractError: a line per failed check.
    """
    run_all(tracker_checks(name, make, read))
