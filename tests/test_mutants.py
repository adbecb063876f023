"""The list of `make mutants`: every entry is a mistake in code that is there, of every room, with tests that are there.

That its tests fail on each mistake is what `make mutants` itself shows.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, mutants

LEAST = 150
LIST = mutants()


@cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def code_of(text: str) -> str:
    """Return what a text says to Python, comments and layout left out."""
    return ast.dump(ast.parse(text))


def test_there_are_many_mistakes_and_each_once() -> None:
    assert len(LIST) >= LEAST
    assert len({(m.file, m.old, m.new) for m in LIST}) == len(LIST)


def test_every_room_has_mistakes() -> None:
    rooms = {path.name for path in (ROOT / "xclrun").iterdir() if any(path.glob("*.py"))} | {"cli.py", "study.py"}
    assert {Path(m.file).parts[1] for m in LIST} == rooms


@pytest.mark.parametrize("file", sorted({m.file for m in LIST}))
def test_each_entry_changes_code_that_is_there_into_code_that_can_be_compiled(file: str) -> None:
    text = text_of(file)
    wrong = {str(m): text.count(m.old) for m in LIST if m.file == file and text.count(m.old) != 1}
    assert not wrong, "old text must be there once"
    # A text that cannot be compiled would be found without any test.
    same = [str(m) for m in LIST if m.file == file and code_of(text.replace(m.old, m.new)) == code_of(text)]
    assert not same


@pytest.mark.parametrize("name", sorted({name for m in LIST for name in m.tests.split()}))
def test_its_tests_exist_in_the_fast_tier(name: str) -> None:
    file, _, test = name.partition("::")
    functions = {n.name: n for n in ast.parse(text_of(file)).body if isinstance(n, ast.FunctionDef)}
    chosen = [functions[test]] if test else [n for n in functions.values() if n.name.startswith("test_")]
    assert any("pytest.mark.full" not in map(ast.unparse, n.decorator_list) for n in chosen)
