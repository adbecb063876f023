"""``xclrun selftest``: test that killed runs resume exactly on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.command.common import Parser, check_known
from xclrun.core.errors import UsageError

# Exit code if no predictions differ, but a strategy could not be killed in time.
INCONCLUSIVE = 3


def main(arguments: Sequence[str]) -> int:
    """Test strategies; return 1 on any difference, else `INCONCLUSIVE` if one was never killed, else 0."""
    parser = Parser(
        prog="xclrun selftest",
        description="Kill a small run of each strategy at random times, resume it, and compare its predictions with "
        "those of an uninterrupted run. Takes about a minute, on a slow machine up to five. Exit code: 0 if all are "
        "identical, 1 if any differ, 3 if a strategy could not be killed in time (inconclusive).",
    )
    parser.add_argument(
        "strategies",
        nargs="*",
        metavar="STRATEGY",
        help="er, er+lang_spec_task, … (default: one strategy for each kind of saved state)",
    )
    parser.add_argument(
        "--kills", type=int, default=3, help="kills per strategy, as far as time allows (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed of the kill times (default: %(default)s)")
    args = parser.parse_args(list(arguments))
    if args.kills < 1:
        raise UsageError(f"--kills {args.kills}: must be a whole number of at least 1")

    from xclrun.core.terminal import table
    from xclrun.launch import selftest as test
    from xclrun.strategy import STRATEGIES

    for name in args.strategies:
        check_known("strategy", name.partition("+")[0], STRATEGIES, "xclrun")
    outcomes = test.selftest(args.strategies or test.KINDS, args.kills, args.seed)
    untested = [o.strategy for o in outcomes if o.equal and not o.kills]
    rows = []
    for o in outcomes:
        verdict = "inconclusive" if o.strategy in untested else "identical" if o.equal else ""
        rows.append((o.strategy, str(o.kills), f"{o.seconds:.1f}", verdict or f"DIFFER: {', '.join(o.differing)}"))
    print(table(("strategy", "kills", "seconds", "predictions"), rows, wrapped=True))
    if untested:
        names = " ".join(untested)
        print(f"Inconclusive: no time to kill {', '.join(untested)}; test them alone: xclrun selftest {names}")
    if not all(o.equal for o in outcomes):
        return 1
    return INCONCLUSIVE if untested else 0
