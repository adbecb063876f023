"""Every command that README and the pages print is one that exists: its options are parsed, its jobs are composed.

Nothing is trained and no data is read: a command ends where its options are parsed and, of those that take KEY=VALUE,
its jobs are composed and checked. A job is composed where a word of it is new: one that was typed in no command before,
or in none with that strategy, or experiment, where it sets a value of it.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import PAGES, REPOSITORY
from tests.test_plugins import forget  # noqa: F401 (used by all tests here: plug-ins of a page go when it is done)
from xclrun.analysis.filters import NAMES as RUN_NAMES
from xclrun.analysis.filters import parse_filters
from xclrun.command import COMMANDS, GROUPS
from xclrun.command.common import Parser
from xclrun.compose import jobs
from xclrun.compose.jobs import Composed
from xclrun.compose.keys import known_keys
from xclrun.compose.overrides import checked
from xclrun.compose.sweep import expand, sweep_nodes
from xclrun.config.checks import check
from xclrun.launch.sweep import make_launcher

pytestmark = pytest.mark.xdist_group("commands")  # In one process: what one page has shown, another need not.

NAMES = [page.relative_to(REPOSITORY).as_posix() for page in PAGES]
# What pages write for what a reader chooses. Other names in capitals (DIR, RUN, SWEEP) stand as they are.
FILL = {
    "KEY=VALUE": "seed=2",
    "dataset=NAME": "dataset=pud",
    "dataset=…": "dataset=pud",
    "strategy=…": "strategy=er",
    "FILE.py": "flooding.py",
    "PAGE": "README.md",
}
# Page → what checks its commands in place of this.
ELSEWHERE = {
    **{name: "tests/test_extending.py runs its commands" for name in NAMES if name.startswith("docs/extending/")},
}
# Many jobs: beyond what fast tests may take.
LONG = [
    name
    for name in NAMES
    if re.match(r"docs/(results/|data|encoders|fewshot|lifelong|reports|running|slurm|sweeps)", name)
]
TARGETS = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
# Where a command of ours begins in a line; what follows the image of a container is given to xclrun.
BEGINS = re.compile(r"(?:^|&& |; +)(?:[A-Z_]+=\S+ )*(?:xclrun|make|(?:docker|apptainer) run|(?:\S+/)?python3?) ")
IMAGE = re.compile(r"xclrun(:\w+|(-\w+)?\.sif)?")


@dataclass(frozen=True)
class Printed:
    """A command of a page: its words as a shell would hand them over, placeholders filled."""

    page: str
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


def typed_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of what a reader may type: lines of code blocks, joined where they go on, code in prose."""
    lines = text.splitlines()
    prose, fence, k = list(lines), None, 0
    while k < len(lines):
        line, first = lines[k], k
        k += 1
        if mark := re.match(r" *```(\w*)", line):
            fence = mark[1] if fence is None else None
            prose[first] = ""
        elif fence is not None or line.startswith("    "):
            prose[first] = ""
            while line.endswith("\\") and k < len(lines):
                line, prose[k] = line[:-1] + lines[k], ""
                k += 1
            # Commands after a prompt are mistakes with their messages; tests/test_docs.py runs them.
            if fence in (None, "", "bash", "console", "sh", "text") and not line.startswith("    $ "):
                yield first + 1, line.strip().removeprefix("$ ")
    whole = "\n".join(prose)
    for span in re.finditer(r"`([^`]+)`", whole):
        code = " ".join(span[1].split())
        # `xclrun show` in a sentence is the name of a command.
        if code.removeprefix("xclrun ") not in OF_COMMANDS:
            yield whole.count("\n", 0, span.start()) + 1, code


OF_COMMANDS = {*COMMANDS, "plan --params", *(f"{group} {name}" for group in GROUPS for name in GROUPS[group])}


