"""``python -m benchmarks.report``: a report over 1,000 runs in MLflow, seconds.

Writes run directories of a study as training does (10 strategies × 6 orders × 16 seeds, the reference runs, and some
that were interrupted; 7 hops × 6 languages × 300 test sentences each, as a cut of MTOP has), mirrors them into SQLite,
and times ``xclrun report`` as a command: its start, the reading, the tests, the bootstrap, the figures, the page, and
the report's own run in MLflow. With ``--keep DIR`` the runs are kept and taken up again.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from omegaconf import OmegaConf

from xclrun.analysis.base_scores import Counts
from xclrun.command.plan import plan_runs
from xclrun.run import Run
from xclrun.store import predictions

STRATEGIES = ("naive", "er", "ewc_online", "kd_logit", "kd_rep", "agem", "inc_joint", "lang_spec_trans",
              "lang_spec_task", "lang_spec_embed")  # fmt: skip
SEEDS, UNFINISHED = 16, 8
# Test sentences of a language, words of a sentence.
SENTENCES, WORDS = 300, 7
# What a further hop takes from a strategy, as a share.
FORGETS = {"naive": 0.06, "er": 0.02, "inc_joint": 0.0, "lang_spec_trans": 0.01}


def planned(outputs: Path) -> Iterator[Run]:
    """Yield the runs: everything about them is planned by xclrun itself."""
    every, common = ",".join(map(str, range(1, SEEDS + 1))), ["dataset=mini", f"paths.outputs={outputs}"]
    orders = ",".join(f"order{k}" for k in range(1, 7))
    yield from plan_runs([f"strategy={','.join(STRATEGIES)}", f"order={orders}", f"seed={every}", *common])
    yield from plan_runs(["strategy=lang_spec_ft,multilingual", "order=order1", f"seed={every}", *common])
    yield from plan_runs(["strategy=naive", "order=h2l", f"seed=range(1,{UNFINISHED + 1})", *common])


class Study:
    """Predictions that look like those of a model, without one."""

    def __init__(self, run: Run) -> None:
        self.labels, self.tags = run.dataset.labels, run.dataset.tags
        rng = np.random.default_rng(0)
        n = SENTENCES
        self.gold = {k: rng.integers(len(self.labels), size=n) for k in run.stream.languages}
        self.spans = {k: rng.integers(1, 4, size=n) for k in run.stream.languages}
        languages = sorted(run.stream.languages)
        tags = [rng.integers(len(self.tags), size=WORDS).tolist() for _ in range(n * len(languages))]
        rows = len(tags)
        columns: dict[str, Any] = {
            "hop": [0] * rows, "step": [380] * rows, "examples_seen": [6000] * rows, "split": ["test"] * rows,
            "language": [k for k in languages for _ in range(n)],
            "example_id": [str(i) for _ in languages for i in range(n)],
            "gold": [g for k in languages for g in self.gold[k].tolist()], "predicted": [0] * rows,
            "log2_gold": rng.normal(-1, 0.2, rows).tolist(), "gold_tags": tags, "predicted_tags": tags,
            "tp": [0] * rows, "fp": [0] * rows, "fn": [0] * rows,
            "log2_gold_tags": rng.normal(-9, 1, rows).tolist(), "tokens": [WORDS] * rows,
        }  # fmt: skip
        self.languages, self.base = languages, predictions.table(columns)

    def hop(self, run: Run, index: int, rng: np.random.Generator) -> tuple[pa.Table, dict[str, dict[str, float]]]:
        """Return the rows after a hop, and their scores."""
        values: dict[str, list[np.ndarray]] = {name: [] for name in ("predicted", "tp", "fp", "fn")}
        scores = {}
        for language in self.languages:
            own = run.stream.languages.index(language) + 1
            quality = 0.03 if index == 0 else 0.4 if index < own and run.stream.kind != "joint" else 0.9
            quality *= (1 - FORGETS.get(run.config.strategy.name, 0.04)) ** max(0, index - own)
            right = rng.random(SENTENCES) < quality
            gold, wrong = self.gold[language], rng.integers(len(self.labels), size=SENTENCES)
            tp = rng.binomial(self.spans[language], 0.8 * quality)
            fn = self.spans[language] - tp
            fp = rng.binomial(fn, 0.6)
            predicted = np.where(right, gold, wrong)
            for name, column in (("predicted", predicted), ("tp", tp), ("fp", fp), ("fn", fn)):
                values[name].append(column)
            accuracy = float((predicted == gold).mean())
            micro = Counts.of_f1(*(c[:, np.newaxis] for c in (tp, fp, fn))).scores()
            scores[language] = {"intent_accuracy": accuracy, "slot_f1": float(micro[0])}
        table = self.base
        for name, columns in values.items():
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema.field(at), pa.array(np.concatenate(columns), type=pa.int16()))
        return table, scores


def write_run(run: Run, study: Study, finished: bool) -> None:
    """Write the files of record of one run."""
    rng = np.random.default_rng(list(run.id.encode()))
    directory, stages = run.directory, []
    epochs = [
        {"epoch": e, "step": 38 * e, "examples": 600 * e, "loss": 9 / e, "dev": {}} for e in range(1, 11)
    ]  # fmt: skip
    manifest: dict[str, Any] = {
        "run_id": run.id, "status": "running", "started": "2026-01-01T00:00:00+0000", "host": "made", "pid": 1,
        "code_version": "made", "environment": {"python": "made"}, "algorithms": 1, "strategy_version": 1,
        "encoder": run.encoder, "stream": {"kind": run.stream.kind, "languages": list(run.stream.languages)},
        "labels": list(study.labels), "tags": list(study.tags), "data": {"fingerprint": run.data_fingerprint},
        "keys": [], "parameters": {"total": 889_000, "trained": 889_000}, "stages": stages,
    }  # fmt: skip
    directory.open(OmegaConf.to_yaml(OmegaConf.create(run.resolved)), manifest)
    for hop in run.stream.hops if finished else run.stream.hops[:3]:
        rows, scores = study.hop(run, hop.index, rng)
        predictions.write(directory.predictions(hop.index), rows, run_id=run.id, hop=hop.index)
        learnt = hop.train[:1] if hop.index else ()
        curve = [e | {"dev": {k: scores[k] for k in learnt}} for e in epochs if learnt]
        counted = {"updates": 380, "examples": 6000, "tokens": 82_000, "seconds": 15.0, "epochs": curve}
        stages.append({"hop": hop.index, "name": hop.name, "scores": scores, "training": counted,
                       "kept": {"examples": 0, "bytes": 0, "seconds": 0.0}})  # fmt: skip
    if finished:
        predictions.write(directory.scores, study.base.slice(0, 0))
    directory.write_manifest(manifest | {"status": "finished" if finished else "interrupted", "seconds": 90.0})
    if finished:
        directory.finish()


def make_study(outputs: Path) -> int:
    """Write all runs that are not there yet; return how many there are."""
    runs = list(planned(outputs))
    study = Study(runs[0])
    for k, run in enumerate(runs):
        if not run.directory.manifest.is_file():
            write_run(run, study, finished=k < len(runs) - UNFINISHED)
    return len(runs)


def command(*arguments: str) -> tuple[float, float, float]:
    """Run xclrun; return wall seconds, CPU seconds, and the most memory it took in GB."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    code = "import sys; from xclrun.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, *arguments], check=False, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"xclrun {' '.join(arguments)} failed")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, after.ru_maxrss / 1e6


def main() -> None:
    """Print the seconds of each step."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--keep", type=Path, help="folder of the runs (default: a temporary one)")
    parser.add_argument("--times", type=int, default=2, help="reports to make (default: %(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xclrun-bench-") as folder:
        outputs = given.keep or Path(folder)
        began = time.perf_counter()
        print(f"{make_study(outputs)} runs written, {time.perf_counter() - began:.0f} s", flush=True)
        wall, cpu, _ = command("sync", "--outputs", str(outputs))
        print(f"mirrored into MLflow: {wall:.0f} s, {cpu:.0f} s of CPU", flush=True)
        for way in ((), ("--from-runs",)):
            for k in range(given.times):
                wall, cpu, memory = command("report", "--outputs", str(outputs), *way)
                told = " ".join(("report", *way))
                load = os.getloadavg()[0]
                print(f"{told} {k + 1}: {wall:.1f} s (aim: 60), {cpu:.1f} s of CPU, {memory:.1f} GB; load {load:.1f}",
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
