"""Language-specific LoRA in a tuned encoder (Hu et al. 2022, "LoRA"); LoRA, encoder and heads are trained.

Identical to `lang_spec_ada_t` with ``adapter=lora``. Equations, settings and sources:
`xclrun.strategy.shared.adapters`.
"""

from __future__ import annotations

from xclrun.strategy.shared.adapters import LanguageAdapters, LoraAdapterSettings


class LangSpecLoraT(LanguageAdapters):
    name = "lang_spec_lora_t"
    settings_type = LoraAdapterSettings
    freezes_encoder = False
