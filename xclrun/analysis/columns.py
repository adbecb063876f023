"""Columns of the DataFrames of the Python API: method of `xclrun.study.Study` → column → meaning."""

from __future__ import annotations

from xclrun.analysis.record import COSTS

_NAMES = {
    "dataset": "name of the dataset",
    "model": "name of the model",
}
_RUN = {
    "run": "run ID",
    **_NAMES,
    "strategy": "name of the strategy, with its expansion",
    "order": "name of the order, or its languages",
    "seed": "seed",
    "shots": "few-shot: number of examples per class",
    "bucket": "few-shot: number of the bucket",
    "label": "label of the strategy in tables: its name, and the settings that differ between its runs",
}
_MEASURE = {
    "metric": "name of the metric",
    "measure": "name of the measure",
    "language": "the language; empty for the value over all languages",
    "value": "the value, in `unit`",
}
# Unit of values that are printed in percent or points.
UNIT = "fraction"
QUANTITY = {
    "unit": f"unit of the values: `{UNIT}` (printed in percent or points), or that of the measure, such as `kbits`",
    "higher_is_better": "direction of the measure",
}
_COSTS = {
    "parameters": "number of parameters",
    "trained": "number of trained parameters",
    "memory": "largest size of the strategy's state between hops, in bytes",
    "updates": "number of optimizer steps",
    "examples": "number of training examples, with replayed ones",
    "tokens": "number of training tokens",
    "seconds": "training time in seconds",
}
assert _COSTS.keys() == COSTS.keys()

# Columns of summary.csv.
SUMMARY = {
    **_NAMES,
    "strategy": "label of the strategy in tables",
    "order": "name of the order; `mean`: average over orders and seeds",
    **_MEASURE,
    "std": "standard deviation over runs",
    "ci_low": "lower end of the 95 % t interval",
    "ci_high": "upper end of the 95 % t interval",
    "n": "number of runs",
    "status": "`ok`, `interim: …`, `unbalanced: …`, or `n/a: …` with the reason",
    "task": "short name of the metric",
    "ci_given": "condition of the interval, or empty",
}
COLUMNS = {
    "runs": {
        **_RUN,
        "stream": "kind of the stream: `sequence`, `independent`, `joint`, …",
        "languages": "the languages in the order of the stream, separated by spaces",
        "status": "`finished`, `running`, `interrupted` or `failed`",
        **_COSTS,
    },
    "scores": {
        **_RUN,
        "metric": "name of the metric",
        "hop": "the hop; 0: before fine-tuning",
        "learnt": "training data of the hop: a language, `all`, or empty for hop 0",
        "language": "the tested language",
        "score": "the score",
    },
    "measures": {**SUMMARY, **QUANTITY},
    "run_measures": {
        **_RUN,
        **_MEASURE,
        "status": "`ok`, or `n/a: …` with the reason",
        **QUANTITY,
    },
    "few_shot": {
        "run_id": "run ID",
        **_NAMES,
        "metric": "name of the metric",
        "source": "source language, or `none`",
        "language": "target language",
        "shots": "number of examples per class; −1: the whole training split",
        "strategy": "label of the strategy in tables",
        "bucket": "number of the bucket; −1: none",
        "seed": "seed",
        "zero_shot": "score on the target before adaptation",
        "score": "score on the target after adaptation",
        "task": "short name of the metric",
    },
    "predictions": {
        "hop": "the hop; 0: before fine-tuning",
        "step": "training steps of the hop",
        "examples_seen": "training examples of the hop, with replayed ones",
        "split": "`test`, `dev` or `train`",
        "language": "the language",
        "example_id": "ID of the example",
        "gold": "correct label; None: not in the training data",
        "predicted": "predicted label",
        "log2_gold": "log2 p(correct label)",
        "gold_tags": "correct tags of the words; None: not in the training data",
        "predicted_tags": "predicted tags of the words",
        "tp": "number of correct spans, or tags",
        "fp": "number of wrong spans, or tags",
        "fn": "number of missed spans, or of words with a wrong tag",
        "log2_gold_tags": "log2 p(correct tags)",
        "tokens": "number of words",
    },
}
