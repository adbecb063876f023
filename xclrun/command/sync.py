"""``xclrun sync``: bring MLflow up to date."""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.command.common import add_tracking, existing, parser
from xclrun.config import TrackingConfig


def main(arguments: Sequence[str]) -> int:
    """Send runs to MLflow; return the exit code."""
    options = parser(
        "sync", "Send runs to MLflow that it does not have, or has in an older state. Sending twice changes nothing."
    )
    options.add_argument("--rebuild", action="store_true", help="send everything again, as to an MLflow that was lost")
    add_tracking(options)
    given = options.parse_args(arguments)
    outputs = existing(given.outputs)
    from xclrun.track import Mirror

    mirror = Mirror(outputs, TrackingConfig(uri=given.uri, experiment=given.experiment))
    sent = mirror.send_all(rebuild=given.rebuild)
    print(f"{sent} run{'' if sent == 1 else 's'} sent to {mirror.uri}")
    return 0
