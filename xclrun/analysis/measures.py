"""Measures: values computed from a run's score matrix, or the reason why a run has no value.

All tables, tests and figures read `MEASURES`, so a new measure is one entry, or a call of `register`. docs/metrics.md,
"From the score matrix".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from xclrun.analysis import formulas
from xclrun.analysis.codelength import Codelength, code_of
from xclrun.analysis.points import aultc, curve_forgetting, curve_intransigence
from xclrun.analysis.record import STREAMS, RunRecord
from xclrun.analysis.reference import reference_name
from xclrun.core.errors import UsageError
from xclrun.core.plugins import packaged, provides, replaces
from xclrun.core.quantity import Quantity
from xclrun.core.task import BY_NAME, Metric

NOT_A_SEQUENCE = {
    "independent": "needs a sequence of hops instead of one model per language",
    "joint": "needs a sequence of hops",
    "growing": "needs a sequence of hops instead of retraining on all languages so far",
    "zero_shot": "needs a sequence of hops",
    "blocks": "needs a sequence of languages; this run learns blocks of one language",
    "mixture": "needs languages that are learned one at a time; this run mixes some",
    "transfer": "needs a sequence of languages; few-shot transfer has a source and a target",
}


# Units of measures that are a score, or a difference of scores, in the unit of the metric.
SCORE, DIFFERENCE = "%", "points"


@dataclass(frozen=True)
class Scores:
    """Input of a measure, for a run with N languages. Leading axes (...) are resamples.

    Attributes:
        R: the score matrix, shape (..., hops + 1, N). Scores of metrics of which lower is better are negated, so in
            formulas higher is always better.
        M: the reference scores, shape (..., N), negated like ``R``; NaN if unknown.
    """

    R: np.ndarray
    M: np.ndarray
    record: RunRecord
    metric: str

    @classmethod
    def of(cls, R: np.ndarray, M: np.ndarray, record: RunRecord, metric: str) -> Scores:
        """Return the input for scores as they were measured."""
        goodness = BY_NAME[metric].goodness
        return cls(goodness(R), goodness(M), record, metric)

    @property
    def final(self) -> np.ndarray:
        """The final score on each language, shape (..., N).

        If languages are trained separately, this is the score after the language's hop.
        """
        return formulas.learnt_scores(self.R) if self.record.stream == "independent" else self.R[..., -1, :]


def no_cells(n: int) -> np.ndarray:
    """Return a mask of R that is False everywhere, shape (n + 1, n): the measure does not use R."""
    return np.zeros((n + 1, n), dtype=bool)


@dataclass(frozen=True)
class Measure:
    """One measure of a run with N languages.

    Attributes:
        name: short name, in tables, ``summary.csv`` and MLflow.
        title: full name.
        definition: text for table notes.
        source: paper and equation.
        formula: computes the value from `Scores`, as a fraction, shape (...); NaN if an input is missing.
        example: value for `EXAMPLE`, computed by hand; None for a measure that needs more than a score matrix.
        needs: N → mask (N + 1, N) of the cells of R that the measure uses. The mask is False in the whole column of a
            language without a value. It is False everywhere if the measure does not use R, or is undefined for N
            languages.
        by_language: computes the value of each language, shape (..., N).
        reference: whether the measure uses M. It needs M for the languages whose columns ``needs`` selects, or for all
            languages if ``otherwise`` is set.
        streams: streams for which the measure is defined.
        otherwise: the reason reported if an input other than R and M is missing, for example evaluation points inside
            hops. Empty for measures that need only R and M.
        headline: whether the measure is tested, resampled, and printed in tables and on the console; other measures
            are only in ``summary.csv`` and MLflow.
        unit: `SCORE` or `DIFFERENCE`, whose unit follows from the metric, or a unit whose values are printed unscaled.
        higher_is_better: for a `SCORE`, whether it is better if the formula's result is higher.
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

    def quantity(self, metric: Metric) -> Quantity:
        """Return the quantity of the measure's values for a metric."""
        if self.unit == SCORE:
            return replace(metric.quantity, higher_is_better=self.higher_is_better == metric.higher_is_better)
        if self.unit == DIFFERENCE:
            return replace(metric.difference, higher_is_better=self.higher_is_better)
        return Quantity(self.higher_is_better, self.unit)

    def value(self, scores: Scores) -> np.ndarray | float:
        """Return the value, shape (...); of a `SCORE`, in the direction of the metric."""
        return self._directed(self.formula(scores), scores)

    def values_by_language(self, scores: Scores) -> np.ndarray:
        """Return the value of each language, shape (..., N); empty for a measure without such values."""
        return np.empty(0) if self.by_language is None else self._directed(self.by_language(scores), scores)

    def _directed(self, values: Any, scores: Scores) -> Any:
        return BY_NAME[scores.metric].goodness(values) if self.unit == SCORE else values

    @property
    def shared(self) -> bool:
        """Whether the measure uses reference scores or scores of hop 0.

        Runs with the same seed share these scores, whatever their order.
        """
        return self.reference or bool(self.needs(3)[0].any())

    def left_out(self, n: int, column: int) -> bool:
        """Whether, with ``n`` languages, the language in this column has no value by definition."""
        return not self.needs(n)[:, column].any()


