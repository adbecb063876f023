"""Identity of a job before anything runs: its run id, the keys of its stages, its seeds.

Two names are given here, both SHA-256 hashes of everything that can change a result and of nothing else:

- the **run id** names one composed job: resolved config, content of the data, identity of the encoder, version of the
  algorithms;
- the **stage keys** name the training, the strategy's state and the evaluation of each hop. A key holds its parent's
  key, so two runs have a key in common exactly if they agree on everything up to that hop, and share the work.

Everything random takes its seed from `derive`: a function of (seed, purpose, position) and never of what ran before,
so a resumed or shared hop draws what an undisturbed one would. This module knows nothing of torch, files or Hydra.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from xclrun.core.stream import Hop, Stream
from xclrun.core.task import has_answers, makes_statements

# Version of what is computed. Raise it when a change of code can change any result: all ids and keys change with it.
ALGORITHMS = 1

# Config keys that cannot change a result, and so are not part of a run's identity. All other keys are.
# Paths are not, but what they point to is: fingerprints represent dataset.root, for all that dataset.parts puts
# together, and for model.path; the hashes of pretrained adapters for their folders.
# How an order is worked out is not, but the languages that come of it are.
# Budgets of replay are part of it where a strategy takes them over as its own settings; learning rates that suit a
# dataset or an encoder, where a trainer does.
NOT_IDENTITY = frozenset(
    {
        "dataset.root",
        "dataset.hub",
        "dataset.hub_config",
        "dataset.hub_columns",
        "dataset.word_column",
        "dataset.tag_column",
        "dataset.parts",
        "dataset.on_bad_line",
        "dataset.buckets.root",
        "dataset.replay",
        "dataset.source_lr",
        "strategy.pretrained",
        "strategy.expansion.pretrained",
        "order.by",
        "order.seed",
        "order.start",
        "order.measure",
        "order.features",
        "model.source_lr",
        "model.path",
        "model.package",
        "model.hub",
        "model.revision",
        "trainer.checkpoint_minutes",
        "trainer.gradient_checkpointing",
        "protocol.source_trainer.checkpoint_minutes",
        "protocol.source_trainer.gradient_checkpointing",
        "sweep_name",
        "strategy_label",
        "tracking",
        "paths",
        "runtime",
    }
)

# A key added after a release → the value that has the behavior of before. With this value the key is not part of a
# run's identity, so that existing IDs stay the same.
LATER: dict[str, Any] = {
    "evaluate.batch_tokens": None,
    "strategy.off_diagonal": 0.9,
    "strategy.warm_up": 0,
    "strategy.cosine": None,
}

# Plug-ins that a run uses (`xclrun.core.plugins.used`); without any there is no such key.
PLUGINS = ("dataset.plugins", "strategy.plugins")


def digest(content: Any) -> str:
    """Return the SHA-256 (hex) of a JSON-able value, independent of the order of its keys."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def derive(seed: int, purpose: str, *position: int | str) -> int:
    """Return the seed (63 bits) of one generator: for ``purpose`` at ``position``, for example (hop, epoch)."""
    return int(digest([seed, purpose, *position])[:16], 16) >> 1


