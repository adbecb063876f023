"""``xclrun show``: the settings, scores, command and files of one run, or the differences of two runs."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from typing import Any

from xclrun.command import compare
from xclrun.command.common import RUN_HELP, chosen_run, outputs_parser
from xclrun.command.described import files_of, read_run, scoring
from xclrun.core.task import select_metrics
from xclrun.store.rundir import RunDirectory

# Columns of a terminal.
WIDTH = 80


def main(arguments: Sequence[str]) -> int:
    """Print a run, or the differences of two runs; return the exit code."""
    parser = outputs_parser(
        "show",
        "Show a run: settings, score matrix, command, files, and hops shared with other runs. With two runs, show the "
        "settings in which they differ, their scores side by side, and a paired bootstrap test of their final scores "
        "over the same test sentences. The test does not account for variation between seeds; `xclrun report` compares "
        "strategies over several seeds.",
    )
    parser.add_run()
    parser.add_argument("other", nargs="?", metavar="RUN", help=f"another run to compare: {RUN_HELP}")
    parser.add_metrics()
    parser.add_json()
    args = parser.parse_args(arguments)
    select_metrics(args.metrics)
    if args.other is not None:
        differing = compare.differences([chosen_run(args.outputs, text) for text in (args.run, args.other)])
        print(json.dumps(differing, indent=1) if args.json else compare.render(differing))
        return 0
    facts = describe(chosen_run(args.outputs, args.run))
    print(json.dumps(facts, indent=1) if args.json else render(facts))
    return 0


def describe(directory: RunDirectory) -> dict[str, Any]:
    """Return the facts of a run; scores of metrics in percent are fractions; None where they were not measured."""
    from xclrun.core.identity import NESTED
    from xclrun.launch.cluster.lookup import find_jobs
    from xclrun.launch.status import run_status
    from xclrun.store.sweeps import command_of, sweeps

    outputs, run_id = directory.path.parents[1], directory.run_id
    run, measures = read_run(directory)
    status, manifest = run_status(directory), directory.read_manifest()
    job = find_jobs(outputs, ask=False).of_runs.get(run_id)
    return {
        "run_id": run_id,
        "state": status.state,
        "detail": status.detail,
        "seconds": status.seconds,
        "host": status.host,
        "dataset": run.dataset,
        "languages": list(run.languages),
        "model": run.model,
        "strategy": run.strategy,
        "settings": {k: v for k, v in run.config["strategy"].items() if k not in ("name", *NESTED)},
        "merged_from": run.merged_from or None,
        "order": run.order,
        "seed": run.seed,
        "shots": run.shots,
        "bucket": run.bucket,
        "code": run.code_version,
        "sweeps": {s["name"]: command_of(s, run_id) for s in sweeps(outputs) if run_id in s["runs"]},
        "folder": str(directory.path),
        "files": files_of(directory),
        "log": None if job is None else str(job.log),
        "hops": [
            {"hop": s["hop"], "name": s.get("name", ""), "shared": s["shared"], "weights": s["train"]}
            for s in manifest["stages"]
        ],
        "scores": {
            metric: [[None if math.isnan(value) else float(value) for value in row] for row in R]
            for metric, R in run.scores.items()
        },
        "scoring": {metric: scoring(run, metric) for metric in run.scores},
        "measures": measures,
    }


def render(facts: dict[str, Any]) -> str:
    """Format the facts of a run for the terminal."""
    from xclrun.analysis.measures import quantity

    lines = _head(facts)
    for metric, measures in facts["measures"].items():
        way = " (tag_macro)" if facts["scoring"][metric] == "tag_macro" else ""
        # A name and its value stay on one line.
        values = "  ".join(f"{name}\xa0{quantity(metric, name).shown(value)}" for name, value in measures.items())
        unit = quantity(metric).unit
        lines += ["", f"{metric}{way} in {unit}, on each language after each hop", "", _matrix(facts, metric)]
        lines += [text.replace("\xa0", " ") for text in textwrap.wrap(values, WIDTH)]
    return "\n".join(lines)


def _head(facts: dict[str, Any]) -> list[str]:
    """Return the lines above the scores."""
    from xclrun.core.terminal import duration

    bucket = "".join(f" · {key} {facts[key]}" for key in ("shots", "bucket") if facts[key] is not None)
    seconds = "" if facts["seconds"] is None else f" · {duration(facts['seconds'])}"
    settings = ", ".join(f"{key}={value}" for key, value in facts["settings"].items())
    entries = {
        "state": f"{facts['state']}{seconds} · {facts['host']}" + (f" · {facts['detail']}" if facts["detail"] else ""),
        "dataset": f"{facts['dataset']}: {', '.join(facts['languages'])}",
        "model": facts["model"],
        "strategy": facts["strategy"] + (f" ({settings})" if settings else ""),
        **({"models": f"those of {facts['merged_from']}, merged without training"} if facts["merged_from"] else {}),
        "order": f"{facts['order']} · seed {facts['seed']}{bucket}",
        "code": facts["code"],
        "files": facts["folder"],
        **({"log": facts["log"]} if facts["log"] else {}),
    }
    lines = [facts["run_id"]]
    for name, value in entries.items():
        line = f"  {name:<9} {value}"
        # Wrap only lists of languages, because users copy paths and commands. The order may break at the hyphens
        # between languages. The dataset line must not, because its hyphens are inside keys (`udpos-ar`).
        if name in ("dataset", "order"):
            lines += textwrap.wrap(line, WIDTH, subsequent_indent=" " * 12, break_on_hyphens=name == "order")
        else:
            lines.append(line)
    return lines + [f"  {'sweep':<9} {name}: {command}" for name, command in facts["sweeps"].items()]


def _matrix(facts: dict[str, Any], metric: str) -> str:
    """Format a score matrix to fit the terminal.

    With few languages, wide tables are split and stacked; with many languages, each hop is a block of lines.
    """
    from xclrun.core.task import BY_NAME
    from xclrun.core.terminal import table
    from xclrun.launch.matrix import MOST, MatrixRows

    languages, matrix, shown = facts["languages"], facts["scores"][metric], BY_NAME[metric].quantity.shown
    hops = [(hop["hop"], hop["name"] if hop["hop"] else "–", hop["shared"]) for hop in facts["hops"]]
    if len(languages) > MOST:
        layout = MatrixRows(languages, [BY_NAME[metric]], [learnt for _, learnt, _ in hops], WIDTH, styled=False)
        lines = [layout.head()]
        for (hop, learnt, shared), values in zip(hops, matrix, strict=False):
            scores = {k: {} if value is None else {metric: value} for k, value in zip(languages, values, strict=True)}
            marked = learnt if learnt in languages else None
            lines.append(layout.row(hop, learnt, scores, marked, "shared" if shared else ""))
        return "\n".join(lines)
    rows = [
        [
            str(hop),
            learnt,
            "shared" if shared else "trained" if hop else "before",
            *("" if value is None else shown(value) for value in values),
        ]
        for (hop, learnt, shared), values in zip(hops, matrix, strict=False)
    ]
    parts = _columns(["hop", "key", "", *languages], rows)
    return "\n\n".join(table(*part, text_columns=3) for part in parts)


def _columns(head: list[str], rows: list[list[str]]) -> list[tuple[list[str], list[list[str]]]]:
    """Split a table into parts of at most `WIDTH`; each repeats the first three columns."""
    from rich.cells import cell_len

    # Columns are three spaces apart.
    widths = [max(map(cell_len, column)) + 3 for column in zip(head, *rows, strict=True)]
    parts: list[list[int]] = [[]]
    for i in range(3, len(head)):
        if parts[-1] and sum(widths[j] for j in (0, 1, 2, *parts[-1], i)) > WIDTH:
            parts.append([])
        parts[-1].append(i)
    chosen = [[0, 1, 2, *part] for part in parts]
    return [([head[i] for i in part], [[row[i] for i in part] for row in rows]) for part in chosen]
