"""``xclrun list [GROUP]``: what can be chosen, and in a line what each choice is."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence

from xclrun.command.common import Parser
from xclrun.config.files import choices, choices_in, published, yielded
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.terminal import fitted


def main(arguments: Sequence[str]) -> int:
    """Print the choices of a group, or of all; return the exit code."""
    parser = Parser(
        prog="xclrun list",
        description="What can be chosen as GROUP=CHOICE, and what each choice is: of one group, or of all.",
    )
    parser.add_argument(
        "group", nargs="?", metavar="GROUP", help="a group, such as strategy; sweep: which table or figure each yields"
    )
    parser.add_json("print group → choice → description as JSON")
    parser.add_config_dir()
    args = parser.parse_args(list(arguments))
    asked, groups = args.group, choices()
    if args.config_dir is not None:
        from xclrun.compose.overrides import own_files

        own_files(args.config_dir)
        # Plug-ins of the folder may have registered choices.
        groups = choices()
        for group, own in choices_in(args.config_dir).items():
            groups[group] = groups.get(group, {}) | own
    if asked is not None:
        if asked == "strategy.expansion":
            from xclrun.compose.keys import expansions_known

            groups[asked] = expansions_known()
        group = asked if asked in groups else re.sub("ies$", "y", asked).removesuffix("s")
        if group not in groups:
            known = [*groups, "strategy.expansion"]
            raise UsageError(f"list: no group is called '{asked}'; {did_you_mean(asked, known)}")
        groups = {group: groups[group]}
    if args.json:
        print(json.dumps(groups, indent=1, ensure_ascii=False))
        return 0
    for group in in_order(groups):
        print(group)
        lines = {name: name for name in groups[group]}
        if group == "sweep":
            # What a sweep yields stands beneath it.
            sweeps = [name for name in lines if name not in published()]
            lines = {name: f"{'  ' * (name != sweep)}{name}" for sweep in sweeps for name in (sweep, *yielded(sweep))}
        width = max(map(len, lines.values()))
        for name, shown in lines.items():
            # Elsewhere than on a terminal in one line, for other programs to read.
            print(fitted(f"  {shown:<{width}}  {groups[group][name]}", sys.stdout, " " * (width + 4)))
    return 0


def in_order(groups: Sequence[str] | dict[str, dict[str, str]]) -> list[str]:
    """Return groups in the order in which a person meets them."""
    return sorted(groups, key=lambda g: _ORDER.index(g) if g in _ORDER else len(_ORDER))


_ORDER = (
    "dataset",
    "order",
    "strategy",
    "model",
    "hydra/launcher",
    "hydra/sweeper",
    "trainer",
    "protocol",
    "evaluate",
    "tracking",
    "experiment",
    "sweep",
)
