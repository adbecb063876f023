"""Execute a run: compute its stages in order, and write the files of its run directory."""

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

from xclrun.config.schema import SlotF1
from xclrun.core.errors import RunError, XclrunError
from xclrun.core.files import UNREADABLE
from xclrun.core.graph import Stage
from xclrun.core.plugins import one_line, provided
from xclrun.core.task import Task, described
from xclrun.data.encode import LONG_WORD
from xclrun.data.encodings import encoding_of
from xclrun.data.notes import count_notes
from xclrun.plan import Run
from xclrun.plan.checks import check_ranks
from xclrun.scores import base_scores
from xclrun.scores.base_scores import Scores
from xclrun.scores.counts import write_counts
from xclrun.store import predictions
from xclrun.store.files import atomic_write, writing
from xclrun.store.rundir import UnreadableRun
from xclrun.store.users import register
from xclrun.strategy.shared.parameters import count
from xclrun.train import attention
from xclrun.train.class_gradients import FILE as CLASS_GRADIENTS
from xclrun.train.others import end_unguarded, ranks_of
from xclrun.train.overlap import FILE as OVERLAP
from xclrun.train.points import FILE as POINTS
from xclrun.train.precision import device_facts, set_threads
from xclrun.train.progress import Listener
from xclrun.train.ranks import ALONE, Ranks
from xclrun.train.stages import Busy, StageGraph, made_here
from xclrun.train.stop import StopFlag, Stopped

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Busy", "execute", "make_stages"]

# Text after the operation's name in PyTorch's error for a nondeterministic operation.
NOT_DETERMINISTIC = " does not have a deterministic implementation"
# Print a note if more than this fraction of a split's sentences is truncated.
CUT = 0.01


