"""The outputs folders that use a store: several can share one through ``paths.store``.

``<store>/outputs/<hash of the path>.json`` names an outputs folder. A run writes this file before it reads the store,
so that `xclrun.store.prune` knows which runs need an entry. The folder that contains the store needs no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from xclrun.core.files import UNREADABLE
from xclrun.core.identity import digest
from xclrun.store.files import read_json, write_json

FOLDER = "outputs"


def register(store: Path, outputs: Path) -> None:
    """Record that the runs under ``outputs`` use the store; raise an `XclrunError` if the store is not writable."""
    store, outputs = store.resolve(), outputs.resolve()
    path = store / FOLDER / f"{digest(str(outputs))[:32]}.json"
    # An existing file is not checked: `outputs_folders` names a damaged file.
    if store.parent != outputs and not path.is_file():
        write_json(path, {"outputs": str(outputs)})


def outputs_folders(store: Path, outputs: Path, unreadable: Callable[[str], None]) -> Iterator[Path]:
    """Yield the outputs folders that use the store, ``outputs`` first.

    Args:
        unreadable: called with a line about each folder that cannot be read.
    """
    store, outputs = store.resolve(), outputs.resolve()
    yield outputs
    if store.parent != outputs and (store.parent / "runs").is_dir():
        yield store.parent
    for path in sorted((store / FOLDER).glob("*.json")):
        folder: Path | str = "an outputs folder"
        try:
            folder = Path(read_json(path)["outputs"])
            # An empty mount point has no folder `runs`.
            next((folder / "runs").iterdir(), None)
        except UNREADABLE as error:
            why = getattr(error, "strerror", None) or "damaged file"
            unreadable(
                f"{store} is also used by {folder}, which cannot be read ({why}); make it readable, or, if it was "
                f"deleted, remove {path}"
            )
            continue
        if folder not in (outputs, store.parent):
            yield folder
