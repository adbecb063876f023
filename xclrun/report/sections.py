"""What a report says about one comparison: parts of tables and figures, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from xclrun.analysis.aggregate import MEAN, Comparison, compared
from xclrun.analysis.base_scores import Predictions
from xclrun.analysis.bootstrap import SENTENCES
from xclrun.analysis.reference import References
from xclrun.analysis.resampling import Resampled
from xclrun.core.task import BY_NAME, Scored, short_name
from xclrun.report import efficiency, plots
from xclrun.report.costs import fairness
from xclrun.report.curves import learning_curves, training_curves
from xclrun.report.figures import heatmaps
from xclrun.report.findings import findings
from xclrun.report.inference import Inference
from xclrun.report.published import beside_ours
from xclrun.report.tables import DEFINITIONS, SHOWN, Summary, Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Orders whose score matrices are drawn, and strategies whose confusions are: more would fill pages that nobody reads.
MATRICES = 6
CONFUSIONS = 6


UNPAIRED = (
    "--unpaired: means are over all runs of each strategy; what is said to be found, significance marks, tests, "
    "bootstrap intervals, score matrices, learning curves, confusions and figures of distances and hops are still over "
    "the runs that all strategies have finished, so their values can differ"
)


@dataclass
class Part:
    """A heading with tables and figures under it.

    Attributes:
        title: the heading.
        tables: in order.
        figures: (file name, what draws it) in order; drawn one after the other, since open figures fill the memory.
        text: one paragraph on how to read it.
        folded: closed at first on the page.
    """

    title: str
    tables: list[Table] = field(default_factory=list)
    figures: list[tuple[str, Callable[[], Figure | None]]] = field(default_factory=list)
    text: str = ""
    folded: bool = False


class Shown(Protocol):
    """What a report needs of a section; see `Section`."""

    @property
    def title(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def parts(self) -> list[Part]: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def findings(self) -> list[str]:
        """What was found, in words; one paragraph each."""

    @property
    def terminal(self) -> list[Table]: ...
    @property
    def lead(self) -> list[Table]: ...
    @property
    def definitions(self) -> dict[str, str]: ...
    @property
    def legend(self) -> str: ...


@dataclass(frozen=True)
class Section:
    """What a report says about one dataset and model."""

    summary: Summary
    parts: list[Part]
    notes: list[str]
    findings: list[str] = field(default_factory=list)

    @property
    def comparison(self) -> Comparison:
        return self.summary.comparison

    @property
    def title(self) -> str:
        return f"{self.comparison.dataset} · {self.comparison.model}"

    @property
    def where(self) -> str:
        """How the names of its tables' files begin."""
        return f"{self.comparison.dataset}_{self.comparison.model}"

    @property
    def terminal(self) -> list[Table]:
        """What a terminal shows."""
        metrics = self.comparison.metrics
        mean = [
            self.summary.main([metric], title=f"{short_name(metric).capitalize()}, mean over orders and seeds")
            for metric in metrics
        ]
        return mean + [self.summary.orders(metric) for metric in metrics]

    @property
    def lead(self) -> list[Table]:
        """What stands first in Markdown, before the tables of the parts."""
        return [self.summary.main(self.comparison.metrics)]

    @property
    def definitions(self) -> dict[str, str]:
        """What its tables show, name with arrow → meaning."""
        return {f"{measure} {arrow}": DEFINITIONS[measure] for measure, arrow in SHOWN.items()}

    @property
    def legend(self) -> str:
        """What stands under its tables on a terminal."""
        arrows = " ".join(f"{measure} {arrow}" for measure, arrow in SHOWN.items())
        return f"{arrows} (the arrow: what is better) · percent, mean ± standard deviation over runs"


@dataclass(frozen=True)
class Options:
    """How a report is made.

    Attributes:
        unpaired: means over all runs of each strategy, not over those that all have finished.
        interval: of the bootstrap: ``basic``, ``centred``, ``percentile``, ``bca`` or ``paper``.
        full: resamples have as many sentences as the test set, instead of 600 at most.
        table: number of the published table to set beside ours.
        few_shot_table: number of the table of the few-shot paper that the sweep makes.
        baseline: label of the strategy that marks and budgets compare with; None: ``naive``, else the first tested.
    """

    unpaired: bool = False
    interval: str = "basic"
    full: bool = False
    table: str | None = None
    few_shot_table: str | None = None
    baseline: str | None = None


