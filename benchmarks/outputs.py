"""A simulated outputs folder: run directories of a study of any size, without training.

One sweep has 10 strategies × 6 orders × any number of seeds, reference runs and some interrupted runs. Each run has
7 hops × 6 languages × 300 test sentences, as in a subset of MTOP. Each strategy and order has only `DRAWS` different
sets of prediction files, which runs share as hard links. Therefore 10⁵ runs take minutes instead of hours, and
gigabytes instead of hundreds of gigabytes.

Alternatively, the folder has the runs of ``sweep=massive``: streams over 51 languages, with predictions of all test
sentences.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from xclrun.command.plan import plan_runs
from xclrun.core.identity import digest
from xclrun.plan import Run
from xclrun.scores.base_scores import Counts
from xclrun.scores.counts import write_counts
from xclrun.store import predictions
from xclrun.store.rundir import RunDirectory
from xclrun.store.stages import FACTS, StageStore

STRATEGIES = ("naive", "er", "ewc_online", "kd_logit", "kd_rep", "agem", "inc_joint", "lang_spec_trans",
              "lang_spec_task", "lang_spec_embed")  # fmt: skip
ORDERS = 6
# Number of test sentences per language, and of words per sentence.
SENTENCES, WORDS = 300, 7
# The languages of MASSIVE (FitzGerald et al. 2023, table 1), and the number of test sentences per language.
MASSIVE = (
    "af-ZA am-ET ar-SA az-AZ bn-BD cy-GB da-DK de-DE el-GR en-US es-ES fa-IR fi-FI fr-FR he-IL hi-IN hu-HU hy-AM id-ID "
    "is-IS it-IT ja-JP jv-ID ka-GE km-KH kn-IN ko-KR lv-LV ml-IN mn-MN ms-MY my-MM nb-NO nl-NL pl-PL pt-PT ro-RO ru-RU "
    "sl-SL sq-AL sv-SE sw-KE ta-IN te-IN th-TH tl-PH tr-TR ur-PK vi-VN zh-CN zh-TW"
)
MASSIVE_SENTENCES = 2974
# Sets of predictions for each strategy and order.
DRAWS = 4
# Number of interrupted runs per 1,000 runs.
INTERRUPTED = 8
# Fraction of its score that a language loses at each later hop, by strategy.
FORGETS = {"naive": 0.06, "er": 0.02, "inc_joint": 0.0, "lang_spec_trans": 0.01}


class Study:
    """Simulates predictions that are distributed like the predictions of a model."""

    def __init__(self, run: Run, sentences: int = SENTENCES) -> None:
        self.labels, self.tags = run.dataset.labels, run.dataset.tags
        rng = np.random.default_rng(0)
        self.sentences = n = sentences
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
        """Return the prediction rows after a hop, and their scores."""
        values: dict[str, list[np.ndarray]] = {name: [] for name in ("predicted", "tp", "fp", "fn")}
        scores = {}
        for language in self.languages:
            position = run.stream.languages.index(language) + 1
            quality = 0.03 if index == 0 else 0.4 if index < position and run.stream.kind != "joint" else 0.9
            quality *= (1 - FORGETS.get(run.config.strategy.name, 0.04)) ** max(0, index - position)
            right = rng.random(self.sentences) < quality
            gold, wrong = self.gold[language], rng.integers(len(self.labels), size=self.sentences)
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


class Maker:
    """Writes directories of runs that differ from a planned run only in their seed; files are not flushed to disk."""

    def __init__(self, run: Run, study: Study) -> None:
        self.run, self.study = run, study
        config: dict[str, Any] = run.resolved
        # The seed is replaced in the text, because dumping the config of every run would take most of the time.
        self.config = yaml.dump(config | {"seed": "SEED"}, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True)
        # Draw → (stages of the manifest, files of predictions). The files are name → (path, size, checksum).
        self.made: dict[int, tuple[list[Any], dict[str, tuple[Path, int, str]]]] = {}
        # Draw → counts of predictions.
        self.counted: dict[int, pa.Table] = {}

    def directory(self, seed: int) -> RunDirectory:
        name, _, seeded = self.run.id.rpartition("-")
        stem = name.removesuffix(f"-s{self.run.config.seed}")
        return RunDirectory(self.run.directory.path.with_name(f"{stem}-s{seed}-{digest([seeded, seed])[:12]}"))

    def write(self, seed: int, finished: bool) -> RunDirectory:
        """Write one run unless it exists."""
        directory = self.directory(seed)
        if directory.manifest.is_file():
            return directory
        (directory.path / "predictions").mkdir(parents=True, exist_ok=True)
        stages, files = self._draw(seed % DRAWS, directory)
        hops = len(stages) if finished else 3
        written = {}
        for name, (path, size, checksum) in list(files.items())[:hops]:
            if not (directory.path / name).exists():
                os.link(path, directory.path / name)
            written[name] = {"bytes": size, "sha256": checksum}
        keys = [digest([self.run.id, seed, k]) for k in range(2 * hops)]
        manifest = {
            "run_id": directory.run_id, "status": "finished" if finished else "interrupted",
            "started": "2026-01-01T00:00:00+0000", "finished": "2026-01-01T00:01:30+0000", "host": "made", "pid": 1,
            "code_version": "made", "environment": {"python": "made"}, "algorithms": 1, "strategy_version": 1,
            "encoder": self.run.encoder,
            "stream": {"kind": self.run.stream.kind, "languages": list(self.run.stream.languages)},
            "labels": list(self.study.labels), "tags": list(self.study.tags),
            "data": {"fingerprint": self.run.data_fingerprint}, "keys": keys,
            "parameters": {"total": 889_000, "trained": 889_000}, "stages": stages[:hops], "seconds": 90.0,
        }  # fmt: skip
        config = self.config.replace("seed: SEED", f"seed: {seed}")
        small = {"config.yaml": config.encode(), "manifest.json": (json.dumps(manifest, indent=1) + "\n").encode()}
        if finished:
            small["scores.parquet"] = predictions.content(self.study.base.slice(0, 0))
        for name, content in small.items():
            (directory.path / name).write_bytes(content)
            written[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if finished:
            written[directory.counts.name] = self._counts(seed, directory)
            directory.done.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
        return directory

    def _counts(self, seed: int, directory: RunDirectory) -> dict[str, Any]:
        """Write the counts of a run, computed once per draw; return the entry of their file for DONE."""
        draw = seed % DRAWS
        if draw not in self.counted:
            write_counts(directory)
            self.counted[draw] = pq.read_table(directory.counts)
        table = self.counted[draw]
        facts = json.loads(table.schema.metadata[b"xclrun"])
        facts["config"]["seed"] = seed
        content = table.replace_schema_metadata({b"xclrun": json.dumps(facts).encode()})
        pq.write_table(content, directory.counts, compression="zstd", use_dictionary=False)
        written = directory.counts.read_bytes()
        return {"bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}

    def _draw(self, draw: int, directory: RunDirectory) -> tuple[list[Any], dict[str, tuple[Path, int, str]]]:
        """Return the stages and prediction files of a draw; the first call writes the files into ``directory``."""
        if draw in self.made:
            return self.made[draw]
        rng = np.random.default_rng(list(f"{self.run.id} {draw}".encode()))
        epochs = [{"epoch": e, "step": 38 * e, "examples": 600 * e, "loss": 9 / e, "dev": {}} for e in range(1, 11)]
        stages, files = [], {}
        for hop in self.run.stream.hops:
            rows, scores = self.study.hop(self.run, hop.index, rng)
            path = directory.predictions(hop.index)
            content = predictions.content(rows, run_id=directory.run_id, hop=hop.index)
            path.write_bytes(content)
            name = str(path.relative_to(directory.path))
            files[name] = path, len(content), hashlib.sha256(content).hexdigest()
            learnt = hop.train[:1] if hop.index else ()
            curve = [e | {"dev": {k: scores[k] for k in learnt}} for e in epochs if learnt]
            counted = {"updates": 380, "examples": 6000, "tokens": 82_000, "seconds": 15.0, "epochs": curve}
            trained = digest([self.run.id, draw, hop.index])
            stages.append({"hop": hop.index, "name": hop.name, "train": trained, "training": counted,
                           "kept": {"examples": 0, "bytes": 0, "seconds": 0.0}, "slot_f1": "span_micro"})  # fmt: skip
        self.made[draw] = stages, files
        return stages, files


def makers(outputs: Path) -> Iterator[Maker]:
    """Yield a `Maker` for each strategy and order, with runs planned by xclrun."""
    common, orders = ["dataset=mini", "seed=1", f"paths.outputs={outputs}"], ",".join(f"order{k + 1}" for k in range(6))
    runs = plan_runs([f"strategy={','.join(STRATEGIES)}", f"order={orders}", *common])
    study = Study(runs[0])
    alone = plan_runs(["strategy=lang_spec_ft,multilingual", "order=order1", *common])
    yield from (Maker(run, study) for run in [*runs, *alone])


def simulate(outputs: Path, runs: int) -> int:
    """Write at least ``runs`` runs, a sweep of all runs, and a sweep of seed 1; return the number of runs."""
    every = list(makers(outputs))
    seeds = -(-runs // len(every))
    directories = []
    for seed in range(1, seeds + 1):
        for k, maker in enumerate(every):
            number = (seed - 1) * len(every) + k
            # Interrupt only runs of the first order, so that strategies lack different runs, as in an unfinished study.
            interrupted = k % ORDERS == 0 and k < len(STRATEGIES) * ORDERS and number % 1000 < INTERRUPTED * ORDERS
            directories.append(maker.write(seed, finished=not interrupted))
    write_sweep(outputs, directories)
    # This sweep gets an earlier start time, because commands without a sweep's name must select the sweep of all runs.
    write_sweep(outputs, directories[: len(every)], "seed1", 0.5)
    return len(directories)


def simulate_massive(outputs: Path) -> int:
    """Write the runs of ``sweep=massive`` and their sweep; return the number of runs."""
    data = outputs / "data"
    data.mkdir(exist_ok=True)
    # Planning needs little data: the sentences only have to contain all intents and slots.
    for locale in MASSIVE.split():
        rows = [
            {"id": f"{split}{k}", "locale": locale, "partition": split, "scenario": "made",
             "intent": f"intent_{k}", "utt": "made of words", "annot_utt": f"made of [slot_{k % 55} : words]"}
            for split in ("train", "dev", "test") for k in range(60)
        ]  # fmt: skip
        (data / f"{locale}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    runs = plan_runs(["sweep=massive", "model=tiny", f"dataset.root={data}", f"paths.outputs={outputs}"])
    study = Study(runs[0], MASSIVE_SENTENCES)
    directories = [Maker(run, study).write(run.config.seed, finished=True) for run in runs]
    write_sweep(outputs, directories)
    return len(directories)


def write_sweep(outputs: Path, directories: Sequence[RunDirectory], name: str = "made", began: float = 1.0) -> None:
    """Write the file of a sweep of these runs; ``began`` is its start time (seconds since the epoch)."""
    facts = {"name": name, "command": "xclrun sweep=made -m", "started": "2026-01-01T00:00:00+0000", "given": began,
             "runs": [directory.run_id for directory in directories]}  # fmt: skip
    (outputs / "sweeps").mkdir(exist_ok=True)
    (outputs / "sweeps" / f"{name}.json").write_text(json.dumps(facts), encoding="utf-8")


def fill_store(outputs: Path) -> int:
    """Write all stages of the runs into the store, each with an empty file; return the number of stages."""
    store, empty, n = StageStore(outputs / "store"), hashlib.sha256(b"").hexdigest(), 0
    for path in (outputs / "runs").glob("*/manifest.json"):
        for k, key in enumerate(RunDirectory(path.parent).store_keys()):
            folder = store.path(key)
            folder.mkdir(parents=True, exist_ok=True)
            kind, name = (("train", "weights.safetensors"), ("evaluation", "predictions.parquet"))[k % 2]
            facts = {"key": key, "kind": kind, "hop": "made", "files": {name: empty}}
            (folder / name).touch()
            (folder / FACTS).write_text(
                json.dumps({**facts, "checksum": digest(facts)}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )
            n += 1
    return n
