"""A task from outside: the one that docs/extending/task.md shows, from its plan to its export."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.conftest import read_csv
from tests.train.conftest import predicted, stopped
from xclrun.analysis.records import read_records
from xclrun.core import plugins
from xclrun.core.errors import UsageError
from xclrun.core.task import BY_NAME, Column, Metric, Scored, Task, described, register, restored, task_of
from xclrun.launch.matrix import MatrixRows
from xclrun.plan import Run

Make = Callable[..., Run]
PAGE = (Path(__file__).parents[1] / "docs" / "extending" / "task.md").read_text(encoding="utf-8")
[SOURCE] = re.findall(r"^```python\n# file: ratings\.py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
# Writes a text, subword by subword: an encoding of its own, a loss per subword, and a column of text.
WRITER = """
import math

import numpy as np
import torch
from torch import nn

from dataclasses import replace

from xclrun.core.task import Column, Metric, Scored, Task, register
from xclrun.data.batches import Ragged
from xclrun.data.encode import encode
from xclrun.data.encodings import Encoding
from xclrun.data.encodings import register as encoding
from xclrun.model.heads import Head, Output, objects
from xclrun.model.heads import register as head


def encode_texts(examples, tokenizer, target, model):
    encoded = encode(examples, tokenizer, (), (), model.max_length, whole_words=False)
    rows = [tokenizer.encode(e.target, add_special_tokens=False) for e in examples]
    rows = [row[:length] for row, length in zip(rows, encoded.lengths, strict=True)]
    places = Ragged.of([range(len(row)) for row in rows])
    return replace(encoded, word_pieces=places, tags=Ragged.of(rows), tokenizer=tokenizer)


encoding("toy_texts", Encoding(encode_texts))


@head("toy_writer")
class Writer(Head):
    reads_words = True

    def build(self, hidden, sizes):
        self.write = nn.Linear(hidden, 200)

    def answer(self, features):
        return Output(features.cls, emissions=self.write(self.dropout(features.words)))

    def log_likelihood(self, batch, output):
        each = output.emissions.log_softmax(dim=2).gather(2, batch.tags.unsqueeze(2)).squeeze(2)
        return each.masked_fill(~batch.word_mask, 0.0).sum(dim=1)

    def units(self, batch):
        return batch.words

    def predict(self, batch, output):
        log2 = self.log_likelihood(batch, output) / math.log(2)
        return {"pieces": output.emissions.argmax(dim=2), "log2_reference": log2}

    def noted(self, batch, predicted, encoded):
        rows = zip(predicted["pieces"].tolist(), batch.words, strict=True)
        pieces = objects([row[:length] for row, length in rows])
        return {"pieces": pieces, "log2_reference": predicted["log2_reference"].numpy()}

    def columns(self, values, examples, target, encoded):
        texts = [encoded.tokenizer.decode(row) for row in values["pieces"]]
        bits = values["log2_reference"].tolist()
        return {"generated": texts, "log2_reference": bits, "reference": [e.target for e in examples]}


def bits_and_bytes(sentences):
    size = [[len(text.encode()) for text in row] for row in sentences.columns["reference"]]
    return sentences.stacked(-sentences.columns["log2_reference"], size)


BITS = Metric(
    "writing_bits", "writing", "bits of the reference", Scored.columns, "text", "texts", statistics=bits_and_bytes,
    higher_is_better=False, unit="bits per byte",
)
COLUMNS = Column("generated", "string"), Column("log2_reference", "float32"), Column("reference", "string")
register(Task("writing", target=str, own=(BITS,), columns=COLUMNS, head="toy_writer", encoding="toy_texts"))
"""
WORDS = {1.0: ("sunny", "warm", "bright"), 0.0: ("rain", "cold", "grey")}


@pytest.fixture(autouse=True)
def ratings(forget_plugins: Callable[[], None], tmp_path: Path) -> Path:
    """Load the task of the page; return its file."""
    path = tmp_path / "ratings.py"
    path.write_text(SOURCE, encoding="utf-8")
    plugins.load_files(["--plugin", str(path)])
    return path


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ratings in three languages, as JSON Lines: the first word tells the rating."""
    folder = tmp_path_factory.mktemp("rated")
    for language in ("en", "de", "es"):
        for split, size in (("train", 12), ("dev", 4), ("test", 6)):
            rows = [
                {"text": f"{WORDS[i % 2 * 1.0][i % 3]} day {i} {language}", "target": i % 2, "id": f"{split}{i}"}
                for i in range(size)
            ]
            path = folder / language / f"{split}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def copied(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


