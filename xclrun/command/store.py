"""``xclrun store``: list, remove and verify stored artifacts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.command.common import Unreadable, existing, outputs_parser
from xclrun.core.errors import UsageError
from xclrun.core.terminal import size, table
from xclrun.store.stages import StageStore

if TYPE_CHECKING:
    from xclrun.store.prune import Entry


def main(arguments: Sequence[str]) -> int:
    """List, remove or verify stored artifacts; return the exit code."""
    parser = outputs_parser(
        "store",
        "Manage the store of trained hops. Run directories, which reports read, are never changed.",
    )
    parser.add_argument(
        "action",
        choices=("ls", "gc", "verify"),
        help="list; remove unneeded entries; verify all checksums",
    )
    parser.add_argument(
        "--weights", action="store_true", help="gc: also remove weights and states that only finished runs use"
    )
    parser.add_argument("--dry-run", action="store_true", help="gc: print what would be removed")
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help="folder of the store (default: each store that the runs use)"
    )
    parser.add_json("print a list as JSON, sizes in bytes")
    args = parser.parse_args(arguments)
    outputs = existing(args.outputs)
    from xclrun.store.prune import stores

    folders = [args.store] if args.store is not None else stores(outputs)
    if args.action == "verify":
        return _verify(folders, outputs, args.json)
    if args.action == "ls":
        return _list(folders, outputs, args.json)
    return _collect(folders, outputs, args.weights, args.dry_run, args.json)


def _facts(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), "path": str(entry.path), "key": entry.path.name}


def _unique(entries: Iterable[Entry]) -> list[Entry]:
    """Return each entry once; temporary files of `model average` are no part of a store, so every store has them."""
    return list({entry.path: entry for entry in entries}.values())


def _list(folders: Sequence[Path], outputs: Path, as_json: bool) -> int:
    from xclrun.store.prune import entries

    unreadable = Unreadable()
    listed = _unique(entry for folder in folders for entry in entries(StageStore(folder), outputs, unreadable))
    if as_json:
        print(json.dumps([_facts(entry) for entry in listed], indent=1))
        return unreadable.code
    sizes: dict[str, list[int]] = defaultdict(list)
    for entry in listed:
        sizes[entry.kind].append(entry.bytes)
    rows = [(e.path.name[:16], e.kind, e.hop, size(e.bytes), str(e.finished), str(e.unfinished)) for e in listed]
    if rows:
        print(table(("key", "kind", "hop", "size", "finished runs", "others"), rows, text_columns=3))
    for kind, of_kind in sorted(sizes.items()):
        print(f"{len(of_kind)} {kind}: {size(sum(of_kind))}")
    return unreadable.code


def _collect(folders: Sequence[Path], outputs: Path, weights: bool, dry: bool, as_json: bool) -> int:
    from xclrun.store.prune import removable, remove

    def refuse(text: str) -> None:
        raise UsageError(f"nothing is removed: {text}")

    unreadable, stores = Unreadable(), map(StageStore, folders)
    # Find the entries of all stores before removing any: a folder that cannot be read may need them.
    found = _unique(entry for store in stores for entry in removable(store, outputs, weights, unreadable, refuse))
    gone = [entry for entry in found if dry or remove(entry)]
    if as_json:
        print(json.dumps([{**_facts(entry), "removed": not dry} for entry in gone], indent=1))
        return unreadable.code
    did = "would remove" if dry else "removed"
    for entry in gone:
        print(f"{did} {entry.kind} {entry.path.name[:16]} {entry.hop} {size(entry.bytes)}")
    print(f"{len(gone)} {'to remove' if dry else 'removed'}: {size(sum(entry.bytes for entry in gone))}")
    return unreadable.code


def _verify(folders: Sequence[Path], outputs: Path, as_json: bool) -> int:
    from xclrun.model.package import damaged as damaged_file
    from xclrun.model.source import PACKAGES
    from xclrun.store.prune import damaged

    # Several stores have the same runs.
    lines = list(dict.fromkeys(line for folder in folders for line in damaged(StageStore(folder), outputs)))
    converted = [package.converted() for package in PACKAGES.values()]
    wrong = [damaged_file(folder) for folder in converted if folder.is_dir()]
    lines += [f"{file}: missing or changed; the next run with this model converts it again" for file in wrong if file]
    if as_json:
        print(json.dumps(lines, indent=1, ensure_ascii=False))
    else:
        print("\n".join(lines) if lines else "All checksums match.")
    return int(bool(lines))
