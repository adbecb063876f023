"""The plug-ins that the pages show pass their contracts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from xclrun.config.schema import DatasetConfig
from xclrun.core.plugins import load_file
from xclrun.testing import check_metric, check_reader, check_strategy, check_task

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = pytest.mark.usefixtures("forget_plugins")


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write the plug-in that a page shows."""

    def write(page: str, name: str) -> Path:
        text = (DOCS / page).read_text(encoding="utf-8")
        [content] = re.findall(
            rf"^```python\n# (?:file: )?{re.escape(name)}\n(.*?)^```", text, re.DOTALL | re.MULTILINE
        )
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return path

    return write


@pytest.fixture
def rated(tmp_path: Path) -> Path:
    """Texts with a rating."""
    for language in ("en", "de"):
        for split in ("train", "dev", "test"):
            path = tmp_path / "data" / language / f"{split}.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [f"{'good' if i % 3 else 'bad'}\tday {i} in {split}\n" for i in range(6)]
            path.write_text("".join(rows), encoding="utf-8")
    return tmp_path / "data"


@pytest.mark.full
def test_the_strategy(plugin: Callable[[str, str], Path]) -> None:
    check_strategy("flooding", plugin=plugin("plugins.md", "flooding.py"))


@pytest.mark.full
def test_the_task(plugin: Callable[[str, str], Path], rated: Path) -> None:
    check_task(
        "rating", "dataset=rated", f"dataset.root={rated}", "order=[en,de]",
        plugin=plugin("extending/task.md", "ratings.py"),
    )  # fmt: skip


def test_the_reader_of_the_task(plugin: Callable[[str, str], Path], rated: Path) -> None:
    load_file(plugin("extending/task.md", "ratings.py"), "ratings.py")
    check_reader(DatasetConfig(name="rated", reader="rated", task="rating", root=str(rated)))


def test_the_metric(plugin: Callable[[str, str], Path]) -> None:
    load_file(plugin("extending/metric.md", "blunders.py"), "blunders.py")
    check_metric("blunder_rate")
