"""What is shown without running: help, versions, configs, completions; and that showing is quick."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import TINY
from xclrun import __version__
from xclrun.analysis.records import read_records
from xclrun.command import COMMANDS, FORMER, GROUPS, run
from xclrun.command.plan import plan_runs
from xclrun.config.files import choices, published, sweep_files
from xclrun.plan import thaw
from xclrun.store.rundir import RunDirectory

from .conftest import Told

HEAVY = ("torch", "transformers", "mlflow", "datasets", "pandas", "scipy", "pyarrow", "matplotlib")


def test_help_fits_a_screen_and_list_has_the_rest(xclrun: Callable[..., Told]) -> None:
    told = xclrun("--help")
    assert told.code == 0
    assert told.err == ""
    lines = told.out.splitlines()
    assert len(lines) <= 39
    assert max(map(len, lines)) <= 79
    for name, what in COMMANDS.items():
        assert f"  {name:<9} {what}" in lines
    assert any("strategy.expansion=" in line for line in lines)
    for group, by_choice in choices().items():
        assert any(line[at:].startswith(f"{group} ") for line in lines for at in (2, 43))
        for asked in ((), (group,)):
            listed = xclrun("list", *asked).out.splitlines()
            assert listed.index(group) == 0 or not asked
            for choice, comment in by_choice.items():
                assert any(line.split() == [choice, *comment.split()] for line in listed), f"{group}={choice}"
    assert xclrun("list", "strategi").line.startswith("list: unknown group 'strategi'; did you mean 'strategy'?")


def test_a_list_as_json_holds_all_choices(xclrun: Callable[..., Told]) -> None:
    listed = json.loads(xclrun("list", "--json").out)
    assert {group: dict(by_choice) for group, by_choice in choices().items()} == listed
    assert json.loads(xclrun("list", "strategies", "--json").out) == {"strategy": listed["strategy"]}


def test_a_list_says_what_each_choice_is_in_whole_sentences(xclrun: Callable[..., Told], tmp_path: Path) -> None:
    """A first comment that goes on in its next line is not cut there; a command below it is no part of it."""
    for group, by_choice in choices().items():
        for choice, comment in by_choice.items():
            assert comment.endswith((".", "?")), f"{group}={choice}: {comment}"
            assert not comment.endswith(" al."), f"{group}={choice}: {comment}"
    folder = tmp_path / "own" / "model"
    folder.mkdir(parents=True)
    (folder / "wide.yaml").write_text("# A model with\n# two lines. And more.\n# Not this.\nname: wide\n")
    (folder / "short.yaml").write_text("# One line without a stop\n#   xclrun model=short\nname: short\n")
    listed = [
        line.split(maxsplit=1) for line in xclrun("list", "model", "--config-dir", str(folder.parent)).out.splitlines()
    ]
    assert ["wide", "A model with two lines. And more."] in listed
    assert ["short", "One line without a stop"] in listed


def test_a_list_of_sweeps_says_what_each_yields(xclrun: Callable[..., Told]) -> None:
    lines = xclrun("list", "sweeps").out.splitlines()
    assert lines == xclrun("list", "sweep").out.splitlines()
    sweeps = [line.split()[0] for line in lines[1:] if not line.startswith("    ")]
    assert sweeps == [name for name in choices()["sweep"] if name not in published()]
    beneath = lines[1 + [line.split()[0] for line in lines[1:]].index("gli_continual") + 1 :][:2]
    assert [line.split()[0] for line in beneath] == ["gli_fig4", "gli_fig5"]
    assert all(line.startswith("    gli_") for line in beneath)


def test_what_makes_a_sweep_smaller_has_the_layers_that_it_names() -> None:
    texts = [path.read_text(encoding="utf-8") for path in sweep_files().values()]
    named = [text for text in texts if "strategy.layers" in text and "smaller: add" in text]
    assert named
    for text in named:
        assert "smaller: add dataset=mini model=tiny model.hidden_layers=12\n" in text


def test_a_list_is_wrapped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert run("list", ["strategy"]) == 0
    lines = sys.stdout.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(" " * 19) for line in lines)


@pytest.mark.parametrize("arguments", [[], ["-h"], ["help"], ["strategy=er", "--help"], ["-m", "-h"], ["--hydra-help"]])
def test_other_ways_to_ask_for_help(arguments: list[str], xclrun: Callable[..., Told]) -> None:
    assert xclrun(*arguments) == xclrun("--help")


def test_version(xclrun: Callable[..., Told]) -> None:
    for arguments in (["--version"], ["-V"], ["strategy=er", "--version"]):
        assert xclrun(*arguments) == Told(0, f"xclrun {__version__}\n", "")


@pytest.mark.parametrize(
    "command", [*COMMANDS, "plan --params", *(f"{group} {name}" for group in GROUPS for name in GROUPS[group])]
)
def test_help_of_a_command(command: str, xclrun: Callable[..., Told], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = xclrun(*command.split(), "--help")
    assert told.code == 0
    assert told.err == ""
    assert told.out.startswith(f"usage: xclrun {command} ")
    assert max(map(len, told.out.splitlines())) <= 80


@pytest.mark.parametrize("name", FORMER)
def test_a_former_name_of_a_command_works_with_a_note(name: str, xclrun: Callable[..., Told]) -> None:
    told, now = xclrun(name, "--help"), xclrun(*FORMER[name].split(), "--help")
    assert (told.code, told.out) == (0, now.out)
    assert f"is now `xclrun {FORMER[name]}`" in told.err


def test_a_group_names_its_commands(xclrun: Callable[..., Told], refused: Callable[..., str]) -> None:
    for group in GROUPS:
        for name in GROUPS[group]:
            assert name in xclrun(group, "--help").out
            assert name in refused(group)
    assert "did you mean 'export'?" in refused("model", "exprt")
    assert "did you mean 'buckets'?" in refused("data", "bucket", "dataset=mini")


def test_the_options_that_scripts_rely_on(xclrun: Callable[..., Told]) -> None:
    for command in ("report", "plan", "status", "mlflow ui", "mlflow sync", "store"):
        assert "--outputs DIR" in xclrun(*command.split(), "--help").out
    for command in ("report", "plan", "status", "list", "store"):
        assert "--json" in xclrun(command, "--help").out


def test_what_answers_at_once_imports_nothing_heavy(run_python: Callable[..., str], here: Path) -> None:
    asked = [["--help"], *([name, "--help"] for name in COMMANDS), ["plan", "trainer.lr=abc"], ["report"]]
    code = (
        f"import sys\nfrom xclrun.cli import main\nfor arguments in {asked}:\n    code = main(arguments)\n"
        f"    print('said', code, *(name for name in {HEAVY} if name in sys.modules))"
    )
    told = [line for line in run_python(code).splitlines() if line.startswith("said ")]
    assert told == ["said 0"] * (len(asked) - 2) + ["said 2"] * 2
    assert list(here.iterdir()) == []


@pytest.mark.full
def test_plans_counts_and_reports_do_not_import_torch(
    xclrun: Callable[..., Told], here: Path, run_python: Callable[..., str]
) -> None:
    assert xclrun(*TINY).code == 0
    # A first count too, of parts of BERT and of a vocabulary that is learnt.
    commands = [
        ["plan", "--params", "strategy=er,lang_spec_enc", "model.vocab_size=900"],
        ["plan", *TINY],
        ["status"],
        ["report", "--from-runs"],
        ["store", "ls"],
        [*TINY],
    ]
    # Figures are made, and not rendered, which is most of the time.
    code = (
        "import sys\nfrom xclrun.cli import main\nfrom xclrun.report import workers\nworkers.save = lambda *_: []\n"
        f"for a in {commands}: print(a, main(a), 'torch' in sys.modules)"
    )
    told = run_python(code, XCLRUN_CACHE=str(here / "user")).splitlines()
    for arguments in commands:
        assert f"{arguments} 0 False" in told


def test_the_config_of_a_job_is_shown(xclrun: Callable[..., Told], here: Path) -> None:
    told = xclrun("--cfg", "job", "strategy=er", "order=[en,de]", "trainer.lr=2e-3")
    assert (told.code, told.err) == (0, "")
    shown = yaml.safe_load(told.out)
    er = {"name": "er", "expansion": None, "selection": "reservoir", "interleave": "extra"}
    assert shown["strategy"] == er | {key: f"${{dataset.replay.{key}}}" for key in ("memory", "every_k")}
    assert shown["order"]["languages"] == ["en", "de"]
    assert float(shown["trainer"]["lr"]) == 2e-3
    assert "hydra" not in shown
    resolved = yaml.safe_load(xclrun("strategy=er", "dataset=mtop", "--cfg", "job", "--resolve").out)
    assert resolved["strategy"] == er | {"memory": 6000, "every_k": 100}
    part = xclrun("--cfg", "job", "--package", "strategy", "strategy=er").out
    assert yaml.safe_load(part)["name"] == "er"
    assert "trainer" not in part
    assert list(here.iterdir()) == []


def test_hydras_info_is_shown(run_python: Callable[..., str]) -> None:
    told = run_python("from xclrun.cli import main\nprint(main(['--info', 'config', 'strategy=er']))")
    assert "strategy: er" in told
    assert told.splitlines()[-1] == "0"


@pytest.mark.full
def test_configs_of_a_users_own_folder(xclrun: Callable[..., Told], here: Path) -> None:
    path = here / "mine" / "strategy" / "er_small.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("# Experience replay with my memory.\ndefaults:\n  - er\n\nmemory: 7\n")
    told = xclrun("--config-dir", "mine", "--cfg", "job", "strategy=er_small", "-p", "strategy")
    assert yaml.safe_load(told.out)["memory"] == 7
    told = xclrun("--config-dir=mine", *TINY, "strategy=er_small,naive", "-m")
    assert told.code == 0
    assert told.err.startswith("xclrun: 2 runs (2 strategies ")
    # The file's name is the strategy's, in ids and reports; what is trained is er's, and shared with it.
    [run_id] = [path.name for path in (here / "outputs/runs").iterdir() if "naive" not in path.name]
    assert "-er_small-" in run_id
    assert {record.strategy for record in read_records(here / "outputs")} == {"er_small", "naive"}
    told = xclrun("plan", *TINY, "strategy=er", "strategy.memory=7")
    assert "er 1 0 2 0 " in " ".join(told.out.split())
    assert thaw(RunDirectory(here / "outputs/runs" / run_id)).label.startswith("er_small · ")
    counted = xclrun("plan", "--params", "strategy=er_small", "--config-dir", "mine", "task.intents=3", "model=mbert")
    assert "er_small(memory=7, " in counted.out
    missing = xclrun("plan", "--config-dir", "mine", *TINY, "seed=9", "strategy=er_small", "--missing").out
    again = xclrun("plan", *shlex.split(missing.splitlines()[1].strip())[1:])
    assert again.code == 0
    assert "\ner_small " in again.out
    # The reference run of adapters of one's own is that of the adapters: the name is no setting of theirs.
    (here / "mine/strategy/my_adapters.yaml").write_text("# My adapters.\ndefaults:\n  - lang_spec_ada_t\n")
    given = [*TINY, "strategy=my_adapters", "order=[en,de]"]
    missing = xclrun("plan", "--config-dir", "mine", *given, "--missing").out
    found = [plan_runs(shlex.split(command)[1:-1]) for command in missing.splitlines()[1::2]]
    assert [runs[0].strategy_name for runs in found] == ["my_adapters", "lang_spec_ft+lang_spec_ada_t"]
    assert found[0][0].reference().id == found[1][0].id
    (here / "mine/strategy/.hidden.yaml").write_text((here / "mine/strategy/er_small.yaml").read_text())
    told = xclrun("plan", "--config-dir", "mine", *TINY, "strategy=.hidden")
    assert (told.code, told.line) == (2, "strategy=.hidden: would be a hidden file; a name begins with a letter or "
                                         "digit and has no slash")  # fmt: skip
    listed = xclrun("list", "strategies", "--config-dir", "mine").out.splitlines()
    assert [line.split() for line in listed if "er_small" in line] == [["er_small", "Experience", "replay", "with",
                                                                        "my", "memory."]]  # fmt: skip
    assert "  naive  " in "\n".join(listed)
    assert xclrun("list", "--config-dir", "yours").line == "--config-dir yours: there is no such folder"
    told = xclrun("plan", "--config-dir", "yours", "strategy=er_small")
    assert (told.code, told.err) == (2, "xclrun: --config-dir yours: there is no such folder\n")  # fmt: skip


# Completion.


@pytest.fixture
def complete(xclrun: Callable[..., Told], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Ask for completions as the shell's script does."""

    def ask(line: str) -> list[str]:
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv("COMP_POINT", str(len(line)))
        told = xclrun("-sc", "query=bash")
        assert told.code == 0
        assert told.err == ""
        return told.out.split()

    return ask


