"""Score matrices are computed from verified prediction files, and stored counts give the same numbers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from xclrun.analysis.record import RunRecord
from xclrun.analysis.records import read_predictions, read_records
from xclrun.core.task import INTENT_ACCURACY, SLOT_F1, Metric, MetricsOfKeys
from xclrun.scores import counts
from xclrun.scores.base_scores import of_hops
from xclrun.scores.counts import write_counts
from xclrun.store import predictions
from xclrun.store.rundir import RunDirectory

LANGUAGES, TAGS, HOPS, SENTENCES = ("en", "de"), ("O", "B-a", "I-a"), 2, 9


def rows(hop: int, seed: int, step: int = 4, splits: tuple[str, ...] = ("test",)) -> Any:
    """Prediction rows of one hop, at random."""
    rng, created = np.random.default_rng([seed, hop, step]), []
    for split in splits:
        for language in LANGUAGES:
            for i in range(SENTENCES):
                tp, fp, fn = rng.integers(0, 3, 3).tolist()
                tags = [0, 1, i % 3], rng.integers(0, 3, 3).tolist()
                created.append(("test" if split == "test" else split, language, f"{i}", i % 4, int(rng.integers(4)),
                             *tags, tp, fp, fn))  # fmt: skip
    names = ("split", "language", "example_id", "gold", "predicted", "gold_tags", "predicted_tags", "tp", "fp", "fn")
    columns = {name: list(values) for name, values in zip(names, zip(*created, strict=True), strict=True)}
    same = {"hop": hop, "step": step, "examples_seen": 8, "log2_gold": -1.0, "log2_gold_tags": -1.0, "tokens": 3}
    return predictions.table(columns | {name: [value] * len(created) for name, value in same.items()})


def write_run(
    outputs: Path, name: str, seed: int, finished: bool = True, points: bool = False, counts: bool = False
) -> RunDirectory:
    """Write a run as training does, but with nonsense for scores in the manifest.

    Args:
        counts: with what its prediction files count, as training writes it.
    """
    directory, stages = RunDirectory(outputs / "runs" / name), []
    config = {
        "dataset": {"name": "made", "task": "intent_slots"}, "model": {"name": "tiny"}, "strategy": {"name": "naive"},
        "order": {"name": "h2l"}, "seed": seed, "bucket": None, "evaluate": {"slot_f1": "span_micro"},
    }  # fmt: skip
    manifest = {
        "run_id": name, "status": "finished", "started": "", "host": "here", "environment": {}, "labels": list("abcd"),
        "tags": list(TAGS), "data": {"fingerprint": "f"}, "stream": {"kind": "sequence", "languages": list(LANGUAGES)},
        "code_version": "", "algorithms": 1, "encoder": "", "strategy_version": 1, "stages": stages,
    }  # fmt: skip
    directory.open(yaml.safe_dump(config), manifest)
    for hop in range(HOPS + 1 if finished else HOPS):
        predictions.write(directory.predictions(hop), rows(hop, seed), run_id=name, hop=hop)
        nonsense = {language: {"intent_accuracy": 0.5, "slot_f1": 0.5} for language in LANGUAGES}
        local = hop * points
        epoch = {"epoch": 1, "step": 4, "examples": 8, "loss": 1.0, "dev": {"en": nonsense["en"]}}
        training = {"updates": 1, "examples": 1, "tokens": 1, "seconds": 1.0, "epochs": [epoch]}
        if local:
            training["points"] = [{"step": 2, "examples": 4, "own": 4, "dev": nonsense, "test": nonsense}]
            inside = rows(hop, seed, 2, ("dev", "test"))
            predictions.write(directory.points(hop), inside, run_id=name, hop=hop)
        stages.append(
            {"hop": hop, "train": "", "training": training, "kept": None, "shared": False, "slot_f1": "span_micro"}
        )
    directory.write_manifest(manifest)
    if finished:
        predictions.write(directory.scores, rows(0, 0))
        if counts:
            write_counts(directory)
        directory.finish()
    return directory


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    write_run(tmp_path, "a", 1)
    write_run(tmp_path, "b", 2, points=True)
    return tmp_path


def plain(records: list[RunRecord]) -> list[Any]:
    return [record.to_json() for record in records]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs whose prediction files are counted."""
    seen: list[str] = []
    count = counts.count

    def counting(directory: RunDirectory, *arguments: Any) -> Any:
        seen.append(directory.run_id)
        return count(directory, *arguments)

    monkeypatch.setattr(counts, "count", counting)
    return seen


