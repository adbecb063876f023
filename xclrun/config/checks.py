"""Validation of a config: limits of single values, and combinations of values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import isfinite
from operator import attrgetter, ge, gt, le, lt
from typing import Any
from urllib.parse import urlsplit

from xclrun.config.files import YAML_WORDS
from xclrun.config.schema import AUTO, WAYS, Config, ModelConfig, OrderConfig, Sampler, TrackingConfig, plain
from xclrun.core.errors import UsageError, did_you_mean, redact, require
from xclrun.core.names import check_name
from xclrun.core.task import makes_statements, reads_documents, writes

# Name of a bound (an argument of `xclrun.config.schema.bounded`) → comparison of a value with the bound.
BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {"at_least": ge, "above": gt, "at_most": le, "below": lt}
# Largest encoder that can be trained from scratch. Weights, gradients and Adam's two moments take 160 GB in fp32.
MOST_PARAMETERS = 10_000_000_000

# Key → (whether the key has an effect on the run of a config, end of the error message: what the key needs).
Needs = Mapping[str, tuple[Callable[[Config], bool], str]]


def _is_argument(key: str) -> Callable[[Config], bool]:
    return lambda c: c.order.by is not None and key in WAYS[c.order.by]


# Keys that are null by default. Setting such a key is an error if it has no effect on the run.
NEEDS: Needs = {
    "source": (lambda c: c.protocol is not None, "experiment=fewshot"),
    "language": (lambda c: c.protocol is not None, "experiment=fewshot; to choose languages, use order=[en,de]"),
    "evaluate.keep_points": (lambda c: c.evaluate.has_points, "evaluate.every_examples or evaluate.every_share"),
    "dataset.buckets.root": (lambda c: c.dataset.buckets.sampler is Sampler.files, "dataset.buckets.sampler=files"),
    "evaluate.stride": (lambda c: reads_documents(plain(c.dataset)), "dataset.task=language_modelling"),
    **{
        f"order.{key}": (
            _is_argument(key),
            " or ".join(f"order={way}" for way, keys in WAYS.items() if key in keys),
        )
        for key in ("seed", "start", "measure", "features")
    },
}
# Keys, or parents of keys, that YAML files may set even if they have no effect. On the command line, setting such a key
# is an error if no job uses it.
TYPED_NEEDS: Needs = {
    "dataset.buckets": (lambda c: c.shots is not None, "shots=K; without it, all training data is used"),
    "dataset.statements": (
        lambda c: makes_statements(plain(c.dataset)),
        "dataset.statements.kind, or dataset.parts.NAME.statements; without it, the dataset has no statements",
    ),
    **dict.fromkeys(
        ("dataset.text", "model.max_target", "generation", "evaluate.generate"),
        (lambda c: writes(plain(c.dataset)), "dataset.task=text_to_text; other tasks write no texts"),
    ),
    **dict.fromkeys(
        ("dataset.word_column", "dataset.tag_column"),
        (
            lambda c: "conll" in (c.dataset.reader, *(part.reader for part in c.dataset.parts.values())),
            "dataset.reader=conll; other readers have fixed columns",
        ),
    ),
    "dataset.tag_names": (
        lambda c: "jsonl" in (c.dataset.reader, *(part.reader for part in c.dataset.parts.values())),
        "dataset.reader=jsonl",
    ),
    **dict.fromkeys(
        [f"dataset.{key}" for key in ("text_column", "label_column", "text_b_column", "language_column", "header")],
        (
            lambda c: "table" in (c.dataset.reader, *(part.reader for part in c.dataset.parts.values())),
            "dataset.reader=table; other readers have fixed columns",
        ),
    ),
    "model.settings": (
        lambda c: c.model.from_scratch,
        "an encoder that is trained from scratch; remove the key, because a pretrained encoder uses its config.json",
    ),
}


def check_effects(overrides: Iterable[tuple[str, str]], configs: Sequence[Config]) -> None:
    """Raise a `UsageError` for an override (key, text) that affects none of the configs."""
    for key, text in overrides:
        for parent, (has_effect, needed) in TYPED_NEEDS.items():
            if f"{key}.".startswith(f"{parent}.") and not any(map(has_effect, configs)):
                raise UsageError(f"{text.lstrip('+')}: needs {needed}")


def _require(ok: object, key: str, value: Any, message: str) -> None:
    if not ok:
        raise UsageError(f"{key}={list(value) if isinstance(value, tuple) else value}: {message}")


def _check_values(node: Any, key: str = "", limits: Mapping[str, Any] | None = None) -> None:
    """Check each value below a node of the config against the limits of its field."""
    if is_dataclass(node):
        for field in fields(node):
            below, value = f"{key}.{field.name}" if key else field.name, getattr(node, field.name)
            # OmegaConf accepts nested lists even if the field's type is a flat list.
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
        _require(not isinstance(node, str) or "\0" not in node, key, node, "contains a null character; remove it")
        _require(not isinstance(node, float) or isfinite(node), key, node, "must be a finite number")
        # A field for text, in a YAML file: the language `no`.
        _require(
            node not in YAML_WORDS, key, node, f"YAML reads {YAML_WORDS.get(node)} without quotes as {node}; quote it"
        )
        if limits:
            _check_limits(key, node, limits)


def _check_limits(key: str, value: Any, limits: Mapping[str, Any]) -> None:
    if limits["name"]:
        check_name(key, value)
    if names := limits["among"]:
        _require(value in names, key, value, f"unknown; {did_you_mean(str(value), names)}")
    if pattern := limits["pattern"]:
        _require(re.fullmatch(pattern, value, re.DOTALL), key, value, limits["hint"])
    if bounds := limits["bounds"]:
        possible = " and ".join(f"{name.replace('_', ' ')} {bound:,}" for name, bound in bounds.items())
        within = all(BOUNDS[name](value, bound) for name, bound in bounds.items())
        _require(within, key, value, f"must be {possible}{limits['hint']}")


def _check_encoder(m: ModelConfig) -> None:
    """Check the length limit, and the shape of an encoder that is trained from scratch."""
    if m.path is None and (m.hub is None or m.package is not None) and m.positions is not None:
        longest = f"the encoder has {m.positions} positions; set model.max_length={m.positions} or less"
        _require(m.max_length <= m.positions, "model.max_length", m.max_length, longest)
    if not m.from_scratch:
        return
    sizes = []
    for key in ("vocab_size", "hidden_size", "hidden_layers", "attention_heads", "intermediate_size"):
        sizes.append(getattr(m, key))
        needed = "set it to train from scratch, or set model.path, model.hub or model.package to load an encoder"
        _require(sizes[-1] is not None, f"model.{key}", "null", needed)
    vocabulary, width, depth, heads, inner = sizes
    _require(
        m.layers is None or m.layers <= depth, "model.layers", m.layers, f"must be at most model.hidden_layers={depth}"
    )
    multiple = f"must be a multiple of model.attention_heads={heads}"
    _require(width % heads == 0, "model.hidden_size", width, multiple)
    rows = vocabulary + (m.positions or m.max_length) + (m.token_types or 2)
    total = width * (rows + (m.layers or depth) * (4 * width + 2 * inner))
    large = f"the encoder would have {total:,} parameters; at most {MOST_PARAMETERS:,} can be trained from scratch"
    _require(total <= MOST_PARAMETERS, "model.hidden_size", width, large)


def _check_dataset(cfg: Config) -> None:
    """Check blocks and buckets."""
    excluded = {
        "shots": cfg.shots is not None,
        "experiment=fewshot": cfg.protocol is not None,
        # Repeated examples would be in several blocks.
        "dataset.repeat_to": cfg.dataset.repeat_to is not None,
    }
    for name, is_set in excluded.items():
        message = f"cannot be combined with {name}; remove one of them"
        _require(cfg.dataset.blocks is None or not is_set, "dataset.blocks", cfg.dataset.blocks, message)
    if cfg.shots is not None and cfg.bucket is not None:
        number = cfg.dataset.buckets.number
        existing = f"must be below dataset.buckets.number={number}; buckets are numbered from 0"
        _require(cfg.bucket < number, "bucket", cfg.bucket, existing)


def _check_protocol(cfg: Config) -> None:
    """Check the keys of few-shot transfer."""
    if cfg.protocol is None:
        return
    _require(cfg.language is not None, "language", "null", "the target must be given, as in language=de")
    same = "is also the source; set source=none to train only on it"
    _require(cfg.language != cfg.source, "language", cfg.language, same)
    possible, order = (None, [x for x in (cfg.from_source, cfg.language) if x]), cfg.order
    order_text = f"[{','.join(order.languages)}]" if order.languages else order.name
    fixed = "few-shot transfer learns the source, then the language; remove the order"
    _require(order.languages in possible and order.by_size is None and order.by is None, "order", order_text, fixed)
    for name in ("precision", "optimizer_state"):
        value, source_value = getattr(cfg.trainer, name), getattr(cfg.protocol.source_trainer, name)
        equal = f"must equal protocol.source_trainer.{name}={source_value.value}"
        _require(value is source_value, f"trainer.{name}", value.value, equal)


def _check_order(order: OrderConfig) -> None:
    """Check that at most one method computes the order, and that the method's arguments are set."""
    both = f"order.by_size={order.by_size} is set too; set only one of them"
    _require(order.by is None or order.by_size is None, "order.by", order.by, both)
    for key in {"seed", "measure"} & set(WAYS[order.by] if order.by else ()):
        _require(getattr(order, key) is not None, f"order.{key}", "null", f"needed by order={order.by}")
    _require(
        order.features is None or order.measure != "vocabulary", "order.features", order.features,
        "needs order.measure=typology",
    )  # fmt: skip


