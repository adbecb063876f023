"""Gradient episodic memory (GEM): no step may increase the loss on the memory of any earlier language.

Lopez-Paz & Ranzato 2017, "Gradient episodic memory for continual learning", section 3, equations 8 to 11. Let g be the
gradient of the main mini-batch, and row k of G the gradient on the memory of the earlier language k. If g · G_k < 0 for
some k, the nearest vector g̃ that satisfies all constraints replaces g before clipping:

    min_{g̃} ½ ‖g̃ − g‖²  with  G g̃ ≥ 0        g̃ = Gᵀ (v* + γ) + g,    v* = argmin_{v ≥ 0} ½ vᵀ G Gᵀ v + (G g)ᵀ v

All gradients are over the shared parameters. The dual problem has one variable per earlier language and is solved
exactly. γ favours earlier languages; the paper uses 0.5. As in the paper's text, γ is added to v*; the authors' code
instead requires v ≥ γ.

Settings: ``memory``, ``every_k`` and ``selection`` as for ``agem``; ``margin`` γ; ``compared``, the number of sentences
drawn from each language's share per step (null: all sentences, as in the paper).

Cost: in each step, a forward and backward pass over the compared sentences and one or two synchronisations with the
device; on the device, one gradient per earlier language, 4 bytes per weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from xclrun.strategy.agem import AGEM
from xclrun.strategy.base import Context, Length, bounded
from xclrun.strategy.shared.memory import MemorySettings
from xclrun.strategy.shared.steps import MeanGradient

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch

# If a step uses more memory sentences than this, a note is printed before the run.
MANY = 500


@dataclass
class GEMSettings(MemorySettings):
    margin: float = bounded(0.5, at_least=0)
    compared: int | None = bounded(None, at_least=1)


class GEM(AGEM[GEMSettings]):
    name = "gem"
    settings_type = GEMSettings

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        stored = min(self.settings.memory, sum(length.sentences for length in lengths))
        if self.settings.compared is not None or stored <= MANY or len(lengths) < 2:
            return super().notes(lengths)
        note = f"strategy={self.settings.name}: each step uses the whole memory, up to {stored} sentences; "
        return [*super().notes(lengths), note + "set strategy.compared=16 to draw 16 sentences of each language"]

    def memory_batches(self, number: int, context: Context) -> list[tuple[str, Batch]]:
        """Return one memory batch for each earlier language: (language, batch)."""
        batches = []
        for language in self.due(number):
            count = self.settings.compared or len(self.memory.indices[language])
            drawn = self.memory.draw(language, count, context.generator("reference", number, language))
            batches.append((language, context.batch(language, drawn)))
        return batches

    def edit(self, number: int, context: Context, mean_gradient: MeanGradient) -> None:
        parameters = self.compared(context)
        gradients = [p.grad for p in parameters if p.grad is not None]
        references = [
            mean_gradient(self.terms([batch], context), parameters, at_most=context.batch_size)
            for batch in self.memory_batches(number, context)
        ]
        # `dual` is computed on the host: a single wait for a GPU, and a second one if a product is negative.
        products = _products(references, [gradients])[:, 0]
        if products.min() >= 0:
            return
        gram = _products(references, references)
        for weight, reference in zip(dual(gram, products) + self.settings.margin, references, strict=True):
            for gradient, r in zip(gradients, reference, strict=True):
                gradient.add_(r, alpha=float(weight))


def _products(left: list[list[Tensor]], right: list[list[Tensor]]) -> np.ndarray:
    """Return the inner products of gradients, each a list of tensors: (K,), (N,) → (K, N) float64, on the host."""
    import torch

    def product(a: list[Tensor], b: list[Tensor]) -> Tensor:
        return torch.as_tensor(sum((x.double() * y.double()).sum() for x, y in zip(a, b, strict=True)))

    return torch.stack([product(a, b) for a in left for b in right]).cpu().numpy().reshape(len(left), len(right))


def dual(gram: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Return the exact minimiser v ≥ 0, (K,) float64, of ½ vᵀ A v + bᵀ v, by the active-set method of `nnls`.

    With A = Rᵀ R and b = −Rᵀ c, v minimises ‖R v − c‖². R and c exist because b is in A's range.

    Args:
        gram: A = G Gᵀ, (K, K).
        products: b = G g, (K,).
    """
    from scipy.optimize import nnls

    values, vectors = np.linalg.eigh(gram)
    # Linearly dependent gradients have eigenvalues of 0, up to rounding: omit these.
    positive = values > values.max() * len(values) * np.finfo(float).eps
    roots = np.sqrt(values[positive])
    return np.asarray(nnls(roots[:, None] * vectors[:, positive].T, -(vectors[:, positive].T @ products) / roots)[0])
