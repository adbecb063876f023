"""Language-specific adapters in a tuned encoder (CCL, section 3.2, "Ada(T)"); adapters, encoder and heads are trained.

Equations, settings and sources: `xclrun.strategy.shared.adapters`.
"""

from __future__ import annotations

from xclrun.strategy.shared.adapters import LanguageAdapters


class LangSpecAdaT(LanguageAdapters):
    name = "lang_spec_ada_t"
    freezes_encoder = False
