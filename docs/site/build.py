"""Build the documentation site: python docs/site/build.py. Any warning is an error.

The pages under docs/ are written for GitHub, and so are README and CONTRIBUTING. Here they are copied to
build/site/pages with what differs on a site: the README is its first page, links between the files of the checkout
become links between pages, and where a page asks for docstrings (``<!-- docstrings: xclrun.study.Study -->``)
mkdocstrings puts them in. The navigation is docs/index.md. Zensical then makes build/site/html, and checks every link,
also to headings.
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
# Pages that are not under docs/, or that have another name there than on the site.
RENAMED = {
    CHECKOUT / "README.md": "index.md",
    DOCS / "index.md": "contents.md",
    CHECKOUT / "CONTRIBUTING.md": "contributing.md",
    CHECKOUT / "CHANGELOG.md": "changelog.md",
    CHECKOUT / "SECURITY.md": "security.md",
}
CODE = re.compile(r"(^(?P<fence>`{3,}).*?^(?P=fence)`*$|^(?: {4}|\t)[^\n]*$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def places() -> dict[Path, str]:
    """Return each file that the site has → its path there: pages, and what lies beside them, as figures."""
    beside = [path for path in sorted(DOCS.rglob("*")) if path.is_file() and "site" not in path.relative_to(DOCS).parts]
    return {path: path.relative_to(DOCS).as_posix() for path in beside} | RENAMED


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change what is no code: neither fenced nor indented blocks, nor code in a line."""
    kept = [match.group(0) for match in CODE.finditer(text)]
    parts = change(CODE.sub("\0", text)).split("\0")
    return "".join(part + code for part, code in zip(parts, [*kept, ""], strict=True))


def translated(page: Path, there: dict[Path, str]) -> str:
    """Return a page of the checkout as the page of the site."""

    def link(match: re.Match[str]) -> str:
        path, _, anchor = match["target"].partition("#")
        if not path or re.match(r"\w+:", path):
            return match[0]
        target = (page.parent / path).resolve()
        if target not in there:
            if not target.exists():
                raise SystemExit(f"{page.relative_to(CHECKOUT)}: {match['target']}: there is no such file")
            # A file of the checkout that is no page: the site tells where it is.
            return match["text"]
        relative = os.path.relpath(there[target], Path(there[page]).parent)
        return f"{match['picture']}[{match['text']}]({relative}{'#' * bool(anchor)}{anchor})"

    def change(text: str) -> str:
        return re.sub(r"^<!-- docstrings: ([\w.]+) -->$", r"::: \1", LINK.sub(link, text), flags=re.MULTILINE)

    return outside_code(page.read_text(encoding="utf-8"), change)


def repository() -> str | None:
    """Return the web address of the checkout's remote; None without a remote that has one."""
    done = subprocess.run(
        ["git", "remote", "get-url", "origin"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    match = re.fullmatch(r"(?:https://|(?:ssh://)?git@)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?/?", done.stdout.strip())
    return f"https://{match[1]}/{match[2]}" if match else None


def navigation(there: dict[Path, str]) -> str:
    """Return the TOML of the navigation: sections, pages and titles of docs/index.md, in its order."""
    sections = [f'{{ "xclrun" = "{RENAMED[CHECKOUT / "README.md"]}" }}']
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for heading, body in re.findall(r"^\*\*(.+?)\*\*$(.*?)(?=^\*\*|\Z)", index, re.DOTALL | re.MULTILINE):
        pages = re.findall(r"^\| \[(.+?)\]\((.+?)\)", body, re.MULTILINE)
        entries = ", ".join(f'{{ "{title}" = "{there[(DOCS / target).resolve()]}" }}' for title, target in pages)
        sections.append(f'{{ "{heading}" = [{entries}] }}')
    project = {"Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}
    sections += [f'{{ "{title}" = "{there[CHECKOUT / name]}" }}' for title, name in project.items()]
    return f"nav = [{', '.join(sections)}]\n"


def write_pages(folder: Path) -> None:
    """Write what Zensical reads: its settings and all pages."""
    there = places()
    address = repository()
    shutil.rmtree(folder / "pages", ignore_errors=True)
    for path, name in there.items():
        to = folder / "pages" / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = translated(path, there)
            if address:
                # Zensical's own edit links would miss README and CHANGELOG, which have other names on the site.
                text += f"\n[Edit this page]({address}/edit/main/{path.relative_to(CHECKOUT).as_posix()})\n"
            to.write_text(text, encoding="utf-8")
        else:
            shutil.copyfile(path, to)
    settings = (DOCS / "site" / "zensical.toml").read_text(encoding="utf-8")
    added = navigation(there) + (f'repo_url = "{address}"\n' if address else "")
    settings = settings.replace("[project]\n", f"[project]\n{added}", 1)
    (folder / "zensical.toml").write_text(settings, encoding="utf-8")


def main() -> int:
    folder = CHECKOUT / "build" / "site"
    write_pages(folder)
    zensical = Path(sys.executable).with_name("zensical")
    if not zensical.is_file():
        print(
            "docs/site/build.py: no zensical beside this Python: pip install -c constraints.txt -e '.[docs]'",
            file=sys.stderr,
        )
        return 2
    done = subprocess.run([zensical, "build", "--clean", "--strict"], cwd=folder, check=False)
    if done.returncode == 0:
        print(f"open {(folder / 'html' / 'index.html').relative_to(CHECKOUT)}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
