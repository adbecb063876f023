"""Language-specific encoder; the heads are shared (CCL, section 3.2, "Lang-Spec Trans").

Hop i starts from the pretrained encoder θ_0 and the heads of the previous hop. Languages that are not learned yet are
evaluated with θ_0. No settings.
"""

from __future__ import annotations

from xclrun.config.schema import StrategyConfig
from xclrun.strategy.shared.language_parameters import BODY, LanguageParameters


class LangSpecTrans(LanguageParameters[StrategyConfig]):
    name = "lang_spec_trans"
    parts = BODY
    encodes_alone = True
