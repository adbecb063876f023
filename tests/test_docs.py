"""The documentation says what the code does: every name it must define, every place it points to."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import some
from xclrun.analysis.measures import MEASURES
from xclrun.cli import main
from xclrun.command.plan import plan_runs
from xclrun.core import task as tasks
from xclrun.core.task import KEY_SCORE, METRICS, task_of

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
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in [slugged(text) for _, text in headings(there)], f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_no_heading_is_without_content(page: Path) -> None:
    found = re.split(r"^(#+) .+$", prose(page), flags=re.MULTILINE)[1:]
    levels, bodies = [len(marks) for marks in found[::2]], found[1::2]
    for k, (level, body) in enumerate(some(zip(levels, bodies, strict=True))):
        deeper = k + 1 < len(levels) and levels[k + 1] > level
        assert body.strip() or deeper, f"{page.name}: heading {k + 1}"


def test_every_page_is_in_the_index() -> None:
    index = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    for page in PAGES:
        if page.parent != REPOSITORY and page.name != "index.md":
            assert f"]({page.relative_to(REPOSITORY / 'docs')})" in index, page


def test_what_code_says_of_pages_is_there() -> None:
    """Docstrings that name a page, and its heading, name one that exists."""
    named = 0
    for path in REPOSITORY.glob("xclrun/**/*.py"):
        for name, heading in re.findall(r'(docs/[\w/]+\.md)(?:,?\s+\(?"([^"]+)")?', path.read_text(encoding="utf-8")):
            page = REPOSITORY / name
            assert page.is_file(), f"{path}: {name}"
            if heading:
                wanted = " ".join(heading.split())
                assert wanted in [text for _, text in headings(page)], f"{path}: {name}, {wanted}"
            named += 1
    assert named > 10
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
        task, _, tags_are = metrics[metric.name][1].replace("`", "").partition(", tags_are=")
        assert metric in task_of(task, tags_are or "spans").measured(tagged=True)
    measures = rows("metrics.md", "From the score matrix")
    assert list(measures) == list(MEASURES)
    for name, one in MEASURES.items():
        title, _, better, source = (cell.strip(" |") for cell in measures[name])
        assert (title, better == "higher", source) == (one.title, one.higher_is_better, one.source), name


def test_the_glossary_has_each_word_once() -> None:
    text = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE)
    assert len(words) == len(set(words))
    assert {"task", "hop", "stage", "metric", "measure", "predictions", "lease"} <= set(words)


def test_the_glossary_names_all_tasks_and_their_metrics() -> None:
    text = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")
    own = [task for task in vars(tasks).values() if isinstance(task, tasks.Task)]
    names = {task.name for task in own} | {metric.name for task in own for metric in task.metrics(tagged=True)}
    assert {"span", "exact_match"} <= names
    assert not [name for name in names if f"`{name}`" not in text]


def test_the_picture_of_the_house_is_what_imports_are_checked_by() -> None:
    """The floors of docs/architecture.md are the layers of the import contract, and each room is there."""
    contract = re.search(r"^layers = \[(.*?)^\]", (REPOSITORY / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert contract
    layers = re.findall(r'"(.+?)"', contract[1])
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = re.search(r"```text\n(.*?)```", page, re.DOTALL)
    assert picture
    floors: list[list[str]] = []
    for line in picture[1].splitlines():
        beside, room = re.fullmatch(r" +(\| )?(\w+) +\S.*", line).groups()  # type: ignore[union-attr]
        if beside:
            floors[-1].append(room)
        else:
            floors.append([room])
    assert [sorted(floor) for floor in floors] == [sorted(layer.split(" | ")) for layer in layers]
    rooms = {path.stem for path in (REPOSITORY / "xclrun").glob("[!.]*") if path.suffix in ("", ".py")}
    assert {room for floor in floors for room in floor} == rooms - {"__init__", "__pycache__", "conf", "sweeps"}


@pytest.mark.full
def test_errors_are_told_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XCLRUN_OUTPUTS", raising=False)
    page = (REPOSITORY / "docs" / "errors.md").read_text(encoding="utf-8")
    told = re.findall(r"^    \$ xclrun (.+)\n    (.+)$", page, re.MULTILINE)
    assert len(told) > 10
    for command, message in told:
        code = main(command.split())
        out, said = capsys.readouterr()
        wanted, _, more = message.partition("…")
        assert (code, out) == (2, ""), command
        assert more == ""
        assert said.startswith(wanted.rstrip()), command
        assert said.count("\n") == 1, command
        assert "…" in message or said == f"{message}\n", command


def test_every_strategy_of_the_tutorials_own_study_does_what_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory that no hop uses would make er naive fine-tuning, which its note says."""
    page = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    [script] = re.findall(r"^```python\n# make_data.py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(compile(script, "make_data.py", "exec"), {})
    [study] = re.findall(r"^    xclrun (dataset=jsonl .*) -m$", page, re.MULTILINE)
    runs = plan_runs(shlex.split(study))
    assert {run.strategy_name for run in runs} >= {"naive", "er", "lang_spec_ft"}
    assert [note for run in runs for note in run.notes] == []
    seldom = plan_runs([*shlex.split(study), "dataset.replay.every_k=100"])
    assert [run.strategy_name for run in seldom if run.notes] == ["er", "er"]


def test_the_tutorial_reads_and_writes_one_outputs_folder() -> None:
    """`plan --budget` knows times only of runs in the same folder."""
    page = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8")
    demo = re.findall(r"^DEMO *\?= (\S+)$", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.findall(r"XCLRUN_OUTPUTS=(\S+)", page) == demo
    assert page.index("XCLRUN_OUTPUTS") < page.index("xclrun ")
    assert not re.search(r"paths\.outputs=|--outputs", page)
    assert set(re.findall(r"outputs/[\w/]*?reports", page)) == {f"{demo[0]}/reports"}


def test_of_the_tutorials_first_study_the_demo_has_trained_all_but_one_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8")
    [study] = re.findall(r"^    xclrun plan (.*sweep_name=first) -m --budget$", page, re.MULTILINE)
    demo = {run.id for run in plan_runs(["sweep=demo"])}
    new = [run for run in plan_runs(shlex.split(study)) if run.id not in demo]
    assert {run.strategy_name for run in new} == {"kd_logit"}
    assert len(new) == 4


def test_readme_is_short_enough_to_be_read() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").split()) <= 900
