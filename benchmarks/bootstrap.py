"""``python -m benchmarks.bootstrap``: time of a full study's bootstrap, compared with re-scoring every resample.

The study has 10 strategies × 6 orders × 36 cells (and hop 0) × 2 metrics, test sets of MTOP's sizes, and 600 resamples
of 600 sentences. xclrun's bootstrap is timed completely. For re-scoring, only one resample of one cell is timed:
scikit-learn computes accuracy and tag F1, as in research scripts. This time is multiplied by the number of resamples
and cells.
"""

from __future__ import annotations

import resource
import statistics
import time

import numpy as np

from xclrun.analysis import formulas
from xclrun.analysis.bootstrap import RESAMPLES, SENTENCES, draws
from xclrun.scores.base_scores import Counts

SIZES = {"en": 4386, "de": 3549, "fr": 3193, "es": 2998, "hi": 2789, "th": 2765}
RUNS, HOPS, TOKENS, TAGS, INTENTS = 60, 6, 7, 152, 114


def ours(rng: np.random.Generator) -> float:
    """Return the seconds to resample all scores and compute forgetting and final performance of all runs."""
    cells = RUNS * (HOPS + 1)
    counts = [{k: Counts.of_accuracy(rng.integers(0, 2, (n, cells), dtype=np.int8)) for k, n in SIZES.items()}]
    spans = {k: [rng.integers(0, 3, (n, cells), dtype=np.int8) for _ in range(3)] for k, n in SIZES.items()}
    counts.append({k: Counts.of_f1(*values_) for k, values_ in spans.items()})
    del spans
    began = time.perf_counter()
    for values_ in counts:
        result = {k: cells_.resampled(draws(SIZES[k], 42, k)) for k, cells_ in values_.items()}
        stack = np.stack([result[k].reshape(RESAMPLES, RUNS, HOPS + 1) for k in SIZES], axis=-1)
        formulas.forgetting(stack)
        stack[..., -1, :].mean(axis=-1)
    return time.perf_counter() - began


def rescoring(rng: np.random.Generator, repetitions: int = 30) -> float:
    """Return the seconds to score both metrics of one resample of one cell."""
    from sklearn.metrics import accuracy_score, f1_score

    intents = rng.integers(0, INTENTS, (2, SIZES["en"]))
    tags = rng.integers(0, TAGS, (2, SIZES["en"], TOKENS))
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        chosen = rng.integers(0, SIZES["en"], SENTENCES)
        accuracy_score(intents[0, chosen], intents[1, chosen])
        f1_score(tags[0, chosen].ravel(), tags[1, chosen].ravel(), average="micro")
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    rng = np.random.default_rng(0)
    mine = min(ours(rng) for _ in range(2))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    theirs = rescoring(rng) * RUNS * HOPS * HOPS * RESAMPLES
    print(f"bootstrap of a full study: {mine:.1f} s, {memory:.1f} GB at most (with the data)")
    print(f"re-scoring every resample: {theirs / 3600:.1f} h (extrapolated); ratio {theirs / mine:,.0f}")


if __name__ == "__main__":
    main()
