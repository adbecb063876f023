"""Heads: a task's layers on the encoder's states, their log-likelihood, and the prediction columns.

`HEADS` is the registry: `xclrun.core.task.Task.head` names an entry. `LabelsAndTags` and `Answers` are xclrun's heads;
a plug-in registers a subclass of `Head` (docs/extending/task.md).

In the joint task, the log-likelihood is the sum of the intent's and the tags' (CCL, section 2.3). Heads compute in fp32
for any precision of the encoder; the CRF's likelihood is in float64 (`xclrun.model.crf`). Without a CRF, the tags of
words are independent given the encoder's states (FS; Devlin et al. 2019, section 5.3). With and without a CRF, the loss
of a sentence is the sum over its words. FS instead takes the mean over all words of a batch, so FS's gradient has
another scale.

Shapes: B sentences, W words (packed to the left), H hidden size, C classes, T tags.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchcrf import CRF

from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.plugins import packaged, provides, replaces
from xclrun.core.task import Scored
from xclrun.data.batches import Batch, Encoded
from xclrun.data.example import Example, Targets
from xclrun.model.answers import answers_of, read_windows
from xclrun.model.crf import crf_log_likelihood
from xclrun.model.shape import HeadSizes
from xclrun.scores.spans import span_counts, word_counts

# Predictions of one batch, on the model's device: name → tensor of shape (B, …). Only the head reads them.
Prediction = dict[str, Tensor]
# Marks a sentence whose prediction is not finite; log2-probabilities are at most 0 (up to rounding) or NaN.
NOT_FINITE = float("inf")


@dataclass(frozen=True)
class Limits:
    """Limits of written texts, in subwords.

    Attributes:
        new: longest text, including its end.
        prompt: longest prompt; a longer one loses subwords at its beginning.
        stop: further subwords that end a text, as the tokenizer names them.
        batch_tokens: maximum number of subwords of a batch, with prompts and padding; None: no limit.
    """

    new: int
    prompt: int
    stop: tuple[str, ...] = ()
    batch_tokens: int | None = None


@dataclass
class Features:
    """Last states of the encoder, as heads read them.

    Attributes:
        cls: (B, H) at [CLS]; for causal encoders, at the last subword.
        words: (B, W, H) at each word's labeled subword; None if the head does not read words.
    """

    cls: Tensor
    words: Tensor | None


@dataclass
class Output:
    """The result of one forward pass. Strategies that distill compare ``logits`` and ``emissions``.

    Attributes:
        cls: (B, H), see `Features`.
        states: (B, W, H) float32 states of words, of which the head scores only those that are words; otherwise None.
        logits: (B, C) float32 scores of a sentence; None if the head has none.
        emissions: float32 scores of words, (B, W, T) for tags or (B, W, 2) for the start and end of an answer;
            otherwise None.
    """

    cls: Tensor
    logits: Tensor | None = None
    emissions: Tensor | None = None
    states: Tensor | None = None


def viterbi(crf: CRF, emissions: Tensor, mask: Tensor) -> Tensor:
    """Return the best tag sequence of each sentence, like ``crf.decode`` but vectorized.

    Args:
        emissions: (B, W, T) float32.
        mask: (B, W) bool, True on words.

    Returns:
        Tags (B, W) int64, arbitrary where the mask is False.
    """
    score = crf.start_transitions + emissions[:, 0]
    stay = torch.arange(emissions.shape[2], device=emissions.device)
    history = []
    for i in range(1, emissions.shape[1]):
        best, origin = (score.unsqueeze(2) + crf.transitions).max(dim=1)
        word = mask[:, i : i + 1]
        score = torch.where(word, best + emissions[:, i], score)
        history.append(torch.where(word, origin, stay))
    path = [(score + crf.end_transitions).argmax(dim=1, keepdim=True)]
    for origin in reversed(history):
        path.append(origin.gather(1, path[-1]))
    return torch.cat(path[::-1], dim=1)


class TagCRF(CRF):
    """The CRF of the library `torchcrf`, with `crf_log_likelihood` as its forward pass."""

    def forward(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Return ln p(tags) of each sentence, (B,), like ``CRF.forward(…, reduction="none")`` up to rounding.

        EWC's Fisher information is computed by hooks on this forward pass.
        """
        return crf_log_likelihood(emissions, tags, mask, self.start_transitions, self.transitions, self.end_transitions)


