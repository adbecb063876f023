"""Memory-based parameter adaptation (MbPA++): replay in training, and its own model for each test example.

d'Autume et al. 2019, "Episodic memory in lifelong language learning", section 3; Hussain et al. 2021 ("LL"), section 4.
Training is that of ``replay``, which it shares. For each test example the K nearest examples of the memory are looked
up, by what the encoder of hop 0 makes of them (`xclrun.train.features`), and L steps of gradient descent are taken from
the trained weights W on

    λ ‖W̃ − W‖² − Σ_k (1/K) log p(y_k | x_k; W̃),

without dropout. The adapted weights W̃ predict this example and are thrown away; the model stays unchanged. With fewer
than K examples in memory it is all of them; before any, the model answers.

Copies are adapted many at a time (`torch.func.vmap`), and of the word embeddings only the rows that occur, since the
others have no gradient and do not move: both are exact.

Only test examples are adapted to, after each hop; at evaluation points inside hops where ``adapt_points`` asks for it.
Otherwise what is computed of points, AULTC above all, is of the unadapted model. Dev scores are always of that.
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
from xclrun.strategy.base import Context, Length, Library, bounded
from xclrun.strategy.replay import Replay, ReplaySettings
from xclrun.strategy.shared.memory import gathered

if TYPE_CHECKING:
    from torch import Tensor, nn

    from xclrun.core.task import Task
    from xclrun.data.batches import Batch, Encoded
    from xclrun.model import Model
    from xclrun.model.network import Prediction


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
    """Return for each of ``keys`` (n, H) the rows of ``memory`` (m, H) nearest to it, nearest first: (n, count) or all.

    Of equals the earlier row comes first. Products are taken of each pair by itself, so that equal rows are equals.
    """
    from scipy.spatial.distance import cdist

    keys, memory = keys.astype(np.float64), memory.astype(np.float64)
    dot = distance is Distance.dot
    far = -np.einsum("nh,mh->nm", keys, memory) if dot else cdist(keys, memory, "sqeuclidean")
    return np.argsort(far, axis=1, kind="stable")[:, :count]


class MbPA(Replay[MbPASettings]):
    """Replay, and local adaptation of the whole model at inference."""

    name = "mbpa"
    settings_type = MbPASettings

    def __init__(self, settings: MbPASettings) -> None:
        super().__init__(settings)
        written = (settings.replay_write, settings.replay_interval, settings.replay_number)
        self.trained_as = Replay(ReplaySettings(Replay.name, *written))
        self.pooler: nn.Module | None = None
        self.library: Library | None = None
        self.known: dict[tuple[str, str], np.ndarray] = {}

    # Sharing: what is trained and written is replay's.

    def signature(self, hop: Hop) -> dict[str, Any]:
        return self.trained_as.signature(hop)

    def state_signature(self, hop: Hop) -> dict[str, Any] | None:
        # Also if it is never replayed, what is written is looked up.
        return self.trained_as.described() if self.settings.replay_write > 0 else None

    def serving_signature(self, hop: Hop) -> dict[str, Any]:
        if not self.looks_up(hop):
            return {}
        # Points have their own signature, and what was written is part of the training's.
        other = ("adapt_points", "replay_write", "replay_interval", "replay_number")
        return {key: value for key, value in self.described().items() if key not in other}

    def points_signature(self, hop: Hop) -> dict[str, Any]:
        return self.serving_signature(hop) if self.settings.adapt_points else {}

    def looks_up(self, hop: Hop) -> bool:
        s = self.settings
        return hop.depth > 0 and s.replay_write > 0 and s.neighbours > 0 and s.adapt_steps > 0

    def unfit(self, tasks: Sequence[Task]) -> str | None:
        if self.settings.key is Key.cls or len(tasks) == 1:
            return None
        return "strategy.key=pooler: each task has its own pooler; use strategy.key=cls"

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        inside = any(length.points and self.looks_up(length.hop) for length in lengths)
        if not inside or self.settings.adapt_points:
            return super().notes(lengths)
        return [
            *super().notes(lengths),
            f"strategy={self.settings.name}: evaluation points inside hops, and AULTC, are of the unadapted model; "
            "strategy.adapt_points=true adapts there too, which takes much longer",
        ]

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        import copy

        self.library, self.known = library, {}
        if self.settings.key is Key.pooler:
            # Before any training, also where the task trains it.
            pooler: nn.Module | None = model.pooler or getattr(model.encoder, "pooler", None)
            if pooler is None:
                kind = type(model.encoder).__name__
                raise UsageError(f"strategy.key=pooler: {kind} has no pooler; use strategy.key=cls")
            self.pooler = copy.deepcopy(pooler).eval()

    # Inference.

    def answer(self, batch: Batch, language: str, split: str, context: Context) -> Prediction:
        # Neighbours are of the example's own task, if there are several: each has its own heads.
        memory = {k: kept for k, kept in self.memory.items() if len(kept) and context.train[k].task == batch.task}
        if not self.looks_up(context.hop) or not memory:
            return context.model.predict(batch)
        there = np.concatenate([self.keys(key, "train")[indices] for key, indices in memory.items()])
        asked = self.keys(language, split)[batch.indices]
        rows = nearest(asked, there, self.settings.neighbours, self.settings.distance)
        examples = gathered(memory, context)
        # Neighbours of like lengths together: little padding.
        order = np.argsort(-examples.lengths[rows].max(axis=1), kind="stable")
        size = self.settings.adapt_together
        groups = [order[start : start + size] for start in range(0, len(order), size)]
        found = joined([self._adapted(batch.at(at), examples, rows[at], context) for at in groups])
        back = np.argsort(order)
        return replace(found, **{name: value[back] for name, value in vars(found).items() if value is not None})

    def keys(self, language: str, split: str) -> np.ndarray:
        """Return by what the sentences of a split are looked up, (n, H)."""
        if (language, split) not in self.known:
            assert self.library is not None
            found = self.library.features(language, split)
            self.known[language, split] = found if self.pooler is None else pooled(self.pooler, found)
        return self.known[language, split]

    def _adapted(self, batch: Batch, examples: Encoded, rows: np.ndarray, context: Context) -> Prediction:
        """Return the predictions for T examples, each by weights that were adapted to its neighbours.

        Args:
            batch: the T examples.
            examples: the memory.
            rows: (T, K) the neighbours.
        """
        import torch
        from torch.func import grad, vmap
        from torch.nn.attention import SDPBackend, sdpa_kernel

        from xclrun.model.network import Prediction, with_weights

        model, (count, k), s = context.model, rows.shape, self.settings
        near = examples.batch(rows.ravel()).to(context.device)
        start, (asked, shown) = compact(model, [batch, near])

        def loss(weights: Mapping[str, Tensor], fields: Mapping[str, Tensor]) -> Tensor:
            return with_weights(model, weights, lambda m: m.loss(made(fields, batch.task)))

        def predict(weights: Mapping[str, Tensor], fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
            found = with_weights(model, weights, lambda m: m.predict(made(fields, batch.task)))
            return {name: value for name, value in vars(found).items() if value is not None}

        neighbours = {name: value.unflatten(0, (count, k)) for name, value in fields_of(shown).items()}
        weights = {name: value.expand(count, *value.shape) for name, value in start.items()}
        # Mapped attention has a fast way only if it is plain arithmetic. Half precision has no scaler here.
        whole = torch.autocast(context.device.type, enabled=False) if context.precision == "fp16" else nullcontext()
        with sdpa_kernel(SDPBackend.MATH):
            with whole:
                for _ in range(s.adapt_steps):
                    context.stop_here()
                    gradients = vmap(grad(loss))(weights, neighbours)
                    weights = {
                        name: w - s.adapt_lr * (gradients[name] + 2 * s.adapt_penalty * (w - start[name]))
                        for name, w in weights.items()
                    }
            own = {name: value.unsqueeze(1) for name, value in fields_of(asked).items()}
            found = vmap(predict)(weights, own)
        there = {name: value.flatten(0, 1) for name, value in found.items()}
        return Prediction(**there)


def pooled(pooler: nn.Module, cls: np.ndarray) -> np.ndarray:
    """Return what BERT's pooler makes of the encoder's [CLS], both (n, H) float32."""
    import torch

    with torch.no_grad():
        found: np.ndarray = pooler(torch.from_numpy(cls).unsqueeze(1)).numpy()
    return found


def compact(model: Model, batches: Sequence[Batch]) -> tuple[dict[str, Tensor], list[Batch]]:
    """Return a model's trained parameters by name, and batches, with only those subwords that occur in them.

    The pieces are renumbered; the padding's and all below it stay.
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
    """Return a batch's tensors by name, ready to be mapped: masks as (B, L, L), which libraries do not look into."""
    mask = batch.attention_mask
    return batch.tensors | {"attention_mask": mask.unsqueeze(1).expand(-1, mask.shape[1], -1)}


def made(fields: Mapping[str, Any], task: str) -> Batch:
    """Return a batch of tensors, by name."""
    from xclrun.data.batches import Batch

    return Batch(**fields, indices=np.arange(len(fields["labels"])), task=task)


def joined(parts: Sequence[Prediction]) -> Prediction:
    """Return the predictions of several parts of a batch, which have the same padding, as one."""
    import torch

    from xclrun.model.network import Prediction

    columns = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
    return Prediction(**{name: None if found[0] is None else torch.cat(found) for name, found in columns.items()})
