"""Identity of a job: run ID, stage keys and seeds, computed before the job runs.

IDs and keys are SHA-256 hashes of exactly the settings and data that can change a result:

- The **run ID** names one composed job: resolved config, content of the data, identity of the encoder, version of the
  algorithms.
- The **stage keys** name the training, the strategy's state and the evaluation of each hop. A key includes the key of
  the parent hop. Two runs therefore share a trained hop if and only if all settings up to that hop are equal.

All random numbers are seeded by `derive`, a function of (seed, purpose, position) that does not depend on earlier
computations. A resumed or shared hop therefore draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from xclrun.core.graph import Kind, Plan, Result, Stage, needs_of, parts_of
from xclrun.core.stream import Hop, Stream
from xclrun.core.task import makes_statements, reads_documents, unread_settings, writes

# Version of the algorithms, part of all IDs and keys. Increase it when a code change can change a result.
ALGORITHMS = 1

# Config keys that are not part of a run's identity. Most cannot change a result. For the others, the identity contains
# their effect instead:
# - paths (dataset.root, dataset.parts, model.path, pretrained adapters): fingerprints of the files;
# - keys that compute an order: the list of languages;
# - default replay budgets and learning rates: the settings of the strategy or trainer that uses them.
NOT_IDENTITY = frozenset(
    {
        "dataset.root",
        "dataset.hub",
        "dataset.hub_config",
        "dataset.hub_columns",
        "dataset.word_column",
        "dataset.tag_column",
        "dataset.tag_names",
        "dataset.text_column",
        "dataset.label_column",
        "dataset.text_b_column",
        "dataset.language_column",
        "dataset.header",
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
        "store",
        "runtime",
    }
)

# Key that was added in a later release → the value that keeps the old behavior. A key with this value is not part of a
# run's identity, so existing IDs do not change.
LATER: dict[str, Any] = {
    "dataset.as_text": None,
    "evaluate.batch_tokens": None,
    "evaluate.stride": None,
    "model.frozen_precision": "fp32",
    "trainer.group_by_length": False,
    "protocol.source_trainer.group_by_length": False,
    "strategy.warm_up": 0,
    "strategy.cosine": None,
    **dict.fromkeys(
        (f"strategy.{inner}library" for inner in ("", "expansion.", "expansion.expansion.")),
        "adapters",
    ),
}

# Key of a strategy's settings that holds the settings of another strategy.
NESTED = ("expansion", "merged")

# Key → its name in identities, which is that of an earlier release.
RENAMED = {"strategy.merged": "strategy.expansion"}

# Config keys that list the plug-ins of a run (`xclrun.core.plugins.used`); absent from runs without plug-ins.
PLUGINS = ("dataset.plugins", "strategy.plugins")


def digest(content: Any) -> str:
    """Return the SHA-256 (hex) of a JSON-able value, independent of the order of its keys."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def derive(seed: int, purpose: str, *position: int | str) -> int:
    """Return the seed (63 bits) of a random generator for ``purpose`` at ``position``, for example (hop, epoch)."""
    return int(digest([seed, purpose, *position])[:16], 16) >> 1