def rows(run: Run, hop: int = -1) -> list[dict[str, Any]]:
    files = sorted((run.directory.path / "predictions").iterdir())
    return list(pq.read_table(files[hop]).to_pylist())


def test_a_task_of_its_own_is_trained_predicted_and_scored(make_run: Make, do: Make, rated: Path) -> None:
    """Its error falls; its columns are those of its head; its metric is the mean of their squared differences."""
    run = do(make_run("dataset.task=rating", "strategy=er", "trainer.epochs=3", "model.lr=2e-2", data=rated))
    before, after = ([row for row in rows(run, hop) if row["split"] == "test"] for hop in (0, -1))
    assert [row["gold_rating"] for row in after] == [float(row["example_id"][4:]) % 2 for row in after]
    errors = [np.mean([(row["rating"] - row["gold_rating"]) ** 2 for row in of]) for of in (before, after)]
    assert errors[1] < errors[0] / 2
    assert {(row["gold"], row["predicted"], row["gold_tags"]) for row in after} == {(None, None, None)}
    [record] = read_records(run.outputs)
    final = record.scores["rating_mse"][-1]
    for language, value in zip(record.languages, final, strict=True):
        of = [(row["rating"] - row["gold_rating"]) ** 2 for row in after if row["language"] == language]
        assert value == pytest.approx(np.mean(of), rel=1e-5)
    # The epoch with the lowest error is selected.
    [*_, stage] = run.directory.read_manifest()["stages"]
    dev = [np.mean([scores["rating_mse"] for scores in epoch["dev"].values()]) for epoch in stage["training"]["epochs"]]
    assert stage["training"]["best_epoch"] == 1 + int(np.argmin(dev))


@pytest.mark.full
def test_a_stopped_run_of_it_resumes_to_equal_predictions(make_run: Make, do: Make, rated: Path) -> None:
    overrides = ("dataset.task=rating", "strategy=er", "trainer.precision=fp32")
    whole = do(make_run(*overrides, outputs="whole", data=rated))
    run = do(stopped(make_run(*overrides, data=rated), do, 2, 5))
    assert predicted(run) == predicted(whole)
    assert run.id == whole.id


