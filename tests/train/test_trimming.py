"""A trimmed vocabulary changes neither what is learned nor what is predicted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.strategy.real import weights
from xclrun.plan import Run
from xclrun.store import predictions
from xclrun.train.encodings import encodings

from .conftest import stored

Make = Callable[..., Run]
Do = Callable[..., Run]

SHORT = ("order=[en,de]", "trainer.epochs=1")
TRIM = "model.trim_vocabulary=true"
TABLE = "encoder.embeddings.word_embeddings.weight"


def rows(run: Run) -> pd.DataFrame:
    """Return all predictions of a run."""
    tables = [predictions.read(run.directory.predictions(stage.hop.index)).to_pandas() for stage in run.stages]
    return pd.concat(tables).drop(columns="run_id")


def sizes(run: Run) -> dict[str, int]:
    return run.directory.read_manifest()["vocabulary"]


@pytest.fixture
def both(alone: Callable[..., Any], make_run: Make, do: Do) -> Callable[..., tuple[Run, Run]]:
    """Do a run with the whole vocabulary and with the trimmed one."""

    def get(*overrides: str) -> tuple[Run, Run]:
        whole, trimmed = alone(*overrides, *SHORT)[2], do(make_run(*overrides, *SHORT, TRIM))
        assert sizes(whole)["kept"] == sizes(whole)["encoder"] == sizes(trimmed)["encoder"]
        assert sizes(trimmed)["kept"] < sizes(trimmed)["encoder"]
        return whole, trimmed

    return get


# Where nothing is summed over all parameters, the same numbers are computed in the same order.
EXACT = [
    ("strategy=naive",),
    ("strategy=naive", "trainer.optimizer=adamw", "trainer.weight_decay=0.1"),
    ("strategy=er",),
    ("strategy=kd_logit",),
    ("strategy=kd_rep",),
    ("strategy=lang_spec_embed",),
    ("strategy=lang_spec_trans",),
    ("strategy=lang_spec_ada_t",),
    ("strategy=lang_spec_ada_f",),
]


@pytest.mark.some_cases
@pytest.mark.parametrize("overrides", EXACT, ids=" ".join)
def test_predictions_and_weights_are_the_same(overrides: tuple[str, ...], both: Callable[..., tuple[Run, Run]]) -> None:
    whole, trimmed = both(*overrides)
    pd.testing.assert_frame_equal(rows(whole), rows(trimmed), check_exact=True)
    kept = encodings(trimmed).token_ids
    assert kept is not None
    for hop in range(1, len(whole.stages)):
        remaining, right = weights(whole, hop), weights(trimmed, hop)
        remaining[TABLE] = remaining[TABLE][torch.from_numpy(kept)]
        assert remaining.keys() == right.keys()
        assert all(torch.equal(remaining[name], right[name]) for name in remaining)


# Norms and dot products over all parameters are sums in another order: the same but for the last bits.
SUMMED = [
    ("strategy=naive", "trainer.clip_norm=0.5"),
    ("strategy=ewc_online",),
    ("strategy=agem",),
]


@pytest.mark.some_cases
@pytest.mark.parametrize("overrides", SUMMED, ids=" ".join)
def test_sums_over_all_parameters_differ_in_rounding_alone(
    overrides: tuple[str, ...], both: Callable[..., tuple[Run, Run]]
) -> None:
    whole, trimmed = map(rows, both(*overrides))
    measured = ["log2_gold", "log2_gold_tags"]
    pd.testing.assert_frame_equal(whole.drop(columns=measured), trimmed.drop(columns=measured))
    for name in measured:
        np.testing.assert_allclose(whole[name], trimmed[name], rtol=1e-3, atol=1e-3)


def test_nothing_is_shared_with_other_vocabularies(
    make_run: Make, do: Do, changed_corpus: Callable[..., Any], corpus: Any
) -> None:
    """The rows that are kept follow from all splits of all languages, so one test sentence makes other weights."""

    def edit(result: list[dict[str, Any]]) -> None:
        result[0]["tokens"][0] = "wwwwww"

    first, again = make_run(TRIM), make_run(TRIM, "order=[es,en,de]")
    other, whole = make_run(TRIM, data=changed_corpus({("es", "test"): edit})), make_run()
    assert first.stages[0].train == again.stages[0].train
    assert len({run.stages[0].train for run in (first, other, whole)}) == 3
    do(first)
    assert stored(first.store).keys().isdisjoint({stage.train for run in (other, whole) for stage in run.stages})


def test_the_padding_and_the_special_pieces_stay(make_run: Make) -> None:
    result = encodings(make_run(TRIM))
    assert result.token_ids is not None
    assert set(result.tokenizer.all_special_ids) <= set(result.token_ids.tolist())
    for split in result.splits.values():
        assert split.pad == result.tokenizer.pad_token_id
    whole = encodings(make_run())
    for name, split in whole.splits.items():
        assert np.array_equal(result.token_ids[result.splits[name].pieces.values], split.pieces.values)
        batch, twin = split.batch([0, 1, 2]), result.splits[name].batch([0, 1, 2])
        assert torch.equal(torch.from_numpy(result.token_ids)[twin.input_ids], batch.input_ids)
        renumbered = {"pieces", "ids", "languages"}
        same = {f.name for f in dataclasses.fields(split)} - renumbered
        assert all(repr(getattr(split, key)) == repr(getattr(result.splits[name], key)) for key in same)


def test_buckets_keep_the_same_pieces(make_run: Make, do: Do) -> None:
    """What a bucket lacks stays in the vocabulary, so that all buckets share the untrained model."""
    few = ("shots=1", "dataset.buckets.sampler=minimum", TRIM)
    runs = [make_run(*few, f"bucket={b}") for b in (0, 1)] + [make_run(TRIM)]
    assert runs[0].data_fingerprint != runs[1].data_fingerprint
    assert len({run.stages[0].train for run in runs}) == 1
    kept = []
    for run in runs:
        result = encodings(run).token_ids
        assert result is not None
        kept.append(result.tolist())
    assert kept[0] == kept[1] == kept[2]
    assert sizes(do(runs[0]))["kept"] == len(kept[0])
