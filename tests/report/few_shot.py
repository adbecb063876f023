"""Synthetic few-shot studies: scores rise with K, more so where zero-shot is poor; buckets matter more than seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from xclrun.analysis.fewshot.data import FewShotData
from xclrun.analysis.fewshot.words import Outcome, Words
from xclrun.analysis.record import RunRecord

ZERO_SHOT = {"de": 0.86, "fi": 0.74, "hi": 0.62, "tr": 0.57, "zh": 0.60}
TAGS = ("O", "ADJ", "NOUN", "VERB")
ENGLISH = [f"w{i}" for i in range(400)]


def run(
    language: str,
    shots: int,
    bucket: int,
    seed: int = 1,
    strategy: str = "naive",
    *,
    dataset: str = "pud",
    metric: str = "token_accuracy",
    source: str | None = "en",
    **fields: Any,
) -> RunRecord:
    """Make one finished few-shot run."""
    rng = np.random.default_rng([shots, bucket, seed, *map(ord, language + strategy)])
    zero = ZERO_SHOT[language] + 0.004 * seed
    of_bucket = np.random.default_rng([shots, bucket, *map(ord, language)]).normal(0, 0.02 / shots)
    head = 1.0 if strategy == "naive" else 0.6
    score = zero + head * 0.25 * (1 - zero) * np.log2(1 + shots) / 2 + of_bucket + rng.normal(0, 0.004)
    languages = (language,) if source is None else (source, language)
    matrix = np.full((len(languages) + 1, len(languages)), 0.1)
    matrix[-2, -1], matrix[-1, -1] = zero, score
    if source is not None:
        matrix[1:, 0] = 0.95, 0.94
    hops, epochs = len(languages), 6 + bucket % 4
    curve = [
        {"hop": hops, "epoch": e, "step": e, "examples": e, "loss": 1 / e,
         "dev": {language: {metric: float(zero + (score - zero) * min(1, e / 4) - 0.004 * (e > 5))}}}
        for e in range(1, epochs + 1)
    ]  # fmt: skip
    defaults: dict[str, Any] = {
        "run_id": f"{dataset}-{strategy}-{source}-{language}-k{shots}-b{bucket}-s{seed}",
        "config": {
            "strategy": {"name": strategy},
            "trainer": {"lr": 1e-5},
            "seed": seed,
            "bucket": bucket,
            "shots": shots,
            "language": language,
            "source": source or "none",
        },
        "data_fingerprint": f"{language}{shots}{bucket}",
        "scores": {metric: np.clip(matrix, 0, 1)},
    }
    return RunRecord(
        dataset=dataset, model="tiny", strategy=strategy, order="-".join(languages), languages=languages, seed=seed,
        bucket=bucket, stream="transfer", code_version="0.1.0", algorithms=1, status="finished", curve=tuple(curve),
        **(defaults | fields),
    )  # fmt: skip


def study(
    languages: Iterable[str] = tuple(ZERO_SHOT),
    shots: Iterable[int] = (1, 4),
    buckets: int = 10,
    seeds: Sequence[int] = (1, 2),
    strategies: Iterable[str] = ("naive",),
    **fields: Any,
) -> list[RunRecord]:
    """Make every combination."""
    shots, strategies = list(shots), list(strategies)
    return [
        run(language, k, bucket, seed, strategy, **fields)
        for language in languages for k in shots for strategy in strategies for bucket in range(buckets)
        for seed in seeds
    ]  # fmt: skip


def given(records: Iterable[RunRecord], sentences: int = 30) -> FewShotData:
    """Make what lies behind tagged runs: words of a bucket are more often put right than others."""
    outcomes, words = {}, {}
    for record in records:
        language, shots = record.languages[-1], record.config["shots"]
        text = np.random.default_rng([ord(c) for c in language])
        vocabulary = [*(f"w{i}" for i in range(40)), *(f"{language}{i}" for i in range(120))]
        tag_of = {word: int(text.integers(1, 4)) for word in vocabulary}
        test = {f"{language}-{i}": tuple(text.choice(vocabulary, size=8).tolist()) for i in range(sentences)}
        rng = np.random.default_rng([record.bucket or 0, shots, *map(ord, language)])
        bucket = frozenset(rng.choice(vocabulary, size=15 * shots, replace=False).tolist())
        tokens = [word for sentence in test.values() for word in sentence]
        gold = np.array([tag_of[word] for word in tokens])
        wrong = text.random(len(gold)) < 1 - ZERO_SHOT[language]
        before = np.where(wrong, gold % 3 + 1, gold)
        chance = np.array([0.6 if word in bucket else 0.25 for word in tokens])
        after = np.where(wrong & (rng.random(len(gold)) < chance), gold, before)
        words[record.run_id] = Words(
            frozenset(ENGLISH), bucket, frozenset((word, TAGS[tag_of[word]]) for word in bucket), test
        )
        lengths = np.full(len(test), 8)
        outcomes[record.run_id] = Outcome(TAGS, tuple(test), lengths, gold, before, after)
    return FewShotData({"token_accuracy": outcomes}, words)