@pytest.mark.full
def test_its_runs_are_planned_shown_reported_and_exported(
    make_run: Make,
    do: Make,
    rated: Path,
    xclrun: Callable[..., tuple[int, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XCLRUN_OUTPUTS", raising=False)
    monkeypatch.chdir(tmp_path)
    run = do(make_run("dataset.task=rating", "strategy=naive", data=rated))
    given = ("dataset=jsonl", f"dataset.root={rated}", "dataset.task=rating", "model=tiny")
    rows = MatrixRows(run.stream.languages, [BY_NAME["rating_mse"]], run.stream.languages, 80, False)
    assert "in points²" in rows.legend
    for words, part in (
        (("plan", *given), "naive"),
        (("plan", "--params", *given, "--json"), "other head"),
        (("show", run.id), "finished"),
        (("model", "export", run.id, str(tmp_path / "exported")), ""),
        (("report",), "MSE"),
    ):
        code, said = xclrun(*words)
        assert code == 0, f"{words[0]}: {said}"
        assert part in said
    facts = json.loads((tmp_path / "exported" / "export.json").read_text())
    assert facts["heads"] == {"rating": "The mean of a normal distribution with variance 1."}
    [report] = (run.outputs / "reports").iterdir()
    assert set(read_csv(report / "summary.csv")["metric"]) == {"rating_mse"}


def test_a_merge_selected_on_dev_shows_scores_in_their_unit_and_takes_the_lowest_error(
    make_run: Make, do: Make, rated: Path, xclrun: Callable[..., tuple[int, str]]
) -> None:
    run = do(make_run("dataset.task=rating", "strategy=naive", "order=[en,de]", data=rated))
    given = ("--method", "task_arithmetic", "--coefficient", "scale=5,0.5", "--select-on", "dev")
    code, said = xclrun("model", "merge", run.id, "--outputs", str(run.outputs), *given)
    assert code == 0, said
    of = dict(re.findall(r": (scale=\S+): dev (\d+\.\d{3}) points²$", said, re.MULTILINE))
    assert len(of) == 2
    assert f"with {min(of, key=lambda name: float(of[name]))}, chosen on dev" in said


def test_another_target_is_another_run(make_run: Make, rated: Path, tmp_path: Path) -> None:
    data = copied(rated, tmp_path / "data")
    first = make_run("dataset.task=rating", data=data)
    path = data / "en" / "train.jsonl"
    path.write_text(path.read_text().replace('"target": 1', '"target": 3', 1))
    # The dataset that was read last is kept.
    other = make_run("dataset.task=rating", "dataset.subset_seed=7", data=data)
    assert first.dataset.fingerprints["en", "train"] != other.dataset.fingerprints["en", "train"]
    assert first.dataset.fingerprints["de", "train"] == other.dataset.fingerprints["de", "train"]


def test_a_head_from_another_file_is_part_of_the_run_s_identity(make_run: Make, rated: Path, tmp_path: Path) -> None:
    (tmp_path / "head.py").write_text(
        "from xclrun.model.heads import HEADS, register\n\n\n"
        "@register('rating_elsewhere')\nclass Elsewhere(HEADS['rating']):\n    pass\n"
    )
    (tmp_path / "task.py").write_text(
        "from dataclasses import replace\nfrom xclrun.core.task import register, task_of\n\n"
        "register(replace(task_of('rating'), name='elsewhere', columns=(), head='rating_elsewhere'))\n"
    )
    plugins.load_files([text for name in ("head.py", "task.py") for text in ("--plugin", str(tmp_path / name))])
    used = make_run("dataset.task=elsewhere", data=rated).config.plugins["dataset"]
    assert {Path(line.split("  ")[1]).name for line in used} == {"head.py", "task.py"}


def test_it_is_one_task_of_several(make_run: Make, do: Make, rated: Path, corpus: Path) -> None:
    """Rows of the other tasks have its missing value, and its rows have theirs."""
    parts = (
        f"dataset.parts={{moods: {{reader: jsonl, root: {rated}, languages: [en], task: rating}}, "
        f"kinds: {{reader: jsonl, root: {corpus}, languages: [de], task: sequence_class}}}}"
    )
    run = do(make_run(parts, "dataset.name=several", "order=[moods,kinds]", "strategy=er"))
    of = {row["language"]: row for row in rows(run)}
    assert of["kinds"]["rating"] is None
    assert of["kinds"]["gold"] is not None
    assert (of["moods"]["gold"], math.isfinite(of["moods"]["rating"])) == (None, True)
    [record] = read_records(run.outputs)
    assert record.metric_of == {"moods": "rating_mse", "kinds": "class_accuracy"}


@pytest.mark.parametrize(
    ("row", "message"),
    [({"target": "much"}, "'target' 'much'"), ({}, "'target' is missing"), ({"targt": 1.0}, "did you mean 'target'")],
)
def test_a_bad_target_is_an_error_with_its_line(
    row: dict[str, Any], message: str, make_run: Make, rated: Path, tmp_path: Path
) -> None:
    data = copied(rated, tmp_path / "data")
    with (data / "en" / "train.jsonl").open("a") as file:
        file.write(json.dumps({"text": "a day", **row}) + "\n")
    with pytest.raises(UsageError, match=rf"en.train.jsonl.*13.*{re.escape(message)}"):
        make_run("dataset.task=rating", data=data)


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"head": "ratin"}, "unknown head 'ratin'; did you mean 'rating'"),
        ({"encoding": "word"}, "unknown encoding 'word'; did you mean 'words'"),
        ({"columns": (Column("gold", "float32"),)}, "its column 'gold' has the name of another column"),
        ({"columns": (Column("rating", "string"),)}, "its column 'rating' has the name of another column"),
        ({"columns": (Column("stars", "float33"),)}, "column 'stars': unknown type 'float33'"),
    ],
)
def test_a_task_that_names_what_is_not_there_is_one_line(
    changed: dict[str, Any], message: str, make_run: Make, do: Make, rated: Path
) -> None:
    metric = Metric("stars_error", "stars", "error", Scored.columns, "star", "stars", statistics=lambda s: s)
    # A name for each, since the dataset that was read last is kept with its task.
    name = f"stars{len(message)}"
    task = replace(task_of("rating"), name=name, own=(metric,), **{"columns": (), **changed})

    def run() -> None:
        register(task)
        do(make_run(f"dataset.task={name}", data=rated))

    with pytest.raises(UsageError, match=message):
        run()


