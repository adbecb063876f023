"""Reference scores M of a run: how well each language does when it is learnt alone (glossary: *reference scores*)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from xclrun.analysis.metrics import learnt_scores
from xclrun.analysis.record import RunRecord
from xclrun.analysis.settings import config_settings

REFERENCE = "lang_spec_ft"


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

    def scores(self, record: RunRecord, metric: str) -> np.ndarray:
        """Return M, shape (N,), in the order of the run's languages; NaN where no reference run has the language.

        Of several reference runs the one with the run's own order is taken, else the first by order and run id.
        """
        found = dict.fromkeys(record.languages, np.nan)
        for run in sorted(self._runs.get(_key(record), ()), key=lambda r: r.order != record.order):
            if metric in run.scores:
                for language, score in zip(run.languages, learnt_scores(run.scores[metric]), strict=True):
                    if language in found and np.isnan(found[language]):
                        found[language] = score
        return np.array(list(found.values()))


def _key(record: RunRecord) -> tuple[object, ...]:
    same = tuple(item for item in config_settings(record) if item[0].split(".")[0] in ("model", "trainer", "evaluate"))
    content = (record.dataset, record.model, record.data_fingerprint, record.encoder, record.algorithms)
    return (*content, record.seed, record.bucket, same)
