"""``xclrun plan``: forecast the work of a command."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xclrun.analysis.reference import reference_command
from xclrun.command.common import Parser
from xclrun.core.errors import UsageError
from xclrun.core.terminal import fitted
from xclrun.plan import Run, plan_jobs

if TYPE_CHECKING:
    from xclrun.launch.sweep import Launcher

# Parallel jobs of a launcher that does not say how many it starts, such as Slurm's.
WIDTH = 8


def main(arguments: Sequence[str]) -> int:
    """Print the forecast of a command; return the exit code."""
    parser = Parser(
        prog="xclrun plan",
        description="Dry run of `xclrun OVERRIDES -m`: runs, finished runs, hop trainings before and after "
        "deduplication, estimated time and disk. Nothing is trained.",
        usage="xclrun plan KEY=VALUE … [--json]\n"
        "       xclrun plan KEY=VALUE … --missing | --budget | --measure | --power POINTS\n"
        "       xclrun plan KEY=VALUE … --save NAME | --params",
    )
    parser.add_overrides(outputs=True)
    parser.add_argument(
        "--missing",
        action="store_true",
        help="print the commands for missing runs, and the measures that need these runs",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="train a few steps of each kind of run on this device (Slurm: in a job) and print peak memory and seconds",
    )
    parser.add_argument("--budget", action="store_true", help="GPU-hours, disk, and wall time with N parallel jobs")
    parser.add_argument(
        "--width",
        type=int,
        metavar="N",
        help=f"parallel jobs, for --budget (default: hydra.launcher.n of the local launcher, {WIDTH} of others)",
    )
    parser.add_argument(
        "--power",
        metavar="POINTS",
        help="orders that detect a difference of POINTS with 80 %% power, given the finished runs of the command",
    )
    parser.add_argument(
        "--save",
        metavar="NAME",
        help="write the command as a sweep to DIR/sweep/NAME.yaml; DIR is the folder of --config-dir, else configs",
    )
    parser.add_argument(
        "--params", action="store_true", help="number of parameters: total, by hop, by part (--params --help)"
    )
    parser.add_json()
    args = parser.parse_with_overrides(arguments)
    if args.width is not None and args.width < 1:
        raise UsageError(f"--width {args.width}: must be a number of jobs of at least 1")
    from xclrun.compose.jobs import command_jobs
    from xclrun.compose.space import SWEEPER, Space
    from xclrun.launch.forecast import budget, forecast, missing
    from xclrun.launch.hints import hints, this_processor
    from xclrun.launch.local import Local
    from xclrun.launch.sweep import make_launcher

    jobs, node = command_jobs(args.overrides)
    launcher = make_launcher(node)
    width = args.width or (launcher.n if isinstance(launcher, Local) else WIDTH)
    if isinstance(jobs, Space):
        if args.save is not None:
            raise UsageError(f"--save: not available for a search ({SWEEPER})")
        if args.missing:
            raise UsageError(f"--missing: not available for a search ({SWEEPER}), whose later trials are unknown")
        if args.power is not None:
            raise UsageError(f"--power: not available for a search ({SWEEPER}); name the strategies and orders")
        if args.measure:
            raise UsageError(f"--measure: not available for a search ({SWEEPER}); measure one of its settings")
        from xclrun.launch.search import plan_search, search_forecast

        search_facts, text = search_forecast(plan_search(jobs, launcher), width if args.budget else None)
        print(json.dumps(search_facts, indent=1) if args.json else text)
        return 0
    runs = plan_jobs(job.config for job in jobs)
    if args.save is not None:
        from xclrun.compose.save import save

        print(f"Saved. Run it with: {save(args.overrides, args.save, args.config_dir)}")
        return 0
    if args.power is not None:
        _power(runs, args.power, jobs[0].comparisons, args.json)
        return 0
    if args.missing:
        commands = [(measure, _command(args.overrides, lacking, measure)) for measure, lacking in missing(runs)]
        if args.json:
            print(json.dumps([{"gives": measure, "command": command} for measure, command in commands], indent=1))
        elif not commands:
            print("Nothing is missing.")
        else:
            print("\n".join(f"{measure}:\n  {command}" for measure, command in commands))
        return 0
    if args.measure:
        return _measure(runs, launcher, args)
    if args.budget:
        cost = budget(runs, width)
        print(json.dumps(cost.to_json(), indent=1) if args.json else cost.render())
        return 0
    facts = forecast(runs)
    # Nodes of a cluster differ from this machine.
    faster = []
    if isinstance(launcher, Local):
        faster = hints([run for run in runs if run.id not in facts.finished], launcher, this_processor())
    if args.json:
        print(json.dumps(facts.to_json() | {"faster": faster}, indent=1))
    else:
        print("\n".join([facts.render(), *(fitted(f"faster: {hint}", sys.stdout, "        ") for hint in faster)]))
    return 0


def _power(runs: Sequence[Run], difference: str, chosen: Mapping[str, Any], as_json: bool) -> None:
    """Print how many orders detect a difference, given the finished runs of the command.

    Args:
        chosen: primary comparisons of the command (`xclrun.analysis.confirmatory.chosen`).
    """
    from xclrun.analysis.confirmatory import margin_of
    from xclrun.analysis.records import read_records
    from xclrun.report.power import powers

    effect = margin_of(difference, "--power ")
    finished = {run.id for run in runs if run.directory.finished}
    found = powers(read_records(runs[0].outputs, only=finished), effect, chosen) if finished else []
    if not any(row.components for power in found for row in power.rows):
        raise UsageError(
            f"--power: {len(finished)} of {len(runs)} runs of this command are finished; a pilot needs two finished "
            "orders of the baseline and of another strategy, and a primary measure other than T and T0"
        )
    print(json.dumps([power.to_json() for power in found], indent=1) if as_json else "\n\n".join(
        power.render() for power in found
    ))  # fmt: skip


def _measure(runs: Sequence[Run], launcher: Launcher, args: Any) -> int:
    """Measure each kind of run, here or in a job of Slurm; return 1 if one cannot be trained."""
    from xclrun.launch.cluster.launcher import Slurm
    from xclrun.launch.measure import measure_kinds, render

    if isinstance(launcher, Slurm) and launcher.cluster == "slurm":
        # Set in the tasks of a job.
        if "SLURM_PROCID" not in os.environ:
            launcher.check()
            options = ["--measure", *(["--json"] if args.json else [])]
            return launcher.attached(runs[0].outputs, ["plan", *args.overrides, *options])
    else:
        launcher.check_runs(runs)
    rows = list(measure_kinds(runs))
    print(json.dumps([row.to_json() for row in rows], indent=1) if args.json else render(rows))
    return int(any(row.error for row in rows))


def plan_runs(overrides: Sequence[str]) -> list[Run]:
    """Return the runs of a command, each once."""
    from xclrun.compose.jobs import compose_command

    return plan_jobs(job.config for job in compose_command(overrides))


def _command(overrides: Sequence[str], runs: Sequence[Run], measure: str) -> str:
    """Build the command that produces the missing runs."""
    if measure != "T":
        return shlex.join(["xclrun", *overrides, "-m"])
    orders = (f"[{','.join(run.stream.languages)}]" for run in runs)
    seeds = (run.config.seed for run in runs)
    return reference_command(overrides, runs[0].resolved["strategy"]["expansion"], orders, seeds)