def test_scores_are_those_of_the_prediction_files_whatever_the_manifest_says(outputs: Path) -> None:
    write_run(outputs, "c", 3, finished=False)
    for record, seed in zip(read_records(outputs), (1, 2, 3), strict=True):
        for hop in range(HOPS + 1):
            if (record.run_id, hop) == ("c", HOPS):
                assert np.isnan(record.scores["slot_f1"][hop]).all()
                continue
            local = of_hops([rows(hop, seed)])
            for j, language in enumerate(LANGUAGES):
                for metric in (INTENT_ACCURACY, SLOT_F1):
                    assert record.scores[metric.name][hop, j] == local[language].scores(metric)[0]
    points = read_records(outputs)[1].points
    assert [point["hop"] for point in points] == [1, 2]
    for point in points:
        for split in ("dev", "test"):
            table = rows(point["hop"], 2, 2, ("dev", "test"))
            local = table.filter([value == split for value in table["split"].to_pylist()])
            local = local.set_column(3, "split", [["test"] * len(local)])
            result = of_hops([local])
            assert point[split] == {
                language: {m.name: result[language].scores(m)[0] for m in (INTENT_ACCURACY, SLOT_F1)}
                for language in LANGUAGES
            }


def test_the_counts_that_a_run_wrote_give_what_counting_gives(
    outputs: Path, tmp_path_factory: pytest.TempPathFactory, counted: list[str]
) -> None:
    other = tmp_path_factory.mktemp("other")
    for name, seed, points in (("a", 1, False), ("b", 2, True)):
        directory = write_run(other, name, seed, points=points, counts=True)
        assert directory.counts.name in directory.read_done()
    del counted[:]
    local = read_records(other)
    theirs = read_predictions(other, local, pytest.fail)
    assert counted == []
    assert theirs["a"].sentences["de"].ids is theirs["b"].sentences["de"].ids
    first = read_records(outputs)
    assert plain(local) == plain(first)
    for run_id, mine in read_predictions(outputs, first, pytest.fail).items():
        for language, sentences in mine.sentences.items():
            same = theirs[run_id].sentences[language]
            for name in ("ids", "gold", "predicted", "spans"):
                np.testing.assert_array_equal(getattr(same, name), getattr(sentences, name))
    assert counted == ["a", "b"] * 2


