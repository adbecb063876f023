"""Executes a run: its stages one after another, and its files of record."""

from __future__ import annotations

import contextlib
import io
import os
import platform
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf

from xclrun.analysis import base_scores
from xclrun.analysis.base_scores import Scores
from xclrun.config.schema import SlotF1
from xclrun.core.errors import RunError, XclrunError
from xclrun.core.identity import Stage
from xclrun.core.plugins import provided, told
from xclrun.core.task import Task, described
from xclrun.data.notes import count_notes
from xclrun.run import Run
from xclrun.store import predictions
from xclrun.store.files import atomic_write, writing
from xclrun.store.records import write_counts
from xclrun.store.rundir import UnreadableRun
from xclrun.strategy.shared.parameters import count
from xclrun.train import attention
from xclrun.train.class_gradients import FILE as CLASS_GRADIENTS
from xclrun.train.overlap import FILE as OVERLAP
from xclrun.train.points import FILE as POINTS
from xclrun.train.precision import device_facts
from xclrun.train.progress import Listener
from xclrun.train.stages import Busy, StageGraph, made_here
from xclrun.train.stop import StopFlag, Stopped

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Busy", "execute", "make_stages"]

# Torch's own number of threads, before any run sets it.
THREADS = torch.get_num_threads()
# What PyTorch says of such an operation, after its name.
NOT_DETERMINISTIC = " does not have a deterministic implementation"
# A person is reported where more than this share of a split's sentences lose their ends.
CUT = 0.01


def execute(run: Run, listener: Listener, stop: StopFlag, patient: bool = True) -> None:
    """Do one run from start to end, or from where it was left, and write its files of record.

    Args:
        run: what to do.
        listener: hears progress.
        stop: is set when the run should stop.
        patient: wait for what another process is making.

    Raises:
        XclrunError: what a person should know about why it failed; the manifest says so too.
        Stopped: a signal asked for it; a checkpoint was saved, or the run was at its end.
        Busy: another process does the run or makes a stage of it, and this one is not patient.
    """
    _set_threads(run)
    lease, waited = run.directory.lease, False
    while (mine := lease.try_acquire()) is None:
        if not patient:
            raise Busy(str(lease.owner()))
        stop.check()
        time.sleep(0.5)
        if run.directory.finished:
            return
        waited = True
    with lease.held(mine):
        if waited and (error := run.directory.error) is not None:
            raise RunError(f"another process has just tried it: {error}")
        if not run.directory.finished:
            try:
                if (wrong := run.directory.damaged()) is not None:
                    listener.noted(f"{wrong} is missing or damaged: the run is made again from the store")
            except UnreadableRun as other:
                if other.state == "newer":
                    # What a newer version has made is not overwritten.
                    refused = RunError(str(other))
                    listener.run_failed(run, refused)
                    raise refused from other
                listener.noted(f"{other}: the run is made again from the store")
            _Execution(run, listener, stop, patient).run_all()
    # A signal after the last step has not been handled yet: no other run may begin.
    stop.check()


def make_stages(run: Run, hops: Sequence[int], listener: Listener, stop: StopFlag) -> None:
    """Train and evaluate hops of a run into the store, ahead of the runs that share them; no run is touched.

    Raises:
        XclrunError: it failed.
        Stopped: a signal asked for it; a checkpoint was saved.
    """
    _set_threads(run)
    graph = StageGraph(run, listener, stop)
    for hop in hops:
        graph.evaluation(run.stages[hop])
        graph.attention(run.stages[hop])
    stop.check()


def _set_threads(run: Run) -> None:
    torch.set_num_threads(run.config.runtime.threads or THREADS)


