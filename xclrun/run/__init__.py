"""A run: one composed job, planned — what it will learn, in which order, under which names. Nothing is trained.

`plan` works it out, `checks` refuse what cannot be had together, `advice` warns of settings that do nothing, `frozen`
hands it to another process.
"""

from __future__ import annotations

from xclrun.run.frozen import freeze, thaw
from xclrun.run.plan import Run, notes, plan_jobs, plan_run, stream_of

__all__ = ["Run", "freeze", "notes", "plan_jobs", "plan_run", "stream_of", "thaw"]
