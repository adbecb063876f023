"""Checkpoint averaging: the mean of the weights at a hop's last evaluation points, evaluated on the test splits.

A choice that needs no dev data, of any language. Weights of points are kept where ``evaluate.keep_points`` asks for
them. Predictions of the averaged model lie in the store by key, and a copy beside the run, from where reports take them
as one more rule (docs/checkpoints.md). Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from xclrun.core.errors import RunError, UsageError
from xclrun.core.identity import Stage
from xclrun.run import Run
from xclrun.store import predictions
from xclrun.store.cache import CachedFile
from xclrun.store.tensors import load_tensors
from xclrun.train.progress import Listener
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag


def mean_weights(files: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the floating tensors of safetensors files, in their own type; the last file's of all others.

    Summed in double precision, in the order of the files.
    """
    total: dict[str, Tensor] = {}
    for path in files:
        last = load_tensors(path)
        for name, tensor in last.items():
            if tensor.is_floating_point():
                total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (total[name] / len(files)).to(t.dtype) if name in total else t for name, t in last.items()}


def weights_of(run: Run, last: int | None) -> list[list[Path]]:
    """Return for each hop the files with the weights of its last points, checked: what `average` takes.

    Args:
        run: finished, with ``evaluate.keep_points``.
        last: of how many points; None: of all.

    Raises:
        UsageError: weights of so many points were not kept, or languages have their own parts.
        RunError: the store does not have them any more, or not as they were written.
    """
    given = "--all" if last is None else f"--last {last}"
    strategy, hops = run.strategy(), [stage for stage in run.stages if stage.hop.index]
    if run.config.evaluate.keep_points is None:
        raise UsageError(f"{given}: {run.id} keeps no weights of points; evaluate.keep_points=5, or all, does")
    if strategy.adapters is not None or any(strategy.serving_signature(stage.hop) for stage in hops):
        raise UsageError(f"{given}: {run.strategy_name} does not serve all languages with the same weights")
    return [_chosen(run, stage, given, last) for stage in hops]


def average(
    run: Run, last: int | None, chosen: Sequence[Sequence[Path]], listener: Listener, stop: StopFlag
) -> list[Path]:
    """Evaluate the mean of each hop's last weights, and put the predictions next to the run.

    Args:
        last: as given to `weights_of`.
        chosen: what `weights_of` gave.

    Returns:
        The files, one for each hop.
    """
    graph = StageGraph(run, listener, stop)
    found = []
    for stage, files in zip([stage for stage in run.stages if stage.hop.index], chosen, strict=True):
        folder = graph.averaged(stage, [path.name for path in files], lambda files=files: mean_weights(files))  # type: ignore[misc]
        rows = predictions.read(folder / "predictions.parquet")
        content = predictions.content(rows, run_id=run.id, hop=stage.hop.index)
        name = "all" if last is None else f"last-{last}"
        found.append(CachedFile(run.directory.averages, f"{name}-hop-{stage.hop.index}", ".parquet").write(content))
    return found


def _chosen(run: Run, stage: Stage, given: str, last: int | None) -> list[Path]:
    store, hop = run.store, stage.hop.index
    for needed in {hop, *([stage.hop.parent] if run.strategy().keeps_encoder(stage.hop) else [])} - {0}:
        folder = store.path(run.stages[needed].train)
        # What is damaged stays if it is: nothing is trained here that could take its place.
        if (wrong := store.damaged(folder.name)) is not None:
            there = f"{folder / wrong} is damaged" if folder.is_dir() else "the store has no weights of it any more"
            raise RunError(
                f"{run.id}, hop {needed}: {there}; `xclrun rerun {run.id} --fresh DIR` trains it again, the same"
            )
    files = sorted(store.path(stage.train).glob("point-*.safetensors"))
    points = len(store.facts(stage.train)["training"]["points"])
    wanted = points if last is None else min(last, points)
    if len(files) < wanted:
        raise UsageError(
            f"{given}: of hop {hop} of {run.id} the weights of the last {len(files)} of {points} points were kept"
        )
    return files[len(files) - wanted :]
