"""Read and write buckets in the published layout: one folder per (K, language, bucket number).

``{task}/{K}-shots/{language}/{b}-th/sampled.json`` contains examples with labels: a dict label → list of examples with
``uid``, ``text_a``, ``text_b`` and ``label``; ``…/train.tsv`` contains sentences with tags: ``word TAB tag``, and a
blank line between sentences. ``task`` is the dataset's name, and optional; languages are named by their key (``de``) or
in English (``german``).

xclrun adds ``bucket.json`` to the folder. It contains a fingerprint of the examples, which is checked on reading, the
settings of the sampler, and the ids and texts that ``train.tsv`` cannot contain. In ``sampled.json``, xclrun adds
``tokens`` and ``tags`` if they do not follow from ``text_a``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from xclrun.core.errors import UsageError
from xclrun.core.task import task_of
from xclrun.data.example import Example, fingerprint
from xclrun.data.readers.collect import BadRow, Place, Source, check_tags, read_source
from xclrun.data.readers.files import SplitFile, blocks, json_file
from xclrun.data.readers.rows import field, own_text, tagged
from xclrun.store.files import atomic_write, write_json

CLASSES, TAGS, OURS = "sampled.json", "train.tsv", "bucket.json"

NAMES = {
    "ar": "arabic", "bg": "bulgarian", "de": "german", "el": "greek", "en": "english", "es": "spanish", "fi": "finnish",
    "fr": "french", "hi": "hindi", "it": "italian", "ja": "japanese", "ko": "korean", "ru": "russian", "sw": "swahili",
    "th": "thai", "tr": "turkish", "ur": "urdu", "vi": "vietnamese", "zh": "chinese",
}  # fmt: skip


@dataclass(frozen=True)
class Bucket:
    """One bucket.

    Attributes:
        language: language key.
        shots: K.
        drawn: sampler settings, as in ``bucket.json``; empty for published buckets.
        file: path of the bucket's file, for errors; empty if the bucket was drawn instead of read.
    """

    language: str
    shots: int
    number: int
    examples: tuple[Example, ...]
    drawn: dict[str, Any]
    file: str = ""

    @property
    def name(self) -> str:
        """The bucket's folder, relative to the task's folder: ``4-shots/de/7-th``."""
        return f"{self.shots}-shots/{self.language}/{self.number}-th"


def write(root: Path, bucket: Bucket) -> bool:
    """Write a bucket below ``root`` (the task's folder); return False if it exists already."""
    folder = root / bucket.name
    with_labels = bucket.examples[0].label is not None
    content = _json(bucket.examples) if with_labels else _tsv(bucket.examples)
    path = folder / (CLASSES if with_labels else TAGS)
    checksum = fingerprint(bucket.examples)
    if path.is_file():
        if path.read_bytes() == content.encode() and _ours(folder).get("fingerprint") == checksum:
            return False
        raise UsageError(f"{path}: contains another bucket; remove it, or write to another folder")
    ours: dict[str, Any] = {"fingerprint": checksum, "shots": bucket.shots, "bucket": bucket.number, **bucket.drawn}
    if not with_labels:
        ours |= {"ids": [e.id for e in bucket.examples], "texts": [e.text for e in bucket.examples]}
    # bucket.json comes last: a bucket without it counts as published.
    atomic_write(path, content)
    write_json(folder / OURS, ours)
    return True


def find(root: Path, task: str, language: str, shots: int, number: int) -> Path:
    """Return the folder of one bucket, below ``root/task`` or ``root``."""
    names = (language, NAMES[language]) if language in NAMES else (language,)
    below = [f"{shots}-shots/{name}/{number}-th" for name in names]
    for base in (root / task, root):
        for name in below:
            if (base / name).is_dir():
                return base / name
    if not root.is_dir():
        raise UsageError(f"dataset.buckets.root={root}: is not a folder")
    tasks = sorted({task for task, *_ in walk(root)})
    content = f"it has buckets of {', '.join(tasks)}" if tasks else "it has no buckets"
    raise UsageError(f"dataset.buckets.root={root}: no {' or '.join(below)} in it or in its folder {task}; {content}")


def walk(root: Path) -> Iterator[tuple[str, str, int, int, Path]]:
    """Yield (task, language, K, number, folder) of every bucket below ``root``.

    ``task`` is the relative path of the folder with ``{K}-shots``; ``.`` for ``root`` itself.
    """
    keys = {name: key for key, name in NAMES.items()}
    buckets = []
    # Unlike a glob with "**", this does not list thousands of bucket folders.
    for base, folders, _ in os.walk(root):
        k = re.fullmatch(r"([1-9]\d*)-shots", os.path.basename(base))
        if k is None or Path(base) == root:
            continue
        task = Path(base).parent.relative_to(root).as_posix()
        for name in folders:
            buckets += [
                (task, keys.get(name, name), int(k[1]), int(b[1]), Path(entry.path))
                for entry in os.scandir(os.path.join(base, name))
                if (b := re.fullmatch(r"(0|[1-9]\d*)-th", entry.name)) and entry.is_dir()
            ]
        folders.clear()
    yield from sorted(buckets)


def load(folder: Path, language: str, shots: int, number: int, allow_empty: bool = False) -> Bucket:
    """Read the bucket in a folder.

    Args:
        allow_empty: accept a file without examples, as some published buckets have.
    """
    path = next((folder / name for name in (CLASSES, TAGS) if os.path.exists(folder / name)), None)
    if path is None:
        raise UsageError(f"{folder}: has neither {CLASSES} nor {TAGS}")
    ours, file = _ours(folder), str(path)
    labelled = path.name == CLASSES
    rows = list(_labelled_rows(path) if labelled else blocks(SplitFile(language, "train", path, file)))
    examples: tuple[Example, ...] = ()
    if any(rows) or not allow_empty:
        source = Source(language, "train", file, rows, "example" if labelled else "")
        # The task is unknown, so only the number of tags is checked.
        examples = read_source(
            source, _labelled if labelled else partial(tagged, word=_word), task_of("token_tags", "words"), {}
        )
    if path.name == TAGS:
        ids = ours.get("ids", [f"{shots}-shots-{number}-{i}" for i in range(1, len(examples) + 1)])
        texts = ours.get("texts", [None] * len(examples))
        if len(ids) != len(examples) or len(texts) != len(examples):
            raise UsageError(f"{path}: {len(examples)} sentences, but {OURS} in the same folder names {len(ids)}")
        examples = tuple(
            Example(id, language, e.tokens, None, e.tags, text)
            for e, id, text in zip(examples, ids, texts, strict=True)
        )
    if ours and fingerprint(examples) != ours["fingerprint"]:
        raise UsageError(f"{path}: differs from the fingerprint in {OURS}; draw the bucket again, or remove {OURS}")
    drawn = {key: value for key, value in ours.items() if key not in ("fingerprint", "ids", "texts")}
    return Bucket(language, shots, number, examples, drawn, file)


def _ours(folder: Path) -> dict[str, Any]:
    """Return the content of ``bucket.json``; empty without the file."""
    path = folder / OURS
    if not path.exists():
        return {}
    content = json_file(path, str(path))
    if not isinstance(content.get("fingerprint"), str):
        raise UsageError(f"{path}: has no fingerprint, so xclrun did not write it; remove it")
    return content


def _json(examples: Sequence[Example]) -> str:
    by_label: dict[str, list[dict[str, Any]]] = {}
    for e in examples:
        row: dict[str, Any] = {"uid": e.id, "text_a": e.whole, "text_b": e.text_b, "label": e.label}
        if tuple(e.whole.split()) != e.tokens:
            row["tokens"] = list(e.tokens)
        if e.tags is not None:
            row["tags"] = list(e.tags)
        by_label.setdefault(str(e.label), []).append(row)
    return json.dumps(by_label, ensure_ascii=False, indent=1) + "\n"


def _labelled_rows(path: Path) -> Iterator[tuple[str, Any]]:
    for label, rows in json_file(path, str(path), "; a bucket must be an object label → list of examples").items():
        if not isinstance(rows, list):
            raise UsageError(f"{path}: label '{label}' has no list of examples")
        yield from ((label, row) for row in rows)


def _labelled(row: tuple[str, Any], place: Place) -> Example:
    label, content = row
    if not isinstance(content, dict):
        raise BadRow(f"must be an object below the label '{label}', not {type(content).__name__}")
    place.id, text = field(content, "string", "uid"), field(content, "string", "text_a")
    if str(field(content, "name", "label")) != label:
        raise BadRow(f"'label' is {content['label']!r} below the label '{label}'")
    text_b = field(content, "string", "text_b", optional=True)
    tokens = field(content, "strings", "tokens", optional=True)
    words = tuple(text.split() if tokens is None else tokens)
    if not words:
        raise BadRow("the text is blank")
    tags = field(content, "strings", "tags", optional=True)
    if tags is not None:
        check_tags(tags, words, place.task)
        tags = tuple(tags)
    return Example(place.id, place.language, words, label, tags, own_text(text, words), text_b or None)


def _tsv(examples: Sequence[Example]) -> str:
    sentences = []
    for e in examples:
        assert e.tags is not None
        for text in (*e.tokens, *e.tags):
            if not text.strip() or set(text) & {"\t", "\n", "\r"}:
                raise UsageError(f"'{e.id}' in {e.language}: {TAGS} cannot contain {text!r}")
        sentences.append("".join(f"{word}\t{tag}\n" for word, tag in zip(e.tokens, e.tags, strict=True)))
    return "\n".join(sentences)


def _word(line: str) -> tuple[str, str]:
    word, tab, tag = line.partition("\t")
    if not tab or "\t" in tag or not word.strip() or not tag.strip():
        raise BadRow(f"{line!r} is not word TAB tag")
    return word, tag
