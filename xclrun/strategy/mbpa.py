"""Memory-based parameter adaptation (MbPA++): replay in training, and a locally adapted model for each test example.

d'Autume et al. 2019, "Episodic memory in lifelong language learning", section 3; Hussain et al. 2021 ("LL"), section 4.
Training is identical to ``replay``. For each test example the K nearest memory examples are retrieved, by features of
the encoder of hop 0 (`xclrun.train.features`). Starting from the trained weights W, L steps of gradient descent
minimise

    λ ‖W̃ − W‖² − Σ_k (1/K) log p(y_k | x_k; W̃),

without dropout. The adapted weights W̃ predict this example and are then discarded. If the memory has fewer than K
examples, all are used; if it is empty, the model is not adapted.

Many copies of the model are adapted at a time (`torch.func.vmap`). Word embeddings are copied only for subwords that
occur in the batch; the result is exact, because the other embeddings have no gradient.

The model is adapted in evaluations after a hop. At evaluation points inside a hop it is adapted only with
``adapt_points``; otherwise, measures over points, such as AULTC, use the unadapted model. Dev scores always use the
unadapted model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.core.errors import UsageError
from xclrun.core.stream import Hop, Stream
from xclrun.strategy.base import Context, Length, Library, Plan, bounded
from xclrun.strategy.replay import Replay, ReplaySettings
from xclrun.strategy.shared.memory import select_sentences

if TYPE_CHECKING:
    from torch import Tensor, nn

    from xclrun.core.task import Task
    from xclrun.data.batches import Batch, Encoded
    from xclrun.model.heads import Prediction
    from xclrun.model.network import Model


class Key(Enum):
    cls = "cls"
    pooler = "pooler"


class Distance(Enum):
    euclidean = "euclidean"
    dot = "dot"


@dataclass
class MbPASettings(ReplaySettings):
    neighbours: int = bounded(at_least=0)
    key: Key = Key.cls
    distance: Distance = Distance.euclidean
    adapt_steps: int = bounded(at_least=0)
    adapt_lr: float = bounded(at_least=0)
    adapt_penalty: float = bounded(at_least=0)
    adapt_points: bool = False
    adapt_together: int = bounded(at_least=1)


def nearest(keys: np.ndarray, memory: np.ndarray, count: int, distance: Distance) -> np.ndarray:
    """For each row of ``keys`` (n, H), return the indices of the nearest rows of ``memory`` (m, H), nearest first.

    The shape is (n, min(count, m)). Ties: the earlier row comes first. Distances are computed pair by pair, so that
    equal rows tie exactly.
    """
    from scipy.spatial.distance import cdist

    keys, memory = keys.astype(np.float64), memory.astype(np.float64)
    dot = distance is Distance.dot
    far = -np.einsum("nh,mh->nm", keys, memory) if dot else cdist(keys, memory, "sqeuclidean")
    return np.argsort(far, axis=1, kind="stable")[:, :count]


class MbPA(Replay[MbPASettings]):
    name = "mbpa"
    settings_type = MbPASettings
    cannot_write = "adapts the model for each sentence with gradients of a mean over sentences; use strategy=er"

    def __init__(self, settings: MbPASettings) -> None:
        super().__init__(settings)
        written = (settings.replay_write, settings.replay_interval, settings.replay_number)
        self.trained_as = Replay(ReplaySettings(Replay.name, *written))
        self.pooler: nn.Module | None = None
        self.library: Library | None = None
        self.features: dict[tuple[str, str], np.ndarray] = {}

    # Training and memory are shared with replay.

    def plan(self, hop: Hop) -> Plan:
        adapts = self.adapts(hop)
        # `points` covers `adapt_points`; training and state cover the settings of replay.
        excluded = ("adapt_points", "replay_write", "replay_interval", "replay_number")
        return Plan(
            train=self.trained_as.plan(hop).train,
            # Even without replay there is a state: predictions use the memory.
            state=self.trained_as.described() if self.settings.replay_write > 0 else None,
            serve={key: value for key, value in self.described().items() if key not in excluded} if adapts else {},
            points=None if self.settings.adapt_points else {},
            features=adapts,
        )

    def adapts(self, hop: Hop) -> bool:
        """Return whether predictions after a hop adapt the model."""
        s = self.settings
        return hop.depth > 0 and s.replay_write > 0 and s.neighbours > 0 and s.adapt_steps > 0

    def unsupported(self, tasks: Sequence[Task]) -> str | None:
        if self.settings.key is Key.cls or len(tasks) == 1:
            return None
        return "strategy.key=pooler is ambiguous, because each task has its own pooler; use strategy.key=cls"

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        inside = any(length.points and self.adapts(length.hop) for length in lengths)
        if not inside or self.settings.adapt_points:
            return super().notes(lengths)
        return [
            *super().notes(lengths),
            f"strategy={self.settings.name}: evaluation points inside hops, and AULTC, use the unadapted model; set "
            "strategy.adapt_points=true to adapt it at these points too, which takes much longer",
        ]

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        import copy

        from xclrun.model.heads import Head

        # Gradients per example are computed without the numbers of subwords that other units need.
        if other := [type(head).__name__ for head in model.heads.values() if type(head).units is not Head.units]:
            raise UsageError(f"strategy=mbpa: the loss of {other[0]} is no mean over sentences; use strategy=er")
        self.library, self.features = library, {}
        if self.settings.key is Key.pooler:
            # Use a copy, because the task can train the pooler.
            pooler: nn.Module | None = next((head.pooler for head in model.heads.values()), None)
            pooler = getattr(model.encoder, "pooler", None) if pooler is None else pooler
            if pooler is None:
                kind = type(model.encoder).__name__
                raise UsageError(f"strategy.key=pooler: {kind} has no pooler; use strategy.key=cls")
            self.pooler = copy.deepcopy(pooler).eval()

    # Inference.

    def predict(self, batch: Batch, language: str, split: str, context: Context) -> Prediction:
        # Neighbours must have the example's task, because each task has its own heads.
        memory = {k: rows for k, rows in self.memory.items() if len(rows) and context.train[k].task == batch.task}
        if not self.adapts(context.hop) or not memory:
            return context.model.predict(batch)
        stored = np.concatenate([self.keys(key, "train")[indices] for key, indices in memory.items()])
        queries = self.keys(language, split)[batch.indices]
        rows = nearest(queries, stored, self.settings.neighbours, self.settings.distance)
        examples = select_sentences(memory, context)
        # Group neighbours of similar lengths, for little padding.
        order = np.argsort(-examples.lengths[rows].max(axis=1), kind="stable")
        size = self.settings.adapt_together
        groups = [order[start : start + size] for start in range(0, len(order), size)]
        result = concatenate([self._adapted(batch.at(at), examples, rows[at], context) for at in groups])
        back = np.argsort(order)
        return {name: value[back] for name, value in result.items()}

    def keys(self, language: str, split: str) -> np.ndarray:
        """Return the retrieval keys of a split's sentences, (n, H)."""
        if (language, split) not in self.features:
            assert self.library is not None
            cls = self.library.features(language, split)
            self.features[language, split] = cls if self.pooler is None else pooled(self.pooler, cls)
        return self.features[language, split]

    def _adapted(self, batch: Batch, examples: Encoded, rows: np.ndarray, context: Context) -> Prediction:
        """Return the predictions for T examples, each with weights adapted to its neighbours.

        Args:
            examples: the memory.
            rows: (T, K) rows of the memory: the neighbours of each example.
        """
        import torch
        from torch.func import grad, vmap
        from torch.nn.attention import SDPBackend, sdpa_kernel

        from xclrun.model.network import with_weights

        model, (count, k), s = context.model, rows.shape, self.settings
        near = examples.batch(rows.ravel()).to(context.device)
        start, (queries, neighbours) = compact(model, [batch, near])

        def loss(weights: Mapping[str, Tensor], fields: Mapping[str, Tensor]) -> Tensor:
            return with_weights(model, weights, lambda m: m.loss(as_batch(fields, batch.task)))

        def predict(weights: Mapping[str, Tensor], fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return with_weights(model, weights, lambda m: m.predict(as_batch(fields, batch.task)))

        near_fields = {name: value.unflatten(0, (count, k)) for name, value in fields_of(neighbours).items()}
        weights = {name: value.expand(count, *value.shape) for name, value in start.items()}
        # vmap supports only the math implementation of attention. fp16 would need a gradient scaler, so adapt in fp32
        # instead.
        full_precision = (
            torch.autocast(context.device.type, enabled=False) if context.precision == "fp16" else nullcontext()
        )
        with sdpa_kernel(SDPBackend.MATH):
            with full_precision:
                for _ in range(s.adapt_steps):
                    context.check_stop()
                    gradients = vmap(grad(loss))(weights, near_fields)
                    weights = {
                        name: w - s.adapt_lr * (gradients[name] + 2 * s.adapt_penalty * (w - start[name]))
                        for name, w in weights.items()
                    }
            query_fields = {name: value.unsqueeze(1) for name, value in fields_of(queries).items()}
            predictions = vmap(predict)(weights, query_fields)
        return {name: value.flatten(0, 1) for name, value in predictions.items()}


def pooled(pooler: nn.Module, cls: np.ndarray) -> np.ndarray:
    """Apply BERT's pooler to [CLS] states; input and output are (n, H) float32."""
    import torch

    with torch.no_grad():
        result: np.ndarray = pooler(torch.from_numpy(cls).unsqueeze(1)).numpy()
    return result


def compact(model: Model, batches: Sequence[Batch]) -> tuple[dict[str, Tensor], list[Batch]]:
    """Return (trained parameters of a model, batches), with word embeddings only for the subwords in ``batches``.

    The subword IDs of the batches are renumbered accordingly; IDs up to the padding's ID keep their values.
    """
    import torch

    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    encoder: Any = model.encoder
    words = encoder.get_input_embeddings()
    name = next(name for name, p in model.named_parameters() if p is words.weight)
    if name not in trained:
        return trained, list(batches)
    low = torch.arange(0 if words.padding_idx is None else words.padding_idx + 1, device=words.weight.device)
    used = torch.cat([low, *(batch.input_ids.flatten() for batch in batches)]).unique()
    trained[name] = trained[name][used]
    return trained, [replace(b, input_ids=torch.searchsorted(used, b.input_ids)) for b in batches]


def fields_of(batch: Batch) -> dict[str, Tensor]:
    """Return a batch's tensors by name, for vmap, with a mask of shape (B, L, L).

    If a mask has shape (B, L), libraries read its values; vmap does not support this.
    """
    mask = batch.attention_mask
    return batch.tensors | {"attention_mask": mask.unsqueeze(1).expand(-1, mask.shape[1], -1)}


def as_batch(fields: Mapping[str, Any], task: str) -> Batch:
    from xclrun.data.batches import Batch

    return Batch(**fields, indices=np.arange(len(fields["labels"])), task=task)


def concatenate(parts: Sequence[Prediction]) -> Prediction:
    """Concatenate the predictions for parts of a batch; all parts have equal padding."""
    import torch

    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
