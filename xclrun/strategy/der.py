"""Dark experience replay (DER): keep the outputs for a reservoir of training examples close to recorded outputs.

Buzzega et al. 2020, "Dark experience for general continual learning: a strong, simple baseline", equation 4 and
algorithm 1. Every training example is offered to a reservoir with the raw outputs z of its training step. Every step,
also in the first hop, has the loss

    loss + α · ‖z' − h(x')‖²

The second term uses as many examples x' of the reservoir as the main mini-batch has sentences; z' are the recorded raw
outputs of x', and h(x') its current raw outputs. As in the authors' code, squares are averaged over classes and over
examples. For tags, z contains the emissions of all words (before a CRF); for answers, the start and end scores. Like
the model's loss, distances are summed over the words of a sentence.

The reservoir (Vitter 1985, "Random sampling with a reservoir", algorithm R) is a uniform sample of all examples offered
so far; every epoch offers all examples again. It stores examples as indices into the training splits. Its draws depend
only on (seed, hop, step) and the number of examples so far, so an interrupted hop resumes with the same reservoir. With
``trainer.selection=best``, the next hop starts from the reservoir of the selected epoch. Deviation: the paper's network
has no dropout; here dropout is active for z and h(x'). With ``strategy.expansion``, each sentence of the reservoir goes
through the parameters of its language.

Settings: ``memory``, the total number of sentences; ``alpha`` α (0.3 in the paper on CIFAR-10). Cost: one more batch
per step; for each stored sentence, 4 bytes per class, or per tag of each word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from xclrun.strategy.base import Context, State, bounded
from xclrun.strategy.shared.distillation import by_example, squared_distance
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings
from xclrun.strategy.shared.memory import group_keys, select_sentences
from xclrun.strategy.shared.steps import Step, Term

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from xclrun.data.batches import Batch

# Head outputs for one example: name → flat float32 tensor, words in order.
Outputs = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Example:
    """One example of the reservoir; ``index`` is its position in the language's training split."""

    language: str
    index: int
    outputs: Outputs


