"""Build the documentation site: python docs/site/build.py. Any warning is an error.

The pages are written for GitHub. This script copies them to build/site/pages with three changes: the README becomes the
first page, links between files become links between pages, and ``<!-- docstrings: xclrun.study.Study -->`` becomes a
directive of mkdocstrings. The navigation is generated from docs/index.md. Zensical then writes build/site/html and
checks every link, including those to headings.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs"
# File → page name, for files outside docs/ or with another name on the site.
RENAMED = {
    CHECKOUT / "README.md": "index.md",
    DOCS / "index.md": "contents.md",
    CHECKOUT / "CONTRIBUTING.md": "contributing.md",
    CHECKOUT / "CHANGELOG.md": "changelog.md",
    CHECKOUT / "SECURITY.md": "security.md",
}
CODE = re.compile(r"(^(?P<fence>`{3,}).*?^(?P=fence)`*$|^(?: {4}|\t)[^\n]*$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def site_paths() -> dict[Path, str]:
    """Map each page and figure to its path on the site."""
    files = [path for path in sorted(DOCS.rglob("*")) if path.is_file() and "site" not in path.relative_to(DOCS).parts]
    return {path: path.relative_to(DOCS).as_posix() for path in files} | RENAMED


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply a change to all text except fenced blocks, indented blocks and inline code."""
    blocks = [match.group(0) for match in CODE.finditer(text)]
    parts = change(CODE.sub("\0", text)).split("\0")
    return "".join(part + code for part, code in zip(parts, [*blocks, ""], strict=True))


def convert(page: Path, paths: dict[Path, str]) -> str:
    """Convert a page of the checkout to a page of the site."""

    def link(match: re.Match[str]) -> str:
        path, _, anchor = match["target"].partition("#")
        if not path or re.match(r"\w+:", path):
            return match[0]
        target = (page.parent / path).resolve()
        if target not in paths:
            if not target.exists():
                raise SystemExit(f"{page.relative_to(CHECKOUT)}: the link target {match['target']!r} does not exist")
            # Other files of the checkout are not on the site: show their path.
            return match["text"]
        relative = os.path.relpath(paths[target], Path(paths[page]).parent)
        return f"{match['picture']}[{match['text']}]({relative}{'#' * bool(anchor)}{anchor})"

    def change(text: str) -> str:
        return re.sub(r"^<!-- docstrings: ([\w.]+) -->$", r"::: \1", LINK.sub(link, text), flags=re.MULTILINE)

    return outside_code(page.read_text(encoding="utf-8"), change)


def repository() -> str | None:
    """Return the web address of the checkout's remote, or None."""
    done = subprocess.run(
        ["git", "remote", "get-url", "origin"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    match = re.fullmatch(r"(?:https://|(?:ssh://)?git@)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?/?", done.stdout.strip())
    return f"https://{match[1]}/{match[2]}" if match else None


def navigation(paths: dict[Path, str]) -> str:
    """Return the navigation as TOML: the sections, pages and titles of docs/index.md."""
    sections = [f'{{ "xclrun" = "{RENAMED[CHECKOUT / "README.md"]}" }}']
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for heading, body in re.findall(r"^\*\*(.+?)\*\*$(.*?)(?=^\*\*|\Z)", index, re.DOTALL | re.MULTILINE):
        pages = re.findall(r"^- \[(.+?)\]\((.+?)\)", body, re.MULTILINE)
        entries = ", ".join(f'{{ "{title}" = "{paths[(DOCS / target).resolve()]}" }}' for title, target in pages)
        sections.append(f'{{ "{heading}" = [{entries}] }}')
    project = {"Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}
    sections += [f'{{ "{title}" = "{paths[CHECKOUT / name]}" }}' for title, name in project.items()]
    return f"nav = [{', '.join(sections)}]\n"


def write_pages(folder: Path) -> None:
    """Write the settings and all pages for Zensical."""
    paths = site_paths()
    address = repository()
    shutil.rmtree(folder / "pages", ignore_errors=True)
    for path, name in paths.items():
        to = folder / "pages" / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = convert(path, paths)
            if address:
                # Zensical's edit links would be wrong for README and CHANGELOG, which have other names on the site.
                text += f"\n[Edit this page]({address}/edit/main/{path.relative_to(CHECKOUT).as_posix()})\n"
            to.write_text(text, encoding="utf-8")
        else:
            shutil.copyfile(path, to)
    for name in ("extra.css", "extra.js"):
        shutil.copyfile(DOCS / "site" / name, folder / "pages" / name)
    settings = (DOCS / "site" / "zensical.toml").read_text(encoding="utf-8")
    added = navigation(paths) + (f'repo_url = "{address}"\n' if address else "")
    settings = settings.replace("[project]\n", f"[project]\n{added}", 1)
    (folder / "zensical.toml").write_text(settings, encoding="utf-8")


def main() -> int:
    folder = CHECKOUT / "build" / "site"
    write_pages(folder)
    zensical = Path(sys.executable).with_name("zensical")
    if not zensical.is_file():
        print(
            "docs/site/build.py: zensical is not installed; run: pip install -c constraints.txt -e '.[docs]'",
            file=sys.stderr,
        )
        return 2
    done = subprocess.run([zensical, "build", "--clean", "--strict"], cwd=folder, check=False)
    if done.returncode == 0:
        print(f"open {(folder / 'html' / 'index.html').relative_to(CHECKOUT)}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
