"""``xclrun average RUN``: the mean of a hop's last checkpoints, evaluated."""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.command.common import check_readable, chosen_run, parser


def main(arguments: Sequence[str]) -> int:
    """Evaluate averaged weights of runs; return the exit code."""
    options = parser(
        "average",
        "Evaluate the mean of the weights at the last evaluation points of each hop of a run: a choice of checkpoint "
        "that needs no dev data. The run must have kept them (evaluate.keep_points); nothing is trained. Its "
        "predictions lie beside the run, and reports show them as one more rule.",
    )
    options.add_argument("runs", nargs="+", metavar="RUN", help="id of a run, a part that no other has, or its folder")
    which = options.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="N", help="the mean of the last N points, or of all where fewer")
    which.add_argument("--all", action="store_true", help="the mean of all points")
    given = options.parse_args(list(arguments))
    if given.last is not None and given.last < 1:
        options.error(f"--last {given.last}: a whole number of at least 1")
    directories = [chosen_run(given.outputs, name) for name in given.runs]
    for directory in directories:
        check_readable(directory)
        if not directory.finished:
            options.error(f"{directory.run_id} is not finished; `xclrun rerun` goes on with it")

    from xclrun.run import thaw
    from xclrun.train.average import average, weights_of
    from xclrun.train.progress import Listener
    from xclrun.train.stop import StopFlag

    runs = [thaw(directory, directory.path.parents[1]) for directory in directories]
    # All is checked before anything is evaluated.
    chosen = [weights_of(run, given.last) for run in runs]
    for run, weights in zip(runs, chosen, strict=True):
        files = average(run, given.last, weights, Listener(), StopFlag())
        what = "all points" if given.last is None else f"the last {given.last} points"
        print(f"{run.id}: mean of {what}, {len(files)} hop{'s' if len(files) > 1 else ''}: {run.directory.averages}")
    return 0
