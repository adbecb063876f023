"""Maintenance of the store: list it, remove what is not needed, find damage.

Reports need run directories alone, of which nothing is touched here but what a crash left half-written beside averages.
Trained weights and strategy states are needed by
runs that are not finished, and save work for runs that are still to come.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xclrun.core.terminal import note
from xclrun.store.cache import damaged_files
from xclrun.store.files import TEMPORARY, read_json
from xclrun.store.lease import CLOCK, Lease
from xclrun.store.rundir import RunDirectory, UnreadableRun
from xclrun.store.stages import FACTS, StageStore

# Leftovers of a crash younger than this may belong to a process that is alive on another machine.
AGE = 3600.0
_LEASE = re.compile(r"\.lease-\d+$")
_STAGE = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """One thing in the store.

    Attributes:
        path: where.
        kind: ``train``, ``state``, ``features``, ``evaluation``, ``attention``; ``damaged`` where its facts cannot be
            read; ``checkpoint``; ``leftover`` of a crash, such as the lease of an owner who has been silent for long.
        bytes: on disk.
        hop: what was learned.
        runs: unfinished and finished runs that refer to it.
    """

    path: Path
    kind: str
    bytes: int
    hop: str
    unfinished: int
    finished: int


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > AGE


def _references(outputs: Path) -> dict[str, list[bool]]:
    """Return key → for each run that refers to it, whether it is finished."""
    references: dict[str, list[bool]] = {}
    for path in sorted((outputs / "runs").glob("*")):
        directory = RunDirectory(path)
        for key in directory.store_keys():
            references.setdefault(key, []).append(directory.finished)
    return references


def entries(store: StageStore, outputs: Path) -> Iterator[Entry]:
    """Yield everything in the store, and leftovers of `xclrun average`, which no run that continues clears away."""
    references = _references(outputs)
    for path in sorted(store.root.glob("[0-9a-f][0-9a-f]/*")):
        with contextlib.suppress(OSError):
            if path.name.startswith((TEMPORARY, CLOCK)) or (_LEASE.search(path.name) and _old(path)):
                kind, hop = "leftover", ""
            elif path.name.endswith(".checkpoints"):
                kind, hop = "checkpoint", ""
            elif _STAGE.fullmatch(path.name):
                kind, hop = _kind_and_hop(path)
            else:
                continue
            users = references.get(path.name.removesuffix(".checkpoints"), [])
            yield Entry(path, kind, _size(path), hop, users.count(False), users.count(True))
    for path in sorted(outputs.glob(f"runs/*/averages/{TEMPORARY}*")):
        with contextlib.suppress(OSError):
            yield Entry(path, "leftover", _size(path), "", 0, 0)


def _kind_and_hop(folder: Path) -> tuple[str, str]:
    """Return kind and hop of a stage."""
    try:
        facts = read_json(folder / FACTS)
        return str(facts["kind"]), str(facts.get("hop", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "damaged", ""


def removable(store: StageStore, outputs: Path, weights: bool) -> Iterator[Entry]:
    """Yield what can go without changing any result.

    Leftovers of crashes; checkpoints of trainings that are done; with ``weights`` also trained weights and states
    that no unfinished run refers to: a later run that would share them then trains them again.
    """
    for entry in entries(store, outputs):
        if entry.kind == "leftover":
            if _old(entry.path):
                yield entry
        elif entry.kind == "checkpoint":
            if store.has(entry.path.name.removesuffix(".checkpoints")):
                yield entry
        elif weights and entry.kind in ("train", "state", "features") and not entry.unfinished:
            yield entry


def remove(store: StageStore, entry: Entry) -> bool:
    """Remove an entry, unless another process is working on it; return whether it is gone."""
    lease = Lease(entry.path)
    if (mine := lease.try_acquire()) is None:
        return False
    with lease.held(mine):
        # Renamed first, so no reader sees half of it.
        aside = entry.path.with_name(f"{TEMPORARY}removed-{entry.path.name}")
        with contextlib.suppress(OSError):
            if entry.path.is_file():
                entry.path.unlink()
            else:
                entry.path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    return not entry.path.exists()


def damaged(store: StageStore, outputs: Path) -> Iterator[str]:
    """Yield a line for each file of a stage, a checkpoint, a finished run or the cache that is not what was written."""
    # Looks at all folders, since a stage that lost its facts is damaged too.
    for folder in sorted(store.root.glob("[0-9a-f][0-9a-f]/*")):
        if _STAGE.fullmatch(folder.name) and (name := store.damaged(folder.name)) is not None:
            yield f"{folder / name}: changed since it was written; the next run that needs it makes it again"
    for folder in [*sorted(store.root.glob("[0-9a-f][0-9a-f]/*.checkpoints")), outputs / "cache"]:
        for path in damaged_files(folder):
            yield f"{path}: changed since it was written; it is not used, and made again where it is needed"
    for folder in sorted(outputs.glob("runs/*/averages")):
        for path in damaged_files(folder):
            yield f"{path}: changed since it was written; it is not used, and `xclrun average` makes it again"
    for done in sorted((outputs / "runs").glob("*/DONE")):
        directory = RunDirectory(done.parent)
        try:
            wrong = directory.damaged(thorough=True)
        except UnreadableRun as other:
            if other.state == "damaged":
                yield str(other)
            else:
                note(f"{other}; not verified")
            continue
        if wrong is not None:
            # A flipped bit would otherwise go unnoticed.
            how = f"remove {done} and give" if directory.finished else "give"
            yield f"{wrong}: changed since the run finished; {how} the same command again: it is made from the store"