def shell_words(line: str) -> list[list[str]]:
    """Split a line as a shell does into commands, and each into words; a sign such as ( is a word of its own."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();&<>")
    lexer.whitespace_split = True
    split = itertools.groupby(lexer, lambda word: word in ("&&", ";", "|"))
    return [list(words) for ends, words in split if not ends]


def own(words: Sequence[str]) -> list[str]:
    """Return the words of a command of ours, without what stands before it; none where it is another program's."""
    rest = list(itertools.dropwhile(lambda word: re.fullmatch(r"[A-Z_]+=.*", word), words))
    if rest[:2] in (["docker", "run"], ["apptainer", "run"]):
        rest = list(itertools.dropwhile(lambda word: not IMAGE.fullmatch(word), rest))
        return ["xclrun", *rest[1:]]
    if rest and Path(rest[0]).name in ("python", "python3"):
        return ["python", *rest[1:]]
    return rest if rest and rest[0] in ("xclrun", "make") else []


def commands(page: str, text: str) -> list[Printed]:
    """Return the commands of ours that a page prints: each of ``ls|gc``, with what is in ``[…]``, without ``…``."""
    variables = {"HOME": "HOME", **dict(re.findall(r'^ {4}(\w+)="(.*)"$', text, re.MULTILINE))}
    found = []
    for number, line in typed_lines(text):
        if not BEGINS.search(line):
            continue
        while (known := re.sub(r"\$(\w+)", lambda name: variables.get(name[1], name[0]), line)) != line:
            line = known
        for words in filter(None, map(own, shell_words(line.replace("~/", "HOME/")))):
            filled = [FILL.get(word, word) for word in (w[1:-1] if w.startswith("[") else w for w in words)]
            choices = [word.split("|") for word in filled if word != "…"]
            found += [Printed(page, number, one) for one in itertools.product(*choices)]
    return list(dict.fromkeys(found))


COMMAND_JOBS, COMPOSE_JOBS = jobs.command_jobs, jobs.compose_jobs
# What jobs that could be composed have shown to be right.
seen: set[tuple[str, str]] = set()


def facts(job: Sequence[str], typed: set[str]) -> frozenset[tuple[str, str]]:
    """Return what a job shows to be right, of keys that were typed: its words; keys of its strategy and experiment.

    One whole number is as good as another, and so is a name of the reader's own.
    """
    strategy, experiment = (next((w for w in job if w.startswith(f"{k}=")), "") for k in ("strategy", "experiment"))
    words = {word: key(word) for word in job if key(word) in typed}
    shown = {
        (k if k in ("sweep_name", "dataset.root") else re.sub(r"=\d+$", "=1", word), "") for word, k in words.items()
    }
    owners = {"strategy": strategy, "protocol": experiment}
    below = {(k, owners[k.partition(".")[0]]) for k in words.values() if k.startswith(("strategy.", "protocol."))}
    return frozenset(shown | below)


def key(text: str) -> str:
    return text.partition("=")[0].lstrip("+").replace("/", ".")


def compose_new(arguments: Sequence[str]) -> None:
    """Compose and check the jobs of a command that have a word which no job had before; make its launcher.

    Hydra's own node, which says who launches, is composed only where the command sets a value of it.

    Raises:
        XclrunError, HydraException: as `command_jobs`.
    """
    texts = checked([a for a in arguments if a not in ("-m", "--multirun")])
    typed = set(map(key, texts))

    def compose(found: Sequence[Sequence[str]], *given: Any) -> list[Composed]:
        new = {shown: job for job in found if (shown := facts(job, typed) - seen)}
        chosen: dict[frozenset[tuple[str, str]], Sequence[str]] = {}
        while new:
            most = max(new, key=len)
            chosen[most] = new[most]
            new = {shown - most: job for shown, job in new.items() if shown - most}
        composed = COMPOSE_JOBS([*chosen.values()], *given)
        for job in composed:
            check(job.config)
        seen.update(*chosen)
        return composed

    if any(text.startswith("hydra") for text in texts):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jobs, "compose_jobs", compose)
            make_launcher(COMMAND_JOBS(arguments)[1])
    else:
        sweep = next((text.partition("=")[2] for text in texts if text.startswith("sweep=")), None)
        params = sweep_nodes()[sweep]["hydra"]["sweeper"]["params"] if sweep in sweep_nodes() else ()
        with jobs.composing() as composer:
            compose(expand(texts, params), composer)


