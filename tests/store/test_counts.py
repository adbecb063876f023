"""Score matrices come from checked prediction files; what these count is kept, and never changes a number."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from xclrun.analysis.base_scores import of_hops
from xclrun.analysis.record import RunRecord
from xclrun.core.task import INTENT_ACCURACY, SLOT_F1, Metric, MetricsOfKeys
from xclrun.store import counts, predictions, records
from xclrun.store.files import sha256
from xclrun.store.kept import Kept
from xclrun.store.prune import damaged
from xclrun.store.records import read_predictions, read_records
from xclrun.store.rundir import RunDirectory
from xclrun.store.stages import StageStore

LANGUAGES, TAGS, HOPS, SENTENCES = ("en", "de"), ("O", "B-a", "I-a"), 2, 9


def rows(hop: int, seed: int, step: int = 4, splits: tuple[str, ...] = ("test",)) -> Any:
    """Prediction rows of one hop, at random."""
    rng, made = np.random.default_rng([seed, hop, step]), []
    for split in splits:
        for language in LANGUAGES:
            for i in range(SENTENCES):
                tp, fp, fn = rng.integers(0, 3, 3).tolist()
                tags = [0, 1, i % 3], rng.integers(0, 3, 3).tolist()
                made.append(("test" if split == "test" else split, language, f"{i}", i % 4, int(rng.integers(4)),
                             *tags, tp, fp, fn))  # fmt: skip
    names = ("split", "language", "example_id", "gold", "predicted", "gold_tags", "predicted_tags", "tp", "fp", "fn")
    columns = {name: list(values) for name, values in zip(names, zip(*made, strict=True), strict=True)}
    same = {"hop": hop, "step": step, "examples_seen": 8, "log2_gold": -1.0, "log2_gold_tags": -1.0, "tokens": 3}
    return predictions.table(columns | {name: [value] * len(made) for name, value in same.items()})


def write_run(
    outputs: Path, name: str, seed: int, finished: bool = True, points: bool = False, counts: bool = False
) -> RunDirectory:
    """Write a run as training does, but with nonsense for scores in the manifest.

    Args:
        counts: with what its prediction files count, which earlier versions did not write.
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
        own = hop * points
        epoch = {"epoch": 1, "step": 4, "examples": 8, "loss": 1.0, "dev": {"en": nonsense["en"]}}
        training = {"updates": 1, "examples": 1, "tokens": 1, "seconds": 1.0, "epochs": [epoch]}
        if own:
            training["points"] = [{"step": 2, "examples": 4, "own": 4, "dev": nonsense, "test": nonsense}]
            inside = rows(hop, seed, 2, ("dev", "test"))
            predictions.write(directory.points(hop), inside, run_id=name, hop=hop)
        stages.append({"hop": hop, "scores": nonsense, "training": training, "kept": None, "slot_f1": "span_micro"})
    directory.write_manifest(manifest)
    if finished:
        predictions.write(directory.scores, rows(0, 0))
        if counts:
            records.write_counts(directory)
        directory.finish()
    return directory


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    write_run(tmp_path, "a", 1)
    write_run(tmp_path, "b", 2, points=True)
    return tmp_path


def plain(records: list[RunRecord]) -> list[Any]:
    return [record.to_json() for record in records]


def kept(outputs: Path) -> dict[str, Path]:
    """Name of a run → the file that has its counts; here each run has its own."""
    files = sorted((outputs / "cache" / "counts").iterdir())
    return {run_id: file for file in files for run_id, way, *_ in index(file) if not way}