def make_section(
    comparison: Comparison,
    frame: pd.DataFrame,
    references: References,
    predictions: Mapping[str, Predictions],
    tried: dict[tuple[str, str, str], int],
    options: Options,
    notes: list[str],
    curves: Sequence[Part],
) -> Section:
    """Return the section of one comparison; ``predictions`` may be empty, then there is no bootstrap.

    ``curves`` is what `parts_of_runs` gave for it.
    """
    resampled, told = _resampled(comparison, references, predictions, options)
    inference = Inference(comparison, references, resampled, options.interval, options.baseline)
    summary = Summary(frame, comparison, inference.marks(), options.unpaired, inference.marks_told)
    told = [*told, *inference.baseline_notes(), *([UNPAIRED] if options.unpaired else [])]
    parts = [
        *_published(summary, options.table),
        _means(summary),
        _trade_offs(summary, references),
        _significance(inference),
        _by_order(summary),
        _by_language(summary),
        *curves,
        _inside_hops(summary),
        _confusion(summary, predictions),
        Part("Budgets", [fairness(comparison, tried, inference.baseline)]),
    ]
    return Section(
        summary, [part for part in parts if part.tables or part.figures], [*notes, *told], findings(inference)
    )


def parts_of_runs(comparison: Comparison) -> list[Part]:
    """Return the parts that need nothing but runs: score matrices, curves over hops, training curves."""
    return [_matrices(comparison), _training(comparison)]


def _resampled(
    comparison: Comparison, references: References, predictions: Mapping[str, Predictions], options: Options
) -> tuple[dict[str, Resampled], list[str]]:
    """Return metric → its bootstrap, and why a metric has none."""
    found, told = {}, []
    for metric in comparison.metrics:
        ways = {run.config.get("evaluate", {}).get("slot_f1", "span_micro") for run in comparison.runs}
        if BY_NAME[metric].of is Scored.spans and ways != {"span_micro"}:
            told.append(
                f"{short_name(metric)}: no bootstrap, since macro F1 over tags is no ratio of sums over sentences"
            )
            continue
        try:
            size = None if options.full else SENTENCES
            found[metric] = Resampled(comparison, references, predictions, metric, size=size)
        except ValueError as error:
            told.append(f"{short_name(metric)}: no bootstrap: {error}")
    return found, told


def _where(comparison: Comparison) -> str:
    return f"{comparison.dataset}_{comparison.model}"


def _published(summary: Summary, table: str | None) -> list[Part]:
    return [] if table is None else [Part(f"CCL paper, Table {table}", beside_ours(summary, table))]


def _means(summary: Summary) -> Part:
    metrics = summary.comparison.metrics
    tables = [
        summary.main([metric], title=f"{short_name(metric).capitalize()}, mean over orders and seeds")
        for metric in metrics
    ]
    return Part("Means over orders and seeds", tables)


def _trade_offs(summary: Summary, references: References) -> Part:
    part = Part("What is traded for what", text="Right and up is better. Bars: standard deviation over runs.")
    for metric in summary.comparison.metrics:
        name = f"{_where(summary.comparison)}_{short_name(metric)}"
        part.figures += [
            (f"trade_offs_{name}", partial(plots.trade_offs, summary, metric)),
            (f"distances_{name}", partial(plots.distances, summary, metric)),
            (f"one_hop_{name}", partial(plots.one_hop, summary, references, metric)),
            (f"memory_{name}", partial(plots.memory_curve, summary, metric)),
        ]
    return part


def _significance(inference: Inference) -> Part:
    text = (
        "CCL compares strategies by a one-way ANOVA with orders as samples and Tukey's HSD. Here all strategies also "
        "run the same orders: these are blocks (seeds of an order are averaged first), and what a block does to all "
        "strategies is no error."
    )
    part = Part("Intervals and tests", text=text)
    part.tables = [
        table for table in (inference.intervals(), inference.anovas(), inference.all_pairs()) if table is not None
    ]
    comparison = inference.comparison
    for metric in comparison.metrics:
        name = f"{_where(comparison)}_{short_name(metric)}"
        if any(of == metric for of, _ in inference.tests):
            part.figures += [
                (f"p_values_{name}", partial(inference.p_values, metric)),
                (f"critical_{name}", partial(inference.critical_differences, metric)),
            ]
    return part


