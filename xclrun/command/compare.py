"""``xclrun compare``: what is different between two runs: settings, scores, and whether the latter may be chance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xclrun.command.common import add_run, chosen_run, parser
from xclrun.command.show import read_run, way_of_scoring
from xclrun.core.identity import flat
from xclrun.store.rundir import RunDirectory

if TYPE_CHECKING:
    from xclrun.analysis.base_scores import Predictions
    from xclrun.analysis.record import RunRecord

# Where files lie changes no result.
NOT_SETTINGS = ("paths.", "strategy_label")


def main(arguments: Sequence[str]) -> int:
    """Print the differences between two runs; return the exit code."""
    options = parser(
        "compare",
        "The settings in which two runs differ, their scores side by side, and a paired bootstrap test of their final "
        "scores over the same test sentences (it says nothing of other seeds: `xclrun report` compares strategies).",
    )
    for name in ("A", "B"):
        add_run(options, name)
    options.add_argument("--json", action="store_true", help="print facts as JSON")
    given = options.parse_args(arguments)
    facts = differences(*(chosen_run(given.outputs, text) for text in (given.a, given.b)))
    print(json.dumps(facts, indent=1) if given.json else render(facts))
    return 0


def differences(one: RunDirectory, other: RunDirectory) -> dict[str, Any]:
    """Return what is different between two runs, each time the first run's value and the second's.

    Raises:
        RunError: one has not begun, or its files cannot be read.
    """
    from xclrun.analysis.measures import headlines

    read = [read_run(directory) for directory in (one, other)]
    records, measured = [own for own, _ in read], [measures for _, measures in read]
    names = [one.name for one in headlines()]
    settings = [{k: v for k, v in flat(own.config) if not k.startswith(NOT_SETTINGS)} for own in records]
    changed = {key: [s.get(key) for s in settings] for key in sorted(settings[0] | settings[1])}
    both = [metric for metric in records[0].scores if metric in records[1].scores]
    languages = [language for language in records[0].languages if language in records[1].languages]
    return {
        "runs": [own.run_id for own in records],
        "languages": list(dict.fromkeys(language for own in records for language in own.languages)),
        "settings": {key: values for key, values in changed.items() if values[0] != values[1]},
        "measures": {m: {name: [of[m].get(name) for of in measured] for name in names} for m in both},
        "final": {m: {k: [_final(own, m, k) for own in records] for k in languages} for m in both},
        "scoring": {m: [way_of_scoring(own, m) for own in records] for m in both},
        "tests": tests((one, other), records, both),
    }


def _final_hop(own: RunRecord, language: str) -> int:
    """Return the hop whose score on a language is the run's final one: its own where each is learnt alone."""
    return own.languages.index(language) + 1 if own.stream == "independent" else own.hops


def _final(own: RunRecord, metric: str, language: str) -> float | None:
    value = float(own.scores[metric][_final_hop(own, language), own.languages.index(language)])
    return value if value == value else None


def tests(
    directories: Sequence[RunDirectory], records: Sequence[RunRecord], metrics: Sequence[str]
) -> dict[str, dict[str, Any] | str]:
    """Return metric → the paired test of the final scores, or why there is none."""
    from xclrun.analysis.paired import cell, paired_difference
    from xclrun.core.task import METRICS
    from xclrun.store.records import read_predictions

    unread: list[str] = []
    read: list[Predictions] = []
    for directory, own in zip(directories, records, strict=True):
        if not directory.finished:
            unread.append("a run is not finished")
        else:
            read += read_predictions(directory.path.parents[1], [own], unread.append).values()
    if unread:
        return dict.fromkeys(metrics, f"not tested: {unread[0]}")
    languages = [language for language in read[0].sentences if language in read[1].sentences]
    if not languages:
        return dict.fromkeys(metrics, "not tested: the runs have no language in common")
    if any(_examples(read[0], language) != _examples(read[1], language) for language in languages):
        return dict.fromkeys(metrics, "not tested: the runs were tested on different sentences")
    found: dict[str, dict[str, Any] | str] = {}
    for metric in (metric for metric in METRICS if metric.name in metrics):
        try:
            one, other = (
                {k: cell(of.sentences[k], metric, _final_hop(own, k)) for k in languages}
                for own, of in zip(records, read, strict=True)
            )
            test = paired_difference(one, other)
        except ValueError as error:
            found[metric.name] = f"not tested: {error}"
        else:
            interval = [test.interval.low, test.interval.high]
            of_texts = any(read[0].sentences[k].units(metric) is not None for k in languages)
            found[metric.name] = {
                "test": "paired bootstrap",
                **vars(test),
                "interval": interval,
                "languages": languages,
                "drawn": "texts" if of_texts else "sentences",
            }
    return found


def _examples(read: Predictions, language: str) -> list[tuple[str, str]]:
    """Return id and gold class of the test sentences of a language."""
    sentences, labels = read.sentences[language], (*read.labels, "")
    return list(zip(sentences.ids.tolist(), (labels[gold] for gold in sentences.gold), strict=True))


def render(facts: dict[str, Any]) -> str:
    """Return the differences for a person; scores in percent."""
    from xclrun.core.terminal import table

    def cells(values: Sequence[float | None], alike: bool) -> tuple[str, ...]:
        a, b = values
        difference = "" if a is None or b is None or not alike else f"{100 * (b - a):+.2f}"
        return (*("" if v is None else f"{100 * v:.2f}" for v in values), difference)

    one, other = facts["runs"]
    shown = [f"A  {one}", f"B  {other}", ""]
    if facts["settings"]:
        rows = [(key, *map(_plain, values)) for key, values in facts["settings"].items()]
        shown.append(table(("setting", "A", "B"), rows, left=3))
    else:
        shown.append("the same settings")
    for metric, measures in facts["measures"].items():
        ways = facts["scoring"][metric]
        alike = ways[0] == ways[1]
        way = " (tag_macro)" if ways == ["tag_macro"] * 2 else "" if alike else f" (A: {ways[0]}, B: {ways[1]})"
        rows = [(name, *cells(values, alike)) for name, values in measures.items() if values != [None, None]]
        rows += [(f"final {language}", *cells(values, alike)) for language, values in facts["final"][metric].items()]
        shown += ["", f"{metric}{way} in %", "", table(("", "A", "B", "B − A"), rows)]
        test = facts["tests"][metric]
        if isinstance(test, str):
            shown.append(test)
            continue
        low, high = test["interval"]
        alone = [k for k in facts["languages"] if k not in test["languages"]]
        which = f"{', '.join(test['languages'])} (not in both: {', '.join(alone)})" if alone else "languages"
        shown.append(
            f"B − A, final, mean over {which}: {100 * test['value']:+.2f} (bias {100 * test['bias']:+.2f}), "
            f"95 % interval {100 * low:+.2f} to {100 * high:+.2f},\n"
            f"p = {test['p']:.2g} (paired bootstrap over {test['sentences']:,} test {test['drawn']})"
        )
    if any(not isinstance(test, str) for test in facts["tests"].values()):
        shown += ["", "p-values: of these two runs alone, without correction; xclrun report tests over orders"]
    return "\n".join(shown)


def _plain(value: Any) -> str:
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
