"""Choose runs by config values: ``--filter KEY=VALUE`` of a report, and keywords of the Python API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xclrun.analysis.grouping import setting_text
from xclrun.analysis.record import RunRecord
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.identity import flat


def parse_filters(texts: Iterable[str]) -> dict[str, set[str]]:
    """Return key → values of filters such as ``trainer.epochs=5`` or ``strategy=naive,er``."""
    filters: dict[str, set[str]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"--filter {text}: needs KEY=VALUE, as in --filter trainer.epochs=5")
        if key in filters:
            raise UsageError(f"--filter {text}: {key} is given twice; several values stand with commas: {key}=1,2")
        filters[key] = {value} if value.startswith("[") else set(value.split(","))
    return filters


def filtered(
    records: Sequence[RunRecord], filters: Mapping[str, set[str]], option: str = "--filter "
) -> list[RunRecord]:
    """Return the runs with one of the values of every filter (see `parse_filters`).

    ``strategy``, ``order``, ``dataset`` and ``model`` represent their names. Numbers are compared as numbers. Errors
    begin with ``option``.
    """
    chosen = [(record, _settings(record)) for record in records]
    for key, values in filters.items():
        asked, known = f"{option}{key}={','.join(sorted(values))}", {name for _, of_run in chosen for name in of_run}
        if chosen and key not in known:
            raise UsageError(f"{asked}: unknown key; {did_you_mean(key, known)}")
        existing = sorted({settings[key] for _, settings in chosen if key in settings})
        numbers = {_number(value) for value in values}
        chosen = [pair for pair in chosen if key in pair[1] and _number(pair[1][key]) in numbers]
        if existing and not chosen:
            raise UsageError(f"{asked}: no run has it; there is {', '.join(existing)}")
    return [record for record, _ in chosen]


def _settings(record: RunRecord) -> dict[str, str]:
    """Return config key → value as text."""
    named = {"strategy": record.strategy, "order": record.order, "dataset": record.dataset, "model": record.model}
    return {key: setting_text(value) for key, value in flat(record.config)} | named


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
