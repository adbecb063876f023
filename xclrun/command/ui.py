"""``xclrun mlflow ui``: MLflow's web interface on the runs."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

from xclrun.command.common import existing, outputs_parser
from xclrun.core.errors import UsageError
from xclrun.core.terminal import line

# Environment of the server, unless the user has set a variable: no log of requests, which would follow the address of
# the runs; no warnings about MLflow's own dependencies; and no processes for jobs, which xclrun does not use.
QUIET = {
    "UVICORN_ACCESS_LOG": "false",
    "UVICORN_LOG_LEVEL": "warning",
    "PYTHONWARNINGS": "ignore",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}


def main(arguments: Sequence[str]) -> int:
    """Run MLflow's server in place of this process."""
    parser = outputs_parser("mlflow ui", "Start MLflow's web interface on the runs; ends with Ctrl-C.")
    parser.add_argument("--port", type=int, default=5000, help="port on this machine (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    args = parser.parse_args(arguments)
    if not 1 <= args.port <= 65535:
        raise UsageError(f"--port {args.port}: must be a number from 1 to 65535")
    outputs = existing(args.outputs)
    if not (outputs / "mlflow.db").is_file():
        raise UsageError(
            f"--outputs {outputs}: contains no mlflow.db; create it with `xclrun mlflow sync`, or start a run"
        )
    _check_free(args.host, args.port)
    from xclrun.tracking.mirror import run_pages, tracking_uri

    place = f"http://{args.host}:{args.port}"
    line("MLflow is starting, which takes a few seconds …")
    # The server replaces this process, so another process waits for its answer.
    if not os.fork():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        server = os.getppid()
        pages = "".join(f"\nruns with their headline measures: {page}" for page in run_pages(outputs, place))
        while os.getppid() == server and not _answers(args.host, args.port):
            time.sleep(0.2)
        if os.getppid() == server:
            print(f"MLflow on {place} (Ctrl-C ends it){pages}", file=sys.stderr, flush=True)
        os._exit(0)
    uri = tracking_uri(outputs, None)
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--registry-store-uri", uri]
    command += ["--host", args.host, "--port", str(args.port), "--workers", "1"]
    os.execve(sys.executable, command, {**QUIET, **os.environ})


def _answers(host: str, port: int) -> bool:
    """Whether a server answers requests at the address."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _check_free(host: str, port: int) -> None:
    """Raise a `UsageError` if the port cannot be used: MLflow would print a traceback and exit with code 0."""
    try:
        kind, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--host {host} --port {port}: cannot listen ({why}); choose another port") from None
