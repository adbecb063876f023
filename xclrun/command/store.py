"""``xclrun store``: what lies in the store, what can go, what is damaged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from xclrun.command.common import existing, parser
from xclrun.core.terminal import size, table
from xclrun.store.stages import StageStore


def main(arguments: Sequence[str]) -> int:
    """Do what is asked with the store; return the exit code."""
    options = parser(
        "store",
        "Look after the store of trained hops. Run directories, which reports are made of, are never touched.",
    )
    options.add_argument(
        "action",
        choices=("ls", "gc", "verify"),
        help="list; remove what can go; check all checksums",
    )
    options.add_argument(
        "--weights", action="store_true", help="gc: also trained weights and states that only finished runs refer to"
    )
    options.add_argument("--dry-run", action="store_true", help="gc: say what would go, and keep it")
    options.add_argument("--store", type=Path, metavar="DIR", help="where it lies apart (default: <outputs>/store)")
    given = options.parse_args(arguments)
    outputs = existing(given.outputs)
    store = StageStore(given.store or outputs / "store")
    if given.action == "verify":
        return _verify(store, outputs)
    if given.action == "ls":
        return _list(store, outputs)
    return _collect(store, outputs, given.weights, given.dry_run)


def _list(store: StageStore, outputs: Path) -> int:
    from xclrun.store.prune import entries

    totals: dict[str, list[int]] = defaultdict(list)
    rows = []
    for entry in entries(store, outputs):
        totals[entry.kind].append(entry.bytes)
        users = (str(entry.finished), str(entry.unfinished))
        rows.append((entry.path.name[:16], entry.kind, entry.hop, size(entry.bytes), *users))
    if rows:
        print(table(("key", "kind", "hop", "size", "finished runs", "others"), rows, left=3))
    for kind, sizes in sorted(totals.items()):
        print(f"{len(sizes)} {kind}: {size(sum(sizes))}")
    return 0


def _collect(store: StageStore, outputs: Path, weights: bool, dry: bool) -> int:
    from xclrun.store.prune import removable, remove

    gone = freed = 0
    for entry in list(removable(store, outputs, weights)):
        if dry or remove(store, entry):
            gone += 1
            freed += entry.bytes
            did = "would remove" if dry else "removed"
            print(f"{did} {entry.kind} {entry.path.name[:16]} {entry.hop} {size(entry.bytes)}")
    print(f"{gone} {'to remove' if dry else 'removed'}: {size(freed)}")
    return 0


def _verify(store: StageStore, outputs: Path) -> int:
    from xclrun.model import e5
    from xclrun.store.prune import damaged

    lines = list(damaged(store, outputs))
    if (converted := e5.converted()).is_dir() and (wrong := e5.damaged(converted)) is not None:
        lines.append(f"{wrong}: missing or changed since it was written; the next run that needs it converts it again")
    print("\n".join(lines) if lines else "Everything matches its checksums.")
    return int(bool(lines))
