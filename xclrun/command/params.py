"""``xclrun plan --params``: count the parameters of a strategy's model."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.command.common import Parser
from xclrun.config.schema import Config, plain
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.task import TASKS, Task, tasks_of_dataset
from xclrun.core.terminal import fitted, many, size, table
from xclrun.store.cache import cache_folder, cached_json

if TYPE_CHECKING:
    from xclrun.core.stream import Stream
    from xclrun.data.example import Dataset
    from xclrun.model.shape import HeadSizes
    from xclrun.strategy.base import Strategy
    from xclrun.strategy.shared.parameters import Count


@dataclass(frozen=True)
class Sizes:
    """Sizes that determine a count, in addition to the config.

    Attributes:
        heads: numbers of labels and tags of each task.
        languages: the languages of the stream.
        vocabulary: size of a vocabulary learned from the data; None for other encoders, and without the data.
        trimmed: size of a trimmed vocabulary; None if it is not trimmed, and without the data.
    """

    heads: tuple[HeadSizes, ...]
    languages: tuple[str, ...]
    vocabulary: int | None = None
    trimmed: int | None = None


@dataclass(frozen=True)
class Counted:
    """The count of one job, and its count with the full vocabulary, which is the same without trimming."""

    config: Config
    strategy: str
    sizes: Sizes
    count: Count
    untrimmed: Count

    def render(self) -> str:
        """Return the count as a table."""
        count, model = self.count, self.config.model
        heads = ", ".join(map(_labels, self.sizes.heads))
        title = f"{model.name} · {self.strategy} · {many(count.languages, 'language')} · {heads}"
        rows = [
            (p.name, f"{p.parameters:,}", str(p.copies), f"{p.parameters * p.copies:,}", _hops(p.trained, count.hops))
            for p in count.parts
        ]
        by_hop = {n: [hop for hop, m in enumerate(count.by_hop, start=1) if m == n] for n in count.by_hop}
        each = [f"{n:,}" + (f" ({_hops(hops, count.hops)})" if len(by_hop) > 1 else "") for n, hops in by_hop.items()]
        facts = {
            "total": f"{count.total:,} ({size(count.stored)} in fp32)",
            "trained at each hop": ", ".join(each),
            "trained in any hop": f"{count.learned:,}",
        }
        if self.sizes.trimmed is not None:
            facts["untrimmed"] = f"{self.untrimmed.total:,} ({self.sizes.trimmed:,} word embeddings are kept)"
        elif model.trim_vocabulary:
            facts["trimmed"] = "unknown without the data; counted with the whole vocabulary"
        lines = [f"{name:<20} {value}" for name, value in facts.items()]
        header = ("part", "parameters", "copies", "in all", "trained")
        return "\n".join([fitted(title, sys.stdout), table(header, rows), *lines])

    def to_json(self) -> dict[str, Any]:
        """Return the count for ``--json``."""
        facts = {"model": self.config.model.name, "strategy": self.strategy, **self.count.to_json()}
        return facts | {"total_untrimmed": self.untrimmed.total, "kept_pieces": self.sizes.trimmed}


def _labels(head: HeadSizes) -> str:
    task = head.task
    numbers = [] if task.label is None else [many(head.classes, task.label.noun, task.label.nouns)]
    numbers += [] if task.tag is None else [many(head.tags, "tag")]
    numbers += [f"starts and ends of {task.answers[0].nouns}"] if task.answers else []
    return ", ".join(numbers) or f"head '{task.head}'"


def _hops(hops: Sequence[int], total: int) -> str:
    if len(hops) in (0, total):
        return "yes" if hops else "no"
    return f"{'hop' if len(hops) == 1 else 'hops'} {', '.join(map(str, hops))}"


def main(arguments: Sequence[str]) -> int:
    """Print the counts of a command's jobs; return the exit code."""
    parser = Parser(
        prog="xclrun plan --params",
        description="Count the parameters of `xclrun OVERRIDES` by part: those of the final model with all its "
        "languages, and those trained at each hop. The numbers of labels are read from the data. To count without data "
        "and weights, pass task.intents=N task.tags=N (intents and slots), task.classes=N (classes only) or "
        "task.tags=N (tags only), and task.languages=N if the order is not a list.",
        usage="xclrun plan --params KEY=VALUE … [--json]\n"
        "       xclrun plan --params KEY=VALUE … task.intents=N task.tags=N …",
    )
    parser.add_overrides(outputs=True)
    parser.add_json()
    options = parser.parse_with_overrides(arguments)
    counted = counts(*split(options.overrides))
    if options.json:
        print(json.dumps([job.to_json() for job in counted], indent=1))
    else:
        print("\n\n".join(job.render() for job in counted))
    return 0


