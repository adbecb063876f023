"""The suite itself: every test checks something."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import alone
from tests.conftest import QUARTER, leave_to_full_tier, of_other_turns

ROOT = Path(__file__).parent
FILES = sorted(ROOT.rglob("test_*.py"))
# Calls that have as many elements as their argument.
WRAPPERS = ("enumerate", "sorted", "reversed", "list", "tuple", "set")


def never_empty(node: ast.expr) -> bool:
    """Whether an iterable is seen to have elements: a literal, a constant of the module, or `tests.conftest.some`."""
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return bool(elements)
        case ast.Dict(keys=keys):
            return bool(keys)
        case ast.Constant(value=value):
            return bool(value)
        case ast.Name(id=name):
            return name.isupper()
        case ast.Attribute(attr=name):
            return name.isupper()
        case ast.Call(func=ast.Name(id="some" | "range")):
            return True
        case ast.Call(func=ast.Name(id="zip"), args=args, keywords=keywords):
            return any(never_empty(arg) for arg in args) and any(keyword.arg == "strict" for keyword in keywords)
        case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in WRAPPERS:
            return never_empty(first)
        case ast.Call(func=ast.Attribute(value=value, attr="items" | "values" | "keys" | "split")):
            return never_empty(value)
    return False


def unchecked(function: ast.FunctionDef) -> list[str]:
    """Return the loops of a test that hold all of its assertions and may be empty."""
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For) and not never_empty(node.iter)]
    inside = {id(node) for loop in loops for node in ast.walk(loop)}
    checks = [node for node in ast.walk(function) if isinstance(node, ast.Assert) or is_raises(node)]
    if not checks or any(id(node) not in inside for node in checks):
        return []
    return [ast.unparse(loop.iter) for loop in loops]


def is_raises(node: ast.AST) -> bool:
    """Whether a node is ``pytest.raises(…)`` or ``pytest.warns(…)``."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("raises", "warns")


def functions(text: str) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_test_passes_because_its_loop_is_empty(file: Path) -> None:
    wrong = [f"{f.name}: {loop}" for f in functions(file.read_text(encoding="utf-8")) for loop in unchecked(f)]
    assert not wrong, "wrap the iterable in tests.conftest.some"


def test_a_loop_that_may_be_empty_is_seen() -> None:
    [empty, outside, literal, wrapped] = functions(
        "def test_a():\n for x in found(): assert x\n"
        "def test_b():\n xs = found()\n for x in xs: assert x\n assert xs\n"
        "def test_c():\n for x in (1, 2): assert x\n"
        "def test_d():\n for i, x in enumerate(some(found())): assert x\n"
    )
    assert [bool(unchecked(f)) for f in (empty, outside, literal, wrapped)] == [True, False, False, False]


def test_all_of_nothing_fails_in_tests() -> None:
    with pytest.raises(AssertionError):
        assert all(x for x in [])


@pytest.mark.parametrize(
    ("names", "fast"),
    [((), ["a", "e"]), (("b", "e"), ["b", "e"]), (("b", "x"), None)],
    ids=["quarter", "named", "wrong"],
)
def test_some_cases_of_a_costly_test_are_fast_ones(names: tuple[str, ...], fast: list[str] | None) -> None:
    marks = {case: [pytest.mark.some_cases(*names).mark] for case in "abcdef"}

    def item(case: str) -> Any:
        return SimpleNamespace(
            nodeid=f"test_it[{case}]",
            get_closest_marker=lambda name: next((m for m in marks[case] if m.name == name), None),
            add_marker=lambda name: marks[case].append(getattr(pytest.mark, name).mark),
        )

    if fast is None:
        with pytest.raises(pytest.UsageError, match="no case x"):
            leave_to_full_tier([item(case) for case in marks])
        leave_to_full_tier([item("c")])
        return
    leave_to_full_tier([item(case) for case in marks])
    assert [case for case, given in marks.items() if "full" not in [mark.name for mark in given]] == fast


def test_each_case_that_takes_turns_is_tested_in_one_of_four_turns_and_named_ones_in_each() -> None:
    def item(name: str, *marks: Any) -> Any:
        of = {mark.mark.name: mark.mark for mark in marks}
        return SimpleNamespace(nodeid=name, get_closest_marker=of.get)

    full, turn = pytest.mark.full, pytest.mark.in_turn("always")
    taking = [item(f"test_it[{case}]", full, turn) for case in "abcdefg"]
    taking += [item(f"test_{number}", full, turn) for number in range(20)]
    lasting = [item("test_it[always]", full, turn), item("test_it[fast]", turn), item("test_other[a]", full)]
    tested = [
        [i.nodeid for i in (*taking, *lasting) if i not in of_other_turns([*taking, *lasting], turn)]
        for turn in range(QUARTER)
    ]
    for one in taking:
        assert sum(one.nodeid in names for names in tested) == 1, one.nodeid
    for one in lasting:
        assert all(one.nodeid in names for names in tested), one.nodeid
    # Tests with one case are spread over the turns, too.
    assert all(1 <= sum(name.endswith("]") for name in names) - 3 <= 2 and len(names) > 6 for names in tested)
    assert of_other_turns(taking, 0) == of_other_turns(taking, QUARTER)


def test_each_file_is_tested_by_itself_in_one_of_four_turns() -> None:
    quarters = [alone.chosen(FILES, turn) for turn in range(alone.QUARTER)]
    assert sorted(path for quarter in quarters for path in quarter) == FILES
    assert alone.chosen(FILES, alone.QUARTER) == quarters[0]


ALONE = """
import os, subprocess, sys
import pytest

def test_surroundings(tmp_path):
    assert os.environ["COLUMNS"] == "40"
    assert "xclrun" not in sys.modules
    code = "import sys; print(sys.stdout.encoding)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
    assert found in ("latin-1", "iso8859-1")
    secret = tmp_path / "secret"
    secret.touch(0o000)
    with pytest.raises(PermissionError):
        secret.read_text()
    assert subprocess.run(["cat", str(secret)], capture_output=True).returncode == 1
"""


@pytest.mark.full
@pytest.mark.parametrize(("more", "code"), [("", 0), ("\ndef test_wrong():\n    assert False\n", 1)])
def test_a_file_by_itself_has_a_narrow_terminal_and_no_rights(more: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "test_made.py").write_text(ALONE + more)
    command = [sys.executable, "-m", "tests.alone", str(tmp_path / "test_made.py")]
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert ("test_wrong" in done.stdout) == bool(code)
