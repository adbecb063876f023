"""Split a training split into equal, disjoint blocks (``dataset.blocks``), for the online codelength (GLI, section 4).

Examples are assigned to blocks by the hash rank of `xclrun.data.load.subset`: the first i of M blocks together are the
subset that `subset` draws for i/M of the examples.
"""

from __future__ import annotations

from dataclasses import replace

from xclrun.core.errors import UsageError
from xclrun.core.stream import block_names
from xclrun.core.task import ANSWERS, LABELS, TAGS, WRITTEN
from xclrun.data.example import OUTSIDE, Dataset, Example
from xclrun.data.load import subset


def with_blocks(dataset: Dataset, key: str, number: int, subset_seed: int) -> Dataset:
    """Return the dataset with the blocks of a key's training split as additional splits ``(de#1, train)``, …

    Blocks have only a training split and are not listed as languages. Their sizes differ by at most one example; the
    examples of a block are in file order.
    """
    if key not in dataset.languages:
        raise UsageError(
            f"dataset.blocks={number}: the order ends with the mixture {key}, but only a single key can be split into "
            f"blocks; end the order with a key, as in order=[{key},KEY]"
        )
    examples = dataset.split(key, "train")
    if number > len(examples):
        raise UsageError(f"dataset.blocks={number}: {key}/train has {len(examples)} examples; set fewer blocks")
    names = block_names(key, number)
    if taken := set(names) & set(dataset.languages):
        raise UsageError(
            f"dataset.blocks={number}: the block '{min(taken)}' has the name of a language; rename this language"
        )
    seed, ends = (subset_seed, key, "train"), [len(examples) * i // number for i in range(number + 1)]
    cut: dict[tuple[str, str], tuple[Example, ...]] = {
        (name, "train"): subset(examples, end - begin, seed, begin)
        for name, begin, end in zip(names, ends[:-1], ends[1:], strict=True)
    }
    tasks = dataset.tasks and {**dataset.tasks, **dict.fromkeys(names, dataset.tasks[key])}
    return replace(dataset, splits={**dataset.splits, **cut}, tasks=tasks)


def trained_heads(dataset: Dataset, key: str, earlier: tuple[str, ...]) -> list[str]:
    """Return the heads (`LABELS`, `TAGS`, `ANSWERS`, `WRITTEN`) that training on earlier keys has trained for a key.

    A head counts as trained if the training data of the key and an earlier key share a class, a tag other than ``O``,
    answers or texts.
    """
    task = dataset.task_of(key)

    def learned(language: str) -> dict[str, set[str]]:
        examples = dataset.split(language, "train") if dataset.task_of(language) == task else ()
        labels = {e.label for e in examples if e.label is not None} if task.label is not None else set()
        tags = {tag for e in examples for tag in e.tags or ()} if task.tag is not None else set()
        spans = {"a span"} if task.answers and examples else set()
        texts = {"a text"} if task.writes and examples else set()
        return {LABELS: labels, TAGS: tags - {OUTSIDE}, ANSWERS: spans, WRITTEN: texts}

    before = [learned(language) for language in earlier]
    return [head for head, names in learned(key).items() if any(names & other[head] for other in before)]
