"""``xclrun model average RUN``: average a hop's last checkpoints and evaluate the result."""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.command.common import RUN_HELP, finished_runs, outputs_parser


def main(arguments: Sequence[str]) -> int:
    """Evaluate averaged weights of runs; return the exit code."""
    parser = outputs_parser(
        "model average",
        "Average the weights at the last evaluation points of each hop of a run and evaluate the result. This needs "
        "neither dev data nor training, but the run must have stored weights (evaluate.keep_points). Reports compare "
        "the average with the rules that select a checkpoint.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUN_HELP)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="N", help="average the last N points, or all if there are fewer")
    which.add_argument("--all", action="store_true", help="average all points")
    args = parser.parse_args(list(arguments))
    if args.last is not None and args.last < 1:
        parser.error(f"--last {args.last}: must be a whole number of at least 1")
    runs = finished_runs(args.outputs, args.runs)

    from xclrun.train.average import average, weights_of
    from xclrun.train.progress import Listener
    from xclrun.train.stop import StopFlag

    # Check all runs before evaluating any.
    for run, weights in [(run, weights_of(run, args.last)) for run in runs]:
        files = average(run, args.last, weights, Listener(), StopFlag())
        points = "all points" if args.last is None else f"the last {args.last} points"
        print(f"{run.id}: mean of {points}, {len(files)} hop{'s' if len(files) > 1 else ''}: {run.directory.averages}")
    return 0