def test_choices_are_completed(complete: Callable[[str], list[str]]) -> None:
    assert set(complete("xclrun strategy=")) == {f"strategy={name}" for name in choices()["strategy"]}
    assert complete("xclrun seed=1 strategy=n") == ["strategy=naive"]
    assert set(complete("xclrun sweep=")) == {f"sweep={name}" for name in choices()["sweep"]}


def test_keys_are_completed(complete: Callable[[str], list[str]], here: Path) -> None:
    assert {"trainer.lr=", "trainer.epochs="} <= set(complete("xclrun trainer."))
    assert complete("xclrun strategy=er strategy.m") == ["strategy.memory="]
    assert complete("xclrun trainer=quick trainer.pat") == ["trainer.patience="], "of the file that it is made from"
    nested = complete("xclrun experiment=fewshot protocol.source_trainer.")
    assert {f"protocol.source_trainer.{key}=" for key in ("lr", "epochs")} <= set(nested)
    assert complete("xclrun dataset.buckets.sam") == ["dataset.buckets.sampler="]
    assert complete("xclrun --config-dir mine strategy=mi") == []
    (here / "mine/strategy").mkdir(parents=True)
    (here / "mine/strategy/mine.yaml").touch()
    assert complete("xclrun --config-dir mine strategy=er,mi") == ["strategy=er,mine"]


