"""Online codelengths of runs on the same blocks: totals, by block; scores by size of the training data (GLI §4, §5).

Bits; scores in percent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.codelength import ANSWERS, LABELS, TAGS
from xclrun.core.task import BY_NAME, headline, short_name
from xclrun.report.codelength import CodelengthSection, Coder
from xclrun.report.part import Item, Plot, part
from xclrun.report.published import gli
from xclrun.report.published.setup import setup_notes
from xclrun.report.style import GREY, figure_of, legend, line, plain, titled
from xclrun.report.tables import BOLD, Cell, Table, mark_best

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What is coded → how.
COUNTED = {
    LABELS: "labels by log2 p(gold class)",
    TAGS: "tags by log2 p(gold tags of a sentence), and log2 |tags| for each word beyond the length limit",
    ANSWERS: "answers by log2 p(first gold answer) among the spans of their text; those without a probability (too "
    "long, or in no window) by log2 of the number of spans, and that they are such is not paid for",
}
STRICT = (
    "code: strict where nothing but labels that were sent before chose the weights (trainer.selection=last); with dev "
    "where labels of the dev split, which are not paid for, chose checkpoints"
)


def counted(section: CodelengthSection) -> str:
    return f"coded: {'; '.join(COUNTED[one] for one in section.parts)}; label sets and texts are known beforehand"


@part(CodelengthSection, place=10, title="Codelengths", terminal=True)
def codelengths(section: CodelengthSection) -> Iterator[Item]:
    yield (
        f"{section.total} examples of {section.key} in {len(section.sizes)} blocks. The labels of each block are coded "
        "by the model that learned the blocks before it; the first block uniformly, or by a start that knows the head."
    )
    yield total_table(section)
    yield block_table(section)
    yield Plot(f"{section.where}_blocks", "Bits for each example, by block", block_figure, section)


@part(CodelengthSection, place=20, title="Scores by size of the training data")
def by_size(section: CodelengthSection) -> Iterator[Item]:
    for metric in section.runs[0].metrics:
        yield score_table(section, metric)
        name = f"{section.where}_size_{short_name(metric)}"
        yield Plot(name, "Learning curves by size of the training data", score_figure, section, metric)


@part(CodelengthSection, place=30, title="GLI paper, Table 1 and section 5.1")
def gli_codelengths(section: CodelengthSection) -> Iterator[Item]:
    yield gli.IMPOSSIBLE
    yield published_table(section)


def head(coder: Coder) -> tuple[str, ...]:
    return coder.model, " → ".join(coder.start) or "–", coder.strategy, "strict" if coder.strict else "with dev"


HEADER = ("model", "start", "strategy", "code")


def _seeds(section: CodelengthSection, what: str = "mean") -> list[str]:
    """Say what numbers of several seeds are."""
    return [f"{what} over seeds"] if any(len(coder.runs) > 1 for coder in section.coders) else []


def _spread(values: np.ndarray, digits: int, runs: tuple[str, ...] = ()) -> Cell:
    text = f"{values.mean():.{digits}f}" + (f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else "")
    return Cell(text, float(values.mean()), runs)


def total_table(section: CodelengthSection) -> Table:
    """Return a row for each coder, what switching to the best one costs, and the uniform code."""
    several, total, even = len(section.parts) > 1, section.total, float(section.uniform.sum())
    metrics = section.runs[0].metrics
    rows: list[tuple[str, ...]] = []
    best: list[Cell] = []
    for coder in section.coders:
        bits, ids = coder.bits(section.parts).sum(axis=1), coder.ids
        each = _spread(bits / total, 2, ids)
        best.append(each)
        own = [_spread(coder.bits([one]).sum(axis=1) / total, 2, ids) for one in section.parts if several]
        cells = [each, *own, _spread(bits / 1000, 3, ids), _spread(100 * bits / even, 1, ids)]
        rows.append((*head(coder), str(len(coder.runs)), *cells, *(_final(coder, metric) for metric in metrics)))
    mark_best(best, highest=False)
    ruled, notes = len(rows), []
    for strict in (True, False):
        if (found := section.switching(strict)) is not None:
            bits, among = found[0].sum(axis=1), found[1]
            rows.append((
                "–", "–", "best of each block", "strict" if strict else "with dev", str(len(bits)),
                _spread(bits / total, 2), *("–" for _ in section.parts if several), _spread(bits / 1000, 3),
                _spread(100 * bits / even, 1), *("–" for _ in metrics),
            ))  # fmt: skip
            told = f"best of each block: each is coded by the best of {among} rows, and log2 {among} bits say by which"
            notes += [told] if told not in notes else []
    parts = (section.uniform_of[one].sum() / total for one in section.parts if several)
    rows.append((
        "uniform", "–", "–", "strict", "–", Cell(f"{even / total:.2f}", even / total),
        *(f"{each:.2f}" for each in parts), f"{even / 1000:.3f}", "100.0", *("–" for _ in metrics),
    ))  # fmt: skip
    header = (*HEADER, "runs", "L/example ↓", *(section.parts if several else ()), "L kbits ↓", "% of uniform",
              *(f"{short_name(metric)} at the end" for metric in metrics))  # fmt: skip
    notes += [counted(section), STRICT, f"at the end: test score on {section.key} after the last hop, percent"]
    notes += _seeds(section, "mean ± standard deviation")
    return Table("Online codelength", header, tuple(rows), tuple(notes), left=4, raised=(BOLD,), ruled=(ruled,))


def _final(coder: Coder, metric: str) -> Cell:
    values = np.array([100 * run.scores[metric][-1, -1] for run in coder.runs])
    return _spread(values, 2, coder.ids)


def block_table(section: CodelengthSection) -> Table:
    body: list[tuple[str, ...]] = []
    for coder in section.coders:
        each = coder.bits(section.parts).mean(axis=0) / section.sizes
        body.append((*head(coder), *(Cell(f"{value:.2f}", float(value), coder.ids) for value in each)))
    body.append(("uniform", "–", "–", "strict", *(f"{value:.2f}" for value in section.uniform / section.sizes)))
    names = tuple(f"block {i} ({size})" for i, size in enumerate(section.sizes, start=1))
    notes = ("bits for each example; in brackets: examples of the block", counted(section), *_seeds(section))
    return Table("Codelength by block", (*HEADER, *names), tuple(body), notes, left=4, ruled=(len(section.coders),))


def sizes_and_scores(coder: Coder, metric: str, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the examples of the blocks that hops learned, (M,), and the test scores on their key, (runs, M), percent.

    The first is 0: the start.
    """
    learnt = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return learnt, np.stack([100 * run.scores[metric][-len(sizes) :, -1] for run in coder.runs])


