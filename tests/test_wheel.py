"""The wheel and the sdist: they hold what a run needs, and the program works where there is no checkout."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import some

REPOSITORY = Path(__file__).parents[1]

Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the checkout, built by the installed backend, or by one that pip fetches."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    if importlib.util.find_spec("hatchling") is not None:
        command.append("--no-build-isolation")
    done = subprocess.run([*command, str(REPOSITORY)], capture_output=True, text=True, check=False)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("hatchling is not installed, and cannot be fetched")
    assert done.returncode == 0, done.stderr
    [path] = folder.glob("xclrun-*-py3-none-any.whl")
    return path


def test_the_sdist_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("build") is None:
        pytest.skip("build is not installed: it is one of the extra dev")
    isolated = [] if importlib.util.find_spec("hatchling") is not None else ["--installer", "pip"]
    command = [sys.executable, "-m", "build", *(isolated or ["--no-isolation"]), "--outdir", str(tmp_path)]
    # Neither --sdist nor --wheel: the wheel is then made from the sdist.
    done = subprocess.run([*command, str(REPOSITORY)], capture_output=True, text=True, check=False)
    if done.returncode and isolated and "hatchling" in done.stdout + done.stderr:
        pytest.skip("hatchling is not installed, and cannot be fetched")
    assert done.returncode == 0, done.stdout + done.stderr
    [created] = tmp_path.glob("*.whl")
    digests = [{first.filename: first.CRC for first in zipfile.ZipFile(path).infolist()} for path in (wheel, created)]
    assert digests[0] == digests[1]
    [sdist] = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CITATION.cff", "LICENSE", "Makefile", "constraints.txt", "tests/test_wheel.py", "docs/index.md"} <= names


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, installed from the wheel into an environment of its own that borrows this one's libraries."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, text=True)
    # A path file adds this one's libraries, but not what its own path files add: an editable xclrun.
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "xclrun"


@pytest.fixture
def run(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the program in an empty folder, without anything of this process's environment that names the checkout."""
    for name in ("PYTHONPATH", "XCLRUN_OUTPUTS", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, folder: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(program), *arguments], cwd=folder, capture_output=True, text=True, check=False, env=dict(os.environ)
        )

    return run


def test_the_wheel_holds_configs_sweeps_plugins_and_the_corpus(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, inside in (("conf", "xclrun/conf"), ("sweeps", "xclrun/sweeps")):
        expected = {f"{inside}/{p.relative_to(REPOSITORY / folder)}" for p in (REPOSITORY / folder).rglob("*.yaml")}
        assert expected
        assert expected <= names
    expected = {
        str(path.relative_to(REPOSITORY))
        for path in (REPOSITORY / "xclrun").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= names
    assert {f"xclrun/data/readers/mini/{language}.yaml" for language in ("en", "de", "fr", "es", "hi", "th")} <= names
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"xclrun"}


def test_the_installed_program_is_that_of_the_wheel(program: Path, tmp_path: Path) -> None:
    code = "import xclrun; print(xclrun.__file__)"
    output = subprocess.run(
        [str(program.parent / "python"), "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    for line in some(output.stdout.splitlines()):
        assert Path(line).is_relative_to(program.parent.parent)


def test_help_and_errors(run: Run) -> None:
    output = run("--help")
    assert (output.returncode, output.stderr) == (0, "")
    assert re.search(r"^  dataset .* conll ", output.stdout, re.MULTILINE)
    assert re.search(r"^ *demo ", run("list", "sweep").stdout, re.MULTILINE)
    wrong = run("strategy=eer")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("xclrun: strategy=eer: unknown; did you mean 'er'?")


def test_a_sweep_and_its_report_from_any_folder(run: Run, tmp_path: Path) -> None:
    small = ["dataset.max_train=16", "dataset.max_eval=8", "trainer.epochs=1", "dataset.languages=[en,de]"]
    done = run("strategy=er", "order=h2l", "seed=1,2", *small, "-m")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 runs finished" in done.stderr
    assert len(list((tmp_path / "outputs" / "runs").glob("*/DONE"))) == 2
    other = tmp_path / "other"
    other.mkdir()
    report = run("report", "--outputs", "../outputs", folder=other)
    assert (report.returncode, report.stderr) == (0, "")
    assert len(list((tmp_path / "outputs" / "reports").glob("*/summary.csv"))) == 1
    assert list(other.iterdir()) == []


def test_a_sweep_of_the_wheel_composes(run: Run) -> None:
    output = run("plan", "sweep=demo", "-m")
    assert (output.returncode, output.stderr) == (0, "")
    assert ["all", "18"] in [line.split()[:2] for line in output.stdout.splitlines()]
