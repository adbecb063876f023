"""Facts that follow from code and settings alone, and take seconds to find out: kept by all that they follow from.

``<folder>/<what>-<key>-<SHA-256>.json`` (see `xclrun.store.kept`). The key has the source of the package and of the
plug-ins that are loaded, and the versions of the libraries that models are made of, so no other code's facts are
ever read; what is damaged is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import xclrun
from xclrun.core import plugins
from xclrun.core.errors import XclrunError
from xclrun.core.identity import digest
from xclrun.store.kept import Kept

# What models are made of.
LIBRARIES = ("torch", "transformers", "tokenizers", "adapters", "pytorch-crf")


def remembered(folder: Path, what: str, of: Any, find: Callable[[], Any]) -> Any:
    """Return what ``find`` returns, which JSON can hold; from ``folder``, if it is there.

    Args:
        what: kind of the facts, part of the file's name.
        of: all that they follow from but code, which JSON can hold.
        find: finds them out.
    """
    kept = Kept(folder, f"{what}-{digest([source(), plugins.hashes(), of])[:32]}", ".json")
    if (content := kept.read()) is not None:
        return json.loads(content)
    found = find()
    # A folder that cannot be written costs time, nothing else.
    with contextlib.suppress(XclrunError):
        kept.write(json.dumps(found, ensure_ascii=False).encode())
    return found


@cache
def source() -> str:
    """Return the hash of the package's Python files, and of the versions of the libraries."""
    root = Path(xclrun.__file__).parent
    files = [(str(path.relative_to(root)), hashlib.sha256(path.read_bytes())) for path in sorted(root.rglob("*.py"))]
    versions = {}
    for library in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions[library] = version(library)
    return digest([[[name, of.hexdigest()] for name, of in files], versions])
