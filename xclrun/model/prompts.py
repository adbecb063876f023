"""Prompts: trained vectors in front of the subwords of each text, for a frozen encoder (Lester et al. 2021).

`xclrun.model.network.Model` prepends the prompts to the embeddings, and drops the states of the prompts after the last
layer. A pool selects or mixes the prompt of a text by the text's query. The query is the state of [CLS] in the frozen
encoder without prompts.

Shapes: B texts, P prompt tokens of a text, E width of the embeddings, H hidden size, M entries of a pool, L tokens of
an entry.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Prompts(nn.Module):
    """Base class. Maps queries (B, H), or only the number B of texts, to prompts (B, P, E)."""

    reads_queries = True

    def penalty(self, hop: int) -> Tensor:
        """Return the term (scalar) to add to the model's loss of a batch in a hop."""
        raise NotImplementedError


class SinglePrompt(Prompts):
    """One prompt for all texts, (P, E)."""

    reads_queries = False

    def __init__(self, embeddings: Any, tokens: int) -> None:
        super().__init__()
        self.prompt = nn.Parameter(_sampled(embeddings, tokens))

    def forward(self, texts: int) -> Tensor:
        return self.prompt.expand(texts, -1, -1)


class PromptPool(Prompts):
    """The pool of L2P (Wang et al. 2022, section 4): a text gets the prompts of the N keys nearest to its query.

    Attributes:
        prompts, keys: (M, L, E) and (M, H).
    """

    def __init__(self, embeddings: Any, hidden: int, entries: int, tokens: int, selected: int) -> None:
        super().__init__()
        self.prompts = nn.Parameter(_sampled(embeddings, entries * tokens).unflatten(0, (entries, tokens)))
        self.keys = nn.Parameter(torch.empty(entries, hidden).uniform_(-1, 1))
        self.selected, self._distance = selected, torch.zeros(())

    def forward(self, queries: Tensor) -> Tensor:
        cosines = functional.cosine_similarity(queries.unsqueeze(1), self.keys, dim=2)
        nearest, entries = cosines.topk(self.selected, dim=1)
        self._distance = (1 - nearest).sum(dim=1).mean()
        chosen = functional.embedding(entries, self.prompts.flatten(1))
        return chosen.reshape(len(queries), -1, self.prompts.shape[2])

    def penalty(self, hop: int) -> Tensor:
        """Return Σ over the N keys of 1 − cos(query, key), averaged over the texts of the last forward pass."""
        return self._distance


class PromptComponents(Prompts):
    """The components of CODA-Prompt (Smith et al. 2023, section 4): a text gets the prompt Σ_m cos(q ⊙ A_m, K_m) P_m.

    Each hop trains an equal share of the components. Components of later hops are not yet in the sum.

    Attributes:
        prompts, keys, attention: for each hop, a matrix with the rows P_m (L·E), K_m (H) or A_m (H) of its components.
        learned: number of components in the sum, stored with the weights.
    """

    learned: Tensor

    def __init__(self, embeddings: Any, hidden: int, components: int, tokens: int, hops: int) -> None:
        super().__init__()
        self.tokens = tokens
        shares = [components * (hop + 1) // hops - components * hop // hops for hop in range(hops)]

        def orthogonal(width: int) -> nn.ParameterList:
            # Use float64, so that after rounding the result does not depend on the number of threads.
            rows = nn.init.orthogonal_(torch.empty(components, width, dtype=torch.float64)).float()
            return nn.ParameterList([nn.Parameter(part.clone()) for part in rows.split(shares)])

        self.prompts = orthogonal(tokens * embeddings.embedding_dim)
        self.keys, self.attention = orthogonal(hidden), orthogonal(hidden)
        self.register_buffer("learned", torch.zeros((), dtype=torch.int64))

    def begin(self, hop: int) -> None:
        """Train the components of a hop (from 1), and freeze the others."""
        self.learned.fill_(sum(len(keys) for keys in self.keys[:hop]))
        for group in (self.prompts, self.keys, self.attention):
            for number, parameter in enumerate(group, start=1):
                parameter.requires_grad_(number == hop)

    def forward(self, queries: Tensor) -> Tensor:
        prompts, keys, attention = (torch.cat([*group]) for group in (self.prompts, self.keys, self.attention))
        weights = functional.cosine_similarity(queries.unsqueeze(1) * attention, keys, dim=2)
        entered = torch.arange(len(keys), device=keys.device) < self.learned
        return ((weights * entered) @ prompts).unflatten(1, (self.tokens, -1))

    def penalty(self, hop: int) -> Tensor:
        """Return the orthogonality penalty: mean((X Xᵀ − I)²), summed over X = prompts, keys and attention.

        X has one row for each component of the first ``hop`` hops.
        """
        prompts, keys, attention = (
            _gram_error(torch.cat([*group][:hop])) for group in (self.prompts, self.keys, self.attention)
        )
        return prompts + keys + attention


def _gram_error(rows: Tensor) -> Tensor:
    with torch.autocast(rows.device.type, enabled=False):
        return (rows @ rows.T - torch.eye(len(rows), device=rows.device)).square().mean()


def _sampled(embeddings: Any, number: int) -> Tensor:
    """Return copies of randomly drawn rows of the subwords' embeddings, (number, E) (Lester et al. 2021)."""
    rows = torch.randint(len(embeddings.weight), (number,))
    return embeddings.weight.detach()[rows].clone()