class Reservoir:
    """A reservoir of ``size`` examples; ``seen`` counts the examples offered so far."""

    def __init__(self, size: int) -> None:
        self.size, self.seen = size, 0
        self.examples: list[Example] = []
        self._on_host = False

    def places(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Offer ``count`` examples, and return the place of each in the reservoir, −1 for rejected examples."""
        numbers = self.seen + np.arange(count)
        drawn = generator.integers(0, numbers + 1)
        self.seen += count
        return np.where(numbers < self.size, numbers, np.where(drawn < self.size, drawn, -1))

    def offer(
        self, examples: Sequence[tuple[int, Outputs]], sizes: Mapping[str, int], generator: np.random.Generator
    ) -> None:
        """Offer the examples of a mini-batch.

        Args:
            examples: (position, outputs); the position is the index among all sentences of the hop, language after
                language.
            sizes: language → number of sentences, in the order of the hop.
        """
        languages, ends = list(sizes), np.cumsum(list(sizes.values()))
        for place, (row, outputs) in zip(self.places(len(examples), generator), examples, strict=True):
            if place >= 0:
                k = int(np.searchsorted(ends, row, side="right"))
                index = row - int(ends[k]) + sizes[languages[k]]
                # Keep the outputs on the device to avoid a synchronisation, and copy them so that the batch can be
                # freed.
                copies = {name: tensor.flatten().float().clone() for name, tensor in outputs.items()}
                self.examples[place : place + 1] = [Example(languages[k], index, copies)]

    def move(self, device: torch.device) -> None:
        """Move outputs that were read from a file to the device, in one copy."""
        from xclrun.data.transfer import to_device

        if not self._on_host:
            return
        self._on_host = False
        numbered = list(enumerate(self.examples))
        moved = to_device({f"{i}/{name}": tensor for i, e in numbered for name, tensor in e.outputs.items()}, device)
        self.examples = [replace(e, outputs={name: moved[f"{i}/{name}"] for name in e.outputs}) for i, e in numbered]

    def draw(self, count: int, generator: np.random.Generator) -> list[Example]:
        """Return ``count`` distinct examples at random, or all if there are fewer."""
        rows = generator.choice(len(self.examples), size=min(count, len(self.examples)), replace=False)
        return [self.examples[row] for row in rows]

    @property
    def nbytes(self) -> int:
        """Bytes of the outputs, plus 8 for the index of each example."""
        return sum(8 + sum(t.nbytes for t in example.outputs.values()) for example in self.examples)

    def state(self) -> State:
        """Return the state, with the outputs of each name concatenated."""
        import torch

        names = sorted({name for example in self.examples for name in example.outputs})
        examples = [[e.language, e.index, {name: len(t) for name, t in e.outputs.items()}] for e in self.examples]
        tensors = {
            name: torch.cat([e.outputs[name] for e in self.examples if name in e.outputs]).cpu() for name in names
        }
        return State({"seen": self.seen, "kept": examples}, tensors)

    def load(self, state: State) -> None:
        """Restore the state that `state` returned."""
        at = dict.fromkeys(state.tensors, 0)
        self.seen, self.examples, self._on_host = state.facts.get("seen", 0), [], True
        for language, index, lengths in state.facts.get("kept", []):
            outputs = {name: state.tensors[name][at[name] : at[name] + n] for name, n in lengths.items()}
            at |= {name: at[name] + n for name, n in lengths.items()}
            self.examples.append(Example(language, index, outputs))


def as_batches(
    examples: Sequence[Example], context: Context, together: bool
) -> list[tuple[str, Batch, dict[str, Tensor]]]:
    """Return examples as batches on the device: (language, batch, outputs as in `xclrun.model.network.Output`).

    The language is the first language of the batch; it selects the language-specific parameters.

    Args:
        together: see `xclrun.strategy.shared.memory.group_keys`.
    """
    import torch

    drawn: dict[str, list[Example]] = {}
    for example in examples:
        drawn.setdefault(example.language, []).append(example)
    batches = []
    for languages in group_keys(list(drawn), context, together):
        sentences = select_sentences({language: [e.index for e in drawn[language]] for language in languages}, context)
        batch = sentences.batch(range(len(sentences))).to(context.device)
        ordered, words = [e for key in languages for e in drawn[key]], int(sentences.word_pieces.lengths.sum())
        outputs = {}
        for name in ordered[0].outputs:
            numbers = torch.cat([example.outputs[name] for example in ordered])
            is_class = name == "logits"
            rows = numbers.view(len(ordered) if is_class else words, -1)
            outputs[name] = rows if is_class else batch.padded(rows)
        batches.append((languages[0], batch, outputs))
    return batches


@dataclass
class DERSettings(ExpandableSettings):
    memory: int = bounded(at_least=0)
    alpha: float = bounded(0.3, at_least=0)


Settings = TypeVar("Settings", bound=DERSettings)


class DER(Expandable[Settings]):
    name = "der"
    settings_type = DERSettings
    updates_in_training = True
    revisits = True
    stateful = True
    # The reservoir is used from the first hop on.
    acts_from = 1
    cannot_write = "stores the scores of all outputs, which for a text are those of all subwords; use strategy=er"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.reservoir = Reservoir(settings.memory)

    def active(self) -> bool:
        return self.settings.memory > 0 and self.settings.alpha > 0

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        if not self.active():
            yield Step(main)
            return
        # Row of the main mini-batch → (position among the hop's sentences, outputs).
        seen: dict[int, tuple[int, Outputs]] = {}

        def loss(part: Batch, rows: slice) -> Tensor:
            output = context.model(part)
            examples = zip(part.indices.tolist(), by_example(output, part), strict=True)
            seen.update(enumerate(examples, rows.start))
            return context.model.loss(part, output)

        yield Step(main, loss, self.replayed(number, main.size, context), rows=seen)
        sizes = {key: len(context.train[key]) for key in context.hop.train}
        generator = context.generator("reservoir", number)
        self.reservoir.offer([seen[row] for row in sorted(seen)], sizes, generator)

    def replayed(self, number: int, count: int, context: Context) -> list[Term]:
        """Return the terms of a main step on examples of the reservoir."""
        batches = self.drawn("replay", number, count, context)

        def distance(language: str, recorded: Outputs, part: Batch, rows: slice) -> Tensor:
            target = {name: tensor[rows] for name, tensor in recorded.items()}
            return squared_distance(self.output_of(language, part, context), target, part)

        among = [batch for _, batch, _ in batches]
        return [
            Term(batch, partial(distance, language, recorded), self.settings.alpha, among, lambda part: part.size)
            for language, batch, recorded in batches
        ]

    def drawn(
        self, purpose: str, number: int, count: int, context: Context
    ) -> list[tuple[str, Batch, dict[str, Tensor]]]:
        """Return ``count`` examples of the reservoir for a main step, as `as_batches` does."""
        self.reservoir.move(context.device)
        examples = self.reservoir.draw(count, context.generator(purpose, number))
        return as_batches(examples, context, together=self.settings.expansion is None)

    def footprint(self) -> dict[str, int]:
        return {"examples": len(self.reservoir.examples), "bytes": self.reservoir.nbytes}

    def state_dict(self) -> State:
        return self.reservoir.state()

    def load_state_dict(self, state: State) -> None:
        self.reservoir.load(state)