def flat(
    config: Mapping[str, Any], without: Collection[str] = frozenset(), prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested settings, but for the keys ``without`` and what is below them."""
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        if dotted not in without:
            yield from flat(value, without, f"{dotted}.") if isinstance(value, Mapping) else [(dotted, value)]


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a resolved config (nested dict) that can change a result."""
    # Without buckets, the settings for drawing them have no effect.
    unused = {"dataset.buckets"} if config.get("shots") is None else set()
    # Nor have those for making statements, where none are made.
    unused |= set() if makes_statements(config.get("dataset", {})) else {"dataset.statements"}
    # Nor windows, where no text is asked about.
    unused |= set() if has_answers(config.get("dataset", {})) else {"model.windows"}

    def keep(node: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, value in node.items():
            path = f"{prefix}{key}"
            if path in PLUGINS:
                # Its hash, not where it lies.
                kept[key] = [plugin.split()[0] for plugin in value]
                continue
            if path in NOT_IDENTITY | unused or (path in LATER and value == LATER[path]):
                continue
            if isinstance(value, Mapping):
                kept[key] = keep(value, f"{path}.")
            else:
                kept[key] = value
        return kept

    return keep(config, "")


# How F1 of spans is computed by default: what keys say where nothing depends on it.
SPAN_MICRO = "span_micro"


class Signed(Protocol):
    """What a plan asks of a strategy (see `xclrun.strategy.base.Strategy`)."""

    def signature(self, hop: Hop) -> dict[str, Any]: ...

    def state_signature(self, hop: Hop) -> dict[str, Any] | None: ...

    def serving_signature(self, hop: Hop) -> dict[str, Any]: ...

    def points_signature(self, hop: Hop) -> dict[str, Any]: ...

    def keeps_encoder(self, hop: Hop) -> bool: ...

    def hops_read_in_evaluation(self, hop: Hop) -> Sequence[int]: ...


@dataclass(frozen=True)
class DataIdentity:
    """What of a dataset goes into ids and keys.

    Attributes:
        fingerprints: (language, split) → content hash.
        labels: hash of the label sets.
        spans: whether F1 of spans is among the dataset's scores.
    """

    fingerprints: Mapping[tuple[str, str], str]
    labels: str
    spans: bool = True

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the whole dataset."""
        return digest([self.labels, sorted((*key, value) for key, value in self.fingerprints.items())])


@dataclass(frozen=True)
class Stage:
    """The work of one hop inside a run, each part under its own key in the store.

    Attributes:
        hop: the hop.
        train: key of the trained weights; hop 0's names the untrained model.
        state: key of the strategy's state after the hop, or None where the strategy keeps none.
        evaluation: key of the predictions.
        attention: key of the summary of attention, or None if none is asked for.
    """

    hop: Hop
    train: str
    state: str | None
    evaluation: str
    attention: str | None = None

    @property
    def measured(self) -> tuple[str, ...]:
        """Keys of what is measured after the hop."""
        return (self.evaluation,) if self.attention is None else (self.evaluation, self.attention)

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys."""
        return tuple(key for key in (self.train, self.state, *self.measured) if key is not None)


def stages(
    config: Mapping[str, Any], stream: Stream, data: DataIdentity, encoder: str, strategy: Signed
) -> tuple[Stage, ...]:
    """Return the stages of a run, one per hop, hop 0 first.

    Args:
        config: resolved config as a nested dict.
        encoder: identity of the encoder before fine-tuning: its weights, or what its vocabulary is learned from.
    """
    known = identity(config)
    model = {key: value for key, value in known["model"].items() if key not in ("name", "lr")}
    common = {
        "algorithms": ALGORITHMS,
        "model": model,
        "encoder": encoder,
        "labels": data.labels,
        "seed": known["seed"],
        **{key: value for key, value in flat(known) if key in PLUGINS and value},
    }
    # Further measurements change neither predictions nor training; those in a training are a part of what it gives.
    gradients = ("gradient_overlap", "class_gradients")
    measured = ("attention", *gradients)
    evaluate = {k: v for k, v in known["evaluate"].items() if k not in measured} | {"slot_f1": SPAN_MICRO}
    inside = {key: True for key in gradients if known["evaluate"].get(key)}
    trained: dict[int, str] = {}
    states: dict[int, str | None] = {}
    result = []
    for hop in stream.hops:
        if hop.index == 0:
            trained[0], states[0] = digest({**common, "kind": "untrained"}), None
        else:
            trained[hop.index] = digest(
                {
                    "kind": "train",
                    "parent": trained[hop.parent],
                    "depth": hop.depth,
                    "train": [data.fingerprints[language, "train"] for language in hop.train],
                    "dev": [data.fingerprints[language, "dev"] for language in hop.select],
                    "trainer": _trainer(known, hop, stream),
                    "evaluate": evaluate | {"slot_f1": _selecting_f1(known, hop, data)},
                    "strategy": strategy.signature(hop),
                    **({"mixed": True} if hop.mixed else {}),
                    **_points(known, hop, stream, data, strategy),
                    **inside,
                }
            )
            state = strategy.state_signature(hop)
            parents = [trained[hop.index], states[hop.parent]]
            states[hop.index] = (
                None if state is None else digest({"kind": "state", "parents": parents, "strategy": state})
            )
        served = {
            "test": {language: data.fingerprints[language, "test"] for language in stream.languages},
            # The untrained model's key holds no trainer, but its predictions depend on the precision too.
            "precision": known["trainer"]["precision"],
            "strategy": strategy.serving_signature(hop),
            **({"codes": data.fingerprints[hop.codes, "train"]} if hop.codes else {}),
            **_other_weights(hop, stream, trained, strategy),
        }
        evaluation = digest({"kind": "evaluation", "train": trained[hop.index], "evaluate": evaluate, **served})
        attention = None
        if known["evaluate"].get("attention"):
            encoder_of = trained[encoder_hop(hop, stream, strategy).index]
            attention = digest({"kind": "attention", "train": encoder_of, **served})
        result.append(Stage(hop, trained[hop.index], states[hop.index], evaluation, attention))
    return tuple(result)


def _other_weights(hop: Hop, stream: Stream, trained: Mapping[int, str], strategy: Signed) -> dict[str, Any]:
    """Return the keys of the weights that an evaluation reads in addition to those that the hop was trained from."""
    ancestors, index = {hop.index}, hop.index
    while index > 0:
        index = stream.hops[index].parent
        ancestors.add(index)
    others = [trained[i] for i in strategy.hops_read_in_evaluation(hop) if i not in ancestors]
    return {"weights": others} if others else {}


def hands_on(hop: Hop, stream: Stream) -> bool:
    """Whether a hop could take up an optimiser state, or pass one on."""
    return hop.parent > 0 or any(other.parent == hop.index for other in stream.hops)


def _trainer_of(known: Mapping[str, Any], hop: Hop) -> Mapping[str, Any]:
    protocol = known.get("protocol")
    trainer: Mapping[str, Any] = known["trainer"] if protocol is None or hop.adapts else protocol["source_trainer"]
    return trainer


def _selecting_f1(known: Mapping[str, Any], hop: Hop, data: DataIdentity) -> str:
    """Return how F1 of spans is computed of the dev scores of a hop's training.

    As ``evaluate.slot_f1`` says only where that can change the training: where dev scores choose its weights or its
    end. All else is computed from predictions, in any way, after the fact.
    """
    trainer = _trainer_of(known, hop)
    # `xclrun.config.schema.TrainerConfig.uses_dev`, of plain values.
    uses_dev = trainer["selection"] == "best" or (trainer.get("patience") or 0) > 0
    return str(known["evaluate"]["slot_f1"]) if uses_dev and data.spans else SPAN_MICRO


def _trainer(known: Mapping[str, Any], hop: Hop, stream: Stream) -> Mapping[str, Any]:
    """Return the trainer settings that can change a hop's result."""
    trainer = _trainer_of(known, hop)
    # A hop without parent and successor has no optimizer state to pass on: it shares its training with those that start
    # with a fresh one.
    fresh = trainer["optimizer_state"] == "fresh" or not hands_on(hop, stream)
    unused = {"optimizer_state": fresh, "mixture_steps": not hop.mixed}
    return {key: value for key, value in trainer.items() if not unused.get(key)}


def encoder_hop(hop: Hop, stream: Stream, strategy: Signed) -> Hop:
    """Return the hop that last trained the encoder, as of ``hop``: an earlier one where ``hop`` keeps it frozen."""
    while strategy.keeps_encoder(hop):
        hop = stream.hops[hop.parent]
    return hop


def _points(known: Mapping[str, Any], hop: Hop, stream: Stream, data: DataIdentity, strategy: Signed) -> dict[str, Any]:
    """Return what the predictions at a hop's evaluation points depend on next to its training; nothing without any."""
    evaluate = known["evaluate"]
    if evaluate.get("every_examples") is None and evaluate.get("every_share") is None:
        return {}
    splits = ("test",) if evaluate.get("point_splits") == "test" else ("dev", "test")
    tested = {k: [data.fingerprints[k, split] for split in splits] for k in stream.languages}
    return {"points": {"data": tested, "strategy": strategy.points_signature(hop)}}


def strategy_name(config: Mapping[str, Any]) -> str:
    """Return the name of a resolved config's strategy for people: ``er``, or ``er+lang_spec_task``.

    A file of a user's own (``--config-dir``) gives its name: ``strategy_label``, which changes no result. It stands
    next to the strategy's settings, since these go on to reference runs and commands.
    """
    settings = config["strategy"]
    expansion, name = settings.get("expansion"), str(config.get("strategy_label") or settings["name"])
    return f"{name}+{expansion['name']}" if expansion else name


def adapters_of(settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the resolved settings of a strategy's language adapters, its own or its expansion's; None without any.

    They are known by their key ``pretrained``, which those with `Strategy.has_adapters` have and no others.
    """
    own = settings.get("expansion") or settings
    return own if "pretrained" in own else None


def run_id(config: Mapping[str, Any], data: DataIdentity, encoder: str, strategy_version: int | str) -> str:
    """Return the id of a run: words that help a person, then the hash that is the identity (12 of 64 hex digits)."""
    content = {
        "config": identity(config),
        "data": data.fingerprint,
        "encoder": encoder,
        "versions": {"algorithms": ALGORITHMS, "strategy": strategy_version},
    }
    strategy = strategy_name(config)
    words = [config["dataset"]["name"], strategy, config["order"]["name"], f"s{config['seed']}"]
    if config.get("shots") is not None:
        words.append(f"k{config['shots']}")
    if config.get("bucket") is not None:
        words.append(f"b{config['bucket']}")
    # An id is the name of a folder, for which file systems have 255 bytes.
    name = re.sub(r"[^\w.+-]", "_", "-".join(words)).encode()[:160].decode(errors="ignore")
    return f"{name}-{digest(content)[:12]}"
