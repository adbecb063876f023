"""Configs and small datasets for the readers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xclrun.config.schema import DatasetConfig


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., DatasetConfig]:
    """Make the config of a dataset under tmp_path."""

    def make(reader: str = "mtop", **options: Any) -> DatasetConfig:
        return DatasetConfig(**{"name": reader, "reader": reader, "root": str(tmp_path), **options})

    return make


def mtop_line(
    tokens: str = "call mum now",
    slots: str = "5:8:SL:CONTACT",
    intent: str | None = "IN:CREATE_CALL",
    id: str | None = "1",
    json_tokens: Any = None,
    **columns: str,
) -> str:
    """Return a line of MTOP for a sentence whose tokens are its words; the defaults give a valid line."""
    words = tokens.split(" ")
    starts = [len(" ".join([*words[:i], ""])) for i in range(len(words))]
    spans = [{"start": s, "length": len(w)} for s, w in zip(starts, words, strict=True)]
    last = (
        json.dumps({"tokens": words, "tokenSpans": spans}, ensure_ascii=False) if json_tokens is None else json_tokens
    )
    middle = [slots, columns.get("utterance", tokens), "calling", "en_XX", "", last]
    return "\t".join(field for field in (id, intent, *middle) if field is not None)


@pytest.fixture
def mtop_root(tmp_path: Path) -> Callable[..., Path]:
    """Write good splits for some languages under tmp_path, in MTOP's layout."""

    def write(*languages: str, sizes: tuple[int, int, int] = (3, 2, 2)) -> Path:
        for language in languages:
            for name, size in zip(("train.txt", "eval.txt", "test.txt"), sizes, strict=True):
                path = tmp_path / language / name
                path.parent.mkdir(exist_ok=True)
                path.write_text("".join(mtop_line(id=str(i)) + "\n" for i in range(size)), encoding="utf-8")
        return tmp_path

    return write
