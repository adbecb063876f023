"""Executes a run: hop after hop, each stage read from the store where it is there and made where it is not.

Three things are made per hop, each under its own key: trained weights, the strategy's state, predictions. Nothing is
loaded that is not needed: a run whose evaluations are all in the store never builds a model.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from xclrun import __version__
from xclrun.data.encode import Encoded, encode
from xclrun.errors import RunError, XclrunError
from xclrun.model.network import Model, build
from xclrun.model.vocabulary import load_tokenizer
from xclrun.plan import ALGORITHMS, Hop, Stage
from xclrun.run import Run
from xclrun.store import predictions
from xclrun.store.files import atomic_write, read_json, write_json, writing
from xclrun.store.tensors import load_tensors, save_tensors
from xclrun.strategy import Context, State
from xclrun.train.checkpoint import Checkpoints
from xclrun.train.evaluate import Evaluator
from xclrun.train.listen import Listener
from xclrun.train.loop import HopTraining
from xclrun.train.precision import choose_device
from xclrun.train.stop import StopFlag, Stopped


@dataclass(frozen=True)
class Encodings:
    """Tokenizer and encoded splits, kept between runs of one process that agree on data and encoder."""

    tokenizer: Any
    splits: Mapping[tuple[str, str], Encoded]

    @property
    def truncated(self) -> dict[str, int]:
        """``language/split`` → sentences cut at the length limit, where there are any."""
        return {f"{language}/{split}": e.truncated for (language, split), e in self.splits.items() if e.truncated}


_encodings: dict[tuple[str, ...], Encodings] = {}


def encodings(run: Run) -> Encodings:
    """Return tokenizer and encoded splits of a run's dataset; the last ones are kept."""
    config, dataset = run.config.model, run.dataset
    key = (run.data_fingerprint, json.dumps(run.resolved["model"]), str(run.cache))
    if key not in _encodings:
        _encodings.clear()
        tokenizer = load_tokenizer(config, dataset, run.cache)
        splits = {
            name: encode(examples, tokenizer, dataset.labels, dataset.tags, config.max_length, config.label_on.value)
            for name, examples in dataset.splits.items()
        }
        _encodings[key] = Encodings(tokenizer, splits)
    return _encodings[key]


