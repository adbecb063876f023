"""Growing training sets: hop i trains on the data of languages 1…i, starting from hop 0.

Use it for learning curves over the training set size, and for the online codelength, which needs models trained only on
the data so far (GLI = "Learning and Evaluating General Linguistic Intelligence", Yogatama et al. 2019, section 4). With
`dataset.blocks`, the hops are blocks of the order's last language and start from the model trained on the other
languages.

Settings: ``continues``: start each hop from the previous hop's model, as `inc_joint` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xclrun.config.schema import StrategyConfig
from xclrun.core.stream import Hop, Stream, growing, sequence
from xclrun.strategy.base import Plan, Strategy


@dataclass
class GrowingSettings(StrategyConfig):
    continues: bool = False


class Growing(Strategy[GrowingSettings]):
    name = "growing"
    settings_type = GrowingSettings
    mixes_languages = True

    def plan(self, hop: Hop) -> Plan:
        # Empty, because stage keys already contain the hop's data and parent, which determine the training.
        return Plan()

    def stream(self, order: Sequence[str]) -> Stream:
        return sequence(order, cumulative=True) if self.settings.continues else growing(order)