def _by_order(summary: Summary) -> Part:
    comparison = summary.comparison
    part = Part("By order", folded=True)
    for order in comparison.orders:
        languages = {run.languages for run in comparison.runs if run.order == order}
        arrows = " or ".join(sorted(" → ".join(them) for them in languages))
        part.tables.append(summary.main(comparison.metrics, order, f"Order {order}: {arrows}"))
    return part


def _by_language(summary: Summary) -> Part:
    comparison = summary.comparison
    tables = [summary.languages(metric, measure) for metric in comparison.metrics for measure in ("FP", "F", "T", "T0")]
    return Part("By language", [table for table in tables if table.rows], folded=True)


def _matrices(comparison: Comparison) -> Part:
    text = "Score on each language (columns) after each hop (rows), in percent; framed: the language just learnt."
    if len(comparison.orders) > MATRICES:
        text += f" Matrices of the first {MATRICES} of {len(comparison.orders)} orders."
    part = Part("Score matrices and learning curves", text=text, folded=True)
    for metric in comparison.metrics:
        name = f"learning_curves_{_where(comparison)}_{short_name(metric)}"
        part.figures += _pages(name, learning_curves(comparison, metric))
    for order in comparison.orders[:MATRICES]:
        chosen = {label: runs for label, (runs, _) in compared(comparison, order).items() if runs}
        for metric in comparison.metrics:
            having = {k: [r for r in runs if metric in r.metrics] for k, runs in chosen.items()}
            having = {k: runs for k, runs in having.items() if runs and len({r.languages for r in runs}) == 1}
            if having:
                title = f"{comparison.dataset}, {comparison.model}: {order}, mean over seeds"
                part.figures.append((
                    f"matrices_{_where(comparison)}_{order}_{short_name(metric)}",
                    partial(heatmaps, having, metric, title),
                ))  # fmt: skip
    return part


def _training(comparison: Comparison) -> Part:
    part = Part("Training", folded=True)
    for what in ("loss", *comparison.metrics):
        name = what if what == "loss" else short_name(what)
        part.figures += _pages(f"training_curves_{_where(comparison)}_{name}", training_curves(comparison, what))
    return part


def _inside_hops(summary: Summary) -> Part:
    """What evaluation inside hops tells, where runs have some."""
    part = Part("Inside hops: learning curves and checkpoints")
    table = efficiency.efficiency(summary)
    if table is None:
        return part
    part.tables.append(table)
    for metric in summary.comparison.metrics:
        name = f"{_where(summary.comparison)}_{short_name(metric)}"
        found = efficiency.chosen(summary, metric)
        part.figures += [
            (f"example_curves_{name}", partial(efficiency.example_curves, summary, metric)),
            (f"selection_{name}", partial(efficiency.selections, summary, found, metric)),
        ]
        table = efficiency.checkpoints(summary, found, metric)
        part.tables += [table] if table is not None else []
    return part


def _confusion(summary: Summary, predictions: Mapping[str, Predictions]) -> Part:
    """Confusions of the strategies that end with one model for all languages."""
    scored = next((m for m in map(BY_NAME.get, summary.comparison.metrics) if m and m.of is Scored.labels), None)
    if scored is None:
        return Part("Confusions")
    text = (
        f"Shares of each gold {scored.noun} (rows) that were taken for each {scored.noun} (columns), over all "
        "languages and runs."
    )
    part = Part("Confusions", text=text, folded=True)
    chosen = {}
    labels = None
    for label, (runs, _) in compared(summary.comparison, MEAN).items():
        having = [run for run in runs if run.run_id in predictions and run.stream != "independent"]
        names = {predictions[run.run_id].labels for run in having}
        if having and len(names) == 1 and labels in (None, *names):
            (labels,) = names
            chosen[label] = having
    if len(chosen) > CONFUSIONS:
        part.text += f" The first {CONFUSIONS} of {len(chosen)} strategies."
    if labels is not None:
        matrices = {
            label: np.sum([predictions[run.run_id].confusion(run.hops) for run in runs], axis=0)
            for label, runs in list(chosen.items())[:CONFUSIONS]
        }
        draw = partial(plots.confusions, summary, matrices, labels, scored)
        part.figures.append((f"confusions_{_where(summary.comparison)}", draw))
    return part


def _pages(name: str, pages: Sequence[Callable[[], Figure]]) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Yield (name, first page), (name_2, second page), …"""
    for k, page in enumerate(pages, start=1):
        yield name if k == 1 else f"{name}_{k}", page
