"""xclrun: cross-lingual continual learning, from a single command to publication-ready tables.

A *run* is one composed job: a dataset, an order of its languages, a strategy against forgetting, and a seed. Its
*stream* is a sequence of *hops*: train on one language, then evaluate on all; hop 0 is the model before fine-tuning.
The predictions after each hop are stored. A *metric* (intent accuracy) scores them; the scores after all hops form a
*score matrix*; *measures* (forgetting, transfer) are computed from it. A *stage* is the training of one hop, shared
by all runs that agree on everything before it. A *sweep* is a named set of runs; a *report* has its tables and figures.

docs/glossary.md defines all terms; docs/architecture.md describes the packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xclrun.core.errors import RunError, UsageError, XclrunError
from xclrun.core.version import VERSION as __version__

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from xclrun.analysis.columns import COLUMNS
    from xclrun.study import Study

__all__ = ["COLUMNS", "RunError", "Study", "UsageError", "XclrunError", "__version__", "load", "run"]


def load(outputs: str | Path | None = None, metrics: str | Iterable[str] = ()) -> Study:
    """Load all runs of an outputs directory, for notebooks; see `xclrun.study.Study` and docs/python.md.

    Metrics and measures of installed plug-ins are computed, too. Unreadable runs are skipped with a warning.

    Args:
        outputs: the directory; None: ``XCLRUN_OUTPUTS``, or else ``outputs`` in the current directory.
        metrics: metrics to add to those of the runs' tasks, for this process: ``label_bits``.

    Raises:
        UsageError: the directory does not exist, or contains no run.
    """
    # Imported here to keep ``import xclrun`` fast.
    from xclrun.study import Study

    return Study.read(outputs, metrics)


def run(*arguments: str) -> Study:
    """Run a command, print its progress, and return its runs: ``xclrun.run("strategy=naive,er", "seed=1,2")``.

    The command runs in another process, so code that this process has registered has no effect; write plug-ins. As on
    the command line, finished runs are skipped, and interrupted ones are resumed. An interrupt (Ctrl-C, or the stop
    button of a notebook) saves a checkpoint.

    Args:
        arguments: those of the command ``xclrun``, each as one text: settings, ``--plugin=FILE`` and
            ``--config-dir=DIR``.

    Raises:
        UsageError: a setting or the data are wrong; nothing was trained.
        RunError: a run failed.
    """
    from xclrun import study

    return study.run(*arguments)


def __getattr__(name: str) -> Any:
    # Imported on first use to keep ``import xclrun`` fast.
    if name == "Study":
        from xclrun.study import Study

        return Study
    if name == "COLUMNS":
        from xclrun.analysis.columns import COLUMNS

        return COLUMNS
    raise AttributeError(f"module 'xclrun' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
