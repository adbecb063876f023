"""Learning without forgetting (LwF): on the new sentences, stay close to the outputs of the model before the hop.

Li & Hoiem 2016, "Learning without forgetting", equations 2 to 5. Before hop i ≥ 2, the model's outputs for the hop's
training sentences are recorded in eval mode. The loss of every step is

    loss + λ · H(p_{i−1}, p),        H(q, p) = −Σ_c q_c^(1/T) log p_c^(1/T), each normalised to sum to 1

The second term is the cross-entropy between the recorded probabilities p_{i−1} and the model's probabilities p, both
softened by the temperature T. No sentences of earlier languages are needed, unlike for ``kd_logit``.

The cross-entropy is averaged like the model's own loss, usually over sentences. Tags: p is the softmax of a word's
emissions, and the cross-entropy is summed over the words of a sentence; a CRF's transitions are not distilled. Answers:
p is a softmax over the words of the text, one for start and one for end. Texts: p is a softmax over the vocabulary for
each subword of the reference, and the cross-entropy is averaged like the loss.

In the paper, every old task is distilled through its own head. With language-specific parameters
(``strategy.expansion``), there is likewise one term for each earlier language, computed with the current shared
parameters and the parameters of that language. Otherwise all languages share the heads, and there is one term. Several
tasks in one model are refused. Deviation: the parameters of earlier languages stay frozen, while the paper trains the
old heads too.

With ``warm_up`` > 0, the first ``warm_up`` main steps of each hop train only the new language-specific parameters; the
shared parameters are frozen. In the paper (section 3.1, "warm-up step"), the warm-up lasts until convergence.

Settings: ``weight`` λ (1 in the paper), ``temperature`` T (2 in the paper), ``warm_up`` (a number of main steps). Cost:
one forward pass over the hop's sentences. The recorded outputs need 4 bytes of memory per class for each sentence, and
4 bytes per tag for each word. The outputs for texts are not recorded: a frozen copy of the trained weights answers in
each step, which needs 4 bytes per weight and a forward pass. There is no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from xclrun.core.errors import UsageError
from xclrun.core.task import Task
from xclrun.strategy.base import Context, Length, bounded
from xclrun.strategy.shared.distillation import (
    cross_entropy,
    record,
    rows_of,
    text_cross_entropy,
    text_logits,
    writes_texts,
)
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings
from xclrun.strategy.shared.steps import MeanGradient, Step

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch
    from xclrun.model.heads import Output


@dataclass
class LwFSettings(ExpandableSettings):
    weight: float = bounded(1.0, at_least=0)
    temperature: float = bounded(2.0, above=0)
    warm_up: int = bounded(0, at_least=0)


class LwF(Expandable[LwFSettings]):
    """Distillation on new data.

    Attributes:
        teacher: earlier language ("" if languages share the whole model) → name of an output → recorded values.
        words: number of words of each sentence of the hop, (n,).
        frozen: name → trained weight before the hop, of models that write texts; their teacher has no recorded values.
    """

    name = "lwf"
    settings_type = LwFSettings
    revisits = True

    def __init__(self, settings: LwFSettings) -> None:
        super().__init__(settings)
        self.teacher: dict[str, dict[str, Tensor]] = {}
        self.words = np.empty(0, np.int64)
        self.frozen: dict[str, Tensor] = {}
        if settings.warm_up and not self.expansion.adds_language_parameters:
            raise UsageError(
                f"strategy.warm_up={settings.warm_up}: warm-up trains only new language-specific parameters, and there "
                "are none; use strategy.expansion=lang_spec_task or strategy.warm_up=0"
            )

    def active(self) -> bool:
        return self.settings.weight > 0 or self.settings.warm_up > 0

    def unsupported(self, tasks: Sequence[Task]) -> str | None:
        if any("target" in task.needs and not task.writes for task in tasks):
            return "its targets are no classes, so there are no probabilities to distill; use strategy=kd_logit"
        if len(tasks) == 1:
            return None
        return "the teacher (the model before the hop) cannot be distilled on a task that no earlier hop has trained"

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        warm_up, steps = self.settings.warm_up, [length.steps for length in lengths if length.hop.depth > 1]
        if not steps or warm_up < min(steps):
            return ()
        return [f"strategy.warm_up={warm_up}: a hop of {min(steps)} steps never trains the shared parameters; lower it"]

    def begin_hop(self, context: Context) -> None:
        import torch

        from xclrun.data.batches import concat

        super().begin_hop(context)
        hop, self.teacher, self.frozen = context.hop, {}, {}
        if hop.depth <= 1 or not self.settings.weight:
            return
        sentences = concat([context.train[key] for key in hop.train])
        self.words = sentences.word_pieces.lengths
        earlier = [key for other in context.stream.hops[1 : hop.index] for key in other.train]
        languages = earlier if self.settings.expansion is not None else [""]
        if writes_texts(context.model):
            self.teacher = {language: {} for language in languages}
            self.frozen = {name: p.detach().clone() for name, p in context.model.named_parameters() if p.requires_grad}
            return
        for language in languages:

            def forward(batch: Batch, language: str = language) -> Output:
                return self.output_of(language, batch, context)

            self.teacher[language] = record(context, sentences, torch.float32, forward=forward if language else None)

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        warming_up = context.hop.depth > 1 and number <= self.settings.warm_up
        yield Step(
            main,
            partial(self._loss, context) if self.teacher else None,
            edit=partial(self._only_new_parameters, context) if warming_up else None,
        )

    def _only_new_parameters(self, context: Context, mean_gradient: MeanGradient) -> None:
        language_specific = self.parameters.language_specific
        for name, parameter in context.model.named_parameters():
            if not language_specific(name):
                parameter.grad = None

    def _loss(self, context: Context, batch: Batch, rows: slice) -> Tensor:
        from xclrun.data.transfer import to_device

        main = context.model(batch)
        loss = context.model.loss(batch, main)
        # The step weights the mean over sentences by the units of the head.
        weight = self.settings.weight * (batch.size / (context.model.units(batch) or 1.0))
        if self.frozen:
            return loss + weight * sum(self._text_term(language, batch, main, context) for language in self.teacher)
        over_words = context.model.head_of(batch.task).over_words
        recorded_rows = {
            f"{language}/{name}": rows_of(t, name, batch.indices, self.words)
            for language, recorded in self.teacher.items()
            for name, t in recorded.items()
        }
        targets = to_device(recorded_rows, context.device)
        for language, recorded in self.teacher.items():
            output = self.output_of(language, batch, context) if language else main
            expected = {name: targets[f"{language}/{name}"] for name in recorded}
            soft = cross_entropy(output, expected, batch, self.settings.temperature, over_words)
            loss = loss + weight * soft
        return loss

    def _text_term(self, language: str, batch: Batch, main: Output, context: Context) -> Tensor:
        import torch

        from xclrun.model.network import with_weights
        from xclrun.strategy.shared.inference import evaluating

        def answered(output: Output | None = None) -> Tensor:
            if not language:
                return text_logits(context.model, batch, output)
            return self.with_language(language, context, lambda model: text_logits(model, batch))

        with torch.no_grad(), evaluating(context.model):
            teacher = with_weights(context.model, self.frozen, lambda model: answered())
        return text_cross_entropy(answered(main), teacher, batch, self.settings.temperature)
