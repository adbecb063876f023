"""Language-specific adapters in a frozen encoder.

CCL, section 3.2 ("Ada(F)"). The encoder stays as pretrained; adapters and heads are trained.
Equation, settings and sources: `xclrun.strategy.shared.adapters`.
"""

from __future__ import annotations

from xclrun.strategy.shared.adapters import LanguageAdapters


class LangSpecAdaF(LanguageAdapters):
    """Adapters per language; the encoder is frozen."""

    name = "lang_spec_ada_f"
    frozen = True
    encodes_alone = True
