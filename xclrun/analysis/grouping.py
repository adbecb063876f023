"""Which runs may be averaged: those that agree on every setting but order, seed and bucket.

Runs of one strategy with different settings get a label each, made of what differs: ``er(memory=750)``; or a number,
where that would be long: ``er#1``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from xclrun.analysis.record import RunRecord
from xclrun.core.identity import LATER, NOT_IDENTITY, flat, identity

# What may differ inside an average: order, seed and bucket, and what cannot change a result.
# Evaluation inside hops changes no score after them, and neither do summaries of attention.
POINTS = {f"evaluate.{key}" for key in ("every_examples", "every_share", "point_splits", "keep_points")}
FREE = {"order", "seed", "bucket", "hydra", "evaluate.attention"} | POINTS | NOT_IDENTITY
# These have columns of their own.
NAMED = {"dataset.name", "model.name", "strategy.name", "strategy.expansion", "strategy.expansion.name"}

# A label with more settings than these would fill the table: it then names as many as tell the runs apart.
LONGEST = 4
# A longer label would leave no room for numbers beside it: the settings of its strategy are then numbered, as in
# ``naive#1``, and a note says what the numbers stand for.
WIDEST = 39
# What labels leave out of a key, as everyone knows where it belongs.
_OBVIOUS = re.compile(r"^strategy\.|^dataset\.statements\.")


# (dotted key, value), sorted by key.
Settings = tuple[tuple[str, str], ...]


# A report asks for those of each run a dozen times.
_known: WeakKeyDictionary[RunRecord, Settings] = WeakKeyDictionary()


def config_settings(record: RunRecord) -> Settings:
    """Return the settings of a run that may not differ inside an average: (dotted key, value), sorted by key."""
    if record not in _known:
        found = flat(identity(record.config), FREE)
        _known[record] = tuple(sorted((key, setting_text(value)) for key, value in found if key not in NAMED))
    return _known[record]


def content_settings(record: RunRecord) -> Settings:
    """Return what may not differ either, though no config key says it: languages, data, encoder, versions."""
    return (
        ("languages", "+".join(sorted(record.languages))),
        # Buckets of the same data are averaged; how they are drawn is in the config.
        ("data", record.whole_fingerprint or record.data_fingerprint),
        ("encoder", record.encoder),
        ("algorithms", str(record.algorithms)),
        ("strategy.version", str(record.strategy_version)),
    )


def strategy_labels(records: Iterable[RunRecord], ignored: Collection[str] = ()) -> dict[str, str]:
    """Return run id → label of its strategy: the name alone where all runs of that name have the same settings.

    Settings of the strategy itself are named without ``strategy.``, those of statements without
    ``dataset.statements.``. Languages, data and encoder (first six digits of their fingerprints), and versions are
    named only where the config does not tell the runs apart. Where a label would be longer than `WIDEST` characters,
    those of its strategy are numbers: see `numbered_labels`. Settings that are ``ignored`` tell no runs apart.
    """
    return {run_id: label for run_id, (label, _) in _labelled(records, ignored).items()}


def numbered_labels(records: Iterable[RunRecord], ignored: Collection[str] = ()) -> dict[str, str]:
    """Return what the labels that are numbers (`strategy_labels`) stand for: label → its settings."""
    return dict(sorted((label, meaning) for label, meaning in _labelled(records, ignored).values() if meaning))


def _labelled(records: Iterable[RunRecord], ignored: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return run id → its label, and its settings where the label is a number."""
    records = list(records)
    settings, contents = (
        {r.run_id: tuple(item for item in of(r) if item[0] not in ignored) for r in records}
        for of in (config_settings, content_settings)
    )
    labels: dict[str, tuple[str, str]] = {}
    for (_, _, name), runs in grouped(records, lambda r: (r.dataset, r.model, r.strategy)).items():
        configs = {settings[r.run_id] for r in runs}
        own: list[tuple[str, str, list[RunRecord]]] = []
        for own_config, same_config in grouped(runs, lambda r: settings[r.run_id]).items():
            different = {contents[r.run_id] for r in same_config}
            for own_content, same in grouped(same_config, lambda r: contents[r.run_id]).items():
                parts = [*_shown(own_config, configs), *_shown(own_content, different)]
                meaning = [*_differing(own_config, configs), *_differing(own_content, different)]
                own.append((f"{name}({', '.join(parts)})" if parts else name, ", ".join(meaning), same))
        if max(len(label) for label, _, _ in own) > WIDEST:
            ranked = sorted(own, key=lambda one: natural(one[1]))
            own = [(f"{name}#{k}", meaning, same) for k, (_, meaning, same) in enumerate(ranked, start=1)]
        else:
            own = [(label, "", same) for label, _, same in own]
        labels |= {r.run_id: (label, meaning) for label, meaning, same in own for r in same}
    return labels


