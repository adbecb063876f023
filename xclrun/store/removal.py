"""Delete runs and sweeps: their directories and files, and what only they use in the store."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xclrun.core.errors import UsageError
from xclrun.store.files import TEMPORARY, writing
from xclrun.store.prune import Entry, entries
from xclrun.store.rundir import UNREADABLE_RUN, RunDirectory
from xclrun.store.stages import StageStore


@dataclass(frozen=True)
class Removal:
    """What the deletion of a run or a sweep removes.

    Attributes:
        outputs: the outputs folder.
        run_ids: runs to delete, with or without a directory.
        sweep: name of the sweep to delete; empty for a run.
        kept: runs of the sweep that other sweeps contain; they are not deleted.
    """

    outputs: Path
    run_ids: Sequence[str]
    sweep: str = ""
    kept: Sequence[str] = ()

    @property
    def directories(self) -> list[RunDirectory]:
        """The existing directories of the runs."""
        directories = (RunDirectory(self.outputs / "runs" / run_id) for run_id in self.run_ids)
        return [directory for directory in directories if directory.path.is_dir()]

    @property
    def files(self) -> list[Path]:
        """The existing files and folders of the sweep: its list of runs, Optuna's journal, and Slurm's logs."""
        names = (f"sweeps/{self.sweep}.json", f"searches/{self.sweep}.log", f"slurm/{self.sweep}")
        return [path for name in names if self.sweep and (path := self.outputs / name).exists()]

    def entries(self, warn: Callable[[str], None], refuse: Callable[[str], None]) -> Iterator[Entry]:
        """Yield the entries of the stores that only these runs use; see `xclrun.store.prune.entries`."""
        keys: dict[Path, set[str]] = {}
        for directory in self.directories:
            # What an unreadable run used stays, as `xclrun store gc` keeps it.
            with contextlib.suppress(*UNREADABLE_RUN):
                root = directory.store() or self.outputs / "store"
                keys.setdefault(root.resolve(), set()).update(directory.store_keys())
        removed = frozenset(directory.path.resolve() for directory in self.directories)
        for root, used in keys.items():
            for entry in entries(StageStore(root), self.outputs, warn, refuse, removed):
                unused = not entry.finished and not entry.unfinished
                if unused and entry.path.name.removesuffix(".checkpoints") in used:
                    yield entry

    def remove_files(self) -> None:
        """Remove the run directories, and the files of the sweep.

        Raises:
            UsageError: a process works on one of the runs.
        """
        for directory in self.directories:
            _remove_directory(directory, self.outputs)
        for path in self.files:
            with writing(path):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def _remove_directory(directory: RunDirectory, outputs: Path) -> None:
    if (mine := directory.lease.try_acquire()) is None:
        raise UsageError(f"{directory.run_id} is running; stop it first, then re-run this command")
    with writing(directory.path):
        # Rename it first: no reader sees a part of a run, and `xclrun store gc` removes what a kill leaves.
        aside = outputs / f"{TEMPORARY}removed-{secrets.token_hex(8)}"
        try:
            directory.path.rename(aside)
        except OSError:
            directory.lease.release(mine)
            raise
        # The lease is gone with the folder. A lease in its old place belongs to a command that trains the run again.
        shutil.rmtree(aside)
