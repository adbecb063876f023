"""Online codelengths in total and by block, and scores by size of the training data (GLI §4, §5).

Codelengths are in bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xclrun.core.quantity import Quantity
from xclrun.core.task import ANSWERS, BY_NAME, LABELS, TAGS, WRITTEN, headline, short_name
from xclrun.report.codelength import CodelengthSection, Coder
from xclrun.report.part import Item, Plot, part
from xclrun.report.published import gli
from xclrun.report.published.setup import setup_notes
from xclrun.report.style import GREY, figure_of, legend, line, plain, titled
from xclrun.report.tables import BOLD, Cell, Table, mark_best

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Kind of code → how it encodes examples.
COUNTED = {
    LABELS: "a label costs −log2 p(gold class) bits",
    TAGS: "the tags of a sentence cost −log2 p(gold tags) bits, plus log2(number of tags) bits for each word beyond "
    "the length limit",
    ANSWERS: "an answer costs −log2 p(first gold answer) bits, where p is over the spans of the text; an answer "
    "without a probability (too long, or in no window) costs log2(number of spans) bits; the bits to announce this "
    "case are not counted",
    WRITTEN: "a text costs −log2 p(reference and its end) bits; if it is too long, and in the uniform code, it costs 8 "
    "bits for each byte and for the end",
}
STRICT = (
    "code: “strict” if the weights depend only on labels that were transmitted earlier (trainer.selection=last); “with "
    "dev” if checkpoints were selected on the dev split, whose labels are not counted in the codelength"
)


def counted(section: CodelengthSection) -> str:
    return (
        f"codelength: {'; '.join(COUNTED[part] for part in section.parts)}; label sets and texts are known in advance"
    )


@part(CodelengthSection, place=10, title="Codelengths", terminal=True)
def codelengths(section: CodelengthSection) -> Iterator[Item]:
    yield (
        f"{section.total} examples of {section.key}, split into {len(section.sizes)} blocks. The labels of each block "
        "are encoded with the model trained on the earlier blocks. The first block is encoded with the uniform code, "
        "or with the initial model if its head has been trained."
    )
    yield total_table(section)
    yield block_table(section)
    yield Plot(f"{section.where}_blocks", "Bits per example, by block", block_figure, section)


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


def _seeds(section: CodelengthSection, statistic: str = "mean") -> list[str]:
    """Return a note that the numbers are this statistic over seeds; empty if every row has a single seed."""
    return [f"{statistic} over seeds"] if any(len(coder.runs) > 1 for coder in section.coders) else []


def _spread(values: np.ndarray, digits: int, runs: tuple[str, ...] = ()) -> Cell:
    text = f"{values.mean():.{digits}f}" + (f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else "")
    return Cell(text, float(values.mean()), runs)


def total_table(section: CodelengthSection) -> Table:
    """Return a row for each coder, for the best coder of each block, and for the uniform code."""
    several, total, even = len(section.parts) > 1, section.total, float(section.uniform.sum())
    metrics = section.runs[0].metrics
    units = ", ".join(dict.fromkeys(BY_NAME[metric].quantity.label for metric in metrics))
    rows: list[tuple[str, ...]] = []
    best: list[Cell] = []
    for coder in section.coders:
        bits, ids = coder.bits(section.parts).sum(axis=1), coder.ids
        each = _spread(bits / total, 2, ids)
        best.append(each)
        of_parts = [_spread(coder.bits([part]).sum(axis=1) / total, 2, ids) for part in section.parts if several]
        cells = [each, *of_parts, _spread(bits / 1000, 3, ids), _spread(100 * bits / even, 1, ids)]
        rows.append((*head(coder), str(len(coder.runs)), *cells, *(_final(coder, metric) for metric in metrics)))
    # Rows that differ by less than 0.00005 bits are equal.
    mark_best(best, Quantity(higher_is_better=False, unit="bits", decimals=4))
    ruled, notes = len(rows), []
    for strict in (True, False):
        if (switching := section.switching(strict)) is not None:
            bits, n = switching[0].sum(axis=1), switching[1]
            rows.append((
                "–", "–", "best of each block", "strict" if strict else "with dev", str(len(bits)),
                _spread(bits / total, 2), *("–" for _ in section.parts if several), _spread(bits / 1000, 3),
                _spread(100 * bits / even, 1), *("–" for _ in metrics),
            ))  # fmt: skip
            note = (
                f"best of each block: each block is encoded with the best of {n} rows; log2 {n} bits per block are "
                "added, which tell the receiver the chosen row"
            )
            notes += [note] if note not in notes else []
    parts = (section.uniform_of[part].sum() / total for part in section.parts if several)
    rows.append((
        "uniform", "–", "–", "strict", "–", Cell(f"{even / total:.2f}", even / total),
        *(f"{each:.2f}" for each in parts), f"{even / 1000:.3f}", "100.0", *("–" for _ in metrics),
    ))  # fmt: skip
    header = (*HEADER, "runs", "L/example ↓", *(section.parts if several else ()), "L kbits ↓", "% of uniform",
              *(f"{short_name(metric)} at the end" for metric in metrics))  # fmt: skip
    notes += [counted(section), STRICT, f"at the end: test score on {section.key} after the last hop, {units}"]
    notes += _seeds(section, "mean ± standard deviation")
    return Table("Online codelength", header, tuple(rows), tuple(notes), left=4, raised=(BOLD,), ruled=(ruled,))


def _final(coder: Coder, metric: str) -> Cell:
    kind = BY_NAME[metric].quantity
    values = np.array([kind.scale * run.scores[metric][-1, -1] for run in coder.runs])
    return _spread(values, kind.decimals, coder.ids)


def block_table(section: CodelengthSection) -> Table:
    body: list[tuple[str, ...]] = []
    for coder in section.coders:
        each = coder.bits(section.parts).mean(axis=0) / section.sizes
        body.append((*head(coder), *(Cell(f"{value:.2f}", float(value), coder.ids) for value in each)))
    body.append(("uniform", "–", "–", "strict", *(f"{value:.2f}" for value in section.uniform / section.sizes)))
    names = tuple(f"block {i} ({size})" for i, size in enumerate(section.sizes, start=1))
    notes = ("bits per example; in brackets: number of examples in the block", counted(section), *_seeds(section))
    return Table("Codelength by block", (*HEADER, *names), tuple(body), notes, left=4, ruled=(len(section.coders),))


def sizes_and_scores(coder: Coder, metric: str, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of training examples before each block, (M,), and test scores as printed, (runs, M)."""
    learned = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return learned, BY_NAME[metric].quantity.scale * np.stack(
        [run.scores[metric][-len(sizes) :, -1] for run in coder.runs]
    )


