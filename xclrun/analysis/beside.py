"""What a report must know of a finished run that it is not about: whether its scores are needed, and what was tried."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xclrun.analysis.grouping import config_settings
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import is_reference_run, reference_key
from xclrun.core.identity import digest


@dataclass(frozen=True)
class Beside:
    """A finished run, without its scores.

    Attributes:
        run_id: which.
        dataset, model, strategy: as those of its record.
        settings: digest of all of its settings that may not differ inside an average.
        reference: `reference_key` of a reference run; empty for others.
    """

    run_id: str
    dataset: str
    model: str
    strategy: str
    settings: str
    reference: str


def beside(record: RunRecord) -> Beside:
    """Return what others must know of a finished run."""
    key = reference_key(record) if is_reference_run(record) else ""
    settings = digest(config_settings(record))
    return Beside(record.run_id, record.dataset, record.model, record.strategy, settings, key)


def tuning_trials(runs: Iterable[Beside]) -> dict[tuple[str, str, str], int]:
    """Return (dataset, model, strategy) → how many different settings of it have finished."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for run in runs:
        found.setdefault((run.dataset, run.model, run.strategy), set()).add(run.settings)
    return {key: len(settings) for key, settings in found.items()}
