"""``xclrun params``: how many parameters a strategy's model has."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.command.common import Parser
from xclrun.compose.jobs import Composed
from xclrun.config.schema import Config, plain
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.task import TASKS, Metric, Task, tasks_of_dataset
from xclrun.core.terminal import fitted, many, size, table
from xclrun.model.e5 import cache_folder
from xclrun.store.remembered import remembered
from xclrun.strategy.shared.parameters import Count

if TYPE_CHECKING:
    from xclrun.core.stream import Stream
    from xclrun.data.example import Dataset
    from xclrun.strategy.base import Strategy


@dataclass(frozen=True)
class OfTask:
    """What the heads of one task tell apart.

    Attributes:
        task: what is predicted, and so by which heads.
        labels: number of intents or classes; 0 where there are none.
        tags: number of tags; 0 where there are none.
    """

    task: Task
    labels: int
    tags: int

    @property
    def text(self) -> str:
        """The numbers of labels and tags, for a person."""
        numbers = [] if self.task.label is None else [many(self.labels, self.task.label.noun, self.task.label.nouns)]
        numbers += [] if self.task.tag is None else [many(self.tags, "tag")]
        return ", ".join(numbers) or f"starts and ends of {self.task.answers[0].nouns}"


@dataclass(frozen=True)
class Sizes:
    """What of a dataset the number of parameters depends on.

    Attributes:
        heads: of each task.
        languages: the languages of the stream.
        vocabulary: word pieces of an encoder that is trained from scratch, where the data that it is learnt from is
            at hand.
        kept: word pieces that a trimmed vocabulary keeps, where the data is at hand; None where nothing is trimmed.
    """

    heads: tuple[OfTask, ...]
    languages: tuple[str, ...]
    vocabulary: int | None = None
    kept: int | None = None

    @property
    def text(self) -> str:
        """The numbers of labels and tags, for a person."""
        return ", ".join(of.text for of in self.heads)


def main(arguments: Sequence[str]) -> int:
    """Print the counts of a command's jobs; return the exit code."""
    parser = Parser(
        prog="xclrun params",
        description="Count the parameters of `xclrun OVERRIDES`: those that serve all languages after the last hop, "
        "those trained at each hop, by part. Numbers of labels come from the data, or are given: with task.intents=N "
        "task.tags=N (or task.classes=N alone for classes, task.tags=N alone for tags; and task.languages=N where the "
        "order is no list) neither data nor weights are needed.",
        usage="xclrun params KEY=VALUE … [--json]\n"
        "       xclrun params KEY=VALUE … task.intents=N task.tags=N [task.languages=N]",
    )
    parser.add_overrides(outputs=True)
    parser.add_argument("--json", action="store_true", help="print facts as JSON")
    given = parser.parse_with_overrides(arguments)
    task, overrides = split(given.overrides)
    counted = counts(overrides, task)
    if given.json:
        facts = [
            {
                "model": c.config.model.name,
                "strategy": c.strategy,
                **c.count.to_json(),
                "total_untrimmed": c.untrimmed.total,
                "kept_pieces": c.sizes.kept,
            }
            for c in counted
        ]
        print(json.dumps(facts, indent=1))
    else:
        print("\n\n".join(c.render() for c in counted))
    return 0


def _labels_key(metric: Metric) -> str:
    """Return the key that gives the number of labels: ``task.intents``."""
    return f"task.{metric.nouns}"


