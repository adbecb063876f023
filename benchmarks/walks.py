"""Size of the code behind a command: files and functions of xclrun that it enters.

These are the files that a reader must know to follow the command. Four commands are traced (`WALKS`), each in a
separate process with default settings: a run up to its first optimiser step, a Slurm submission up to the call of
``sbatch``, a report of two runs, and a command whose runs have all finished::

    python -m benchmarks.walks
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import xclrun

PACKAGE = Path(xclrun.__file__).parent
RUNS = ("experiment=smoke", "strategy=naive,er", "-m", "-q")
# `inspect.CO_OPTIMIZED | CO_NEWLOCALS`: functions have both flags, the bodies of modules and classes do not.
FUNCTION = 0x3

Frame = Callable[[FrameType], bool]


def optimiser_step(frame: FrameType) -> bool:
    """Whether a frame is the first line of an optimiser's step."""
    return frame.f_code.co_name == "step" and "/torch/optim/" in frame.f_code.co_filename


def sbatch(frame: FrameType) -> bool:
    """Whether a frame starts Slurm's ``sbatch``."""
    if frame.f_code.co_name != "_execute_child":
        return False
    arguments = frame.f_locals.get("args", ())
    return any(Path(os.fsdecode(first)).name == "sbatch" for first in arguments[:1])


def never(frame: FrameType) -> bool:
    """Return False for every frame, so that the command is traced to its end."""
    return False


WALKS: dict[str, tuple[tuple[str, ...], Frame]] = {
    "to the first optimiser step": (("experiment=smoke", "strategy=naive"), optimiser_step),
    "to sbatch": ((*RUNS, "hydra/launcher=slurm", "paths.outputs=slurm"), sbatch),
    "report of two runs": (("report",), never),
    "a finished command": (RUNS, never),
}


def walk(arguments: tuple[str, ...], ends: Frame) -> tuple[int, int]:
    """Run a command in this process; return the numbers of files and functions of xclrun that it enters."""
    from xclrun.cli import main

    entered: set[CodeType] = set()
    ended = False

    def enter(frame: FrameType, event: str, _: Any) -> None:
        nonlocal ended
        if event == "call" and not ended:
            code = frame.f_code
            named = code.co_flags & FUNCTION == FUNCTION and not code.co_name.startswith("<")
            if named and code.co_filename.startswith(str(PACKAGE)):
                entered.add(code)
            ended = ends(frame)

    threading.setprofile(enter)
    sys.setprofile(enter)
    with contextlib.suppress(SystemExit), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        sys.argv = ["xclrun", *arguments]
        main()
    sys.setprofile(None)
    return len({code.co_filename for code in entered}), len(entered)


def main() -> None:
    """Print a row for each walk; with a name as argument, run only this walk in the current folder."""
    if len(sys.argv) > 1:
        print(*walk(*WALKS[sys.argv[1]]))
        return
    print("| walk | files | functions |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stub = folder / "bin" / "sbatch"
        stub.parent.mkdir()
        stub.write_text("#!/bin/sh\necho Submitted batch job 1\n")
        stub.chmod(0o755)
        environment = dict(os.environ, PATH=f"{stub.parent}:{os.environ['PATH']}", PYTHONPATH=str(PACKAGE.parent))
        subprocess.run([sys.executable, "-m", "xclrun", *RUNS], cwd=folder, env=environment, check=True)
        for kind in WALKS:
            inside = folder if kind != "to the first optimiser step" else Path(tempfile.mkdtemp(dir=folder))
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.walks", kind],
                cwd=inside, env=environment, check=True, capture_output=True, text=True,
            )  # fmt: skip
            files, functions = done.stdout.split()
            print(f"| {kind} | {files} | {functions} |")


if __name__ == "__main__":
    main()
