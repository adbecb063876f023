"""The contract of readers: the same examples in any process, complete and consistent, and one line for each mistake.

The author provides a small valid dataset; checks that change files use copies of it.
"""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from xclrun.config.schema import DatasetConfig, OnBadLine
from xclrun.core.errors import UsageError
from xclrun.core.task import task_of
from xclrun.data.example import SPLITS, Example
from xclrun.data.load import load_dataset
from xclrun.data.readers import COLUMNS, READERS, read
from xclrun.data.readers.collect import Splits
from xclrun.testing.suite import Check, bound, expect, expect_equal, run_all

UNKNOWN = "no-such-language"


@dataclass(frozen=True)
class ReaderCase:
    """A reader under test.

    Attributes:
        config: a small valid dataset that the reader reads.
        bad_row: file (relative to the root) and invalid text to append to it; None if rows cannot be appended.
    """

    config: DatasetConfig
    bad_row: tuple[str, str] | None = None

    @property
    def root(self) -> Path:
        assert self.config.root is not None
        return Path(self.config.root)

    def splits(self) -> Splits:
        return read(self.config)[0]

    def examples(self) -> list[Example]:
        return [example for examples in self.splits().values() for example in examples]

    @contextlib.contextmanager
    def spoilt(self, text: bytes) -> Iterator[DatasetConfig]:
        """Yield the config of a copy of the data with a text after the file of `bad_row`."""
        assert self.bad_row is not None
        with tempfile.TemporaryDirectory() as folder:
            root = Path(shutil.copytree(self.root, Path(folder, "data")))
            with (root / self.bad_row[0]).open("ab") as file:
                file.write(text)
            yield replace(self.config, root=str(root))


def _refused(config: DatasetConfig, what: str) -> str:
    """Return the message of the `UsageError` with which a config is refused."""
    try:
        read(config)
    except UsageError as error:
        expect(len(str(error).splitlines()) == 1, f"a message of several lines: {error}")
        return str(error)
    except Exception as error:
        expect(False, f"{what}: {type(error).__name__} ({error}) instead of a UsageError")
    expect(False, f"{what}: no error")
    return ""


def is_registered(case: ReaderCase) -> None:
    """The reader is registered under ``dataset.reader``."""
    expect(case.config.reader in READERS, f"no reader {case.config.reader!r}")


def returns_every_split(case: ReaderCase) -> None:
    """Each language has the splits train, dev and test, possibly empty, and a train or test split with examples."""
    splits = case.splits()
    for language in dict.fromkeys(language for language, _ in splits):
        missing = [split for split in SPLITS if (language, split) not in splits]
        expect(not missing, f"'{language}' has no {', '.join(missing)} split")
        sizes = {split: len(splits[language, split]) for split in SPLITS}
        expect(sizes["train"] or sizes["test"], f"'{language}' has no examples")
    strange = [(key, e.language) for key, examples in splits.items() for e in examples if e.language != key[0]]
    expect(not strange, f"examples of another language: {strange[:3]}")


def names_examples_once(case: ReaderCase) -> None:
    """The ids of a split's examples are not empty, and no two are equal."""
    for (language, split), examples in case.splits().items():
        ids = [example.id for example in examples]
        expect(all(isinstance(id, str) and id for id in ids), f"{language}/{split} has ids {ids[:3]}")
        expect(len(set(ids)) == len(ids), f"{language}/{split} has {len(ids)} examples and {len(set(ids))} ids")


def splits_texts_into_words(case: ReaderCase) -> None:
    """``tokens`` is a tuple of words, which are texts that are not blank; there is one tag per word."""
    for example in case.examples():
        tokens = example.tokens
        words = isinstance(tokens, tuple) and tokens and all(isinstance(w, str) and w.strip() for w in tokens)
        expect(words, f"example '{example.id}' has tokens {tokens!r}")
        if example.tags is not None:
            expect_equal(len(example.tags), len(tokens), f"example '{example.id}': number of tags")


def fills_the_declared_columns(case: ReaderCase) -> None:
    """Examples have no columns (``label``, ``tags``, …) that ``gives`` does not list, and all that the task needs."""
    examples = case.examples()
    # Every example has a text, which is a document for language modelling.
    columns = COLUMNS - {"text"}
    found = {column for column in columns if any(getattr(example, column) is not None for example in examples)}
    gives = READERS[str(case.config.reader)].gives
    expect(found <= gives, f"columns {sorted(found)}; gives lists {sorted(gives)}")
    needs = task_of(case.config.task, case.config.tags_are.value).needs
    expect(needs <= found, f"columns {sorted(found)}; the task needs {sorted(needs)}")


def finds_answers_in_texts(case: ReaderCase) -> None:
    """Each answer is the part of the text that begins at its first character."""
    for example in case.examples():
        for text, start in example.answers or ():
            expect_equal(example.whole[start : start + len(text)], text, f"text of '{example.id}' at {start}:")


def reads_the_same_again(case: ReaderCase) -> None:
    """Reading twice gives equal examples in equal order, whatever the state of the random generators."""
    found = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        found.append([(key, examples) for key, examples in case.splits().items()])
    expect(found[0] == found[1], "different examples, or another order, in the second reading")


