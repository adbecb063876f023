"""`xclrun show`, `rerun` and `compare`: one run, the same run again, and two runs side by side."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.report.study import ORDERS, study
from xclrun.analysis.records import record
from xclrun.cli import main
from xclrun.command import compare
from xclrun.command.rerun import environment
from xclrun.command.show import render
from xclrun.core.terminal import table
from xclrun.store.rundir import RunDirectory, differing_results

from .conftest import Told

Xclrun = Callable[..., Told]
# So that the two runs end with different scores.
LEARNS = ("trainer.epochs=6", "model.lr=1e-2", "dataset.replay.every_k=1")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of a naive run and of one with a memory, who share their first hop."""
    outputs = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYDRA_FULL_ERROR", "1")
        assert main([*TINY, *LEARNS, "strategy=naive,er", f"paths.outputs={outputs}", "-m"]) == 0
    return outputs


@pytest.fixture
def outputs(two: Path, here: Path) -> Path:
    """These outputs, where commands look for them."""
    shutil.copytree(two, here / "outputs")
    return here / "outputs"


def run_ids(outputs: Path) -> tuple[str, str]:
    [er, naive] = sorted(path.name for path in (outputs / "runs").iterdir())
    return er, naive


def test_a_run_is_shown_with_its_scores_command_and_shared_hops(outputs: Path, xclrun: Xclrun) -> None:
    er, _ = run_ids(outputs)
    told = xclrun("show", er[:8])
    assert told.code == 0, told.err
    own = record(RunDirectory(outputs / "runs" / er))
    lines = told.out.splitlines()
    assert lines[0] == er
    assert "\x1b" not in told.out
    assert any(line.split()[:2] == ["state", "finished"] for line in lines)
    assert f"  files     outputs/runs/{er}" in lines
    assert any(line.startswith("  sweep ") and "strategy=naive,er" in line for line in lines)
    for metric, matrix in own.scores.items():
        at = lines.index(f"{metric} in %, on each language after each hop")
        assert lines[at + 2].split() == ["hop", "key", *own.languages]
        rows = [line.split() for line in lines[at + 4 : at + 4 + len(matrix)]]
        assert [row[-len(own.languages) :] for row in rows] == [[f"{100 * v:.2f}" for v in row] for row in matrix]
        assert [row[-len(own.languages) - 1] for row in rows] == ["before", "shared", "trained"]
    facts = json.loads(xclrun("show", "--json", er).out)
    assert [hop["shared"] for hop in facts["hops"]] == [False, True, False]
    assert facts["scores"] == {metric: matrix.tolist() for metric, matrix in own.scores.items()}
    assert "predictions/hop-2.parquet" in facts["files"]
    # By its folder, from anywhere.
    elsewhere = xclrun("show", str(outputs / "runs" / er), "--outputs", "/nowhere").out
    assert elsewhere.splitlines()[8:] == lines[8:]


@pytest.mark.parametrize("number", [9, 24, 51])
def test_a_run_over_many_languages_fits_a_terminal(number: int) -> None:
    """All numbers of up to 24 languages, in matrices below each other; a block for each score of more."""
    languages = [f"{a}{b}-{a}{b}".upper() for a, b in itertools.product("abcdefgh", "klmnopq")][:number]
    R = [[(hop * number + i) / number / (number + 1) for i in range(number)] for hop in range(number + 1)]
    facts = {
        "run_id": "made", "state": "finished", "detail": "", "seconds": 3.0, "host": "here", "dataset": "massive",
        "languages": languages, "model": "tiny", "strategy": "naive", "settings": {}, "order": "-".join(languages),
        "seed": 1, "shots": None, "bucket": None, "code": "1", "folder": "runs/made", "log": None, "sweeps": {},
        "merged_from": None,
        "hops": [{"hop": hop, "name": languages[hop - 1], "shared": False} for hop in range(number + 1)],
        "scores": {"intent_accuracy": R}, "scoring": {"intent_accuracy": ""}, "measures": {"intent_accuracy": {}},
    }  # fmt: skip
    told = render(facts)
    assert max(map(len, told.splitlines())) <= 80
    assert set(languages) <= set(re.findall(r"\w\w-\w\w", told.partition("  model")[0]))
    last = [value for line in told.splitlines() if line.split()[:1] == [str(number)] for value in line.split()[3:]]
    assert number > 24 or last == [f"{100 * value:.2f}" for value in R[-1]]