class _Execution:
    """One run under execution, by the holder of its lease."""

    def __init__(self, run: Run, listener: Listener, stop: StopFlag, patient: bool) -> None:
        self.run, self.listener, self.directory = run, listener, run.directory
        self.graph = StageGraph(run, listener, stop, patient)
        # File of the run → the rows of each hop in it, of what is measured next to predictions if that is asked for.
        self.measured: dict[Path, list[pa.Table]] = {}
        self.manifest = _manifest(run, self.graph.strategy.identified(), self.graph.bench.device)

    def run_all(self) -> None:
        directory, started = self.directory, time.monotonic()
        directory.tidy()
        directory.open(OmegaConf.to_yaml(OmegaConf.create(self.run.resolved)), self.manifest)
        directory.event("started", host=self.manifest["host"], pid=self.manifest["pid"])
        self.listener.run_started(self.run)
        try:
            scores = [self._hop(stage) for stage in self.run.stages]
            self._write_scores(scores)
            self._write_measured()
            seconds = round(time.monotonic() - started, 3)
            self.manifest |= {"status": "finished", "finished": _now(), "seconds": seconds}
            directory.write_manifest(self.manifest)
            write_counts(directory)
            directory.event("finished")
            directory.finish()
        except BaseException as raised:
            error = _translated(raised, self.run)
            try:
                self._note_end(error)
                if error is raised:
                    raise
                raise error from raised
            finally:
                # An exception keeps this frame alive, and with it the model; so the frame must not keep the exception.
                del error
        self.listener.run_ended(self.run, time.monotonic() - started)

    def _note_end(self, error: BaseException) -> None:
        status = "failed"
        if isinstance(error, Busy):
            status = "waiting"
        elif isinstance(error, Stopped | KeyboardInterrupt):
            status = "interrupted"
        what = told(error) if status == "failed" else str(error)
        self.manifest |= {"status": status, "error": what}
        # The disk may be what failed; the original error matters more.
        with contextlib.suppress(Exception):
            self.directory.write_manifest(self.manifest)
            self.directory.event(status, error=what)
        if status != "waiting":
            self.listener.run_failed(self.run, error)

    def _hop(self, stage: Stage) -> Scores:
        hop, dev_scores = stage.hop, SlotF1.span_micro
        if self.run.trainer(hop).uses_dev:
            dev_scores = self.run.config.evaluate.slot_f1
        folder, facts = self.graph.evaluation(stage)
        shared = hop.index > 0 and self.graph.trained_by(stage) != self.run.id
        rows = predictions.read(folder / "predictions.parquet")
        scores = self._scores(rows)
        predictions.write(self.directory.predictions(hop.index), rows, run_id=self.run.id, hop=hop.index)
        if hop.codes:
            rows = predictions.read(folder / predictions.BLOCK)
            predictions.write(self.directory.next_block(hop.index), rows, run_id=self.run.id, hop=hop.index)
        attended = self.graph.attention(stage)
        for measured, path in (
            (None if attended is None else attended / attention.FILE, self.directory.attention),
            (folder / OVERLAP, self.directory.overlap),
            (folder / CLASS_GRADIENTS, self.directory.class_gradients),
        ):
            if measured is not None and measured.is_file():
                rows = attention.of_hop(predictions.read(measured), hop.index)
                self.measured.setdefault(path, []).append(rows)
        if (folder / POINTS).is_file():
            rows = predictions.read(folder / POINTS)
            predictions.write(self.directory.points(hop.index), rows, run_id=self.run.id, hop=hop.index)
        self.manifest["stages"].append(
            {
                "hop": hop.index,
                "name": hop.name,
                "train": stage.train,
                "state": stage.state,
                "evaluation": stage.evaluation,
                "shared": shared,
                "scores": scores,
                "training": facts["training"],
                # The way of its dev scores, of which there are no predictions.
                "slot_f1": dev_scores.value,
            }
        )
        # The state after a hop may be made only when the next one begins.
        for entry, earlier in zip(self.manifest["stages"], self.run.stages, strict=False):
            entry["kept"] = self.graph.footprint(earlier)
        if "parameters" in facts:
            counted = count(facts["parameters"], self.graph.strategy, self.run.stream)
            self.manifest["parameters"] = counted.to_json()
            self.manifest["vocabulary"] = facts["vocabulary"]
        self.manifest["data"] |= (lost := self.graph.bench.cut)
        if hop.index == 0 and (cut := cut_short(lost.get("truncated", {}), self.run)) is not None:
            self.listener.noted(cut)
        self.directory.write_manifest(self.manifest)
        self.directory.event("hop", hop=hop.index, name=hop.name, shared=shared, scores=scores)
        self.listener.hop_ended(self.run, hop, scores, shared)
        return scores

    def _scores(self, rows: pa.Table) -> Scores:
        """Return language → metric → score of a hop's rows, which runs share that score them in other ways."""
        dataset = self.run.dataset
        tags = dataset.tags if self.run.config.evaluate.slot_f1 is SlotF1.tag_macro else None
        return base_scores.of_hop(rows, dataset.metrics, tags)

    def _write_scores(self, scores: list[Scores]) -> None:
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
        atomic_write(self.directory.scores, buffer.getvalue())

    def _write_measured(self) -> None:
        """Write what was measured of all hops into one file of each kind."""
        import pyarrow as pa

        for path, tables in self.measured.items():
            predictions.write(path, pa.concat_tables(tables))


