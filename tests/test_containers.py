"""The recipes of containers/: they find what they copy, and install what the package says it needs."""

from __future__ import annotations

import fnmatch
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
RECIPES = REPOSITORY / "containers"

if sys.version_info >= (3, 11):
    import tomllib

    PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
else:
    pytest.skip("reads pyproject.toml as the image does: Python 3.11 has what it takes", allow_module_level=True)


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile: word, rest; lines that go on put together."""
    text = (RECIPES / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    return [(word, rest) for line in lines if line and line[0] != "#" for word, _, rest in [line.partition(" ")]]


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage of the Dockerfile, from its FROM on."""
    result: list[list[tuple[str, str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            result.append([])
        if result:
            result[-1].append((word, rest))
    return result


def copied(stage: list[tuple[str, str]]) -> dict[str, str]:
    """Return what a stage copies of the checkout → to where."""
    rows = [shlex.split(rest) for word, rest in stage if word == "COPY" and not rest.startswith("--from")]
    return {source: row[-1] for row in rows for source in row[:-1]}


def of_definition(section: str) -> list[str]:
    """Return the lines of a section of the Apptainer recipe."""
    text = (RECIPES / "xclrun.def").read_text(encoding="utf-8")
    result = re.search(rf"^%{section}\n((?: .*\n|\n)+)", text, re.MULTILINE)
    assert result, section
    return [line.strip() for line in result[1].splitlines() if line.strip()]


def in_context() -> set[str]:
    """Return the files at the top of the checkout that .dockerignore lets into a build."""
    rules = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").split("\n")
    let = {rule[1:] for rule in rules if rule.startswith("!")}
    assert "*" in rules
    return {path.name for path in REPOSITORY.iterdir() if any(fnmatch.fnmatch(path.name, rule) for rule in let)}


def needed() -> set[str]:
    """Return what a wheel is made of, as pyproject.toml has it."""
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = PROJECT["project"]
    return {"pyproject.toml", project["readme"], *project["license-files"], *wheel["packages"], *wheel["force-include"]}


def test_both_recipes_copy_what_the_wheel_is_made_of() -> None:
    build, image = stages()
    assert copied(build).keys() == needed()
    assert copied(image).keys() == {"constraints.txt", "pyproject.toml"}
    # Docker ignores silently what its ignore file names.
    assert in_context() == needed() | {"constraints.txt"}
    files = [line.split() for line in of_definition("files")]
    assert {source for source, _ in files} == needed() | {"constraints.txt"}
    assert all(target == f"/build/{source}" for source, target in files)
    # A folder is copied as what it contains, so it is named again.
    assert all(target in ("./", source) for source, target in copied(build).items())


def test_the_image_installs_the_requirements_of_the_package(tmp_path: Path) -> None:
    [install] = [rest for word, rest in stages()[1] if word == "RUN" and "requirements.txt" in rest]
    command, *remaining = install.split("&&")
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    words = shlex.split(command)
    assert (words[0], words[-2:]) == ("python", [">", "requirements.txt"])
    done = subprocess.run([sys.executable, *words[1:-2]], cwd=tmp_path, capture_output=True, text=True, check=True)
    extras = PROJECT["project"]["optional-dependencies"]
    assert done.stdout.split("\n")[:-1] == [*PROJECT["project"]["dependencies"], *extras["adapters"], *extras["slurm"]]
    assert all("-c constraints.txt" in other for other in remaining)
    post = "\n".join(of_definition("post"))
    assert "'.[adapters,slurm]'" in post
    assert post.count("-c constraints.txt") == post.count("pip install") == 2


def test_both_recipes_are_of_one_python_that_the_package_takes() -> None:
    base = dict(rest.split("=", 1) for word, rest in instructions() if word == "ARG")["BASE"]
    definition = (RECIPES / "xclrun.def").read_text(encoding="utf-8")
    assert f"\nFrom: {base}\n" in definition
    minor = re.fullmatch(r"python:3\.(\d+)-slim", base)
    assert minor
    assert int(minor[1]) >= 11  # tomllib
    assert "ENTRYPOINT" in [word for word, _ in stages()[1]]
    users = [rest for word, rest in stages()[1] if word == "USER"]
    assert users == ["1000"]


@pytest.mark.full
def test_the_context_is_enough_for_a_wheel(tmp_path: Path) -> None:
    build = stages()[0]
    source = tmp_path / "source"
    source.mkdir()
    for name in copied(build):
        path = REPOSITORY / name
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(path, source / name, ignore=ignored) if path.is_dir() else shutil.copy(path, source)
    [command] = [shlex.split(rest) for word, rest in build if word == "RUN"]
    words = [str(tmp_path / "wheels") if word == "/wheels" else word for word in command]
    done = subprocess.run([sys.executable, "-m", *words], cwd=source, capture_output=True, text=True, check=False)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("hatchling cannot be fetched")
    assert done.returncode == 0, done.stderr
    assert [path.name.split("-")[0] for path in (tmp_path / "wheels").iterdir()] == ["xclrun"]


@pytest.mark.full
def test_hadolint_finds_nothing() -> None:
    if (program := shutil.which("hadolint")) is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([program, str(RECIPES / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
