"""Strategies: one file each. `STRATEGIES` is the registry: name in conf → class.

The registry is a table of names, so that looking one up imports that strategy's module alone.
"""

from __future__ import annotations

import importlib
from typing import Any

from xclrun.config.schema import StrategyConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.strategy.base import Context, Length, State, Strategy, check_answers

__all__ = ["STRATEGIES", "Context", "Length", "State", "Strategy", "make", "strategy_class"]

STRATEGIES: dict[str, str] = {
    "naive": "naive:Naive",
    "lang_spec_ft": "lang_spec_ft:LangSpecFT",
    "lang_spec_trans": "lang_spec_trans:LangSpecTrans",
    "lang_spec_enc": "lang_spec_enc:LangSpecEnc",
    "lang_spec_embed": "lang_spec_embed:LangSpecEmbed",
    "lang_spec_task": "lang_spec_task:LangSpecTask",
    "lang_spec_ada_t": "lang_spec_ada_t:LangSpecAdaT",
    "lang_spec_ada_f": "lang_spec_ada_f:LangSpecAdaF",
    "inc_joint": "inc_joint:IncJoint",
    "multilingual": "multilingual:Multilingual",
    "er": "er:ExperienceReplay",
    "agem": "agem:AGEM",
    "ewc": "ewc:EWC",
    "ewc_online": "ewc_online:EWCOnline",
    "kd_logit": "kd_logit:KDLogit",
    "kd_rep": "kd_rep:KDRep",
    "fc": "fc:FC",
    "fc_pooler": "fc_pooler:FCPooler",
    "fc_reset_pooler": "fc_reset_pooler:FCResetPooler",
    "cos_pooler": "cos_pooler:CosPooler",
}


def strategy_class(name: str) -> type[Strategy[Any]]:
    """Return the class of the strategy called ``name`` in conf.

    Raises:
        UsageError: no strategy has that name.
    """
    if name not in STRATEGIES:
        raise UsageError(f"no strategy is called '{name}'; {did_you_mean(name, STRATEGIES)}")
    module, attribute = STRATEGIES[name].split(":")
    found = getattr(importlib.import_module(f"xclrun.strategy.{module}"), attribute)
    assert issubclass(found, Strategy)
    return found


def make(settings: StrategyConfig) -> Strategy[Any]:
    """Return a fresh strategy with these settings.

    Raises:
        UsageError: a setting cannot work, or is that of another strategy; or a hook was assigned for which no
            signature answers.
    """
    found = strategy_class(settings.name)
    if not isinstance(settings, found.settings_type):
        raise UsageError(
            f"strategy.name={settings.name}: has settings of its own; choose it as strategy={settings.name}"
        )
    strategy = found(settings)
    check_answers(found, strategy)
    return strategy
