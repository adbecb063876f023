"""Shared by all tests: a small corpus in three languages, and runs on it that take a fraction of a second."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    import pandas as pd

    from xclrun.compose.jobs import Composed
    from xclrun.plan import Run


# The same examples in every run, and no limit by the wall clock: a landing depends on the code, not on luck or load.
hypothesis.settings.register_profile("xclrun", deadline=None, derandomize=True)
hypothesis.settings.load_profile("xclrun")

# Many images forbid to write bytecode, and then pytest compiles all tests in each session.
sys.dont_write_bytecode = False

# Tests started with nohup would have all their processes ignore SIGHUP.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """Collect the given files of a folder one after another: pytest loses a folder's fixtures when it comes back."""
    folders = dict.fromkeys(Path(name.partition("::")[0]).parent for name in config.args)
    config.args.sort(key=lambda name: [*folders].index(Path(name.partition("::")[0]).parent))


def some(iterable: Iterable[Any]) -> list[Any]:
    """Return the elements of an iterable whose loop holds a test's assertions; fail if there are none."""
    elements = list(iterable)
    assert elements, "the loop of this test is empty"
    return elements


def all_of_some(conditions: Iterable[Any]) -> bool:
    """Return whether all conditions hold; fail if there are none."""
    return all(some(conditions))


def stored_scores(run: Run) -> list[dict[tuple[str, str], float]]:
    """Return (language, metric) → test score after each hop, as ``scores.parquet`` has them."""
    import pyarrow.parquet as pq

    scores: list[dict[tuple[str, str], float]] = [{} for _ in run.stages]
    for row in pq.read_table(run.directory.scores).to_pylist():
        scores[row["hop"]][row["language"], row["metric"]] = row["value"]
    return scores


def read_csv(file: Any, **given: Any) -> pd.DataFrame:
    """Read a table with all digits of its numbers, as pandas does by itself from release 3 on."""
    import pandas as pd

    exact: dict[str, Any] = {"float_precision": "round_trip"} if pd.__version__ < "3" else {}
    return pd.read_csv(file, **given, **exact)


def copy_tracked(outputs: Path, target: Path) -> Path:
    """Copy outputs with MLflow's database, whose absolute paths become those of the copy; return the copy."""
    copy = Path(shutil.copytree(outputs, target))
    with closing(sqlite3.connect(copy / "mlflow.db")) as database, database:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            places = (outputs.resolve().as_uri(), copy.resolve().as_uri())
            database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", places)
    return copy


# The fast tier has one in so many cases of a costly test, and a landing so many of those that take turns.
QUARTER = 4


def in_fast_tier(mark: pytest.Mark, case: str, number: int) -> bool:
    """Return whether a case of a test marked ``some_cases`` is a fast one: those that are named, else every fourth."""
    return case in mark.args if mark.args else number % QUARTER == 0


def leave_to_full_tier(items: Sequence[pytest.Item]) -> None:
    """Mark the cases of tests with ``some_cases`` that are not in the fast tier as ``full``.

    Raises:
        pytest.UsageError: a test has no case with a name that ``some_cases`` gives.
    """
    tests: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("some_cases"):
            test, _, case = item.nodeid.removesuffix("]").partition("[")
            tests.setdefault(test, {})[case] = item
    for test, cases in tests.items():
        mark = next(iter(cases.values())).get_closest_marker("some_cases")
        assert mark is not None
        # Where fewer are collected, somebody runs a single case.
        if len(cases) > len(mark.args) and (unknown := [name for name in mark.args if name not in cases]):
            raise pytest.UsageError(f"{test} has no case {unknown[0]}")
        for number, (case, item) in enumerate(cases.items()):
            if not in_fast_tier(mark, case, number):
                item.add_marker("full")


