"""Select runs by config values: ``--filter KEY=VALUE`` of a report, and keyword arguments of the Python API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xclrun.analysis.grouping import setting_text
from xclrun.analysis.record import RunRecord
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.identity import flat

# Groups of config keys that filters compare by the run's name, such as strategy=er.
NAMES = ("strategy", "order", "dataset", "model")


def parse_filters(texts: Iterable[str]) -> dict[str, set[str]]:
    """Parse filters: ``strategy=naive,er`` becomes ``{"strategy": {"naive", "er"}}``."""
    filters: dict[str, set[str]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"--filter {text}: expected KEY=VALUE, for example --filter trainer.epochs=5")
        if key in filters:
            raise UsageError(f"--filter {text}: {key} is repeated; separate several values by commas: {key}=1,2")
        filters[key] = {value} if value.startswith("[") else set(value.split(","))
    return filters


def filtered(
    records: Sequence[RunRecord], filters: Mapping[str, set[str]], option: str = "--filter "
) -> list[RunRecord]:
    """Return the runs that match every filter: the run's value of the key is one of the filter's values.

    The keys of `NAMES` are compared with the run's names, all other keys with its config. Numbers are compared
    as numbers: ``1e-3`` matches 0.001. Error messages begin with ``option``.
    """
    chosen = [
        (record, {k: setting_text(v) for k, v in flat(record.config)} | {k: getattr(record, k) for k in NAMES})
        for record in records
    ]
    for key, values in filters.items():
        typed, keys = f"{option}{key}={','.join(sorted(values))}", {name for _, settings in chosen for name in settings}
        if chosen and key not in keys:
            raise UsageError(f"{typed}: unknown key; {did_you_mean(key, keys)}")
        existing = sorted({settings[key] for _, settings in chosen if key in settings})
        numbers = {_number(value) for value in values}
        chosen = [(record, run) for record, run in chosen if key in run and _number(run[key]) in numbers]
        if existing and not chosen:
            raise UsageError(f"{typed}: no run has this value; available: {', '.join(existing)}")
    return [record for record, _ in chosen]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
