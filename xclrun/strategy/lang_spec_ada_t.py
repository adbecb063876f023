"""Language-specific adapters in a tuned encoder.

CCL, section 3.2 ("Ada(T)"). Adapters, encoder and heads are trained.
Equation, settings and sources: `xclrun.strategy.shared.adapters`.
"""

from __future__ import annotations

from xclrun.strategy.shared.adapters import LanguageAdapters


class LangSpecAdaT(LanguageAdapters):
    """Adapters per language; the encoder is tuned."""

    name = "lang_spec_ada_t"
    frozen = False