def of_other_turns(items: Sequence[pytest.Item], turn: int) -> list[pytest.Item]:
    """Return the tests of the full tier marked ``in_turn`` that this turn leaves to the three others.

    A test's cases are spread over the turns, and so are tests with one case. A new test moves no other one.
    """
    waiting, numbers = [], dict[str, int]()
    for item in items:
        mark = item.get_closest_marker("in_turn")
        test, _, case = item.nodeid.removesuffix("]").partition("[")
        if mark and case not in mark.args and item.get_closest_marker("full"):
            number = numbers.setdefault(test, zlib.crc32(test.encode()))
            numbers[test] += 1
            if number % QUARTER != turn % QUARTER:
                waiting.append(item)
    return waiting


@pytest.hookimpl(tryfirst=True)  # Before pytest selects by `-m`.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Divide costly tests among the tiers, and among four turns where XCLRUN_TURN gives a number.

    Shuffle files, and the tests of each, where XCLRUN_SHUFFLE gives a number: no test may need another one.
    """
    leave_to_full_tier(items)
    if turn := os.environ.get("XCLRUN_TURN"):
        waiting = of_other_turns(items, int(turn))
        config.hook.pytest_deselected(items=waiting)
        left = {id(item) for item in waiting}
        items[:] = [item for item in items if id(item) not in left]
    if number := os.environ.get("XCLRUN_SHUFFLE"):
        of: dict[Path, list[pytest.Item]] = {}
        for item in items:
            of.setdefault(item.path, []).append(item)
        # The same order in every worker.
        generator = random.Random(number)
        files = sorted(of)
        generator.shuffle(files)
        for path in files:
            generator.shuffle(of[path])
        items[:] = [item for path in files for item in of[path]]


@pytest.fixture(scope="module", autouse=True)
def no_empty_all(request: pytest.FixtureRequest) -> None:
    """Make ``all`` of the test modules fail on an empty iterable, where it would hold for nothing."""
    request.module.all = all_of_some


def pytest_collection_finish() -> None:
    """Let garbage collection pass over modules and tests: else each figure's, and each run's, looks through all."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The public data next to the project, or at XCLRUN_SHARED; without it, tests are skipped."""
    folder = Path(os.environ.get("XCLRUN_SHARED", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no public data in {folder} (XCLRUN_SHARED points elsewhere)")
    return folder


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Pass over what was imported since, too: PyTorch and others come with the first test that needs them."""
    gc.collect()
    gc.freeze()


TEMPLATES = {
    "en": {"alarm": "wake me at {time}", "weather": "will it rain in {city} at {time}", "call": "please call {name}"},
    "de": {"alarm": "weck mich um {time}", "weather": "regnet es in {city} um {time}", "call": "ruf bitte {name} an"},
    "es": {"alarm": "despiértame a las {time}", "weather": "lloverá en {city} a las {time}", "call": "llama a {name}"},
}
VALUES = {
    "time": ["six", "seven", "half past nine", "ten thirty"],
    "city": ["Rome", "New York", "Paris", "São Paulo"],
    "name": ["Anna", "Uncle Bob", "Tom", "Mr Lee"],
}
# Sizes that neither the batch size of `make_run` nor a replay memory divides.
SIZES = {"en": {"train": 22, "dev": 7, "test": 9}, "de": {"train": 18, "dev": 6, "test": 8}, "es": {"train": 13}}

# A model of a few thousand weights, trained for 2 epochs with batches of 4; the replay memory is small and used often.
SMALL = (
    "dataset=jsonl",
    "dataset.replay.memory=10",
    "dataset.replay.every_k=2",
    "model.hidden_size=16",
    "model.hidden_layers=1",
    "model.attention_heads=2",
    "model.intermediate_size=32",
    "model.vocab_size=200",
    "model.lr=3e-3",
    "trainer.epochs=2",
    "trainer.batch_size=4",
    "tracking=none",
    "runtime.device=cpu",
    "runtime.threads=1",
)


# The same of the embedded dataset, two languages and one epoch: a job of a tenth of a second.
TINY = (
    "experiment=smoke",
    "tracking=none",
    "model.hidden_size=16",
    "model.hidden_layers=1",
    "model.attention_heads=2",
    "model.intermediate_size=32",
    "model.vocab_size=300",
    "runtime.device=cpu",
)


def sentences(language: str, split: str, size: int) -> list[dict[str, Any]]:
    """Return rows of the corpus, the same each time."""
    generator = random.Random(f"{language}/{split}")
    rows = []
    for i in range(size):
        label = generator.choice(sorted(TEMPLATES[language]))
        tokens, tags = [], []
        for word in TEMPLATES[language][label].split():
            if word.startswith("{"):
                words = generator.choice(VALUES[word[1:-1]]).split()
                tags += [f"B-{word[1:-1]}"] + [f"I-{word[1:-1]}"] * (len(words) - 1)
            else:
                words = [word]
                tags.append("O")
            tokens += words
        rows.append({"id": f"{language}-{split}-{i}", "tokens": tokens, "tags": tags, "label": label})
    return rows


def write_corpus(folder: Path, change: Mapping[tuple[str, str], Callable[[list[dict[str, Any]]], Any]]) -> Path:
    """Write the corpus as JSON Lines; ``change`` edits the rows of a (language, split) in place."""
    for language in TEMPLATES:
        for split, size in {"train": 13, "dev": 6, "test": 8, **SIZES[language]}.items():
            rows = sentences(language, split, size)
            if edit := change.get((language, split)):
                edit(rows)
            path = folder / language / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return folder


@cache
def composed(overrides: tuple[str, ...]) -> Composed:
    """Compose one job."""
    from xclrun.compose.jobs import compose_jobs, composing
    from xclrun.compose.overrides import rewritten

    with composing() as composer:
        [job] = compose_jobs([rewritten(overrides)], composer)
    return job


@pytest.fixture(scope="session", autouse=True)
def counts_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what `xclrun plan --params` counts away from the folder of the user, whose counts no test may read."""
    from xclrun.command import params

    folder = tmp_path_factory.mktemp("user")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(params, "cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def unflushed() -> Iterator[None]:
    """Leave it to the system when files reach the disk: each run flushes dozens, and no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def xclrun(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Run a command in this process; return its exit code and all that it said."""
    from xclrun.cli import main

    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the command sets it; so it is put back

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(list(arguments))
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the corpus."""
    return write_corpus(tmp_path_factory.mktemp("corpus"), {})


@pytest.fixture
def changed_corpus(tmp_path: Path) -> Callable[..., Path]:
    """Write a corpus that differs: ``changed_corpus({("de", "test"): edit})``, where ``edit`` changes the rows."""
    folders = iter(range(1000))
    return lambda change: write_corpus(tmp_path / f"corpus-{next(folders)}", change)


@pytest.fixture(scope="session")
def compose() -> Callable[..., Composed]:
    """Compose the config of one job from overrides."""
    return lambda *overrides: composed(overrides)


@pytest.fixture
def make_run(corpus: Path, tmp_path: Path) -> Callable[..., Run]:
    """Plan a small run: ``make_run("strategy=er", "seed=2", outputs="a")``; outputs lie under tmp_path."""

    def make(*overrides: str, outputs: str | Path = "outputs", data: Path = corpus) -> Run:
        return small_run(overrides, tmp_path / outputs, data)

    return make


def small_run(overrides: tuple[str, ...], outputs: Path, data: Path) -> Run:
    """Plan a run of a model of a few thousand weights."""
    from xclrun.plan import plan_run

    order = () if any(text.startswith("order=") for text in overrides) else ("order=[en,de,es]",)
    job = composed((*SMALL, *order, *overrides))
    root = None if job.config.dataset.reader == "mini" else str(data)
    config = dataclasses.replace(
        job.config,
        dataset=dataclasses.replace(job.config.dataset, root=root),
        paths=dataclasses.replace(job.config.paths, outputs=str(outputs)),
    )
    return plan_run(config)


@pytest.fixture(scope="session")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Return a finished run, done once for all tests, which only read it: ``finished("strategy=er", "seed=2")``.

    It shares hops with the others, as runs of one sweep do.
    """
    from xclrun.testing.strategies import one_thread

    outputs, known = tmp_path_factory.mktemp("finished"), {}

    def make(*overrides: str) -> Run:
        if overrides not in known:
            run = small_run(overrides, outputs, corpus)
            with one_thread():
                done(run)
            known[overrides] = run
        return known[overrides]

    return make


@contextmanager
def blank_figures(drawn: bool = False) -> Iterator[None]:
    """Make figures, and save empty files for them, or SVG alone where they are ``drawn``: it is most of a report."""
    from xclrun.core.names import slug
    from xclrun.report import style
    from xclrun.store.files import atomic_write

    render = style.save

    def save(figure: Any, folder: Path, name: str, further: Sequence[str] = ()) -> list[Path]:
        paths = [folder / f"{slug(name)}.{suffix}" for suffix in ("svg", *further)]
        for path in paths:
            atomic_write(path, "<svg></svg>")
        if drawn:
            render(figure, folder, name)
        return paths

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xclrun.report.workers.save", save)
        yield


@pytest.fixture
def undrawn() -> Iterator[None]:
    """Reports of which the test looks at no figure."""
    with blank_figures():
        yield


@pytest.fixture
def threads() -> Iterator[None]:
    """Compute with one thread in the test."""
    from xclrun.testing.strategies import one_thread

    with one_thread():
        yield


@pytest.fixture
def do(threads: None) -> Callable[..., Run]:
    """Train and evaluate a run to its end, and return it: ``do(run, listener, stop)``."""
    return done


def done(run: Run, listener: Any = None, stop: Any = None) -> Run:
    """Train and evaluate a run to its end, and return it."""
    from xclrun.train.execute import execute
    from xclrun.train.progress import Listener
    from xclrun.train.stop import StopFlag

    execute(run, listener or Listener(), stop or StopFlag())
    return run


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Run Python code in a process of its own and return what it prints: ``run_python(code, PYTHONHASHSEED="1")``."""

    def run(code: str, **environment: str) -> str:
        command, values = [sys.executable, "-c", code], {**os.environ, "PYTHONIOENCODING": "utf-8", **environment}
        done = subprocess.run(command, capture_output=True, encoding="utf-8", env=values, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def forget_plugins() -> Iterator[Callable[[], None]]:
    """Forget the plug-ins that a test has loaded, after it, or when it calls this to go on as another process would."""
    from hydra.core.config_store import ConfigStore

    from xclrun.analysis.measures import MEASURES
    from xclrun.core import plugins, task
    from xclrun.data.encodings import ENCODINGS
    from xclrun.data.readers import READERS
    from xclrun.model.heads import HEADS
    from xclrun.strategy import STRATEGIES

    # What plug-ins are added to.
    registries: tuple[Any, ...] = (
        plugins._loaded, plugins._files, plugins._folders, plugins._outside, STRATEGIES.registered, MEASURES, READERS,
        task.TASKS, task.METRICS, task.FURTHER, task.BY_NAME, task.BY_SHORT, task.COLUMNS, HEADS, ENCODINGS,
        task.SETTINGS_READ,
    )  # fmt: skip
    before = [copy.copy(registry) for registry in registries]

    def forget() -> None:
        # Hydra's store lasts as long as the process.
        for kind in ("strategy", "dataset"):
            for name in plugins.provided(kind):
                ConfigStore.instance().repo.get(kind, {}).pop(f"{name}.yaml", None)
        for registry, content in zip(registries, before, strict=True):
            registry.clear()
            registry.extend(content) if isinstance(registry, list) else registry.update(content)
        # Packages of tests/test_plugins.
        for name in [name for name in sys.modules if name.partition(".")[0] == "shown"]:
            del sys.modules[name]

    yield forget
    forget()