def split(overrides: Sequence[str]) -> tuple[list[str], dict[str, int]]:
    """Separate the ``task.*`` keys from the other overrides; return the others, and the values of the keys.

    Raises:
        UsageError: a key is unknown, or its value is out of range.
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
    """Count the parameters of a command's jobs; jobs with equal counts, such as other seeds, are counted once.

    Raises:
        UsageError: a job is invalid, or a number is neither given nor in the data.
    """
    from xclrun.compose.jobs import compose_command
    from xclrun.config.checks import check
    from xclrun.core.stream import with_mixtures
    from xclrun.plan import stream_of
    from xclrun.plan.checks import with_library
    from xclrun.strategy import make

    distinct: dict[str, Counted] = {}
    for job in compose_command(overrides):
        config = with_library(job.config)
        check(config)
        strategy, sizes = make(config.strategy), _sizes(config, numbers)
        stream = stream_of(config, strategy, with_mixtures(sizes.languages))
        key = repr((config.model, config.strategy, sizes, stream))
        if key not in distinct:
            untrimmed = _count(config, strategy, stream, sizes, sizes.vocabulary)
            count = untrimmed if sizes.trimmed is None else _count(config, strategy, stream, sizes, sizes.trimmed)
            distinct[key] = Counted(config, _described(job.resolved), sizes, count, untrimmed)
    return list(distinct.values())


def _described(resolved: Mapping[str, Any]) -> str:
    """Return the name of a job's strategy, with its settings."""
    from xclrun.core.identity import NESTED, strategy_name

    settings = resolved["strategy"]
    values = settings | {k: v for key in NESTED for k, v in (settings.get(key) or {}).items()}
    texts = [
        f"{key}={'[' + ','.join(map(str, value)) + ']' if isinstance(value, list) else value}"
        for key, value in values.items()
        if key not in ("name", "pretrained", *NESTED)
    ]
    return strategy_name(resolved) + (f"({', '.join(texts)})" if texts else "")


def _count(config: Config, strategy: Strategy[Any], stream: Stream, sizes: Sizes, vocabulary: int | None) -> Count:
    """Count from the encoder's shape if possible, otherwise from a model on the meta device.

    Importing torch and transformers takes ten times as long as the rest of the command.
    """
    from xclrun.model.families import FAMILIES
    from xclrun.model.shape import sizes_of
    from xclrun.model.structure import layer
    from xclrun.strategy.shared import parameters

    by_shape = sizes_of(config.model, sizes.heads, vocabulary)
    if by_shape is not None and parameters.keeps_parameters(strategy):
        strategy.check_encoder(None, None, max(layer(name) or 0 for name in by_shape))
        return parameters.count(by_shape, strategy, stream)

    import torch

    from xclrun.model.network import skeleton

    first, several = sizes.heads[0], sizes.heads if len(sizes.heads) > 1 else ()
    model = skeleton(config.model, first.classes, first.tags, vocabulary, first.task, several)
    shape: Any = model.encoder.config
    strategy.check_encoder(FAMILIES[shape.model_type], shape.hidden_size, shape.num_hidden_layers)
    no_library: Any = None
    with torch.device("meta"):
        strategy.prepare(model, stream, no_library)
    return parameters.count(parameters.sizes(model), strategy, stream)


