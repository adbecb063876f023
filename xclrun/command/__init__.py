"""The subcommands, one file each. Heavy modules are imported when a command runs, so that help is fast."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from collections.abc import Sequence
from typing import TextIO, cast

from xclrun.config.files import choices
from xclrun.core.terminal import PrintableOutput

# Name → description; the module of the same name has a `main`.
COMMANDS = {
    "list": "available choices of a group, with descriptions",
    "report": "tables and figures over finished runs",
    "plan": "dry run: number of runs, trainings after deduplication, time, disk",
    "data": "audit a dataset: sizes, labels, shared sentences, subwords",
    "buckets": "few-shot training sets: make, check, show",
    "params": "number of parameters of a strategy: total, by hop, by part",
    "status": "state of the runs of a sweep",
    "logs": "show a run's Slurm log",
    "cancel": "cancel the Slurm jobs of a sweep",
    "show": "settings, scores, command and files of a run",
    "rerun": "re-run from the saved config; --fresh verifies reproducibility",
    "compare": "compare two runs: settings, scores, and a paired test",
    "ui": "open MLflow's web interface on the runs",
    "sync": "send new runs to MLflow or another tracker",
    "average": "average a hop's last checkpoints and evaluate the result",
    "merge": "merge the models of a run's hops and evaluate the merge",
    "export": "export a trained model in Hugging Face format",
    "rm": "delete a run or a sweep, with its copies and stored artifacts",
    "store": "manage stored artifacts: list, remove, verify",
    "selftest": "kill and resume small runs; verify equal predictions",
}

# Commands with KEY=VALUE arguments, like `xclrun` itself.
TAKE_OVERRIDES = ("plan", "data", "buckets", "params")

# Commands that train or evaluate runs, if necessary with the ranks of a launcher.
TRAIN = ("rerun", "merge")

# Commands that take a run or sweep → the folder under outputs that shell completion lists.
NAME = dict.fromkeys(("show", "rerun", "compare", "average", "merge", "export", "logs", "rm"), "runs")
NAME |= dict.fromkeys(("report", "status", "cancel"), "sweeps")


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a subcommand; return the exit code."""
    with contextlib.redirect_stdout(cast(TextIO, PrintableOutput(sys.stdout))):
        code: int = importlib.import_module(f"xclrun.command.{name}").main(arguments)
    return code


def options(name: str) -> list[str]:
    """Return the options of a subcommand, for shell completion."""
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        run(name, ["--help"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text.getvalue())))


def overview() -> str:
    """Return the text of ``xclrun --help``, which fits on a screen."""
    from xclrun.command.list import in_order

    groups = choices()
    return "\n".join(
        [
            "usage: xclrun KEY=VALUE … [-m] [-q]   several values: strategy=naive,er -m",
            "commands, xclrun COMMAND [--help]:",
            *(f"  {name:<9} {description}" for name, description in COMMANDS.items()),
            "",
            "choices, GROUP=CHOICE (full list with descriptions: xclrun list GROUP):",
            *_two_columns([(group, _fitting_names([*groups[group]], 61)) for group in in_order(groups)]),
            "values, KEY=VALUE: seed=1 order=[en,th] strategy.expansion=lang_spec_task",
            "  xclrun --cfg job strategy=…        print the composed config",
            "  xclrun --config-dir DIR --plugin FILE.py …  your own YAML files and plug-ins",
            '  eval "$(xclrun -sc install=bash)"  shell completion',
            "  XCLRUN_OUTPUTS=DIR XCLRUN_DEBUG=1  folder of all outputs; full tracebacks",
        ]
    )


def _two_columns(groups: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines of groups and choices; two consecutive short groups share a line."""
    lines: list[str] = []
    room = False
    for group, text in groups:
        if room and len(text) <= 20:
            lines[-1] = f"{lines[-1]:<43}{group:<15} {text}"
            room = False
        else:
            lines.append(f"  {group:<15} {text}")
            room = len(text) <= 24
    return lines


def _fitting_names(names: Sequence[str], width: int) -> str:
    """Return as many names as fit, and the number of remaining names."""
    text, count = " ".join(names), len(names)
    while len(text) > width:
        count -= 1
        text = f"{' '.join(names[:count])} … {len(names) - count} more"
    return text
