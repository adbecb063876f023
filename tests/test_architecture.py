"""docs/architecture.md: its picture shows how packages import one another, and its walks name code that is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import grimp
import pytest

from tests.conftest import some

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")


class Place(NamedTuple):
    """Where the picture shows a package: the number of its row from the top, and its tower; None: the whole width."""

    row: int
    tower: int | None


def picture() -> dict[str, Place]:
    """Return package → its place."""
    [text] = re.findall(r"```text\n(┌.*?)```", PAGE, re.DOTALL)
    rows = [line.strip("│").split("│") for line in text.splitlines() if line.startswith("│")]
    places = {}
    for row, cells in enumerate(rows):
        for tower, cell in enumerate(cells):
            for package in re.findall(r"\w+", cell):
                assert package not in places
                places[package] = Place(row, tower if len(cells) == 2 else None)
    return places


@pytest.fixture(scope="module")
def imports() -> set[tuple[str, str]]:
    """The pairs (package, package that one of its files imports), for types too."""
    graph = grimp.build_graph("xclrun", exclude_type_checking_imports=False, cache_dir=None)
    # The package itself is a lazy face of its parts.
    modules = [module for module in graph.modules if module != "xclrun"]
    pairs = {
        (m.split(".")[1], n.split(".")[1])
        for m in modules
        for n in graph.find_modules_directly_imported_by(m)
        if "." in n
    }
    return {(package, other) for package, other in pairs if package != other}


def test_the_picture_shows_every_package_and_the_table_describes_it() -> None:
    packages = {path.stem for path in (REPOSITORY / "xclrun").glob("*.py")}
    packages |= {path.parent.name for path in (REPOSITORY / "xclrun").glob("*/__init__.py")}
    assert picture().keys() == packages - {"__init__"}
    table = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ", PAGE, re.MULTILINE)
    assert sorted(re.findall(r"\w+", " ".join(table))) == sorted(picture())


def test_packages_import_only_from_floors_below_and_never_from_the_other_tower(imports: set[tuple[str, str]]) -> None:
    places = picture()
    assert ("train", "strategy") in imports, "imports are found"
    assert not [(a, b) for a, b in imports if places[b].row <= places[a].row]
    towers = {(a, b): {places[a].tower, places[b].tower} - {None} for a, b in imports}
    assert not [pair for pair, between in towers.items() if len(between) == 2]


def test_the_order_of_floors_is_that_of_the_import_contract() -> None:
    """In a tower, and on the floors that both share; a package above both towers may have a lower layer."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    [contract] = re.findall(r"^layers = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    layers = [layer.split(" | ") for layer in re.findall(r'"(.+?)"', contract)]
    assert len(layers) <= 12
    depth = {package: number for number, layer in enumerate(layers) for package in layer}
    places = picture()
    assert depth.keys() == places.keys()
    first_of_towers = min(place.row for place in places.values() if place.tower is not None)
    groups = {package: "above" if place.row < first_of_towers else place.tower for package, place in places.items()}
    for group in some(set(groups.values())):
        mine = sorted((places[package].row, depth[package]) for package in places if groups[package] == group)
        assert [layer for _, layer in mine] == sorted(layer for _, layer in mine)


@cache
def defined(path: str) -> set[str]:
    """Return the functions and classes of a file, and the methods of its classes as ``Class.method``."""
    tree = ast.parse((REPOSITORY / "xclrun" / path).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, (*functions, ast.ClassDef))}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, functions)}
    return names


def walks() -> dict[str, list[tuple[str, str]]]:
    """Return walk → the files and names that it visits, in order."""
    [section] = re.findall(r"^## Three walks through the code\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
    parts = re.split(r"^### (.*)$", section, flags=re.MULTILINE)[1:]
    return {
        title: re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", text)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.mark.parametrize("walk", walks())
def test_a_walk_names_files_and_functions_that_are_there(walk: str) -> None:
    visited = some(walks()[walk])
    missing = [f"{file}:{name}" for file, name in visited if name and name not in defined(file)]
    assert not missing
    assert all((REPOSITORY / "xclrun" / file).is_file() for file, _ in visited)
    assert len({file for file, _ in visited}) >= 7


def test_there_are_three_walks_of_about_ten_lines() -> None:
    [section] = re.findall(r"^## Three walks through the code\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
    parts = re.split(r"^### ", section, flags=re.MULTILINE)[1:]
    assert len(parts) == 3
    assert all(5 <= len(re.findall(r"^\d+\. ", part, re.MULTILINE)) <= 10 for part in parts)