def draws_no_global_random_numbers(case: ReaderCase) -> None:
    """The global generators of ``random`` and NumPy are unchanged."""

    def state() -> str:
        return repr((random.getstate(), np.random.get_state()))  # noqa: NPY002

    before = state()
    case.splits()
    expect(state() == before, "a global generator was used")


def selects_languages(case: ReaderCase) -> None:
    """``dataset.languages`` selects languages and gives their order; the examples of each are unchanged."""
    splits = case.splits()
    languages = list(dict.fromkeys(language for language, _ in splits))
    trained = [language for language in languages if splits[language, "train"]]
    for chosen in ([*reversed(languages)], trained[:1]):
        if chosen:
            found = read(replace(case.config, languages=chosen))[0]
            expect_equal(list(dict.fromkeys(language for language, _ in found)), chosen, "languages")
            expect(all(found[key] == splits[key] for key in found), f"other examples with languages={chosen}")


def refuses_unknown_languages(case: ReaderCase) -> None:
    """A language without data is a `UsageError` of one line that names it."""
    message = _refused(replace(case.config, languages=[UNKNOWN]), f"languages=[{UNKNOWN}]")
    expect(UNKNOWN in message, f"message {message!r}")


def refuses_missing_data(case: ReaderCase) -> None:
    """A ``dataset.root`` that is missing, is no folder, or is empty is a `UsageError` of one line."""
    if case.config.root is not None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "file").touch()
            Path(folder, "empty").mkdir()
            for root in (None, *(str(Path(folder, name)) for name in ("missing", "file", "empty"))):
                _refused(replace(case.config, root=root), f"root={root and Path(root).name}")


def names_bad_rows(case: ReaderCase) -> None:
    """A bad row is a `UsageError` of one line that names the file."""
    assert case.bad_row is not None
    with case.spoilt(case.bad_row[1].encode()) as config:
        message = _refused(config, f"{case.bad_row[1]!r} in {case.bad_row[0]}")
        expect(case.bad_row[0] in message, f"message {message!r}")


def skips_bad_rows(case: ReaderCase) -> None:
    """With ``dataset.on_bad_line=skip``, a bad row is counted as ``skipped``, and all other examples are read."""
    assert case.bad_row is not None
    with case.spoilt(case.bad_row[1].encode()) as config:
        splits, notes = read(replace(config, on_bad_line=OnBadLine.skip))
        expect_equal(sum(notes.get("skipped", {}).values()), 1, "number of skipped rows")
        expect(splits == case.splits(), "other examples than without the bad row")


def refuses_damaged_files(case: ReaderCase) -> None:
    """A file that is not UTF-8 text is a `UsageError` of one line that names the file."""
    assert case.bad_row is not None
    with case.spoilt(b"\xff\xfe\xfa\n") as config:
        expect(case.bad_row[0] in _refused(config, "bytes that are not UTF-8"), "a message without the file")


def leaves_files_unchanged(case: ReaderCase) -> None:
    """Nothing is written below ``dataset.root``."""
    if case.config.root is not None:
        before = {path: path.stat().st_mtime_ns for path in case.root.rglob("*")}
        case.splits()
        expect({path: path.stat().st_mtime_ns for path in case.root.rglob("*")} == before, "a changed or new file")


def prints_nothing(case: ReaderCase) -> None:
    """Nothing is printed; counts of irregularities are returned."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        case.splits()
    expect(not printed.getvalue(), f"printed {printed.getvalue()!r}")


def serves_its_task(case: ReaderCase) -> None:
    """The dataset can be loaded for ``dataset.task``, whose columns every training example has."""
    dataset = load_dataset(case.config)
    for (language, split), examples in dataset.splits.items():
        for example in examples if split == "train" else ():
            task = dataset.task_of(language)
            # Datasets may lack tags.
            empty = [name for name in sorted(task.needs - {"tags"}) if getattr(example, name) is None]
            expect(not empty, f"{language}/train example '{example.id}' has no {' and no '.join(empty)}")


READER_CONTRACT = (
    is_registered,
    returns_every_split,
    names_examples_once,
    splits_texts_into_words,
    fills_the_declared_columns,
    finds_answers_in_texts,
    reads_the_same_again,
    draws_no_global_random_numbers,
    selects_languages,
    refuses_unknown_languages,
    refuses_missing_data,
    leaves_files_unchanged,
    prints_nothing,
    serves_its_task,
)
# Checks that need a bad row.
WITH_BAD_ROW = (names_bad_rows, skips_bad_rows, refuses_damaged_files)


def reader_checks(config: DatasetConfig, bad_row: tuple[str, str] | None = None) -> list[Check]:
    """Return the checks of the reader ``config.reader``, for ``pytest.mark.parametrize``.

    Args:
        config: a small valid dataset, with examples of every column that the reader gives.
        bad_row: file (relative to ``config.root``) and text of an invalid row; without it, three checks are left out.
    """
    contract = READER_CONTRACT + (WITH_BAD_ROW if bad_row else ())
    return bound(f"reader '{config.reader}'", contract, ReaderCase(config, bad_row))


def check_reader(config: DatasetConfig, bad_row: tuple[str, str] | None = None) -> None:
    """Run `reader_checks`.

    Raises:
        ContractError: a line per failed check.
    """
    run_all(reader_checks(config, bad_row))