@pytest.mark.parametrize(("command", "pair"), [("show", False), ("rerun", False), ("show", True)])
def test_a_run_that_is_not_there_or_not_the_only_one(
    command: str, pair: bool, outputs: Path, refused: Callable[..., str]
) -> None:
    er, naive = run_ids(outputs)
    other = (er,) if pair else ()
    assert refused(command, "mini-", *other) == f"'mini-' matches 2 runs: {er}, {naive}"
    assert refused(command, naive.replace("naive", "naiev"), *other).endswith(f"; did you mean '{naive}'?")
    assert refused(command, "mini-naiev", *other) == (f"unknown run 'mini-naiev' in outputs; did you mean '{naive}'?")
    assert f"Known: {er}, {naive}" in refused(command, "x", *other)
    assert "folder not found" in refused(command, "x", *other, "--outputs", "nowhere")


@pytest.mark.parametrize("left", ["manifest.json", "DONE"])
def test_a_run_without_its_config_is_there_and_damaged(left: str, outputs: Path, xclrun: Xclrun) -> None:
    er, naive = run_ids(outputs)
    for name in {"config.yaml", "manifest.json", "DONE"} - {left}:
        (outputs / "runs" / er / name).unlink()
    missing = "config.yaml is missing; re-run the command that created the run"
    for arguments in (
        ("show", er),
        ("show", f"{er}/"),
        ("show", f"outputs/runs/{er}"),
        ("rerun", er),
        ("show", naive, er[:8]),
    ):
        told = xclrun(*arguments)
        assert told.code == 1
        assert told.last.startswith(f"{er} is damaged: ")
        assert told.last.endswith(missing)


def test_a_run_without_a_manifest_is_told_by_what_there_is(
    outputs: Path, xclrun: Xclrun, refused: Callable[..., str]
) -> None:
    er, naive = run_ids(outputs)
    directory = RunDirectory(outputs / "runs" / er)
    directory.manifest.unlink()
    assert "manifest.json is missing or damaged" in xclrun("show", er).last
    directory.done.unlink()
    told = xclrun("show", er, naive)
    assert (told.code, told.last.startswith(f"{er} is damaged (")) == (1, True)
    assert (
        "has no manifest; its files: config.yaml, counts.parquet, events.jsonl, predictions/hop-0.parquet, "
        in told.last
    )
    shutil.rmtree(directory.path / "predictions")
    assert xclrun("show", er).last == f"{er} has not started; start it with `xclrun rerun {er}`"
    mine = directory.lease.try_acquire()
    assert mine is not None
    with directory.lease.held(mine):
        assert xclrun("show", er).last.startswith(f"{er} is running and has no manifest; its files: ")
    for command in (("show",), ("rerun",), ("show", er)):
        assert refused(*command, "").startswith("the name of a run is empty; give its id, ")


def test_a_run_goes_on_from_its_frozen_config(outputs: Path, xclrun: Xclrun) -> None:
    er, _ = run_ids(outputs)
    folder = outputs / "runs" / er
    assert xclrun("rerun", er).out == f"{er}: finished (--fresh DIR repeats it)\n"
    before = {path.name: path.read_bytes() for path in folder.glob("predictions/*")}
    sweeps = {path: path.read_bytes() for path in outputs.glob("sweeps/*")}
    (folder / "DONE").unlink()
    shutil.rmtree(folder / "predictions")
    told = xclrun("rerun", "mini-er")
    assert (told.code, told.out) == (0, f"{er}: finished\n")
    assert {path.name: path.read_bytes() for path in folder.glob("predictions/*")} == before
    # It is no sweep of its own.
    assert {path: path.read_bytes() for path in outputs.glob("sweeps/*")} == sweeps


def test_a_fresh_run_is_compared_byte_for_byte(outputs: Path, xclrun: Xclrun, refused: Callable[..., str]) -> None:
    er, naive = run_ids(outputs)
    told = xclrun("rerun", naive, "--fresh", "again")
    assert told.code == 0, told.err
    assert told.out.startswith(f"{naive}: identical, all 4 files of predictions and scores (")
    assert [path.name for path in Path("again/runs").iterdir()] == [naive]
    # One byte of a prediction file is enough; and what may explain it is told.
    path = Path("again") / "runs" / naive / "predictions" / "hop-1.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    manifest = outputs / "runs" / naive / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"code_version": "0.0.0"}))
    directories = RunDirectory(outputs / "runs" / naive), RunDirectory(Path("again/runs") / naive)
    assert differing_results(*directories) == ["predictions/hop-1.parquet"]
    assert {name: was for name, (was, _) in environment(*directories).items()} == {"code": "0.0.0"}
    path.unlink()
    assert differing_results(*directories) == ["predictions/hop-1.parquet"]
    assert refused("rerun", er, "--fresh", "outputs") == "--fresh outputs: contains the run itself; pass another folder"
    (outputs / "runs" / er / "DONE").unlink()
    assert "is not finished" in refused("rerun", er, "--fresh", "third")


