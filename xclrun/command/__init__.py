"""The subcommands, one file each. What is heavy is imported when a command runs, so that help answers at once."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Sequence

from xclrun.config.files import choices

# Name → what it does, in a few words; the file of the same name has its `main`.
COMMANDS = {
    "list": "what can be chosen in a group, and what each choice is",
    "report": "tables and figures over what has run",
    "plan": "what a command would do: runs, trainings after sharing, time, disk",
    "data": "audit a dataset: sizes, labels, shared sentences, word pieces",
    "buckets": "few-shot training sets: make, check, show",
    "params": "how many parameters a strategy has: in all, by hop, by part",
    "status": "where the runs of a sweep stand",
    "logs": "show a run's Slurm log",
    "cancel": "end the Slurm jobs of a sweep",
    "show": "what a run is, its scores, its command, where its files are",
    "rerun": "a run again from its frozen config; --fresh compares it",
    "compare": "two runs: settings, scores, and a paired test of these",
    "ui": "open MLflow's pages on the runs",
    "sync": "send to MLflow what it does not have yet",
    "average": "the mean of a hop's last checkpoints, evaluated",
    "export": "a trained hop as files for other programs",
    "store": "look after the trained hops: list, remove, verify",
    "selftest": "kill small runs on this machine, continue them, compare",
}

# Those that take KEY=VALUE as `xclrun` itself does.
TAKE_OVERRIDES = ("plan", "data", "buckets", "params")

# Those that take the name of a run or of a sweep: the folder of the outputs whose entries have these names.
NAME = dict.fromkeys(("show", "rerun", "compare", "average", "export", "logs"), "runs")
NAME |= dict.fromkeys(("report", "status", "cancel"), "sweeps")


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a subcommand; return the exit code."""
    code: int = importlib.import_module(f"xclrun.command.{name}").main(arguments)
    return code


def options(name: str) -> list[str]:
    """Return the options of a subcommand, for shell completion."""
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        run(name, ["--help"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text.getvalue())))


def overview() -> str:
    """Return the text of ``xclrun --help``, which fits a screen: usage, subcommands, groups, some choices."""
    from xclrun.command.list import in_order

    groups = choices()
    return "\n".join(
        [
            "usage: xclrun KEY=VALUE … [-m] [-q]   several values: strategy=naive,er -m",
            "commands, xclrun COMMAND [--help]:",
            *(f"  {name:<9} {what}" for name, what in COMMANDS.items()),
            "",
            "choices, GROUP=CHOICE (all, and what each is: xclrun list GROUP):",
            *_two_columns([(group, _some([*groups[group]], 61)) for group in in_order(groups)]),
            "",
            "values, KEY=VALUE: seed=1 order=[en,th] strategy.expansion=lang_spec_task",
            "  xclrun --cfg job strategy=…        every value as it would be run",
            "  xclrun --config-dir DIR --plugin FILE.py …  YAML files and code of your own",
            '  eval "$(xclrun -sc install=bash)"  completion in the shell',
            "  XCLRUN_OUTPUTS=DIR XCLRUN_DEBUG=1  where everything goes; full tracebacks",
        ]
    )


def _two_columns(groups: Sequence[tuple[str, str]]) -> list[str]:
    """Return a line for each group and its choices; two that follow each other share one where both are short."""
    lines, left = [], [*groups]  # Not list(): that is the name of a command here.
    while left:
        group, text = left.pop(0)
        line = f"  {group:<15} {text}"
        if left and len(text) <= 24 and len(left[0][1]) <= 20:
            group, text = left.pop(0)
            line = f"{line:<43}{group:<15} {text}"
        lines.append(line)
    return lines


def _some(names: Sequence[str], width: int) -> str:
    """Return as many names as fit, and how many more there are."""
    text = " ".join(names)
    kept = [*names]
    while len(text) > width:
        kept.pop()
        text = f"{' '.join(kept)} … {len(names) - len(kept)} more"
    return text