def score_table(section: CodelengthSection, metric: str) -> Table:
    body, kind = [], BY_NAME[metric].quantity
    for coder in section.coders:
        learned, scores = sizes_and_scores(coder, metric, section.sizes)
        cells = (Cell(f"{value:.{kind.decimals}f}", float(value), coder.ids) for value in scores.mean(axis=0))
        body.append((*head(coder), *cells))
    names = (f"{int(n):,}" for n in learned)
    definition = BY_NAME[metric].definition
    notes = (
        f"{BY_NAME[metric].title} on the test split of {section.key}, {kind.label}, by number of training examples",
        "column 0: before training on the first block",
        *([definition] if definition else []),
        *_seeds(section),
    )
    title = f"{headline(metric)} by size of the training data"
    return Table(title, (*HEADER, *names), tuple(body), notes, left=4)


def block_figure(section: CodelengthSection) -> Figure:
    """Draw bits per example by the number of learned examples, and the uniform code."""
    before = np.concatenate([[0], np.cumsum(section.sizes)[:-1]])
    bits = [coder.bits(section.parts).mean(axis=0) / section.sizes for coder in section.coders]
    title = f"codelength by block ({'; '.join(['dashed: the uniform code', *_seeds(section)])})"
    figure, axes = _coder_figure(section, before, bits, title)
    axes.plot(before, section.uniform / section.sizes, color=GREY, linestyle="--", linewidth=1)
    axes.set_ylim(bottom=0)
    plain(axes, f"examples of {section.key} learned before the block", "bits per example of the block")
    return figure


def score_figure(section: CodelengthSection, metric: str) -> Figure:
    """Draw test scores by the number of training examples, on a log scale (GLI, Figs 1 and 2)."""
    learned, scores = zip(*(sizes_and_scores(coder, metric, section.sizes) for coder in section.coders), strict=True)
    sizes, name = learned[0][1:], BY_NAME[metric].title
    title = f"{name} by size of the training data{''.join(f' ({seeds})' for seeds in _seeds(section))}"
    figure, axes = _coder_figure(section, sizes, [each.mean(axis=0)[1:] for each in scores], title)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{int(n):,}" for n in sizes])
    axes.minorticks_off()
    plain(axes, f"training examples of {section.key} (log scale)", f"{name} ({BY_NAME[metric].unit})")
    return figure


def _coder_figure(
    section: CodelengthSection, x: np.ndarray, curves: Sequence[np.ndarray], title: str
) -> tuple[Figure, Axes]:
    figure = figure_of(7.4, 3.9)
    axes = figure.subplots()
    names = [coder.name for coder in section.coders]
    for k, (name, y) in enumerate(zip(names, curves, strict=True)):
        line(axes, x, y, k, f"{name}: {', '.join(f'{value:.2f}' for value in y)}", markersize=4, linewidth=1.2)
    legend(figure, names, names)
    titled(figure, f"{section.dataset}, {section.key}: {title}")
    return figure, axes


def published_table(section: CodelengthSection) -> Table | None:
    """Return GLI's codelengths of this dataset or key next to our codelengths; None if GLI has no such codelength."""
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
        "our code: what our model learned before the blocks, its strategy, and “strict” or “with dev”",
        "compare only the ranking of models; the kbits are not comparable",
        *_seeds(section, "ours: mean"),
    )
    header = ("model", "start", "L kbits", "our code", "ours")
    return Table("GLI codelengths: published beside ours", header, tuple(rows), notes, left=2)