def test_completion_needs_no_hydra_so_that_it_takes_a_fraction_of_a_second(run_python: Callable[..., str]) -> None:
    code = (
        "import sys\nfrom xclrun.cli import main\nmain(['-sc', 'query=bash'])\n"
        "print([name for name in ('hydra', 'torch', 'pandas') if name in sys.modules])"
    )
    told = run_python(code, COMP_LINE="xclrun sweep=demo trainer.l").splitlines()
    assert told == ["trainer.lr=", "[]"]


def test_commands_and_their_options_are_completed(complete: Callable[[str], list[str]]) -> None:
    first = complete("xclrun ")
    assert {*COMMANDS, "strategy=", "trainer.", "seed="} <= set(first)
    assert not [word for word in first if word.startswith("schema")]
    assert complete("xclrun rep") == ["report"]
    assert complete("xclrun model ") == ["average", "merge", "export"]
    assert "--hop" in complete("xclrun model export --")
    assert "--json" in complete("xclrun data audit --")
    assert complete("xclrun data audit strategy=n") == ["strategy=naive"]
    assert {"--outputs", "--json", "--help"} <= set(complete("xclrun report --"))
    assert not set(COMMANDS) & set(complete("xclrun seed=1 "))
    assert set(complete("xclrun plan strategy=")) == set(complete("xclrun strategy="))
    assert "--missing" in complete("xclrun plan strategy=er --")