# Value of ``tracking.to`` → title of the tracker. The tracker's package and extra have the same name as the value.
TRACKERS = {"mlflow": "MLflow", "wandb": "Weights & Biases", "tensorboard": "TensorBoard"}
# URL schemes of MLflow tracking servers.
SERVERS = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks")


def check_uri(key: str, uri: str | None) -> None:
    """Check the address of an MLflow tracking server; an address without a scheme is a folder."""
    if not uri or ":" not in uri:
        return
    if (redacted := redact(uri)) != uri:
        advice = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment"
        if not uri.lower().startswith("http"):
            advice = "set it where the database client reads it, for example in PGPASSWORD or ~/.pgpass for PostgreSQL"
        raise UsageError(f"{key}={redacted}: contains a password; remove it and {advice}")
    # A password in an address that `redact` does not know as one, such as http:/me:password@host.
    hidden = re.sub(r":[^:]*@", ":***@", uri)
    try:
        kind = urlsplit(uri).scheme.partition("+")[0]
    except ValueError:
        raise UsageError(f"{key}={hidden}: not an address") from None
    servers = f"must be a folder or a full address that starts with {', '.join(f'{name}://' for name in SERVERS)}"
    _require(kind in SERVERS and "://" in uri and len(uri) > uri.index("://") + 3, key, hidden, servers)


