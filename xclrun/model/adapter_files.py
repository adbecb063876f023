"""Pretrained language adapters: where one comes from, what identifies it, and how its values are read.

A local folder, or a name on the hub (``owner/name``), with ``adapter_config.json`` and ``adapter.safetensors``: what
``model.save_adapter(DIR, NAME, use_safetensors=True)`` of the library `adapters` writes. Nothing else is read.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from xclrun.core.errors import UsageError
from xclrun.core.identity import digest
from xclrun.model.folder import header, refuse_code
from xclrun.store.files import sha256

if TYPE_CHECKING:
    from torch import Tensor

FILES = ("adapter_config.json", "adapter.safetensors")

# The initialisation does not matter for a trained adapter.
_OF_NO_MATTER = {"init_weights", "init_weights_seed"}


def locate(key: str, name: str) -> Path:
    """Return the local folder of an adapter, fetching it from the hub where ``name`` is no folder.

    Args:
        key: the config key that gives the name, for messages.

    Raises:
        UsageError: there is no such adapter, or it is not stored as safetensors.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
            raise UsageError(f"{key}={name}: neither a folder nor a name on the hub (owner/name)")
        folder = _from_hub(key, name)
    if not (folder / FILES[0]).is_file():
        raise UsageError(f"{key}={name}: has no {FILES[0]}; it must hold an adapter that save_adapter wrote")
    if not (folder / FILES[1]).is_file():
        raise UsageError(
            f"{key}={name}: has no {FILES[1]}; weights in other formats are pickles, never read: save the adapter with "
            "save_adapter(DIR, NAME, use_safetensors=True)"
        )
    refuse_code(folder, f"{key}={name}", FILES[:1])
    return folder


@lru_cache
def _from_hub(key: str, name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    remedy = "give a local folder that save_adapter(DIR, NAME, use_safetensors=True) wrote"
    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    except RepositoryNotFoundError as error:
        raise UsageError(f"{key}={name}: neither a folder nor on the hub; {remedy}") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise UsageError(f"{key}={name}: not a folder, and the hub cannot be reached; {remedy}") from error


@lru_cache
def _identity(folder: Path) -> str:
    return digest([[name, sha256(folder / name)] for name in FILES])


def adapter_identity(key: str, name: str) -> str:
    """Return the hash of an adapter's content.

    Raises:
        UsageError: as `locate`; or its file is damaged.
    """
    folder = locate(key, name).resolve()
    header(folder / FILES[1], f"{key}={name}")
    return _identity(folder)


def read_adapter(encoder: Any, own: str, key: str, name: str) -> dict[str, Tensor]:
    """Return a pretrained adapter's values under the names that those of the adapter ``own`` have in the encoder.

    The encoder is left as it was.

    Raises:
        UsageError: as `locate`; or the adapter is of another kind or for another encoder.
    """
    folder, guest = locate(key, name), f"{own}_read"
    wanted = dict(encoder.adapters_config.get(own))
    try:
        given = json.loads((folder / FILES[0]).read_text(encoding="utf-8"))["config"]
        differs = [f"{k}={given.get(k)} in place of {v}" for k, v in wanted.items() if given.get(k, v) != v]
        if different := [text for text in differs if text.partition("=")[0] not in _OF_NO_MATTER]:
            raise UsageError(f"{key}={name}: is another kind of adapter ({', '.join(different)})")
        report: dict[str, Any] = {}
        with quiet("adapters"):
            encoder.load_adapter(str(folder), load_as=guest, use_safetensors=True, loading_info=report)
        values = encoder.state_dict()
        marked = f".{guest}."
        found = {k.replace(marked, f".{own}."): v.clone() for k, v in values.items() if marked in k}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"{key}={name}: does not fit this encoder ({str(error).splitlines()[0]})") from error
    finally:
        if guest in encoder.adapters_config.adapters:
            encoder.delete_adapter(guest)
    if report["missing_keys"]:
        raise UsageError(f"{key}={name}: does not fit this encoder (it lacks {report['missing_keys'][0]})")
    return found


@contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Suppress library warnings about something that is checked here or mended in the next line."""
    found = logging.getLogger(logger)
    before = found.level
    found.setLevel(logging.ERROR)
    try:
        yield
    finally:
        found.setLevel(before)
