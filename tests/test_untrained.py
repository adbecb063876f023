"""Languages without training data: the error of a strategy that would train on them gives settings that work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from xclrun.core.errors import UsageError
from xclrun.plan import Run

JSONL = ("dataset=jsonl", "dataset.task=sequence_class")


@pytest.fixture
def planned(make_run: Callable[..., Run], tmp_path: Path) -> Callable[..., Run]:
    """Plan a run on two languages with training data and one with a test split alone."""
    rows = "".join(json.dumps({"text": word, "label": word}) + "\n" for word in ("a", "b"))
    for name in ("de.train", "de.dev", "de.test", "en.train", "en.test", "yo.test"):
        (tmp_path / f"{name}.jsonl").write_text(rows)
    return lambda *overrides: make_run(*JSONL, *overrides, data=tmp_path)


@pytest.mark.parametrize(
    ("strategy", "order"), [("naive", "[de,yo,en]"), ("multilingual", "[de,en+yo]"), ("lang_spec_ft", "[yo,en,de]")]
)
def test_settings_of_the_error_work(planned: Callable[..., Run], strategy: str, order: str) -> None:
    with pytest.raises(UsageError) as refused:
        planned(f"strategy={strategy}", f"order={order}")
    settings = re.search(r"in 'yo'; set (\S+ order=\S+) \(.*, or (order=\S+)$", str(refused.value))
    assert settings
    assert "yo" in planned(*settings[1].split()).stream.languages
    assert "yo" not in planned(f"strategy={strategy}", settings[2]).stream.languages


def test_zero_shot_needs_training_data_in_the_first_language(planned: Callable[..., Run]) -> None:
    with pytest.raises(UsageError, match="begin the order with en"):
        planned("strategy=zero_shot", "order=[yo,en,de]")
    with pytest.raises(UsageError, match="add a language with training data"):
        planned("order=[yo]")
