"""The parts of a few-shot section that are about one metric and source: what is said of its scores and its words.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021). Where several strategies have run, words,
confusions and gains are of the first: ``full`` where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.fewshot import FULL, Outcome, Words, best_so_far, groups, over_buckets, seeds_against_buckets
from xclrun.analysis.gains import ALL, FACTORS, ByLanguage, with_mean
from xclrun.analysis.lexical import jaccard_matrix
from xclrun.analysis.record import RunRecord
from xclrun.core.task import BY_NAME, Scored, short_name
from xclrun.report.fewshot import figures, tables, words
from xclrun.report.fewshot.tuned import Tuned
from xclrun.report.published import fsxlt
from xclrun.report.sections import Options, Part

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TESTS = "tests of what is tuned"

# Languages whose confusions are drawn.
CONFUSIONS = 4


@dataclass(frozen=True)
class Behind:
    """What lies behind few-shot scores, by run id; what is missing is told on the page with its reason.

    Attributes:
        outcomes: metric → labels of the target's test split.
        words: of source, bucket and test split.
        attention: summaries of [CLS] (see `xclrun.analysis.attention`).
        reasons: why something could not be read, each once.
    """

    outcomes: Mapping[str, Mapping[str, Outcome]] = field(default_factory=dict)
    words: Mapping[str, Words] = field(default_factory=dict)
    attention: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topic:
    """One metric and source of the few-shot runs of one dataset and model.

    Attributes:
        scores: their rows of `few_shot_scores`.
        lacks: is told what is not available, and what it needs.
        options: how the report is made.
    """

    dataset: str
    model: str
    metric: str
    source: str
    scores: pd.DataFrame
    runs: Mapping[str, RunRecord]
    behind: Behind
    lacks: Callable[[str, str], None]
    options: Options = field(default_factory=Options)

    @cached_property
    def means(self) -> pd.DataFrame:
        """Averages over buckets."""
        return over_buckets(self.scores)

    @cached_property
    def strategies(self) -> list[str]:
        """Labels of what was tuned, ``full`` first."""
        return sorted(self.scores["strategy"].unique(), key=lambda s: (tables.method_name(s) != FULL, s))

    @cached_property
    def tuned(self) -> Tuned:
        """Tests of the strategies."""
        return Tuned(self.scores, self.strategies, self.options.baseline)

    @property
    def short(self) -> str:
        return short_name(self.metric)

    @property
    def first(self) -> str:
        return self.strategies[0]

    def cells(self, strategy: str) -> dict[figures.Cell, pd.DataFrame]:
        """Return (language, K) → rows of one strategy."""
        own = self.scores[self.scores["strategy"] == strategy]
        return {(str(c), int(k)): them for (c, k), them in groups(own, ["language", "shots"]) if k > 0}

    @cached_property
    def words(self) -> dict[figures.Cell, list[Words]]:
        """(language, K) → words of each bucket: seeds and strategies share them."""
        found = {}
        for cell, own in self.cells(self.first).items():
            ids = own.sort_values(["bucket", "seed"]).drop_duplicates("bucket")["run_id"]
            found[cell] = [self.behind.words[i] for i in ids if i in self.behind.words]
        return {cell: them for cell, them in found.items() if them}

    @cached_property
    def overlap(self) -> Mapping[int, ByLanguage]:
        """K → language → lexical overlap with the source."""
        return words.overlaps(self.words)

    def parts(self) -> list[Part]:
        """Return the parts in the order in which they are read."""
        improved = [self.improved()] if BY_NAME[self.metric].of is not Scored.labels else []
        first = [self.over_buckets(), self.tests(), self.spread()]
        return [*first, self.gains(), *improved, self.confusions(), self.curves()]

    def over_buckets(self) -> Part:
        """Means over buckets, published ones beside (FS Tables 2, 6, 11–13)."""
        part = self._part("means over buckets")
        part.tables += [tables.by_language(self.means, strategy) for strategy in self.strategies]
        told = self.tuned.notes(self._part(TESTS).title)
        across = tables.by_strategy(self.scores, self.strategies, self.tuned, self.options.unpaired, told)
        part.tables += [across] if across is not None else []
        return part

    def tests(self) -> Part:
        """Tests of what is tuned."""
        text = (
            "All strategies adapt to the same languages: these are blocks (buckets and seeds are averaged first); of a "
            "single language its buckets are. What a block does to all strategies is no error."
        )
        part = self._part(TESTS, text)
        part.tables = self.tuned.tables(f"{self.short}{tables.source_name(self.source)}")
        return part

    def spread(self) -> Part:
        """Buckets against seeds (FS Fig. 1), and variance components."""
        part = self._part("buckets and seeds", "What the choice of shots does, against what the seed does (FS Fig. 1).")
        found = {cell: seeds_against_buckets(own) for cell, own in self.cells(self.first).items()}
        spreads = {cell: one for cell, one in found.items() if one is not None}
        if spreads:
            shown = dict(list(spreads.items())[: figures.PANELS])
            self._draw(part, "histograms", partial(figures.histograms, shown, self.metric, self._title(self.first)))
        for strategy in self.strategies:
            title = f"{self.short}: where the variance comes from, {strategy}{tables.source_name(self.source)}"
            made = tables.variance_table(title, self.scores[self.scores["strategy"] == strategy])
            part.tables += [made] if made is not None else []
        return part

    def gains(self) -> Part:
        """Gains against what languages share with English (FS Table 3); nothing where the source is another."""
        part = self._part("gains and what languages share with the source (FS Table 3)")
        gained = tables.gains(self.means, self.first)
        if self.source != fsxlt.SOURCE or not gained[ALL]:
            return part
        part.tables.append(tables.association_table(f"{self.short}: gains, {self.first}", gained, self.overlap))
        shares: dict[str, ByLanguage] = {}
        if self.overlap:
            mean = with_mean(self.overlap)[ALL]
            shares[f"{FACTORS['lexical_overlap']} (‰)"] = {c: 1000 * v for c, v in mean.items()}
        shares[FACTORS["wals_features"]] = fsxlt.shared_with_english()
        points = {
            name: {c: (values[c], gain) for c, gain in gained[ALL].items() if c in values}
            for name, values in shares.items()
        }
        points = {name: them for name, them in points.items() if len(them) > 1}
        if points:
            self._draw(part, "gains", partial(figures.scatter, points, self.metric, self._title(self.first)))
        return part

    def lexical(self) -> Part:
        """Overlap with the source and between buckets (FS Fig. 3, Table 14): the same for every metric of a dataset."""
        text = "Which words buckets share with the source, and with each other (FS Fig. 3, Table 14)."
        part = Part(f"Lexical overlap{tables.source_name(self.source)}", text=text, folded=True)
        if not self.words:
            self.lacks("lexical overlap", "the words of the buckets")
            return part
        if self.overlap:
            made = words.overlap_table(part.title, self.dataset, self.overlap, words.jaccards(self.words))
            part.tables.append(made)
        several = {cell: [one.bucket for one in them] for cell, them in self.words.items() if len(them) > 1}
        shown = {
            cell: jaccard_matrix(them[: figures.BUCKETS]) for cell, them in list(several.items())[: figures.PANELS]
        }
        if shown:
            self._draw(part, "jaccard", partial(figures.similarities, shown, self.dataset))
        return part

    def improved(self) -> Part:
        """Improved word-label predictions by presence in the bucket (FS Fig. 4)."""
        text = "Where adapting puts labels right: by whether the bucket holds the test word (FS Fig. 4)."
        part = self._part("improved predictions", text, folded=True)
        given, known = self.behind.outcomes.get(self.metric, {}), self.behind.words
        counts = {}
        for cell, own in self.cells(self.first).items():
            them = [(given[i], known[i]) for i in own["run_id"] if i in given and i in known]
            if them:
                counts[cell] = words.improvement(them)
        if not counts:
            self.lacks(part.title, "predictions and the words of the buckets")
            return part
        title = f"{self.short}: improved predictions, {self.first}{tables.source_name(self.source)}"
        part.tables.append(words.improvement_table(title, counts))
        shown = dict(list(counts.items())[: 2 * figures.PANELS])
        self._draw(part, "improved", partial(figures.improvements, shown, self._title(self.first)))
        return part

    def confusions(self) -> Part:
        """What labels are taken for, zero-shot and at the smallest K (FS Fig. 5)."""
        text = "What each gold label (rows) was taken for (columns), before and after adapting (FS Fig. 5)."
        part = self._part("confusions", text, folded=True)
        given = self.behind.outcomes.get(self.metric, {})
        found = {cell: [given[i] for i in own["run_id"] if i in given] for cell, own in self.cells(self.first).items()}
        found = {cell: them for cell, them in found.items() if them}
        least = min((k for _, k in found), default=0)
        pairs: dict[figures.Cell, tuple[np.ndarray, np.ndarray]] = {}
        names: tuple[str, ...] = ()
        for cell, them in found.items():
            if cell[1] == least and len(pairs) < CONFUSIONS and names in ((), them[0].names):
                names = them[0].names
                before, after = ([getattr(one, when) for one in them] for when in ("before", "after"))
                counted = [
                    np.sum([one.confusion(labels) for one, labels in zip(them, said, strict=True)], axis=0)
                    for said in (before, after)
                ]
                pairs[cell] = counted[0], counted[1]
        if pairs:
            self._draw(part, "confusions", partial(figures.confusions, pairs, names, self._title(self.first)))
        else:
            self.lacks(part.title, "predictions")
        return part

    def curves(self) -> Part:
        """Learning curves of target adapting (FS Fig. 6), a figure for each strategy."""
        text = "The best dev score so far: after early stopping it stays what it was (FS Fig. 6)."
        part = self._part("learning curves of target adapting", text, folded=True)
        for strategy in self.strategies:
            lines: dict[str, dict[int, np.ndarray]] = {}
            ids = self.scores[self.scores["strategy"] == strategy]["run_id"]
            points = [p for i in ids for p in self.runs[i].curve if p["hop"] == self.runs[i].hops]
            epochs = max((p["epoch"] for p in points), default=0)
            for (language, k), own in self.cells(strategy).items() if epochs > 1 else ():
                runs = [self.runs[i] for i in own["run_id"]]
                found = [best_so_far(run.curve, run.hops, language, self.metric, epochs) for run in runs]
                whole = [values for values in found if np.isfinite(values).all()]
                if whole and len(lines) < figures.PANELS:
                    lines.setdefault(language, {})[k] = np.stack(whole)
            if lines:
                kind = "curves" if strategy == self.first else f"curves_{strategy}"
                self._draw(part, kind, partial(figures.curves, lines, self.metric, self._title(strategy)))
        if not part.figures:
            self.lacks(part.title, "dev scores of more than one epoch")
        return part

    def _part(self, what: str, text: str = "", folded: bool = False) -> Part:
        name = BY_NAME[self.metric].title + tables.source_name(self.source)
        return Part(f"{name}: {what}", text=text, folded=folded)

    def _draw(self, part: Part, kind: str, draw: Callable[[], Figure]) -> None:
        tail = "" if self.source == fsxlt.SOURCE else f"_{self.source}"
        part.figures.append((f"few_shot_{kind}_{self.dataset}_{self.model}_{self.short}{tail}", draw))

    def _title(self, strategy: str) -> str:
        return f"{self.dataset}, {self.model}, {strategy}{tables.source_name(self.source)}"
