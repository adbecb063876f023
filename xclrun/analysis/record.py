"""Run records: what was run, and its score matrices. The JSON form of a record is enough to make tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from xclrun.core.task import KEY_SCORE, METRICS

SCHEMA = 1

STATUSES = ("finished", "running", "interrupted", "failed")

# Stream → number of hops for N languages.
STREAMS = {
    "sequence": lambda n: n,  # hop after hop, each from the one before
    "independent": lambda n: n,  # hop i starts from hop 0 and trains on languages[i - 1] only
    "joint": lambda n: 1,  # one hop on the union of all languages
    "growing": lambda n: n,  # hop i starts from hop 0 and trains on the first i languages
    "zero_shot": lambda n: 1,  # one hop on the first language; the others are only tested
    "transfer": lambda n: n,  # few-shot: a source, if any, then a target
    "mixture": lambda n: n,  # a sequence in which some hops train on several languages, mixed
    "blocks": lambda n: n - 1,  # the first languages, then the blocks of the last language except for its last block
}


def number_of_hops(stream: str, languages: int, blocks: int | None) -> int:
    """Return the number of hops of a stream, without hop 0.

    Args:
        languages: number of elements of the order.
        blocks: `dataset.blocks`.
    """
    return STREAMS[stream](languages) + (blocks - 1 if stream == "blocks" and blocks is not None else 0)


# Cost of a run → unit. Memory is the maximum that a strategy keeps between hops in addition to its parameters; the
# others are sums over hops, with a shared hop counted as if the run had trained it.
COSTS = {
    "parameters": "count",
    "trained": "count",
    "memory": "bytes",
    "updates": "count",
    "examples": "count",
    "tokens": "count",
    "seconds": "s",
}


@dataclass(frozen=True, eq=False)
class RunRecord:
    """Settings and scores of a run.

    Attributes:
        run_id: records with the same ID are the same run.
        dataset, model, strategy: names in conf; ``er+lang_spec_task`` for a strategy with an expansion.
        order: its name in conf (``h2l``, ``order3``), or the languages joined by ``-`` for a list.
        languages: in the order of the stream; column j of a matrix is ``languages[j]``.
        bucket: None: the whole training split is used.
        stream: key of `STREAMS`.
        scores: metric → R, shape (hops + 1, N), in [0, 1]; row 0 is hop 0; NaN where not (yet) measured, and on keys
            of other tasks. Read-only.
        config: the resolved config, nested.
        algorithms: version of the algorithms; runs of different versions are never averaged.
        curve: one dict for each epoch: ``hop``, ``epoch``, ``step``, ``examples``, ``loss``, and ``dev``: language →
            metric → score.
        encoder: identity of the encoder before fine-tuning; empty where unknown.
        strategy_version: version of the strategy's algorithm, with that of the expansion and the content of pretrained
            adapters, if any.
        costs: by the names of `COSTS`; a missing name was not measured.
        environment: versions, platform, host and times, for people.
        points: one dict for each evaluation point inside a hop (``evaluate.every_…``): ``hop``, ``step``,
            ``examples`` seen in the hop, ``own``: the hop's own data among them, ``test`` and, if evaluated,
            ``dev``: language → metric → score.
        whole_fingerprint: hash of the data that the bucket was drawn from; empty without a bucket or where unknown.
        averaged: one dict for each hop and average of its checkpoints (`xclrun average`): ``hop``, ``of`` (``last-5``,
            ``all``), and ``test``: language → metric → score.
        coded: one dict for each coded block: ``hop`` of the coding model, ``block`` (from 1), ``codes``: ``labels``,
            ``tags`` or ``answers`` → ``examples``, ``bits``, ``uniform`` (`xclrun.analysis.codelength`), and
            ``start_knows``: those whose head the start knows.
        mixtures: the languages of each element of the order, where some are mixed; otherwise empty.
        edited: hops at whose end the strategy changed the weights that the last dev scores belong to
            (`Strategy.end_training`).
        sizes: split → key → number of examples; empty where unknown.

    Raises:
        ValueError: a matrix of the wrong shape, a score outside [0, 1], an unknown stream or status, no language, or a
            repeated one.
    """

    run_id: str
    dataset: str
    model: str
    strategy: str
    order: str
    languages: tuple[str, ...]
    seed: int
    bucket: int | None
    stream: str
    scores: dict[str, np.ndarray]
    config: dict[str, Any]
    data_fingerprint: str
    code_version: str
    algorithms: int
    status: str
    curve: tuple[dict[str, Any], ...] = ()
    encoder: str = ""
    strategy_version: int | str = 1
    costs: dict[str, float] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    points: tuple[dict[str, Any], ...] = ()
    whole_fingerprint: str = ""
    averaged: tuple[dict[str, Any], ...] = ()
    coded: tuple[dict[str, Any], ...] = ()
    mixtures: tuple[tuple[str, ...], ...] = ()
    edited: tuple[int, ...] = ()
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.stream not in STREAMS:
            raise ValueError(f"run {self.run_id}: stream '{self.stream}' is none of {', '.join(STREAMS)}")
        if self.status not in STATUSES:
            raise ValueError(f"run {self.run_id}: status '{self.status}' is none of {', '.join(STATUSES)}")
        if not self.languages or len(set(self.languages)) < len(self.languages):
            raise ValueError(f"run {self.run_id}: languages must be given, each once, not {list(self.languages)}")
        for name in ("languages", "curve", "points", "averaged", "coded", "edited"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "mixtures", tuple(map(tuple, self.mixtures)))
        object.__setattr__(self, "scores", {metric: self._checked(metric, R) for metric, R in self.scores.items()})

    def _checked(self, metric: str, scores: Any) -> np.ndarray:
        matrix = np.array(scores, dtype=float)
        shape = (self.hops + 1, len(self.languages))
        if matrix.shape != shape:
            raise ValueError(f"run {self.run_id}: {metric} has shape {matrix.shape}; {self.stream} needs {shape}")
        if not np.all(np.isnan(matrix) | ((matrix >= 0) & (matrix <= 1))):
            raise ValueError(f"run {self.run_id}: {metric} has scores outside [0, 1]")
        matrix.flags.writeable = False
        return matrix

    @property
    def finished(self) -> bool:
        """Whether the run has finished; only finished runs enter a number."""
        return self.status == "finished"

    @property
    def hops(self) -> int:
        """Number of hops, without hop 0."""
        return number_of_hops(self.stream, len(self.elements), self.config.get("dataset", {}).get("blocks"))

    @property
    def elements(self) -> tuple[str, ...]:
        """The elements of the order: languages, or mixtures ``a+b``."""
        return tuple("+".join(keys) for keys in self.mixtures) or self.languages

    @property
    def learnt(self) -> tuple[str, ...]:
        """What each hop learns, from hop 1 on: a language, ``all``, or the number of blocks of a language so far."""
        if self.stream == "joint":
            return ("all",)
        *first, key = self.elements
        if self.stream == "blocks":
            return (*first, *(f"{key}#{i}" for i in range(1, self.hops - len(first) + 1)))
        return self.elements[: self.hops]

    def trains(self, hop: int) -> tuple[str, ...]:
        """Return the languages that a hop, from 1, adds to those of earlier hops."""
        if self.stream == "joint":
            return self.languages
        groups = self.mixtures or tuple((language,) for language in self.languages)
        return groups[min(hop, len(groups)) - 1]

    @property
    def path(self) -> tuple[str, ...]:
        """What the run learns, in order: languages, or the source; empty where the order does not matter."""
        ordered = dict.fromkeys(("sequence", "growing", "blocks", "mixture"), self.elements)
        return {**ordered, "zero_shot": self.languages[:1]}.get(self.stream, ())

    @property
    def shots(self) -> int | None:
        """K of the bucket; None without a bucket."""
        shots: int | None = self.config.get("shots")
        return shots

    @property
    def slot_f1(self) -> str:
        """How span F1 was computed: ``span_micro`` or ``tag_macro``."""
        return str(self.config.get("evaluate", {}).get("slot_f1", "span_micro"))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics with separate tables, in their order; `scores` also has supplementary metrics.

        Where keys have several tasks this is only `KEY_SCORE`; the metrics of single tasks are supplementary.
        """
        if KEY_SCORE.name in self.scores:
            return (KEY_SCORE.name,)
        return tuple(metric.name for metric in METRICS if metric.name in self.scores and not metric.beside)

    @property
    def metric_of(self) -> dict[str, str]:
        """Key → its metric in `KEY_SCORE`; empty where all keys have one task."""
        if KEY_SCORE.name not in self.scores:
            return {}
        own = [m.name for m in METRICS if m.name in self.scores and not m.beside and m is not KEY_SCORE]
        measured = {name: np.isfinite(self.scores[name]).any(axis=0) for name in own}
        return {key: next((m for m in own if measured[m][j]), "") for j, key in enumerate(self.languages)}

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data for ``json.dumps``, with ``schema``; NaN becomes null."""
        return {"schema": SCHEMA} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_json(cls, data: str | bytes | Mapping[str, Any]) -> RunRecord:
        """Read what `to_json` returned, as a dict or as JSON text.

        Raises:
            ValueError: not JSON, another schema, a missing or unknown key, or a value that a record cannot have.
        """
        values = dict(json.loads(data) if isinstance(data, str | bytes) else data)
        schema = values.pop("schema", None)
        if schema != SCHEMA:
            raise ValueError(f"run record of schema {schema}; this version of xclrun reads schema {SCHEMA}")
        known = {f.name for f in fields(cls)}
        if not (needed := known - _LATER) <= values.keys() <= known:
            wrong = ", ".join(sorted((needed - values.keys()) | (values.keys() - known)))
            raise ValueError(f"run record with missing or unknown keys: {wrong}")
        for key, value in values.items():
            if not isinstance(value, _TYPES.get(key, str)) or isinstance(value, bool):
                raise ValueError(f"run record: {key} is {value!r}")
        if not all(isinstance(language, str) for language in values["languages"]):
            raise ValueError(f"run record: languages are {values['languages']!r}")
        dicts = (point for name in ("curve", "points", "averaged", "coded") for point in values.get(name, ()))
        if not all(isinstance(point, dict) for point in dicts):
            raise ValueError("run record: the points of curves must be objects")
        return cls(**values)


def point_score(scores: Mapping[str, Mapping[str, float]], language: str, metric: str) -> float:
    """Return a score of an epoch or evaluation point, given language → metric → score; NaN where not measured."""
    value = scores.get(language, {}).get(metric)
    return math.nan if value is None else float(value)


# Fields that mirrors written by earlier versions lack.
_LATER = {
    "costs", "environment", "points", "whole_fingerprint", "averaged", "coded", "mixtures", "edited", "sizes",
}  # fmt: skip

# JSON types of fields; the others are text.
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("languages", "curve", "points", "averaged", "coded", "mixtures", "edited"), list),
    **dict.fromkeys(("scores", "config", "sizes", "costs", "environment"), dict),
    **dict.fromkeys(("seed", "algorithms"), int),
    "bucket": (int, type(None)),
    "strategy_version": (int, str),
}


def _plain(value: Any) -> Any:
    """Return nested data as JSON can hold it; numbers that are not finite become None."""
    # The most frequent case first: a report converts hundreds of thousands of values.
    if type(value) in (str, int, bool, type(None)):
        return value
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