def index(file: Path) -> list[Any]:
    facts: dict[str, Any] = json.loads((pq.ParquetFile(file).metadata.metadata or {}).get(b"xclrun", "{}"))
    return facts.get("index", [])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs whose prediction files are counted."""
    seen: list[str] = []
    count = counts.count

    def counting(directory: RunDirectory, *given: Any) -> Any:
        seen.append(directory.run_id)
        return count(directory, *given)

    monkeypatch.setattr(counts, "count", counting)
    return seen


def test_scores_are_those_of_the_prediction_files_whatever_the_manifest_says(outputs: Path) -> None:
    write_run(outputs, "c", 3, finished=False)
    for record, seed in zip(read_records(outputs), (1, 2, 3), strict=True):
        for hop in range(HOPS + 1):
            if (record.run_id, hop) == ("c", HOPS):
                assert np.isnan(record.scores["slot_f1"][hop]).all()
                continue
            own = of_hops([rows(hop, seed)])
            for j, language in enumerate(LANGUAGES):
                for metric in (INTENT_ACCURACY, SLOT_F1):
                    assert record.scores[metric.name][hop, j] == own[language].scores(metric)[0]
    points = read_records(outputs)[1].points
    assert [point["hop"] for point in points] == [1, 2]
    for point in points:
        for split in ("dev", "test"):
            table = rows(point["hop"], 2, 2, ("dev", "test"))
            own = table.filter([value == split for value in table["split"].to_pylist()])
            own = own.set_column(3, "split", [["test"] * len(own)])
            found = of_hops([own])
            assert point[split] == {
                language: {m.name: found[language].scores(m)[0] for m in (INTENT_ACCURACY, SLOT_F1)}
                for language in LANGUAGES
            }


def test_what_was_counted_is_kept_and_gives_the_same(outputs: Path, counted: list[str]) -> None:
    write_run(outputs, "c", 3, finished=False)
    first = read_records(outputs)
    assert sorted(counted) == ["a", "b", "c"]
    files = kept(outputs)
    assert list(files) == ["a", "b"]
    del counted[:]
    second = read_records(outputs)
    assert counted == ["c"]  # it goes on
    assert plain(second) == plain(first)
    found = read_predictions(outputs, second, pytest.fail)
    assert counted == ["c"]
    fresh = of_hops([rows(hop, 1) for hop in range(HOPS + 1)])["de"]
    for name in ("ids", "gold", "predicted"):
        np.testing.assert_array_equal(getattr(found["a"].sentences["de"], name), getattr(fresh, name))
    np.testing.assert_array_equal(found["a"].sentences["de"].spans, fresh.spans)
    assert found["a"].sentences["de"].ids is found["b"].sentences["de"].ids
    assert kept(outputs) == files
    # A further run is added, one that is gone is left out.
    shutil.rmtree(outputs / "runs" / "a")
    write_run(outputs, "d", 4)
    del counted[:]
    assert [record.run_id for record in read_records(outputs)] == ["b", "c", "d"]
    assert sorted(counted) == ["c", "d"]
    assert kept(outputs).keys() == {"a", "b", "d"}  # until something else is written where it was


def test_a_report_takes_the_counts_that_a_run_wrote_itself(
    outputs: Path, tmp_path_factory: pytest.TempPathFactory, counted: list[str]
) -> None:
    other = tmp_path_factory.mktemp("other")
    for name, seed, points in (("a", 1, False), ("b", 2, True)):
        directory = write_run(other, name, seed, points=points, counts=True)
        assert directory.counts.name in directory.read_done()
    assert counted == ["a", "b"]
    first, own = read_records(outputs), read_records(other)
    assert counted == ["a", "b"] * 2
    assert plain(own) == plain(first)
    # They are kept as those are which the report counted.
    shutil.rmtree(other / "cache")
    theirs = read_predictions(other, own, pytest.fail)
    assert kept(other).keys() == {"a", "b"}
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
    first = plain(read_records(outputs))
    # Another F1 over spans, or another version, has other counts.
    read_records(outputs, slot_f1="tag_macro")
    shutil.rmtree(outputs / "cache")
    with monkeypatch.context() as patched:
        patched.setattr(counts, "FORMAT", counts.FORMAT + 1)
        assert plain(read_records(outputs)) == first
    assert counted == ["a", "b", "a", "b", "a", "b"]
    # A prediction file that was written since: it is looked at, and what has changed is told.
    shutil.rmtree(outputs / "cache")
    del counted[:]
    path = directory.points(2)
    path.write_bytes(path.read_bytes())
    assert plain(read_records(outputs)) == first
    assert counted == ["a", "b"]
    shutil.rmtree(outputs / "cache")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    told: list[str] = []
    assert [record.run_id for record in read_records(outputs, told.append)] == ["b"]
    assert f"{path} has changed since the run finished" in told[0]


def test_own_counts_that_are_damaged_are_named(outputs: Path) -> None:
    directory = write_run(outputs, "a", 1, counts=True)
    content = directory.counts.read_bytes()
    directory.counts.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    told: list[str] = []
    assert [record.run_id for record in read_records(outputs, told.append)] == ["b"]
    assert f"{directory.counts} has changed since the run finished" in told[0]


def test_what_cannot_be_counted_ends_no_run_and_leaves_no_counts_of_an_earlier_attempt(outputs: Path) -> None:
    directory = write_run(outputs, "a", 1, counts=True)
    predictions.write(directory.predictions(1), rows(1, 1).slice(0, 5), run_id="a", hop=1)
    records.write_counts(directory)
    directory.finish()
    assert directory.counts.name not in directory.read_done()
    told: list[str] = []
    assert [record.run_id for record in read_records(outputs, told.append)] == ["b"]
    assert "hops were tested on different sentences" in told[0]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs whose records are made from their files."""
    seen: list[str] = []
    make = records._record

    def making(directory: RunDirectory, *given: Any) -> RunRecord:
        seen.append(directory.run_id)
        return make(directory, *given)

    monkeypatch.setattr(records, "_record", making)
    return seen


