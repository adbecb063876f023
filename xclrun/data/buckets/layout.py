"""The published layout of buckets: one folder per (K, language, bucket id), written and read.

``{task}/{K}-shots/{language}/{b}-th/sampled.json`` holds examples with labels: a dict label → list of examples with
``uid``, ``text_a``, ``text_b`` and ``label``; ``…/train.tsv`` holds sentences with tags: ``word TAB tag``, blank line
between sentences. ``task`` is the dataset's name, or is left out; languages go by their key (``de``) or their English
name (``german``).

What we write has a file ``bucket.json`` in the same folder: a fingerprint of the examples, which is checked when they
are read, how they were drawn, and the ids and texts that ``train.tsv`` cannot hold. In ``sampled.json`` an example has
``tokens`` and ``tags`` too, where ``text_a`` does not say them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xclrun.core.errors import UsageError
from xclrun.core.task import task_of
from xclrun.data.example import Example, fingerprint
from xclrun.data.readers.files import BadRow, Place, Source, SplitFile, blocks, check_tags, json_file, read_source
from xclrun.data.readers.rows import own_text, strings, strings_of, tagged
from xclrun.store.files import atomic_write, write_json

CLASSES, TAGS, OURS = "sampled.json", "train.tsv", "bucket.json"

NAMES = {
    "ar": "arabic", "bg": "bulgarian", "de": "german", "el": "greek", "en": "english", "es": "spanish", "fi": "finnish",
    "fr": "french", "hi": "hindi", "it": "italian", "ja": "japanese", "ko": "korean", "ru": "russian", "sw": "swahili",
    "th": "thai", "tr": "turkish", "ur": "urdu", "vi": "vietnamese", "zh": "chinese",
}  # fmt: skip


@dataclass(frozen=True)
class Bucket:
    """The examples of one bucket and what they were drawn as.

    Attributes:
        language: key of the dataset's part.
        shots: K.
        number: the bucket's id.
        examples: what it holds, in order.
        drawn: how it was drawn, as ``bucket.json`` says it; empty where others wrote it.
        shown: its file, for error lines; empty where it was drawn just now.
    """

    language: str
    shots: int
    number: int
    examples: tuple[Example, ...]
    drawn: dict[str, Any]
    shown: str = ""

    @property
    def name(self) -> str:
        """The place in the layout below the task: ``4-shots/de/7-th``."""
        return f"{self.shots}-shots/{self.language}/{self.number}-th"


def write(root: Path, bucket: Bucket) -> bool:
    """Write a bucket below ``root`` (the task's folder); return whether it was not there yet."""
    folder = root / bucket.name
    with_labels = bucket.examples[0].label is not None
    content = _json(bucket.examples) if with_labels else _tsv(bucket.examples)
    path = folder / (CLASSES if with_labels else TAGS)
    mark = fingerprint(bucket.examples)
    if path.is_file():
        if path.read_bytes() == content.encode() and _ours(folder).get("fingerprint") == mark:
            return False
        raise UsageError(f"{path}: another bucket is there; remove it, or write to another folder")
    ours: dict[str, Any] = {"fingerprint": mark, "shots": bucket.shots, "bucket": bucket.number, **bucket.drawn}
    if not with_labels:
        ours |= {"ids": [e.id for e in bucket.examples], "texts": [e.text for e in bucket.examples]}
    # The mark comes last: without it the bucket would be taken for one that others wrote.
    atomic_write(path, content)
    write_json(folder / OURS, ours)
    return True


def find(root: Path, task: str, language: str, shots: int, number: int) -> Path:
    """Return the folder of one bucket.

    Args:
        root: holds the folder ``task``, or what would be in it.
    """
    names = (language, NAMES[language]) if language in NAMES else (language,)
    below = [f"{shots}-shots/{name}/{number}-th" for name in names]
    for base in (root / task, root):
        for name in below:
            if (base / name).is_dir():
                return base / name
    if not root.is_dir():
        raise UsageError(f"dataset.buckets.root={root}: is no folder")
    having = sorted({task for task, *_ in walk(root)})
    there = f"it holds buckets of {', '.join(having)}" if having else "it holds no bucket"
    raise UsageError(f"dataset.buckets.root={root}: no {' or '.join(below)} in it or in its folder {task}; {there}")


def walk(root: Path) -> Iterator[tuple[str, str, int, int, Path]]:
    """Yield (task, language, K, bucket id, folder) of every bucket below ``root``; the task's folder may be left out.

    ``task`` is the path to the folder that holds ``{K}-shots``, relative to ``root``; ``.`` for ``root`` itself.
    """
    keys = {name: key for key, name in NAMES.items()}
    found = []
    # Thousands of folders: those of buckets themselves are not looked into, as a glob of "**" would.
    for base, folders, _ in os.walk(root):
        k = re.fullmatch(r"([1-9]\d*)-shots", os.path.basename(base))
        if k is None or Path(base) == root:
            continue
        task = Path(base).parent.relative_to(root).as_posix()
        for name in folders:
            found += [
                (task, keys.get(name, name), int(k[1]), int(b[1]), Path(entry.path))
                for entry in os.scandir(os.path.join(base, name))
                if (b := re.fullmatch(r"(0|[1-9]\d*)-th", entry.name)) and entry.is_dir()
            ]
        folders.clear()
    yield from sorted(found)


def load(folder: Path, language: str, shots: int, number: int, allow_empty: bool = False) -> Bucket:
    """Read the bucket in a folder.

    Args:
        allow_empty: return a bucket without examples where the file holds none, as some published ones do.
    """
    path = next((folder / name for name in (CLASSES, TAGS) if os.path.exists(folder / name)), None)
    if path is None:
        raise UsageError(f"{folder}: holds neither {CLASSES} nor {TAGS}")
    ours, shown = _ours(folder), str(path)
    labelled = path.name == CLASSES
    rows = list(_labelled_rows(path) if labelled else blocks(SplitFile(language, "train", path, shown)))
    examples: tuple[Example, ...] = ()
    if any(rows) or not allow_empty:
        source = Source(language, "train", shown, rows, "example" if labelled else "")
        # Tags may be of any task: only that there is one for each word is checked.
        examples = read_source(source, _labelled if labelled else _tagged, task_of("token_tags", "words"), {})
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
        raise UsageError(f"{path}: is not what {OURS} in the same folder says; make the bucket again, or remove {OURS}")
    drawn = {key: value for key, value in ours.items() if key not in ("fingerprint", "ids", "texts")}
    return Bucket(language, shots, number, examples, drawn, shown)


def _ours(folder: Path) -> dict[str, Any]:
    """Return what ``bucket.json`` says; empty if there is none."""
    path = folder / OURS
    if not path.exists():
        return {}
    found = json_file(path, str(path))
    if not isinstance(found.get("fingerprint"), str):
        raise UsageError(f"{path}: has no fingerprint; it is not a file that xclrun wrote")
    return found


def _json(examples: Sequence[Example]) -> str:
    found: dict[str, list[dict[str, Any]]] = {}
    for e in examples:
        row: dict[str, Any] = {"uid": e.id, "text_a": e.whole, "text_b": e.text_b, "label": e.label}
        if tuple(e.whole.split()) != e.tokens:
            row["tokens"] = list(e.tokens)
        if e.tags is not None:
            row["tags"] = list(e.tags)
        found.setdefault(str(e.label), []).append(row)
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def _labelled_rows(path: Path) -> Iterator[tuple[str, Any]]:
    for label, rows in json_file(path, str(path), "; a bucket is an object label → list of examples").items():
        if not isinstance(rows, list):
            raise UsageError(f"{path}: label '{label}' has no list of examples")
        yield from ((label, row) for row in rows)


def _labelled(row: tuple[str, Any], place: Place) -> Example:
    """Return the example of a row below its label."""
    label, found = row
    if not isinstance(found, dict):
        raise BadRow(f"is not an object, below the label '{label}'")
    uid, text = strings(found, "uid", "text_a")
    place.id = uid
    if not isinstance(found.get("label"), str | int) or str(found["label"]) != label:
        raise BadRow(f"its own label is {found.get('label')!r}, not '{label}'")
    if found.get("text_b") is not None:
        strings(found, "text_b")
    tokens, tags = strings_of(found, "tokens"), strings_of(found, "tags")
    words = tuple(text.split()) if tokens is None else tokens
    if not words:
        raise BadRow("the text is blank")
    if tags is not None:
        check_tags(tags, words, place.task)
    return Example(uid, place.language, words, label, tags, own_text(text, words), found.get("text_b") or None)


def _tsv(examples: Sequence[Example]) -> str:
    sentences = []
    for e in examples:
        assert e.tags is not None
        for text in (*e.tokens, *e.tags):
            if not text.strip() or set(text) & {"\t", "\n", "\r"}:
                raise UsageError(f"'{e.id}' in {e.language}: {TAGS} cannot hold {text!r}")
        sentences.append("".join(f"{word}\t{tag}\n" for word, tag in zip(e.tokens, e.tags, strict=True)))
    return "\n".join(sentences)


def _tagged(block: list[str], place: Place) -> Example:
    return tagged(block, place, _word)


def _word(line: str) -> tuple[str, str]:
    word, tab, tag = line.partition("\t")
    if not tab or "\t" in tag or not word.strip() or not tag.strip():
        raise BadRow(f"{line!r} is not word TAB tag")
    return word, tag