def test_a_manifest_describes_a_task_of_its_own() -> None:
    task = task_of("rating")
    again = restored(json.loads(json.dumps(described(task))))
    assert (again.own, again.columns, again.head) == (task.own, task.columns, task.head)
    assert again.own[0] is BY_NAME["rating_mse"]


def test_a_strategy_that_needs_classes_refuses_it(make_run: Make, rated: Path) -> None:
    with pytest.raises(UsageError, match=r"strategy=er_ace dataset.task=rating: .*no classes"):
        make_run("dataset.task=rating", "strategy=er_ace", data=rated)


def test_a_task_needs_no_metric_of_labels_but_some_metric() -> None:
    with pytest.raises(UsageError, match="needs a metric"):
        register(Task("nothing"))


@pytest.mark.full
def test_a_task_that_writes_has_its_own_encoding_and_a_loss_per_subword(
    make_run: Make, do: Make, rated: Path, tmp_path: Path
) -> None:
    """Texts are stored and scored in bits per byte; two micro-batches give the epoch's loss of one."""
    (tmp_path / "writer.py").write_text(WRITER)
    plugins.load_files(["--plugin", str(tmp_path / "writer.py")])
    data = copied(rated, tmp_path / "data")
    for path in data.rglob("*.jsonl"):
        of = [json.loads(line) for line in path.read_text().splitlines()]
        of = [{**row, "target": "the day is good" if row["target"] else "bad"} for row in of]
        path.write_text("".join(json.dumps(row) + "\n" for row in of))
    with pytest.raises(UsageError, match="strategy=mbpa: the loss of Writer is no mean over sentences"):
        do(make_run("dataset.task=writing", "strategy=mbpa", outputs="mbpa", data=data))
    overrides = ("dataset.task=writing", "strategy=er", "model.dropout=0", "trainer.selection=last")
    one = do(make_run(*overrides, data=data))
    two = do(make_run(*overrides, "trainer.batch_size=2", "trainer.gradient_accumulation=2", outputs="two", data=data))
    losses = [
        [
            epoch["loss"]
            for stage in run.directory.read_manifest()["stages"][1:]
            for epoch in stage["training"]["epochs"]
        ]
        for run in (one, two)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    last = [row for row in rows(one) if row["split"] == "test"]
    assert all(isinstance(row["generated"], str) for row in last)
    bits = [-row["log2_reference"] for row in last if row["language"] == "es"]
    size = sum(len(row["reference"].encode()) for row in last if row["language"] == "es")
    [record] = read_records(one.outputs)
    place = record.languages.index("es")
    assert record.scores["writing_bits"][-1][place] == pytest.approx(sum(bits) / size, rel=1e-5)
    assert record.scores["writing_bits"][-1][place] < record.scores["writing_bits"][0][place]
