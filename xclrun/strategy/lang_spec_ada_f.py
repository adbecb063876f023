"""Language-specific adapters in a frozen encoder (CCL, section 3.2, "Ada(F)"); adapters and heads are trained.

Equations, settings and sources: `xclrun.strategy.shared.adapters`.
"""

from __future__ import annotations

from xclrun.strategy.shared.adapters import LanguageAdapters


class LangSpecAdaF(LanguageAdapters):
    name = "lang_spec_ada_f"
    freezes_encoder = True
    encodes_alone = True
