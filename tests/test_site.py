"""The documentation site: pages, navigation and links; it builds without a warning."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from xclrun import __version__

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_site", REPOSITORY / "docs" / "site" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(build: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build.write_pages(folder)
    return folder


def test_every_page_is_in_the_navigation_once(site: Path) -> None:
    text = (site / "zensical.toml").read_text(encoding="utf-8")
    [line] = re.findall(r"^nav = .*$", text, re.MULTILINE)
    named = re.findall(r'= "([\w/.-]+\.md)"', line)
    pages = {path.relative_to(site / "pages").as_posix() for path in (site / "pages").rglob("*.md")}
    # The table of all pages is the navigation itself.
    assert sorted(named) == sorted(pages - {"contents.md"})
    titles = re.findall(r'"([^"]+)" = "', line)
    assert len(titles) == len(set(titles)) == len(named)


def test_links_between_files_become_links_between_pages(site: Path) -> None:
    links = 0
    for page in (site / "pages").rglob("*.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
            if not target.startswith(("http://", "https://")):
                file = (page.parent / target.partition("#")[0]).resolve() if target[0] != "#" else page
                assert file.is_relative_to(site / "pages"), f"{page.name}: {target}"
                assert file.is_file(), f"{page.name}: {target}"
                links += 1
    assert links > 150
    home = (site / "pages" / "index.md").read_text(encoding="utf-8")
    assert "](running.md)" in home
    assert "](contents.md)" in home


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://code.example/lab/xclrun.git", "https://code.example/lab/xclrun"),
        ("git@code.example:lab/xclrun.git", "https://code.example/lab/xclrun"),
        ("../bare.git", None),
        ("", None),
    ],
)
def test_each_page_links_to_its_source(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, remote: str, address: str | None
) -> None:
    done = subprocess.CompletedProcess([], 0, stdout=f"{remote}\n")
    monkeypatch.setattr(build.subprocess, "run", lambda *arguments, **options: done)
    build.write_pages(tmp_path)
    settings = (tmp_path / "zensical.toml").read_text(encoding="utf-8")
    home = (tmp_path / "pages" / "index.md").read_text(encoding="utf-8")
    assert (f'repo_url = "{address}"' in settings) == (address is not None)
    assert (f"]({address}/edit/main/README.md)" in home) == (address is not None)


def test_links_in_code_stay_unchanged(build: ModuleType) -> None:
    text = "[a](b.md) `[a](b.md)`\n\n    [a](b.md)\n\n```text\n[a](b.md)\n\n    x\n```\n[a](b.md)\n"
    changed = build.outside_code(text, lambda prose: build.LINK.sub("x", prose))
    assert changed == text.replace("[a](b.md) `", "x `").replace("```\n[a](b.md)", "```\nx")


def test_the_docstrings_of_the_reference_exist(site: Path) -> None:
    page = (REPOSITORY / "docs" / "reference.md").read_text(encoding="utf-8")
    names = re.findall(r"^<!-- docstrings: (\S+) -->$", page, re.MULTILINE)
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute).__doc__, name
    written = (site / "pages" / "reference.md").read_text(encoding="utf-8")
    assert re.findall(r"^::: (\S+)$", written, re.MULTILINE) == names
    assert len(names) > 10


def test_the_citation_and_the_changelog_have_this_version() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(r"^## (Unreleased \()?([\d.]+)(?: - ([\d-]+))?", changes, re.MULTILINE)
    assert heading is not None
    assert heading[2] == __version__
    # A release has the same date in both files.
    assert heading[1] or str(citation["date-released"]) == heading[3]


@pytest.mark.full
def test_the_site_builds_without_a_warning() -> None:
    if importlib.util.find_spec("zensical") is None or not Path(sys.executable).with_name("zensical").is_file():
        pytest.skip("zensical is not installed: make docs installs it")
    environment = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "docs" / "site" / "build.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    html = REPOSITORY / "build" / "site" / "html"
    reference = (html / "reference.html").read_text(encoding="utf-8")
    assert 'id="xclrun.study.Study.matrix"' in reference
    assert "score matrix R of a run" in re.sub(r"<[^>]+>", "", reference)