def execute(
    run: Run, listener: Listener, stop: StopFlag, patient: bool = True, tried: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Execute or resume a run, and write the files of its run directory.

    Args:
        patient: wait if another process is working on the run or on one of its stages; otherwise raise `Busy`.
        tried: settings that were compared to choose this run's settings (`RunRecord.tried`). The manifest collects
            them; a finished run that lacks one is restored from the store to add it.

    Raises:
        XclrunError: the run failed; the manifest has the message too.
        Stopped: a signal was received; during training, a checkpoint was saved.
        Busy: another process is working on the run or on one of its stages, and ``patient`` is false.
    """
    end_unguarded()
    register(run.store.root, run.outputs)
    lease, waited = run.directory.lease, False
    while (mine := lease.try_acquire()) is None:
        if not patient:
            raise Busy(lease)
        stop.check()
        time.sleep(0.5)
        if run.directory.finished:
            return
        waited = True
    with lease.held(mine):
        if waited and (error := run.directory.error) is not None:
            raise RunError(f"the run has just failed in another process: {error}")
        known = _tried(run)
        if not run.directory.finished or any(settings not in known for settings in tried):
            try:
                if (damaged := run.directory.damaged()) is not None:
                    listener.noted(f"{damaged} is missing or damaged; restoring the run from the store")
            except UnreadableRun as unreadable:
                if unreadable.state == "newer":
                    # Do not overwrite files of a newer version.
                    refused = RunError(str(unreadable))
                    listener.run_failed(run, refused)
                    raise refused from unreadable
                listener.noted(f"{unreadable}; restoring the run from the store")
            try:
                ranks = _ranks(run)
            except BaseException as raised:
                explained = translated(raised, run)
                listener.run_failed(run, explained)
                if explained is raised:
                    raise
                raise explained from raised
            try:
                known += [dict(settings) for settings in tried if settings not in known]
                _Execution(run, listener, stop, patient, ranks, known).run_all()
            finally:
                if ranks.failed:
                    ranks.abandon()
    # A signal since the last check must prevent the next run.
    stop.check()


def _tried(run: Run) -> list[dict[str, Any]]:
    """Return the entry ``tried`` of an earlier attempt's manifest."""
    with contextlib.suppress(*UNREADABLE):
        return [dict(settings) for settings in run.directory.read_manifest().get("tried", ())]
    return []


def make_stages(run: Run, hops: Sequence[int], listener: Listener, stop: StopFlag) -> None:
    """Train and evaluate hops of a run, so that other runs can load the results from the store.

    Raises:
        Stopped: a signal was received; a checkpoint was saved.
    """
    register(run.store.root, run.outputs)
    ranks = _ranks(run)
    graph = StageGraph(run, listener, stop, ranks=ranks)
    try:
        ranks.begin(run)
        for hop in hops:
            graph.evaluation(run.stages[hop])
            graph.attention(run.stages[hop])
    finally:
        if ranks.failed:
            ranks.abandon()
    stop.check()


def _ranks(run: Run) -> Ranks:
    """Return the ranks of a run; if the store has all evaluations, this process is the only rank."""
    ranks = ALONE
    if not all(run.store.has(stage.evaluation) for stage in run.stages):
        ranks = ranks_of(run)
        check_ranks(run.config, ranks.size)
    set_threads(run.config.runtime.threads, ranks.on_machine)
    return ranks


class _Execution:
    """The execution of a run by the holder of its lease."""

    def __init__(
        self,
        run: Run,
        listener: Listener,
        stop: StopFlag,
        patient: bool,
        ranks: Ranks,
        tried: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.run, self.listener, self.directory, self.ranks = run, listener, run.directory, ranks
        self.graph = StageGraph(run, listener, stop, patient, ranks)
        # Optional measurements: file in the run directory → rows of each hop.
        self.measured: dict[Path, list[pa.Table]] = {}
        self.manifest = _manifest(run, self.graph.strategy.version_id(), self.graph.bench.device)
        if ranks.several:
            self.manifest["environment"]["ranks"] = str(ranks.size)
        if tried:
            self.manifest["tried"] = list(tried)

    def run_all(self) -> None:
        directory, started = self.directory, time.monotonic()
        directory.tidy()
        directory.open(OmegaConf.to_yaml(OmegaConf.create(self.run.resolved)), self.manifest)
        directory.event("started", host=self.manifest["host"], pid=self.manifest["pid"])
        self.listener.run_started(self.run)
        try:
            self.ranks.begin(self.run)
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
            error = translated(raised, self.run)
            try:
                self._note_end(error)
                if error is raised:
                    raise
                raise error from raised
            finally:
                # The exception references this frame, and the frame references the model. Break the cycle.
                del error
        self.listener.run_ended(self.run, time.monotonic() - started)

    def _note_end(self, error: BaseException) -> None:
        status = "failed"
        if isinstance(error, Busy):
            status = "waiting"
        elif isinstance(error, Stopped | KeyboardInterrupt):
            status = "interrupted"
        message = one_line(error) if status == "failed" else str(error)
        self.manifest |= {"status": status, "error": message}
        # Ignore write errors, for example on a full disk: the original error matters more.
        with contextlib.suppress(Exception):
            self.directory.write_manifest(self.manifest)
            self.directory.event(status, error=message)
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
                "training": facts["training"],
                # The definition of span F1 in the dev scores. Dev predictions are not stored, so these scores cannot
                # be recomputed with another definition.
                "slot_f1": dev_scores.value,
            }
        )
        # Some strategy states are computed only when the next hop begins, so update the sizes of earlier hops' states.
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
        self.directory.event("hop", hop=hop.index, name=hop.name, shared=shared)
        self.listener.hop_ended(self.run, hop, scores, shared)
        return scores

    def _scores(self, rows: pa.Table) -> Scores:
        """Return language → metric → score of a hop's rows; ``evaluate.slot_f1`` selects the definition of span F1."""
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
        """Write the optional measurements of all hops, one file per kind."""
        import pyarrow as pa

        for path, tables in self.measured.items():
            predictions.write(path, pa.concat_tables(tables))


