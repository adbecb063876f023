"""Settings of SVG files, and their tooltips."""

from __future__ import annotations

import re
from typing import Any

TIP = "tip:"
# Settings of matplotlib: equal figures give equal bytes, and text is text, to be searched and edited.
SETTINGS: dict[Any, Any] = {"svg.hashsalt": "xclrun", "svg.fonttype": "none"}


def with_tooltips(svg: str) -> str:
    """Turn the group IDs set by `xclrun.report.style.tip` into SVG titles."""
    return re.sub(rf'<g id="{TIP}([^"]*)">', r"<g><title>\1</title>", svg)