def test_records_are_kept_until_a_file_of_their_run_is_written(
    outputs: Path, made: list[str], counted: list[str]
) -> None:
    first = plain(read_records(outputs))
    for _ in range(2):
        assert plain(read_records(outputs)) == first
    assert made == ["a", "b"]
    # Averages come after DONE, and are no part of what was counted.
    averages = RunDirectory(outputs / "runs" / "a").averages
    Kept(averages, "all-hop-1", ".parquet").write(predictions.content(rows(1, 7)))
    second = read_records(outputs)
    assert made == ["a", "b", "a"]
    assert second[0].averaged[0]["test"]["de"]["intent_accuracy"] == of_hops([rows(1, 7)])["de"].right.mean()
    assert counted == ["a", "b"]


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json", "DONE", "predictions/hop-0.parquet"])
def test_a_file_that_is_written_again_has_its_record_made_again(name: str, outputs: Path, made: list[str]) -> None:
    first = plain(read_records(outputs))
    path = outputs / "runs" / "b" / name
    path.write_bytes(path.read_bytes())
    assert plain(read_records(outputs)) == first
    assert made == ["a", "b", "b"]


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json"])
def test_a_damaged_file_is_named_also_where_the_record_is_kept(name: str, outputs: Path) -> None:
    """Even where nothing but its content has changed: no size, no time."""
    read_records(outputs)
    path = outputs / "runs" / "b" / name
    before, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-2] + b" \n" if name == "config.yaml" else content.replace(b"here", b"HERE"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    told: list[str] = []
    assert [record.run_id for record in read_records(outputs, told.append)] == ["a"]
    assert len(told) == 1
    assert str(path) in told[0]


def test_a_record_that_json_would_change_is_not_kept(outputs: Path, made: list[str]) -> None:
    config = outputs / "runs" / "a" / "config.yaml"
    config.write_text(config.read_text() + "numbers: {1: 2}\n")
    RunDirectory(config.parent).finish()
    first = read_records(outputs)
    assert first[0].config["numbers"] == {1: 2}
    assert read_records(outputs)[0].config == first[0].config
    assert made == ["a", "b", "a"]


def test_a_run_that_was_made_again_is_counted_again(outputs: Path, counted: list[str]) -> None:
    first = plain(read_records(outputs))
    write_run(outputs, "a", 5)
    del counted[:]
    second = plain(read_records(outputs))
    assert counted == ["a"]
    assert (first[0] == second[0], first[1] == second[1]) == (False, True)


def test_predictions_of_the_same_size_and_time_but_another_content_are_counted_again(
    outputs: Path, counted: list[str]
) -> None:
    first = plain(read_records(outputs))
    directory = RunDirectory(outputs / "runs" / "a")
    path = directory.predictions(1)
    before = path.stat()
    for seed in range(100, 1000):
        predictions.write(path, rows(1, seed), run_id="a", hop=1)
        if path.stat().st_size == before.st_size:
            break
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    directory.finish()
    del counted[:]
    second = plain(read_records(outputs))
    assert counted == ["a"]
    assert first[0]["scores"] != second[0]["scores"]


def test_counts_of_other_metrics_are_not_taken(tmp_path: Path) -> None:
    """Scores at evaluation points are kept, not counts: those of one metric say nothing of another."""
    directory = write_run(tmp_path, "a", 1, points=True, counts=True)
    manifest = directory.read_manifest()

    def names(*metrics: Metric) -> set[str]:
        reader = counts.CountsOfRuns(tmp_path)
        points = reader.of(directory, manifest, MetricsOfKeys(metrics), None).points
        reader.keep()
        return {name for of in points[1][2]["test"].values() for name in of}

    assert names(INTENT_ACCURACY) == {"intent_accuracy"}
    assert names(INTENT_ACCURACY, SLOT_F1) == {"intent_accuracy", "slot_f1"}
    assert names(SLOT_F1) == {"slot_f1"}


@pytest.mark.parametrize("where", ["hop-1", "points-2"])
def test_a_damaged_prediction_file_is_named_also_where_its_counts_are_kept(where: str, outputs: Path) -> None:
    read_records(outputs)
    path = outputs / "runs" / "b" / "predictions" / f"{where}.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    told: list[str] = []
    assert [record.run_id for record in read_records(outputs, told.append)] == ["a"]
    assert len(told) == 1
    assert f"{path} has changed since the run finished" in told[0]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[:-100],
    "emptied": lambda content: b"",
    "edited": lambda content: content.replace(b"span_micro", b"span_macro").replace(b'"a"', b'"b"', 1),
    "flipped": lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_cache_is_noted_and_made_again_and_nothing_was_missing(
    how: str, outputs: Path, counted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    first = plain(read_records(outputs))
    files = kept(outputs)
    content = files["a"].read_bytes()
    files["a"].write_bytes(DAMAGES[how](content))
    assert files["a"].read_bytes() != content
    assert [line.partition(": ")[0] for line in damaged(StageStore(outputs / "store"), outputs)] == [str(files["a"])]
    told: list[str] = []
    del counted[:]
    assert plain(read_records(outputs, told.append)) == first
    assert counted == ["a"]
    assert told == []
    assert re.findall(r"^note: (.*) is damaged", capsys.readouterr().err, re.MULTILINE) == [str(files["a"])]
    assert kept(outputs) == files
    assert files["a"].read_bytes() == content


def test_a_file_of_another_content_under_a_right_checksum_is_no_cache(outputs: Path, counted: list[str]) -> None:
    first = plain(read_records(outputs))
    files = kept(outputs)
    pq.write_table(pq.read_table(files["a"]).replace_schema_metadata(), files["a"])
    other = files["a"].rename(files["a"].with_name(f"ac-{sha256(files['a'])}.parquet"))
    del counted[:]
    assert plain(read_records(outputs)) == first
    assert counted == ["a"]
    assert kept(outputs) == files
    assert not other.exists()


def test_runs_whose_counts_lie_in_one_file_do_not_disturb_each_other(outputs: Path, counted: list[str]) -> None:
    assert counts._name("r58") == counts._name("a")
    read_records(outputs)
    write_run(outputs, "r58", 7)
    first = read_records(outputs)
    assert kept(outputs)["a"] == kept(outputs)["r58"]
    del counted[:]
    assert plain(read_records(outputs)) == plain(first)
    assert read_predictions(outputs, first, pytest.fail).keys() == {"a", "b", "r58"}
    assert counted == []
    # One that is gone is left out when the file is written again.
    shutil.rmtree(outputs / "runs" / "a")
    write_run(outputs, "r58", 8)
    assert [record.run_id for record in read_records(outputs)] == ["b", "r58"]
    assert counted == ["r58"]
    assert kept(outputs).keys() == {"b", "r58"}


def test_each_file_is_read_once_and_runs_come_by_name(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seed in (("r58", 3), ("c", 4), ("d", 5)):
        write_run(outputs, name, seed)
    read: list[str] = []
    content = Kept.read

    def reading(kept: Kept) -> bytes | None:
        read.append(kept.stem)
        return content(kept)

    monkeypatch.setattr(Kept, "read", reading)
    for _ in range(2):
        found = read_records(outputs)
        assert [record.run_id for record in found] == ["a", "b", "c", "d", "r58"]
        assert read == ["3f", "87", "ac", "c1"]
        del read[:]
    assert [*read_predictions(outputs, found[::-1], pytest.fail)] == ["r58", "d", "c", "b", "a"]
    assert read == ["3f", "87", "ac", "c1"]


def test_the_one_file_of_earlier_versions_is_removed(outputs: Path) -> None:
    old = Kept(outputs / "cache", "counts", ".parquet").write(b"what was counted")
    first = read_records(outputs)
    assert not old.exists()
    assert plain(read_records(outputs)) == plain(first)


def test_a_cache_of_another_version_is_not_read(
    outputs: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = plain(read_records(outputs))
    monkeypatch.setattr(counts, "FORMAT", counts.FORMAT + 1)
    assert plain(read_records(outputs)) == first
    assert counted == ["a", "b"] * 2
    assert len(list((outputs / "cache" / "counts").iterdir())) == 2


def test_where_nothing_can_be_kept_the_numbers_are_the_same(outputs: Path, counted: list[str]) -> None:
    (outputs / "cache").write_text("a file")
    first = plain(read_records(outputs))
    assert plain(read_records(outputs)) == first
    assert counted == ["a", "b"] * 2


def test_another_f1_is_chosen_after_the_fact_and_both_are_kept(outputs: Path, counted: list[str]) -> None:
    micro, macro = read_records(outputs), read_records(outputs, slot_f1="tag_macro")
    assert counted == ["a", "b"] * 2
    assert plain(read_records(outputs)) == plain(micro)
    assert plain(read_records(outputs, slot_f1="tag_macro")) == plain(macro)
    assert counted == ["a", "b"] * 2
    for one, other in zip(micro, macro, strict=True):
        np.testing.assert_array_equal(one.scores["intent_accuracy"], other.scores["intent_accuracy"])
        assert other.config["evaluate"]["slot_f1"] == "tag_macro"
        for hop in range(HOPS + 1):
            expected = of_hops([rows(hop, one.seed)], tags=TAGS)
            assert [of.scores(SLOT_F1)[0] for of in expected.values()] == [*other.scores["slot_f1"][hop][::-1]]
        # Of the dev split no predictions are kept: training scored it in its own way.
        assert [set(epoch["dev"]["en"]) for epoch in one.curve] == [{"intent_accuracy", "slot_f1"}] * 3
        assert [set(epoch["dev"]["en"]) for epoch in other.curve] == [{"intent_accuracy"}] * 3
    # What an earlier version wrote does not say in which: in that of the run's config, whatever is chosen now.
    for path in outputs.glob("runs/*/manifest.json"):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        for stage in manifest["stages"]:
            del stage["slot_f1"]
        path.write_text(json.dumps(manifest), encoding="utf-8")
        RunDirectory(path.parent).finish()
    assert [one.curve for one in read_records(outputs)] == [one.curve for one in micro]
    assert [one.curve for one in read_records(outputs, slot_f1="tag_macro")] == [one.curve for one in macro]
    assert micro[1].points[0]["dev"]["en"] != macro[1].points[0]["dev"]["en"]
    assert json.loads(json.dumps(micro[1].points)) == list(micro[1].points)