def cut_short(truncated: Mapping[str, int], run: Run) -> str | None:
    """Return a note if the length limit truncates more than the fraction `CUT` of a split's sentences, else None.

    Texts of questions are ignored, because they are read in windows and not truncated.

    Args:
        truncated: ``language/split`` → number of truncated sentences.
    """
    sizes = {
        f"{language}/{split}": len(examples)
        for (language, split), examples in run.dataset.splits.items()
        if language in run.dataset.languages and encoding_of(run.dataset.task_of(language)).whole
    }
    counts = {split: count for split, count in truncated.items() if split in sizes and count > CUT * sizes[split]}
    if not counts:
        return None
    listed = ", ".join(f"{split}: {count} of {sizes[split]:,}" for split, count in counts.items())
    note = (
        f"model.max_length={run.config.model.max_length} truncates many sentences ({listed}); consider a larger value"
    )
    examples = (e for key in counts for e in run.dataset.split(*key.rpartition("/")[::2]))
    if any(len(word) > LONG_WORD for e in examples for word in (*e.tokens, *e.tokens_b)):
        note += f", or spaces between words, since the tokenizer may not know words of more than {LONG_WORD} characters"
    return note


def _manifest(run: Run, strategy_version: int | str, device: torch.device) -> dict[str, Any]:
    dataset, merged = run.dataset, run.merged_run()
    return {
        "run_id": run.id,
        **({} if merged is None else {"merged_from": merged.id}),
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
        # Entries of the store that the run references: `store gc` does not remove them.
        **run.stored,
        "stages": [],
    }


def _targets(run: Run) -> dict[str, Any]:
    """Return the label sets and tasks for the manifest; omit a built-in task that ``dataset.task`` names."""
    dataset = run.dataset

    def description(task: Task) -> str | dict[str, Any]:
        return described(task) if task.name in provided("task") else task.identified

    if dataset.task is None:
        tasks = [
            {"task": description(t.task), "keys": list(t.keys), "labels": list(t.labels), "tags": list(t.tags)}
            for t in dataset.targets
        ]
        return {"labels": [], "tags": [], "tasks": tasks}
    facts: dict[str, Any] = {"labels": list(dataset.labels), "tags": list(dataset.tags)}
    if run.config.dataset.parts or dataset.task.name in provided("task"):
        facts["task"] = description(dataset.task)
    return facts


def translated(error: BaseException, run: Run) -> BaseException:
    """Return the error to show: a one-line error if the cause is known, otherwise the error itself."""
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
        # A plug-in's sys.exit() must not end the sweep.
        return RunError(f"{one_line(error)}: a plug-in must not end the process; raise an exception instead")
    return error


def _out_of_memory(error: BaseException, run: Run) -> str:
    """Return the message for a GPU out of memory: the phase, and settings that need less memory."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    trainer, less = run.config.trainer, " or trainer.precision=bf16"
    if any(name in ("xclrun.train.evaluate", "xclrun.train.encodings") for name in frames):
        evaluate, during = run.config.evaluate, "evaluation"
        key = f"evaluate.batch_size={max(1, evaluate.batch_size // 4)}"
        if evaluate.batch_tokens is not None:
            key = f"evaluate.batch_tokens={max(1, evaluate.batch_tokens // 4)}"
    elif trainer.batch_size is None:
        during, key = "training", f"trainer.gradient_accumulation={2 * trainer.gradient_accumulation}"
    else:
        # Together, the two changes preserve the number of sentences per update.
        half, twice = max(1, trainer.batch_size // 2), 2 * trainer.gradient_accumulation
        during, key = "training", f"trainer.batch_size={half} trainer.gradient_accumulation={twice}"
    less = less if trainer.precision.value in ("fp32", "tf32") else ""
    return f"the GPU is out of memory during {during}; try {key}{less}"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _environment() -> dict[str, str]:
    # Read versions from package metadata, so that a run whose stages are all stored need not import transformers.
    facts = {"python": platform.python_version(), "torch": torch.__version__, "transformers": version("transformers")}
    if (gpus := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        facts["gpus"] = gpus
    return facts | {"platform": platform.platform(), "threads": str(torch.get_num_threads())}
