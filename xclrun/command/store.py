"""``xclrun store``: list, remove and verify stored artifacts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.command.common import existing, outputs_parser
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
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of the store (default: <outputs>/store)")
    parser.add_json("print a list as JSON, sizes in bytes")
    args = parser.parse_args(arguments)
    outputs = existing(args.outputs)
    store = StageStore(args.store or outputs / "store")
    if args.action == "verify":
        return _verify(store, outputs, args.json)
    if args.action == "ls":
        return _list(store, outputs, args.json)
    return _collect(store, outputs, args.weights, args.dry_run, args.json)


def _facts(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), "path": str(entry.path), "key": entry.path.name}


def _list(store: StageStore, outputs: Path, as_json: bool) -> int:
    from xclrun.store.prune import entries

    listed = list(entries(store, outputs))
    if as_json:
        print(json.dumps([_facts(entry) for entry in listed], indent=1))
        return 0
    sizes: dict[str, list[int]] = defaultdict(list)
    for entry in listed:
        sizes[entry.kind].append(entry.bytes)
    rows = [(e.path.name[:16], e.kind, e.hop, size(e.bytes), str(e.finished), str(e.unfinished)) for e in listed]
    if rows:
        print(table(("key", "kind", "hop", "size", "finished runs", "others"), rows, text_columns=3))
    for kind, of_kind in sorted(sizes.items()):
        print(f"{len(of_kind)} {kind}: {size(sum(of_kind))}")
    return 0


def _collect(store: StageStore, outputs: Path, weights: bool, dry: bool, as_json: bool) -> int:
    from xclrun.store.prune import removable, remove

    gone = [entry for entry in list(removable(store, outputs, weights)) if dry or remove(store, entry)]
    if as_json:
        print(json.dumps([{**_facts(entry), "removed": not dry} for entry in gone], indent=1))
        return 0
    did = "would remove" if dry else "removed"
    for entry in gone:
        print(f"{did} {entry.kind} {entry.path.name[:16]} {entry.hop} {size(entry.bytes)}")
    print(f"{len(gone)} {'to remove' if dry else 'removed'}: {size(sum(entry.bytes for entry in gone))}")
    return 0


def _verify(store: StageStore, outputs: Path, as_json: bool) -> int:
    from xclrun.model import e5
    from xclrun.store.prune import damaged

    lines = list(damaged(store, outputs))
    if (converted := e5.converted()).is_dir() and (wrong := e5.damaged(converted)) is not None:
        lines.append(f"{wrong}: missing or changed; the next run with this encoder converts it again")
    if as_json:
        print(json.dumps(lines, indent=1, ensure_ascii=False))
    else:
        print("\n".join(lines) if lines else "All checksums match.")
    return int(bool(lines))
