"""Pretrained language adapters: locate, identify and read them.

An adapter is a folder with ``adapter_config.json`` and ``adapter.safetensors``, either local or on the hub
(``owner/name``). The library `adapters` writes it with ``model.save_adapter(DIR, NAME, use_safetensors=True)``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.core.errors import UsageError
from xclrun.core.identity import digest
from xclrun.model.folder import check_header, one_line, read_object, refuse_code
from xclrun.store.files import sha256

if TYPE_CHECKING:
    from torch import Tensor

FILES = ("adapter_config.json", "adapter.safetensors")

# Settings that need not equal the strategy's, because the initialization does not matter after training.
_IGNORED = {"init_weights", "init_weights_seed"}


def locate(key: str, name: str) -> Path:
    """Return the local folder of an adapter; download it if needed. ``key`` is the config key, for messages."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
            raise UsageError(f"{key}={name}: neither a folder nor a name on the hub (owner/name)")
        folder = _from_hub(key, name)
    if not (folder / FILES[0]).is_file():
        raise UsageError(f"{key}={name}: has no {FILES[0]}; use a folder that save_adapter wrote")
    if not (folder / FILES[1]).is_file():
        raise UsageError(
            f"{key}={name}: has no {FILES[1]}, and pickles are never read; save the adapter with "
            "save_adapter(DIR, NAME, use_safetensors=True)"
        )
    refuse_code(folder, f"{key}={name}", FILES[:1])
    return folder


@lru_cache
def _from_hub(key: str, name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    remedy = "use a local folder that save_adapter(DIR, NAME, use_safetensors=True) wrote"
    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    except RepositoryNotFoundError as error:
        raise UsageError(f"{key}={name}: neither a folder nor on the hub; {remedy}") from error
    except OSError as error:
        raise UsageError(f"{key}={name}: not a folder, and the hub cannot be reached; {remedy}") from error


@lru_cache
def _identity(folder: Path) -> str:
    return digest([[name, sha256(folder / name)] for name in FILES])


def adapter_identity(key: str, name: str) -> str:
    """Return the hash of an adapter's content."""
    folder = locate(key, name).resolve()
    check_header(folder / FILES[1], f"{key}={name}")
    return _identity(folder)


def read_adapter(encoder: Any, target: str, key: str, name: str) -> dict[str, Tensor]:
    """Return the weights of a pretrained adapter under the names of ``target``; the encoder does not change."""
    folder, guest = locate(key, name), f"{target}_read"
    expected = dict(encoder.adapters_config.get(target))
    report: dict[str, Any] = {}
    try:
        with one_line(f"{key}={name}: does not fit this encoder"), quiet("adapters"):
            settings = read_object(folder / FILES[0], f"{key}={name}")["config"]
            different = [k for k, v in expected.items() if settings.get(k, v) != v and k not in _IGNORED]
            if different:
                differs = ", ".join(f"{k}={settings.get(k)} instead of {expected[k]}" for k in different)
                raise UsageError(f"{key}={name}: is another kind of adapter ({differs})")
            encoder.load_adapter(str(folder), load_as=guest, use_safetensors=True, loading_info=report)
            marked = f".{guest}."
            values = encoder.state_dict().items()
            read = {k.replace(marked, f".{target}."): v.clone() for k, v in values if marked in k}
    finally:
        if guest in encoder.adapters_config.adapters:
            encoder.delete_adapter(guest)
    if report["missing_keys"]:
        raise UsageError(f"{key}={name}: does not fit this encoder (it lacks {report['missing_keys'][0]})")
    return read


@contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Suppress the warnings of a library."""
    library = logging.getLogger(logger)
    level = library.level
    library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.setLevel(level)
