"""Experience replay (ER): keep a few sentences of every language seen, and learn from them again now and then.

CCL, section 3.2 ("ER"), after Chaudhry et al. 2019, "On tiny episodic memories in continual learning". After each hop a
uniform random sample of its training sentences enters a memory with equal shares per language. During later hops, after
every k-th main mini-batch, one extra optimiser step is taken for each language seen before, on a batch drawn from its
share.

Settings: ``memory`` in sentences, all languages together; ``every_k`` in main mini-batches. The main step always
happens (the authors' public code replaces it by the replayed ones).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

from xclrun.config import StrategyConfig
from xclrun.errors import UsageError
from xclrun.plan import Hop
from xclrun.strategy.base import Context, State, Strategy
from xclrun.strategy.memory import BalancedMemory

if TYPE_CHECKING:
    from xclrun.data.encode import Batch


@dataclass
class ReplaySettings(StrategyConfig):
    memory: int = MISSING
    every_k: int = MISSING


class ExperienceReplay(Strategy[ReplaySettings]):
    """Replay of a balanced random memory, in extra steps."""

    settings_type = ReplaySettings

    def __init__(self, settings: ReplaySettings) -> None:
        if settings.memory < 0:
            raise UsageError(f"strategy.memory={settings.memory}: must be a number of sentences of at least 0")
        if settings.every_k < 1:
            raise UsageError(f"strategy.every_k={settings.every_k}: must be a number of mini-batches of at least 1")
        super().__init__(settings)
        self.memory = BalancedMemory(settings.memory)

    def signature(self, hop: Hop) -> dict[str, Any]:
        # Nothing can be replayed in the first training, nor from an empty memory.
        return self.described() if hop.depth > 1 and self.settings.memory > 0 else {}

    def state_signature(self, hop: Hop) -> dict[str, Any]:
        return self.described()

    def replay(self, step: int, main: Batch, context: Context) -> Iterable[Batch]:
        yield main
        if step % self.settings.every_k == 0:
            for language, kept in self.memory.kept.items():
                if len(kept):
                    generator = context.generator("replay", step, language)
                    yield context.batch(language, self.memory.draw(language, context.batch_size, generator))

    def end_hop(self, context: Context) -> None:
        for language in context.hop.train:
            generator = context.generator("memory", language)
            self.memory.add(language, len(context.train[language]), generator)

    def state_dict(self) -> State:
        return State(facts=self.memory.to_facts())

    def load_state_dict(self, state: State) -> None:
        self.memory = BalancedMemory.from_facts(state.facts)
