"""Group the runs that may be averaged: runs with equal settings except for order, seed and bucket.

If runs of one strategy have different settings, their labels show the differences, for example ``er(memory=750)``. If
this is too long, labels are numbered: ``er#1``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from xclrun.analysis.record import RunRecord
from xclrun.core.identity import LATER, NOT_IDENTITY, flat, identity

# Settings of evaluation inside hops, which does not affect the scores after hops.
POINTS = {f"evaluate.{key}" for key in ("every_examples", "every_share", "point_splits", "keep_points")}
# Keys that may differ between runs that are averaged: order, seed and bucket, and keys without effect on the scores.
FREE = {"order", "seed", "bucket", "hydra", "evaluate.attention"} | POINTS | NOT_IDENTITY
# Keys that tables show in their own columns. Strategies of files with the same name may have other names.
NAMED = {"dataset.name", "model.name"}

# Maximum number of settings in a label. If more settings differ, the label shows only enough to distinguish the runs.
LONGEST = 4
# Maximum length of a label in characters. Longer labels are replaced by numbers, which a note explains.
WIDEST = 39
# Prefixes that labels remove from keys: ``strategy.memory`` becomes ``memory``.
_OBVIOUS = re.compile(r"^strategy\.|^dataset\.statements\.")


# (dotted key, value), sorted by key.
Settings = tuple[tuple[str, str], ...]


# Cache: a report needs the settings of each run a dozen times.
_cache: WeakKeyDictionary[RunRecord, Settings] = WeakKeyDictionary()


def config_settings(record: RunRecord) -> Settings:
    """Return the config settings that must be equal in all runs of an average, sorted by key."""
    if record not in _cache:
        settings = flat(identity(record.config), FREE)
        _cache[record] = tuple(sorted((key, setting_text(value)) for key, value in settings if key not in NAMED))
    return _cache[record]


def content_settings(record: RunRecord) -> Settings:
    """Return what else must be equal in all runs of an average: languages, data, encoder, versions."""
    return (
        ("languages", "+".join(sorted(record.languages))),
        # Buckets of the same data are averaged, so compare the data that they were drawn from.
        ("data", record.whole_fingerprint or record.data_fingerprint),
        ("encoder", record.encoder),
        ("algorithms", str(record.algorithms)),
        ("strategy.version", str(record.strategy_version)),
    )


def strategy_labels(records: Iterable[RunRecord], ignored: Collection[str] = ()) -> dict[str, str]:
    """Return run ID → strategy label: the strategy's name, and the settings that differ between its runs.

    Labels include `content_settings` only to distinguish runs whose configs are equal. If any label of a strategy would
    exceed `WIDEST` characters, all its labels are numbered, as ``er#1`` (see `numbered_labels`). Labels never include
    the settings in ``ignored``.
    """
    return {run_id: label for run_id, (label, _) in _labelled(records, ignored).items()}


def numbered_labels(records: Iterable[RunRecord], ignored: Collection[str] = ()) -> dict[str, str]:
    """Return numbered label → the settings that it stands for: ``er#1`` → ``memory=750, …`` (see `strategy_labels`)."""
    return dict(sorted((label, meaning) for label, meaning in _labelled(records, ignored).values() if meaning))


def _labelled(records: Iterable[RunRecord], ignored: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return run ID → (label, settings that a numbered label stands for); the settings are empty for other labels."""
    records = list(records)
    settings, contents = (
        {r.run_id: tuple(item for item in read(r) if item[0] not in ignored) for r in records}
        for read in (config_settings, content_settings)
    )
    labels: dict[str, tuple[str, str]] = {}
    for (_, _, name), runs in grouped(records, lambda r: (r.dataset, r.model, r.strategy)).items():
        configs = {settings[r.run_id] for r in runs}
        # (label, settings, runs)
        named: list[tuple[str, str, list[RunRecord]]] = []
        for config, same_config in grouped(runs, lambda r: settings[r.run_id]).items():
            different = {contents[r.run_id] for r in same_config}
            for content, same in grouped(same_config, lambda r: contents[r.run_id]).items():
                parts = [*_short_differences(config, configs), *_short_differences(content, different)]
                meaning = ", ".join([*_differences(config, configs), *_differences(content, different)])
                named.append((f"{name}({', '.join(parts)})" if parts else name, meaning, same))
        numbered = max(len(label) for label, _, _ in named) > WIDEST
        for k, (label, meaning, same) in enumerate(sorted(named, key=lambda item: natural(item[1])), start=1):
            labels |= {r.run_id: (f"{name}#{k}", meaning) if numbered else (label, "") for r in same}
    return labels


def natural(text: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts ``order2`` before ``order10``."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", text)]


def differing_settings(groups: Mapping[str, Sequence[RunRecord]]) -> dict[str, dict[str, str]]:
    """Return the settings outside ``strategy`` that differ between labels: key → label → value."""
    tables = {label: dict(config_settings(runs[0]) + content_settings(runs[0])) for label, runs in groups.items()}
    keys = sorted({key for table in tables.values() for key in table if not key.startswith("strategy.")})
    values = {key: {label: table.get(key, _absent(key)) for label, table in tables.items()} for key in keys}
    return {key: by_label for key, by_label in values.items() if len(set(by_label.values())) > 1}


def grouped(records: Iterable[RunRecord], key: Callable[[RunRecord], Any]) -> dict[Any, list[RunRecord]]:
    """Return key → the records with this key, in input order."""
    groups: dict[Any, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def _differences(settings: Settings, every: set[Settings], keys: Sequence[str] | None = None) -> list[str]:
    """Return texts such as ``memory=750`` for ``keys``; by default, for all keys whose values differ in ``every``."""
    values = dict(settings)
    texts = []
    for key in _differing_keys(every) if keys is None else keys:
        value = values.get(key, _absent(key))
        texts.append(f"{_OBVIOUS.sub('', key)}={value[:6] if key in ('data', 'encoder') else value}")
    return texts


def _short_differences(settings: Settings, every: set[Settings]) -> list[str]:
    """Return `_differences`. If more than `LONGEST` settings differ, return only enough to distinguish the runs."""
    keys = _differing_keys(every)
    if len(keys) <= LONGEST:
        return _differences(settings, every)
    tables, chosen, distinct = [dict(table) for table in every], list[str](), 1
    for key in keys:
        count = len({tuple(table.get(k) for k in [*chosen, key]) for table in tables})
        if count > distinct:
            chosen, distinct = [*chosen, key], count
    return [*_differences(settings, every, chosen), "…"]


def _differing_keys(every: set[Settings]) -> list[str]:
    tables = [dict(settings) for settings in every]
    keys = {key for table in tables for key in table if len({other.get(key) for other in tables}) > 1}
    return sorted(keys, key=lambda key: (not key.startswith("strategy."), not key.endswith(".name"), key))


def _absent(key: str) -> str:
    """Return the text for a missing setting: the earlier implicit value if a later version added it, or ``unset``."""
    return setting_text(LATER[key]) if key in LATER else "unset"


def setting_text(value: Any) -> str:
    """Format a config value for labels and filters: ``[1,2]``, ``true``, ``naive``."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(setting_text, value))}]"
    return value if isinstance(value, str) else json.dumps(value, default=str)
