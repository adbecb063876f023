"""Figures of tests: p-values of all pairs of strategies, and critical differences of their mean ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.all_tests import BLOCKED, Tests
from xclrun.analysis.critical_difference import CriticalDifference
from xclrun.analysis.significance import Pair, p_matrix
from xclrun.report.inference import p_text
from xclrun.report.style import GREY, WIDEST, figure_of, key, panel_grid, tickless, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours from strong to no evidence: light enough for black digits, and distinguishable by colour-blind readers.
_STEPS = (0.0, 0.001, 0.01, 0.05, 0.1, 1.0)
_COLOURS = ("#2b83ba", "#74b3d8", "#b8d9ec", "#fde6c4", "#f4f4f4")


def p_value_figure(tests: Mapping[str, Tests], title: str, below: str) -> Figure:
    """Draw the p-values of all pairs of strategies, with a panel for each of ``tests``.

    Above the diagonal are the p-values of Tukey's HSD with blocks.

    Args:
        below: name of the test shown below the diagonal (a key of `Tests.pairs`).
    """
    from matplotlib.patches import Patch

    most = max(len(test.data.strategies) for test in tests.values())
    side = max(1.3, 0.43 * most + 0.3)
    # All panels in one row if digits stay legible at the usual page width, otherwise two per row.
    columns = len(tests) if side * len(tests) <= WIDEST else min(2, len(tests))
    figure, panels = panel_grid(len(tests), columns, (side, side + 1.3), (2.6, 0.6))
    for k, (axes, (name, test)) in enumerate(zip(panels, tests.items(), strict=False)):
        labelled = k % columns == 0 or len(test.data.strategies) != most
        _p_panel(axes, test.data.strategies, test.pairs[below], test.pairs[BLOCKED], name, labelled)
    names = [f"p < {_STEPS[1]:g}", *(f"p < {high:g}" for high in _STEPS[2:-1]), f"p ≥ {_STEPS[-2]:g}"]
    patches = (Patch(facecolor=c, edgecolor="#999999", label=name) for c, name in zip(_COLOURS, names, strict=True))
    key(figure, patches, 7)
    titled(figure, title)
    return figure


def rank_figure(tests: Mapping[str, Tests], title: str) -> Figure | None:
    """Draw mean ranks, a panel for each of ``tests``; bars join strategies without significant difference (Nemenyi).

    Tests whose critical difference exceeds any possible difference of mean ranks are skipped; None if all are.
    """
    tests = {name: test for name, test in tests.items() if test.ranks.critical <= len(test.data.strategies) - 1}
    if not tests:
        return None
    most = max(len(test.data.strategies) for test in tests.values())
    figure = figure_of(8.4, (0.95 + 0.2 * ((most + 1) // 2)) * len(tests) + 0.6)
    for axes, (name, test) in zip(figure.subplots(len(tests), 1, squeeze=False)[:, 0], tests.items(), strict=True):
        _ranks(axes, test.ranks, f"{name}  (Friedman p {p_text(test.ranks.p, sign=True)})")
    titled(figure, title, "Blue bars join strategies whose mean ranks differ by at most CD, which is not significant")
    return figure


def _p_panel(
    axes: Axes, strategies: Sequence[str], below: list[Pair], above: list[Pair], name: str, labelled: bool
) -> None:
    from matplotlib.colors import BoundaryNorm, ListedColormap

    lower, upper = (p_matrix(strategies, pairs) for pairs in (below, above))
    matrix = np.where(np.tri(len(strategies), k=-1, dtype=bool), lower, upper)
    axes.set_facecolor("white")
    axes.imshow(np.ma.masked_invalid(matrix), cmap=ListedColormap(_COLOURS), norm=BoundaryNorm(_STEPS, len(_COLOURS)))
    for (i, j), p in np.ndenumerate(matrix):
        text = "" if i == j else "–" if p != p else "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
        axes.text(j, i, text, ha="center", va="center", fontsize=6.5, in_layout=False)
    axes.set_xticks(range(len(strategies)), strategies, rotation=40, ha="right", rotation_mode="anchor", fontsize=7)
    axes.set_yticks(range(len(strategies)), strategies if labelled else [""] * len(strategies), fontsize=7)
    tickless(axes)
    axes.set_title(name, fontsize=9)
    axes.spines[:].set_color("#cccccc")


def _ranks(axes: Axes, tested: CriticalDifference, title: str) -> None:
    """Draw a critical-difference diagram (Demšar 2006). The best rank is at the left; bars join the groups."""
    k = len(tested.strategies)
    below = (k + 1) // 2
    # Leave room at both sides for the longest name with its rank, in proportion to its length.
    share = min(0.32, 0.0076 * (8 + max(map(len, tested.strategies))))
    margin = max(0.4 + 0.12 * k, share / (1 - 2 * share) * k)
    axes.set(xlim=(1 - margin, max(k + margin, 1.1 + tested.critical)), ylim=(-1.1 - 0.62 * below, 2.4))
    axes.axis("off")
    axes.plot([1, k], [0, 0], color="black", linewidth=1)
    for rank in range(1, k + 1):
        axes.plot([rank, rank], [0, 0.18], color="black", linewidth=1)
        axes.text(rank, 0.28, str(rank), ha="center", va="bottom", fontsize=7)
    for place, (name, rank) in enumerate(zip(tested.strategies, tested.ranks, strict=True)):
        at_left = place < below
        level = -1.0 - 0.62 * (place if at_left else k - 1 - place)
        end = axes.get_xlim()[0] + 0.02 if at_left else axes.get_xlim()[1] - 0.02
        axes.plot([rank, rank, end], [0, level, level], color=GREY, linewidth=0.7)
        text = f"{name} ({rank:.2f})"
        axes.text(end, level + 0.06, text, ha="left" if at_left else "right", va="bottom", fontsize=7)
    for step, (first, last) in enumerate(tested.groups):
        height = -0.22 - 0.16 * (step % 4)
        ends = [tested.ranks[first] - 0.03, tested.ranks[last] + 0.03]
        axes.plot(ends, [height, height], color="#0072B2", linewidth=3, solid_capstyle="butt")
    axes.plot([1, 1 + tested.critical], [1.25, 1.25], color="black", linewidth=1.5, marker="|", markersize=5)
    axes.text(1, 1.45, f"CD = {tested.critical:.2f}", va="bottom", fontsize=7)
    axes.set_title(title, fontsize=8, loc="left", fontweight="bold")
