"""Measures: values computed from a run's score matrix, or the reason why a run has none.

Means, tests, the bootstrap, tables, findings, the console and MLflow all read `MEASURES`, so a new measure is one
entry, or a call of `register`. docs/metrics.md, "From the score matrix".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from numbers import Real

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
    "mixture": "is of languages that are learned one by one; this run mixes some",
    "transfer": "is of continual learning; few-shot transfer has scores after each hop",
}


@dataclass(frozen=True)
class Scores:
    """Input of a measure; leading axes (...) are resamples.

    Attributes:
        R: the score matrix, shape (..., hops + 1, N).
        M: the reference scores, shape (..., N); NaN where unknown.
    """

    R: np.ndarray
    M: np.ndarray
    record: RunRecord
    metric: str

    @property
    def final(self) -> np.ndarray:
        """The final score on each language, shape (..., N): after its own hop if each is trained separately."""
        return metrics.learnt_scores(self.R) if self.record.stream == "independent" else self.R[..., -1, :]


def no_cells(n: int) -> np.ndarray:
    """Return the mask of a measure that is not computed from R."""
    return np.zeros((n + 1, n), dtype=bool)


@dataclass(frozen=True)
class Measure:
    """One measure of a run.

    Attributes:
        name: in tables, ``summary.csv`` and MLflow.
        title: name in words.
        definition: in table notes.
        source: paper and equation; empty for our own measures.
        formula: returns the value, a fraction, shape (...); NaN where an input is missing.
        example: value for `EXAMPLE`, worked by hand, which checks the formula; None for a measure that needs more than
            a score matrix.
        needs: N → mask (N + 1, N) of the cells of R that enter. Columns that a mean over languages leaves out are
            empty; an empty mask means that the measure is undefined for so few languages.
        by_language: returns the value of each language, shape (..., N); None: the measure has no such parts.
        reference: whether M enters, in the columns of ``needs``; in all columns where ``otherwise`` is set.
        streams: kinds of run that have the measure.
        otherwise: what a run lacks without the measure, if that is neither a cell of R nor M.
        headline: whether the measure is in tables, on the console and in MLflow's columns, and is tested and
            resampled; the others are only in ``summary.csv`` and MLflow.
        unit: ``%``, ``points`` (a difference of percentages), or another unit, whose values are printed unscaled.
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
        """The direction of better values."""
        return "↑" if self.higher_is_better else "↓"

    @property
    def scale(self) -> int:
        """The factor from a value to what tables print."""
        return 100 if self.unit in ("%", "points") else 1

    def shown(self, value: float) -> str:
        """Format a value for tables: in percent, with two decimals and without ``-0.00``."""
        return f"{round(self.scale * value, 2) + 0.0:.2f}"

    @property
    def shared(self) -> bool:
        """Whether orders of one seed share some inputs: the reference models, or hop 0."""
        return self.reference or bool(self.needs(3)[0].any())

    def left_out(self, n: int, column: int) -> bool:
        """Whether the language at this place has no value by definition."""
        return not self.needs(n)[:, column].any()


MEASURES: dict[str, Measure] = {}


def register(measure: Measure) -> Measure:
    """Add a measure after the others."""
    if measure.name in MEASURES:
        raise UsageError(f"there is a measure {measure.name} already")
    if unknown := set(measure.streams) - STREAMS.keys():
        raise UsageError(f"measure {measure.name}: unknown stream {', '.join(unknown)}; known: {', '.join(STREAMS)}")
    _check(measure)
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
    """Return a number of the codelength of what a metric scores; NaN if the run has none."""
    code = code_of(scores.record, scores.metric)
    return float("nan") if code is None else of(code)


WITHOUT_BLOCKS = "needs the labels of all blocks (dataset.blocks)"
WITHOUT_POINTS = "needs evaluation inside hops (evaluate.every_examples or evaluate.every_share)"

# N = 3, rows are hops 0…3. Hop 0 is best on the first language, and hop 1 is better on the second than hop 2, which
# learns it, so that different definitions give different numbers.
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
        "zero-shot transfer: score on a language before it is learned minus the score before any fine-tuning (hop 0)",
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
        "online codelength: bits to send the labels of all blocks, each by the model that learned those before it",
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
    # Tests check these, so importing stays fast.
    _add(_measure)


