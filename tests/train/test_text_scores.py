"""Runs that write texts, from the readers of texts to the scores and the report."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.conftest import read_csv
from tests.model.decoders import write_decoder
from xclrun.analysis.records import read_records
from xclrun.core.task import select_metrics
from xclrun.plan import Run

Make = Callable[..., Run]
SETTINGS = ("dataset.reader=texts", "dataset.task=text_to_text", "model.max_length=40", "model.max_target=8",
            "generation.max_new_tokens=6", "model.dropout=0", "strategy=naive", "order=[en,de]")  # fmt: skip
ANSWERS = {"en": ("six", "Rome"), "de": ("sechs", "Anna")}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Choices in English; German completions with two references."""
    folder = tmp_path_factory.mktemp("texts")
    for language, answers in ANSWERS.items():
        for split, size in (("train", 10), ("dev", 4), ("test", 6)):
            rows: list[dict[str, Any]] = [{"prompt": f"{'a b'[: 3 * (i % 2)]} me at"} for i in range(size)]
            for i, row in enumerate(rows):
                other = {"choices": list(answers), "answer": i % 2}
                row |= other if language == "en" else {"completion": [answers[i % 2], "x"]}
            path = folder / language / f"{split}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("decoder"))


def rows(run: Run, hop: int, language: str) -> list[dict[str, Any]]:
    table = pq.read_table(sorted((run.directory.path / "predictions").iterdir())[hop])
    return [row for row in table.to_pylist() if (row["language"], row["split"]) == (language, "test")]


@pytest.mark.full
def test_written_texts_and_choices_are_scored(
    make_run: Make,
    do: Make,
    texts: Path,
    decoder: Path,
    xclrun: Callable[..., tuple[int, str]],
    forget_plugins: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    overrides = (*SETTINGS, f"model.path={decoder}", "trainer.epochs=3", "model.lr=4e-2")
    run = do(make_run(*overrides, data=texts))
    select_metrics(["bleu", "rouge_l"])
    [record] = read_records(run.outputs)
    scores = {metric: dict(zip(record.languages, R.T, strict=True)) for metric, R in record.scores.items()}
    for hop in range(3):
        german, english = (rows(run, hop, language) for language in ("de", "en"))
        written, streams = (
            [row["generated"] for row in german],
            zip(*(row["references"] for row in german), strict=True),
        )
        of = [list(stream) for stream in streams]
        assert 100 * scores["chrf"]["de"][hop] == pytest.approx(sacrebleu.corpus_chrf(written, of).score, abs=1e-5)
        assert 100 * scores["bleu"]["de"][hop] == pytest.approx(sacrebleu.corpus_bleu(written, of).score, abs=1e-5)
        hits = [row["generated"] in row["references"] for row in german]
        assert scores["text_exact"]["de"][hop] == pytest.approx(np.mean(hits))
        assert scores["ended"]["de"][hop] == pytest.approx(np.mean([row["ended"] for row in german]))
        chosen = [int(np.argmax(row["choice_log2"])) for row in english]
        assert scores["text_choice"]["en"][hop] == pytest.approx(np.mean([i % 2 == c for i, c in enumerate(chosen)]))
        assert math.isnan(scores["text_choice"]["de"][hop])
        bits, size = (-sum(row["log2_reference"] for row in german), sum(row["reference_bytes"] for row in german))
        assert scores["reference_bits"]["de"][hop] == pytest.approx(bits / size, rel=1e-5)
    assert scores["text_exact"]["de"][-1] == 1
    # The report resamples sentences.
    monkeypatch.chdir(tmp_path)
    code, said = xclrun("report", "--outputs", str(run.outputs), "--metric", "bleu")
    assert code == 0, said
    [report] = (run.outputs / "reports").iterdir()
    metrics = set(read_csv(report / "summary.csv")["metric"])
    assert {"reference_bits", "text_exact", "chrf", "bleu"} <= metrics


def test_frames_of_another_task_are_written(make_run: Make, do: Make) -> None:
    run = do(
        make_run(
            "dataset=mini", "dataset.as_text=frames", "dataset.max_train=6", "dataset.max_eval=3", "model=tiny_decoder",
            "model.vocab_size=300", "generation.max_new_tokens=6", "order=[en,de]", "strategy=naive",
            "trainer.epochs=1", "trainer.patience=null",
        )
    )  # fmt: skip
    [record] = read_records(run.outputs)
    assert np.isfinite(record.scores["reference_bits"]).all()
    # Without choices, there are no scores of choices.
    assert list(record.scores) == ["reference_bits", "text_exact", "chrf", "ended"]
    assert all("[" in row["references"][0] or " " not in row["references"][0] for row in rows(run, 1, "de"))
    assert run.directory.read_manifest().get("task") is None