def cut_short(truncated: Mapping[str, int], run: Run) -> str | None:
    """Return a line where the length limit cuts more than `CUT` of some split's sentences: what is lost is not scored.

    Texts that are asked about are read in windows, and lose nothing.

    Args:
        truncated: ``language/split`` → sentences that are cut, or windows with a question that is.
    """
    sizes = {
        f"{language}/{split}": len(examples)
        for (language, split), examples in run.dataset.splits.items()
        if language in run.dataset.languages and not run.dataset.task_of(language).answers
    }
    much = {place: count for place, count in truncated.items() if place in sizes and count > CUT * sizes[place]}
    if not much:
        return None
    told = ", ".join(f"{place}: {count} of {sizes[place]:,}" for place, count in much.items())
    return f"model.max_length={run.config.model.max_length}: too short for many sentences, whose ends are lost ({told})"


def _manifest(run: Run, strategy_version: int | str, device: torch.device) -> dict[str, Any]:
    dataset = run.dataset
    return {
        "run_id": run.id,
        "status": "running",
        "started": _now(),
        **made_here(),
        "environment": _environment() | device_facts(device),
        "algorithms": run.algorithms,
        "strategy_version": strategy_version,
        "encoder": run.encoder,
        "stream": {
            "kind": run.stream.kind,
            "languages": list(run.stream.languages),
            **({"mixtures": [list(keys) for keys in run.stream.mixtures]} if run.stream.mixtures else {}),
            **run.in_blocks,
        },
        **_targets(run),
        "data": {
            "fingerprint": run.data_fingerprint,
            "whole": run.whole_fingerprint,
            "sizes": {split: dataset.sizes(split) for split in ("train", "dev", "test")},
            **count_notes(dataset),
        },
        # All store entries that the run refers to, listed from the start, so that `store gc` keeps them.
        "keys": run.keys,
        "stages": [],
    }


def _targets(run: Run) -> dict[str, Any]:
    """Return label sets and tasks; reports know the package's own tasks, and the one that ``dataset.task`` names."""
    dataset = run.dataset

    def note_lines(task: Task) -> str | dict[str, Any]:
        return described(task) if task.name in provided("task") else task.identified

    if dataset.task is None:
        tasks = [
            {"task": note_lines(of.task), "keys": list(of.keys), "labels": list(of.labels), "tags": list(of.tags)}
            for of in dataset.targets
        ]
        return {"labels": [], "tags": [], "tasks": tasks}
    found: dict[str, Any] = {"labels": list(dataset.labels), "tags": list(dataset.tags)}
    if run.config.dataset.parts or dataset.task.name in provided("task"):
        found["task"] = note_lines(dataset.task)
    return found


def _translated(error: BaseException, run: Run) -> BaseException:
    """Return the error to show: known causes become one line, others stay unchanged."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return RunError(_out_of_memory(error, run))
    if isinstance(error, RuntimeError) and (operation := str(error).partition(NOT_DETERMINISTIC))[1]:
        return RunError(
            f"runtime.deterministic=true: {operation[0]} has no deterministic algorithm on this device; use "
            "runtime.deterministic=false"
        )
    if isinstance(error, OSError):
        try:
            with writing("the outputs"):
                raise error
        except XclrunError as explained:
            return explained.with_traceback(None)
        finally:
            del error
    if not isinstance(error, Exception | Stopped | KeyboardInterrupt):
        # A plug-in's sys.exit(): it must end neither the sweep nor, with code 0, the command.
        return RunError(f"{told(error)}: code of a run must not end the process")
    return error


def _out_of_memory(error: BaseException, run: Run) -> str:
    """Return the message for a GPU out of memory: in which phase, and which keys help."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    trainer, less = run.config.trainer, " or trainer.precision=bf16"
    if any(name in ("xclrun.train.evaluate", "xclrun.train.encodings") for name in frames):
        during, key = "evaluation", f"evaluate.batch_size={max(1, run.config.evaluate.batch_size // 4)}"
    elif trainer.batch_size is None:
        during, key = "training", f"trainer.gradient_accumulation={2 * trainer.gradient_accumulation}"
    else:
        # The sentences of an update stay unchanged.
        half, twice = max(1, trainer.batch_size // 2), 2 * trainer.gradient_accumulation
        during, key = "training", f"trainer.batch_size={half} trainer.gradient_accumulation={twice}"
    less = less if trainer.precision.value in ("fp32", "tf32") else ""
    return f"the GPU is out of memory during {during}; try {key}{less}"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _environment() -> dict[str, str]:
    # From the metadata, since a run whose stages are all in the store need not import the library.
    found = {"python": platform.python_version(), "torch": torch.__version__, "transformers": version("transformers")}
    if (gpus := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        found["gpus"] = gpus
    return found | {"platform": platform.platform(), "threads": str(torch.get_num_threads())}