def _check(measure: Measure) -> None:
    """Check the parts of an entry against each other on `EXAMPLE`."""
    for n in (1, 3):
        mask = measure.needs(n)
        found = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
        if found != f"bool {(n + 1, n)}":
            raise UsageError(f"measure {measure.name}: needs({n}) is a mask, bool {(n + 1, n)}, not {found}")
    if measure.example is None or "sequence" not in measure.streams:
        return
    (R, M), mask = EXAMPLE, measure.needs(3)
    whole = _example_value(measure, R, M)
    # np.integer is not a Python int.
    if not isinstance(measure.example, Real) or not _same(float(measure.example), whole):
        raise UsageError(f"measure {measure.name}: example={measure.example}: its formula gives {whole:g} for EXAMPLE")
    cells: list[tuple[np.ndarray, tuple[int, ...]]] = [(R, at) for at in np.ndindex(R.shape)]
    cells += [] if measure.otherwise else [(M, (column,)) for column in range(M.size)]
    for changed, at in cells:
        in_R = changed is R
        missing = changed.copy()
        missing[at] = np.nan
        value = _example_value(measure, missing, M) if in_R else _example_value(measure, R, missing)
        enters = bool(mask[at]) if in_R else measure.reference and bool(mask[:, at[0]].any())
        if not (np.isnan(value) if enters else _same(value, whole)):
            said = "needs(3) says" if in_R else f"reference={measure.reference} and needs(3) say"
            cell = f"R[{at[0]}, {at[1]}]" if in_R else f"M[{at[0]}]"
            raise UsageError(
                f"measure {measure.name}: {said} that {cell} {'enters' if enters else 'does not enter'}; where it is "
                f"NaN the formula gives {value:g}"
            )
    if measure.by_language is not None:
        shape = _on_example(measure, measure.by_language, R, M).shape
        if shape != M.shape:
            raise UsageError(f"measure {measure.name}: by_language gives {shape} values for 3 languages, not (3,)")
    if measure.headline and mask.any():
        # Headlines are resampled, many matrices at a time.
        stacked = _on_example(measure, measure.formula, np.stack([R, 1 - R]), np.stack([M, M]))
        each = [whole, _example_value(measure, 1 - R, M)]
        if stacked.shape != (2,) or not all(map(_same, stacked, each)):
            raise UsageError(
                f"measure {measure.name}: a headline's formula gives a value for each of stacked matrices, here "
                f"{each[0]:g} and {each[1]:g}; it gives {' '.join(f'{one:g}' for one in stacked.flat[:3])}"
            )


def _example_value(measure: Measure, R: np.ndarray, M: np.ndarray) -> float:
    """Return the measure's value for one matrix."""
    value = _on_example(measure, measure.formula, R, M)
    if value.shape:
        raise UsageError(f"measure {measure.name}: its formula gives {value.shape} values for one matrix, not one")
    return float(value)


def _on_example(
    measure: Measure, formula: Callable[[Scores], np.ndarray | float], R: np.ndarray, M: np.ndarray
) -> np.ndarray:
    """Compute a formula of a measure for the run of `EXAMPLE`; a `UsageError` if it fails."""
    run = RunRecord(
        "example", "", "", "naive", "abc", ("a", "b", "c"), seed=1, bucket=None, stream="sequence", scores={},
        config={}, data_fingerprint="", code_version="", algorithms=1, status="finished",
    )  # fmt: skip
    cells = R.copy()
    # As in a record.
    cells.setflags(write=False)
    with warnings.catch_warnings():
        # numpy warns about NaN.
        warnings.simplefilter("ignore")
        try:
            return np.asarray(formula(Scores(cells, M, run, next(iter(BY_NAME)))), dtype=float)
        except Exception as error:
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UsageError(
                f"measure {measure.name}: fails for EXAMPLE ({what}); give example=None where it needs more "
                "than a score matrix"
            ) from error


def _same(one: float, other: float) -> bool:
    return bool(np.isclose(one, other, rtol=0, atol=1e-9))


@dataclass(frozen=True)
class Absent:
    """Why a run has no value for a measure.

    Attributes:
        reason: for missing reference scores, without seed and languages.
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
    """Return (measure, language) → value, or the reason why there is none; the language is empty for the aggregate.

    Args:
        reference: M, shape (N,); NaN where unknown.
        names: which measures.
    """
    scores = Scores(record.scores[metric], reference, record, metric)
    measured: Measured = {}
    for name in (name for name in MEASURES if name in names):
        one = MEASURES[name]
        if record.stream not in one.streams:
            measured[name, ""] = Absent(NOT_A_SEQUENCE[record.stream] if "sequence" in one.streams else one.otherwise)
            continue
        measured[name, ""] = _value_or_reason(float(one.formula(scores)), one, scores, None)
        for j, value in enumerate(() if one.by_language is None else one.by_language(scores)):
            measured[name, record.languages[j]] = _value_or_reason(float(value), one, scores, j)
    return measured


def leaves_out(record: RunRecord, measure: str, language: str) -> bool:
    """Whether a measure of a run has no value for a language by definition.

    Forgetting needs a hop after the language's own hop; transfer needs one before it.
    """
    one = MEASURES[measure]
    if language not in record.languages or record.stream not in one.streams or one.by_language is None:
        return True
    return record.stream == "sequence" and one.left_out(len(record.languages), record.languages.index(language))


def explain(absents: Iterable[Absent]) -> str:
    """Combine the reasons of several runs; seeds that need reference runs of the same languages are listed together.

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
    for (reason, which), numbers in seeds.items():
        reasons.append(f"{reason} of seed{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))} ({which})")
    return "; ".join(dict.fromkeys(reasons))


def _value_or_reason(value: float, measure: Measure, scores: Scores, column: int | None) -> float | Absent:
    """Return the value of the aggregate (``column`` None) or of a language; if it is NaN, the reason."""
    record, R = scores.record, scores.R
    if not np.isnan(value):
        return value
    languages = np.array(record.languages)
    n = len(languages)
    if measure.otherwise:
        # Compute with M as if it were known, to find out what is missing.
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
        # Whether the first or the last language has no value does not depend on the number of languages.
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
