"""Check a config: limits of single values, and values that do not fit each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite
from operator import ge, gt, le, lt
from typing import Any
from urllib.parse import urlsplit

from xclrun.config.schema import WAYS, Config, EvaluateConfig, ModelConfig, OrderConfig, Sampler, TrackingConfig
from xclrun.core.errors import UsageError, did_you_mean, require
from xclrun.core.names import check_name
from xclrun.core.secret import redact

# Bound of a field (`xclrun.config.schema.bounded`) → how a value is compared with it.
BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {"at_least": ge, "above": gt, "at_most": le, "below": lt}
# Parameters of an encoder that is trained from scratch; with its gradients and Adam's two moments, 160 GB.
MOST_PARAMETERS = 10_000_000_000


def _require(ok: object, key: str, value: Any, possible: str) -> None:
    if not ok:
        shown = list(value) if isinstance(value, tuple) else value
        raise UsageError(f"{key}={shown}: {possible}")


def _check_values(node: Any, key: str = "", limits: Mapping[str, Any] | None = None) -> None:
    """Check each value below a node of the config against the limits of its field."""
    if is_dataclass(node):
        for field in fields(node):
            below, value = f"{key}.{field.name}" if key else field.name, getattr(node, field.name)
            # OmegaConf takes a list for an element of any type.
            nested = isinstance(value, list | tuple) and any(isinstance(element, list | tuple) for element in value)
            _require(not nested, below, value, "must not be a list of lists")
            _check_values(value, below, field.metadata.get("limits"))
    elif isinstance(node, Mapping):
        for name, value in node.items():
            _check_values(value, f"{key}.{name}")
    elif isinstance(node, list | tuple):
        for value in node:
            _check_values(value, key, limits)
    elif node is not None:
        _require(not isinstance(node, float) or isfinite(node), key, node, "must be a finite number")
        if limits:
            _check_limits(key, node, limits)


def _check_limits(key: str, value: Any, limits: Mapping[str, Any]) -> None:
    if limits["name"]:
        check_name(key, value)
    if known := limits["among"]:
        _require(value in known, key, value, f"unknown; {did_you_mean(str(value), known)}")
    if pattern := limits["pattern"]:
        _require(re.fullmatch(pattern, value, re.DOTALL), key, value, limits["hint"])
    if bounds := limits["bounds"]:
        possible = " and ".join(f"{name.replace('_', ' ')} {bound:,}" for name, bound in bounds.items())
        within = all(BOUNDS[name](value, bound) for name, bound in bounds.items())
        _require(within, key, value, f"must be {possible}{limits['hint']}")


def _check_shape(m: ModelConfig) -> None:
    """Check the shape of an encoder that is trained from scratch."""
    shape = ("vocab_size", "hidden_size", "hidden_layers", "attention_heads", "intermediate_size")
    for key in shape:
        why = "must be given where none of model.path, model.hub and model.package is"
        _require(getattr(m, key) is not None, f"model.{key}", "null", why)
    vocabulary, width, depth, heads, inner = (getattr(m, key) for key in shape)
    _require(m.layers is None or m.layers <= depth, "model.layers", m.layers, f"model.hidden_layers is {depth}")
    multiple = f"must be a multiple of model.attention_heads={heads}"
    _require(width % heads == 0, "model.hidden_size", width, multiple)
    rows = vocabulary + (m.positions or m.max_length) + (m.token_types or 2)
    total = width * (rows + (m.layers or depth) * (4 * width + 2 * inner))
    large = f"the encoder would have {total:,} parameters; at most {MOST_PARAMETERS:,} can be trained from scratch"
    _require(total <= MOST_PARAMETERS, "model.hidden_size", width, large)


def _check_points(e: EvaluateConfig) -> None:
    """Check the evaluation points inside hops."""
    both = e.every_share is not None and e.every_examples is not None
    two = f"evaluate.every_examples={e.every_examples} is given too; give one of them"
    _require(not both, "evaluate.every_share", e.every_share, two)
    none = "there are no points without evaluate.every_examples or evaluate.every_share"
    _require(e.keep_points is None or e.has_points, "evaluate.keep_points", e.keep_points, none)


def _check_dataset(cfg: Config) -> None:
    """Check blocks and buckets."""
    excluded = {
        "shots": cfg.shots is not None,
        "experiment=fewshot": cfg.protocol is not None,
        # Copies of an example would are in several blocks.
        "dataset.repeat_to": cfg.dataset.repeat_to is not None,
    }
    for name, is_set in excluded.items():
        possible = f"blocks of a training split cannot be had with {name}"
        _require(cfg.dataset.blocks is None or not is_set, "dataset.blocks", cfg.dataset.blocks, possible)
    b = cfg.dataset.buckets
    from_files = b.sampler is Sampler.files
    _require(b.root is None or from_files, "dataset.buckets.root", b.root, "needs dataset.buckets.sampler=files")
    if cfg.shots is not None and cfg.bucket is not None:
        drawn = f"there are dataset.buckets.number={b.number} for each language and K, from 0"
        _require(cfg.bucket < b.number, "bucket", cfg.bucket, drawn)


def _check_protocol(cfg: Config) -> None:
    """Check the keys of few-shot transfer, and refuse them outside `experiment=fewshot`."""
    if cfg.protocol is None:
        for key in ("source", "language"):
            _require(getattr(cfg, key) is None, key, getattr(cfg, key), "needs experiment=fewshot")
        return
    _require(cfg.language is not None, "language", "null", "the target must be given, as in language=de")
    same = "is the source too; set source=none to train on it alone"
    _require(cfg.language != cfg.source, "language", cfg.language, same)
    possible, order = (None, [x for x in (cfg.from_source, cfg.language) if x]), cfg.order
    order_text = f"[{','.join(order.languages)}]" if order.languages else order.name
    alone = "few-shot transfer goes from the source to the language; leave the order out"
    _require(order.languages in possible and order.by_size is None and order.by is None, "order", order_text, alone)
    for name in ("precision", "optimizer_state"):
        value, source_value = getattr(cfg.trainer, name), getattr(cfg.protocol.source_trainer, name)
        equal = f"must be protocol.source_trainer.{name}={source_value.value}"
        _require(value is source_value, f"trainer.{name}", value.value, equal)


def _check_order(order: OrderConfig) -> None:
    """Check how an order is computed."""
    both = f"order.by_size={order.by_size} is given too; give one of them"
    _require(order.by is None or order.by_size is None, "order.by", order.by, both)
    accepted = WAYS[order.by] if order.by else ()
    for key in sorted({key for keys in WAYS.values() for key in keys}):
        value, ways = getattr(order, key), " or ".join(f"order={way}" for way, keys in WAYS.items() if key in keys)
        _require(value is None or key in accepted, f"order.{key}", value, f"needs {ways}")
        required = key in accepted and key in ("seed", "measure")
        _require(value is not None or not required, f"order.{key}", "null", f"needed by order={order.by}")
    if order.measure == "vocabulary":
        _require(order.features is None, "order.features", order.features, "needs order.measure=typology")


@dataclass(frozen=True)
class TrackedBy:
    """A tracker of runs.

    Attributes:
        title: for people.
        package: the package that it needs; the extra has the name in ``tracking.to``.
    """

    title: str
    package: str


# ``tracking.to`` → tracker.
TRACKERS = {
    "mlflow": TrackedBy("MLflow", "mlflow"),
    "wandb": TrackedBy("Weights & Biases", "wandb"),
    "tensorboard": TrackedBy("TensorBoard", "tensorboard"),
}
# Schemes of the addresses where MLflow can keep runs.
SERVERS = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks")


def check_uri(key: str, uri: str | None) -> None:
    """Check the address of an MLflow tracking server; without a scheme it is a folder.

    Raises:
        UsageError: the address is malformed, holds a password, or is of another kind of server.
    """
    if not uri or ":" not in uri:
        return
    if (shown := redact(uri)) != uri:
        how = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment"
        if not uri.startswith("http"):
            how = "use the password file or variable of the database's client (PostgreSQL: PGPASSWORD)"
        raise UsageError(f"{key}={shown}: holds a password; leave it out and {how}")
    try:
        kind = urlsplit(uri).scheme.partition("+")[0]
    except ValueError as error:
        raise UsageError(f"{key}={uri}: not an address ({error})") from None
    known = f"unknown kind of tracking server; Known: {', '.join(f'{name}://' for name in SERVERS)}"
    _require(kind in SERVERS and "://" in uri and len(uri) > uri.index("://") + 3, key, uri, known)


def _check_tracking(t: TrackingConfig) -> None:
    """Check the tracker, and that its package is installed."""
    check_tracker("tracking.to", t.to)
    check_uri("tracking.uri", t.uri)
    servers = {"wandb": "WANDB_BASE_URL in the environment", "tensorboard": "<outputs>/tensorboard"}
    where = servers.get(t.to, "")
    _require(t.uri is None or t.to == "mlflow", "tracking.uri", t.uri, f"is MLflow's; of tracking={t.to} it is {where}")
    if t.enabled:
        require(TRACKERS[t.to].package, f"tracking={t.to}", t.to)


def check_tracker(key: str, name: str) -> None:
    """Raise a UsageError for an unknown tracker."""
    _require(name in TRACKERS, key, name, f"unknown; {did_you_mean(name, TRACKERS)}")


def check(cfg: Config) -> None:
    """Check all values that a type alone cannot check.

    Raises:
        UsageError: one line with the key, the value and the possible values.
    """
    _check_tracking(cfg.tracking)
    _check_values(cfg)
    for key, trainer in cfg.trainers.items():
        _require(len(trainer.betas) == 2, f"{key}.betas", trainer.betas, "needs two numbers")
    _check_points(cfg.evaluate)
    _check_dataset(cfg)
    _check_protocol(cfg)
    m = cfg.model
    if m.path is None and m.hub is None and m.package is None:
        _check_shape(m)
    if m.path is None and (m.hub is None or m.package is not None) and m.positions is not None:
        longest = f"the encoder has {m.positions} positions; set model.max_length={m.positions} or less"
        _require(m.max_length <= m.positions, "model.max_length", m.max_length, longest)
    _check_order(cfg.order)