Ask = Callable[[Printed], str]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return what is wrong with a command, in some words; none where it exists."""
    from xclrun.cli import main

    parse_args, parse_with_overrides = argparse.ArgumentParser.parse_args, Parser.parse_with_overrides

    def compose(arguments: Sequence[str]) -> Any:
        compose_new(arguments)
        raise SystemExit(0)

    def parse(self: argparse.ArgumentParser, *arguments: Any) -> Any:
        given = parse_args(self, *arguments)
        chosen = getattr(given, "select_on", None)
        selected = chosen[1] if isinstance(chosen, list) else "strategy"
        keys = {*parse_filters(getattr(given, "filter", [])), *selected.split(",")} - {*known_keys(), *RUN_NAMES}
        raise SystemExit(f"unknown key {', '.join(keys)}" if keys else 0)

    def parse_and_compose(self: Parser, arguments: Sequence[str]) -> Any:
        given = parse_with_overrides(self, arguments)
        if self.prog == "xclrun plan --params":
            return given  # It takes more than a config's keys, and has nothing to read before it composes.
        return compose(given.overrides)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.setattr(Parser, "parse_with_overrides", parse_and_compose)
    monkeypatch.setattr(jobs, "command_jobs", compose)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the command sets it; so it is put back

    def of_module(name: str, *words: str) -> int | str:
        if importlib.util.find_spec(name) is None:
            return f"there is no module {name}"
        if not name.startswith("benchmarks"):
            return 0
        run = "benchmarks.__main__" if name == "benchmarks" else name
        source = (REPOSITORY / run.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
        if "__main__" not in source:
            return f"{name} is no command"
        if not re.search(r"\b(parse_args|compose_command)\(", source):
            return f"{name} takes no arguments" if words else 0
        monkeypatch.setattr(sys, "argv", [name, *words])
        monkeypatch.delitem(sys.modules, run, raising=False)  # runpy warns of a module that is imported already
        runpy.run_module(run, run_name="__main__")
        return f"{name} was not stopped where its arguments are read"

    def code(program: str, *words: str) -> int | str | None:
        if program == "make":
            return next((f"make has no target {word}" for word in words if "=" not in word and word not in TARGETS), 0)
        if program == "xclrun":
            return main(words)
        if words[0] != "-m":
            return 0 if (tmp_path / words[0]).is_file() else f"the page shows no file {words[0]}"
        return main(words[2:]) if words[1] == "xclrun" else of_module(*words[1:])

    def answer(command: Printed) -> str:
        paths = [word for word in command.words if re.match(r"(benchmarks|conf|containers|docs|sweeps|tests)/", word)]
        if missing := [path for path in paths if not (REPOSITORY / path).exists()]:
            return f"there is no {missing[0]}"
        capsys.readouterr()
        try:
            found = code(*command.words)
        except SystemExit as end:
            found = end.code
        said = capsys.readouterr().err.strip()
        return "" if found in (0, None) else said or str(found)

    return answer


def show_files(text: str, folder: Path) -> None:
    """Write the files that a page shows: Python, and what a cluster wants; YAML of the reader's own."""
    for name, content in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        (folder / name).write_text(content, encoding="utf-8")
    shown = re.findall(r"`~/(\S+\.yaml)`:\n\n((?: {4}.*\n)+)", text)
    own_strategy = (REPOSITORY / "conf" / "strategy" / "er.yaml").read_text(encoding="utf-8")
    fenced = re.findall(r"^```yaml\n# (DIR/\S+\.yaml)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    at_home = [(f"HOME/{name}", content) for name, content in shown]
    at_home += [("configs/sweep/mine.yaml", "# @package _global_\nhydra: {sweeper: {params: {strategy: naive}}}\n")]
    for name, content in [("DIR/strategy/mine.yaml", own_strategy), *fenced, *at_home]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(re.sub(r"^ {4}", "", content, flags=re.MULTILINE), encoding="utf-8")


BY_NAME = [
    pytest.param(page, id=name, marks=pytest.mark.full if name in LONG else ())
    for page, name in zip(PAGES, NAMES, strict=True)
]


@pytest.mark.some_cases
@pytest.mark.parametrize("page", BY_NAME)
def test_commands_of_a_page_exist(page: Path, ask: Ask, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(REPOSITORY).as_posix()
    printed = commands(name, text)
    if name in ELSEWHERE:
        assert printed, f"{name}: {ELSEWHERE[name]}, but it has none"
        return
    show_files(text, tmp_path)
    wrong = [f"{command}\n    {told}" for command in printed if (told := ask(command) or not_started(command, printed))]
    assert not wrong, "\n".join(wrong)


def not_started(command: Printed, printed: Sequence[Printed]) -> str:
    """Return that no command of the page starts the sweep that a command is about; nothing where one does."""
    words = [word for one in printed for word in one.words]
    started = {word.partition("=")[2] for word in words if word.startswith(("sweep=", "sweep_name="))}
    of = command.words[2:3] if command.words[1] in ("report", "status", "cancel") else ()
    unknown = [name for name in of if not name.startswith("-") and not name.isupper() and name not in started]
    return f"no command of the page starts a sweep {unknown[0]}" if unknown else ""


def test_pages_that_are_run_elsewhere_are_there() -> None:
    assert set(ELSEWHERE) <= set(NAMES)
    printed = [commands(name, page.read_text(encoding="utf-8")) for page, name in zip(PAGES, NAMES, strict=True)]
    assert sum(map(len, printed)) > 200


MISTAKES = """Text with `xclrun show` and `xclrun
statsu`.

    xclrun stratgey=er -m            # a key (that is none)
    xclrun strategy=er strategy.memori=3 && xclrun report --intervall basic
    xclrun strategy=naive,er \\
        trainer.epochs=three -m
    make dmeo; xclrun store ls|gcc
    more="seed=1 seeed=2"
    WANDB_MODE=offline xclrun plan $more … --width 2 [--jsn]
    docker run -v "$PWD:/work" xclrun:cpu dataset=minni
    python -m benchmarks.scael 1000
    python -m benchmarks.reproduce docs/results/fewshot.md DIR --drew 1
    xclrun report --filter dataset.nam=pud
    xclrun sweep=demmo -m
    xclrun sweep=demo -m && xclrun report demo --all; xclrun report dem
    xclrun strategy=naive strategy.memory=3
    xclrun bucket=range(0,40)
    xclrun --plugin mine.py seed=3
    python mine.py
    python -m pytest tests/test_comands.py

```bash
$ xclrun data audti dataset=mini
```

```python
xclrun = "no command"
```
"""


def test_mistakes_are_found_with_their_lines(ask: Ask) -> None:
    printed = commands("page", MISTAKES)
    found = [(one.line, one.words[-1]) for one in printed if ask(one) or not_started(one, printed)]
    assert found == [
        (4, "-m"),
        (5, "strategy.memori=3"),
        (5, "basic"),
        (6, "-m"),
        (8, "dmeo"),
        (8, "gcc"),
        (10, "--jsn"),
        (11, "dataset=minni"),
        (12, "1000"),
        (13, "1"),
        (14, "dataset.nam=pud"),
        (15, "-m"),
        (16, "dem"),
        (17, "strategy.memory=3"),
        (18, ")"),
        (19, "seed=3"),
        (20, "mine.py"),
        (21, "tests/test_comands.py"),
        (24, "dataset=mini"),
        (1, "statsu"),
    ]
