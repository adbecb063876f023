"""Language-specific encoder: every language has its own body; the heads are shared.

CCL, section 3.2 ("Lang-Spec Trans"). With bodies θ_ℓ and shared heads φ, hop i starts from θ_ℓ = θ_0 (the pretrained
encoder) and φ of the hop before. A language that was not seen is served by θ_0. No settings.
"""

from __future__ import annotations

from xclrun.config.schema import StrategyConfig
from xclrun.strategy.shared.language_parts import BODY, LanguageParts


class LangSpecTrans(LanguageParts[StrategyConfig]):
    """The whole encoder per language."""

    name = "lang_spec_trans"
    parts = BODY
    encodes_alone = True
