"""The Python API: the numbers of a report, and what was predicted, as DataFrames."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import xclrun
from tests.conftest import SMALL, composed, read_csv
from xclrun.analysis import finished, records
from xclrun.analysis.finished import finished_run, finished_runs
from xclrun.core.errors import RunError, UsageError
from xclrun.store.rundir import RunDirectory
from xclrun.study import Study


@pytest.fixture(scope="module")
def outputs(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of naive, its references, and one run of er, on the corpus."""
    from xclrun.plan import plan_run
    from xclrun.train.execute import execute
    from xclrun.train.progress import Listener
    from xclrun.train.stop import StopFlag

    folder = tmp_path_factory.mktemp("study") / "outputs"
    for given in (("naive", 1), ("naive", 2), ("lang_spec_ft", 1), ("lang_spec_ft", 2), ("er", 1)):
        own = (f"dataset.root={corpus}", f"paths.outputs={folder}", "order=[en,de,es]", "trainer.epochs=1")
        job = composed((*SMALL, *own, f"strategy={given[0]}", f"seed={given[1]}"))
        execute(plan_run(job.config), Listener(), StopFlag())
    return folder


@pytest.fixture(scope="module")
def study(outputs: Path) -> Study:
    return xclrun.load(outputs)


def test_importing_xclrun_imports_nothing_heavy(run_python: Callable[..., str]) -> None:
    code = "import sys, xclrun; print([m for m in ('numpy', 'pandas', 'torch', 'xclrun.study') if m in sys.modules])"
    assert run_python(code) == "[]"


def test_a_study_is_read_without_torch(run_python: Callable[..., str], outputs: Path) -> None:
    code = f"import sys, xclrun; s = xclrun.load({str(outputs)!r}); s.measures(); s.predictions(s.records[0].run_id)"
    assert run_python(f"{code}; print('torch' in sys.modules)") == "False"


@pytest.mark.full
def test_measures_are_those_of_the_report(
    study: Study, outputs: Path, xclrun: Callable[..., tuple[int, str]], undrawn: None
) -> None:
    code, output = xclrun("report", "--all", "--from-runs", "--outputs", str(outputs), "--name", "api")
    assert code == 0, output
    written = read_csv(outputs / "reports" / "api" / "summary.csv", keep_default_na=False, na_values=[""])
    found = study.measures().drop(columns=["unit", "higher_is_better"])
    assert list(found.columns) == list(written.columns)
    for name in ("language", "ci_given"):
        # A column without any text is read as numbers.
        written[name] = written[name].astype(found[name].dtype).fillna("")
    pd.testing.assert_frame_equal(found, written, check_exact=True)


