"""Index entries of finished runs, for reports about other runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from xclrun.analysis.grouping import config_settings
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import is_reference_run, reference_key
from xclrun.core.identity import digest


@dataclass(frozen=True)
class FinishedRun:
    """Index entry of a finished run.

    Attributes:
        strategy: see `tuned_name`.
        settings: digest of the settings that must be equal in all runs of an average.
        reference: the run's `reference_key` if it is a reference run; otherwise empty.
        tried: digests like ``settings`` of the settings that were compared to choose a merge (`RunRecord.tried`).
    """

    run_id: str
    dataset: str
    model: str
    strategy: str
    settings: str
    reference: str
    tried: Sequence[str] = ()


def finished_run(record: RunRecord) -> FinishedRun:
    key = reference_key(record) if is_reference_run(record) else ""
    settings = digest(config_settings(record))
    configs = [{**record.config, "strategy": {**record.config["strategy"], **values}} for values in record.tried]
    tried = [digest(config_settings(replace(record, config=config))) for config in configs]
    return FinishedRun(record.run_id, record.dataset, record.model, tuned_name(record), settings, key, tried)


def tuned_name(record: RunRecord) -> str:
    """Return the name under which configurations are counted: the strategy, and the method of a merge."""
    method = record.config.get("strategy", {}).get("method")
    return record.strategy if method is None else f"{record.strategy}({method})"


def tuning_trials(runs: Iterable[FinishedRun]) -> dict[tuple[str, str, str], int]:
    """Return (dataset, model, strategy) → number of different configurations that were run or compared on dev data."""
    trials: dict[tuple[str, str, str], set[str]] = {}
    for run in runs:
        trials.setdefault((run.dataset, run.model, run.strategy), set()).update((run.settings, *run.tried))
    return {key: len(settings) for key, settings in trials.items()}
