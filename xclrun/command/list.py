"""``xclrun list [GROUP]``: what can be chosen, and in a line what each choice is."""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.command.common import Parser
from xclrun.config import choices
from xclrun.errors import UsageError, did_you_mean


def main(arguments: Sequence[str]) -> int:
    """Print the choices of a group, or of all; return the exit code."""
    parser = Parser(
        prog="xclrun list",
        description="What can be chosen as GROUP=CHOICE, and what each choice is: of one group, or of all.",
    )
    parser.add_argument("group", nargs="?", metavar="GROUP", help="a group, such as strategy")
    asked = parser.parse_args(list(arguments)).group
    found = choices()
    # They are given as strategy.expansion=NAME, and told among the strategies.
    expansions = found.pop("strategy/expansion")
    if asked is not None:
        found["strategy.expansion"] = expansions
        if asked not in found:
            raise UsageError(f"list: no group is called '{asked}'; {did_you_mean(asked, found)}")
        found = {asked: found[asked]}
    for group in in_order(found):
        print(group)
        width = max(map(len, found[group]))
        print("\n".join(f"  {choice:<{width}}  {comment}" for choice, comment in found[group].items()))
    return 0


def in_order(groups: Sequence[str] | dict[str, dict[str, str]]) -> list[str]:
    """Return groups in the order in which a person meets them."""
    return sorted(groups, key=lambda g: _ORDER.index(g) if g in _ORDER else len(_ORDER))


_ORDER = (
    "dataset",
    "order",
    "strategy",
    "model",
    "trainer",
    "protocol",
    "evaluate",
    "tracking",
    "experiment",
    "hydra/launcher",
    "sweep",
)