class Execution:
    """One run under execution.

    Args:
        run: what to do.
        listener: hears progress.
        stop: is set when the run should stop.
    """

    def __init__(self, run: Run, listener: Listener, stop: StopFlag) -> None:
        self.run, self.listener, self.stop = run, listener, stop
        self.device = choose_device(run.config.runtime.device, run.config.trainer.precision)
        self.strategy = run.strategy()
        self.untouched = self.strategy.state_dict()
        self.weights_of: int | None = None
        self.state_of = 0
        self.trained_here: set[int] = set()

    # The parts that are only made where something has to be computed.

    @cached_property
    def encodings(self) -> Encodings:
        return encodings(self.run)

    @cached_property
    def model(self) -> Model:
        return self._untrained()

    @cached_property
    def evaluator(self) -> Evaluator:
        config = self.run.config
        size, precision = config.evaluate.batch_size, config.trainer.precision.value
        return Evaluator(self.run.dataset, self.device, size, precision, config.evaluate.slot_f1)

    def _untrained(self) -> Model:
        dataset, config = self.run.dataset, self.run.config
        model = build(config.model, self.encodings.tokenizer, len(dataset.labels), len(dataset.tags), config.seed)
        self.strategy.prepare(model, self.run.stream)
        return model.to(self.device)

    def _context(self, hop: Hop) -> Context:
        trainer = self.run.config.trainer
        train = {language: self.encodings.splits[language, "train"] for language in self.run.stream.languages}
        batch_size = trainer.batch_size * trainer.gradient_accumulation
        return Context(
            self.model,
            hop,
            self.run.stream,
            train,
            self.device,
            self.run.config.seed,
            batch_size,
            trainer.precision.value,
        )

    # Bringing model and strategy to where they were after a hop.

    def weights(self, index: int) -> None:
        """Give the model the weights after hop ``index``: built, read from the store, or trained."""
        if self.weights_of == index:
            return
        if index == 0:
            if self.weights_of is not None:
                self.model = self._untrained()
            self.weights_of = 0
            self.model.to(self.device)
            return
        folder = self.run.store.get(self.run.stages[index].train)
        if folder is None:
            self._train(self.run.stages[index])
        else:
            self.model.load_state_dict(load_tensors(folder / "weights.safetensors"))
        self.weights_of = index

    def state(self, index: int) -> None:
        """Bring the strategy to its state after hop ``index``: fresh, read from the store, or computed."""
        if self.state_of == index:
            return
        key = self.run.stages[index].state
        if index == 0 or key is None:
            self.strategy.load_state_dict(self.untouched)
        elif (folder := self.run.store.get(key)) is not None:
            path = folder / "state.safetensors"
            tensors = load_tensors(path) if path.is_file() else {}
            self.strategy.load_state_dict(State(read_json(folder / "facts.json"), tensors))
        else:
            hop = self.run.stages[index].hop
            self.state(hop.parent)
            self.weights(index)
            self.strategy.end_hop(self._context(hop))
            self.run.store.put(key, {"kind": "state", "hop": index}, self._fill_state)
        self.state_of = index

    def _fill_state(self, folder: Path) -> None:
        state = self.strategy.state_dict()
        write_json(folder / "facts.json", state.facts)
        if state.tensors:
            save_tensors(folder / "state.safetensors", state.tensors)

    # Making a stage.

    def _train(self, stage: Stage) -> None:
        hop, config = stage.hop, self.run.config
        self.state(hop.parent)
        self.weights(hop.parent)
        self.listener.hop_started(self.run, hop)
        context = self._context(hop)
        self.strategy.begin_hop(context)
        checkpoints = Checkpoints(self.run.store.path(stage.train).with_suffix(".checkpoints"))
        dev = {language: self.encodings.splits[language, "dev"] for language in hop.select}
        # From here on the model is between hops: an interruption must not let it pass for either.
        self.weights_of = None
        training = HopTraining(
            context, self.strategy, config.trainer, self.evaluator, dev, checkpoints, self.listener, self.stop
        )
        counted = training.run()
        facts = {
            "kind": "train",
            "hop": hop.name,
            "depth": hop.depth,
            "run": self.run.id,
            **_made(),
            "training": counted,
        }
        tensors = self.model.state_dict()
        self.run.store.put(stage.train, facts, lambda folder: save_tensors(folder / "weights.safetensors", tensors))
        checkpoints.clear()
        self.trained_here.add(hop.index)

    def evaluation(self, stage: Stage) -> dict[str, Any]:
        """Return the facts of a hop's evaluation: its scores and training counters; made where the store lacks it."""
        store, hop = self.run.store, stage.hop
        if store.get(stage.evaluation) is None:
            self.weights(hop.index)
            self.state(hop.index)
            training = (
                store.facts(stage.train)["training"] if hop.index else {"examples": 0, "best_step": 0, "epochs": []}
            )
            columns: dict[str, list[Any]] = {}
            scores: dict[str, dict[str, float]] = {}
            seen = [language for h in self.run.stream.hops[: hop.index + 1] for language in h.train]
            for language in self.run.stream.languages:
                self.strategy.for_language(language, seen)
                rows = self.evaluator.predict(self.model, self.encodings.splits[language, "test"], language, "test")
                scores[language] = self.evaluator.scores(rows)
                for name, values in rows.items():
                    columns.setdefault(name, []).extend(values)
            n = len(columns["split"])
            # The hop is the run's, not the stage's: it is set when a run takes the rows over.
            columns |= {
                "hop": [-1] * n,
                "step": [training["best_step"]] * n,
                "examples_seen": [training["examples"]] * n,
            }
            table = predictions.table(columns)
            facts = {"kind": "evaluation", "run": self.run.id, **_made(), "scores": scores, "training": training}
            store.put(stage.evaluation, facts, lambda folder: predictions.write(folder / "predictions.parquet", table))
        return store.facts(stage.evaluation)

    # The whole run.

    def __call__(self) -> None:
        """Do the run, and write its files of record.

        Raises:
            XclrunError: what a person should know about why it failed; the manifest says so too.
            Stopped: a signal asked for it.
        """
        directory, started = self.run.directory, time.monotonic()
        manifest = self._manifest()
        directory.open(OmegaConf.to_yaml(OmegaConf.create(self.run.resolved)), manifest)
        directory.event("started", host=manifest["host"], pid=manifest["pid"])
        self.listener.run_started(self.run)
        try:
            scores = [self._hop(stage, manifest) for stage in self.run.stages]
            self._write_scores(scores)
            manifest |= {"status": "finished", "finished": _now(), "seconds": round(time.monotonic() - started, 3)}
            directory.write_manifest(manifest)
            directory.event("finished")
            directory.finish()
        except BaseException as raised:
            error = _translated(raised)
            interrupted = isinstance(error, (Stopped, KeyboardInterrupt))
            manifest |= {"status": "interrupted" if interrupted else "failed", "error": f"{error}"}
            # The disk may be what failed; the error itself matters more.
            with contextlib.suppress(Exception):
                directory.write_manifest(manifest)
                directory.event(manifest["status"], error=f"{error}")
            self.listener.run_failed(self.run, error)
            if error is raised:
                raise
            raise error from raised
        self.listener.run_ended(self.run, time.monotonic() - started)

    def _hop(self, stage: Stage, manifest: dict[str, Any]) -> dict[str, dict[str, float]]:
        directory, hop = self.run.directory, stage.hop
        facts = self.evaluation(stage)
        shared = hop.index > 0 and hop.index not in self.trained_here
        rows = predictions.read(self.run.store.path(stage.evaluation) / "predictions.parquet")
        predictions.write(directory.predictions(hop.index), rows, run_id=self.run.id, hop=hop.index)
        manifest["stages"].append(
            {
                "hop": hop.index,
                "name": hop.name,
                "train": stage.train,
                "state": stage.state,
                "evaluation": stage.evaluation,
                "shared": shared,
                "scores": facts["scores"],
                "training": facts["training"],
            }
        )
        if "encodings" in self.__dict__:
            manifest["data"]["truncated"] = self.encodings.truncated
        directory.write_manifest(manifest)
        directory.event("hop", hop=hop.index, name=hop.name, shared=shared, scores=facts["scores"])
        self.listener.hop_ended(self.run, hop, facts["scores"], shared)
        return facts["scores"]

    def _manifest(self) -> dict[str, Any]:
        run, dataset = self.run, self.run.dataset
        return {
            "run_id": run.id,
            "status": "running",
            "started": _now(),
            **_made(),
            "environment": _environment(),
            "algorithms": ALGORITHMS,
            "strategy_version": self.strategy.version,
            "stream": {"kind": run.stream.kind, "languages": list(run.stream.languages)},
            "labels": list(dataset.labels),
            "tags": list(dataset.tags),
            "data": {
                "fingerprint": run.data_fingerprint,
                "sizes": {split: dataset.sizes(split) for split in ("train", "dev", "test")},
                "unseen_labels": dataset.unseen_labels,
                **dataset.notes,
            },
            "stages": [],
        }

    def _write_scores(self, scores: list[dict[str, dict[str, float]]]) -> None:
        import pandas as pd

        sizes = self.run.dataset.sizes("test")
        rows = [
            (hop, "test", language, metric, value, sizes[language])
            for hop, by_language in enumerate(scores)
            for language, by_metric in by_language.items()
            for metric, value in by_metric.items()
        ]
        buffer = io.BytesIO()
        pd.DataFrame(rows, columns=["hop", "split", "language", "metric", "value", "n"]).to_parquet(buffer, index=False)
        atomic_write(self.run.directory.scores, buffer.getvalue())


def _translated(error: BaseException) -> BaseException:
    """Return the error that a person should see: known causes get one line, the others stay as they are."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return RunError(
            "the GPU is out of memory; try trainer.batch_size=8 trainer.gradient_accumulation=2 or precision=bf16"
        )
    if isinstance(error, OSError) and not isinstance(error, XclrunError):
        try:
            with writing("the outputs"):
                raise error
        except XclrunError as explained:
            return explained
    return error


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _made() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "code_version": __version__}


def _environment() -> dict[str, str]:
    import transformers

    found = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    return found | {"platform": platform.platform(), "threads": str(torch.get_num_threads())}


def execute(run: Run, listener: Listener, stop: StopFlag) -> None:
    """Do one run from start to end, or from where it was left (see `Execution`)."""
    if run.config.runtime.threads is not None:
        torch.set_num_threads(run.config.runtime.threads)
    Execution(run, listener, stop)()
