"""The documentation matches the code: definitions, links, commands and error messages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import some
from xclrun.analysis.measures import MEASURES
from xclrun.cli import main
from xclrun.command.plan import plan_runs
from xclrun.compose.sweep import expand, sweep_nodes
from xclrun.core import task as tasks
from xclrun.core.task import KEY_SCORE, METRICS, tasks_of_dataset
from xclrun.data.readers.mini import LANGUAGES
from xclrun.model.families import FAMILIES
from xclrun.plan import notes

REPOSITORY = Path(__file__).parents[1]
PAGES = sorted([REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").rglob("*.md")])


def slugged(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def prose(page: Path) -> str:
    """Return a page without what its code blocks hold."""
    return re.sub(r"^```.*?^```$", "```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def headings(page: Path) -> list[tuple[int, str]]:
    return [(len(marks), text) for marks, text in re.findall(r"^(#+) (.+)$", prose(page), re.MULTILINE)]


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page)))


def test_links_lead_somewhere() -> None:
    for page, target in some((file, target) for file in PAGES for target in links(file)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in [slugged(text) for _, text in headings(file)], f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_no_heading_is_without_content(page: Path) -> None:
    sections = re.split(r"^(#+) .+$", prose(page), flags=re.MULTILINE)[1:]
    levels, bodies = [len(marks) for marks in sections[::2]], sections[1::2]
    for k, (level, body) in enumerate(some(zip(levels, bodies, strict=True))):
        deeper = k + 1 < len(levels) and levels[k + 1] > level
        assert body.strip() or deeper, f"{page.name}: heading {k + 1}"


def test_every_page_is_in_the_index() -> None:
    index = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    for page in PAGES:
        if page.parent != REPOSITORY and page.name != "index.md":
            assert f"]({page.relative_to(REPOSITORY / 'docs')})" in index, page


def test_pages_that_docstrings_name_exist() -> None:
    """So do the headings that they name."""
    count = 0
    for path in REPOSITORY.glob("xclrun/**/*.py"):
        for name, heading in re.findall(r'(docs/[\w/]+\.md)(?:,?\s+\(?"([^"]+)")?', path.read_text(encoding="utf-8")):
            page = REPOSITORY / name
            assert page.is_file(), f"{path}: {name}"
            if heading:
                assert " ".join(heading.split()) in [text for _, text in headings(page)], f"{path}: {name}, {heading}"
            count += 1
    assert count > 10
    assert not [p for p in REPOSITORY.glob("xclrun/**/*.py") if re.search(r"\bMETRICS\.md|\bGLOSSARY", p.read_text())]


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """Return the first table under a heading: first cell, without marks, → the other cells."""
    text = prose(REPOSITORY / "docs" / page).split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {first.strip("|` *"): rest for first, *rest in cells}


def test_every_metric_and_measure_is_defined() -> None:
    metrics = rows("metrics.md", "Base scores")
    assert list(metrics) == [metric.name for metric in METRICS]
    for metric in METRICS:
        assert metrics[metric.name][0] == metric.short
        if metric is KEY_SCORE:
            continue
        task, _, setting = metrics[metric.name][1].replace("`", "").partition(", ")
        [of] = tasks_of_dataset({"task": task, **dict([setting.split("=")] if setting else [])})
        assert metric in of.measured(tagged=True)
    measures = rows("metrics.md", "From the score matrix")
    assert list(measures) == list(MEASURES)
    for name, measure in MEASURES.items():
        title, _, better, source = (cell.strip(" |") for cell in measures[name])
        assert (title, better == "higher", source) == (measure.title, measure.higher_is_better, measure.source), name


# Terms of xclrun that have no other meaning on a page. A key, block, window or point can be another.
TERMS = ("hops?", "stages?", "leases?", "mixtures?", "evaluation points?", "statements?", "the store")
# Pages that define the terms, or only list names.
WITHOUT_TERMS = ("glossary.md", "index.md", "reference.md", "metrics.md")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in WITHOUT_TERMS], ids=lambda page: page.name)
def test_the_first_use_of_a_term_links_to_the_glossary(page: Path) -> None:
    """Tables, headings, code and places of a report do not count as uses."""
    text = re.sub(r"^<!-- report: .*?^<!-- end -->$", "", prose(page), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(\||#| {4}|```).*$|`[^`]+`", "", text, flags=re.MULTILINE)
    for term in TERMS:
        linked = re.search(rf"\[\W*{term}\W*\]\([^)]*glossary\.md#terms-of-xclrun\)", text, re.IGNORECASE)
        plain = re.search(
            rf"(?<![\w\[*-]){term}(?![\w\]*-])", re.sub(r"\[[^\]]*\]\([^)]*\)", lambda m: " " * len(m[0]), text)
        )
        assert plain is None or (linked and linked.start() < plain.start()), f"{page.name}: {term}"


def test_the_glossary_has_each_word_once() -> None:
    text = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^- \*\*(.+?)\*\*: ", text, re.MULTILINE)
    assert len(words) == len(set(words))
    assert {"task", "hop", "stage", "metric", "measure", "predictions", "lease"} <= set(words)


def test_the_glossary_names_all_tasks_and_their_metrics() -> None:
    text = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")
    ours = [task for task in vars(tasks).values() if isinstance(task, tasks.Task)]
    names = {task.name for task in ours} | {metric.name for task in ours for metric in task.metrics(tagged=True)}
    assert {"span", "exact_match"} <= names
    assert not [name for name in names if f"`{name}`" not in text]


@pytest.mark.full
def test_commands_of_the_section_of_errors_print_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XCLRUN_OUTPUTS", raising=False)
    page = (REPOSITORY / "docs" / "running.md").read_text(encoding="utf-8")
    examples = re.findall(r"^    \$ xclrun (.+)\n    (.+)$", page, re.MULTILINE)
    assert len(examples) > 10
    for command, message in examples:
        code = main(command.split())
        out, error = capsys.readouterr()
        start, omission, rest = message.partition("…")
        assert (code, out, rest) == (2, "", ""), command
        assert error.startswith(start.rstrip()), command
        assert error.count("\n") == 1, command
        assert omission or error == f"{message}\n", command


@pytest.mark.full
def test_er_replays_in_the_tutorials_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a memory that no hop uses, er equals naive, and the plan prints a note."""
    page = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8").replace("\\\n", "")
    monkeypatch.chdir(tmp_path)
    [script] = re.findall(r"^```python\n# make_data.py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(compile(script, "make_data.py", "exec"), {})
    [study] = re.findall(r"^    xclrun (dataset=jsonl .*) -m$", page, re.MULTILINE)
    runs = plan_runs(shlex.split(study))
    assert {run.strategy_name for run in runs} >= {"naive", "er", "lang_spec_ft"}
    assert notes(runs) == []
    without = plan_runs([*shlex.split(study), "dataset.replay.every_k=100"])
    assert [run.strategy_name for run in without if notes([run])] == ["er", "er"]


def test_the_study_of_the_decoder_tutorial_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPOSITORY / "docs" / "decoder-tutorial.md").read_text(encoding="utf-8").replace("\\\n", "")
    monkeypatch.chdir(tmp_path)
    [script] = re.findall(r"^```python\n# make_texts.py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(compile(script, "make_texts.py", "exec"), {})
    [study] = re.findall(r"^    xclrun (dataset=texts .*) -m$", page, re.MULTILINE)
    runs = plan_runs(shlex.split(study))
    assert notes(runs) == []
    # The page names runs by a part of their IDs that is unique.
    for name in set(re.findall(r"calls-\w+(?:-\w+)+-s\d", page)):
        assert sum(name in run.id for run in runs) == 1, name


def test_the_tutorial_reads_and_writes_one_outputs_folder() -> None:
    """`plan --budget` knows times only of runs in the same folder."""
    page = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8")
    demo = re.findall(r"^DEMO *\?= (\S+)$", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.findall(r"XCLRUN_OUTPUTS=(\S+)", page) == demo
    assert page.index("XCLRUN_OUTPUTS") < page.index("xclrun ")
    assert not re.search(r"paths\.outputs=|--outputs", page)
    assert set(re.findall(r"outputs/[\w/]*?reports", page)) == {f"{demo[0]}/reports"}


@pytest.mark.full
def test_the_demo_trains_all_but_one_strategy_of_the_tutorials_first_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8").replace("\\\n", "")
    [study] = re.findall(r"^    xclrun plan (.*sweep_name=first) -m --budget$", page, re.MULTILINE)
    demo = {run.id for run in plan_runs(["sweep=demo"])}
    new = [run for run in plan_runs(shlex.split(study)) if run.id not in demo]
    assert {run.strategy_name for run in new} == {"kd_logit"}
    assert len(new) == 3


def test_readme_is_short_enough_to_be_read() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").split()) <= 900


def jobs_of(command: str) -> list[list[str]]:
    """Return the jobs of a command's sweep: their overrides."""
    words = command.split()
    sweep = next((word.partition("=")[2] for word in words if word.startswith("sweep=")), None)
    return expand(words, sweep_nodes()[sweep]["hydra"]["sweeper"]["params"] if sweep else ())


def values_of(key: str, jobs: Sequence[Sequence[str]]) -> list[str]:
    """Return the values of a key in jobs, each once."""
    return list(dict.fromkeys(word.partition("=")[2] for job in jobs for word in job if word.startswith(f"{key}=")))


NUMBERS = {3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}
PUBLISHED = REPOSITORY / "xclrun" / "report" / "published"
# Fact → its value, and the pages that state it with the pattern of the statement.
FACTS = {
    "strategies": (
        lambda: len([*(REPOSITORY / "conf" / "strategy").glob("*.yaml")]),
        {"README.md": r"\*\*(\d+) strategies\*\*", "docs/comparison.md": r"\| methods \| (\d+)"},
    ),
    "encoder families": (
        lambda: len(FAMILIES),
        {"README.md": r"\[(\d+) families\]", "docs/comparison.md": r", (\d+) families \("},
    ),
    "runs of the demo": (
        lambda: len(jobs_of("sweep=demo")),
        {
            "README.md": r"trains (\d+) runs \(",
            "docs/tutorial.md": r"`make demo` trains (\d+) runs",
            "docs/results/performance.md": r"\*\*`make demo`\*\* trains (\d+) runs",
        },
    ),
    "orders of the demo": (
        lambda: NUMBERS[len(values_of("order", jobs_of("sweep=demo")))],
        {"README.md": r"in (\w+) orders\. \*\*Replay", "docs/tutorial.md": r"separately, in (\w+) orders"},
    ),
    "languages of the demo": (
        lambda: NUMBERS[len(LANGUAGES)],
        {
            "README.md": r"tags slots in (\w+) languages",
            "docs/tutorial.md": r"embedded sentences in (\w+) languages",
        },
    ),
    "papers with published tables": (
        lambda: NUMBERS[len({path.name.split("_")[0] for path in PUBLISHED.glob("*_tables.csv")})],
        {
            "README.md": r"published tables of (\w+) papers",
            "docs/index.md": r"tables and figures of (\w+) papers",
            "docs/fidelity.md": r"between xclrun and (\w+) papers",
        },
    ),
}


@pytest.mark.parametrize("fact", FACTS)
def test_pages_agree_on_a_fact(fact: str) -> None:
    value, stated = FACTS[fact]
    found = {
        page: re.findall(pattern, (REPOSITORY / page).read_text(encoding="utf-8")) for page, pattern in stated.items()
    }
    assert found == {page: [str(value())] for page in stated}


def test_the_study_of_the_readme_has_the_runs_that_it_names() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8").replace("\\\n", "")
    [study] = re.findall(r"^    xclrun (strategy=\S+ +order=\S+ +seed=\S+) -m\n    xclrun report$", text, re.MULTILINE)
    assert f"trains {len(jobs_of(study))} runs" in text


def test_picture_and_table_of_the_readme_show_the_strategies_of_the_demo() -> None:
    """The labels of the picture are stored in it."""
    strategies = values_of("strategy", jobs_of("sweep=demo"))
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    table = text.split("Intent, mean over orders and seeds\n", 1)[1].split("\n```", 1)[0]
    assert re.findall(r"^(\w+) +\d+ ", table, re.MULTILINE) == strategies
    with Image.open(REPOSITORY / "docs" / "images" / "demo.png") as picture:
        assert picture.info["labels"].split() == strategies


def test_the_table_of_strategies_has_all() -> None:
    table = (REPOSITORY / "docs" / "strategies.md").read_text(encoding="utf-8")
    names = sorted(path.stem for path in (REPOSITORY / "conf" / "strategy").glob("*.yaml"))
    assert [name for name in names if f"`{name}`" not in table] == []
