"""A planned run: its hops, run ID and store keys. `run` derives them, `checks` refuses incompatible settings, `advice`
warns about settings without effect, and `frozen` saves the config for another process.
"""

from __future__ import annotations

from xclrun.plan.advice import notes
from xclrun.plan.frozen import freeze, thaw
from xclrun.plan.run import Run, plan_jobs, plan_run, stream_of

__all__ = ["Run", "freeze", "notes", "plan_jobs", "plan_run", "stream_of", "thaw"]
