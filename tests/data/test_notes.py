"""What is told of datasets: once for all that a sweep draws from the same data."""

from __future__ import annotations

from xclrun.core.task import SEQUENCE_CLASS
from xclrun.data.example import Dataset, Example
from xclrun.data.notes import noted, told


def dataset(name: str, *train: str) -> Dataset:
    def examples(*texts: str) -> tuple[Example, ...]:
        return tuple(Example(str(i), "de", tuple(text.split()), "a") for i, text in enumerate(texts))

    splits = {("de", "train"): examples(*train), ("de", "dev"): (), ("de", "test"): examples("A b", "a B", "c")}
    return Dataset(name, SEQUENCE_CLASS, ("de",), splits, {"skipped": {"de/dev": 3}})


def test_of_the_buckets_of_a_dataset_the_worst_is_told() -> None:
    one, two, three = dataset("x", "a b"), dataset("x", "a b", "C"), dataset("x", "d")
    assert [noted(d).get("test_in_train") for d in (one, two, three)] == [{"de": 2}, {"de": 3}, None]
    skipped = "3 lines that could not be read: skipped (de/dev: 3)"
    found = "3 test sentences found in the language's training split too (de: 3)"
    assert told([one, two, three]) == [skipped, found]
    assert told([two, dataset("y", "d")]) == [f"x: {skipped}", f"x: {found}", f"y: {skipped}"]