def natural(text: str) -> list[tuple[bool, int, str]]:
    """Sort key that puts ``order2`` before ``order10`` and ``er(memory=750)`` before ``er(memory=6000)``."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", text)]


def differing_settings(groups: Mapping[str, Sequence[RunRecord]]) -> dict[str, dict[str, str]]:
    """Return the settings, other than a strategy's own, on which labels disagree: key → label → value.

    ``groups`` is label → its runs. What a report must say before it compares strategies.
    """
    tables = {label: dict(config_settings(runs[0]) + content_settings(runs[0])) for label, runs in groups.items()}
    keys = sorted({key for table in tables.values() for key in table if not key.startswith("strategy.")})
    found = {key: {label: table.get(key, _absent(key)) for label, table in tables.items()} for key in keys}
    return {key: values for key, values in found.items() if len(set(values.values())) > 1}


def grouped(records: Iterable[RunRecord], key: Callable[[RunRecord], Any]) -> dict[Any, list[RunRecord]]:
    """Return key → its records; keys and records in the order given."""
    groups: dict[Any, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def _differing(own: Settings, everyone: set[Settings], keys: Sequence[str] | None = None) -> list[str]:
    """Return ``key=value`` for the settings on which ``everyone`` disagrees, or for those of them in ``keys``."""
    values = dict(own)
    shown = _keys(everyone) if keys is None else keys
    return [f"{_OBVIOUS.sub('', key)}={_short(key, values.get(key, _absent(key)))}" for key in shown]


def _shown(own: Settings, everyone: set[Settings]) -> list[str]:
    """Return what a label says of `_differing`: of many settings as many as tell the runs apart."""
    keys = _keys(everyone)
    if len(keys) <= LONGEST:
        return _differing(own, everyone)
    return [*_differing(own, everyone, _enough(keys, [dict(settings) for settings in everyone])), "…"]


def _keys(everyone: set[Settings]) -> list[str]:
    """Return the settings on which ``everyone`` disagrees, as labels rank them."""
    tables = [dict(settings) for settings in everyone]
    return [k for k in sorted({k for t in tables for k in t}, key=_rank) if len({t.get(k) for t in tables}) > 1]


def _enough(keys: list[str], tables: list[dict[str, str]]) -> list[str]:
    """Return the first keys that tell all ``tables`` apart, leaving out those that add nothing."""
    chosen: list[str] = []
    apart = 1
    for key in keys:
        count = len({tuple(t.get(k) for k in [*chosen, key]) for t in tables})
        if count > apart:
            chosen, apart = [*chosen, key], count
    return chosen


def _rank(key: str) -> tuple[bool, bool, str]:
    """Order of settings in a label: the strategy's own first, then names of presets, then by key."""
    return (not key.startswith("strategy."), not key.endswith(".name"), key)


def _absent(key: str) -> str:
    """Return what is said of a run that does not name a setting: what it means, where the setting came later."""
    return setting_text(LATER[key]) if key in LATER else "unset"


def _short(key: str, value: str) -> str:
    return value[:6] if key in ("data", "encoder") else value


def setting_text(value: Any) -> str:
    """Return a value of the config as labels and filters write it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(setting_text, value))}]"
    return value if isinstance(value, str) else json.dumps(value, default=str)
