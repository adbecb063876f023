"""``xclrun params``: count the parameters of a strategy's model."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.command.common import Parser
from xclrun.compose.jobs import Composed
from xclrun.config.schema import Config, plain
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.task import TASKS, tasks_of_dataset
from xclrun.core.terminal import fitted, many, size, table
from xclrun.model.e5 import cache_folder
from xclrun.store.cache import cached_json
from xclrun.strategy.shared.parameters import Count

if TYPE_CHECKING:
    from xclrun.core.stream import Stream
    from xclrun.data.example import Dataset
    from xclrun.model.shape import HeadSizes
    from xclrun.strategy.base import Strategy


@dataclass(frozen=True)
class Sizes:
    """What the count depends on, in addition to the config.

    Attributes:
        heads: numbers of labels and tags of each task.
        languages: the languages of the stream.
        vocabulary: pieces of a vocabulary learned from the data; None for other encoders, and without the data.
        kept: pieces that a trimmed vocabulary keeps; None where nothing is trimmed, and without the data.
    """

    heads: tuple[HeadSizes, ...]
    languages: tuple[str, ...]
    vocabulary: int | None = None
    kept: int | None = None


@dataclass(frozen=True)
class Counted:
    """The count of one job, and its count with the whole vocabulary (equal where nothing is trimmed)."""

    config: Config
    strategy: str
    sizes: Sizes
    count: Count
    untrimmed: Count

    def render(self) -> str:
        """Return the count as a table."""
        sizes, count = self.sizes, self.count
        title = f"{self.config.model.name} · {self.strategy} · {many(count.languages, 'language')}"
        header = ("part", "parameters", "copies", "in all", "trained")
        rows = [
            (p.name, f"{p.parameters:,}", str(p.copies), f"{p.parameters * p.copies:,}", _hops(p.trained, count.hops))
            for p in count.parts
        ]
        by_hop = {n: [hop for hop, m in enumerate(count.by_hop, start=1) if m == n] for n in count.by_hop}
        each = [f"{n:,}" + (f" ({_hops(hops, count.hops)})" if len(by_hop) > 1 else "") for n, hops in by_hop.items()]
        facts = {
            "total": f"{count.total:,} ({size(count.stored)} in fp32)",
            "trained at each hop": ", ".join(each),
            "trained in some hop": f"{count.learned:,}",
        }
        if sizes.kept is not None:
            facts["untrimmed"] = f"{self.untrimmed.total:,} ({sizes.kept:,} word embeddings are kept)"
        elif self.config.model.trim_vocabulary:
            facts["trimmed"] = "unknown without the data; counted with the whole vocabulary"
        lines = [f"{name:<20} {value}" for name, value in facts.items()]
        heads = ", ".join(map(_labels, sizes.heads))
        return "\n".join([fitted(f"{title} · {heads}", sys.stdout), table(header, rows), *lines])

    def to_json(self) -> dict[str, Any]:
        """Return the count for ``--json``."""
        facts = {"model": self.config.model.name, "strategy": self.strategy, **self.count.to_json()}
        return facts | {"total_untrimmed": self.untrimmed.total, "kept_pieces": self.sizes.kept}


def _labels(head: HeadSizes) -> str:
    task = head.task
    numbers = [] if task.label is None else [many(head.classes, task.label.noun, task.label.nouns)]
    numbers += [] if task.tag is None else [many(head.tags, "tag")]
    return ", ".join(numbers) or f"starts and ends of {task.answers[0].nouns}"


def _hops(hops: Sequence[int], total: int) -> str:
    if len(hops) in (0, total):
        return "yes" if hops else "no"
    return f"{'hop' if len(hops) == 1 else 'hops'} {', '.join(map(str, hops))}"


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
    options = parser.parse_with_overrides(arguments)
    counted = counts(*split(options.overrides))
    if options.json:
        print(json.dumps([job.to_json() for job in counted], indent=1))
    else:
        print("\n\n".join(job.render() for job in counted))
    return 0


def split(overrides: Sequence[str]) -> tuple[list[str], dict[str, int]]:
    """Separate the ``task.*`` keys from the other overrides; return the others, and the keys' values.

    Raises:
        UsageError: there is no such key, or its value is no possible number.
    """
    least = {f"task.{task.label.nouns}": 1 for task in TASKS.values() if task.label is not None}
    least |= {"task.tags": 0, "task.languages": 1}
    remaining, numbers = [], {}
    for text in overrides:
        key, _, value = text.partition("=")
        if not key.startswith("task."):
            remaining.append(text)
        elif key not in least:
            raise UsageError(f"params: unknown key '{key}'; {did_you_mean(key, least)}")
        elif not re.fullmatch(r"[0-9]+", value) or int(value) < least[key]:
            raise UsageError(f"{text}: must be a whole number of at least {least[key]}")
        else:
            numbers[key] = int(value)
    return remaining, numbers


def counts(overrides: Sequence[str], numbers: Mapping[str, int]) -> list[Counted]:
    """Return the counts of a command's jobs; jobs that differ in order or seed alone are counted once.

    Raises:
        UsageError: a job cannot work, or a number is neither given nor in the data.
    """
    from xclrun.compose.jobs import compose_command

    distinct: dict[str, Counted] = {}
    for job in compose_command(overrides):
        counted = _count(job, numbers)
        same = [counted.strategy, job.resolved["model"], job.resolved["strategy"], asdict(counted.sizes)]
        distinct.setdefault(json.dumps(same, default=str), counted)
    return list(distinct.values())


def _count(job: Composed, numbers: Mapping[str, int]) -> Counted:
    from xclrun.config.checks import check
    from xclrun.core.identity import strategy_name
    from xclrun.core.stream import with_mixtures
    from xclrun.model.source import shape_identity
    from xclrun.run import stream_of
    from xclrun.strategy import make

    check(job.config)
    strategy, sizes, settings = make(job.config.strategy), _sizes(job.config, numbers), job.resolved["strategy"]
    stream = stream_of(job.config, strategy, with_mixtures(sizes.languages))
    heads = [[head.task.identified, head.classes, head.tags] for head in sizes.heads]
    key = [plain(job.config.model), shape_identity(job.config.model), settings, heads, repr(stream)]

    def counted(vocabulary: int | None) -> Count:
        def build() -> dict[str, Any]:
            return _build(job.config, strategy, stream, sizes.heads, vocabulary).to_json()

        return Count.from_json(cached_json(_folder(), "parameters", [*key, vocabulary], build))

    untrimmed = counted(sizes.vocabulary)
    trimmed = untrimmed if sizes.kept is None else counted(sizes.kept)
    values = {**settings, **(settings.get("expansion") or {})}
    shown = [
        f"{key}={'[' + ','.join(map(str, value)) + ']' if isinstance(value, list) else value}"
        for key, value in values.items()
        if key not in ("name", "expansion", "pretrained")
    ]
    name = strategy_name(job.resolved)
    return Counted(job.config, f"{name}({', '.join(shown)})" if shown else name, sizes, trimmed, untrimmed)


def _build(
    config: Config, strategy: Strategy[Any], stream: Stream, heads: Sequence[HeadSizes], vocabulary: int | None
) -> Count:
    """Count by the encoder's shape if that is enough, else by the model on the meta device.

    Importing torch and transformers takes ten times as long as the rest of the command.
    """
    from xclrun.model.families import FAMILIES
    from xclrun.model.shape import sizes_of
    from xclrun.model.structure import layer
    from xclrun.strategy.shared.parameters import count, keeps_parameters, sizes

    by_shape = sizes_of(config.model, heads, vocabulary)
    if by_shape is not None and keeps_parameters(strategy):
        strategy.check_encoder(None, None, max(layer(name) or 0 for name in by_shape))
        return count(by_shape, strategy, stream)

    import torch

    from xclrun.model.network import skeleton

    one, several = heads[0], heads if len(heads) > 1 else ()
    model = skeleton(config.model, one.classes, one.tags, vocabulary, one.task, several)
    shape: Any = model.encoder.config
    strategy.check_encoder(FAMILIES[shape.model_type], shape.hidden_size, shape.num_hidden_layers)
    no_library: Any = None
    with torch.device("meta"):
        strategy.prepare(model, stream, no_library)
    return count(sizes(model), strategy, stream)


def _folder() -> Path:
    """Return the folder of counts in the user's cache."""
    return cache_folder() / "counts"