def test_a_runs_own_counts_are_not_taken_where_they_may_be_others_than_its_files_have(
    outputs: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_run(outputs, "a", 1, points=True, counts=True)
    del counted[:]
    first = plain(read_records(outputs))
    assert counted == ["b"]
    # Another F1 over spans, or another version, has other counts.
    read_records(outputs, slot_f1="tag_macro")
    with monkeypatch.context() as patched:
        patched.setattr(counts, "FORMAT", counts.FORMAT + 1)
        assert plain(read_records(outputs)) == first
    assert counted == ["b", "a", "b", "a", "b"]
    # A prediction file that was written since is looked at, and what has changed is reported.
    path = directory.points(2)
    path.write_bytes(path.read_bytes())
    assert plain(read_records(outputs)) == first
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    output: list[str] = []
    assert [record.run_id for record in read_records(outputs, output.append)] == ["b"]
    assert f"{path} has changed since the run finished" in output[0]


def test_a_config_that_json_would_change_is_read_from_yaml(outputs: Path) -> None:
    directory = RunDirectory(outputs / "runs" / "a")
    directory.config.write_text(directory.config.read_text() + "numbers: {1: 2}\n")
    write_counts(directory)
    directory.finish()
    assert read_records(outputs)[0].config["numbers"] == {1: 2}


def test_own_counts_that_are_damaged_are_named(outputs: Path) -> None:
    directory = write_run(outputs, "a", 1, counts=True)
    content = directory.counts.read_bytes()
    directory.counts.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    output: list[str] = []
    assert [record.run_id for record in read_records(outputs, output.append)] == ["b"]
    assert f"{directory.counts} has changed since the run finished" in output[0]


def test_what_cannot_be_counted_ends_no_run_and_leaves_no_counts_of_an_earlier_attempt(outputs: Path) -> None:
    directory = write_run(outputs, "a", 1, counts=True)
    predictions.write(directory.predictions(1), rows(1, 1).slice(0, 5), run_id="a", hop=1)
    write_counts(directory)
    directory.finish()
    assert directory.counts.name not in directory.read_done()
    output: list[str] = []
    assert [record.run_id for record in read_records(outputs, output.append)] == ["b"]
    assert "hops were tested on different sentences" in output[0]


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json"])
def test_a_damaged_file_is_named(name: str, outputs: Path) -> None:
    read_records(outputs)
    path = outputs / "runs" / "b" / name
    before, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-2] + b" \n" if name == "config.yaml" else content.replace(b"here", b"HERE"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    output: list[str] = []
    assert [record.run_id for record in read_records(outputs, output.append)] == ["a"]
    assert len(output) == 1
    assert str(path) in output[0]


def test_counts_of_other_metrics_are_not_taken(tmp_path: Path) -> None:
    directory = write_run(tmp_path, "a", 1, points=True, counts=True)
    manifest = directory.read_manifest()

    def names(*metrics: Metric) -> set[str]:
        points = counts.read(
            directory, manifest, MetricsOfKeys(metrics), None, counts.Common(), counts.stored(directory)
        ).points
        return {name for entry in points[1][2]["test"].values() for name in entry}

    assert names(INTENT_ACCURACY) == {"intent_accuracy"}
    assert names(INTENT_ACCURACY, SLOT_F1) == {"intent_accuracy", "slot_f1"}
    assert names(SLOT_F1) == {"slot_f1"}


def test_counts_with_further_metrics_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a plug-in's metric was loaded for is read without it, and without counting again."""
    directory = write_run(tmp_path, "a", 1, points=True, counts=True)
    monkeypatch.setattr(counts, "count", lambda *_: pytest.fail("counted again"))
    stored = counts.stored(directory)
    manifest = directory.read_manifest()
    read = counts.read(directory, manifest, MetricsOfKeys((SLOT_F1,)), None, counts.Common(), stored)
    assert read.predictions.matrix(SLOT_F1, LANGUAGES).shape == (HOPS + 1, len(LANGUAGES))


@pytest.mark.parametrize("where", ["hop-1", "points-2"])
def test_a_damaged_prediction_file_is_named(where: str, outputs: Path) -> None:
    write_run(outputs, "b", 2, points=True, counts=True)
    path = outputs / "runs" / "b" / "predictions" / f"{where}.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    output: list[str] = []
    assert [record.run_id for record in read_records(outputs, output.append)] == ["a"]
    assert len(output) == 1
    assert f"{path} has changed since the run finished" in output[0]


def test_another_f1_is_chosen_after_the_fact(outputs: Path) -> None:
    micro, macro = read_records(outputs), read_records(outputs, slot_f1="tag_macro")
    for item, other in zip(micro, macro, strict=True):
        np.testing.assert_array_equal(item.scores["intent_accuracy"], other.scores["intent_accuracy"])
        assert other.config["evaluate"]["slot_f1"] == "tag_macro"
        for hop in range(HOPS + 1):
            expected = of_hops([rows(hop, item.seed)], tags=TAGS)
            assert [entry.scores(SLOT_F1)[0] for entry in expected.values()] == [*other.scores["slot_f1"][hop][::-1]]
        # Of the dev split no predictions are kept: training scored it in its own way.
        assert [set(epoch["dev"]["en"]) for epoch in item.curve] == [{"intent_accuracy", "slot_f1"}] * 3
        assert [set(epoch["dev"]["en"]) for epoch in other.curve] == [{"intent_accuracy"}] * 3
    assert micro[1].points[0]["dev"]["en"] != macro[1].points[0]["dev"]["en"]
    assert json.loads(json.dumps(micro[1].points)) == list(micro[1].points)
