"""A reservoir: a uniform sample of everything that was trained on, kept with the outputs that were computed then.

Vitter 1985, "Random sampling with a reservoir", algorithm R; Buzzega et al. 2020, "Dark experience for general
continual learning", algorithm 3. Of the first n examples, those of every epoch counted, each is kept with the same
probability, size / n. The n-th takes a place while there are some, and afterwards that of a kept one, with probability
size / n.

It holds indices into the training splits, never copies of examples. Which places are taken is a function of (seed, hop,
step) and of how many examples were seen, so that a hop that was interrupted goes on with the same reservoir.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from xclrun.strategy.base import Context, State
from xclrun.strategy.shared.remembered import grouped

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
        """Return for each of the next ``count`` examples its place, or −1 where it is not kept, and count them."""
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
        from xclrun.data.transfer import sent

        if not self._on_host:
            return
        self._on_host = False
        numbered = list(enumerate(self.kept))
        there = sent({f"{i}/{name}": tensor for i, kept in numbered for name, tensor in kept.outputs.items()}, device)
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
        together: as of `xclrun.strategy.shared.remembered.grouped`.
    """
    import torch

    from xclrun.data.batches import concat

    languages = list(dict.fromkeys(example.language for example in examples))
    found = []
    for group in grouped(languages, context, together):
        rows = [[e for e in examples if e.language == language] for language in group]
        sentences = concat([context.train[of[0].language].select([example.index for example in of]) for of in rows])
        batch = sentences.batch(range(len(sentences))).to(context.device)
        ordered, words = [example for of in rows for example in of], int(sentences.word_pieces.lengths.sum())
        outputs = {}
        for name in ordered[0].outputs:
            numbers = torch.cat([example.outputs[name] for example in ordered])
            each = numbers.view(len(ordered), -1) if name == "logits" else numbers.view(words, -1)
            outputs[name] = each if name == "logits" else batch.padded(each)
        found.append((group[0], batch, outputs))
    return found
