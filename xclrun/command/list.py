"""``xclrun list [GROUP]``: available choices, with one-line descriptions."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence

from xclrun.command.common import Parser
from xclrun.config.files import choices, choices_in, published, yielded
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.terminal import fitted


def main(arguments: Sequence[str]) -> int:
    """Print the choices of a group, or of all; return the exit code."""
    parser = Parser(
        prog="xclrun list",
        description="List the available GROUP=CHOICE options, with descriptions: of one group, or of all.",
    )
    parser.add_argument(
        "group",
        nargs="?",
        metavar="GROUP",
        help="a group, such as strategy; the group sweep includes the published tables and figures",
    )
    parser.add_json("print group → choice → description as JSON")
    parser.add_config_dir()
    args = parser.parse_args(list(arguments))
    groups = choices()
    if args.config_dir is not None:
        from xclrun.compose.overrides import load_config_dir

        load_config_dir(args.config_dir)
        # Plug-ins in the config folder may have registered choices.
        groups = choices()
        for group, names in choices_in(args.config_dir).items():
            groups[group] = groups.get(group, {}) | names
    if args.group is not None:
        if args.group.startswith("strategy."):
            from xclrun.compose.keys import nested_choices

            groups |= {key: names for key, names in nested_choices().items() if key == args.group}
        singular = re.sub("ies$", "y", args.group).removesuffix("s")
        group = args.group if args.group in groups else singular
        if group not in groups:
            available = [*groups, "strategy.expansion"]
            raise UsageError(f"list: unknown group '{args.group}'; {did_you_mean(args.group, available)}")
        groups = {group: groups[group]}
    if args.json:
        print(json.dumps(groups, indent=1, ensure_ascii=False))
        return 0
    for group in in_order(groups):
        print(group)
        lines = {name: name for name in groups[group]}
        if group == "sweep":
            # The published results of a sweep are indented below it.
            sweeps = [name for name in lines if name not in published()]
            lines = {name: f"{'  ' * (name != sweep)}{name}" for sweep in sweeps for name in (sweep, *yielded(sweep))}
        width = max(map(len, lines.values()))
        for name, line in lines.items():
            # Wrap only on a terminal, so programs read one line per choice.
            print(fitted(f"  {line:<{width}}  {groups[group][name]}", sys.stdout, " " * (width + 4)))
    return 0


def in_order(groups: Iterable[str]) -> list[str]:
    """Sort groups in the order in which a user meets them."""
    return sorted(groups, key=lambda group: _ORDER.index(group) if group in _ORDER else len(_ORDER))


_ORDER = (
    *("dataset", "order", "strategy", "model", "hydra/launcher", "hydra/sweeper", "trainer", "protocol", "evaluate"),
    *("tracking", "experiment", "sweep"),
)
