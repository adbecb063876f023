"""``xclrun rerun``: resume or repeat a run from its saved config."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from xclrun.command.common import chosen_run, outputs_parser
from xclrun.core.errors import RunError, UsageError
from xclrun.core.terminal import fitted, note
from xclrun.store.rundir import RunDirectory, differing_results


def main(arguments: Sequence[str]) -> int:
    """Resume or repeat a run; return the exit code: 1 if predictions differ."""
    parser = outputs_parser(
        "rerun",
        "Resume a run from its saved config. With --fresh, repeat it in another folder and compare its predictions "
        "byte for byte; exit code 1 if they differ.",
    )
    parser.add_run()
    parser.add_argument("--fresh", type=Path, metavar="DIR", help="repeat the run in this outputs folder and compare")
    args = parser.parse_args(arguments)
    directory = chosen_run(args.outputs, args.run)
    outputs = directory.path.parents[1]
    if args.fresh is None:
        if directory.finished:
            print(f"{directory.run_id}: finished (--fresh DIR repeats it)")
        else:
            print(f"{_run(directory, outputs, fresh=False).run_id}: finished")
        return 0
    if args.fresh.resolve() == outputs.resolve():
        raise UsageError(f"--fresh {args.fresh}: contains the run itself; pass another folder")
    if not directory.finished:
        raise UsageError(f"{directory.run_id} is not finished; resume it with `xclrun rerun` before repeating it")
    again = _run(directory, args.fresh, fresh=True)
    differing = differing_results(directory, again)
    if not differing:
        same = f"identical, all {len(again.results())} files of predictions and scores"
        print(fitted(f"{again.run_id}: {same} ({again.path})", sys.stdout))
        return 0
    print(f"{again.run_id}: DIFFERENT in {', '.join(differing)}")
    for name, (was, now) in environment(directory, again).items():
        print(f"  {name}: {was} → {now}")
    return 1


def _run(directory: RunDirectory, outputs: Path, fresh: bool) -> RunDirectory:
    """Execute a run in this process; return its directory in ``outputs``."""
    from xclrun.launch.console import Console
    from xclrun.launch.local import Local
    from xclrun.launch.sweep import check_writable
    from xclrun.launch.time_left import TimeLeft
    from xclrun.launch.workers import work
    from xclrun.plan import thaw
    from xclrun.tracking.background import BackgroundMirror

    run = thaw(directory, outputs, fresh)
    Local().check_runs([run])
    check_writable(outputs)
    # A repeated run (--fresh) is not sent to a tracker.
    with BackgroundMirror(outputs, run.config.tracking, [run.id], enabled=False if fresh else None) as mirror:
        work([run], Console([run.id], time_left=TimeLeft([run])), mirror)
    if not mirror.close():
        note(mirror.problem)
    if not run.directory.finished:
        raise RunError(f"{run.id} failed: {run.directory.error or 'see above'}")
    return run.directory


def environment(first: RunDirectory, second: RunDirectory) -> dict[str, tuple[str, str]]:
    """Return the differences between the environments of two runs: name → (first, second)."""
    before, after = (
        {**m["environment"], "code": m["code_version"], "host": m["host"]}
        for m in (first.read_manifest(), second.read_manifest())
    )
    names = (name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return {name: (str(before.get(name)), str(after.get(name))) for name in sorted(names)}