def split(overrides: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Return the values of the ``task.*`` keys, and the other overrides.

    Raises:
        UsageError: there is no such key, or its value is no possible number.
    """
    # Key → the least that it can be.
    least = {_labels_key(task.label): 1 for task in TASKS.values() if task.label is not None}
    least |= {"task.tags": 0, "task.languages": 1}
    task, rest = {}, []
    for text in overrides:
        key, _, value = text.partition("=")
        if not key.startswith("task."):
            rest.append(text)
            continue
        if key not in least:
            raise UsageError(f"params: no key is called '{key}'; {did_you_mean(key, least)}")
        if not re.fullmatch(r"[0-9]+", value) or int(value) < least[key]:
            raise UsageError(f"{text}: must be a whole number of at least {least[key]}")
        task[key] = int(value)
    return task, rest


@dataclass(frozen=True)
class Counted:
    """The count of one job, and that with the whole vocabulary; the same where it is not trimmed, or not known how."""

    config: Config
    strategy: str
    sizes: Sizes
    count: Count
    untrimmed: Count

    def render(self) -> str:
        """Return the count as a table for a person."""
        sizes, count = self.sizes, self.count
        title = f"{self.config.model.name} · {self.strategy} · {many(count.languages, 'language')}"
        header = ("part", "parameters", "copies", "in all", "trained")
        rows = [
            (p.name, f"{p.parameters:,}", str(p.copies), f"{p.parameters * p.copies:,}", _hops(p.trained, count.hops))
            for p in count.parts
        ]
        facts = {
            "total": f"{count.total:,} ({size(count.stored)} in fp32)",
            "trained at each hop": _by_hop(count.by_hop),
            "trained in some hop": f"{count.learnt:,}",
        }
        if sizes.kept is not None:
            facts["untrimmed"] = f"{self.untrimmed.total:,} ({sizes.kept:,} word embeddings are kept)"
        elif self.config.model.trim_vocabulary:
            facts["trimmed"] = "unknown without the data; counted with the whole vocabulary"
        lines = [f"{name:<20} {value}" for name, value in facts.items()]
        return "\n".join([fitted(f"{title} · {sizes.text}", sys.stdout), table(header, rows), *lines])


def _by_hop(trained: Sequence[int]) -> str:
    """Return how many parameters each hop trains: one number where all train as many."""
    if len(set(trained)) == 1:
        return f"{trained[0]:,}"
    places = {n: [hop for hop, own in enumerate(trained, start=1) if own == n] for n in trained}
    return ", ".join(f"{n:,} ({_hops(hops, len(trained))})" for n, hops in places.items())


def _hops(hops: Sequence[int], of: int) -> str:
    """Name hops among all, for a person."""
    if len(hops) in (0, of):
        return "yes" if hops else "no"
    return f"{'hop' if len(hops) == 1 else 'hops'} {', '.join(map(str, hops))}"


def counts(overrides: Sequence[str], task: Mapping[str, int]) -> list[Counted]:
    """Return the counts of a command's jobs, each once: those that differ in order or seed alone have the same.

    Raises:
        UsageError: a job cannot work, or something that is counted with is neither given nor in the data.
    """
    from xclrun.compose.jobs import compose_command

    distinct: dict[str, Counted] = {}
    for job in compose_command(overrides):
        counted = _count(job, task)
        same = [counted.strategy, job.resolved["model"], job.resolved["strategy"], asdict(counted.sizes)]
        distinct.setdefault(json.dumps(same, default=str), counted)
    return list(distinct.values())


def _count(job: Composed, given: Mapping[str, int]) -> Counted:
    from xclrun.config.checks import check
    from xclrun.core.identity import strategy_name
    from xclrun.core.stream import with_mixtures
    from xclrun.model.source import shape_identity
    from xclrun.run import stream_of
    from xclrun.strategy import make

    check(job.config)
    strategy, of_data = make(job.config.strategy), _sizes(job.config, given)
    stream = stream_of(job.config, strategy, with_mixtures(of_data.languages))
    heads = [[of.task.identified, of.labels, of.tags] for of in of_data.heads]
    known = [plain(job.config.model), shape_identity(job.config.model), job.resolved["strategy"], heads, repr(stream)]

    def counted(vocabulary: int | None) -> Count:
        def build() -> dict[str, Any]:
            return _build(job.config, strategy, stream, of_data.heads, vocabulary).to_json()

        return Count.from_json(remembered(_folder(), "parameters", [*known, vocabulary], build))

    untrimmed = counted(of_data.vocabulary)
    trimmed = untrimmed if of_data.kept is None else counted(of_data.kept)
    own, beneath = job.resolved["strategy"], job.resolved["strategy"].get("expansion") or {}
    settings = {k: v for k, v in {**own, **beneath}.items() if k not in ("name", "expansion", "pretrained")}
    shown = ", ".join(f"{key}={_short(value)}" for key, value in settings.items())
    name = strategy_name(job.resolved)
    label = f"{name}({shown})" if shown else name
    return Counted(job.config, label, of_data, trimmed, untrimmed)


def _build(
    config: Config, strategy: Strategy[Any], stream: Stream, heads: Sequence[OfTask], vocabulary: int | None
) -> Count:
    """Return the count of a model: by its shape, where that says it, else as it is built, without numbers in it.

    To build it torch and transformers are imported, which takes several times as long as all else.
    """
    from xclrun.model.families import FAMILIES
    from xclrun.model.shape import HeadSizes, sizes_of
    from xclrun.model.structure import layer
    from xclrun.strategy.shared.parameters import count, keeps_parameters, sizes

    of = [HeadSizes(one.task, one.labels, one.tags) for one in heads]
    known = sizes_of(config.model, of, vocabulary)
    if known is not None and keeps_parameters(strategy):
        strategy.check_encoder(None, None, max(layer(name) or 0 for name in known))
        return count(known, strategy, stream)

    import torch

    from xclrun.model.network import skeleton

    model = skeleton(config.model, of[0].classes, of[0].tags, vocabulary, of[0].task, of if len(of) > 1 else ())
    shape: Any = model.encoder.config
    strategy.check_encoder(FAMILIES[shape.model_type], shape.hidden_size, shape.num_hidden_layers)
    with torch.device("meta"):
        strategy.prepare(model, stream, _Nowhere())
    return count(sizes(model), strategy, stream)


def _folder() -> Path:
    """Return the user's folder of counts: they are no one outputs folder's."""
    return cache_folder() / "counts"


def _short(value: Any) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


class _Nowhere:
    """The library of a model that is only counted."""

    def tensors(self, hop: int, names: Sequence[str]) -> Mapping[str, Any]:
        raise AssertionError("a model that is only counted has no weights")

    def features(self, language: str, split: str) -> Any:
        raise AssertionError("a model that is only counted has no features")


def _sizes(config: Config, given: Mapping[str, int]) -> Sizes:
    """Return what the count depends on: as given, else from the data."""
    listed = config.order.languages
    if config.protocol is not None:
        listed = [language for language in (config.from_source, config.language) if language is not None]
    if "task.languages" in given:
        number = given["task.languages"]
        if listed is not None and len(listed) != number:
            raise UsageError(f"task.languages={number}: the order has {many(len(listed), 'language')}")
        listed = listed or [f"language {i}" for i in range(1, number + 1)]
    tasks = tasks_of_dataset(plain(config.dataset))
    if len(tasks) > 1:
        if other := next((key for key in given if key != "task.languages"), None):
            raise UsageError(f"{other}: dataset.parts has several tasks, whose numbers come from the data alone")
        return _from_data(config, {}, listed, ())
    task = tasks[0]
    # What the task has → the key that gives its number.
    keys = {} if task.label is None else {"labels": _labels_key(task.label)}
    keys |= {} if task.tag is None else {"tags": "task.tags"}
    if other := next((key for key in given if key not in (*keys.values(), "task.languages")), None):
        raise UsageError(f"{other}: dataset.task={task.name} takes {' and '.join(keys.values())}")
    numbers = {part: given[key] for part, key in keys.items() if key in given}
    if listed is not None and numbers.keys() == keys.keys():
        return Sizes((OfTask(task, numbers.get("labels", 0), numbers.get("tags", 0)),), tuple(listed))
    return _from_data(config, numbers, listed, keys.values())


def _from_data(config: Config, given: Mapping[str, int], listed: list[str] | None, keys: Iterable[str]) -> Sizes:
    """Return what the count depends on: ``given`` where it says so, else from the data; ``keys`` give the numbers."""
    from xclrun.data.encode import outputs
    from xclrun.data.load import load_dataset
    from xclrun.model.source import from_scratch, pairs, source_identity

    try:
        dataset = load_dataset(config.dataset, config.bucket, config.shots)
    except UsageError as error:
        numbers = " ".join(f"{key}=N" for key in (*keys, "task.languages"))
        raise UsageError(f"{error}; params also takes {numbers}") from error
    heads = []
    for of in dataset.targets:
        tags = outputs(of.tags, config.model.label_on) if of.task.tag is not None else 0
        heads.append(OfTask(of.task, given.get("labels", len(of.labels)), given.get("tags", tags)))
    vocabulary = kept = None
    model = config.model
    if from_scratch(model) or model.trim_vocabulary:
        splits = sorted([*key, value] for key, value in dataset.origin.fingerprints.items())
        known = [plain(model), source_identity(model, dataset), splits, pairs(dataset)]
        vocabulary, kept = remembered(_folder(), "pieces", known, lambda: _pieces(config, dataset))
    return Sizes(tuple(heads), tuple(listed or dataset.languages), vocabulary, kept)


def _pieces(config: Config, dataset: Dataset) -> tuple[int | None, int | None]:
    """Return `Sizes.vocabulary` and `Sizes.kept`."""
    from xclrun.data.windows import encode_task
    from xclrun.model.source import family_of, from_scratch
    from xclrun.model.vocabulary import learnt_vocabulary, load_tokenizer, used_pieces

    model = config.model
    # Counting makes no folder of outputs.
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(config.paths.outputs).expanduser() / "cache"
        cache = cache if cache.is_dir() else Path(folder)
        vocabulary = None
        if from_scratch(model):
            vocabulary = learnt_vocabulary(model, dataset, cache).read_bytes().count(b"\n")
        if not model.trim_vocabulary:
            return vocabulary, None
        tokenizer = load_tokenizer(model, dataset, cache)
    origin = dataset.origin.splits.items()
    splits = (encode_task(dataset.task_of(key), e, tokenizer, (), (), model) for (key, _), e in origin)
    return vocabulary, len(used_pieces(splits, tokenizer, family_of(model).from_padding))
