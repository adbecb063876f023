"""One run as the analysis sees it: what was run, and its score matrices.

The JSON form is an artifact of every run and needs nothing else to be read: tables can be made from these files
alone.
"""

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

# Stream → hops that N languages make.
STREAMS = {
    "sequence": lambda n: n,  # hop after hop, each from the one before
    "independent": lambda n: n,  # hop i starts from hop 0 and learns languages[i - 1] alone
    "joint": lambda n: 1,  # one hop on the union of all languages
    "growing": lambda n: n,  # hop i starts from hop 0 and learns the first i languages
    "zero_shot": lambda n: 1,  # one hop on the first language; the others are tested alone
    "transfer": lambda n: n,  # few-shot: a source, where there is one, then a target
    "mixture": lambda n: n,  # hop after hop, some of which learn several languages, mixed
    "blocks": lambda n: n - 1,  # languages that come first; then blocks of the last one, but for the last block
}


def number_of_hops(stream: str, languages: int, blocks: int | None) -> int:
    """Return how many hops, without hop 0, a stream has.

    Args:
        languages: how many it learns, or where some are mixed how many elements its order has.
        blocks: `dataset.blocks`.
    """
    return STREAMS[stream](languages) + (blocks - 1 if stream == "blocks" and blocks is not None else 0)