@pytest.fixture
def one_of_many(outputs: Path, tmp_path: Path) -> Path:
    """A copy of the runs, of which a sweep ``one`` has naive with seed 1."""
    folder = Path(shutil.copytree(outputs, tmp_path / "outputs"))
    shutil.rmtree(folder / "cache", ignore_errors=True)
    [run] = [path.name for path in (folder / "runs").iterdir() if "naive" in path.name and "-s1-" in path.name]
    (folder / "sweeps").mkdir(exist_ok=True)
    facts = {"name": "one", "command": "xclrun -m", "started": "", "given": 1.0, "runs": [run]}
    (folder / "sweeps" / "one.json").write_text(json.dumps(facts))
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs whose records are read."""
    seen: list[str] = []
    record = records.record

    def reading(directory: RunDirectory, *given: Any) -> Any:
        seen.append(directory.run_id)
        return record(directory, *given)

    monkeypatch.setattr(records, "record", reading)
    return seen


@pytest.mark.full
def test_a_report_of_one_sweep_reads_its_runs_and_their_references_and_says_what_it_says_with_all_read(
    one_of_many: Path,
    read: list[str],
    xclrun: Callable[..., tuple[int, str]],
    undrawn: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def report(*given: str) -> str:
        del read[:]
        code, output = xclrun("report", *given, "--from-runs", "--json", "--outputs", str(one_of_many))
        assert code == 0, output
        return output

    folder = one_of_many / "reports" / "one"
    runs = sorted(path.name for path in (one_of_many / "runs").iterdir())
    first = report("one")
    assert sorted(read) == sorted([*runs, *(run for run in runs if "-lang_spec_ft-" in run and "-s1-" in run)])
    tables = {path.name: path.read_text() for path in (folder / "tables").iterdir()}
    # It is the last sweep, too.
    assert report() == first
    assert sorted(read) == [run for run in runs if "-s1-" in run and "-er-" not in run]
    # With all that is known read, nothing is said otherwise.
    every = records.read_records(one_of_many)
    monkeypatch.setattr(
        finished, "with_references", lambda outputs, own, warn: ([r for r in every if r.run_id != own[0].run_id], [])
    )
    assert report("one") == first
    assert {path.name: path.read_text() for path in (folder / "tables").iterdir()} == tables


@pytest.mark.full
def test_a_long_wait_for_other_runs_is_told_before_it_and_is_no_failure(
    one_of_many: Path,
    read: list[str],
    xclrun: Callable[..., tuple[int, str]],
    undrawn: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finished, "MANY", 2)
    messages: list[str] = []
    monkeypatch.setattr(finished, "note", lambda text: messages.append(f"{text}, {len(read)} read"))
    own = len(json.loads((one_of_many / "sweeps" / "one.json").read_text())["runs"])
    code, output = xclrun("report", "one", "--from-runs", "--outputs", str(one_of_many))
    others = len(list((one_of_many / "runs").iterdir())) - own
    assert code == 0, output
    assert len(messages) == 1
    assert messages[0].startswith(f"indexing {others} finished runs under ")
    assert messages[0].endswith(f", {own} read")
    # What is known by now takes no time.
    assert xclrun("report", "one", "--from-runs", "--outputs", str(one_of_many))[0] == 0
    assert len(messages) == 1


def test_what_is_known_of_a_finished_run_is_read_again_when_the_run_was_written_again(
    one_of_many: Path, read: list[str]
) -> None:
    def found() -> list[str]:
        del read[:]
        return [run.run_id for run in finished_runs(one_of_many, [], pytest.fail)]

    *_, gone, again = runs = found()
    assert sorted(read) == runs
    first = finished_runs(one_of_many, [], pytest.fail)
    assert {run.strategy: bool(run.reference) for run in first} == {"er": False, "lang_spec_ft": True, "naive": False}
    assert len({run.settings for run in first if run.strategy == "naive"}) == 1
    assert (found(), read) == (runs, [])
    # The file holds what the records say.
    assert first == [finished_run(record) for record in records.read_records(one_of_many)]
    (one_of_many / "runs" / again / "DONE").touch()
    assert (found(), read) == (runs, [again])
    (one_of_many / "runs" / gone / "DONE").unlink()
    assert (found(), read) == ([run for run in runs if run != gone], [])
    [index] = (one_of_many / "cache").glob("finished-*.json")
    index.write_text(index.read_text().replace("er", "re"))
    assert len(found()) == len(read) == len(runs) - 1


def test_chosen_runs_keep_their_references_aside_and_no_name_means_the_last_sweep(one_of_many: Path) -> None:
    runs = {path.name for path in (one_of_many / "runs").iterdir()}
    facts = json.loads((one_of_many / "sweeps" / "one.json").read_text())
    facts |= {"name": "two", "given": 2.0, "runs": [run for run in runs if "-er-" in run]}
    (one_of_many / "sweeps" / "two.json").write_text(json.dumps(facts))
    found = xclrun.load(one_of_many)
    naive = found.where(strategy="naive")
    chosen = (naive, found.sweep(), found.sweep("one"), naive.where(seed=2))
    assert [[record.strategy for record in one.records] for one in chosen] == [["naive"] * 2, ["er"], *[["naive"]] * 2]
    assert [[record.seed for record in one.references] for one in chosen] == [[1, 2], [1], [1], [2]]
    assert not {*naive.scores()["strategy"], *naive.measures()["strategy"]} - {"naive"}
    # References have no rows, and transfer has its values.
    wanted = {"measure": "T", "order": "mean", "strategy": "naive"}
    values = [one.measures(unpaired=True, **wanted)["value"] for one in (naive, found)]
    assert values[0].notna().any()
    pd.testing.assert_series_equal(*values)
    assert [name for name in naive.figures() if name.startswith("one_hop")]
    with pytest.raises(UsageError, match="available: naive"):
        naive.where(strategy="lang_spec_ft")


def test_each_run_has_its_measures_of_which_the_means_are_averages(study: Study) -> None:
    runs = study.run_measures()
    chosen = runs[(runs["strategy"] == "naive") & (runs["status"] == "ok")]
    means = study.measures(unpaired=True, strategy="naive", order="mean").query("status == 'ok'")
    keys = ["metric", "measure", "language"]
    averages = chosen.groupby(keys)["value"].mean()
    assert len(averages) > 20
    pd.testing.assert_series_equal(averages, means.groupby(keys)["value"].mean())
    assert sorted(chosen["seed"].unique()) == [1, 2]
    # Units and directions, and why a run has no value.
    for frame in (runs, study.measures()):
        kinds = frame.groupby("measure")[["unit", "higher_is_better"]].first()
        assert kinds.loc["F"].tolist() == ["fraction", False]
        assert kinds.loc["FP"].tolist() == ["fraction", True]
        assert kinds.loc["L"].tolist() == ["kbits", False]
    [reason] = runs.query("strategy == 'lang_spec_ft' and measure == 'F'")["status"].unique()
    assert reason == "n/a: needs a sequence of hops instead of one model per language"
    assert runs.loc[runs["status"] != "ok", "value"].isna().all()


def test_runs_have_columns_of_the_config_on_request(study: Study) -> None:
    runs = study.runs(config=["trainer.epochs", "strategy"], strategy="er")
    assert runs["trainer.epochs"].tolist() == [1]
    assert runs["strategy.memory"].tolist() == [10]
    assert runs.index.name == "run"
    assert runs["stream"].tolist() == ["sequence"]
    assert study.runs(config="seed").columns.tolist() == study.runs().columns.tolist()
    every = study.runs(config=True)
    assert every["order.languages"].tolist() == [("en", "de", "es")] * 5
    # A key that only er has.
    assert every["strategy.memory"].notna().tolist() == (every["strategy"] == "er").tolist()
    with pytest.raises(UsageError, match=r"config=trainer\.epoch: unknown key; did you mean 'trainer\.epochs'"):
        study.runs(config="trainer.epoch")


@pytest.mark.parametrize(
    "seeds",
    [
        range(1, 2), np.int64(1), np.array([1]), np.array(1), [np.float64(1)], pd.Series([1, 1]), {1}, pd.Index([1]),
        (seed for seed in (1,)), 1.0,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_arguments_can_be_values_of_numpy_and_pandas_and_ranges(study: Study, seeds: Any) -> None:
    seeds = list(seeds) if hasattr(seeds, "send") else seeds
    assert study.scores(seed=seeds)["run"].nunique() == 3
    assert len(study.where(seed=seeds).records) == 3
    assert set(study.measures(seed=seeds, strategy=pd.Series(["naive"]))["strategy"]) == {"naive"}


def test_the_runs_of_one_frame_choose_the_rows_of_another(study: Study) -> None:
    naive = study.runs(strategy="naive")
    assert set(study.scores(run=naive.index)["run"]) == set(naive.index)
    hop = study.scores()["hop"].max()
    assert len(study.predictions(naive.index[0], hop=hop)) > 0


@pytest.mark.usefixtures("forget_plugins")
def test_a_metric_is_added_by_its_name(outputs: Path) -> None:
    assert xclrun.load(outputs, metrics="label_bits").scores(metric="label_bits")["score"].notna().all()


def test_rows_are_chosen_by_the_columns_and_runs_by_keys_of_the_config(study: Study) -> None:
    found = study.measures(measure=["F", "FP"], order="mean", language="")
    assert set(found["measure"]) == {"F", "FP"}
    assert set(found["order"]) == {"mean"}
    # One run of er is all that both strategies have: over seed 2 alone naive stands with its references.
    alone = study.measures(**{"seed": 2, "trainer.epochs": 1, "measure": "T", "order": "mean", "language": ""})
    assert set(alone["strategy"]) == {"naive", "lang_spec_ft"}
    assert alone.loc[alone["strategy"] == "naive", "status"].tolist() == ["ok"] * 2
    assert study.runs(strategy="er")["seed"].tolist() == [1]
    assert len(study.runs(**{"trainer.epochs": 1})) == 5


def test_runs_say_what_they_were_and_took(study: Study) -> None:
    runs = study.runs()
    assert runs.index.name == "run"
    assert sorted(runs["strategy"]) == ["er", "lang_spec_ft", "lang_spec_ft", "naive", "naive"]
    assert set(runs["status"]) == {"finished"}
    assert (runs["examples"] > 0).all()
    assert runs["memory"].gt(0).tolist() == (runs["strategy"] == "er").tolist()


def test_matrices_and_scores_are_the_same_numbers(study: Study) -> None:
    run = study.runs(strategy="er").index[0]
    matrix = study.matrix(run, "slots")
    assert matrix.equals(study.matrix(run, "slot_f1"))
    assert matrix.index.tolist() == [0, 1, 2, 3]
    assert matrix.columns.tolist() == ["en", "de", "es"]
    rows = study.scores(run=run, metric="slot_f1")
    assert rows["learnt"].tolist() == [""] * 3 + ["en"] * 3 + ["de"] * 3 + ["es"] * 3
    assert rows.pivot(index="hop", columns="language", values="score")[["en", "de", "es"]].equals(matrix)


def test_scores_follow_from_predictions_as_words(study: Study) -> None:
    run = study.runs(strategy="naive", seed=1).index[0]
    matrix = study.matrix(run, "intent")
    rows = study.predictions(run)
    assert set(rows["split"]) == {"test"}
    right = (rows["gold"] == rows["predicted"]).groupby([rows["hop"], rows["language"]], observed=True).mean().unstack()
    np.testing.assert_allclose(right[["en", "de", "es"]], matrix, atol=1e-12)
    assert set(rows["predicted"]) <= {"alarm", "weather", "call"}
    gold = rows["gold_tags"].explode()
    assert {"O", "B-time", "B-name"} <= set(gold)
    assert all(len(a) == len(b) for a, b in zip(rows["gold_tags"], rows["predicted_tags"], strict=True))


def test_predictions_of_a_hop_and_language_have_their_texts_on_request(study: Study) -> None:
    run = study.runs(strategy="er").index[0]
    rows = study.predictions(run, hop=2, language="de", text=True)
    assert rows["hop"].unique().tolist() == [2]
    assert len(rows) == 8
    weather = rows.loc[rows["gold"] == "weather", "text"]
    assert len(weather)
    assert weather.str.startswith("regnet es in").all()
    assert "text_b" not in rows
    assert "text" not in study.predictions(run, hop=2, language="de")


def test_a_label_that_training_never_had_is_none(
    changed_corpus: Callable[..., Path], make_run: Callable[..., object], do: Callable[..., object], tmp_path: Path
) -> None:
    def edit(rows: list[dict[str, object]]) -> None:
        rows[0] |= {"label": "new", "tags": ["B-new", *rows[0]["tags"][1:]]}  # type: ignore[index]

    do(make_run("order=[en]", "trainer.epochs=1", data=changed_corpus({("en", "test"): edit})))
    study = xclrun.load(tmp_path / "outputs")
    first = study.predictions(study.records[0].run_id, hop=1).set_index("example_id").loc["en-test-0"]
    assert pd.isna(first["gold"])
    assert first["gold_tags"][0] is None
    assert None not in (first["predicted"], *first["gold_tags"][1:], *first["predicted_tags"])


def test_figures_are_those_of_the_report(study: Study) -> None:
    names = study.figures()
    assert {"matrices_jsonl_tiny_en-de-es_intent", "confusions_jsonl_tiny"} <= set(names)
    # Only one size of memory, and too few strategies for a Pareto front.
    lacking = [*study._plots.keys() - {*names}]
    assert {name.partition("_")[0] for name in lacking} == {"memory", "pareto"}
    for name in lacking:
        with pytest.raises(UsageError, match="has no data"):
            study.figure(name)
    figure = study.figure("matrices_jsonl_tiny_en-de-es_int")
    assert [axes.get_title().split()[0] for axes in figure.axes[:3]] == ["naive", "er", "lang_spec_ft"]
    for wrong, output in (("matrices", "figures: matrices_jsonl"), ("matrixes", "'matrixes'")):
        with pytest.raises(UsageError, match=output):
            study.figure(wrong)


def test_a_notebook_shows_a_figure_as_a_picture_with_tooltips(study: Study) -> None:
    picture = study.figure("trade_offs_jsonl_tiny_intent")._repr_svg_()  # type: ignore[attr-defined]
    titles = [node.text for node in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}title")]
    assert [title for title in titles if title and title.startswith("naive: ")]
    assert picture.startswith("<svg")


def test_a_study_is_pickled_also_after_figures(study: Study) -> None:
    name = study.figures()[0]
    again = pickle.loads(pickle.dumps(study))  # noqa: S301
    assert repr(again) == repr(study)
    pd.testing.assert_frame_equal(again.measures(), study.measures())
    assert again.figures() == study.figures()
    figure = study.figure(name)
    assert pickle.loads(pickle.dumps(figure)).get_suptitle() == figure.get_suptitle()  # noqa: S301


def test_the_package_exports_the_api_and_the_columns_of_each_frame(study: Study) -> None:
    assert xclrun.Study is Study
    assert {"COLUMNS", "RunError", "Study", "UsageError", "XclrunError", "load", "run"} <= {*dir(xclrun)}
    assert (xclrun.UsageError, xclrun.RunError) == (UsageError, RunError)
    run = study.runs().index[0]
    frames = {
        name: getattr(study, name)(*([run] if name == "predictions" else [])).reset_index() for name in xclrun.COLUMNS
    }
    for name, frame in frames.items():
        assert [column for column in frame.columns if column != "index"] == list(xclrun.COLUMNS[name]), name
    with pytest.raises(AttributeError, match="no attribute 'Studie'"):
        xclrun.Studie  # noqa: B018


def test_the_reference_lists_the_columns() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference.md").read_text(encoding="utf-8")
    for name, columns in xclrun.COLUMNS.items():
        table = page.partition(f"### Columns of `{name}`\n")[2].partition("\n#")[0]
        assert re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE) == [*columns.items()], name


def test_a_study_says_what_it_holds(study: Study, outputs: Path) -> None:
    assert repr(study).splitlines() == [
        f"Study of {outputs}: 5 runs, 5 finished",
        "  dataset:  jsonl",
        "  model:    tiny",
        "  strategy: er, lang_spec_ft, naive",
        "  order:    en-de-es",
        "  seed:     1, 2",
    ]


def test_runs_of_an_empty_choice_and_wrong_names_are_one_line(study: Study, outputs: Path) -> None:
    for ask, output in (
        (lambda: xclrun.load(outputs / "no"), "directory not found"),
        (lambda: study.matrix("xyz"), "unknown run 'xyz'"),
        (lambda: study.matrix("jsonl-naive"), "matches 2 runs: jsonl-naive"),
        (lambda: study.matrix("jsonl-er", "slot"), "did you mean 'slot_f1'"),
        (lambda: study.runs(strategy="ere"), "unknown strategy 'ere'; did you mean 'er'"),
        (lambda: study.where(stratgy="er"), "stratgy=er: unknown key; did you mean 'strategy'"),
        (lambda: study.predictions("jsonl-er", hop=4), "unknown hop '4'"),
        (lambda: study.predictions("jsonl-er", split="dev"), "unknown split 'dev'"),
        (lambda: study.sweep("demo"), "no sweeps"),
    ):
        with pytest.raises(UsageError, match=output):
            ask()


@pytest.fixture
def small(corpus: Path, tmp_path: Path) -> list[str]:
    """Arguments of a command with small runs."""
    return [*SMALL, f"dataset.root={corpus}", f"paths.outputs={tmp_path / 'outputs'}", "order=[en,de,es]"]


@pytest.mark.full
def test_a_command_that_python_runs_returns_its_runs_and_their_references(
    small: list[str], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    alone = xclrun.run(*small, "strategy=lang_spec_ft", "trainer.epochs=1")
    study = xclrun.run(*small, "strategy=naive,er", "trainer.epochs=1")
    assert "2 of 2 runs finished" in capfd.readouterr().out
    assert sorted(study.runs()["strategy"]) == ["er", "naive"]
    assert study.references[0].run_id == alone.records[0].run_id
    assert study.run_measures(measure="T", language="")["status"].eq("ok").all()
    # Finished runs are skipped, and the command is recorded as typed.
    assert len(xclrun.run(*small, "strategy=naive", "trainer.epochs=1")) == 1
    assert "1 already finished" in capfd.readouterr().out
    [sweep] = [text for path in (tmp_path / "outputs" / "sweeps").iterdir() if "naive,er" in (text := path.read_text())]
    assert json.loads(sweep)["command"].startswith("xclrun dataset=jsonl ")


def test_a_command_that_python_runs_raises_its_errors(small: list[str]) -> None:
    for arguments, output in (
        (["strategy=ere"], "did you mean 'er'"),
        (["plan", "strategy=er"], "^plan: needs only settings"),
        ([], "^no arguments: needs only settings"),
    ):
        with pytest.raises(UsageError, match=output):
            xclrun.run(*arguments)


@pytest.mark.full
def test_a_command_that_python_runs_raises_a_failure_of_a_run(small: list[str]) -> None:
    with pytest.raises(RunError, match=r"^failed: jsonl-naive-en-de-es-s1-"):
        xclrun.run(*small, "strategy=naive", "trainer.lr=1e30")
    with pytest.raises(UsageError, match=r"^hydra/launcher: .* set hydra.launcher.wait=true"):
        xclrun.run(*small, "hydra/launcher=slurm")


@pytest.mark.full
def test_an_interrupt_of_python_saves_a_checkpoint(small: list[str], tmp_path: Path) -> None:
    code = f"import xclrun; xclrun.run(*{[*small, 'trainer.epochs=20']!r})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        while b"1 en" not in (line := process.stdout.readline()):
            assert line, process.stderr.read() if process.stderr else ""
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    assert error.rstrip().endswith(b"KeyboardInterrupt")
    assert xclrun.load(tmp_path / "outputs").records[0].status == "interrupted"


def test_a_prediction_file_that_was_changed_is_refused(study: Study, outputs: Path, tmp_path: Path) -> None:
    import shutil

    run = study.runs(strategy="er").index[0]
    shutil.copytree(outputs / "runs" / run, tmp_path / "runs" / run)
    other = xclrun.load(tmp_path)
    path = tmp_path / "runs" / run / "predictions" / "hop-1.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"hop-1\.parquet has changed"):
        other.predictions(run)


def test_the_stored_outputs_of_the_notebook_are_of_the_demo_that_the_pages_show() -> None:
    root = Path(__file__).parents[1]
    cells = json.loads((root / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["outputs"][0]["data"]["text/plain"]) for cell in cells if cell["cell_type"] == "code"]
    [means], [matrix] = ([text for text in texts if text.startswith(start)] for start in ("measure ", "language "))
    readme = (root / "README.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^(naive|er) .*?([\d.]+) ± ", readme, re.MULTILINE))
    first = means.partition("slot_f1")[0]
    stored = dict(re.findall(r"(naive|er) +([\d.]+)", first))
    assert {name: f"{float(percent) / 100:.3f}" for name, percent in shown.items()} == stored
    tutorial = (root / "docs" / "tutorial.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\d +\S+ +(?:before|trained) +(.*)$", tutorial, re.MULTILINE)[:7]
    percents = [[float(value) for value in row.split()] for row in rows]
    fractions = [[100 * float(value) for value in line.split()[1:]] for line in matrix.splitlines()[2:]]
    np.testing.assert_allclose(percents, fractions, atol=0.051)
    assert np.shape(percents) == (7, 6)


def test_the_notebook_and_the_page_run(outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each code cell of docs/notebook.ipynb and each block of docs/python.md, one after another."""
    docs = Path(__file__).parents[1] / "docs"
    cells = json.loads((docs / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    blocks = re.findall(r"^```python\n(.*?)^```", (docs / "python.md").read_text(encoding="utf-8"), re.DOTALL | re.M)
    assert len(code) > 4
    assert len(blocks) == 4
    # The last block trains; `test_a_command_that_python_runs_…` do, too.
    assert "xclrun.run(" in blocks.pop()
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "demo").symlink_to(outputs)
    (tmp_path / "docs").mkdir()
    # A notebook runs in its own folder.
    for parts, folder in ((code, tmp_path / "docs"), (blocks, tmp_path)):
        monkeypatch.chdir(folder)
        names: dict[str, object] = {}
        for part in parts:
            part = part.replace('"trainer.epochs": 3', '"trainer.epochs": 1')
            exec(compile(part, "docs", "exec"), names)
        assert isinstance(names["study"], Study)
    wrong = names["wrong"]
    assert isinstance(wrong, pd.DataFrame)
    assert set(wrong["hop"]) == {3}
    assert wrong["text"].str.len().gt(0).all()
