"""The subcommands, one file each. What is heavy is imported when a command runs, so that help answers at once."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Sequence

from xclrun.config import choices

# Name → what it does, in a few words; the file of the same name has its `main`.
COMMANDS = {
    "report": "tables and figures over what has run",
    "plan": "what a command would do: runs, trainings after sharing, time, disk",
    "data": "audit a dataset: sizes, labels, sentences that splits share, word pieces",
    "buckets": "few-shot training sets: make, check, show",
    "params": "how many parameters a strategy has: in all, trained at each hop, by part",
    "status": "where the runs of a sweep stand",
    "logs": "what the Slurm job that did a run said",
    "cancel": "end the Slurm jobs of a sweep",
    "ui": "open MLflow's pages on the runs",
    "sync": "send to MLflow what it does not have yet",
    "store": "look after the trained hops: list, remove, verify",
    "selftest": "kill small runs on this machine, continue them, compare",
}


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a subcommand; return the exit code."""
    code: int = importlib.import_module(f"xclrun.command.{name}").main(arguments)
    return code


def options(name: str) -> list[str]:
    """Return the options of a subcommand, for shell completion."""
    with contextlib.redirect_stdout(io.StringIO()) as told, contextlib.suppress(SystemExit):
        run(name, ["--help"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", told.getvalue())))


def overview() -> str:
    """Return the text of ``xclrun --help``: usage, subcommands, groups and choices."""
    found = choices()
    lines = [
        "xclrun: cross-lingual continual learning experiments",
        "",
        "usage: xclrun KEY=VALUE … [-m]          run jobs; several values make a sweep: strategy=naive,er seed=1,2 -m",
        "       xclrun COMMAND [--help]",
        "",
        "commands:",
        *(f"  {name:<10} {what}" for name, what in COMMANDS.items()),
        "",
        "choices (GROUP=CHOICE):",
    ]
    # Those beneath a strategy are strategies, told there.
    found.pop("strategy/expansion")
    for group in sorted(found, key=lambda g: _ORDER.index(g) if g in _ORDER else len(_ORDER)):
        lines.append(f"  {group}")
        lines += [f"    {choice:<13} {comment}"[:158] for choice, comment in found[group].items()]
    lines += [
        "",
        "values (KEY=VALUE), for example: trainer.epochs=3 trainer.lr=1e-4 dataset.max_train=500 order=[en,de,th]",
        "  strategy.expansion=lang_spec_task  parts of their own for languages beneath er, agem, ewc, kd_… (or null)",
        "  xclrun --cfg job                   every value, with strategy=… and the like as they would be run",
        "  xclrun --config-dir DIR …          your own YAML files too: DIR/strategy/mine.yaml is strategy=mine",
        '  xclrun -sc install=bash            shell completion: eval "$(xclrun -sc install=bash)"',
        "  XCLRUN_OUTPUTS=DIR, paths.outputs=DIR   where everything is written (default: outputs)",
        "  XCLRUN_DEBUG=1                     full tracebacks",
    ]
    return "\n".join(lines)


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
