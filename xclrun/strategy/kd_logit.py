"""Knowledge distillation on logits (KD-Logit): keep the outputs for memory sentences close to recorded ones.

CCL, section 3.2 ("KD-Logit"), after Hinton et al. 2015. The memory is filled as in ``er``. In later hops, at every k-th
main mini-batch, the loss of the main step is

    loss + weight · Σ_j [ MSE(logits, logits_j) + MSE(emissions, emissions_j) ]

The sum runs over the earlier languages j; each term uses a batch from j's share of the memory. The teacher for language
j is the model after j's hop, in eval mode. Its outputs are logits_j (classes) and emissions_j (tag scores of words,
before a CRF); a task without labels or without tags has only one of the two terms. MSE averages over all entries. The
teacher's outputs are recorded once, at the end of j's hop, and stored with the memory. Texts: the logits are those of
the vocabulary for each subword of the reference. The teacher's states of these subwords and its output layer are
recorded, from which the logits are computed: recorded logits would need V/H times the memory.

``lwf`` has no memory: it distils on the new sentences, with the model of the previous hop as its teacher.

Settings: ``memory``, the total number of sentences; ``every_k``, the interval in main mini-batches; ``weight``;
``selection``, described in `xclrun.strategy.shared.memory`; ``teacher_precision``: ``fp32`` or ``fp16``. With ``fp16``,
the recorded outputs need half the bytes, and logits of about 10 are rounded by up to 0.004.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.strategy.base import Context, State, bounded
from xclrun.strategy.shared.distillation import PER_WORD, head_outputs, record, rows_of
from xclrun.strategy.shared.memory import MemorySettings, MemoryStrategy
from xclrun.strategy.shared.steps import Step, Term

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch
    from xclrun.model.heads import Output
    from xclrun.model.network import Model


# Prefix of the names of output layers in the state.
LAYER = "layer."


class TeacherPrecision(Enum):
    fp32 = "fp32"
    fp16 = "fp16"


@dataclass
class DistillationSettings(MemorySettings):
    weight: float = bounded(0.01, at_least=0)
    teacher_precision: TeacherPrecision = TeacherPrecision.fp32


class KDLogit(MemoryStrategy[DistillationSettings]):
    """Distillation of logits and emissions.

    Attributes:
        teacher: language → name → outputs, rows in the order of the memory.
        layers: language → output layer of a teacher that writes texts, whose ``teacher`` has states.
    """

    name = "kd_logit"
    version = 2
    settings_type = DistillationSettings

    def __init__(self, settings: DistillationSettings) -> None:
        super().__init__(settings)
        self.teacher: dict[str, dict[str, Tensor]] = {}
        self.layers: dict[str, dict[str, Tensor]] = {}

    def active(self) -> bool:
        return super().active() and self.settings.weight > 0

    def distilled(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        """Return the distilled outputs of a forward pass: name → one row per sentence, or per word."""
        return head_outputs(output, batch)

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        terms = []
        for language in self.due(number) if self.active() else ():
            generator = context.generator("distill", number, language)
            terms.append(self.term(language, self.memory.draw_rows(language, context.batch_size, generator), context))
        yield Step(main, terms=terms)

    def term(self, language: str, rows: np.ndarray, context: Context) -> Term:
        """Return the term for rows of a language's memory: the MSE between outputs and teacher, summed over outputs."""
        batch = context.batch(language, self.memory.indices[language][rows])
        return Term(
            batch, partial(self._distance, language, rows, context), self.settings.weight, size=lambda part: part.size
        )

    def _distance(self, language: str, rows: np.ndarray, context: Context, part: Batch, at: slice) -> Tensor:
        from xclrun.data.transfer import to_device

        def answered(model: Model) -> dict[str, Tensor]:
            outputs = self.distilled(model(part), part)
            # Inside this function, where the output layer is that of the language.
            return {name: self._logits(name, rows, part, model, {}) for name, rows in outputs.items()}

        outputs = self.with_language(language, context, answered)
        words = context.train[language].word_pieces.lengths[self.memory.indices[language]]
        teacher = {name: rows_of(self.teacher[language][name], name, rows[at], words) for name in outputs}
        teacher = to_device(teacher, context.device)
        layer = to_device(self.layers.get(language, {}), context.device)
        teacher = {name: self._logits(name, rows, part, context.model, layer) for name, rows in teacher.items()}
        total = outputs[next(iter(outputs))].new_zeros(())
        for name, student in outputs.items():
            # The mean over the words of all rows is a mean over parts of the rows only with this number of words.
            count = int(words[rows].sum()) * part.size / len(rows) if name in PER_WORD else part.size
            total = total + (student.float() - teacher[name].float()).square().sum() / (count * student.shape[1])
        return total

    def _logits(self, name: str, rows: Tensor, part: Batch, model: Model, layer: dict[str, Tensor]) -> Tensor:
        """Return outputs as they are compared: the logits of states, by ``layer`` or the model's own output layer."""
        if name != "states":
            return rows
        head: Any = model.head_of(part.task)
        logits: Tensor = head.score_states(rows.float(), layer or None)
        return logits

    def end_hop(self, context: Context) -> None:
        import torch

        super().end_hop(context)
        dtype = torch.float16 if self.settings.teacher_precision is TeacherPrecision.fp16 else torch.float32
        for language in context.hop.train:
            sentences = context.train[language].select(self.memory.indices[language])
            self.teacher[language] = recorded = record(context, sentences, dtype, self.distilled)
            if "states" in recorded:
                head: Any = context.model.head_of(sentences.task)
                self.layers[language] = {name: tensor.detach().cpu().clone() for name, tensor in head.layer.items()}
        # The new language has reduced the other shares: drop the outputs of the removed sentences.
        for language, outputs in self.teacher.items():
            indices = self.memory.indices[language]
            words = int(context.train[language].word_pieces.lengths[indices].sum())
            shares = {name: words if name in PER_WORD else len(indices) for name in outputs}
            self.teacher[language] = {name: tensor[: shares[name]].clone() for name, tensor in outputs.items()}

    def state_dict(self) -> State:
        tensors = {f"{name}/{language}": t for language, named in self.teacher.items() for name, t in named.items()}
        tensors |= {f"{LAYER}{name}/{language}": t for language, of in self.layers.items() for name, t in of.items()}
        return State(super().state_dict().facts, tensors)

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.teacher, self.layers = {language: {} for language in self.memory.indices}, {}
        for key, tensor in state.tensors.items():
            name, language = key.split("/", 1)
            if name.startswith(LAYER):
                self.layers.setdefault(language, {})[name.removeprefix(LAYER)] = tensor
            else:
                self.teacher[language][name] = tensor
