"""Reference scores M of a run: the score of a model trained on each language separately."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from xclrun.analysis.grouping import config_settings
from xclrun.analysis.record import RunRecord
from xclrun.core.identity import LATER, adapters_of, digest
from xclrun.core.task import makes_statements

REFERENCE = "lang_spec_ft"

# Reference models rather than continual-learning strategies (CCL §3.1): in separate table rows, never ranked.
REFERENCE_MODELS = (REFERENCE, "multilingual", "inc_joint")

# Settings that may differ between a run and its reference runs.
PACKING = ("trainer.packing", "protocol.source_trainer.packing")


def is_reference(record: RunRecord) -> bool:
    return record.strategy.partition("+")[0] in REFERENCE_MODELS


def is_reference_run(record: RunRecord) -> bool:
    """Whether a run is finished and trains each language separately."""
    independent = record.strategy.partition("+")[0] == REFERENCE and record.stream == "independent"
    return independent and record.finished


def is_control(record: RunRecord) -> bool:
    """Whether a run is a control that reads statements without their texts (``dataset.statements.context=hidden``)."""
    dataset = record.config.get("dataset") or {}
    return makes_statements(dataset) and (dataset.get("statements") or {}).get("context") == "hidden"


def is_ranked(record: RunRecord) -> bool:
    return not is_reference(record) and not is_control(record)


class References:
    """Find the reference runs (``lang_spec_ft``) of a run.

    A reference run agrees with the run in data, model, encoder, trainer and evaluation settings, algorithms, seed,
    bucket and language adapters. Its order is irrelevant, since each hop starts from hop 0. So is packing, which has no
    effect on the distribution of scores and which some strategies do not support.
    """

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self._runs: dict[tuple[object, ...], list[RunRecord]] = defaultdict(list)
        for record in sorted(records, key=lambda r: (r.order, r.run_id)):
            if is_reference_run(record):
                self._runs[_key(record)].append(record)

    def cells(self, record: RunRecord, metric: str) -> list[tuple[RunRecord, int, int] | None]:
        """Return where M[j] is stored for each language j of the run: (reference run, hop, column) of a score matrix.

        None if M[j] is missing. If several reference runs have M[j], a run with the same order is preferred, then the
        first by order and run ID.
        """
        cells: dict[str, tuple[RunRecord, int, int]] = {}
        for run in sorted(self._runs.get(_key(record), ()), key=lambda r: r.order != record.order):
            if metric in run.scores:
                for j, language in enumerate(run.languages):
                    if np.isfinite(run.scores[metric][j + 1, j]):
                        cells.setdefault(language, (run, j + 1, j))
        return [cells.get(language) for language in record.languages]

    def needed_by(self, records: Iterable[RunRecord]) -> list[RunRecord]:
        """Return the distinct reference runs of ``records``."""
        runs: dict[str, RunRecord] = {}
        for record in records:
            for metric in record.scores if record.stream == "sequence" else ():
                runs |= {cell[0].run_id: cell[0] for cell in self.cells(record, metric) if cell is not None}
        return list(runs.values())

    def scores(self, record: RunRecord, metric: str) -> np.ndarray:
        """Return the reference scores M for the run's N languages, shape (N,); NaN if missing."""
        cells = self.cells(record, metric)
        return np.array([np.nan if cell is None else cell[0].scores[metric][cell[1:]] for cell in cells])


def reference_name(record: RunRecord) -> str:
    """Return the strategy label of the reference runs that a run needs, such as ``lang_spec_ft``."""
    adapters = adapters_of(record.config["strategy"])
    return REFERENCE if adapters is None else f"{REFERENCE}+{adapters['name']}"


def reference_command(
    overrides: Iterable[str], adapters: Mapping[str, Any] | None, orders: Iterable[str], seeds: Iterable[int]
) -> str:
    """Build the command that trains the reference models for the runs of another command.

    Args:
        overrides: overrides of the other command.
        adapters: settings of the runs' language adapters (`xclrun.core.identity.adapters_of`).
        orders: orders in the syntax of overrides: ``h2l``, or ``[en,de]``.
    """
    shared = shared_overrides(overrides)
    # Use a separate sweep name, so that the original name refers only to the original sweep's runs.
    sweeps = [text.partition("=")[2] for text in shared if text.startswith("sweep=")]
    named = [f"sweep_name={name}-references" for name in sweeps]
    settings = dict(adapters or {})
    strategy = [f"strategy={REFERENCE}"]
    strategy += [f"strategy.expansion={settings.pop('name')}"] if settings else []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            value = "{" + ",".join(f"{name}:'{item}'" for name, item in value.items()) + "}"
        strategy += [] if value is None else [f"strategy.expansion.{key}={value}"]
    order, seed = ",".join(dict.fromkeys(orders)), ",".join(str(seed) for seed in sorted(set(seeds)))
    return shlex.join(["xclrun", *shared, *named, *strategy, f"order={order}", f"seed={seed}", "-m"])


def command_of_setting(command: str, values: Mapping[str, str]) -> str:
    """Build the command that runs only the setting ``values`` (key → value) of the grid or search in ``command``."""
    program, *overrides = shlex.split(command)
    overrides = [text for text in overrides if not text.startswith(("hydra/sweeper=", "hydra.sweeper."))]
    replaced = [f"{key}={values[key]}" if (key := text.partition("=")[0]) in values else text for text in overrides]
    # The sweep's YAML sets keys that the command does not contain: append them.
    typed = {text.partition("=")[0] for text in overrides}
    added = [f"{key}={value}" for key, value in values.items() if key not in typed]
    return shlex.join([program, *replaced, *added])


def shared_overrides(overrides: Iterable[str]) -> list[str]:
    """Return the overrides without strategy, order, seed and sweep name."""
    separate = ("strategy", "order", "seed", "sweep_name", "-m", "--multirun")
    return [text for text in overrides if re.split("[=./]", text)[0] not in separate]


def reference_key(record: RunRecord) -> str:
    """Return a digest that is equal for a run and its reference runs."""
    return digest(_key(record))


def _key(record: RunRecord) -> tuple[object, ...]:
    same = tuple(
        item
        for item in config_settings(record)
        if item[0].split(".")[0] in ("model", "trainer", "evaluate") and item[0] not in PACKING
    )
    content = (record.dataset, record.model, record.data_fingerprint, record.encoder, record.algorithms)
    return (*content, record.seed, record.bucket, same, _adapters(record))


def _adapters(record: RunRecord) -> tuple[object, ...] | None:
    """Return the version and settings of a run's language adapters; None without adapters.

    ``pretrained`` is omitted, since the version identifies the pretrained weights. Settings of a later release with the
    value that keeps the old behavior (`LATER`) are omitted too, because older runs lack them.
    """
    strategy = record.config["strategy"]
    if (adapters := adapters_of(strategy)) is None:
        return None
    version = str(record.strategy_version)
    version = version if adapters is strategy else version.partition("+")[2]
    settings = {k: v for k, v in adapters.items() if (f"strategy.{k}", v) not in LATER.items() and k != "pretrained"}
    return (version, *sorted((key, str(value)) for key, value in settings.items()))
