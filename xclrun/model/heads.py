"""Heads for classes (linear or cosine), tags (linear, with a CRF for the joint task) and answers.

In the joint task, the loss is the sum of the intent's cross-entropy and the CRF's negative log-likelihood (CCL, section
2.3). Heads compute in fp32 for any precision of the encoder; the CRF's likelihood is in float64
(`xclrun.model.crf`). Without a CRF, the tags of words are independent given the encoder's states (FS; Devlin et al.
2019, section 5.3). With and without a CRF, the loss of a sentence is the sum over its words. FS instead takes the mean
over all words of a batch, so FS's gradient has another scale.

Shapes: B sentences, W words (packed to the left), H hidden size, C classes, T tags.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchcrf import CRF

from xclrun.core.task import Task
from xclrun.model.crf import crf_log_likelihood


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


def tag_head(task: Task) -> type[WordHead]:
    return TagHead if task.crf else WordHead
