"""Words: what buckets share with the source and with each other, and what they do to predictions.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021),
Table 14, Figs. 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.fewshot.gains import ALL, ByLanguage
from xclrun.analysis.fewshot.words import PRESENCE, improvement, jaccard_matrix, jaccards
from xclrun.core.task import BY_NAME, Scored
from xclrun.report.fewshot.data import PANELS, FewShotRuns, FewShotSource
from xclrun.report.fewshot.data import Cell as Place
from xclrun.report.fewshot.names import cell, shots_name, source_name, task_name
from xclrun.report.part import Item, Needs, part
from xclrun.report.published import fsxlt
from xclrun.report.style import colour, figure_of, panel_grid, plain, tickless, tip, titled
from xclrun.report.tables import Cell, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BUCKETS = 10  # in a matrix: more cannot be read


@part(FewShotRuns, place=50, title="{metric}{source}: improved predictions", folded=True)
def fewshot_improved(runs: FewShotRuns) -> Iterator[Item]:
    """Improved word-label predictions by presence in the bucket (FS Fig. 4); labels of whole texts have no words."""
    if BY_NAME[runs.metric].of is Scored.labels:
        return
    yield "Where adapting puts labels right: by whether the bucket holds the test word (FS Fig. 4)."
    given, known = runs.given.outcomes.get(runs.metric, {}), runs.given.words
    counts = {}
    for place, own in runs.cells(runs.first).items():
        pairs = [(given[i], known[i]) for i in own["run_id"] if i in given and i in known]
        if pairs:
            counts[place] = improvement(pairs)
    if not counts:
        yield Needs("predictions and the words of the buckets")
        return
    title = f"{runs.short}: improved predictions, {runs.first}{source_name(runs.source)}"
    yield improvement_table(title, counts)
    shown = dict(list(counts.items())[: 2 * PANELS])
    draw = partial(improvements, shown, runs.names(runs.first))
    yield runs.plot("improved", "Improved predictions by presence in the bucket", draw)


@part(FewShotSource, place=10, title="Lexical overlap{source}", folded=True)
def fewshot_overlap(source: FewShotSource) -> Iterator[Item]:
    """Overlap with the source and between buckets (FS Fig. 3, Table 14)."""
    yield "Which words buckets share with the source, and with each other (FS Fig. 3, Table 14)."
    runs = source.runs
    if not runs.words:
        yield Needs("the words of the buckets")
        return
    if runs.overlap:
        title = f"Lexical overlap{source_name(runs.source)}"
        yield overlap_table(title, runs.dataset, runs.overlap, jaccards(runs.words))
    several = {place: [one.bucket for one in them] for place, them in runs.words.items() if len(them) > 1}
    shown = {place: jaccard_matrix(them[:BUCKETS]) for place, them in list(several.items())[:PANELS]}
    if shown:
        draw = partial(similarities, shown, runs.dataset)
        yield runs.plot("jaccard", "Words that buckets have in common", draw)


def overlap_table(
    title: str, dataset: str, overlap: Mapping[int, ByLanguage], jaccards: Mapping[int, ByLanguage]
) -> Table:
    """Return lexical overlap of all buckets with the source (FS Table 14), and between buckets.

    Args:
        overlap: K → language → share of the source's distinct words that are in the buckets too.
        jaccards: K → language → mean Jaccard index over pairs of buckets.
    """
    theirs = fsxlt.published_overlap(task_name(dataset))
    shots = [k for k in sorted(overlap) if k != ALL]
    header, body = ["language"], []
    for k in shots:
        header += [shots_name(k), *(["published"] if k in theirs else []), "Jaccard"]
    for language in sorted({c for k in shots for c in overlap[k]}):
        line: list[str] = []
        for k in shots:
            line.append(cell(overlap[k].get(language), 1000, 2))
            line += [cell(theirs[k].get(language), 1000, 2)] if k in theirs else []
            line.append(cell(jaccards.get(k, {}).get(language), 1, 3))
        body.append((language, *line))
    notes = (
        "in per mille: distinct words of the source's training split that stand in a bucket of the language and K too "
        "(all buckets together), over all distinct words of the source's training split; words as written",
        "Jaccard: |A ∩ B| / |A ∪ B| of the distinct words of two buckets, mean over all pairs of buckets",
        "published: FS Table 14, whose numbers are multiples of 1/29,606 (POS) and 1/33,717 (NER): its English words",
    )
    return Table(title, tuple(header), tuple(body), notes if theirs else notes[:2])


def improvement_table(title: str, counts: Mapping[tuple[str, int], np.ndarray]) -> Table:
    """Return improved and worsened word-label predictions by presence in the bucket (FS Fig. 4)."""
    rows = []
    for (language, k), table in sorted(counts.items()):
        all_improved = table[:, 2].sum()
        for name, (words, wrong, improved, worsened) in zip(PRESENCE, table.tolist(), strict=True):
            rows.append((
                language, shots_name(k), name, Cell(f"{words:,}", words), _share(improved, wrong),
                _share(worsened, words - wrong), _share(improved, all_improved), _share(words, table[:, 0].sum()),
            ))  # fmt: skip
    header = ("language", "K", "test word", "words", "improved", "worsened", "of all improved", "of all words")
    notes = (
        "words: test words over all buckets and seeds; improved: of those wrong zero-shot, the share that is right "
        "after adapting; worsened: of those right zero-shot, the share that is wrong after it; percent",
        "word with label: the bucket has the word, as written, with the test word's gold label",
    )
    return Table(title, header, tuple(rows), notes, left=3)


def _share(part: float, whole: float) -> Cell:
    return cell(part / whole if whole else None, 100, 1)


def similarities(matrices: Mapping[Place, np.ndarray], title: str) -> Figure:
    """Draw the Jaccard index of every two buckets, a panel for each (language, K) (FS Fig. 3)."""
    figure, grid = panel_grid(len(matrices), 4, (2.7, 2.4), (1.3, 0.9))
    shown = {cell: matrix[:BUCKETS, :BUCKETS] for cell, matrix in matrices.items()}
    between = [matrix[np.triu_indices(len(matrix), k=1)] for matrix in shown.values()]
    top = max((float(values.max()) for values in between if values.size), default=1.0) or 1.0
    image = None
    for axes, ((language, k), matrix) in zip(grid, shown.items(), strict=False):
        hidden = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)
        axes.set_facecolor("#dddddd")
        image = axes.imshow(np.ma.masked_invalid(hidden), cmap="viridis", vmin=0, vmax=top)
        for (i, j), value in np.ndenumerate(hidden):
            if i != j and len(matrix) <= BUCKETS:
                ink = "white" if value < 0.6 * top else "black"
                axes.text(j, i, f"{100 * value:.0f}", ha="center", va="center", fontsize=5, color=ink)
        axes.set_xticks(range(len(matrix)), list(map(str, range(len(matrix)))), fontsize=6)
        axes.set_yticks(range(len(matrix)), list(map(str, range(len(matrix)))), fontsize=6)
        tickless(axes)
        axes.set_title(f"{language}, {shots_name(k)}", fontsize=9)
    if image is not None:
        figure.colorbar(image, ax=grid[: len(shown)], label="Jaccard index", fraction=0.05, pad=0.01)
    titled(figure, f"{title}: words that buckets have in common (Jaccard index; numbers: × 100)", "bucket", "bucket")
    return figure


def improvements(counts: Mapping[Place, np.ndarray], title: str) -> Figure:
    """Draw the share of wrong zero-shot predictions that adapting puts right, by presence in the bucket (FS Fig. 4)."""
    cells = list(counts)
    figure = figure_of(max(5.0, 1.6 + 0.62 * len(cells)), 3.3)
    axes = figure.subplots()
    hatches = ("", "///", "...")
    for j, name in enumerate(PRESENCE):
        table = np.array([counts[cell][j] for cell in cells], dtype=float)
        shares = 100 * np.divide(table[:, 2], table[:, 1], out=np.full(len(cells), np.nan), where=table[:, 1] > 0)
        place = np.arange(len(cells)) + 0.27 * (j - 1)
        bars = axes.bar(place, shares, 0.26, color=colour(j + 1), hatch=hatches[j], edgecolor="black", linewidth=0.4)
        bars.set_label(name)
        for bar, (language, k), value in zip(bars, cells, shares, strict=True):
            tip(bar, f"{language}, {shots_name(k)}, {name}: {value:.1f} %")
    names = [f"{language}\n{shots_name(k)}" for language, k in cells]
    axes.set_xticks(range(len(cells)), names, fontsize=7)
    axes.set_ylabel("improved, of those wrong zero-shot (%)", fontsize=8)
    axes.set_ylim(0, max(5.0, 1.2 * axes.get_ylim()[1]))
    axes.legend(fontsize=7, frameon=False, ncols=3, loc="upper left")
    plain(axes)
    titled(figure, f"{title}: improved word-label predictions by what the bucket holds of the test word")
    return figure
