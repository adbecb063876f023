"""Self-test: kill a run at random times, resume it, and compare its predictions with an uninterrupted run.

A child process executes the run and is killed by SIGKILL after a random time; another child resumes it, until one
finishes. Children are forked from a process with all imports, so they are killed during the run, not during imports.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from xclrun.core.errors import RunError
from xclrun.launch.workers import fork
from xclrun.plan import Run, plan_run
from xclrun.store.rundir import differing_results

# A run that takes seconds, with a checkpoint at every step.
JOB = (
    "dataset=mini",
    "dataset.languages=[en,de,th]",
    "dataset.max_train=48",
    "dataset.max_eval=24",
    "order=[en,de,th]",
    "model=tiny",
    "model.hidden_size=32",
    "model.intermediate_size=64",
    "model.vocab_size=600",
    "trainer.epochs=2",
    "trainer.checkpoint_minutes=0.000001",
    "runtime.device=cpu",
    "tracking=none",
)

# Strategy settings that suit a run this short.
SHORT = {"replay_write": 0.3, "replay_interval": 12, "replay_number": 20, "rate": 0.5}
SHORT |= {"neighbours": 2, "adapt_steps": 1}

# One strategy per kind of state between hops: none, a memory, a memory with random
# writes, stored outputs, a penalty per hop, one penalty, teacher outputs, path integrals, a merge.
KINDS = ("naive", "er", "replay", "der", "ewc", "ewc_online", "kd_logit", "si", "merge")


@dataclass(frozen=True)
class Outcome:
    """The result of testing one strategy.

    Attributes:
        kills: number of kills.
        seconds: duration of the test.
        equal: whether the final predictions are identical; otherwise ``differing`` has the names of the files.
    """

    strategy: str
    kills: int
    seconds: float
    equal: bool
    differing: tuple[str, ...]


def job(strategy: str, outputs: Path, extra: Sequence[str] = ()) -> Run:
    """Return a small run of a strategy, such as ``er``, or ``er+lang_spec_task`` with an expansion."""
    from xclrun.compose.jobs import compose_command
    from xclrun.core.task import SEQUENCE_CLASS, task_of
    from xclrun.strategy import make, strategy_class

    name, _, expansion = strategy.partition("+")
    chosen = [f"strategy={name}"] + ([f"strategy.expansion={expansion}"] if expansion else [])
    keys = {field.name for field in fields(strategy_class(name).settings_type)}
    chosen += [f"strategy.{key}={value}" for key, value in SHORT.items() if key in keys]
    overrides = [*JOB, *chosen, f"paths.outputs={outputs}", *extra]
    [composed] = compose_command(overrides)
    if make(composed.config.strategy).unsupported([task_of(composed.config.dataset.task)]) is not None:
        # The strategy does not support slots: use the same sentences with their intents only.
        [composed] = compose_command([*overrides, f"dataset.task={SEQUENCE_CLASS.name}"])
    return plan_run(composed.config)


def do(run: Run) -> None:
    """Execute a run without output."""
    from xclrun.train.execute import execute
    from xclrun.train.progress import Listener
    from xclrun.train.stop import StopFlag

    execute(run, Listener(), StopFlag())


def import_everything() -> None:
    """Import all modules of a run before forking."""
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import safetensors.torch  # noqa: F401
    from transformers import BertModel, BertTokenizerFast, PreTrainedTokenizerFast  # noqa: F401

    import xclrun.train.execute  # noqa: F401


def in_child(work: Callable[[], object], seconds: float | None = None) -> int:
    """Call a function in a forked child; kill it after ``seconds``. Return its wait status."""
    child = fork(work)
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if end is not None and time.monotonic() >= end:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]
        time.sleep(0.001)


def kill_test(
    strategy: str, kills: int, seed: int, folder: Path, budget: float = 600.0, extra: Sequence[str] = ()
) -> Outcome:
    """Compare a run that is killed ``kills`` times with one that is not.

    Args:
        kills: number of kills within the budget; a run that finishes early is repeated.
        seed: seed of the random times.
        folder: outputs of both runs.
        budget: seconds until runs are no longer killed; doubled if no run has been killed by then.
        extra: further overrides of the run.
    """
    import_everything()
    calm, draw = job(strategy, folder / "calm", extra), random.Random(seed)
    began, killed, attempt = time.monotonic(), 0, 0

    def enough() -> bool:
        return killed >= kills or time.monotonic() - began > (budget if killed else 2 * budget)

    if in_child(lambda: do(calm)) != 0 or not calm.directory.finished:
        raise RunError(f"selftest: the uninterrupted run of {strategy} failed")
    length = time.monotonic() - began
    while True:
        run = job(strategy, folder / f"killed-{attempt}", extra)
        while not run.directory.finished:
            status = in_child(lambda run=run: do(run), None if enough() else draw.uniform(0.0, length))  # type: ignore[misc]
            if os.WIFSIGNALED(status):
                killed += 1
            elif status != 0:
                raise RunError(f"selftest: {strategy} failed after {killed} kills (see above)")
        differing = tuple(differing_results(calm.directory, run.directory))
        if differing or enough():
            return Outcome(strategy, killed, time.monotonic() - began, not differing, differing)
        attempt += 1


def selftest(strategies: Sequence[str], kills: int, seed: int, budget: float = 150.0) -> list[Outcome]:
    """Test all strategies within about ``budget`` seconds in total, in a temporary folder."""
    end, outcomes = time.monotonic() + budget, []
    with tempfile.TemporaryDirectory(prefix="xclrun-selftest-") as folder:
        for i, strategy in enumerate(strategies):
            # Unused time goes to the next strategies.
            share = max((end - time.monotonic()) / (len(strategies) - i), budget / len(strategies))
            outcomes.append(kill_test(strategy, kills, seed, Path(folder) / strategy, share))
    return outcomes
