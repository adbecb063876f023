"""Small run records for tests: a value is written down only where the test is about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xclrun.analysis.measures import EXAMPLE
from xclrun.analysis.record import STREAMS, RunRecord

# The matrix and the references of the tests that are worked by hand.
R, M = EXAMPLE


def record(
    strategy: str = "naive",
    order: str | None = None,
    seed: int = 1,
    scores: Any = None,
    *,
    languages: Sequence[str] = ("en", "de", "th"),
    stream: str = "sequence",
    status: str = "finished",
    run_id: str | None = None,
    config: dict[str, Any] | None = None,
    **fields: Any,
) -> RunRecord:
    """Make a record; ``scores`` is a matrix (intent accuracy) or a dict of metric → matrix, all 0.5 by default."""
    order = order or "-".join(languages)
    if scores is None:
        scores = np.full((STREAMS[stream](len(languages)) + 1, len(languages)), 0.5)
    own = {"strategy": {"name": strategy}, "trainer": {"lr": 0.001}, "seed": seed, "order": {"name": order}}
    given = {
        "dataset": "mini",
        "model": "tiny",
        "bucket": None,
        "data_fingerprint": "ab12cd34",
        "code_version": "0.1.0",
        "algorithms": 1,
    }
    return RunRecord(
        run_id=run_id or f"{strategy}-{order}-{seed}",
        strategy=strategy,
        order=order,
        languages=tuple(languages),
        seed=seed,
        stream=stream,
        scores=scores if isinstance(scores, dict) else {"intent_accuracy": scores},
        config=merged(own, config or {}),
        status=status,
        **(given | fields),
    )


def alone(
    reference: Sequence[float], languages: Sequence[str] = ("en", "de", "th"), seed: int = 1, **fields: Any
) -> RunRecord:
    """Make the record of a ``lang_spec_ft`` run whose scores on the language learned alone are ``reference``."""
    n = len(languages)
    scores = np.full((n + 1, n), 0.1)
    scores[1:][np.diag_indices(n)] = reference
    return record("lang_spec_ft", seed=seed, scores=scores, languages=languages, stream="independent", **fields)


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return nested dicts put together; ``more`` wins."""
    both = {key: merged(base[key], more[key]) for key in base.keys() & more.keys() if isinstance(more[key], dict)}
    return base | more | both