def _sizes(config: Config, numbers: Mapping[str, int]) -> Sizes:
    """Return the sizes that ``numbers`` give; those that it lacks come from the data."""
    from xclrun.model.shape import HeadSizes

    listed = config.order.languages
    if config.protocol is not None:
        listed = [language for language in (config.from_source, config.language) if language is not None]
    if (number := numbers.get("task.languages")) is not None:
        if listed is not None and len(listed) != number:
            raise UsageError(f"task.languages={number}: the order has {many(len(listed), 'language')}")
        listed = listed or [f"language {i}" for i in range(1, number + 1)]
    tasks = tasks_of_dataset(plain(config.dataset))
    task = tasks[0]
    label = None if task.label is None else f"task.{task.label.nouns}"
    tag = None if task.tag is None else "task.tags"
    keys = [key for key in (label, tag) if key is not None] if len(tasks) == 1 else []
    if other := next((key for key in numbers if key not in (*keys, "task.languages")), None):
        several = "dataset.parts has several tasks, whose numbers come from the data alone"
        raise UsageError(
            f"{other}: {several if len(tasks) > 1 else f'dataset.task={task.name} takes ' + ' and '.join(keys)}"
        )
    if listed is not None and len(tasks) == 1 and {*keys} <= numbers.keys():
        return Sizes((HeadSizes(task, numbers.get(label or "", 0), numbers.get(tag or "", 0)),), tuple(listed))
    return _from_data(config, numbers, listed, keys)


