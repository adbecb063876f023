"""New MLflow databases, copied from a template: MLflow needs a second to create the 60 tables of an empty file.

The template is in the user's cache folder, one for each version of MLflow. MLflow itself makes it: its client creates
the tables, and its garbage collection removes the experiment ``Default``, whose location is an absolute path. The
client creates this experiment again when it first opens a copy.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

from xclrun.core.errors import XclrunError
from xclrun.store.cache import CachedFile, cache_folder
from xclrun.store.files import atomic_write

# Seconds to wait for MLflow to make the template.
LIMIT = 120.0
# Runs in a separate process, because MLflow's garbage collection changes the address of MLflow for its process.
_MAKE = """
import sys
from mlflow import MlflowClient
from mlflow.cli import gc
uri = sys.argv[1]
MlflowClient(uri).delete_experiment("0")
gc.main(["--backend-store-uri", uri, "--tracking-uri", uri, "--experiment-ids", "0"], standalone_mode=False)
"""


def create_database(path: Path) -> None:
    """Create MLflow's SQLite file with the permissions of the umask.

    The file is empty if there is no template; MLflow then creates the tables when it opens the file.
    """
    content = _template()
    if content is None:
        # SQLite would create the file without write permission for the group, whatever the umask.
        path.touch()
    else:
        atomic_write(path, content)


def _template() -> bytes | None:
    """Return the template; make it if it is missing. Return None if MLflow cannot make it."""
    import mlflow

    try:
        file = CachedFile(cache_folder(), f"mlflow-{mlflow.__version__}", ".db")
    except RuntimeError:
        # The user has no home folder.
        return None
    if (content := file.read()) is None and (content := _make()) is not None:
        # Processes that make it at the same time write equally valid files. Without a writable folder, it is not kept.
        with contextlib.suppress(XclrunError, OSError):
            file.write(content)
    return content


def _make() -> bytes | None:
    with tempfile.TemporaryDirectory(prefix="xclrun-") as folder:
        path = Path(folder, "template.db")
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            # In the temporary folder, because MLflow can create the folder of the experiment.
            subprocess.run(
                [sys.executable, "-c", _MAKE, f"sqlite:///{path}"], check=True, cwd=folder, timeout=LIMIT,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            return path.read_bytes()
    return None