# What a run takes, name → unit. Memory is what a strategy keeps from hop to hop beside its parameters, at its largest;
# the others are sums over hops, a hop that was shared counted as if the run had trained it.
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
    """What a run was and what it scored.

    Attributes:
        run_id: identity of the run; records with the same one are the same run.
        dataset, model, strategy: names in conf; ``er+lang_spec_task`` for a strategy with an expansion.
        order: its name in conf (``h2l``, ``order3``), or the languages joined by ``-`` where a list was given.
        languages: in the order of the stream; column j of a matrix is ``languages[j]``.
        seed, bucket: as in conf; ``bucket`` is None where the whole training split is used.
        stream: ``sequence`` (hop after hop), ``independent`` (hop i is trained from hop 0 on ``languages[i - 1]``
            alone), ``joint`` (one hop on the union), ``growing`` (hop i is trained from hop 0 on the first i),
            ``zero_shot`` (one hop on the first language), ``transfer`` (few-shot: a source, if any, then a target) or
            ``blocks`` (languages that come first, then blocks of the last one), or ``mixture`` (a sequence in which
            some hops learn several languages, mixed).
        scores: metric → R, shape (hops + 1, N), in [0, 1]; row 0 is hop 0; NaN where not (yet) measured, and on keys
            of other tasks. Read-only.
        config: the resolved config, nested.
        data_fingerprint: hash of the data.
        code_version: for people, for example ``0.1.0+gabc123``.
        algorithms: version of the algorithms; runs of different ones are never averaged.
        status: ``finished``, ``running``, ``interrupted`` or ``failed``.
        curve: one dict for each epoch: ``hop``, ``epoch``, ``step``, ``examples``, ``loss``, and ``dev``: language →
            metric → score.
        points: one dict for each evaluation point inside a hop (``evaluate.every_…``): ``hop``, ``step``,
            ``examples`` seen in the hop, ``own``: those of the hop's own data among them, and ``test`` and, where it
            was evaluated too, ``dev``: language → metric → score.
        averaged: one dict for each hop and average of its checkpoints (`xclrun average`): ``hop``, ``of`` (``last-5``,
            ``all``), and ``test``: language → metric → score.
        encoder: identity of the encoder before fine-tuning; empty where it is not known.
        strategy_version: version of the strategy's own algorithm; with the expansion's, and the content of pretrained
            adapters, where it has those.
        costs: what the run took, by the names of `COSTS`; a name that is missing was not measured.
        environment: versions, platform, host and times, for people.
        coded: one dict for each block whose labels were asked for: ``hop`` whose model was asked, ``block`` (from 1),
            ``codes``: ``labels``, ``tags`` or ``answers`` → ``examples``, ``bits``, ``uniform``
            (`xclrun.analysis.codelength`), and ``start_knows``: those whose head the start knows.
        mixtures: the languages of each element of the order, where some are mixed; empty elsewhere.
        edited: the hops at whose end the strategy changed the weights that the last dev scores are of
            (`Strategy.end_training`). What ran before this was noted has none.
        whole_fingerprint: hash of the data that the bucket was drawn from; empty without a bucket, or where not known.
        sizes: split → key → number of examples; empty where it is not known.

    Raises:
        ValueError: a matrix whose shape is not that of the stream, a score outside [0, 1], an unknown stream or
            status, no language or one given twice.
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
        object.__setattr__(self, "languages", tuple(self.languages))
        object.__setattr__(self, "curve", tuple(self.curve))
        object.__setattr__(self, "points", tuple(self.points))
        object.__setattr__(self, "averaged", tuple(self.averaged))
        object.__setattr__(self, "coded", tuple(self.coded))
        object.__setattr__(self, "mixtures", tuple(map(tuple, self.mixtures)))
        object.__setattr__(self, "edited", tuple(self.edited))
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
        """The elements of the order: its languages, or ``a+b`` where some are mixed."""
        return tuple("+".join(keys) for keys in self.mixtures) or self.languages

    @property
    def learnt(self) -> tuple[str, ...]:
        """What each hop learns, hop 1 first, in short: a language, ``all``, or how many blocks of a language so far."""
        if self.stream == "joint":
            return ("all",)
        *first, key = self.elements
        if self.stream == "blocks":
            return (*first, *(f"{key}#{i}" for i in range(1, self.hops - len(first) + 1)))
        return self.elements[: self.hops]

    def trains(self, hop: int) -> tuple[str, ...]:
        """Return the languages that a hop, from 1, learns beside those that earlier ones did."""
        if self.stream == "joint":
            return self.languages
        groups = self.mixtures or tuple((language,) for language in self.languages)
        return groups[min(hop, len(groups)) - 1]

    @property
    def path(self) -> tuple[str, ...]:
        """What the run learns, in order, where the order changes that: its languages, or its source; else empty."""
        ordered = dict.fromkeys(("sequence", "growing", "blocks", "mixture"), self.elements)
        return {**ordered, "zero_shot": self.languages[:1]}.get(self.stream, ())

    @property
    def shots(self) -> int | None:
        """K of the bucket; None where the whole training split, or a subset of it, is used."""
        shots: int | None = self.config.get("shots")
        return shots

    @property
    def slot_f1(self) -> str:
        """How F1 over spans was scored: ``span_micro`` or ``tag_macro``."""
        return str(self.config.get("evaluate", {}).get("slot_f1", "span_micro"))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that have tables of their own, in their order; `scores` also has those beside them.

        Where keys have several tasks it is `KEY_SCORE` alone, and those of single tasks stand beside it.
        """
        if KEY_SCORE.name in self.scores:
            return (KEY_SCORE.name,)
        return tuple(metric.name for metric in METRICS if metric.name in self.scores and not metric.beside)

    @property
    def metric_of(self) -> dict[str, str]:
        """Key → name of the metric that stands for it in `KEY_SCORE`; empty where all keys have one task."""
        if KEY_SCORE.name not in self.scores:
            return {}
        own = [m.name for m in METRICS if m.name in self.scores and not m.beside and m is not KEY_SCORE]
        measured = {name: np.isfinite(self.scores[name]).any(axis=0) for name in own}
        return {key: next((m for m in own if measured[m][j]), "") for j, key in enumerate(self.languages)}

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data for ``json.dumps``: NaN becomes null, ``schema`` is added."""
        return {"schema": SCHEMA} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_json(cls, data: str | bytes | Mapping[str, Any]) -> RunRecord:
        """Read what `to_json` gave, as a dict or as JSON text.

        Raises:
            ValueError: not JSON, another schema, a key missing or unknown, or a value that a record cannot have.
        """
        given = dict(json.loads(data) if isinstance(data, str | bytes) else data)
        schema = given.pop("schema", None)
        if schema != SCHEMA:
            raise ValueError(f"run record of schema {schema}; this version of xclrun reads schema {SCHEMA}")
        known = {f.name for f in fields(cls)}
        # What a mirror of an earlier version does not know yet may be missing.
        later = (
            "costs",
            "environment",
            "points",
            "whole_fingerprint",
            "averaged",
            "coded",
            "mixtures",
            "edited",
            "sizes",
        )
        needed = {f.name for f in fields(cls) if f.name not in later}
        if not needed <= given.keys() <= known:
            wrong = ", ".join(sorted((needed - given.keys()) | (given.keys() - known)))
            raise ValueError(f"run record with missing or unknown keys: {wrong}")
        _check_types(given)
        return cls(**given)


def _plain(value: Any) -> Any:
    """Return nested data as JSON can hold it; numbers that are not finite become None."""
    # Nearly all that a record holds: a report makes hundreds of thousands plain.
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


_TYPES: dict[str, type | tuple[type, ...]] = {
    "languages": list,
    "seed": int,
    "bucket": (int, type(None)),
    "scores": dict,
    "config": dict,
    "algorithms": int,
    "strategy_version": (int, str),
    "curve": list,
    "points": list,
    "averaged": list,
    "coded": list,
    "mixtures": list,
    "edited": list,
    "sizes": dict,
    "costs": dict,
    "environment": dict,
}


def _check_types(given: dict[str, Any]) -> None:
    for key, value in given.items():
        wanted = _TYPES.get(key, str)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ValueError(f"run record: {key} is {value!r}")
    if not all(isinstance(language, str) for language in given["languages"]):
        raise ValueError(f"run record: languages are {given['languages']!r}")
    if not all(
        isinstance(point, dict) for name in ("curve", "points", "averaged", "coded") for point in given.get(name, ())
    ):
        raise ValueError("run record: the points of curves must be objects")
