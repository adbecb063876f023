"""The measures: what is computed from a run's score matrix, by name, or why a run does not have one.

`MEASURES` is the one place that knows them. Means, tests, the bootstrap, tables, findings, the console and MLflow ask
it, so a further measure is one entry, or a call of `register`. docs/metrics.md, "From the score matrix".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from xclrun.analysis import metrics
from xclrun.analysis.codelength import Codelength, code_of
from xclrun.analysis.points import aultc, curve_forgetting, curve_intransigence
from xclrun.analysis.record import STREAMS, RunRecord
from xclrun.analysis.reference import reference_name
from xclrun.core.errors import UsageError
from xclrun.core.plugins import provides
from xclrun.core.task import BY_NAME

NOT_A_SEQUENCE = {
    "independent": "trains each language alone",
    "joint": "needs a sequence of hops",
    "growing": "learns what it knows anew in each hop",
    "zero_shot": "needs a sequence of hops",
    "blocks": "is of several languages; this run learns blocks of one",
    "mixture": "is of languages that are learnt one by one; this run mixes some",
    "transfer": "is of continual learning; few-shot transfer has scores after each hop",
}


@dataclass(frozen=True)
class Scores:
    """What a measure is computed from; leading axes (...) are resamples.

    Attributes:
        R: the score matrix, shape (..., hops + 1, N).
        M: the reference scores, shape (..., N); NaN where not known.
        record: the run.
        metric: whose scores these are.
    """

    R: np.ndarray
    M: np.ndarray
    record: RunRecord
    metric: str

    @property
    def final(self) -> np.ndarray:
        """The last score on each language, shape (..., N): after its own hop in a run that trains each alone."""
        return metrics.learnt_scores(self.R) if self.record.stream == "independent" else self.R[..., -1, :]


def no_cells(n: int) -> np.ndarray:
    """The mask of a measure that is not computed from R."""
    return np.zeros((n + 1, n), dtype=bool)


@dataclass(frozen=True)
class Measure:
    """One measure of a run.

    Attributes:
        name: in tables, ``summary.csv`` and MLflow.
        title: what it is called in words.
        definition: what tables say of it.
        source: paper and equation; empty for our own.
        higher_is_better: which way is better.
        formula: gives its value, a fraction, shape (...); NaN where something is not measured.
        example: its value for `EXAMPLE`, worked by hand; a test holds the formula against it. None where it needs more
            than a score matrix: then it has a test of its own.
        needs: N → mask (N + 1, N) of the cells of R that enter it. Columns that a mean over languages leaves out are
            empty; a mask without any cell means that the measure is not defined for so few languages.
        by_language: gives it for each language, shape (..., N); None where it has no such parts.
        reference: whether it needs M, in the columns of ``needs``; in all where ``otherwise`` says more.
        streams: kinds of run that have it.
        otherwise: what a run lacks that does not have it, where it is no cell of R, nor M.
        headline: whether it stands in tables, on the console and in MLflow's columns, and is tested and resampled; the
            others are in ``summary.csv`` and MLflow alone.
        unit: ``%``, ``points`` (a difference of percentages), or another in which values are given as they are.
    """

    name: str
    title: str
    definition: str
    source: str
    higher_is_better: bool
    formula: Callable[[Scores], np.ndarray | float]
    example: float | None
    needs: Callable[[int], np.ndarray] = no_cells
    by_language: Callable[[Scores], np.ndarray] | None = None
    reference: bool = False
    streams: tuple[str, ...] = ("sequence",)
    otherwise: str = ""
    headline: bool = False
    unit: str = "points"

    @property
    def arrow(self) -> str:
        """Which way is better."""
        return "↑" if self.higher_is_better else "↓"

    @property
    def scale(self) -> int:
        """What a value is multiplied with where it is shown."""
        return 100 if self.unit in ("%", "points") else 1

    def shown(self, value: float) -> str:
        """Return a value as tables print it: percent, with two decimals and no ``-0.00``."""
        return f"{round(self.scale * value, 2) + 0.0:.2f}"

    @property
    def shared(self) -> bool:
        """Whether orders of one seed share some of its inputs: the reference models, or hop 0."""
        return self.reference or bool(self.needs(3)[0].any())

    def left_out(self, n: int, column: int) -> bool:
        """Whether the language in this place has no value, though nothing is missing."""
        return not self.needs(n)[:, column].any()


MEASURES: dict[str, Measure] = {}


def register(measure: Measure) -> Measure:
    """Add a measure, after the others.

    Raises:
        UsageError: there is one of this name, or a stream is unknown; what ``needs``, ``reference``, ``example``,
            ``by_language`` or the formula gives for `EXAMPLE` is not what the others say.
    """
    from xclrun.analysis.measure_check import check

    if measure.name in MEASURES:
        raise UsageError(f"there is a measure {measure.name} already")
    if unknown := set(measure.streams) - STREAMS.keys():
        raise UsageError(f"measure {measure.name}: unknown stream {', '.join(unknown)}; known: {', '.join(STREAMS)}")
    check(measure)
    return _add(measure)


def _add(measure: Measure) -> Measure:
    MEASURES[measure.name] = measure
    provides("measure", measure.name, measure.definition)
    return measure


def headlines() -> list[Measure]:
    """Return the measures of tables, in their order."""
    return [measure for measure in MEASURES.values() if measure.headline]


def _rows(n: int, first: int, last: int) -> np.ndarray:
    """Mask (N + 1, N) of the rows of hops ``first``…``last``."""
    mask = no_cells(n)
    mask[first : last + 1] = True
    return mask


def _learnt(n: int) -> np.ndarray:
    """Mask of R[i, i]."""
    return np.eye(n + 1, n, k=-1, dtype=bool)


def _coded(scores: Scores, of: Callable[[Codelength], float]) -> float:
    """Return a number of the codelength of what a metric scores; NaN where the run has none."""
    found = code_of(scores.record, scores.metric)
    return float("nan") if found is None else of(found)


# What runs lack that have no codelength.
WITHOUT_BLOCKS = "needs the labels of all blocks (dataset.blocks)"
# What runs lack that have no evaluation points.
WITHOUT_POINTS = "needs evaluation inside hops (evaluate.every_examples or evaluate.every_share)"

# N = 3, rows are hops 0…3. Hop 0 is best on the first language, and hop 1 is better on the second than hop 2, which
# learns it: definitions that differ give different numbers.
EXAMPLE = (
    np.array([[0.90, 0.20, 0.30], [0.80, 0.60, 0.40], [0.70, 0.50, 0.60], [0.75, 0.55, 0.85]]),
    np.array([0.80, 0.45, 0.75]),
)

for _measure in (
    Measure(
        "F",
        "forgetting",
        "forgetting: how far a language's score falls from its best after any earlier hop, mean over hops (CCL eq. 1)",
        "CCL eq. 1",
        higher_is_better=False,
        formula=lambda s: metrics.forgetting(s.R),
        by_language=lambda s: metrics.forgetting_per_language(s.R),
        needs=lambda n: _rows(n, 1, n) & (np.arange(n) < n - 1),
        # F_2 = .80 − .70; F_3 = ((.80 − .75) + (.60 − .55)) / 2
        example=(0.10 + 0.05) / 2,
        headline=True,
    ),
    Measure(
        "T",
        "transfer",
        "transfer: score right after learning a language, minus that of `lang_spec_ft` (same data, model, trainer and "
        "seed), which learns it alone",
        "CCL §2.5",
        higher_is_better=True,
        formula=lambda s: metrics.transfer(s.R, s.M),
        by_language=lambda s: metrics.transfer_per_language(s.R, s.M),
        needs=lambda n: _learnt(n) & (np.arange(n) > 0),
        # (.50 − .45) and (.85 − .75)
        example=(0.05 + 0.10) / 2,
        reference=True,
        headline=True,
    ),
    Measure(
        "T0",
        "zero-shot transfer",
        "zero-shot transfer: score on a language before it is learnt minus the score before any fine-tuning (hop 0)",
        "CCL §2.5",
        higher_is_better=True,
        formula=lambda s: metrics.zero_shot_transfer(s.R),
        by_language=lambda s: metrics.zero_shot_transfer_per_language(s.R),
        needs=lambda n: np.tri(n, n + 1, k=0, dtype=bool).T & (np.arange(n) > 0),
        # .60 − .20, and (.40 + .60) / 2 − .30
        example=(0.40 + 0.20) / 2,
        headline=True,
    ),
    Measure(
        "FP",
        "final performance",
        "final performance: mean score over all languages after the last hop; LL's average accuracy, A_m",
        "CCL §2.5, LL §4.2",
        higher_is_better=True,
        formula=lambda s: s.final.mean(axis=-1),
        by_language=lambda s: s.final,
        needs=lambda n: _rows(n, n, n),
        example=(0.75 + 0.55 + 0.85) / 3,
        streams=tuple(STREAMS),
        headline=True,
        unit="%",
    ),
    Measure(
        "BWT",
        "backward transfer",
        "backward transfer: how a language's score changes after its own hop, mean over later hops",
        "GEM",
        higher_is_better=True,
        formula=lambda s: metrics.backward_transfer(s.R),
        needs=lambda n: np.tri(n + 1, n, k=-1, dtype=bool) & (np.arange(n) < n - 1),
        # hop 2: .70 − .80; hop 3: ((.75 − .80) + (.55 − .50)) / 2
        example=(-0.10 + 0.0) / 2,
    ),
    Measure(
        "I",
        "intransigence",
        "intransigence: score of `lang_spec_ft` on a language minus the score right after learning it in the stream; "
        "LL's I_m",
        "LL §4.2",
        higher_is_better=False,
        formula=lambda s: metrics.intransigence(s.R, s.M),
        needs=_learnt,
        # (.80 − .80), (.45 − .50) and (.75 − .85)
        example=(0.0 - 0.05 - 0.10) / 3,
        reference=True,
    ),
    Measure(
        "F_m",
        "forgetting at the end",
        "LL's forgetting: how far a language's score ends below its best after any earlier hop, mean over all "
        "languages but the last",
        "LL §4.2, after Chaudhry et al. 2018",
        higher_is_better=False,
        formula=lambda s: metrics.final_forgetting(s.R),
        by_language=lambda s: metrics.final_forgetting_per_language(s.R),
        needs=lambda n: _rows(n, 1, n) & (np.arange(n) < n - 1),
        # (.80 − .75) and (.60 − .55)
        example=(0.05 + 0.05) / 2,
    ),
    Measure(
        "F_m_curve",
        "forgetting on the curve",
        "LL's forgetting as its code has it: how far a language's score ends below its best at any evaluation point, "
        "that before training included, mean over all languages",
        "LL's public code",
        higher_is_better=False,
        formula=lambda s: float(curve_forgetting(s.record, s.metric).mean()),
        example=None,
        streams=("sequence", "joint", "mixture"),
        otherwise=WITHOUT_POINTS,
    ),
    Measure(
        "I_m_curve",
        "intransigence on the curve",
        "intransigence read off the learning curve: score of `lang_spec_ft` on the i-th of m languages minus the score "
        "after i/m of the stream; of `multilingual` too, as LL's I_m of multi-task training",
        "LL's public code",
        higher_is_better=False,
        formula=lambda s: curve_intransigence(s.record, s.metric, s.M),
        example=None,
        reference=True,
        streams=("sequence", "joint"),
        otherwise=WITHOUT_POINTS,
    ),
    Measure(
        "FP_std",
        "spread of FP",
        "standard deviation of the final scores over languages",
        "",
        higher_is_better=False,
        formula=lambda s: s.final.std(axis=-1),
        needs=lambda n: _rows(n, n, n),
        # distances from the mean .71667: .03333, .16667 and .13333
        example=(0.14 / 9) ** 0.5,
        streams=tuple(STREAMS),
    ),
    Measure(
        "FP_min",
        "worst language",
        "final score on the language that fares worst",
        "",
        higher_is_better=True,
        formula=lambda s: s.final.min(axis=-1),
        needs=lambda n: _rows(n, n, n),
        example=0.55,
        streams=tuple(STREAMS),
        unit="%",
    ),
    Measure(
        "AULTC",
        "area under the learning curve",
        "area under the learning curve: mean score over all languages, averaged over the sentences seen",
        "LL §4.2",
        higher_is_better=True,
        formula=lambda s: aultc(s.record, s.metric),
        example=None,
        streams=("sequence", "joint", "zero_shot", "mixture"),
        otherwise=WITHOUT_POINTS,
        unit="%",
    ),
    Measure(
        "L",
        "online codelength",
        "online codelength: bits to send the labels of all blocks, each coded by the model that learnt those before it",
        "GLI §4",
        higher_is_better=False,
        formula=lambda s: _coded(s, lambda code: code.kbits),
        example=None,
        streams=("blocks",),
        otherwise=WITHOUT_BLOCKS,
        unit="kbits",
    ),
    Measure(
        "L_example",
        "codelength of an example",
        "online codelength divided by the number of examples",
        "GLI §4",
        higher_is_better=False,
        formula=lambda s: _coded(s, lambda code: code.bits_per_example),
        example=None,
        streams=("blocks",),
        otherwise=WITHOUT_BLOCKS,
        unit="bits",
    ),
):
    # Tests hold them against their examples.
    _add(_measure)


@dataclass(frozen=True)
class Absent:
    """Why a run has no value for a measure.

    Attributes:
        reason: for a person; for missing reference scores what is needed, without seed and languages.
        seed, languages: of the missing reference runs; empty otherwise.
        by_definition: the measure leaves this language out at its place in the order; nothing is missing.
    """

    reason: str
    seed: int | None = None
    languages: frozenset[str] = frozenset()
    by_definition: bool = False


Measured = dict[tuple[str, str], float | Absent]


def measure(
    record: RunRecord, metric: str, reference: np.ndarray, names: Collection[str] = MEASURES.keys()
) -> Measured:
    """Return (measure, language) → value or the reason why there is none; the language is empty for the aggregate.

    ``reference`` is M, shape (N,), NaN where it is not known; ``names`` are the measures that are asked for.
    """
    scores = Scores(record.scores[metric], reference, record, metric)
    found: Measured = {}
    for name, one in MEASURES.items():
        if name not in names:
            continue
        if record.stream not in one.streams:
            reason = NOT_A_SEQUENCE[record.stream] if "sequence" in one.streams else one.otherwise
            found[name, ""] = Absent(reason)
            continue
        found[name, ""] = _value_or_reason(float(one.formula(scores)), one, scores, None)
        for j, value in enumerate(() if one.by_language is None else one.by_language(scores)):
            found[name, record.languages[j]] = _value_or_reason(float(value), one, scores, j)
    return found


def leaves_out(record: RunRecord, measure: str, language: str) -> bool:
    """Whether a measure of a run has no value for a language, at its place in the order, though nothing is missing.

    Forgetting needs a hop after the language's own, transfer one before it.
    """
    one = MEASURES[measure]
    if language not in record.languages or record.stream not in one.streams or one.by_language is None:
        return True
    return record.stream == "sequence" and one.left_out(len(record.languages), record.languages.index(language))


def explain(absents: Iterable[Absent]) -> str:
    """Return one reason for several runs: seeds that need reference runs of the same languages are put together.

    >>> explain([Absent("needs lang_spec_ft", seed, frozenset({"de"})) for seed in (2, 1)])
    'needs lang_spec_ft of seeds 1, 2 (de)'
    """
    reasons: list[str] = []
    needed: dict[tuple[str, int], frozenset[str]] = {}
    for absent in absents:
        if absent.seed is None:
            reasons.append(absent.reason)
        else:
            key = (absent.reason, absent.seed)
            needed[key] = needed.get(key, frozenset()) | absent.languages
    seeds: dict[tuple[str, str], list[int]] = {}
    for (reason, seed), languages in sorted(needed.items(), key=lambda item: item[0]):
        seeds.setdefault((reason, ", ".join(sorted(languages))), []).append(seed)
    for (reason, which), them in seeds.items():
        reasons.append(f"{reason} of seed{'s' if len(them) > 1 else ''} {', '.join(map(str, them))} ({which})")
    return "; ".join(dict.fromkeys(reasons))


def _value_or_reason(value: float, measure: Measure, scores: Scores, column: int | None) -> float | Absent:
    """Return the value of the aggregate, or of the language in ``column``; where it is NaN, why."""
    record, R = scores.record, scores.R
    if not np.isnan(value):
        return value
    languages = np.array(record.languages)
    n = len(languages)
    if measure.otherwise:
        # Asked with M as if it were known, to tell what lacks.
        known = replace(scores, M=np.nan_to_num(scores.M)) if measure.reference else scores
        if np.isnan(measure.formula(known)):
            return Absent(measure.otherwise)
        return Absent(f"needs {reference_name(record)}", record.seed, frozenset(languages[np.isnan(scores.M)].tolist()))
    if undefined := BY_NAME[scores.metric].undefined:
        nowhere = np.isnan(R).all(axis=0)
        if nowhere.any() if column is None else nowhere[column]:
            of = languages[nowhere] if column is None else languages[[column]]
            return Absent(f"{undefined} ({', '.join(of)})")
    here = np.full(n, True) if column is None else np.arange(n) == column
    if record.stream != "sequence":
        return Absent(f"needs the final scores of {', '.join(languages[np.isnan(scores.final) & here])}")
    if column is not None and measure.left_out(n, column):
        # Which end of a stream has no value does not depend on its length.
        where = "after" if measure.left_out(3, 2) else "before"
        return Absent(f"needs a hop {where} {languages[column]}", by_definition=True)
    needed = measure.needs(n) & here
    if not needed.any():
        return Absent("needs at least two hops")
    missing = needed & np.isnan(R)
    if missing.any():
        hops = [_hop(record, i, missing[i], needed[i]) for i in range(n + 1) if missing[i].any()]
        return Absent(f"needs {', '.join(hops)}")
    unknown = needed.any(axis=0) & np.isnan(scores.M)
    return Absent(f"needs {reference_name(record)}", record.seed, frozenset(languages[unknown].tolist()))


def _hop(record: RunRecord, hop: int, missing: np.ndarray, needed: np.ndarray) -> str:
    """Name a hop whose scores are missing, with the languages where only some are."""
    languages = ", ".join(np.array(record.languages)[missing].tolist())
    return f"hop {hop}" if (missing == needed).all() else f"hop {hop} ({languages})"
