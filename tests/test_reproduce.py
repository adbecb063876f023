"""`benchmarks.reproduce`: a run of a result page, done anew, is compared with the page's counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reproduce import Difference, anew, cells, commands, differences, main, page_matrices, planned
from tests.conftest import SMALL

RESULTS = Path(__file__).parents[1] / "docs" / "results"
MATRICES = "run_id,strategy,order,seed,metric,hop,en,de,fr\n"
CELLS = {("intent_accuracy", "1", "en"): "3/4", ("slot_f1", "1", "en"): "0/0", ("slot_f1", "1", "de"): "2/8"}


@pytest.mark.parametrize(
    ("changed", "found", "points"),
    [
        ({}, [], []),
        ({("intent_accuracy", "1", "en"): "2/4"}, [("3/4", "2/4")], [25.0]),
        # The same score of other counts is another result.
        ({("intent_accuracy", "1", "en"): "6/8"}, [("3/4", "6/8")], [0.0]),
        ({("slot_f1", "1", "en"): "1/2"}, [("0/0", "1/2")], [50.0]),
        ({("slot_f1", "1", "de"): ""}, [("2/8", "")], [100.0]),
        ({("slot_f1", "2", "en"): "1/2"}, [("", "1/2")], [100.0]),
    ],
)
def test_every_count_that_differs_is_found_on_either_side(
    changed: dict, found: list[tuple[str, str]], points: list[float]
) -> None:
    differ = differences(CELLS, CELLS | changed)
    assert [(one.was, one.now) for one in differ] == found
    assert [one.points for one in differ] == points


def test_scores_without_counts_are_compared_digit_by_digit() -> None:
    assert Difference("slot_f1", "1", "en", "0.25", "0.5").points == 25.0
    assert not differences({("slot_f1", "1", "en"): "0.1"}, {("slot_f1", "1", "en"): "0.1"})


def test_commands_of_a_page_are_those_that_train_with_the_folder_of_the_data(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "    xclrun plan sweep=one dataset.root=DIR -m --budget     # DIR/{en,de}.txt\n"
        "    xclrun sweep=one 'order=[en,de]' dataset.root=DIR -m      # a part\n"
        "text xclrun sweep=three -m\n    xclrun report one --into page.md\n"
    )
    assert commands(page, Path("/data")) == [["sweep=one", "order=[en,de]", "dataset.root=/data", "-m"]]


def test_cells_are_of_one_run_and_its_own_languages(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "page"
    folder.mkdir()
    (folder / "a-matrices.csv").write_text(f"{MATRICES}r1,naive,x,1,slot_f1,0,1/2,,\nr1,naive,x,1,slot_f1,1,2/2,,\n")
    (folder / "b-matrices.csv").write_text(f"{MATRICES}r2,naive,x,1,slot_f1,0,,1/2,\n")
    matrices = page_matrices(page)
    assert cells(matrices, "r1") == {("slot_f1", "0", "en"): "1/2", ("slot_f1", "1", "en"): "2/2"}
    assert cells(matrices, "r2") == {("slot_f1", "0", "de"): "1/2"}


def test_pages_with_matrices_print_commands_that_train() -> None:
    pages = [page for page in sorted(RESULTS.glob("*.md")) if any(page.with_suffix("").glob("*-matrices.csv"))]
    assert pages
    assert all(commands(page, Path("data")) for page in pages)


@pytest.mark.full
def test_a_run_of_a_page_is_done_anew_and_a_changed_count_is_seen(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, threads: None
) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "page"
    words = [text for text in SMALL if not text.startswith("dataset.root=")]
    line = " ".join(f"'{text}'" for text in (*words, "order=[en,de]", "strategy=zero_shot", "seed=1,2"))
    page.write_text(f"# Page\n\n    xclrun {line} dataset.root=DIR -m\n")
    assert main([str(page), str(corpus)]) == 2
    assert "no score matrices" in capsys.readouterr().err
    folder.mkdir()
    (folder / "few-matrices.csv").write_text(f"{MATRICES}gone,naive,x,1,slot_f1,0,1/2,,\n")
    assert main([str(page), str(corpus)]) == 2
    assert "gone: no command of" in capsys.readouterr().err
    from xclrun.command.plan import plan_runs

    (run_id,) = (run.id for run in plan_runs([*commands(page, corpus)[0]]) if run.config.seed == 2)
    made = anew(planned(page, corpus, run_id, tmp_path / "first"), tmp_path / "first")
    made.to_csv(folder / "few-matrices.csv", index=False)
    assert main([str(page), str(corpus)]) == 0
    assert capsys.readouterr().out.endswith(f"identical: all {len(cells(made.astype(str), run_id))} counts\n")
    again = made.copy()
    monkeypatch.setattr("benchmarks.reproduce.anew", lambda run, outputs: again)
    right, _, whole = made.loc[made["hop"] == 1, "en"].iloc[0].partition("/")
    made.loc[made["hop"] == 1, "en"] = f"{int(right) + 1}/{whole}"
    made.to_csv(folder / "few-matrices.csv", index=False)
    assert main([str(page), str(corpus)]) == 1
    assert "DIFFERENT: " in (output := capsys.readouterr().out)
    assert f"hop 1, en: {int(right) + 1}/{whole} → {right}/{whole}" in output
    assert main([str(page), str(corpus), "--outputs", str(tmp_path / "first")]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main([str(page), str(corpus), "--run", run_id[:-1]]) == 2
    assert f"did you mean '{run_id}'?" in capsys.readouterr().err
