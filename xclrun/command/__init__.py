"""The subcommands, one file each. Heavy modules are imported when a command runs, so that help is fast.

Some commands are grouped: ``xclrun model export`` is the module `xclrun.command.export`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from collections.abc import Sequence
from typing import TextIO, cast

from xclrun.config.files import choices
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.terminal import PrintableOutput, note

# Name → description; the module of the same name, unless it is a group, has a `main`.
COMMANDS = {
    "list": "available choices of a group, with descriptions",
    "report": "tables and figures over finished runs",
    "plan": "dry run: number of runs, trainings after deduplication, time, disk",
    "data": "audit a dataset; buckets: few-shot training sets",
    "status": "state of the runs of a sweep",
    "logs": "show a run's Slurm log",
    "cancel": "cancel the Slurm jobs of a sweep",
    "show": "settings, scores and files of a run; differences of two runs",
    "rerun": "re-run from the saved config; --fresh verifies reproducibility",
    "model": "average, merge or export trained models",
    "mlflow": "ui: open MLflow's web interface; sync: send new runs",
    "rm": "delete a run or a sweep, with its copies and stored artifacts",
    "store": "manage stored artifacts: list, remove, verify",
    "selftest": "kill and resume small runs; verify equal predictions",
}

# Group → command → description; the module of the command's name has a `main`.
GROUPS = {
    "data": {
        "audit": "sizes, labels, shared sentences, subwords of a dataset",
        "buckets": "few-shot training sets: make, check, show",
    },
    "model": {
        "average": "average a hop's last checkpoints and evaluate the result",
        "merge": "merge the models of a run's hops and evaluate the merge",
        "export": "export a trained model in Hugging Face format",
    },
    "mlflow": {
        "ui": "open MLflow's web interface on the runs",
        "sync": "send new runs to MLflow or another tracker",
    },
}

# Name in version 0.2.0 → present name. The next release no longer accepts the former names.
FORMER = {
    "buckets": "data buckets",
    "params": "plan --params",
    "compare": "show",
    "ui": "mlflow ui",
    "sync": "mlflow sync",
    "average": "model average",
    "merge": "model merge",
    "export": "model export",
}

# Names of modules (those of groups have none), and former names.
MODULES = {*COMMANDS, *FORMER, *(name for group in GROUPS.values() for name in group)}

# Commands with KEY=VALUE arguments, like `xclrun` itself.
TAKE_OVERRIDES = ("plan", "audit", "buckets")

# Commands that train or evaluate runs, if necessary with the ranks of a launcher.
TRAIN = ("rerun", "merge")

# Commands that take a run or sweep → the folder under outputs that shell completion lists.
NAME = dict.fromkeys(("show", "rerun", "average", "merge", "export", "logs", "rm"), "runs")
NAME |= dict.fromkeys(("report", "status", "cancel"), "sweeps")


def resolve(arguments: Sequence[str]) -> list[str]:
    """Return a command line in which the name of a module replaces the words of the command.

    Prints a note for a former name.
    """
    first, *rest = arguments
    if first in FORMER:
        note(f"`xclrun {first}` is now `xclrun {FORMER[first]}`; the next release needs the new name")
        return resolve([*FORMER[first].split(), *rest])
    if first in GROUPS and rest and rest[0] in GROUPS[first]:
        return rest
    if first == "plan" and "--params" in rest:
        return ["params", *(word for word in rest if word != "--params")]
    return [first, *rest]


def run(name: str, arguments: Sequence[str]) -> int:
    """Run the module of a subcommand; return the exit code."""
    with contextlib.redirect_stdout(cast(TextIO, PrintableOutput(sys.stdout))):
        if name in GROUPS:
            return _group(name, arguments)
        code: int = importlib.import_module(f"xclrun.command.{name}").main(arguments)
    return code


def _group(name: str, arguments: Sequence[str]) -> int:
    """Print the commands of a group, for ``--help``; raise a `UsageError` for other arguments."""
    commands = GROUPS[name]
    if arguments[:1] and arguments[0] in ("-h", "--help"):
        print(f"usage: xclrun {name} COMMAND … [--help]\n\ncommands:")
        print("\n".join(f"  {command:<9} {description}" for command, description in commands.items()))
        return 0
    if not arguments:
        raise UsageError(f"{name}: needs a command: {', '.join(commands)}")
    raise UsageError(f"{name}: unknown command '{arguments[0]}'; {did_you_mean(arguments[0], commands)}")


def options(name: str) -> list[str]:
    """Return the options of a subcommand's module, for shell completion."""
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
