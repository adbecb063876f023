"""Plug-ins: what docs/plugins.md shows is loaded from files, from a config folder and as a package, and runs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import TINY, read_csv
from xclrun import load as load_study
from xclrun.analysis.measures import MEASURES
from xclrun.analysis.records import read_records
from xclrun.compose.jobs import compose_command
from xclrun.core import plugins
from xclrun.core.errors import RunError, UsageError
from xclrun.core.task import BY_NAME, BY_SHORT, TASKS, task_of
from xclrun.data.encodings import ENCODINGS
from xclrun.data.readers import READERS
from xclrun.model.heads import HEADS
from xclrun.plan import Run, freeze, plan_jobs, thaw
from xclrun.strategy import STRATEGIES, strategy_class

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs" / "plugins.md").read_text(encoding="utf-8")
# The files that the page and the guide of metrics show, by name.
SHOWN = PAGE + (REPOSITORY / "docs" / "extending" / "metric.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```python\n# (?:file: )?(\w+\.py)\n(.*?)^```", SHOWN, re.DOTALL | re.MULTILINE))
Command = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def forget(forget_plugins: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """Take away what a test has loaded, after it or before it goes on as another process would."""
    monkeypatch.delenv("XCLRUN_OUTPUTS", raising=False)
    monkeypatch.chdir(tmp_path)
    return forget_plugins


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """The folder with the files of the page, and reviews in two languages."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    for language in ("en", "de"):
        for split in ("train", "dev", "test"):
            path = tmp_path / "data" / language / f"{split}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{'+-'[i % 2]} {language} {split} text {i}\n" for i in range(9)), encoding="utf-8")
    return tmp_path


def plan(*overrides: str) -> Run:
    """Plan the run of a command; outputs lie in the current folder."""
    [run] = plan_jobs(job.config for job in compose_command([*TINY, *overrides]))
    return run


def load(*files: str) -> None:
    plugins.load_files([argument for file in files for argument in ("--plugin", file)])


@pytest.mark.full
@pytest.mark.usefixtures("undrawn")
def test_an_installed_package_runs_from_end_to_end(
    shown: Path, xclrun: Command, monkeypatch: pytest.MonkeyPatch, forget: Callable[[], None]
) -> None:
    """All that the page shows, in two worker processes; its metric is in the report."""
    package, info = shown / "site" / "shown", shown / "site" / "shown-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    for name, content in FILES.items():
        (package / name).write_text(content, encoding="utf-8")
    (package / "__init__.py").touch()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shown\nVersion: 1.0\n")
    groups = re.findall(r'^\[project.entry-points."([\w.]+)"\]\n(\w+) = "my_package\.(\w+)"', PAGE, re.MULTILINE)
    assert {group for group, *_ in groups} == set(plugins.GROUPS)
    points = "".join(f"[{group}]\n{name} = shown.{module}\n" for group, name, module in groups)
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(shown / "site")
    asked = ("strategy=flooding,naive", "dataset=reviews", "dataset.root=data", "dataset.task=mood")
    code, said = xclrun(*TINY, *asked, "hydra.launcher.n=2")
    assert (code, "2 of 2 runs finished" in said) == (0, True), said
    found = {path.name.split("-")[1]: yaml.safe_load(path.joinpath("config.yaml").read_text())
             for path in Path("outputs/runs").iterdir()}  # fmt: skip
    [plugin] = found["flooding"]["strategy"]["plugins"]
    assert re.fullmatch(r"[0-9a-f]{64}  shown", plugin)
    assert found["naive"]["dataset"]["plugins"] == [plugin]
    assert "plugins" not in found["naive"]["strategy"]
    code, said = xclrun("report", "--from-runs")
    assert code == 0, said
    [report] = Path("outputs/reports").iterdir()
    table = read_csv(report / "summary.csv")
    assert set(table["metric"]) == {"mood_accuracy", "mood_recall", "blunder_rate"}
    assert set(table["strategy"]) == {"flooding", "naive"}
    best = {r.strategy: r.scores["mood_accuracy"][-1].max() for r in read_records(Path("outputs"))}
    values = table.query("measure == 'FP_max' and metric == 'mood_accuracy'").set_index("strategy")["value"]
    assert values.to_dict() == pytest.approx(best)
    # What has run is read without the plug-in, which may have changed or gone since, but for what it counts itself.
    forget()
    assert "mood" not in TASKS
    assert {record.metrics for record in read_records(Path("outputs"))} == {("mood_accuracy",)}


