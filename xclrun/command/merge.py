"""``xclrun model merge RUN``: merge the models of a run's hops and evaluate the merge, without training."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from xclrun.command.common import RUN_HELP, finished_runs, outputs_parser


def main(arguments: Sequence[str]) -> int:
    """Evaluate merged models of runs; return the exit code."""
    parser = outputs_parser(
        "model merge",
        "Merge the stored weights of a run's hops, evaluate the merge after every hop like a trained model, and store "
        "the result as a run of strategy merge, which reports show next to the original. Nothing is trained.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUN_HELP)
    parser.add_argument(
        "--method", required=True, help="method of strategy=merge: mean, ties, … (see docs/strategies.md)"
    )
    parser.add_argument(
        "--coefficient",
        action="append",
        default=[],
        metavar="NAME=VALUE[,VALUE…]",
        help="setting of the method, as in scale=0.3; several values need --select-on dev; repeatable",
    )
    parser.add_argument(
        "--select-on",
        choices=("dev",),
        help="choose among the values by the mean dev score of all learned languages after the last hop",
    )
    args = parser.parse_args(list(arguments))
    runs = finished_runs(args.outputs, args.runs)

    from xclrun.core.terminal import note
    from xclrun.train.execute import execute
    from xclrun.train.merge import candidates, coefficients_of, dev_score
    from xclrun.train.progress import Listener
    from xclrun.train.stages import check_weights
    from xclrun.train.stop import stop_on_signals

    # Check all runs before evaluating any.
    merges = [candidates(run, args.method, args.coefficient) for run in runs]
    for run, variants in zip(runs, merges, strict=True):
        check_weights(run, run.stages[1:])
        if len(variants) > 1 and args.select_on is None:
            parser.error("--coefficient: several values need --select-on dev, as test scores must not select a value")
    with stop_on_signals() as stop:
        for run, variants in zip(runs, merges, strict=True):
            scores, metric = {}, run.dataset.metrics.all[0]
            for settings, variant in variants.items() if args.select_on else ():
                score = scores[settings] = dev_score(variant, stop)
                shown = f"{metric.quantity.shown(metric.goodness(score))} {metric.unit}"
                print(f"{run.id}: {settings or 'default values'}: dev {shown if isfinite(score) else 'undefined'}")
            # The first of equal scores; without selection there is one variant.
            best = max(variants, key=lambda settings: scores.get(settings, 0))
            chosen = variants[best]
            for text in chosen.strategy().notes(()):
                note(text)
            tried = [coefficients_of(variant, args.coefficient) for variant in variants.values()] if scores else []
            execute(chosen, Listener(), stop, tried=tried)
            named = f" with {best}, chosen on dev" if scores else ""
            merge = f"merge of {len(run.stages) - 1} hops of {run.id}{named}, no training"
            print(f"{chosen.id}: {merge}: {chosen.directory.path}")
    return 0
