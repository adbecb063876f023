"""Documents for language modelling: text files, JSON Lines, or a dataset of the ``datasets`` library.

``{language}/{split}.txt`` contains documents between blank lines; a document keeps its line ends. A row of JSON Lines
or of ``dataset.hub`` has ``text`` and optionally ``id``; ``dataset.hub_columns`` maps the keys of hub datasets.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from xclrun.config.schema import DatasetConfig
from xclrun.data.example import Example
from xclrun.data.readers import hub, reader
from xclrun.data.readers.collect import Notes, Place, Source, Splits, collect
from xclrun.data.readers.files import blocks, find_files, lines
from xclrun.data.readers.rows import field, json_row, text_example

ENDS = ("txt", "txt.gz", "jsonl", "jsonl.gz")
LAYOUT = tuple(f"{{language}}{separator}{{split}}.{end}" for end in ENDS for separator in "/.")


@reader("documents", LAYOUT, gives=["text"])
def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Documents: text files with blank lines between documents, or rows with `text`."""
    if cfg.hub is not None:
        return collect(cfg, hub.sources(cfg, ("id", "language", "text"), [("text",)]), parse)
    sources = []
    for file in find_files(cfg, LAYOUT):
        plain = ".txt" in file.path.suffixes
        rows: Any = blocks(file) if plain else map(bytes.strip, lines(file))
        odd = {"ignored_files": file.ignored} if file.ignored else {}
        sources.append(Source(file.language, file.split, file.name, rows, odd=odd))
    return collect(cfg, sources, partial(parse))


def parse(row: Any, place: Place) -> Example:
    """Return the document of a block of lines, of a line of JSON, or of a row of a hub dataset."""
    if isinstance(row, list):
        return text_example(place, None, "\n".join(row))
    content = json_row(row) if isinstance(row, str) else row
    return text_example(place, field(content, "name", "id", optional=True), field(content, "text", "text"))
