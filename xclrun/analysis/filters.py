"""Which runs are meant by ``--filter KEY=VALUE`` of a report, and by the keywords of the Python API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xclrun.analysis.grouping import setting_text
from xclrun.analysis.record import RunRecord
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.identity import flat


def parse_filters(given: Iterable[str]) -> dict[str, set[str]]:
    """Return key → values of filters such as ``trainer.epochs=5`` or ``strategy=naive,er``.

    Raises:
        UsageError: one is no ``KEY=VALUE``, or a key is given twice.
    """
    found: dict[str, set[str]] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"--filter {text}: needs KEY=VALUE, as in --filter trainer.epochs=5")
        if key in found:
            raise UsageError(f"--filter {text}: {key} is given twice; several values stand with commas: {key}=1,2")
        found[key] = {value} if value.startswith("[") else set(value.split(","))
    return found


def filtered(
    records: Sequence[RunRecord], filters: Mapping[str, set[str]], option: str = "--filter "
) -> list[RunRecord]:
    """Return the runs that have one of the values of every filter (see `parse_filters`).

    Keys are those of the config; ``strategy``, ``order``, ``dataset`` and ``model`` stand for their names. Numbers are
    compared as numbers. ``option`` is how errors begin.

    Raises:
        UsageError: no run has the key, or none of its values.
    """
    kept = list(records)
    for key, values in filters.items():
        facts = {r.run_id: _facts(r) for r in kept}
        known = sorted({name for of in facts.values() for name in of})
        if facts and key not in known:
            raise UsageError(f"{option}{key}={','.join(sorted(values))}: unknown key; {did_you_mean(key, known)}")
        there = sorted({of[key] for of in facts.values() if key in of})
        wanted = {_number(value) for value in values}
        kept = [r for r in kept if key in facts[r.run_id] and _number(facts[r.run_id][key]) in wanted]
        if facts and not kept:
            raise UsageError(f"{option}{key}={','.join(sorted(values))}: no run has it; there is {', '.join(there)}")
    return kept


def _facts(record: RunRecord) -> dict[str, str]:
    named = {"strategy": record.strategy, "order": record.order, "dataset": record.dataset, "model": record.model}
    return {key: setting_text(value) for key, value in flat(record.config)} | named


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
