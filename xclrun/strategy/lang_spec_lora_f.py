"""Language-specific LoRA in a frozen encoder (Hu et al. 2022, "LoRA"); LoRA and heads are trained.

Identical to `lang_spec_ada_f` with ``adapter=lora``. Equations, settings and sources:
`xclrun.strategy.shared.adapters`.
"""

from __future__ import annotations

from xclrun.strategy.shared.adapters import LanguageAdapters, LoraAdapterSettings


class LangSpecLoraF(LanguageAdapters):
    name = "lang_spec_lora_f"
    settings_type = LoraAdapterSettings
    freezes_encoder = True
    encodes_alone = True
