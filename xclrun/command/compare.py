"""``xclrun show RUN RUN``: settings and scores of two runs side by side, with a paired test of the final scores."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xclrun.command.described import read_run, scoring
from xclrun.core.identity import flat
from xclrun.store.rundir import RunDirectory

if TYPE_CHECKING:
    from xclrun.analysis.record import RunRecord
    from xclrun.core.quantity import Quantity
    from xclrun.scores.base_scores import Predictions

# Keys that do not affect results.
NOT_SETTINGS = ("paths.", "strategy_label")


def differences(directories: Sequence[RunDirectory]) -> dict[str, Any]:
    """Return the differences between two runs as [value of the first run, value of the second]."""
    from xclrun.analysis.measures import headlines

    runs, measures = zip(*map(read_run, directories), strict=True)
    settings = [{k: v for k, v in flat(run.config) if not k.startswith(NOT_SETTINGS)} for run in runs]
    pairs = {key: [s.get(key) for s in settings] for key in sorted(settings[0] | settings[1])}
    metrics = [metric for metric in runs[0].scores if metric in runs[1].scores]
    shared = [language for language in runs[0].languages if language in runs[1].languages]
    return {
        "runs": [run.run_id for run in runs],
        "languages": list(dict.fromkeys(language for run in runs for language in run.languages)),
        "settings": {key: values for key, values in pairs.items() if values[0] != values[1]},
        "measures": {m: {h.name: [values[m].get(h.name) for values in measures] for h in headlines()} for m in metrics},
        "final": {m: {k: [_final(run, m, k) for run in runs] for k in shared} for m in metrics},
        "scoring": {m: [scoring(run, m) for run in runs] for m in metrics},
        "tests": tests(directories, runs, metrics),
    }


def _final_hop(run: RunRecord, language: str) -> int:
    """Return the hop of the final score: the last hop, or the language's hop if languages are trained separately."""
    return run.languages.index(language) + 1 if run.stream == "independent" else run.hops


def _final(run: RunRecord, metric: str, language: str) -> float | None:
    value = float(run.scores[metric][_final_hop(run, language), run.languages.index(language)])
    return value if value == value else None


def tests(
    directories: Sequence[RunDirectory], runs: Sequence[RunRecord], metrics: Sequence[str]
) -> dict[str, dict[str, Any] | str]:
    """Return metric → paired test of the final scores, or the reason why there is none."""
    from xclrun.analysis.bootstrap import SMALL
    from xclrun.analysis.paired import cell, paired_difference
    from xclrun.analysis.records import read_predictions
    from xclrun.core.task import METRICS

    problems: list[str] = []
    read: list[Predictions] = []
    for directory, run in zip(directories, runs, strict=True):
        if directory.finished:
            read += read_predictions(directory.path.parents[1], [run], problems.append).values()
        else:
            problems.append("a run is not finished")
    if problems:
        return dict.fromkeys(metrics, f"not tested: {problems[0]}")
    languages = [language for language in read[0].sentences if language in read[1].sentences]
    if not languages:
        return dict.fromkeys(metrics, "not tested: the runs have no language in common")
    if any(_examples(read[0], language) != _examples(read[1], language) for language in languages):
        return dict.fromkeys(metrics, "not tested: the runs were tested on different sentences")
    results: dict[str, dict[str, Any] | str] = {}
    for metric in (metric for metric in METRICS if metric.name in metrics):
        try:
            first, second = (
                {k: cell(predictions.sentences[k], metric, _final_hop(run, k)) for k in languages}
                for run, predictions in zip(runs, read, strict=True)
            )
            test = paired_difference(first, second)
        except ValueError as error:
            results[metric.name] = f"not tested: {error}"
        else:
            units = {k: len(counts) for k, counts in first.items()}
            texts = any(read[0].sentences[k].units is not None for k in languages)
            results[metric.name] = {
                "test": "paired bootstrap",
                **vars(test),
                # JSON has no NaN.
                "p": None if test.interval.reason else test.p,
                "interval": None if test.interval.reason else [test.interval.low, test.interval.high],
                "reason": test.interval.reason,
                "small": {k: n for k, n in units.items() if n < SMALL},
                "languages": languages,
                "drawn": "texts" if texts else "sentences",
            }
    return results


def _examples(read: Predictions, language: str) -> list[tuple[str, str]]:
    """Return ID and gold class, or the number of the correct choice, of the test sentences of a language."""
    sentences, labels = read.sentences[language], (*read.labels, "")
    names = (labels[gold] if gold < len(read.labels) else str(gold) for gold in sentences.gold)
    return list(zip(sentences.ids.tolist(), names, strict=True))


def render(facts: dict[str, Any]) -> str:
    """Format the differences for the terminal."""
    from xclrun.analysis.measures import quantity
    from xclrun.core.terminal import fitted, table

    first, second = facts["runs"]
    lines = [f"A  {first}", f"B  {second}", ""]
    if facts["settings"]:
        rows = [(key, *map(_plain, values)) for key, values in facts["settings"].items()]
        lines.append(table(("setting", "A", "B"), rows, text_columns=3))
    else:
        lines.append("the same settings")
    for metric, measures in facts["measures"].items():
        a, b = facts["scoring"][metric]
        way = f" (A: {a}, B: {b})" if a != b else " (tag_macro)" if a == "tag_macro" else ""
        values = {name: pair for name, pair in measures.items() if pair != [None, None]}
        score = quantity(metric)
        rows = [(name, *_texts(pair, quantity(metric, name), a == b)) for name, pair in values.items()]
        final = facts["final"][metric].items()
        rows += [(f"final {language}", *_texts(pair, score, a == b)) for language, pair in final]
        lines += ["", f"{metric}{way} in {score.unit}", "", table(("", "A", "B", "B − A"), rows)]
        test = facts["tests"][metric]
        sentence = test if isinstance(test, str) else _sentence(test, score, facts["languages"])
        lines.append(fitted(sentence, sys.stdout))
    if any(not isinstance(test, str) for test in facts["tests"].values()):
        scope = "p-values are uncorrected and concern only these two runs; `xclrun report` tests over orders"
        lines += ["", fitted(scope, sys.stdout)]
    return "\n".join(lines)


def _texts(values: Sequence[float | None], quantity: Quantity, comparable: bool) -> tuple[str, ...]:
    """Return the two values of a row and their difference."""
    a, b = values
    difference = "" if a is None or b is None or not comparable else quantity.change(b - a)
    return *("" if value is None else quantity.shown(value) for value in values), difference


def _sentence(test: dict[str, Any], quantity: Quantity, languages: Sequence[str]) -> str:
    """Describe the result of a paired test."""
    missing = [language for language in languages if language not in test["languages"]]
    over = f"{', '.join(test['languages'])} (in only one run: {', '.join(missing)})" if missing else "languages"
    value = f"B − A, final, mean over {over}: {quantity.change(test['value'])}"
    bootstrap = f"(paired bootstrap over {test['sentences']:,} test {test['drawn']})"
    small = ", ".join(f"{language} {n}" for language, n in test["small"].items())
    note = f"; small test sets ({small} {test['drawn']}): resampling underestimates the uncertainty" if small else ""
    if test["reason"]:
        return f"{value}; no interval and no p: {test['reason']} {bootstrap}{note}"
    low, high = test["interval"]
    return (
        f"{value} (bias {quantity.change(test['bias'])}), 95 % interval {quantity.change(low)} to "
        f"{quantity.change(high)}, "
        f"p = {test['p']:.2g} {bootstrap}{note}"
    )


def _plain(value: Any) -> str:
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
