"""Notes on the comparability of runs: missing runs, differing settings and versions."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from xclrun.analysis.aggregate import Comparison, compared, missing_combinations
from xclrun.analysis.grouping import config_settings, differing_settings, grouped, numbered_labels
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References, is_ranked, reference_command, reference_name, shared_overrides
from xclrun.analysis.tuning import dev_mismatch
from xclrun.core.identity import adapters_of


def comparison_caveats(
    comparison: Comparison, commands: Mapping[str, str] | None = None, command: str = "", unpaired: bool = False
) -> list[str]:
    """List notes on a comparison: missing runs, and differences in settings or code versions.

    Args:
        commands: run ID → the command line that started it.
        command: the command line of the report; empty if unknown.
        unpaired: see `compared`.
    """
    return [
        *(f"{label}: {meaning}" for label, meaning in numbered_labels(comparison.runs).items()),
        *_missing(comparison),
        *_references(comparison, commands or {}),
        *_differing(comparison),
        *_chosen_on_test(comparison, command),
        *_alike(comparison),
        *_versions(comparison, unpaired),
    ]


def grids(comparison: Comparison) -> dict[str, tuple[list[str], list[str]]]:
    """Return strategy → (labels of its settings, config keys in which the settings differ).

    Only strategies with several ranked settings are included.
    """
    ranked = {runs[0].run_id: label for label, runs in comparison.strategies.items() if is_ranked(runs[0])}
    first = [run for run in comparison.runs if run.run_id in ranked]
    several = {}
    for strategy, runs in grouped(first, lambda run: run.strategy).items():
        settings = [dict(config_settings(run)) for run in runs]
        keys = {key for values in settings for key in values if len({str(v.get(key)) for v in settings}) > 1}
        if keys:
            several[strategy] = [ranked[run.run_id] for run in runs], sorted(keys)
    return several


def _chosen_on_test(comparison: Comparison, command: str) -> Iterator[str]:
    """Warn if the tables rank several settings of one strategy on test scores."""
    ranked = grids(comparison)
    if not ranked:
        return
    labels = "; ".join(f"{strategy}: {', '.join(labels)}" for strategy, (labels, _) in ranked.items())
    keys = ",".join(dict.fromkeys(key for _, keys in ranked.values() for key in keys))
    text = (
        f"several settings of one strategy are ranked on test scores ({labels}), which overestimates the best setting"
    )
    runs = [run for run in comparison.runs if run.strategy in ranked]
    if "--select-on" in command or any(dev_mismatch(run.strategy, run.config, bool(run.edited)) for run in runs):
        yield text
    else:
        yield f"{text}; select settings on dev scores: {command or 'xclrun report NAME'} --select-on dev {keys}"


def _versions(comparison: Comparison, unpaired: bool) -> Iterator[str]:
    for label, (runs, _) in compared(comparison, unpaired=unpaired).items():
        versions = Counter(run.code_version for run in runs)
        if len(versions) > 1:
            counts = ", ".join(f"{n} of {version}" for version, n in sorted(versions.items()))
            yield f"{label} averages runs from {len(versions)} versions of the code ({counts})"


def _missing(comparison: Comparison) -> Iterator[str]:
    names = {run.languages: run.order for run in comparison.runs}
    for label, keys in missing_combinations(comparison).items():
        lacking: dict[str, list[str]] = {}
        for seed, bucket, languages in keys:
            setting = f"{seed}" if bucket is None else f"{seed} bucket {bucket}"
            lacking.setdefault(names.get(languages, ""), []).append(setting)
        if lacking:
            parts = (f"{order} seed {', '.join(seeds)}".strip() for order, seeds in sorted(lacking.items()))
            yield f"missing: {label} has no finished run for {'; '.join(parts)}"


def _differing(comparison: Comparison) -> Iterator[str]:
    for key, values in differing_settings(comparison.strategies).items():
        by_value: dict[str, list[str]] = {}
        for label, value in values.items():
            by_value.setdefault(value, []).append(label)
        by_label = "; ".join(f"{value[:40]}: {', '.join(labels)}" for value, labels in by_value.items())
        yield f"strategies differ in {key} ({by_label})"


def _alike(comparison: Comparison) -> Iterator[str]:
    """Report strategies with identical scores after every hop, for example if replay never ran."""
    by_scores: dict[frozenset[object], list[str]] = {}
    for label, runs in comparison.strategies.items():
        several = [run for run in runs if run.hops > 1]
        scores = {
            (r.stream, r.languages, r.seed, r.bucket, m, r.scores[m].tobytes()) for r in several for m in r.metrics
        }
        by_scores.setdefault(frozenset(scores), []).append(label)
    for scores_of_all, labels in by_scores.items():
        if scores_of_all and len(labels) > 1:
            yield (
                f"{' and '.join(labels)} have identical scores after every hop: check whether their different settings "
                "have an effect (`xclrun plan` warns if a memory is never used)"
            )


def _references(comparison: Comparison, commands: Mapping[str, str]) -> list[str]:
    """Suggest commands for missing reference runs; T needs them for every language of an order except the first."""
    references, metric = References(comparison.runs), comparison.metrics[0]
    sequences = [run for run in comparison.runs if run.stream == "sequence"]
    lacking = [run for run in sequences if np.isnan(references.scores(run, metric)[1:]).any()]

    def command_of(run: RunRecord) -> tuple[str, ...] | None:
        command = commands.get(run.run_id)
        return None if command is None else tuple(shared_overrides(shlex.split(command)[1:]))

    caveats = []
    # One command trains the references of all runs that differ only in strategy, order and seed.
    for (_, shared), runs in grouped(lacking, lambda r: (reference_name(r), command_of(r))).items():
        first = runs[0]
        # References are trained on each language separately, so one order is enough for each set of languages.
        orders = {frozenset(run.languages): _order(run) for run in reversed(runs)}
        overrides = [f"dataset={comparison.dataset}", f"model={comparison.model}"] if shared is None else shared
        suggested = reference_command(
            overrides, adapters_of(first.config["strategy"]), orders.values(), (run.seed for run in runs)
        )
        condition = "" if shared is not None else " (with the same dataset, model and trainer settings)"
        caveats.append(f"T needs reference runs: {suggested}{condition}")
    return caveats


def _order(run: RunRecord) -> str:
    """Return the value of the config key ``order`` for a run."""
    return f"[{','.join(run.languages)}]" if run.order == "-".join(run.languages) else run.order


# Maximum number of runs named for each state; runs.csv lists all.
NAMED = 10


def report_caveats(
    records: Sequence[RunRecord],
    excluded: Mapping[str, tuple[str, str]] | None = None,
    mirrored: Collection[str] = (),
) -> list[str]:
    """List excluded runs, runs without files (``excluded``, ``mirrored``: see `Sources`) and differing versions."""
    finished = [record for record in records if record.status == "finished"]
    states = {r.run_id: (r.status, "") for r in records if r.status != "finished"} | dict(excluded or {})
    caveats = []
    for state in sorted({state for state, _ in states.values()}):
        runs = [f"{run} ({why})" if why else run for run, (status, why) in sorted(states.items()) if status == state]
        caveats.append(f"excluded ({len(runs)} {state}): {_named(runs)}")
    if runs := sorted(record.run_id for record in finished if record.run_id in mirrored):
        caveats.append(f"only in MLflow, without files in this outputs folder ({len(runs)}): {_named(runs)}")
    versions = sorted({record.code_version for record in finished})
    if len(versions) > 1:
        caveats.append(f"the runs come from {len(versions)} versions of the code: {', '.join(versions)}")
    return caveats


def _named(runs: Sequence[str]) -> str:
    more = f"; and {len(runs) - NAMED} more, in runs.csv" if len(runs) > NAMED else ""
    return f"{'; '.join(runs[:NAMED])}{more}"


def unfinished(records: Sequence[RunRecord], excluded: Mapping[str, tuple[str, str]] | None = None) -> str:
    """Return the numbers of unfinished runs as text, ``: 1 failed, 2 running``; empty if all have finished.

    Args:
        excluded: see `Sources`; the manifest of a run whose process was killed still says ``running``.
    """
    killed = {run: state for run, (state, _) in (excluded or {}).items()}
    states = (killed.get(r.run_id, r.status) if r.status == "running" else r.status for r in records)
    counts = Counter(state for state in states if state != "finished")
    return f": {', '.join(f'{n} {status}' for status, n in sorted(counts.items()))}" if counts else ""
