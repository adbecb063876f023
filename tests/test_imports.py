"""The files of the package import each other in one direction (the contracts in pyproject.toml are about packages)."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


def test_no_file_imports_itself_through_others() -> None:
    """Imports inside functions, and imports for type hints, count too."""
    graph = grimp.build_graph("xclrun", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert "xclrun.core.errors" in imports["xclrun.cli"], "imports are found"
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports; move what both files need to a third one: {' ← '.join(error.args[1])}")