def _sizes(config: Config, numbers: Mapping[str, int]) -> Sizes:
    """Return the sizes: from ``numbers`` if they are there, otherwise from the data."""
    from xclrun.data.encode import tag_outputs
    from xclrun.data.load import load_dataset
    from xclrun.model.shape import HeadSizes

    languages = _languages(config, numbers.get("task.languages"))
    task, *further = tasks_of_dataset(plain(config.dataset))
    keys = [] if further else [key for key in _keys(task) if key is not None]
    if unused := next((key for key in numbers if key not in (*keys, "task.languages")), None):
        reason = f"dataset.task={task.name} takes {' and '.join(keys)}"
        raise UsageError(f"{unused}: {'with several tasks, the numbers come from the data' if further else reason}")

    def head(task: Task, labels: int, tags: int) -> HeadSizes:
        label, tag = _keys(task)
        classes = labels if label is None else numbers.get(label, labels)
        return HeadSizes(task, classes, 0 if tag is None else numbers.get(tag, tags))

    if languages is not None and not further and {*keys} <= numbers.keys():
        return Sizes((head(task, 0, 0),), languages)
    try:
        dataset = load_dataset(config.dataset, config.bucket, config.shots)
    except UsageError as error:
        available = " ".join(f"{key}=N" for key in (*keys, "task.languages"))
        raise UsageError(f"{error}; params also takes {available}") from error
    heads = (head(t.task, len(t.labels), tag_outputs(t.tags, config.model.label_on)) for t in dataset.targets)
    return Sizes(tuple(heads), languages or dataset.languages, *_vocabulary(config, dataset))


def _keys(task: Task) -> tuple[str | None, str | None]:
    """Return the keys for the numbers of a task's labels and tags."""
    return None if task.label is None else f"task.{task.label.nouns}", None if task.tag is None else "task.tags"


def _languages(config: Config, number: int | None) -> tuple[str, ...] | None:
    """Return the languages of the stream without reading the data; None if the data determine them."""
    listed = config.order.languages
    if config.protocol is not None:
        listed = [language for language in (config.from_source, config.language) if language is not None]
    if number is not None:
        if listed is not None and len(listed) != number:
            raise UsageError(f"task.languages={number}: the order has {many(len(listed), 'language')}")
        listed = listed or [f"language {i}" for i in range(1, number + 1)]
    return None if listed is None else tuple(listed)


def _vocabulary(config: Config, dataset: Dataset) -> tuple[int | None, int | None]:
    """Return the number of subwords of a learned and of a trimmed vocabulary (`Sizes`), cached for the user."""
    from xclrun.model.source import pairs, source_identity

    model = config.model
    if not model.from_scratch and not model.trim_vocabulary:
        return None, None
    splits = sorted([*name, value] for name, value in dataset.origin.fingerprints.items())
    inputs = [plain(model), source_identity(model, dataset), splits, pairs(dataset)]
    learned, trimmed = cached_json(cache_folder() / "counts", "pieces", inputs, lambda: _subwords(config, dataset))
    return learned, trimmed


def _subwords(config: Config, dataset: Dataset) -> tuple[int | None, int | None]:
    from xclrun.data.encodings import encode_task
    from xclrun.model.source import family_of
    from xclrun.model.vocabulary import learned_size, load_tokenizer, used_pieces

    model, learned = config.model, None
    # Counting creates no outputs folder.
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(config.paths.outputs).expanduser() / "cache"
        cache = cache if cache.is_dir() else Path(folder)
        if model.from_scratch:
            learned = learned_size(model, dataset, cache)
        if not model.trim_vocabulary:
            return learned, None
        tokenizer = load_tokenizer(model, dataset, cache)
    origin = dataset.origin.splits.items()
    splits = (encode_task(e, tokenizer, dataset.targets_of(key), model) for (key, _), e in origin)
    return learned, len(used_pieces(splits, tokenizer, family_of(model).from_padding))