def test_two_runs_are_compared(outputs: Path, xclrun: Xclrun) -> None:
    er, naive = run_ids(outputs)
    told = xclrun("show", "mini-naive", "mini-er")
    assert told.code == 0, told.err
    lines = told.out.splitlines()
    assert lines[:2] == [f"A  {naive}", f"B  {er}"]
    assert ["strategy.name", "naive", "er"] in [line.split() for line in lines]
    assert not any("paths" in line for line in lines)
    facts = json.loads(xclrun("show", "--json", "mini-naive", "mini-er").out)
    one, other = (record(RunDirectory(outputs / "runs" / run_id)) for run_id in (naive, er))
    for metric in one.scores:
        for i, language in enumerate(one.languages):
            assert facts["final"][metric][language] == [one.scores[metric][-1, i], other.scores[metric][-1, i]]
        test = facts["tests"][metric]
        difference = (other.scores[metric][-1] - one.scores[metric][-1]).mean()
        assert test["value"] == pytest.approx(difference)
        assert test["value"] != 0
        assert f"{100 * test['value']:+.2f} (bias {100 * test['bias']:+.2f}), 95 % interval" in told.out
        assert facts["measures"][metric]["FP"] == [one.scores[metric][-1].mean(), other.scores[metric][-1].mean()]
        assert f"p = {test['p']:.2g} (paired bootstrap over {test['sentences']:,} test sentences)" in told.out
    assert "B − A, final, mean over languages: " in told.out
    # A small p of two runs is no statement about two strategies.
    assert told.out.count("p-values are uncorrected and concern only these two runs") == 1
    facts["tests"]["slot_f1"]["languages"] = ["en"]
    assert "B − A, final, mean over en (in only one run: de): " in compare.render(facts)
    facts["tests"]["slot_f1"]["drawn"] = "texts"
    assert f"over {facts['tests']['slot_f1']['sentences']:,} test texts)" in compare.render(facts)
    # With itself, and with one that is not finished.
    same = json.loads(xclrun("show", "--json", er, er).out)
    assert (same["settings"], {test["p"] for test in same["tests"].values()}) == ({}, {None})
    assert "no interval and no p: all resamples are equal" in compare.render(same)
    (outputs / "runs" / er / "DONE").unlink()
    assert "not tested: a run is not finished" in xclrun("show", naive, er).out


def test_another_f1_is_named_and_two_kinds_are_not_subtracted() -> None:
    way = {"slot_f1": ["span_micro", "tag_macro"], "intent_accuracy": ["", ""]}
    facts = {
        "runs": ["a", "b"], "settings": {}, "scoring": way, "measures": {key: {"FP": [0.5, 0.75]} for key in way},
        "final": {key: {"en": [0.5, 0.75]} for key in way}, "tests": dict.fromkeys(way, "not tested"),
    }  # fmt: skip
    told = compare.render(facts).splitlines()
    assert told[told.index("slot_f1 (A: span_micro, B: tag_macro) in %") + 4].split() == ["FP", "50.00", "75.00"]
    assert told[told.index("intent_accuracy in %") + 4].split() == ["FP", "50.00", "75.00", "+25.00"]
    way["slot_f1"] = ["tag_macro", "tag_macro"]
    told = compare.render(facts).splitlines()
    assert told[told.index("slot_f1 (tag_macro) in %") + 4].split() == ["FP", "50.00", "75.00", "+25.00"]


def test_tables_are_wider_than_the_terminal_rather_than_cut() -> None:
    row = ("0", "before any fine-tuning at all", "before", "4.00", "10.00", "100.00", "96.50", "10.55", "11.01")
    told = table(("hop", "language", "", "en", "de", "fr", "hi", "es", "th"), [row], text_columns=3).splitlines()
    assert len(told[-1]) > 80
    assert " ".join(told[-1].split()) == " ".join(row)


def test_the_orders_for_an_effect_are_planned_from_finished_orders(
    outputs: Path, xclrun: Xclrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("plan", *TINY, *LEARNS, "strategy=naive,er", f"paths.outputs={outputs}", "--json")
    # One order is no pilot.
    told = xclrun(*command, "--power", "2")
    assert (told.code, told.out) == (2, "")
    assert "2 of 2 runs of this command are finished" in told.err
    assert xclrun(*command, "--power", "0").code == 2
    pilot = study(orders=ORDERS, seeds=(1, 2))
    asked = []
    monkeypatch.setattr("xclrun.analysis.records.read_records", lambda _, only: asked.append(only) or pilot)
    [facts] = json.loads(xclrun(*command, "--power", "2").out)
    assert asked == [set(run_ids(outputs))]
    assert (facts["effect"], facts["comparisons"]) == (0.02, 4)
    assert [row["pilot_orders"] for row in facts["rows"]] == [len(ORDERS)] * 4