@pytest.mark.full
def test_the_strategy_of_the_page_changes_scores(shown: Path, xclrun: Command) -> None:
    given = (*TINY, "model.hidden_size=32", "trainer.epochs=8", "trainer.lr=0.01", "-q")
    for strategy in (("strategy=naive",), ("strategy=flooding", "strategy.level=15")):
        code, said = xclrun("--plugin", "flooding.py", *given, *strategy)
        assert code == 0, said
    naive, flooding = sorted(read_records(Path("outputs")), key=lambda record: record.strategy != "naive")
    assert (naive.strategy, flooding.strategy) == ("naive", "flooding")
    difference = naive.scores["slot_f1"][-1] - flooding.scores["slot_f1"][-1]
    assert abs(difference).max() > 0.02


def test_files_of_a_command_and_of_a_config_folder(shown: Path, xclrun: Command, forget: Callable[[], None]) -> None:
    code, said = xclrun("--plugin", "flooding.py", "plan", "strategy=flooding", "strategy.level=2", "dataset=mini")
    assert (code, "flooding" in said) == (0, True), said
    forget()
    own = shown / "own"
    (own / "strategy").mkdir(parents=True)
    (own / "plugins.yaml").write_text("plugins: [../flooding.py, ../reviews.py]\n")
    (own / "strategy" / "flooding.yaml").write_text(
        "defaults: [/schema/strategy/flooding@_here_, _self_]\nname: flooding\nlevel: 0.125\n"
    )
    code, said = xclrun("--config-dir", str(own), "strategy=flooding", "dataset=reviews", "--cfg", "job")
    assert code == 0, said
    config = yaml.safe_load(said)
    assert (config["strategy"]["level"], config["dataset"]["task"]) == (0.125, "sequence_class")
    code, said = xclrun("list", "strategy")
    assert re.search(r"^  flooding +Fine-tuning", said, re.MULTILINE)


@pytest.mark.full
def test_the_labels_of_a_task_from_outside_are_counted_with(shown: Path, xclrun: Command) -> None:
    given = ("--plugin", "mood.py", "plan", "--params", "model=tiny", "dataset.task=mood", "order=[en,de]", "--json")
    sizes = {}
    for moods in (2, 5):
        code, said = xclrun(*given, f"task.moods={moods}")
        assert code == 0, said
        [facts] = json.loads(said)
        sizes[moods] = facts["total"]
    hidden = 128
    assert sizes[5] - sizes[2] == 3 * (hidden + 1)


def test_the_hash_is_in_ids_and_keys_of_the_runs_that_use_it(shown: Path, forget: Callable[[], None]) -> None:
    golden = json.loads((REPOSITORY / "tests" / "golden_keys.json").read_text())["strategy=naive order=h2l seed=1"]
    before = plan("strategy=naive")
    load("flooding.py", "reviews.py", "mood.py")
    naive, flooding = plan("strategy=naive"), plan("strategy=flooding")
    assert naive.id == before.id
    assert naive.stages == before.stages
    [job] = compose_command(["dataset=mini", "model=tiny", "tracking=none", "strategy=naive", "order=h2l", "seed=1"])
    assert plan_jobs([job.config])[0].id == golden["run"]
    tasked = plan("dataset.task=mood")
    assert "plugins" in tasked.resolved["dataset"]
    assert "plugins" not in tasked.resolved["strategy"]
    # The reference run of a strategy from outside is one of the package's own.
    assert flooding.reference().id == naive.reference().id
    forget()
    for name in ("flooding.py", "mood.py"):
        with (shown / name).open("a") as file:
            file.write("# the same, differently written\n")
    load("flooding.py", "mood.py")
    for changed, same in ((plan("strategy=flooding"), flooding), (plan("dataset.task=mood"), tasked)):
        assert changed.id != same.id
        assert not {*changed.keys} & {*same.keys}
    assert plan("strategy=naive").id == before.id


