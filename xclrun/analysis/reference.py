"""Reference scores M of a run: how well each language does when it is learnt alone (glossary: *reference scores*)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from xclrun.analysis.record import RunRecord
from xclrun.analysis.settings import config_settings

REFERENCE = "lang_spec_ft"

# Strategies that are measured against their own kind: a language learnt alone with its adapter. That is what the first
# hop of a run is, so their runs whose orders begin with a language are its reference.
OWN_REFERENCE = ("lang_spec_ada_t", "lang_spec_ada_f")


def reference_of(record: RunRecord) -> str:
    """Say for a person which runs hold the reference scores of a run."""
    return f"{record.strategy} first on each language" if record.strategy in OWN_REFERENCE else REFERENCE


class References:
    """The runs that train each language alone, to be asked for the reference scores of any run.

    A reference run has the same data, model, encoder, trainer and evaluation settings, algorithms, seed and bucket;
    its order does not matter, since each of its hops starts from hop 0.
    """

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self._runs: dict[tuple[object, ...], list[RunRecord]] = defaultdict(list)
        for record in sorted(records, key=lambda r: (r.order, r.run_id)):
            if record.strategy == REFERENCE and record.stream == "independent" and record.status == "finished":
                self._runs[_key(record)].append(record)
            elif record.strategy in OWN_REFERENCE and record.status == "finished":
                self._runs[_own_key(record)].append(record)

    def cells(self, record: RunRecord, metric: str) -> list[tuple[RunRecord, int, int] | None]:
        """Return where M[j] stands, for each language of the run: (reference run, hop, column) of its score matrix.

        Of several reference runs the one with the run's own order is taken, else the first by order and run id. None
        where no reference run has the language.
        """
        own = record.strategy in OWN_REFERENCE
        found: dict[str, tuple[RunRecord, int, int]] = {}
        runs = self._runs.get(_own_key(record) if own else _key(record), ())
        for run in sorted(runs, key=lambda r: r.order != record.order):
            if metric in run.scores:
                for j, language in enumerate(run.languages[:1] if own else run.languages):
                    if np.isfinite(run.scores[metric][j + 1, j]):
                        found.setdefault(language, (run, j + 1, j))
        return [found.get(language) for language in record.languages]

    def scores(self, record: RunRecord, metric: str) -> np.ndarray:
        """Return M, shape (N,), in the order of the run's languages; NaN where no reference run has the language."""
        found = self.cells(record, metric)
        return np.array([np.nan if cell is None else cell[0].scores[metric][cell[1:]] for cell in found])


def _key(record: RunRecord) -> tuple[object, ...]:
    same = tuple(item for item in config_settings(record) if item[0].split(".")[0] in ("model", "trainer", "evaluate"))
    content = (record.dataset, record.model, record.data_fingerprint, record.encoder, record.algorithms)
    return (*content, record.seed, record.bucket, same)


def _own_key(record: RunRecord) -> tuple[object, ...]:
    own = tuple(item for item in config_settings(record) if item[0].startswith("strategy."))
    return (*_key(record), record.strategy, record.strategy_version, own)
