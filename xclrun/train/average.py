"""Checkpoint averaging: average the weights of a hop's last evaluation points, and evaluate the mean on test data.

This model selection needs stored weights (``evaluate.keep_points``), but no dev data (docs/checkpoints.md). The
predictions are cached in the store; reports read a copy in the run directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from xclrun.core.errors import UsageError
from xclrun.core.graph import Stage
from xclrun.plan import Run
from xclrun.store import predictions
from xclrun.store.cache import CachedFile
from xclrun.store.tensors import load_tensors
from xclrun.strategy.shared.merging import mean
from xclrun.train.progress import Listener
from xclrun.train.stages import StageGraph, check_weights, evaluated_weights
from xclrun.train.stop import StopFlag


def mean_weights(files: Sequence[Path]) -> dict[str, Tensor]:
    """Return the weights in safetensors files, averaged over the files."""
    return mean(map(load_tensors, files))


def weights_of(run: Run, last: int | None) -> list[list[Path]]:
    """Return the weight files of each hop's last evaluation points, after checking that the files are undamaged.

    Args:
        last: number of points per hop; None: all.

    Raises:
        UsageError: the run stored the weights of fewer points, or the strategy adds parameters.
        RunError: the files are missing or damaged.
    """
    option = "--all" if last is None else f"--last {last}"
    hops = [stage for stage in run.stages if stage.hop.index]
    if run.config.evaluate.keep_points is None:
        raise UsageError(
            f"{option}: {run.id} stored no weights of evaluation points; retrain it with "
            "evaluate.keep_points=5 (or all) and evaluate.every_share=1 (a point after each epoch)"
        )
    if any(stage.plan.serve for stage in hops):
        raise UsageError(
            f"{option}: {run.strategy_name} adds parameters or has language-specific weights; neither is averaged"
        )
    return [_chosen(run, stage, option, last) for stage in hops]


def average(
    run: Run, last: int | None, chosen: Sequence[Sequence[Path]], listener: Listener, stop: StopFlag
) -> list[Path]:
    """Average each hop's weight files, evaluate the mean, and return the files with the predictions.

    Args:
        chosen: weight files of each hop, from `weights_of` with the same ``last``.
    """
    graph = StageGraph(run, listener, stop)
    files_written = []
    for stage, files in zip([stage for stage in run.stages if stage.hop.index], chosen, strict=True):
        folder = graph.averaged(stage, [path.name for path in files], partial(mean_weights, files))
        rows = predictions.read(folder / "predictions.parquet")
        content = predictions.content(rows, run_id=run.id, hop=stage.hop.index)
        name = "all" if last is None else f"last-{last}"
        files_written.append(
            CachedFile(run.directory.averages, f"{name}-hop-{stage.hop.index}", ".parquet").write(content)
        )
    return files_written


def _chosen(run: Run, stage: Stage, option: str, last: int | None) -> list[Path]:
    store, hop = run.store, stage.hop.index
    check_weights(run, evaluated_weights(run, stage))
    files = sorted(store.path(stage.train).glob("point-*.safetensors"))
    points = len(store.facts(stage.train)["training"]["points"])
    count = last or points
    if len(files) < count:
        raise UsageError(
            f"{option}: hop {hop} of {run.id} has {points} evaluation points and the weights of {len(files)} of them; "
            f"use --last {len(files)}"
        )
    return files[len(files) - count :]
