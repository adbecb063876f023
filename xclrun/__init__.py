"""xclrun: cross-lingual continual learning, from one command to a table that a reviewer believes.

A *run* is one composed job: a dataset, an order of its languages, a strategy against forgetting and a seed. Its
*stream* is a sequence of *hops*: train on one language, then evaluate on all; hop 0 is the model before any
fine-tuning. What a hop predicts is stored; a *metric* (intent accuracy) scores it, the scores after every hop make a
*score matrix*, and *measures* (forgetting, transfer) are computed from that. A *stage* is the training of one hop,
shared by all runs that agree on everything before it. A *sweep* is a named set of runs, a *report* the tables and
figures over them.

All words: docs/glossary.md. Which room of the code does what: docs/architecture.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from xclrun.study import Study

__all__ = ["load"]

__version__ = "0.2.0"


def load(outputs: str | Path | None = None) -> Study:
    """Return all runs under an outputs folder, for notebooks: see `xclrun.study.Study` and docs/python.md.

    Args:
        outputs: the folder; None: ``XCLRUN_OUTPUTS``, else ``outputs`` in the current folder.

    Raises:
        UsageError: there is no such folder, or no run in it. Runs that cannot be read are left out, with a warning.
    """
    # Here, so that ``import xclrun`` costs nothing.
    from xclrun.study import Study

    return Study.read(outputs)
