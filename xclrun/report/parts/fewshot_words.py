"""Words: lexical overlap with the source, predictions improved by adapting, and attention of [CLS].

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021), Tables 5 and 14, Figs. 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.fewshot.attention import Change, attention_changes
from xclrun.analysis.fewshot.gains import ALL, ByLanguage
from xclrun.analysis.fewshot.words import PRESENCE, bucket_influence, improved_words, improvement, jaccards
from xclrun.core.task import BY_NAME, Scored
from xclrun.report.fewshot.data import (
    PANELS,
    FewShotRuns,
    FewShotSource,
    by_shots,
    first_of_buckets,
    panels,
    shots_name,
    source_name,
    task_name,
)
from xclrun.report.fewshot.data import Cell as Place
from xclrun.report.fewshot.section import FewShotSection
from xclrun.report.part import Item, Needs, part
from xclrun.report.published import fsxlt
from xclrun.report.style import colour, colour_bar, figure_of, plain, tickless, tip, titled, write_cells
from xclrun.report.tables import Cell, Table, number_cell, percent_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BUCKETS = 10  # maximum in a matrix
RARE = 5  # minimum count of a word in the table of attention
WORDS = 10  # maximum in a table of attention


@part(FewShotRuns, place=50, title="{metric}{source}: improved predictions", folded=True)
def fewshot_improved(runs: FewShotRuns) -> Iterator[Item]:
    """Compare improved predictions with the words of the buckets (FS Figs. 3 and 4); only for tagging tasks."""
    if BY_NAME[runs.metric].of is Scored.labels:
        return
    yield "A prediction is improved if the label of a test word is wrong zero-shot and correct after adapting."
    outcomes, words = runs.data.outcomes.get(runs.metric, {}), runs.data.words
    counts, influence = dict[Place, np.ndarray](), dict[Place, np.ndarray]()
    for place, rows in runs.cells(runs.first).items():
        pairs = [(outcomes[i], words[i]) for i in rows["run_id"] if i in outcomes and i in words]
        if pairs:
            counts[place] = improvement(pairs)
        first = [i for i in first_of_buckets(rows) if i in outcomes and i in words][:BUCKETS]
        if len(first) > 1 and len(influence) < PANELS:
            improved = [improved_words(outcomes[i], words[i]) for i in first]
            influence[place] = bucket_influence([words[i].bucket for i in first], improved)
    if not counts:
        yield Needs("predictions and the words of the buckets")
        return
    yield improvement_table(f"{runs.short}: improved predictions, {runs.first}{source_name(runs.source)}", counts)
    caption = "Improved predictions by presence in the bucket"
    first_counts = dict(list(counts.items())[: 2 * PANELS])
    yield runs.plot("improved", caption, improvements, first_counts, runs.names(runs.first), paper="FS Fig. 4")
    if influence:
        caption = "Words of each bucket and words improved by each bucket"
        names = runs.names(runs.first)
        yield runs.plot("improved_words", caption, influences, influence, names, paper="FS Fig. 3")


@part(FewShotSource, place=10, title="Lexical overlap{source}", folded=True)
def fewshot_overlap(source: FewShotSource) -> Iterator[Item]:
    yield "Words that buckets share with the source's training data (FS Table 14) and with each other."
    runs = source.runs
    if not runs.words:
        yield Needs("the words of the buckets")
    elif runs.overlap:
        title = f"Lexical overlap{source_name(runs.source)}"
        yield overlap_table(title, runs.dataset, runs.overlap, jaccards(runs.words))


def overlap_table(
    title: str, dataset: str, overlap: Mapping[int, ByLanguage], jaccards: Mapping[int, ByLanguage]
) -> Table:
    """Return the lexical overlap of all buckets with the source (FS Table 14), and of pairs of buckets.

    Args:
        overlap: K → language → share of the source's distinct words that are in any bucket.
        jaccards: K → language → mean Jaccard index over pairs of buckets.
    """
    published = fsxlt.published_overlap(task_name(dataset))
    shots = [k for k in sorted(overlap) if k != ALL]

    def cells(values: Mapping[int, ByLanguage], scale: float, digits: int) -> dict[tuple[str, int], Cell]:
        return {(c, k): number_cell(v, scale, digits) for k, each in values.items() for c, v in each.items()}

    languages = [(c,) for c in sorted({c for k in shots for c in overlap[k]})]
    ours, theirs = cells(overlap, 1000, 2), cells(published, 1000, 2)
    header, rows = by_shots(("language",), languages, shots, ours, theirs, {"Jaccard": cells(jaccards, 1, 3)})
    notes = (
        "overlap in per mille: distinct words of the source's training split that are in any bucket of the language "
        "and K, divided by all distinct words of the source's training split; words are compared as written",
        "Jaccard: |A ∩ B| / |A ∪ B| of the distinct words of two buckets, mean over all pairs of buckets",
        f"published: FS Table 14, {task_name(dataset)}, 40 buckets; its values are multiples of 1/29,606 (POS) and "
        f"1/33,717 (NER), where the denominators are numbers of English words; ours: {dataset}",
    )
    return Table(title, header, rows, notes if published else notes[:2])


def improvement_table(title: str, counts: Mapping[Place, np.ndarray]) -> Table:
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
        "words: number of test words, summed over buckets and seeds; improved: of the words with a wrong zero-shot "
        "prediction, the share (%) that is correct after adapting; worsened: of the words with a correct zero-shot "
        "prediction, the share (%) that is wrong after adapting",
        "word with label: the bucket contains the word, as written, with the test word's gold label",
    )
    return Table(title, header, tuple(rows), notes, left=3)


def _share(part: float, whole: float) -> Cell:
    return number_cell(part / whole if whole else None, 100, 1)


def influences(matrices: Mapping[Place, np.ndarray], title: str) -> Figure:
    """Draw the results of `bucket_influence`, a panel for each (language, K) (FS Fig. 3); framed: the same bucket."""
    from matplotlib.patches import Rectangle

    side = 0.9 + 0.34 * max(map(len, matrices.values()))
    figure, grid = panels(matrices, 3, (side, side), (1.5, 0.9))
    low = min(float(matrix.min()) for matrix in matrices.values())
    high = max(float(matrix.max()) for matrix in matrices.values())
    for axes, _, matrix in grid:
        image = axes.imshow(matrix, cmap="viridis", vmin=low, vmax=high if high > low else low + 1)
        write_cells(axes, matrix, "{:.1f}", low + 0.6 * (high - low), fontsize=5.5)
        numbers = range(len(matrix))
        for i in numbers:
            axes.add_patch(Rectangle((i - 0.5, i - 0.5), 1, 1, fill=False, edgecolor="white", linewidth=1.2))
        axes.set_xticks(numbers, list(map(str, numbers)), fontsize=6)
        axes.set_yticks(numbers, list(map(str, numbers)), fontsize=6)
        tickless(axes)
    colour_bar(figure, image, figure.axes, "softmax over a row (%)", fraction=0.05)
    details = (
        "softmax over each row (%) of the Jaccard index of a bucket's words (row) and the words improved by each "
        "bucket (column); framed: the same bucket"
    )
    titled(figure, f"{title}: {details}", "improved by bucket", "words of bucket")
    return figure


def improvements(counts: Mapping[Place, np.ndarray], title: str) -> Figure:
    """Draw the share of wrong zero-shot predictions that adapting corrects, by presence in the bucket (FS Fig. 4)."""
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
    axes.set_ylim(0, max(5.0, 1.2 * axes.get_ylim()[1]))
    axes.legend(fontsize=7, frameon=False, ncols=3, loc="upper left")
    plain(axes, up="improved, of those wrong zero-shot (%)")
    titled(figure, f"{title}: improved word-label predictions by presence of the test word in the bucket")
    return figure


@part(FewShotSection, place=20, title="Attention of [CLS]", folded=True)
def fewshot_attention(section: FewShotSection) -> Iterator[Item]:
    """Show a table for each run that adapts the encoder and has recorded attention (FS Table 5)."""
    yield "Words whose attention from [CLS] changes most by adapting (FS Table 5)."
    data, tables = section.few_shot_data, 0
    for run_id, label in dict(zip(section.scores["run_id"], section.scores["strategy"], strict=True)).items():
        if run_id not in data.attention or tables == PANELS:
            continue
        run, words = section.records[run_id], data.words.get(run_id)
        language, bucket = run.languages[-1], None if words is None else words.bucket
        changes = attention_changes(data.attention[run_id], language, run.hops - 1, run.hops, RARE, bucket)
        if any(word.change for word in changes):
            tables += 1
            run_name = f"K = {run.config.get('shots')}, bucket {run.bucket}, {label}, seed {run.seed}"
            yield attention_table(f"[CLS] in {language}, {run_name}", changes)
    if not tables:
        yield Needs("attention summaries of the runs (attention.parquet)")


def attention_table(title: str, changes: Sequence[Change]) -> Table:
    extremes = changes if len(changes) <= WORDS else [*changes[: WORDS // 2], *changes[-(WORDS // 2) :]]
    rows = [
        (c.word, {True: "yes", False: "no", None: "?"}[c.in_bucket], str(c.count),
         *map(percent_cell, (c.before, c.after, c.change)))
        for c in extremes
    ]  # fmt: skip
    note = "share of [CLS]'s attention in the last layer, mean over heads and occurrences in the test split; percent"
    return Table(title, ("word", "in bucket", "times", "zero-shot", "few-shot", "change"), tuple(rows), (note,))
