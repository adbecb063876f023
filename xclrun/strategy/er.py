"""Experience replay (ER): at regular intervals, replay stored sentences of all earlier languages.

CCL, section 3.2 ("ER"), after Chaudhry et al. 2019, "On tiny episodic memories in continual learning". After each hop,
a sample of the hop's training sentences enters the memory, which all learned languages share equally
(`xclrun.strategy.shared.memory`). In later hops, after every k-th main mini-batch, one extra optimiser step is taken
for each earlier language, on a batch drawn from this language's share.

Settings: ``memory``, the total number of sentences; ``every_k``, the interval in main mini-batches; ``selection``:
``reservoir``, ``ring`` or ``herding``. With ``interleave=extra``, replay steps are additional steps. With
``interleave=replace``, as in the authors' code, replay steps replace every k-th main step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from xclrun.core.errors import UsageError
from xclrun.strategy.base import Context
from xclrun.strategy.shared.memory import MemorySettings, MemoryStrategy
from xclrun.strategy.shared.steps import Step

if TYPE_CHECKING:
    from xclrun.data.batches import Batch


class Interleave(Enum):
    extra = "extra"
    replace = "replace"


@dataclass
class ReplaySettings(MemorySettings):
    interleave: Interleave = Interleave.extra


class ExperienceReplay(MemoryStrategy[ReplaySettings]):
    name = "er"
    settings_type = ReplaySettings

    def __init__(self, settings: ReplaySettings) -> None:
        if settings.interleave is Interleave.replace and settings.every_k == 1:
            raise UsageError(
                "strategy.interleave=replace: strategy.every_k=1 would replace every main step, so only the first "
                "language would be learned; use strategy.every_k=2 or more"
            )
        super().__init__(settings)

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        due = self.due(number)
        if not due or self.settings.interleave is Interleave.extra:
            yield Step(main)
        for language in due:
            drawn = self.memory.draw(language, context.batch_size, context.generator("replay", number, language))
            yield Step(context.batch(language, drawn), self.loss_of(language, context))
