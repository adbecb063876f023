"""xclrun: cross-lingual continual learning, from a single command to publication-ready tables.

A *run* is one composed job: a dataset, an order of its languages, a strategy against forgetting, and a seed. Its
*stream* is a sequence of *hops*: train on one language, then evaluate on all; hop 0 is the model before fine-tuning.
The predictions after each hop are stored. A *metric* (intent accuracy) scores them; the scores after all hops form a
*score matrix*; *measures* (forgetting, transfer) are computed from it. A *stage* is the training of one hop, shared
by all runs that agree on everything before it. A *sweep* is a named set of runs; a *report* has its tables and figures.

docs/glossary.md defines all terms; docs/architecture.md describes the packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xclrun.core.version import VERSION as __version__

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from xclrun.study import Study

__all__ = ["__version__", "load"]


def load(outputs: str | Path | None = None, metrics: Iterable[str] = ()) -> Study:
    """Load all runs of an outputs directory, for notebooks; see `xclrun.study.Study` and docs/python.md.

    Unreadable runs are skipped with a warning.

    Args:
        outputs: the directory; None: ``XCLRUN_OUTPUTS``, or else ``outputs`` in the current directory.
        metrics: metrics to add to those of the runs' tasks, for this process: ``label_bits``.

    Raises:
        UsageError: the directory does not exist, or contains no run.
    """
    # Imported here to keep ``import xclrun`` fast.
    from xclrun.study import Study

    return Study.read(outputs, metrics)
