"""Reference scores M of a run: how well each language does when it is learnt alone (glossary: *reference scores*)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from xclrun.analysis.record import RunRecord
from xclrun.analysis.settings import config_settings
from xclrun.plan import adapters_of

REFERENCE = "lang_spec_ft"


class References:
    """The runs that train each language alone, to be asked for the reference scores of any run.

    A reference run has the same data, model, encoder, trainer and evaluation settings, algorithms, seed and bucket;
    its order does not matter, since each of its hops starts from hop 0. Runs with language adapters have reference runs
    with the same ones, the others have such without.
    """

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self._runs: dict[tuple[object, ...], list[RunRecord]] = defaultdict(list)
        for record in sorted(records, key=lambda r: (r.order, r.run_id)):
            independent = record.strategy.partition("+")[0] == REFERENCE and record.stream == "independent"
            if independent and record.status == "finished":
                self._runs[_key(record)].append(record)

    def cells(self, record: RunRecord, metric: str) -> list[tuple[RunRecord, int, int] | None]:
        """Return where M[j] stands, for each language of the run: (reference run, hop, column) of its score matrix.

        Of several reference runs the one with the run's own order is taken, else the first by order and run id. None
        where no reference run has the language.
        """
        found: dict[str, tuple[RunRecord, int, int]] = {}
        for run in sorted(self._runs.get(_key(record), ()), key=lambda r: r.order != record.order):
            if metric in run.scores:
                for j, language in enumerate(run.languages):
                    if np.isfinite(run.scores[metric][j + 1, j]):
                        found.setdefault(language, (run, j + 1, j))
        return [found.get(language) for language in record.languages]

    def scores(self, record: RunRecord, metric: str) -> np.ndarray:
        """Return M, shape (N,), in the order of the run's languages; NaN where no reference run has the language."""
        found = self.cells(record, metric)
        return np.array([np.nan if cell is None else cell[0].scores[metric][cell[1:]] for cell in found])


def reference_name(record: RunRecord) -> str:
    """Return the name of the strategy that gives a run's reference scores."""
    adapters = adapters_of(record.config["strategy"])
    return REFERENCE if adapters is None else f"{REFERENCE}+{adapters['name']}"


def _key(record: RunRecord) -> tuple[object, ...]:
    same = tuple(item for item in config_settings(record) if item[0].split(".")[0] in ("model", "trainer", "evaluate"))
    content = (record.dataset, record.model, record.data_fingerprint, record.encoder, record.algorithms)
    return (*content, record.seed, record.bucket, same, _adapters(record))


def _adapters(record: RunRecord) -> tuple[object, ...] | None:
    """Return what identifies the language adapters of a run: their settings, version and pretrained content."""
    strategy = record.config["strategy"]
    if (found := adapters_of(strategy)) is None:
        return None
    version = str(record.strategy_version)
    own = version if found is strategy else version.partition("+")[2]
    return (own, *sorted((key, str(value)) for key, value in found.items() if key != "pretrained"))
