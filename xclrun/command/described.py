"""A run as `xclrun show` reads it: its record, measures and files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from xclrun.core.errors import RunError
from xclrun.store.rundir import RunDirectory

if TYPE_CHECKING:
    from xclrun.analysis.record import RunRecord


def read_run(directory: RunDirectory) -> tuple[RunRecord, dict[str, dict[str, float]]]:
    """Return the record of a run, and metric → measure → value over all languages, without undefined measures."""
    from xclrun.analysis.finished import with_references
    from xclrun.analysis.measures import measure
    from xclrun.analysis.records import record
    from xclrun.analysis.reference import References
    from xclrun.launch.status import sweep_status

    outputs = directory.path.parents[1]
    if not directory.manifest.is_file():
        [status] = sweep_status(outputs, [directory.run_id])
        if status.state == "missing":
            raise RunError(f"{directory.run_id} has not started; start it with `xclrun rerun {directory.run_id}`")
        detail = f" ({status.detail})" if status.detail else ""
        files = ", ".join(files_of(directory))
        raise RunError(f"{directory.run_id} is {status.state}{detail} and has no manifest; its files: {files}")
    try:
        run = record(directory)
    except ValueError as error:
        raise RunError(str(error)) from error
    references = References([run, *with_references(outputs, [run])[0]])
    measures: dict[str, dict[str, float]] = {}
    for metric in run.scores:
        values = measure(run, metric, references.scores(run, metric)).items()
        overall = {name: value for (name, language), value in values if not language}
        measures[metric] = {n: v for n, v in overall.items() if isinstance(v, float) and not math.isnan(v)}
    return run, measures


def files_of(directory: RunDirectory) -> list[str]:
    """Return the files of a run directory, sorted."""
    return sorted(str(p.relative_to(directory.path)) for p in directory.path.rglob("*") if p.is_file())


def scoring(run: RunRecord, metric: str) -> str:
    """Return how span F1 was computed, ``span_micro`` or ``tag_macro``; empty for other metrics."""
    from xclrun.core.task import BY_NAME

    return str(run.config["evaluate"]["slot_f1"]) if BY_NAME[metric].span_f1 else ""