def _check_tracking(t: TrackingConfig) -> None:
    """Check the tracker, and that its package is installed."""
    check_tracker("tracking.to", t.to)
    check_uri("tracking.uri", t.uri)
    _require(t.experiment.strip(), "tracking.experiment", t.experiment, "is empty; give the experiment a name")
    instead = {
        "wandb": "; set WANDB_BASE_URL in the environment instead",
        "tensorboard": "; TensorBoard's files are always in <outputs>/tensorboard",
    }
    _require(
        t.uri is None or t.to == "mlflow",
        "tracking.uri",
        t.uri,
        f"has an effect only with tracking=mlflow{instead.get(t.to, '')}",
    )
    if t.enabled:
        require(t.to, f"tracking={t.to}", t.to)


def check_tracker(key: str, name: str) -> None:
    """Raise a UsageError for an unknown tracker."""
    _require(name in TRACKERS, key, name, f"unknown; {did_you_mean(name, TRACKERS)}")


def check(cfg: Config) -> None:
    """Check everything that types cannot check."""
    _check_tracking(cfg.tracking)
    _check_values(cfg)
    for key, (has_effect, needed) in NEEDS.items():
        value = attrgetter(key)(cfg)
        _require(value is None or has_effect(cfg), key, value, f"needs {needed}")
    for key, trainer in cfg.trainers.items():
        _require(len(trainer.betas) == 2, f"{key}.betas", trainer.betas, "needs two numbers")
        packing = trainer.packing
        known = isinstance(packing, bool) or packing == AUTO
        _require(known, f"{key}.packing", packing, f"must be {AUTO}, true or false")
        if trainer.optimizer.eight_bit:
            require("bitsandbytes", f"{key}.optimizer={trainer.optimizer.value}", "bitsandbytes")
    e = cfg.evaluate
    both = f"evaluate.every_examples={e.every_examples} is set too; set only one of them"
    _require(e.every_share is None or e.every_examples is None, "evaluate.every_share", e.every_share, both)
    _check_dataset(cfg)
    _check_protocol(cfg)
    _check_encoder(cfg.model)
    _check_order(cfg.order)
