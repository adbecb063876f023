"""Validate user-chosen names and escape them for file names, URLs, HTML and Markdown.

Names of datasets, strategies and sweeps appear in folder names, commands and pages. `check_name` rejects unsafe names
before a run starts. `slug`, `link`, `escape` and `markdown` escape any text for one kind of output.
"""

from __future__ import annotations

import difflib
import hashlib
import html
import re
from collections.abc import Iterable
from urllib.parse import quote

from xclrun.core.errors import UsageError, did_you_mean

# Maximum bytes of a slug. File systems allow 255, and callers add prefixes and suffixes.
LONGEST = 120


def check_name(key: str, name: str) -> None:
    """Raise a `UsageError` for a name that is empty, hidden, not printable, a path, or looks like an option.

    Args:
        key: key or option, for the message: ``dataset.name``, ``--name``.
    """
    problems = {
        "is empty": not name.strip(),
        "has a character that cannot be printed": not name.isprintable(),
        "leads to another folder": "/" in name or "\\" in name or name in (".", ".."),
        "would be a hidden file": name.startswith("."),
        "looks like an option": name.startswith("-"),
    }
    if problem := next((problem for problem, holds in problems.items() if holds), None):
        text = name if name.isprintable() else ascii(name)
        raise UsageError(f"{key}={text}: {problem}; a name begins with a letter or digit and has no slash")


def check_plain(key: str, name: str) -> None:
    """Raise a `UsageError` for a name that must be quoted in a command, or cannot be a file name (`check_name`)."""
    check_name(key, name)
    if not re.fullmatch(r"[\w.+-]+", name):
        raise UsageError(f"{key}={name}: use only letters, digits and _ . + - in a name")


def matching(text: str, names: Iterable[str], kind: str = "run", where: str = "") -> str:
    """Return the only name that matches a text: an exact match, else by prefix, else by substring.

    Args:
        kind: noun for messages, for example ``run``.
        where: location for messages, for example ``in outputs``.
    """
    candidates, place = sorted(names), f" {where}" if where else ""
    if not text.strip():
        raise UsageError(f"the name of a {kind} is empty; give its id, or a unique part of it")
    if not candidates:
        raise UsageError(f"there is no {kind}{place}")
    for matches in (str.__eq__, str.startswith, str.__contains__):
        matched = [name for name in candidates if matches(name, text)]
        if len(matched) == 1:
            return matched[0]
        if matched:
            more = ", …" if len(matched) > 4 else ""
            raise UsageError(f"'{text}' matches {len(matched)} {kind}s: {', '.join(matched[:4])}{more}")
    # Users mostly type the beginning of a run ID.
    starts = {name[: len(text)]: name for name in candidates}
    near = difflib.get_close_matches(text, starts, n=1)
    hint = f"did you mean '{starts[near[0]]}'?" if near else did_you_mean(text, candidates, 8)
    raise UsageError(f"unknown {kind} '{text}'{place}; {hint}")


def slug(name: str) -> str:
    """Convert a name to a valid file name of at most `LONGEST` bytes, not hidden and not like an option.

    If the name changes, append a short hash, so different names have different slugs.

    >>> slug("h2l"), slug("a b"), slug("--help")
    ('h2l', 'a_b-c8687a', 'help-0bdbc8')
    """
    plain = re.sub(r"[^\w.+=-]+", "_", name).lstrip(".-_").rstrip("_")
    plain = plain.encode()[: LONGEST - 7].decode(errors="ignore")
    if plain == name:
        return name
    return "-".join(filter(None, (plain, hashlib.sha256(name.encode()).hexdigest()[:6])))


def escape(text: object) -> str:
    """Escape text for HTML elements and quoted attributes."""
    return html.escape(str(text), quote=True)


def link(*parts: str) -> str:
    """Join path parts into a relative URL, with each part quoted, for ``href`` and Markdown links."""
    return "/".join(quote(part, safe="+=@,~") for part in parts)


def markdown(text: object) -> str:
    """Escape HTML tags, links, images and table cells in Markdown text; ``p < 0.05`` is unchanged."""
    return re.sub(r"<(?=[\w/!?])", "&lt;", str(text)).replace("](", "]\\(").replace("|", "\\|")


def code(text: str) -> str:
    """Format text as a Markdown code span; the text may contain backticks.

    >>> code("a"), code("a`b")
    ('`a`', '``a`b``')
    """
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    blank = " " if text[:1] == "`" or text[-1:] == "`" else ""
    return f"{fence}{blank}{text}{blank}{fence}"