def test_where_a_file_lies_changes_no_id(shown: Path, forget: Callable[[], None]) -> None:
    load("flooding.py")
    run = plan("strategy=flooding")
    forget()
    (shown / "elsewhere").mkdir()
    (shown / "flooding.py").rename(shown / "elsewhere" / "flooding.py")
    load("elsewhere/flooding.py")
    again = plan("strategy=flooding")
    assert (again.id, again.stages) == (run.id, run.stages)
    assert again.resolved["strategy"]["plugins"] != run.resolved["strategy"]["plugins"]


def test_a_frozen_run_loads_its_plugins_or_refuses_them(
    shown: Path, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Slurm job does, in another folder."""
    load("flooding.py", "reviews.py", "mood.py")
    run = plan(
        "strategy=flooding", "dataset=reviews", "dataset.root=data", "dataset.task=mood", f"paths.outputs={shown}/o"
    )
    freeze(run)
    forget()
    monkeypatch.chdir("/")
    assert "flooding" not in STRATEGIES
    again = thaw(run.directory)
    assert (again.id, again.keys) == (run.id, run.keys)
    assert again.resolved["strategy"]["plugins"] == run.resolved["strategy"]["plugins"]
    with (shown / "mood.py").open("a") as file:
        file.write("\n")
    forget()
    with pytest.raises(UsageError, match=rf"^{run.id}: plug-in .*/mood.py has changed since .*; run the original"):
        thaw(run.directory)
    (shown / "mood.py").unlink()
    forget()
    with pytest.raises(UsageError, match=rf"^{run.id}: plug-in .*/mood.py: cannot be read \(No such file"):
        thaw(run.directory)


# Appended to a plug-in, or given as one: it shows that its code ran.
RUNS = "from pathlib import Path; Path('executed').touch()\n"


def test_a_changed_plugin_is_not_executed(shown: Path, xclrun: Command, forget: Callable[[], None]) -> None:
    code, said = xclrun("--plugin", "flooding.py", *TINY, "strategy=flooding")
    assert code == 0, said
    [run] = Path("outputs/runs").iterdir()
    forget()
    code, said = xclrun("model", "export", run.name, "exported")
    # The user hears of code that is run without having been asked for.
    assert (code, f"plug-in {shown}/flooding.py: executing this file" in said) == (0, True), said
    forget()
    (shown / "flooding.py").write_text(RUNS + FILES["flooding.py"], encoding="utf-8")
    for command in (("model", "export", run.name, "again"), ("rerun", run.name, "--fresh", "fresh")):
        code, said = xclrun(*command)
        assert (code, "flooding.py has changed" in said) == (2, True), said
        assert not Path("executed").exists(), command


@pytest.mark.parametrize("state", ["finished", "interrupted", "queued"])
def test_a_changed_config_runs_no_code(state: str, shown: Path, xclrun: Command) -> None:
    """Whoever can write a config must not get their code run by whoever exports the run."""
    own = shown / "own.py"
    own.write_text(RUNS + FILES["flooding.py"], encoding="utf-8")
    run = plan("strategy=naive", "dataset=mini", "paths.outputs=outputs")
    if state == "queued":
        freeze(run)
    else:
        code, said = xclrun(*TINY, "strategy=naive", "dataset=mini")
        assert code == 0, said
    if state == "interrupted":
        run.directory.done.unlink()
    config = yaml.safe_load(run.directory.config.read_text())
    config["strategy"]["plugins"] = [f"{hashlib.sha256(own.read_bytes()).hexdigest()}  {own}"]
    run.directory.config.write_text(yaml.safe_dump(config))
    for command in (("model", "export", run.id, "exported"), ("rerun", run.id)):
        code, said = xclrun(*command)
        assert (code, "config.yaml" in said) == (1, True), (command, said)
        assert not Path("executed").exists(), command
    with pytest.raises(RunError, match=r"config\.yaml"):
        thaw(run.directory)
    assert not Path("executed").exists()


ENDS = FILES["flooding.py"].replace("level = self.settings.level", "END\n            level = self.settings.level")


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("end", "workers"),
    [("raise SystemExit(0)", 1), ("raise SystemExit(3)", 2), ("raise GeneratorExit", 1), ("import os; os._exit(0)", 2)],
)
def test_a_plugin_that_ends_the_process_fails_its_runs_alone(
    end: str, workers: int, shown: Path, xclrun: Command
) -> None:
    (shown / "flooding.py").write_text(ENDS.replace("END", end), encoding="utf-8")
    asked = (*TINY, "strategy=flooding,naive", "seed=1,2", f"hydra.launcher.n={workers}")
    code, said = xclrun("--plugin", "flooding.py", *asked)
    assert (code, "2 of 4 runs finished" in said) == (1, True), said
    code, said = xclrun("status", "--json")
    states = {run["run_id"].split("-")[1]: run for sweep in json.loads(said) for run in sweep["runs"]}
    assert (code, states["naive"]["state"]) == (1, "finished")
    if end.startswith("raise"):
        assert states["flooding"]["state"] == "failed"
        assert end.removeprefix("raise ").partition("(")[0] in states["flooding"]["detail"]
        assert "flooding.py, line" in states["flooding"]["detail"]


def test_a_plugin_that_ends_the_process_while_a_command_plans(shown: Path, xclrun: Command) -> None:
    asks = FILES["flooding.py"].replace(
        "    def steps(", "    def plan(self, hop):\n        raise SystemExit\n\n    def steps("
    )
    (shown / "flooding.py").write_text(asks, encoding="utf-8")
    code, said = xclrun("--plugin", "flooding.py", *TINY, "strategy=flooding")
    assert (code, "SystemExit" in said, "flooding.py, line" in said) == (1, True, True), said


def test_what_a_plugin_imports_of_the_package_is_not_its_own(shown: Path) -> None:
    """In a process that has imported nothing yet, as the command has; a run would get another id there."""
    code = (
        "from xclrun.core import plugins; plugins.load_files(['--plugin', 'flooding.py', '--plugin', 'reviews.py']); "
        "print(*(f'{kind}={name}' for p in plugins._loaded.values() for kind, name in p.provides))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=shown, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["strategy=flooding", "dataset=reviews"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot be read \(No such file or directory\)"),
        ("x = 1", "registers no strategy, dataset, task, metric or measure"),
        (
            "\n\nimport no_such_module",
            r"cannot be imported: ModuleNotFoundError: .* \(in own.py, line 3\)",
        ),
        ("def", r"cannot be imported: SyntaxError: .*"),
        ("raise SystemExit(3)", r"cannot be imported: SystemExit: 3 \(in own.py, line 1\)"),
        ("from xclrun.strategy import register\nregister(int)", "<class 'int'> is not a strategy: .*"),
        (
            "from xclrun.strategy import register\nfrom xclrun.strategy.naive import *\n"
            "register(type('X', (Naive,), {'name': '../x'}))",
            r"strategy=../x: leads to another folder; a name begins with a letter or digit and has no slash",
        ),
        (
            "from xclrun.core.task import *\nregister(TASKS['token_tags'])",
            r"task 'token_tags': .* already registered; .*",
        ),
        (
            "from xclrun.core.task import *\nregister(Task('x', Metric('y', 'slots', '', Scored.spans, '', ''), None))",
            "task 'x': its metric 'y': short name 'slots' is taken by metric 'slot_f1'; choose another",
        ),
        (
            "from xclrun.data.readers import row_reader\nrow_reader('mini', ['{split}'])(print)",
            r"dataset reader 'mini': .* already registered; .*",
        ),
        (
            "from xclrun.data.readers import row_reader\nrow_reader('x', ['{lang}/{split}'])(print)",
            r"dataset reader 'x': layout '\{lang\}/\{split\}': .*\{lang\}; known: \{any\}, .*",
        ),
        (
            FILES["flooding.py"].replace("    settings_type = Settings\n", ""),
            r"Flooding: extends Strategy\[Settings\] .*; add settings_type = Settings",
        ),
        (
            FILES["flooding.py"].replace("@dataclass\n", ""),
            "Flooding: settings_type Settings is not a dataclass: add @dataclass",
        ),
        (
            FILES["flooding.py"].replace("(StrategyConfig)", ""),
            "Flooding: settings_type must be a dataclass that extends StrategyConfig",
        ),
        (
            FILES["flooding.py"].replace('"flooding"', '"my flooding"'),
            r"strategy=my flooding: use only letters, digits and _ \. \+ - in a name",
        ),
    ],
)
def test_files_that_are_refused(content: str | None, message: str, tmp_path: Path, xclrun: Command) -> None:
    if content is not None:
        (tmp_path / "own.py").write_text(content)
    code, said = xclrun("--plugin", "own.py", "plan")
    assert code == 2
    assert re.fullmatch(f"xclrun: --plugin own.py: {message}\n", said), said


def test_a_mistake_in_a_plugin_is_told_with_its_line(shown: Path, xclrun: Command) -> None:
    (shown / "own.py").write_text(FILES["flooding.py"] + "\n    plan = property(lambda self: self.settings.lvel)\n")
    code, said = xclrun("--plugin", "own.py", "plan", "strategy=flooding", *TINY)
    line = 2 + FILES["flooding.py"].count("\n")
    assert (code, said.count("\n")) == (1, 1)
    end = f"has no attribute 'lvel' (in own.py, line {line}; XCLRUN_DEBUG=1 shows the traceback)\n"
    assert said.endswith(end), said


def test_a_run_names_the_line_of_a_package_that_fails_in_it(
    tmp_path: Path, xclrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what the plug-in gave to xclrun fails there."""
    source = FILES["flooding.py"].replace("context.model.loss(part)", "context.hop.model.loss(part)")
    (tmp_path / "shown.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    points = EntryPoints([EntryPoint("flooding", "shown", "xclrun.strategies")])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda: points)
    code, said = xclrun(*TINY, "strategy=flooding")
    line = 1 + source[: source.index("context.hop.model.loss(")].count("\n")
    assert code == 1
    what = f"AttributeError: 'Hop' object has no attribute 'model' (in shown, line {line})"
    assert f"  {what}\n  traceback: " in said, said
    assert f" · {what}\n" in xclrun("status")[1]


def test_a_metric_that_fails_when_a_run_has_ended_is_named(shown: Path, xclrun: Command) -> None:
    (shown / "own.py").write_text(FILES["mood.py"].replace("sentences.gold == 0", "sentences.gld == 0"))
    _, said = xclrun("--plugin", "own.py", *TINY, "dataset.task=mood")
    assert re.search(r"\(AttributeError: .* 'gld', in own.py, line \d+\)\n  traceback: ", said), said


def test_a_text_is_no_words(shown: Path, xclrun: Command) -> None:
    (shown / "own.py").write_text(FILES["reviews.py"].replace("tuple(text.split())", "text"))
    code, said = xclrun("--plugin", "own.py", "plan", "dataset=reviews", "dataset.root=data")
    assert code == 2
    assert said.startswith("xclrun: data/de/train.txt:1: "), said
    assert "tuple" in said


def test_a_pipe_is_no_plugin(tmp_path: Path, xclrun: Command) -> None:
    os.mkfifo(tmp_path / "own.py")
    code, said = xclrun("--plugin", "own.py", "plan")
    assert code == 2
    assert said.startswith("xclrun: --plugin own.py: "), said
    assert "a pipe, a socket or a device" in said


@pytest.mark.parametrize(
    "content", ["plugins: flooding.py", "[flooding.py]", "plugins: [1]", "plugin: [flooding.py]", "{"]
)
def test_lists_of_files_that_are_refused(content: str, tmp_path: Path, xclrun: Command) -> None:
    (tmp_path / "plugins.yaml").write_text(content)
    code, said = xclrun("--config-dir", str(tmp_path), "strategy=naive")
    assert code == 2
    assert said.startswith(f"xclrun: {tmp_path}/plugins.yaml: ")
    assert len(said.splitlines()) == 1


def test_a_flag_without_a_file(xclrun: Command) -> None:
    for arguments in (["plan", "--plugin"], ["--plugin="]):
        assert xclrun(*arguments) == (2, "xclrun: --plugin: a Python file is needed, as in --plugin my_strategy.py\n")


def test_an_entry_point_must_register_what_its_group_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (tmp_path / "shown.py").write_text(FILES["mood.py"])
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[xclrun.tasks]\nmood = shown\n[xclrun.datasets]\nmood = shown\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"^entry point xclrun.datasets 'mood' \(shown\): registers no dataset$"):
        plugins.load_installed()
    (info / "entry_points.txt").write_text("[xclrun.tasks]\nmood = shown\n")
    # Studies in Python have them, too; there are no runs yet.
    with pytest.raises(UsageError, match="no readable runs"):
        load_study(tmp_path)
    assert task_of("mood").label is BY_NAME["mood_accuracy"]


# Kind → the registration of a name, and how the name is looked up.
METRIC = "from xclrun.core.task import Metric, Scored, Task, register, register_metric\n"
OTHER = "register(Task('other', Metric('other_metric', 'other', 'other', Scored.labels, 'a', 'as')))\n"
AGAIN = {
    "strategy": (
        "from xclrun.strategy import register\nfrom xclrun.strategy.naive import Naive\n"
        "mine = register(type('Mine', (Naive,), {'name': 'NAME'}))\n",
        lambda name: strategy_class(name),
    ),
    "dataset": (
        "from xclrun.data.readers import Reader, register\nmine = Reader(lambda config: ({}, {}))\n"
        "register('NAME', mine)\n",
        lambda name: READERS[name],
    ),
    "measure": (
        "from dataclasses import replace\nfrom xclrun.analysis.measures import MEASURES, register\n"
        "mine = register(replace(MEASURES['FP'], name='NAME'))\n",
        lambda name: MEASURES[name],
    ),
    "metric": (
        METRIC + "mine = register_metric(Metric('NAME', 'short', 'title', Scored.labels, 'a', 'as', statistics=print,\n"
        "                              definition=str(object())))\n",
        lambda name: BY_SHORT["short"],
    ),
    "task": (
        METRIC
        + "mine = register(Task('NAME', Metric('NAME_metric', 'NAME', str(object()), Scored.labels, 'a', 'as')))\n",
        lambda name: task_of(name),
    ),
    "head": (
        "from xclrun.model.heads import Head, register\nmine = register('NAME')(type('Mine', (Head,), {}))\n",
        lambda name: HEADS[name],
    ),
    "encoding": (
        "from xclrun.data.encodings import ENCODINGS, Encoding, register\nmine = Encoding(lambda *_: None)\n"
        "register('NAME', mine)\n",
        lambda name: ENCODINGS[name],
    ),
}
PACKAGED = {
    "strategy": "er", "dataset": "mini", "measure": "F", "metric": "intent_accuracy", "task": "span", "head": "answers",
    "encoding": "words",
}  # fmt: skip


@pytest.mark.parametrize("kind", AGAIN)
def test_a_notebook_registers_a_name_again_but_no_name_of_xclrun_or_of_a_plug_in(
    kind: str, tmp_path: Path, forget_plugins: Callable[[], None]
) -> None:
    source, look_up = AGAIN[kind]

    def cell(name: str) -> Any:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(source.replace("NAME", name), names)
        return names["mine"]

    first, second = cell("again"), cell("again")
    assert first is not second
    assert look_up("again") is second
    with pytest.raises(UsageError):
        cell(PACKAGED[kind])
    # A plug-in does not replace what the notebook registered, nor the other way round.
    for name in ("again", "own"):
        (tmp_path / f"{name}.py").write_text(source.replace("NAME", name) + METRIC + OTHER)
    with pytest.raises(UsageError, match="again"):
        plugins.load_file(tmp_path / "again.py", "again.py")
    forget_plugins()
    plugins.load_file(tmp_path / "own.py", "own.py")
    with pytest.raises(UsageError, match="own"):
        cell("own")