def _from_data(config: Config, numbers: Mapping[str, int], listed: Sequence[str] | None, keys: Sequence[str]) -> Sizes:
    from xclrun.data.encode import tag_outputs
    from xclrun.data.load import load_dataset
    from xclrun.model.shape import HeadSizes
    from xclrun.model.source import pairs, source_identity

    try:
        dataset = load_dataset(config.dataset, config.bucket, config.shots)
    except UsageError as error:
        known = " ".join(f"{key}=N" for key in (*keys, "task.languages"))
        raise UsageError(f"{error}; params also takes {known}") from error
    heads = []
    for target in dataset.targets:
        label, tag = target.task.label, target.task.tag
        classes = len(target.labels) if label is None else numbers.get(f"task.{label.nouns}", len(target.labels))
        tags = 0 if tag is None else numbers.get("task.tags", tag_outputs(target.tags, config.model.label_on))
        heads.append(HeadSizes(target.task, classes, tags))
    vocabulary = kept = None
    model = config.model
    if model.from_scratch or model.trim_vocabulary:
        splits = sorted([*key, value] for key, value in dataset.origin.fingerprints.items())
        key = [plain(model), source_identity(model, dataset), splits, pairs(dataset)]
        vocabulary, kept = cached_json(_folder(), "pieces", key, lambda: _pieces(config, dataset))
    return Sizes(tuple(heads), tuple(listed or dataset.languages), vocabulary, kept)


def _pieces(config: Config, dataset: Dataset) -> tuple[int | None, int | None]:
    """Return `Sizes.vocabulary` and `Sizes.kept`."""
    from xclrun.data.windows import encode_task
    from xclrun.model.source import family_of
    from xclrun.model.vocabulary import learned_vocabulary, load_tokenizer, used_pieces

    model, vocabulary = config.model, None
    # Counting creates no outputs folder.
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(config.paths.outputs).expanduser() / "cache"
        cache = cache if cache.is_dir() else Path(folder)
        if model.from_scratch:
            vocabulary = learned_vocabulary(model, dataset, cache).read_bytes().count(b"\n")
        if not model.trim_vocabulary:
            return vocabulary, None
        tokenizer = load_tokenizer(model, dataset, cache)
    origin = dataset.origin.splits.items()
    splits = (encode_task(dataset.task_of(key), e, tokenizer, (), (), model) for (key, _), e in origin)
    return vocabulary, len(used_pieces(splits, tokenizer, family_of(model).from_padding))