MEASURES: dict[str, Measure] = {}


def register(measure: Measure) -> Measure:
    """Check a measure and add it to `MEASURES`."""
    if measure.name in MEASURES and not replaces("measure", measure.name):
        raise UsageError(f"measure {measure.name}: already registered")
    if unknown := set(measure.streams) - STREAMS.keys():
        raise UsageError(f"measure {measure.name}: unknown stream {', '.join(unknown)}; known: {', '.join(STREAMS)}")
    _check(measure)
    return _add(measure)


def _add(measure: Measure) -> Measure:
    MEASURES[measure.name] = measure
    provides("measure", measure.name, measure.definition)
    return measure


def quantity(metric: str, measure: str = "") -> Quantity:
    """Return the quantity of a measure of a metric; without a measure, of the metric's scores."""
    return MEASURES[measure].quantity(BY_NAME[metric]) if measure else BY_NAME[metric].quantity


def headlines() -> list[Measure]:
    return [measure for measure in MEASURES.values() if measure.headline]


def _rows(n: int, first: int, last: int) -> np.ndarray:
    mask = no_cells(n)
    mask[first : last + 1] = True
    return mask


def _learnt(n: int) -> np.ndarray:
    """Return the mask of R[i, i], the scores right after learning a language."""
    return np.eye(n + 1, n, k=-1, dtype=bool)


def _coded(scores: Scores, number: Callable[[Codelength], float]) -> float:
    code = code_of(scores.record, scores.metric)
    return float("nan") if code is None else number(code)


WITHOUT_BLOCKS = "needs the labels of all blocks (dataset.blocks)"
WITHOUT_POINTS = "needs evaluation inside hops (evaluate.every_examples or evaluate.every_share)"

# (R, M) for N = 3; the rows of R are hops 0…3. The numbers are chosen so that different definitions differ in value.
EXAMPLE = (
    np.array([[0.90, 0.20, 0.30], [0.80, 0.60, 0.40], [0.70, 0.50, 0.60], [0.75, 0.55, 0.85]]),
    np.array([0.80, 0.45, 0.75]),
)

