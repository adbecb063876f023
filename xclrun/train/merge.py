"""Merging of finished runs: plan runs of strategy ``merge``, and score them on dev data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from xclrun.config.checks import check
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.plan import Run, plan_run
from xclrun.scores.base_scores import selection_score
from xclrun.strategy.merge import SETTINGS, Method, Reverted, settings_for
from xclrun.train.progress import Listener
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag


def candidates(run: Run, method: str, coefficients: Sequence[str]) -> dict[str, Run]:
    """Plan runs that merge a run's hops, one for each combination of the coefficients' values.

    Args:
        coefficients: options ``NAME=VALUE[,VALUE…]``; each name is a setting of the method.

    Returns:
        A dict: text of the coefficients, such as ``scale=0.3 density=0.2`` → planned run.

    Raises:
        UsageError: a method, setting or value is unknown, or the strategy's models cannot be merged.
    """
    if method not in Method.__members__:
        raise UsageError(f"--method {method}: unknown; {did_you_mean(method, Method.__members__)}")
    available, values = SETTINGS[Method[method]], dict[str, dict[str, Any]]()
    for text in coefficients:
        name, _, listed = text.partition("=")
        if name not in available:
            options = ", ".join(available) or "none"
            raise UsageError(f"--coefficient {text}: {method} has no setting '{name}'; its settings: {options}")
        if name in values:
            raise UsageError(f"--coefficient {text}: '{name}' is given twice; join its values with commas")
        values[name] = {value: _value(name, value, text) for value in listed.split(",")}
    settings = settings_for(run.config.strategy, Method[method])
    planned = {}
    for texts in itertools.product(*values.values()):
        chosen = dict(zip(values, texts, strict=True))
        strategy = replace(settings, **{name: values[name][text] for name, text in chosen.items()})
        config = replace(run.config, strategy=strategy, strategy_label=None)
        check(config)
        planned[" ".join(f"{name}={text}" for name, text in chosen.items())] = plan_run(config)
    return planned


def coefficients_of(run: Run, coefficients: Sequence[str]) -> dict[str, Any]:
    """Return coefficient → value in a planned merge's saved config; ``coefficients``: see `candidates`."""
    strategy = run.resolved["strategy"]
    return {name: strategy[name] for name in (text.partition("=")[0] for text in coefficients)}


def _value(name: str, value: str, text: str) -> Any:
    try:
        if name == "reverted":
            return Reverted[value]
        if name == "layers":
            return [int(number) for number in value.split("+")]
        return int(value) if name == "fisher_examples" else float(value)
    except (KeyError, ValueError):
        expected = {
            "reverted": " or ".join(Reverted.__members__),
            "layers": "layer numbers joined by '+'",
            "fisher_examples": "an integer",
        }.get(name, "a number")
        raise UsageError(f"--coefficient {text}: '{value}' is not a value of '{name}'; expected {expected}") from None


def dev_score(run: Run, stop: StopFlag) -> float:
    """Return the `selection_score` of a run on the dev data of the learned languages, after its last merge.

    Higher is better; −∞ if the score is undefined.
    """
    graph, last = StageGraph(run, Listener(), stop), run.stages[-1].hop
    graph.load(last)
    bench, learned = graph.bench, graph.bench.learned(last.index)
    columns = {}
    for language in dict.fromkeys(learned):
        if not run.dataset.split(language, "dev"):
            raise UsageError(
                f"--select-on dev: dataset={run.dataset.name} has no dev data for '{language}'; omit the option and "
                "give each coefficient one value"
            )
        bench.strategy.for_language(language, learned)
        sentences = bench.encodings.splits[language, "dev"]
        columns[language] = bench.evaluator.predict(bench.model, sentences, language, "dev")
    score = selection_score({language: bench.evaluator.scores(rows) for language, rows in columns.items()})
    return -math.inf if math.isnan(score) else score
