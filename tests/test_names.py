"""Names in files, links and pages: what they become is safe, and different for different names."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

from xclrun.core import names
from xclrun.core.names import LONGEST, slug
from xclrun.core.version import PACKAGE

ODD = ("..", ".x", "--help", "-", "_", "a b", "a_b", "a/b", "a\\b", "é" * 100, "é" * 101, "<b>", "a\n", "x" * 300)


def test_a_slug_is_safe_and_tells_names_apart() -> None:
    found = [slug(name) for name in ODD]
    assert len(set(found)) == len(ODD)
    for made in found:
        assert made.strip()
        assert made[0] not in ".-_"
        assert not set(made) & set("/\\ <>\n")
        assert len(made.encode()) <= LONGEST
    assert [slug(name) for name in ("h2l", "er(memory=7)", "a=b+c.d-e")] == ["h2l", "er_memory=7-5c6f4e", "a=b+c.d-e"]


def test_examples_in_docstrings_are_true() -> None:
    """Of every module that shows some."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]
    assert Path(names.__file__) in paths
    for path in paths:
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        failed, tried = doctest.testmod(importlib.import_module(module))
        assert (failed, tried > 0) == (0, True), module
