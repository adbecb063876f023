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

if TYPE_CHECKING:
    from torch import Tensor

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
    _replayed: str | None = None

    def __init__(self, settings: ReplaySettings) -> None:
        if settings.interleave is Interleave.replace and settings.every_k == 1:
            raise UsageError(
                "strategy.interleave=replace: strategy.every_k=1 would replace every main step, so only the first "
                "language would be learned; use strategy.every_k=2 or more"
            )
        super().__init__(settings)

    def replay(self, step: int, main: Batch, context: Context) -> Iterable[Batch]:
        due = self.due(step)
        if not due or self.settings.interleave is Interleave.extra:
            yield main
        for language in due:
            generator = context.generator("replay", step, language)
            self._replayed = language
            yield context.batch(language, self.memory.draw(language, context.batch_size, generator))
        self._replayed = None

    def capturable(self) -> bool:
        # With an expansion, replay steps use the parameters of another language, so they cannot be captured.
        return self._replayed is None or self.settings.expansion is None

    def skip(self, batch: Batch, context: Context) -> None:
        """Do nothing: `skip` is for micro-batches that another process computes, and `loss` does not count any."""

    def loss(self, batch: Batch, context: Context) -> Tensor:
        if self._replayed is None:
            return super().loss(batch, context)
        return self.with_language(self._replayed, context, lambda model: model.loss(batch))
