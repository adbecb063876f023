"""``xclrun ui``: MLflow's pages on the runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from xclrun.command.common import existing, parser
from xclrun.errors import UsageError


def main(arguments: Sequence[str]) -> int:
    """Become MLflow's server."""
    options = parser("ui", "Open MLflow's pages on the runs; ends with Ctrl-C.")
    options.add_argument("--port", type=int, default=5000, help="port on this machine (default: %(default)s)")
    options.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    given = options.parse_args(arguments)
    outputs = existing(given.outputs)
    if not (outputs / "mlflow.db").is_file():
        raise UsageError(f"--outputs {outputs}: holds no mlflow.db yet; run something first, or `xclrun sync`")
    from xclrun.track import saved_views, tracking_uri

    place = f"http://{given.host}:{given.port}"
    views = "".join(f"\nruns with their headline measures: {view}" for view in saved_views(outputs, place))
    print(f"MLflow on {place} (Ctrl-C ends it){views}", file=sys.stderr, flush=True)
    server = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", tracking_uri(outputs, None)]
    os.execv(sys.executable, [*server, "--host", given.host, "--port", str(given.port)])