class Pooler(nn.Module):
    """BERT's pooler (Devlin et al. 2019), for encoders without one: tanh(W x + b), with x the first state."""

    def __init__(self, hidden: int, std: float) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden, hidden)
        nn.init.normal_(self.dense.weight, std=std)
        nn.init.zeros_(self.dense.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Map states (B, L, H) to (B, H)."""
        return self.dense(states[:, 0]).tanh()


class ClassHead(nn.Linear):
    """Maps sentences (B, H) to the logits of classes (B, C): a linear layer, or cosine similarities.

    Attributes:
        scale: None for a linear layer. Otherwise the logit of class c is ``scale`` · cos(w_c, x), with w_c the row of
            ``weight`` for this class; ``bias`` is not used.
    """

    scale: float | None = None

    def forward(self, sentences: Tensor) -> Tensor:
        if self.scale is None:
            return super().forward(sentences)
        return self.scale * functional.linear(functional.normalize(sentences), functional.normalize(self.weight))


class WordHead(nn.Module):
    """Predicts the tag of each word independently: tag probabilities are the softmax of a linear layer."""

    def __init__(self, hidden: int, tags: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, tags)

    def forward(self, words: Tensor) -> Tensor:
        """Map words (B, W, H) to emissions (B, W, T)."""
        return self.linear(words)

    def log_likelihood(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Return ln p(tags) of each sentence, (B,) float32: the sum over its words."""
        per_word = emissions.log_softmax(dim=2).gather(2, tags.unsqueeze(2)).squeeze(2)
        return per_word.masked_fill(~mask, 0.0).sum(dim=1)

    def decode(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Return the best tags (B, W)."""
        return emissions.argmax(dim=2)


class TagHead(WordHead):
    """Predicts tags jointly, with a linear-chain CRF over the emissions (Lafferty et al. 2001)."""

    def __init__(self, hidden: int, tags: int) -> None:
        super().__init__(hidden, tags)
        self.crf = TagCRF(tags, batch_first=True)

    def log_likelihood(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Return ln p(tags) of each sentence, (B,) float32."""
        with torch.autocast(emissions.device.type, enabled=False):
            return self.crf(emissions, tags, mask)

    def decode(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Return the best tags (B, W)."""
        with torch.autocast(emissions.device.type, enabled=False):
            return viterbi(self.crf, emissions, mask)


class SpanHead(nn.Module):
    """Predicts start and end of an answer, each by a softmax over the words (Devlin et al. 2019, section 4.2).

    The words are [CLS], which means "no answer here", and the subwords of a window's text
    (`xclrun.data.batches.Windows`). Deviation: the softmax of BERT also includes padding and the question's subwords.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, 2)

    def forward(self, words: Tensor) -> Tensor:
        """Map words (B, W, H) to emissions (B, W, 2) of start and end."""
        return self.linear(words)

    def log_likelihood(self, emissions: Tensor, gold: Tensor, mask: Tensor) -> Tensor:
        """Return ln p(start) + ln p(end) of each window's answer, (B,) float32.

        Args:
            gold: (B, 2) int64, first and last word of the answer.
            mask: (B, W) bool, True on words.
        """
        lowest = torch.finfo(emissions.dtype).min
        logs = emissions.masked_fill(~mask.unsqueeze(2), lowest).log_softmax(dim=1)
        return logs.gather(1, gold.unsqueeze(1)).sum(dim=(1, 2))


class Head(nn.Module):
    """Base of the heads of one task. Subclasses assign layers in `build`; parameters belong to layers.

    Attributes:
        reads_words: whether the head reads the states of words.
        over_words: whether the probabilities of ``emissions`` are over words instead of over tags.
        reads_encoder: whether the head uses parameters of the encoder (`join_encoder`).
        sentence_first: whether the first word of a row is the place that represents the sentence. It is [CLS], or the
            last subword in causal encoders.
        about: name of a layer → description, for exports.
        pooler: BERT's pooler, if the task is `Task.pooled`; otherwise None.
    """

    reads_words: bool = False
    over_words: ClassVar[bool] = False
    sentence_first: ClassVar[bool] = False
    reads_encoder: ClassVar[bool] = False
    about: ClassVar[Mapping[str, str]] = {}

    def __init__(self, hidden: int, sizes: HeadSizes, dropout: float, pooler: nn.Module | None = None) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.pooler = pooler if sizes.task.pooled else None
        self.build(hidden, sizes)

    def build(self, hidden: int, sizes: HeadSizes) -> None:
        """Create the layers as attributes; ``hidden`` is H."""
        raise NotImplementedError

    def join_encoder(self, encoder: nn.Module) -> None:
        """Take what the head reads from the encoder, after `build`: a causal language model if `Task.writes`.

        Default: nothing. Parameters that the encoder contains must not become parameters of the head.
        """

    def forward(self, features: Features) -> Output:
        """Apply the head in fp32, for any precision of the encoder."""
        with torch.autocast(features.cls.device.type, enabled=False):
            words = None if features.words is None else features.words.float()
            output = self.answer(Features(features.cls.float(), words))
        return replace(output, cls=features.cls)

    def answer(self, features: Features) -> Output:
        """Map the encoder's states to scores; states and scores are float32."""
        raise NotImplementedError

    def score_states(self, states: Tensor) -> Tensor:
        """Map states of words (N, H), of `Output.states`, to their scores (N, C), float32."""
        raise NotImplementedError

    def sentence(self, features: Features) -> Tensor:
        """Return the vectors of sentences (B, H), through the pooler if the task has one, and with dropout."""
        # Add a dimension, because BERT's pooler reads the first position.
        return self.dropout(features.cls if self.pooler is None else self.pooler(features.cls.unsqueeze(1)))

    def log_likelihood(self, batch: Batch, output: Output) -> Tensor:
        """Return ln p(gold) of each sentence, (B,), in nats. The training loss is −Σ log-likelihood / Σ `units`."""
        raise NotImplementedError

    def units(self, batch: Batch) -> np.ndarray:
        """Return the units that the loss averages over, (B,), from what the CPU knows of a batch (`Batch.words`).

        Default: sentences, so 1 for each.
        """
        return np.ones(batch.size)

    def predict(self, batch: Batch, output: Output) -> Prediction:
        """Return the predictions of a batch, without gradients: name → (B, …)."""
        raise NotImplementedError

    def write_texts(self, encoded: Encoded, rows: np.ndarray, limits: Limits) -> dict[str, np.ndarray]:
        """Return what `columns` needs of texts that the head writes after `Encoded.prompts`, one entry for each row.

        Called after hops, in eval mode, for heads whose encoding has prompts.
        """
        raise NotImplementedError

    def noted(self, batch: Batch, predicted: Prediction, encoded: Encoded) -> dict[str, np.ndarray]:
        """Return what `columns` needs of a batch: name → one entry for each row, an array of length B.

        ``batch`` and ``predicted`` are on the CPU. A value of `NOT_FINITE` ends the evaluation with an error. Default:
        the predictions; NaN and infinite values become `NOT_FINITE`.
        """
        noted = {}
        for name, values in predicted.items():
            marked = torch.where(values.isfinite(), values, NOT_FINITE) if values.is_floating_point() else values
            noted[name] = marked.numpy()
        return noted

    def columns(
        self, values: Mapping[str, np.ndarray], examples: Sequence[Example], target: Targets, encoded: Encoded
    ) -> dict[str, list[Any]]:
        """Return the columns of prediction rows (`xclrun.store.predictions`), one value for each example.

        Default: the columns of the task (`Task.columns`) from the values with these names.

        Args:
            values: name → the entries that `noted` returned for all rows of a split, in order.
        """
        return {column.name: values[column.name].tolist() for column in target.task.columns if column.name in values}

    def described(self) -> dict[str, str]:
        """Return name of a layer → description, for exports."""
        return {**dict.fromkeys(dict(self.named_children()), type(self).__doc__ or ""), **self.about}

    @property
    def class_head(self) -> ClassHead | None:
        """The layer with one row of weights for each class, or None."""
        return None


HEADS: dict[str, type[Head]] = {}
AnyHead = TypeVar("AnyHead", bound=type[Head])


def register(name: str) -> Callable[[AnyHead], AnyHead]:
    """Register a class of heads under the name that tasks use (`Task.head`)."""

    def decorate(cls: AnyHead) -> AnyHead:
        if name in HEADS and not replaces("head", name):
            raise UsageError(f"head '{name}': this name is already registered; choose another")
        HEADS[name] = cls
        provides("head", name, cls.__doc__)
        return cls

    return decorate


def make_head(hidden: int, sizes: HeadSizes, dropout: float, pooler: nn.Module | None, encoder: nn.Module) -> Head:
    """Return the untrained head of a task; ``pooler``: BERT's pooler, or None if no task uses it."""
    task = sizes.task
    if task.head not in HEADS:
        raise UsageError(f"task '{task.name}': unknown head '{task.head}'; {did_you_mean(task.head, HEADS)}")
    head = HEADS[task.head](hidden, sizes, dropout, pooler)
    head.join_encoder(encoder)
    if direct := [name for name, _ in head.named_parameters(recurse=False)]:
        raise UsageError(f"head '{task.head}': the parameter '{direct[0]}' needs a layer; use a module such as Linear")
    if taken := RESERVED & {name for name, _ in head.named_children()}:
        raise UsageError(f"head '{task.head}': the name of the layer '{min(taken)}' is reserved; choose another")
    return head


# Names of the model's other parts.
RESERVED = {"encoder", "tasks", "prompts"}


@register("labels_and_tags")
class LabelsAndTags(Head):
    """A class head on the sentence, a tag head on the words, or both, as the task has labels or tags.

    Attributes:
        intent: class head on [CLS] itself, or None.
        classifier: class head on the pooler's output; None if the task does not use the pooler.
        tagger: tag head, or None.
    """

    about = {
        "intent": "linear layer on the last hidden state of [CLS]: logits of labels",
        "pooler": "BERT's pooler on the last hidden state of [CLS]: tanh of a linear layer; same as the encoder's "
        "pooler",
        "classifier": "linear layer on the pooler's output: logits of labels",
        "tagger.linear": "linear layer on the last hidden states of words: scores of tags",
        "tagger.crf": "linear-chain CRF over the scores of tagger.linear: start, end and transition scores (row to "
        "column)",
    }

    def build(self, hidden: int, sizes: HeadSizes) -> None:
        task = sizes.task
        self.intent = ClassHead(hidden, sizes.classes) if task.label is not None and not task.pooled else None
        self.classifier = ClassHead(hidden, sizes.classes) if task.pooled else None
        self.tagger = (TagHead if task.crf else WordHead)(hidden, sizes.tags) if sizes.tags else None
        self.reads_words = self.tagger is not None

    @property
    def class_head(self) -> ClassHead | None:
        return self.classifier if self.intent is None else self.intent

    def answer(self, features: Features) -> Output:
        logits = emissions = None
        if self.class_head is not None:
            logits = self.class_head(self.sentence(features))
        if self.tagger is not None and features.words is not None:
            emissions = self.tagger(self.dropout(features.words))
        return Output(features.cls, logits, emissions)

    def log_likelihood(self, batch: Batch, output: Output) -> Tensor:
        parts = []
        if output.logits is not None:
            parts.append(-functional.cross_entropy(output.logits, batch.labels, reduction="none"))
        if self.tagger is not None and output.emissions is not None:
            parts.append(self.tagger.log_likelihood(output.emissions, batch.tags, batch.word_mask))
        return parts[0] + parts[1] if len(parts) == 2 else parts[0]

    def predict(self, batch: Batch, output: Output) -> Prediction:
        """Return classes and tags with the log2-probabilities of the gold ones, NaN for the id −1 (not in training)."""
        predicted: Prediction = {}
        if output.logits is not None:
            log_label = output.logits.log_softmax(dim=1).gather(1, batch.labels.clamp(min=0).unsqueeze(1)).squeeze(1)
            predicted["label"] = output.logits.argmax(dim=1)
            predicted["log2_label"] = (log_label / math.log(2)).masked_fill(batch.labels < 0, math.nan)
        if self.tagger is not None and output.emissions is not None:
            likelihood = self.tagger.log_likelihood(output.emissions, batch.tags.clamp(min=0), batch.word_mask)
            unseen = ((batch.tags < 0) & batch.word_mask).any(dim=1)
            predicted["tags"] = self.tagger.decode(output.emissions, batch.word_mask)
            predicted["log2_tags"] = (likelihood / math.log(2)).masked_fill(unseen, math.nan)
        return predicted

    def noted(self, batch: Batch, predicted: Prediction, encoded: Encoded) -> dict[str, np.ndarray]:
        noted: dict[str, np.ndarray] = {}
        if "label" in predicted:
            noted["predicted"] = predicted["label"].numpy()
            noted["log2_gold"] = _marked(predicted["log2_label"], batch.labels >= 0)
        if "tags" in predicted:
            known = ((batch.tags >= 0) | ~batch.word_mask).all(dim=1)
            noted["log2_gold_tags"] = _marked(predicted["log2_tags"], known)
            seen = batch.word_mask.sum(dim=1).tolist()
            noted["tags"] = objects([row[:n] for row, n in zip(predicted["tags"].tolist(), seen, strict=True)])
        return noted

    def columns(
        self, values: Mapping[str, np.ndarray], examples: Sequence[Example], target: Targets, encoded: Encoded
    ) -> dict[str, list[Any]]:
        task, names, ids = target.task, target.tags, {tag: i for i, tag in enumerate(target.tags)}
        scalars = ("predicted", "log2_gold", "log2_gold_tags")
        columns: dict[str, list[Any]] = {name: values[name].tolist() for name in scalars if name in values}
        if task.label is not None:
            labels = {label: i for i, label in enumerate(target.labels)}
            columns["gold"] = [labels.get(str(e.label), -1) for e in examples]
        if not names:
            return columns
        gold_tags = np.split(encoded.tags.values, encoded.tags.offsets[1:-1])
        sequences = [_word_tags(row, gold.tolist(), names) for row, gold in zip(values["tags"], gold_tags, strict=True)]
        columns["seen"] = list(map(len, sequences))
        count = word_counts if task.tag is not None and task.tag.of is Scored.words else span_counts
        of_tags = ("gold_tags", "predicted_tags", "tp", "fp", "fn")
        columns |= {name: [] for name in of_tags}
        for e, sequence in zip(examples, sequences, strict=True):
            gold = e.tags or ()
            # Words beyond the length limit have no predictions: ignore these words, or count them as outside of
            # spans.
            if task.outside is None:
                gold = gold[: len(sequence)]
            else:
                sequence = sequence + [ids.get(task.outside, 0)] * (len(gold) - len(sequence))
            counts = count(gold, [names[i] for i in sequence])
            row = ([ids.get(tag, -1) for tag in gold], sequence, *counts)
            for name, value in zip(of_tags, row, strict=True):
                columns[name].append(value)
        return columns

    def described(self) -> dict[str, str]:
        """Return the descriptions of the layers; a cosine layer is described as one."""
        described = dict(self.about)
        for name, inputs in (("intent", "[CLS]"), ("classifier", "the pooler's output")):
            head = getattr(self, name)
            if head is not None and head.scale is not None:
                described[name] = f"{head.scale} · cosine similarity of {inputs} and the label's row of `weight`"
        return described


@register("answers")
class Answers(Head):
    """Start and end of an answer, in windows of a text (`xclrun.data.windows`)."""

    reads_words = True
    over_words = True
    sentence_first = True
    about = {
        "span.linear": "linear layer on the last hidden states of [CLS] and the text's subwords: scores of start and "
        "end"
    }

    def build(self, hidden: int, sizes: HeadSizes) -> None:
        self.span = SpanHead(hidden)

    def answer(self, features: Features) -> Output:
        assert features.words is not None
        return Output(features.cls, emissions=self.span(self.dropout(features.words)))

    def log_likelihood(self, batch: Batch, output: Output) -> Tensor:
        assert output.emissions is not None
        assert batch.gold is not None
        return self.span.log_likelihood(output.emissions, batch.gold, batch.word_mask)

    def predict(self, batch: Batch, output: Output) -> Prediction:
        """Return the emissions, which `xclrun.model.answers` decodes."""
        assert output.emissions is not None
        return {"emissions": output.emissions}

    def noted(self, batch: Batch, predicted: Prediction, encoded: Encoded) -> dict[str, np.ndarray]:
        assert encoded.windows is not None
        emissions = predicted["emissions"]
        finite = (emissions.isfinite().all(dim=2) | ~batch.word_mask).all(dim=1)
        read = read_windows(encoded.windows, batch.indices, emissions.numpy(), batch.word_mask.numpy())
        return {"finite": np.where(finite.numpy(), np.nan, NOT_FINITE), **read}

    def columns(
        self, values: Mapping[str, np.ndarray], examples: Sequence[Example], target: Targets, encoded: Encoded
    ) -> dict[str, list[Any]]:
        assert encoded.windows is not None
        return answers_of(encoded.windows, values, examples, target.unanswerable)


def objects(rows: Sequence[Any]) -> np.ndarray:
    """Return an array with one object for each row."""
    array = np.empty(len(rows), object)
    for i, row in enumerate(rows):
        array[i] = row
    return array


def _marked(values: Tensor, known: Tensor) -> np.ndarray:
    """Return values (B,), with `NOT_FINITE` in place of NaN and infinite values where ``known``, (B,), is true."""
    marked: np.ndarray = torch.where(known & ~values.isfinite(), NOT_FINITE, values).numpy()
    return marked


def _word_tags(predicted: list[int], gold: list[int], names: Sequence[str]) -> list[int]:
    """Return the predicted tag of each word. With ``label_on=all``, this is the tag of the word's first subword.

    X is the gold tag of a word's later subwords. If X is predicted for a first subword, O replaces X.
    """
    tail = len(names)
    if tail not in gold and tail not in predicted:
        return predicted
    outside = names.index("O") if "O" in names else 0
    pairs = zip(predicted, gold, strict=True)
    return [outside if tag == tail else tag for tag, target in pairs if target != tail]


packaged("head", HEADS)
