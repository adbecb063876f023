"""Figures that notebooks show, although they are drawn without pyplot."""

from __future__ import annotations

import io

from matplotlib import rc_context
from matplotlib.figure import Figure

from xclrun.report.svg import SETTINGS, with_tooltips


class NotebookFigure(Figure):
    """A figure of matplotlib that notebooks show as SVG."""

    def _repr_svg_(self) -> str:
        buffer = io.StringIO()
        with rc_context(SETTINGS):
            self.savefig(buffer, format="svg", metadata={"Date": None})
        svg = buffer.getvalue()
        # Without the XML declaration: notebooks embed the element in a page.
        return with_tooltips(svg[svg.index("<svg") :])
