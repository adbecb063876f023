"""The meta-metrics of one run by name, or why a run does not have one. docs/metrics.md, "From the score matrix"."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from xclrun.analysis import metrics
from xclrun.analysis.points import aultc
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import reference_name

# Measures of a run, and those that it has for each language too, in the order of tables.
MEASURES = ("F", "T", "T0", "FP", "BWT", "I", "FP_std", "FP_min", "AULTC")
PER_LANGUAGE = ("F", "T", "T0", "FP")

# What each needs: N → mask (N + 1, N) of the cells of R. Columns that a mean over languages does not use are left out.
_NEEDS: dict[str, Callable[[int], np.ndarray]] = {
    "F": lambda n: _rows(n, 1, n) & (np.arange(n) < n - 1),
    "T": lambda n: np.eye(n + 1, n, k=-1, dtype=bool) & (np.arange(n) > 0),
    "T0": lambda n: np.tri(n, n + 1, k=0, dtype=bool).T & (np.arange(n) > 0),
    "FP": lambda n: _rows(n, n, n),
    "BWT": lambda n: np.tri(n + 1, n, k=-1, dtype=bool) & (np.arange(n) < n - 1),
    "I": lambda n: np.eye(n + 1, n, k=-1, dtype=bool),
}

NOT_A_SEQUENCE = {
    "independent": "trains each language alone",
    "joint": "needs a sequence of hops",
    "transfer": "is of continual learning; few-shot transfer has scores after each hop",
}

NO_POINTS = "needs evaluation inside hops (evaluate.every_examples)"


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


def measure(record: RunRecord, metric: str, reference: np.ndarray) -> Measured:
    """Return (measure, language) → value or the reason why there is none; the language is empty for the aggregate.

    ``reference`` is M, shape (N,), NaN where it is not known. Of a run that trains each language alone the final
    score on a language is the one after its own hop; of a joint run it is the one after its only hop.
    """
    R = record.scores[metric]
    if record.stream != "sequence":
        final = metrics.learnt_scores(R) if record.stream == "independent" else R[-1]
        area = aultc(record, metric)
        return _measure_final(record, final, area, Absent(NOT_A_SEQUENCE[record.stream]))
    forgot, gained = metrics.forgetting_per_language(R), metrics.transfer_per_language(R, reference)
    zero_shot = metrics.zero_shot_transfer_per_language(R)
    values: dict[str, tuple[np.ndarray, np.ndarray | None]] = {
        "F": (metrics.forgetting(R), forgot),
        "T": (metrics.transfer(R, reference), gained),
        "T0": (metrics.zero_shot_transfer(R), zero_shot),
        "FP": (metrics.final_performance(R), R[-1]),
        "BWT": (metrics.backward_transfer(R), None),
        "I": (metrics.intransigence(R, reference), None),
        "FP_std": (metrics.final_std(R), None),
        "FP_min": (metrics.final_min(R), None),
        "AULTC": (np.asarray(aultc(record, metric)), None),
    }
    found: Measured = {}
    for name in MEASURES:
        value, per_language = values[name]
        found[name, ""] = _value_or_reason(float(value), record, R, reference, name, None)
        for j, score in enumerate(() if per_language is None else per_language):
            found[name, record.languages[j]] = _value_or_reason(float(score), record, R, reference, name, j)
    return found


def leaves_out(record: RunRecord, measure: str, language: str) -> bool:
    """Whether a measure of a run has no value for a language, at its place in the order, though nothing is missing.

    Forgetting needs a hop after the language's own, transfer one before it; of what is no sequence only FP is measured.
    """
    if language not in record.languages:
        return True
    if record.stream != "sequence":
        return measure != "FP"
    last = record.languages.index(language) == len(record.languages) - 1
    return last if measure == "F" else record.languages.index(language) == 0 and measure != "FP"


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


def _measure_final(record: RunRecord, final: np.ndarray, area: float, absent: Absent) -> Measured:
    """Return what a run that is no sequence has: its final performance, and a joint one its learning curve."""
    missing = [language for language, score in zip(record.languages, final, strict=True) if np.isnan(score)]
    found: Measured = {(name, ""): absent for name in MEASURES}
    for name, value in {"FP": final.mean(), "FP_std": final.std(), "FP_min": final.min()}.items():
        found[name, ""] = Absent(f"needs the final scores of {', '.join(missing)}") if missing else float(value)
    if record.stream == "joint":
        found["AULTC", ""] = Absent(NO_POINTS) if np.isnan(area) else area
    for language, score in zip(record.languages, final, strict=True):
        found["FP", language] = Absent(f"needs the final scores of {language}") if np.isnan(score) else float(score)
    return found


def _value_or_reason(
    value: float, record: RunRecord, R: np.ndarray, reference: np.ndarray, measure: str, column: int | None
) -> float | Absent:
    if not np.isnan(value):
        return value
    if measure == "AULTC":
        return Absent(NO_POINTS)
    n = len(record.languages)
    if column is not None and leaves_out(record, measure, record.languages[column]):
        where = "after" if measure == "F" else "before"
        return Absent(f"needs a hop {where} {record.languages[column]}", by_definition=True)
    needed = _NEEDS[measure.split("_")[0]](n) & (True if column is None else np.arange(n) == column)
    if not needed.any():
        return Absent("needs at least two hops")
    missing = needed & np.isnan(R)
    if missing.any():
        hops = [_hop(record, i, missing[i], needed[i]) for i in range(n + 1) if missing[i].any()]
        return Absent(f"needs {', '.join(hops)}")
    unknown = needed.any(axis=0) & np.isnan(reference)
    return Absent(
        f"needs {reference_name(record)}", record.seed, frozenset(np.array(record.languages)[unknown].tolist())
    )


def _hop(record: RunRecord, hop: int, missing: np.ndarray, needed: np.ndarray) -> str:
    """Name a hop whose scores are missing, with the languages where only some are."""
    languages = ", ".join(np.array(record.languages)[missing].tolist())
    return f"hop {hop}" if (missing == needed).all() else f"hop {hop} ({languages})"


def _rows(n: int, first: int, last: int) -> np.ndarray:
    """Mask (N + 1, N) of the rows of hops ``first``…``last``."""
    mask = np.zeros((n + 1, n), dtype=bool)
    mask[first : last + 1] = True
    return mask