def test_names_of_runs_and_sweeps_and_options_are_completed(
    complete: Callable[[str], list[str]], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("outputs", "other"):
        for name in ("mini-er-s1", "mini-naive-s1"):
            (here / place / "runs" / f"{place}-{name}").mkdir(parents=True)
        (here / place / "sweeps").mkdir()
        (here / place / "sweeps" / f"{place}.json").touch()
    assert complete("xclrun show ") == ["outputs-mini-er-s1", "outputs-mini-naive-s1"]
    assert complete("xclrun show outputs-mini-er-s1 outputs-mini-n") == ["outputs-mini-naive-s1"]
    for option in ("--outputs other", "--outputs=other"):
        assert complete(f"xclrun rerun {option} other-mini-er") == ["other-mini-er-s1"]
    assert complete("xclrun report ") == ["outputs"]
    monkeypatch.setenv("XCLRUN_OUTPUTS", "nowhere")
    assert complete("xclrun show ") == []
    assert complete("xclrun show --js") == ["--json"]
    assert complete("xclrun seed=1 --qui") == ["--quiet"]


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_the_script_that_sets_completion_up(shell: str, xclrun: Callable[..., Told]) -> None:
    told = xclrun("-sc", f"install={shell}")
    assert told.code == 0
    assert told.err == ""
    assert "-sc query=" in told.out
    assert "xclrun" in told.out


@pytest.mark.full
def test_completion_in_a_shell(here: Path) -> None:
    bash = shutil.which("bash")
    program = shutil.which("xclrun", path=str(Path(sys.executable).parent))
    if bash is None or program is None:
        pytest.skip("needs bash, and xclrun beside this Python")
    script = (
        f'PATH={Path(program).parent}:$PATH; eval "$(xclrun -sc install=bash)"; COMP_LINE="xclrun strategy=n"; '
        "COMP_POINT=17; COMP_CWORD=1; hydra_bash_completion; echo ${COMPREPLY[@]}"
    )
    told = subprocess.run([bash, "-c", script], check=True, capture_output=True, text=True)
    assert told.stdout.strip() == "strategy=naive"
