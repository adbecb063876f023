"""``xclrun show``: what one run is, its scores, its command, and where its files are."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xclrun.command.common import add_run, chosen_run, parser
from xclrun.core.errors import RunError
from xclrun.store.rundir import RunDirectory

if TYPE_CHECKING:
    from xclrun.analysis.record import RunRecord


# Columns of a terminal.
WIDTH = 80


def main(arguments: Sequence[str]) -> int:
    """Print a run; return the exit code."""
    options = parser("show", "What a run is: its settings, score matrix, command, files, and the hops that it shares.")
    add_run(options)
    options.add_argument("--json", action="store_true", help="print facts as JSON")
    given = options.parse_args(arguments)
    facts = describe(chosen_run(given.outputs, given.run))
    print(json.dumps(facts, indent=1) if given.json else render(facts))
    return 0


def read_run(directory: RunDirectory) -> tuple[RunRecord, dict[str, dict[str, float]]]:
    """Return the record of a run, and metric → those of its measures over all languages that are known.

    Raises:
        RunError: it has not begun, or its files cannot be read.
    """
    from xclrun.analysis.measures import measure
    from xclrun.analysis.reference import References
    from xclrun.launch.status import sweep_status
    from xclrun.store.beside import with_references
    from xclrun.store.records import record

    if not directory.manifest.is_file():
        [status] = sweep_status(directory.path.parents[1], [directory.run_id])
        if status.state == "missing":
            raise RunError(f"{directory.run_id} has not begun; `xclrun rerun {directory.run_id}` does it")
        raise RunError(
            f"{directory.run_id} is {status.state}, and has no manifest, which says what to show; it has "
            f"{', '.join(_files(directory))}{f' ({status.detail})' if status.detail else ''}"
        )
    try:
        own = record(directory)
    except ValueError as error:
        raise RunError(str(error)) from error
    references = References([own, *with_references(directory.path.parents[1], [own])[0]])

    def known(metric: str) -> dict[str, float]:
        found = measure(own, metric, references.scores(own, metric)).items()
        return {n: v for (n, language), v in found if not language and isinstance(v, float) and not math.isnan(v)}

    return own, {metric: known(metric) for metric in own.scores}


def _files(directory: RunDirectory) -> list[str]:
    return sorted(str(p.relative_to(directory.path)) for p in directory.path.rglob("*") if p.is_file())


def way_of_scoring(own: RunRecord, metric: str) -> str:
    """Return how F1 of spans was computed, ``span_micro`` or ``tag_macro``; of other metrics nothing."""
    from xclrun.core.task import BY_NAME

    return str(own.config["evaluate"]["slot_f1"]) if BY_NAME[metric].span_f1 else ""


def describe(directory: RunDirectory) -> dict[str, Any]:
    """Return the facts of a run; its scores are in [0, 1], None where they were not measured.

    Raises:
        RunError: it has not begun, or its files cannot be read.
    """
    from xclrun.launch.cluster.files import jobs_of_runs
    from xclrun.launch.status import run_status
    from xclrun.store.records import sweeps

    outputs, run_id = directory.path.parents[1], directory.run_id
    own, measures = read_run(directory)
    status, manifest = run_status(directory), directory.read_manifest()
    job = jobs_of_runs(outputs).get(run_id)
    return {
        "run_id": run_id,
        "state": status.state,
        "detail": status.detail,
        "seconds": status.seconds,
        "host": status.host,
        "dataset": own.dataset,
        "languages": list(own.languages),
        "model": own.model,
        "strategy": own.strategy,
        "settings": {k: v for k, v in own.config["strategy"].items() if k not in ("name", "expansion")},
        "order": own.order,
        "seed": own.seed,
        "shots": own.shots,
        "bucket": own.bucket,
        "code": own.code_version,
        "sweeps": {sweep["name"]: sweep["command"] for sweep in sweeps(outputs) if run_id in sweep["runs"]},
        "folder": str(directory.path),
        "files": _files(directory),
        "log": None if job is None else str(job.log),
        "hops": [
            {"hop": s["hop"], "name": s.get("name", ""), "shared": s["shared"], "weights": s["train"]}
            for s in manifest["stages"]
        ],
        "scores": {
            metric: [[None if math.isnan(value) else float(value) for value in row] for row in R]
            for metric, R in own.scores.items()
        },
        "scoring": {metric: way_of_scoring(own, metric) for metric in own.scores},
        "measures": measures,
    }


def in_blocks(facts: dict[str, Any], metric: str, rows: Sequence[Sequence[str]]) -> str:
    """Return a score matrix with a block for each score, since the numbers of many languages fit no terminal.

    Args:
        facts: of the run.
        metric: name of a base score.
        rows: hop, what was learnt, how.
    """
    from xclrun.core.task import BY_NAME
    from xclrun.report.terminal import MatrixRows

    languages = facts["languages"]
    laid = MatrixRows(languages, [BY_NAME[metric]], [row[1] for row in rows], WIDTH, styled=False)
    lines = [laid.head()]
    for (hop, learnt, how, *_), values in zip(rows, facts["scores"][metric], strict=False):
        scores = {k: {} if value is None else {metric: value} for k, value in zip(languages, values, strict=True)}
        own, note = learnt if learnt in languages else None, "shared" if how == "shared" else ""
        lines.append(laid.row(int(hop), learnt, scores, own, note))
    return "\n".join(lines)


def _wrapped(name: str, value: str) -> list[str]:
    """Return a named line in lines of at most `WIDTH`."""
    # Keys may have hyphens; an order given as a list is all of them with hyphens between.
    return textwrap.wrap(
        f"{name:<9} {value}",
        WIDTH,
        initial_indent="  ",
        subsequent_indent=" " * 12,
        break_on_hyphens=name == "order",
    )


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[tuple[list[str], list[list[str]]]]:
    """Return a score matrix as matrices below each other, each with hop, learnt and how, and no wider than `WIDTH`."""
    from rich.cells import cell_len

    # Between columns there are three spaces.
    widths = [max(cell_len(row[i]) for row in (head, *rows)) + 3 for i in range(len(head))]
    parts, used = [list(range(3))], sum(widths[:3])
    for i in range(3, len(head)):
        if used + widths[i] > WIDTH and len(parts[-1]) > 3:
            parts.append(list(range(3)))
            used = sum(widths[:3])
        parts[-1].append(i)
        used += widths[i]
    return [([head[i] for i in part], [[row[i] for i in part] for row in rows]) for part in parts]


def render(facts: dict[str, Any]) -> str:
    """Return the facts of a run for a person; scores in percent."""
    from xclrun.analysis.measures import MEASURES
    from xclrun.core.terminal import duration, table
    from xclrun.report.terminal import MOST

    few = "".join(f" · {key} {facts[key]}" for key in ("shots", "bucket") if facts[key] is not None)
    took = "" if facts["seconds"] is None else f" · {duration(facts['seconds'])}"
    settings = ", ".join(f"{key}={value}" for key, value in facts["settings"].items())
    lines = {
        "state": f"{facts['state']}{took} · {facts['host']}" + (f" · {facts['detail']}" if facts["detail"] else ""),
        "dataset": f"{facts['dataset']}: {', '.join(facts['languages'])}",
        "model": facts["model"],
        "strategy": facts["strategy"] + (f" ({settings})" if settings else ""),
        "order": f"{facts['order']} · seed {facts['seed']}{few}",
        "code": facts["code"],
        "files": facts["folder"],
    }
    if facts["log"]:
        lines["log"] = facts["log"]
    shown = [facts["run_id"]]
    for name, value in lines.items():
        # Of many languages; what is copied, as paths and commands are, stays on one line.
        listed = name in ("dataset", "order")
        shown += _wrapped(name, value) if listed else [f"  {name:<9} {value}"]
    shown += [f"  {'sweep':<9} {name}: {command}" for name, command in facts["sweeps"].items()]
    many = len(facts["languages"]) > MOST
    for metric, matrix in facts["scores"].items():
        rows = []
        for hop, row in zip(facts["hops"], matrix, strict=False):
            how = "shared" if hop["shared"] else "trained" if hop["hop"] else "before"
            rows.append(
                (
                    str(hop["hop"]),
                    hop["name"] if hop["hop"] else "–",
                    how,
                    *("" if v is None else f"{100 * v:.2f}" for v in row),
                )
            )
        # A name and its value stay on one line.
        values = "  ".join(f"{n}\xa0{MEASURES[n].shown(value)}" for n, value in facts["measures"][metric].items())
        way = " (tag_macro)" if facts["scoring"][metric] == "tag_macro" else ""
        shown += ["", f"{metric}{way} in %, on each language after each hop", ""]
        if many:
            shown.append(in_blocks(facts, metric, rows))
        else:
            head = ("hop", "learnt", "", *facts["languages"])
            parts = _columns(head, rows)
            shown.append("\n\n".join(table(*part, left=3) for part in parts))
        shown += [text.replace("\xa0", " ") for text in textwrap.wrap(values, WIDTH)]
    return "\n".join(shown)
