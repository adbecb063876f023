"""``xclrun status``: where the runs of a sweep stand."""

from __future__ import annotations

import json
from collections.abc import Sequence

from xclrun.command.common import choose, parser
from xclrun.errors import UsageError


def main(arguments: Sequence[str]) -> int:
    """Print where runs stand; return 1 if any failed or was lost."""
    options = parser("status", "Where the runs of a sweep stand. Exit code 1 if any failed or was lost.")
    options.add_argument("sweep", nargs="?", help="name of a sweep, or `all` (default: the one that was started last)")
    options.add_argument("--json", action="store_true", help="print facts as JSON")
    given = options.parse_args(arguments)

    from xclrun import status
    from xclrun.records import sweeps

    known = {sweep["name"]: sweep for sweep in sweeps(given.outputs)}
    if not known:
        raise UsageError(f"--outputs {given.outputs}: no sweep was started here")
    if given.sweep not in (None, "all"):
        choose("sweep", given.sweep, known, str(given.outputs))
    latest = list(known)[-1]
    chosen = list(known.values()) if given.sweep == "all" else [known[given.sweep or latest]]
    told, bad = [], False
    for sweep in chosen:
        found = status.sweep_status(given.outputs, sweep["runs"])
        bad = bad or any(s.state in status.BAD for s in found)
        if given.json:
            told.append({"sweep": sweep["name"], "command": sweep["command"], "runs": status.to_json(found)})
        else:
            print(status.render(sweep["name"], sweep["command"], found))
    if given.json:
        print(json.dumps(told, indent=1))
    return int(bad)
