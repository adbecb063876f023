"""Maintenance of the store: list its entries, remove unneeded ones, find damage.

Unfinished runs need trained weights and strategy states; later runs can reuse them. Reports need only run directories;
in these, this module removes only temporary files of averages that a crash left.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from xclrun.core.files import UNREADABLE
from xclrun.core.terminal import note
from xclrun.store.cache import damaged_files
from xclrun.store.files import TEMPORARY, read_json
from xclrun.store.lease import CLOCK, Lease
from xclrun.store.rundir import UNREADABLE_RUN, RunDirectory, UnreadableRun
from xclrun.store.stages import FACTS, StageStore
from xclrun.store.users import outputs_folders

# Seconds: younger temporary files can belong to a live process on another machine.
AGE = 3600.0
_LEASE = re.compile(r"\.lease-\d+$")
_STAGE = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """One entry of the store.

    Attributes:
        kind: ``train``, ``state``, ``features``, ``evaluation`` or ``attention`` for a stage; ``damaged`` for a stage
            whose ``stage.json`` is unreadable; ``checkpoint``; or ``leftover`` for files that a crash left, such as an
            expired lease.
        bytes: size on disk.
        hop: name of the hop.
        unfinished, finished: number of unfinished runs, and of finished runs, that refer to the entry.
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
    # Several times as fast as `Path.rglob` for thousands of small folders.
    return sum(os.stat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names)


def _old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > AGE


def stores(outputs: Path) -> list[Path]:
    """Return the folders of the stores that the runs under ``outputs`` use, and of the store inside ``outputs``."""
    own = outputs / "store"
    folders = [own] if own.is_dir() else []
    for directory in _directories(outputs):
        with contextlib.suppress(*UNREADABLE_RUN):
            folders.append(directory.store() or own)
    return list(dict.fromkeys(folder.resolve() for folder in folders or [own]))


def _directories(outputs: Path) -> list[RunDirectory]:
    return [RunDirectory(path) for path in sorted((outputs / "runs").glob("*")) if path.is_dir()]


def entries(
    store: StageStore,
    outputs: Path,
    warn: Callable[[str], None] = note,
    refuse: Callable[[str], None] | None = None,
    removed: Collection[Path] = (),
) -> Iterator[Entry]:
    """Yield the entries of the store, and what killed commands left: files of `model average`, folders of `xclrun rm`.

    Args:
        warn: called with a line about each unreadable run. An unreadable unfinished run may need every entry.
        refuse: called with a line about each unreadable outputs folder that uses the store; None: ``warn``.
        removed: resolved paths of run directories that do not count.
    """
    users = _users(store, outputs, warn, refuse or warn, removed)
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
            key = path.name.removesuffix(".checkpoints")
            yield Entry(path, kind, _size(path), hop, users.unfinished[key] + users.unknown, users.finished[key])
    for path in sorted([*outputs.glob(f"runs/*/averages/{TEMPORARY}*"), *outputs.glob(f"{TEMPORARY}removed-*")]):
        with contextlib.suppress(OSError):
            yield Entry(path, "leftover", _size(path), "", 0, 0)


@dataclass
class _Users:
    """The runs that refer to the entries of a store.

    Attributes:
        unfinished, finished: key → number of runs that refer to it.
        kept: keys that finished runs keep.
        unknown: number of unfinished runs that cannot be read, and so may need every entry.
    """

    unfinished: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    kept: set[str] = field(default_factory=set)
    unknown: int = 0


def _users(
    store: StageStore,
    outputs: Path,
    warn: Callable[[str], None],
    refuse: Callable[[str], None],
    removed: Collection[Path] = (),
) -> _Users:
    """Return the runs that refer to the entries of a store; see `entries` for the arguments."""
    users = _Users()
    for folder in outputs_folders(store.root, outputs, refuse):
        for directory in _directories(folder):
            if directory.path.resolve() in removed:
                continue
            finished = False
            try:
                finished = directory.finished
                (users.finished if finished else users.unfinished).update(directory.store_keys())
                if finished:
                    users.kept.update(directory.kept_keys())
            except UNREADABLE as error:
                users.unknown += not finished
                warn(str(error))
    return users


def remove_unused(store: StageStore, outputs: Path, keys: Collection[str]) -> None:
    """Remove weights and states, unless an unfinished run needs or a finished run keeps them."""
    stored = [key for key in keys if store.has(key)]
    if not stored:
        return
    unreadable: list[str] = []
    users = _users(store, outputs, unreadable.append, unreadable.append)
    # `xclrun store gc` names what cannot be read.
    if unreadable:
        return
    for key in stored:
        if not users.unfinished[key] and key not in users.kept:
            _remove(store.path(key))


def _kind_and_hop(folder: Path) -> tuple[str, str]:
    try:
        facts = read_json(folder / FACTS)
        return str(facts["kind"]), str(facts.get("hop", ""))
    except UNREADABLE_RUN:
        return "damaged", ""


def removable(
    store: StageStore,
    outputs: Path,
    weights: bool,
    warn: Callable[[str], None] = note,
    refuse: Callable[[str], None] | None = None,
) -> Iterator[Entry]:
    """Yield the entries that can be removed without changing a result.

    These are leftovers of crashes, and checkpoints of completed trainings. If ``weights`` is true, weights, states and
    features that no unfinished run needs can be removed too. A later run that needs them then repeats the training.
    See `entries` for the arguments.
    """
    for entry in entries(store, outputs, warn, refuse):
        if entry.kind == "leftover":
            if _old(entry.path):
                yield entry
        elif entry.kind == "checkpoint":
            if store.has(entry.path.name.removesuffix(".checkpoints")):
                yield entry
        elif weights and entry.kind in ("train", "state", "features") and not entry.unfinished:
            yield entry


def remove(entry: Entry) -> bool:
    """Remove an entry unless another process works on it; return whether it was removed."""
    return _remove(entry.path)


def _remove(path: Path) -> bool:
    lease = Lease(path)
    if (mine := lease.try_acquire()) is None:
        return False
    with lease.held(mine):
        # Rename the entry first, so that readers never see a part of it.
        aside = path.with_name(f"{TEMPORARY}removed-{path.name}")
        # A kill between the two steps of an earlier removal can have left it, and would keep the entry in place.
        shutil.rmtree(aside, ignore_errors=True)
        with contextlib.suppress(OSError):
            if path.is_file():
                path.unlink()
            else:
                path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    return not path.exists()


def damaged(store: StageStore, outputs: Path) -> Iterator[str]:
    """Yield a line for each damaged file of a stage, checkpoint, average or finished run, or of the cache."""
    # Check all folders, because a stage without ``stage.json`` is damaged too.
    for folder in sorted(store.root.glob("[0-9a-f][0-9a-f]/*")):
        if _STAGE.fullmatch(folder.name) and (name := store.damaged(folder.name)) is not None:
            yield f"{folder / name}: changed since it was written; the next run that needs it creates it again"
    for folder in [*sorted(store.root.glob("[0-9a-f][0-9a-f]/*.checkpoints")), outputs / "cache"]:
        for path in damaged_files(folder):
            yield f"{path}: changed since it was written; it is ignored and created again when needed"
    for folder in sorted(outputs.glob("runs/*/averages")):
        for path in damaged_files(folder):
            yield f"{path}: changed since it was written; it is ignored; `xclrun model average` creates it again"
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
            # The quick check of `finished` does not see a flipped bit.
            how = f"remove {done} and re-run" if directory.finished else "re-run"
            yield f"{wrong}: changed since the run finished; {how} the same command to restore it from the store"
