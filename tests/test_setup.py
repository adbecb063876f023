"""What make installs, and what CI runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]


def printed(target: str, venv: Path, *arguments: str) -> list[str]:
    """Return the commands that make would run for a target where nothing is installed yet."""
    if (make := shutil.which("make")) is None:
        pytest.skip("needs make")
    command = [make, "--dry-run", "--no-print-directory", target, f"VENV={venv}", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY)
    return done.stdout.replace("\\\n", " ").splitlines()


def test_the_demo_installs_no_extras_and_the_tests_add_them(tmp_path: Path) -> None:
    demo, test = (printed(target, tmp_path / "venv") for target in ("demo", "test"))
    assert not [line for line in demo if re.search(r"-e '?\.\[", line)]
    extras = {
        name for line in test for result in re.findall(r"-e '\.\[([\w,]+)\]'", line) for name in result.split(",")
    }
    assert {
        "adapters",
        "peft",
        "smollm2",
        "dev",
        "search",
        "wandb",
        "tensorboard",
        "text",
        "slurm",
        "offline",
    } == extras
    assert [line for line in test if "touch" in line] == [line for line in demo if "touch" in line] + [
        f"touch {tmp_path / 'venv' / '.tools'}"
    ]


@pytest.mark.parametrize("target", ["demo", "test"])
def test_a_line_is_printed_before_each_slow_step_and_pip_shows_its_own(target: str, tmp_path: Path) -> None:
    lines = printed(target, tmp_path / "venv")
    slow = [i for i, line in enumerate(lines) if " pip install " in line or " -m venv " in line]
    assert len(slow) >= 3
    assert all(lines[i - 1].startswith('echo "== ') or " pip install " in lines[i - 1] for i in slow)
    assert not [lines[i] for i in slow if "--quiet" in lines[i]]


def test_the_cpu_build_of_pytorch_can_be_chosen(tmp_path: Path) -> None:
    arguments = "TORCH_INDEX=https://example.org/cpu"
    [torch] = [line for line in printed("demo", tmp_path / "venv", arguments) if line.endswith(" torch")]
    assert "--index-url https://example.org/cpu" in torch
    [usual] = [line for line in printed("demo", tmp_path / "venv", "TORCH_INDEX=") if line.endswith(" torch")]
    assert "--index-url" not in usual


def test_the_newest_libraries_can_be_chosen(tmp_path: Path) -> None:
    commands = [line for line in printed("test", tmp_path / "venv", "CONSTRAINTS=") if " pip install " in line]
    assert commands
    assert not [line for line in commands if " -c " in line]


@pytest.mark.parametrize("target", ["demo", "test", "setup"])
def test_everything_that_is_installed_is_compiled_so_that_no_command_compiles_it_again(
    target: str, tmp_path: Path
) -> None:
    lines = printed(target, tmp_path / "venv")
    assert not [line for line in lines if "--no-compile" in line]
    installed = next(i for i, line in enumerate(lines) if line.endswith(" -e ."))
    assert [line for line in lines[installed:] if re.search(r" -m compileall .*xclrun", line)]


@pytest.mark.full
def test_no_command_compiles_the_installed_libraries_again_where_bytecode_is_not_written() -> None:
    code = (
        "import os, sys, sysconfig\n"
        "import hydra, matplotlib.figure, mlflow, pandas, scipy.stats, torch, transformers\n"
        "library = sysconfig.get_path('purelib')\n"
        "specs = [module.__spec__ for module in [*sys.modules.values()] if getattr(module, '__spec__', None)]\n"
        "installed = [s for s in specs if s.cached and (s.origin or '').startswith(library)]\n"
        "missing = {spec.name.partition('.')[0] for spec in installed if not os.path.exists(spec.cached)}\n"
        "print(len(installed) > 1000, sorted(missing))"
    )
    python = shutil.which("python", path=str(REPOSITORY / ".venv" / "bin")) or pytest.skip("needs make setup")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True, env=environment, cwd=REPOSITORY
    )
    assert done.stdout.split(maxsplit=1) == ["True", "[]\n"]


def test_ci_runs_in_the_environment_of_a_user() -> None:
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    assert "PYTHONDONTWRITEBYTECODE" not in script


def test_ci_lints_tests_each_python_that_is_supported_and_runs_everything_weekly() -> None:
    # YAML 1.1 reads the key "on" as true.
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    jobs, triggers = workflow["jobs"], workflow[True]
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert jobs["test"]["strategy"]["matrix"]["python-version"] == supported
    run = {name: " ".join(step.get("run", "") for step in job["steps"]) for name, job in jobs.items()}
    assert "make lint" in run["lint"]
    assert "make test" in run["test"]
    assert ".ci/run" in run["full"]
    assert "schedule" in triggers
    assert jobs["rest"]["strategy"]["matrix"]["target"] == ["test-alone", "test-kills", "mutants"]
    for weekly in ("full", "newest", "rest", "gpu-bundle"):
        assert "schedule" in jobs[weekly]["if"]
    assert "make CONSTRAINTS= test" in run["newest"]
    assert "REHEARSE=1" in run["gpu-bundle"]
    assert "tests/test_transformers5.py" in run["newest"]


def test_readme_and_citation_file_name_the_same_software() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    entry = dict(re.findall(r"^  (\w+) *= \{+(.*?)\}+,?$", readme, re.MULTILINE))
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert [author["name"] for author in citation["authors"]] == ["The xclrun developers"] == [entry["author"]]
    assert (entry["title"], entry["version"], entry["license"]) == (
        citation["title"],
        citation["version"],
        citation["license"],
    )
