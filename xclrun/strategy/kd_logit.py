"""Knowledge distillation on logits (KD-Logit): keep the outputs for memory sentences close to recorded ones.

CCL, section 3.2 ("KD-Logit"), after Hinton et al. 2015. The memory is filled as in ``er``. In later hops, at every k-th
main mini-batch, the loss of the main step is

    loss + weight · Σ_j [ MSE(logits, logits_j) + MSE(emissions, emissions_j) ]

The sum runs over the earlier languages j; each term uses a batch from j's share of the memory. The teacher for language
j is the model after j's hop, in eval mode. Its outputs are logits_j (classes) and emissions_j (tag scores of words,
before a CRF); a task without labels or without tags has only one of the two terms. MSE averages over all entries. The
teacher's outputs are recorded once, at the end of j's hop, and stored with the memory.

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
from typing import TYPE_CHECKING

import numpy as np

from xclrun.strategy.base import Context, State, bounded
from xclrun.strategy.shared.distillation import PER_WORD, head_outputs, record, rows_of
from xclrun.strategy.shared.memory import MemorySettings, MemoryStrategy
from xclrun.strategy.shared.steps import Step, Term

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch
    from xclrun.model.heads import Output


class TeacherPrecision(Enum):
    fp32 = "fp32"
    fp16 = "fp16"


@dataclass
class DistillationSettings(MemorySettings):
    weight: float = bounded(0.01, at_least=0)
    teacher_precision: TeacherPrecision = TeacherPrecision.fp32


class KDLogit(MemoryStrategy[DistillationSettings]):
    """Distillation of logits and emissions; ``teacher``: language → name → outputs, rows in the order of the memory."""

    name = "kd_logit"
    version = 2
    settings_type = DistillationSettings
    cannot_write = "stores the scores of all outputs, which for a text are those of all subwords; use strategy=er"

    def __init__(self, settings: DistillationSettings) -> None:
        super().__init__(settings)
        self.teacher: dict[str, dict[str, Tensor]] = {}

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

        outputs = self.distilled(self.with_language(language, context, lambda model: model(part)), part)
        words = context.train[language].word_pieces.lengths[self.memory.indices[language]]
        teacher = {name: rows_of(self.teacher[language][name], name, rows[at], words) for name in outputs}
        teacher = to_device(teacher, context.device)
        total = outputs[next(iter(outputs))].new_zeros(())
        for name, student in outputs.items():
            # The mean over the words of all rows is a mean over parts of the rows only with this number of words.
            count = int(words[rows].sum()) * part.size / len(rows) if name in PER_WORD else part.size
            total = total + (student.float() - teacher[name].float()).square().sum() / (count * student.shape[1])
        return total

    def end_hop(self, context: Context) -> None:
        import torch

        super().end_hop(context)
        dtype = torch.float16 if self.settings.teacher_precision is TeacherPrecision.fp16 else torch.float32
        for language in context.hop.train:
            sentences = context.train[language].select(self.memory.indices[language])
            self.teacher[language] = record(context, sentences, dtype, self.distilled)
        # The new language has reduced the other shares: drop the outputs of the removed sentences.
        for language, outputs in self.teacher.items():
            indices = self.memory.indices[language]
            words = int(context.train[language].word_pieces.lengths[indices].sum())
            shares = {name: words if name in PER_WORD else len(indices) for name in outputs}
            self.teacher[language] = {name: tensor[: shares[name]].clone() for name, tensor in outputs.items()}

    def state_dict(self) -> State:
        tensors = {f"{name}/{language}": t for language, named in self.teacher.items() for name, t in named.items()}
        return State(super().state_dict().facts, tensors)

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.teacher = {language: {} for language in self.memory.indices}
        for key, tensor in state.tensors.items():
            name, language = key.split("/", 1)
            self.teacher[language][name] = tensor