for _measure in (
    Measure(
        "F",
        "forgetting",
        "forgetting: best score on a language after any earlier hop minus the score after the current hop, averaged "
        "over earlier languages and over hops (CCL eq. 1)",
        "CCL eq. 1",
        higher_is_better=False,
        formula=lambda s: formulas.forgetting(s.R),
        by_language=lambda s: formulas.forgetting_per_language(s.R),
        needs=lambda n: _rows(n, 1, n) & (np.arange(n) < n - 1),
        # F_2 = .80 − .70; F_3 = ((.80 − .75) + (.60 − .55)) / 2
        example=(0.10 + 0.05) / 2,
        headline=True,
    ),
    Measure(
        "T",
        "transfer",
        "transfer: score right after learning a language minus the score of `lang_spec_ft`, which is trained on this "
        "language alone (same data, model, trainer and seed)",
        "CCL §2.5",
        higher_is_better=True,
        formula=lambda s: formulas.transfer(s.R, s.M),
        by_language=lambda s: formulas.transfer_per_language(s.R, s.M),
        needs=lambda n: _learnt(n) & (np.arange(n) > 0),
        # (.50 − .45) and (.85 − .75)
        example=(0.05 + 0.10) / 2,
        reference=True,
        headline=True,
    ),
    Measure(
        "T0",
        "zero-shot transfer",
        "zero-shot transfer: score on a language before it is learned minus the score before fine-tuning (hop 0)",
        "CCL §2.5",
        higher_is_better=True,
        formula=lambda s: formulas.zero_shot_transfer(s.R),
        by_language=lambda s: formulas.zero_shot_transfer_per_language(s.R),
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
        "backward transfer: score on a language after a later hop minus the score right after learning it, averaged "
        "over earlier languages and over hops",
        "GEM",
        higher_is_better=True,
        formula=lambda s: formulas.backward_transfer(s.R),
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
        formula=lambda s: formulas.intransigence(s.R, s.M),
        needs=_learnt,
        # (.80 − .80), (.45 − .50) and (.75 − .85)
        example=(0.0 - 0.05 - 0.10) / 3,
        reference=True,
    ),
    Measure(
        "F_m",
        "forgetting at the end",
        "forgetting at the end (LL): best score on a language after any earlier hop minus its final score, averaged "
        "over all languages except the last",
        "LL §4.2, after Chaudhry et al. 2018",
        higher_is_better=False,
        formula=lambda s: formulas.final_forgetting(s.R),
        by_language=lambda s: formulas.final_forgetting_per_language(s.R),
        needs=lambda n: _rows(n, 1, n) & (np.arange(n) < n - 1),
        # (.80 − .75) and (.60 − .55)
        example=(0.05 + 0.05) / 2,
    ),
    Measure(
        "F_m_curve",
        "forgetting on the curve",
        "forgetting on the curve (LL's public code): best score on a language at any evaluation point, including hop "
        "0, minus its final score, averaged over all languages",
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
        "intransigence on the curve (LL's public code): score of `lang_spec_ft` on the i-th of m languages minus the "
        "run's score on it after a fraction i/m of the stream, averaged over the m languages; also defined for "
        "`multilingual` runs",
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
        "final score on the worst language",
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
        "area under the learning curve: mean score over all languages, averaged over training progress (number of "
        "training sentences seen)",
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
        "online codelength: bits to transmit the labels of all blocks, each coded by the model trained on the earlier "
        "blocks",
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
    # Not `register`, which would check them at each start: the test suite checks the built-in measures.
    _add(_measure)
packaged("measure", MEASURES)


def _check(measure: Measure) -> None:
    """Refuse a measure whose formula, example, needs and by_language contradict each other on `EXAMPLE`."""
    for n in (1, 3):
        mask = measure.needs(n)
        kind = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
        if kind != f"bool {(n + 1, n)}":
            raise UsageError(
                f"measure {measure.name}: needs({n}) must return a boolean mask of shape {(n + 1, n)}, not {kind}"
            )
    if measure.example is None or "sequence" not in measure.streams:
        return
    (R, M), mask = EXAMPLE, measure.needs(3)
    whole = _example_value(measure, R, M)
    # Real also accepts numpy's integers, which are not Python ints.
    if not isinstance(measure.example, Real) or not _same(float(measure.example), whole):
        raise UsageError(
            f"measure {measure.name}: example={measure.example}, but the formula gives {whole:g} for EXAMPLE; correct "
            "one of them"
        )
    cells: list[tuple[np.ndarray, tuple[int, ...]]] = [(R, at) for at in np.ndindex(R.shape)]
    cells += [] if measure.otherwise else [(M, (column,)) for column in range(M.size)]
    for changed, at in cells:
        in_R = changed is R
        missing = changed.copy()
        missing[at] = np.nan
        value = _example_value(measure, missing, M) if in_R else _example_value(measure, R, missing)
        enters = bool(mask[at]) if in_R else measure.reference and bool(mask[:, at[0]].any())
        if not (np.isnan(value) if enters else _same(value, whole)):
            declared = "needs(3) says" if in_R else f"needs(3) and reference={measure.reference} say"
            cell = f"R[{at[0]}, {at[1]}]" if in_R else f"M[{at[0]}]"
            uses, expected = ("uses", "NaN") if enters else ("does not use", f"{whole:g}")
            raise UsageError(
                f"measure {measure.name}: {declared} that the formula {uses} {cell}, but if {cell} is NaN, the formula "
                f"gives {value:g} instead of {expected}; correct needs{'' if in_R else ', reference'} or formula"
            )
    if measure.by_language is not None:
        shape = _on_example(measure, measure.by_language, R, M).shape
        if shape != M.shape:
            raise UsageError(f"measure {measure.name}: by_language must return shape (3,) for 3 languages, not {shape}")
    if measure.headline and mask.any():
        # Headline measures are resampled, so their formulas get many matrices at once.
        stacked = _on_example(measure, measure.formula, np.stack([R, 1 - R]), np.stack([M, M]))
        each = [whole, _example_value(measure, 1 - R, M)]
        if stacked.shape != (2,) or not all(map(_same, stacked, each)):
            raise UsageError(
                f"measure {measure.name}: the formula of a headline measure must accept stacked matrices; expected "
                f"{each[0]:g} and {each[1]:g}, got {' '.join(f'{value:g}' for value in stacked.flat[:3])}"
            )


def _example_value(measure: Measure, R: np.ndarray, M: np.ndarray) -> float:
    value = _on_example(measure, measure.formula, R, M)
    if value.shape:
        raise UsageError(
            f"measure {measure.name}: the formula must return one value for one matrix, not shape {value.shape}"
        )
    return float(value)


def _on_example(
    measure: Measure, formula: Callable[[Scores], np.ndarray | float], R: np.ndarray, M: np.ndarray
) -> np.ndarray:
    run = RunRecord(
        "example", "", "", "naive", "abc", ("a", "b", "c"), seed=1, bucket=None, stream="sequence", scores={},
        config={}, data_fingerprint="", code_version="", algorithms=1, status="finished",
    )  # fmt: skip
    cells = R.copy()
    # Read-only, as in a record.
    cells.setflags(write=False)
    with warnings.catch_warnings():
        # Ignore numpy's warnings about NaN.
        warnings.simplefilter("ignore")
        try:
            return np.asarray(formula(Scores(cells, M, run, next(iter(BY_NAME)))), dtype=float)
        except Exception as error:
            cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UsageError(
                f"measure {measure.name}: fails for EXAMPLE ({cause}); set example=None if it needs more than a score "
                "matrix"
            ) from error


def _same(a: float, b: float) -> bool:
    return bool(np.isclose(a, b, rtol=0, atol=1e-9))


@dataclass(frozen=True)
class Absent:
    """Why a run has no value for a measure.

    Attributes:
        reason: the text, to which `explain` adds the seeds and languages of missing reference runs.
        seed, languages: seed and languages of a missing reference run; None and empty for other reasons.
        by_definition: whether the measure excludes the language because of its position in the order.
    """

    reason: str
    seed: int | None = None
    languages: frozenset[str] = frozenset()
    by_definition: bool = False


Measured = dict[tuple[str, str], float | Absent]


def measure(
    record: RunRecord, metric: str, reference: np.ndarray, names: Collection[str] = MEASURES.keys()
) -> Measured:
    """Return (measure, language) → value, or the reason why it is missing, for a run with N languages.

    The language is empty for the measure's value over all languages.

    Args:
        reference: the reference scores M, shape (N,); NaN if unknown.
        names: measures to compute.
    """
    scores = Scores.of(record.scores[metric], reference, record, metric)
    measured: Measured = {}
    for name in (name for name in MEASURES if name in names):
        entry = MEASURES[name]
        if record.stream not in entry.streams:
            reason = NOT_A_SEQUENCE[record.stream] if "sequence" in entry.streams else entry.otherwise
            measured[name, ""] = Absent(reason)
            continue
        measured[name, ""] = _value_or_reason(float(entry.value(scores)), entry, scores, None)
        for j, value in enumerate(entry.values_by_language(scores)):
            measured[name, record.languages[j]] = _value_or_reason(float(value), entry, scores, j)
    return measured


def leaves_out(record: RunRecord, measure: str, language: str) -> bool:
    """Whether a measure of a run has no value for a language by definition."""
    entry = MEASURES[measure]
    if language not in record.languages or record.stream not in entry.streams or entry.by_language is None:
        return True
    return record.stream == "sequence" and entry.left_out(len(record.languages), record.languages.index(language))


def explain(absents: Iterable[Absent]) -> str:
    """Join the reasons of several runs in one text; seeds of missing reference runs are listed together.

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
    """Return ``value``, or the reason why it is NaN; ``column`` is None for the value over all languages."""
    record, R = scores.record, scores.R
    if not np.isnan(value):
        return value
    languages = np.array(record.languages)
    n = len(languages)
    if measure.otherwise:
        # Replace missing M by 0: if the value is still NaN, another input is missing.
        complete = replace(scores, M=np.nan_to_num(scores.M)) if measure.reference else scores
        if np.isnan(measure.formula(complete)):
            return Absent(measure.otherwise)
        return Absent(f"needs {reference_name(record)}", record.seed, frozenset(languages[np.isnan(scores.M)].tolist()))
    if undefined := BY_NAME[scores.metric].undefined:
        nowhere = np.isnan(R).all(axis=0)
        if nowhere.any() if column is None else nowhere[column]:
            missing_languages = languages[nowhere] if column is None else languages[[column]]
            return Absent(f"{undefined} ({', '.join(missing_languages)})")
    columns = np.full(n, True) if column is None else np.arange(n) == column
    if record.stream != "sequence":
        return Absent(f"needs the final scores of {', '.join(languages[np.isnan(scores.final) & columns])}")
    if column is not None and measure.left_out(n, column):
        # A measure excludes either the first or the last language, for every N; N = 3 shows which.
        where = "after" if measure.left_out(3, 2) else "before"
        return Absent(f"needs a hop {where} {languages[column]}", by_definition=True)
    needed = measure.needs(n) & columns
    if not needed.any():
        return Absent("needs at least two hops")
    missing = needed & np.isnan(R)
    if missing.any():
        hops = [_hop(record, i, missing[i], needed[i]) for i in range(n + 1) if missing[i].any()]
        return Absent(f"needs {', '.join(hops)}")
    unknown = needed.any(axis=0) & np.isnan(scores.M)
    return Absent(f"needs {reference_name(record)}", record.seed, frozenset(languages[unknown].tolist()))


def _hop(record: RunRecord, hop: int, missing: np.ndarray, needed: np.ndarray) -> str:
    languages = ", ".join(np.array(record.languages)[missing].tolist())
    return f"hop {hop}" if (missing == needed).all() else f"hop {hop} ({languages})"
