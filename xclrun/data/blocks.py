"""Blocks of a training split (``dataset.blocks``): equal, disjoint, in a fixed order that is not the file's.

An online codelength asks for examples in a fixed, predefined order (GLI, section 4). That order is the hash rank of
`xclrun.data.load.subset`: the first i of M blocks are the subset of i/M of the examples.
"""

from __future__ import annotations

from dataclasses import replace

from xclrun.analysis.codelength import ANSWERS, LABELS, TAGS
from xclrun.core.errors import UsageError
from xclrun.core.stream import block_names
from xclrun.data.example import OUTSIDE, Dataset, Example
from xclrun.data.load import subset


def with_blocks(dataset: Dataset, key: str, number: int, subset_seed: int) -> Dataset:
    """Return the dataset with the blocks of a key's training split next to it: ``(de#1, train)``, ``(de#2, train)``, …

    They have no dev and test split of their own, and are none of the dataset's languages. Sizes differ by one example
    at most; a block has its examples in the order of the file.
    """
    if key not in dataset.languages:
        raise UsageError(
            f"dataset.blocks={number}: blocks are of one key, and the order ends with a mixture, {key}; end it "
            f"with the key, as in order=[{key},KEY]"
        )
    examples = dataset.split(key, "train")
    if number > len(examples):
        raise UsageError(f"dataset.blocks={number}: {key}/train has {len(examples)} examples; at most as many blocks")
    names = block_names(key, number)
    if taken := set(names) & set(dataset.languages):
        raise UsageError(f"dataset.blocks={number}: the dataset has a language '{min(taken)}', as a block is called")
    seed, ends = (subset_seed, key, "train"), [len(examples) * i // number for i in range(number + 1)]
    cut: dict[tuple[str, str], tuple[Example, ...]] = {
        (name, "train"): subset(examples, end - begin, seed, begin)
        for name, begin, end in zip(names, ends[:-1], ends[1:], strict=True)
    }
    tasks = dataset.tasks and {**dataset.tasks, **dict.fromkeys(names, dataset.tasks[key])}
    return replace(dataset, splits={**dataset.splits, **cut}, tasks=tasks)


def trained_heads(dataset: Dataset, key: str, others: tuple[str, ...]) -> list[str]:
    """Return by which heads a key is read that a model knows which has learned other keys.

    Of `LABELS`, `TAGS` and `ANSWERS` those that training on the others has in common with this key's training data: a
    class; a tag other than ``O``; answers.
    """
    task = dataset.task_of(key)

    def learnt(of: str) -> dict[str, set[str]]:
        examples = dataset.split(of, "train") if dataset.task_of(of) == task else ()
        labels = {e.label for e in examples if e.label is not None} if task.label is not None else set()
        tags = {tag for e in examples for tag in e.tags or ()} if task.tag is not None else set()
        spans = {"a span"} if task.answers and examples else set()
        return {LABELS: labels, TAGS: tags - {OUTSIDE}, ANSWERS: spans}

    own, before = learnt(key), [learnt(other) for other in others]
    return [what for what, names in own.items() if any(names & other[what] for other in before)]
