"""Sizes of parameters from an encoder's shape, compared with those of the built model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import some
from xclrun.compose.jobs import Composed
from xclrun.core.errors import UsageError
from xclrun.core.task import TASKS
from xclrun.model.folder import BERTS
from xclrun.model.network import skeleton
from xclrun.model.shape import HeadSizes, sizes_of
from xclrun.strategy.shared.parameters import sizes

from .pretrained import CONFIG, write_encoder

Compose = Callable[..., Composed]
# Language models have shapes of their own.
HEADS = [HeadSizes(task, 5, 7 if task.tag is not None else 0) for task in TASKS.values() if not task.writes]
# Heads of a model: those of each task, and of tasks together, with a pooler among them and without.
TOGETHER = [(of,) for of in HEADS] + [tuple(HEADS), tuple(of for of in HEADS if not of.task.pooled)]
GIVEN = (
    *((f"model.family={family}",) for family in BERTS),
    ("model.layers=1", "model.positions=20", "model.max_length=19", "model.token_types=1", "model.family=roberta"),
    ("model=mbert", "model.layers=2"),
    ("model=xlmr", "model.layers=1"),
)


@pytest.mark.parametrize("values", GIVEN, ids=" ".join)
def test_the_shape_says_the_parameters_of_the_model(values: tuple[str, ...], compose: Compose) -> None:
    config = compose(*values).config.model
    for heads in some(TOGETHER if values[0] == "model.family=bert" else TOGETHER[-2:]):
        first, several = heads[0], heads if len(heads) > 1 else ()
        for vocabulary in (None, 11):
            built = skeleton(config, first.classes, first.tags, vocabulary, first.task, several)
            result = sizes_of(config, heads, vocabulary)
            assert result is not None
            assert result == sizes(built)


@pytest.mark.parametrize("family", BERTS)
def test_a_folder_says_it_as_well(family: str, compose: Compose, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "model_type": family, "pad_token_id": 1}))
    for values in ((), ("model.layers=1",)):
        config = compose("model=mbert", f"model.path={folder}", *values).config.model
        for vocabulary in (None, 9):
            result = sizes_of(config, HEADS[:1], vocabulary)
            assert result is not None
            assert result == sizes(skeleton(config, 5, 7, vocabulary))


@pytest.mark.parametrize(
    "output",
    [
        {"model_type": "electra"},
        {"position_embedding_type": "relative_key"},
        {"pruned_heads": {"0": [1]}},
        {"type_vocab_size": None},
    ],
)
def test_an_odd_encoder_is_left_to_the_model_itself(
    output: dict[str, object], compose: Compose, tmp_path: Path
) -> None:
    folder = write_encoder(tmp_path / "encoder")
    (folder / "config.json").write_text(json.dumps(CONFIG | output))
    assert sizes_of(compose("model=mbert", f"model.path={folder}").config.model, HEADS[:1], None) is None


def test_settings_of_a_family_are_left_to_the_model_itself(compose: Compose) -> None:
    config = compose().config.model
    assert sizes_of(config, HEADS[:1], None) is not None
    assert sizes_of(replace(config, settings={"type_vocab_size": 3}), HEADS[:1], None) is None


@pytest.mark.parametrize(("family", "longest"), [("bert", 20), ("roberta", 19)])
def test_fewer_positions_than_the_length_are_refused_with_the_longest_possible_value(
    family: str, longest: int, compose: Compose
) -> None:
    """RoBERTa's positions begin after the padding's, so one of 20 cannot be used: training on it failed."""
    values = (f"model.family={family}", "model.positions=20")
    assert sizes_of(compose(*values, f"model.max_length={longest}").config.model, HEADS[:1], 11)
    with pytest.raises(
        UsageError, match=rf"^model\.max_length={longest + 1}: .*; set model\.max_length={longest} or less$"
    ):
        sizes_of(compose(*values, f"model.max_length={longest + 1}").config.model, HEADS[:1], 11)
