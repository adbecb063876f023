"""Dark experience replay (DER): on a reservoir of the stream, stay near the outputs that were given in training.

Buzzega et al. 2020, "Dark experience for general continual learning: a strong, simple baseline", equation 4 and
algorithm 1. Every example that is trained on is offered to a reservoir, with the raw outputs z of the very pass that
trains it. At every step, in the first hop too,

    loss + α · ‖z' − h(x')‖²

on as many examples x' of the reservoir as the main mini-batch has. As in the authors' code the square is a mean over
the classes, and a mean over examples. Of tags, z is the emissions of all words before a CRF, and the words of a
sentence are summed, as in the model's own loss; of answers, start and end.

The reservoir (Vitter 1985, "Random sampling with a reservoir", algorithm R) is a uniform sample: of the first n
examples, those of every epoch counted, each is kept with the same probability, size / n. It holds indices into the
training splits, never copies of examples. Which places are taken is a function of (seed, hop, step) and of how many
examples were seen, so that a hop that was interrupted resumes with the same reservoir.

With ``trainer.selection=best`` the reservoir continues as it was at the selected epoch. The paper's network has no
dropout: here the outputs are those with dropout, and so are those that are compared with them. With
``strategy.expansion`` a remembered sentence goes through its language's own parts.

Settings: ``memory`` in sentences, all languages together; ``alpha``, α, no unit (the paper on CIFAR-10: 0.3).

Cost: one batch more in each step. Memory: 4 bytes for each class of each sentence kept, and for each tag of its words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from xclrun.core.stream import Hop
from xclrun.strategy.base import Context, State, bounded
from xclrun.strategy.shared.distillation import by_example, squared_distance
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings
from xclrun.strategy.shared.memory import MemoryBatches, gathered, grouped

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from xclrun.data.batches import Batch

# The numbers that the heads gave for one example: name → (numbers,) float32, those of words end to end.
Outputs = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Kept:
    """One example of the reservoir: its language, its place in that training split, and its outputs."""

    language: str
    index: int
    outputs: Outputs


class Reservoir:
    """A reservoir of ``size`` examples.

    Attributes:
        seen: how many examples it was offered.
        kept: those in it.
    """

    def __init__(self, size: int) -> None:
        self.size, self.seen = size, 0
        self.kept: list[Kept] = []
        self._on_host = False

    def places(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return for each of the next ``count`` examples its place, or −1 if it is not kept, and count them."""
        numbers = self.seen + np.arange(count)
        drawn = generator.integers(0, numbers + 1)
        self.seen += count
        return np.where(numbers < self.size, numbers, np.where(drawn < self.size, drawn, -1))

    def offer(
        self, examples: Sequence[tuple[int, Outputs]], sizes: Mapping[str, int], generator: np.random.Generator
    ) -> None:
        """Offer the examples of a mini-batch, in their order.

        Args:
            examples: place among all sentences of the hop, language after language; outputs.
            sizes: language → number of its sentences, in the order of the hop.
        """
        languages, ends = list(sizes), np.cumsum(list(sizes.values()))
        for place, (row, outputs) in zip(self.places(len(examples), generator), examples, strict=True):
            if place >= 0:
                of = int(np.searchsorted(ends, row, side="right"))
                index = row - int(ends[of]) + sizes[languages[of]]
                # Where they are, since reading them would wait; and without what they are a part of.
                given = {name: tensor.flatten().float().clone() for name, tensor in outputs.items()}
                self.kept[place : place + 1] = [Kept(languages[of], index, given)]

    def move(self, device: torch.device) -> None:
        """Move outputs that were read from a file to the device where later ones are computed, in one copy."""
        from xclrun.data.transfer import to_device

        if not self._on_host:
            return
        self._on_host = False
        numbered = list(enumerate(self.kept))
        there = to_device(
            {f"{i}/{name}": tensor for i, kept in numbered for name, tensor in kept.outputs.items()}, device
        )
        self.kept = [
            replace(kept, outputs={name: there[f"{i}/{name}"] for name in kept.outputs}) for i, kept in numbered
        ]

    def draw(self, count: int, generator: np.random.Generator) -> list[Kept]:
        """Return ``count`` examples at random, each place once, or all."""
        rows = generator.choice(len(self.kept), size=min(count, len(self.kept)), replace=False)
        return [self.kept[row] for row in rows]

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept: outputs, and a number for each example."""
        return sum(8 + sum(t.nbytes for t in example.outputs.values()) for example in self.kept)

    def state(self) -> State:
        """Return everything, outputs of a name end to end."""
        import torch

        names = sorted({name for example in self.kept for name in example.outputs})
        kept = [[e.language, e.index, {name: len(t) for name, t in e.outputs.items()}] for e in self.kept]
        tensors = {name: torch.cat([e.outputs[name] for e in self.kept if name in e.outputs]).cpu() for name in names}
        return State({"seen": self.seen, "kept": kept}, tensors)

    def load(self, state: State) -> None:
        """Take over what `state` returned."""
        at = dict.fromkeys(state.tensors, 0)
        self.seen, self.kept, self._on_host = state.facts.get("seen", 0), [], True
        for language, index, lengths in state.facts.get("kept", []):
            outputs = {name: state.tensors[name][at[name] : at[name] + n] for name, n in lengths.items()}
            at |= {name: at[name] + n for name, n in lengths.items()}
            self.kept.append(Kept(language, index, outputs))


def as_batches(
    examples: Sequence[Kept], context: Context, together: bool
) -> list[tuple[str, Batch, dict[str, Tensor]]]:
    """Return examples as batches on the device: (first language, batch, outputs as of `xclrun.model.network.Output`).

    Args:
        together: as of `xclrun.strategy.shared.memory.grouped`.
    """
    import torch

    drawn: dict[str, list[Kept]] = {}
    for example in examples:
        drawn.setdefault(example.language, []).append(example)
    found = []
    for languages in grouped(list(drawn), context, together):
        sentences = gathered({language: [e.index for e in drawn[language]] for language in languages}, context)
        batch = sentences.batch(range(len(sentences))).to(context.device)
        ordered, words = [e for key in languages for e in drawn[key]], int(sentences.word_pieces.lengths.sum())
        outputs = {}
        for name in ordered[0].outputs:
            numbers = torch.cat([example.outputs[name] for example in ordered])
            is_class = name == "logits"
            rows = numbers.view(len(ordered) if is_class else words, -1)
            outputs[name] = rows if is_class else batch.padded(rows)
        found.append((languages[0], batch, outputs))
    return found


@dataclass
class DERSettings(ExpandableSettings):
    memory: int = bounded(at_least=0)
    alpha: float = bounded(0.3, at_least=0)


Settings = TypeVar("Settings", bound=DERSettings)


class DER(Expandable[Settings]):
    """Distillation of the model's own past, from a reservoir."""

    name = "der"
    settings_type = DERSettings
    gathers = True
    revisits = True
    # The reservoir is used in the hop that fills it.
    acts_from = 1
    signature = Expandable.signature
    _drawn: MemoryBatches[dict[str, Tensor]] | None = None

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.reservoir = Reservoir(settings.memory)
        self._step = 0
        # Of the step's main mini-batch: row → (index among the hop's sentences, outputs).
        self._seen: dict[int, tuple[int, dict[str, Tensor]]] = {}
        # Rows of the main mini-batch in the parts so far.
        self._rows = 0

    def active(self) -> bool:
        return self.settings.memory > 0 and self.settings.alpha > 0

    def state_signature(self, hop: Hop) -> dict[str, Any] | None:
        return self.described() if self.active() else None

    def replay(self, step: int, main: Batch, context: Context) -> Iterable[Batch]:
        self._step, self._seen, self._rows = step, {}, 0
        self._drawn = self.drawn("replay", main.size, context)
        return (main,)

    def drawn(self, purpose: str, count: int, context: Context) -> MemoryBatches[dict[str, Tensor]]:
        """Return examples of the reservoir that go with this step's main mini-batch of ``count``."""
        self.reservoir.move(context.device)
        examples = self.reservoir.draw(count, context.generator(purpose, self._step)) if self.active() else []
        return MemoryBatches(as_batches(examples, context, together=self.settings.expansion is None), count)

    def loss(self, batch: Batch, context: Context) -> Tensor:
        output = context.model(batch)
        if self.active():
            examples = zip(batch.indices.tolist(), by_example(output, batch), strict=True)
            self._seen.update(enumerate(examples, self._rows))
        self._rows += batch.size
        loss = context.model.loss(batch, output)
        for language, part, taught, rows, factor in self._drawn.take(batch, context) if self._drawn else ():
            found = self.output_of(language, part, context)
            wanted = {name: tensor[rows] for name, tensor in taught.items()}
            loss = loss + factor * self.settings.alpha * squared_distance(found, wanted, part)
        return loss

    def skip(self, batch: Batch, context: Context) -> None:
        self._rows += batch.size
        if self._drawn is not None:
            self._drawn.skip(batch)

    def edit_gradients(self, context: Context) -> None:
        """Offer the step's examples to the reservoir; no gradient is changed."""
        sizes = {key: len(context.train[key]) for key in context.hop.train}
        seen = dict(context.gather(list(self._seen.items())))
        examples = [seen[row] for row in sorted(seen)]
        self.reservoir.offer(examples, sizes, context.generator("reservoir", self._step))
        self._seen = {}

    def footprint(self) -> dict[str, int]:
        return {"examples": len(self.reservoir.kept), "bytes": self.reservoir.nbytes}

    def state_dict(self) -> State:
        return self.reservoir.state()

    def load_state_dict(self, state: State) -> None:
        self.reservoir.load(state)
