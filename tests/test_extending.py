"""docs/extending: the files of each page are added to a copy of the checkout, and its tests and commands run."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TINY

pytestmark = pytest.mark.full

REPOSITORY = Path(__file__).parents[1]
PAGES = sorted((REPOSITORY / "docs" / "extending").glob("*.md"))
BLOCK = re.compile(r"^```\w+\n# (file|append to): (\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Runs the commands of all pages in one process, each in the directory of its page; prints exit codes and output.
DRIVER = """
import contextlib, io, json, os, sys
from xclrun.cli import main
for folder, arguments in json.load(sys.stdin):
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(arguments)
    print(json.dumps([arguments, code, said.getvalue()]))
"""


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def run(copy: Path, *arguments: str, stdin: str = "") -> str:
    """Run Python in the copy, without this checkout on its path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("XCLRUN")} | {"PYTHONPATH": str(copy)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=copy, env=environment, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with the files of all pages."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("xclrun", "conf", "sweeps", "tests", "docs"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    for page in PAGES:
        for action, name, content in BLOCK.findall(text(page)):
            path = folder / name
            assert path.is_file() == (action == "append to"), f"{page.name}: {name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"\n\n{content}" if action == "append to" else content)
    return folder


@pytest.fixture(scope="module")
def commands(copy: Path) -> dict[str, list[tuple[list[str], int, str]]]:
    """Page → (command, exit code, output); overrides for small runs are added."""
    data = copy / "DATA"
    for language in ("en", "de"):
        (data / language).mkdir(parents=True)
        for split in ("train", "dev", "test"):
            lines = [f"{'good' if i % 3 else 'bad'}\tday {i} in {split} {language}\n" for i in range(40)]
            (data / language / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    requests = []
    for page in PAGES:
        for line in re.findall(r"^    xclrun (.*)$", text(page), re.MULTILINE):
            words = line.replace("DATA", str(data)).split()
            # Plug-ins lie beside the tests of their pages.
            words = [str(copy / word) if word.endswith(".py") else word for word in words]
            many = words[-1] == "-m"
            small = (
                [request for request in TINY if "=" in words[0] or request.startswith("model.")] if "=" in line else []
            )
            requests.append((page.stem, words[: len(words) - many] + small + ["-m"] * many))
    # Pages on metrics, measures and figures use the runs of the page on strategies. A plug-in stays loaded, so its page
    # comes last.
    places = {name: "strategy" if name in ("metric", "measure", "figure") else name for name, _ in requests}
    order = sorted(requests, key=lambda request: (request[0] == "metric", request[0] != "strategy"))
    stdin = json.dumps([(str(copy / "work" / places[name]), words) for name, words in order])
    answers = [json.loads(line) for line in run(copy, "-c", DRIVER, stdin=stdin).splitlines()]
    answers_of: dict[str, list[tuple[list[str], int, str]]] = {}
    for (name, _), answer in zip(order, answers, strict=True):
        answers_of.setdefault(name, []).append(tuple(answer))
    return answers_of


def summary(copy: Path, name: str) -> list[dict[str, str]]:
    [path] = (copy / "work" / name / "outputs" / "reports").glob("*/summary.csv")
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_are_short_and_their_commands_work(
    page: Path, commands: dict[str, list[tuple[list[str], int, str]]]
) -> None:
    assert len(text(page).split()) < 500
    assert BLOCK.search(text(page))
    assert commands[page.stem]
    for words, code, output in commands[page.stem]:
        assert code == 0, f"{' '.join(words)}: {output}"


def test_the_tests_of_the_pages_pass(copy: Path) -> None:
    files = [name for page in PAGES for _, name, _ in BLOCK.findall(text(page)) if name.startswith("tests/")]
    named = [name for page in PAGES for name in re.findall(r"^    pytest (\S+)$", text(page), re.MULTILINE)]
    assert len(files) == 7
    output = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, *named)
    assert " passed" in output


def test_what_was_added_is_used(copy: Path, commands: dict[str, list[tuple[list[str], int, str]]]) -> None:
    rows = summary(copy, "strategy")
    assert {row["strategy"] for row in rows} == {"naive", "frozen_embed"}
    last = [row for row in rows if row["measure"] == "LastHop" and row["order"] == "mean"]
    # Two strategies, each with intents, slots and the metric of its page.
    assert len(last) == 6
    assert {row["metric"] for row in last} == {"intent_accuracy", "slot_f1", "blunder_rate"}
    assert all(-1 <= float(row["value"]) <= 1 for row in last)
    drawn = {path.suffix for path in (copy / "work" / "strategy" / "outputs" / "reports").rglob("every_run_*")}
    assert drawn == {".svg"}
    assert {row["metric"] for row in summary(copy, "task")} == {"rating_mse"}
    assert len(list((copy / "work" / "dataset" / "outputs" / "runs").glob("moods-naive-*/DONE"))) == 1
    assert len(list((copy / "work" / "launcher" / "outputs" / "runs").glob("*/DONE"))) == 1
    assert "3 left" in commands["launcher"][0][2]
