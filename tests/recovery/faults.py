"""Runs that are killed at chosen places, in children forked from a process with all imports.

A script, since the process of the test runner cannot be forked safely. ``python faults.py NAME ARGUMENT…`` prints one
JSON value; ``python faults.py serve`` prints one per line of its input, computed in a forked child.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xclrun.launch import selftest
from xclrun.store.rundir import differing_results

# Two hops of two steps, with a checkpoint at each.
TINY = (
    "dataset.languages=[en,de]",
    "dataset.max_train=8",
    "dataset.max_eval=4",
    "order=[en,de]",
    "model.hidden_size=16",
    "model.vocab_size=200",
    "trainer.batch_size=4",
    "trainer.epochs=1",
    "evaluate.attention=true",
)


class Faults:
    """Counts the places where a process changes files, and kills it at place ``at``."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0
        self.kinds: Counter[str] = Counter()

    def place(self, kind: str) -> None:
        self.count += 1
        self.kinds[kind] += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """Wrap every call that changes a file, and split every write."""
        for name in ("replace", "rename", "fsync", "unlink", "rmdir", "mkdir", "chmod", "utime"):
            setattr(os, name, self._before(name, getattr(os, name)))
        create, open_file = os.open, io.open

        def exclusive(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if flags & os.O_EXCL:
                self.place("create")
            return create(path, flags, *rest, **named)

        def opened(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            created = open_file(file, mode, *rest, **named)
            return Torn(created, self) if set(mode) & set("wax+") else created

        os.open, io.open = exclusive, opened  # type: ignore[assignment]

    def _before(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.place(name)
            return real(*arguments, **named)

        return call


class Torn:
    """A file that splits every write in two."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self.file, self.faults = file, faults

    def write(self, data: Any) -> int:
        half = len(data) // 2
        self.file.write(data[:half])
        self.file.flush()
        self.faults.place("write")
        return half + int(self.file.write(data[half:]))

    def __enter__(self) -> Torn:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def kills(strategy: str, folder: str, number: str, *extra: str) -> dict[str, Any]:
    """Kill a run at random times, like `xclrun selftest`, ``number`` times."""
    return vars(selftest.kill_test(strategy, kills=int(number), seed=7, folder=Path(folder), extra=extra))


def writes(strategy: str, folder: str, every: str) -> dict[str, Any]:
    """Kill a run at every ``every``-th place where it changes a file, resume it, and compare."""
    from xclrun.store.prune import damaged

    selftest.import_everything()
    calm = selftest.job(strategy, Path(folder) / "calm", TINY)
    assert selftest.in_child(lambda: selftest.do(calm)) == 0
    assert calm.directory.finished
    run = selftest.job(strategy, Path(folder) / "killed", TINY)
    counts = Path(folder) / "counts.json"
    problems: list[str] = []

    def failing(faults: Faults) -> None:
        with counts.open("w") as file:
            faults.install()
            selftest.do(run)
            file.write(json.dumps(faults.kinds))

    killed, at = 0, 1
    while True:
        status = selftest.in_child(lambda: failing(Faults(at)))  # noqa: B023  done before the next turn
        if status == 0:
            break
        if not os.WIFSIGNALED(status):
            problems.append(f"place {at}: ended with {status}")
        killed += 1
        problems += [f"place {at}, killed: {line}" for line in damaged(run.store, run.outputs)]
        if selftest.in_child(lambda: selftest.do(run)) != 0:
            problems.append(f"place {at}: cannot go on")
        elif differing_results(calm.directory, run.directory):
            problems.append(f"place {at}: the predictions differ")
        problems += [f"place {at}, continued: {line}" for line in damaged(run.store, run.outputs)]
        remaining = [str(path) for path in (run.directory.path).rglob(".tmp-*")]
        problems += [f"place {at}: left {path}" for path in remaining]
        shutil.rmtree(run.outputs)
        at += int(every)
    return {"killed": killed, "places": json.loads(counts.read_text()), "problems": problems}


def averages(folder: str, every: str) -> dict[str, Any]:
    """Kill `xclrun model average` at every ``every``-th place where it changes a file, repeat it, and compare."""
    from xclrun.store.prune import damaged, entries
    from xclrun.train.average import average, weights_of
    from xclrun.train.progress import Listener
    from xclrun.train.stop import StopFlag

    selftest.import_everything()
    keeping = ("evaluate.attention=false", "evaluate.every_examples=4", "evaluate.keep_points=all")
    run = selftest.job("er", Path(folder) / "run", (*TINY, *keeping))
    assert selftest.in_child(lambda: selftest.do(run)) == 0
    trained, counts = Path(folder) / "trained", Path(folder) / "counts.json"
    shutil.copytree(run.outputs, trained)

    def averaged() -> None:
        average(run, None, weights_of(run, None), Listener(), StopFlag())

    def failing(faults: Faults) -> None:
        with counts.open("w") as file:
            faults.install()
            averaged()
            file.write(json.dumps(faults.kinds))

    def result() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(run.directory.averages.glob("*.parquet"))}

    assert selftest.in_child(averaged) == 0
    calm, problems, killed, at = result(), [], 0, 1
    while True:
        shutil.rmtree(run.outputs)
        shutil.copytree(trained, run.outputs)
        status = selftest.in_child(lambda: failing(Faults(at)))  # noqa: B023  done before the next turn
        if status == 0:
            break
        if not os.WIFSIGNALED(status):
            problems.append(f"place {at}: ended with {status}")
        killed += 1
        problems += [f"place {at}, killed: {line}" for line in damaged(run.store, run.outputs)]
        if selftest.in_child(averaged) != 0:
            problems.append(f"place {at}: cannot be given again")
        elif result() != calm:
            problems.append(f"place {at}: the predictions differ")
        problems += [f"place {at}, given again: {line}" for line in damaged(run.store, run.outputs)]
        remaining = {entry.path for entry in entries(run.store, run.outputs) if entry.kind == "leftover"}
        problems += [f"place {at}: left {path}" for path in {*run.directory.path.rglob(".tmp-*")} - remaining]
        at += int(every)
    return {"files": sorted(calm), "killed": killed, "places": json.loads(counts.read_text()), "problems": problems}


def broken(folder: str) -> bool:
    """Return whether the selftest accepts a run that loses its optimiser state when it is resumed."""
    from xclrun.train import loop

    loop.load_optimizer_state = lambda optimizer, model, tensors: None
    return selftest.kill_test("naive", kills=20, seed=1, folder=Path(folder)).equal


def together(folder: str, count: str, victim: str, *overrides: str) -> dict[str, Any]:
    """Run a command in several processes at once; number ``victim`` (from 1; 0: none) dies in its first training."""
    selftest.import_everything()
    began = time.monotonic()
    roles = ["bystander" if int(victim) else "none"] * int(count)
    if int(victim):
        roles[int(victim) - 1] = "victim"
    children = [_start(role, Path(folder) / "trained", overrides) for role in roles]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    trained = (Path(folder) / "trained").read_text().split()
    return {"codes": codes, "trained": trained, "seconds": time.monotonic() - began}


def _start(role: str, log: Path, overrides: Sequence[str]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = command(role, log, overrides)
        finally:
            os._exit(code)
    return child


def command(role: str, log: Path, overrides: Sequence[str]) -> int:
    """Run a command, and log the key of every completed training.

    A ``victim`` dies in its first training; a ``bystander`` waits for that.
    """
    from xclrun.cli import main
    from xclrun.train.loop import HopTraining

    train = HopTraining.run
    dying = log.with_name("dying")
    end = time.monotonic() + 60
    while role == "bystander" and not dying.exists():
        assert time.monotonic() < end, "the victim did not come to a training"
        time.sleep(0.01)

    def noted(self: HopTraining) -> dict[str, Any]:
        if role == "victim":
            dying.touch()
        time.sleep(0.1)  # long enough that the others come to need it
        if role == "victim":
            os.kill(os.getpid(), signal.SIGKILL)
        counted = train(self)
        with log.open("a") as file:
            file.write(self.checkpoints.folder.name.removesuffix(".checkpoints") + "\n")
        return counted

    HopTraining.run = noted  # type: ignore[method-assign]
    return main(overrides)


def dies_after_checkpoint(number: str, *overrides: str) -> int:
    """Run a command that dies after its ``number``-th checkpoint; return its exit code."""
    from xclrun.cli import main
    from xclrun.train.checkpoint import Checkpoints

    selftest.import_everything()
    save, saved = Checkpoints.save, []

    def dying(self: Checkpoints, *arguments: Any) -> None:
        save(self, *arguments)
        saved.append(self)
        if len(saved) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoints.save = dying  # type: ignore[method-assign]
    return os.waitstatus_to_exitcode(selftest.in_child(lambda: [main(overrides)]))


def dies_removing(place: str, number: str, *overrides: str) -> int:
    """Run a command that dies before, during or after its ``number``-th removal from the store, and return its code."""
    from xclrun.cli import main
    from xclrun.store import prune

    selftest.import_everything()
    remove, removed = prune._remove, []

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def dying(path: Path) -> bool:
        removed.append(path)
        if len(removed) < int(number):
            return remove(path)
        if place == "during":
            prune.shutil.rmtree = die  # type: ignore[assignment]
        if place != "before":
            remove(path)
        die()
        return True

    prune._remove = dying
    return os.waitstatus_to_exitcode(selftest.in_child(lambda: [main(overrides)]))


def alone(log: str, role: str, *overrides: str) -> int:
    """Run a command in this process."""
    return command(role, Path(log), overrides)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (kills, writes, averages, broken, together, dies_after_checkpoint, dies_removing, alone)
}


def serve() -> None:
    """Call the function in each line of the input, in a child, and print its result as one line."""
    selftest.import_everything()
    answers = os.fdopen(os.dup(1), "w")
    # Output of the functions goes to standard error.
    os.dup2(2, 1)
    for line in sys.stdin:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                options = json.loads(line)
                os.chdir(options["folder"])
                os.environ.clear()
                os.environ.update(options["environment"])
                result = json.dumps(FUNCTIONS[options["name"]](*options["arguments"]))
                os.write(write, result.encode())
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as answer:
            print(answer.read(), file=answers, flush=True)
        os.waitpid(child, 0)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        print(json.dumps(FUNCTIONS[sys.argv[1]](*sys.argv[2:])))
