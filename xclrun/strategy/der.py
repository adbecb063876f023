"""Dark experience replay (DER): on a reservoir of the stream, stay near the outputs that were given in training.

Buzzega et al. 2020, "Dark experience for general continual learning: a strong, simple baseline", equation 4 and
algorithm 1. Every example that is trained on is offered to a reservoir (`xclrun.strategy.shared.reservoir`), with the
raw outputs z of the very pass that trains it. At every step, in the first hop too,

    loss + α · ‖z' − h(x')‖²

on as many examples x' of the reservoir as the main mini-batch has. As in the authors' code the square is a mean over
the classes, and a mean over examples. Of tags, z is the emissions of all words before a CRF, and the words of a
sentence are summed, as in the model's own loss; of answers, start and end.

With ``trainer.selection=best`` the reservoir goes on as it was at the selected epoch. The paper's network has no
dropout: here the outputs are those with dropout, and so are those that are compared with them. With
``strategy.expansion`` a remembered sentence goes through its language's own parts.

Settings: ``memory`` in sentences, all languages together; ``alpha``, α, no unit (the paper on CIFAR-10: 0.3).

Cost: one batch more in each step. Memory: 4 bytes for each class of each sentence kept, and for each tag of its words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from omegaconf import MISSING

from xclrun.core.errors import UsageError
from xclrun.core.stream import Hop
from xclrun.strategy.base import Context, State
from xclrun.strategy.shared.distances import squared_distance
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings
from xclrun.strategy.shared.recorded import by_example
from xclrun.strategy.shared.remembered import Beside
from xclrun.strategy.shared.reservoir import Reservoir, as_batches

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch


@dataclass
class DERSettings(ExpandableSettings):
    memory: int = MISSING
    alpha: float = 0.3


Settings = TypeVar("Settings", bound=DERSettings)


class DER(Expandable[Settings]):
    """Distillation of the model's own past, from a reservoir."""

    name = "der"
    settings_type = DERSettings
    gathers = True
    _beside: Beside[dict[str, Tensor]] | None = None

    def __init__(self, settings: Settings) -> None:
        for key, value in (("memory", settings.memory), ("alpha", settings.alpha)):
            if not value >= 0:
                raise UsageError(f"strategy.{key}={value}: must be at least 0")
        super().__init__(settings)
        self.reservoir = Reservoir(settings.memory)
        self._step = 0
        # Of the step's main mini-batch: (index among the hop's sentences, outputs).
        self._seen: list[tuple[int, dict[str, Tensor]]] = []

    def active(self) -> bool:
        """Whether the settings have any effect."""
        return self.settings.memory > 0 and self.settings.alpha > 0

    def signature(self, hop: Hop) -> dict[str, Any]:
        # The reservoir is used in the hop that fills it, so from the first one on.
        return self.described() if hop.depth > 0 and self.active() else super().signature(hop)

    def state_signature(self, hop: Hop) -> dict[str, Any] | None:
        return self.described() if self.active() else None

    def relied_on(self, hop: Hop) -> Sequence[int]:
        return range(1, hop.index) if self.settings.expansion is not None and self.active() else ()

    def replay(self, step: int, main: Batch, context: Context) -> Iterable[Batch]:
        self._step, self._seen = step, []
        self._beside = self.drawn("replay", main.size, context)
        return (main,)

    def drawn(self, purpose: str, count: int, context: Context) -> Beside[dict[str, Tensor]]:
        """Return examples of the reservoir that go with this step's main mini-batch of ``count``."""
        self.reservoir.move(context.device)
        examples = self.reservoir.draw(count, context.generator(purpose, self._step)) if self.active() else []
        return Beside(as_batches(examples, context, together=self.settings.expansion is None), count)

    def loss(self, batch: Batch, context: Context) -> Tensor:
        output = context.model(batch)
        if self.active():
            self._seen += zip(batch.indices.tolist(), by_example(output, batch), strict=True)
        loss = context.model.loss(batch, output)
        for language, part, taught, rows, factor in self._beside.take(batch, context) if self._beside else ():
            found = self.output_of(language, part, context)
            wanted = {name: tensor[rows] for name, tensor in taught.items()}
            loss = loss + factor * self.settings.alpha * squared_distance(found, wanted, part)
        return loss

    def edit_gradients(self, context: Context) -> None:
        """Offer the step's examples to the reservoir; no gradient is changed."""
        sizes = {key: len(context.train[key]) for key in context.hop.train}
        self.reservoir.offer(self._seen, sizes, context.generator("reservoir", self._step))
        self._seen = []

    def footprint(self) -> dict[str, int]:
        return {"examples": len(self.reservoir.kept), "bytes": self.reservoir.nbytes}

    def state_dict(self) -> State:
        return self.reservoir.state()

    def load_state_dict(self, state: State) -> None:
        self.reservoir.load(state)
