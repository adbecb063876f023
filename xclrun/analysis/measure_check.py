"""Whether what a new measure says of itself agrees: its formula, example, needed cells, reference and parts.

Those of `xclrun.analysis.measures` itself are held against their examples by tests, and not at each start.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import numpy as np

from xclrun.analysis.measures import EXAMPLE, Measure, Scores
from xclrun.analysis.record import RunRecord
from xclrun.core.errors import UsageError
from xclrun.core.task import BY_NAME


def check(measure: Measure) -> None:
    """Hold what a measure says of itself against `EXAMPLE`.

    Raises:
        UsageError: ``needs``, ``reference``, ``example``, ``by_language`` or the formula contradict each other.
    """
    _check_mask(measure)
    if measure.example is not None and "sequence" in measure.streams:
        _check_example(measure)


def _check_mask(measure: Measure) -> None:
    """Refuse what is no mask of the cells of R."""
    for n in (1, 3):
        mask = measure.needs(n)
        found = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
        if found != f"bool {(n + 1, n)}":
            raise UsageError(f"measure {measure.name}: needs({n}) is a mask, bool {(n + 1, n)}, not {found}")


@dataclass(frozen=True)
class _Asked:
    """A measure that is asked for its values of `EXAMPLE`, changed in one place or another."""

    measure: Measure

    def of(self, formula: Callable[[Scores], np.ndarray | float], R: np.ndarray, M: np.ndarray) -> np.ndarray:
        """Return what a formula gives.

        Raises:
            UsageError: it fails.
        """
        run = RunRecord(
            "example", "", "", "naive", "abc", ("a", "b", "c"), seed=1, bucket=None, stream="sequence", scores={},
            config={}, data_fingerprint="", code_version="", algorithms=1, status="finished",
        )  # fmt: skip
        cells = R.copy()
        # As those of a run are.
        cells.setflags(write=False)
        # Of what is not measured numpy may warn.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return np.asarray(formula(Scores(cells, M, run, next(iter(BY_NAME)))), dtype=float)
            except Exception as error:
                what = f"{type(error).__name__}: {' '.join(str(error).split())}"
                raise UsageError(
                    f"measure {self.measure.name}: fails for EXAMPLE ({what}); give example=None where it needs more "
                    "than a score matrix"
                ) from error

    def value(self, R: np.ndarray, M: np.ndarray) -> float:
        """Return the measure's value of one matrix."""
        found = self.of(self.measure.formula, R, M)
        if found.shape:
            raise UsageError(
                f"measure {self.measure.name}: its formula gives {found.shape} values for one matrix, not one"
            )
        return float(found)


def _check_example(measure: Measure) -> None:
    """Hold the formula against the value that was worked by hand, and against what it is said to need.

    And a headline's against a stack of matrices; parts by language are one for each.
    """
    (R, M), asked = EXAMPLE, _Asked(measure)
    given, whole = measure.example, asked.value(R, M)
    # Whole numbers of numpy are none of Python's.
    if not isinstance(given, Real) or not _same(float(given), whole):
        raise UsageError(f"measure {measure.name}: example={given}: its formula gives {whole:g} for EXAMPLE")
    mask = measure.needs(3)
    for at in np.ndindex(R.shape):
        found = asked.value(_without(R, at), M)
        if not (np.isnan(found) if mask[at] else _same(found, whole)):
            raise UsageError(
                f"measure {measure.name}: needs(3) says that R[{at[0]}, {at[1]}] {_enters(mask[at])}; where it is NaN "
                f"the formula gives {found:g}"
            )
    for column in [] if measure.otherwise else range(M.size):
        found, enters = asked.value(R, _without(M, (column,))), measure.reference and mask[:, column].any()
        if not (np.isnan(found) if enters else _same(found, whole)):
            raise UsageError(
                f"measure {measure.name}: reference={measure.reference} and needs(3) say that M[{column}] "
                f"{_enters(enters)}; where it is NaN the formula gives {found:g}"
            )
    if measure.by_language is not None and (shape := asked.of(measure.by_language, R, M).shape) != M.shape:
        raise UsageError(f"measure {measure.name}: by_language gives {shape} values for 3 languages, not (3,)")
    if measure.headline and mask.any():
        _check_stacked(asked, R, M)


def _check_stacked(asked: _Asked, R: np.ndarray, M: np.ndarray) -> None:
    """Refuse a headline that gives stacked matrices other values than each: they are resampled, many at a time."""
    found = asked.of(asked.measure.formula, np.stack([R, 1 - R]), np.stack([M, M]))
    each = [asked.value(R, M), asked.value(1 - R, M)]
    if found.shape != (2,) or not all(map(_same, found, each)):
        raise UsageError(
            f"measure {asked.measure.name}: a headline's formula gives a value for each of stacked matrices, here "
            f"{each[0]:g} and {each[1]:g}; it gives {' '.join(f'{one:g}' for one in found.flat[:3])}"
        )


def _without(values: np.ndarray, at: tuple[int, ...]) -> np.ndarray:
    """Return a copy in which one value was not measured."""
    found = values.copy()
    found[at] = np.nan
    return found


def _same(found: float, given: float) -> bool:
    return bool(np.isclose(found, given, rtol=0, atol=1e-9))


def _enters(needed: bool) -> str:
    return "enters" if needed else "does not enter"
