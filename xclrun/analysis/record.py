"""Run records: settings and score matrices of a run. All tables can be made from the JSON form of records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from xclrun.core.files import parse_json
from xclrun.core.quantity import Quantity
from xclrun.core.task import BY_NAME, KEY_SCORE, METRICS

SCHEMA = 1

STATUSES = ("finished", "running", "interrupted", "failed")

# Stream → number of hops for N languages.
STREAMS = {
    "sequence": lambda n: n,  # each hop continues from the previous hop
    "independent": lambda n: n,  # hop i starts from hop 0 and trains on languages[i - 1] only
    "joint": lambda n: 1,  # one hop on the union of all languages
    "growing": lambda n: n,  # hop i starts from hop 0 and trains on the first i languages
    "zero_shot": lambda n: 1,  # one hop on the first language; the others are only tested
    "transfer": lambda n: n,  # few-shot: a source, if any, then a target
    "mixture": lambda n: n,  # a sequence in which some hops train on a mixture of languages
    "blocks": lambda n: n - 1,  # the first languages, then all blocks of the last language except the last block
}


def number_of_hops(stream: str, languages: int, blocks: int | None) -> int:
    """Return the number of hops after hop 0.

    ``languages`` is the number of elements of the order, ``blocks`` is ``dataset.blocks``.
    """
    return STREAMS[stream](languages) + (blocks - 1 if stream == "blocks" and blocks is not None else 0)


# Cost of a run → unit. ``memory`` is the largest size of the strategy's state between hops, without model parameters.
# All other costs are sums over hops, including hops shared with other runs.
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
        dataset, model, strategy: names in conf; ``er+lang_spec_task`` for a strategy with an expansion.
        order: name in conf (``h2l``, ``order3``), or the languages joined by ``-``.
        languages: the N languages, in the order of the stream; column j of a matrix is ``languages[j]``.
        bucket: number of the bucket; None if the run uses the whole training split.
        stream: key of `STREAMS`.
        scores: metric → score matrix R, shape (hops + 1, N); row 0 is hop 0; NaN if not measured. Read-only.
        config: the resolved config, nested.
        algorithms: version of the algorithms; runs of different versions are never averaged.
        curve: one dict per epoch: ``hop``, ``epoch``, ``step``, ``examples``, ``loss``, and ``dev``: language →
            metric → score.
        encoder: identity of the encoder before fine-tuning.
        strategy_version: version of the strategy's algorithm, with the version of the expansion and the content of
            pretrained adapters, if any.
        costs: keys of `COSTS` → value, if measured.
        environment: versions, platform, host and times; informational.
        points: one dict per evaluation point inside a hop (``evaluate.every_…``): ``hop``, ``step``, ``examples``
            (number of sentences seen in the hop), ``own`` (the number without replay), ``test`` and, if evaluated,
            ``dev``: language → metric → score.
        whole_fingerprint: hash of the data that the bucket was drawn from.
        averaged: one dict per hop and average of its checkpoints (`xclrun model average`): ``hop``, ``of`` (``last-5``,
            ``all``), and ``test``: language → metric → score.
        coded: one dict per coded block: ``hop`` of the coding model, ``block`` (from 1), ``codes``: kind → `BlockCode`
            as a dict, and ``start_knows``: kinds of codes for which the initial model codes the first block.
        mixtures: the languages of each element of the order, if some elements are mixtures; otherwise empty.
        edited: hops whose weights the strategy changed after the last dev scores (`Strategy.end_training`).
        sizes: split → key → number of examples.
        merged_from: ID of the run whose trained hops are merged (``costs`` excludes their training); empty for a run
            that trains.
        tried: one dict per coefficient setting that was compared on dev data to choose this merge's settings:
            ``strategy`` key → value.
        trained: store keys of the trained hops, from hop 1. Runs with a key in common share this trained hop.
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
    merged_from: str = ""
    tried: tuple[dict[str, Any], ...] = ()
    trained: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.stream not in STREAMS:
            raise ValueError(f"run {self.run_id}: unknown stream '{self.stream}'; known: {', '.join(STREAMS)}")
        if self.status not in STATUSES:
            raise ValueError(f"run {self.run_id}: unknown status '{self.status}'; known: {', '.join(STATUSES)}")
        if not self.languages or len(set(self.languages)) < len(self.languages):
            raise ValueError(f"run {self.run_id}: languages are missing or repeated: {list(self.languages)}")
        for name in ("languages", "curve", "points", "averaged", "coded", "edited"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "mixtures", tuple(map(tuple, self.mixtures)))
        object.__setattr__(self, "scores", {metric: self._checked(metric, R) for metric, R in self.scores.items()})

    def _checked(self, metric: str, scores: Any) -> np.ndarray:
        matrix = np.array(scores, dtype=float)
        shape = (self.hops + 1, len(self.languages))
        if matrix.shape != shape:
            raise ValueError(f"run {self.run_id}: {metric} has shape {matrix.shape}; {self.stream} needs {shape}")
        # A record in a tracker can have a metric of a plug-in that is not loaded.
        low, high = BY_NAME[metric].quantity.bounds if metric in BY_NAME else Quantity.bounds
        if not np.all(np.isnan(matrix) | ((matrix >= low) & (matrix <= high))):
            raise ValueError(f"run {self.run_id}: {metric} has scores outside [{low:g}, {high:g}]")
        matrix.flags.writeable = False
        return matrix

    @property
    def finished(self) -> bool:
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
        """Training data of each hop from hop 1: a language, ``all``, or ``LANGUAGE#BLOCKS``."""
        if self.stream == "joint":
            return ("all",)
        *first, key = self.elements
        if self.stream == "blocks":
            return (*first, *(f"{key}#{i}" for i in range(1, self.hops - len(first) + 1)))
        return self.elements[: self.hops]

    def trains(self, hop: int) -> tuple[str, ...]:
        """Return the languages that a hop (from 1) trains on for the first time."""
        if self.stream == "joint":
            return self.languages
        groups = self.mixtures or tuple((language,) for language in self.languages)
        return groups[min(hop, len(groups)) - 1]

    @property
    def path(self) -> tuple[str, ...]:
        """The order's elements in training order; empty if the order does not affect the result."""
        ordered = dict.fromkeys(("sequence", "growing", "blocks", "mixture"), self.elements)
        return {**ordered, "zero_shot": self.languages[:1]}.get(self.stream, ())

    @property
    def shots(self) -> int | None:
        """K of the few-shot bucket; None without ``shots``."""
        shots: int | None = self.config.get("shots")
        return shots

    @property
    def slot_f1(self) -> str:
        """Kind of span F1: ``span_micro`` or ``tag_macro``."""
        return str(self.config.get("evaluate", {}).get("slot_f1", "span_micro"))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that have their own tables; if keys have several tasks, only `KEY_SCORE`."""
        if KEY_SCORE.name in self.scores:
            return (KEY_SCORE.name,)
        return tuple(metric.name for metric in METRICS if metric.name in self.scores and not metric.beside)

    @property
    def metric_of(self) -> dict[str, str]:
        """Key → its metric in `KEY_SCORE`; empty if all keys have one task."""
        if KEY_SCORE.name not in self.scores:
            return {}
        names = [m.name for m in METRICS if m.name in self.scores and not m.beside and m is not KEY_SCORE]
        measured = {name: np.isfinite(self.scores[name]).any(axis=0) for name in names}
        return {key: next((name for name in names if measured[name][j]), "") for j, key in enumerate(self.languages)}

    def to_json(self) -> dict[str, Any]:
        """Return the record for ``json.dumps``, with ``schema``; NaN becomes None."""
        return {"schema": SCHEMA} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_json(cls, data: str | bytes | Mapping[str, Any]) -> RunRecord:
        """Read the result of `to_json`, as a dict or as JSON text.

        Raises:
            ValueError: invalid JSON, another schema, missing or unknown keys, or an invalid value.
        """
        values: dict[str, Any] = dict(parse_json(data) if isinstance(data, str | bytes) else data)
        schema = values.pop("schema", None)
        # These fields were added later, so records in trackers may lack them.
        values = {"merged_from": "", "tried": [], "trained": [], **values}
        if schema != SCHEMA:
            raise ValueError(f"run record of schema {schema}; this version of xclrun reads schema {SCHEMA}")
        if wrong := {f.name for f in fields(cls)} ^ values.keys():
            raise ValueError(f"run record: missing or unknown keys: {', '.join(sorted(wrong))}")
        for key, value in values.items():
            if not isinstance(value, _TYPES.get(key, str)) or isinstance(value, bool):
                raise ValueError(f"run record: invalid {key}: {value!r}")
        if not all(isinstance(language, str) for language in values["languages"]):
            raise ValueError(f"run record: invalid languages: {values['languages']!r}")
        for name in ("curve", "points", "averaged", "coded", "tried"):
            if not all(isinstance(entry, dict) for entry in values[name]):
                raise ValueError(f"run record: entries of {name} must be objects")
        return cls(**values)


def point_score(scores: Mapping[str, Mapping[str, float]], language: str, metric: str) -> float:
    """Return a score from language → metric → score; NaN if not measured."""
    value = scores.get(language, {}).get(metric)
    return math.nan if value is None else float(value)


# JSON types of fields; all other fields are text.
_TYPES: dict[str, Any] = {
    **dict.fromkeys(
        ("languages", "curve", "points", "averaged", "coded", "mixtures", "edited", "tried", "trained"), list
    ),
    **dict.fromkeys(("scores", "config", "sizes", "costs", "environment"), dict),
    **dict.fromkeys(("seed", "algorithms"), int),
    "bucket": (int, type(None)),
    "strategy_version": (int, str),
}


def _plain(value: Any) -> Any:
    """Return nested data for JSON; non-finite numbers become None."""
    # The most frequent case first, since a report converts hundreds of thousands of values.
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