def flat(
    config: Mapping[str, Any], without: Collection[str] = frozenset(), prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested settings, except for the keys ``without`` and all keys below them."""
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        if dotted not in without:
            yield from flat(value, without, f"{dotted}.") if isinstance(value, Mapping) else [(dotted, value)]


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a resolved config (nested dict) that can change a result."""
    dataset = config.get("dataset", {})
    has_effect = {
        "dataset.buckets": config.get("shots") is not None,
        "dataset.statements": makes_statements(dataset),
        **dict.fromkeys(("dataset.text", "evaluate.generate"), writes(dataset)),
        "evaluate.stride": reads_documents(dataset),
        "generation": writes(dataset) and config.get("evaluate", {}).get("generate") != "none",
    }
    excluded = NOT_IDENTITY | {key for key, used in has_effect.items() if not used}
    excluded |= {f"model.{key}" for key in unread_settings(dataset)}

    def select(node: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        selected: dict[str, Any] = {}
        for key, value in node.items():
            path = f"{prefix}{key}"
            path = RENAMED.get(path, path)
            key = path.rpartition(".")[2]
            if path in PLUGINS:
                # Keep only the hash: a plug-in's location cannot change a result.
                selected[key] = [plugin.split()[0] for plugin in value]
            elif path not in excluded and not (path in LATER and value == LATER[path]):
                selected[key] = select(value, f"{path}.") if isinstance(value, Mapping) else value
        return selected

    return select(config, "")


# Default of ``evaluate.slot_f1``. Stage keys that do not depend on the setting contain this value.
SPAN_MICRO = "span_micro"


class Planner(Protocol):
    """What stage keys ask of a strategy (`xclrun.strategy.base.Strategy`)."""

    def plan(self, hop: Hop) -> Plan: ...


@dataclass(frozen=True)
class DataIdentity:
    """Hashes and properties of a dataset that IDs and keys contain.

    Attributes:
        fingerprints: (language, split) → content hash.
        labels: hash of the label sets.
        spans: whether the dataset is scored by span F1.
    """

    fingerprints: Mapping[tuple[str, str], str]
    labels: str
    spans: bool = True

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the whole dataset."""
        return digest([self.labels, sorted((*key, value) for key, value in self.fingerprints.items())])


def stages(
    config: Mapping[str, Any], stream: Stream, data: DataIdentity, encoder: str, strategy: Planner
) -> tuple[Stage, ...]:
    """Return the stages of a run, one per hop, hop 0 first.

    Args:
        config: resolved config as a nested dict.
        encoder: identity of the encoder before fine-tuning: a hash of its weights or, for an encoder that is trained
            from scratch, of the data that its vocabulary is built from.
    """
    settings = identity(config)
    model = {key: value for key, value in settings["model"].items() if key not in ("name", "lr")}
    common = {
        "algorithms": ALGORITHMS,
        "model": model,
        "encoder": encoder,
        "labels": data.labels,
        "seed": settings["seed"],
        **{key: value for key, value in flat(settings) if key in PLUGINS and value},
    }
    # Attention and gradient statistics do not change predictions, so `evaluate` omits their settings. Training keys
    # contain the settings of gradient statistics, which are stored with the trained weights. Texts are written only
    # after hops, so their settings are part of the keys of evaluations alone.
    gradients = ("gradient_overlap", "class_gradients")
    measured = ("attention", "generate", *gradients)
    written = {"generation": settings["generation"]} if "generation" in settings else {}
    evaluate = {k: v for k, v in settings["evaluate"].items() if k not in measured} | {"slot_f1": SPAN_MICRO}
    inside = {key: True for key in gradients if settings["evaluate"].get(key)}
    trained: dict[int, str] = {}
    states: dict[int, str | None] = {}
    result: list[Stage] = []
    points = bool(_points(settings, stream, data, Plan()))
    for hop in stream.hops:
        plan = strategy.plan(hop)
        parts, needs = parts_of(hop, plan, result), needs_of(hop, plan, result, points)
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
                    "trainer": _trainer(settings, hop, stream),
                    "evaluate": evaluate | {"slot_f1": _selecting_f1(settings, hop, data)},
                    "strategy": plan.train,
                    **({"mixed": True} if hop.mixed else {}),
                    **_points(settings, stream, data, plan),
                    **_other_weights(hop, stream, trained, needs[Kind.weights]),
                    **inside,
                }
            )
            parents = [trained[hop.index], states[hop.parent]]
            states[hop.index] = (
                None if plan.state is None else digest({"kind": "state", "parents": parents, "strategy": plan.state})
            )
        served = {
            "test": {language: data.fingerprints[language, "test"] for language in stream.languages},
            # The precision changes predictions. The key of an untrained model does not contain it, so add it here.
            "precision": settings["trainer"]["precision"],
            "strategy": plan.serve,
            **written,
            **({"codes": data.fingerprints[hop.codes, "train"]} if hop.codes else {}),
            **_other_weights(hop, stream, trained, needs[Kind.evaluation]),
        }
        evaluation = digest({"kind": "evaluation", "train": trained[hop.index], "evaluate": evaluate, **served})
        attention = None
        if settings["evaluate"].get("attention"):
            attention = digest({"kind": "attention", "train": trained[parts[0]], **served})
        result.append(Stage(hop, trained[hop.index], states[hop.index], evaluation, attention, plan, parts, needs))
    return tuple(result)


def _other_weights(hop: Hop, stream: Stream, trained: Mapping[int, str], needs: Iterable[Result]) -> dict[str, Any]:
    """Return the training keys of the hops whose weights a result needs, except for the hop and its ancestors."""
    ancestors, index = {hop.index}, hop.index
    while index > 0:
        index = stream.hops[index].parent
        ancestors.add(index)
    weights = [trained[i] for kind, i in needs if kind is Kind.weights and i not in ancestors]
    return {"weights": weights} if weights else {}


def hands_on(hop: Hop, stream: Stream) -> bool:
    """Whether, with ``optimizer_state=kept``, a hop loads its parent's optimizer state or stores its own."""
    return hop.parent > 0 or any(other.parent == hop.index for other in stream.hops)


def _trainer_of(settings: Mapping[str, Any], hop: Hop) -> Mapping[str, Any]:
    protocol = settings.get("protocol")
    trainer: Mapping[str, Any] = settings["trainer"] if protocol is None or hop.adapts else protocol["source_trainer"]
    return trainer


def _selecting_f1(settings: Mapping[str, Any], hop: Hop, data: DataIdentity) -> str:
    """Return the value of ``evaluate.slot_f1`` in the key of a hop's training.

    The setting affects training only if dev scores select the best epoch or trigger early stopping. Reports compute
    all other scores from predictions.
    """
    trainer = _trainer_of(settings, hop)
    # The rule of `xclrun.config.schema.TrainerConfig.uses_dev`, for a plain dict.
    uses_dev = trainer["selection"] == "best" or (trainer.get("patience") or 0) > 0
    return str(settings["evaluate"]["slot_f1"]) if uses_dev and data.spans else SPAN_MICRO


def _trainer(settings: Mapping[str, Any], hop: Hop, stream: Stream) -> Mapping[str, Any]:
    """Return the trainer settings that can change a hop's result."""
    trainer = _trainer_of(settings, hop)
    # If a hop neither loads nor stores an optimizer state, ``kept`` and ``fresh`` are equivalent and share a key. The
    # single hop of `zero_shot` therefore has the same key as the first hop of `naive` with ``fresh``. With ``kept``,
    # the first hop of `naive` also stores a state, so its key differs.
    fresh = trainer["optimizer_state"] == "fresh" or not hands_on(hop, stream)
    unused = {"optimizer_state": fresh, "mixture_steps": not hop.mixed}
    return {key: value for key, value in trainer.items() if not unused.get(key)}


def _points(settings: Mapping[str, Any], stream: Stream, data: DataIdentity, plan: Plan) -> dict[str, Any]:
    """Return what evaluation points inside a hop add to its training key; empty without evaluation points."""
    evaluate = settings["evaluate"]
    if evaluate.get("every_examples") is None and evaluate.get("every_share") is None:
        return {}
    splits = ("test",) if evaluate.get("point_splits") == "test" else ("dev", "test")
    tested = {k: [data.fingerprints[k, split] for split in splits] for k in stream.languages}
    return {"points": {"data": tested, "strategy": plan.at_points}}


def strategy_name(config: Mapping[str, Any]) -> str:
    """Return the display name of a resolved config's strategy: ``er``, ``er+lang_spec_task``, or ``merge+er``.

    For a strategy defined by a YAML file in ``--config-dir``, this is the name of the file (``strategy_label``).
    """
    settings = config["strategy"]
    names = [str(config.get("strategy_label") or settings["name"])]
    return "+".join([*names, *(settings[key]["name"] for key in NESTED if settings.get(key))])


def adapters_of(settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the adapter settings of a strategy or of its expansion; None without adapters.

    Only strategies with `Strategy.has_adapters` have the key ``pretrained``.
    """
    parts = settings.get("expansion") or settings
    return parts if "pretrained" in parts else None


def run_id(config: Mapping[str, Any], data: DataIdentity, encoder: str, strategy_version: int | str) -> str:
    """Return the ID of a run: a readable prefix and the hash of its identity (12 of 64 hex digits)."""
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
    # File systems limit names to 255 bytes.
    name = re.sub(r"[^\w.+-]", "_", "-".join(words)).encode()[:160].decode(errors="ignore")
    return f"{name}-{digest(content)[:12]}"
