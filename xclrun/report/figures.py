"""Heat map of one run's score matrix."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.record import TASKS, RunRecord
from xclrun.report.style import METRIC_NAMES, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def heatmap(record: RunRecord, task: str) -> Figure:
    """Draw R in percent: a row for each hop, a column for each language; the cells of the language just learnt are
    outlined.

    Args:
        record: the run; its matrix may have unmeasured cells, shown as –.
        task: ``intent`` or ``slots``.

    Raises:
        ValueError: the run has no scores for the task.
    """
    from matplotlib.figure import Figure

    metric = TASKS.get(task, task)
    if metric not in record.scores:
        raise ValueError(f"run {record.run_id} has no scores for {task}; it has {', '.join(record.tasks)}")
    scores = 100 * record.scores[metric]
    rows, columns = scores.shape
    figure = Figure(figsize=(max(4.2, 2.3 + 0.62 * columns), 1.75 + 0.42 * rows), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("#dddddd")
    image = axes.imshow(np.ma.masked_invalid(scores), cmap="viridis", vmin=0, vmax=100, aspect="auto")
    _numbers(axes, scores)
    _outlines(axes, record)
    axes.set_xticks(range(columns), record.languages, rotation=0 if short(record.languages) else 45)
    axes.set_yticks(range(rows), hop_names(record))
    axes.set(xlabel="evaluated on", ylabel="after hop")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label=METRIC_NAMES[task], fraction=0.06, pad=0.02)
    bucket = "" if record.bucket is None else f" · bucket {record.bucket}"
    title = f"{record.strategy} · {record.order} · seed {record.seed}{bucket}"
    figure.suptitle(textwrap.fill(title, max(34, 9 * columns)), fontsize=10)
    figure.supxlabel(f"{record.dataset} · {record.model} · run {record.run_id}", fontsize=6, color="#555555")
    return figure


def hop_names(record: RunRecord) -> list[str]:
    """Return what each row of a run's matrix is called: ``0 (before)``, ``1 en``, …"""
    if record.stream == "joint":
        return ["0 (before)", "1 (all)"]
    alone = " alone" if record.stream == "independent" else ""
    return ["0 (before)", *(f"{i} {language}{alone}" for i, language in enumerate(record.languages, start=1))]


def _numbers(axes: Axes, scores: np.ndarray) -> None:
    """Write each value into its cell, dark on light and light on dark."""
    for (i, j), score in np.ndenumerate(scores):
        text, ink = ("–", "black") if np.isnan(score) else (f"{score:.1f}", "white" if score < 60 else "black")
        axes.text(j, i, text, ha="center", va="center", color=ink, fontsize=8)


def _outlines(axes: Axes, record: RunRecord) -> None:
    """Frame (hop i, language of hop i): white around black, so that it shows on any colour."""
    from matplotlib.patches import Rectangle

    if record.stream == "joint":
        return
    for j in range(len(record.languages)):
        for ink, width in (("white", 3.2), ("black", 1.4)):
            axes.add_patch(Rectangle((j - 0.46, j + 0.54), 0.92, 0.92, fill=False, edgecolor=ink, linewidth=width))
