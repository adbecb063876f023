"""Gradient episodic memory (GEM): no step may raise the loss on the memory of any earlier language.

Lopez-Paz & Ranzato 2017, "Gradient episodic memory for continual learning", section 3, equations 8 to 11. With g the
gradient of the main mini-batch and G the gradients of the earlier languages' memories, a row each, g is replaced by the
nearest vector that none is opposed to, where g is opposed to one (some g · G_k < 0):

    min_{g̃} ½ ‖g̃ − g‖²  with  G g̃ ≥ 0        g̃ = Gᵀ (v* + γ) + g,    v* = argmin_{v ≥ 0} ½ vᵀ G Gᵀ v + (G g)ᵀ v

over all trained weights that languages share, before clipping. The dual has a number per earlier language and is solved
exactly. γ, added to v* as in the paper's text (its code bounds v by γ), favours earlier languages; it is 0.5 there.

Settings: ``memory``, ``every_k`` and ``selection`` as of ``agem``; ``margin``, γ; ``compared``, sentences of each
language's share that a step compares with, drawn at random, or null: all of them, as in the paper.

Cost: a step goes forward and backward through all that is compared; the device holds a gradient for each earlier
language, 4 bytes per weight, and is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from xclrun.strategy.agem import AGEM, mean_gradient
from xclrun.strategy.base import Context, Length, bounded
from xclrun.strategy.shared.memory import MemorySettings

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch

# Sentences of memory in a step from which on a run says so before it begins.
MANY = 500


@dataclass
class GEMSettings(MemorySettings):
    margin: float = bounded(0.5, at_least=0)
    compared: int | None = bounded(None, at_least=1)


class GEM(AGEM[GEMSettings]):
    """Projection of the gradient, by the memory of each language."""

    name = "gem"
    settings_type = GEMSettings
    signature = AGEM.signature
    repeats = AGEM.repeats

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        kept = min(self.settings.memory, sum(length.sentences for length in lengths))
        if self.settings.compared is not None or kept <= MANY or len(lengths) < 2:
            return super().notes(lengths)
        told = f"strategy={self.settings.name}: each step goes through the whole memory, up to {kept} sentences; "
        return [*super().notes(lengths), told + "strategy.compared=16 draws as many of each language"]

    def memory_batches(self, context: Context) -> list[tuple[str, Batch]]:
        """Return what is compared of each language's memory, as (language, batch)."""
        found = []
        for language in self.due(self._step):
            count = self.settings.compared or len(self.memory.kept[language])
            drawn = self.memory.draw(language, count, context.generator("reference", self._step, language))
            found.append((language, context.batch(language, drawn)))
        return found

    def edit_gradients(self, context: Context) -> None:
        if not self.due(self._step):
            return
        parameters = self.compared(context)
        gradients = [p.grad for p in parameters if p.grad is not None]
        # As many at once as in a part of the main batch.
        largest = -(-context.batch_size // max(1, self._parts))
        references = [
            mean_gradient([(language, batch)], parameters, largest, self.loss_of, context)
            for language, batch in self.memory_batches(context)
        ]
        products = np.array([_product(reference, gradients) for reference in references])
        if products.min() >= 0:
            return
        gram = np.array([[_product(a, b) for a in references] for b in references])
        for weight, reference in zip(dual(gram, products) + self.settings.margin, references, strict=True):
            for gradient, r in zip(gradients, reference, strict=True):
                gradient.add_(r, alpha=float(weight))


def _product(a: list[Tensor], b: list[Tensor]) -> float:
    return float(sum((x.double() * y.double()).sum() for x, y in zip(a, b, strict=True)))


def dual(gram: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Return v ≥ 0, (K,) float64, that minimises ½ vᵀ A v + bᵀ v: exactly, by the active-set method of `nnls`.

    With A = Rᵀ R and b = −Rᵀ c that is the least squares of R v − c; b is in A's range, since both are made of G.

    Args:
        gram: A = G Gᵀ, (K, K).
        products: b = G g, (K,).
    """
    from scipy.optimize import nnls

    values, vectors = np.linalg.eigh(gram)
    # Languages whose gradients depend on each other give values of 0, up to rounding.
    kept = values > values.max() * len(values) * np.finfo(float).eps
    roots = np.sqrt(values[kept])
    return np.asarray(nnls(roots[:, None] * vectors[:, kept].T, -(vectors[:, kept].T @ products) / roots)[0])