def score_table(section: CodelengthSection, metric: str) -> Table:
    body = []
    for coder in section.coders:
        learnt, scores = sizes_and_scores(coder, metric, section.sizes)
        cells = (Cell(f"{value:.2f}", float(value), coder.ids) for value in scores.mean(axis=0))
        body.append((*head(coder), *cells))
    names = (f"{int(n):,}" for n in learnt)
    known = BY_NAME[metric]
    notes = (
        f"{known.title} on the test split of {section.key}, percent, by the number of its training examples",
        "0: the start",
        *((known.definition,) if known.definition else ()),
        *_seeds(section),
    )
    title = f"{headline(metric)} by size of the training data"
    return Table(title, (*HEADER, *names), tuple(body), notes, left=4)


def block_figure(section: CodelengthSection) -> Figure:
    """Draw bits for each example by the examples that the model had learned, and the uniform code."""
    before = np.concatenate([[0], np.cumsum(section.sizes)[:-1]])
    bits = [coder.bits(section.parts).mean(axis=0) / section.sizes for coder in section.coders]
    what = f"codelength by block ({'; '.join(['dashed: the uniform code', *_seeds(section)])})"
    figure, axes = _coder_figure(section, before, bits, what)
    axes.plot(before, section.uniform / section.sizes, color=GREY, linestyle="--", linewidth=1)
    axes.set_ylim(bottom=0)
    plain(axes, f"examples of {section.key} learned before the block", "bits for each example of the block")
    return figure


def score_figure(section: CodelengthSection, metric: str) -> Figure:
    """Draw test scores by the number of training examples, on a log scale (GLI, Figs 1 and 2)."""
    learned, scores = zip(*(sizes_and_scores(coder, metric, section.sizes) for coder in section.coders), strict=True)
    sizes, title = learned[0][1:], BY_NAME[metric].title
    what = f"{title} by size of the training data{''.join(f' ({seeds})' for seeds in _seeds(section))}"
    figure, axes = _coder_figure(section, sizes, [each.mean(axis=0)[1:] for each in scores], what)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{int(n):,}" for n in sizes])
    axes.minorticks_off()
    plain(axes, f"training examples of {section.key} (log scale)", f"{title} (%)")
    return figure


def _coder_figure(
    section: CodelengthSection, x: np.ndarray, curves: Sequence[np.ndarray], what: str
) -> tuple[Figure, Axes]:
    figure = figure_of(7.4, 3.9)
    axes = figure.subplots()
    names = [coder.name for coder in section.coders]
    for k, (name, y) in enumerate(zip(names, curves, strict=True)):
        line(axes, x, y, k, f"{name}: {', '.join(f'{value:.2f}' for value in y)}", markersize=4, linewidth=1.2)
    legend(figure, names, names)
    titled(figure, f"{section.dataset}, {section.key}: {what}")
    return figure, axes


def published_table(section: CodelengthSection) -> Table | None:
    """Return GLI's codelengths of this dataset, or key, with ours alongside; None where it prints none."""
    theirs = gli.codelengths(section.dataset) or gli.codelengths(section.key)
    rows: list[tuple[str | Cell, ...]] = []
    for (model, supervised), kbits in theirs.items():
        published = (model, "other tasks first" if supervised else "–", Cell(f"{kbits:g}", kbits))
        ours = [coder for coder in section.coders if coder.model == model and bool(coder.start) == supervised]
        for coder in ours:
            bits = float(coder.bits(section.parts).sum(axis=1).mean())
            rows.append((*published, ", ".join(head(coder)[1:]), Cell(f"{bits / 1000:.2f}", bits, coder.ids)))
        rows += [] if ours else [(*published, "–", "–")]
    if not rows:
        return None
    setup = gli.CODED[section.dataset if section.dataset in gli.CODED else section.key]
    notes = (
        *setup_notes(setup, section.runs),
        f"kbits; published: GLI, Table 1 and section 5.1; ours: {section.total} examples of {section.dataset}, "
        f"{section.key}, in {len(section.sizes)} blocks",
        "of our code: what was learned first, strategy, and whether it is strict",
        "orders may be compared, kbits may not",
        *_seeds(section, "ours: mean"),
    )
    header = ("model", "start", "L kbits", "our code", "ours")
    return Table("GLI codelengths: published beside ours", header, tuple(rows), notes, left=2)
